//! The receive half: receives posted ahead, and reposted in batches.

use core::borrow::Borrow as _;
use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{
    Arena, Arrival, Lent, PostError, ReceiveBatch, ReceiveQueue, Rejected, Slot as _,
};

use crate::{FirstCause, Granting, Grants, Statistics};

/// How receives are kept posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// How many receives may be missing before they are posted again, in one call. 0 and 1
    /// both repost each one at once; more than half the queue is cut to half.
    pub repost_batch: u32,
}

/// A receive queue that keeps itself filled from an arena.
pub struct Receiver<Q, L, S> {
    queue: Q,
    statistics: S,
    granting: Granting<L>,
    /// At most half the depth, and one at least. While fewer are missing, receives are neither to be posted nor to be announced:
    /// half the depth is not unannounced, and more than half is posted.
    repost_batch: u32,
    /// Receives that ended without a message.
    failed: u32,
    cause: Option<FirstCause>,
}

impl<Q, L, S> Receiver<Q, L, S>
where
    Q: ReceiveQueue,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// A receiver over an idle queue, that counts what it posts in the grants, and in `statistics`
    /// all it does.
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

    /// Posts the first receives, which the peer knows of from the start: they are not counted.
    /// Says how many were posted.
    ///
    /// # Errors
    /// The device took only part; the rest went home to the arena.
    pub fn fill<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        post(self.missing(), self.queue.stage(), arena, &self.statistics)
    }

    /// Posts the first receives with memory that was taken from the arena before, so that this may run on another
    /// thread than the arena's. `statistics`, which belongs to that thread, does not count them. Memory that has
    /// no room goes home.
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

    /// Takes memory back for a receive that is missing; without room it goes home. Says whether receives are to be posted or
    /// announced: then [`Receiver::repost`] is to be called, and [`Receiver::is_announcement_due`] is to be asked.
    #[inline(always)]
    pub fn put_back<A: Arena<Slot = Q::Slot>>(&mut self, message: Option<Q::Message>, arena: &mut A) -> bool {
        if let Some(message) = message {
            if let Err(slot) = self.queue.put_back(message) {
                arena.release(slot);
            }
        }
        self.is_short()
    }

    /// Posts receives where at least a batch is missing: those with memory that came back, and of others as many as the arena
    /// has memory for, in one call. Says how many were posted.
    ///
    /// # Errors
    /// The device took only part; the rest went home to the arena.
    #[inline]
    pub fn repost<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        if !self.is_short() {
            return Ok(0);
        }
        self.post(arena)
    }

    /// Posts the receives that are missing, as far as there is memory.
    // Once for many messages: apart, it takes no registers from what happens for each.
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn post<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        let outcome = post(self.missing(), self.queue.stage(), arena, &self.statistics);
        let (Ok(posted) | Err(PostError { posted, .. })) = outcome;
        self.granting.note_posted(posted);
        outcome
    }

    /// How many receives are not posted, whether or not there is memory for them.
    #[inline]
    fn missing(&self) -> u32 {
        self.queue.missing()
    }

    /// Whether receives are to be announced to the peer by themselves.
    #[must_use]
    #[inline]
    pub fn is_announcement_due(&self) -> bool {
        self.granting.is_due(self.queue.in_flight())
    }

    /// Whether a batch or more of receives is missing.
    #[must_use]
    #[inline]
    pub fn is_short(&self) -> bool {
        self.missing() >= self.repost_batch
    }

    /// Takes the message a completion brought into one piece of memory, and the sender's word. `None` where it is no message, or
    /// not the next one, and nothing was taken: [`Receiver::retire`] is to be asked.
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

    /// Takes the receive a completion names, with the last piece of its memory.
    ///
    /// # Errors
    /// The completion names nothing in flight here.
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

    /// Why the queue pair failed, as far as this half knows.
    #[must_use]
    pub const fn cause(&self) -> Option<FirstCause> {
        self.cause
    }

    /// How many messages came: a count, as the peer's [`Credits::sent`](crate::Credits::sent).
    #[must_use]
    pub fn received(&self) -> u32 {
        self.granting
            .received(self.queue.in_flight().wrapping_add(self.failed))
    }

    /// How many receives have their memory, and wait for others to be posted with them.
    #[must_use]
    pub fn staged(&self) -> u32 {
        self.missing().saturating_sub(self.queue.room())
    }

    /// How many receives are posted.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }
}

/// Posts so many receives, and counts them: what is staged, and the rest from the arena as far as it has memory.
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
