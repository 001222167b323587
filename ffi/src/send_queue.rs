//! The send half of a queue pair, and its batches.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    ATOMIC_BYTES, CellsError, Operation, PostError, PostFlags, PushError, QueuePairLimits, Refused, Rejected,
    Retired, WindowRange,
};
use doorbell_core::{Ticket, WcStatus, WorkId};
use rdma_sys::{ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use crate::cells::{Cells, LoneCell};
use crate::queue_pair::{Shared, Table};
use crate::send_ring::{RingRequest, SendRing};
use crate::work_list::{Description, Elements};
use crate::{Completion, LentCompletion, Slot, Window, unposted};

/// Provider function that posts sends.
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut rdma_sys::ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;

/// The send half of a queue pair. One thread owns it, together with its completion queue.
pub struct SendQueue {
    /// Owns the slots whose memory requests name, from staging until the device is done. A range has a slot that keeps its
    /// window. Inline bytes are borrowed for longer than their batch, and the address handle of a datagram stays in its
    /// half (`datagram`).
    table: ManuallyDrop<Table>,
    /// Owns the memory of requests without slots.
    cells: ManuallyDrop<Cells>,
    /// The ring has as many requests as the table is deep. Its first request that is not posted is the one of the table.
    ring: SendRing,
    /// Whether a batch staged something in the table, or wrote a request that is not plain. Unless the batch rings, that has
    /// to be undone.
    is_left: bool,
    post_send: PostSend,
    ledger: Ledger,
    gather_max: u8,
    inline_bytes_max: u32,
    shared: Arc<Shared>,
}

impl SendQueue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        post_send: PostSend,
        table: Table,
        ledger: Ledger,
        limits: &QueuePairLimits,
    ) -> Self {
        Self {
            // The table is empty, so its room is its depth.
            ring: SendRing::new(table.room()),
            is_left: false,
            table: ManuallyDrop::new(table),
            cells: ManuallyDrop::default(),
            post_send,
            ledger,
            gather_max: limits.gather_max,
            inline_bytes_max: limits.inline_bytes_max,
            shared,
        }
    }

    /// The requests from the oldest that is not retired to before the first that is not posted.
    pub(crate) fn range(&self) -> Range<Ticket> {
        self.table.oldest()..self.table.next()
    }

    /// Whether this is the half of this queue pair.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Returns all slots to their arenas, after the device has forgotten every request.
    pub(crate) fn forget(&mut self) {
        self.table.drain(drop);
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Unstages the requests of a batch that was forgotten (`mem::forget`).
    #[inline]
    fn unstage_left(&mut self) {
        if self.is_left {
            self.discard(u32::MAX);
        }
    }

    /// Unstages all staged requests, and makes the first `written` requests of the ring plain again.
    #[cold]
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn discard(&mut self, written: u32) {
        self.is_left = false;
        self.ring.make_plain(self.ring.first(), written);
        unposted::discard(&mut *self.table);
    }

    /// Returns why a request of this many elements can never be staged in this state.
    #[cold]
    fn refused_segments(&self, segments: usize) -> PushError {
        let state = self.shared.state();
        if state.accepts_sends() {
            PushError::TooManySegments {
                segments: u8::try_from(segments).unwrap_or(u8::MAX),
                segments_max: self.gather_max,
            }
        } else {
            PushError::State(state)
        }
    }
}

impl doorbell_core::provider::SendQueue for SendQueue {
    type Slot = Slot;
    type Window = Window;
    type Completion = Completion;
    type Batch<'q> = SendBatch<'q>;
    type Cell<'q> = LoneCell<'q>;

    fn furnish<I: IntoIterator<Item = Slot>>(&mut self, slots: I) -> Result<(), CellsError> {
        let domain = self.shared.domain().id();
        let needed = self.table.places();
        self.cells
            .furnish(&mut self.ring, slots.into_iter(), needed, domain)
    }

    #[inline]
    fn cell_bytes(&self) -> u32 {
        self.ring.cell_bytes()
    }

