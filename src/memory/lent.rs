//! Memory that the application lends to requests and to transfers, through registration caches.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use std::sync::Arc;

use doorbell_core::Access;
use doorbell_core::provider::WindowRange;
use doorbell_ffi::{LentMemory, ProtectionDomain, RangeRegistration, Rdma, Window};

use crate::machine::reaper::Reaper;
use crate::memory::cache::RegistrationCache;
use crate::memory::error::{RegistrationError, RegistrationRefused};
use crate::memory::region::Region;

/// A window of lent memory, for requests of this host: [`RegistrationCache::lend_window`]. Peers cannot access the memory.
///
/// The type dereferences to the provider's window, whose methods copy bytes in and out
/// ([`provider::Window`](crate::provider::Window)). Memory that was lent without [`Access::LOCAL_WRITE`] cannot be written.
///
/// Dropping the window ends the use of the registration and then drops the memory. If requests that name ranges of the window are
/// in flight, the poll that ends the last of them does both instead. If the registration serves only one use, that poll also
/// deregisters it, which is a system call. Keep the window until its requests are done, to keep this work out of polls.
pub struct LentWindow<M> {
    window: Window,
    memory: PhantomData<fn() -> M>,
}

impl<M: LentMemory> LentWindow<M> {
    pub(super) const fn new(window: Window) -> Self {
        Self {
            window,
            memory: PhantomData,
        }
    }

    /// Returns a range of the window for requests of this host, by [`Channel::post_ranges`](crate::Channel::post_ranges) or
    /// [`Batch::push_ranges`](crate::worker::Batch::push_ranges) on a channel of the cache's Worker. The bounds are checked when
    /// the request is posted.
    #[must_use]
    #[inline]
    pub const fn range(&self, offset: usize, bytes: u32) -> WindowRange<'_, Window> {
        WindowRange {
            window: &self.window,
            offset,
            bytes,
        }
    }

    /// Ends the use of the registration, and returns the memory.
    ///
    /// # Errors
    /// Requests that name ranges of the window are in flight: poll until they are done, and try again. Leases without bytes that
    /// a refused batch returned for such ranges count as well; drop them first.
    pub fn into_memory(self) -> Result<M, Self> {
        self.window.into_lent().map_err(Self::new)
    }
}

impl<M> Deref for LentWindow<M> {
    type Target = Window;

    #[inline]
    fn deref(&self) -> &Window {
        &self.window
    }
}

impl<M> fmt::Debug for LentWindow<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LentWindow").field(&self.window).finish()
    }
}

/// A [`RegistrationCache`] for each of several Workers, for memory that transfers read or write:
/// [`Node::region_cache`](crate::Node::region_cache).
#[derive(Clone, Debug)]
pub struct RegionCache {
    caches: Vec<RegistrationCache>,
    domains: Vec<Arc<ProtectionDomain>>,
    reaper: Reaper,
}

impl RegionCache {
    pub(crate) const fn new(
        caches: Vec<RegistrationCache>,
        domains: Vec<Arc<ProtectionDomain>>,
        reaper: Reaper,
    ) -> Self {
        Self {
            caches,
            domains,
            reaper,
        }
    }

    /// Returns a region of the memory, with registrations that are kept from an earlier use or made now. The memory is lent, and
    /// its registrations are in use, until the last clone of the region is gone and no transfer uses it. Then another thread
    /// drops the memory.
    ///
    /// Transfers can write into the region only if `access` has [`Access::LOCAL_WRITE`]. For such a transfer the peer gets the
    /// key of a separate registration, which serves only this transfer and is not cached.
    ///
    /// # Errors
    /// As for [`RegistrationCache::register`].
    pub fn lend_region<M: LentMemory + Send>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<Region, RegistrationRefused<M>> {
        let uses = self.caches.iter().map(|cache| cache.acquire_for(&memory, access));
        let lent = match uses.collect() {
            Ok(uses) => RangeRegistration::lend_by(uses, memory).map_err(moved),
            Err(error) => Err(RegistrationRefused { memory, error }),
        };
        Ok(Region::of(lent?, self.domains.clone(), &self.reaper))
    }

    /// Returns the caches in the order of the Workers, for example to read their counts.
    #[must_use]
    pub fn caches(&self) -> &[RegistrationCache] {
        &self.caches
    }

    /// Drops all registrations with a byte in this address range, as [`RegistrationCache::forget`] does.
    pub fn forget(&self, start: *const u8, bytes: usize) {
        for cache in &self.caches {
            cache.forget(start, bytes);
        }
    }
}

/// Makes the error for memory that returned another region than in an earlier call.
pub(super) fn moved<M: LentMemory>(memory: M) -> RegistrationRefused<M> {
    let (_, bytes) = memory.region();
    let error = RegistrationError::Region { bytes };
    RegistrationRefused { memory, error }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<LentWindow<*const u8>>();
    is_send_and_sync::<Region<Rdma>>();
};
