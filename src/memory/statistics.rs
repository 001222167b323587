//! Counts of a registration cache.

use core::fmt;

use doorbell_core::registrations::TableCounts;

/// Reason for a registration that serves one use and is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Uncached {
    /// Registrations in use leave no room within the limits of the cache.
    Full,
    /// This process has no userfaultfd: the kernel lacks it, or a seccomp filter forbids it.
    NoWatch,
    /// The memory is shared, of a file, or of reserved huge pages, which change without a report.
    NotWatchable,
    /// Another userfaultfd of this process watches the memory.
    Occupied,
    /// The kernel refused to watch the memory: too many mappings (`vm.max_map_count`), say.
    NotArmed,
    /// Mappings of the process changed during each of several attempts.
    Changing,
}

impl Uncached {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Full,
        Self::NoWatch,
        Self::NotWatchable,
        Self::Occupied,
        Self::NotArmed,
        Self::Changing,
    ];

    /// One word, as a metric has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NoWatch => "no_watch",
            Self::NotWatchable => "not_watchable",
            Self::Occupied => "occupied",
            Self::NotArmed => "not_armed",
            Self::Changing => "changing",
        }
    }
}

impl fmt::Display for Uncached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "registrations in use fill the cache",
            Self::NoWatch => "this process has no userfaultfd",
            Self::NotWatchable => "the memory is shared or of a file",
            Self::Occupied => "another userfaultfd watches the memory",
            Self::NotArmed => "the kernel refused to watch the memory",
            Self::Changing => "mappings of the process keep changing",
        })
    }
}

/// Counts of one cache since it was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationStatistics {
    /// Uses of a registration that was there.
    pub hits: u64,
    /// Lookups that found none. A use that is tried again after a change of mappings counts again.
    pub misses: u64,
    /// Registrations that left for lack of room.
    pub evictions: u64,
    /// Registrations that left because their mapping changed, or was forgotten.
    pub invalidations: u64,
    /// Registrations held now, those that wait to be deregistered included.
    pub entries: u32,
    /// Registrations in use now.
    pub entries_used: u32,
    /// Bytes held now. Bytes that are in two registrations count twice.
    pub bytes: u64,
    uncached: [u64; Uncached::ALL.len()],
}

impl RegistrationStatistics {
    pub(super) const fn new(counts: TableCounts, uncached: [u64; Uncached::ALL.len()]) -> Self {
        Self {
            hits: counts.hits,
            misses: counts.misses,
            evictions: counts.evictions,
            invalidations: counts.invalidations,
            entries: counts.entries,
            entries_used: counts.entries_used,
            bytes: counts.bytes,
            uncached,
        }
    }

    /// How many registrations served one use, for this reason.
    #[must_use]
    pub fn uncached(&self, reason: Uncached) -> u64 {
        self.uncached.get(reason as usize).copied().unwrap_or(0)
    }
}
