//! The receive half of a queue pair, and its batches.

use core::fmt;
use core::mem::{ManuallyDrop, forget};
use std::sync::Arc;

use doorbell_core::ledger::{Ledger, Origin};
use doorbell_core::provider::{
    Arrival, ArrivalKind, LentCompletion as _, PostError, PushError, QueuePairLimits, Refused, Rejected,
};
use doorbell_core::{QpState, Ticket, WcStatus};
use rdma_sys::ibv_recv_wr;

use crate::queue_pair::Shared;
use crate::receive_ring::{Positions, ReceiveRing};
use crate::work_list::Elements;
use crate::{Completion, LentCompletion, MessageSlot, Slot, unposted};

/// Provider function that posts receives.
type PostReceive =
    unsafe extern "C" fn(*mut rdma_sys::ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32;

/// Replaces the number of places from the start of a batch to its end. If it is found without a batch, a batch was forgotten
/// (`mem::forget`). No ring has this many places, so meanwhile no message is put back into its own place.
const BEGUN: u32 = u32::MAX;

/// The receive half of a queue pair. One thread owns it, together with its completion queue.
pub struct ReceiveQueue {
    /// Owns the slots whose memory requests name, from staging until the device is done.
    ring: ManuallyDrop<ReceiveRing>,
    post_recv: PostReceive,
    /// How many places the ring has, which decides whether a message can be put back into its own place. Or [`BEGUN`].
    full: u32,
    scatter_max: u8,
    ledger: Ledger,
    shared: Arc<Shared>,
}

impl ReceiveQueue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        post_recv: PostReceive,
        positions: Positions,
        ledger: Ledger,
        limits: &QueuePairLimits,
    ) -> Self {
        let ring = ReceiveRing::new(positions);
        Self {
            full: ring.places(),
            ring: ManuallyDrop::new(ring),
            post_recv,
            scatter_max: limits.scatter_max,
            ledger,
            shared,
        }
    }

    /// Whether this is the half of this queue pair.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Records that no batch is open.
    #[inline(always)]
    fn end_batch(&mut self) {
        self.full = self.ring.places();
    }

    /// Returns all slots to their arenas, after the device has forgotten every receive.
    pub(crate) fn forget(&mut self) {
        self.ring.drain();
    }

    /// Stages a receive into the memory of a message that cannot go back to its own place.
    // A separate function, so that a loop over messages keeps no registers for it.
    #[cold]
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn restage_apart(&mut self, slot: Slot) -> Result<(), Slot> {
        use doorbell_core::provider::ReceiveQueue as _;
        self.restage(slot)
    }

    /// Takes the receive that this completion names. `each` gets its slots in order, each with the length of the bytes that
    /// arrived in it. Slots of earlier receives, which [`ReceiveQueue::retire_slots`] describes, come first and empty.
    #[inline(always)]
    fn retire_filled(
        &mut self,
        completion: &LentCompletion<'_>,
        mut each: impl FnMut(Ticket, Slot),
    ) -> Result<Arrival, Rejected> {
        let mut left = scattered(completion);
        let give_back = |ticket: Ticket, is_named: bool, mut slot: Slot| {
            let length = if is_named { left.min(slot.capacity()) } else { 0 };
            left = left.saturating_sub(length);
            slot.set_length(length);
            each(ticket, slot);
        };
        self.retire_slots(completion, give_back)
    }

    /// Takes the receive that this completion names. `each` gets its slots in order, as named. Before them it gets the
    /// slots of earlier receives whose own completions were dropped without being redeemed, as not named.
    #[inline(always)]
    pub(crate) fn retire_slots(
        &mut self,
        completion: &LentCompletion<'_>,
        mut each: impl FnMut(Ticket, bool, Slot),
    ) -> Result<Arrival, Rejected> {
        let work_id = completion.work_id();
        let give_back = |ticket: Ticket, slot| {
            let is_named = work_id.at(ticket.position()) == work_id;
            each(ticket, is_named, slot);
        };
        let ring = &mut *self.ring;
        let range = self.ledger.redeem(completion.origin(), work_id, |work_id| {
            ring.retire(work_id, give_back)
        })?;
        Ok(arrival(completion, range.last))
    }
}

