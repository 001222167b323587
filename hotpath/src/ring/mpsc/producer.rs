//! The producing halves of a ring: one for each thread that pushes.

use core::fmt;

use doorbell_core::sync::Ordering;

use super::{CLOSED, MpscHandle};
use crate::ring::{Closed, Descriptor, PushError};

/// A producer of an [`MpscRing`](super::MpscRing). Clone it for each thread that pushes.
#[repr(align(64))]
pub struct MpscProducer<R: MpscHandle> {
    ring: R,
    /// The first position whose slot was not returned when this producer last read the head.
    head_seen: u64,
}

impl<R: MpscHandle> MpscProducer<R> {
    /// A producer of a ring.
    #[must_use]
    pub const fn new(ring: R) -> Self {
        // A new producer has not read the head yet. Zero is safe, since it makes the first push read the head if needed.
        Self { ring, head_seen: 0 }
    }

    /// Pushes one descriptor, and publishes it. Lock-free: see [`MpscRing`](super::MpscRing).
    ///
    /// # Errors
    /// The ring is full or closed; the descriptor is returned. A ring may be reported as full
    /// while the consumer is taking a descriptor.
    ///
    /// Ordering: `RING_PUBLISH` pairs with `RING_TAKE` in the consumer.
    #[inline]
    pub fn push(&mut self, item: Descriptor) -> Result<(), PushError> {
        match self.reserve(1) {
            Ok((position, 1)) => match self.ring.lane.slot(position) {
                Some((slot, lap)) => {
                    slot.write(lap, item);
                    Ok(())
                }
                None => Err(PushError::Full(item)),
            },
            Ok(_) => Err(PushError::Full(item)),
            Err(Closed) => Err(PushError::Closed(item)),
        }
    }

    /// Pushes as many descriptors as there is room for, from the first on and contiguously, and
    /// publishes them all at once. Returns their number. The caller may push the rest again.
    ///
    /// # Errors
    /// The ring is closed.
    ///
    /// Ordering: as for [`push`](Self::push).
    #[inline]
    pub fn push_batch(&mut self, items: &[Descriptor]) -> Result<usize, Closed> {
        let (position, count) = self.reserve(items.len())?;
        self.ring
            .lane
            .write(position, items.get(..count).unwrap_or(items));
        Ok(count)
    }

    /// Closes the ring permanently, for all producers: it accepts nothing more. The consumer learns
    /// this after it has taken all pushed descriptors.
    ///
    /// Ordering: `MPSC_CLOSE` pairs with `MPSC_CLOSED` in each side that learns of the close.
    pub fn close(&self) {
        self.ring.close();
    }

    /// Whether the ring is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Reserves up to `count` contiguous positions. Returns the first, and their number.
    #[inline]
    fn reserve(&mut self, count: usize) -> Result<(u64, usize), Closed> {
        let capacity = self.ring.lane.capacity() as u64;
        // Relaxed, here and in the exchange: the tail only assigns positions. The content of the slots is
        // ordered by their laps and by the head.
        let mut tail = self.ring.tail.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return self.refuse_closed();
            }
            // The tail was read after the head, so it is not before the head.
            let mut room = capacity.saturating_sub(tail.wrapping_sub(self.head_seen));
            if room < count as u64 {
                let head = self.ring.lane.handed_back();
                if head != self.head_seen {
                    self.head_seen = head;
                    tail = self.ring.tail.load(Ordering::Relaxed);
                    continue;
                }
            }
            room = room.min(count as u64);
            if room == 0 {
                return Ok((tail, 0));
            }
            match self.ring.tail.compare_exchange(
                tail,
                tail.wrapping_add(room),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                #[expect(clippy::cast_possible_truncation, reason = "at most `count`")]
                Ok(_) => return Ok((tail, room as usize)),
                Err(current) => tail = current,
            }
        }
    }

    /// Synchronizes with the close of the ring, and reports it.
    #[cold]
    fn refuse_closed<T>(&self) -> Result<T, Closed> {
        let _ = self.ring.is_closed();
        Err(Closed)
    }
}

impl<R: MpscHandle> Clone for MpscProducer<R> {
    fn clone(&self) -> Self {
        Self {
            ring: self.ring.clone(),
            head_seen: self.head_seen,
        }
    }
}

impl<R: MpscHandle> fmt::Debug for MpscProducer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpscProducer").finish_non_exhaustive()
    }
}
