//! Set-up: devices, contexts, protection domains, queue pairs and their state.

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
    /// Owned pieces of registered memory.
    type Slot: Slot;
    /// Registered memory cut into slots.
    type Arena: Arena<Slot = Self::Slot>;
    /// Memory a peer may reach.
    type Window: Window;
    /// A completion, as polled.
    type Completion: Completion;
    /// A completion queue.
    type CompletionQueue: CompletionQueue<Completion = Self::Completion>;
    /// The control side of a queue pair.
    type QueuePair: QueuePair<SendQueue = Self::SendQueue, ReceiveQueue = Self::ReceiveQueue>;
    /// The send half of a queue pair.
    type SendQueue: SendQueue<Slot = Self::Slot, Window = Self::Window, Completion = Self::Completion>;
    /// The receive half of a queue pair.
    type ReceiveQueue: ReceiveQueue<Slot = Self::Slot, Completion = Self::Completion>;
    /// Receives that several queue pairs take from.
    type SharedReceiveQueue: SharedReceiveQueue<Slot = Self::Slot, Completion = Self::Completion>;
    /// The control side of a datagram queue pair.
    type DatagramQueuePair: DatagramQueuePair;
    /// The send half of a datagram queue pair.
    type DatagramSendQueue: DatagramSendQueue<Slot = Self::Slot, Completion = Self::Completion>;
    /// The receive half of a datagram queue pair.
    type DatagramReceiveQueue: DatagramReceiveQueue<Slot = Self::Slot, Completion = Self::Completion>;

    /// Looks at every port of every device, usable or not.
    ///
    /// # Errors
    /// The list of devices could not be had. A device, or one of its ports, that fails by itself is left out and
    /// passed to `failed` with the device's name. Its other ports are found.
    fn scan(
        &self,
        found: &mut dyn FnMut(&PortReport),
        failed: &mut dyn FnMut(&str, LookFailure),
    ) -> Result<(), ProviderError>;

    /// Opens a device by its name.
    ///
    /// # Errors
    /// There is none of that name (`ENODEV`), or it cannot be opened.
    fn open(&self, device: &str) -> Result<Self::Context, ProviderError>;
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Requests on one queue.
    pub queue_depth_max: u32,
    /// Receives on one shared receive queue; zero where the device has none.
    pub shared_receive_depth_max: u32,
    /// Scatter elements of a receive on a shared receive queue.
    pub shared_segments_max: u32,
    /// Completions in one queue.
    pub completion_depth_max: u32,
    /// Gather or scatter elements of a request.
    pub segments_max: u32,
    /// READs and atomics outstanding as requester, per queue pair.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder, per queue pair.
    pub max_dest_rd_atomic: u8,
    /// Whether it has atomics.
    pub atomics: bool,
    /// Operations whose memory it can page on demand; empty where it has no on-demand paging.
    pub on_demand: OnDemand,
}

/// An open device, and the clock of its host: [`CompletionQueue::sleep`] sleeps by it.
pub trait Context<P: Provider>: Clock + Send + Sync + Sized + 'static {
    /// Its limits.
    fn limits(&self) -> DeviceLimits;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// The device refused.
    fn protection_domain(&self) -> Result<P::ProtectionDomain, ProviderError>;

    /// Makes a completion queue.
    ///
    /// # Errors
    /// The device refused, or has no notification where that was asked for.
    fn completion_queue(&self, config: &CompletionQueueConfig) -> Result<P::CompletionQueue, ProviderError>;

    /// Looks at one of its ports now.
    ///
    /// # Errors
    /// There is no such port, or the device refused.
    fn port(&self, port: u8) -> Result<PortReport, ProviderError>;

    /// Bytes of one request at most, on one of its ports.
    ///
    /// # Errors
    /// As for [`Context::port`].
    fn request_bytes_max(&self, port: u8) -> Result<u32, ProviderError>;

    /// The file descriptor that becomes readable when an asynchronous event waits, where
    /// the provider has one.
    fn event_fd(&self) -> Option<i32>;

    /// Takes the next asynchronous event, without blocking.
    ///
    /// # Errors
    /// The descriptor failed.
    fn next_event(&self) -> Result<Option<AsyncEvent>, ProviderError>;
}