    #[inline(always)]
    fn cell(&mut self) -> Result<LoneCell<'_>, PushError> {
        self.unstage_left();
        if self.shared.segments_limit() <= 1 {
            return Err(self.refused_segments(1));
        }
        if self.ring.cell_bytes() == 0 {
            return Err(PushError::NoCells);
        }
        Ok(LoneCell {
            vacancy: self.table.vacancy().ok_or(PushError::Full)?,
            ring: &mut self.ring,
            post_send: self.post_send,
            shared: &self.shared,
            inline_bytes_max: self.inline_bytes_max,
        })
    }

    #[inline]
    fn stage(&mut self) -> SendBatch<'_> {
        self.unstage_left();
        let segments_limit = self.shared.segments_limit();
        let first = self.table.next();
        let cell_bytes = self.ring.cell_bytes();
        let end = first.forward(self.table.room().into());
        SendBatch {
            first,
            next: first,
            segments_limit,
            end,
            cells_end: if segments_limit > 1 && cell_bytes != 0 {
                end
            } else {
                first
            },
            cell_bytes,
            // Ids grow like positions until they wrap round. Ids after that point are corrected when the batch is rung.
            id_of_zero: self.table.work_id(first).to_raw().wrapping_sub(first.position()),
            place: self.ring.first(),
            queue: self,
        }
    }

    #[inline]
    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        each: F,
    ) -> Result<Retired, Rejected> {
        use doorbell_core::provider::LentCompletion as _;
        let table = &mut *self.table;
        let range = self
            .ledger
            .redeem(completion.origin(), completion.work_id(), |work_id| {
                table.retire(work_id, each)
            })?;
        Ok(Retired {
            first: range.first,
            last: range.last,
            status: completion.status(),
            vendor_error: if completion.status() == WcStatus::SUCCESS {
                0
            } else {
                completion.vendor_error()
            },
        })
    }

    #[inline(always)]
    fn retire_done<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: &LentCompletion<'_>,
        each: F,
    ) -> Option<Ticket> {
        use doorbell_core::provider::LentCompletion as _;
        if !completion.is_success() {
            return None;
        }
        let (table, work_id) = (&mut *self.table, completion.work_id());
        self.ledger
            .redeem_if(completion.origin(), || table.retire_found(work_id, each))
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    #[inline]
    fn room(&self) -> u32 {
        self.table.room()
    }

    #[inline]
    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        // SAFETY: taken here once, as the half is dropped.
        let table = unsafe { ManuallyDrop::take(&mut self.table) };
        // SAFETY: as above.
        let cells = unsafe { ManuallyDrop::take(&mut self.cells) };
        // The device may still have its requests, so table and cells stay until the queue pair ends.
        self.shared.park_sends(table);
        self.shared.park_cells(cells);
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("table", &*self.table)
            .field("brought_to", &self.shared.state())
            .finish_non_exhaustive()
    }
}

/// Requests staged for one doorbell. A batch that is dropped posts nothing.
///
/// The bytes of a cell are not accessible once its request is staged:
/// ```compile_fail,E0499
/// # use doorbell_core::provider::{Operation, PostFlags, SendBatch as _, SendQueue as _};
/// # fn f(send: &mut doorbell_ffi::SendQueue) {
/// let mut batch = send.stage();
/// if let Ok(cell) = batch.cell() {
///     batch.push_cell(Operation::Send, 1, PostFlags::SIGNALED).ok();
///     cell[0] = 1;
/// }
/// # }
/// ```
/// and neither are bytes that were lent without a batch, once a batch begins:
/// ```compile_fail,E0499
/// # use doorbell_core::provider::{LoneCell as _, SendQueue as _};
/// # fn f(send: &mut doorbell_ffi::SendQueue) {
/// if let Ok(mut cell) = send.cell() {
///     let batch = send.stage();
///     cell.bytes()[0] = 1;
/// }
/// # }
/// ```
/// or once the queue is dropped:
/// ```compile_fail,E0505
/// # use doorbell_core::provider::{LoneCell as _, SendQueue as _};
/// # fn f(mut send: doorbell_ffi::SendQueue) {
/// if let Ok(mut cell) = send.cell() {
///     drop(send);
///     cell.bytes()[0] = 1;
/// }
/// # }
/// ```
pub struct SendBatch<'q> {
    queue: &'q mut SendQueue,
    /// A request must have fewer elements than this: see [`Shared::segments_limit`].
    segments_limit: u8,
    cell_bytes: u32,
    /// The first request of the batch.
    first: Ticket,
    /// The request after the last that is staged. The table knows the staged requests up to the last that has slots or
    /// inline bytes.
    next: Ticket,
    /// The first request for which there is no room.
    end: Ticket,
    /// The first request for which there is no cell. Requests of other memory may be staged from there on.
    cells_end: Ticket,
    /// The id of a request minus its position.
    id_of_zero: u64,
    /// The next request in the ring.
    place: RingRequest,
}

