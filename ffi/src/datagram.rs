//! Datagram queue pairs: the same halves as those of a connection, with a destination for each request and a place for
//! the header of each receive.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use doorbell_core::address_handles::{AddressHandles, Place};
use doorbell_core::provider::{
    AddressVector, Arena as _, Arrival, Datagram, DatagramConfig, DatagramPairParts, Destination, Operation,
    PostError, PostFlags, ProviderError, PushError, QueuePairLimits, ReceiveBatch as _, ReceiveQueue as _,
    Refused, Rejected, Retired, SendBatch as _, SendQueue as _,
};
use doorbell_core::work_id::SLOTS_MAX;
use doorbell_core::{AddressHandle, Grh, Psn, Qkey, QpState, Qpn, Ticket, grh};
use rdma_sys::ud_t;

use crate::address::{Address, Addresses};
use crate::domain::DomainInner;
use crate::queue_pair::{self, Shared, no_attributes};
use crate::{
    Arena, Completion, CompletionQueue, LentCompletion, Rdma, ReceiveBatch, ReceiveQueue, SendBatch,
    SendQueue, Slot,
};

/// Bytes of the header that precedes a datagram, which the length of the datagram does not count.
pub(crate) const GRH_BYTES: u32 = 40;
const _: () = assert!(GRH_BYTES as usize == grh::GRH_BYTES);

