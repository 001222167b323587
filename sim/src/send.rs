//! The send half of a queue pair, and its posting guard.

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    CellsError, DomainId, LentCompletion as _, Operation, PostError, PostFlags, PushError, QueuePairLimits,
    Refused, Rejected, Retired, SendBatch as _, SendQueue as _, Slot as _, WindowRange,
};
use doorbell_core::{QpState, Ticket, WorkKind};

use crate::cells::{Cells, LoneCell};
use crate::errno::failed;
use crate::gather::Gather;
use crate::memory::WORD_BYTES;
use crate::oracle::{self, Violation};
use crate::queue_pair::{Shared, Table};
use crate::requester::Request;
use crate::{Completion, LentCompletion, Slot, Window};

/// The send half of a queue pair; with its completion queue it belongs to one thread.
pub struct SendQueue {
    table: Table,
    staged: Vec<Request>,
    /// Requests that are being retired.
    retired: Vec<Request>,
    /// Buffers of requests that went inline, for those to come.
    spare: Vec<Vec<u8>>,
    cells: Cells,
    ledger: Ledger,
    gather_max: u8,
    inline_bytes_max: u32,
    shared: Arc<Shared>,
}

impl SendQueue {
    pub(crate) fn new(shared: Arc<Shared>, table: Table, ledger: Ledger, limits: &QueuePairLimits) -> Self {
        Self {
            table,
            staged: Vec::new(),
            retired: Vec::new(),
            spare: Vec::new(),
            cells: Cells::default(),
            ledger,
            gather_max: limits.gather_max,
            inline_bytes_max: limits.inline_bytes_max,
            shared,
        }
    }

    /// From the oldest request that is not retired to the first that is not posted.
    pub(crate) fn range(&self) -> Range<Ticket> {
        self.table.oldest()..self.table.next()
    }

    /// Whether it is the half of this queue pair.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Forgets what is posted: these requests, which the device forgot before. Their slots go home.
    pub(crate) fn forget(&mut self, requests: impl Iterator<Item = Request>) {
        self.unstage();
        self.table.drain(|never| match never {});
        requests.for_each(|mut request| self.cells.put_back(&mut request));
    }

    /// The ticket of the next request, none being staged.
    pub(crate) const fn next(&self) -> Ticket {
        self.table.next()
    }

    /// The bytes of the next request's cell.
    pub(crate) fn next_cell(&mut self) -> Result<&mut [u8], PushError> {
        let vacancy = self.table.vacancy().ok_or(PushError::Full)?;
        self.cells.lend(vacancy.place())
    }

    /// Stages a request of the first bytes of that cell.
    pub(crate) fn push_cell(
        &mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let most = [self.cells.bytes(), self.inline_bytes_max];
        PushError::check_cell(operation, len_bytes, flags, most)?;
        let vacancy = self.table.vacancy().ok_or(PushError::Full)?;
        let cell = self
            .cells
            .take(vacancy.place(), len_bytes)
            .ok_or(PushError::NoCells)?;
        let (ticket, work_id, _) = vacancy.stage();
        let mut request = Request::new(work_id, ticket, operation, flags);
        request.slots = Gather::of([cell]);
        request.is_cell = true;
        self.staged.push(request);
        Ok(ticket)
    }

    /// Takes all requests up to this one, which are retired; `each` gets their slots.
    fn take_retired(&mut self, last: Ticket, mut each: impl FnMut(Ticket, Slot)) {
        let mut retired = core::mem::take(&mut self.retired);
        self.shared.look(|world, key| {
            let Some(qp) = world.queue_pairs.get_mut(key) else {
                return;
            };
            qp.requester.retire(last, |request| retired.push(request));
            let untouched = retired
                .iter()
                .all(|request| request.seal == oracle::seal_of_request(request));
            world.tally.requests.retired_more(retired.len());
            world.tally.check(untouched, Violation::RequestChanged(qp.qpn));
        });
        // Not under the lock: the callback may post.
        // Before the callback, which may panic.
        retired
            .iter_mut()
            .for_each(|request| self.cells.put_back(request));
        for request in retired.drain(..) {
            self.spare.extend(request.inline);
            let slots = request.slots.into_slots();
            slots.for_each(|slot| each(request.ticket, slot));
        }
        self.retired = retired;
    }

    /// Forgets what is staged; its slots go home.
    fn unstage(&mut self) {
        self.table.unstage(|_, never| match never {});
        self.staged
            .iter_mut()
            .for_each(|request| self.cells.put_back(request));
        self.staged.clear();
    }
}

