//! The producing half of a ring.

use core::fmt;

use super::SpscHandle;
use crate::ring::{ClaimError, Closed, Descriptor, PushError};

/// The producer of an [`SpscRing`](super::SpscRing). There is one at a time, and it may be moved
/// to another thread. Dropping it leaves the ring open for the next producer.
#[repr(align(64))]
pub struct SpscProducer<R: SpscHandle> {
    ring: R,
    /// The position of the next descriptor.
    tail: u64,
    /// The position after the last one whose slot is known to be free.
    limit: u64,
}

impl<R: SpscHandle> SpscProducer<R> {
    /// Claims the producer half of a ring.
    ///
    /// # Errors
    /// The half is claimed already, or the ring is closed.
    ///
    /// Ordering: `SPSC_CLAIM` pairs with `SPSC_UNCLAIM` in the drop of the previous half.
    pub fn claim(ring: R) -> Result<Self, ClaimError> {
        let tail = ring.state.claim_producer()?;
        Ok(Self {
            ring,
            tail,
            limit: tail,
        })
    }

    /// Pushes one descriptor, and publishes it.
    ///
    /// # Errors
    /// The ring is full or closed; the descriptor is returned.
    ///
    /// Ordering: `RING_PUBLISH` pairs with `RING_TAKE` in the consumer.
    #[inline]
    pub fn push(&mut self, item: Descriptor) -> Result<(), PushError> {
        if self.ring.state.looks_closed() {
            self.learn_closed();
            return Err(PushError::Closed(item));
        }
        if self.tail == self.limit && self.look() == 0 {
            return Err(PushError::Full(item));
        }
        let Some((slot, lap)) = self.ring.lane.slot(self.tail) else {
            return Err(PushError::Full(item));
        };
        slot.write(lap, item);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Pushes as many descriptors as there is room for, from the first on, and publishes them
    /// all at once. Returns their number. The caller may push the rest again.
    ///
    /// # Errors
    /// The ring is closed.
    ///
    /// Ordering: as for [`push`](Self::push).
    #[inline]
    pub fn push_batch(&mut self, items: &[Descriptor]) -> Result<usize, Closed> {
        if self.ring.state.looks_closed() {
            self.learn_closed();
            return Err(Closed);
        }
        let room = self.reserve(items.len());
        let items = items.get(..room).unwrap_or(items);
        self.ring.lane.write(self.tail, items);
        self.tail = self.tail.wrapping_add(items.len() as u64);
        Ok(items.len())
    }

    /// The number of descriptors, at most `wanted`, that there is room for. The room stays reserved,
    /// since there is no other producer, unless the ring is closed.
    #[must_use]
    #[inline]
    pub fn reserve(&mut self, wanted: usize) -> usize {
        let known = self.limit.wrapping_sub(self.tail);
        let free = if known < wanted as u64 { self.look() } else { known };
        #[expect(clippy::cast_possible_truncation, reason = "at most `wanted`")]
        let room = free.min(wanted as u64) as usize;
        room
    }

    /// Closes the ring permanently: it accepts nothing more. The consumer learns this after it has
    /// taken all published descriptors.
    ///
    /// Ordering: `SPSC_CLOSE` pairs with `SPSC_CLOSED` in the consumer.
    pub fn close(self) {
        self.ring.state.close_producer();
    }

    /// Whether the ring is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ring.state.is_closed()
    }

    /// Reads the number of free slots.
    #[inline(always)]
    fn look(&mut self) -> u64 {
        self.limit = self
            .ring
            .lane
            .handed_back()
            .wrapping_add(self.ring.lane.capacity() as u64);
        self.limit.wrapping_sub(self.tail)
    }

    /// Synchronizes with the close of the ring, and lets the consumer know that nothing more is published.
    #[cold]
    fn learn_closed(&self) {
        if self.is_closed() {
            self.ring.state.close_producer();
        }
    }
}

impl<R: SpscHandle> Drop for SpscProducer<R> {
    fn drop(&mut self) {
        self.ring.state.unclaim_producer(self.tail);
    }
}

impl<R: SpscHandle> fmt::Debug for SpscProducer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpscProducer")
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}
