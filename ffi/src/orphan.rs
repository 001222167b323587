//! Orphans: arenas that were dropped while slots were out or attachers existed. Each is freed once its slots have returned
//! and its attachers are gone.
//!
//! So nothing is leaked if a queue pair ends later than its arena, for example because another thread destroys it. An arena
//! is never freed if one of its slots never returns.

use core::mem;
use core::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::arena::ArenaInner;
use crate::leak::Leaked;

/// Block of an arena whose owner is gone. It was made from a box, and only the orphan frees it.
///
/// Once every slot has returned and no attacher is left, nothing else reaches the block. A thread that puts the last slot
/// on the list does not touch the block after its release, with which the acquire of `take_returned` pairs
/// (`ArenaInner::send_home`). A thread that drops the last attacher does not touch the block after it has given up its
/// clone of the guard, with which `Arc::get_mut` synchronizes.
pub(crate) struct Orphan {
    inner: NonNull<ArenaInner>,
    /// How many of its slots have returned. `slots` is the number of all its slots.
    home: usize,
    slots: usize,
    /// Each attacher has a clone.
    guard: Arc<()>,
}

// SAFETY: the orphan is the block's owner; slots and attachers on other threads reach only the block's lock-free list, its
// words of detached slots and its constants.
unsafe impl Send for Orphan {}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

impl Orphan {
    /// Takes over an arena's block, of whose slots `home` have returned.
    ///
    /// # Safety
    /// The block was made from a box, and nothing else frees it or takes from its list. Exactly `home` of its `slots` slots
    /// have no value and are neither detached nor on that list. Every attacher of the block has a clone of `guard`.
    pub(crate) const unsafe fn new(
        inner: NonNull<ArenaInner>,
        home: usize,
        slots: usize,
        guard: Arc<()>,
    ) -> Self {
        Self {
            inner,
            home,
            slots,
            guard,
        }
    }

    /// Frees the block, or keeps it as a counted leak until it may be freed.
    pub(crate) fn settle(mut self) {
        {
            // The lock is held from the check on, so a slot that returns after it, or an attacher that goes, finds the orphan
            // listed.
            let mut waiting = orphans();
            if !self.is_free() {
                Leaked::Arena.count();
                waiting.push(self);
                return;
            }
        }
        self.free();
    }

    /// Whether every slot has returned and no attacher is left. The answer stays true: the arena that leased slots is gone,
    /// a returned slot can be neither detached nor attached, and attachers are cloned only from attachers.
    fn is_free(&mut self) -> bool {
        // SAFETY: the block is freed only in `free`, which consumes the orphan.
        let inner = unsafe { self.inner.as_ref() };
        inner.take_returned(|_| self.home = self.home.wrapping_add(1));
        self.home == self.slots && Arc::get_mut(&mut self.guard).is_some()
    }

    /// How many of its slots are detached.
    fn detached(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.inner.as_ref() }.detachments().count()
    }

    /// Frees the block. Every slot has returned and no attacher is left, as `is_free` found.
    fn free(self) {
        // SAFETY: made from a box, and freed once, since this consumes the orphan. Every slot has
        // returned, so none is out or detached, and no attacher exists: nothing else reaches it, as the type describes.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

fn orphans() -> std::sync::MutexGuard<'static, Vec<Orphan>> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many slots of orphans are detached.
pub(crate) fn detached_slots() -> u64 {
    orphans().iter().map(|orphan| orphan.detached() as u64).sum()
}

/// Frees the orphans that may be freed by now. Called after slots may have returned, and after an attacher is dropped.
pub(crate) fn reclaim() {
    let mut whole = Vec::new();
    {
        let mut waiting = orphans();
        for mut orphan in mem::take(&mut *waiting) {
            if orphan.is_free() {
                whole.push(orphan);
            } else {
                waiting.push(orphan);
            }
        }
    }
    // Without the lock, since lent memory may run any code when it is given back.
    for orphan in whole {
        Leaked::Arena.uncount();
        orphan.free();
    }
}
