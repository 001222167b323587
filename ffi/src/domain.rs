//! Protection domains, in which memory is registered and queue pairs are made.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;

use doorbell_core::Access;
use doorbell_core::provider::{
    ArenaConfig, ClaimedQueuePairParts, DatagramConfig, DatagramPairParts, DomainId, MemoryError,
    ProviderError, QueuePairConfig, QueuePairParts, ReceivesClaim, RemoteAccess, SharedQueuePairParts,
    SharedReceiveQueueConfig, WindowConfig,
};
use doorbell_core::sync::{AtomicU64, Ordering};

use crate::arena::{self, Cut};
use crate::context::ContextInner;
use crate::datagram::{self, GRH_BYTES};
use crate::leak::Leaked;
use crate::mapping::{Region, StableMemory};
use crate::memory_region::MemoryRegion;
use crate::{Arena, Claim, CompletionQueue, Rdma, SharedReceiveQueue, Window, errno, queue_pair};

/// A protection domain. It lives as long as anything made in it.
pub(crate) struct DomainInner {
    id: DomainId,
    pd: NonNull<rdma_sys::ibv_pd>,
    context: ManuallyDrop<Arc<ContextInner>>,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md).
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

impl DomainInner {
    #[doc(alias = "ibv_alloc_pd")]
    pub(crate) fn new(context: &Arc<ContextInner>) -> Result<Arc<Self>, ProviderError> {
        // SAFETY: the context is live, held by the `Arc` (ibv_alloc_pd(3)).
        let pd = unsafe { rdma_sys::ibv_alloc_pd(context.as_ptr()) };
        let pd = errno::from_pointer("ibv_alloc_pd", pd)?;
        Ok(Arc::new(Self {
            id: fresh_id(),
            pd,
            context: ManuallyDrop::new(Arc::clone(context)),
        }))
    }

    /// The handle, live as long as `self`.
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_pd {
        self.pd.as_ptr()
    }

    /// The number that distinguishes this domain from others.
    pub(crate) const fn id(&self) -> DomainId {
        self.id
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }
}

/// Returns a number that no other domain of the process has.
fn fresh_id() -> DomainId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only the number matters. It wraps round only after 2^64 domains.
    DomainId(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Drop for DomainInner {
    #[doc(alias = "ibv_dealloc_pd")]
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and released only here. All objects made in it hold an `Arc` of this, so none is left
        // (ibv_dealloc_pd(3)).
        let status = unsafe { rdma_sys::ibv_dealloc_pd(self.pd.as_ptr()) };
        if errno::from_value("ibv_dealloc_pd", status).is_err() {
            Leaked::ProtectionDomain.count();
            return;
        }
        // SAFETY: dropped here once.
        unsafe { ManuallyDrop::drop(&mut self.context) };
    }
}

/// A protection domain. A connection can use memory only if both are of one protection domain.
///
/// A slot posted on a queue pair of another domain fails with `LOC_PROT_ERR`, and does no other harm (S8).
pub struct ProtectionDomain {
    inner: Arc<DomainInner>,
}

impl ProtectionDomain {
    pub(crate) const fn new(inner: Arc<DomainInner>) -> Self {
        Self { inner }
    }

    pub(crate) const fn inner(&self) -> &Arc<DomainInner> {
        &self.inner
    }

    /// Registers the caller's memory and cuts it into as many slots as it holds.
    ///
    /// Slots begin at multiples of 64 bytes, and `slot_bytes` is rounded up to such a multiple.
    ///
    /// # Errors
    /// No slot fits, or the memory is paged on demand (`EINVAL`), or the device refused.
    pub fn adopt_arena(&self, memory: impl StableMemory, slot_bytes: u32) -> Result<Arena, ProviderError> {
        let region = Region::adopted(memory)?;
        if region.is_on_demand() {
            return Err(ProviderError {
                call: "adopt_arena",
                errno: libc::EINVAL,
            });
        }
        let cut = Cut::for_region(region.base().addr().get(), region.bytes(), slot_bytes)?;
        self.arena_over(region, cut)
    }

