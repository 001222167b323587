//! The memory under arenas and windows: mappings of this crate, memory that callers hand over or lend, or memory of
//! another device.
//!
//! The module `memory_region` registers memory, and `placement` makes mappings. Nothing here uses a device.

use core::any::Any;
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Range;
use core::ptr::{self, NonNull};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_core::provider::{MemoryError, Placement, PlacementConfig, ProviderError};

use crate::dmabuf::DmabufRange;
use crate::placement::Mapping;
use crate::{kernel_view, placement};

/// Memory that keeps its address and has no other user, so it may be lent to a device.
///
/// # Safety
/// These obligations hold from the moment the memory is handed over until this crate drops it. If a device does
/// not deregister the memory, this crate never drops it.
///
/// 1. [`StableMemory::region`] always returns the same region. All its bytes are mapped, writable and initialised.
/// 2. Moving the value does not move the memory, and the memory is freed only by dropping the value.
/// 3. Nobody reads or writes the region, through any pointer or mapping, in this process or another, except through the
///    object that the adoption returned. A descriptor of the same memory is not registered either (`register_dmabuf`).
/// 4. No part of the region is adopted twice.
/// 5. A child made by `fork(2)` cannot cause the physical pages to change (`MADV_DONTFORK`, or a kernel that copies pinned
///    pages at the fork: 5.12 or newer).
pub unsafe trait StableMemory: Send + Sync + 'static {
    /// Returns the start of the memory and its size in bytes.
    fn region(&self) -> (NonNull<u8>, usize);

    /// Whether the device pages the memory on demand instead of pinning it, as [`PlacementConfig::on_demand`] describes. Its
    /// pages need not be present then. The memory of an arena cannot be paged on demand.
    fn is_on_demand(&self) -> bool {
        false
    }
}

/// Memory that a caller lends to a device for a while, and may unmap afterwards.
///
/// # Safety
/// These obligations hold from the moment the value is handed over until this crate, or the crate `doorbell`, drops it
/// or gives it back. If it never does, they hold forever. A window of the memory drops it once no request in flight names
/// a range of it and no peer reaches it.
///
/// 1. [`LentMemory::region`] always returns the same region. All its bytes are mapped, readable and initialised. If the
///    right to write is asked for, they are also writable.
/// 2. Moving the value does not move the memory.
/// 3. Nobody unmaps, remaps, protects or discards a part of the region (`munmap(2)`, `mremap(2)`, `mprotect(2)`, `madvise(2)`).
/// 4. Nobody writes to the region, except through the object that it was lent to. If the right to write is asked for,
///    nobody reads it either.
/// 5. A child made by `fork(2)` cannot cause the physical pages to change, as for [`StableMemory`].
/// 6. If [`LentMemory::IS_KEPT`] is set, obligation 3 holds until the region has been given to `RegistrationCache::forget`,
///    even after the value is dropped.
/// 7. The region is given to `RegistrationCache::forget` before shared memory is attached over it by `shmat(2)` with
///    `SHM_REMAP`, and after `madvise(2)` with `MADV_GUARD_INSTALL`. The kernel reports neither.
/// 8. The value is handed only to the registration caches of the crate `doorbell`. They use no registration that is older
///    than the last change of its mapping. The calls of this crate
///    ([`RangeRegistration::lend`](crate::RangeRegistration::lend)) do not check for changes.
///
/// Nothing else is promised for the time after the value is dropped: the memory may be unmapped, and other memory may be
/// mapped there.
pub unsafe trait LentMemory: 'static {
    /// Whether the mapping stays after the memory is given back. The registration is then kept without checks for changes of
    /// the mapping, which saves a system call for each use.
    const IS_KEPT: bool = false;

    /// Returns the start of the memory and its size in bytes.
    fn region(&self) -> (NonNull<u8>, usize);
}

/// A region of memory, with the owner that keeps it alive.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    is_writable: bool,
    placement: Placement,
    /// Frees the memory when it is dropped. The code that drops the region ensures that neither a device nor a reference
    /// uses the memory any more.
    owner: Owner,
}

