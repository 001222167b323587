//! The comms, listeners and memory of a context, and the handling of events from its links.

use core::num::NonZeroU16;
use std::collections::VecDeque;

use doorbell::Deadline;
use doorbell::link::{
    FinalReason, LinkEvent, LinkId, LoanId, Sequence, SessionEvent, TransferEnd, TransferEvent, TransferId,
    TransferRole,
};
use doorbell::wire::InstanceId;

use super::comm::{Comm, EntryState, Owed, Receives, SendState, Side, Stage};
use super::late::Late;
use super::relaying::{Part, Seek};
use crate::abi::NcclResult;
use crate::frame::{Frame, Refusal, Target};
use crate::log;
use crate::memory::Memory;
use crate::places::{Key, PLACES_MAX, Places};
use crate::relay::credit::Credit;

/// Maximum number of comms in the backlog of a listener. Comms of a single link fill at most half of it.
const BACKLOG_MAX: usize = 1024;

/// Maximum number of refusals that are owed over a link. Beyond it, the peer waits until its own timeout.
const REFUSALS_MAX: usize = 256;

/// Maximum number of fences of a link that are owed an answer.
const FENCES_MAX: usize = 4096;

/// Whether one more message may be owed over a link, with a limit of `most`. The limit applies to each link separately.
pub(super) fn may_owe<L: PartialEq, T>(owed: &[(L, T)], link: &L, most: usize) -> bool {
    owed.iter().filter(|(of, _)| of == link).count() < most
}

/// A link to a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLink {
    pub(super) id: LinkId,
    /// The listening process, if this side connected the link.
    pub(super) to: Option<(InstanceId, NonZeroU16)>,
    /// The sequence number of the last message that the peer has acknowledged.
    pub(super) done: Option<Sequence>,
    /// Number of transfers offered by this side that have not ended yet.
    pub(super) given: u32,
    /// Whether the Hello with the lifeline port of this process is still to be sent.
    pub(super) owes_hello: bool,
    /// The lifeline port of the peer, from its Hello.
    pub(super) lifelines: Option<NonZeroU16>,
}

impl PeerLink {
    pub(super) const fn new(id: LinkId, to: Option<(InstanceId, NonZeroU16)>) -> Self {
        Self {
            id,
            to,
            done: None,
            given: 0,
            owes_hello: true,
            lifelines: None,
        }
    }
}

/// A transfer in progress, and its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving {
    pub(super) link: LinkId,
    pub(super) transfer: TransferId,
    pub(super) comm: Key,
    pub(super) memory: Key,
    pub(super) of: MovingOf,
    /// Whether the transfer writes into a loan. Its memory is then unreachable for the peer only when the loan has ended.
    pub(super) is_lent: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MovingOf {
    Send { slot: u8, serial: u32, bytes: usize },
    Receive { target: Target, bytes: usize },
}

/// A transfer that was offered for a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) link: LinkId,
    pub(super) transfer: TransferId,
    pub(super) target: Target,
    pub(super) bytes: usize,
}

/// An action on the lifeline of a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line {
    /// Connect to the peer's lifeline port.
    Watch(NonZeroU16),
    /// Reconnect to the lifeline port, since no rail is up: this checks that the process exists.
    Ask,
    /// Forget the lifeline, since the link has ended.
    Forget,
}

