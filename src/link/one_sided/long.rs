//! Requests longer than a fragment. Each is executed in stretches of at most a fragment, and its end is derived from theirs.
//!
//! Stretches are requests in a separate table, and are handled like any request when a rail fails. Their bytes are in the memory of
//! the whole request, which is reserved when the link is created.

use doorbell_core::Instant;
use doorbell_core::session::{
    Epoch, FinalReason, KeptRequest, Repeat, RequestEnd, RequestId, RequestRefusal, Requests, UnknownReason,
};

use super::{OneSidedKind, RequestRecord};
use crate::link::config::{LinkConfig, LinkError};
use crate::link::store::room_for;

/// Limit on open stretches of a request: 64 KiB by default, which 100 Gb/s carry in 5 µs. So a request keeps such a rail busy, and a
/// message waits for no more than these. The limit is separate for each request, since stretches of another request may wait for a rail
/// that never comes.
const STRETCHES: u32 = 16;

/// The long requests of a link.
pub(super) struct LongRequests {
    wholes: Box<[LongRequest]>,
    /// Number of requests that are open, or whose end is not reported.
    taken: usize,
    stretches: Requests<Box<[KeptRequest]>>,
    of: Box<[Option<Stretch>]>,
    stretch_bytes: u32,
    bytes_max: u32,
}

/// A long request.
#[derive(Default)]
struct LongRequest {
    /// Its id, until its end is reported.
    request: Option<RequestId>,
    window: u32,
    asked: RequestRecord,
    repeat: Option<Repeat>,
    /// Number of bytes for which stretches were begun.
    begun: u32,
    /// Number of open stretches.
    open: u32,
    /// Whether a stretch was posted.
    was_posted: bool,
    /// Cause of the first failure of a stretch.
    failure: Option<UnknownReason>,
    has_ended: bool,
    /// The bytes to write, or the bytes that were read. Bytes of earlier, longer requests may follow.
    bytes: Vec<u8>,
}

/// A stretch of a long request.
#[derive(Clone, Copy)]
struct Stretch {
    id: RequestId,
    whole: usize,
    asked: RequestRecord,
}

impl LongRequest {
    const fn is_open(&self) -> bool {
        self.request.is_some() && !self.has_ended
    }

    /// Whether there are bytes for which no stretch was begun.
    const fn has_rest(&self) -> bool {
        self.begun < self.asked.bytes
    }

    /// Whether another stretch may be begun.
    const fn may_begin(&self) -> bool {
        self.is_open() && self.failure.is_none() && self.has_rest() && self.open < STRETCHES
    }

    /// The range of the bytes of a stretch in the memory of the whole request.
    fn range(&self, stretch: &RequestRecord) -> Option<core::ops::Range<usize>> {
        let start = usize::try_from(stretch.offset.checked_sub(self.asked.offset)?).ok()?;
        Some(start..start.checked_add(usize::try_from(stretch.bytes).ok()?)?)
    }

    /// Notes why a stretch failed. The first cause is kept, except that a later one replaces the failure of a rail: if the peer's device
    /// refuses a stretch, the rail fails, too, and other stretches with it.
    fn note_failure(&mut self, reason: UnknownReason) {
        match self.failure {
            None | Some(UnknownReason::RailFailed) => self.failure = Some(reason),
            Some(_) => {}
        }
    }
}

impl LongRequests {
    pub(super) fn new(config: &LinkConfig) -> Result<Self, LinkError> {
        let stretch_bytes = config.session.fragment_bytes.max(1);
        let is_any = config.request_bytes_max > stretch_bytes;
        let places = usize::try_from(config.long_requests).unwrap_or(usize::MAX);
        let places = places.min(LinkConfig::places(config.requests));
        let places = if is_any { places } else { 0 };
        let stretches = places.saturating_mul(STRETCHES as usize);
        let bytes = usize::try_from(config.request_bytes_max).unwrap_or(usize::MAX);
        let whole = |_| {
            Ok(LongRequest {
                bytes: room_for(bytes)?,
                ..LongRequest::default()
            })
        };
        let table = vec![KeptRequest::default(); stretches].into_boxed_slice();
        Ok(Self {
            wholes: (0..places).map(whole).collect::<Result<_, LinkError>>()?,
            taken: 0,
            stretches: Requests::new(table, config.session.recover_within),
            of: vec![None; stretches].into_boxed_slice(),
            stretch_bytes,
            bytes_max: match places {
                0 => stretch_bytes,
                _ => config.request_bytes_max,
            },
        })
    }

    /// The longest request.
    pub(super) const fn bytes_max(&self) -> u32 {
        self.bytes_max
    }

