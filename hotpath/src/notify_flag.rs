//! The flag of a report: whether something was reported and not taken yet.

use core::fmt;

use doorbell_core::sync::{AtomicU32, Ordering, RaceWitness};

use crate::ordering::{NOTIFY_SET, NOTIFY_TAKE};

/// Reports something from any number of threads to one taker. Among all threads that report before the take, only the
/// first must pass the report on, by a list or a descriptor.
///
/// A taker sees all that was done before any report that precedes the take, even if the flag was already set. All that the
/// taker did before the take is visible to the next thread that must pass a report on.
pub struct NotifyFlag {
    is_set: AtomicU32,
    /// The witness of the list or descriptor that passed the report on, which the taker reads before the take.
    way: RaceWitness,
}

impl NotifyFlag {
    /// A flag without a report.
    #[must_use]
    pub fn new() -> Self {
        Self {
            is_set: AtomicU32::new(0),
            way: RaceWitness::new(),
        }
    }

    /// Reports. Returns whether the caller must pass the report on, since it is the first report after the last take.
    ///
    /// Both sides use a read-modify-write. A plain load here could see a flag that is about to be taken, and then the taker
    /// might miss what was done before the load.
    ///
    /// Ordering: [`NOTIFY_SET`] pairs with [`NOTIFY_TAKE`] in `NotifyFlag::take`, in both directions.
    #[must_use = "or nobody hears of it"]
    #[inline]
    pub fn notify(&self) -> bool {
        let is_first = self.is_set.swap(1, NOTIFY_SET.get()) == 0;
        if is_first {
            self.way.write();
        }
        is_first
    }

    /// Takes the report, after the list or descriptor that passed it on was read. From then on the flag may be set again.
    /// Look for the reported work afterwards.
    ///
    /// Ordering: [`NOTIFY_TAKE`] pairs with [`NOTIFY_SET`] in [`NotifyFlag::notify`], in both directions.
    #[inline]
    pub(crate) fn take(&self) {
        self.way.read();
        self.is_set.swap(0, NOTIFY_TAKE.get());
    }

    /// Takes the report, if there is one and `hear` took its wake-up. If the reporter has not sent the wake-up yet, the flag
    /// stays set until a later call.
    ///
    /// Ordering: pairs with [`NotifyFlag::notify`].
    #[inline]
    pub fn take_heard(&self, hear: impl FnOnce() -> bool) {
        // Relaxed: a later call sees a report that this one misses.
        if self.is_set.load(Ordering::Relaxed) != 0 && hear() {
            self.take();
        }
    }
}

impl Default for NotifyFlag {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for NotifyFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = self.is_set.load(Ordering::Relaxed) != 0;
        f.debug_tuple("NotifyFlag").field(&is_set).finish()
    }
}

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests {
    use super::NotifyFlag;

    #[test]
    fn it_is_passed_on_once_until_it_is_taken() {
        let flag = NotifyFlag::new();
        flag.take_heard(|| unreachable!("nothing was reported"));
        assert!(flag.notify() && !flag.notify());
        flag.take_heard(|| false);
        assert!(!flag.notify(), "the flag is still set");
        flag.take_heard(|| true);
        assert!(flag.notify());
    }
}
