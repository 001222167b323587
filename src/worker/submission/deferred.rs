//! Requests that the thread of a Worker submits to a channel. They wait at the channel, so that the next poll posts them in one
//! doorbell with submitters' requests.

use core::fmt;
use std::sync::Arc;

use doorbell_core::in_place;
use doorbell_core::provider::{Operation, PostError, PostFlags, Provider};

use super::SubmissionError;
use crate::worker::Due;

/// A request that waits at its channel.
pub(crate) struct DeferredRequest<P: Provider> {
    pub(crate) operation: Operation,
    pub(crate) flags: PostFlags,
    /// There until it is staged, and again where it comes back.
    pub(crate) slot: Option<P::Slot>,
    /// Why it comes back, where it was not staged.
    pub(crate) refused: Option<SubmissionError>,
}

/// The requests of one channel, the oldest first.
pub(crate) struct Deferred<P: Provider> {
    /// A power of two of places.
    places: Box<[Option<DeferredRequest<P>>]>,
    /// Positions, which count on and wrap: of the oldest request, of the oldest that waits, and behind the youngest. Requests
    /// in front of `waiting` were staged, or come back.
    first: u32,
    waiting: u32,
    end: u32,
    /// The first request of the last doorbell. A callback that panicked may have left requests of earlier doorbells in front.
    doorbell: u32,
    /// While the device gives back what it did not take: the position behind the last, and how many were staged up to it.
    given_back: Option<(u32, u64)>,
    /// Error of the last doorbell of which the device did not take all; of an earlier one where that named no request.
    refusal: Option<PostError>,
    channel: u32,
    /// The Worker's, that notifies it of the channel: a channel does not know its Worker.
    due: Arc<Due>,
}

impl<P: Provider> Deferred<P> {
    /// For the channel of this index, with room for so many at least, in memory that was touched.
    pub(crate) fn new(channel: u32, count: u32, due: &Arc<Due>) -> Self {
        let length = (count as usize).next_power_of_two();
        let mut places: Box<[_]> = (0..length).map(|_| None).collect();
        in_place::put(&mut places, || None);
        Self {
            places,
            first: 0,
            waiting: 0,
            end: 0,
            doorbell: 0,
            given_back: None,
            refusal: None,
            channel,
            due: Arc::clone(due),
        }
    }

    /// Puts a request behind the others.
    ///
    /// # Errors
    /// There is no room; the slot is handed back.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        operation: Operation,
        slot: P::Slot,
        flags: PostFlags,
    ) -> Result<(), P::Slot> {
        let (first, end) = (self.first, self.end);
        let is_full = end.wrapping_sub(first) as usize >= self.places.len();
        let Some(place) = self.at(end).filter(|_| !is_full) else {
            return Err(slot);
        };
        *place = Some(DeferredRequest {
            operation,
            flags,
            slot: Some(slot),
            refused: None,
        });
        self.end = end.wrapping_add(1);
        self.due.notify(self.channel);
        Ok(())
    }

    /// Whether it notifies this Worker: not where channels of two were exchanged.
    #[inline]
    pub(crate) fn notifies(&self, due: &Arc<Due>, channel: u32) -> bool {
        self.channel == channel && Arc::ptr_eq(&self.due, due)
    }

    /// How many wait.
    #[inline]
    pub(crate) const fn waiting(&self) -> u32 {
        self.end.wrapping_sub(self.waiting)
    }

    /// The oldest that waits.
    #[inline]
    pub(crate) fn oldest(&mut self) -> Option<&mut DeferredRequest<P>> {
        if self.waiting() == 0 {
            return None;
        }
        self.at(self.waiting)?.as_mut()
    }

    /// The requests that wait are about to be staged for a doorbell, as far as there is room.
    #[inline]
    pub(crate) const fn begin_doorbell(&mut self) {
        self.doorbell = self.waiting;
    }

    /// The oldest does not wait any more: it was staged, or comes back.
    #[inline]
    pub(crate) const fn pass(&mut self) {
        self.waiting = self.waiting.wrapping_add(1);
    }

    /// All that wait come back.
    #[cold]
    pub(crate) fn refuse(&mut self, error: SubmissionError) {
        while let Some(request) = self.oldest() {
            request.refused = Some(error);
            self.pass();
        }
    }

    /// The device did not take one of those that were staged last: here is its slot. So many were staged before it;
    /// it is one behind those that it was said of before.
    #[cold]
    pub(crate) fn return_one(&mut self, before: u64, slot: P::Slot) {
        let (mut position, mut staged) = self.given_back.unwrap_or((self.doorbell, 0));
        while position != self.waiting {
            let request = self.at(position).and_then(Option::as_mut);
            position = position.wrapping_add(1);
            // A request that was refused by itself was not staged.
            let Some(request) = request.filter(|request| request.refused.is_none()) else {
                continue;
            };
            staged = staged.wrapping_add(1);
            if staged > before {
                request.slot = Some(slot);
                break;
            }
        }
        self.given_back = Some((position, staged));
    }

    /// The device did not take all of a doorbell in which some of these were staged: those come back that it named,
    /// and where it named none, this is reported.
    #[cold]
    pub(crate) fn note_refusal(&mut self, error: PostError) {
        let mut position = self.doorbell;
        while position != self.waiting {
            if let Some(request) = self.at(position).and_then(Option::as_mut) {
                if request.slot.is_some() && request.refused.is_none() {
                    request.refused = Some(posting(&error));
                }
            }
            position = position.wrapping_add(1);
        }
        // A refusal of an earlier doorbell that named none may not be reported yet.
        if self.refusal.as_ref().is_none_or(|before| before.unposted != 0) {
            self.refusal = Some(error);
        }
        self.given_back = None;
    }

    /// Forgets those that were posted; takes the oldest that comes back, with the reason. At last the refusal of the
    /// device, where that is of none that could be distinguished.
    #[inline]
    pub(crate) fn take_refused(&mut self) -> Option<(Option<P::Slot>, SubmissionError)> {
        while self.first != self.waiting {
            let request = self.at(self.first).and_then(Option::take);
            self.first = self.first.wrapping_add(1);
            if let Some(DeferredRequest {
                slot: Some(slot),
                refused,
                ..
            }) = request
            {
                return Some((Some(slot), refused.unwrap_or(SubmissionError::Refused)));
            }
        }
        self.refusal.is_some().then(|| self.take_refusal()).flatten()
    }

    #[cold]
    fn take_refusal(&mut self) -> Option<(Option<P::Slot>, SubmissionError)> {
        let error = self.refusal.take().filter(|error| error.unposted == 0)?;
        Some((None, posting(&error)))
    }

    #[inline]
    fn at(&mut self, position: u32) -> Option<&mut Option<DeferredRequest<P>>> {
        // The mask comes from the length itself, so that the compiler sees the bound of the index.
        let mask = self.places.len().wrapping_sub(1);
        self.places.get_mut(position as usize & mask)
    }
}

const fn posting(error: &PostError) -> SubmissionError {
    SubmissionError::Post {
        errno: error.cause.errno,
    }
}

impl<P: Provider> fmt::Debug for Deferred<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred")
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
