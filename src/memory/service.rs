//! The two threads that serve all caches of the process: one handles reports of changed mappings, the other deregisters.
//!
//! The thread that handles the reports must not allocate or free. A thread that unmaps memory while it holds the allocator's lock
//! waits for the report to be handled. For the same reason no thread allocates or frees while it holds a lock that the reports
//! need.

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::AddressRange;
use doorbell_ffi::MappingWatch;

use crate::memory::error::UnwatchedError;
use crate::memory::seam::{Subscriber, Watch};
use crate::memory::statistics::Uncached;

/// Maximum number of caches in a process that watch mappings.
const SUBSCRIBERS_MAX: usize = 256;

const EBUSY: i32 = 16;
const EAGAIN: i32 = 11;

/// The threads of this process, and the caches that they serve.
pub(super) struct Service {
    watch: &'static MappingWatch,
    deregistering: Thread,
}

type Places = [Option<Arc<dyn Subscriber>>; SUBSCRIBERS_MAX];

static SUBSCRIBERS: Mutex<Places> = Mutex::new([const { None }; SUBSCRIBERS_MAX]);

fn subscribers() -> MutexGuard<'static, Places> {
    SUBSCRIBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Returns the service of this process. The first call starts it.
    pub(super) fn of_process() -> Result<&'static Self, ProviderError> {
        static SERVICE: OnceLock<Result<Service, ProviderError>> = OnceLock::new();
        SERVICE.get_or_init(Self::start).as_ref().map_err(|error| *error)
    }

    fn start() -> Result<Self, ProviderError> {
        let watch = MappingWatch::of_process()?;
        let no_thread = |error: std::io::Error| ProviderError {
            call: "pthread_create",
            errno: error.raw_os_error().unwrap_or(EAGAIN),
        };
        let deregistering = thread::Builder::new()
            .name("doorbell-dereg".into())
            .spawn(deregister_for_ever)
            .map_err(no_thread)?
            .thread()
            .clone();
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
