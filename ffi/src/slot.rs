//! A slot: an owned, unclonable piece of an arena's registered memory.
//!
//! The holder of the value owns the bytes. Posting moves the value into the in-flight table, so no reference to the bytes
//! exists while a device may touch them.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

use doorbell_core::provider::{DetachedSlot, DomainId};

use crate::arena::ArenaInner;

/// An owned piece of registered memory, from an [`Arena`](crate::Arena).
///
/// Dropping it on any thread returns it to its arena, without a lock.
///
/// A request of window ranges gives back slots without bytes. Each keeps a window registered until it is dropped. If the
/// window itself is gone, dropping its last slot deregisters it, which is a system call (`ibv_dereg_mr(3)`).
///
/// A slot cannot be cloned:
/// ```compile_fail,E0599
/// # fn f(slot: doorbell_ffi::Slot) {
/// let twin = slot.clone();
/// # }
/// ```
/// nor used after it was posted:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::{Operation, PostFlags, SendBatch as _, SendQueue as _, Slot as _};
/// # fn f(send: &mut doorbell_ffi::SendQueue, slot: doorbell_ffi::Slot) {
/// let mut batch = send.stage();
/// batch.push(Operation::Send, [slot], PostFlags::SIGNALED).ok();
/// slot.payload();
/// # }
/// ```
/// nor used after it was detached:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::Slot as _;
/// # fn f(slot: doorbell_ffi::Slot) {
/// let detached = slot.detach();
/// slot.payload();
/// # }
/// ```
/// nor can bytes borrowed from it be used after it was posted:
/// ```compile_fail,E0505
/// # use doorbell_core::provider::{ReceiveBatch as _, ReceiveQueue as _, Slot as _};
/// # fn f(receive: &mut doorbell_ffi::ReceiveQueue, mut slot: doorbell_ffi::Slot) {
/// let bytes = slot.buffer_mut();
/// receive.stage().push([slot]).ok();
/// bytes[0] = 1;
/// # }
/// ```
pub struct Slot {
    /// The block of its arena, which lives at least as long as any slot is out. Or the block of a window, of which the slot
    /// has a count.
    home: NonNull<ArenaInner>,
    /// The index of the slot, below the number of the arena's slots. This value owns the bytes of that slot. For a window it
    /// is 0, and there are no bytes.
    index: u32,
    /// The length of the payload in bytes, at most the capacity.
    len: u32,
}

// A slot is moved for every message, so it has only two words, and an `Option` of it has no more.
const _: () = assert!(size_of::<Slot>() == 16 && size_of::<Option<Slot>>() == 16);

// SAFETY: the value owns its bytes, and returns its index by a lock-free list made for any thread. Everything else that it
// reads of the arena is constant or atomic. The count of a window's block may be given up on any thread, since the block is
// `Send` and `Sync`.
unsafe impl Send for Slot {}
// SAFETY: `&Slot` only allows to read the bytes and the constants of the block.
unsafe impl Sync for Slot {}

impl Slot {
    /// Makes a slot without bytes, which keeps the registration of a window. There may be any number of them.
    #[inline]
    pub(crate) fn of_window(block: &Arc<ArenaInner>) -> Self {
        let block = Arc::into_raw(Arc::clone(block));
        Self {
            // SAFETY: it points to a value (`Arc::into_raw`), so it is not null.
            home: unsafe { NonNull::new_unchecked(block.cast_mut()) },
            index: 0,
            len: 0,
        }
    }

    /// Makes the one value that stands for a slot of an arena. [`Slot::of_window`] makes the slots of windows.
    ///
    /// # Safety
    /// 1. `home` is the inner block of a live arena and `index` below the number of its slots.
    /// 2. No other value stands for that slot, no device has it, and it is neither on a list of the arena nor
    ///    detached.
    #[inline]
    pub(crate) const unsafe fn from_parts(home: NonNull<ArenaInner>, index: u32) -> Self {
        Self { home, index, len: 0 }
    }

    /// Gives up the value without returning the slot to its arena. Returns the index of the slot.
    #[inline]
    pub(crate) fn into_index(self) -> u32 {
        ManuallyDrop::new(self).index
    }

    #[inline]
    pub(crate) const fn home(&self) -> NonNull<ArenaInner> {
        self.home
    }

    /// A scatter or gather element for the first `length` bytes.
    #[inline]
    pub(crate) fn element(&self, length: u32) -> rdma_sys::ibv_sge {
        rdma_sys::ibv_sge {
            addr: self.start().as_ptr().expose_provenance() as u64,
            length,
            lkey: self.inner().lkey(),
        }
    }

    /// The length of the payload in bytes.
    #[inline]
    pub(crate) const fn length(&self) -> u32 {
        self.len
    }

    /// Sets the length of the payload, at most to the capacity.
    #[inline]
    pub(crate) fn set_length(&mut self, bytes: u32) {
        self.len = bytes.min(self.capacity());
    }

    /// The capacity in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.inner().slot_bytes()
    }

    /// Returns the start of the slot.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the index is below the number of the arena's slots (`from_parts`), or 0 if there are no bytes.
        unsafe { self.inner().start_of(self.index) }
    }

    #[inline]
    fn inner(&self) -> &ArenaInner {
        // SAFETY: the block of an arena is not freed while any of its slots is out (`Arena`'s drop), and this one is out as
        // long as the value exists. For the block of a window, the value has a count of it.
        unsafe { self.home.as_ref() }
    }
}

impl doorbell_core::provider::Slot for Slot {
    #[inline]
    fn domain(&self) -> DomainId {
        self.inner().domain()
    }

    #[inline]
    fn index(&self) -> u32 {
        self.index
    }

    #[inline]
    fn capacity_bytes(&self) -> usize {
        self.capacity() as usize
    }

    #[inline]
    fn len_bytes(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn set_len_bytes(&mut self, bytes: usize) {
        self.set_length(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    #[inline]
    fn payload(&self) -> &[u8] {
        // SAFETY: The slot's bytes are mapped and initialised (a zeroed mapping, or obligation 1 of
        // `StableMemory`), and `len` is at most their number, which is 0 for a window. Nothing writes to them while this value is
        // held, since a device only writes after the value was moved into a queue.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len as usize) }
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `payload`. The value is the only one for the slot, so its exclusive borrow makes this the only
        // reference.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.capacity() as usize) }
    }

    #[inline]
    fn detach(self) -> DetachedSlot {
        let slot = ManuallyDrop::new(self);
        // Once the word states that the slot is detached, the arena's owner may attach it, drop it and free the block. So
        // from then on only the one word is used.
        let (index, len_bytes) = (slot.index, slot.len);
        let Some(word) = slot.inner().detachments().word(index) else {
            // The slot is a window's, since an arena has a word for each index. The tag 0 attaches nothing, so the count is given
            // up.
            drop(ManuallyDrop::into_inner(slot));
            return DetachedSlot {
                index,
                len_bytes,
                tag: 0,
            };
        };
        DetachedSlot {
            index,
            len_bytes,
            tag: word.detach(),
        }
    }
}

impl Drop for Slot {
    // Inlined to a call that takes both words. So a slot that is moved on needs no address, and the drop costs nothing on
    // paths that do not drop.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the block lives until this slot has returned, and a window's until its count is given up. The value is
        // dropped, so it returns once.
        unsafe { ArenaInner::send_home(self.home, self.index) };
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Slot({:p}, {} of {} bytes)",
            self.start(),
            self.len,
            self.capacity()
        )
    }
}
