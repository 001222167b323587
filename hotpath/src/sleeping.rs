//! Sleep flag: whether a thread sleeps that other threads must wake, for work that no completion reports.

use core::fmt;

use doorbell_core::sync::{AtomicU32, Ordering};

use crate::ordering::{SLEEP_ANNOUNCED, SLEEP_LOOKED};

/// Says to threads that put work for another thread whether that thread sleeps, so that they wake it only then.
///
/// A thread that is going to sleep announces it, looks once more for work, and sleeps if there is none. A thread
/// that puts work asks the flag afterwards, and wakes the sleeper if the flag says so. Both have a fence between
/// their two steps, so at least one of the two sees what the other did.
pub struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// Nobody sleeps.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Announces a sleep. Look once more before it begins.
    ///
    /// Ordering: [`SLEEP_ANNOUNCED`] pairs with [`SLEEP_LOOKED`] in [`SleepFlag::must_wake`].
    pub fn announce(&self) {
        announce_sleep(&self.0);
    }

    /// The sleep is over, whatever ended it: nobody need wake anyone.
    pub fn withdraw(&self) {
        withdraw_sleep(&self.0);
    }

    /// Whether a sleep was announced that no caller was asked to end yet. Ask after putting work; a caller that
    /// gets `true` wakes the sleeper.
    ///
    /// Ordering: [`SLEEP_LOOKED`] pairs with [`SLEEP_ANNOUNCED`] in [`SleepFlag::announce`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        must_wake(&self.0)
    }
}

/// Announces a sleep at a flag that another process may have mapped, with the value 1: [`SleepFlag::announce`].
pub fn announce_sleep(flag: &AtomicU32) {
    // Relaxed: the fence orders it before the look that follows.
    flag.store(1, Ordering::Relaxed);
    SLEEP_ANNOUNCED.fence();
}

/// Ends a sleep at a flag: [`SleepFlag::withdraw`].
pub fn withdraw_sleep(flag: &AtomicU32) {
    // Relaxed: a thread that sees it late wakes in vain.
    flag.store(0, Ordering::Relaxed);
}

/// Whether the thread that sleeps at a flag has to be woken: [`SleepFlag::must_wake`].
#[inline]
pub fn must_wake(flag: &AtomicU32) -> bool {
    SLEEP_LOOKED.fence();
    // Relaxed, both: nothing is read because of it. Exchanged, so that one caller alone gets `true`.
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