#[derive(Debug, Default)]
pub(super) struct Listener {
    /// Comms that are open, but not accepted.
    pub(super) backlog: VecDeque<Key>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) comms: Places<Comm>,
    pub(super) listeners: Places<Listener>,
    /// A context has thousands of registrations: three for each comm, and those of the application.
    pub(super) memories: Places<Memory, 16>,
    pub(super) peers: Vec<PeerLink>,
    pub(super) moving: Vec<Moving>,
    /// Receives of closed comms whose transfers have not ended yet.
    pub(super) left: Vec<Moving>,
    /// Loans that are being revoked, with their links and memory.
    pub(super) ending: Vec<(LinkId, Key, LoanId)>,
    /// Failed requests that are reported to the caller later.
    pub(super) late: Vec<Late>,
    /// Offers to be joined, and offers to be declined.
    pub(super) joins: Vec<Join>,
    pub(super) declines: Vec<(LinkId, TransferId)>,
    /// Refusals that are owed to peers.
    pub(super) refusals: Vec<(LinkId, (Key, Refusal))>,
    /// Links whose peers violated the protocol or have ended, to be closed.
    pub(super) broken: Vec<LinkId>,
    /// Pending actions on lifelines.
    pub(super) lines: Vec<(LinkId, Line)>,
    /// Links of peers whose processes have ended, each with the time until which messages in flight may arrive.
    pub(super) leaving: Vec<(LinkId, Deadline)>,
    /// Links that are circuits, each with its credit.
    pub(super) circuits: Vec<(LinkId, Credit)>,
    /// Whether circuits of other processes may end here.
    pub(super) takes_circuits: bool,
    /// Processes that are searched for through relays.
    pub(super) seeks: Vec<Seek>,
    /// Sends that are split into parts.
    pub(super) parts: Vec<Part>,
    /// Cut messages that are owed to peers.
    pub(super) cuts: Vec<(LinkId, Target)>,
    /// Answers to fences that are owed to peers.
    pub(super) fences: Vec<(LinkId, Key)>,
    /// The comm whose fence is awaited, and its link.
    pub(super) fence: Option<(LinkId, Key)>,
    /// Links without room during one call of `pay_parts`, kept to reuse the memory.
    pub(super) blocked: Vec<LinkId>,
    /// Whether rails came up since the last flush looked.
    pub(super) has_new_rails: bool,
    /// Whether any message may be owed to a peer.
    pub(super) is_owing: bool,
    /// The serial number of the last request.
    pub(super) serial: u32,
    /// Messages of up to this many bytes are copied.
    pub(super) eager_bytes_max: usize,
}

impl State {
    pub(super) fn new(takes_circuits: bool, eager_bytes_max: usize) -> Self {
        Self {
            circuits: Vec::new(),
            takes_circuits,
            seeks: Vec::new(),
            parts: Vec::new(),
            cuts: Vec::new(),
            fences: Vec::new(),
            fence: None,
            blocked: Vec::new(),
            comms: Places::new(),
            listeners: Places::new(),
            memories: Places::new(),
            peers: Vec::with_capacity(64),
            moving: Vec::with_capacity(1024),
            left: Vec::new(),
            ending: Vec::with_capacity(64),
            late: Vec::new(),
            joins: Vec::with_capacity(1024),
            declines: Vec::with_capacity(64),
            refusals: Vec::with_capacity(REFUSALS_MAX),
            broken: Vec::new(),
            lines: Vec::with_capacity(64),
            leaving: Vec::with_capacity(64),
            has_new_rails: false,
            is_owing: false,
            serial: 0,
            eager_bytes_max,
        }
    }

    pub(super) fn peer_mut(&mut self, link: LinkId) -> Option<&mut PeerLink> {
        self.peers.iter_mut().find(|peer| peer.id == link)
    }

    /// Handles an event of a link.
    pub(super) fn hear(&mut self, link: LinkId, event: LinkEvent<'_>) {
        match event {
            LinkEvent::Accepted => {
                self.peers.push(PeerLink::new(link, None));
                self.is_owing = true;
            }
            LinkEvent::Received { message } => {
                let heard = match Frame::parse(message) {
                    Some(frame) => self.hear_frame(link, frame),
                    None => self.hear_circuit(link, message),
                };
                if !self.circuits.is_empty() && Frame::is_relayed(message) {
                    self.took(link, message.len());
                }
                if heard.is_none() {
                    self.break_off(link);
                }
            }
            LinkEvent::Transfer { transfer, event } => match event {
                TransferEvent::Offered { role, bytes, tag } => {
                    self.offered((link, transfer), role, bytes, Target::of_tag(tag));
                }
                TransferEvent::Ended { end, error, .. } => {
                    let cause = error.map(|error| format!(": {error}")).unwrap_or_default();
                    self.ended((link, transfer), end, &cause);
                }
                _ => {}
            },
            LinkEvent::Revoked { loan, error } => self.revoked(link, loan, error.as_ref()),
            LinkEvent::NotRevoked { loan, error } => self.not_revoked(link, loan, &error),
            LinkEvent::Session(event) => self.hear_session(link, event),
            _ => {}
        }
    }

