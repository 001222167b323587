//! The one place atomics come from, so that models can replace them.
//!
//! Under `--cfg doorbell_loom` they are loom's, which explores every interleaving; under `--cfg doorbell_shuttle`
//! shuttle's, which explores many of them, drawn at random from a seed. Here live also the two things that make a model
//! strict: orderings with names, each of which a model can weaken, and the witness that stands where plain memory would
//! be.

#[cfg(not(any(doorbell_loom, doorbell_shuttle)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(doorbell_loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(doorbell_shuttle, not(doorbell_loom)))]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use core::fmt;

/// The variable that names the ordering to weaken, in a build with `--cfg doorbell_loom`.
#[cfg(doorbell_loom)]
pub const WEAKEN_VARIABLE: &str = "DOORBELL_WEAKEN";

/// A memory ordering stronger than relaxed, with a name by which a model weakens it.
///
/// In a build with `--cfg doorbell_loom`, `DOORBELL_WEAKEN` names one ordering to weaken: to relaxed, or to the
/// ordering behind a `=` (`NOTIFY_SET=Release`). A model has to fail on it. In every other build an ordering is a
/// constant, and nothing can weaken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedOrdering {
    name: &'static str,
    ordering: Ordering,
}

impl NamedOrdering {
    /// An ordering with its name; [`named_orderings!`](crate::named_orderings) makes them.
    #[must_use]
    pub const fn new(name: &'static str, ordering: Ordering) -> Self {
        Self { name, ordering }
    }

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The ordering to use.
    #[cfg(not(doorbell_loom))]
    #[must_use]
    #[inline(always)]
    pub const fn get(self) -> Ordering {
        self.ordering
    }

    /// The ordering to use: a weaker one if it is the one to weaken, which is then printed once.
    #[cfg(doorbell_loom)]
    #[must_use]
    pub fn get(self) -> Ordering {
        modelled::weakened(self.name).unwrap_or(self.ordering)
    }
}

impl NamedOrdering {
    /// A fence of this ordering.
    #[cfg(not(doorbell_loom))]
    #[inline(always)]
    pub fn fence(self) {
        fence(self.ordering);
    }

    /// A fence of this ordering: a weaker one, or none, if it is the one to weaken, which is then printed once.
    #[cfg(doorbell_loom)]
    pub fn fence(self) {
        match self.get() {
            Ordering::Relaxed => {}
            ordering => fence(ordering),
        }
    }

    /// The orderings next below this one: none of them may do in its place.
    #[cfg(doorbell_loom)]
    #[must_use]
    pub const fn weaker(self) -> &'static [Ordering] {
        match self.ordering {
            Ordering::SeqCst => &[Ordering::AcqRel],
            Ordering::AcqRel => &[Ordering::Acquire, Ordering::Release],
            _ => &[Ordering::Relaxed],
        }
    }
}

impl fmt::Display for NamedOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Declares orderings as constants of their names, and `ALL`, the list of them: what a model
/// weakens one after the other, so that none can be forgotten.
#[macro_export]
macro_rules! named_orderings {
    ($($(#[$attribute:meta])* $name:ident = $ordering:ident;)*) => {
        $(
            $(#[$attribute])*
            pub const $name: $crate::sync::NamedOrdering =
                $crate::sync::NamedOrdering::new(stringify!($name), $crate::sync::Ordering::$ordering);
        )*

        /// Every ordering of this file.
        pub const ALL: &[$crate::sync::NamedOrdering] = &[$($name),*];
    };
}

/// Stands in a structure where plain memory would be handed from thread to thread, so that an
/// ordering too weak for plain memory is a race that loom reports. Nothing outside loom.
#[derive(Debug, Default)]
pub struct RaceWitness {
    #[cfg(doorbell_loom)]
    cell: loom::cell::UnsafeCell<()>,
}

#[cfg(not(doorbell_loom))]
impl RaceWitness {
    /// A witness that no thread has touched.
    #[must_use]
    pub const fn new() -> Self {
        Self {}
    }

    /// The memory is written, by this thread alone.
    #[inline(always)]
    pub const fn write(&self) {}

    /// The memory is read, while no thread writes it.
    #[inline(always)]
    pub const fn read(&self) {}
}

#[cfg(doorbell_loom)]
impl RaceWitness {
    /// A witness that no thread has touched.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory is written, by this thread alone.
    pub fn write(&self) {
        self.cell.with_mut(|_| ());
    }

    /// The memory is read, while no thread writes it.
    pub fn read(&self) {
        self.cell.with(|_| ());
    }
}

#[cfg(doorbell_loom)]
mod modelled {
    extern crate std;

    use std::format;
    use std::io::Write;
    use std::string::String;
    use std::sync::{Once, OnceLock};

    use super::Ordering;

    /// Returns the ordering to use instead, if this one is to be weakened. The first time, it prints so on the standard
    /// error. If a model fails without that line, it failed for another reason.
    pub(super) fn weakened(name: &str) -> Option<Ordering> {
        static WEAKENED: OnceLock<Option<String>> = OnceLock::new();
        static SAID: Once = Once::new();
        let weakened = WEAKENED.get_or_init(|| std::env::var(super::WEAKEN_VARIABLE).ok());
        let left = match weakened.as_deref()?.strip_prefix(name)? {
            "" | "=Relaxed" => Ordering::Relaxed,
            "=Acquire" => Ordering::Acquire,
            "=Release" => Ordering::Release,
            "=AcqRel" => Ordering::AcqRel,
            _ => return None,
        };
        SAID.call_once(|| say(weakened.as_deref().unwrap_or(name)));
        Some(left)
    }

    /// Says so in a line of its own, in one write: a model on another thread that panics writes to the standard error
    /// piece by piece, without its lock.
    fn say(weakened: &str) {
        let line = format!("\nweakened: {weakened}\n");
        // Unsaid, the ordering is taken for one that is not used, which fails the run as well.
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}