impl SendBatch<'_> {
    /// The id of a request, which is right unless ids wrap round within the batch.
    #[inline(always)]
    const fn id_of(&self, ticket: Ticket) -> u64 {
        self.id_of_zero.wrapping_add(ticket.position())
    }

    /// Returns why the next request has no cell.
    #[cold]
    fn no_cell(&self) -> PushError {
        if self.segments_limit <= 1 {
            self.queue.refused_segments(1)
        } else if self.cell_bytes == 0 {
            PushError::NoCells
        } else {
            PushError::Full
        }
    }

    /// Returns why a request with these slots cannot be staged, even in an empty queue.
    #[inline]
    fn refusal<const N: usize>(
        &self,
        operation: Operation,
        slots: &[Slot; N],
        flags: PostFlags,
    ) -> Option<PushError> {
        if N >= usize::from(self.segments_limit) {
            return Some(self.queue.refused_segments(N));
        }
        if operation.is_atomic() && (N != 1 || slots.iter().any(|slot| slot.capacity() < ATOMIC_BYTES)) {
            return Some(PushError::AtomicNeedsEightBytes);
        }
        if flags.contains(PostFlags::INLINE) {
            if operation.writes_slots() {
                return Some(PushError::NotInline);
            }
            let bytes = slots
                .iter()
                .fold(0_u32, |sum, slot| sum.saturating_add(slot.length()));
            return self.too_long_inline(bytes);
        }
        None
    }

    /// The request that was staged last.
    #[inline]
    pub(crate) fn last_staged(&mut self) -> Option<&mut ibv_send_wr> {
        if self.next == self.first {
            return None;
        }
        // SAFETY: a request of the ring, which is borrowed exclusively.
        let last = unsafe { self.place.previous() };
        // SAFETY: as above.
        let (request, _) = unsafe { last.parts() };
        Some(request)
    }

    /// Stages a request with these slots in the table. Returns the request, which the caller has to write.
    #[inline(always)]
    fn stage<const N: usize>(
        &mut self,
        slots: [Slot; N],
    ) -> Result<(Ticket, &mut ibv_send_wr, &mut Elements), [Slot; N]> {
        let (ticket, place) = (self.next, self.place);
        if ticket == self.end {
            return Err(slots);
        }
        let id = self.id_of(ticket);
        let queue = &mut *self.queue;
        queue.is_left = true;
        queue.table.stage_at(ticket, slots);
        // SAFETY: requests of the ring, which is borrowed exclusively. The table had room for one more, so no request in
        // flight has this place, and no staged one.
        self.place = unsafe { place.following() };
        self.next = ticket.forward(1);
        // SAFETY: as above.
        let (request, elements) = unsafe { place.parts() };
        request.wr_id = id;
        request.sg_list = elements.as_mut_ptr();
        Ok((ticket, request, elements))
    }

    #[inline]
    fn too_long_inline(&self, bytes: u32) -> Option<PushError> {
        let bytes_max = self.queue.inline_bytes_max;
        (bytes > bytes_max).then_some(PushError::InlineTooLong { bytes, bytes_max })
    }
}

