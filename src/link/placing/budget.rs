//! The limit on the memory for placed messages of all links of a [`Links`](crate::link::Links), and the count of refusals by devices.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::provider::MemoryError;

/// Report about the memory for placed messages of all links, by [`Links::placed_memory`](crate::link::Links::placed_memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacedMemory {
    /// The bytes that exist or are being allocated. Memory counts until the devices have deregistered it.
    pub bytes: usize,
    /// Number of times that a device refused to register such memory.
    pub refused: u64,
    /// The reason for the last refusal, until a registration succeeds.
    pub refusal: Option<MemoryError>,
    /// Links that need memory, for which [`LinkConfig::placed_bytes_all`](crate::link::LinkConfig::placed_bytes_all) leaves too little.
    pub links_waiting: usize,
}

/// The limit of all links, and the bytes that are taken.
#[derive(Debug)]
pub(in crate::link) struct PlacedBudget {
    bytes_max: usize,
    bytes: AtomicUsize,
    refused: AtomicU64,
    /// The reason for the last refusal, if no registration has succeeded since.
    refusal: Mutex<Option<MemoryError>>,
}

impl PlacedBudget {
    pub(in crate::link) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            bytes: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            refusal: Mutex::new(None),
        })
    }

    /// Takes a share of this many bytes, if they are left.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let more = |taken: usize| taken.checked_add(bytes).filter(|all| *all <= self.bytes_max);
        // Relaxed: a count, which orders nothing.
        let taken = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Share {
            of: Arc::clone(self),
            bytes,
        })
    }

    /// Notes the outcome of a registration. Returns whether this is the first of consecutive refusals.
    pub(super) fn note(&self, outcome: Result<(), MemoryError>) -> bool {
        let refusal = outcome.err();
        let count = u64::from(refusal.is_some());
        self.refused.fetch_add(count, Ordering::Relaxed);
        let mut last = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let before = core::mem::replace(&mut *last, refusal);
        before.is_none() && refusal.is_some()
    }

    pub(in crate::link) fn report(&self, links_waiting: usize) -> PlacedMemory {
        PlacedMemory {
            bytes: self.bytes.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            refusal: *self.refusal.lock().unwrap_or_else(PoisonError::into_inner),
            links_waiting,
        }
    }
}

/// A part of the limit of all links, returned when it is dropped, after the registrations that it is for.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<PlacedBudget>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryError, PlacedBudget};

    #[test]
    fn shares_are_within_the_bound_and_come_back() {
        let budget = PlacedBudget::new(10);
        assert!(budget.take(11).is_none() && budget.take(usize::MAX).is_none());
        let first = budget.take(4).unwrap();
        let second = budget.take(6).unwrap();
        assert!(budget.take(1).is_none());
        assert_eq!(budget.report(3).bytes, 10);
        drop(first);
        assert!(budget.take(5).is_none());
        assert!(budget.take(4).is_some());
        drop(second);
        assert_eq!((budget.report(3).bytes, budget.report(3).links_waiting), (0, 3));
    }

    #[test]
    fn refusals_are_counted_and_the_first_of_a_row_is_told() {
        let budget = PlacedBudget::new(10);
        let refused = Err(MemoryError::Unreachable("a test"));
        let told: Vec<_> = [refused, refused, Ok(()), refused]
            .into_iter()
            .map(|outcome| (budget.note(outcome), budget.report(0).refusal.is_some()))
            .collect();
        assert_eq!(told, [(true, true), (false, true), (false, false), (true, true)]);
        assert_eq!(budget.report(0).refused, 3);
    }
}
