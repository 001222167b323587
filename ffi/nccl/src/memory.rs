//! Memory of NCCL's, as devices have it.

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use doorbell::connect::FlushTarget;
use doorbell::memory::{DmabufError, DmabufRange, Region, RegionWatch, StableMemory};
use doorbell::provider::MemoryError;
use doorbell::{Node, Worker};

use crate::context::Loan;

/// Registered memory of NCCL's. Nothing here follows its address: bytes are copied by the region, or moved by devices.
#[derive(Debug)]
pub(crate) struct Memory {
    address: usize,
    pub(crate) region: Region,
    /// For memory of a device, whose bytes are never copied here: what flushes read.
    pub(crate) target: Option<FlushTarget>,
    /// Its loans to peers, one for each link at most.
    pub(crate) loans: Vec<Loan>,
}

struct Lent {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain bytes, whose address alone is kept.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}
// SAFETY: 1. and 2. NCCL keeps registered memory mapped, where it is, until `deregMr` returned (`Memory::register`). `deregMr` waits until
// the memory is released. 3. and 4. They keep references of the language from bytes that others change. A region makes no references: its
// bytes are copied by instructions that the compiler does not look into, and otherwise devices alone reach them. NCCL's code is another
// language's. It touches the bytes of a request only before it posts the request and after the request is done. A range that is registered
// several times is several regions, and the same is true of each. 5. `ibv_fork_init(3)` was called, or the kernel copies pinned pages at once.
unsafe impl StableMemory for Lent {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.base, self.bytes)
    }
}

impl Memory {
    /// Registers a range with all Workers' devices.
    ///
    /// # Safety
    /// The range is mapped, writable and initialised, and stays so where it is until the watch of [`Memory::give_up`] says that devices have
    /// let go. While a request of this plugin has a part of it, nobody else writes there, and while it is being received into, nobody reads it.
    pub(crate) unsafe fn register(
        node: &Node,
        workers: &[Worker],
        (base, bytes): (NonNull<u8>, usize),
    ) -> Result<Self, MemoryError> {
        let region = node.adopt_region(workers, Lent { base, bytes })?;
        Ok(Self {
            address: base.addr().get(),
            region,
            target: None,
            loans: Vec::new(),
        })
    }

    /// Registers a part of a dma-buf with all Workers' devices. NCCL's requests name it by addresses from this one on.
    pub(crate) fn register_dmabuf(
        node: &Node,
        workers: &[Worker],
        buffer: BorrowedFd<'_>,
        range: DmabufRange,
    ) -> Result<Self, DmabufError> {
        let region = node.dmabuf_region(workers, buffer, range)?;
        Ok(Self {
            address: usize::try_from(range.iova).map_err(|_| DmabufError::NoAddress)?,
            target: Some(region.flush_target()?),
            region,
            loans: Vec::new(),
        })
    }

    /// The offset of so many bytes at an address; `None` if they do not lie within.
    pub(crate) fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address)?;
        let end = offset.checked_add(bytes)?;
        (end <= self.region.bytes()).then_some(offset)
    }

    /// Gives it up. The result says when devices have let go.
    pub(crate) fn give_up(self) -> RegionWatch {
        self.region.release_watch()
    }
}