    /// Registers the caller's memory, which peers may then reach.
    ///
    /// # Errors
    /// The memory is empty (`EINVAL`), or the device refused. `EOPNOTSUPP` means that the memory has to be paged on demand
    /// and the device does not support that.
    pub fn adopt_window(
        &self,
        memory: impl StableMemory,
        remote: RemoteAccess,
    ) -> Result<Window, ProviderError> {
        self.window_over(Arc::new(Region::adopted(memory)?), remote)
    }

    fn arena_over(&self, region: Region, cut: Cut) -> Result<Arena, ProviderError> {
        Arena::new(
            MemoryRegion::register(&self.inner, Arc::new(region), Access::LOCAL_WRITE)?,
            cut,
        )
    }

    pub(crate) fn window_over(
        &self,
        region: Arc<Region>,
        remote: RemoteAccess,
    ) -> Result<Window, ProviderError> {
        if region.is_on_demand() {
            let device = self.inner.context().limits().on_demand;
            device.check_window(remote).map_err(|_| ProviderError {
                call: "ibv_reg_mr",
                errno: libc::EOPNOTSUPP,
            })?;
        }
        // READs of this host write into the window, independently of the peer's rights.
        let mut access = remote.to_access().union(Access::LOCAL_WRITE);
        if !region.is_writable() {
            access = remote.to_access();
            if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
                return Err(ProviderError {
                    call: "window_of",
                    errno: libc::EACCES,
                });
            }
        }
        Ok(Window::new(
            MemoryRegion::register(&self.inner, region, access)?,
            remote,
        ))
    }
}

impl doorbell_core::provider::ProtectionDomain<Rdma> for ProtectionDomain {
    fn id(&self) -> DomainId {
        self.inner.id()
    }

    fn arena(&self, config: &ArenaConfig) -> Result<Arena, MemoryError> {
        let (region, cut) = arena::map_for(config, self.inner.context().numa_node())?;
        Ok(self.arena_over(region, cut)?)
    }

    fn window(&self, config: &WindowConfig) -> Result<Window, MemoryError> {
        let context = self.inner.context();
        if config.placement.on_demand {
            context.limits().on_demand.check_window(config.remote)?;
        }
        let node = context.numa_node();
        let region = Region::anonymous(config.bytes, &config.placement, node)?;
        Ok(self.window_over(Arc::new(region), config.remote)?)
    }

    fn window_of(
        &self,
        window: &Window,
        part: Range<usize>,
        remote: RemoteAccess,
    ) -> Result<Window, ProviderError> {
        let region = Region::part(window.region(), part).ok_or(ProviderError {
            call: "window_of",
            errno: libc::EINVAL,
        })?;
        self.window_over(Arc::new(region), remote)
    }

    fn queue_pair(
        &self,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &QueuePairConfig,
    ) -> Result<QueuePairParts<Rdma>, ProviderError> {
        queue_pair::create(&self.inner, send_completions, receive_completions, config)
    }

    fn shared_receive_queue(
        &self,
        receive_completions: &CompletionQueue,
        config: &SharedReceiveQueueConfig,
    ) -> Result<SharedReceiveQueue, ProviderError> {
        SharedReceiveQueue::new(&self.inner, receive_completions, config)
    }

    fn queue_pair_on(
        &self,
        receives: &SharedReceiveQueue,
        send_completions: &CompletionQueue,
        config: &QueuePairConfig,
    ) -> Result<SharedQueuePairParts<Rdma>, ProviderError> {
        queue_pair::create_on(&self.inner, receives, send_completions, config)
    }

    fn queue_pair_of(
        &self,
        sends: Claim,
        receives: ReceivesClaim<Rdma>,
        config: &QueuePairConfig,
    ) -> Result<ClaimedQueuePairParts<Rdma>, ProviderError> {
        queue_pair::create_of(&self.inner, sends, receives, config)
    }

    fn datagram_queue_pair(
        &self,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &DatagramConfig,
    ) -> Result<DatagramPairParts<Rdma>, MemoryError> {
        // One header slot for each receive, so that a receive always finds one.
        let headers = self.arena(&ArenaConfig::new(config.receive_depth, GRH_BYTES))?;
        Ok(datagram::create(
            &self.inner,
            headers,
            send_completions,
            receive_completions,
            config,
        )?)
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({})", self.inner.context().name())
    }
}
