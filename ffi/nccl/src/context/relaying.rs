//! Comms to processes that no rail reaches. Relays carry them, over links that are circuits. A transfer cannot pass a relay, so a message
//! that is too long for one frame is sent in parts.

use core::num::NonZeroU16;
use core::time::Duration;

use doorbell::link::LinkId;
use doorbell::wire::InstanceId;
use doorbell::{Deadline, Handle};

use super::comm::{Comm, EntryState, Owed, SendState, Side, Stage};
use super::state::{PeerLink, State, may_owe};
use super::{Context, DRAIN_WITHIN, Said, push};
use crate::abi::NcclResult;
use crate::frame::{Frame, PART_HEADER_BYTES, Target, write_part};
use crate::handle::NetHandle;
use crate::log;
use crate::places::Key;
use crate::relay::credit::Credit;
use crate::relay::frame::{CircuitFrame, End, RELAYS_MAX, Route};
use crate::relay::search::{Found, Search, leads_nowhere};

/// Wait between two searches, when a relay may start up soon.
const SEARCH_EVERY: Duration = Duration::from_millis(200);

/// Maximum length of a part in bytes. Several parts fit into the window of a relay.
const PART_BYTES_MAX: usize = 32 << 10;

/// Maximum number of Cut messages that are owed over a link. Beyond it, the peer's send ends only with its comm.
const CUTS_MAX: usize = 1024;

/// A process that is searched for, and the comms that wait for it.
#[derive(Debug)]
pub(super) struct Seek {
    to: Handle,
    search: Option<Search>,
    again_at: Deadline,
    /// The reasons of the last search, logged only when they change.
    why: String,
    waiting: Vec<Waiting>,
}

/// A comm, and the listener to which it is to be connected.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    comm: Key,
    listener: Key,
}

/// A send that is split into parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) link: LinkId,
    pub(super) target: Target,
    pub(super) comm: Key,
    pub(super) slot: u8,
    pub(super) serial: u32,
    pub(super) memory: Key,
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Number of bytes already sent.
    pub(super) sent: usize,
}

fn leads_to(handle: &Handle) -> (InstanceId, NonZeroU16) {
    (handle.instance(), handle.port())
}

impl Context {
    /// Waits until the peer of a comm confirms the receipt of all messages, at most until the deadline: an acknowledgment on a circuit comes from the relay.
    pub(super) fn fence(&mut self, key: Key, deadline: Deadline) {
        let comm = self.state.comms.get(key);
        let to = comm.and_then(|comm| Some((comm.link, comm.peer?)));
        let Some((link, to)) = to.filter(|(link, _)| self.state.is_circuit(*link)) else {
            return;
        };
        let frame = Frame::Fence { to, number: key };
        let mut is_said = false;
        self.state.fence = Some((link, key));
        while self.state.fence.is_some()
            && self.state.is_circuit(link)
            && !deadline.has_passed(doorbell::now())
        {
            if !is_said {
                match self.say(link, &frame) {
                    Said::Taken(_) => is_said = true,
                    Said::Later => {}
                    Said::Over => break,
                }
            }
            if self.poll().is_err() {
                break;
            }
        }
        if self.state.fence.take().is_some() && deadline.has_passed(doorbell::now()) {
            log::warn(format_args!(
                "link {link}: closeSend: the far end has not said within {DRAIN_WITHIN:?} that it has all that was sent"
            ));
        }
    }

    /// Starts to open a comm over relays, if no rail could open it. Returns whether it did. Each comm does so only once.
    pub(super) fn seek_instead(&mut self, key: Key, handle: &NetHandle) -> bool {
        let until = self.node.within(self.timeout);
        let is_always = self.relays.is_always;
        let to = leads_to(&handle.handle);
        let State {
            comms,
            peers,
            circuits,
            seeks,
            ..
        } = &mut self.state;
        let failed =
            |comm: &&mut Comm| matches!(comm.stage, Stage::Failed(_)) && !comm.was_opened && !comm.is_sought;
        let Some(comm) = comms.get_mut(key).filter(failed) else {
            return false;
        };
        let is_far = is_always || leads_nowhere(&self.links, comm.link);
        if !self.relays.is_on() || !is_far {
            return false;
        }
        comm.is_sought = true;
        comm.is_peer_gone = false;
        comm.stage = Stage::Opening { until };
        let is_it = |peer: &&PeerLink| peer.to == Some(to) && circuits.iter().any(|(of, _)| *of == peer.id);
        if let Some(peer) = peers.iter().find(is_it) {
            comm.link = peer.id;
            comm.owes = Some(Owed::Open(handle.listener));
            self.state.is_owing = true;
            return true;
        }
        let waiting = Waiting {
            comm: key,
            listener: handle.listener,
        };
        match seeks.iter_mut().find(|seek| leads_to(&seek.to) == to) {
            Some(seek) => seek.waiting.push(waiting),
            None => seeks.push(Seek {
                to: handle.handle,
                search: None,
                again_at: self.node.within(Duration::ZERO),
                why: String::new(),
                waiting: vec![waiting],
            }),
        }
        true
    }

