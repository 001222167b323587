//! Unreliable datagrams: queue pairs without a peer, which can send to any queue pair with a known address (S31).
//!
//! They are for short control messages: SENDs of one packet. A datagram may be lost, duplicated or reordered, without
//! notice to either side. Memory follows the same rules as on a connection: posting moves slots into the queue, and a
//! completion returns them. Datagrams with immediate, shared receives, multicast and a reset are not supported.
//!
//! The 40 bytes before a datagram go to a slot of the queue's own arena, so a lease begins with the datagram. They are
//! returned as a [`Grh`](crate::Grh). A peer wrote them, so they prove nothing.
//!
//! Source: InfiniBand Architecture volume 1, sections 9.8.3 and 10.2.5.

use core::fmt;

use crate::{AddressHandle, Grh, Psn, Qkey, QpState, Qpn, Ticket};

use super::{
    AddressVector, Arrival, Completion, Lent, PostError, PostFlags, Provider, ProviderError, PushError,
    QueuePairLimits, Refused, Rejected, Retired, Slot,
};

/// The parts of a datagram queue pair, for the threads that use them. The queue pair is destroyed when the last part is
/// dropped; only then are slots without a completion returned to their arena.
pub struct DatagramPairParts<P: Provider> {
    /// The control side.
    pub control: P::DatagramQueuePair,
    /// The send half.
    pub send: P::DatagramSendQueue,
    /// The receive half.
    pub receive: P::DatagramReceiveQueue,
}

impl<P: Provider> fmt::Debug for DatagramPairParts<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatagramPairParts({:?})", self.control.qpn())
    }
}

/// The control side of a datagram queue pair.
pub trait DatagramQueuePair: Send + Sized + 'static {
    /// The queue pair number.
    fn qpn(&self) -> Qpn;

    /// Returns the granted limits.
    fn limits(&self) -> QueuePairLimits;

    /// RESET to INIT on a port, with the key that received datagrams must carry.
    ///
    /// # Errors
    /// Not in RESET (`EINVAL`), or the device refused; nothing changed.
    fn initialize(&mut self, port: u8, qkey: Qkey) -> Result<(), ProviderError>;

    /// INIT to RTR.
    ///
    /// # Errors
    /// Not in INIT (`EINVAL`), or the device refused; nothing changed.
    fn ready_to_receive(&mut self) -> Result<(), ProviderError>;

    /// RTR to RTS. Devices do not check the PSNs of datagrams.
    ///
    /// # Errors
    /// Not in RTR (`EINVAL`), or the device refused; nothing changed.
    fn ready_to_send(&mut self, send_psn: Psn) -> Result<(), ProviderError>;

    /// SQE to RTS. After a failed request the device changes the state to SQE and flushes later requests, but still receives.
    ///
    /// # Errors
    /// Not in SQE (`EINVAL`), or the device refused; nothing changed.
    fn resume(&mut self) -> Result<(), ProviderError>;

    /// Any state except RESET to ERR: all posted requests are flushed and complete.
    ///
    /// # Errors
    /// In RESET (`EINVAL`), or the device refused.
    fn fail(&mut self) -> Result<(), ProviderError>;

    /// Queries the state from the device.
    ///
    /// # Errors
    /// The device could not be queried.
    fn state(&self) -> Result<QpState, ProviderError>;
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address handle of the port.
    pub address: AddressHandle,
    /// The number of the queue pair.
    pub qpn: Qpn,
    /// The key of the queue pair.
    pub qkey: Qkey,
}

