//! Regions: memory registered with all Workers of a Node.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_core::network::Network;
use doorbell_core::provider::{
    MemoryError, PlacementConfig, ProtectionDomain, Provider, ProviderError, RemoteAccess, WindowConfig,
};
use doorbell_ffi::{DmabufError, DmabufRange, Rdma, StableMemory};

use crate::connect::node::Node;
use crate::memory::{NO_BYTES, Region, RegionCache, RegistrationCacheConfig};
use crate::worker::Worker;

impl<P: Provider, N: Network> Node<P, N> {
    /// Maps `bytes` zeroed bytes with this placement, and registers them with each Worker's device. Registration pins the pages, which
    /// takes milliseconds for large regions. Each registration counts separately towards the limit on locked memory.
    ///
    /// # Errors
    /// The size is zero or there is no Worker ([`MemoryError::Misuse`]), a device refused, or a required placement is not available.
    pub fn region(
        &self,
        workers: &[Worker<P>],
        bytes: usize,
        placement: &PlacementConfig,
    ) -> Result<Region<P>, MemoryError> {
        let (first, domains) = domains(workers)?;
        if bytes == 0 {
            return Err(NO_BYTES);
        }
        let mut config = WindowConfig::new(bytes, RemoteAccess::NONE);
        config.placement = *placement;
        Ok(Region::new(
            first.domain.window(&config)?,
            domains,
            first.reaper(),
        )?)
    }
}

impl<N: Network> Node<Rdma, N> {
    /// Registers memory of the caller with each Worker's device. The `memory` value is dropped after all devices have deregistered it.
    ///
    /// # Errors
    /// The memory is empty or there is no Worker ([`MemoryError::Misuse`]), or a device refused.
    pub fn adopt_region(&self, workers: &[Worker], memory: impl StableMemory) -> Result<Region, MemoryError> {
        let (first, domains) = domains(workers)?;
        if memory.region().1 == 0 {
            return Err(NO_BYTES);
        }
        let window = first.domain.adopt_window(memory, RemoteAccess::NONE)?;
        Ok(Region::new(window, domains, first.reaper())?)
    }

    /// Registers a part of a dma-buf, which is memory of a GPU or another device, with each Worker's device. The region keeps the buffer
    /// alive, so the caller may close its descriptor.
    ///
    /// Transfers, loans and grants move the bytes directly between the devices. The process does not map them, so [`Region::copy_in`] and
    /// [`Region::copy_out`] behave as for an empty region. When a transfer into the region is [done](crate::link::TransferEnd::Done), the
    /// NIC has received all bytes, but some may still be on their way over PCIe. Flush them ([`Node::flusher`]) before the GPU reads them.
    ///
    /// # Errors
    /// A device cannot register dma-bufs ([`DmabufError::Unsupported`]), the range is invalid, there is no Worker
    /// ([`DmabufError::NoDevice`]), or a device refused.
    pub fn dmabuf_region(
        &self,
        workers: &[Worker],
        buffer: BorrowedFd<'_>,
        range: DmabufRange,
    ) -> Result<Region, DmabufError> {
        let (first, domains) = domains(workers).map_err(|_| DmabufError::NoDevice)?;
        let windows = domains
            .iter()
            .map(|domain| domain.register_dmabuf(buffer, range, RemoteAccess::NONE));
        let windows = windows.collect::<Result<_, _>>()?;
        Ok(Region::of(windows, domains, first.reaper()))
    }

    /// Whether the devices of all these Workers can register dma-bufs; false without Workers. The query takes milliseconds.
    ///
    /// # Errors
    /// A call of a device failed, so the answer is not known.
    pub fn imports_dmabuf(&self, workers: &[Worker]) -> Result<bool, ProviderError> {
        for worker in workers {
            if !worker.domain.imports_dmabuf()? {
                return Ok(false);
            }
        }
        Ok(!workers.is_empty())
    }

    /// Makes a cache of registrations for each of the Workers, for memory that the engine lends to transfers and takes back. The limits
    /// of `config` apply to the cache of each Worker separately. The result may be used on any thread, and after the Workers are dropped.
    ///
    /// # Errors
    /// There is no Worker ([`MemoryError::Misuse`]).
    pub fn region_cache(
        &self,
        workers: &[Worker],
        config: &RegistrationCacheConfig,
    ) -> Result<RegionCache, MemoryError> {
        let (first, domains) = domains(workers)?;
        let caches = workers.iter().map(|worker| worker.registration_cache(config));
        Ok(RegionCache::new(
            caches.collect(),
            domains,
            first.reaper().clone(),
        ))
    }
}

type Domains<'w, P> = (&'w Worker<P>, Vec<Arc<<P as Provider>::ProtectionDomain>>);

fn domains<P: Provider>(workers: &[Worker<P>]) -> Result<Domains<'_, P>, MemoryError> {
    let none =
        MemoryError::Misuse("memory is registered with Workers, and the slice has none: pass one or more");
    let first = workers.first().ok_or(none)?;
    let domains = workers.iter().map(|worker| Arc::clone(&worker.domain)).collect();
    Ok((first, domains))
}
