//! The receive half of a queue pair, and its posting guard.

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    Arrival, ArrivalKind, LentCompletion as _, PostError, PushError, QueuePairLimits, Refused, Rejected,
};
use doorbell_core::{QpState, Ticket, WcStatus, WorkId, WorkKind};
use rdma_sys::ibv_recv_wr;

use crate::queue_pair::{Shared, Table};
use crate::work_list::{Description, Elements, WorkList};
use crate::{Completion, LentCompletion, Slot, unposted};

/// Function of the provider that posts receives.
type PostReceive =
    unsafe extern "C" fn(*mut rdma_sys::ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32;

/// The receive half of a queue pair; with its completion queue it belongs to one thread.
pub struct ReceiveQueue {
    /// Owns the slots whose memory requests name, from staging until the device is done.
    table: ManuallyDrop<Table>,
    /// Made for as many requests as the table is deep.
    list: WorkList<ibv_recv_wr>,
    post_recv: PostReceive,
    /// How many receives batches left staged.
    left: u32,
    ledger: Ledger,
    scatter_max: u8,
    shared: Arc<Shared>,
}

impl ReceiveQueue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        post_recv: PostReceive,
        table: Table,
        ledger: Ledger,
        limits: &QueuePairLimits,
    ) -> Self {
        Self {
            // The table is empty: it has room for all it is deep.
            list: WorkList::new(table.room()),
            table: ManuallyDrop::new(table),
            post_recv,
            left: 0,
            ledger,
            scatter_max: limits.scatter_max,
            shared,
        }
    }

    /// Whether it is the half of this queue pair.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Sends all slots home, the device having forgotten every receive.
    pub(crate) fn forget(&mut self) {
        self.table.drain(drop);
    }

    /// Takes the receive this completion names; `each` gets its slots in order, their lengths set to what arrived in each.
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

    /// Takes the receive this completion names; `each` gets its slots in order, and before them those of
    /// receives before it, whose own completions were dropped unredeemed: these are not named.
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
        let table = &mut *self.table;
        let range = self.ledger.redeem(completion.origin(), work_id, |work_id| {
            table.retire(work_id, give_back)
        })?;
        Ok(arrival(completion, range.last))
    }
}

