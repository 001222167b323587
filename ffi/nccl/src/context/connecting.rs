//! Listeners, and comms from their beginning to their end. Only the call that closes a sending comm waits for a peer.

use core::fmt::Write as _;
use core::time::Duration;

use doorbell::link::LinkId;

use super::comm::{Comm, Owed, Receives, Sends, Side, Stage};
use super::state::{Listener, PeerLink};
use super::{Context, DRAIN_WITHIN};
use crate::abi::{HANDLE_BYTES, NcclResult};
use crate::failure::Failure;
use crate::handle::NetHandle;
use crate::places::{Key, PLACES_MAX};
use crate::relay::search::leads_nowhere;

/// The advice for a peer that is not a neighbour.
const NOTHING_IS_RELAYED: &str = "; nothing is relayed, so order the ranks such that neighbours in a ring share a subnet, \
    or set DOORBELL_NCCL_RELAYS on all hosts";

/// The advice if relays are set, and none helped.
const NO_RELAY: &str = "; no relay of DOORBELL_NCCL_RELAYS leads there, for the reasons above";

impl Context {
    /// Opens a listener. Returns it with the handle that leads to it.
    pub(crate) fn listen(&mut self) -> Result<(Key, [u8; HANDLE_BYTES]), Failure> {
        let full = || Failure::system("the limit of open listeners is reached: close some");
        let key = self.state.listeners.add(Listener::default()).ok_or_else(full)?;
        let handle = NetHandle {
            listener: key,
            attempt: None,
            handle: self.door,
        };
        let bytes = handle.to_bytes();
        // The handle of the process was created so that it fits.
        let bytes =
            bytes.ok_or_else(|| Failure::new(NcclResult::INTERNAL_ERROR, "the handle is too long"))?;
        Ok((key, bytes))
    }

    /// Begins or continues to connect a comm, and returns it after it is open. The attempt is recorded in the handle meanwhile.
    pub(crate) fn connect(&mut self, bytes: &mut [u8; HANDLE_BYTES]) -> Result<Option<Key>, Failure> {
        self.check_works()?;
        let mut handle = NetHandle::parse(bytes).map_err(Failure::argument)?;
        let known = handle.attempt.filter(|key| {
            let comm = self.state.comms.get(*key);
            comm.is_some_and(|comm| self.is_attempt(comm, &handle))
        });
        let key = match known {
            Some(key) => key,
            None => {
                let key = self.begin(&handle)?;
                handle.attempt = Some(key);
                *bytes = handle.to_bytes().unwrap_or(*bytes);
                key
            }
        };
        self.poll()?;
        self.shut_nowhere(key);
        if self.seek_instead(key, &handle) {
            return Ok(None);
        }
        let comm = self.comm(key)?;
        let outcome = match comm.stage {
            Stage::Opening { until } if until.has_passed(doorbell::now()) => Err(Failure::new(
                NcclResult::REMOTE_ERROR,
                format_args!(
                    "no answer from the peer's listener within {:?}: is its process running?",
                    self.timeout
                ),
            )),
            Stage::Opening { .. } => return Ok(None),
            Stage::Open => Ok(Some(key)),
            // The comm is returned: its requests fail.
            Stage::Failed(_) if comm.was_opened => Ok(Some(key)),
            Stage::Failed(code) => Err(self.not_connected(key, code)),
            Stage::Closing => Err(Failure::argument("the comm is being closed")),
        };
        handle.attempt = None;
        *bytes = handle.to_bytes().unwrap_or(*bytes);
        match &outcome {
            Ok(_) => self.comm(key)?.is_attempt = false,
            Err(_) => self.close_comm(key),
        }
        outcome
    }

    /// Whether a comm is the attempt that is recorded in a handle. The record may be of another process by mistake.
    fn is_attempt(&self, comm: &Comm, handle: &NetHandle) -> bool {
        let to = (handle.handle.instance(), handle.handle.port());
        let peer = self.state.peers.iter().find(|peer| peer.id == comm.link);
        let leads_there = peer.is_none_or(|peer| peer.to == Some(to));
        matches!(comm.side, Side::Send(_)) && comm.is_attempt && leads_there
    }

    /// The reasons why no rail leads to a comm's peer.
    fn not_connected(&self, key: Key, code: NcclResult) -> Failure {
        let comm = self.state.comms.get(key);
        let is_sought = comm.is_some_and(|comm| comm.is_sought);
        let link = comm.map(|comm| comm.link);
        let mut why = String::new();
        for rail in link.into_iter().flat_map(|link| self.links.not_connected(link)) {
            let _ = write!(why, "; {rail}");
        }
        if is_sought {
            why.push_str(NO_RELAY);
        } else if link.is_some_and(|link| leads_nowhere(&self.links, link)) {
            why.push_str(NOTHING_IS_RELAYED);
        }
        Failure::new(code, format_args!("the comm was not opened{why}"))
    }

    fn begin(&mut self, handle: &NetHandle) -> Result<Key, Failure> {
        let link = self.link_to(handle)?;
        let stage = Stage::Opening {
            until: self.node.within(self.timeout),
        };
        if self.state.comms.count() >= PLACES_MAX {
            self.give_up_attempts();
        }
        let owes = Owed::Open(handle.listener);
        let mut comm = Comm::new(link, stage, owes, Side::Send(Sends::new()));
        comm.is_attempt = true;
        let full = || Failure::system("the limit of open comms is reached: close some");
        let key = self.state.comms.add(comm).ok_or_else(full)?;
        self.state.is_owing = true;
        Ok(key)
    }

