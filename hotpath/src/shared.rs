//! Receives that many channels share: posted for all of them at once, granted to each as it uses its own.
//!
//! A channel has a *share*: the number of receives its peer may use at most. Receives that a peer may use are
//! *granted*. Posted receives beyond the granted ones are *spare*, and only spare ones are granted. So a message
//! never finds the receiver without a posted receive, however the peers use their shares. A message uses up one
//! granted receive. The channel that used it gets a new grant once a receive is spare.

use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{Arena, Arrival, Lent, PostError, Rejected, SharedReceiveQueue};
use doorbell_core::{Ticket, WcStatus};

use crate::receiver::post;
use crate::{FirstCause, Granting, Grants, Statistics};

/// A shared receive queue that keeps itself filled from an arena, and knows what of it is granted.
pub struct SharedReceiver<Q, S> {
    queue: Q,
    statistics: S,
    repost_batch: u32,
    /// Receives that peers may use, of all shares together.
    granted: u32,
    /// Whether receives are to be posted however few are missing: a channel needs them, or may
    /// have some of what was released.
    is_wanted: bool,
}

/// Share of a channel in the shared receives.
pub struct Share<L> {
    granting: Granting<L>,
    /// Receives its peer may use, known to it or not yet.
    granted: u32,
    /// Receives its peer has used that are not granted again.
    used: u32,
    /// With so many used, receives are posted though a batch of them is not missing.
    wanted_at: u32,
    /// Granted receives that ended without a message.
    failed: u32,
    cause: Option<FirstCause>,
}

/// How a receive that ended counts for the share of the channel that took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other outcomes")]
pub enum Taken {
    /// It was granted, and brought a message.
    Message,
    /// It failed, and the queue pair with it.
    Failed,
    /// The peer had used all that was granted, and took another channel's: it is not to be
    /// believed any more. Said once.
    Overdrawn,
    /// The peer took another channel's receive again, after it was found out.
    OverdrawnAgain,
}

