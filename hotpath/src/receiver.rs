//! The receiving half: receives are posted ahead, and reposted in batches.

use core::borrow::Borrow as _;
use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{
    Arena, Arrival, Lent, PostError, ReceiveBatch, ReceiveQueue, Rejected, Slot as _,
};

use crate::{FirstCause, Granting, Grants, Statistics};

/// The configuration of reposting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// The number of missing receives at which they are posted again, in one call. 0 and 1
    /// both repost each receive at once; the maximum is half the queue.
    pub repost_batch: u32,
}

/// A receive queue that keeps itself filled from an arena.
pub struct Receiver<Q, L, S> {
    queue: Q,
    statistics: S,
    granting: Granting<L>,
    /// From one to half the depth. While fewer receives are missing, none need to be posted or announced: less than half the
    /// depth is unannounced, and more than half is posted.
    repost_batch: u32,
    /// The number of receives that ended without a message.
    failed: u32,
    cause: Option<FirstCause>,
}

impl<Q, L, S> Receiver<Q, L, S>
where
    Q: ReceiveQueue,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// A receiver over an idle queue. It counts posted receives in the grants, and its work in
    /// `statistics`.
    pub fn new(queue: Q, grants: L, statistics: S, config: &ReceiverConfig) -> Self {
        let depth = queue.in_flight().saturating_add(queue.room());
        let repost_batch = config.repost_batch.clamp(1, (depth / 2).max(1));
        Self {
            queue,
            statistics,
            granting: Granting::new(grants, depth),
            repost_batch,
            failed: 0,
            cause: None,
        }
    }

    /// Posts the first receives. The peer knows them from the start, so they are not counted as
    /// grants. Returns the number of posted receives.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to the arena.
    pub fn fill<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        post(self.missing(), self.queue.stage(), arena, &self.statistics)
    }

    /// Posts the first receives with slots that were leased before, so that this may run on another thread than the
    /// arena's. They are not counted in `statistics`, which belong to the arena's thread. Slots without room return
    /// to the arena.
    ///
    /// # Errors
    /// As for [`Receiver::fill`].
    pub fn fill_with(&mut self, slots: impl IntoIterator<Item = Q::Slot>) -> Result<u32, PostError> {
        let mut batch = self.queue.stage();
        for slot in slots {
            if batch.push([slot]).is_err() {
                break;
            }
        }
        if batch.staged() == 0 {
            return Ok(0);
        }
        batch.ring()
    }

    /// Takes the memory of a message back for a missing receive; without room it returns to the arena. Returns whether the caller has to
    /// call [`Receiver::repost`] and [`Receiver::is_announcement_due`].
    #[inline(always)]
    pub fn put_back<A: Arena<Slot = Q::Slot>>(&mut self, message: Option<Q::Message>, arena: &mut A) -> bool {
        if let Some(message) = message {
            if let Err(slot) = self.queue.put_back(message) {
                arena.release(slot);
            }
        }
        self.is_short()
    }

    /// Posts receives in one call if at least a batch is missing: those with memory that was taken back, and as many others as the
    /// arena has slots for. Returns the number of posted receives.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to the arena.
    #[inline]
    pub fn repost<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        if !self.is_short() {
            return Ok(0);
        }
        self.post(arena)
    }

    /// Posts the missing receives, as far as there are slots.
    // Called once for many messages: a separate function takes no registers from the code for each message.
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn post<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        let outcome = post(self.missing(), self.queue.stage(), arena, &self.statistics);
        let (Ok(posted) | Err(PostError { posted, .. })) = outcome;
        self.granting.note_posted(posted);
        outcome
    }

    /// The number of receives that are not posted, with or without memory for them.
    #[inline]
    fn missing(&self) -> u32 {
        self.queue.missing()
    }

    /// Whether receives need an announcement alone.
    #[must_use]
    #[inline]
    pub fn is_announcement_due(&self) -> bool {
        self.granting.is_due(self.queue.in_flight())
    }

    /// Whether at least a batch of receives is missing.
    #[must_use]
    #[inline]
    pub fn is_short(&self) -> bool {
        self.missing() >= self.repost_batch
    }

    /// Takes the message of a completion in one slot, with its immediate value. If the completion is not for the next message, nothing is
    /// taken, the result is `None`, and the caller calls [`Receiver::retire`].
    #[inline(always)]
    pub fn retire_message(
        &mut self,
        completion: &Lent<'_, Q::Completion>,
    ) -> Option<(Q::Message, Option<u32>)> {
        let message = self.queue.retire_message(completion)?;
        let statistics = &*self.statistics;
        statistics.received.add(1);
        statistics
            .received_bytes
            .add(message.0.borrow().len_bytes() as u64);
        Some(message)
    }

    /// Takes the receive that a completion names, with its last slot.
    ///
    /// # Errors
    /// The completion names no receive in flight here.
    pub fn retire(
        &mut self,
        completion: Lent<'_, Q::Completion>,
    ) -> Result<(Arrival, Option<Q::Slot>), Rejected> {
        let mut slot = None;
        let arrival = self.queue.retire(completion, |_, its| drop(slot.replace(its)))?;
        if arrival.status.is_success() {
            self.statistics.received.add(1);
            self.statistics.received_bytes.add(arrival.payload_bytes.into());
        } else {
            let Arrival {
                status,
                ticket,
                vendor_error,
                ..
            } = arrival;
            self.failed = self.failed.wrapping_add(1);
            FirstCause::note(
                &mut self.cause,
                FirstCause {
                    status,
                    ticket,
                    vendor_error,
                },
            );
        }
        Ok((arrival, slot))
    }

    /// The cause of the queue pair's failure, as far as this half knows.
    #[must_use]
    pub const fn cause(&self) -> Option<FirstCause> {
        self.cause
    }

    /// The number of received messages: a count like the peer's [`Credits::sent`](crate::Credits::sent).
    #[must_use]
    pub fn received(&self) -> u32 {
        self.granting
            .received(self.queue.in_flight().wrapping_add(self.failed))
    }

    /// The number of staged receives, which wait to be posted with others.
    #[must_use]
    pub fn staged(&self) -> u32 {
        self.missing().saturating_sub(self.queue.room())
    }

    /// The number of posted receives.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }
}

/// Posts up to `missing` receives, and counts them: the staged ones, and more as far as the arena has slots.
#[inline]
pub(crate) fn post<B: ReceiveBatch, A: Arena<Slot = B::Slot>>(
    missing: u32,
    mut batch: B,
    arena: &mut A,
    statistics: &Statistics,
) -> Result<u32, PostError> {
    for _ in batch.staged()..missing {
        let Some(slot) = arena.lease() else { break };
        if let Err(refused) = batch.push([slot]) {
            let [slot] = refused.item;
            arena.release(slot);
            break;
        }
    }
    if batch.staged() == 0 {
        return Ok(0);
    }
    let outcome = batch.ring();
    let (Ok(posted) | Err(PostError { posted, .. })) = outcome;
    statistics.receives_posted.add(posted.into());
    outcome
}

impl<Q: ReceiveQueue, L, S> fmt::Debug for Receiver<Q, L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("in_flight", &self.queue.in_flight())
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
