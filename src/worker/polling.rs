//! Polling of a Worker: receive completions first, then send completions. Each side has its own file, which the halves of a split
//! Worker use, too.

use doorbell_core::provider::{CompletionQueue, Provider, ProviderError};

use super::channel_table::Listed;
use super::{Turn, Worker};
use crate::worker::event::Event;

impl<P: Provider> Worker<P> {
    /// Polls the completion queues in bulk, receives first, and posts submitted requests. `each` gets every event with its
    /// channel. Returns the number of completions.
    ///
    /// The call itself never waits, allocates, panics or makes a system call, unless a completion ends the last use of a
    /// dropped window. Channels that are being closed do not advance. If channels are closed or lost while the Worker lives, call
    /// [`Worker::tend`] from time to time, or poll by [`Worker::poll_tending`].
    ///
    /// # Errors
    /// A completion queue cannot be polled; the Worker cannot be used any more.
    ///
    /// # Panics
    /// If `each` panics. No event is lost: the event that `each` was given counts as delivered, and its lease returns to the
    /// Worker. All other events come with the next polls, in order. Credits, counters and receives stay correct. Poll again
    /// before sleeping, since no descriptor signals the events that are left.
    ///
    /// The same holds for every call that polls: [`Worker::wait`], [`Worker::ready_to_sleep`], [`Worker::close`] and the polls of
    /// halves, links and meshes.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Turn<'_, P>, Event<'_, P>)) -> Result<u32, ProviderError> {
        Ok(self.poll_queues(&mut each)?.completions())
    }

    /// Polls by [`Worker::poll`], then calls [`Worker::tend`]. Returns the number of completions.
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

    /// Polls by [`Worker::poll_tending`] until a poll finds nothing. Then all completions from before the call are reported. If
    /// completions keep coming, the loop ends after twice as many as the queues have entries. Returns the number of completions,
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
        // The lengths of the Worker's own lists in one word, so that a poll compares once. `noticed` is separate, since other
        // threads may add channels to it.
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

    /// Posts submitted requests and handles the lists of channels, after a poll that took so many completions. Returns the number
    /// of events without a completion.
    // A separate function, so that a poll does not set up registers and stack for it.
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
        // After the completions, which made room in the send queues.
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
        // Last, so that answers sent above can carry the announcements.
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
    /// Completions that an earlier poll had taken out of the queue, before their channel was admitted.
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
        // A queue returns at most 16 completions at once, and fewer than 2^31 are kept early.
        self.early.wrapping_add(self.received).wrapping_add(self.sent)
    }

    /// Returns the number of events that end a wait.
    #[inline]
    pub(super) const fn events(self) -> u32 {
        self.completions().saturating_add(self.unsent)
    }
}
