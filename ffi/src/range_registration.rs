//! Registration of a range of addresses that this crate does not own, for use by this host alone.

use core::fmt;

use doorbell_core::provider::{DomainId, ProviderError};
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Access, Lkey};

use crate::memory_region::Hold;
use crate::{ProtectionDomain, kernel_view, placement};

/// A range of addresses whose pages are pinned and known to the device. Dropping it deregisters them.
///
/// It does not keep anything mapped. If the range is unmapped, the device goes on to use the pages that were there.
pub struct RangeRegistration {
    hold: Hold,
}

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
        if !(Access::LOCAL_WRITE | Access::RELAXED_ORDERING).contains(access) {
            return Err(ProviderError {
                call: "ibv_reg_mr",
                errno: libc::EINVAL,
            });
        }
        let address = core::ptr::without_provenance_mut(range.start());
        // SAFETY: Without a right of a peer, the device reaches the memory only for a work request that names the lkey,
        // and posting one has an argument of its own.
        let hold = unsafe { Hold::register(self.inner(), address, range.bytes(), access, false)? };
        Ok(RangeRegistration { hold })
    }
}

impl RangeRegistration {
    /// The protection domain that it is registered in.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.hold.domain()
    }

    /// The key by which work requests of this host name it.
    #[must_use]
    pub const fn lkey(&self) -> Lkey {
        self.hold.lkey()
    }
}

impl Drop for RangeRegistration {
    fn drop(&mut self) {
        // If the device refuses, the pages stay pinned.
        // SAFETY: called here once, the value being dropped.
        unsafe { self.hold.deregister(|| {}) };
    }
}

impl fmt::Debug for RangeRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeRegistration({})", self.lkey())
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