impl<'q> doorbell_core::provider::SendBatch<'q> for SendBatch<'q> {
    type Slot = Slot;
    type Window = Window;

    // If the operation is known at compile time, as it is for nearly all callers, little of this remains.
    #[inline(always)]
    fn push<const N: usize>(
        &mut self,
        operation: Operation,
        mut slots: [Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Slot; N]>> {
        if let Some(reason) = self.refusal(operation, &slots, flags) {
            return Err(Refused { reason, item: slots });
        }
        if operation.is_atomic() {
            for slot in &mut slots {
                slot.set_length(ATOMIC_BYTES);
            }
        }
        let description = Description::new(&slots, Slot::length);
        match self.stage(slots) {
            Ok((ticket, request, elements)) => {
                request.num_sge = description.write(elements);
                write_operation(request, operation, flags);
                Ok(ticket)
            }
            Err(slots) => Err(Refused {
                reason: PushError::Full,
                item: slots,
            }),
        }
    }

    #[inline]
    fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        if N >= usize::from(self.segments_limit) {
            return Err(self.queue.refused_segments(N));
        }
        PushError::check_ranges(operation, &ranges, flags)?;
        let description = Description::of_ranges(&ranges);
        // Each hold keeps its window until the request is retired. A full queue is checked first, so that no hold is made in vain.
        if self.next == self.end {
            return Err(PushError::Full);
        }
        let staged = self.stage(ranges.map(|range| range.window.hold()));
        let (ticket, request, elements) = staged.map_err(|_| PushError::Full)?;
        request.num_sge = description.write(elements);
        write_operation(request, operation, flags);
        Ok(ticket)
    }

    #[inline]
    fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        if self.segments_limit == 0 {
            return Err(self.queue.refused_segments(0));
        }
        if operation.writes_slots() {
            return Err(PushError::NotInline);
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if let Some(reason) = self.too_long_inline(length) {
            return Err(reason);
        }
        let Ok((ticket, request, elements)) = self.stage([]) else {
            return Err(PushError::Full);
        };
        // The bytes are read only during the post call, and `'q` outlives the batch (ibv_post_send(3), on IBV_SEND_INLINE).
        // The key is not used.
        let [element, ..] = elements;
        element.addr = bytes.as_ptr().expose_provenance() as u64;
        element.length = length;
        element.lkey = 0;
        request.num_sge = i32::from(length != 0);
        write_operation(request, operation, flags | PostFlags::INLINE);
        Ok(ticket)
    }

    #[inline(always)]
    fn cell_bytes(&self) -> u32 {
        self.cell_bytes
    }

    #[inline(always)]
    fn cell(&mut self) -> Result<&mut [u8], PushError> {
        if self.next.position() >= self.cells_end.position() {
            return Err(self.no_cell());
        }
        // SAFETY: 1. The batch borrows the ring exclusively, and there are cells. 2. There is room for one more request than
        // is staged, so no request in flight has its place.
        Ok(unsafe { self.place.lend(self.cell_bytes) })
    }

    #[inline(always)]
    fn push_cell(
        &mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let (ticket, place) = (self.next, self.place);
        if ticket.position() >= self.cells_end.position() {
            return Err(self.no_cell());
        }
        let limits = [self.cell_bytes, self.queue.inline_bytes_max];
        PushError::check_cell(operation, len_bytes, flags, limits)?;
        let work_id = WorkId::from_raw(self.id_of(ticket));
        // SAFETY: a request of the ring, which is borrowed exclusively. It is plain: there are cells, and only requests that
        // are staged, all before this one, may not be plain.
        let is_plain = unsafe { place.write(work_id, operation, len_bytes, flags) };
        if !is_plain {
            self.queue.is_left = true;
        }
        // SAFETY: as above.
        self.place = unsafe { place.following() };
        self.next = ticket.forward(1);
        Ok(ticket)
    }

    #[inline(always)]
    fn next(&self) -> Ticket {
        self.next
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    fn staged(&self) -> u32 {
        self.next.position().wrapping_sub(self.first.position()) as u32
    }

    #[inline]
    fn signal_last(&mut self) {
        if let Some(request) = self.last_staged() {
            request.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    fn ring_reporting<T, F>(self, report: T, each: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Slot),
    {
        let staged = self.staged();
        if staged == 0 {
            return Ok(0);
        }
        let last = self.next.back(1);
        let id_of_last = self.id_of(last);
        let queue = &mut *self.queue;
        if queue.table.work_id(last).to_raw() != id_of_last {
            let (table, start) = (&queue.table, self.first);
            queue
                .ring
                .number(staged, |at| table.work_id(start.forward(at.into())));
        }
        let first = queue.ring.first();
        let (post_send, qp) = (queue.post_send, queue.shared.as_ptr());
        let post = |request: *mut ibv_send_wr, refused: &mut *mut ibv_send_wr| {
            // SAFETY: (ibv_post_send(3)) 1. The queue pair is live, held by `shared`, and the function is its
            // provider's. 2. The list ends in null, and its elements are written. 3. The memory and the address
            // handles that they name stay, as `table` describes.
            unsafe { post_send(qp, request, refused) }
        };
        // SAFETY: `staged` requests of the ring lie before `self.place`, no more than the table has room for.
        let (status, posted) = unsafe { queue.ring.submit(self.place, staged, post) };
        if queue.is_left {
            queue.is_left = false;
            queue.ring.make_plain(first, staged);
        }
        if status == 0 {
            queue.table.post_to(self.next);
            return Ok(posted);
        }
        // The rest stays staged until it is handed back, since `report` may panic.
        queue.is_left = true;
        queue.table.stage_vacant_to(self.next);
        queue.table.post(posted);
        let mut error = unposted::refused(&*queue.table, "ibv_post_send", status, posted);
        report(&mut error);
        queue.table.unstage(each);
        queue.is_left = false;
        Err(error)
    }
}

/// Writes the operation of a request. Its other fields stay.
#[inline(always)]
pub(crate) fn write_operation(request: &mut ibv_send_wr, operation: Operation, flags: PostFlags) {
    request.send_flags = send_flags(flags);
    request.opcode = match operation {
        Operation::Send => ibv_wr_opcode::IBV_WR_SEND,
        Operation::SendWithImmediate(immediate) => {
            request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        }
        Operation::Write(remote) => {
            request.wr.rdma = rdma(remote);
            ibv_wr_opcode::IBV_WR_RDMA_WRITE
        }
        Operation::WriteWithImmediate(remote, immediate) => {
            request.wr.rdma = rdma(remote);
            request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        Operation::Read(remote) => {
            request.wr.rdma = rdma(remote);
            ibv_wr_opcode::IBV_WR_RDMA_READ
        }
        Operation::FetchAndAdd { remote, add } => {
            request.wr.atomic = atomic(remote, add, 0);
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        Operation::CompareAndSwap {
            remote,
            compare,
            swap,
        } => {
            request.wr.atomic = atomic(remote, compare, swap);
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        }
    };
}

#[inline]
const fn rdma(remote: doorbell_core::provider::RemoteAddress) -> rdma_sys::rdma_t {
    rdma_sys::rdma_t {
        remote_addr: remote.address(),
        rkey: remote.rkey().0,
    }
}

#[inline]
const fn atomic(
    remote: doorbell_core::provider::RemoteAddress,
    compare_add: u64,
    swap: u64,
) -> rdma_sys::atomic_t {
    rdma_sys::atomic_t {
        remote_addr: remote.address(),
        compare_add,
        swap,
        rkey: remote.rkey().0,
    }
}

/// Returns the flags as verbs has them: the bits are the same.
#[inline]
pub(crate) const fn send_flags(flags: PostFlags) -> u32 {
    flags.bits() as u32
}

const _: () = {
    assert!(send_flags(PostFlags::SIGNALED) == ibv_send_flags::IBV_SEND_SIGNALED.0);
    assert!(send_flags(PostFlags::FENCE) == ibv_send_flags::IBV_SEND_FENCE.0);
    assert!(send_flags(PostFlags::SOLICITED) == ibv_send_flags::IBV_SEND_SOLICITED.0);
    assert!(send_flags(PostFlags::INLINE) == ibv_send_flags::IBV_SEND_INLINE.0);
    assert!(send_flags(PostFlags::empty()) == 0);
};

impl Drop for SendBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.queue.is_left {
            use doorbell_core::provider::SendBatch as _;
            self.queue.discard(self.staged());
        }
    }
}

impl fmt::Debug for SendBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use doorbell_core::provider::SendBatch as _;
        let left = self.end.position().wrapping_sub(self.next.position());
        write!(f, "SendBatch({} staged, room for {left})", self.staged())
    }
}
