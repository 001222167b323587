//! Memory of NCCL's, as devices have it.

use core::ptr::NonNull;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use doorbell::memory::{Region, StableMemory};
use doorbell::provider::ProviderError;
use doorbell::{Node, Worker};

use crate::context::Loan;

/// Registered memory of NCCL's. Nothing here follows its address: bytes are copied by the region, or moved by devices.
#[derive(Debug)]
pub(crate) struct Memory {
    address: usize,
    pub(crate) region: Region,
    /// Its loans to peers, one for each link at most.
    pub(crate) loans: Vec<Loan>,
    freed: Arc<Freed>,
}

/// Whether devices have let go of a range.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    is_free: Mutex<bool>,
    changed: Condvar,
}

impl Freed {
    /// Waits so long at most. Says whether devices have let go.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let is_free = self.is_free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_free, patience, |free| !*free);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Lent {
    base: NonNull<u8>,
    bytes: usize,
    freed: Arc<Freed>,
}

// SAFETY: plain bytes, whose address alone is kept.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}
// SAFETY: 1. and 2. NCCL keeps registered memory mapped, where it is, until `deregMr` returned (`Memory::register`). `deregMr` waits for
// the drop of this value. 3. and 4. They keep references of the language from bytes that others change. A region makes no references: its
// bytes are copied by instructions that the compiler does not look into, and otherwise devices alone reach them. NCCL's code is another
// language's. It touches the bytes of a request only before it posts the request and after the request is done. A range that is registered
// several times is several regions, and the same is true of each. 5. `ibv_fork_init(3)` was called, or the kernel copies pinned pages at once.
unsafe impl StableMemory for Lent {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.base, self.bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.freed.is_free.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.freed.changed.notify_all();
    }
}

impl Memory {
    /// Registers a range with all Workers' devices.
    ///
    /// # Safety
    /// The range is mapped, writable and initialised, and stays so where it is until [`Memory::freed`] says that devices have let go. While
    /// a request of this plugin has a part of it, nobody else writes there, and while it is being received into, nobody reads it.
    pub(crate) unsafe fn register(
        node: &Node,
        workers: &[Worker],
        (base, bytes): (NonNull<u8>, usize),
    ) -> Result<Self, ProviderError> {
        let freed = Arc::new(Freed::default());
        let lent = Lent {
            base,
            bytes,
            freed: Arc::clone(&freed),
        };
        let region = node.adopt_region(workers, lent)?;
        Ok(Self {
            address: base.addr().get(),
            region,
            loans: Vec::new(),
            freed,
        })
    }

    /// The offset of so many bytes at an address; `None` if they do not lie within.
    pub(crate) fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address)?;
        let end = offset.checked_add(bytes)?;
        (end <= self.region.bytes()).then_some(offset)
    }

    /// Gives it up. The result says when devices have let go.
    pub(crate) fn give_up(self) -> Arc<Freed> {
        let Self { region, freed, .. } = self;
        drop(region);
        freed
    }
}
