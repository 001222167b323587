//! Registration of a range of addresses that this crate does not own, for use by this host alone; and memory that is lent to it.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProviderError, RemoteAccess};
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Access, Lkey};

use crate::mapping::Region;
use crate::memory_region::{Hold, MemoryRegion};
use crate::{LentMemory, ProtectionDomain, Window, kernel_view, placement};

/// A range of addresses whose pages are pinned and known to the device. Dropping it deregisters them.
///
/// It does not keep anything mapped. If the range is unmapped, the device goes on to use the pages that were there.
pub struct RangeRegistration {
    hold: Hold,
    range: AddressRange,
    access: Access,
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
        // SAFETY: Without a right of a peer, the device reaches the memory only for a work request that names the lkey.
        // Requests of ranges of windows do, and `RangeRegistration::lend` makes these of memory that is lent for it.
        let hold = unsafe { Hold::register(self.inner(), address, range.bytes(), access, false)? };
        Ok(RangeRegistration { hold, range, access })
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

    /// Makes a window of memory that is lent, which no peer reaches. Requests of its ranges use this registration, which is not
    /// deregistered before the last of them is retired and the window is gone. Then `until` is dropped, and then the memory.
    ///
    /// The registration is newer than the last change of the memory's mapping: [`LentMemory`] says who sees to that.
    ///
    /// # Errors
    /// It is the registration of another range. The memory is given back.
    pub fn lend<M: LentMemory + Send>(
        self: Arc<Self>,
        memory: M,
        until: impl Send + Sync + 'static,
    ) -> Result<Window, M> {
        if !self.is_of(&memory) {
            return Err(memory);
        }
        let region = Arc::new(Region::lent(memory, self.is_writable()));
        Ok(self.window(&region, until))
    }

    /// Makes a window by each of several registrations, as [`RangeRegistration::lend`] does by one. The memory is dropped with the last.
    ///
    /// # Errors
    /// There is no registration, or one is of another range or of other rights. The memory is given back.
    pub fn lend_by<M: LentMemory + Send, U: Send + Sync + 'static>(
        uses: Vec<(Arc<Self>, U)>,
        memory: M,
    ) -> Result<Vec<Window>, M> {
        let is_writable = uses.first().map(|(first, _)| first.is_writable());
        let fits = |one: &Self| one.is_of(&memory) && Some(one.is_writable()) == is_writable;
        let Some(is_writable) = is_writable.filter(|_| uses.iter().all(|(one, _)| fits(one))) else {
            return Err(memory);
        };
        let region = Arc::new(Region::lent(memory, is_writable));
        let windows = uses.into_iter().map(|(one, until)| one.window(&region, until));
        Ok(windows.collect())
    }

    const fn is_writable(&self) -> bool {
        self.access.contains(Access::LOCAL_WRITE)
    }

    fn is_of(&self, memory: &impl LentMemory) -> bool {
        let (start, bytes) = memory.region();
        AddressRange::new(start.addr().get(), bytes) == Some(self.range)
    }

    fn window(self: Arc<Self>, region: &Arc<Region>, until: impl Send + Sync + 'static) -> Window {
        let keys = (self.domain(), self.lkey(), self.hold.rkey());
        // The registration is let go of first: its last user deregisters it.
        let by = Box::new((self, until));
        Window::new(
            MemoryRegion::shared(keys, by, Arc::clone(region)),
            RemoteAccess::NONE,
        )
    }
}

impl Drop for RangeRegistration {
    fn drop(&mut self) {
        // If the device refuses, the pages stay pinned.
        // SAFETY: called here once, the value being dropped.
        unsafe { self.hold.give_up() };
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
