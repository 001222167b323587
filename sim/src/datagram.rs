//! Datagram queue pairs: the halves of a connection's, with a destination for each request, and a place for the
//! header of each receive.

use core::fmt;
use std::sync::Arc;

use doorbell_core::address_handles::{AddressHandles, Place};
use doorbell_core::provider::{
    AddressVector, Arena as _, Arrival, Datagram, DatagramConfig, DatagramPairParts, Destination, Operation,
    PostError, PostFlags, ProviderError, PushError, QueuePairLimits, ReceiveBatch as _, ReceiveQueue as _,
    Refused, Rejected, Retired, SendBatch as _, SendQueue as _, Slot as _,
};
use doorbell_core::work_id::SLOTS_MAX;
use doorbell_core::{AddressHandle, Gid, Grh, Psn, Qkey, QpState, Qpn, Ticket, grh};

use crate::errno::{EINVAL, ENOBUFS, failed};
use crate::host::DomainInner;
use crate::id::Id;
use crate::packet::Flow;
use crate::packet::encode::source_port;
use crate::queue_pair::{self, Shared};
use crate::quirks::Quirks;
use crate::{
    Arena, Completion, CompletionQueue, Host, LentCompletion, ReceiveBatch, ReceiveQueue, SendBatch,
    SendQueue, Slot,
};

/// Bytes of the header in front of a datagram, which its length does not include.
pub(crate) const HEADER_BYTES: u32 = 40;
const _: () = assert!(HEADER_BYTES as usize == grh::GRH_BYTES);

/// State of a datagram queue pair, in place of a connection, as the device knows it.
pub(crate) struct Datagrams {
    /// Key that incoming datagrams must carry.
    pub(crate) qkey: Qkey,
    next_psn: Psn,
}

impl Datagrams {
    /// The PSN of the next that is sent.
    pub(crate) const fn take_psn(&mut self) -> Psn {
        let psn = self.next_psn;
        self.next_psn = psn.advance(1);
        psn
    }
}

/// Sender of datagrams, while one is written.
pub(crate) struct Sender<'w> {
    pub(crate) domain: Id,
    pub(crate) qpn: Qpn,
    /// MTU of the port.
    pub(crate) mtu_bytes: usize,
    pub(crate) quirks: &'w Quirks,
    pub(crate) datagrams: &'w mut Datagrams,
}

/// Destination of a datagram.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) flow: Flow,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
}

/// A way to a port: from our own GID.
struct Address {
    source: Gid,
    vector: AddressVector,
}

type Addresses = AddressHandles<Address, Vec<Place<Address>>>;

/// Makes one in RESET; `headers` has a slot for each of its receives.
pub(crate) fn create(
    domain: &Arc<DomainInner>,
    headers: Arena,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &DatagramConfig,
) -> Result<DatagramPairParts<Host>, ProviderError> {
    if !(1..=SLOTS_MAX).contains(&config.addresses_max) {
        return Err(failed("datagram_queue_pair", EINVAL));
    }
    let made = queue_pair::create_own(domain, send_completions, receive_completions, &config.queues())?;
    let places = (0..config.addresses_max).map(|_| Place::default()).collect();
    Ok(DatagramPairParts {
        send: DatagramSendQueue {
            addresses: AddressHandles::new(Id::fresh().to_u64(), places),
            inner: made.send,
            shared: Arc::clone(&made.shared),
        },
        receive: DatagramReceiveQueue {
            inner: made.receive,
            headers,
        },
        control: DatagramQueuePair {
            shared: made.shared,
            limits: made.limits,
        },
    })
}

/// The control side of a datagram queue pair.
pub struct DatagramQueuePair {
    shared: Arc<Shared>,
    limits: QueuePairLimits,
}

