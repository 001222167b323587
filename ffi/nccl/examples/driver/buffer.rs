//! Host memory of a rank.

use core::ffi::c_void;
use core::ptr::{self, NonNull};

/// A mapping of its own.
pub(crate) struct Buffer {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain bytes.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Self {
        let length = bytes.max(1);
        let (read, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new private mapping touches no memory that exists (mmap(2)).
        let address = unsafe { libc::mmap(ptr::null_mut(), length, read, private, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "no memory");
        Self {
            base: NonNull::new(address.cast()).unwrap_or(NonNull::dangling()),
            bytes: length,
        }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        self.base.as_ptr().wrapping_add(offset).cast()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of it that no request has now.
    pub(crate) fn slice(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: within the mapping, as checked.
        let start = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: mapped, initialised, and lent by the exclusive borrow; no request has it, by the caller's word.
        unsafe { core::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Fills bytes with a pattern of this seed.
    pub(crate) fn fill(&mut self, offset: usize, bytes: usize, seed: u32) {
        for (place, byte) in self.slice(offset, bytes).iter_mut().enumerate() {
            *byte = pattern(seed, place);
        }
    }

    /// Whether bytes are the pattern of this seed; the first that is not.
    pub(crate) fn check(&mut self, offset: usize, bytes: usize, seed: u32) -> Result<(), String> {
        let mut slice = self.slice(offset, bytes).iter().enumerate();
        match slice.find(|(place, byte)| **byte != pattern(seed, *place)) {
            None => Ok(()),
            Some((place, byte)) => Err(format!(
                "byte {place} of {bytes} is {byte:#04x}, and {:#04x} was sent",
                pattern(seed, place)
            )),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped (munmap(2)).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn pattern(seed: u32, place: usize) -> u8 {
    let place = u32::try_from(place).unwrap_or(u32::MAX);
    let mixed = (place ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    let [.., high] = mixed.to_le_bytes();
    high
}
