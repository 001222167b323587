//! Unreliable datagrams: queue pairs without a peer, which send to any queue pair whose address they have (S31).
//!
//! They serve eager control messages: SENDs of one packet. A datagram may be lost, doubled or overtaken, and neither
//! side is notified. Memory follows the same rules as on a connection: slots move in by posting, and come back by a
//! completion. Datagrams with immediate, shared receives, multicast and a reset are not supported.
//!
//! The 40 bytes in front of a datagram go to a slot of the queue's own arena, so a lease begins with the datagram. They
//! are returned as a [`Grh`](crate::Grh). A peer wrote them, so they prove nothing.
//!
//! Source: InfiniBand Architecture volume 1, sections 9.8.3 and 10.2.5.

use core::fmt;

use crate::{AddressHandle, Grh, Psn, Qkey, QpState, Qpn, Ticket};

use super::{
    AddressVector, Arrival, Completion, Lent, PostError, PostFlags, Provider, ProviderError, PushError,
    QueuePairLimits, Refused, Rejected, Retired, Slot,
};

/// A datagram queue pair, taken apart for the threads that use it. It is destroyed when the last part goes;
/// only then do slots that never completed go home.
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
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Returns the limits that it was granted.
    fn limits(&self) -> QueuePairLimits;

    /// RESET to INIT on a port, with the key that datagrams for it must bring.
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

    /// SQE to RTS: the device brings it to SQE where a request fails, flushes those behind it, and receives on.
    ///
    /// # Errors
    /// Not in SQE (`EINVAL`), or the device refused; nothing changed.
    fn resume(&mut self) -> Result<(), ProviderError>;

    /// Any state but RESET to ERR: everything posted is flushed and completes.
    ///
    /// # Errors
    /// In RESET (`EINVAL`), or the device refused.
    fn fail(&mut self) -> Result<(), ProviderError>;

    /// The state the device says it is in.
    ///
    /// # Errors
    /// The device could not be asked.
    fn state(&self) -> Result<QpState, ProviderError>;
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address handle of the port.
    pub address: AddressHandle,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
}

/// The send half of a datagram queue pair; with its completion queue it belongs to one thread.
pub trait DatagramSendQueue: Send + Sized + 'static {
    /// Memory that is posted.
    type Slot: Slot;
    /// Completion that polling lends, where it is kept.
    type Completion: Completion;
    /// The posting guard.
    type Batch<'q>: DatagramBatch<'q, Slot = Self::Slot>;

    /// Makes the address of a port known to the device. It ends with the queue pair, if it is not released before.
    ///
    /// # Errors
    /// As many are there as may be (`ENOBUFS`), or the device refused: `ETIMEDOUT` where the neighbour does not
    /// resolve.
    #[doc(alias = "ibv_create_ah")]
    fn address_handle(&mut self, address: &AddressVector) -> Result<AddressHandle, ProviderError>;

    /// Releases an address. Its place is free for another once all requests posted until now are retired. A handle that
    /// names nothing here changes nothing.
    #[doc(alias = "ibv_destroy_ah")]
    fn release(&mut self, address: AddressHandle);

    /// Begins a batch. If an earlier batch was forgotten, its staged requests are unstaged first.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Gives back everything up to the request this completion names, as
    /// [`SendQueue::retire`](super::SendQueue::retire) does. A success means that the datagram left, or that it was
    /// longer than the port's MTU.
    ///
    /// # Errors
    /// The completion names nothing that is in flight here; nothing was given back.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Retired, Rejected>;

    /// How many requests are in flight.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// How many completions it rejected: stale, duplicate, or another's.
    fn rejected(&self) -> u64;
}

/// Datagrams staged for one doorbell. Dropping it rings nothing: what was staged is unstaged, and its slots
/// go home.
pub trait DatagramBatch<'q>: Sized {
    /// Memory that is posted.
    type Slot: Slot;

    /// Stages one datagram of `N` slots, up to [`super::GATHER_MAX`].
    ///
    /// The first [`Slot::len_bytes`] bytes of each slot are sent. A datagram longer than the MTU of the port is not
    /// sent, and completes in success (S31). [`PostFlags::FENCE`] has no meaning here.
    ///
    /// # Errors
    /// [`Refused`] hands the slots back with the reason.
    fn push<const N: usize>(
        &mut self,
        to: Destination,
        slots: [Self::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Self::Slot; N]>>;

    /// Stages one datagram whose bytes are the caller's own and go inline.
    ///
    /// # Errors
    /// The queue is full, the bytes too many, or the address handle names nothing.
    fn push_inline(
        &mut self,
        to: Destination,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// How many datagrams are staged.
    fn staged(&self) -> u32;

    /// Rings the doorbell once for all staged requests; returns how many were posted.
    ///
    /// # Errors
    /// The device took only part. `unposted` gets the slots of the rest, in order. If it panics, the slots it did
    /// not get go home.
    fn ring_returning<F: FnMut(Ticket, Self::Slot)>(self, unposted: F) -> Result<u32, PostError>;

    /// Rings the doorbell once for all staged requests; returns how many were posted.
    ///
    /// # Errors
    /// The device took only part; the slots of the rest went home.
    fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
    }
}

/// The receive half of a datagram queue pair; with its completion queue it belongs to one thread.
///
/// The 40 bytes that stand in front of each datagram ([`crate::grh::GRH_BYTES`]) go to memory of its own,
/// so that a slot holds the datagram from its first byte on.
pub trait DatagramReceiveQueue: Send + Sized + 'static {
    /// Memory that is posted.
    type Slot: Slot;
    /// Completion that polling lends, where it is kept.
    type Completion: Completion;
    /// The posting guard.
    type Batch<'q>: DatagramReceiveBatch<Slot = Self::Slot>;

    /// Begins a batch. If an earlier batch was forgotten, its staged receives are unstaged first.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Takes the receive this completion names; `each` gets its slot, its length set to that of the datagram.
    ///
    /// # Errors
    /// The completion names nothing that is in flight here; nothing was given back.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Datagram, Rejected>;

    /// How many receives are posted.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// How many completions it rejected: stale, duplicate, or another's.
    fn rejected(&self) -> u64;
}

/// Receives of datagrams, staged for one post. Dropping it posts nothing, and the slots go home.
pub trait DatagramReceiveBatch: Sized {
    /// Memory that is posted.
    type Slot: Slot;

    /// Stages one receive. A datagram longer than the slot's capacity is lost. A slot as long as the port's MTU holds
    /// any datagram.
    ///
    /// # Errors
    /// [`Refused`] hands the slot back with the reason.
    fn push(&mut self, slot: Self::Slot) -> Result<Ticket, Refused<Self::Slot>>;

    /// How many receives are staged.
    fn staged(&self) -> u32;

    /// Posts all staged receives in one call; returns how many were posted.
    ///
    /// # Errors
    /// The device took only part; the slots of the rest went home.
    fn ring(self) -> Result<u32, PostError>;
}

/// A receive of a datagram that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The receive. Its bytes are those of the datagram, without the header.
    pub arrival: Arrival,
    /// Which queue pair sent it; of no meaning where the receive failed (S7).
    pub source_qpn: Qpn,
    /// The header in front. `None` where the receive failed, or the device wrote none that can be read.
    pub grh: Option<Grh>,
}