    /// Ends a link at once if no rail will ever carry it, so that its comms are refused or relayed without waiting.
    pub(super) fn shut_nowhere(&mut self, key: Key) {
        let Some(comm) = self.state.comms.get(key) else {
            return;
        };
        let is_opening = matches!(comm.stage, Stage::Opening { .. });
        if is_opening && leads_nowhere(&self.links, comm.link) {
            self.links.close(comm.link, self.node.within(Duration::ZERO));
        }
    }

    /// Makes progress on all searches.
    pub(super) fn seek(&mut self) {
        let mut seeks = core::mem::take(&mut self.state.seeks);
        seeks.retain_mut(|seek| self.go_on_seeking(seek));
        self.state.seeks.append(&mut seeks);
    }

    /// Makes progress on one search. Returns whether it continues.
    fn go_on_seeking(&mut self, seek: &mut Seek) -> bool {
        let (comms, now) = (&self.state.comms, doorbell::now());
        // NCCL may never call connect again.
        let waits = |comm: &Comm| matches!(comm.stage, Stage::Opening { until } if !until.has_passed(now));
        seek.waiting
            .retain(|waiting| comms.get(waiting.comm).is_some_and(waits));
        if seek.waiting.is_empty() {
            if let Some(search) = &mut seek.search {
                search.give_up(&mut self.links, &self.node);
            }
            return false;
        }
        if seek.search.is_none() && !seek.again_at.has_passed(doorbell::now()) {
            return true;
        }
        let (relays, patience) = (&self.relays.list[..], self.patience);
        let begin = || Search::new(seek.to, Route::NONE, (relays, RELAYS_MAX), (false, patience));
        let search = seek.search.get_or_insert_with(begin);
        match search.poll(&mut self.links, &self.node, &self.workers) {
            None => {
                if let Some(link) = search.link() {
                    self.state.has_peer(link);
                }
                self.is_dirty = true;
                true
            }
            Some(Found::Link { link, route, .. }) => {
                self.seek_ended_by(seek, link, &route);
                false
            }
            Some(Found::None { end, why }) if end.is_definite() => {
                log::warn(format_args!("no relay leads to the peer: {why}"));
                for waiting in &seek.waiting {
                    if let Some(comm) = self.state.comms.get_mut(waiting.comm) {
                        comm.stage = Stage::Failed(NcclResult::REMOTE_ERROR);
                        comm.is_peer_gone = true;
                    }
                }
                false
            }
            Some(Found::None { why, .. }) => {
                if seek.why != why {
                    log::info(format_args!("no relay leads to the peer yet: {why}"));
                    seek.why = why;
                }
                seek.search = None;
                seek.again_at = self.node.within(SEARCH_EVERY);
                true
            }
        }
    }

    /// Moves the waiting comms to a circuit.
    fn seek_ended_by(&mut self, seek: &Seek, link: LinkId, route: &Route) {
        self.state.has_peer(link);
        self.state.circuits.push((link, Credit::default()));
        if let Some(peer) = self.state.peer_mut(link) {
            peer.to = Some(leads_to(&seek.to));
        }
        log::warn(format_args!(
            "link {link}: no rail reaches the peer, so messages are relayed: this host, {route}. Ranks in the order of these hosts need no relay"
        ));
        for waiting in &seek.waiting {
            if let Some(comm) = self.state.comms.get_mut(waiting.comm) {
                (comm.link, comm.owes) = (link, Some(Owed::Open(waiting.listener)));
            }
        }
        self.state.is_owing = true;
    }

    /// Starts a send in parts.
    pub(super) fn send_parts(&mut self, part: Part) -> SendState {
        self.state.parts.push(part);
        self.is_dirty = true;
        SendState::Moving
    }

    /// Sends parts as far as relays have room. A blocked link does not delay the others.
    pub(super) fn pay_parts(&mut self) {
        let mut blocked = core::mem::take(&mut self.state.blocked);
        blocked.clear();
        let mut at = 0;
        while let Some(part) = self.state.parts.get(at).copied() {
            if blocked.contains(&part.link) {
                at = at.saturating_add(1);
                continue;
            }
            match self.say_part(&part) {
                Ok(sent) if sent >= part.bytes => self.end_part(at, SendState::Done(part.bytes)),
                Ok(sent) => {
                    if let Some(part) = self.state.parts.get_mut(at) {
                        part.sent = sent;
                    }
                }
                Err(None) => blocked.push(part.link),
                Err(Some(code)) => self.end_part(at, SendState::Failed(code)),
            }
        }
        self.state.blocked = blocked;
    }