    /// Closes attempts that have timed out or failed, and that NCCL does not continue.
    fn give_up_attempts(&mut self) {
        let now = doorbell::now();
        let late = |comm: &Comm| match comm.stage {
            Stage::Opening { until } => until.has_passed(now),
            Stage::Failed(_) => comm.is_attempt,
            Stage::Open | Stage::Closing => false,
        };
        let late: Vec<Key> = self
            .state
            .comms
            .iter()
            .filter_map(|(key, comm)| late(comm).then_some(key))
            .collect();
        for key in late {
            self.close_comm(key);
        }
    }

    /// The link to the process of a handle: an existing one, or a new one.
    fn link_to(&mut self, handle: &NetHandle) -> Result<LinkId, Failure> {
        let to = (handle.handle.instance(), handle.handle.port());
        if let Some(peer) = self.state.peers.iter().find(|peer| peer.to == Some(to)) {
            return Ok(peer.id);
        }
        let link = self.links.connect(&self.node, &self.workers, &handle.handle);
        let id = link.map_err(Failure::system)?;
        self.state.peers.push(PeerLink::new(id, Some(to)));
        if self.relays.is_always {
            self.links.close(id, self.node.within(Duration::ZERO));
        }
        Ok(id)
    }

    /// The next comm that a peer has connected to a listener, if there is one.
    pub(crate) fn accept(&mut self, listener: Key) -> Result<Option<Key>, Failure> {
        self.poll()?;
        let none = || Failure::argument("there is no such listener: it was closed, or never opened");
        let listening = self.state.listeners.get_mut(listener).ok_or_else(none)?;
        while let Some(key) = listening.backlog.pop_front() {
            match self.state.comms.get(key) {
                // The peer connected it. If the peer has closed it since, its requests report so.
                Some(comm) if !comm.is_given_up => return Ok(Some(key)),
                Some(_) => {
                    self.state.comms.remove(key);
                }
                None => {}
            }
        }
        Ok(None)
    }

    pub(crate) fn close_listener(&mut self, listener: Key) -> Result<(), Failure> {
        let closed = self.state.listeners.remove(listener);
        let none = || Failure::argument("there is no such listener: it was closed, or never opened");
        for key in closed.ok_or_else(none)?.backlog {
            self.close_comm(key);
        }
        self.poll()
    }

    /// Closes a sending comm, after its peer has received everything, or after a timeout.
    pub(crate) fn close_send(&mut self, key: Key) -> Result<(), Failure> {
        let comm = self.comm(key)?;
        if !matches!(comm.side, Side::Send(_)) {
            return Err(Failure::argument("closeSend of a comm that receives"));
        }
        let (link, last) = (comm.link, comm.last_sent);
        self.cancel_moving(|moving| moving.comm == key, None);
        self.cancel_parts(|part| part.comm == key, None);
        self.state.late.retain(|late| !late.is_of(key));
        let deadline = self.node.within(DRAIN_WITHIN);
        if last.is_some() {
            self.fence(key, deadline);
        }
        self.close_comm(key);
        let is_done = |context: &Self| {
            let peer = context.state.peers.iter().find(|peer| peer.id == link);
            peer.is_none_or(|peer| peer.done >= last)
        };
        while last.is_some() && !is_done(self) && !deadline.has_passed(doorbell::now()) {
            self.poll()?;
        }
        self.poll()
    }

    pub(crate) fn close_receive(&mut self, key: Key) -> Result<(), Failure> {
        let comm = self.comm(key)?;
        if !matches!(comm.side, Side::Receive(_)) {
            return Err(Failure::argument("closeRecv of a comm that sends"));
        }
        // Until the peer knows of the end, it may write into lent memory, which NCCL may now use for something else.
        let left = self.cancel_moving(|moving| moving.comm == key, None);
        self.state.left.extend_from_slice(&left);
        for moving in left {
            if let Some(id) = self.loan_of(moving.link, moving.memory) {
                self.end_loan_later((moving.link, moving.memory, id));
            }
        }
        self.state.late.retain(|late| !late.is_of(key));
        self.flushes.forget(key);
        self.close_comm(key);
        self.poll()
    }

    /// Closes a comm. Its table entry is free after the peer was notified.
    pub(super) fn close_comm(&mut self, key: Key) {
        let Some(comm) = self.state.comms.get_mut(key) else {
            return;
        };
        let is_never_sent = matches!(comm.owes, Some(Owed::Open(_)));
        let has_link = self.state.peers.iter().any(|peer| peer.id == comm.link);
        if comm.is_peer_gone || is_never_sent || !has_link {
            self.state.comms.remove(key);
            return;
        }
        comm.stage = Stage::Closing;
        // Without the peer's number, the notification waits for the peer's answer.
        comm.owes = comm.peer.map(|_| Owed::Close);
        // Its requests are dropped, so that late messages find none.
        comm.side = match comm.side {
            Side::Send(_) => Side::Send(Sends::new()),
            Side::Receive(_) => Side::Receive(Receives::new()),
        };
        self.state.is_owing = true;
    }
}
