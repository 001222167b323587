//! Polling a whole Worker: what was received, then what was sent. Each side is in a file of its own, and the same for the half that has it.

use doorbell_core::provider::{CompletionQueue, Provider, ProviderError};

use super::channel_table::Listed;
use super::{Turn, Worker};
use crate::worker::event::Event;

impl<P: Provider> Worker<P> {
    /// Polls the completion queues in bulk, receives first, and posts what was submitted; `each` gets every
    /// event with its channel. Returns how many completions there were.
    ///
    /// This call never waits, allocates, panics or makes a system call, as far as `each` does not. Channels that are being closed
    /// do not advance by it. A Worker that outlives its channels is tended: by [`Worker::tend`] at times of the loop's own, or by
    /// [`Worker::poll_tending`].
    ///
    /// # Errors
    /// A completion queue cannot be polled; the Worker is of no further use.
    ///
    /// # Panics
    /// If `each` does, and loses nothing by it. The event that `each` had is delivered, and its lease goes home. Every
    /// other event comes with the next polls, in order. Credits, counts and receives are right. Poll again before
    /// sleeping: no descriptor announces events that are left.
    ///
    /// The same holds for every call that polls: [`Worker::wait`], [`Worker::ready_to_sleep`], [`Worker::close`] and
    /// the polls of halves, links and meshes.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Turn<'_, P>, Event<'_, P>)) -> Result<u32, ProviderError> {
        Ok(self.poll_queues(&mut each)?.completions())
    }

    /// Polls by [`Worker::poll`], then calls [`Worker::tend`]. Returns how many completions there were.
    ///
    /// # Errors
    /// As for [`Worker::poll`].
    #[inline]
    pub fn poll_tending(
        &mut self,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        Ok(self.poll_and_tend(&mut each)?.completions())
    }

    /// Polls as [`Worker::poll_tending`] does, repeatedly until a poll finds nothing: then everything that had completed before the
    /// call is reported. If completions never stop, it ends after twice the number that the queues hold. Returns how many there were,
    /// and whether more may be left.
    ///
    /// # Errors
    /// As for [`Worker::poll`].
    pub(crate) fn poll_through(
        &mut self,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<(u32, bool), ProviderError> {
        let [sends, receives] = [self.sends.completions.depth(), self.receives.completions.depth()];
        let taken_max = sends.saturating_add(receives).saturating_mul(2);
        let mut taken = 0_u32;
        while taken < taken_max {
            match self.poll_and_tend(&mut each)?.completions() {
                0 => return Ok((taken, false)),
                count => taken = taken.saturating_add(count),
            }
        }
        Ok((taken, true))
    }

    /// Polls by [`Worker::poll_tending`]; returns all counts.
    #[inline]
    pub(super) fn poll_and_tend(
        &mut self,
        each: &mut impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Polled, ProviderError> {
        let polled = self.poll_queues(each)?;
        self.tend();
        Ok(polled)
    }

    /// Polls by [`Worker::poll`]; returns all counts.
    #[inline(always)]
    pub(super) fn poll_queues(
        &mut self,
        each: &mut impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Polled, ProviderError> {
        let Self {
            table,
            sends,
            receives,
            arena,
            statistics,
            ..
        } = self;
        let table = &mut table.entries;
        let unannounced = &mut sends.unannounced;
        let mut due = |index: u32, listed: &mut Listed| listed.note_unannounced(index, unannounced);
        let early = receives.poll_early(table, arena, statistics, &mut due, each);
        let received = receives.poll(table, arena, statistics, &mut due, each)?;
        let sent = sends.poll(table, arena, statistics, each)?;
        // One word of the Worker's own lists. Channels list themselves among those that noticed something, from any thread.
        let waiting = sends.waiting() | receives.unfed() | self.closing.len();
        let unsent = if waiting != 0 || !sends.noticed.is_empty() {
            self.look_at_lists(received, sent, each)
        } else {
            0
        };
        Ok(Polled {
            early,
            received,
            sent,
            unsent,
        })
    }

    /// Posts what was submitted, and looks at the lists of channels, after a poll that took so many completions. Returns how many
    /// events there were without one.
    // Apart, so that a poll does not set up what only this needs.
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn look_at_lists(
        &mut self,
        received: u32,
        sent: u32,
        each: &mut impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> u32 {
        let Self {
            table,
            sends,
            receives,
            arena,
            closing,
            upkeep,
            context,
            ..
        } = self;
        let table = &mut table.entries;
        if receives.unfed() != 0 {
            let unannounced = &mut sends.unannounced;
            let due = |index: u32, listed: &mut Listed| listed.note_unannounced(index, unannounced);
            receives.feed(table, arena, due, each);
        }
        // Behind the completions, which made room.
        let unsent = if sends.submissions.is_used() {
            sends.submissions.run(table, arena, context, each)
        } else {
            0
        };
        if sends.look_noticed(table, received, sent) {
            upkeep.is_wanted();
        }
        if !closing.is_empty() {
            upkeep.note_taken(received, sent);
        }
        // Late, so that an answer given above carries what would go by itself here.
        let late = if sends.unannounced.is_empty() {
            0
        } else {
            sends.announce(table, arena, each)
        };
        unsent.saturating_add(late)
    }
}

/// Counts of a poll.
#[derive(Clone, Copy)]
pub(super) struct Polled {
    /// Completions that an earlier poll had taken out of the queue.
    early: u32,
    received: u32,
    sent: u32,
    /// Events without a completion: submissions of the Worker's own thread that came back, and events left over from a callback
    /// that panicked.
    unsent: u32,
}

impl Polled {
    #[inline]
    const fn completions(self) -> u32 {
        // No queue gives out more than 16 at once, and of those kept there are fewer than 2^31.
        self.early.wrapping_add(self.received).wrapping_add(self.sent)
    }

    /// Events that end a wait.
    #[inline]
    pub(super) const fn events(self) -> u32 {
        self.completions().saturating_add(self.unsent)
    }
}
