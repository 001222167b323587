//! A host's provider: its devices, contexts and protection domains.

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

use doorbell_core::provider::{
    ArenaConfig, AsyncEvent, ClaimedQueuePairParts, CompletionQueueConfig, DatagramConfig, DatagramPairParts,
    DeviceLimits, DomainId, GATHER_MAX, LookFailure, MemoryError, OnDemand, Provider, ProviderError,
    QueuePairConfig, QueuePairParts, REQUEST_BYTES_MAX, ReceivesClaim, RemoteAccess, SharedQueuePairParts,
    SharedReceiveQueueConfig, WindowConfig,
};
use doorbell_core::work_id::SLOTS_MAX;
use doorbell_core::{Clock, Instant, PortReport};

use crate::errno::{EINVAL, ENODEV, failed};
use crate::fabric::Fabric;
use crate::id::Id;
use crate::inside::Inside;
use crate::world::{ContextKey, DeviceId, HostId};
use crate::{
    Arena, Claim, Completion, CompletionQueue, DatagramQueuePair, DatagramReceiveQueue, DatagramSendQueue,
    QueuePair, Quirks, ReceiveQueue, SendQueue, SharedReceiveQueue, Slot, Window, datagram, queue_pair,
};

/// Limits of every simulated device, before its quirks.
pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    queue_depth_max: SLOTS_MAX,
    shared_receive_depth_max: SLOTS_MAX,
    // As below.
    shared_segments_max: 4,
    completion_depth_max: 1 << 22,
    // GATHER_MAX as a u32, which it cannot be converted to in a constant.
    segments_max: 4,
    max_rd_atomic: 128,
    max_dest_rd_atomic: 128,
    atomics: true,
    on_demand: OnDemand::all(),
};
const _: () = assert!(LIMITS.segments_max as usize == GATHER_MAX);

/// The most that goes inline.
pub(crate) const INLINE_BYTES_MAX: u32 = 512;

/// Inline bytes of a queue pair that asked for more.
pub(crate) const INLINE_BYTES_INSTEAD: u32 = 96;

/// The RDMA stack of one simulated host. Clones are handles to the same one.
#[derive(Clone)]
pub struct Host {
    fabric: Fabric,
    id: HostId,
    name: Arc<str>,
}

impl Host {
    pub(crate) fn new(fabric: Fabric, id: HostId, name: &str) -> Self {
        Self {
            fabric,
            id,
            name: name.into(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn id(&self) -> HostId {
        self.id
    }

    /// The network it is on.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

/// Operations whose memory a device can page on demand. Nothing is pinned in a simulation, so it pages no differently.
pub(crate) fn on_demand(quirks: &Quirks) -> OnDemand {
    if quirks.has_no_on_demand {
        OnDemand::empty()
    } else {
        LIMITS.on_demand
    }
}

impl Provider for Host {
    type Context = Context;
    type ProtectionDomain = ProtectionDomain;
    type Slot = Slot;
    type Arena = Arena;
    type Window = Window;
    type Completion = Completion;
    type CompletionQueue = CompletionQueue;
    type QueuePair = QueuePair;
    type SendQueue = SendQueue;
    type ReceiveQueue = ReceiveQueue;
    type SharedReceiveQueue = SharedReceiveQueue;
    type DatagramQueuePair = DatagramQueuePair;
    type DatagramSendQueue = DatagramSendQueue;
    type DatagramReceiveQueue = DatagramReceiveQueue;

    fn scan(
        &self,
        found: &mut dyn FnMut(&PortReport),
        _failed: &mut dyn FnMut(&str, LookFailure),
    ) -> Result<(), ProviderError> {
        let ports: Vec<PortReport> = {
            let world = self.fabric.lock();
            world.ports_of(self.id).cloned().collect()
        };
        // Not under the lock: the callback may use the fabric.
        ports.iter().for_each(found);
        Ok(())
    }

    fn open(&self, device: &str) -> Result<Context, ProviderError> {
        let mut world = self.fabric.lock();
        let device = world.find_device(self.id, device).ok_or(failed("open", ENODEV))?;
        let key = world.open(device);
        drop(world);
        Ok(Context {
            inner: Arc::new(ContextInner {
                fabric: self.fabric.clone(),
                key,
                device,
            }),
        })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name)
    }
}

/// An open device, open as long as anything made from it lives.
pub(crate) struct ContextInner {
    fabric: Fabric,
    key: ContextKey,
    device: DeviceId,
}

impl ContextInner {
    pub(crate) const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(crate) const fn key(&self) -> ContextKey {
        self.key
    }

    pub(crate) const fn device(&self) -> DeviceId {
        self.device
    }

    /// Whether it is of the same host as this one.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        if !self.fabric.is_same(&other.fabric) {
            return false;
        }
        let world = self.fabric.lock();
        let host = |context: &Self| world.device(context.device).map(|device| device.host);
        host(self).is_some() && host(self) == host(other)
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        self.fabric.lock().close(self.key);
    }
}

/// An open device.
pub struct Context {
    inner: Arc<ContextInner>,
}

impl Clock for Context {
    /// The time of the fabric, which is that of all its hosts but for those whose clock jumped ahead.
    fn now(&self) -> Instant {
        let world = self.inner.fabric.lock();
        let host = world.device(self.inner.device).map(|device| device.host);
        let ahead_ns = host.map_or(0, |host| world.ahead_ns(host));
        Instant::from_ns(world.now_ns().saturating_add(ahead_ns))
    }
}

impl doorbell_core::provider::Context<Host> for Context {
    fn limits(&self) -> DeviceLimits {
        let world = self.inner.fabric.lock();
        DeviceLimits {
            atomics: !world.quirks(self.inner.device).has_no_atomics,
            on_demand: on_demand(world.quirks(self.inner.device)),
            ..LIMITS
        }
    }

