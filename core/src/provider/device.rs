//! Set-up: devices, contexts, protection domains, queue pairs and their states.

use core::fmt;
use core::ops::Range;

use crate::remote::RemoteAccess;
use crate::{Clock, PortReport, QpState, Qpn, SharedReceiveId};

use super::{
    Arena, ArenaConfig, Completion, CompletionQueue, CompletionQueueConfig, DatagramConfig,
    DatagramPairParts, DatagramQueuePair, DatagramReceiveQueue, DatagramSendQueue, DomainId, LookFailure,
    MemoryError, OnDemand, ProviderError, QueuePairConfig, QueuePairLimits, ReadyToReceive, ReadyToSend,
    ReceiveQueue, SendQueue, SharedReceiveQueue, SharedReceiveQueueConfig, Slot, Window, WindowConfig,
};

/// An RDMA stack, which lists devices and opens them.
pub trait Provider: Send + Sync + Sized + 'static {
    /// An open device.
    type Context: Context<Self>;
    /// A protection domain.
    type ProtectionDomain: ProtectionDomain<Self>;
    /// An owned piece of registered memory.
    type Slot: Slot;
    /// Registered memory cut into slots.
    type Arena: Arena<Slot = Self::Slot>;
    /// Memory that a peer may access.
    type Window: Window;
    /// A completion.
    type Completion: Completion;
    /// A completion queue.
    type CompletionQueue: CompletionQueue<Completion = Self::Completion>;
    /// The control side of a queue pair.
    type QueuePair: QueuePair<SendQueue = Self::SendQueue, ReceiveQueue = Self::ReceiveQueue>;
    /// The send half of a queue pair.
    type SendQueue: SendQueue<Slot = Self::Slot, Window = Self::Window, Completion = Self::Completion>;
    /// The receive half of a queue pair.
    type ReceiveQueue: ReceiveQueue<Slot = Self::Slot, Completion = Self::Completion>;
    /// A queue of receives that several queue pairs share.
    type SharedReceiveQueue: SharedReceiveQueue<Slot = Self::Slot, Completion = Self::Completion>;
    /// The control side of a datagram queue pair.
    type DatagramQueuePair: DatagramQueuePair;
    /// The send half of a datagram queue pair.
    type DatagramSendQueue: DatagramSendQueue<Slot = Self::Slot, Completion = Self::Completion>;
    /// The receive half of a datagram queue pair.
    type DatagramReceiveQueue: DatagramReceiveQueue<Slot = Self::Slot, Completion = Self::Completion>;

    /// Reports every port of every device, usable or not.
    ///
    /// # Errors
    /// The devices could not be listed. If a device or one of its ports fails, only that one is left out, and
    /// passed to `failed` with the device's name.
    fn scan(
        &self,
        found: &mut dyn FnMut(&PortReport),
        failed: &mut dyn FnMut(&str, LookFailure),
    ) -> Result<(), ProviderError>;

    /// Opens a device by its name.
    ///
    /// # Errors
    /// No device has this name (`ENODEV`), or it cannot be opened.
    fn open(&self, device: &str) -> Result<Self::Context, ProviderError>;
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The maximum number of requests on one queue.
    pub queue_depth_max: u32,
    /// The maximum number of receives on a shared receive queue; zero if the device has no such queues.
    pub shared_receive_depth_max: u32,
    /// The maximum number of scatter elements of a receive on a shared receive queue.
    pub shared_segments_max: u32,
    /// The maximum number of completions in one queue.
    pub completion_depth_max: u32,
    /// The maximum number of gather or scatter elements of a request.
    pub segments_max: u32,
    /// The maximum number of outstanding READs and atomics as requester, for each queue pair.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding READs and atomics as responder, for each queue pair.
    pub max_dest_rd_atomic: u8,
    /// Whether the device has atomics.
    pub atomics: bool,
    /// The operations whose memory the device can page on demand; empty without on-demand paging.
    pub on_demand: OnDemand,
}