impl doorbell_core::provider::SendQueue for SendQueue {
    type Slot = Slot;
    type Window = Window;
    type Completion = Completion;
    type Batch<'q> = SendBatch<'q>;
    type Cell<'q> = LoneCell<'q>;

    fn furnish<I: IntoIterator<Item = Slot>>(&mut self, slots: I) -> Result<(), CellsError> {
        let domain = DomainId(self.shared.domain().id().to_u64());
        self.cells.furnish(slots.into_iter(), self.table.places(), domain)
    }

    fn cell_bytes(&self) -> u32 {
        self.cells.bytes()
    }

    fn cell(&mut self) -> Result<LoneCell<'_>, PushError> {
        let mut batch = self.stage();
        batch.cell()?;
        Ok(LoneCell { batch })
    }

    fn stage(&mut self) -> SendBatch<'_> {
        // A batch that was forgotten leaves staged requests.
        self.unstage();
        let state = self.shared.state();
        SendBatch { queue: self, state }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        each: F,
    ) -> Result<Retired, Rejected> {
        let table = &mut self.table;
        let range = self
            .ledger
            .redeem(completion.origin(), completion.work_id(), |work_id| {
                table.retire(work_id, |_, never| match never {})
            })?;
        self.take_retired(range.last, each);
        Ok(Retired {
            first: range.first,
            last: range.last,
            status: completion.status(),
            vendor_error: 0,
        })
    }

    fn retire_done<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: &LentCompletion<'_>,
        each: F,
    ) -> Option<Ticket> {
        if !completion.status().is_success() {
            return None;
        }
        let (table, work_id) = (&mut self.table, completion.work_id());
        let last = self.ledger.redeem_if(completion.origin(), || {
            table.retire_found(work_id, |_, never| match never {})
        })?;
        self.take_retired(last, each);
        Some(last)
    }

    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    fn room(&self) -> u32 {
        self.table.room()
    }

    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.unstage();
        self.shared.park(WorkKind::Send, self.table.next_generation());
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// Requests staged for one doorbell. Dropping it rings nothing.
///
/// The bytes of a cell are out of reach once its request is staged:
/// ```compile_fail,E0499
/// # use doorbell_core::provider::{Operation, PostFlags, SendBatch as _, SendQueue as _};
/// # fn f(send: &mut doorbell_sim::SendQueue) {
/// let mut batch = send.stage();
/// if let Ok(cell) = batch.cell() {
///     batch.push_cell(Operation::Send, 1, PostFlags::SIGNALED).ok();
///     cell[0] = 1;
/// }
/// # }
/// ```
/// and those that were lent outside of a batch, once one begins:
/// ```compile_fail,E0499
/// # use doorbell_core::provider::{LoneCell as _, SendQueue as _};
/// # fn f(send: &mut doorbell_sim::SendQueue) {
/// if let Ok(mut cell) = send.cell() {
///     let batch = send.stage();
///     cell.bytes()[0] = 1;
/// }
/// # }
/// ```
/// or the queue is gone:
/// ```compile_fail,E0505
/// # use doorbell_core::provider::{LoneCell as _, SendQueue as _};
/// # fn f(mut send: doorbell_sim::SendQueue) {
/// if let Ok(mut cell) = send.cell() {
///     drop(send);
///     cell.bytes()[0] = 1;
/// }
/// # }
/// ```
pub struct SendBatch<'q> {
    pub(crate) queue: &'q mut SendQueue,
    state: QpState,
}

