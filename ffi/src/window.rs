//! Windows: memory a peer may reach at any time, so no reference to it ever exists.
//!
//! It is copied by relaxed atomic accesses, eight bytes at a time where both the address and
//! the length allow. Threads of this process race with each other in loads alone, whose sizes
//! may differ: whatever stores borrows the window exclusively.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use doorbell_core::provider::{OutOfWindow, Placement, RemoteAccess};
use doorbell_core::wire::RemoteWindow;

use crate::memory_region::MemoryRegion;

const WORD_BYTES: usize = size_of::<u64>();

/// Memory a peer may read or write. Dropping it takes the right away.
pub struct Window {
    region: MemoryRegion,
    remote: RemoteAccess,
}

impl Window {
    pub(crate) const fn new(region: MemoryRegion, remote: RemoteAccess) -> Self {
        Self { region, remote }
    }

    fn bytes(&self) -> usize {
        self.region.region().bytes()
    }

    /// The address of `bytes` bytes at `offset`.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, OutOfWindow> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(OutOfWindow {
                offset,
                bytes,
                window_bytes: self.bytes(),
            });
        }
        // SAFETY: the offset is within the region, as just checked.
        Ok(unsafe { self.region.region().base().add(offset) })
    }
}

impl doorbell_core::provider::Window for Window {
    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn placement(&self) -> Placement {
        *self.region.region().placement()
    }

    fn remote(&self) -> RemoteWindow {
        let address = self.region.region().base().as_ptr().expose_provenance() as u64;
        RemoteWindow::new(address, self.bytes() as u64, self.region.rkey()).with_access(self.remote)
    }

    #[inline]
    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        let mut from = self.at(offset, destination.len())?;
        // What the peer's turn ended with was seen before: the bytes are read after it.
        fence(Ordering::Acquire);
        let lead = from.align_offset(WORD_BYTES).min(destination.len());
        let (head, rest) = destination.split_at_mut(lead);
        let mut words = rest.chunks_exact_mut(WORD_BYTES);
        for byte in head {
            from = copy_byte_out(from, byte);
        }
        for chunk in &mut words {
            // SAFETY: inside the window (`at`), mapped as long as it, aligned after the head.
            let word = unsafe { AtomicU64::from_ptr(from.cast().as_ptr()) };
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            // SAFETY: at most one past the end of what `at` checked.
            from = unsafe { from.add(WORD_BYTES) };
        }
        for byte in words.into_remainder() {
            from = copy_byte_out(from, byte);
        }
        Ok(())
    }

    #[inline]
    fn copy_in(&mut self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow> {
        let mut to = self.at(offset, source.len())?;
        let lead = to.align_offset(WORD_BYTES).min(source.len());
        let (head, rest) = source.split_at(lead);
        let words = rest.chunks_exact(WORD_BYTES);
        let tail = words.remainder();
        for byte in head {
            to = copy_byte_in(to, *byte);
        }
        for chunk in words {
            let mut word = [0; WORD_BYTES];
            word.copy_from_slice(chunk);
            // SAFETY: inside the window (`at`), mapped as long as it, aligned after the head.
            let place = unsafe { AtomicU64::from_ptr(to.cast().as_ptr()) };
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            // SAFETY: at most one past the end of what `at` checked.
            to = unsafe { to.add(WORD_BYTES) };
        }
        for byte in tail {
            to = copy_byte_in(to, *byte);
        }
        // What tells the peer that its turn has come is written after the bytes.
        fence(Ordering::Release);
        Ok(())
    }

    #[inline]
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        let from = self.at(offset, 1)?;
        // SAFETY: inside the window (`at`), and mapped as long as it.
        let byte = unsafe { AtomicU8::from_ptr(from.as_ptr()) };
        Ok(byte.load(Ordering::Acquire))
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        let from = self.at(offset, WORD_BYTES)?.cast::<u64>();
        if !from.is_aligned() {
            return Err(OutOfWindow {
                offset,
                bytes: WORD_BYTES,
                window_bytes: self.bytes(),
            });
        }
        // SAFETY: inside the window (`at`), mapped as long as it, and aligned.
        let word = unsafe { AtomicU64::from_ptr(from.as_ptr()) };
        Ok(word.load(Ordering::Acquire))
    }
}

/// Copies one byte out and says where the next one is; `from` is inside a window.
#[inline]
fn copy_byte_out(from: NonNull<u8>, byte: &mut u8) -> NonNull<u8> {
    // SAFETY: the callers stay within what `Window::at` checked.
    let place = unsafe { AtomicU8::from_ptr(from.as_ptr()) };
    *byte = place.load(Ordering::Relaxed);
    // SAFETY: at most one past the end of it.
    unsafe { from.add(1) }
}

/// Copies one byte in and says where the next one is; `to` is inside a window.
#[inline]
fn copy_byte_in(to: NonNull<u8>, byte: u8) -> NonNull<u8> {
    // SAFETY: the callers stay within what `Window::at` checked.
    let place = unsafe { AtomicU8::from_ptr(to.as_ptr()) };
    place.store(byte, Ordering::Relaxed);
    // SAFETY: at most one past the end of it.
    unsafe { to.add(1) }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("region", &self.region)
            .field("remote", &self.remote)
            .finish()
    }
}
