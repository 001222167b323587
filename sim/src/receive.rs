//! The receive half of a queue pair, and its posting guard.

use core::fmt;
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    Arrival, ArrivalKind, LentCompletion as _, PostError, ProviderError, PushError, QueuePairLimits,
    ReceiveQueue as _, Refused, Rejected, Slot as _,
};
use doorbell_core::{QpState, Ticket, WcStatus, WorkId, WorkKind};

use crate::errno::failed;
use crate::gather::Gather;
use crate::oracle::{self, Violation};
use crate::queue_pair::{Shared, Table};
use crate::{Completion, LentCompletion, Slot};

/// A receive, from being staged until it is retired. It owns its slots all the while.
pub(crate) struct Receive {
    pub(crate) work_id: WorkId,
    pub(crate) ticket: Ticket,
    pub(crate) slots: Gather,
    /// How many bytes of a message it holds since it ended, and what they were.
    seal: Option<(usize, u64)>,
}

impl Receive {
    /// One that is staged, unless its slots are more than may be.
    pub(crate) fn stage<const N: usize>(
        slots: [Slot; N],
        scatter_max: u8,
        stage: impl FnOnce() -> Option<(Ticket, WorkId)>,
    ) -> Result<Self, Refused<[Slot; N]>> {
        if N > usize::from(scatter_max) {
            let reason = PushError::TooManySegments {
                segments: u8::try_from(N).unwrap_or(u8::MAX),
                segments_max: scatter_max,
            };
            return Err(Refused { reason, item: slots });
        }
        let Some((ticket, work_id)) = stage() else {
            return Err(Refused {
                reason: PushError::Full,
                item: slots,
            });
        };
        Ok(Self {
            work_id,
            ticket,
            slots: Gather::of(slots),
            seal: None,
        })
    }

    /// Notes the bytes that arrived: from now on they are not to change.
    pub(crate) fn seal(&mut self, bytes: usize) {
        self.seal = Some((bytes, oracle::seal_of_message(&self.slots, bytes)));
    }

    /// Whether the bytes are still those that arrived.
    pub(crate) fn is_untouched(&self) -> bool {
        let is_same = |(bytes, seal)| seal == oracle::seal_of_message(&self.slots, bytes);
        self.seal.is_none_or(is_same)
    }

    /// Gives its slots back, this many bytes having been scattered over them.
    pub(crate) fn give_back(self, bytes: u32, mut each: impl FnMut(Ticket, Slot)) {
        let mut left = bytes as usize;
        for mut slot in self.slots.into_slots() {
            slot.set_len_bytes(left);
            left = left.saturating_sub(slot.len_bytes());
            each(self.ticket, slot);
        }
    }
}

/// The receives of one queue pair, as the device knows them.
#[derive(Default)]
pub(crate) struct Receives {
    /// Posted and not consumed.
    posted: VecDeque<Receive>,
    /// Ended and not retired: their slots wait here.
    ended: VecDeque<Receive>,
}

impl Receives {
    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub(crate) fn post(&mut self, receives: impl Iterator<Item = Receive>) {
        self.posted.extend(receives);
    }

    /// How many bytes the next one holds at most.
    pub(crate) fn room_of_next(&self) -> Option<usize> {
        self.posted.front().map(|receive| receive.slots.capacity_bytes())
    }

    /// Consumes the next one.
    pub(crate) fn take(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    /// Keeps one that ended until it is retired.
    pub(crate) fn end(&mut self, receive: Receive) {
        self.ended.push_back(receive);
    }

    /// Gives back those that ended, up to this one.
    fn retire(&mut self, last: Ticket, mut each: impl FnMut(Receive)) {
        while self.ended.front().is_some_and(|receive| receive.ticket <= last) {
            if let Some(receive) = self.ended.pop_front() {
                each(receive);
            }
        }
    }

    /// How many are posted, and how many ended and were not retired.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [self.posted.len(), self.ended.len()]
    }
}

/// The receive half of a queue pair; with its completion queue it belongs to one thread.
pub struct ReceiveQueue {
    table: Table,
    staged: Vec<Receive>,
    /// How many of them batches left.
    left: u32,
    /// Receives that are being retired.
    retired: Vec<Receive>,
    ledger: Ledger,
    scatter_max: u8,
    shared: Arc<Shared>,
}

impl ReceiveQueue {
    pub(crate) fn new(shared: Arc<Shared>, table: Table, ledger: Ledger, limits: &QueuePairLimits) -> Self {
        Self {
            table,
            staged: Vec::new(),
            left: 0,
            retired: Vec::new(),
            ledger,
            scatter_max: limits.scatter_max,
            shared,
        }
    }

    /// Whether it is the half of this queue pair.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Forgets what is posted, which the device did before.
    pub(crate) fn forget(&mut self) {
        self.unstage();
        self.table.drain(|never| match never {});
    }

    /// Forgets what is staged; its slots go home.
    fn unstage(&mut self) {
        self.table.unstage(|_, never| match never {});
        self.staged.clear();
        self.left = 0;
    }