    fn hear_session(&mut self, link: LinkId, event: SessionEvent) {
        match event {
            SessionEvent::Done { through } => {
                if let Some(peer) = self.peer_mut(link) {
                    peer.done = Some(through);
                }
            }
            SessionEvent::Recovering => {
                log::warn(format_args!(
                    "link {link}: the last rail to the peer failed; it is connected again if that is possible"
                ));
                self.lines.push((link, Line::Ask));
            }
            SessionEvent::Recovered => log::info(format_args!("link {link}: there is a rail again")),
            SessionEvent::RailDown { rail } => log::info(format_args!("link {link}: rail {rail} is down")),
            SessionEvent::RailUp { rail } => {
                self.has_new_rails = true;
                log::info(format_args!("link {link}: rail {rail} is up: RDMA"));
            }
            SessionEvent::Final { reason } => self.over(link, reason),
            _ => {}
        }
    }

    /// Ends all comms of a link that has ended.
    fn over(&mut self, link: LinkId, reason: FinalReason) {
        self.peers.retain(|peer| peer.id != link);
        self.lines.push((link, Line::Forget));
        self.circuit_over(link, &reason);
        self.leaving.retain(|(of, _)| *of != link);
        self.refusals.retain(|(of, ..)| *of != link);
        self.declines.retain(|(of, _)| *of != link);
        let code = NcclResult::REMOTE_ERROR;
        let (mut comms, mut requests) = (0_usize, 0_usize);
        let mut closed = Vec::new();
        for (key, comm) in self.comms.iter_mut().filter(|(_, comm)| comm.link == link) {
            comm.owes = None;
            comm.is_peer_gone = true;
            if comm.stage == Stage::Closing {
                closed.push(key);
                continue;
            }
            comms = comms.saturating_add(1);
            requests = requests.saturating_add(comm.fail_waiting(code));
            comm.stage = Stage::Failed(code);
        }
        for key in closed {
            self.comms.remove(key);
        }
        let line = format_args!(
            "link {link} is over: {reason}; {comms} comms and {requests} waiting receives end with it"
        );
        match (reason, comms, requests) {
            (FinalReason::Closed | FinalReason::PeerClosed, 0, _) => {}
            // The peer finalized first.
            (FinalReason::PeerClosed, _, 0) | (_, 0, _) => log::info(line),
            _ => log::warn(line),
        }
    }

    /// Marks a link to be closed, since its peer violated the protocol.
    fn break_off(&mut self, link: LinkId) {
        if !self.broken.contains(&link) {
            log::warn(format_args!(
                "link {link}: the peer sent what is no message of this plugin"
            ));
            self.broken.push(link);
        }
    }

