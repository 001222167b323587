//! Memory beside a Worker's own slots: further arenas, and memory that an engine lends.

use doorbell_core::provider::{
    ArenaConfig, MemoryError, ProtectionDomain, Provider, ProviderError, RemoteAccess, Window,
};
use doorbell_ffi::{Rdma, StableMemory};

use super::Worker;
use crate::memory::{RegistrationCache, RegistrationCacheConfig};
use crate::worker::arena::Arena;
use crate::worker::window::LocalWindow;

impl<P: Provider> Worker<P> {
    /// Registers more memory in addition to the Worker's own, for example with another slot size.
    ///
    /// # Errors
    /// The sizes are zero, the device refused, or what is required of its placement cannot be
    /// had.
    pub fn arena(&self, config: &ArenaConfig) -> Result<Arena<P>, MemoryError> {
        Ok(Arena::new(self.domain.arena(config)?, self.table.reaper.clone()))
    }

    /// Registers the memory of a window once more, with a key and rights of its own. The window may be another Worker's, of another
    /// device of this host, so that several devices reach one memory.
    ///
    /// Each window of the memory is revoked by itself ([`LocalWindow::revoke`]): give each peer one, and the others keep their
    /// rights. The memory lives until the last window of it is gone. Every registration counts its pages once more towards the limit
    /// on locked memory. With [`RemoteAccess::NONE`] no peer reaches the memory, and requests of this host do.
    ///
    /// # Errors
    /// The device refused. The window is of another host of a simulation (`EINVAL`).
    pub fn window_of(
        &self,
        window: &LocalWindow<P>,
        remote: RemoteAccess,
    ) -> Result<LocalWindow<P>, ProviderError> {
        let window = self
            .domain
            .window_of(window.inner(), 0..window.inner().bytes(), remote)?;
        Ok(LocalWindow::new(window, self.reaper()))
    }
}

impl Worker<Rdma> {
    /// Makes a cache of registrations in the Worker's protection domain, for memory that the engine lends and takes
    /// back. The cache may be used on any thread, and after the Worker is dropped.
    #[must_use]
    pub fn registration_cache(&self, config: &RegistrationCacheConfig) -> RegistrationCache {
        RegistrationCache::new(&self.domain, config)
    }

    /// Registers the caller's memory, divided into slots that are leased and sent like the Worker's own. One request may gather
    /// from both. It is given back, by its drop, when the arena is gone and all its leases are home.
    ///
    /// Slots begin at multiples of 64 bytes, as the first does; `slot_bytes` is rounded up to one.
    ///
    /// # Errors
    /// Not one slot fits (`EINVAL`), or the device refused.
    pub fn adopt(&self, memory: impl StableMemory, slot_bytes: u32) -> Result<Arena, ProviderError> {
        let arena = self.domain.adopt_arena(memory, slot_bytes)?;
        Ok(Arena::new(arena, self.table.reaper.clone()))
    }

    /// Registers the caller's memory as a window that peers may access once they have its key. It is given back, by its drop, when
    /// the device has let go of it.
    ///
    /// # Errors
    /// It is empty (`EINVAL`), or the device refused.
    pub fn adopt_window(
        &self,
        memory: impl StableMemory,
        remote: RemoteAccess,
    ) -> Result<LocalWindow, ProviderError> {
        let window = self.domain.adopt_window(memory, remote)?;
        Ok(LocalWindow::new(window, self.reaper()))
    }
}
