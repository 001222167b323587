//! Destruction of device objects. The calls take milliseconds, so they do not run on threads that poll.

use core::mem;
use core::ops::{Deref, DerefMut};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::panic::catch_unwind;
use std::sync::{Arc, mpsc};
use std::thread;

use scopeguard::ScopeGuard;

use crate::machine::log::log;

/// Drops the objects that it is given, in order. A panic in a drop, for example of an engine's own memory, is counted, and does not
/// affect later objects.
///
/// Its thread ends when the last clone is dropped and all objects are destroyed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaper {
    /// `None` drops each object at once, on the caller's thread.
    thread: Option<mpsc::Sender<Box<dyn Send>>>,
    panicked: Arc<AtomicU64>,
}

impl Reaper {
    /// Makes a reaper with a thread.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn background() -> io::Result<Self> {
        let (to, from) = mpsc::channel::<Box<dyn Send>>();
        let panicked = Arc::default();
        let count = Arc::clone(&panicked);
        thread::Builder::new()
            .name("doorbell-reaper".into())
            .spawn(move || from.into_iter().for_each(|what| destroy(what, &count)))?;
        let thread = Some(to);
        Ok(Self { thread, panicked })
    }

    /// Number of objects whose drop panicked on the thread.
    pub(crate) fn panicked(&self) -> u64 {
        // Relaxed: a statistic, which orders nothing.
        self.panicked.load(Ordering::Relaxed)
    }

    /// Hands an object over to be dropped.
    pub(crate) fn take(&self, what: impl Send + 'static) {
        // The thread runs as long as this sender exists, so sending does not fail.
        if let Some(thread) = &self.thread {
            let _ = thread.send(Box::new(what));
        }
    }

    /// Hands an object over to be dropped after `patience`, so that a device can finish what it has begun. Later objects wait, too. Without a
    /// thread the object is dropped at once.
    pub(crate) fn take_after(&self, what: impl Send + 'static, patience: Duration) {
        if self.thread.is_some() && patience > Duration::ZERO {
            self.take(scopeguard::guard(what, move |what| {
                thread::sleep(patience);
                drop(what);
            }));
        } else {
            self.take(what);
        }
    }

    /// Wraps a value so that dropping it hands it over.
    pub(crate) fn keep<T: Send + 'static>(&self, what: T) -> Reaped<T> {
        Reaped(scopeguard::guard(
            Kept {
                what,
                reaper: self.clone(),
            },
            hand_over as fn(Kept<T>),
        ))
    }

    /// Waits until all objects handed over before are dropped, but no longer than `patience`. Returns whether they are.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let Some(thread) = &self.thread else {
            return true;
        };
        let (token, destroyed) = mpsc::channel::<()>();
        if thread.send(Box::new(token)).is_err() {
            return true;
        }
        destroyed.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Disconnected)
    }
}

fn destroy(what: Box<dyn Send>, panicked: &AtomicU64) {
    // Unwind safe: the object is not accessed after a panic.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(what))) {
        // The drop of the panic's payload might panic, too.
        mem::forget(panic);
        panicked.fetch_add(1, Ordering::Relaxed);
        log!(error, "a drop panicked");
    }
}

/// A value that is handed to a [`Reaper`] when it is dropped. It dereferences to the value.
pub(crate) struct Reaped<T: Send + 'static>(ScopeGuard<Kept<T>, fn(Kept<T>)>);

/// A value, and the reaper that drops it.
struct Kept<T> {
    what: T,
    reaper: Reaper,
}

fn hand_over<T: Send + 'static>(kept: Kept<T>) {
    kept.reaper.take(kept.what);
}

impl<T: Send + 'static> Reaped<T> {
    /// Returns the value, for the caller to drop. This is not a method, since a method could hide one of the value.
    pub(crate) fn into_inner(kept: Self) -> T {
        ScopeGuard::into_inner(kept.0).what
    }
}

impl<T: Send + 'static> Deref for Reaped<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.what
    }
}

impl<T: Send + 'static> DerefMut for Reaped<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.what
    }
}

#[cfg(test)]
pub(in crate::machine) mod tests {
    use super::Reaper;
    use core::time::Duration;
    use std::sync::mpsc;
    use std::thread;

    struct Slow(mpsc::Sender<thread::ThreadId>, Duration);
    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(self.1);
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn what_takes_long_is_destroyed_elsewhere() {
        let reaper = Reaper::background().unwrap();
        let (to, from) = mpsc::channel();
        reaper.take(Slow(to.clone(), Duration::from_millis(200)));
        assert!(!reaper.settle(Duration::from_millis(1)));
        assert!(reaper.settle(Duration::from_secs(20)));
        assert_ne!(from.try_recv().unwrap(), thread::current().id());
        drop(reaper.keep(Slow(to.clone(), Duration::ZERO)));
        assert!(reaper.settle(Duration::from_secs(20)));
        assert_ne!(from.try_recv().unwrap(), thread::current().id());
        // A kept value is also destroyed if the reaper is dropped before it.
        let last = reaper.keep(Slow(to, Duration::ZERO));
        drop(reaper);
        assert_eq!(last.1, Duration::ZERO);
        drop(last);
        assert!(from.recv_timeout(Duration::from_secs(20)).is_ok());
    }

    /// Panics when it is dropped, with a payload that also panics when it is dropped.
    pub(in crate::machine) struct Hostile;
    impl Drop for Hostile {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                std::panic::resume_unwind(Box::new(Self));
            }
        }
    }

    #[test]
    fn what_panics_as_it_is_dropped_stops_nothing_behind_it() {
        let reaper = Reaper::background().unwrap();
        let (to, from) = mpsc::channel();
        for _ in 0..3 {
            reaper.take(Hostile);
            drop(reaper.keep(vec![Hostile]));
            reaper.take(Slow(to.clone(), Duration::ZERO));
        }
        assert!(reaper.settle(Duration::from_secs(20)));
        assert_eq!((from.try_iter().count(), reaper.panicked()), (3, 6));
    }

    #[test]
    fn without_a_thread_it_is_destroyed_at_once() {
        let reaper = Reaper::default();
        let (to, from) = mpsc::channel();
        reaper.take(Slow(to, Duration::ZERO));
        assert_eq!(from.try_recv(), Ok(thread::current().id()));
        assert!(reaper.settle(Duration::ZERO));
    }
}