impl<Q, S> SharedReceiver<Q, S>
where
    Q: SharedReceiveQueue,
    S: Deref<Target = Statistics>,
{
    /// Over an idle queue, that counts in `statistics` what it does. `repost_batch` is how many may
    /// be missing before they are posted again, in one call; cut to half the queue.
    pub fn new(queue: Q, statistics: S, repost_batch: u32) -> Self {
        let depth = queue.in_flight().saturating_add(queue.room());
        Self {
            queue,
            statistics,
            repost_batch: repost_batch.clamp(1, (depth / 2).max(1)),
            granted: 0,
            is_wanted: false,
        }
    }

    /// The queue, for making queue pairs on it and for its limit.
    #[must_use]
    pub const fn queue(&self) -> &Q {
        &self.queue
    }

    /// The queue, to be changed.
    pub const fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Receives posted that no peer may use yet.
    #[must_use]
    #[inline]
    pub fn spare(&self) -> u32 {
        self.queue.in_flight().saturating_sub(self.granted)
    }

    /// Receives that peers may use.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Whether polling has to go on with it though nothing completed.
    #[must_use]
    #[inline]
    pub const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Posts all receives that are missing, as far as there is memory. Says how many.
    ///
    /// # Errors
    /// The device took only part; the rest went home to the arena.
    pub fn fill<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        post(self.queue.room(), self.queue.stage(), arena, &self.statistics)
    }

    /// Posts receives from the arena until the queue or the arena has no more, in one call, where at
    /// least a batch is missing or a channel needs them. Says how many were posted.
    ///
    /// # Errors
    /// The device took only part; the rest went home to the arena.
    #[inline]
    pub fn replenish<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        let missing = self.queue.room();
        if missing < self.repost_batch && !self.is_wanted {
            return Ok(0);
        }
        if missing == 0 {
            self.is_wanted = false;
            return Ok(0);
        }
        let outcome = self.fill(arena);
        self.is_wanted = match outcome {
            Ok(0) => self.is_wanted,
            // A channel that still needs receives asks again when it is granted fewer.
            Ok(_) => false,
            Err(_) => true,
        };
        outcome
    }

    /// Grants so many receives to the peer of a new channel, which knows of them from the start.
    /// `repost_batch` is how many it may use before they are posted again; cut to half of them.
    /// `None` where not so many are spare.
    pub fn open<L: Deref<Target = Grants>>(
        &mut self,
        grants: L,
        receives: u32,
        repost_batch: u32,
    ) -> Option<Share<L>> {
        if self.spare() < receives {
            return None;
        }
        self.granted = self.granted.wrapping_add(receives);
        Some(Share {
            granting: Granting::new(grants, receives),
            granted: receives,
            used: 0,
            failed: 0,
            wanted_at: repost_batch.clamp(1, (receives / 2).max(1)),
            cause: None,
        })
    }

    /// Takes the receive a completion names, whichever channel used it; `each` gets its slots.
    ///
    /// # Errors
    /// The completion names nothing in flight here.
    #[inline]
    pub fn retire(
        &mut self,
        completion: Lent<'_, Q::Completion>,
        each: impl FnMut(Ticket, Q::Slot),
    ) -> Result<Arrival, Rejected> {
        self.queue.retire(completion, each)
    }

    /// Counts a receive that ended for the share of the channel that took it.
    #[inline]
    pub fn charge<L>(&mut self, share: &mut Share<L>, arrival: &Arrival) -> Taken {
        let is_granted = share.granted > 0;
        if is_granted {
            share.granted = share.granted.wrapping_sub(1);
            self.granted = self.granted.wrapping_sub(1);
        }
        if is_granted && arrival.status.is_success() {
            share.used = share.used.wrapping_add(1);
            self.statistics.received.add(1);
            self.statistics.received_bytes.add(arrival.payload_bytes.into());
            return Taken::Message;
        }
        self.charge_failure(share, arrival)
    }

    #[cold]
    fn charge_failure<L>(&mut self, share: &mut Share<L>, arrival: &Arrival) -> Taken {
        let was_known = share.cause.is_some();
        let overdrew = arrival.status.is_success();
        if !overdrew {
            share.failed = share.failed.wrapping_add(1);
        }
        FirstCause::note(
            &mut share.cause,
            FirstCause {
                // No status of verbs says it.
                status: if overdrew {
                    WcStatus::GENERAL_ERR
                } else {
                    arrival.status
                },
                ticket: arrival.ticket,
                vendor_error: arrival.vendor_error,
            },
        );
        if !overdrew {
            return Taken::Failed;
        }
        // It was granted to another.
        self.want();
        if was_known {
            Taken::OverdrawnAgain
        } else {
            Taken::Overdrawn
        }
    }

    /// Grants a channel again what its peer used, as far as receives are spare. Says whether that was
    /// all; else it is to be called again when there are more.
    #[inline]
    pub fn grant<L: Deref<Target = Grants>>(&mut self, share: &mut Share<L>) -> bool {
        let receives = share.used.min(self.spare());
        if receives > 0 {
            share.used = share.used.wrapping_sub(receives);
            share.granted = share.granted.wrapping_add(receives);
            self.granted = self.granted.wrapping_add(receives);
            share.granting.note_posted(receives);
        }
        self.is_wanted |= share.used >= share.wanted_at;
        share.used == 0
    }

    /// Takes back what was granted to a peer that can use it no more: its queue pair is gone, and the
    /// completion queue holds nothing of it.
    pub const fn release(&mut self, receives: u32) {
        self.granted = self.granted.saturating_sub(receives);
        self.want();
    }

    /// Sees to it that what is missing is posted, however little it is: as where a receive was taken
    /// by none of the channels there are.
    pub const fn want(&mut self) {
        self.is_wanted = true;
    }
}

impl<L: Deref<Target = Grants>> Share<L> {
    /// How many messages came of those that were granted: a count, as the peer's [`Credits::sent`](crate::Credits::sent).
    #[must_use]
    pub fn received(&self) -> u32 {
        self.granting.received(self.granted.wrapping_add(self.failed))
    }

    /// Whether receives are to be announced to the peer by themselves.
    #[must_use]
    #[inline]
    pub fn is_announcement_due(&self) -> bool {
        self.granting.is_due(self.granted)
    }
}

impl<L> Share<L> {
    /// How many receives its peer may use, known to it or not yet.
    #[must_use]
    #[inline]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Why the queue pair failed, as far as this half knows.
    #[must_use]
    pub const fn cause(&self) -> Option<FirstCause> {
        self.cause
    }
}

impl<Q: SharedReceiveQueue, S> fmt::Debug for SharedReceiver<Q, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiver")
            .field("in_flight", &self.queue.in_flight())
            .field("granted", &self.granted)
            .field("is_wanted", &self.is_wanted)
            .finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for Share<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share")
            .field("granted", &self.granted)
            .field("used", &self.used)
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