enum Owner {
    /// Mapped by this crate.
    Mapped { _mapping: Mapping },
    /// A part of another region. The other region is not a part itself, and lives at least as long.
    Part { whole: Arc<Region> },
    /// Handed over by a caller.
    Adopted { _memory: Box<dyn StableMemory> },
    /// Lent by a caller.
    Lent {
        /// Accessed only by [`Region::take_lent`].
        memory: UnsafeCell<Option<Box<dyn Any + Send>>>,
    },
    /// A part of a dma-buf, from this offset on. It is not mapped: its base is a number that is an address only to the device.
    Dmabuf { buffer: OwnedFd, offset: u64 },
}

// SAFETY: the region is plain bytes that it owns: by its mapping, by obligation 3 of `StableMemory`, by obligation 4 of
// `LentMemory`, or by the whole region that a part holds. The owner is itself `Send`. A dma-buf is only a descriptor.
unsafe impl Send for Region {}
// SAFETY: nothing is accessed through `&Region`, but for the cell of lent memory, while no other thread has access to the region
// (`Region::take_lent`). The code that takes its pointer gives its own argument for each access.
unsafe impl Sync for Region {}

impl Region {
    /// Maps zeroed memory that is private to this process and placed as asked. Children made by `fork(2)` do not get it.
    /// Its pages are already present, so the first touch of a page never happens on the data path.
    ///
    /// # Errors
    /// The size is 0 or overflows, or the system has no memory, or none of the required kind.
    pub(crate) fn anonymous(
        bytes: usize,
        asked: &PlacementConfig,
        device_node: Option<u16>,
    ) -> Result<Self, MemoryError> {
        let (mapping, placement) = placement::place(bytes, asked, device_node)?;
        Ok(Self {
            base: mapping.base(),
            bytes,
            is_writable: true,
            placement,
            owner: Owner::Mapped { _mapping: mapping },
        })
    }

