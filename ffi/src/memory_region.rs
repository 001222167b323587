//! Registered memory: a region, the device's hold on it, and the order in which both let go.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProviderError};
use doorbell_core::{Access, Lkey, Rkey};

use crate::domain::DomainInner;
use crate::errno;
use crate::leak::Leaked;
use crate::mapping::Region;

/// A registered region. Dropping it deregisters, then frees; where the device refuses, both
/// are leaked with the protection domain they belong to.
pub(crate) struct MemoryRegion {
    mr: NonNull<rdma_sys::ibv_mr>,
    region: ManuallyDrop<Region>,
    domain: ManuallyDrop<Arc<DomainInner>>,
    lkey: Lkey,
    rkey: Rkey,
}

// SAFETY: libibverbs may be called from any thread (its Documentation/libibverbs.md), and the
// structure is touched by nothing but deregistration.
unsafe impl Send for MemoryRegion {}
// SAFETY: through a shared reference only plain fields are read.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The protection domain that it is registered in.
    pub(crate) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    /// Registers the whole region.
    ///
    /// # Errors
    /// The device refused: `ENOMEM` also where the locked-memory limit is reached.
    #[doc(alias = "ibv_reg_mr")]
    pub(crate) fn register(
        domain: &Arc<DomainInner>,
        region: Region,
        access: Access,
    ) -> Result<Self, ProviderError> {
        let invalid = ProviderError {
            call: "ibv_reg_mr",
            errno: libc::EINVAL,
        };
        let access = i32::try_from(access.bits()).map_err(|_| invalid)?;
        let address = region.base().as_ptr().cast();
        // SAFETY: (ibv_reg_mr(3)) 1. The domain is live, held by the `Arc`. 2. The region is mapped until it is
        // dropped, which happens after deregistration only. 3. An access of the device by `access` meets no Rust
        // reference: arenas hand out slots, windows none.
        let mr = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), address, region.bytes(), access) };
        let mr = errno::from_pointer("ibv_reg_mr", mr)?;
        // SAFETY: a live memory region, whose keys are set before it is returned (ibv_reg_mr(3)).
        let keys = unsafe { mr.as_ref() };
        let (lkey, rkey) = (Lkey(keys.lkey), Rkey(keys.rkey));
        Ok(Self {
            mr,
            region: ManuallyDrop::new(region),
            domain: ManuallyDrop::new(Arc::clone(domain)),
            lkey,
            rkey,
        })
    }

    pub(crate) const fn lkey(&self) -> Lkey {
        self.lkey
    }

    pub(crate) const fn rkey(&self) -> Rkey {
        self.rkey
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

impl Drop for MemoryRegion {
    #[doc(alias = "ibv_dereg_mr")]
    fn drop(&mut self) {
        // SAFETY: registered by `register`, and deregistered nowhere else (ibv_dereg_mr(3)).
        let status = unsafe { rdma_sys::ibv_dereg_mr(self.mr.as_ptr()) };
        if errno::from_value("ibv_dereg_mr", status).is_err() {
            // The device keeps its hold: the memory must stay, and the domain with it.
            Leaked::MemoryRegion.count();
            return;
        }
        // SAFETY: dropped here once; the device has let go of it.
        unsafe { ManuallyDrop::drop(&mut self.region) };
        // SAFETY: dropped here once, after the region that belonged to it.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({:?}, {})", &*self.region, self.lkey)
    }
}
