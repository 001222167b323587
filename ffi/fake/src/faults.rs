//! Faults on purpose: the state that `control` sets and every call looks at.
//!
//! No fault is set unless a test sets it. Without one, a call on the data path costs one load more.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::control::{Call, Value, Without};

/// One of a call that is to fail.
struct Fault {
    /// How often it was called.
    calls: AtomicU32,
    /// Which call of it fails, counted from one; 0 for none.
    fails_at: AtomicU32,
    errno: AtomicI32,
}

static FAULTS: [Fault; Call::ALL.len()] = [const {
    Fault {
        calls: AtomicU32::new(0),
        fails_at: AtomicU32::new(0),
        errno: AtomicI32::new(0),
    }
}; Call::ALL.len()];

/// The values to give, each with a bit above it that says so.
static VALUES: [AtomicU64; Value::ALL.len()] = [const { AtomicU64::new(0) }; Value::ALL.len()];
const IS_GIVEN: u64 = 1 << 32;

static LACKING: AtomicU32 = AtomicU32::new(0);

/// Calls are held, but on the thread that asked for it.
struct Held {
    by: Option<ThreadId>,
    /// Calls of this one, from the one of this number on; of none, all that destroy something.
    of: Option<(u32, u32)>,
    /// How many that thread made meanwhile.
    there: u32,
}

impl Held {
    /// Whether the call of this number is.
    fn is(&self, call: Call, number: u32) -> bool {
        let is_meant = match self.of {
            None => call.destroys(),
            Some((held, from)) => held == call as u32 && number >= from,
        };
        is_meant && self.by.is_some()
    }
}

static HELD: Mutex<Held> = Mutex::new(Held {
    by: None,
    of: None,
    there: 0,
});
static LET_GO: Condvar = Condvar::new();

/// Whether any are held.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Whether a test ever asked for anything: until then the data path counts nothing.
static WATCHED: AtomicBool = AtomicBool::new(false);

// Relaxed throughout: a test sets faults while nothing else runs, or takes them as they come.

pub(crate) fn heal() {
    for fault in &FAULTS {
        fault.fails_at.store(0, Ordering::Relaxed);
        fault.calls.store(0, Ordering::Relaxed);
    }
    for value in &VALUES {
        value.store(0, Ordering::Relaxed);
    }
    LACKING.store(0, Ordering::Relaxed);
    WATCHED.store(true, Ordering::Relaxed);
}

pub(crate) fn fail(call: u32, after: u32, errno: c_int) {
    if let Some(fault) = FAULTS.get(call as usize) {
        let made = fault.calls.load(Ordering::Relaxed);
        fault.errno.store(errno, Ordering::Relaxed);
        let at = made.wrapping_add(after).wrapping_add(1);
        fault.fails_at.store(at, Ordering::Relaxed);
        WATCHED.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn give(value: u32, number: u32) {
    if let Some(place) = VALUES.get(value as usize) {
        place.store(IS_GIVEN | u64::from(number), Ordering::Relaxed);
        WATCHED.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn lack(what: u32) {
    LACKING.store(what, Ordering::Relaxed);
}

pub(crate) fn calls(call: u32) -> u32 {
    let fault = FAULTS.get(call as usize);
    fault.map_or(0, |fault| fault.calls.load(Ordering::Relaxed))
}

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn hold_destroys() {
    start_holding(None);
}

pub(crate) fn hold(call: u32, after: u32) {
    let from = calls(call).wrapping_add(after).wrapping_add(1);
    start_holding(Some((call, from)));
}

fn start_holding(of: Option<(u32, u32)>) {
    *held() = Held {
        by: Some(thread::current().id()),
        of,
        there: 0,
    };
    IS_HELD.store(true, Ordering::Relaxed);
    WATCHED.store(true, Ordering::Relaxed);
}

pub(crate) fn let_go() -> u32 {
    let mut held = held();
    held.by = None;
    IS_HELD.store(false, Ordering::Relaxed);
    LET_GO.notify_all();
    held.there
}

/// Waits as long as the call of this number is held.
#[cold]
fn pass_held(call: Call, number: u32) {
    let mut held = held();
    if held.is(call, number) && held.by == Some(thread::current().id()) {
        held.there = held.there.saturating_add(1);
        return;
    }
    while held.is(call, number) {
        held = LET_GO.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Whether a context that is opened now does without something.
pub(crate) fn is_lacking(what: Without) -> bool {
    LACKING.load(Ordering::Relaxed) == what as u32
}

/// Notes a call; the error it is to fail with, where it is to.
#[inline]
pub(crate) fn due(call: Call) -> Option<c_int> {
    if !WATCHED.load(Ordering::Relaxed) {
        return None;
    }
    count(call)
}

#[cold]
fn count(call: Call) -> Option<c_int> {
    let fault = FAULTS.get(call as usize)?;
    let number = fault.calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if IS_HELD.load(Ordering::Relaxed) {
        pass_held(call, number);
    }
    (fault.fails_at.load(Ordering::Relaxed) == number).then(|| fault.errno.load(Ordering::Relaxed))
}

/// A value as a test wants it, else as it is.
#[inline]
pub(crate) fn value(value: Value, as_it_is: u32) -> u32 {
    if !WATCHED.load(Ordering::Relaxed) {
        return as_it_is;
    }
    let given = VALUES
        .get(value as usize)
        .map_or(0, |place| place.load(Ordering::Relaxed));
    if given & IS_GIVEN == 0 {
        return as_it_is;
    }
    // The lower half: what was given.
    u32::try_from(given & !IS_GIVEN).unwrap_or(as_it_is)
}

/// A value a test wants once, where it does.
pub(crate) fn take_value(value: Value) -> Option<u32> {
    let given = VALUES.get(value as usize)?.swap(0, Ordering::Relaxed);
    (given & IS_GIVEN != 0).then_some(u32::try_from(given & !IS_GIVEN).ok()?)
}
