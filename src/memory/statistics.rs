//! Counts of a registration cache.

use core::fmt;

use doorbell_core::registrations::TableCounts;

/// Reason why a registration serves only one use and is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Uncached {
    /// Registrations in use, or that a device takes long to deregister, leave no room within the limits of the cache.
    Full,
    /// This process has no userfaultfd: the kernel lacks it, or a seccomp filter forbids it.
    NoWatch,
    /// The memory is shared, of a file, or of reserved huge pages. Such memory can change without a report.
    NotWatchable,
    /// Another userfaultfd of this process watches the memory.
    Occupied,
    /// The kernel refused to watch the memory, for example because of too many mappings (`vm.max_map_count`).
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

    /// Returns the name of the reason in metrics.
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
    /// Lookups that found a registration.
    pub hits: u64,
    /// Lookups that found none. If a lookup is repeated after a change of mappings, each miss counts.
    pub misses: u64,
    /// Unused registrations that were evicted.
    pub evictions: u64,
    /// Registrations that were dropped because their mapping changed, or by
    /// [`RegistrationCache::forget`](crate::memory::RegistrationCache::forget).
    pub invalidations: u64,
    /// Registrations held now, including those that wait to be deregistered.
    pub entries: u32,
    /// Registrations in use now.
    pub entries_used: u32,
    /// Bytes held now. Bytes that are in two registrations count twice.
    pub bytes: u64,
    /// Attempts of this process to begin the watch of mappings that failed. All caches share the watch, so each reports this number.
    pub watch_failures: u64,
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
            watch_failures: 0,
            uncached,
        }
    }

    /// Returns how many registrations served only one use for this reason.
    #[must_use]
    pub fn uncached(&self, reason: Uncached) -> u64 {
        self.uncached.get(reason as usize).copied().unwrap_or(0)
    }
}
