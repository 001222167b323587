//! Registered memory: a region, the device's hold on it, and the order in which both end.

use core::ffi::c_void;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProviderError};
use doorbell_core::{Access, Lkey, Rkey};

use crate::dmabuf::{self, DmabufRange};
use crate::domain::DomainInner;
use crate::errno;
use crate::leak::Leaked;
use crate::mapping::Region;

/// The device's hold on memory, with the protection domain that it belongs to. The owner ends the hold with
/// [`Hold::deregister`]. Otherwise both stay.
pub(crate) struct Hold {
    mr: NonNull<rdma_sys::ibv_mr>,
    domain: ManuallyDrop<Arc<DomainInner>>,
    lkey: Lkey,
    rkey: Rkey,
}

// SAFETY: libibverbs may be called from any thread (its Documentation/libibverbs.md), and only deregistration touches the
// structure.
unsafe impl Send for Hold {}
// SAFETY: through a shared reference only plain fields are read.
unsafe impl Sync for Hold {}

impl Hold {
    /// Registers `bytes` bytes from `address` on, pinned or paged on demand.
    ///
    /// # Errors
    /// The device refused: `EFAULT` if not all of the memory is mapped with these rights, `ENOMEM` also if the
    /// limit of locked memory is reached.
    ///
    /// # Safety
    /// Until this is deregistered, the device's accesses under `access` reach no bytes behind a Rust reference, and no
    /// memory of another owner. Source: `ibv_reg_mr(3)`.
    #[doc(alias = "ibv_reg_mr")]
    pub(crate) unsafe fn register(
        domain: &Arc<DomainInner>,
        address: *mut c_void,
        bytes: usize,
        access: Access,
        on_demand: bool,
    ) -> Result<Self, ProviderError> {
        let invalid = ProviderError {
            call: "ibv_reg_mr",
            errno: libc::EINVAL,
        };
        let paging = if on_demand {
            rdma_sys::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0
        } else {
            0
        };
        let access = i32::try_from(access.bits() | paging).map_err(|_| invalid)?;
        // SAFETY: (ibv_reg_mr(3)) The domain is live, held by the `Arc`. The kernel inspects the mappings, and the call
        // neither reads nor writes the memory. The caller vouches for what the device does.
        let mr = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), address, bytes, access) };
        let mr = errno::from_pointer("ibv_reg_mr", mr)?;
        // SAFETY: 1. Just registered in this domain, and known to nothing else. 2. As the caller vouches.
        Ok(unsafe { Self::of(domain, mr) })
    }

    /// Takes over a registration that a call just made.
    ///
    /// # Safety
    /// 1. The registration is live and of this domain, and nothing else deregisters it.
    /// 2. Until this is deregistered, the device's accesses reach no bytes that they must not reach, as for
    ///    [`Hold::register`].
    pub(crate) unsafe fn of(domain: &Arc<DomainInner>, mr: NonNull<rdma_sys::ibv_mr>) -> Self {
        // SAFETY: the memory region is live, and its keys were set before it was returned (ibv_reg_mr(3)).
        let keys = unsafe { mr.as_ref() };
        Self {
            mr,
            domain: ManuallyDrop::new(Arc::clone(domain)),
            lkey: Lkey(keys.lkey),
            rkey: Rkey(keys.rkey),
        }
    }

    /// The protection domain in which the memory is registered.
    pub(crate) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    pub(crate) const fn lkey(&self) -> Lkey {
        self.lkey
    }

    pub(crate) const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Deregisters the memory, and returns the domain.
    ///
    /// # Errors
    /// The device refused, and keeps its hold, so the memory and the domain have to stay. The call may be repeated.
    ///
    /// # Safety
    /// After it returned `Ok` the value is not used.
    #[doc(alias = "ibv_dereg_mr")]
    pub(crate) unsafe fn deregister(&mut self) -> Result<Arc<DomainInner>, ProviderError> {
        // SAFETY: registered, and deregistered only here (ibv_dereg_mr(3)). A failed call changed nothing.
        let status = unsafe { rdma_sys::ibv_dereg_mr(self.mr.as_ptr()) };
        errno::from_value("ibv_dereg_mr", status)?;
        // SAFETY: taken here once, since the caller does not use the value afterwards.
        Ok(unsafe { ManuallyDrop::take(&mut self.domain) })
    }

    /// Deregisters the memory. If the device refuses, it keeps its hold until the process ends, and that is counted.
    ///
    /// # Safety
    /// The value is not used afterwards.
    pub(crate) unsafe fn give_up(&mut self) {
        // SAFETY: as the caller vouches.
        if unsafe { self.deregister() }.is_err() {
            Leaked::MemoryRegion.count();
        }
    }
}

