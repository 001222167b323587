//! Requests that the Worker's own thread submits to a channel. They wait at the channel, and the next poll posts them in one
//! doorbell with the requests of submitters.

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
    /// `Some` until the request is staged, and again if the device refuses the request.
    pub(crate) slot: Option<P::Slot>,
    /// The reason why the request comes back, if it was not posted.
    pub(crate) refused: Option<SubmissionError>,
}

/// The requests of one channel, the oldest first.
pub(crate) struct Deferred<P: Provider> {
    /// A ring; its length is a power of two.
    places: Box<[Option<DeferredRequest<P>>]>,
    /// Wrapping positions: `first` of the oldest request, `waiting` of the oldest request that still waits, and `end` after the
    /// youngest. Requests from `first` to `waiting` were staged, or come back to the application.
    first: u32,
    waiting: u32,
    end: u32,
    /// The position of the first request of the last doorbell. If a callback panicked, requests of earlier doorbells may precede
    /// it.
    doorbell: u32,
    /// Used while the device's refused requests are returned: the position after the last returned request, and how many requests
    /// were staged up to that position.
    given_back: Option<(u32, u64)>,
    /// Error of the last doorbell that the device did not take completely. An earlier error that named no request is kept until
    /// it is reported.
    refusal: Option<PostError>,
    channel: u32,
    /// The Worker's list of channels with submissions. A channel has no reference to its Worker, so it reports itself here.
    due: Arc<Due>,
}

impl<P: Provider> Deferred<P> {
    /// Makes a queue for the channel with this index, with room for at least `count` requests. The memory is touched here.
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

    /// Adds a request at the end.
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

    /// Whether this queue reports this channel to this Worker. The answer is `false` if the application swapped channels of two Workers.
    #[inline]
    pub(crate) fn notifies(&self, due: &Arc<Due>, channel: u32) -> bool {
        self.channel == channel && Arc::ptr_eq(&self.due, due)
    }

    /// Returns how many requests wait.
    #[inline]
    pub(crate) const fn waiting(&self) -> u32 {
        self.end.wrapping_sub(self.waiting)
    }

    /// Whether no request waits or comes back. A poll leaves no entry of a posted request.
    pub(crate) const fn is_empty(&self) -> bool {
        self.end == self.first
    }

    /// Returns the oldest request that waits.
    #[inline]
    pub(crate) fn oldest(&mut self) -> Option<&mut DeferredRequest<P>> {
        if self.waiting() == 0 {
            return None;
        }
        self.at(self.waiting)?.as_mut()
    }

    /// Begins a doorbell: notes the position of its first request.
    #[inline]
    pub(crate) const fn begin_doorbell(&mut self) {
        self.doorbell = self.waiting;
    }

    /// Ends the wait of the oldest request, which was staged or comes back.
    #[inline]
    pub(crate) const fn pass(&mut self) {
        self.waiting = self.waiting.wrapping_add(1);
    }

    /// Makes all waiting requests come back with this error.
    #[cold]
    pub(crate) fn refuse(&mut self, error: SubmissionError) {
        while let Some(request) = self.oldest() {
            request.refused = Some(error);
            self.pass();
        }
    }

    /// Returns the slot of a staged request that the device did not take. `before` is how many requests of the doorbell were
    /// staged before it. Requests are returned in order, so each call goes on from the position of the previous one.
    #[cold]
    pub(crate) fn return_one(&mut self, before: u64, slot: P::Slot) {
        let (mut position, mut staged) = self.given_back.unwrap_or((self.doorbell, 0));
        while position != self.waiting {
            let request = self.at(position).and_then(Option::as_mut);
            position = position.wrapping_add(1);
            // A request that was refused when it was pushed was not staged.
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

    /// Notes that the device did not take all requests of a doorbell with requests of this queue. The named requests come back
    /// with the error. If the device named none, the error itself is reported.
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
        // An earlier refusal that named no request is not overwritten, since it may still have to be reported.
        if self.refusal.as_ref().is_none_or(|before| before.unposted != 0) {
            self.refusal = Some(error);
        }
        self.given_back = None;
    }

    /// Drops the entries of posted requests, and takes the oldest request that comes back, with the reason. After the last one it
    /// returns a refusal that named no request, without a slot.
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
