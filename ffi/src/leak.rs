//! Counts of objects that could not be given back.
//!
//! An object that the device refuses to destroy stays as it is, with all it depends on: freeing memory under the
//! device would be undefined behaviour. The counts grow. Only an arena is counted off again, once its missing
//! slots came home and its attachers went.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::orphan;

/// Kind of object that is counted.
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

/// How many of each kind there are.
const KINDS: usize = 9;

static COUNTS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

impl Leaked {
    /// Counts one.
    pub(crate) fn count(self) {
        if let Some(counter) = COUNTS.get(self as usize) {
            // Relaxed: a statistic, which orders nothing.
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one off.
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

/// Leaks of this process so far, because slots were still out or a device refused to destroy an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Arenas dropped while slots of theirs were out, or attachers were there, which still are.
    pub arenas: u64,
    /// Slots of those arenas that are detached.
    pub detached_slots: u64,
    /// Memory regions the device would not deregister, with their memory.
    pub memory_regions: u64,
    /// Queue pairs the device would not destroy, with the slots they held.
    pub queue_pairs: u64,
    /// Shared receive queues the device would not destroy, with the slots they held.
    pub shared_receive_queues: u64,
    /// Completion queues the device would not destroy.
    pub completion_queues: u64,
    /// Completion channels the device would not destroy.
    pub completion_channels: u64,
    /// Address handles the device would not destroy.
    pub address_handles: u64,
    /// Protection domains the device would not release.
    pub protection_domains: u64,
    /// Devices that would not close.
    pub contexts: u64,
}

/// Reads the counts.
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
