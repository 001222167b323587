//! Queue pairs by their numbers.
//!
//! The core of a queue pair is the part that a peer or an old completion may still name. Cores are never freed,
//! only used again, so a reference to one is always good. A core knows which queue pair it belongs to now, if
//! any.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::engine::Responder;
use crate::flag::Guarded;
use crate::send::Requester;

/// A queue pair connected to this number posts and completes, and delivers nothing.
pub const NULL_QPN: u32 = 0x00ff_fff0;

/// How many queue pairs there are at most, those of all devices together.
pub(crate) const CORES_MAX: u32 = 1 << INDEX_BITS;

/// The bits of a number that are its core's index; those above count the core's lives.
const INDEX_BITS: u32 = 14;

/// The first index given out: numbers 0 and 1 are reserved.
///
/// Source: InfiniBand Architecture volume 1, section 3.5.10.
const FIRST_INDEX: u32 = 16;

/// Lives that a number distinguishes: one less than it could, which keeps `NULL_QPN` free.
const LIVES: u32 = (1 << (24 - INDEX_BITS)) - 1;

/// The lasting part of a queue pair.
pub(crate) struct Core {
    pub(crate) requester: Guarded<Requester>,
    pub(crate) responder: Guarded<Responder>,
    /// The position behind the last request whose completion was polled, and with it all before.
    /// Positions go on through all lives of a core, so what an old completion names is behind.
    pub(crate) sends_polled: AtomicU64,
    /// The same of receives.
    pub(crate) receives_polled: AtomicU64,
}

static CORES: [AtomicPtr<Core>; CORES_MAX as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; CORES_MAX as usize];

/// The numbers that can be given out: those given back, and the first index never used.
struct Free {
    back: Vec<u32>,
    next: u32,
}

static FREE: Mutex<Free> = Mutex::new(Free {
    back: Vec::new(),
    next: FIRST_INDEX,
});

const fn index(qpn: u32) -> usize {
    (qpn & (CORES_MAX - 1)) as usize
}

/// A number that no queue pair has, with its core; `None` where all are taken.
pub(crate) fn take() -> Option<(u32, &'static Core)> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(last) = free.back.pop() {
        let life = (last >> INDEX_BITS).wrapping_add(1);
        let life = if life >= LIVES { 0 } else { life };
        let qpn = life << INDEX_BITS | last & (CORES_MAX - 1);
        return find(qpn).map(|core| (qpn, core));
    }
    let place = CORES.get(free.next as usize)?;
    let qpn = free.next;
    free.next = qpn.wrapping_add(1);
    let core = Box::leak(Box::new(Core {
        requester: Guarded::new(Requester::NONE),
        responder: Guarded::new(Responder::NONE),
        sends_polled: AtomicU64::new(0),
        receives_polled: AtomicU64::new(0),
    }));
    // Release: a thread that finds it finds it complete.
    place.store(core, Ordering::Release);
    Some((qpn, core))
}

/// Gives a number back that [`take`] gave; its core belongs to no queue pair any more.
pub(crate) fn give_back(qpn: u32) {
    FREE.lock().unwrap_or_else(PoisonError::into_inner).back.push(qpn);
}

/// The core at the index of a number, whichever queue pair has it now.
#[inline]
pub(crate) fn find(qpn: u32) -> Option<&'static Core> {
    let core = CORES.get(index(qpn))?.load(Ordering::Acquire);
    // SAFETY: null, or leaked by `take` and never freed.
    unsafe { core.as_ref() }
}

/// Calls `each` with every core there is.
pub(crate) fn each(mut each: impl FnMut(&'static Core)) {
    for place in CORES.iter().skip(FIRST_INDEX as usize) {
        // SAFETY: null, or leaked by `take` and never freed.
        let Some(core) = (unsafe { place.load(Ordering::Acquire).as_ref() }) else {
            // They are made in order.
            return;
        };
        each(core);
    }
}

/// Notes that the request at `position` was polled.
#[inline]
pub(crate) fn polled(progress: &AtomicU64, position: u64) {
    let next = position.wrapping_add(1);
    // One thread polls a completion queue; one of an earlier life is behind and changes nothing.
    if next > progress.load(Ordering::Relaxed) {
        // Release: pairs with the acquire of the thread that posts into the freed place.
        progress.store(next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{LIVES, NULL_QPN, find, give_back, polled, take};
    use core::sync::atomic::AtomicU64;

    #[test]
    fn a_number_is_not_used_twice_in_a_row() {
        let (first, core) = take().unwrap();
        give_back(first);
        // Other tests take numbers too, so this one may get another core.
        let (second, _) = take().unwrap();
        assert_ne!(first, second);
        assert!(core::ptr::eq(find(first).unwrap(), core));
        give_back(second);
        assert!(first > 1 && first < 1 << 24);
        const { assert!(NULL_QPN >> super::INDEX_BITS >= LIVES) };
    }

    #[test]
    fn an_old_completion_changes_nothing() {
        let progress = AtomicU64::new(7);
        polled(&progress, 3);
        assert_eq!(progress.load(super::Ordering::Relaxed), 7);
        polled(&progress, 9);
        assert_eq!(progress.load(super::Ordering::Relaxed), 10);
    }
}
