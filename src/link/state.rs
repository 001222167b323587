//! One link: its session, the bytes that it retains, and its rails.

use std::sync::Arc;

use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, Provider};
use doorbell_core::session::{
    Action, Backoff, FinalReason, Kept, PushRefusal, Received, RequestId, Retained, Role, SESSION_RAILS_MAX,
    Sequence, Session, SessionEvent, SessionId, Violation,
};
use doorbell_core::wire::{
    Attach, Handle, InstanceId, Placed, Refusal, SESSION_HEADER_BYTES, SESSION_PLACED_BYTES, SessionFrame,
    SessionHeader,
};
use doorbell_core::{Instant, Ticket, WcStatus};

use super::arrivals::LinkOwner;
use super::assembly::Assembly;
use super::classes::InClass;
use super::config::{LinkConfig, LinkError};
use super::dialing::Finding;
use super::moment::Moment;
use super::moved::SentMoves;
use super::one_sided::OneSided;
use super::placing::Placing;
use super::question::Question;
use super::rail::{At, Carried, LinkRail, LinkRailCounts, NotConnected, RailPath};
use super::shared::SharedMessages;
use super::store::Store;
use super::transfers::Transfers;
use crate::worker::Worker;
use crate::worker::channel::{Channel, SendError, SendErrorKind};
use crate::worker::lease::Lease;

pub(super) struct Link<P: Provider, N: Network> {
    pub(super) session: Session<Box<[Retained]>, Box<[Kept]>>,
    pub(super) rails: Vec<LinkRail<P, N>>,
    /// The ends and the counts of rails whose places other ports have now, until they count with those of ended links.
    pub(super) vacated: Vec<(RailPath, LinkRailCounts)>,
    /// Handle of the peer; only on the connecting side.
    pub(super) handle: Option<Handle>,
    /// The search for rails, while ports are scanned or are to be scanned again.
    pub(super) finding: Option<Finding>,
    /// The delay before another scan after a failed one.
    pub(super) backoff: Backoff,
    /// Why no rail reaches the peer, if the link has none.
    pub(super) unreached: Option<NotConnected>,
    /// The question for the rails that the handle has no room for.
    pub(super) question: Question<N>,
    /// The process that began the link; only on the accepting side.
    pub(super) peer: Option<InstanceId>,
    out: Store,
    /// Messages whose bytes are not in `out`.
    shared: SharedMessages,
    held: Store,
    assembly: Assembly,
    fragment_bytes: u32,
    /// Longest message that is sent as one fragment in a slot.
    whole_bytes_max: usize,
    /// One-sided requests and grants.
    pub(super) one_sided: OneSided,
    pub(super) transfers: Transfers<P>,
    /// The memory for long messages, and its use.
    pub(super) placing: Placing<P>,
    /// Its class, and its turn among the links of the class.
    pub(super) in_class: InClass,
    /// The final event, until it is reported after all others.
    pub(super) last_event: Option<SessionEvent>,
    /// The handle of this process that was announced to the peer, and the connections that announced it.
    pub(super) sent_moves: SentMoves,
}

/// Outcome of posting a request.
pub(super) enum Posted {
    Done(Ticket),
    Blocked,
    Failed,
    /// The device reported an error that does not say whether it took this request.
    InDoubt,
}

