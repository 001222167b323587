//! The contexts of the process, each behind its lock, and the thread that polls contexts which NCCL does not call.

use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use crate::abi::NcclResult;
use crate::context::Context;
use crate::failure::Failure;
use crate::lock::Lock;
use crate::log;
use crate::relay::service;
use crate::settings::PluginSettings;

/// Maximum number of contexts.
const CONTEXTS_MAX: usize = 256;

/// Interval between polls of a context that NCCL does not call. Links need a poll every 30 ms, and peers must be able to connect at any time.
const POLLED_EVERY: Duration = Duration::from_millis(10);

static CONTEXTS: [Lock<Option<Context>>; CONTEXTS_MAX] = [const { Lock::new(None) }; CONTEXTS_MAX];

/// The place where the next context is added, if it is free. Places are used in turn, so that a stale number does not name a new context soon.
static NEXT: AtomicU8 = AtomicU8::new(0);

/// Result of starting the polling thread: the text of the system's error, if it failed.
static POLLING: OnceLock<Result<(), String>> = OnceLock::new();

/// The context that all calls of versions 8 to 10 share.
static SHARED: Mutex<Option<u8>> = Mutex::new(None);

/// Opens a context. The number is not reused until the context is closed.
pub(crate) fn open(settings: &PluginSettings) -> Result<u8, Failure> {
    let polling = POLLING.get_or_init(|| {
        stay_loaded();
        let named = thread::Builder::new().name("doorbell-nccl".into());
        named
            .spawn(poll_idle)
            .map(drop)
            .map_err(|error| error.to_string())
    });
    polling
        .as_ref()
        .map_err(|error| Failure::system(format_args!("the system gave no thread: {error}")))?;
    let context = Context::open(settings)?;
    let from = NEXT.load(Ordering::Relaxed);
    for place in (from..=u8::MAX).chain(0..from) {
        let Some(entry) = CONTEXTS.get(usize::from(place)) else {
            continue;
        };
        let mut entry = entry.lock();
        if entry.is_none() {
            *entry = Some(context);
            drop(entry);
            NEXT.store(place.wrapping_add(1), Ordering::Relaxed);
            service::enter(settings);
            return Ok(place);
        }
    }
    Err(Failure::system(
        "the limit of open communicators is reached: finalize some",
    ))
}

/// Opens the context of versions 8 to 10, unless it is open.
pub(crate) fn open_shared(settings: impl FnOnce() -> Result<PluginSettings, Failure>) -> Result<u8, Failure> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = *shared {
        return Ok(place);
    }
    let place = open(&settings()?)?;
    *shared = Some(place);
    Ok(place)
}

/// Returns the context of versions 8 to 10.
pub(crate) fn shared() -> Result<u8, Failure> {
    let shared = *SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.ok_or_else(|| Failure::new(NcclResult::INVALID_USAGE, "init was not called, or failed"))
}

/// Calls a function on a context.
#[inline]
pub(crate) fn with<T>(
    place: u8,
    call: impl FnOnce(&mut Context) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let none = || Failure::argument("there is no such context: it was finalized, or never made");
    let entry = CONTEXTS.get(usize::from(place)).ok_or_else(none)?;
    match &mut *entry.lock() {
        Some(context) => call(context),
        None => Err(none()),
    }
}

/// Closes a context.
pub(crate) fn close(place: u8) -> Result<(), Failure> {
    let taken = CONTEXTS
        .get(usize::from(place))
        .and_then(|entry| entry.lock().take());
    let context = taken.ok_or_else(|| Failure::argument("there is no such context: it was finalized"))?;
    context.close();
    service::leave();
    Ok(())
}

fn poll_idle() {
    let mut seen = [0_u64; CONTEXTS_MAX];
    loop {
        thread::sleep(POLLED_EVERY);
        for (entry, seen) in CONTEXTS.iter().zip(&mut seen) {
            // NCCL is calling a context that is locked.
            let Some(mut entry) = entry.try_lock() else {
                continue;
            };
            let Some(context) = &mut *entry else { continue };
            if context.polls == *seen {
                let poll = core::panic::AssertUnwindSafe(|| context.poll());
                if std::panic::catch_unwind(poll).is_err() {
                    log::warn("a fault of the plugin: polling panicked");
                }
            }
            *seen = context.polls;
        }
    }
}

/// Keeps this library mapped after NCCL closes it, since its threads go on.
fn stay_loaded() {
    let mut found = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let here: fn() = stay_loaded;
    // SAFETY: any address is allowed, and the structure is valid for writing (dladdr(3)).
    let is_found = unsafe { libc::dladdr(here as *const libc::c_void, found.as_mut_ptr()) };
    if is_found == 0 {
        return;
    }
    // SAFETY: written, since the address was found (dladdr(3)).
    let found = unsafe { found.assume_init() };
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the loader's name of a loaded library. No initializer runs, and the handle is never closed (dlopen(3)).
    let _ = unsafe { libc::dlopen(found.dli_fname, flags) };
}