/// Makes a datagram queue pair in RESET. `headers` has a slot for each of its receives.
pub(crate) fn create(
    domain: &Arc<DomainInner>,
    headers: Arena,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &DatagramConfig,
) -> Result<DatagramPairParts<Rdma>, ProviderError> {
    if !(1..=SLOTS_MAX).contains(&config.addresses_max) {
        return Err(ProviderError {
            call: "datagram_queue_pair",
            errno: libc::EINVAL,
        });
    }
    let queues = config.queues();
    let made = queue_pair::create_for_datagrams(domain, send_completions, receive_completions, &queues)?;
    let places: Addresses = (0..config.addresses_max).map(|_| Place::default()).collect();
    Ok(DatagramPairParts {
        send: DatagramSendQueue {
            addresses: AddressHandles::new(fresh_number(), places),
            inner: made.send,
            domain: Arc::clone(domain),
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

/// Returns a number that distinguishes the address handles of one queue pair from those of others.
fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number matters. It wraps round only after 2^64 queue pairs.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The control side of a datagram queue pair.
pub struct DatagramQueuePair {
    shared: Arc<Shared>,
    limits: QueuePairLimits,
}

impl DatagramQueuePair {
    /// Brings the queue pair from state `from` into `next`.
    fn modify(
        &mut self,
        call: &'static str,
        (from, next): (QpState, QpState),
        set: impl FnOnce(&mut rdma_sys::ibv_qp_attr),
    ) -> Result<(), ProviderError> {
        let mut attributes = no_attributes();
        set(&mut attributes);
        let mask = from.required_of_datagrams(next);
        self.shared.modify(call, (from, next), mask, &mut attributes)
    }
}

impl doorbell_core::provider::DatagramQueuePair for DatagramQueuePair {
    fn qpn(&self) -> Qpn {
        self.shared.qpn()
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn initialize(&mut self, port: u8, qkey: Qkey) -> Result<(), ProviderError> {
        let change = (QpState::Reset, QpState::Init);
        self.modify("ibv_modify_qp to INIT", change, |attributes| {
            attributes.pkey_index = 0;
            attributes.port_num = port;
            attributes.qkey = qkey.to_u32();
        })
    }

    fn ready_to_receive(&mut self) -> Result<(), ProviderError> {
        let change = (QpState::Init, QpState::ReadyToReceive);
        self.modify("ibv_modify_qp to RTR", change, |_| ())
    }

    fn ready_to_send(&mut self, send_psn: Psn) -> Result<(), ProviderError> {
        let change = (QpState::ReadyToReceive, QpState::ReadyToSend);
        self.modify("ibv_modify_qp to RTS", change, |attributes| {
            attributes.sq_psn = send_psn.to_u32();
        })
    }

    fn resume(&mut self) -> Result<(), ProviderError> {
        const CALL: &str = "ibv_modify_qp to RTS";
        // The device entered that state by itself: doorbell last brought the queue pair to RTS.
        let (brought_to, now) = (self.shared.state(), self.shared.query_state()?);
        if now != QpState::SendQueueError {
            return Err(ProviderError {
                call: CALL,
                errno: libc::EINVAL,
            });
        }
        let mask = now.required_of_datagrams(QpState::ReadyToSend);
        let change = (brought_to, QpState::ReadyToSend);
        self.shared.modify(CALL, change, mask, &mut no_attributes())
    }

    fn fail(&mut self) -> Result<(), ProviderError> {
        let change = (self.shared.state(), QpState::Error);
        self.modify("ibv_modify_qp to ERR", change, |_| ())
    }

    fn state(&self) -> Result<QpState, ProviderError> {
        self.shared.query_state()
    }
}

impl fmt::Debug for DatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePair")
            .field("qpn", &self.shared.qpn())
            .field("brought_to", &self.shared.state())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The send half of a datagram queue pair. One thread owns it, together with its completion queue.
pub struct DatagramSendQueue {
    inner: SendQueue,
    /// Address handles. A handle that a posted request names stays here until the request is retired.
    addresses: AddressHandles<Address, Addresses>,
    domain: Arc<DomainInner>,
}

impl doorbell_core::provider::DatagramSendQueue for DatagramSendQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = DatagramBatch<'q>;

    fn address_handle(&mut self, address: &AddressVector) -> Result<AddressHandle, ProviderError> {
        let full = ProviderError {
            call: "address_handle",
            errno: libc::ENOBUFS,
        };
        self.addresses.reclaim(self.inner.range().start);
        if !self.addresses.has_room() {
            return Err(full);
        }
        let address = Address::new(&self.domain, address)?;
        self.addresses.insert(address).map_err(|_| full)
    }

    fn release(&mut self, address: AddressHandle) {
        let range = self.inner.range();
        self.addresses.release(address, range.end);
        self.addresses.reclaim(range.start);
    }

    #[inline]
    fn stage(&mut self) -> DatagramBatch<'_> {
        DatagramBatch {
            inner: self.inner.stage(),
            addresses: &self.addresses,
        }
    }

    #[inline]
    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        each: F,
    ) -> Result<Retired, Rejected> {
        self.inner.retire(completion, each)
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    #[inline]
    fn room(&self) -> u32 {
        self.inner.room()
    }

    #[inline]
    fn rejected(&self) -> u64 {
        self.inner.rejected()
    }
}

impl Drop for DatagramSendQueue {
    fn drop(&mut self) {
        // The device may still use the handles that its requests name, so they are kept until the queue pair ends.
        self.inner.shared().park_addresses(self.addresses.take_places());
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

/// Datagrams staged for one doorbell. A batch that is dropped posts nothing.
pub struct DatagramBatch<'q> {
    inner: SendBatch<'q>,
    addresses: &'q AddressHandles<Address, Addresses>,
}

impl DatagramBatch<'_> {
    /// Returns the destination in the device's form.
    #[inline]
    fn way(&self, to: Destination) -> Result<ud_t, PushError> {
        let address = self.addresses.get(to.address).ok_or(PushError::UnknownAddress)?;
        Ok(ud_t {
            ah: address.as_ptr(),
            remote_qpn: to.qpn.to_u32(),
            remote_qkey: to.qkey.to_u32(),
        })
    }

    /// Writes the destination of the datagram that was staged last.
    #[inline]
    fn address_last(&mut self, way: ud_t) {
        if let Some(request) = self.inner.last_staged() {
            request.wr.ud = way;
        }
    }
}

impl<'q> doorbell_core::provider::DatagramBatch<'q> for DatagramBatch<'q> {
    type Slot = Slot;

    #[inline]
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
        let flags = flags.difference(PostFlags::FENCE);
        let ticket = self.inner.push(Operation::Send, slots, flags)?;
        self.address_last(way);
        Ok(ticket)
    }

    #[inline]
    fn push_inline(
        &mut self,
        to: Destination,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let way = self.way(to)?;
        let flags = flags.difference(PostFlags::FENCE);
        let ticket = self.inner.push_inline(Operation::Send, bytes, flags)?;
        self.address_last(way);
        Ok(ticket)
    }

    #[inline]
    fn staged(&self) -> u32 {
        self.inner.staged()
    }

    #[inline]
    fn ring_returning<F: FnMut(Ticket, Slot)>(self, each: F) -> Result<u32, PostError> {
        self.inner.ring_returning(each)
    }
}

impl fmt::Debug for DatagramBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramBatch").field(&self.inner).finish()
    }
}

