//! Attachers: they make slots of an arena's detached words, on other threads.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use doorbell_core::provider::DetachedSlot;

use crate::arena::ArenaInner;
use crate::{Slot, orphan};

/// Makes slots of the detached slots of one arena, on any thread.
///
/// An attacher keeps the memory of its arena. If the arena is gone and its slots have returned, dropping the last attacher
/// frees the memory.
pub struct Attacher {
    /// The arena's block, which is not freed while a clone of `guard` exists besides the owner's.
    home: NonNull<ArenaInner>,
    /// Present until the drop.
    guard: ManuallyDrop<Arc<()>>,
}

// SAFETY: of the block it reaches only the words of detached slots, which are atomics, and fields that never
// change; the guard is an `Arc` of nothing.
unsafe impl Send for Attacher {}
// SAFETY: as above.
unsafe impl Sync for Attacher {}

impl Attacher {
    /// Attaches slots of this block.
    ///
    /// # Safety
    /// The block is live, and its owner frees it only after it has found that nothing else holds the guard.
    pub(crate) unsafe fn new(home: NonNull<ArenaInner>, guard: &Arc<()>) -> Self {
        Self {
            home,
            guard: ManuallyDrop::new(Arc::clone(guard)),
        }
    }
}

/// Makes a slot of one that was detached from this block. Returns `None` if it is not detached now, or if another caller
/// was faster.
///
/// # Safety
/// The block is live until this returns.
#[inline]
pub(crate) unsafe fn attach(home: NonNull<ArenaInner>, slot: DetachedSlot) -> Option<Slot> {
    let DetachedSlot {
        index,
        len_bytes,
        tag,
    } = slot;
    // SAFETY: live, as the caller vouches.
    let inner = unsafe { home.as_ref() };
    if !inner.detachments().attach(index, tag) {
        return None;
    }
    // SAFETY: 1. The block is live, and only an index below the number of slots has a word that can be
    // detached. 2. The word was exchanged here, so only this caller may make the value, as
    // `ArenaInner::detachments` states.
    let mut slot = unsafe { Slot::from_parts(home, index) };
    slot.set_length(len_bytes);
    Some(slot)
}

impl doorbell_core::provider::Attacher for Attacher {
    type Slot = Slot;

    #[inline]
    fn attach(&self, slot: DetachedSlot) -> Option<Slot> {
        // SAFETY: the attacher has the guard until it is dropped, and the guard keeps the block.
        unsafe { attach(self.home, slot) }
    }

    #[inline]
    fn owns(&self, slot: &Slot) -> bool {
        slot.home() == self.home
    }
}

impl Clone for Attacher {
    fn clone(&self) -> Self {
        // SAFETY: the block is live, and it is not freed while a clone of the guard exists, as for this attacher.
        unsafe { Self::new(self.home, &self.guard) }
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        // SAFETY: dropped here once; from here on only the owner touches the block.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        orphan::reclaim();
    }
}

impl fmt::Debug for Attacher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attacher").finish_non_exhaustive()
    }
}