impl<P: Provider, N: Network> Link<P, N> {
    pub(super) fn new(
        config: &LinkConfig,
        role: Role,
        id: SessionId,
        now: Instant,
    ) -> Result<Self, LinkError> {
        let (retained, ahead) = (
            LinkConfig::places(config.retained),
            LinkConfig::places(config.ahead),
        );
        let tables = (
            vec![Retained::default(); retained].into_boxed_slice(),
            vec![Kept::default(); ahead].into_boxed_slice(),
        );
        let rails = (0..SESSION_RAILS_MAX)
            .map(|_| LinkRail::new(config.channel.send_depth))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            session: Session::new(config.session, role, id, tables, now),
            rails,
            vacated: Vec::new(),
            handle: None,
            finding: None,
            backoff: config.session.backoff,
            unreached: None,
            question: Question::default(),
            peer: None,
            out: Store::new(retained, config.stored_bytes())?,
            shared: SharedMessages::default(),
            held: Store::new(ahead, config.fragment_bytes())?,
            assembly: Assembly::new(config.message_bytes_max)?,
            fragment_bytes: config.session.fragment_bytes.max(1),
            whole_bytes_max: config.whole_bytes_max(),
            one_sided: OneSided::new(config)?,
            transfers: Transfers::new(config.transfers, role),
            placing: Placing::new(config),
            in_class: InClass::new(config.channel.class),
            last_event: None,
            sent_moves: SentMoves::default(),
        })
    }

    /// Returns the owner of the link; only on the accepting side.
    pub(super) fn who(&self) -> Option<LinkOwner> {
        let session = self.session.id();
        self.peer.map(|peer| LinkOwner { session, peer })
    }

    /// Reasons why it has no rail, or why some are not connected.
    pub(super) fn not_connected(&self) -> impl Iterator<Item = &NotConnected> {
        let rails = self.rails.iter();
        let rails = rails.filter_map(|rail| rail.not_connected.as_ref());
        self.unreached.iter().chain(rails)
    }

    pub(super) fn rail_mut(&mut self, rail: u8) -> Option<&mut LinkRail<P, N>> {
        self.rails.get_mut(usize::from(rail))
    }

    /// Returns another rail than this one that has a connection on a port of a Worker's device.
    pub(super) fn other_on(&self, (worker, port): (usize, u8), than: u8) -> Option<u8> {
        let mut rails = (0_u8..).zip(&self.rails);
        let found = rails.find(|(index, rail)| {
            *index != than && rail.port == port && rail.at.is_some_and(|at| at.worker == worker)
        });
        found.map(|(index, _)| index)
    }

    /// Accepts a message to be sent, and copies it.
    pub(super) fn push(&mut self, message: &[u8]) -> Result<Sequence, PushRefusal> {
        match message.len() > self.whole_bytes_max {
            false => {
                let (sequence, room) = self.push_whole(message.len())?;
                room.copy_from_slice(message);
                Ok(sequence)
            }
            true => self.push_long(message, None),
        }
    }

    /// Accepts a message to be sent, and shares its bytes until the peer has acknowledged it. A short or a placed message is copied.
    pub(super) fn push_shared(&mut self, message: &Arc<Vec<u8>>) -> Result<Sequence, PushRefusal> {
        match message.len() > self.whole_bytes_max {
            false => self.push(message),
            true => self.push_long(message, Some(message)),
        }
    }

    /// Accepts a message of one fragment. The caller writes its bytes into the returned memory.
    #[inline(always)]
    pub(super) fn push_whole(&mut self, bytes: usize) -> Result<(Sequence, &mut [u8]), PushRefusal> {
        if bytes > self.whole_bytes_max {
            return Err(too_long(bytes, self.whole_bytes_max));
        }
        // The limit is at most `fragment_bytes`, a 32-bit number.
        let short = u32::try_from(bytes & u32::MAX as usize).unwrap_or(0);
        let Self { session, out, .. } = self;
        // Each fragment has a place. If another one is there, the session refuses this one.
        let room = out.room(session.next_place(), bytes).ok_or(PushRefusal::Full)?;
        Ok((session.push_whole(short)?, room))
    }

    /// Accepts a message that may have several fragments, or may be placed in the peer's memory.
    #[inline(never)]
    fn push_long(&mut self, message: &[u8], shared: Option<&Arc<Vec<u8>>>) -> Result<Sequence, PushRefusal> {
        if message.len() > self.assembly.bytes_max() {
            return Err(too_long(message.len(), self.assembly.bytes_max()));
        }
        if let Some(taken) = self.push_placed(message) {
            return taken;
        }
        let longest = message.len().min(self.out.each());
        if shared.is_none() && longest < message.len().min(self.fragment_bytes as usize) {
            // This link stores only short messages.
            return Err(too_long(message.len(), longest));
        }
        let bytes = u64::try_from(message.len()).unwrap_or(u64::MAX);
        let taken = self.session.push(bytes, self.fragment_bytes)?;
        if let Some(shared) = shared {
            // The peer may have acknowledged some by the first frame of a new connection.
            let Self {
                shared: all, session, ..
            } = self;
            all.let_go(|sequence| session.kept(sequence).is_some());
            all.put(&taken, shared);
            return Ok(taken.last);
        }
        let (mut rest, mut at) = (message, taken.first);
        while at <= taken.last {
            let Some(fragment) = self.session.kept(at) else {
                break;
            };
            let length = usize::try_from(fragment.bytes).unwrap_or(0).min(rest.len());
            let (these, others) = rest.split_at(length);
            self.out.put(fragment.place, these);
            (rest, at) = (others, at.plus(1));
        }
        Ok(taken.last)
    }

    /// Handles a frame that arrived on a rail; `deliver` gets each complete message.
    pub(super) fn take(&mut self, rail: u8, bytes: &[u8], moment: Moment, mut deliver: impl FnMut(&[u8])) {
        let now = moment.now;
        if let Some(rail) = self.rail_mut(rail) {
            rail.did_receive(bytes.len());
        }
        let Ok(frame) = SessionFrame::parse(bytes) else {
            self.session.fail(FinalReason::Violation(Violation::Malformed));
            return;
        };
        // A frame that breaks the rules ends the session, which reports it.
        let Ok(received) = self.session.received(rail, &frame, now) else {
            return;
        };
        let Self { shared, session, .. } = self;
        shared.let_go(|sequence| session.kept(sequence).is_some());
        if let (SessionFrame::Placed(_, placed), Some(rail)) = (&frame, self.rail_mut(rail)) {
            rail.was_written(placed.bytes);
        }
        let is_well = match (&frame, received) {
            (SessionFrame::Data(header, payload), Received::InOrder) => {
                let (first, last) = (header.is_first(), header.is_last());
                let into = (&mut self.assembly, &mut self.placing);
                add(into, payload, first && last, last, &mut deliver) && self.deliver_held(deliver)
            }
            (SessionFrame::Data(_, payload), Received::Early { place }) => {
                if !self.held.put(place, payload) {
                    self.session
                        .fail(FinalReason::Violation(Violation::FragmentTooLong));
                }
                true
            }
            (SessionFrame::Placed(_, placed), Received::InOrder | Received::Early { .. })
                if !self.placing.holds(*placed) =>
            {
                self.session.fail(FinalReason::Violation(Violation::OutOfPlace));
                true
            }
            (SessionFrame::Placed(header, placed), Received::InOrder) => {
                self.add_placed(header.is_last(), *placed, &mut deliver) && self.deliver_held(deliver)
            }
            (SessionFrame::Placed(_, placed), Received::Early { place }) => self.placing.keep(place, *placed),
            (_, Received::Beside) => {
                self.hear_beside(rail, &frame, moment);
                true
            }
            _ => true,
        };
        if !is_well {
            self.session.fail(FinalReason::Violation(Violation::TooLong));
        }
    }

    /// Adds a fragment that the peer placed in memory of this side.
    fn add_placed(&mut self, is_last: bool, placed: Placed, deliver: &mut impl FnMut(&[u8])) -> bool {
        let Self {
            assembly, placing, ..
        } = self;
        let bytes = usize::try_from(placed.bytes).unwrap_or(usize::MAX);
        let copy = |room: &mut [u8]| placing.copy_out(placed, room);
        assembly.extend(bytes, is_last, copy, deliver)
    }

    /// Notes that all requests of a rail up to this one are done.
    pub(super) fn completed(&mut self, rail: u8, through: Ticket, now: Instant) {
        let Self {
            rails,
            one_sided,
            transfers,
            placing,
            session,
            ..
        } = self;
        let epoch = session.rail_epoch(rail);
        let Some(of) = rails.get_mut(usize::from(rail)) else {
            return;
        };
        let (requests, bytes) = of.completed(through, |carried| match carried {
            Carried::Request(request) => one_sided.completed(request),
            Carried::Stretch(stretch) => one_sided.stretch_completed(stretch),
            Carried::Piece(transfer, bytes, pieces) => {
                transfers.completed(rail, transfer, (bytes, pieces), now);
            }
            Carried::Part(_) | Carried::PlacedPart => {}
            Carried::Placed(place) => placing.completed(place, (rail, epoch)),
        });
        one_sided.ours.completed(rail, epoch, through);
        self.session.completed(rail, requests, bytes, now);
    }

    /// Handles the data that a request on a rail fetched. Returns the one-sided request that is done now, if its data is to be reported.
    pub(super) fn fetched(&mut self, rail: u8, ticket: Ticket, data: &[u8]) -> Option<RequestId> {
        let carried = self.rails.get(usize::from(rail))?.carried_by(ticket)?;
        self.one_sided.fetched(carried, data)
    }

    /// Notes that the peer's device refused a request of a channel. The channel may be the present or the previous one of any rail.
    pub(super) fn denied(&mut self, at: At, ticket: Ticket, status: WcStatus) {
        let mut rails = self.rails.iter();
        match rails.find_map(|rail| rail.carried_on(at, ticket)) {
            Some(Carried::Request(request)) => self.one_sided.denied(request),
            Some(Carried::Stretch(stretch)) => self.one_sided.stretch_denied(stretch),
            // The device gives no right as the cause: the piece goes again over another connection, and a device that fails for good ends it.
            Some(Carried::Piece(id, ..) | Carried::Part(id)) if status == WcStatus::REM_OP_ERR => {
                self.transfers.failed_at_taker(id);
            }
            Some(Carried::Piece(id, ..) | Carried::Part(id)) => self.transfers.denied(id),
            Some(Carried::Placed(_) | Carried::PlacedPart) => self.denied_placed(),
            None => {}
        }
    }

    /// Delivers early fragments that are next in order now. A callback that panicked may have left some.
    pub(super) fn deliver_left(&mut self, deliver: impl FnMut(&[u8])) {
        if !self.deliver_held(deliver) {
            self.session.fail(FinalReason::Violation(Violation::TooLong));
        }
    }

    fn deliver_held(&mut self, mut deliver: impl FnMut(&[u8])) -> bool {
        while let Ok(Some(held)) = self.session.take_held() {
            let is_well = match held.is_placed {
                true => match self.placing.kept(held.place) {
                    Some(placed) => self.add_placed(held.is_last, placed, &mut deliver),
                    None => false,
                },
                false => {
                    let payload = self.held.get(held.place, held.bytes);
                    let into = (&mut self.assembly, &mut self.placing);
                    let is_whole = held.is_first && held.is_last;
                    add(into, payload, is_whole, held.is_last, &mut deliver)
                }
            };
            if !is_well {
                return false;
            }
        }
        true
    }

    /// Sends the reason for the end of the session on a channel that a rail had, if the peer has to be notified. Returns whether the channel
    /// is to be kept until the frame is delivered. If this side granted windows, or if the device reads memory for a transfer, the channel
    /// is closed at once instead.
    pub(super) fn say_last(&self, rail: u8, at: At, workers: &mut [Worker<P>]) -> bool {
        let worker = workers.get_mut(at.worker);
        let channel = worker.and_then(|worker| worker.channel(at.channel));
        let (Some(reason), Some(channel)) = (self.session.last_word(), channel) else {
            return false;
        };
        let refusal = Refusal::new(self.session.rail_epoch(rail), reason).to_bytes();
        let is_said = channel.post_inline(Operation::Send, &refusal).is_ok();
        is_said && !self.one_sided.ours.has_granted() && !self.transfers.is_any_writing()
    }

    /// Posts the request of a session's action on a rail's channel.
    pub(super) fn post(&mut self, action: &Action, workers: &mut [Worker<P>], now: Instant) -> Posted {
        let (Action::Attach { rail, .. }
        | Action::Transmit { rail, .. }
        | Action::Acknowledge { rail, .. }
        | Action::Probe { rail }
        | Action::Farewell { rail, .. }) = *action
        else {
            return Posted::Failed;
        };
        let at = self.rails.get(usize::from(rail)).and_then(|rail| rail.at);
        if let Action::Transmit { header, fragment, .. } = action {
            if let Some(at) = at.filter(|_| fragment.is_placed) {
                return self.post_placed((rail, at), header, fragment, workers, now);
            }
        }
        let Some((at, worker)) = at.and_then(|at| Some((at, workers.get_mut(at.worker)?))) else {
            return Posted::Failed;
        };
        if let Action::Transmit { header, fragment, .. } = action {
            let shared = self.shared.get(fragment, self.fragment_bytes);
            let payload = shared.unwrap_or_else(|| self.out.get(fragment.place, fragment.bytes));
            return transmit(worker, at, header, payload);
        }
        let Some(channel) = worker.channel(at.channel) else {
            return Posted::Failed;
        };
        posted(match action {
            Action::Attach { said, .. } => {
                channel.post_inline(Operation::Send, &Attach::new(said).to_bytes())
            }
            Action::Acknowledge { header, .. } | Action::Farewell { header, .. } => {
                channel.post_inline(Operation::Send, &header.to_bytes())
            }
            _ => channel.probe(),
        })
    }
}

