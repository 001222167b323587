//! One-sided requests of a link: their records, the rails that they use, and the frames that are not messages.

mod long;
pub(super) mod posting;

use core::time::Duration;
use std::collections::VecDeque;

use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, Provider, RemoteAccess, RemoteAddress};
use doorbell_core::session::{
    Epoch, FinalReason, HealthState, KeptRequest, Repeat, RequestEnd, RequestId, RequestRefusal, Requests,
    Role, SESSION_RAILS_MAX, Sequence, Violation,
};
use doorbell_core::wire::{Fence, FenceFrame, Grant, Handle, SessionFrame, SessionHeader};
use doorbell_core::{Deadline, Instant};

use super::config::{LinkConfig, LinkError};
use super::event::LinkEvent;
use super::fences::Fences;
use super::grants::{Change, Ours, Theirs, is_of_word};
use super::moment::Moment;
use super::rail::{At, Carried};
use super::state::Link;
use super::store::Store;
use super::transfers::LoanEnd;
use crate::machine::makers::{Makers, Whom};
use crate::worker::Worker;
use long::LongRequests;

/// Request to a window of the peer, of at most [`LinkConfig::request_bytes_max`](super::LinkConfig::request_bytes_max) bytes.
///
/// A request longer than a fragment is executed in stretches of the length of a fragment, in any order and over all rails. Other
/// requests, and the peer itself, may see some stretches done and others not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request<'b> {
    /// WRITE of these bytes. If its rail fails, it may be executed again with the same bytes. After the end
    /// [`RequestEnd::Done`](crate::link::RequestEnd) it is not executed any more. After another end it may still be executed by a
    /// rail that failed.
    Write(&'b [u8]),
    /// WRITE of these bytes that is never executed twice. If its rail fails, it is unknown whether it was executed.
    WriteOnce(&'b [u8]),
    /// READ of this number of bytes.
    Read(u32),
    /// Addition to an aligned word, wrapping; the previous value is fetched.
    FetchAndAdd(u64),
    /// Replacement of an aligned word if it equals `compare`; the previous value is fetched.
    CompareAndSwap {
        /// Value that the word must equal.
        compare: u64,
        /// Value that replaces it.
        swap: u64,
    },
}

/// Record of a request or of a stretch. The bytes of a WRITE are stored separately.
#[derive(Clone, Copy, Debug, Default)]
struct RequestRecord {
    offset: u64,
    bytes: u32,
    kind: OneSidedKind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OneSidedKind {
    #[default]
    Read,
    Write,
    Add(u64),
    Swap {
        compare: u64,
        swap: u64,
    },
}

/// Delay before work that no event announces is checked again.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// The length of an atomic's word.
const WORD_BYTES: u32 = 8;

/// A change of the peer's windows that is to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowNotice {
    Granted {
        number: u32,
        bytes: u64,
        access: RemoteAccess,
    },
    Withdrawn {
        number: u32,
    },
}

/// The one-sided requests, grants and fences of a link.
pub(super) struct OneSided {
    requests: Requests<Box<[KeptRequest]>>,
    asked: Box<[RequestRecord]>,
    payloads: Store,
    long: LongRequests,
    pub(super) ours: Ours,
    theirs: Theirs,
    /// For each rail, its connection when it was last checked.
    seen: [Option<Epoch>; SESSION_RAILS_MAX as usize],
    pub(super) fences: Fences,
    pub(super) news: VecDeque<WindowNotice>,
    /// The new handle that the peer announced, until it is adopted, and the highest number of the peer's handles.
    pub(super) moved: Option<Handle>,
    moved_last: Sequence,
}

impl OneSided {
    pub(super) fn new(config: &LinkConfig) -> Result<Self, LinkError> {
        let places = LinkConfig::places(config.requests);
        let patience = config.session.recover_within;
        Ok(Self {
            requests: Requests::new(vec![KeptRequest::default(); places].into_boxed_slice(), patience),
            asked: vec![RequestRecord::default(); places].into_boxed_slice(),
            payloads: Store::new(places, config.fragment_bytes())?,
            long: LongRequests::new(config)?,
            ours: Ours::default(),
            theirs: Theirs::default(),
            seen: [None; SESSION_RAILS_MAX as usize],
            fences: Fences::default(),
            news: VecDeque::new(),
            moved: None,
            moved_last: Sequence(0),
        })
    }

    /// Accepts a request.
    fn begin(
        &mut self,
        (window, offset): (u32, u64),
        request: &Request<'_>,
        now: Instant,
    ) -> Result<RequestId, RequestRefusal> {
        let (length, access) = self.theirs.get(window).ok_or(RequestRefusal::NoWindow)?;
        let (kind, bytes, repeat, is_granted) = match *request {
            Request::Write(bytes) => (OneSidedKind::Write, bytes.len(), Repeat::OnceFenced, access.write),
            Request::WriteOnce(bytes) => (OneSidedKind::Write, bytes.len(), Repeat::Never, access.write),
            Request::Read(bytes) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                (OneSidedKind::Read, bytes, Repeat::AtOnce, access.read)
            }
            Request::FetchAndAdd(add) => (
                OneSidedKind::Add(add),
                WORD_BYTES as usize,
                Repeat::Never,
                access.atomic,
            ),
            Request::CompareAndSwap { compare, swap } => (
                OneSidedKind::Swap { compare, swap },
                WORD_BYTES as usize,
                Repeat::Never,
                access.atomic,
            ),
        };
        let too_long = RequestRefusal::TooLong {
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            bytes_max: self.long.bytes_max(),
        };
        let bytes = u32::try_from(bytes).map_err(|_| too_long)?;
        let is_word = matches!(kind, OneSidedKind::Add(_) | OneSidedKind::Swap { .. });
        let is_within = offset
            .checked_add(u64::from(bytes))
            .is_some_and(|end| end <= length);
        if bytes > self.long.bytes_max() {
            return Err(too_long);
        }
        if !is_within {
            return Err(RequestRefusal::OutOfWindow {
                offset,
                bytes,
                window_bytes: length,
            });
        }
        if is_word && !self.theirs.has_word_at(window, offset) {
            return Err(RequestRefusal::Misaligned { offset });
        }
        if !is_granted {
            return Err(RequestRefusal::NotGranted);
        }
        let payload = match *request {
            Request::Write(payload) | Request::WriteOnce(payload) => payload,
            _ => &[],
        };
        let asked = RequestRecord { offset, bytes, kind };
        if self.long.is_long(&asked) {
            let id = self
                .long
                .begin(&mut self.requests, (window, asked, repeat), payload, now)?;
            self.note(id, asked);
            return Ok(id);
        }
        let id = self
            .requests
            .begin(window, repeat, now)
            .ok_or(RequestRefusal::Full)?;
        self.payloads.put(id.place(), payload);
        self.note(id, asked);
        Ok(id)
    }

    fn note(&mut self, id: RequestId, asked: RequestRecord) {
        if let Some(place) = self.asked.get_mut(id.place()) {
            *place = asked;
        }
    }

    /// Notes that a request is done.
    pub(super) fn completed(&mut self, id: RequestId) {
        self.requests.done(id);
    }

    /// Notes that a stretch of a long request is done.
    pub(super) fn stretch_completed(&mut self, id: RequestId) {
        self.long.completed(id);
    }

    /// Handles the data of a request or a stretch. Returns the request that is done now, if its data is to be reported.
    pub(super) fn fetched(&mut self, carried: Carried, data: &[u8]) -> Option<RequestId> {
        match carried {
            Carried::Request(id) => self.requests.done(id).then_some(id),
            Carried::Stretch(id) => {
                self.long.fetched(id, data);
                None
            }
            Carried::Piece(..) | Carried::Part(_) | Carried::Placed(_) | Carried::PlacedPart => None,
        }
    }

    /// Notes that the peer's device refused a request.
    pub(super) fn denied(&mut self, id: RequestId) {
        self.requests.denied(id);
    }

    /// Notes that the peer's device refused a stretch of a long request.
    pub(super) fn stretch_denied(&mut self, id: RequestId) {
        self.long.denied(id);
    }

    /// Whether a request has no end yet.
    pub(super) fn is_any_open(&self) -> bool {
        self.requests.is_any_open()
    }

    /// Whether nothing is to be posted or reported before a connection changes, if the link has no open requests.
    pub(super) fn is_at_rest(&self) -> bool {
        let has_news = !self.news.is_empty() || self.moved.is_some() || self.long.is_any();
        !has_news && self.ours.is_at_rest() && self.fences.is_at_rest() && self.requests.fence_due().is_none()
    }

    /// Returns the next end to report. A request that fetched data was reported when the data arrived, unless it is long.
    fn poll_end(&mut self) -> Option<LinkEvent<'_>> {
        let (request, end, is_long_read) = loop {
            let (id, end) = self.requests.poll_end()?;
            let asked = self.asked.get(id.place()).copied().unwrap_or_default();
            let (is_done, is_read) = (end == RequestEnd::Done, asked.kind != OneSidedKind::Write);
            if self.long.is_long(&asked) {
                break (id, end, is_done && is_read);
            }
            if !is_done || !is_read {
                return Some(LinkEvent::Ended { request: id, end });
            }
        };
        let data = self.long.reported(request).unwrap_or_default();
        Some(match is_long_read {
            true => LinkEvent::Fetched { request, data },
            false => LinkEvent::Ended { request, end },
        })
    }

    fn fenced(&mut self, rail: u8, through: Epoch) {
        self.requests.fenced(rail, through);
        self.long.fenced(rail, through);
    }

    fn rail_lost(&mut self, rail: u8, now: Instant) {
        self.requests.rail_lost(rail, now);
        self.long.rail_lost(rail, &mut self.requests, now);
    }

    fn over(&mut self, reason: FinalReason) {
        self.long.over(&mut self.requests, reason);
        self.requests.over(reason);
    }

    /// Advances long requests.
    fn go_on(&mut self, now: Instant) {
        let Self {
            long,
            requests,
            theirs,
            ..
        } = self;
        long.go_on(requests, |window| theirs.get(window).is_some(), now);
    }

    /// When to check the deadlines of requests.
    fn wake(&self) -> Option<Deadline> {
        self.requests.wake().into_iter().chain(self.long.wake()).min()
    }

    /// Returns the operation of a request or a stretch on a rail's connection, and its record. `None` if the connection cannot execute it.
    fn operation(&self, what: Carried, window: u32, over: (u8, Epoch)) -> Option<(Operation, RequestRecord)> {
        let asked = match what {
            Carried::Request(id) => *self.asked.get(id.place())?,
            Carried::Stretch(id) => self.long.asked(id)?,
            Carried::Piece(..) | Carried::Part(_) | Carried::Placed(_) | Carried::PlacedPart => return None,
        };
        let range = (asked.offset, u64::from(asked.bytes));
        let remote: RemoteAddress = self.theirs.address(window, over, range)?;
        // Each key may have a different base address for the same memory.
        let is_word = matches!(asked.kind, OneSidedKind::Add(_) | OneSidedKind::Swap { .. });
        if is_word && !is_of_word(remote.address()) {
            return None;
        }
        let operation = match asked.kind {
            OneSidedKind::Read => Operation::Read(remote),
            OneSidedKind::Write => Operation::Write(remote),
            OneSidedKind::Add(add) => Operation::FetchAndAdd { remote, add },
            OneSidedKind::Swap { compare, swap } => Operation::CompareAndSwap {
                remote,
                compare,
                swap,
            },
        };
        Some((operation, asked))
    }
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Accepts a request to a window of the peer.
    pub(super) fn ask(
        &mut self,
        at: (u32, u64),
        request: &Request<'_>,
        now: Instant,
    ) -> Result<RequestId, RequestRefusal> {
        if let Some(reason) = self.session.over() {
            return Err(RequestRefusal::Over(reason));
        }
        if self.session.is_closing() {
            return Err(RequestRefusal::Closing);
        }
        self.one_sided.begin(at, request, now)
    }

    /// When to poll again at the latest. If the session is over, that is now, since the end has to be reported, or soon if transfers are
    /// still open.
    pub(super) fn wake(&self, now: Instant) -> Option<Deadline> {
        if self.session.over().is_some() {
            // Transfers end after channels are shut by a poll and threads have deregistered memory.
            let is_waiting = self.transfers.is_any_open();
            return Some(if is_waiting {
                Deadline::after(now, SOON)
            } else {
                Deadline::at(now)
            });
        }
        let session = self.session.wake(now)?;
        let soon = Deadline::after(now, SOON);
        let requests = self.one_sided.wake().map(|wake| match wake.has_passed(now) {
            true => soon,
            false => wake,
        });
        let owed = self.one_sided.fences.is_any_to_go().then_some(soon);
        let transfers = self.transfers.wake(now);
        let class = self.in_class.wake(now);
        let making = (!self.placing.is_at_rest()).then_some(soon);
        core::iter::once(session)
            .chain(making)
            .chain(requests)
            .chain(owed)
            .chain(transfers)
            .chain(class)
            .min()
    }

    /// Reports the events of windows, requests, transfers and loans.
    pub(super) fn report_beside(&mut self, now: Instant, mut each: impl FnMut(LinkEvent<'_>)) {
        while let Some(news) = self.one_sided.news.pop_front() {
            each(match news {
                WindowNotice::Granted {
                    number,
                    bytes,
                    access,
                } => LinkEvent::Granted {
                    window: number,
                    bytes,
                    access,
                },
                WindowNotice::Withdrawn { number } => LinkEvent::Withdrawn { window: number },
            });
        }
        while let Some(ended) = self.one_sided.poll_end() {
            each(ended);
        }
        let report = |transfer, event| each(LinkEvent::Transfer { transfer, event });
        self.transfers.report(now, report);
        while let Some((loan, end)) = self.transfers.poll_revoked() {
            each(match end {
                LoanEnd::Withdrawn(error) => LinkEvent::Revoked { loan, error },
                LoanEnd::Kept(error) => LinkEvent::NotRevoked { loan, error },
            });
        }
    }

    /// Handles a frame of the peer that is no message.
    pub(super) fn hear_beside(&mut self, rail: u8, frame: &SessionFrame<'_>, Moment { now, random }: Moment) {
        match frame {
            SessionFrame::Grant(granted) => {
                let number = granted.number;
                match self.one_sided.theirs.hear(rail, granted) {
                    Change::New { bytes, access } => self.one_sided.news.push_back(WindowNotice::Granted {
                        number,
                        bytes,
                        access,
                    }),
                    Change::Withdrawn => {
                        self.one_sided.requests.withdrawn(number);
                        self.one_sided.long.withdrawn(number);
                        self.one_sided.news.push_back(WindowNotice::Withdrawn { number });
                    }
                    Change::None => {}
                    Change::TooMany => self.session.fail(FinalReason::Violation(Violation::OutOfPlace)),
                }
            }
            SessionFrame::Fence(fence) => {
                self.session.given_up(fence.rail, fence.through, now, random);
                self.one_sided.fences.asked(fence.rail, fence.through);
            }
            SessionFrame::Fenced(fence) => {
                self.one_sided.fenced(fence.rail, fence.through);
                self.transfers.fenced(fence.rail, fence.through);
                self.placing.fenced(fence.rail, fence.through);
            }
            SessionFrame::Lend(lend) => match self.placing.heard(rail, lend) {
                Ok(()) => self.session.lent(rail, lend.epoch),
                Err(violation) => self.session.fail(FinalReason::Violation(violation)),
            },
            SessionFrame::Open(_)
            | SessionFrame::Take(_)
            | SessionFrame::Landed(_)
            | SessionFrame::Progress(_)
            | SessionFrame::End(_) => {
                if let Err(violation) = self.transfers.hear(rail, frame, now) {
                    self.session.fail(FinalReason::Violation(violation));
                }
            }
            // A handle with a lower number was delayed on its rail, and is ignored. One with the same number is adopted again: another
            // connection may announce it after this side failed to use it, or adopted another handle.
            SessionFrame::Moved(header, handle) if header.sequence() >= self.one_sided.moved_last => {
                self.one_sided.moved_last = header.sequence();
                self.one_sided.moved = Some(handle.to_handle());
            }
            _ => {}
        }
    }

    /// Advances requests, grants, fences, transfers and placed memory, as far as rails have room.
    pub(super) fn go_on_beside(
        &mut self,
        workers: &mut [Worker<P>],
        (ours, makers): (Option<&(Handle, Sequence)>, &Makers),
        moment: Moment,
    ) {
        let now = moment.now;
        self.transfers.begin_turn();
        if let Some(reason) = self.session.over() {
            // Its rails are shut by now, so open requests end with the reason of the link.
            self.one_sided.over(reason);
            self.transfers.over(reason);
            self.transfers.look(now, makers, self.whom());
            return;
        }
        self.note_rails(now);
        if self.session.is_closing() {
            self.transfers.decline_offers(now);
        }
        self.transfers.look(now, makers, self.whom());
        self.transfers.announce(&mut self.one_sided.ours);
        self.end_late(now);
        self.one_sided.go_on(now);
        let progress = |at: At| Some(workers.get(at.worker)?.close_progress(at.channel));
        self.one_sided.fences.look(progress);
        self.say_beside(workers, ours, moment);
        if !self.in_class.is_ordered() {
            self.post_requests(workers, moment);
        }
        self.go_on_with_transfers(workers, moment);
        self.go_on_with_placing(workers, makers, moment);
        let OneSided { ours, seen, .. } = &mut self.one_sided;
        ours.forget(seen);
        self.session.await_beside(self.awaits_beside());
    }

    /// Whether there are open requests, or transfers.
    pub(super) fn awaits_beside(&self) -> bool {
        self.one_sided.is_any_open() || self.transfers.is_any()
    }

    /// The peer for whose jobs helper threads register and deregister memory.
    pub(super) fn whom(&self) -> Whom {
        let peer = self.handle.map(|handle| handle.instance()).or(self.peer);
        peer.map_or(Whom::All, Whom::Peer)
    }

    /// Notes which connections were lost, and which exist now.
    fn note_rails(&mut self, now: Instant) {
        for (index, rail) in (0..self.session.rails_end()).zip(&self.rails) {
            let epoch = rail.at.map(|_| self.session.rail_epoch(index));
            let Some(seen) = self.one_sided.seen.get(usize::from(index)).copied() else {
                continue;
            };
            if seen != epoch && seen.is_some() {
                self.one_sided.rail_lost(index, now);
                self.one_sided.ours.lost(index);
                let fence_by = Deadline::after(now, self.session.config().recover_within.saturating_mul(2));
                let mut must_fence = self.transfers.lost(index, fence_by);
                if let Some(lost) = seen {
                    must_fence |= self.placing.lost(index, lost);
                }
                if let Some(lost) = seen.filter(|_| must_fence) {
                    self.one_sided.requests.fence(index, lost);
                }
            }
            if let Some(seen) = self.one_sided.seen.get_mut(usize::from(index)) {
                *seen = epoch;
            }
            if let Some(epoch) = epoch.filter(|_| self.session.rail_state(index) != HealthState::Down) {
                // A peer that attached a new connection accepts nothing more from earlier ones.
                let before = Epoch::from_wire(epoch.to_u32().saturating_sub(1));
                self.one_sided.fenced(index, before);
                self.transfers.fenced(index, before);
                self.placing.fenced(index, before);
            }
        }
    }

    /// Whether no connection has changed since the last check. Otherwise fences for a lost one may still have to be requested.
    pub(super) fn has_noted_rails(&self) -> bool {
        let rails = (0..self.session.rails_end())
            .zip(&self.rails)
            .zip(&self.one_sided.seen);
        let mut epochs =
            rails.map(|((index, rail), seen)| (rail.at.map(|_| self.session.rail_epoch(index)), seen));
        epochs.all(|(epoch, seen)| epoch == *seen)
    }

    /// Returns the channel of a rail, if a frame may be posted on it now.
    pub(super) fn open_rail(&self, rail: u8) -> Option<(At, Epoch)> {
        let at = self.rails.get(usize::from(rail))?.at?;
        let may = self.session.takes_beside(rail);
        may.then(|| (at, self.session.rail_epoch(rail)))
    }

    /// Returns a rail on which a frame may be posted now, preferably one that is [`HealthState::Up`].
    pub(super) fn any_rail(&self) -> Option<(u8, At, Epoch)> {
        let rails = (0..self.session.rails_end()).filter_map(|rail| {
            let (at, epoch) = self.open_rail(rail)?;
            Some((rail, at, epoch))
        });
        rails.min_by_key(|(rail, ..)| self.session.rail_state(*rail) != HealthState::Up)
    }

    fn say_beside(&mut self, workers: &mut [Worker<P>], ours: Option<&(Handle, Sequence)>, moment: Moment) {
        for rail in 0..self.session.rails_end() {
            while let Some((at, epoch)) = self.open_rail(rail) {
                let Some(granted) = self.one_sided.ours.unsent(rail, at.worker, epoch) else {
                    break;
                };
                let bytes = Grant::new(&granted).to_bytes();
                let Some(ticket) = self.say((rail, at), &bytes, workers, moment) else {
                    break;
                };
                self.one_sided.ours.note_sent(rail, &granted, ticket);
            }
        }
        // A peer may ask about a rail that was never used, so the loop is over all rails.
        for rail in 0..SESSION_RAILS_MAX {
            let Some(through) = self.one_sided.fences.due(rail) else {
                continue;
            };
            if let Some((over, at, epoch)) = self.any_rail() {
                let answer = FenceFrame::answer(&Fence { epoch, rail, through });
                if self
                    .say((over, at), &answer.to_bytes(), workers, moment)
                    .is_some()
                {
                    self.one_sided.fences.answered(rail);
                }
            }
        }
        self.one_sided.fences.end_turn();
        while let Some((rail, through)) = self.one_sided.requests.fence_due() {
            let Some((over, at, epoch)) = self.any_rail() else {
                break;
            };
            let ask = FenceFrame::ask(&Fence { epoch, rail, through });
            if self.say((over, at), &ask.to_bytes(), workers, moment).is_none() {
                break;
            }
            self.one_sided.requests.fence_asked(rail);
        }
        self.say_moved(workers, ours, moment);
    }

    /// Announces the present handle of this process on the best rail, at most once on each connection.
    fn say_moved(&mut self, workers: &mut [Worker<P>], ours: Option<&(Handle, Sequence)>, moment: Moment) {
        // Only the connecting side needs a handle, so only the accepting side announces one.
        let Some((handle, number)) = ours.filter(|_| self.session.role() == Role::Responder) else {
            return;
        };
        let Some((rail, at, epoch)) = self.any_rail() else {
            return;
        };
        if self.sent_moves.was_sent(handle, rail, epoch) {
            return;
        }
        let header = SessionHeader::moved(epoch, *number).to_bytes();
        let bytes = [&header, handle.as_bytes()].concat();
        if self.say((rail, at), &bytes, workers, moment).is_some() {
            self.sent_moves.note_sent(handle, rail, epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::LinkConfig;
    use super::super::moment::Moment;
    use super::super::state::Link;
    use doorbell_core::Instant;
    use doorbell_core::session::{Action, Role, SessionId};
    use doorbell_core::wire::{Fence, SessionFrame};
    use doorbell_sim::Host;

    #[test]
    fn a_rail_given_up_at_the_peers_word_is_connected_again_after_a_wait_by_chance() {
        let now = Instant::from_ns(0);
        let again = |random| {
            let id = SessionId::new(7).unwrap();
            let link = Link::new(&LinkConfig::default(), Role::Initiator, id, now);
            let mut link: Link<Host, Host> = link.unwrap();
            let rail = link.session.add_rail(1000, now).unwrap();
            let Some(Action::Connect { epoch, .. }) = link.session.poll_action(now, 0) else {
                panic!("it is not connected");
            };
            link.session.connected(rail, now);
            let through = epoch;
            let fence = SessionFrame::Fence(Fence { epoch, rail, through });
            link.hear_beside(rail, &fence, Moment { now, random });
            link.session.wake(now).unwrap().instant().to_ns()
        };
        let half_ns = LinkConfig::default().session.backoff.first.as_nanos() as u64 / 2;
        assert_eq!([again(0), again(3_000_000)], [half_ns, half_ns + 3_000_000]);
    }
}