/// An open device, and the clock of its host, which [`CompletionQueue::sleep`] uses.
pub trait Context<P: Provider>: Clock + Send + Sync + Sized + 'static {
    /// The limits of the device.
    fn limits(&self) -> DeviceLimits;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// The device refused.
    fn protection_domain(&self) -> Result<P::ProtectionDomain, ProviderError>;

    /// Makes a completion queue.
    ///
    /// # Errors
    /// The device refused, or has no notification although it was requested.
    fn completion_queue(&self, config: &CompletionQueueConfig) -> Result<P::CompletionQueue, ProviderError>;

    /// Queries one port.
    ///
    /// # Errors
    /// There is no such port, or the device refused.
    fn port(&self, port: u8) -> Result<PortReport, ProviderError>;

    /// The maximum number of bytes of a request on a port.
    ///
    /// # Errors
    /// As for [`Context::port`].
    fn request_bytes_max(&self, port: u8) -> Result<u32, ProviderError>;

    /// The file descriptor that becomes readable when an asynchronous event waits, if the
    /// provider has one.
    fn event_fd(&self) -> Option<i32>;

    /// Takes the next asynchronous event, without blocking.
    ///
    /// # Errors
    /// The descriptor failed.
    fn next_event(&self) -> Result<Option<AsyncEvent>, ProviderError>;
}

/// An asynchronous event of the device. Source: `ibv_get_async_event(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair failed; carries its number.
    QueuePairFatal(Qpn),
    /// A queue pair refused a peer's access; carries its number.
    QueuePairAccess(Qpn),
    /// A queue pair refused a peer's request; carries its number.
    QueuePairRequest(Qpn),
    /// The first packet arrived on a queue pair in RTR.
    CommunicationEstablished(Qpn),
    /// The send queue of a queue pair drained.
    SendQueueDrained(Qpn),
    /// A queue pair on a shared receive queue will consume no more receives.
    LastReceiveReached(Qpn),
    /// A shared receive queue has fewer receives than its limit. The limit is now off.
    SharedReceiveLimit(SharedReceiveId),
    /// A shared receive queue failed.
    SharedReceiveFatal(SharedReceiveId),
    /// A completion queue overran, or failed.
    CompletionQueueError,
    /// A port came up.
    PortActive(u8),
    /// A port went down.
    PortError(u8),
    /// The GID table of a port changed.
    GidChange(u8),
    /// The device failed.
    DeviceFatal,
    /// Another event, by its number.
    Other(u32),
}