/// Something the device says of its own accord. Source: `ibv_get_async_event(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair can no longer work; carries its number.
    QueuePairFatal(Qpn),
    /// A queue pair refused a peer's access; carries its number.
    QueuePairAccess(Qpn),
    /// A queue pair refused a peer's request; carries its number.
    QueuePairRequest(Qpn),
    /// The first packet came on a queue pair that was only ready to receive.
    CommunicationEstablished(Qpn),
    /// The send queue of a queue pair drained.
    SendQueueDrained(Qpn),
    /// A queue pair on a shared receive queue will take no more receives.
    LastReceiveReached(Qpn),
    /// Fewer receives are left on a shared receive queue than its limit, which is off now.
    SharedReceiveLimit(SharedReceiveId),
    /// A shared receive queue can no longer work.
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

/// Isolation of connections and memory: only resources of one domain can be used together.
pub trait ProtectionDomain<P: Provider>: Send + Sync + Sized + 'static {
    /// Returns the number that distinguishes it from other domains.
    fn id(&self) -> DomainId;

    /// Registers memory made for it, cut into slots.
    ///
    /// # Errors
    /// The sizes are zero or overflow (`EINVAL`), memory could not be had or registered, or
    /// not of the kind that is required.
    fn arena(&self, config: &ArenaConfig) -> Result<P::Arena, MemoryError>;

    /// Registers zeroed memory that peers may reach.
    ///
    /// # Errors
    /// The size is zero (`EINVAL`), memory could not be had or registered, or not of the
    /// kind that is required.
    fn window(&self, config: &WindowConfig) -> Result<P::Window, MemoryError>;

    /// Registers a part of a window's memory once more, in this domain, with a key and rights of its own. The window may be of this
    /// domain, or of another, even of another device of this host.
    ///
    /// The memory stays until the last window of it is gone. Dropping one takes away the rights of that one alone.
    ///
    /// # Errors
    /// The part is empty or does not lie within the window (`EINVAL`), or the device refused.
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

    /// Makes a queue of receives for several queue pairs, which complete into this queue
    /// whichever of them takes them. Reckon its depth into that of the completion queue.
    ///
    /// # Errors
    /// The sizes are zero or too large, or the completion queue belongs to another device
    /// (`EINVAL`); a million were made on the completion queue (`EBUSY`); the device refused, or
    /// has no such queues (`EOPNOTSUPP`).
    fn shared_receive_queue(
        &self,
        receive_completions: &P::CompletionQueue,
        config: &SharedReceiveQueueConfig,
    ) -> Result<P::SharedReceiveQueue, ProviderError>;

    /// Makes a reliable-connection queue pair in RESET that takes its receives from a shared
    /// receive queue, and completes them into the completion queue of that.
    ///
    /// # Errors
    /// The channel is not unique on the send completion queue (`EEXIST`). One of the queues belongs to another device,
    /// the shared one belongs to another domain, or the config asks for receives of its own (`EINVAL`). Or the device
    /// refused.
    fn queue_pair_on(
        &self,
        receives: &P::SharedReceiveQueue,
        send_completions: &P::CompletionQueue,
        config: &QueuePairConfig,
    ) -> Result<SharedQueuePairParts<P>, ProviderError>;

    /// Makes a reliable-connection queue pair in RESET of what its completion queues promised before, each on its
    /// own thread: making it takes the device long, and this may be another.
    ///
    /// # Errors
    /// The claims are of another channel than the config says, of another kind, device or domain, or the
    /// config asks for receives where they are shared (`EINVAL`), or the device refused. The claims are
    /// given up.
    fn queue_pair_of(
        &self,
        sends: <P::CompletionQueue as CompletionQueue>::Claim,
        receives: ReceivesClaim<P>,
        config: &QueuePairConfig,
    ) -> Result<ClaimedQueuePairParts<P>, ProviderError>;

    /// Makes a datagram queue pair in RESET, with memory for the headers of what it receives.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::queue_pair`]; the number of address handles cannot be (`EINVAL`), or
    /// the memory could not be had.
    fn datagram_queue_pair(
        &self,
        send_completions: &P::CompletionQueue,
        receive_completions: &P::CompletionQueue,
        config: &DatagramConfig,
    ) -> Result<DatagramPairParts<P>, MemoryError>;
}