    /// Handles a message. Returns `None` if the message violates the protocol.
    fn hear_frame(&mut self, link: LinkId, frame: Frame<'_>) -> Option<()> {
        match frame {
            Frame::Open { listener, number } => {
                self.hear_open(link, listener, number);
                return Some(());
            }
            Frame::Eager { target, payload } => return self.hear_eager(link, target, payload),
            Frame::Excess { target, bytes } => return self.hear_excess(link, target, bytes),
            Frame::Part {
                target,
                total,
                payload,
            } => return self.hear_part(link, target, total, payload),
            Frame::Cut { target } => return self.hear_cut(link, target),
            Frame::Fence { number, .. } => {
                may_owe(&self.fences, &link, FENCES_MAX).then_some(())?;
                self.fences.push((link, number));
                self.is_owing = true;
                return Some(());
            }
            Frame::Passed { to } => {
                self.fence = self.fence.filter(|fence| *fence != (link, to));
                return Some(());
            }
            Frame::Hello { port } => {
                let peer = self.peer_mut(link).filter(|peer| peer.lifelines.is_none())?;
                peer.lifelines = Some(port);
                self.lines.push((link, Line::Watch(port)));
                return Some(());
            }
            Frame::Opened { .. } | Frame::Refused { .. } | Frame::Close { .. } | Frame::Clear { .. } => {}
        }
        let (Frame::Opened { to, .. }
        | Frame::Refused { to, .. }
        | Frame::Close { to, .. }
        | Frame::Clear { to, .. }) = frame
        else {
            return None;
        };
        let is_circuit = self.is_circuit(link);
        // The comm was closed here in the meantime.
        let Some(comm) = self.comms.get_mut(to) else {
            return Some(());
        };
        if comm.link != link {
            return None;
        }
        match frame {
            Frame::Opened { number, .. } if comm.peer.is_none() => {
                (comm.peer, comm.was_opened) = (Some(number), true);
                match comm.stage {
                    Stage::Opening { .. } => comm.stage = Stage::Open,
                    _ => {
                        comm.owes = Some(Owed::Close);
                        self.is_owing = true;
                    }
                }
            }
            Frame::Refused { reason, .. } if comm.peer.is_none() => {
                comm.is_peer_gone = true;
                if comm.stage == Stage::Closing {
                    self.comms.remove(to);
                } else {
                    comm.stage = Stage::Failed(NcclResult::REMOTE_ERROR);
                    log::warn(format_args!("the peer refused a comm: {reason}"));
                }
            }
            Frame::Close { is_given_up, .. } => {
                comm.is_given_up = is_given_up;
                // A peer that has accepted and closed at once sends only this.
                (comm.is_peer_gone, comm.was_opened) = (true, true);
                comm.owes = None;
                if comm.stage == Stage::Closing {
                    self.comms.remove(to);
                    return Some(());
                }
                let waiting = comm.fail_waiting(NcclResult::REMOTE_ERROR);
                comm.stage = Stage::Failed(NcclResult::REMOTE_ERROR);
                if waiting > 0 {
                    log::warn(format_args!(
                        "the peer closed a comm on which {waiting} receives wait for it"
                    ));
                }
                self.cut_comm(to);
            }
            Frame::Clear {
                request,
                receives,
                count,
                placed,
                ..
            } => match &mut comm.side {
                // A relay does not carry transfers.
                _ if placed != 0 && is_circuit => return None,
                Side::Send(sends) => {
                    // The credit of a relay is counted where messages are sent in parts.
                    let copied = if is_circuit { 0 } else { self.eager_bytes_max };
                    let copied = u32::try_from(copied).unwrap_or(u32::MAX);
                    sends.cleared(request, receives, (count, placed), copied);
                }
                Side::Receive(_) => return None,
            },
            _ => return None,
        }
        Some(())
    }

    /// Handles a comm that a peer connects to a listener.
    fn hear_open(&mut self, link: LinkId, listener: Key, number: Key) {
        let refusal = if self.listeners.get(listener).is_none() {
            Refusal::NO_LISTENER
        } else if self.may_wait(link, listener) && self.open(link, listener, number).is_some() {
            return;
        } else {
            Refusal::FULL
        };
        if may_owe(&self.refusals, &link, REFUSALS_MAX) {
            self.refusals.push((link, (number, refusal)));
            self.is_owing = true;
        }
    }

    /// Whether one more comm of a link may wait to be accepted. The comms of one link that wait, or that are closed but not yet by the
    /// peer, use at most half of the room.
    fn may_wait(&self, link: LinkId, listener: Key) -> bool {
        let is_of_link = |key: &&Key| self.comms.get(**key).is_some_and(|comm| comm.link == link);
        let comms = self.comms.iter().map(|(_, comm)| comm);
        let closing = comms.filter(|comm| comm.link == link && comm.stage == Stage::Closing);
        let (mut here, mut waiting, mut own) = (0, 0_usize, closing.count());
        for (key, listening) in self.listeners.iter() {
            let of_link = listening.backlog.iter().filter(is_of_link).count();
            own = own.saturating_add(of_link);
            if key == listener {
                (here, waiting) = (of_link, listening.backlog.len());
            }
        }
        here < BACKLOG_MAX.saturating_sub(waiting) && own < PLACES_MAX.saturating_sub(self.comms.count())
    }

