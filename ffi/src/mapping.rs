//! The memory under arenas and windows: mappings of our own, or memory an engine lends.
//!
//! Registration lives in `memory_region`; nothing here knows of devices.

use core::fmt;
use core::ptr::{self, NonNull};

use doorbell_core::provider::ProviderError;

use crate::errno;

/// Memory that stays where it is and belongs to nobody else: what may be lent to a device.
///
/// # Safety
/// From the moment it is handed over until it is dropped by this crate (which may be never,
/// where a device will not let go):
///
/// 1. [`StableMemory::region`] always gives the same region, and all its bytes are mapped,
///    writable and initialised;
/// 2. moving the value does not move the memory, and dropping it is what frees it;
/// 3. nobody reads or writes the region, through any pointer or mapping, in this process or
///    another, other than through what the adoption returned;
/// 4. no part of it is adopted twice;
/// 5. a child made by `fork(2)` cannot make it change place (`MADV_DONTFORK`, or a kernel that
///    copies pinned pages at once: 5.12 or newer).
pub unsafe trait StableMemory: Send + Sync + 'static {
    /// Where it begins, and how many bytes it has.
    fn region(&self) -> (NonNull<u8>, usize);
}

/// A region of memory with what keeps it alive.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

enum Owner {
    /// Mapped by us: this many bytes, to be unmapped.
    Anonymous(usize),
    /// Lent to us; held for its drop alone.
    Adopted { _memory: Box<dyn StableMemory> },
}

// SAFETY: the region is plain bytes that it owns, by its own mapping or by obligation 3 of
// `StableMemory`, whose owner is itself `Send`.
unsafe impl Send for Region {}
// SAFETY: nothing is accessed through `&Region`; its pointer is handed to code with an
// argument of its own.
unsafe impl Sync for Region {}

/// The unit of what is mapped and prefaulted: where pages are larger, a multiple of too little
/// is rounded up by the kernel, and touching more often is harmless.
const PAGE_BYTES: usize = 4096;

/// From this size on huge pages are asked for.
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Region {
    /// Maps zeroed memory, private to this process, kept from children made by `fork(2)`, and
    /// already in place: the first touch of a page never happens on the data path.
    ///
    /// # Errors
    /// The size is zero or overflows, or the system has no memory.
    pub(crate) fn anonymous(bytes: usize) -> Result<Self, ProviderError> {
        let invalid = ProviderError {
            call: "mmap",
            errno: libc::EINVAL,
        };
        if bytes == 0 {
            return Err(invalid);
        }
        let mapped = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(invalid)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory
        // that exists (mmap(2)).
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(ProviderError {
                call: "mmap",
                errno: errno::last(),
            });
        }
        let base = errno::from_pointer("mmap", address.cast::<u8>())?;
        let region = Self {
            base,
            bytes,
            owner: Owner::Anonymous(mapped),
        };
        if mapped >= HUGE_PAGE_BYTES {
            // Advice only: without huge pages there are small ones.
            // SAFETY: the range is the mapping just made (madvise(2)).
            unsafe { libc::madvise(address, mapped, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: as above; the mapping holds nothing a child could expect (madvise(2)).
        let status = unsafe { libc::madvise(address, mapped, libc::MADV_DONTFORK) };
        errno::from_minus_one("madvise(MADV_DONTFORK)", status)?;
        for offset in (0..mapped).step_by(PAGE_BYTES) {
            // SAFETY: the offset lies within the mapping.
            let page = unsafe { base.add(offset) };
            // SAFETY: mapped writable, and nobody else knows the address yet. Volatile, since
            // the fault is the purpose.
            unsafe { page.write_volatile(0) };
        }
        Ok(region)
    }

    /// Takes lent memory.
    ///
    /// # Errors
    /// It is empty, or larger than any object can be.
    pub(crate) fn adopted(memory: impl StableMemory) -> Result<Self, ProviderError> {
        let memory: Box<dyn StableMemory> = Box::new(memory);
        let (base, bytes) = memory.region();
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(ProviderError {
                call: "adopt",
                errno: libc::EINVAL,
            });
        }
        Ok(Self {
            base,
            bytes,
            owner: Owner::Adopted { _memory: memory },
        })
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Owner::Anonymous(mapped) = self.owner {
            // SAFETY: exactly the mapping made in `anonymous`; whoever drops the region has shown
            // that neither a device nor a reference uses it any more (munmap(2)). It cannot fail
            // on a mapping that exists.
            unsafe { libc::munmap(self.base.as_ptr().cast(), mapped) };
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.base, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Region, StableMemory};
    use core::ptr::NonNull;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert_eq!(Region::anonymous(0).unwrap_err().errno, libc::EINVAL);
        assert_eq!(Region::anonymous(usize::MAX).unwrap_err().errno, libc::EINVAL);
        assert_eq!(Region::anonymous(1 << 60).unwrap_err().errno, libc::ENOMEM);
    }

    #[test]
    fn a_mapping_is_zeroed_and_writable() {
        let region = Region::anonymous(3 << 20).unwrap();
        assert_eq!(region.bytes(), 3 << 20);
        // SAFETY: within the mapping.
        let last = unsafe { region.base().add(region.bytes() - 1) };
        // SAFETY: mapped, and ours alone.
        assert_eq!(unsafe { last.read() }, 0);
        // SAFETY: as above.
        unsafe { last.write(7) };
    }

    struct Lent(NonNull<u8>, usize, Arc<AtomicU32>);
    // SAFETY: leaked bytes that nobody else has; see the test.
    unsafe impl Send for Lent {}
    // SAFETY: as above.
    unsafe impl Sync for Lent {}
    // SAFETY: the bytes are leaked for the test, so they stay.
    unsafe impl StableMemory for Lent {
        fn region(&self) -> (NonNull<u8>, usize) {
            (self.0, self.1)
        }
    }
    impl Drop for Lent {
        fn drop(&mut self) {
            self.2.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn lent_memory_is_given_back_once() {
        let drops = Arc::new(AtomicU32::new(0));
        let memory = NonNull::from(Box::leak(Box::new([0_u8; 64]))).cast();
        let region = Region::adopted(Lent(memory, 64, Arc::clone(&drops))).unwrap();
        assert_eq!((region.base(), region.bytes()), (memory, 64));
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(region);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        assert!(Region::adopted(Lent(memory, 0, Arc::clone(&drops))).is_err());
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    }
}
