//! The memory of rings: slots of words, and separate cache lines for words of different owners.

use core::fmt;
use core::ops::Deref;

use doorbell_core::sync::{AtomicU64, Ordering, RaceWitness};

use super::Descriptor;
use super::descriptor::LAP;
use crate::ordering::{RING_PUBLISH, RING_TAKE};

/// Keeps a value on separate cache lines.
///
/// It takes two lines of 64 bytes, since processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct OwnLine<T>(pub(super) T);

impl<T> Deref for OwnLine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Defines constructors that are `const`, except under loom, whose atomics have no `const` constructors.
macro_rules! const_constructors {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),*) -> Self $body:block
    )*) => {
        $(
            $(#[$attribute])*
            #[cfg(not(doorbell_loom))]
            $visibility const fn $name($($argument: $type),*) -> Self $body

            $(#[$attribute])*
            #[cfg(doorbell_loom)]
            $visibility fn $name($($argument: $type),*) -> Self $body
        )*
    };
}

pub(super) use const_constructors;

/// One slot of a ring: 32 bytes, two to a cache line.
///
/// The words are atomic, so that no unsafe code is needed. The last word is published after the
/// others. It carries the lap bit, which changes with each round of the ring.
#[repr(align(32))]
pub struct Slot {
    words: [AtomicU64; 4],
    witness: RaceWitness,
}

#[cfg(not(any(doorbell_loom, doorbell_shuttle)))]
static_assertions::const_assert_eq!(size_of::<Slot>(), 32);

impl Slot {
    const_constructors! {
        /// An empty slot.
        #[must_use]
        #[inline]
        pub fn new() -> Self {
            Self {
                words: [
                    AtomicU64::new(0),
                    AtomicU64::new(0),
                    AtomicU64::new(0),
                    AtomicU64::new(0),
                ],
                witness: RaceWitness::new(),
            }
        }
    }

    /// An array of empty slots.
    #[cfg(not(doorbell_loom))]
    pub(super) const fn array<const N: usize>() -> [Self; N] {
        [const { Self::new() }; N]
    }

    /// An array of empty slots.
    #[cfg(doorbell_loom)]
    pub(super) fn array<const N: usize>() -> [Self; N] {
        core::array::from_fn(|_| Self::new())
    }

    /// Writes an item with its lap, and publishes it.
    ///
    /// Ordering: `RING_PUBLISH` pairs with `RING_TAKE` in [`read`](Self::read).
    #[inline(always)]
    pub(super) fn write(&self, lap: u64, item: Descriptor) {
        self.witness.write();
        let [a, b, c, last] = &self.words;
        let [x, y, z, carrier] = item.pack(lap);
        // Relaxed: published by the last word.
        a.store(x, Ordering::Relaxed);
        b.store(y, Ordering::Relaxed);
        c.store(z, Ordering::Relaxed);
        last.store(carrier, RING_PUBLISH.get());
    }

    /// Whether the item of a lap is published.
    #[inline(always)]
    pub(super) fn is_published(&self, lap: u64) -> bool {
        let [.., last] = &self.words;
        // Relaxed: reading the item loads the word again.
        last.load(Ordering::Relaxed) & LAP == lap
    }

    /// Reads the item of a lap, if it is published.
    ///
    /// Ordering: `RING_TAKE` pairs with `RING_PUBLISH` in [`write`](Self::write).
    #[inline(always)]
    pub(super) fn read(&self, lap: u64) -> Option<Descriptor> {
        let [a, b, c, last] = &self.words;
        let last = last.load(RING_TAKE.get());
        if last & LAP != lap {
            return None;
        }
        self.witness.read();
        // Relaxed: ordered after the last word.
        Some(Descriptor::unpack([
            a.load(Ordering::Relaxed),
            b.load(Ordering::Relaxed),
            c.load(Ordering::Relaxed),
            last,
        ]))
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}