/// A protection domain: only resources of the same domain can be used together.
pub trait ProtectionDomain<P: Provider>: Send + Sync + Sized + 'static {
    /// Returns the id of the domain.
    fn id(&self) -> DomainId;

    /// Allocates and registers memory that is cut into slots.
    ///
    /// # Errors
    /// The sizes are zero or overflow (`EINVAL`), memory could not be allocated or registered, or
    /// a required placement could not be met.
    fn arena(&self, config: &ArenaConfig) -> Result<P::Arena, MemoryError>;

    /// Allocates and registers zeroed memory that peers may access.
    ///
    /// # Errors
    /// The size is zero (`EINVAL`), memory could not be allocated or registered, or a required
    /// placement could not be met.
    fn window(&self, config: &WindowConfig) -> Result<P::Window, MemoryError>;

    /// Registers a part of a window's memory once more, in this domain, with a separate key and separate rights. The window may belong
    /// to this domain or another, also of another device of this host.
    ///
    /// The memory stays until its last window is gone. Dropping a window withdraws only its own rights.
    ///
    /// # Errors
    /// The part is empty or not within the window (`EINVAL`), or the device refused.
    fn window_of(
        &self,
        window: &P::Window,
        part: Range<usize>,
        remote: RemoteAccess,
    ) -> Result<P::Window, ProviderError>;

    /// Makes a reliable-connection queue pair in RESET.
    ///
    /// # Errors
    /// The channel is not unique on a completion queue (`EEXIST`), the completion queues
    /// belong to another device (`EINVAL`), or the device refused.
    fn queue_pair(
        &self,
        send_completions: &P::CompletionQueue,
        receive_completions: &P::CompletionQueue,
        config: &QueuePairConfig,
    ) -> Result<QueuePairParts<P>, ProviderError>;

    /// Makes a queue of receives for several queue pairs. All of its receives complete into this
    /// completion queue, whose depth has to include them.
    ///
    /// # Errors
    /// The sizes are zero or too large, or the completion queue belongs to another device
    /// (`EINVAL`). A million such queues were made on the completion queue (`EBUSY`). Or the device
    /// refused, or does not support them (`EOPNOTSUPP`).
    fn shared_receive_queue(
        &self,
        receive_completions: &P::CompletionQueue,
        config: &SharedReceiveQueueConfig,
    ) -> Result<P::SharedReceiveQueue, ProviderError>;

    /// Makes a reliable-connection queue pair in RESET that consumes receives of a shared
    /// receive queue. They complete into the completion queue of the shared queue.
    ///
    /// # Errors
    /// The channel is not unique on the send completion queue (`EEXIST`). One of the queues belongs to another device,
    /// the shared queue belongs to another domain, or the config asks for separate receives (`EINVAL`). Or the device
    /// refused.
    fn queue_pair_on(
        &self,
        receives: &P::SharedReceiveQueue,
        send_completions: &P::CompletionQueue,
        config: &QueuePairConfig,
    ) -> Result<SharedQueuePairParts<P>, ProviderError>;

    /// Makes a reliable-connection queue pair in RESET from claims. The polling threads get the claims from their
    /// completion queues, and another thread makes the queue pair, since that takes the device long.
    ///
    /// # Errors
    /// The claims are for another channel than the config, or of another kind, device or domain; or the config
    /// asks for receives although they are shared (`EINVAL`). Or the device refused. The claims are dropped.
    fn queue_pair_of(
        &self,
        sends: <P::CompletionQueue as CompletionQueue>::Claim,
        receives: ReceivesClaim<P>,
        config: &QueuePairConfig,
    ) -> Result<ClaimedQueuePairParts<P>, ProviderError>;

    /// Makes a datagram queue pair in RESET, with memory for the headers of received datagrams.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::queue_pair`]. Or the number of address handles is out of its range (`EINVAL`),
    /// or the memory could not be allocated.
    fn datagram_queue_pair(
        &self,
        send_completions: &P::CompletionQueue,
        receive_completions: &P::CompletionQueue,
        config: &DatagramConfig,
    ) -> Result<DatagramPairParts<P>, MemoryError>;
}

/// The receives of a queue pair that is made from claims.
#[expect(clippy::exhaustive_enums, reason = "verbs know no third")]
pub enum ReceivesClaim<P: Provider> {
    /// A separate receive queue, which completes into this claim's queue.
    Own(<P::CompletionQueue as CompletionQueue>::Claim),
    /// A shared receive queue.
    Shared(<P::SharedReceiveQueue as SharedReceiveQueue>::Claim),
}

impl<P: Provider> fmt::Debug for ReceivesClaim<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Shared(_) => "Shared",
        })
    }
}

/// The parts of a queue pair that was made from claims, for the threads that use them. The queue
/// pair is destroyed when the last part is dropped.
pub struct ClaimedQueuePairParts<P: Provider> {
    /// The control side.
    pub control: P::QueuePair,
    /// The send half.
    pub send: P::SendQueue,
    /// The receive half; `None` if receives are shared.
    pub receive: Option<P::ReceiveQueue>,
}

impl<P: Provider> fmt::Debug for ClaimedQueuePairParts<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimedQueuePairParts({:?})", self.control.qpn())
    }
}

impl<P: Provider> From<QueuePairParts<P>> for ClaimedQueuePairParts<P> {
    fn from(parts: QueuePairParts<P>) -> Self {
        Self {
            control: parts.control,
            send: parts.send,
            receive: Some(parts.receive),
        }
    }
}

impl<P: Provider> From<SharedQueuePairParts<P>> for ClaimedQueuePairParts<P> {
    fn from(parts: SharedQueuePairParts<P>) -> Self {
        Self {
            control: parts.control,
            send: parts.send,
            receive: None,
        }
    }
}

/// The parts of a queue pair, for the threads that use them. The queue pair is destroyed when the
/// last part is dropped; only then are slots without a completion returned to their arena.
pub struct QueuePairParts<P: Provider> {
    /// The control side.
    pub control: P::QueuePair,
    /// The send half.
    pub send: P::SendQueue,
    /// The receive half.
    pub receive: P::ReceiveQueue,
}