#[cold]
const fn too_long(bytes: usize, bytes_max: usize) -> PushRefusal {
    PushRefusal::TooLong {
        bytes: bytes as u64,
        bytes_max: bytes_max as u64,
    }
}

/// The bytes that are posted for an action, with the header.
pub(super) fn frame_bytes(action: &Action) -> u64 {
    let frame = match action {
        Action::Attach { said, .. } => Attach::new(said).to_bytes().len(),
        Action::Acknowledge { .. } | Action::Farewell { .. } => SESSION_HEADER_BYTES,
        // Its WRITEs were counted when they were posted.
        Action::Transmit { fragment, .. } if fragment.is_placed => return SESSION_PLACED_BYTES as u64,
        _ => 0,
    };
    // The backlog of a fragment's action has its bytes, header included.
    u64::try_from(frame)
        .unwrap_or(u64::MAX)
        .saturating_add(action.backlog_bytes())
}

/// Adds a fragment that arrived in a slot to its message. Returns `false` if the message is too long.
fn add<P: Provider>(
    (assembly, placing): (&mut Assembly, &mut Placing<P>),
    payload: &[u8],
    is_whole: bool,
    is_last: bool,
    deliver: &mut impl FnMut(&[u8]),
) -> bool {
    if is_last && !is_whole {
        placing.note_long(assembly.length().saturating_add(payload.len()));
    }
    assembly.add(payload, is_whole, is_last, deliver)
}

