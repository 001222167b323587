//! The index of a registration cache: which memory is registered, how many users it has, and what is evicted next.
//!
//! This module makes all decisions, and makes no system call. A [`Table`] stores one value for each registration, in
//! storage from the caller. The caller registers, deregisters and watches mappings. It holds a lock around each call of
//! the table, and no call of the table allocates, frees or drops a value. A lookup that hits, and the end of a use, need
//! no lock ([`Uses`]).

mod table;
mod uses;

use core::fmt;

use crate::Access;
pub use table::{Slot, Table};
pub use uses::{Mark, Uses};

/// A range of addresses that is not empty and does not reach past the last address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRange {
    start: usize,
    end: usize,
}

impl AddressRange {
    /// The `bytes` bytes from `start` on. `None` if `bytes` is zero, or if the range ends beyond the last address.
    #[must_use]
    #[inline]
    pub const fn new(start: usize, bytes: usize) -> Option<Self> {
        match start.checked_add(bytes) {
            Some(end) if bytes != 0 => Some(Self { start, end }),
            _ => None,
        }
    }

    /// The first address.
    #[must_use]
    #[inline]
    pub const fn start(self) -> usize {
        self.start
    }

    /// The address after the last byte.
    #[must_use]
    #[inline]
    pub const fn end(self) -> usize {
        self.end
    }

    /// The number of bytes, at least one.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        // The end is after the start.
        self.end.wrapping_sub(self.start)
    }

    /// Whether the ranges have a byte in common.
    #[must_use]
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The pages of the range; `page_bytes` is a power of two. `None` if the last page ends beyond the last
    /// address.
    #[must_use]
    pub const fn in_pages(self, page_bytes: usize) -> Option<Self> {
        match self.end.checked_next_multiple_of(page_bytes) {
            Some(end) => Some(Self {
                start: self.start & !page_bytes.wrapping_sub(1),
                end,
            }),
            None => None,
        }
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// The key of a registration: two lookups share a registration only if all fields are equal.
///
/// Overlapping ranges are not merged: a merged registration would include memory that no caller named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The registered bytes.
    pub range: AddressRange,
    /// The rights, relaxed ordering included.
    pub access: Access,
    /// Whether the caller promises that the mapping stays. Only callers with this promise share such a registration,
    /// since its mapping is not watched.
    pub is_kept: bool,
}

/// The limits of a table. Registrations that wait to be deregistered count, too: their pages are still pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of registrations.
    pub entries: u32,
    /// The maximum number of bytes in all registrations together; bytes in two of them count twice.
    pub bytes: u64,
}

/// Identifies one registration of a table. Its index is reused with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId {
    index: u32,
    generation: u32,
}

/// One use of a registration. It cannot be copied or ended twice: [`Uses::release`] consumes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it lasts until it is released"]
pub struct Use {
    index: u32,
}

impl Use {
    /// A use of no registration. Releasing it changes nothing.
    #[inline]
    pub const fn of_nothing() -> Self {
        Self { index: u32::MAX }
    }
}

/// A registration whose last use ended and that no lookup finds any more. [`Table::retire`] consumes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it stays until it is retired"]
pub struct Ended {
    index: u32,
}

/// Answer to [`Table::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller acts on each of them")]
pub enum Reservation {
    /// A place is reserved. Register the memory, then call [`Table::commit`] or [`Table::abandon`].
    Reserved(EntryId),
    /// There is room after retired registrations are deregistered. Take them by [`Table::take_retired`]. If none is left, other
    /// threads took them: wait until they report [`Table::deregistered`]. Then reserve again.
    DeregisterFirst,
    /// Registrations in use leave no room within the limits. Nothing was evicted, unless lookups took idle registrations meanwhile.
    Full,
}

/// Answer to [`Table::commit`].
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller acts on each of them")]
pub enum Committed {
    /// Other lookups find the registration. The caller is its first user.
    Shared(Use),
    /// Another registration of the same key was committed meanwhile. The caller is the only user of this one, and no lookup finds it.
    Alone(Use),
    /// The range was invalidated after the reservation. The registration is retired, and must not be used.
    Stale,
}

/// Counts of a table since its creation, and its present contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Lookups that found a registration.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Registrations evicted while idle: for lack of room, or by [`Table::evict_idle`].
    pub evictions: u64,
    /// Registrations removed because their range was invalidated.
    pub invalidations: u64,
    /// Registrations held now, including those that are being made or wait to be deregistered.
    pub entries: u32,
    /// Registrations in use now.
    pub entries_used: u32,
    /// Bytes held now, as [`Limits::bytes`] counts them.
    pub bytes: u64,
}