    /// Takes memory that belongs to this crate from now on.
    ///
    /// # Errors
    /// The memory is empty, or larger than any object can be.
    pub(crate) fn adopted(memory: impl StableMemory) -> Result<Self, ProviderError> {
        let memory: Box<dyn StableMemory> = Box::new(memory);
        let (base, bytes) = memory.region();
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(ProviderError {
                call: "adopt",
                errno: libc::EINVAL,
            });
        }
        let mut placement = Placement::unplaced(bytes, bytes);
        let view = kernel_view::look(base.addr().get(), bytes);
        placement.seen = view.map(|view| view.seen);
        placement.asked.on_demand = memory.is_on_demand();
        Ok(Self {
            base,
            bytes,
            is_writable: true,
            placement,
            owner: Owner::Adopted { _memory: memory },
        })
    }

    /// Takes lent memory, only for reading unless `is_writable` is set.
    pub(crate) fn lent(memory: impl LentMemory + Send, is_writable: bool) -> Self {
        let (base, bytes) = memory.region();
        Self {
            base,
            bytes,
            is_writable,
            placement: Placement::unplaced(bytes, bytes),
            owner: Owner::Lent {
                memory: UnsafeCell::new(Some(Box::new(memory))),
            },
        }
    }

    /// Takes a part of a dma-buf, which requests address from `iova` on. Returns `None` if that is 0.
    pub(crate) fn dmabuf(buffer: OwnedFd, DmabufRange { offset, bytes, iova }: DmabufRange) -> Option<Self> {
        let address = usize::try_from(iova).ok()?;
        Some(Self {
            base: NonNull::new(ptr::without_provenance_mut(address))?,
            bytes,
            is_writable: true,
            placement: Placement::unplaced(bytes, bytes),
            owner: Owner::Dmabuf { buffer, offset },
        })
    }

    /// Returns the dma-buf of the region and the offset there, or `None` for mapped memory.
    pub(crate) fn as_dmabuf(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.owner {
            Owner::Dmabuf { buffer, offset } => Some((buffer.as_fd(), *offset)),
            Owner::Part { whole } => {
                let (buffer, offset) = whole.as_dmabuf()?;
                let start = self.base.addr().get().checked_sub(whole.base.addr().get())?;
                Some((buffer, offset.checked_add(start as u64)?))
            }
            Owner::Mapped { .. } | Owner::Adopted { .. } | Owner::Lent { .. } => None,
        }
    }

    /// Takes lent memory out. The caller next drops the region, and then gives the memory back. Returns `None` if the memory
    /// is not of this type.
    ///
    /// # Safety
    /// During the call, no other thread has access to the region.
    pub(crate) unsafe fn take_lent<M: 'static>(&self) -> Option<Box<M>> {
        match &self.owner {
            Owner::Lent { memory } => {
                // SAFETY: nothing else accesses the cell during the call, as the caller vouches.
                let memory = unsafe { &mut *memory.get() };
                memory.take_if(|memory| memory.is::<M>())?.downcast().ok()
            }
            Owner::Mapped { .. } | Owner::Part { .. } | Owner::Adopted { .. } | Owner::Dmabuf { .. } => None,
        }
    }

    /// Makes a part of a region. Returns `None` if the part is empty or does not lie within the region.
    pub(crate) fn part(whole: &Arc<Self>, part: Range<usize>) -> Option<Self> {
        let bytes = part.end.checked_sub(part.start).filter(|bytes| *bytes > 0)?;
        if part.end > whole.bytes {
            return None;
        }
        // Within the region, as just checked.
        let base = NonNull::new(whole.base.as_ptr().wrapping_add(part.start))?;
        Some(Self {
            base,
            bytes,
            is_writable: whole.is_writable,
            placement: whole.placement,
            owner: Owner::Part {
                // Not a part, even if this one was made from a part: otherwise the chain would grow with each registration of the
                // last part.
                whole: Arc::clone(match &whole.owner {
                    Owner::Part { whole } => whole,
                    Owner::Mapped { .. }
                    | Owner::Adopted { .. }
                    | Owner::Lent { .. }
                    | Owner::Dmabuf { .. } => whole,
                }),
            },
        })
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a device pages the region on demand.
    pub(crate) const fn is_on_demand(&self) -> bool {
        self.placement.asked.on_demand
    }

    /// Whether the region may be written. If not, its mapping may be read-only, and others may read it meanwhile.
    pub(crate) const fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The placement of the region when it was made.
    pub(crate) const fn placement(&self) -> &Placement {
        &self.placement
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
    use doorbell_core::provider::{MemoryError, PlacementConfig, ProviderError};
    use std::sync::Arc;

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for (bytes, errno) in [
            (0, libc::EINVAL),
            (usize::MAX, libc::EINVAL),
            (1 << 60, libc::ENOMEM),
        ] {
            let refused = ProviderError { call: "mmap", errno };
            assert_eq!(
                Region::anonymous(bytes, &PlacementConfig::DEFAULT, None).unwrap_err(),
                MemoryError::Provider(refused)
            );
        }
    }

    #[test]
    fn a_mapping_is_zeroed_and_writable() {
        let region = Region::anonymous(3 << 20, &PlacementConfig::DEFAULT, None).unwrap();
        assert_eq!(region.bytes(), 3 << 20);
        // SAFETY: within the mapping.
        let last = unsafe { region.base().add(region.bytes() - 1) };
        // SAFETY: mapped, and ours alone.
        assert_eq!(unsafe { last.read() }, 0);
        // SAFETY: as above.
        unsafe { last.write(7) };
    }

    #[test]
    fn a_part_of_a_part_holds_the_whole_alone() {
        let mut part = Arc::new(Region::anonymous(4096, &PlacementConfig::DEFAULT, None).unwrap());
        let whole = Arc::downgrade(&part);
        // A chain of so many would overflow the stack as it is dropped.
        for _ in 0..100_000 {
            part = Arc::new(Region::part(&part, 0..part.bytes()).unwrap());
        }
        assert_eq!(whole.strong_count(), 1);
        assert!(Region::part(&part, 8..8).is_none() && Region::part(&part, 8..4097).is_none());
        assert_eq!(Region::part(&part, 8..16).unwrap().bytes(), 8);
        drop(part);
        assert_eq!(whole.strong_count(), 0);
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