    /// Takes the receive this completion names, and those before it; `each` gets each, and how many bytes
    /// it holds.
    pub(crate) fn retire_receives(
        &mut self,
        completion: &LentCompletion<'_>,
        mut each: impl FnMut(Receive, u32),
    ) -> Result<Arrival, Rejected> {
        let table = &mut self.table;
        let range = self
            .ledger
            .redeem(completion.origin(), completion.work_id(), |work_id| {
                table.retire(work_id, |_, never| match never {})
            })?;
        let entry = *completion.entry();
        self.take_retired(range.last, |receive| {
            // Receives before the named one had completions of their own, which were dropped, so their
            // content is unknown.
            let is_named = receive.ticket == range.last && entry.kind == ArrivalKind::Send;
            each(receive, if is_named { entry.bytes } else { 0 });
        });
        Ok(entry.arrival(range.last))
    }

    /// Takes the receives up to this one from the device; `each` gets them in order.
    fn take_retired(&mut self, last: Ticket, each: impl FnMut(Receive)) {
        let mut retired = core::mem::take(&mut self.retired);
        self.shared.look(|world, key| {
            let Some(qp) = world.queue_pairs.get_mut(key) else {
                return;
            };
            qp.receives.retire(last, |receive| retired.push(receive));
            let untouched = retired.iter().all(Receive::is_untouched);
            world.tally.receives.retired_more(retired.len());
            world.tally.check(untouched, Violation::ReceiveChanged(qp.qpn));
        });
        // Not under the lock: the callback may post.
        retired.drain(..).for_each(each);
        self.retired = retired;
    }

    /// Whether the oldest receive that ended has one slot.
    fn is_oldest_of_one_slot(&self) -> bool {
        self.shared.look(|world, key| {
            let oldest = world
                .queue_pairs
                .get(key)
                .and_then(|qp| qp.receives.ended.front());
            oldest.is_some_and(|receive| receive.slots.iter().count() == 1)
        })
    }
}

impl doorbell_core::provider::ReceiveQueue for ReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Message = Slot;
    type Batch<'q> = ReceiveBatch<'q>;

    fn stage(&mut self) -> ReceiveBatch<'_> {
        if self.table.staged() != self.left {
            // A batch was forgotten.
            self.unstage();
        }
        let state = self.shared.state();
        ReceiveBatch { queue: self, state }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        mut each: F,
    ) -> Result<Arrival, Rejected> {
        self.retire_receives(&completion, |receive, bytes| receive.give_back(bytes, &mut each))
    }

    fn retire_message(&mut self, completion: &LentCompletion<'_>) -> Option<(Slot, Option<u32>)> {
        let (entry, work_id) = (*completion.entry(), completion.work_id());
        let is_message = entry.status == WcStatus::SUCCESS && entry.kind == ArrivalKind::Send;
        if !is_message || !self.table.is_oldest(work_id) || !self.is_oldest_of_one_slot() {
            return None;
        }
        let table = &mut self.table;
        let range = self.ledger.redeem_if(completion.origin(), || {
            table.retire(work_id, |_, never| match never {}).ok()
        })?;
        let mut taken = None;
        self.take_retired(range.last, |receive| {
            receive.give_back(entry.bytes, |_, slot| taken = Some(slot));
        });
        taken.map(|slot| (slot, entry.immediate))
    }

    fn in_flight(&self) -> u32 {
        self.table.posted()
    }

    fn room(&self) -> u32 {
        self.table.room()
    }

    fn missing(&self) -> u32 {
        self.table.missing()
    }

    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        self.unstage();
        self.shared.park(WorkKind::Receive, self.table.next_generation());
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// Receives staged for one post. Dropping it posts nothing.
pub struct ReceiveBatch<'q> {
    queue: &'q mut ReceiveQueue,
    state: QpState,
}

impl doorbell_core::provider::ReceiveBatch for ReceiveBatch<'_> {
    type Slot = Slot;

    fn push<const N: usize>(&mut self, slots: [Slot; N]) -> Result<Ticket, Refused<[Slot; N]>> {
        if !self.state.accepts_receives() {
            return Err(Refused {
                reason: PushError::State(self.state),
                item: slots,
            });
        }
        let queue = &mut *self.queue;
        let receive = Receive::stage(slots, queue.scatter_max, || queue.table.stage([]).ok())?;
        let ticket = receive.ticket;
        queue.staged.push(receive);
        Ok(ticket)
    }

    fn staged(&self) -> u32 {
        self.queue.table.staged()
    }

    fn leave(self) {
        let Self { queue, .. } = &mut *ManuallyDrop::new(self);
        queue.left = queue.table.staged();
    }

    /// Posts all that is staged. The simulated device refuses only what a plan says; the slots of what it did not take go home.
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let staged = &mut queue.staged;
        let (count, refused) = queue.shared.with(|world, key| world.post_receives(key, staged));
        queue.table.post(count);
        // Dropping the guard unstages the rest.
        posted(
            count,
            queue.table.staged(),
            refused.map(|errno| failed("post_recv", errno)),
        )
    }
}

/// Outcome of a post: all, or so many, and why not the rest.
pub(crate) fn posted(posted: u32, unposted: u32, refused: Option<ProviderError>) -> Result<u32, PostError> {
    match refused {
        None => Ok(posted),
        Some(cause) => Err(PostError {
            posted,
            unposted,
            cause,
        }),
    }
}

impl Drop for ReceiveBatch<'_> {
    fn drop(&mut self) {
        self.queue.unstage();
    }
}

impl fmt::Debug for ReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ReceiveBatch({} staged, room for {})",
            self.queue.table.staged(),
            self.queue.room()
        )
    }
}
