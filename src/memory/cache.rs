//! The registration cache, and the registrations that it returns.

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
/// At a limit the cache evicts unused registrations, the least recently used ones first. If all registrations are in use, new
/// memory is registered for one use, so the limits fail no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCacheConfig {
    /// Maximum number of registrations; default 1,024. Each takes about 110 bytes, which are allocated when the cache is made.
    /// Each change of a watched mapping, and each eviction, looks at all entries.
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

/// A cache that keeps registrations in one protection domain after their use. Clones share the cache, and may be used on any
/// thread.
///
/// A use of a kept registration takes no lock, and makes one system call. If the memory is promised to stay mapped
/// ([`LentMemory::IS_KEPT`]), it makes none. One use in 524,288 takes the lock, to count the others. Overlapping regions have
/// separate registrations.
///
/// When the last clone is dropped, unused registrations are deregistered. The others are deregistered when their last use ends.
///
/// Source: `ibv_reg_mr(3)`, `userfaultfd(2)`.
#[derive(Clone)]
pub struct RegistrationCache {
    open: Arc<Open>,
}

/// The shared part of all handles. Dropping it closes the cache.
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

    /// Returns a registration of the memory, which is kept from an earlier use or made now. The memory is lent until the
    /// registration is dropped.
    ///
    /// The device may write to the memory only if `access` has [`Access::LOCAL_WRITE`]. Remote access rights are refused.
    ///
    /// # Errors
    /// The region is empty, `access` has rights for a peer, the limit on locked memory is reached, or the device refused. The
    /// error returns the memory.
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

    /// Returns a window of the memory, with a registration that is kept from an earlier use or made now. Requests name ranges of
    /// the window ([`LentWindow::range`]), and peers cannot access it. The memory is lent, and the registration in use, until the
    /// window is dropped and all such requests are retired.
    ///
    /// READs and atomics can write to the memory only if `access` has [`Access::LOCAL_WRITE`].
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
        // The registration is in use, so the table still has it.
        let registered = hold.registered().ok_or(RegistrationError::Region { bytes })?;
        Ok((registered, hold))
    }

    /// Drops all registrations with a byte in this address range. Call it before memory is unmapped that was promised to stay
    /// mapped. Registrations in use are dropped when their last use ends.
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
    /// A call failed when the cache was made, or up to a second before: `userfaultfd` with `EPERM`, `ENOSYS` or `EMFILE`, for
    /// example. A cache that is made later tries again. Or the process had too many caches when this one was made.
    pub fn watches(&self) -> Result<(), UnwatchedError> {
        self.open.service.map(|_| ())
    }

    /// Returns the counts of the cache.
    #[must_use]
    pub fn statistics(&self) -> RegistrationStatistics {
        let mut statistics = self.open.shared.statistics();
        statistics.watch_failures = Service::failures();
        statistics
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

/// Lent memory with its registration. Dropping it ends the use and then drops the memory. A registration that serves only one use
/// is deregistered by the drop, on the same thread.
pub struct Registration<M> {
    // Dropped first: the use ends before the memory is dropped.
    hold: DomainHold,
    range: AddressRange,
    access: Access,
    domain: DomainId,
    memory: M,
}

impl<M> Registration<M> {
    /// Returns the key by which work requests of this host name the memory.
    #[must_use]
    #[inline]
    pub const fn lkey(&self) -> Lkey {
        self.hold.lkey()
    }

    /// Returns the registered address, and the size in bytes.
    #[must_use]
    pub const fn region(&self) -> (usize, usize) {
        (self.range.start(), self.range.bytes())
    }

    /// Returns the access rights of the registration.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Returns the protection domain of the registration. Queue pairs of other domains cannot use it.
    #[must_use]
    pub const fn domain(&self) -> DomainId {
        self.domain
    }

    /// Returns whether the cache keeps the registration. If not, dropping this value deregisters the memory.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.hold.is_cached()
    }

    /// Returns the lent memory.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Ends the use of the registration, and returns the memory.
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
