//! The atomics of all lock-free code, which models replace.
//!
//! Under `--cfg doorbell_loom` they are loom's, which explores every interleaving. Under `--cfg doorbell_shuttle`
//! they are shuttle's, which explores random interleavings of a seed. Two more items make the models strict: orderings
//! with names, each of which a model can weaken, and a witness that takes the place of plain memory.

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
/// ordering after a `=` (`NOTIFY_SET=Release`). A model has to fail then. In every other build an ordering is a
/// constant that nothing can weaken.
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

    /// The ordering to use. If it is the one to weaken, this is the weaker one, and that is printed once.
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

    /// A fence of this ordering. If it is the one to weaken, the fence is weaker or left out, and that is printed once.
    #[cfg(doorbell_loom)]
    pub fn fence(self) {
        match self.get() {
            Ordering::Relaxed => {}
            ordering => fence(ordering),
        }
    }

    /// The orderings next below this one, none of which may suffice.
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

/// Declares named orderings as constants, and `ALL`, the list of them. The models weaken each
/// entry of `ALL` in turn, so that none is forgotten.
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

/// Takes the place of plain memory whose ownership passes from thread to thread. An ordering that
/// is too weak for plain memory becomes a race that loom reports. Outside loom it is empty.
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

    /// Returns the ordering to use instead, if this one is to be weakened. The first call prints that to standard error.
    /// A model that fails without that line failed for another reason.
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

    /// Prints a separate line by one write: a panicking model on another thread writes to standard error piece by piece,
    /// without its lock.
    fn say(weakened: &str) {
        let line = format!("\nweakened: {weakened}\n");
        // Without the line, the ordering counts as not used, which fails the run as well.
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}
