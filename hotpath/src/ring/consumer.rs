//! The consuming half of both kinds of rings.

use core::fmt;
use core::ops::Deref;

use super::lane::Lane;
use super::{ClaimError, Descriptor, TakeError};
use sealed::Sealed;

/// A ring that a [`Consumer`] takes from. Only the rings of this module implement it.
pub trait Ring: sealed::Sealed {}

impl<T: sealed::Sealed> Ring for T {}

pub(super) mod sealed {
    use super::{ClaimError, Lane};
    use crate::ring::Slot;

    /// The operations of a ring for its consumer.
    pub trait Sealed {
        type Slots: AsRef<[Slot]>;

        fn lane(&self) -> &Lane<Self::Slots>;

        fn claim_consumer(&self) -> Result<(), ClaimError>;

        fn unclaim_consumer(&self);

        /// Whether all descriptors from `head` on that will ever exist are published.
        fn is_over(&self, head: u64) -> bool;

        fn close_by_consumer(&self);

        fn is_closed(&self) -> bool;
    }
}

/// The consumer of a ring. There is one at a time, and it may be moved to another thread.
/// Dropping it leaves the descriptors in the ring to the next consumer.
///
/// Taking is wait-free: every call ends after a bounded number of steps.
#[repr(align(64))]
pub struct Consumer<R: Deref<Target: Ring>> {
    ring: R,
    /// The position of the next descriptor.
    head: u64,
}

impl<R: Deref<Target: Ring>> Consumer<R> {
    /// Claims the consumer half of a ring. The descriptors of a closed ring can be taken, too.
    ///
    /// # Errors
    /// The half is claimed already.
    ///
    /// Ordering: the claim pairs with the drop of the previous half: `SPSC_CLAIM` with `SPSC_UNCLAIM`, `MPSC_CLAIM`
    /// with `MPSC_UNCLAIM`.
    pub fn claim(ring: R) -> Result<Self, ClaimError> {
        ring.claim_consumer()?;
        let head = ring.lane().resume();
        Ok(Self { ring, head })
    }

    /// Takes the oldest descriptor, and returns its slot.
    ///
    /// # Errors
    /// The ring is empty now, or closed and empty.
    ///
    /// Ordering: `RING_TAKE` pairs with `RING_PUBLISH` in the producer, and `RING_HAND_BACK`
    /// with `RING_REUSE` there.
    #[inline]
    pub fn take(&mut self) -> Result<Descriptor, TakeError> {
        let item = match self.next() {
            Some(item) => item,
            None if self.ring.is_over(self.head) => self.take_at_the_end()?,
            None => return Err(TakeError::Empty),
        };
        self.ring.lane().hand_back(self.head);
        Ok(item)
    }

    /// Takes up to `max` descriptors, one after the other, as long as there are any. Dropping
    /// the batch returns all of their slots at once.
    ///
    /// # Errors
    /// The ring is empty now, or closed and empty.
    ///
    /// Ordering: as for [`take`](Self::take).
    #[inline]
    pub fn take_batch(&mut self, max: usize) -> Result<Batch<'_, R>, TakeError> {
        if !self.is_ready() {
            if !self.ring.is_over(self.head) {
                return Err(TakeError::Empty);
            }
            // After the end is known, a descriptor that was published before the end is visible.
            if !self.is_ready() {
                return Err(TakeError::Closed);
            }
        }
        Ok(Batch {
            left: max,
            consumer: self,
        })
    }

    /// Closes the ring permanently. The producer learns this with its next push, and then pushes nothing more.
    /// Descriptors pushed until then can still be taken, until [`TakeError::Closed`].
    ///
    /// Ordering: all that was done before the close is visible to a side that learns of it. `SPSC_CLOSE` pairs
    /// with `SPSC_CLOSED`, `MPSC_CLOSE` with `MPSC_CLOSED`.
    pub fn close(&self) {
        self.ring.close_by_consumer();
    }

    /// Whether the ring is closed. It may still have descriptors.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Whether a descriptor can be taken.
    #[inline(always)]
    fn is_ready(&self) -> bool {
        let slot = self.ring.lane().slot(self.head);
        slot.is_some_and(|(slot, lap)| slot.is_published(lap))
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Descriptor> {
        let (slot, lap) = self.ring.lane().slot(self.head)?;
        let item = slot.read(lap)?;
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// Takes a descriptor that was published before the end of the ring, which is visible after the end is known.
    #[cold]
    fn take_at_the_end(&mut self) -> Result<Descriptor, TakeError> {
        self.next().ok_or(TakeError::Closed)
    }
}

impl<R: Deref<Target: Ring>> Drop for Consumer<R> {
    fn drop(&mut self) {
        self.ring.lane().hand_back(self.head);
        self.ring.unclaim_consumer();
    }
}

/// A batch of descriptors being taken. Dropping it returns the slots of the taken descriptors; the rest stay in the
/// ring.
pub struct Batch<'c, R: Deref<Target: Ring>> {
    consumer: &'c mut Consumer<R>,
    left: usize,
}

impl<R: Deref<Target: Ring>> Iterator for Batch<'_, R> {
    type Item = Descriptor;

    #[inline]
    fn next(&mut self) -> Option<Descriptor> {
        self.left = self.left.checked_sub(1)?;
        self.consumer.next()
    }
}

impl<R: Deref<Target: Ring>> Drop for Batch<'_, R> {
    #[inline]
    fn drop(&mut self) {
        self.consumer.ring.lane().hand_back(self.consumer.head);
    }
}

impl<R: Deref<Target: Ring>> fmt::Debug for Consumer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl<R: Deref<Target: Ring>> fmt::Debug for Batch<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
