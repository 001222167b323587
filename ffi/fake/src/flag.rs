//! State for one thread at a time, behind a flag that is nearly always free.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// How often a taken flag is looked at before the processor is given away.
const SPINS: u32 = 100;

/// A value behind a flag.
pub(crate) struct Guarded<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, for this thread alone.
    ///
    /// Ordering: the acquire pairs with the release when the guard before was dropped.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { guarded: self }
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0_u32;
        while self.taken.swap(true, Ordering::Acquire) {
            spins = spins.wrapping_add(1);
            if spins < SPINS {
                core::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// The right to look at a guarded value.
pub(crate) struct Guard<'a, T> {
    guarded: &'a Guarded<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the flag is this guard's until it is dropped.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.guarded.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.guarded.taken.store(false, Ordering::Release);
    }
}