impl SendBatch<'_> {
    /// Why a request of so many elements cannot be staged, with any room.
    fn segments_refusal(&self, segments: usize) -> Option<PushError> {
        if !self.state.accepts_sends() {
            return Some(PushError::State(self.state));
        }
        let segments_max = self.queue.gather_max;
        (segments > usize::from(segments_max)).then(|| PushError::TooManySegments {
            segments: u8::try_from(segments).unwrap_or(u8::MAX),
            segments_max,
        })
    }

    /// Why a request with these slots cannot be staged, with any room.
    fn refusal(&self, operation: Operation, slots: &[Slot], flags: PostFlags) -> Option<PushError> {
        if let Some(reason) = self.segments_refusal(slots.len()) {
            return Some(reason);
        }
        if operation.is_atomic() && !matches!(slots, [slot] if slot.capacity_bytes() >= WORD_BYTES) {
            return Some(PushError::AtomicNeedsEightBytes);
        }
        if flags.contains(PostFlags::INLINE) {
            let bytes = slots
                .iter()
                .fold(0_usize, |sum, slot| sum.saturating_add(slot.len_bytes()));
            return self.inline_refusal(operation, bytes);
        }
        None
    }

    fn inline_refusal(&self, operation: Operation, bytes: usize) -> Option<PushError> {
        if operation.writes_slots() {
            return Some(PushError::NotInline);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes_max = self.queue.inline_bytes_max;
        (bytes > bytes_max).then_some(PushError::InlineTooLong { bytes, bytes_max })
    }

    /// The request that was staged last.
    pub(crate) fn last_staged(&mut self) -> Option<&mut Request> {
        self.queue.staged.last_mut()
    }

    /// Writes a request down; `None` where the queue is full.
    fn write(&mut self, operation: Operation, flags: PostFlags) -> Option<&mut Request> {
        let (ticket, work_id) = self.queue.table.stage([]).ok()?;
        self.queue
            .staged
            .push(Request::new(work_id, ticket, operation, flags));
        self.queue.staged.last_mut()
    }
}

impl<'q> doorbell_core::provider::SendBatch<'q> for SendBatch<'q> {
    type Slot = Slot;
    type Window = Window;

    fn push<const N: usize>(
        &mut self,
        operation: Operation,
        mut slots: [Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Slot; N]>> {
        if let Some(reason) = self.refusal(operation, &slots, flags) {
            return Err(Refused { reason, item: slots });
        }
        let Some(request) = self.write(operation, flags) else {
            return Err(Refused {
                reason: PushError::Full,
                item: slots,
            });
        };
        if operation.is_atomic() {
            slots.iter_mut().for_each(|slot| slot.set_len_bytes(WORD_BYTES));
        }
        request.slots = Gather::of(slots);
        Ok(request.ticket)
    }

    fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        if let Some(reason) = self.segments_refusal(N) {
            return Err(reason);
        }
        PushError::check_ranges(operation, &ranges, flags)?;
        let request = self.write(operation, flags).ok_or(PushError::Full)?;
        request.slots = Gather::of_ranges(ranges);
        Ok(request.ticket)
    }

    fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        if !self.state.accepts_sends() {
            return Err(PushError::State(self.state));
        }
        if let Some(reason) = self.inline_refusal(operation, bytes.len()) {
            return Err(reason);
        }
        let mut inline = self.queue.spare.pop().unwrap_or_default();
        let request = self
            .write(operation, flags | PostFlags::INLINE)
            .ok_or(PushError::Full)?;
        inline.clear();
        inline.extend_from_slice(bytes);
        request.inline = Some(inline);
        Ok(request.ticket)
    }

    fn cell_bytes(&self) -> u32 {
        self.queue.cells.bytes()
    }

    fn cell(&mut self) -> Result<&mut [u8], PushError> {
        if !self.state.accepts_sends() {
            return Err(PushError::State(self.state));
        }
        self.queue.next_cell()
    }

    fn push_cell(
        &mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        self.cell()?;
        self.queue.push_cell(operation, len_bytes, flags)
    }

    fn next(&self) -> Ticket {
        self.queue.table.end()
    }

    fn staged(&self) -> u32 {
        self.queue.table.staged()
    }

    fn signal_last(&mut self) {
        if let Some(request) = self.last_staged() {
            request.flags |= PostFlags::SIGNALED;
        }
    }

    /// Rings the doorbell once for all that is staged. A simulated device refuses nothing that
    /// could be staged, unless a plan has it refuse.
    fn ring_reporting<T, F>(self, report: T, mut unposted: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Slot),
    {
        let queue = &mut *self.queue;
        let staged = &mut queue.staged;
        let (count, refused) = queue.shared.with(|world, key| world.post_requests(key, staged));
        queue.table.post(count);
        let Some(errno) = refused else {
            return Ok(count);
        };
        let mut error = PostError {
            posted: count,
            unposted: queue.table.staged(),
            cause: failed("post_send", errno),
        };
        report(&mut error);
        queue.table.unstage(|_, never| match never {});
        queue
            .staged
            .iter_mut()
            .for_each(|request| queue.cells.put_back(request));
        for request in queue.staged.drain(..) {
            let slots = request.slots.into_slots();
            slots.for_each(|slot| unposted(request.ticket, slot));
        }
        Err(error)
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        self.queue.unstage();
    }
}

impl fmt::Debug for SendBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SendBatch({} staged, room for {})",
            self.queue.table.staged(),
            self.queue.room()
        )
    }
}