impl doorbell_core::provider::ReceiveQueue for ReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = ReceiveBatch<'q>;

    #[inline(always)]
    fn stage(&mut self) -> ReceiveBatch<'_> {
        let state = self.shared.state();
        // A batch that was forgotten staged others.
        let is_left = self.table.staged() == self.left;
        if !is_left || (self.left != 0 && !state.accepts_receives()) {
            unposted::discard(&mut *self.table);
            self.left = 0;
        }
        ReceiveBatch { queue: self, state }
    }

    #[inline(always)]
    fn restage(&mut self, slot: Slot) -> Result<(), Slot> {
        if self.table.staged() != self.left {
            // A batch was forgotten.
            unposted::discard(&mut *self.table);
            self.left = 0;
        }
        let staged = self.left;
        let element = slot.element(slot.capacity());
        let (_, work_id) = self.table.stage([slot]).map_err(|[slot]| slot)?;
        // SAFETY: the table has one more staged, so the index is below its depth, which the list was made for.
        let (request, elements) = unsafe { self.list.entry(staged) };
        request.wr_id = work_id.to_raw();
        request.num_sge = 1;
        if let Some(first) = elements.first_mut() {
            *first = element;
        }
        self.left = staged.wrapping_add(1);
        Ok(())
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
    fn retire_message(&mut self, completion: &LentCompletion<'_>) -> Option<(Slot, Option<u32>)> {
        let (table, work_id) = (&mut *self.table, completion.work_id());
        let bytes = completion.message_bytes()?;
        let mut slot = self
            .ledger
            .redeem_if(completion.origin(), || table.retire_oldest(work_id))?;
        slot.set_length(bytes);
        Some((slot, completion.immediate()))
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.table.posted()
    }

    #[inline]
    fn room(&self) -> u32 {
        self.table.room()
    }

    #[inline]
    fn missing(&self) -> u32 {
        self.table.missing()
    }

    #[inline]
    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: taken here once, the half being dropped.
        let table = unsafe { ManuallyDrop::take(&mut self.table) };
        // The device may still write into its slots: the table waits for the queue pair to end.
        self.shared.park(WorkKind::Receive, table);
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("table", &*self.table)
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

/// [`arrival`] of a failure.
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

/// How many bytes lie in the slots of the receive a completion is of.
#[inline(always)]
pub(crate) fn scattered(completion: &LentCompletion<'_>) -> u32 {
    match completion.arrival_kind() {
        ArrivalKind::Send => completion.bytes(),
        _ => 0,
    }
}

/// Writes a receive into the list where it fits, and has `stage` take its slots.
///
/// # Safety
/// `stage` takes no slots unless `staged` is below the length that the list was made for.
#[inline(always)]
pub(crate) unsafe fn push<const N: usize>(
    list: &mut WorkList<ibv_recv_wr>,
    staged: u32,
    scatter_max: u8,
    slots: [Slot; N],
    stage: impl FnOnce([Slot; N]) -> Result<(Ticket, WorkId), [Slot; N]>,
) -> Result<Ticket, Refused<[Slot; N]>> {
    if N > usize::from(scatter_max) {
        let reason = PushError::TooManySegments {
            segments: u8::try_from(N).unwrap_or(u8::MAX),
            segments_max: scatter_max,
        };
        return Err(Refused { reason, item: slots });
    }
    let description = Description::new(&slots, Slot::capacity);
    let (ticket, work_id) = stage(slots).map_err(|item| Refused {
        reason: PushError::Full,
        item,
    })?;
    // SAFETY: `stage` took the slots, so the index is as the caller vouches.
    let (request, elements) = unsafe { list.entry(staged) };
    request.wr_id = work_id.to_raw();
    request.num_sge = description.write(elements);
    Ok(ticket)
}

/// Receives staged for one post. Dropping it posts nothing.
pub struct ReceiveBatch<'q> {
    queue: &'q mut ReceiveQueue,
    state: QpState,
}

impl ReceiveBatch<'_> {
    /// The elements of the receive that was staged last.
    pub(crate) fn last_elements(&mut self) -> Option<&mut Elements> {
        let last = self.queue.table.staged().checked_sub(1)?;
        // SAFETY: the table has more requests staged, and the list was made for its depth.
        let (_, elements) = unsafe { self.queue.list.entry(last) };
        Some(elements)
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
        let queue = &mut *self.queue;
        let (staged, scatter_max) = (queue.table.staged(), queue.scatter_max);
        let stage = |slots| queue.table.stage(slots);
        // SAFETY: the table has `staged` requests staged: where it takes one more, that is below its
        // depth, which the list was made for.
        unsafe { push(&mut queue.list, staged, scatter_max, slots, stage) }
    }

    #[inline]
    fn staged(&self) -> u32 {
        self.queue.table.staged()
    }

    #[inline]
    fn leave(self) {
        let Self { queue, .. } = &mut *ManuallyDrop::new(self);
        queue.left = queue.table.staged();
    }

    #[inline]
    #[doc(alias = "ibv_post_recv")]
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let (post_recv, qp) = (queue.post_recv, queue.shared.as_ptr());
        let (status, posted) = queue.list.submit(queue.table.staged(), |first, refused| {
            // SAFETY: (ibv_post_recv(3)) 1. The queue pair is live, held by `shared`, and the function is its
            // provider's. 2. The list ends in null, and its elements are written. 3. The memory they name stays,
            // as `table` says.
            unsafe { post_recv(qp, first, refused) }
        });
        queue.left = 0;
        if status == 0 {
            queue.table.post_all();
            return Ok(posted);
        }
        queue.table.post(posted);
        // The batch, being dropped, sends the rest home.
        Err(unposted::refused(&*queue.table, "ibv_post_recv", status, posted))
    }
}

impl Drop for ReceiveBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.queue.table.staged() != 0 {
            unposted::discard(&mut *self.queue.table);
            self.queue.left = 0;
        }
    }
}

impl fmt::Debug for ReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiveBatch({} staged)", self.queue.table.staged())
    }
}
