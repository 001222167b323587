//! The ring with many producers and one consumer.

mod producer;

use core::fmt;
use core::ops::Deref;

use doorbell_core::sync::{AtomicU32, AtomicU64, Ordering};

pub use producer::MpscProducer;

use super::consumer::sealed::Sealed;
use super::lane::Lane;
use super::slot::{OwnLine, const_constructors};
use super::{CapacityError, ClaimError, Slot};
use crate::ordering::{MPSC_CLAIM, MPSC_CLOSE, MPSC_CLOSED, MPSC_UNCLAIM};

/// A bit in the word of the tail: the ring is closed, and no position can be reserved any more.
const CLOSED: u64 = 1 << 63;

/// A ring with many producers and one consumer, over `Slots`: an array, a `Vec`, or another
/// type that always returns the same slice of [`Slot`].
///
/// Progress: pushing is lock-free. A producer repeats a step only if another producer was
/// faster, or if the consumer took something meanwhile. It never waits for a particular thread,
/// and a full ring returns the descriptors. A producer that is stopped in the middle of a push
/// does not block other producers until the ring is full. Taking is wait-free: it ends after a
/// bounded number of steps. But descriptors after a stopped producer's slot cannot be taken
/// before that producer continues; until then the ring looks empty.
///
/// Order: the descriptors of one producer are taken in the order of its pushes. A batch is
/// contiguous in the ring.
#[repr(C)]
pub struct MpscRing<Slots> {
    /// The next position to reserve, with the bit [`CLOSED`]; written by the producers.
    tail: OwnLine<AtomicU64>,
    seldom: OwnLine<Seldom>,
    lane: Lane<Slots>,
}

/// Words that are written rarely.
#[derive(Debug)]
struct Seldom {
    /// Nonzero after the ring is closed, so that polling an empty ring does not take the cache
    /// line of the tail from the producers.
    closed: AtomicU32,
    /// 1 while the consumer half is claimed.
    consumer: AtomicU32,
}

/// A reference to a ring: a `&'static`, a `&'a`, an `Arc`, or similar.
pub trait MpscHandle: Deref<Target = MpscRing<<Self as MpscHandle>::Slots>> + Clone {
    /// The ring's storage.
    type Slots: AsRef<[Slot]>;
}

impl<R, Slots> MpscHandle for R
where
    R: Deref<Target = MpscRing<Slots>> + Clone,
    Slots: AsRef<[Slot]>,
{
    type Slots = Slots;
}

impl<Slots: AsRef<[Slot]>> MpscRing<Slots> {
    /// An empty ring with as many places as there are slots.
    ///
    /// # Errors
    /// The number of slots is not a power of two.
    pub fn new(slots: Slots) -> Result<Self, CapacityError> {
        Lane::check(&slots)?;
        Ok(Self::over(slots))
    }

    /// The maximum number of descriptors in the ring.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.lane.capacity()
    }
}

impl<const N: usize> MpscRing<[Slot; N]> {
    const_constructors! {
        /// An empty ring with `N` slots inside, a power of two, for example for a `static`. Another
        /// `N` does not compile.
        #[must_use]
        pub fn in_place() -> Self {
            const { assert!(N.is_power_of_two(), "a ring needs a power of two of slots") };
            Self::over(Slot::array())
        }
    }
}

impl<Slots> MpscRing<Slots> {
    const_constructors! {
        fn over(slots: Slots) -> Self {
            Self {
                tail: OwnLine(AtomicU64::new(0)),
                seldom: OwnLine(Seldom {
                    closed: AtomicU32::new(0),
                    consumer: AtomicU32::new(0),
                }),
                lane: Lane::over(slots),
            }
        }
    }

    fn close(&self) {
        self.tail.fetch_or(CLOSED, MPSC_CLOSE.get());
        // Relaxed: a side that sees it also reads the tail, which decides.
        self.seldom.closed.store(1, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.tail.load(MPSC_CLOSED.get()) & CLOSED != 0
    }
}

impl<Slots: AsRef<[Slot]>> Sealed for MpscRing<Slots> {
    type Slots = Slots;

    #[inline(always)]
    fn lane(&self) -> &Lane<Slots> {
        &self.lane
    }

    fn claim_consumer(&self) -> Result<(), ClaimError> {
        // A compare-exchange writes nothing if the half is claimed. Then it is relaxed, since nothing is read.
        let claimed = self
            .seldom
            .consumer
            .compare_exchange(0, 1, MPSC_CLAIM.get(), Ordering::Relaxed);
        claimed.map(|_| ()).map_err(|_| ClaimError::Claimed)
    }

    fn unclaim_consumer(&self) {
        self.seldom.consumer.store(0, MPSC_UNCLAIM.get());
    }

    #[inline(always)]
    fn is_over(&self, head: u64) -> bool {
        // Relaxed: the tail decides.
        self.seldom.closed.load(Ordering::Relaxed) != 0 && self.tail.load(MPSC_CLOSED.get()) == head | CLOSED
    }

    fn close_by_consumer(&self) {
        self.close();
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }
}

impl<Slots> fmt::Debug for MpscRing<Slots> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpscRing")
            .field("seldom", &self.seldom.0)
            .finish_non_exhaustive()
    }
}
