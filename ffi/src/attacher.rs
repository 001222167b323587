//! Attachers: what makes slots of an arena's detached words on other threads.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use doorbell_core::provider::DetachedSlot;

use crate::arena::ArenaInner;
use crate::{Slot, orphan};

/// Makes slots of what was detached from one arena, on any thread.
///
/// It keeps the arena's memory: dropped last, it frees that of an arena that is gone.
pub struct Attacher {
    /// The arena's block, which is not freed while there is a clone of `guard` beside the owner's.
    home: NonNull<ArenaInner>,
    /// There until the drop.
    guard: ManuallyDrop<Arc<()>>,
}

// SAFETY: it reaches the block by its words of detached slots alone, which are atomics, and by what
// never changes; the guard is an `Arc` of nothing.
unsafe impl Send for Attacher {}
// SAFETY: as above.
unsafe impl Sync for Attacher {}

impl Attacher {
    /// Attaches slots of this block.
    ///
    /// # Safety
    /// The block is live, and whoever frees it has found the guard in no other hands before.
    pub(crate) unsafe fn new(home: NonNull<ArenaInner>, guard: &Arc<()>) -> Self {
        Self {
            home,
            guard: ManuallyDrop::new(Arc::clone(guard)),
        }
    }
}

/// Makes a slot of what was detached from this block; `None` where it is not detached now, or
/// another was faster.
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
    // SAFETY: 1. The block is live, and only indices below the number of slots have a word that could be
    // detached. 2. The word was exchanged here, so the value is this caller's alone to make, as
    // `ArenaInner::detachments` says.
    let mut slot = unsafe { Slot::from_parts(home, index) };
    slot.set_length(len_bytes);
    Some(slot)
}

impl doorbell_core::provider::Attacher for Attacher {
    type Slot = Slot;

    #[inline]
    fn attach(&self, slot: DetachedSlot) -> Option<Slot> {
        // SAFETY: the guard, which this has until it is dropped, keeps the block.
        unsafe { attach(self.home, slot) }
    }

    #[inline]
    fn owns(&self, slot: &Slot) -> bool {
        slot.home() == self.home
    }
}

impl Clone for Attacher {
    fn clone(&self) -> Self {
        // SAFETY: the block is live, and its freeing waits for the guard, as for this one.
        unsafe { Self::new(self.home, &self.guard) }
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        // SAFETY: dropped here once; the block is not touched from here on, unless by whoever owns it.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        orphan::reclaim();
    }
}

impl fmt::Debug for Attacher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attacher").finish_non_exhaustive()
    }
}
