//! The sleep flag: whether a sleeping thread must be woken, for work that no completion reports.

use core::fmt;

use doorbell_core::sync::{AtomicU32, Ordering};

use crate::ordering::{SLEEP_ANNOUNCED, SLEEP_LOOKED};

/// Shows threads that add work for another thread whether that thread sleeps, so that they wake it only if necessary.
///
/// A thread that is about to sleep announces it, checks once more for work, and sleeps if there is none. A thread that
/// adds work checks the flag afterwards, and wakes the sleeper if necessary. Both have a fence between their two steps,
/// so at least one of them sees what the other did.
pub struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// A flag without a sleeper.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Announces a sleep. Check once more for work before it begins.
    ///
    /// Ordering: [`SLEEP_ANNOUNCED`] pairs with [`SLEEP_LOOKED`] in [`SleepFlag::must_wake`].
    pub fn announce(&self) {
        announce_sleep(&self.0);
    }

    /// Withdraws the announcement: the sleep is over, and no wake-up is needed.
    pub fn withdraw(&self) {
        withdraw_sleep(&self.0);
    }

    /// Whether a sleep is announced that no other caller has to end. Call this after adding work; a caller that
    /// gets `true` has to wake the sleeper.
    ///
    /// Ordering: [`SLEEP_LOOKED`] pairs with [`SLEEP_ANNOUNCED`] in [`SleepFlag::announce`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        must_wake(&self.0)
    }
}

/// Announces a sleep at a flag that another process may have mapped, by the value 1; see [`SleepFlag::announce`].
pub fn announce_sleep(flag: &AtomicU32) {
    // Relaxed: the fence orders it before the check that follows.
    flag.store(1, Ordering::Relaxed);
    SLEEP_ANNOUNCED.fence();
}

/// Withdraws a sleep at a flag; see [`SleepFlag::withdraw`].
pub fn withdraw_sleep(flag: &AtomicU32) {
    // Relaxed: a thread that sees it late causes a needless wake-up.
    flag.store(0, Ordering::Relaxed);
}

/// Whether the thread that sleeps at a flag has to be woken; see [`SleepFlag::must_wake`].
#[inline]
pub fn must_wake(flag: &AtomicU32) -> bool {
    SLEEP_LOOKED.fence();
    // Both relaxed: nothing is read because of them. A swap, so that only one caller gets `true`.
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

impl Default for SleepFlag {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SleepFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_asleep = self.0.load(Ordering::Relaxed) != 0;
        f.debug_tuple("SleepFlag").field(&is_asleep).finish()
    }
}

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests {
    use super::SleepFlag;

    #[test]
    fn of_those_who_ask_one_wakes() {
        let flag = SleepFlag::new();
        assert!(!flag.must_wake());
        flag.announce();
        flag.announce();
        assert!(flag.must_wake() && !flag.must_wake());
        flag.announce();
        assert!(flag.must_wake());
        flag.announce();
        flag.withdraw();
        assert!(!flag.must_wake());
    }
}
