//! Arenas that were dropped while slots of theirs were out, and are freed once those came home.
//!
//! A queue pair that ends later than the arena under it, as one does that is destroyed on another
//! thread, so leaves nothing behind. What never comes home stays where it is.

use core::mem;
use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::arena::ArenaInner;
use crate::leak::Leaked;

/// The block of an arena whose owner is gone.
pub(crate) struct Orphan {
    inner: NonNull<ArenaInner>,
    /// How many of its slots are home, and how many there are.
    home: usize,
    slots: usize,
}

// SAFETY: whoever has the orphan is the block's owner; slots on other threads reach it by its
// lock-free list and its constants alone.
unsafe impl Send for Orphan {}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

impl Orphan {
    /// Takes over an arena's block, of whose slots so many are home.
    ///
    /// # Safety
    /// The block was made from a box, nobody else frees it or takes from its list, and `home`
    /// of its `slots` slots have no value and are neither detached nor on that list.
    pub(crate) const unsafe fn new(inner: NonNull<ArenaInner>, home: usize, slots: usize) -> Self {
        Self { inner, home, slots }
    }

    /// Frees it, or keeps it as a counted leak until its slots are home.
    pub(crate) fn settle(mut self) {
        if self.is_whole() {
            self.free();
        } else {
            Leaked::Arena.count();
            orphans().push(self);
        }
    }

    /// Whether every slot is home.
    fn is_whole(&mut self) -> bool {
        // SAFETY: the block is freed in `free` alone, which consumes the orphan.
        let inner = unsafe { self.inner.as_ref() };
        inner.take_returned(|_| self.home = self.home.wrapping_add(1));
        self.home == self.slots
    }

    /// Frees the block: every slot is home.
    fn free(self) {
        // SAFETY: made from a box. Every slot is home, so no `Slot` exists that points to it, and
        // none is detached; a thread that put the last one on the list touches nothing after its
        // release, which the acquire of `take_returned` paired with (`ArenaInner::send_home`).
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

fn orphans() -> std::sync::MutexGuard<'static, Vec<Orphan>> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees the arenas whose slots are all home by now. Called where slots may just have come home.
pub(crate) fn reclaim() {
    let mut whole = Vec::new();
    {
        let mut waiting = orphans();
        for mut orphan in mem::take(&mut *waiting) {
            if orphan.is_whole() {
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