/// Source of the receives of a queue pair that is made of claims.
#[expect(clippy::exhaustive_enums, reason = "verbs know no third")]
pub enum ReceivesClaim<P: Provider> {
    /// A queue of its own, that completes here.
    Own(<P::CompletionQueue as CompletionQueue>::Claim),
    /// A shared one.
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

/// A queue pair that was made of claims, taken apart for the threads that use it. It is destroyed
/// when the last part goes.
pub struct ClaimedQueuePairParts<P: Provider> {
    /// The control side.
    pub control: P::QueuePair,
    /// The send half.
    pub send: P::SendQueue,
    /// The receive half; none where receives are shared.
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

/// A queue pair, taken apart for the threads that use it. It is destroyed when the last
/// part goes; only then do slots that never completed go home.
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

/// A queue pair on a shared receive queue, taken apart for the threads that use it. It is
/// destroyed when the last part goes, and before the shared receive queue is.
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

/// A device's promise about the order in which the bytes of one message land. Each variant promises more than the one
/// before.
///
/// Source: `ibv_query_qp_data_in_order(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DataInOrder {
    /// Nothing: only a completion proves that bytes are there.
    No,
    /// Each block of 128 bytes, aligned to its size, is written in order; blocks are not.
    Aligned128,
    /// A message is written from its first byte to its last.
    WholeMessage,
}

/// The control side of a queue pair.
pub trait QueuePair: Send + Sized + 'static {
    /// Its send half.
    type SendQueue;
    /// Its receive half, where it has receives of its own.
    type ReceiveQueue;

    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Returns the limits that it was granted.
    fn limits(&self) -> QueuePairLimits;

    /// RESET to INIT on a port, with the rights of the peer on it.
    ///
    /// # Errors
    /// Not in RESET (`EINVAL`), or the device refused; nothing changed.
    fn initialize(&mut self, port: u8, remote: RemoteAccess) -> Result<(), ProviderError>;

    /// INIT to RTR.
    ///
    /// # Errors
    /// Not in INIT (`EINVAL`), or the device refused: `ETIMEDOUT` where the neighbour does
    /// not resolve; nothing changed.
    fn ready_to_receive(&mut self, attributes: &ReadyToReceive) -> Result<(), ProviderError>;

    /// RTR to RTS.
    ///
    /// # Errors
    /// Not in RTR (`EINVAL`), or the device refused; nothing changed.
    fn ready_to_send(&mut self, attributes: &ReadyToSend) -> Result<(), ProviderError>;

    /// RTS to SQD: requests that have begun go on to their end, and later ones wait. Once none is under way any more,
    /// the device reports [`AsyncEvent::SendQueueDrained`].
    ///
    /// # Errors
    /// Not in RTS (`EINVAL`), or the device refused; nothing changed.
    fn drain(&mut self) -> Result<(), ProviderError>;

    /// SQD to RTS: requests that wait go on.
    ///
    /// # Errors
    /// Not in SQD, or requests are still under way (`EINVAL`), or the device refused; nothing changed.
    fn resume(&mut self) -> Result<(), ProviderError>;

    /// Any state to RESET, from where it can be connected anew. Posted requests are forgotten: they make no completion,
    /// and their slots go home. A completion that is not redeemed before the call is never redeemed.
    ///
    /// Both halves have to be at hand, since the slots are theirs. One on a shared receive queue is not reset: the receives
    /// it holds would be lost to the others.
    ///
    /// # Errors
    /// The halves are another's (`EINVAL`), it was reset a million times (`EBUSY`), or the device refused; no slot went
    /// home, and it may be tried again.
    fn reset(
        &mut self,
        send: &mut Self::SendQueue,
        receive: &mut Self::ReceiveQueue,
    ) -> Result<(), ProviderError>;

    /// Any state but RESET to ERR: everything posted is flushed and completes.
    ///
    /// # Errors
    /// In RESET (`EINVAL`), or the device refused.
    fn fail(&mut self) -> Result<(), ProviderError>;

    /// In which order the bytes of a peer's WRITE land in our memory: whether a reader may poll
    /// the memory itself. It says nothing of the order between two WRITEs.
    ///
    /// Source: `ibv_query_qp_data_in_order(3)`.
    fn data_in_order(&self) -> DataInOrder;

    /// The state the device says it is in.
    ///
    /// # Errors
    /// The device could not be asked.
    fn state(&self) -> Result<QpState, ProviderError>;
}
