//! The receive half of a queue pair, and its posting guard.

use core::fmt;
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    Arrival, ArrivalKind, Completion as _, PostError, PushError, QueuePairLimits, ReceiveQueue as _, Refused,
    Rejected, Slot as _,
};
use doorbell_core::{QpState, Ticket, WorkId, WorkKind};

use crate::queue_pair::{Shared, Table};
use crate::{Completion, Slot};

/// A receive, from being staged until it is retired. It owns its slots all the while.
pub(crate) struct Receive {
    pub(crate) work_id: WorkId,
    ticket: Ticket,
    pub(crate) slots: Vec<Slot>,
}

/// The receive half of a queue pair; with its completion queue it belongs to one thread.
pub struct ReceiveQueue {
    table: Table,
    staged: Vec<Receive>,
    ledger: Ledger,
    scatter_max: u8,
    shared: Arc<Shared>,
}

impl ReceiveQueue {
    pub(crate) fn new(shared: Arc<Shared>, table: Table, ledger: Ledger, limits: &QueuePairLimits) -> Self {
        Self {
            table,
            staged: Vec::new(),
            ledger,
            scatter_max: limits.scatter_max,
            shared,
        }
    }

    /// Forgets what is staged; its slots go home.
    fn unstage(&mut self) {
        self.table.unstage(|_, never| match never {});
        self.staged.clear();
    }
}

impl doorbell_core::provider::ReceiveQueue for ReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = ReceiveBatch<'q>;

    fn stage(&mut self) -> ReceiveBatch<'_> {
        // Where a batch was forgotten, something is left.
        self.unstage();
        let state = self.shared.state();
        ReceiveBatch { queue: self, state }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: Completion,
        mut each: F,
    ) -> Result<Arrival, Rejected> {
        let table = &mut self.table;
        let range = self
            .ledger
            .redeem(completion.origin(), completion.work_id(), |work_id| {
                table.retire(work_id, |_, never| match never {})
            })?;
        let ended: Vec<Receive> = self.shared.with(|world, key| {
            let queue = world.queue_pairs.get_mut(&key).map(|qp| &mut qp.ended_receives);
            queue.map_or_else(Vec::new, |queue| {
                let count = queue.partition_point(|receive| receive.ticket <= range.last);
                queue.drain(..count).collect()
            })
        });
        let entry = *completion.entry();
        // Not under the lock: the callback may post.
        for receive in ended {
            // Those before the one that is named had completions of their own, which were
            // dropped: what they hold is not known any more.
            let is_named = receive.ticket == range.last && entry.kind == ArrivalKind::Send;
            let mut left = if is_named { entry.bytes as usize } else { 0 };
            for mut slot in receive.slots {
                slot.set_len_bytes(left);
                left = left.saturating_sub(slot.len_bytes());
                each(receive.ticket, slot);
            }
        }
        Ok(Arrival {
            ticket: range.last,
            status: entry.status,
            kind: entry.kind,
            payload_bytes: entry.bytes,
            immediate: entry.immediate,
            vendor_error: 0,
        })
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
        if N > usize::from(self.queue.scatter_max) {
            let reason = PushError::TooManySegments {
                segments: u8::try_from(N).unwrap_or(u8::MAX),
                segments_max: self.queue.scatter_max,
            };
            return Err(Refused { reason, item: slots });
        }
        let Ok((ticket, work_id)) = self.queue.table.stage([]) else {
            return Err(Refused {
                reason: PushError::Full,
                item: slots,
            });
        };
        self.queue.staged.push(Receive {
            work_id,
            ticket,
            slots: slots.into(),
        });
        Ok(ticket)
    }

    fn staged(&self) -> u32 {
        self.queue.table.staged()
    }

    /// Posts all that is staged. The simulated device refuses nothing that could be staged.
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let count = queue.table.staged();
        queue.table.post(count);
        let staged = core::mem::take(&mut queue.staged);
        queue.shared.with(|world, key| {
            if let Some(qp) = world.queue_pairs.get_mut(&key) {
                qp.receives.extend(staged);
                // In ERR they are flushed; else what waits for them can go on.
                world.pending.push_back(key);
                world.wake_peer(key);
            }
        });
        Ok(count)
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
