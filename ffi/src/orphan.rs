//! Orphans: arenas that were dropped while slots were out or attachers were left. Each is freed once its slots
//! came home and its attachers went.
//!
//! So a queue pair that ends later than its arena, as one destroyed on another thread does, leaves nothing
//! behind. An arena with a slot that never comes home is never freed.

use core::mem;
use core::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::arena::ArenaInner;
use crate::leak::Leaked;

/// Block of an arena whose owner is gone. It was made from a box, and the orphan alone frees it.
///
/// Once every slot is home and no attacher is left, nobody else reaches it. A thread that put the last slot on
/// the list touches nothing after its release, with which the acquire of `take_returned` pairs
/// (`ArenaInner::send_home`). A thread that dropped the last attacher touches nothing after it gave up its clone
/// of the guard, with which `Arc::get_mut` synchronizes.
pub(crate) struct Orphan {
    inner: NonNull<ArenaInner>,
    /// How many of its slots are home, and how many there are.
    home: usize,
    slots: usize,
    /// Each attacher has a clone.
    guard: Arc<()>,
}

// SAFETY: whoever has the orphan is the block's owner; slots and attachers on other threads reach it
// by its lock-free list, its words of detached slots and its constants alone.
unsafe impl Send for Orphan {}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

impl Orphan {
    /// Takes over an arena's block, of whose slots so many are home.
    ///
    /// # Safety
    /// The block was made from a box, nobody else frees it or takes from its list, and `home`
    /// of its `slots` slots have no value and are neither detached nor on that list. Every attacher
    /// of the block has a clone of `guard`.
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

    /// Frees it, or keeps it as a counted leak until it may be.
    pub(crate) fn settle(mut self) {
        {
            // With the lock from the look on: what comes home or goes after it finds the orphan listed.
            let mut waiting = orphans();
            if !self.is_free() {
                Leaked::Arena.count();
                waiting.push(self);
                return;
            }
        }
        self.free();
    }

    /// Whether every slot is home, and no attacher is left. It stays so: the arena that lent slots
    /// is gone, what is home can be neither detached nor attached, and attachers are cloned from
    /// attachers alone.
    fn is_free(&mut self) -> bool {
        // SAFETY: the block is freed in `free` alone, which consumes the orphan.
        let inner = unsafe { self.inner.as_ref() };
        inner.take_returned(|_| self.home = self.home.wrapping_add(1));
        self.home == self.slots && Arc::get_mut(&mut self.guard).is_some()
    }

    /// How many of its slots are detached.
    fn detached(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.inner.as_ref() }.detachments().count()
    }

    /// Frees the block: every slot is home and no attacher is left, as `is_free` found.
    fn free(self) {
        // SAFETY: made from a box, and freed once, since this consumes the orphan. Every slot is home, so none
        // is out or detached, and no attacher exists: so nobody else reaches it, as the type says.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

fn orphans() -> std::sync::MutexGuard<'static, Vec<Orphan>> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many slots of orphans are detached.
pub(crate) fn detached_slots() -> u64 {
    orphans().iter().map(|orphan| orphan.detached() as u64).sum()
}

/// Frees the arenas that may be freed by now. Called where slots may just have come home, or an attacher
/// went.
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
    // Without the lock: memory that was lent may do anything when it is given back.
    for orphan in whole {
        Leaked::Arena.uncount();
        orphan.free();
    }
}