/// The receive half of a datagram queue pair. One thread owns it, together with its completion queue.
///
/// A receive consists of a slot of `headers`, of which the device gets the bytes of one header, and the pushed slot
/// after it.
pub struct DatagramReceiveQueue {
    inner: ReceiveQueue,
    headers: Arena,
}

impl doorbell_core::provider::DatagramReceiveQueue for DatagramReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = DatagramReceiveBatch<'q>;

    #[inline]
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
        let payload_bytes = completion.bytes().saturating_sub(GRH_BYTES);
        let (headers, mut grh, mut header_of) = (&mut self.headers, None, None);
        let arrival = self
            .inner
            .retire_slots(&completion, |ticket, is_named, mut slot| {
                if header_of != Some(ticket) {
                    header_of = Some(ticket);
                    if is_named && completion.has_route() {
                        slot.set_length(GRH_BYTES);
                        grh = read_header(&slot);
                    }
                    headers.release(slot);
                    return;
                }
                slot.set_length(if is_named { payload_bytes } else { 0 });
                each(ticket, slot);
            })?;
        Ok(Datagram {
            arrival: Arrival {
                payload_bytes,
                ..arrival
            },
            source_qpn: completion.source_qpn(),
            grh,
        })
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    #[inline]
    fn room(&self) -> u32 {
        self.inner.room()
    }

    #[inline]
    fn rejected(&self) -> u64 {
        self.inner.rejected()
    }
}

fn read_header(slot: &Slot) -> Option<Grh> {
    use doorbell_core::provider::Slot as _;
    Grh::parse(slot.payload().first_chunk()?)
}

impl fmt::Debug for DatagramReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramReceiveQueue").field(&self.inner).finish()
    }
}

/// Receives of datagrams, staged for one post. A batch that is dropped posts nothing.
pub struct DatagramReceiveBatch<'q> {
    inner: ReceiveBatch<'q>,
    headers: &'q mut Arena,
}

impl doorbell_core::provider::DatagramReceiveBatch for DatagramReceiveBatch<'_> {
    type Slot = Slot;

    fn push(&mut self, slot: Slot) -> Result<Ticket, Refused<Slot>> {
        // There is one header slot for each receive. If none is free, the queue is full.
        let Some(header) = self.headers.lease() else {
            let reason = PushError::Full;
            return Err(Refused { reason, item: slot });
        };
        match self.inner.push([header, slot]) {
            Ok(ticket) => {
                if let Some([first, ..]) = self.inner.last_elements() {
                    // The slot is longer, since slots end at the end of a cache line.
                    first.length = GRH_BYTES;
                }
                Ok(ticket)
            }
            Err(Refused {
                reason,
                item: [header, slot],
            }) => {
                self.headers.release(header);
                Err(Refused { reason, item: slot })
            }
        }
    }

    #[inline]
    fn staged(&self) -> u32 {
        self.inner.staged()
    }

    #[inline]
    fn ring(self) -> Result<u32, PostError> {
        self.inner.ring()
    }
}

impl fmt::Debug for DatagramReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramReceiveBatch").field(&self.inner).finish()
    }
}