impl doorbell_core::provider::DatagramQueuePair for DatagramQueuePair {
    fn qpn(&self) -> Qpn {
        self.shared.qpn()
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn initialize(&mut self, port: u8, qkey: Qkey) -> Result<(), ProviderError> {
        self.shared.with(|world, key| {
            world.initialize(key, "modify to INIT", port, |qp| {
                let next_psn = Psn::from_low_bits(0);
                qp.datagrams = Some(Datagrams { qkey, next_psn });
            })
        })
    }

    fn ready_to_receive(&mut self) -> Result<(), ProviderError> {
        let change = (QpState::Init, QpState::ReadyToReceive);
        self.shared
            .with(|world, key| world.modify(key, "modify to RTR", change, |_| ()))
    }

    fn ready_to_send(&mut self, send_psn: Psn) -> Result<(), ProviderError> {
        let change = (QpState::ReadyToReceive, QpState::ReadyToSend);
        self.shared.with(|world, key| {
            world.modify(key, "modify to RTS", change, |qp| {
                if let Some(datagrams) = &mut qp.datagrams {
                    datagrams.next_psn = send_psn;
                }
            })
        })
    }

    fn resume(&mut self) -> Result<(), ProviderError> {
        self.shared
            .with(|world, key| world.go_on(key, QpState::SendQueueError))
    }

    fn fail(&mut self) -> Result<(), ProviderError> {
        self.shared.fail()
    }

    fn state(&self) -> Result<QpState, ProviderError> {
        Ok(self.shared.state())
    }
}

impl fmt::Debug for DatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePair")
            .field("qpn", &self.shared.qpn())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The send half of a datagram queue pair; with its completion queue it belongs to one thread.
pub struct DatagramSendQueue {
    inner: SendQueue,
    addresses: Addresses,
    shared: Arc<Shared>,
}

impl doorbell_core::provider::DatagramSendQueue for DatagramSendQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = DatagramBatch<'q>;

    fn address_handle(&mut self, address: &AddressVector) -> Result<AddressHandle, ProviderError> {
        const CALL: &str = "address_handle";
        self.addresses.reclaim(self.inner.range().start);
        if !self.addresses.has_room() {
            return Err(failed(CALL, ENOBUFS));
        }
        let source = self.shared.look(|world, key| {
            let qp = world.queue_pairs.get(key).ok_or(failed(CALL, EINVAL))?;
            world.resolve_address(qp.device, CALL, address)
        })?;
        let address = Address {
            source,
            vector: *address,
        };
        self.addresses.insert(address).map_err(|_| failed(CALL, ENOBUFS))
    }

    fn release(&mut self, address: AddressHandle) {
        let range = self.inner.range();
        self.addresses.release(address, range.end);
        self.addresses.reclaim(range.start);
    }

    fn stage(&mut self) -> DatagramBatch<'_> {
        DatagramBatch {
            ours: self.shared.qpn(),
            inner: self.inner.stage(),
            addresses: &self.addresses,
        }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        each: F,
    ) -> Result<Retired, Rejected> {
        self.inner.retire(completion, each)
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn room(&self) -> u32 {
        self.inner.room()
    }

    fn rejected(&self) -> u64 {
        self.inner.rejected()
    }
}

impl fmt::Debug for DatagramSendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSendQueue")
            .field("inner", &self.inner)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Datagrams staged for one doorbell. Dropping it rings nothing.
pub struct DatagramBatch<'q> {
    ours: Qpn,
    inner: SendBatch<'q>,
    addresses: &'q Addresses,
}

impl DatagramBatch<'_> {
    /// Resolves a destination to the addresses of its packet.
    fn way(&self, to: Destination) -> Result<Way, PushError> {
        let address = self.addresses.get(to.address).ok_or(PushError::UnknownAddress)?;
        let flow = Flow {
            source: address.source,
            destination: address.vector.destination,
            port: source_port(self.ours, Psn::from_low_bits(to.qpn.to_u32())),
            traffic_class: address.vector.traffic_class,
            hop_limit: address.vector.hop_limit,
        };
        Ok(Way {
            flow,
            qpn: to.qpn,
            qkey: to.qkey,
        })
    }

    /// Writes down where the datagram goes that was staged last.
    fn address_last(&mut self, way: Way) {
        if let Some(request) = self.inner.last_staged() {
            request.way = Some(way);
        }
    }
}

