//! The index of a registration cache: which memory is registered, by how many it is used, and what leaves next.
//!
//! Here is all that decides, and nothing that calls. A [`Table`] stores one value for each registration, in storage of
//! the caller's. The caller registers, deregisters and watches mappings. It holds a lock around each call of the
//! table, and no call of the table allocates, frees or drops a value. A lookup that hits, and the end of a use, need no
//! lock: [`Uses`].

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
    /// The `bytes` bytes from `start` on. `None` if there are none, or if they end behind the last address.
    #[must_use]
    #[inline]
    pub const fn new(start: usize, bytes: usize) -> Option<Self> {
        match start.checked_add(bytes) {
            Some(end) if bytes != 0 => Some(Self { start, end }),
            _ => None,
        }
    }

    /// Its first address.
    #[must_use]
    #[inline]
    pub const fn start(self) -> usize {
        self.start
    }

    /// The address behind its last byte.
    #[must_use]
    #[inline]
    pub const fn end(self) -> usize {
        self.end
    }

    /// How many bytes it has, at least one.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        // The end is behind the start.
        self.end.wrapping_sub(self.start)
    }

    /// Whether it has a byte in common with `other`.
    #[must_use]
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The whole pages that it touches; `page_bytes` is a power of two. `None` if the last of them ends behind the last
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

/// Identity of a registration: two lookups share one only if all fields are equal.
///
/// Ranges that overlap stay apart: merging them would register memory that nobody named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The registered bytes.
    pub range: AddressRange,
    /// The rights, with relaxed ordering among them.
    pub access: Access,
    /// Whether the caller promises that the mapping stays. Such a registration is shared only by callers that promise
    /// it, since nobody watches its mapping.
    pub is_kept: bool,
}

/// The most that a table holds. Registrations that wait to be deregistered count, too: their pages are still pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Registrations.
    pub entries: u32,
    /// Bytes of all registrations together; bytes in two of them count twice.
    pub bytes: u64,
}

/// Names one registration of a table. Its index is used again, with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId {
    index: u32,
    generation: u32,
}

/// One use of a registration. It is neither copied nor ended twice: [`Uses::release`] takes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it lasts until it is released"]
pub struct Use {
    index: u32,
}

impl Use {
    /// The use of nothing. To release it changes nothing.
    #[inline]
    pub const fn of_nothing() -> Self {
        Self { index: u32::MAX }
    }
}

/// A registration whose last use ended, and which no lookup finds any more. [`Table::retire`] takes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it stays until it is retired"]
pub struct Ended {
    index: u32,
}

/// Answer to [`Table::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller acts on each of them")]
pub enum Reservation {
    /// There is a place. Register, then [`Table::commit`] or [`Table::abandon`] it.
    Reserved(EntryId),
    /// There is a place once registrations that left are deregistered. Take the retired ones ([`Table::take_retired`]). If there is
    /// none left, others took them: wait until they report [`Table::deregistered`]. Reserve again afterwards.
    DeregisterFirst,
    /// Registrations in use leave no room within the limits. Nothing was evicted, unless lookups took up meanwhile what was idle.
    Full,
}

/// Answer to [`Table::commit`].
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller acts on each of them")]
pub enum Committed {
    /// Other lookups find it. The caller is its first user.
    Shared(Use),
    /// Another one of the same key was committed meanwhile. The caller is its only user, and no lookup finds it.
    Alone(Use),
    /// Its range was invalidated since it was reserved. It is retired, and may not be used.
    Stale,
}

/// Counts of a table since it was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Lookups that found a registration.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Registrations that left for lack of room.
    pub evictions: u64,
    /// Registrations that left because their range was invalidated.
    pub invalidations: u64,
    /// Registrations held now, those that are being made or wait to be deregistered included.
    pub entries: u32,
    /// Registrations in use now.
    pub entries_used: u32,
    /// Bytes held now, as [`Limits::bytes`] counts them.
    pub bytes: u64,
}