    /// Whether a request is executed by stretches.
    pub(super) const fn is_long(&self, asked: &RequestRecord) -> bool {
        matches!(asked.kind, OneSidedKind::Read | OneSidedKind::Write) && asked.bytes > self.stretch_bytes
    }

    /// Whether there is a long request whose end is not reported.
    pub(super) const fn is_any(&self) -> bool {
        self.taken > 0
    }

    /// Accepts a request, with the bytes of a WRITE.
    pub(super) fn begin(
        &mut self,
        requests: &mut Requests<Box<[KeptRequest]>>,
        (window, asked, repeat): (u32, RequestRecord, Repeat),
        payload: &[u8],
        now: Instant,
    ) -> Result<RequestId, RequestRefusal> {
        let free = self.wholes.iter_mut().find(|whole| whole.request.is_none());
        let whole = free.ok_or(RequestRefusal::Full)?;
        let request = requests.begin_long(window, now).ok_or(RequestRefusal::Full)?;
        let mut bytes = core::mem::take(&mut whole.bytes);
        let length = usize::try_from(asked.bytes).unwrap_or(usize::MAX);
        if bytes.len() < length {
            // Within the reserved capacity, so nothing is allocated.
            bytes.resize(length, 0);
        }
        if let Some(target) = bytes.get_mut(..payload.len()) {
            target.copy_from_slice(payload);
        }
        *whole = LongRequest {
            request: Some(request),
            window,
            asked,
            repeat: Some(repeat),
            bytes,
            ..LongRequest::default()
        };
        self.taken = self.taken.saturating_add(1);
        Ok(request)
    }

    /// Handles stretches that have ended, ends requests whose stretches are all done, and begins further stretches.
    /// `is_granted` returns whether a window is granted.
    pub(super) fn go_on(
        &mut self,
        requests: &mut Requests<Box<[KeptRequest]>>,
        is_granted: impl Fn(u32) -> bool,
        now: Instant,
    ) {
        if self.taken == 0 {
            return;
        }
        for whole in self.wholes.iter_mut().filter(|whole| whole.is_open()) {
            if whole.has_rest() && !is_granted(whole.window) {
                whole.note_failure(UnknownReason::Withdrawn);
            }
        }
        self.settle(requests);
        self.begin_stretches(now);
    }

    /// Handles stretches that have ended, and ends requests that have no open stretch and need no other.
    fn settle(&mut self, requests: &mut Requests<Box<[KeptRequest]>>) {
        while let Some((id, end)) = self.stretches.poll_end() {
            let stretch = self.of.get(id.place()).copied().flatten();
            let whole = stretch.and_then(|stretch| self.wholes.get_mut(stretch.whole));
            let Some(whole) = whole else { continue };
            whole.open = whole.open.saturating_sub(1);
            match end {
                RequestEnd::Done => whole.was_posted = true,
                RequestEnd::Unknown { was_posted, reason } => {
                    whole.was_posted |= was_posted;
                    whole.note_failure(reason);
                }
            }
        }
        // No further stretch of a failed request is posted: each one that the peer's device refuses would fail a rail.
        for stretch in self.of.iter().flatten() {
            let whole = self.wholes.get(stretch.whole).filter(|whole| whole.is_open());
            if let Some(reason) = whole.and_then(|whole| whole.failure) {
                self.stretches.give_up(stretch.id, reason);
            }
        }
        for whole in self.wholes.iter_mut().filter(|whole| whole.is_open()) {
            let end = match whole.failure {
                Some(reason) => RequestEnd::Unknown {
                    was_posted: whole.was_posted,
                    reason,
                },
                None if whole.has_rest() => continue,
                None => RequestEnd::Done,
            };
            if let (0, Some(request)) = (whole.open, whole.request) {
                whole.has_ended = true;
                requests.end_long(request, end);
            }
        }
    }

    /// Begins stretches of each request, up to the limit.
    fn begin_stretches(&mut self, now: Instant) {
        for (at, whole) in self.wholes.iter_mut().enumerate() {
            while let Some(repeat) = whole.repeat.filter(|_| whole.may_begin()) {
                let Some(id) = self.stretches.begin(whole.window, repeat, now) else {
                    return;
                };
                let rest = whole.asked.bytes.saturating_sub(whole.begun);
                let asked = RequestRecord {
                    offset: whole.asked.offset.saturating_add(u64::from(whole.begun)),
                    bytes: rest.min(self.stretch_bytes),
                    kind: whole.asked.kind,
                };
                whole.begun = whole.begun.saturating_add(asked.bytes);
                whole.open = whole.open.saturating_add(1);
                if let Some(of) = self.of.get_mut(id.place()) {
                    *of = Some(Stretch { id, whole: at, asked });
                }
            }
        }
    }

