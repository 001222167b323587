//! NCCL's memory, registered with devices.

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use doorbell::connect::FlushTarget;
use doorbell::memory::{DmabufError, DmabufRange, Region, RegionWatch, StableMemory};
use doorbell::provider::MemoryError;
use doorbell::{Node, Worker};

use crate::context::Loan;

/// A registration of NCCL's memory. This code never dereferences its address: the region copies bytes, or devices move them.
#[derive(Debug)]
pub(crate) struct Memory {
    address: usize,
    /// The number of bytes that the processor can copy: none of device memory.
    host_bytes: usize,
    pub(crate) region: Region,
    /// For device memory, which the processor never copies: the bytes that a flush reads.
    pub(crate) target: Option<FlushTarget>,
    /// The loans of this memory to peers: at most one for each link.
    pub(crate) loans: Vec<Loan>,
}

struct Lent {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain bytes, of which only the address is kept.
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
    /// Registers a range with the devices of all Workers.
    ///
    /// # Safety
    /// The range is mapped, writable and initialised, and stays so at its address until the watch of [`Memory::give_up`] reports that devices
    /// have released it. While a request of this plugin uses a part, nobody else writes there. While a receive uses it, nobody reads there.
    pub(crate) unsafe fn register(
        node: &Node,
        workers: &[Worker],
        (base, bytes): (NonNull<u8>, usize),
    ) -> Result<Self, MemoryError> {
        let region = node.adopt_region(workers, Lent { base, bytes })?;
        Ok(Self {
            address: base.addr().get(),
            host_bytes: region.bytes(),
            region,
            target: None,
            loans: Vec::new(),
        })
    }

    /// Registers a part of a dma-buf with the devices of all Workers. NCCL's requests use addresses that start at the IOVA of the range.
    pub(crate) fn register_dmabuf(
        node: &Node,
        workers: &[Worker],
        buffer: BorrowedFd<'_>,
        range: DmabufRange,
    ) -> Result<Self, DmabufError> {
        let region = node.dmabuf_region(workers, buffer, range)?;
        Ok(Self {
            address: usize::try_from(range.iova).map_err(|_| DmabufError::NoAddress)?,
            host_bytes: 0,
            target: Some(region.flush_target()?),
            region,
            loans: Vec::new(),
        })
    }

    /// Returns the offset of a range, or `None` if the range is not within the memory.
    pub(crate) fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address)?;
        let end = offset.checked_add(bytes)?;
        (end <= self.region.bytes()).then_some(offset)
    }

    /// Returns the offset of a range that is not empty, or `None` if it is not within the memory, or the processor cannot copy it.
    #[inline]
    pub(crate) fn offset_to_copy(&self, address: usize, bytes: usize) -> Option<usize> {
        // An address below the memory gives an offset beyond any memory at its address, or an end that does not exist.
        let offset = address.wrapping_sub(self.address);
        let end = offset.checked_add(bytes)?;
        (end <= self.host_bytes).then_some(offset)
    }

    /// Ends the registration. The result tells when devices have released the memory.
    pub(crate) fn give_up(self) -> RegionWatch {
        self.region.release_watch()
    }
}
