//! The two threads that serve all caches of the process: one handles reports of changed mappings, the other deregisters.
//!
//! The thread that handles the reports must not allocate or free. A thread that unmaps memory while it holds the allocator's lock
//! waits for the report to be handled. For the same reason no thread allocates or frees while it holds a lock that the reports
//! need.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::MappingWatch;

use crate::memory::error::UnwatchedError;
use crate::memory::seam::{Subscriber, Watch};
use crate::memory::statistics::Uncached;

/// Maximum number of caches in a process that watch mappings.
const SUBSCRIBERS_MAX: usize = 256;

/// Time between two attempts to start the service, since an attempt may make threads.
const START_AGAIN: Duration = Duration::from_secs(1);

const EBUSY: i32 = 16;
const EAGAIN: i32 = 11;

/// The threads of this process, and the caches that they serve.
pub(super) struct Service {
    watch: &'static MappingWatch,
    deregistering: Thread,
}

/// A value that the process makes once. An attempt may fail for lack of something, such as descriptors or threads, so a later call makes
/// another one.
struct Started<T> {
    value: OnceLock<T>,
    /// The last attempt, if it failed.
    failed: Mutex<Option<(ProviderError, Instant)>>,
    failures: AtomicU64,
}

impl<T> Started<T> {
    const fn new() -> Self {
        Self {
            value: OnceLock::new(),
            failed: Mutex::new(None),
            failures: AtomicU64::new(0),
        }
    }

    /// Returns the value. If there is none, this calls `start`, but at most once in [`START_AGAIN`].
    fn get(
        &self,
        now: Instant,
        start: impl FnOnce() -> Result<T, ProviderError>,
    ) -> Result<&T, ProviderError> {
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        if let Some((error, at)) = *failed {
            if !Deadline::after(at, START_AGAIN).has_passed(now) {
                return Err(error);
            }
        }
        start()
            .map(|value| self.value.get_or_init(|| value))
            .inspect_err(|error| {
                *failed = Some((*error, now));
                self.failures.fetch_add(1, Ordering::Relaxed);
            })
    }
}

static SERVICE: Started<Service> = Started::new();

type Places = [Option<Arc<dyn Subscriber>>; SUBSCRIBERS_MAX];

static SUBSCRIBERS: Mutex<Places> = Mutex::new([const { None }; SUBSCRIBERS_MAX]);

fn subscribers() -> MutexGuard<'static, Places> {
    SUBSCRIBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Returns the service of this process. The first call starts it. After a failure a later call tries again.
    pub(super) fn of_process() -> Result<&'static Self, ProviderError> {
        SERVICE.get(crate::machine::clock::now(), Self::start)
    }

    /// Returns how many attempts to start the service failed.
    pub(super) fn failures() -> u64 {
        SERVICE.failures.load(Ordering::Relaxed)
    }

    fn start() -> Result<Self, ProviderError> {
        static DEREGISTERING: OnceLock<Thread> = OnceLock::new();
        let watch = MappingWatch::of_process()?;
        let no_thread = |error: std::io::Error| ProviderError {
            call: "pthread_create",
            errno: error.raw_os_error().unwrap_or(EAGAIN),
        };
        // An attempt that failed may have left this thread.
        let deregistering = match DEREGISTERING.get() {
            Some(thread) => thread.clone(),
            None => {
                let named = thread::Builder::new().name("doorbell-dereg".into());
                let handle = named.spawn(deregister_for_ever).map_err(no_thread)?;
                DEREGISTERING.get_or_init(|| handle.thread().clone()).clone()
            }
        };
        let wake = deregistering.clone();
        thread::Builder::new()
            .name("doorbell-maps".into())
            .spawn(move || {
                let has_retired = core::cell::Cell::new(false);
                let changed = |range| has_retired.set(has_retired.get() | invalidate(range));
                watch.serve(changed, || {
                    if has_retired.take() {
                        wake.unpark();
                    }
                });
            })
            .map_err(no_thread)?;
        Ok(Self { watch, deregistering })
    }

    /// Begins to report changes to a cache.
    pub(super) fn subscribe(&self, subscriber: Arc<dyn Subscriber>) -> Result<(), UnwatchedError> {
        let mut places = subscribers();
        if let Some(place) = places.iter_mut().find(|place| place.is_none()) {
            *place = Some(subscriber);
            return Ok(());
        }
        // The lock is released first, since dropping the subscriber may free memory.
        drop(places);
        Err(UnwatchedError::TooManyCaches {
            caches_max: SUBSCRIBERS_MAX,
        })
    }

    /// Ends the reports to a cache.
    pub(super) fn unsubscribe(&self, subscriber: *const ()) {
        let mut places = subscribers();
        let is_meant = |place: &&mut Option<Arc<dyn Subscriber>>| {
            place
                .as_ref()
                .is_some_and(|place| core::ptr::eq(Arc::as_ptr(place).cast(), subscriber))
        };
        let gone = places.iter_mut().find(is_meant).and_then(Option::take);
        drop(places);
        drop(gone);
    }
}

impl Watch for &'static Service {
    fn arm(&self, range: AddressRange) -> Result<(), Uncached> {
        if !doorbell_ffi::is_watchable(range) {
            return Err(Uncached::NotWatchable);
        }
        self.watch.arm(range).map_err(|error| match error.errno {
            EBUSY => Uncached::Occupied,
            _ => Uncached::NotArmed,
        })
    }

    #[inline]
    fn is_settled(&self) -> bool {
        self.watch.is_settled()
    }

    fn deregister_elsewhere(&self) -> bool {
        self.deregistering.unpark();
        true
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({:?})", self.watch)
    }
}

/// Reports a changed range to all caches. Returns whether a cache has registrations to deregister.
fn invalidate(range: AddressRange) -> bool {
    let places = subscribers();
    places
        .iter()
        .flatten()
        .fold(false, |retired, cache| retired | cache.invalidate(range))
}

fn deregister_for_ever() {
    loop {
        thread::park();
        for index in 0..SUBSCRIBERS_MAX {
            let subscriber = subscribers().get(index).cloned().flatten();
            if let Some(subscriber) = subscriber {
                subscriber.deregister();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::Instant;
    use doorbell_core::provider::ProviderError;

    use super::{Ordering, START_AGAIN, Started};

    #[test]
    fn an_attempt_that_failed_is_made_again_after_a_while() {
        let refused = |errno| ProviderError {
            call: "userfaultfd",
            errno,
        };
        let started = Started::new();
        let begin = Instant::from_ns(5);
        assert_eq!(started.get(begin, || Err::<u8, _>(refused(24))), Err(refused(24)));
        // Within a second the answer is the last one, without an attempt.
        let soon = Instant::from_ns(begin.after(START_AGAIN).to_ns() - 1);
        assert_eq!(started.get(soon, || unreachable!()), Err(refused(24)));
        let later = begin.after(START_AGAIN);
        assert_eq!(started.get(later, || Err(refused(11))), Err(refused(11)));
        assert_eq!(started.get(later, || unreachable!()), Err(refused(11)));
        assert_eq!(started.failures.load(Ordering::Relaxed), 2);
        assert_eq!(started.get(later.after(START_AGAIN), || Ok(7)), Ok(&7));
        assert_eq!(started.get(begin, || unreachable!()), Ok(&7));
        assert_eq!(started.failures.load(Ordering::Relaxed), 2);
    }
}
