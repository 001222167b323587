//! Parts of the models of the accept queue: the signals by which threads wake each other, the values that go over places, and locks that
//! do not lock.

use core::ops::{Deref, DerefMut};
use std::sync::TryLockError;

use doorbell_hotpath::NotifyFlag;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

/// The signal of `src/machine/signal.rs`, with a model of its `eventfd` and of the wait for it.
pub(crate) struct Bell {
    flag: NotifyFlag,
    is_readable: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self {
            flag: NotifyFlag::new(),
            is_readable: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn raise(&self) {
        if self.flag.notify() {
            *self.is_readable.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    pub(crate) fn take(&self) {
        self.flag
            .take_heard(|| core::mem::take(&mut *self.is_readable.lock().unwrap()));
    }

    /// Sleeps until it is readable. If no thread wakes the sleeper any more, loom reports a deadlock.
    pub(crate) fn wait(&self) {
        let mut is_readable = self.is_readable.lock().unwrap();
        while !*is_readable {
            is_readable = self.changed.wait(is_readable).unwrap();
        }
    }
}

/// Count of the things that exist: those that a thread owns, and those at a place.
#[derive(Clone)]
pub(crate) struct Ledger(Arc<AtomicUsize>);

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(0)))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Makes a thing with this number.
    pub(crate) fn thing(&self, number: u32) -> Thing {
        self.0.fetch_add(1, Ordering::AcqRel);
        let thing = Thing {
            number,
            memory: UnsafeCell::new(()),
            ledger: self.clone(),
        };
        thing.memory.with_mut(|_| ());
        thing
    }
}

/// A value that goes over a place, with a witness for its memory.
pub(crate) struct Thing {
    number: u32,
    memory: UnsafeCell<()>,
    ledger: Ledger,
}

impl Thing {
    pub(crate) fn read(&self) -> u32 {
        self.memory.with(|_| ());
        self.number
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        self.memory.with_mut(|_| ());
        self.ledger.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lock that excludes nobody. The second thread finds an empty value, and the value that one of the two puts back is lost.
#[derive(Default)]
pub(crate) struct Torn<T>(Mutex<T>);

pub(crate) struct TornGuard<'t, T> {
    torn: &'t Torn<T>,
    value: Option<T>,
}

impl<T: Default> Torn<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Result<TornGuard<'_, T>, std::sync::PoisonError<TornGuard<'_, T>>> {
        let value = Some(core::mem::take(&mut *self.0.lock().unwrap()));
        Ok(TornGuard { torn: self, value })
    }

    pub(crate) fn try_lock(&self) -> Result<TornGuard<'_, T>, TryLockError<TornGuard<'_, T>>> {
        Ok(self.lock()?)
    }
}

impl<T> Deref for TornGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().unwrap()
    }
}

impl<T> DerefMut for TornGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().unwrap()
    }
}

impl<T> Drop for TornGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            // The replaced value is dropped after the lock is released.
            let other = core::mem::replace(&mut *self.torn.0.lock().unwrap(), value);
            drop(other);
        }
    }
}