/// A registered region. Dropping it deregisters the memory and then gives it up. If the device refuses, the registration
/// and the memory are leaked, with their protection domain, and that is counted.
pub(crate) struct MemoryRegion {
    domain: DomainId,
    lkey: Lkey,
    rkey: Rkey,
    by: By,
    /// Each registration of the memory has a clone. Dropping the last clone frees the memory.
    region: ManuallyDrop<Arc<Region>>,
}

/// The registration of a region.
enum By {
    /// A registration for this use alone.
    Own(Hold),
    /// A registration that others use as well. Dropping the value ends this use of it.
    Shared { _use: Box<dyn Send + Sync> },
    /// The registration has ended.
    Over,
}

impl MemoryRegion {
    /// The protection domain in which the memory is registered.
    pub(crate) const fn domain(&self) -> DomainId {
        self.domain
    }

    /// Registers the whole region.
    ///
    /// # Errors
    /// The device refused: `ENOMEM` also if the limit of locked memory is reached.
    pub(crate) fn register(
        domain: &Arc<DomainInner>,
        region: Arc<Region>,
        access: Access,
    ) -> Result<Self, ProviderError> {
        let address = region.base().as_ptr();
        let hold = match region.as_dmabuf() {
            // SAFETY: the region is mapped until its last clone is dropped, and this clone is dropped only after
            // deregistration. The device's accesses under `access` reach no bytes behind a Rust reference: arenas, whose
            // region nothing else has, hand out slots, and windows hand out no references.
            None => unsafe {
                Hold::register(
                    domain,
                    address.cast(),
                    region.bytes(),
                    access,
                    region.is_on_demand(),
                )?
            },
            Some((buffer, offset)) => {
                let range = DmabufRange {
                    offset,
                    bytes: region.bytes(),
                    iova: address.addr() as u64,
                };
                // SAFETY: the range is a part of a buffer that was handed to this process to be shared. Any process that has
                // the descriptor may have the buffer written at any time, so no reference to such memory may rely on its
                // bytes. The code that maps the buffer has that obligation, and nothing here maps it.
                unsafe { dmabuf::register(domain, buffer.as_raw_fd(), range, access)? }
            }
        };
        Ok(Self {
            domain: hold.domain(),
            lkey: hold.lkey(),
            rkey: hold.rkey(),
            by: By::Own(hold),
            region: ManuallyDrop::new(region),
        })
    }

    /// Makes a use of a registration of the whole region that others may use as well. Dropping it first drops `by`, and then
    /// gives up the memory.
    pub(crate) fn shared(
        (domain, lkey, rkey): (DomainId, Lkey, Rkey),
        by: Box<dyn Send + Sync>,
        region: Arc<Region>,
    ) -> Self {
        Self {
            domain,
            lkey,
            rkey,
            by: By::Shared { _use: by },
            region: ManuallyDrop::new(region),
        }
    }

    pub(crate) const fn lkey(&self) -> Lkey {
        self.lkey
    }

    pub(crate) const fn rkey(&self) -> Rkey {
        self.rkey
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Deregisters the memory, which is kept until the drop. A use of a shared registration, which gives peers no right, ends only then.
    ///
    /// # Errors
    /// The device refused. Nothing changed.
    pub(crate) fn deregister(&mut self) -> Result<(), ProviderError> {
        let By::Own(hold) = &mut self.by else {
            return Ok(());
        };
        // SAFETY: it is replaced once this returned `Ok`.
        let domain = unsafe { hold.deregister()? };
        self.by = By::Over;
        drop(domain);
        Ok(())
    }

    /// Takes lent memory out, if nothing else has a clone of its region. Watches do not count. Returns `None` if the memory is
    /// not of this type.
    pub(crate) fn take_lent<M: 'static>(&mut self) -> Option<Box<M>> {
        if Arc::strong_count(&self.region) != 1 {
            return None;
        }
        // Pairs with the release with which the last other owner gave up its count.
        fence(Ordering::Acquire);
        // SAFETY: the only clone is borrowed exclusively, and no thread can make another one: a `ReleaseWatch`, which alone has a
        // weak reference, never upgrades it.
        unsafe { self.region.take_lent() }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.deregister().is_err() {
            Leaked::MemoryRegion.count();
            return;
        }
        // The use of a shared registration ends first.
        self.by = By::Over;
        // SAFETY: dropped once. The device has no hold on the memory any more, or its hold is a shared registration, which may outlive its uses.
        unsafe { ManuallyDrop::drop(&mut self.region) };
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({:?}, {})", &*self.region, self.lkey)
    }
}