    /// Queues a comm of a peer at a listener. Returns `None` if there is no room.
    fn open(&mut self, link: LinkId, listener: Key, number: Key) -> Option<()> {
        let mut comm = Comm::new(link, Stage::Open, Owed::Opened, Side::Receive(Receives::new()));
        comm.peer = Some(number);
        let listening = self.listeners.get_mut(listener)?;
        listening.backlog.push_back(self.comms.add(comm)?);
        self.is_owing = true;
        Some(())
    }

    fn hear_eager(&mut self, link: LinkId, target: Target, payload: &[u8]) -> Option<()> {
        let Some(receives) = self.receives(link, target)? else {
            return Some(());
        };
        // The receive is done, or has failed because its memory was deregistered.
        let Some(entry) = receives.entry(target.request, target.index) else {
            return Some(());
        };
        if entry.state != EntryState::Waiting {
            return matches!(entry.state, EntryState::Failed(_)).then_some(());
        }
        if payload.len() > entry.bytes || entry.is_placed && !payload.is_empty() {
            return None;
        }
        let (memory, offset) = (entry.memory, entry.offset);
        entry.state = EntryState::Done(payload.len());
        if payload.is_empty() {
            return Some(());
        }
        let region = self.memories.get(memory).map(|memory| &memory.region);
        let copied = region.map(|region| region.copy_in(offset, payload));
        if !matches!(copied, Some(Ok(()))) {
            // The place was checked when the receive was posted, and deregistration ends the receive.
            self.set_entry(target, EntryState::Failed(NcclResult::INTERNAL_ERROR));
        }
        Some(())
    }

    fn hear_excess(&mut self, link: LinkId, target: Target, bytes: u64) -> Option<()> {
        let Some(receives) = self.receives(link, target)? else {
            return Some(());
        };
        if let Some(entry) = receives.entry(target.request, target.index) {
            if entry.state == EntryState::Waiting {
                let room = entry.bytes;
                entry.state = EntryState::Failed(NcclResult::INVALID_USAGE);
                log::warn(format_args!(
                    "the peer sends {bytes} bytes to a receive of {room}: make the receive at least as long"
                ));
            }
        }
        Some(())
    }

    /// Finds the receives of a comm. Returns `None` if the comm is not one of this link or sends, and `Some(None)` if the comm is gone.
    #[expect(clippy::option_option, reason = "gone is not wrong")]
    pub(super) fn receives(&mut self, link: LinkId, target: Target) -> Option<Option<&mut Receives>> {
        match self.comms.get_mut(target.to) {
            None => Some(None),
            Some(comm) if comm.link == link => match &mut comm.side {
                Side::Receive(receives) => Some(Some(receives)),
                Side::Send(_) => None,
            },
            Some(_) => None,
        }
    }

    fn entry_mut(&mut self, target: Target) -> Option<&mut super::comm::Entry> {
        match &mut self.comms.get_mut(target.to)?.side {
            Side::Receive(receives) => receives.entry(target.request, target.index),
            Side::Send(_) => None,
        }
    }

    pub(super) fn set_entry(&mut self, target: Target, state: EntryState) {
        if let Some(entry) = self.entry_mut(target) {
            entry.state = state;
        }
    }

    /// Returns the memory of a receive, and the offset in it.
    pub(super) fn place_of(&mut self, target: Target) -> Option<(Key, usize)> {
        self.entry_mut(target).map(|entry| (entry.memory, entry.offset))
    }

    /// Handles a transfer that the peer offers for a receive.
    fn offered(
        &mut self,
        (link, transfer): (LinkId, TransferId),
        role: TransferRole,
        bytes: u64,
        target: Target,
    ) {
        let receives = match role {
            TransferRole::Taker => self.receives(link, target).flatten(),
            TransferRole::Giver => None,
        };
        let entry = receives.and_then(|receives| receives.entry(target.request, target.index));
        let fits = entry.filter(|entry| entry.state == EntryState::Waiting);
        let fits = fits.and_then(|entry| {
            let bytes = usize::try_from(bytes).ok()?;
            (bytes <= entry.bytes).then_some((entry, bytes))
        });
        match fits {
            Some((entry, bytes)) => {
                entry.state = EntryState::Moving;
                self.joins.push(Join {
                    link,
                    transfer,
                    target,
                    bytes,
                });
            }
            None => self.declines.push((link, transfer)),
        }
    }