    fn protection_domain(&self) -> Result<ProtectionDomain, ProviderError> {
        let inner = DomainInner {
            context: Arc::clone(&self.inner),
            id: Id::fresh(),
        };
        Ok(ProtectionDomain {
            inner: Arc::new(inner),
        })
    }

    fn completion_queue(&self, config: &CompletionQueueConfig) -> Result<CompletionQueue, ProviderError> {
        CompletionQueue::new(&self.inner, config)
    }

    fn port(&self, port: u8) -> Result<PortReport, ProviderError> {
        let world = self.inner.fabric.lock();
        world
            .port(self.inner.device, port)
            .cloned()
            .ok_or(failed("port", EINVAL))
    }

    fn request_bytes_max(&self, port: u8) -> Result<u32, ProviderError> {
        self.port(port).map(|_| REQUEST_BYTES_MAX)
    }

    /// `None`: there are no descriptors in a simulation.
    fn event_fd(&self) -> Option<i32> {
        None
    }

    fn next_event(&self) -> Result<Option<AsyncEvent>, ProviderError> {
        let mut world = self.inner.fabric.lock();
        Ok(world.next_event(self.inner.key))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.inner.key)
    }
}

/// A protection domain, alive as long as anything made in it.
pub(crate) struct DomainInner {
    context: Arc<ContextInner>,
    id: Id,
}

impl DomainInner {
    pub(crate) const fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    pub(crate) const fn id(&self) -> Id {
        self.id
    }
}

/// Domain that keeps connections and memory apart: only objects of one domain can be used together.
///
/// A slot posted on a queue pair of another domain makes the device answer
/// `LOC_PROT_ERR`, and no more (S8).
pub struct ProtectionDomain {
    inner: Arc<DomainInner>,
}

impl doorbell_core::provider::ProtectionDomain<Host> for ProtectionDomain {
    fn id(&self) -> DomainId {
        DomainId(self.inner.id.to_u64())
    }

    fn arena(&self, config: &ArenaConfig) -> Result<Arena, MemoryError> {
        let _inside = Inside::enter();
        let counted = Arc::clone(&self.inner.context.fabric.lock().arenas);
        Arena::new(self.inner.id, counted, config)
    }

    fn window(&self, config: &WindowConfig) -> Result<Window, MemoryError> {
        Window::new(&self.inner, config)
    }

    fn window_of(
        &self,
        window: &Window,
        part: Range<usize>,
        remote: RemoteAccess,
    ) -> Result<Window, ProviderError> {
        Window::again(&self.inner, (window, part), remote)
    }

    fn queue_pair(
        &self,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &QueuePairConfig,
    ) -> Result<QueuePairParts<Host>, ProviderError> {
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
    ) -> Result<SharedQueuePairParts<Host>, ProviderError> {
        queue_pair::create_on(&self.inner, receives, send_completions, config)
    }

    fn queue_pair_of(
        &self,
        sends: Claim,
        receives: ReceivesClaim<Host>,
        config: &QueuePairConfig,
    ) -> Result<ClaimedQueuePairParts<Host>, ProviderError> {
        queue_pair::create_of(&self.inner, sends, receives, config)
    }

    fn datagram_queue_pair(
        &self,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &DatagramConfig,
    ) -> Result<DatagramPairParts<Host>, MemoryError> {
        // One for each receive, so that there is always one for another.
        let headers = self.arena(&ArenaConfig::new(config.receive_depth, datagram::HEADER_BYTES))?;
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
        write!(f, "ProtectionDomain({:?})", self.inner.id)
    }
}
