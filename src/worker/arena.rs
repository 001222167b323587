//! Arenas: registered memory in addition to a Worker's own, with other slot sizes or in a mapping of the application.

use core::fmt;

use doorbell_core::provider::{Arena as _, Placement, Provider};
use doorbell_ffi::Rdma;

use crate::machine::reaper::Reaper;
use crate::worker::lease::Lease;

/// Registered memory divided into slots, for all channels of its Worker.
///
/// A sent slot returns to the arena when a completion retires its request; until then it belongs to the device. After that
/// [`Arena::lease`] can return the slot again, with its bytes unchanged. [`Lease::index`] tells which slot a lease has.
///
/// In this example an engine has its pages in its own mapping. One request sends a header from the Worker's memory and a page:
///
/// ```no_run
/// use core::ptr::NonNull;
/// use doorbell::{ChannelId, Lease, Operation, PostFlags, Worker};
/// use doorbell::worker::{Arena, StableMemory};
///
/// /// The engine's buffer pool: a mapping it made, and unmaps in its drop.
/// struct Pool { base: NonNull<u8>, bytes: usize }
/// // SAFETY: plain bytes, reached through the leases alone.
/// unsafe impl Send for Pool {}
/// // SAFETY: as above.
/// unsafe impl Sync for Pool {}
/// // SAFETY: the memory is mapped, initialised and stays where it is until the drop. No other code uses or adopts it. It is
/// // advised with MADV_DONTFORK.
/// unsafe impl StableMemory for Pool {
///     fn region(&self) -> (NonNull<u8>, usize) {
///         (self.base, self.bytes)
///     }
/// }
///
/// # fn example(worker: &mut Worker, to: ChannelId, pool: Pool) -> Result<(), Box<dyn std::error::Error>> {
/// const PAGE_BYTES: u32 = 4096;
/// let mut arena: Arena = worker.adopt(pool, PAGE_BYTES)?;
/// // Every page has its place in the engine; the first of them begins where the mapping does.
/// let mut pages: Vec<Option<Lease>> = (0..arena.slots()).map(|_| arena.lease()).collect();
///
/// let mut header = worker.lease().ok_or("no memory")?;
/// header.fill(b"page 7, version 3")?;
/// let mut page = pages[7].take().ok_or("page 7 is under way")?;
/// page.set_len_bytes(PAGE_BYTES as usize);
/// let mut batch = worker.channel(to).ok_or("closed")?.batch();
/// batch
///     .push(Operation::Send, [header, page], PostFlags::SIGNALED)
///     .map_err(|refused| refused.kind)
///     .map_err(|kind| kind.to_string())?;
/// batch.ring()?;
/// // Once polling reported that the request is done, the page is back:
/// while let Some(page) = arena.lease() {
///     let place = page.index() as usize;
///     pages[place] = Some(page);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Arena<P: Provider = Rdma> {
    /// `Some` until the drop.
    pub(crate) inner: Option<P::Arena>,
    slots: u32,
    slot_bytes: u32,
    placement: Placement,
    reaper: Reaper,
}

impl<P: Provider> Arena<P> {
    pub(crate) fn new(inner: P::Arena, reaper: Reaper) -> Self {
        Self {
            slots: inner.slots(),
            slot_bytes: inner.slot_bytes(),
            placement: inner.placement(),
            inner: Some(inner),
            reaper,
        }
    }

    /// Leases a slot, in a new arena in the order of addresses; `None` is backpressure. The length of the lease is zero, and its
    /// bytes are as they were left.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        let slot = self.inner.as_mut()?.lease()?;
        Some(Lease { slot })
    }

    /// Returns a lease to this arena, which is cheaper than dropping it. A lease of another arena returns to that arena.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        if let Some(arena) = &mut self.inner {
            arena.release(lease.slot);
        }
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the bytes of each slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    /// Returns how the slots were placed in memory: what was requested, what was provided, and the reason for any difference. For
    /// memory of the caller ([`Worker::adopt`](crate::Worker::adopt)) nothing was requested.
    #[must_use]
    pub const fn placement(&self) -> Placement {
        self.placement
    }
}

impl<P: Provider> Drop for Arena<P> {
    /// Returns in bounded time: another thread deregisters the memory.
    fn drop(&mut self) {
        if let Some(arena) = self.inner.take() {
            self.reaper.take(arena);
        }
    }
}

impl<P: Provider> fmt::Debug for Arena<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .finish_non_exhaustive()
    }
}
