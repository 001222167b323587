//! Registered memory beside a Worker's own: of other sizes, or an engine's own mapping.

use core::fmt;

use doorbell_core::provider::{Arena as _, Placement, Provider};
use doorbell_ffi::Rdma;

use crate::machine::reaper::Reaper;
use crate::worker::lease::Lease;

/// Registered memory divided into slots, for all channels of its Worker.
///
/// A slot that was sent comes home once the request is known done; until then nobody has it.
/// [`Arena::lease`] then finds it again with its bytes as they were, and [`Lease::index`] says which
/// of them it is.
///
/// An engine keeps its pages in a mapping of its own, and sends one behind a header of the
/// Worker's memory, both by one request:
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
/// // SAFETY: mapped, initialised and where it is until the drop; nobody else uses or adopts it; advised
/// // with MADV_DONTFORK.
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
    /// There until the drop.
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

    /// Leases memory, the first slot first; `None` is backpressure. Its length is zero, its bytes
    /// are as they were.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        let slot = self.inner.as_mut()?.lease()?;
        Some(Lease { slot })
    }

    /// Gives memory back, cheaper than dropping it. A lease of elsewhere goes where it is from.
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

    /// How its memory was placed: what was asked of the machine, what it gave, and why not more. For an engine's own memory
    /// nothing is asked of the machine.
    #[must_use]
    pub const fn placement(&self) -> Placement {
        self.placement
    }
}

impl<P: Provider> Drop for Arena<P> {
    /// Returns in bounded time: the device lets go of the memory on another thread.
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
