//! A slot: an owned, unclonable piece of an arena's registered memory.
//!
//! The holder of the value owns the bytes. So no reference to them exists while a device may touch them, since
//! posting moves the value into the in-flight table.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

use doorbell_core::provider::{DetachedSlot, DomainId};

use crate::arena::ArenaInner;

/// An owned piece of registered memory, from an [`Arena`](crate::Arena).
///
/// Dropping it sends it home from any thread, without a lock.
///
/// A request of ranges of windows gives back slots without bytes. Each keeps a window registered until it is dropped. Dropping the last
/// of a window that is gone deregisters the window, which is a system call (`ibv_dereg_mr(3)`).
///
/// It cannot be cloned:
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
/// nor can bytes borrowed from it outlive its being posted:
/// ```compile_fail,E0505
/// # use doorbell_core::provider::{ReceiveBatch as _, ReceiveQueue as _, Slot as _};
/// # fn f(receive: &mut doorbell_ffi::ReceiveQueue, mut slot: doorbell_ffi::Slot) {
/// let bytes = slot.buffer_mut();
/// receive.stage().push([slot]).ok();
/// bytes[0] = 1;
/// # }
/// ```
pub struct Slot {
    /// The arena it belongs to, whose inner block lives at least as long as any slot is out. Or the block of a window, of which it
    /// has a count.
    home: NonNull<ArenaInner>,
    /// Which of the arena's slots it is: below their number. Its bytes are this value's own. 0 if it is of a window, and has none.
    index: u32,
    /// How many bytes are meant; at most the capacity.
    len: u32,
}

// It is moved for every message: two words, and none more where it may be absent.
const _: () = assert!(size_of::<Slot>() == 16 && size_of::<Option<Slot>>() == 16);

// SAFETY: the value owns its bytes, and sends its index home by a lock-free list made for any
// thread; what else it reads of the arena never changes, or is an atomic. The count of a window's block may be given up on any
// thread, since the block is `Send` and `Sync`.
unsafe impl Send for Slot {}
// SAFETY: through `&Slot` bytes and the constants of the block can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    /// Makes a slot without bytes, which keeps the registration of a window. Each is a value of its own.
    #[inline]
    pub(crate) fn of_window(block: &Arc<ArenaInner>) -> Self {
        let block = Arc::into_raw(Arc::clone(block));
        Self {
            // SAFETY: it leads to a value (`Arc::into_raw`).
            home: unsafe { NonNull::new_unchecked(block.cast_mut()) },
            index: 0,
            len: 0,
        }
    }

    /// Makes the one value that stands for a slot of an arena. The slots of windows are made by [`Slot::of_window`].
    ///
    /// # Safety
    /// 1. `home` is the inner block of a live arena and `index` below the number of its slots.
    /// 2. No other value stands for that slot, no device has it, and it is neither on a list of the arena nor
    ///    detached.
    #[inline]
    pub(crate) const unsafe fn from_parts(home: NonNull<ArenaInner>, index: u32) -> Self {
        Self { home, index, len: 0 }
    }

    /// Takes it apart without sending it home; says which it is.
    #[inline]
    pub(crate) fn into_index(self) -> u32 {
        ManuallyDrop::new(self).index
    }

    #[inline]
    pub(crate) const fn home(&self) -> NonNull<ArenaInner> {
        self.home
    }

    /// A scatter or gather element over its first `length` bytes.
    #[inline]
    pub(crate) fn element(&self, length: u32) -> rdma_sys::ibv_sge {
        rdma_sys::ibv_sge {
            addr: self.start().as_ptr().expose_provenance() as u64,
            length,
            lkey: self.inner().lkey(),
        }
    }

    /// How many bytes are meant.
    #[inline]
    pub(crate) const fn length(&self) -> u32 {
        self.len
    }

    /// Sets how many bytes are meant, cut to the capacity.
    #[inline]
    pub(crate) fn set_length(&mut self, bytes: u32) {
        self.len = bytes.min(self.capacity());
    }

    /// How many bytes it holds.
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
        // SAFETY: the arena's inner block is not freed while any of its slots is out (`Arena`'s
        // drop), and this one is out as long as the value exists. If the block is a window's, the value has a count of it.
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
        // `StableMemory`), and `len` is at most their number, which is 0 of a window's. Nobody writes to them while this value is held: it
        // would have had to be moved into a queue.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len as usize) }
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `payload`; the exclusive borrow of the one value for the slot makes it
        // the only reference.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.capacity() as usize) }
    }

    #[inline]
    fn detach(self) -> DetachedSlot {
        let slot = ManuallyDrop::new(self);
        // Once the word says that the slot is detached, the arena's owner may attach it, take it
        // home and free the block: from there on nothing is held but the one word.
        let (index, len_bytes) = (slot.index, slot.len);
        let Some(word) = slot.inner().detachments().word(index) else {
            // It is a window's, since an arena has a word for each index. 0 attaches nothing, so the count is given up.
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
    // Inlined down to a call that takes the words: where a slot goes on its way it need not have
    // an address, and what is never done there costs nothing.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the block lives until this slot is home, and a window's until its count is given up; the
        // value is being dropped, so it is sent home once.
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
