//! The cache and what it hands out.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{DomainId, ProtectionDomain as _};
use doorbell_core::registrations::{AddressRange, Key, Limits};
use doorbell_core::{Access, Lkey};
use doorbell_ffi::{LentMemory, ProtectionDomain, RangeRegistration};

use crate::memory::error::{RegistrationError, RegistrationRefused, UnwatchedError};
use crate::memory::lent::{LentWindow, moved};
use crate::memory::service::Service;
use crate::memory::shared::{Hold, Shared};
use crate::memory::statistics::RegistrationStatistics;

/// Limits of a [`RegistrationCache`].
///
/// At a limit, registrations that nobody uses leave, the least recently used ones first. If all are in use, memory is
/// registered for one use, and no call fails for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCacheConfig {
    /// Maximum number of registrations; default 1,024. Each takes about 110 bytes, at once. A change of watched mappings is
    /// compared with all of them, and so is the last use of each for every one that has to leave.
    pub entries_max: u32,
    /// Maximum bytes of all registrations together; default 1 GiB. Their pages are pinned, and count towards `RLIMIT_MEMLOCK`.
    pub bytes_max: u64,
}

impl Default for RegistrationCacheConfig {
    fn default() -> Self {
        Self {
            entries_max: 1024,
            bytes_max: 1 << 30,
        }
    }
}

type Inner = Shared<Arc<ProtectionDomain>, &'static Service>;
type DomainHold = Hold<Arc<ProtectionDomain>, &'static Service>;

/// A cache of registrations in one protection domain, which are kept after their use. Clones share the cache, on any thread.
///
/// A use of a kept registration takes no lock and makes one system call; without the call if the
/// memory is promised to stay ([`LentMemory::IS_KEPT`]). One use in 524,288 takes the lock, to count the others. Overlapping regions are registered apart.
///
/// Once the last clone is dropped, registrations that nobody uses are deregistered. Each other one is deregistered when
/// its last use ends.
///
/// Source: `ibv_reg_mr(3)`, `userfaultfd(2)`.
#[derive(Clone)]
pub struct RegistrationCache {
    open: Arc<Open>,
}

/// Closes the cache with its last handle.
struct Open {
    shared: Arc<Inner>,
    domain: DomainId,
    service: Result<&'static Service, UnwatchedError>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Ok(service) = self.service {
            service.unsubscribe(Arc::as_ptr(&self.shared).cast());
        }
        self.shared.close();
    }
}