    /// Sends the next part. Returns how many bytes of the message have been sent. `Err(None)` means that there is no room now.
    fn say_part(&mut self, part: &Part) -> Result<usize, Option<NcclResult>> {
        let most = PART_BYTES_MAX
            .min(self.buffer.len().saturating_sub(PART_HEADER_BYTES))
            .max(1);
        let bytes = part.bytes.saturating_sub(part.sent).min(most);
        let total = u64::try_from(part.bytes).unwrap_or(u64::MAX);
        let begun = write_part(&mut self.buffer, &part.target, total);
        let internal = Some(NcclResult::INTERNAL_ERROR);
        let message = self
            .buffer
            .get_mut(..begun.saturating_add(bytes))
            .ok_or(internal)?;
        let room = message.get_mut(begun..).ok_or(internal)?;
        let memory = self.state.memories.get(part.memory).ok_or(internal)?;
        let offset = part.offset.saturating_add(part.sent);
        memory.region.copy_out(offset, room).map_err(|_| internal)?;
        match push(&mut self.links, &mut self.state.circuits, part.link, message) {
            Said::Taken(sequence) => {
                if let Some(comm) = self.state.comms.get_mut(part.comm) {
                    comm.last_sent = Some(sequence);
                }
                self.is_dirty = true;
                Ok(part.sent.saturating_add(bytes))
            }
            Said::Later => Err(None),
            Said::Over => Err(Some(NcclResult::REMOTE_ERROR)),
        }
    }

    fn end_part(&mut self, at: usize, state: SendState) {
        let part = self.state.parts.remove(at);
        self.state.end_part(&part, state);
    }

    /// Ends the sends in parts that `which` selects, and returns their number. With a code, they fail, and so do their receives at the peer.
    pub(super) fn cancel_parts(&mut self, which: impl Fn(&Part) -> bool, code: Option<NcclResult>) -> usize {
        let mut count = 0_usize;
        while let Some(at) = self.state.parts.iter().position(&which) {
            let part = self.state.parts.remove(at);
            if let Some(code) = code {
                self.state.end_part(&part, SendState::Failed(code));
                self.state.cuts.push((part.link, part.target));
                self.state.is_owing = true;
            }
            count = count.saturating_add(1);
        }
        count
    }
}

impl State {
    /// Adds a link to the list of peers.
    fn has_peer(&mut self, link: LinkId) {
        if self.peer_mut(link).is_none() {
            self.peers.push(PeerLink::new(link, None));
            self.is_owing = true;
        }
    }

    /// Whether relays carry a link.
    pub(super) fn is_circuit(&self, link: LinkId) -> bool {
        self.circuits.iter().any(|(of, _)| *of == link)
    }

    pub(super) fn end_part(&mut self, part: &Part, state: SendState) {
        let comm = self.comms.get_mut(part.comm);
        if let Some(Side::Send(sends)) = comm.map(|comm| &mut comm.side) {
            if let Some(request) = sends.request(part.slot, part.serial) {
                request.state = state;
            }
        }
    }

    /// Counts a message of the far end on a circuit as consumed, which returns its credit: messages are consumed immediately.
    pub(super) fn took(&mut self, link: LinkId, bytes: usize) {
        if let Some((_, credit)) = self.circuits.iter_mut().find(|(of, _)| *of == link) {
            credit.took(bytes);
            self.is_owing |= credit.owes().is_some();
        }
    }

    /// Handles a message of a relay. Returns `None` if the message violates the protocol.
    pub(super) fn hear_circuit(&mut self, link: LinkId, message: &[u8]) -> Option<()> {
        let frame = CircuitFrame::parse(message)?;
        let mut searches = self.seeks.iter_mut().filter_map(|seek| seek.search.as_mut());
        if let Some(search) = searches.find(|search| search.link() == Some(link)) {
            search.hear_frame(link, frame);
            return Some(());
        }
        let credit = self.circuits.iter_mut().find(|(of, _)| *of == link);
        match (frame, credit) {
            (CircuitFrame::Credit { bytes }, Some((_, credit))) => credit.granted(bytes),
            (CircuitFrame::End { end }, _) => {
                let line = format_args!("link {link}: the circuit is over: {end}");
                match end {
                    End::CLOSED => log::info(line),
                    _ => log::warn(line),
                }
                self.broken.push(link);
                Some(())
            }
            (CircuitFrame::From { route }, None) => {
                let is_new = self.comms.iter().all(|(_, comm)| comm.link != link);
                self.peer_mut(link).filter(|peer| peer.to.is_none() && is_new)?;
                if !self.takes_circuits {
                    log::warn(format_args!(
                        "link {link}: refused, since a relay connects it and DOORBELL_NCCL_RELAYS is not set here: set it on all hosts alike"
                    ));
                    self.broken.push(link);
                    return Some(());
                }
                log::info(format_args!("link {link}: relayed, from {route}"));
                self.circuits.push((link, Credit::default()));
                Some(())
            }
            _ => None,
        }
    }