/// Sends a copy of a fragment, since the fragment may have to be retransmitted.
fn transmit<P: Provider>(worker: &mut Worker<P>, at: At, header: &SessionHeader, payload: &[u8]) -> Posted {
    let Some(mut lease) = worker.lease() else {
        return Posted::Blocked;
    };
    let length = SESSION_HEADER_BYTES.saturating_add(payload.len());
    let Some((front, rest)) = lease
        .buffer_mut()
        .get_mut(..length)
        .and_then(|buffer| buffer.split_at_mut_checked(SESSION_HEADER_BYTES))
    else {
        worker.release(lease);
        return Posted::Failed;
    };
    front.copy_from_slice(&header.to_bytes());
    rest.copy_from_slice(payload);
    lease.set_len_bytes(length);
    let Some(channel) = worker.channel(at.channel) else {
        worker.release(lease);
        return Posted::Failed;
    };
    send(channel, lease).unwrap_or_else(|(outcome, lease)| {
        if let Some(lease) = lease {
            worker.release(lease);
        }
        outcome
    })
}

fn send<P: Provider>(
    channel: &mut Channel<P>,
    lease: Lease<P>,
) -> Result<Posted, (Posted, Option<Lease<P>>)> {
    match channel.send_lease(lease) {
        Ok(ticket) => Ok(Posted::Done(ticket)),
        // The device kept the lease, so it may have the request.
        Err(SendError { item: None, .. }) => Err((Posted::InDoubt, None)),
        Err(error) => Err((posted(Err(error.kind)), error.item)),
    }
}