impl RegistrationCache {
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, config: &RegistrationCacheConfig) -> Self {
        let limits = Limits {
            entries: config.entries_max,
            bytes: config.bytes_max,
        };
        let service = Service::of_process().map_err(UnwatchedError::Provider);
        let shared = Arc::new(Shared::new(Arc::clone(domain), service.ok(), limits));
        let service = service.and_then(|service| {
            service.subscribe(Arc::clone(&shared) as Arc<_>)?;
            Ok(service)
        });
        let shared = match service {
            Ok(_) => shared,
            Err(_) => Arc::new(Shared::new(Arc::clone(domain), None, limits)),
        };
        Self {
            open: Arc::new(Open {
                shared,
                domain: domain.id(),
                service,
            }),
        }
    }

    /// Returns a registration of the memory, kept from an earlier use or made now. The memory is lent until the
    /// registration is dropped.
    ///
    /// The device may write to the memory if `access` has [`Access::LOCAL_WRITE`]. Rights of a peer are refused.
    ///
    /// # Errors
    /// The region is empty, a peer would get a right, the limit on locked memory is reached, or the device refused. The
    /// memory is given back.
    #[inline(always)]
    pub fn register<M: LentMemory>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<Registration<M>, RegistrationRefused<M>> {
        match self.acquire(&memory, access) {
            Ok((hold, range)) => Ok(Registration {
                hold,
                range,
                access,
                domain: self.open.domain,
                memory,
            }),
            Err(error) => Err(RegistrationRefused { memory, error }),
        }
    }

    /// Returns a window of the memory, by a registration that is kept from an earlier use or made now. Requests take ranges of it
    /// ([`LentWindow::range`]), and no peer reaches it. The memory is lent, and the registration in use, until the window is gone and
    /// all such requests are retired.
    ///
    /// Requests bring data back into the memory only if `access` has [`Access::LOCAL_WRITE`].
    ///
    /// # Errors
    /// As for [`RegistrationCache::register`].
    pub fn lend_window<M: LentMemory + Send>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<LentWindow<M>, RegistrationRefused<M>> {
        match self.acquire_for(&memory, access) {
            Ok((registration, hold)) => registration
                .lend(memory, hold)
                .map(LentWindow::new)
                .map_err(moved),
            Err(error) => Err(RegistrationRefused { memory, error }),
        }
    }

    /// Finds or makes a registration, and counts its use.
    #[inline(always)]
    fn acquire<M: LentMemory>(
        &self,
        memory: &M,
        access: Access,
    ) -> Result<(DomainHold, AddressRange), RegistrationError> {
        let (start, bytes) = memory.region();
        let range = AddressRange::new(start.addr().get(), bytes);
        let range = range.ok_or(RegistrationError::Region { bytes })?;
        if !(Access::LOCAL_WRITE | Access::RELAXED_ORDERING).contains(access) {
            return Err(RegistrationError::RemoteAccess);
        }
        let is_kept = M::IS_KEPT;
        let key = Key {
            range,
            access,
            is_kept,
        };
        Ok((self.open.shared.acquire(&key)?, range))
    }

    /// Finds or makes a registration for a window, and counts its use.
    pub(super) fn acquire_for<M: LentMemory>(
        &self,
        memory: &M,
        access: Access,
    ) -> Result<(Arc<RangeRegistration>, DomainHold), RegistrationError> {
        let (hold, range) = self.acquire(memory, access)?;
        let bytes = range.bytes();
        // It is in use, so it is there.
        let registered = hold.registered().ok_or(RegistrationError::Region { bytes })?;
        Ok((registered, hold))
    }

    /// Drops the registrations of all memory with a byte in this region: before memory that was promised to stay is
    /// unmapped. Registrations in use leave when their last use ends.
    pub fn forget(&self, start: *const u8, bytes: usize) {
        if let Some(range) = AddressRange::new(start.addr(), bytes) {
            self.open.shared.forget(range);
        }
    }

    /// Evicts and deregisters all registrations that are not in use.
    pub fn evict_idle(&self) {
        self.open.shared.evict_idle();
    }

    /// Returns whether changes of mappings are watched. If not, only memory that is guaranteed to stay mapped is cached.
    ///
    /// # Errors
    /// A call failed when the cache was made (`userfaultfd` with `EPERM` or `ENOSYS`, say), or the process had too many caches.
    pub fn watches(&self) -> Result<(), UnwatchedError> {
        self.open.service.map(|_| ())
    }

    /// Returns the counts.
    #[must_use]
    pub fn statistics(&self) -> RegistrationStatistics {
        self.open.shared.statistics()
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("domain", &self.open.domain)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// Lent memory with its registration. Dropping it ends the use and then drops the memory. A registration for one use is
/// deregistered at that moment, on this thread.
pub struct Registration<M> {
    // The use ends before the memory goes.
    hold: DomainHold,
    range: AddressRange,
    access: Access,
    domain: DomainId,
    memory: M,
}

impl<M> Registration<M> {
    /// The key by which work requests of this host name the memory.
    #[must_use]
    #[inline]
    pub const fn lkey(&self) -> Lkey {
        self.hold.lkey()
    }

    /// The registered address, and the size in bytes.
    #[must_use]
    pub const fn region(&self) -> (usize, usize) {
        (self.range.start(), self.range.bytes())
    }

    /// The rights.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The protection domain that it is registered in. A queue pair of another may not use it.
    #[must_use]
    pub const fn domain(&self) -> DomainId {
        self.domain
    }

    /// Whether the cache holds the registration. If not, it is deregistered when this is dropped.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.hold.is_cached()
    }

    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Ends the use, and gives the memory back.
    #[must_use]
    pub fn into_memory(self) -> M {
        drop(self.hold);
        self.memory
    }
}

impl<M> fmt::Debug for Registration<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("range", &self.range)
            .field("access", &self.access)
            .field("lkey", &self.lkey())
            .field("is_cached", &self.is_cached())
            .finish_non_exhaustive()
    }
}