    fn stretch(&self, id: RequestId) -> Option<Stretch> {
        let stretch = self.of.get(id.place()).copied().flatten();
        stretch.filter(|stretch| stretch.id == id)
    }

    /// The record of a stretch.
    pub(super) fn asked(&self, id: RequestId) -> Option<RequestRecord> {
        self.stretch(id).map(|stretch| stretch.asked)
    }

    /// The bytes that a stretch writes.
    pub(super) fn payload(&self, id: RequestId) -> &[u8] {
        let stretch = self.stretch(id);
        let bytes = stretch.and_then(|stretch| {
            let whole = self.wholes.get(stretch.whole)?;
            whole.bytes.get(whole.range(&stretch.asked)?)
        });
        bytes.unwrap_or_default()
    }

    /// The stretches that wait for a rail, with the window of each.
    pub(super) fn waiting(&self, now: Instant) -> impl Iterator<Item = (RequestId, u32)> {
        self.stretches.waiting(now)
    }

    pub(super) fn posted(&mut self, id: RequestId, rail: u8, epoch: Epoch) {
        self.stretches.posted(id, rail, epoch);
    }

    pub(super) fn refused(&mut self, id: RequestId, now: Instant) {
        self.stretches.refused(id, now);
    }

    /// Notes that a stretch of a WRITE is done. A stretch of a READ is done when its data arrives.
    pub(super) fn completed(&mut self, id: RequestId) {
        if self
            .asked(id)
            .is_some_and(|asked| asked.kind == OneSidedKind::Write)
        {
            self.stretches.done(id);
        }
    }

    /// Handles the data of a stretch of a READ.
    pub(super) fn fetched(&mut self, id: RequestId, data: &[u8]) {
        let Some(stretch) = self.stretch(id) else { return };
        let whole = self.wholes.get_mut(stretch.whole);
        let target = whole.and_then(|whole| {
            let range = whole.range(&stretch.asked)?;
            whole
                .bytes
                .get_mut(range)
                .filter(|target| target.len() == data.len())
        });
        if let Some(target) = target.filter(|_| self.stretches.done(id)) {
            target.copy_from_slice(data);
        }
    }

    pub(super) fn denied(&mut self, id: RequestId) {
        self.stretches.denied(id);
    }

    /// Notes that a rail's connection is lost. Fences that stretches need are added to those of `requests`.
    pub(super) fn rail_lost(&mut self, rail: u8, requests: &mut Requests<Box<[KeptRequest]>>, now: Instant) {
        if self.taken == 0 {
            return;
        }
        self.stretches.rail_lost(rail, now);
        while let Some((rail, epoch)) = self.stretches.fence_due() {
            requests.fence(rail, epoch);
            self.stretches.fence_asked(rail);
        }
    }

    pub(super) fn fenced(&mut self, rail: u8, through: Epoch) {
        if self.taken > 0 {
            self.stretches.fenced(rail, through);
        }
    }

    pub(super) fn withdrawn(&mut self, window: u32) {
        self.stretches.withdrawn(window);
    }

    /// Returns the first stretch that no rail accepted in time, with its window.
    pub(super) fn look_at_deadlines(&mut self, now: Instant) -> Option<(RequestId, u32)> {
        match self.taken {
            0 => None,
            _ => self.stretches.look_at_deadlines(now),
        }
    }

    pub(super) fn end_late(&mut self, id: RequestId, is_reached: bool) {
        self.stretches.end_late(id, is_reached);
    }

    /// When to check the deadlines.
    pub(super) fn wake(&self) -> Option<doorbell_core::Deadline> {
        self.stretches.wake().filter(|_| self.taken > 0)
    }

    /// Ends all open requests, since the link is over.
    pub(super) fn over(&mut self, requests: &mut Requests<Box<[KeptRequest]>>, reason: FinalReason) {
        if self.taken == 0 {
            return;
        }
        // A request whose stretches are all done still ends as done.
        self.settle(requests);
        self.stretches.over(reason);
        for whole in self.wholes.iter_mut().filter(|whole| whole.is_open()) {
            whole.note_failure(UnknownReason::Over(reason));
        }
        self.settle(requests);
    }

    /// Releases a request whose end is reported. Returns the bytes that it read, or `None` if it was not long.
    pub(super) fn reported(&mut self, id: RequestId) -> Option<&[u8]> {
        let whole = self.wholes.iter_mut().find(|whole| whole.request == Some(id))?;
        whole.request = None;
        self.taken = self.taken.saturating_sub(1);
        let bytes = match whole.asked.kind {
            OneSidedKind::Read => usize::try_from(whole.asked.bytes).unwrap_or(0),
            _ => 0,
        };
        whole.bytes.get(..bytes)
    }
}