impl<P: Provider> fmt::Debug for QueuePairParts<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePairParts({:?})", self.control.qpn())
    }
}

/// The parts of a queue pair on a shared receive queue, for the threads that use them. The queue
/// pair is destroyed when the last part is dropped, and before the shared receive queue.
pub struct SharedQueuePairParts<P: Provider> {
    /// The control side.
    pub control: P::QueuePair,
    /// The send half.
    pub send: P::SendQueue,
}

impl<P: Provider> fmt::Debug for SharedQueuePairParts<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedQueuePairParts({:?})", self.control.qpn())
    }
}

/// A device's guarantee about the order in which the bytes of one message land. Each variant guarantees more than the
/// one before.
///
/// Source: `ibv_query_qp_data_in_order(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DataInOrder {
    /// No order: only a completion proves that bytes have landed.
    No,
    /// Each block of 128 bytes, aligned to its size, is written in order; blocks are not.
    Aligned128,
    /// A message is written from its first byte to its last.
    WholeMessage,
}

/// The control side of a queue pair.
pub trait QueuePair: Send + Sized + 'static {
    /// The send half.
    type SendQueue;
    /// The receive half, if receives are not shared.
    type ReceiveQueue;

    /// The queue pair number.
    fn qpn(&self) -> Qpn;

    /// Returns the granted limits.
    fn limits(&self) -> QueuePairLimits;

    /// RESET to INIT on a port, with the rights of the peer.
    ///
    /// # Errors
    /// Not in RESET (`EINVAL`), or the device refused; nothing changed.
    fn initialize(&mut self, port: u8, remote: RemoteAccess) -> Result<(), ProviderError>;

    /// INIT to RTR.
    ///
    /// # Errors
    /// Not in INIT (`EINVAL`), or the device refused: `ETIMEDOUT` if the neighbour does
    /// not resolve; nothing changed.
    fn ready_to_receive(&mut self, attributes: &ReadyToReceive) -> Result<(), ProviderError>;

    /// RTR to RTS.
    ///
    /// # Errors
    /// Not in RTR (`EINVAL`), or the device refused; nothing changed.
    fn ready_to_send(&mut self, attributes: &ReadyToSend) -> Result<(), ProviderError>;

    /// RTS to SQD: requests that have begun are finished, and later ones wait. When none is under way any more,
    /// the device reports [`AsyncEvent::SendQueueDrained`].
    ///
    /// # Errors
    /// Not in RTS (`EINVAL`), or the device refused; nothing changed.
    fn drain(&mut self) -> Result<(), ProviderError>;

    /// SQD to RTS: waiting requests continue.
    ///
    /// # Errors
    /// Not in SQD, or requests are still under way (`EINVAL`), or the device refused; nothing changed.
    fn resume(&mut self) -> Result<(), ProviderError>;

    /// Any state to RESET, from which it can be connected again. Posted requests are dropped: they do not complete, and
    /// their slots return to their arena. A completion that was not redeemed before the call cannot be redeemed any more.
    ///
    /// The call needs both halves, which own the slots. A queue pair on a shared receive queue cannot be reset: receives
    /// that it holds would be lost.
    ///
    /// # Errors
    /// The halves belong to another queue pair (`EINVAL`), it was reset a million times (`EBUSY`), or the device refused.
    /// Then no slot was returned, and the call may be repeated.
    fn reset(
        &mut self,
        send: &mut Self::SendQueue,
        receive: &mut Self::ReceiveQueue,
    ) -> Result<(), ProviderError>;

    /// Any state except RESET to ERR: all posted requests are flushed and complete.
    ///
    /// # Errors
    /// In RESET (`EINVAL`), or the device refused.
    fn fail(&mut self) -> Result<(), ProviderError>;

    /// The order in which the bytes of a peer's WRITE land in local memory. It decides whether a reader may
    /// poll the memory itself. It says nothing about the order of two WRITEs.
    ///
    /// Source: `ibv_query_qp_data_in_order(3)`.
    fn data_in_order(&self) -> DataInOrder;

    /// Queries the state from the device.
    ///
    /// # Errors
    /// The device could not be queried.
    fn state(&self) -> Result<QpState, ProviderError>;
}
