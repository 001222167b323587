//! Registered memory in addition to a Worker's own slots: more arenas, windows, and memory that the application lends.

use doorbell_core::provider::{
    ArenaConfig, MemoryError, ProtectionDomain, Provider, ProviderError, RemoteAccess, Window,
};
use doorbell_ffi::{Rdma, StableMemory};

use super::Worker;
use crate::memory::{NO_BYTES, RegistrationCache, RegistrationCacheConfig};
use crate::worker::arena::Arena;
use crate::worker::window::LocalWindow;

/// Registers an arena that has at least one byte.
pub(super) fn arena_in<P: Provider>(
    domain: &P::ProtectionDomain,
    config: &ArenaConfig,
) -> Result<P::Arena, MemoryError> {
    if config.slots == 0 || config.slot_bytes == 0 {
        return Err(NO_BYTES);
    }
    domain.arena(config)
}

impl<P: Provider> Worker<P> {
    /// Registers more memory in addition to the Worker's own, for example with another slot size.
    ///
    /// # Errors
    /// A size is zero ([`MemoryError::Misuse`]), the device refused, or a required placement is not available.
    pub fn arena(&self, config: &ArenaConfig) -> Result<Arena<P>, MemoryError> {
        Ok(Arena::new(
            arena_in::<P>(&self.domain, config)?,
            self.table.reaper.clone(),
        ))
    }

    /// Registers the memory of a window once more, with a separate key and separate access rights. The window may belong to
    /// another Worker, on another device of this host, so several devices can access one memory.
    ///
    /// Each window of the memory is revoked separately ([`LocalWindow::revoke`]). So give each peer its own window: revoking one
    /// leaves the others valid. The memory is freed after its last window is gone. Each registration counts its pages again
    /// towards the limit on locked memory. With [`RemoteAccess::NONE`] only requests of this host can use the window.
    ///
    /// # Errors
    /// The device refused, or the window belongs to another host of a simulation (`EINVAL`).
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
    /// Makes a registration cache in the Worker's protection domain, for memory that the application lends and takes back. The
    /// cache may be used on any thread, also after the Worker was dropped.
    #[must_use]
    pub fn registration_cache(&self, config: &RegistrationCacheConfig) -> RegistrationCache {
        RegistrationCache::new(&self.domain, config)
    }

    /// Registers the caller's memory, divided into slots that are leased and sent like the Worker's own. One request may gather
    /// from both. After the arena is dropped and all its leases have returned, the memory is deregistered and `memory` is
    /// dropped.
    ///
    /// Slots begin at multiples of 64 bytes: the first slot at the first such address, and `slot_bytes` is rounded up to a
    /// multiple of 64.
    ///
    /// # Errors
    /// The memory has no room for a slot or is to be paged on demand (`EINVAL`), or the device refused.
    pub fn adopt(&self, memory: impl StableMemory, slot_bytes: u32) -> Result<Arena, ProviderError> {
        let arena = self.domain.adopt_arena(memory, slot_bytes)?;
        Ok(Arena::new(arena, self.table.reaper.clone()))
    }

    /// Registers the caller's memory as a window that peers may access once they have its key. After the memory is deregistered,
    /// `memory` is dropped.
    ///
    /// # Errors
    /// The memory is empty (`EINVAL`), the device does not support the on-demand paging that the memory asks for (`EOPNOTSUPP`), or
    /// the device refused.
    pub fn adopt_window(
        &self,
        memory: impl StableMemory,
        remote: RemoteAccess,
    ) -> Result<LocalWindow, ProviderError> {
        let window = self.domain.adopt_window(memory, remote)?;
        Ok(LocalWindow::new(window, self.reaper()))
    }
}