    /// Handles the end of a transfer.
    fn ended(&mut self, (link, transfer): (LinkId, TransferId), end: TransferEnd, cause: &str) {
        let is_it = |moving: &Moving| moving.link == link && moving.transfer == transfer;
        let Some(place) = self.moving.iter().position(is_it) else {
            return;
        };
        let moving = self.moving.swap_remove(place);
        let code = match end {
            TransferEnd::Here(_) => NcclResult::SYSTEM_ERROR,
            _ => NcclResult::REMOTE_ERROR,
        };
        let is_done = end == TransferEnd::Done;
        match moving.of {
            MovingOf::Send { slot, serial, bytes } => {
                if let Some(peer) = self.peer_mut(link) {
                    peer.given = peer.given.saturating_sub(1);
                }
                let comm = self.comms.get_mut(moving.comm);
                if let Some(Side::Send(sends)) = comm.map(|comm| &mut comm.side) {
                    if let Some(request) = sends.request(slot, serial) {
                        request.state = if is_done {
                            SendState::Done(bytes)
                        } else {
                            log::warn(format_args!("a send of {bytes} bytes failed: {end}{cause}"));
                            SendState::Failed(code)
                        };
                    }
                }
            }
            MovingOf::Receive { target, bytes } => {
                if !is_done && self.entry_mut(target).is_some() {
                    log::warn(format_args!("a receive of {bytes} bytes failed: {end}{cause}"));
                }
                let state = if is_done {
                    EntryState::Done(bytes)
                } else {
                    EntryState::Failed(code)
                };
                self.set_entry(target, state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use doorbell::link::{LinkConfig, LinkId, Links};
    use doorbell::{Node, Trust, WorkerConfig};

    use super::{Key, Listener, PLACES_MAX, Stage, State, may_owe};

    #[test]
    fn a_link_takes_nothing_of_the_room_of_another() {
        let owed = [(1, 'a'), (2, 'a'), (1, 'b')];
        let may = |link, most| may_owe(&owed, &link, most);
        assert_eq!(
            [may(1, 2), may(1, 3), may(2, 1), may(2, 2), may(3, 1)],
            [false, true, false, true, true]
        );
    }

    /// Creates two links to a process that never answers.
    fn links() -> [LinkId; 2] {
        let path = doorbell_fake::library_path().unwrap();
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&path) }.unwrap();
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        let any = "0.0.0.0:0".parse().unwrap();
        let handle = links.listen_polled(&node, &workers, any).unwrap();
        [(); 2].map(|()| links.connect(&node, &workers, &handle).unwrap())
    }

    /// A listener may be closed before its comms are accepted, and opened again. The places of these comms are free when the peer has
    /// taken their Close.
    #[test]
    fn comms_whose_end_a_peer_does_not_take_leave_room_for_those_of_others() {
        let [hostile, honest] = links();
        let mut state = State::new(false, 0);
        let open = |state: &mut State, link, listener| {
            state.may_wait(link, listener) && state.open(link, listener, Key::NONE).is_some()
        };
        let mut rounds = 0;
        while rounds < 16 {
            let listener = state.listeners.add(Listener::default()).unwrap();
            while open(&mut state, hostile, listener) {}
            let backlog = state.listeners.remove(listener).unwrap().backlog;
            if backlog.is_empty() {
                break;
            }
            for key in backlog {
                state.comms.get_mut(key).unwrap().stage = Stage::Closing;
            }
            rounds += 1;
        }
        assert_eq!((rounds, state.comms.count()), (4, PLACES_MAX / 2));
        let listener = state.listeners.add(Listener::default()).unwrap();
        assert!(open(&mut state, honest, listener));
        let taken: Vec<_> = state.comms.iter().map(|(key, _)| key).collect();
        drop(state.comms.remove(taken[0]));
        drop(state.comms.remove(taken[1]));
        assert!(open(&mut state, hostile, listener));
    }
}