/// The send half of a datagram queue pair; with its completion queue it belongs to one thread.
pub trait DatagramSendQueue: Send + Sized + 'static {
    /// The memory to post.
    type Slot: Slot;
    /// A kept completion.
    type Completion: Completion;
    /// The posting guard.
    type Batch<'q>: DatagramBatch<'q, Slot = Self::Slot>;

    /// Makes an address handle for a port. It lasts until it is released, or until the queue pair ends.
    ///
    /// # Errors
    /// The maximum number of address handles exists (`ENOBUFS`), or the device refused: `ETIMEDOUT` if the neighbour does
    /// not resolve.
    #[doc(alias = "ibv_create_ah")]
    fn address_handle(&mut self, address: &AddressVector) -> Result<AddressHandle, ProviderError>;

    /// Releases an address handle. Its place is free again when all requests posted until now are retired. An unknown
    /// handle changes nothing.
    #[doc(alias = "ibv_destroy_ah")]
    fn release(&mut self, address: AddressHandle);

    /// Begins a batch. If an earlier batch was forgotten, its staged requests are unstaged first.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Retires all requests up to the one that this completion names, as
    /// [`SendQueue::retire`](super::SendQueue::retire) does. A success means that the datagram was sent, or that it was
    /// longer than the port's MTU.
    ///
    /// # Errors
    /// The completion names no request in flight here; nothing was retired.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Retired, Rejected>;

    /// The number of requests in flight.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// The number of rejected completions: stale, duplicate, or of another queue.
    fn rejected(&self) -> u64;
}

/// Datagrams staged for one doorbell. Dropping the batch posts nothing: its datagrams are unstaged, and their slots
/// return to their arena.
pub trait DatagramBatch<'q>: Sized {
    /// The memory to post.
    type Slot: Slot;

    /// Stages one datagram of `N` slots, up to [`super::GATHER_MAX`].
    ///
    /// The first [`Slot::len_bytes`] bytes of each slot are sent. A datagram longer than the MTU of the port is not
    /// sent, and completes with success (S31). [`PostFlags::FENCE`] has no effect here.
    ///
    /// # Errors
    /// [`Refused`] returns the slots with the reason.
    fn push<const N: usize>(
        &mut self,
        to: Destination,
        slots: [Self::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Self::Slot; N]>>;

    /// Stages one datagram with inline bytes of the caller.
    ///
    /// # Errors
    /// The queue is full, there are too many bytes, or the address handle is unknown.
    fn push_inline(
        &mut self,
        to: Destination,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// The number of staged datagrams.
    fn staged(&self) -> u32;

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests.
    ///
    /// # Errors
    /// The device accepted only a part. `unposted` gets the slots of the rest, in order. If it panics, the slots that it
    /// did not get return to their arena.
    fn ring_returning<F: FnMut(Ticket, Self::Slot)>(self, unposted: F) -> Result<u32, PostError>;

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to their arena.
    fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
    }
}

/// The receive half of a datagram queue pair; with its completion queue it belongs to one thread.
///
/// The 40 bytes before each datagram ([`crate::grh::GRH_BYTES`]) go to memory of the queue, so that a slot
/// has the datagram from its first byte on.
pub trait DatagramReceiveQueue: Send + Sized + 'static {
    /// The memory to post.
    type Slot: Slot;
    /// A kept completion.
    type Completion: Completion;
    /// The posting guard.
    type Batch<'q>: DatagramReceiveBatch<Slot = Self::Slot>;

    /// Begins a batch. If an earlier batch was forgotten, its staged receives are unstaged first.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Retires the receive that this completion names. `each` gets its slot, with the length of the datagram.
    ///
    /// # Errors
    /// The completion names no receive in flight here; nothing was retired.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Datagram, Rejected>;

    /// The number of posted receives.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// The number of rejected completions: stale, duplicate, or of another queue.
    fn rejected(&self) -> u64;
}

/// Receives of datagrams, staged for one post. Dropping the batch posts nothing, and the slots return to their arena.
pub trait DatagramReceiveBatch: Sized {
    /// The memory to post.
    type Slot: Slot;

    /// Stages one receive. A datagram longer than the slot's capacity is lost. A slot of the port's MTU can hold any
    /// datagram.
    ///
    /// # Errors
    /// [`Refused`] returns the slot with the reason.
    fn push(&mut self, slot: Self::Slot) -> Result<Ticket, Refused<Self::Slot>>;

    /// The number of staged receives.
    fn staged(&self) -> u32;

    /// Posts all staged receives in one call. Returns the number of posted receives.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to their arena.
    fn ring(self) -> Result<u32, PostError>;
}

/// A retired receive of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The arrival. Its bytes are those of the datagram, without the header.
    pub arrival: Arrival,
    /// The queue pair that sent it; undefined if the receive failed (S7).
    pub source_qpn: Qpn,
    /// The header before the datagram. `None` if the receive failed, or if the device wrote no valid header.
    pub grh: Option<Grh>,
}
