//! Registration of address ranges that this crate does not own, for use only by this host, and windows of lent memory.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProviderError, RemoteAccess};
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Access, Lkey};

use crate::mapping::Region;
use crate::memory_region::{Hold, MemoryRegion};
use crate::{LentMemory, ProtectionDomain, Window, kernel_view, placement};

/// A range of addresses whose pages are pinned and registered with the device. Dropping it deregisters them.
///
/// The registration does not keep the range mapped. If the range is unmapped, the device continues to use the old pages.
pub struct RangeRegistration {
    hold: Hold,
    range: AddressRange,
    access: Access,
}

impl ProtectionDomain {
    /// Registers a range of addresses of this process. Peers get no right.
    ///
    /// # Errors
    /// The access includes a right other than local writing and relaxed ordering (`EINVAL`). The device refused: `EFAULT` if not all of the range is mapped with
    /// these rights, `ENOMEM` if the limit of locked memory is reached.
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
        // SAFETY: peers have no right, so the device reaches the memory only for a work request that names the lkey. Only
        // requests of ranges of windows do so, and `RangeRegistration::lend` makes such windows only of memory that is lent
        // for it.
        let hold = unsafe { Hold::register(self.inner(), address, range.bytes(), access, false)? };
        Ok(RangeRegistration { hold, range, access })
    }
}

impl RangeRegistration {
    /// The protection domain in which the range is registered.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.hold.domain()
    }

    /// The key by which work requests of this host name the range.
    #[must_use]
    pub const fn lkey(&self) -> Lkey {
        self.hold.lkey()
    }

    /// Makes a window of lent memory, which no peer reaches. Requests of its ranges use this registration. It is not
    /// deregistered before the last of those requests is retired and the window is gone. Then `until` is dropped, and then
    /// the memory.
    ///
    /// The registration has to be newer than the last change of the memory's mapping: see the obligations of
    /// [`LentMemory`].
    ///
    /// # Errors
    /// The registration is of another range. The memory is given back.
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

    /// Makes a window for each of several registrations, as [`RangeRegistration::lend`] does for one. The memory is dropped
    /// after the last window and the last of its requests.
    ///
    /// # Errors
    /// There is no registration, one is of another range, or they differ in the right to write. The memory is given back.
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
        // The registration is given up first, and its last user deregisters it.
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
        // SAFETY: called here once, as the value is dropped.
        unsafe { self.hold.give_up() };
    }
}

impl fmt::Debug for RangeRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeRegistration({})", self.lkey())
    }
}

/// Memory that is pinned for this process, and its limit. Each is `None` if the system does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedMemory {
    /// Bytes that are pinned. Source: `VmPin` of `proc_pid_status(5)`.
    pub pinned_bytes: Option<u64>,
    /// The soft limit `RLIMIT_MEMLOCK`. It is `None` also if there is no limit. Source: `getrlimit(2)`.
    pub limit_bytes: Option<u64>,
}

/// Returns how much memory is pinned for this process, and the limit.
#[must_use]
pub fn pinned_memory() -> PinnedMemory {
    PinnedMemory {
        pinned_bytes: kernel_view::pinned_bytes(),
        limit_bytes: placement::lock_limit(),
    }
}

/// Whether [`MappingWatch`](crate::MappingWatch) reports every change of this range, which is so for private memory without
/// a file. Reads the list of the process's mappings, which takes about a microsecond for each.
#[must_use]
pub fn is_watchable(range: AddressRange) -> bool {
    kernel_view::is_private_anonymous(range.start(), range.bytes())
}