impl doorbell_core::provider::ReceiveQueue for ReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Message = MessageSlot;
    type Batch<'q> = ReceiveBatch<'q>;

    #[inline(always)]
    fn stage(&mut self) -> ReceiveBatch<'_> {
        let state = self.shared.state();
        if self.full == BEGUN || (self.ring.positions().staged() != 0 && !state.accepts_receives()) {
            unposted::discard(&mut *self.ring);
        }
        self.full = BEGUN;
        self.ring.unlend();
        ReceiveBatch { queue: self, state }
    }

    #[inline(always)]
    fn restage(&mut self, slot: Slot) -> Result<(), Slot> {
        if self.full == BEGUN {
            // A batch was forgotten (`mem::forget`).
            unposted::discard(&mut *self.ring);
            self.end_batch();
        }
        match self.ring.stage([slot]) {
            Ok(_) => Ok(()),
            Err([slot]) => Err(slot),
        }
    }

    #[inline(always)]
    fn put_back(&mut self, message: MessageSlot) -> Result<(), Slot> {
        let Origin { queue, sequence } = message.origin();
        if self.ring.has_lent(sequence) {
            if queue == self.ledger.queue() {
                forget(message);
                // SAFETY: no other value had this origin, so the slot is the one that the ring gave for it. It is given up here.
                unsafe { self.ring.put_back() };
                return Ok(());
            }
            // The message is of another queue, and takes the place of the message that was lent. This is handled here, so that
            // the two checks stay separate, which is faster.
            self.ring.unlend();
        }
        self.restage_apart(message.into())
    }

    #[inline(always)]
    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        each: F,
    ) -> Result<Arrival, Rejected> {
        self.retire_filled(&completion, each)
    }

    #[inline(always)]
    fn retire_message(&mut self, completion: &LentCompletion<'_>) -> Option<(MessageSlot, Option<u32>)> {
        let (work_id, origin) = (completion.work_id(), completion.origin());
        let (ring, full) = (&mut *self.ring, self.full);
        let bytes = completion.message_bytes()?;
        let receive = self
            .ledger
            .redeem_if(origin, || ring.retire_oldest(work_id, origin.sequence, full))?;
        let mut slot = receive.take();
        slot.set_length(bytes);
        Some((MessageSlot::new(slot, origin), completion.immediate()))
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.ring.positions().posted()
    }

    #[inline]
    fn room(&self) -> u32 {
        self.ring.positions().room()
    }

    #[inline]
    fn missing(&self) -> u32 {
        self.ring.positions().missing()
    }

    #[inline]
    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: taken here once, as the half is dropped.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        // The device may still write into its slots, so the ring stays until the queue pair ends.
        self.shared.park_receives(ring);
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("ring", &*self.ring)
            .field("brought_to", &self.shared.state())
            .finish_non_exhaustive()
    }
}

/// Returns the arrival that a completion reports for its receive.
#[inline(always)]
pub(crate) fn arrival(completion: &LentCompletion<'_>, ticket: Ticket) -> Arrival {
    if completion.status() != WcStatus::SUCCESS {
        return failed(completion, ticket);
    }
    Arrival {
        ticket,
        status: WcStatus::SUCCESS,
        kind: completion.arrival_kind(),
        payload_bytes: completion.bytes(),
        immediate: completion.immediate(),
        vendor_error: 0,
    }
}

/// The [`arrival`] of a failed completion.
#[cold]
fn failed(completion: &LentCompletion<'_>, ticket: Ticket) -> Arrival {
    Arrival {
        ticket,
        status: completion.status(),
        kind: ArrivalKind::Failed,
        payload_bytes: 0,
        immediate: None,
        vendor_error: completion.vendor_error(),
    }
}

/// How many bytes the slots of a completion's receive hold.
#[inline(always)]
pub(crate) fn scattered(completion: &LentCompletion<'_>) -> u32 {
    match completion.arrival_kind() {
        ArrivalKind::Send => completion.bytes(),
        _ => 0,
    }
}

/// Stages a receive with `stage`, unless it has more slots than are allowed.
#[inline(always)]
pub(crate) fn push<const N: usize>(
    scatter_max: u8,
    slots: [Slot; N],
    stage: impl FnOnce([Slot; N]) -> Result<Ticket, [Slot; N]>,
) -> Result<Ticket, Refused<[Slot; N]>> {
    if N > usize::from(scatter_max) {
        let reason = PushError::TooManySegments {
            segments: u8::try_from(N).unwrap_or(u8::MAX),
            segments_max: scatter_max,
        };
        return Err(Refused { reason, item: slots });
    }
    stage(slots).map_err(|item| Refused {
        reason: PushError::Full,
        item,
    })
}

/// Receives staged for one post. A batch that is dropped posts nothing.
pub struct ReceiveBatch<'q> {
    queue: &'q mut ReceiveQueue,
    state: QpState,
}

impl ReceiveBatch<'_> {
    /// The elements of the receive that was staged last.
    pub(crate) fn last_elements(&mut self) -> Option<&mut Elements> {
        self.queue.ring.last_elements()
    }
}

impl doorbell_core::provider::ReceiveBatch for ReceiveBatch<'_> {
    type Slot = Slot;

    #[inline(always)]
    fn push<const N: usize>(&mut self, slots: [Slot; N]) -> Result<Ticket, Refused<[Slot; N]>> {
        if !self.state.accepts_receives() {
            return Err(Refused {
                reason: PushError::State(self.state),
                item: slots,
            });
        }
        let ReceiveQueue {
            ring, scatter_max, ..
        } = &mut *self.queue;
        push(*scatter_max, slots, |slots| ring.stage(slots))
    }

    #[inline]
    fn staged(&self) -> u32 {
        self.queue.ring.positions().staged()
    }

    #[inline]
    fn leave(self) {
        let Self { queue, .. } = &mut *ManuallyDrop::new(self);
        queue.end_batch();
    }

    #[inline]
    #[doc(alias = "ibv_post_recv")]
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let (post_recv, qp) = (queue.post_recv, queue.shared.as_ptr());
        let (status, posted) = queue.ring.submit(|first, refused| {
            // SAFETY: (ibv_post_recv(3)) 1. The queue pair is live, held by `shared`, and the function is its
            // provider's. 2. The list ends in null, and its elements are written. 3. The memory that they name
            // stays, as `ring` describes.
            unsafe { post_recv(qp, first, refused) }
        });
        if status == 0 {
            return Ok(posted);
        }
        // Dropping the batch returns the rest to their arenas.
        Err(unposted::refused(&*queue.ring, "ibv_post_recv", status, posted))
    }
}

impl Drop for ReceiveBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.queue.end_batch();
        if self.queue.ring.positions().staged() != 0 {
            unposted::discard(&mut *self.queue.ring);
        }
    }
}

impl fmt::Debug for ReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiveBatch({} staged)", self.queue.ring.positions().staged())
    }
}
