//! The ledger: which completions a queue may still redeem, and how many it rejected.
//!
//! A completion names its request only by its `wr_id`, which repeats after 2^24 uses of a place in the in-flight
//! table. So the ledger also checks from which completion queue the completion was polled, and its number there.
//!
//! Completions of one queue are polled in the order in which its requests end. Once a completion is redeemed, all
//! completions polled before it are spent. A completion polled before the queue was made belongs to another queue.

use crate::WorkId;
use crate::provider::Rejected;
use crate::unwinding::OnUnwind;

/// Identifies a completion queue. Its provider never gives two queues the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueId(pub u64);

/// The completion queue that a completion came from, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The completion queue it was polled from.
    pub queue: QueueId,
    /// The completion's number in that queue, from 1.
    pub sequence: u64,
}

/// Checks completions before the in-flight table of one queue retires their requests.
#[derive(Debug)]
pub struct Ledger {
    queue: QueueId,
    newest: u64,
    rejected: u64,
}

impl Ledger {
    /// A ledger for a queue that is made after `polled` completions were polled from its completion queue.
    #[must_use]
    pub const fn new(queue: QueueId, polled: u64) -> Self {
        Self {
            queue,
            newest: polled,
            rejected: 0,
        }
    }

    /// Redeems a completion: `retire` looks for its request in the table. If the request is found, the
    /// completion and all polled before it are spent. A panic in `retire` spends them, too.
    ///
    /// # Errors
    /// The completion is from another completion queue, is spent, or names no request in the table. The ledger counts it.
    #[inline]
    pub fn redeem<T>(
        &mut self,
        origin: Origin,
        work_id: WorkId,
        retire: impl FnOnce(WorkId) -> Result<T, Rejected>,
    ) -> Result<T, Rejected> {
        if origin.queue != self.queue || origin.sequence <= self.newest {
            return Err(self.reject(Rejected(work_id)));
        }
        // Only a callback in `retire` can panic, and then the request was found.
        let spent = OnUnwind::new(|| self.newest = origin.sequence);
        let outcome = retire(work_id);
        spent.disarm();
        match outcome {
            Ok(retired) => {
                self.newest = origin.sequence;
                Ok(retired)
            }
            Err(rejected) => Err(self.reject(rejected)),
        }
    }

    /// Redeems a completion of a queue whose requests end in any order: a completion spends only its own request. The
    /// table of such a queue records for each request whether it is spent.
    ///
    /// # Errors
    /// The completion is from another completion queue, was polled before this queue was made, or names no request
    /// in the table. The ledger counts it.
    #[inline]
    pub fn redeem_alone<T>(
        &mut self,
        origin: Origin,
        work_id: WorkId,
        retire: impl FnOnce(WorkId) -> Result<T, Rejected>,
    ) -> Result<T, Rejected> {
        if origin.queue != self.queue || origin.sequence <= self.newest {
            return Err(self.reject(Rejected(work_id)));
        }
        retire(work_id).map_err(|rejected| self.reject(rejected))
    }

    /// Redeems a completion whose request `take` finds. `None` means that `take` found none, or that the completion
    /// has to be rejected. Then nothing is spent or counted, and the caller calls [`Ledger::redeem`]. A panic in `take`
    /// spends the completion.
    #[inline(always)]
    pub fn redeem_if<T>(&mut self, origin: Origin, take: impl FnOnce() -> Option<T>) -> Option<T> {
        if origin.queue != self.queue || origin.sequence <= self.newest {
            return None;
        }
        // As in `redeem`.
        let spent = OnUnwind::new(|| self.newest = origin.sequence);
        let taken = take();
        spent.disarm();
        if taken.is_some() {
            self.newest = origin.sequence;
        }
        taken
    }

    /// The completion queue whose completions the ledger accepts.
    #[must_use]
    #[inline]
    pub const fn queue(&self) -> QueueId {
        self.queue
    }

    /// The number of rejected completions.
    #[must_use]
    #[inline]
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    // A separate function, so that a loop over completions keeps no register for it.
    #[cold]
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    const fn reject(&mut self, rejected: Rejected) -> Rejected {
        self.rejected = self.rejected.saturating_add(1);
        rejected
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, Origin, QueueId};
    use crate::WorkId;
    use crate::provider::Rejected;
    use core::panic::AssertUnwindSafe;
    use std::boxed::Box;
    use std::panic::{catch_unwind, resume_unwind};

    const OURS: QueueId = QueueId(7);
    const OTHER: QueueId = QueueId(8);

