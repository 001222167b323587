//! Registered memory: a region, the device's hold on it, and the order in which both let go.

use core::ffi::c_void;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProviderError};
use doorbell_core::{Access, Lkey, Rkey};

use crate::dmabuf::{self, DmabufRange};
use crate::domain::DomainInner;
use crate::errno;
use crate::leak::Leaked;
use crate::mapping::Region;

/// The device's hold on memory, with the protection domain that it belongs to. Its owner ends it by
/// [`Hold::deregister`]: else both stay.
pub(crate) struct Hold {
    mr: NonNull<rdma_sys::ibv_mr>,
    domain: ManuallyDrop<Arc<DomainInner>>,
    lkey: Lkey,
    rkey: Rkey,
}

// SAFETY: libibverbs may be called from any thread (its Documentation/libibverbs.md), and the
// structure is touched by nothing but deregistration.
unsafe impl Send for Hold {}
// SAFETY: through a shared reference only plain fields are read.
unsafe impl Sync for Hold {}

impl Hold {
    /// Registers `bytes` bytes from `address` on, pinned or paged on demand.
    ///
    /// # Errors
    /// The device refused: `EFAULT` if not all of it is mapped with these rights, `ENOMEM` also where the
    /// locked-memory limit is reached.
    ///
    /// # Safety
    /// Until this is deregistered, an access of the device by `access` meets no Rust reference and no memory of anybody
    /// else's. Source: `ibv_reg_mr(3)`.
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
        // SAFETY: (ibv_reg_mr(3)) The domain is live, held by the `Arc`. The kernel looks at the mappings, and the call
        // neither reads nor writes the memory. The caller vouches for what the device does.
        let mr = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), address, bytes, access) };
        let mr = errno::from_pointer("ibv_reg_mr", mr)?;
        // SAFETY: 1. just registered in this domain, and known to nobody else; 2. as the caller vouches.
        Ok(unsafe { Self::of(domain, mr) })
    }

    /// Takes over a registration that a call just made.
    ///
    /// # Safety
    /// 1. It is live, of this domain, and deregistered by nobody else.
    /// 2. Until this is deregistered, an access of the device meets nothing that it must not meet, as for [`Hold::register`].
    pub(crate) unsafe fn of(domain: &Arc<DomainInner>, mr: NonNull<rdma_sys::ibv_mr>) -> Self {
        // SAFETY: a live memory region, whose keys are set before it is returned (ibv_reg_mr(3)).
        let keys = unsafe { mr.as_ref() };
        Self {
            mr,
            domain: ManuallyDrop::new(Arc::clone(domain)),
            lkey: Lkey(keys.lkey),
            rkey: Rkey(keys.rkey),
        }
    }

    /// The protection domain that the memory is registered in.
    pub(crate) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    pub(crate) const fn lkey(&self) -> Lkey {
        self.lkey
    }

    pub(crate) const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Deregisters, and returns the domain, which this held.
    ///
    /// # Errors
    /// The device refused, and keeps its hold: the memory must stay, and the domain with it. It may be asked again.
    ///
    /// # Safety
    /// After it returned `Ok` the value is not used.
    #[doc(alias = "ibv_dereg_mr")]
    pub(crate) unsafe fn deregister(&mut self) -> Result<Arc<DomainInner>, ProviderError> {
        // SAFETY: registered, and deregistered nowhere else (ibv_dereg_mr(3)). A call that failed left it as it was.
        let status = unsafe { rdma_sys::ibv_dereg_mr(self.mr.as_ptr()) };
        errno::from_value("ibv_dereg_mr", status)?;
        // SAFETY: taken here once, since the caller does not use the value afterwards.
        Ok(unsafe { ManuallyDrop::take(&mut self.domain) })
    }

    /// Deregisters. If the device refuses, the hold stays for good, and is counted.
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

/// A registered region. Dropping it deregisters, then lets go of the memory. If the device refuses, both are leaked with the protection
/// domain they belong to, and counted.
pub(crate) struct MemoryRegion {
    domain: DomainId,
    lkey: Lkey,
    rkey: Rkey,
    by: By,
    /// Each registration of the memory has a clone. The last to let go of it frees it.
    region: ManuallyDrop<Arc<Region>>,
}

/// The registration of a region.
enum By {
    /// A registration of its own.
    Own(Hold),
    /// One that others use, too: dropping this ends the use of it.
    Shared { _use: Box<dyn Send + Sync> },
    /// None any more.
    Over,
}

impl MemoryRegion {
    /// The protection domain that it is registered in.
    pub(crate) const fn domain(&self) -> DomainId {
        self.domain
    }

    /// Registers the whole region.
    ///
    /// # Errors
    /// The device refused: `ENOMEM` also where the locked-memory limit is reached.
    pub(crate) fn register(
        domain: &Arc<DomainInner>,
        region: Arc<Region>,
        access: Access,
    ) -> Result<Self, ProviderError> {
        let address = region.base().as_ptr();
        let hold = match region.as_dmabuf() {
            // SAFETY: The region is mapped until its last clone is dropped, and this one is dropped after deregistration only. An
            // access of the device by `access` meets no Rust reference: arenas, whose region nobody else has, hand out slots, and
            // windows none.
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
                // SAFETY: The range is a part of a buffer that was handed to this process to be shared. A process that has the
                // descriptor may have it written at any time, so that no reference to such memory may rely on its bytes. The code that maps
                // it has that obligation, and nothing here maps it.
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

    /// A use of a registration of the whole region that others may use, too. Dropping it drops `by` first, then lets go of the
    /// memory.
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

    /// Deregisters. The memory is kept until the drop. A use of a shared registration, which gives peers no right, ends only then.
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

    /// The region, if nobody else has it.
    pub(crate) fn region_mut(&mut self) -> Option<&mut Region> {
        Arc::get_mut(&mut self.region)
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
        // SAFETY: dropped once; the device has let go of it, or has it by a registration that outlives its uses.
        unsafe { ManuallyDrop::drop(&mut self.region) };
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({:?}, {})", &*self.region, self.lkey)
    }
}
