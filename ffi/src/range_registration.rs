//! Registration of a range of addresses that this crate does not own, for use by this host alone.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProviderError};
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Access, Lkey};

use crate::domain::DomainInner;
use crate::leak::Leaked;
use crate::{ProtectionDomain, errno, kernel_view, placement};

/// A range of addresses whose pages are pinned and known to the device. Dropping it deregisters them.
///
/// It does not keep anything mapped. If the range is unmapped, the device goes on to use the pages that were there.
pub struct RangeRegistration {
    mr: NonNull<rdma_sys::ibv_mr>,
    domain: ManuallyDrop<Arc<DomainInner>>,
    lkey: Lkey,
}

// SAFETY: libibverbs may be called from any thread (its Documentation/libibverbs.md), and the structure is touched by
// nothing but deregistration.
unsafe impl Send for RangeRegistration {}
// SAFETY: through a shared reference only plain fields are read.
unsafe impl Sync for RangeRegistration {}

impl ProtectionDomain {
    /// Registers a range of addresses of this process. A peer gets no right.
    ///
    /// # Errors
    /// The access has a right of a peer (`EINVAL`). The device refused: `EFAULT` if not all of the range is mapped with
    /// these rights, `ENOMEM` if the limit on locked memory is reached.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_range(
        &self,
        range: AddressRange,
        access: Access,
    ) -> Result<RangeRegistration, ProviderError> {
        let call = "ibv_reg_mr";
        let invalid = ProviderError {
            call,
            errno: libc::EINVAL,
        };
        if !(Access::LOCAL_WRITE | Access::RELAXED_ORDERING).contains(access) {
            return Err(invalid);
        }
        let access = i32::try_from(access.bits()).map_err(|_| invalid)?;
        let address = core::ptr::without_provenance_mut(range.start());
        let domain = self.inner();
        // SAFETY: (ibv_reg_mr(3)) 1. The domain is live, held by the `Arc`. 2. The kernel looks at the mappings, and
        // nothing here reads or writes the addresses. 3. Without a right of a peer, the device reaches the memory
        // only for a work request that names the lkey, and posting one has an argument of its own.
        let mr = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), address, range.bytes(), access) };
        let mr = errno::from_pointer(call, mr)?;
        // SAFETY: a live memory region, whose keys are set before it is returned (ibv_reg_mr(3)).
        let lkey = Lkey(unsafe { mr.as_ref() }.lkey);
        Ok(RangeRegistration {
            mr,
            domain: ManuallyDrop::new(Arc::clone(domain)),
            lkey,
        })
    }
}

impl RangeRegistration {
    /// The protection domain that it is registered in.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.domain.id()
    }

    /// The key by which work requests of this host name it.
    #[must_use]
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }
}

impl Drop for RangeRegistration {
    #[doc(alias = "ibv_dereg_mr")]
    fn drop(&mut self) {
        // SAFETY: registered by `register_range`, and deregistered nowhere else (ibv_dereg_mr(3)).
        let status = unsafe { rdma_sys::ibv_dereg_mr(self.mr.as_ptr()) };
        if errno::from_value("ibv_dereg_mr", status).is_err() {
            // The device keeps its hold, and the domain has to stay with it. The pages are pinned.
            Leaked::MemoryRegion.count();
            return;
        }
        // SAFETY: dropped here once, after the region that belonged to it.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
    }
}

impl fmt::Debug for RangeRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeRegistration({})", self.lkey)
    }
}

/// Memory that devices have pinned for this process, and the limit on it. Each is `None` if the system does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedMemory {
    /// Bytes that are pinned. Source: `VmPin` of `proc_pid_status(5)`.
    pub pinned_bytes: Option<u64>,
    /// The soft limit `RLIMIT_MEMLOCK`; `None` also if there is no limit. Source: `getrlimit(2)`.
    pub limit_bytes: Option<u64>,
}

/// Looks at the memory that is pinned.
#[must_use]
pub fn pinned_memory() -> PinnedMemory {
    PinnedMemory {
        pinned_bytes: kernel_view::pinned_bytes(),
        limit_bytes: placement::lock_limit(),
    }
}

/// Whether [`MappingWatch`](crate::MappingWatch) reports every change of this range: it is private memory without a
/// file. It reads the list of the process's mappings, which takes about a microsecond for each.
#[must_use]
pub fn is_watchable(range: AddressRange) -> bool {
    kernel_view::is_private_anonymous(range.start(), range.bytes())
}
