//! Counts of objects that could not be destroyed.
//!
//! An object that the device refuses to destroy stays as it is, with everything it depends on, since freeing memory that
//! the device may touch would be undefined behaviour. Only the count of arenas can fall again, once the missing slots of
//! an arena have returned and its attachers are gone.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::orphan;

/// The kinds of objects that are counted.
#[derive(Clone, Copy)]
pub(crate) enum Leaked {
    Arena,
    MemoryRegion,
    QueuePair,
    SharedReceiveQueue,
    CompletionQueue,
    CompletionChannel,
    AddressHandle,
    ProtectionDomain,
    Context,
}

/// How many kinds there are.
const KINDS: usize = 9;

static COUNTS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

impl Leaked {
    /// Counts one more.
    pub(crate) fn count(self) {
        if let Some(counter) = COUNTS.get(self as usize) {
            // Relaxed: a statistic, which orders nothing.
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one less.
    pub(crate) fn uncount(self) {
        if let Some(counter) = COUNTS.get(self as usize) {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn read(self) -> u64 {
        COUNTS
            .get(self as usize)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Objects that this process has leaked, because slots were still out or a device refused to destroy an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Arenas that were dropped while slots were out or attachers existed, and for which that is still so.
    pub arenas: u64,
    /// Slots of those arenas that are detached.
    pub detached_slots: u64,
    /// Memory regions that the device did not deregister, with their memory.
    pub memory_regions: u64,
    /// Queue pairs that the device did not destroy, with the slots they held.
    pub queue_pairs: u64,
    /// Shared receive queues that the device did not destroy, with the slots they held.
    pub shared_receive_queues: u64,
    /// Completion queues that the device did not destroy.
    pub completion_queues: u64,
    /// Completion channels that the device did not destroy.
    pub completion_channels: u64,
    /// Address handles that the device did not destroy.
    pub address_handles: u64,
    /// Protection domains that the device did not release.
    pub protection_domains: u64,
    /// Devices that could not be closed.
    pub contexts: u64,
}

/// Reads the counts, after it has freed the arenas that can now be freed.
#[must_use]
pub fn leaks() -> Leaks {
    orphan::reclaim();
    Leaks {
        arenas: Leaked::Arena.read(),
        detached_slots: orphan::detached_slots(),
        memory_regions: Leaked::MemoryRegion.read(),
        queue_pairs: Leaked::QueuePair.read(),
        shared_receive_queues: Leaked::SharedReceiveQueue.read(),
        completion_queues: Leaked::CompletionQueue.read(),
        completion_channels: Leaked::CompletionChannel.read(),
        address_handles: Leaked::AddressHandle.read(),
        protection_domains: Leaked::ProtectionDomain.read(),
        contexts: Leaked::Context.read(),
    }
}