pub(super) fn posted(outcome: Result<Ticket, SendErrorKind>) -> Posted {
    match outcome {
        Ok(ticket) => Posted::Done(ticket),
        Err(SendErrorKind::WouldBlock) => Posted::Blocked,
        Err(_) => Posted::Failed,
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::provider::PlacementConfig;
    use doorbell_core::session::{Role, SessionId};
    use doorbell_core::wire::EndReason;
    use doorbell_core::{Instant, WcStatus};
    use doorbell_sim::{Fabric, Host};

    use super::super::config::LinkConfig;
    use super::super::grants::tests::ticket;
    use super::super::rail::{At, Carried};
    use super::super::transfers::{TransferEnd, TransferEvent, TransferOptions, TransferRole};
    use super::Link;
    use crate::connect::node::Node;
    use crate::machine::makers::Whom;
    use crate::trust::Trust;
    use crate::worker::channel::ChannelId;
    use crate::worker::config::WorkerConfig;

    /// Returns after how many WRITEs in a row with this status a transfer ends, and how.
    fn failed_until(status: WcStatus) -> (u64, TransferEnd) {
        let now = Instant::from_ns(0);
        let [host] = Fabric::new().hosts().unwrap();
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let region = node.region(&workers, 4096, &PlacementConfig::default()).unwrap();
        let (config, id) = (LinkConfig::default(), SessionId::new(7).unwrap());
        let mut link: Link<Host, Host> = Link::new(&config, Role::Initiator, id, now).unwrap();
        let (by, options) = ((now, node.makers(), Whom::All), TransferOptions::default());
        let giver = (TransferRole::Giver, 4096);
        let transfer = link.transfers.begin(giver, (&region, 0), &options, by).unwrap();
        let channel = ChannelId {
            index: 0,
            generation: 1,
        };
        let at = At { worker: 0, channel };
        link.rails[0].at = Some(at);
        for count in 1..100 {
            link.rails[0].posted(ticket(count), 0, Some(Carried::Piece(transfer, 4096, 1)));
            link.denied(at, ticket(count), status);
            link.transfers.look(now, node.makers(), Whom::All);
            let mut ended = None;
            link.transfers.report(now, |_, event| {
                if let TransferEvent::Ended { end, .. } = event {
                    ended = Some(end);
                }
            });
            if let Some(end) = ended {
                return (count, end);
            }
        }
        panic!("the transfer goes on");
    }

    /// A dying process may cause one failure on each rail, and no transfer ends for that.
    #[test]
    fn a_device_that_fails_ends_a_transfer_in_the_end_and_a_right_that_is_denied_at_once() {
        let denied = TransferEnd::Here(EndReason::DENIED);
        assert_eq!(failed_until(WcStatus::REM_ACCESS_ERR), (1, denied));
        assert_eq!(failed_until(WcStatus::REM_INV_REQ_ERR), (1, denied));
        assert_eq!(failed_until(WcStatus::REM_OP_ERR), (16, denied));
    }
}