impl<'q> doorbell_core::provider::DatagramBatch<'q> for DatagramBatch<'q> {
    type Slot = Slot;

    fn push<const N: usize>(
        &mut self,
        to: Destination,
        slots: [Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Slot; N]>> {
        let way = match self.way(to) {
            Ok(way) => way,
            Err(reason) => return Err(Refused { reason, item: slots }),
        };
        let ticket = self.inner.push(Operation::Send, slots, flags)?;
        self.address_last(way);
        Ok(ticket)
    }

    fn push_inline(
        &mut self,
        to: Destination,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let way = self.way(to)?;
        let ticket = self.inner.push_inline(Operation::Send, bytes, flags)?;
        self.address_last(way);
        Ok(ticket)
    }

    fn staged(&self) -> u32 {
        self.inner.staged()
    }

    fn ring_returning<F: FnMut(Ticket, Slot)>(self, unposted: F) -> Result<u32, PostError> {
        self.inner.ring_returning(unposted)
    }
}

impl fmt::Debug for DatagramBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramBatch").field(&self.inner).finish()
    }
}

/// The receive half of a datagram queue pair; with its completion queue it belongs to one thread.
///
/// A receive is a slot of `headers`, which a header fills, and the slot that was pushed behind it.
pub struct DatagramReceiveQueue {
    inner: ReceiveQueue,
    headers: Arena,
}

impl doorbell_core::provider::DatagramReceiveQueue for DatagramReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = DatagramReceiveBatch<'q>;

    fn stage(&mut self) -> DatagramReceiveBatch<'_> {
        DatagramReceiveBatch {
            inner: self.inner.stage(),
            headers: &mut self.headers,
        }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        mut each: F,
    ) -> Result<Datagram, Rejected> {
        let source_qpn = completion.entry().source_qpn;
        let (headers, mut grh) = (&mut self.headers, None);
        let arrival = self.inner.retire_receives(&completion, |receive, bytes| {
            let mut is_header = true;
            receive.give_back(bytes, |ticket, slot| {
                if core::mem::take(&mut is_header) {
                    grh = slot.payload().first_chunk().and_then(Grh::parse);
                    headers.release(slot);
                } else {
                    each(ticket, slot);
                }
            });
        })?;
        Ok(Datagram {
            arrival: Arrival {
                payload_bytes: arrival.payload_bytes.saturating_sub(HEADER_BYTES),
                ..arrival
            },
            source_qpn: source_qpn.unwrap_or(Qpn::from_low_bits(0)),
            grh,
        })
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn room(&self) -> u32 {
        self.inner.room()
    }

    fn rejected(&self) -> u64 {
        self.inner.rejected()
    }
}

impl fmt::Debug for DatagramReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramReceiveQueue").field(&self.inner).finish()
    }
}

/// Receives of datagrams, staged for one post. Dropping it posts nothing.
pub struct DatagramReceiveBatch<'q> {
    inner: ReceiveBatch<'q>,
    headers: &'q mut Arena,
}

impl doorbell_core::provider::DatagramReceiveBatch for DatagramReceiveBatch<'_> {
    type Slot = Slot;

    fn push(&mut self, slot: Slot) -> Result<Ticket, Refused<Slot>> {
        // There are as many as receives: where none is home, the queue is full.
        let Some(header) = self.headers.lease() else {
            let reason = PushError::Full;
            return Err(Refused { reason, item: slot });
        };
        // A header that is refused goes home as it is dropped.
        self.inner.push([header, slot]).map_err(|refused| {
            let [_, item] = refused.item;
            Refused {
                reason: refused.reason,
                item,
            }
        })
    }

    fn staged(&self) -> u32 {
        self.inner.staged()
    }

    fn ring(self) -> Result<u32, PostError> {
        self.inner.ring()
    }
}

impl fmt::Debug for DatagramReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramReceiveBatch").field(&self.inner).finish()
    }
}