    /// Handles the end of the link of a circuit or of a search.
    pub(super) fn circuit_over(&mut self, link: LinkId, why: &dyn core::fmt::Display) {
        for search in self.seeks.iter_mut().filter_map(|seek| seek.search.as_mut()) {
            search.hear_over(link, why);
        }
        self.circuits.retain(|(of, _)| *of != link);
        self.cuts.retain(|(of, _)| *of != link);
        self.fences.retain(|(of, _)| *of != link);
        while let Some(at) = self.parts.iter().position(|part| part.link == link) {
            let part = self.parts.swap_remove(at);
            self.end_part(&part, SendState::Failed(NcclResult::REMOTE_ERROR));
        }
    }

    /// Handles a part of a message. Returns `None` if the part violates the protocol.
    pub(super) fn hear_part(
        &mut self,
        link: LinkId,
        target: Target,
        total: u64,
        payload: &[u8],
    ) -> Option<()> {
        let Some(receives) = self.receives(link, target)? else {
            return Some(());
        };
        let before = match receives.entry(target.request, target.index) {
            Some(entry) => match entry.state {
                EntryState::Waiting => Some((entry, 0)),
                EntryState::Coming(bytes) => Some((entry, bytes)),
                EntryState::Failed(_) => None,
                EntryState::Moving | EntryState::Done(_) => return None,
            },
            None => None,
        };
        // The receive has ended on this side. The peer need not send the rest.
        let Some((entry, before)) = before else {
            self.cut(link, target);
            return Some(());
        };
        let bytes = before.checked_add(payload.len())?;
        let total = usize::try_from(total).ok()?;
        if bytes > total || total > entry.bytes || entry.is_placed {
            return None;
        }
        let (memory, offset) = (entry.memory, entry.offset.saturating_add(before));
        entry.state = match bytes == total {
            true => EntryState::Done(total),
            false => EntryState::Coming(bytes),
        };
        let region = self.memories.get(memory).map(|memory| &memory.region);
        let copied = region.map(|region| region.copy_in(offset, payload));
        if !matches!(copied, Some(Ok(()))) {
            self.set_entry(target, EntryState::Failed(NcclResult::INTERNAL_ERROR));
        }
        Some(())
    }

    /// Tells the peer to end the send of a message whose receive has ended.
    fn cut(&mut self, link: LinkId, target: Target) {
        let comm = self.comms.get(target.to).filter(|comm| comm.link == link);
        let Some(to) = comm.and_then(|comm| comm.peer) else {
            return;
        };
        let cut = (link, Target { to, ..target });
        if !self.cuts.contains(&cut) && may_owe(&self.cuts, &link, CUTS_MAX) {
            self.cuts.push(cut);
            self.is_owing = true;
        }
    }

    /// Fails the sends in parts of a comm that the peer has closed.
    pub(super) fn cut_comm(&mut self, comm: Key) {
        while let Some(at) = self.parts.iter().position(|part| part.comm == comm) {
            let part = self.parts.remove(at);
            self.end_part(&part, SendState::Failed(NcclResult::REMOTE_ERROR));
        }
    }

    /// Handles a Cut: the sender has given up the rest of a message, or the receiver does not want it any more.
    pub(super) fn hear_cut(&mut self, link: LinkId, target: Target) -> Option<()> {
        let comm = self.comms.get(target.to).filter(|comm| comm.link == link);
        if let Some(Side::Send(_)) = comm.map(|comm| &comm.side) {
            let is_it = |part: &Part| {
                part.comm == target.to
                    && (part.target.request, part.target.index) == (target.request, target.index)
            };
            if let Some(at) = self.parts.iter().position(is_it) {
                let part = self.parts.remove(at);
                log::warn(format_args!(
                    "a send of {} bytes failed: its receive is over at the peer",
                    part.bytes
                ));
                self.end_part(&part, SendState::Failed(NcclResult::REMOTE_ERROR));
            }
            return Some(());
        }
        let Some(receives) = self.receives(link, target)? else {
            return Some(());
        };
        if let Some(entry) = receives.entry(target.request, target.index) {
            if matches!(entry.state, EntryState::Waiting | EntryState::Coming(_)) {
                entry.state = EntryState::Failed(NcclResult::REMOTE_ERROR);
                log::warn("the peer gave up a message before its end");
            }
        }
        Some(())
    }
}
