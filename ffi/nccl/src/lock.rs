//! A lock without poisoning: the contexts stay consistent after a panic, which interrupts one call. A `std::sync::Mutex` looks for panics when
//! it is taken and when it is freed, which costs each call about 14 instructions.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may sleep until it is free.
const AWAITED: u32 = 2;

/// Number of looks at a lock that is held before a thread sleeps.
const LOOKS: u32 = 100;

/// A value that one thread at a time uses.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a thread reaches the value only through a `Held`, of which there is one at a time. So the value moves between threads, and is never
// shared.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free, and takes it.
    ///
    /// # Ordering
    /// Taking it acquires what the previous holder released when it let go.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        match self.try_lock() {
            Some(held) => held,
            None => self.wait(),
        }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        let taken = self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| self.held())
    }

    const fn held(&self) -> Held<'_, T> {
        Held {
            lock: self,
            value: PhantomData,
        }
    }

    #[cold]
    fn wait(&self) -> Held<'_, T> {
        for _ in 0..LOOKS {
            if self.state.load(Ordering::Relaxed) == FREE {
                if let Some(held) = self.try_lock() {
                    return held;
                }
            }
            core::hint::spin_loop();
        }
        // Other threads may sleep, too, so from here on the lock is taken as one that is awaited.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            // SAFETY: an aligned word that lives through the call, and no timeout (futex(2), FUTEX_WAIT). If the word has changed, or a signal
            // has come, the call returns, and the loop looks again.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.state.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    AWAITED,
                    ptr::null::<libc::timespec>(),
                )
            };
        }
        self.held()
    }

    #[cold]
    fn wake_one(&self) {
        // SAFETY: only the address counts, and not what is there (futex(2), FUTEX_WAKE).
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            )
        };
    }
}

/// The value of a lock that this thread holds. Dropping it frees the lock.
pub(crate) struct Held<'l, T> {
    lock: &'l Lock<T>,
    /// Lets the type be sent and shared only if a reference to the value may be.
    value: PhantomData<&'l mut T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, so nothing else reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    /// # Ordering
    /// Releases what this holder wrote to the next one.
    #[inline(always)]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == AWAITED {
            self.lock.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;
    use std::thread;

    use super::Lock;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        const ROUNDS: u64 = 2_000;
        let lock = Lock::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut held = lock.lock();
                        assert_eq!(held.0, held.1);
                        held.0 += 1;
                        if round % 16 == 0 {
                            // Others come to wait, and to sleep.
                            thread::yield_now();
                        }
                        held.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (4 * ROUNDS, 4 * ROUNDS));
    }

    #[test]
    fn one_that_is_held_is_not_taken_and_a_panic_frees_it() {
        let lock = Lock::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut held = lock.lock();
            *held = 2;
            panic!("planted");
        }));
        assert!(panicked.is_err());
        assert_eq!(lock.try_lock().map(|held| *held), Some(2));
    }
}