    fn redeem(ledger: &mut Ledger, queue: QueueId, sequence: u64) -> bool {
        let origin = Origin { queue, sequence };
        ledger.redeem(origin, WorkId::from_raw(0), |_| Ok(())).is_ok()
    }

    #[test]
    fn what_is_newer_and_its_own_gets_through() {
        let mut ledger = Ledger::new(OURS, 10);
        assert!(!redeem(&mut ledger, OURS, 10), "polled before the queue was made");
        assert!(redeem(&mut ledger, OURS, 11));
        assert!(!redeem(&mut ledger, OURS, 11), "spent");
        assert!(!redeem(&mut ledger, OTHER, 12), "another queue's");
        assert!(redeem(&mut ledger, OURS, 13));
        assert!(!redeem(&mut ledger, OURS, 12), "spent by a later one");
        assert_eq!(ledger.rejected(), 4);
    }

    #[test]
    fn what_is_found_is_spent_alike() {
        let mut ledger = Ledger::new(OURS, 10);
        let mut take = |queue, sequence, found: Option<u64>| {
            let origin = Origin { queue, sequence };
            ledger.redeem_if(origin, || found)
        };
        assert_eq!(take(OURS, 10, Some(1)), None, "polled before the queue was made");
        assert_eq!(take(OURS, 12, None), None, "nothing is found: it spends nothing");
        assert_eq!(take(OURS, 11, Some(2)), Some(2));
        assert_eq!(take(OURS, 11, Some(3)), None, "spent");
        assert_eq!(take(OTHER, 12, Some(4)), None, "another queue's");
        assert_eq!(take(OURS, 13, Some(5)), Some(5));
        assert_eq!(take(OURS, 12, Some(6)), None, "spent by a later one");
        assert_eq!(ledger.rejected(), 0);
    }

    #[test]
    fn what_the_table_rejects_is_counted_and_spends_nothing() {
        let mut ledger = Ledger::new(OURS, 0);
        let unknown = Origin {
            queue: OURS,
            sequence: 5,
        };
        let id = WorkId::from_raw(42);
        let rejected = ledger.redeem(unknown, id, |id| Err::<(), _>(Rejected(id)));
        assert_eq!(rejected, Err(Rejected(id)));
        assert!(redeem(&mut ledger, OURS, 4));
        assert_eq!(ledger.rejected(), 1);
    }

    #[test]
    fn a_panic_of_the_callback_spends_the_completion() {
        let mut ledger = Ledger::new(OURS, 0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let origin = Origin {
                queue: OURS,
                sequence: 5,
            };
            ledger.redeem(origin, WorkId::from_raw(0), |_| -> Result<(), _> {
                resume_unwind(Box::new("the callback's own"))
            })
        }));
        assert!(outcome.is_err());
        assert!(!redeem(&mut ledger, OURS, 5), "spent");
        assert!(redeem(&mut ledger, OURS, 6));
    }

    #[test]
    fn a_panic_of_the_callback_spends_what_is_found() {
        let mut ledger = Ledger::new(OURS, 0);
        let origin = Origin {
            queue: OURS,
            sequence: 5,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            ledger.redeem_if(origin, || -> Option<()> {
                resume_unwind(Box::new("the callback's own"))
            })
        }));
        assert!(outcome.is_err());
        assert!(!redeem(&mut ledger, OURS, 5), "spent");
        assert!(redeem(&mut ledger, OURS, 6));
    }

    #[test]
    fn alone_a_completion_spends_no_other() {
        let mut ledger = Ledger::new(OURS, 10);
        let mut redeem = |queue, sequence| {
            let origin = Origin { queue, sequence };
            ledger
                .redeem_alone(origin, WorkId::from_raw(0), |_| Ok(()))
                .is_ok()
        };
        assert!(redeem(OURS, 13) && redeem(OURS, 11));
        assert!(!redeem(OURS, 10), "polled before the queue was made");
        assert!(!redeem(OTHER, 14), "another queue's");
        let unknown = Origin {
            queue: OURS,
            sequence: 15,
        };
        let redeemed = ledger.redeem_alone(unknown, WorkId::from_raw(0), |id| Err::<(), _>(Rejected(id)));
        assert!(redeemed.is_err());
        assert_eq!(ledger.rejected(), 3);
    }

    #[test]
    fn nothing_spent_reaches_the_table() {
        let mut ledger = Ledger::new(OURS, 3);
        let old = Origin {
            queue: OURS,
            sequence: 3,
        };
        let redeemed = ledger.redeem(old, WorkId::from_raw(0), |_| -> Result<(), _> {
            unreachable!("it is not to be looked for")
        });
        assert!(redeemed.is_err());
    }
}
