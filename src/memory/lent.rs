//! Memory that the engine lends to requests and to transfers, by registrations of caches.

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

/// Memory that is lent, for requests of this host: [`RegistrationCache::lend_window`]. No peer reaches it.
///
/// It dereferences to the provider's window, whose calls copy bytes in and out ([`provider::Window`](crate::provider::Window)). Memory
/// that was lent without [`Access::LOCAL_WRITE`] takes no bytes.
///
/// Dropping it ends the use of the registration and then drops the memory. If requests that name ranges of it are in flight, the poll
/// that ends the last of them does both, and a registration for one use is deregistered there, which is a system call. Keep the window
/// until they are done to have neither in a poll.
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

    /// Names bytes of it, for requests of this host: [`Channel::post_ranges`](crate::Channel::post_ranges) and
    /// [`Batch::push_ranges`](crate::worker::Batch::push_ranges) on a channel of the cache's Worker. They are checked when they are posted.
    #[must_use]
    #[inline]
    pub const fn range(&self, offset: usize, bytes: u32) -> WindowRange<'_, Window> {
        WindowRange {
            window: &self.window,
            offset,
            bytes,
        }
    }

    /// Ends the use, and gives the memory back.
    ///
    /// # Errors
    /// Requests that name ranges of it are in flight: poll until they are done, and try again. Leases without bytes that such requests
    /// gave back count, too.
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

/// A [`RegistrationCache`] for each of several Workers, for memory that transfers give and take:
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

    /// Returns a region of the memory, by registrations that are kept from an earlier use or made now. The memory is lent, and its
    /// registrations in use, until the last clone of the region is gone and no transfer has it. Then another thread drops the memory.
    ///
    /// Transfers take bytes into the region only if `access` has [`Access::LOCAL_WRITE`]. The peer that gives them reaches it by a
    /// registration of its own, which is of this transfer alone and never kept.
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

    /// The caches, in the order of the Workers: for their counts, say.
    #[must_use]
    pub fn caches(&self) -> &[RegistrationCache] {
        &self.caches
    }

    /// Drops the registrations of all memory with a byte in this region, as [`RegistrationCache::forget`] does.
    pub fn forget(&self, start: *const u8, bytes: usize) {
        for cache in &self.caches {
            cache.forget(start, bytes);
        }
    }
}

/// Memory gave another region than it did before.
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
