//! Receives that many channels share. They are posted for all channels together, and granted to each channel as it uses
//! its share.
//!
//! A channel has a *share*: the maximum number of receives that its peer may use. Receives that a peer may use are
//! *granted*. Posted receives beyond the granted ones are *spare*, and only spare ones are granted. So a message always
//! finds a posted receive, however the peers use their shares. A message uses up one granted receive. Its channel gets a
//! new grant when a receive is spare.

use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{Arena, Arrival, Lent, PostError, Rejected, SharedReceiveQueue};
use doorbell_core::{Ticket, WcStatus};

use crate::receiver::post;
use crate::{FirstCause, Granting, Grants, Statistics};

/// A shared receive queue that keeps itself filled from an arena, and knows how many receives are granted.
pub struct SharedReceiver<Q, S> {
    queue: Q,
    statistics: S,
    repost_batch: u32,
    /// The number of granted receives, of all shares together.
    granted: u32,
    /// Whether receives have to be posted even if fewer than a batch are missing: a channel needs
    /// them, or others were released.
    is_wanted: bool,
}

/// The share of a channel in the shared receives.
pub struct Share<L> {
    granting: Granting<L>,
    /// The receives granted to its peer, announced or not.
    granted: u32,
    /// The receives that its peer has used and that are not granted again.
    used: u32,
    /// With this many used receives, receives are posted even if fewer than a batch are missing.
    wanted_at: u32,
    /// The number of granted receives that ended without a message.
    failed: u32,
    cause: Option<FirstCause>,
}

/// How a completed receive counts for the share of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other outcomes")]
pub enum Taken {
    /// The receive was granted, and got a message.
    Message,
    /// The receive failed, and so did the queue pair.
    Failed,
    /// The peer had used all its granted receives, and used one of another channel: it broke the
    /// protocol. Reported once.
    Overdrawn,
    /// The peer used a receive of another channel again, after the first report.
    OverdrawnAgain,
}

impl<Q, S> SharedReceiver<Q, S>
where
    Q: SharedReceiveQueue,
    S: Deref<Target = Statistics>,
{
    /// A receiver over an idle queue, which counts its work in `statistics`. `repost_batch` is the
    /// number of missing receives at which they are posted again, at most half the queue.
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

    /// The queue, for creating queue pairs on it and for its limit.
    #[must_use]
    pub const fn queue(&self) -> &Q {
        &self.queue
    }

    /// The queue, mutably.
    pub const fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// The number of posted receives that are not granted.
    #[must_use]
    #[inline]
    pub fn spare(&self) -> u32 {
        self.queue.in_flight().saturating_sub(self.granted)
    }

    /// The number of granted receives.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Whether a poll has to post receives although nothing completed.
    #[must_use]
    #[inline]
    pub const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Posts all missing receives, as far as there are slots. Returns the number of posted receives.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to the arena.
    pub fn fill<A: Arena<Slot = Q::Slot>>(&mut self, arena: &mut A) -> Result<u32, PostError> {
        post(self.queue.room(), self.queue.stage(), arena, &self.statistics)
    }

    /// Posts all missing receives in one call, as far as there are slots, if at least a batch is
    /// missing or a channel needs them. Returns the number of posted receives.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to the arena.
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
            // A channel that still needs receives sets the flag again in `grant`.
            Ok(_) => false,
            Err(_) => true,
        };
        outcome
    }

    /// Grants `receives` receives to the peer of a new channel, which knows them from the start.
    /// `repost_batch` is the number of used receives at which receives are posted again, at most
    /// half of `receives`. `None` if too few are spare.
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

    /// Takes the receive that a completion names, of any channel; `each` gets its slots.
    ///
    /// # Errors
    /// The completion names no receive in flight here.
    #[inline]
    pub fn retire(
        &mut self,
        completion: Lent<'_, Q::Completion>,
        each: impl FnMut(Ticket, Q::Slot),
    ) -> Result<Arrival, Rejected> {
        self.queue.retire(completion, each)
    }

    /// Counts a completed receive for the share of its channel.
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
        self.charge_failure(share, arrival, is_granted)
    }

    #[cold]
    fn charge_failure<L>(&mut self, share: &mut Share<L>, arrival: &Arrival, is_granted: bool) -> Taken {
        let was_known = share.cause.is_some();
        let overdrew = arrival.status.is_success();
        if is_granted {
            share.failed = share.failed.wrapping_add(1);
        } else {
            // The receive was granted to another channel, which now lacks one.
            self.want();
        }
        FirstCause::note(
            &mut share.cause,
            FirstCause {
                // Verbs have no status for this.
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
        if was_known {
            Taken::OverdrawnAgain
        } else {
            Taken::Overdrawn
        }
    }

    /// Grants a channel new receives for the used ones, as far as receives are spare. Returns whether
    /// all were granted. If not, the caller calls it again when more are spare.
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

    /// Takes back the receives granted to a peer that cannot use them any more: its queue pair is
    /// gone, and the completion queue has none of its completions.
    pub const fn release(&mut self, receives: u32) {
        self.granted = self.granted.saturating_sub(receives);
        self.want();
    }

    /// Makes the next call post missing receives even if they are fewer than a batch, for example
    /// when a receive belonged to no existing channel.
    pub const fn want(&mut self) {
        self.is_wanted = true;
    }
}

impl<L: Deref<Target = Grants>> Share<L> {
    /// The number of messages in granted receives: a count like the peer's [`Credits::sent`](crate::Credits::sent).
    #[must_use]
    pub fn received(&self) -> u32 {
        self.granting.received(self.granted.wrapping_add(self.failed))
    }

    /// Whether receives need an announcement alone.
    #[must_use]
    #[inline]
    pub fn is_announcement_due(&self) -> bool {
        self.granting.is_due(self.granted)
    }
}

impl<L> Share<L> {
    /// The receives granted to its peer, announced or not.
    #[must_use]
    #[inline]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// The cause of the queue pair's failure, as far as this half knows.
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
