//! Windows: memory a peer may reach at any time, or memory of another device, so no reference to it ever exists.
//!
//! It is copied outside the language, at the rate of `memcpy` ([`access`] says why, and what is guaranteed), and its aligned
//! words are atomics.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

use doorbell_core::provider::{DomainId, OutOfWindow, Placement, RemoteAccess, RevokeError, WindowRange};
use doorbell_core::wire::RemoteWindow;

use crate::arena::ArenaInner;
use crate::mapping::Region;
use crate::memory_region::MemoryRegion;
use crate::{LentMemory, Slot};

pub(crate) mod access;

const WORD_BYTES: usize = size_of::<u64>();

/// Memory a peer may read or write. Dropping it takes the right away, unless requests of this host that name ranges of it are in
/// flight: then the right goes with the last slot that these give back.
pub struct Window {
    /// The start of the memory and its size, as the registration has them: read for each access.
    base: NonNull<u8>,
    bytes: usize,
    /// How many of them are mapped here: all or none.
    bytes_mapped: usize,
    /// How many of those may be written: all or none.
    bytes_writable: usize,
    /// Whether requests of this host may bring data into it.
    is_writable: bool,
    /// The registration. Each range of a request in flight has a count of it.
    block: Arc<ArenaInner>,
    remote: RemoteAccess,
}

// SAFETY: the pointer is that of the registration, which `block` holds: it is followed by code with an argument of its own.
unsafe impl Send for Window {}
// SAFETY: as above; each access through a shared reference is one that others may make meanwhile.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn new(region: MemoryRegion, remote: RemoteAccess) -> Self {
        let memory = region.region();
        let bytes_mapped = match memory.as_dmabuf() {
            None => memory.bytes(),
            Some(_) => 0,
        };
        Self {
            base: memory.base(),
            bytes: memory.bytes(),
            bytes_mapped,
            bytes_writable: if memory.is_writable() { bytes_mapped } else { 0 },
            is_writable: memory.is_writable(),
            block: ArenaInner::of_window(region),
            remote,
        }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        self.block.region().region()
    }

    /// The slot of a request of a range: it keeps the registration.
    #[inline]
    pub(crate) fn hold(&self) -> Slot {
        Slot::of_window(&self.block)
    }

    /// A scatter or gather element over bytes of this window, which they lie in.
    #[inline]
    pub(crate) fn element(range: &WindowRange<'_, Self>) -> rdma_sys::ibv_sge {
        let base = range.window.base;
        // Does not wrap: within the region. The device alone follows it, and the language never.
        let address = base.as_ptr().wrapping_add(range.offset);
        rdma_sys::ibv_sge {
            addr: address.expose_provenance() as u64,
            length: range.bytes,
            lkey: range.window.block.region().lkey().0,
        }
    }

    /// Gives lent memory back.
    ///
    /// # Errors
    /// Requests that name ranges of it are in flight, or slots that they gave back are kept; the memory has another window, is not lent,
    /// or not of this type.
    pub fn into_lent<M: LentMemory>(mut self) -> Result<M, Self> {
        let block = Arc::get_mut(&mut self.block);
        let region = block.and_then(|block| block.region_mut().region_mut());
        match region.and_then(Region::take_lent) {
            Some(memory) => {
                drop(self);
                Ok(*memory)
            }
            None => Err(self),
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `bytes` bytes at `offset`, of the first so many.
    #[inline]
    fn within(&self, offset: usize, bytes: usize, window_bytes: usize) -> Result<NonNull<u8>, OutOfWindow> {
        if offset.checked_add(bytes).is_none_or(|end| end > window_bytes) {
            return Err(OutOfWindow {
                offset,
                bytes,
                window_bytes,
            });
        }
        // SAFETY: the offset is within the region, as just checked: no more bytes are asked for than it has.
        Ok(unsafe { self.base.add(offset) })
    }

    /// The address of `bytes` bytes at `offset`, to be read.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, OutOfWindow> {
        self.within(offset, bytes, self.bytes_mapped)
    }

    /// The aligned word at `offset`, of the first so many bytes.
    #[inline]
    fn word(&self, offset: usize, window_bytes: usize) -> Result<&AtomicU64, OutOfWindow> {
        let word = self.within(offset, WORD_BYTES, window_bytes)?.cast::<u64>();
        if !word.is_aligned() {
            return Err(OutOfWindow {
                offset,
                bytes: WORD_BYTES,
                window_bytes,
            });
        }
        // SAFETY: Inside the window (`within`), mapped as long as it, and aligned. Every access of the language to it is an atomic one
        // of this size (`access`). If the window is read alone, others read as they like, and nobody writes (obligation 4 of `LentMemory`).
        Ok(unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }
}

impl doorbell_core::provider::Window for Window {
    fn domain(&self) -> DomainId {
        self.block.domain()
    }

    #[inline]
    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn is_in_flight(&self) -> bool {
        Arc::strong_count(&self.block) > 1
    }

    fn deregister(&mut self) -> Result<(), RevokeError> {
        let block = Arc::get_mut(&mut self.block).ok_or(RevokeError::InFlight)?;
        block.region_mut().deregister().map_err(RevokeError::Provider)
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn placement(&self) -> Placement {
        *self.region().placement()
    }

    fn remote(&self) -> RemoteWindow {
        let address = self.base.as_ptr().expose_provenance() as u64;
        RemoteWindow::new(address, self.bytes() as u64, self.block.region().rkey()).with_access(self.remote)
    }

    #[inline]
    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        let from = self.at(offset, destination.len())?;
        // The caller saw the end of the peer's turn before; the bytes are read after it.
        fence(Ordering::Acquire);
        // SAFETY: 1. inside the window (`at`), which is mapped as long as it lives, and a slice; 2. no slice lies in a window;
        // 3. the slice is borrowed exclusively.
        unsafe { access::copy(destination.as_mut_ptr(), from.as_ptr(), destination.len()) };
        Ok(())
    }

    #[inline]
    fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow> {
        let to = self.within(offset, source.len(), self.bytes_writable)?;
        // SAFETY: as in `copy_out`; the slice is read, and the window may be written.
        unsafe { access::copy(to.as_ptr(), source.as_ptr(), source.len()) };
        // The caller notifies the peer of its turn afterwards; the bytes are written before it.
        fence(Ordering::Release);
        Ok(())
    }

    #[inline]
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        let from = self.at(offset, 1)?;
        // SAFETY: inside the window (`at`), and mapped as long as it.
        Ok(unsafe { access::load_u8(from.as_ptr()) })
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        // Memory that may lie in a read-only mapping takes relaxed loads alone (`core::sync::atomic`, *Atomic accesses to
        // read-only memory*).
        let word = self.word(offset, self.bytes_mapped)?.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        Ok(word)
    }

    #[inline]
    fn store_u64(&self, offset: usize, word: u64) -> Result<(), OutOfWindow> {
        self.word(offset, self.bytes_writable)?
            .store(word, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64, OutOfWindow> {
        let exchanged = self.word(offset, self.bytes_writable)?.compare_exchange(
            current,
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let (Ok(before) | Err(before)) = exchanged;
        Ok(before)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("region", self.block.region())
            .field("remote", &self.remote)
            .finish()
    }
}
