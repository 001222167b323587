//! The ring with one producer and one consumer.

mod producer;
mod state;

use core::fmt;
use core::ops::Deref;

pub use producer::SpscProducer;

use super::consumer::sealed::Sealed;
use super::lane::Lane;
use super::slot::{OwnLine, const_constructors};
use super::{CapacityError, ClaimError, Consumer, Slot};
use state::State;

/// A ring with one producer and one consumer, over `Slots`: an array, a `Vec`, or another type
/// that always returns the same slice of [`Slot`].
///
/// Both sides are wait-free: every call ends after a bounded number of its own steps, whatever
/// the other side does.
#[repr(C)]
pub struct SpscRing<Slots> {
    /// The claims of the halves, and whether the ring is closed. Both halves write it, but rarely.
    state: OwnLine<State>,
    lane: Lane<Slots>,
}

/// A reference to a ring: a `&'static`, a `&'a`, an `Arc`, or similar.
pub trait SpscHandle: Deref<Target = SpscRing<<Self as SpscHandle>::Slots>> + Clone {
    /// The ring's storage.
    type Slots: AsRef<[Slot]>;
}

impl<R, Slots> SpscHandle for R
where
    R: Deref<Target = SpscRing<Slots>> + Clone,
    Slots: AsRef<[Slot]>,
{
    type Slots = Slots;
}

impl<Slots: AsRef<[Slot]>> SpscRing<Slots> {
    /// An empty ring with as many places as there are slots.
    ///
    /// # Errors
    /// The number of slots is not a power of two.
    pub fn new(slots: Slots) -> Result<Self, CapacityError> {
        Lane::check(&slots)?;
        Ok(Self::over(slots))
    }

    /// Claims both halves.
    ///
    /// # Errors
    /// One of the halves is claimed already, or the ring is closed.
    pub fn split<R>(ring: R) -> Result<(SpscProducer<R>, Consumer<R>), ClaimError>
    where
        R: SpscHandle<Slots = Slots>,
    {
        let producer = SpscProducer::claim(ring.clone())?;
        let consumer = Consumer::claim(ring)?;
        Ok((producer, consumer))
    }

    /// The maximum number of descriptors in the ring.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.lane.capacity()
    }
}

impl<const N: usize> SpscRing<[Slot; N]> {
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

impl<Slots> SpscRing<Slots> {
    const_constructors! {
        fn over(slots: Slots) -> Self {
            Self {
                state: OwnLine(State::new()),
                lane: Lane::over(slots),
            }
        }
    }
}

impl<Slots: AsRef<[Slot]>> Sealed for SpscRing<Slots> {
    type Slots = Slots;

    #[inline(always)]
    fn lane(&self) -> &Lane<Slots> {
        &self.lane
    }

    fn claim_consumer(&self) -> Result<(), ClaimError> {
        self.state.claim_consumer()
    }

    fn unclaim_consumer(&self) {
        self.state.unclaim_consumer();
    }

    #[inline(always)]
    fn is_over(&self, _head: u64) -> bool {
        self.state.is_finished()
    }

    fn close_by_consumer(&self) {
        self.state.close_consumer();
    }

    fn is_closed(&self) -> bool {
        self.state.is_closed()
    }
}

impl<Slots> fmt::Debug for SpscRing<Slots> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpscRing")
            .field("state", &self.state.0)
            .finish_non_exhaustive()
    }
}
