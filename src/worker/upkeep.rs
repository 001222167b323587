//! Upkeep of a Worker (`Worker::tend`), beside polling: it closes channels that are lost, advances channels that are being closed, and
//! probes peers of which nothing is heard.

use core::time::Duration;

use doorbell_core::provider::{CompletionQueue as _, Provider};
use doorbell_core::{Clock as _, Deadline, Instant};

use super::Worker;
use crate::worker::channel::{Channel, ChannelId};
use crate::worker::ending::{Look, Traffic};
use crate::worker::event::ChannelState;

/// Polls from one look at the clock to the next, at most: a look costs some twenty nanoseconds, and these polls take tens of microseconds.
const POLLS: u32 = 1024;

/// As many before it is known how long a poll takes.
const POLLS_FIRST: u32 = 16;

/// A loop that sleeps between its polls makes few of them: then there are so many from one look to the next as it makes in this time.
const LOOK_WITHIN: Duration = Duration::from_millis(20);

/// While something comes or goes, channels are looked at so often for whether it did on them: a peer that is silent is probed
/// this much late at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// When a Worker is to look at what no completion reports.
#[derive(Debug)]
pub(super) struct Upkeep {
    /// Polls left until it looks.
    polls: u32,
    /// Polls from one look to the next.
    stride: u32,
    /// When it looked last, where as many polls as that are made since.
    looked: Option<Instant>,
    /// Whether any channel is probed.
    is_probing: bool,
    /// When channels are looked at next for whether anything came; at once where it is not known.
    due: Option<Instant>,
    /// The counts of what had come on the Worker and gone by the last look at its channels.
    seen: u64,
    /// Completions that polls took since the last look at the closings.
    taken: TakenOfBoth,
}

/// Completions that polls took out of a completion queue since the last look at the closings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    count: u32,
    /// Whether a poll found the queue empty.
    is_empty: bool,
}

impl Taken {
    fn note(&mut self, count: u32) {
        self.count = self.count.saturating_add(count);
        self.is_empty |= count == 0;
    }

    /// How many completions may be left of so many that were in the queue at the look before. An empty queue has none left:
    /// what came since are others.
    pub(super) const fn left_of(self, before: u32) -> u32 {
        if self.is_empty {
            0
        } else {
            before.saturating_sub(self.count)
        }
    }
}

/// Completions that polls took out of both completion queues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenOfBoth {
    pub(super) receives: Taken,
    pub(super) sends: Taken,
}

impl Upkeep {
    pub(super) fn new() -> Self {
        Self {
            polls: POLLS,
            stride: POLLS_FIRST,
            looked: None,
            is_probing: false,
            due: None,
            seen: 0,
            taken: TakenOfBoth::default(),
        }
    }

    /// Notes the completions of a poll while channels are being closed.
    #[cold]
    pub(super) fn note_taken(&mut self, received: u32, sent: u32) {
        self.taken.receives.note(received);
        self.taken.sends.note(sent);
    }

    /// Counts a call of [`Worker::tend`]; says whether there is something to look at.
    #[inline]
    pub(super) const fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_sub(1);
        self.polls == 0
    }

    /// Has the poll that is under way look, or the next one.
    pub(super) const fn is_wanted(&mut self) {
        self.polls = 1;
        self.looked = None;
    }

    /// Notes that it looks now, and has the next look be as many polls away as take no longer than [`LOOK_WITHIN`].
    fn note_look(&mut self, now: Instant) {
        if let Some(before) = self.looked {
            let took = Deadline::at(now).remaining(before).as_micros().max(1);
            let fitting = u128::from(self.stride)
                .saturating_mul(LOOK_WITHIN.as_micros())
                .checked_div(took);
            let most = self.stride.saturating_mul(2).min(POLLS);
            let stride = fitting.and_then(|polls| u32::try_from(polls).ok());
            self.stride = stride.unwrap_or(most).min(most).max(1);
        }
        self.looked = Some(now);
    }

    /// Polls until it looks again, where nothing is to be done before.
    const fn polls_to_next(&self) -> u32 {
        if self.is_probing { self.stride } else { POLLS }
    }

    /// A channel came that is to be probed.
    pub(super) const fn probe(&mut self) {
        self.is_probing = true;
        self.due = None;
        self.is_wanted();
    }

    /// For how long it may sleep at most.
    pub(super) fn sleep_at_most(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        let due = self.due.filter(|_| self.is_probing)?;
        Some(Deadline::at(due).remaining(now()))
    }
}

impl<P: Provider> Worker<P> {
    /// Does the upkeep that polling leaves out. Channels that are being closed advance, and channels that are lost begin to close.
    /// Silent peers are probed, and a limit of shared receives that was reached is set again. It may allocate and make system calls.
    ///
    /// A loop that polls by [`Worker::poll`] calls it at times of its own, every few milliseconds or more often. It may be called
    /// after each poll, as [`Worker::poll_tending`] does: if nothing is closing or due, a call costs a few instructions, and one
    /// in 1,024 looks at the clock.
    #[inline]
    pub fn tend(&mut self) {
        if self.upkeep.is_due() {
            self.keep_up();
        }
        self.receives.renew_limit();
    }

    /// Closes what is lost, as far as that goes now: a channel that nobody needs any more keeps no peer out, in a loop that never
    /// tends either.
    pub(crate) fn make_room(&mut self) {
        if !self.closing.is_empty() || !self.sends.lost.is_empty() {
            self.keep_up();
        }
    }

    /// Advances all closings, by what polls took since the last time, closes what is lost, and probes.
    #[cold]
    fn keep_up(&mut self) {
        let taken = core::mem::take(&mut self.upkeep.taken);
        if !self.closing.is_empty() {
            self.advance_closings(taken);
        }
        // Later: what was taken was so before these began to close.
        if !self.sends.lost.is_empty() {
            self.close_lost();
        }
        if self.upkeep.is_probing {
            self.look_after();
        }
        if self.closing.is_empty() {
            self.upkeep.polls = self.upkeep.polls_to_next();
        } else {
            self.upkeep.is_wanted();
        }
    }

    /// Begins to close the channels that are lost, which were reported to the application.
    fn close_lost(&mut self) {
        let now = self.context.now();
        let Self {
            table,
            sends,
            receives,
            closing,
            ..
        } = self;
        let depth = receives.completions.depth();
        sends.lost.retain(|index| {
            let Some(entry) = table.entries.get_mut(index as usize) else {
                return false;
            };
            entry.listed.is_lost = false;
            if let Some(channel) = entry
                .channel
                .as_ref()
                .filter(|channel| channel.send.care.closes_when_lost)
            {
                super::Closing::begin_lost(closing, channel, now, depth);
            }
            false
        });
    }

    /// Takes up what the halves found out while they were apart.
    pub(super) fn take_up_lost(&mut self) {
        for entry in &mut self.table.entries {
            let Some(channel) = &mut entry.channel else {
                continue;
            };
            if channel.send.care.probe_after().is_some() {
                self.upkeep.probe();
            }
            if let ChannelState::PeerClosed { all_arrived } = channel.state() {
                channel.send.note_peer_closed(all_arrived);
            }
            if channel.state() != ChannelState::Open {
                channel.send.notice.note_lost();
            }
        }
    }

    /// Looks which channels something came on, and probes the peers of the others once it is time.
    fn look_after(&mut self) {
        let now = self.context.now();
        self.upkeep.note_look(now);
        let seen = self.traffic();
        let soon = Deadline::after(now, LOOK_EVERY).instant();
        if self.upkeep.due.is_some_and(|due| due > now) {
            if seen != self.upkeep.seen {
                self.upkeep.due = self.upkeep.due.map(|due| due.min(soon));
            }
            return;
        }
        let mut next: Option<Instant> = None;
        for entry in &mut self.table.entries {
            let due = entry.channel.as_mut().and_then(|channel| look_at(channel, now));
            next = next.into_iter().chain(due).min();
        }
        self.upkeep.is_probing = next.is_some();
        self.upkeep.due = next;
        // With the probes.
        self.upkeep.seen = self.traffic();
    }

    /// A count of what has come and gone on the Worker. Messages without a completion are seen by their requests alone.
    fn traffic(&self) -> u64 {
        let counts = &self.statistics;
        let came = counts.received.value().wrapping_add(counts.completions.value());
        came.wrapping_add(counts.requests.value())
    }
}

/// Probes the peer of a channel where it is time, or gives it up; says when it is to be looked at again. While requests of the
/// application are in flight the transport itself finds out a peer that is dead.
fn look_at<P: Provider>(channel: &mut Channel<P>, now: Instant) -> Option<Instant> {
    if channel.state() != ChannelState::Open || channel.send.is_closed {
        return None;
    }
    let sender = &mut channel.send.sender;
    let traffic = Traffic {
        seen: (channel.receive.receiver.received(), sender.went_out()),
        is_awaited: sender.awaits_completion(),
        awaits_probe: sender.awaits_probe(),
    };
    match channel.send.care.look(traffic, now)? {
        Look::At(due) => Some(due),
        Look::Probe => {
            // If the device refuses it, it is tried again after the same silence. It may have it all the same.
            let is_posted = channel.send.sender.probe().is_ok();
            if !is_posted {
                channel.send.notice.note_not_posted();
            }
            channel.send.care.note_probed(is_posted, now)
        }
        Look::Await => {
            channel.send.notice.note_overdue();
            Some(now)
        }
        Look::GiveUp => {
            // If the device refuses even that, the channel counts as failed all the same.
            let _ = channel.send.shut();
            channel.send.sender.note_unanswered();
            channel.send.notice.note_lost();
            None
        }
    }
}

impl<P: Provider> Worker<P> {
    /// Whether the Worker is closing a channel by itself, or has, and nobody asked for it so far; then it is the caller's.
    pub(super) fn take_over(&mut self, id: ChannelId) -> bool {
        if let Some(closing) = self.closing.iter_mut().find(|closing| closing.is_of(id)) {
            return core::mem::take(&mut closing.is_by_itself);
        }
        let entry = self.table.entries.get_mut(id.index as usize);
        let closed = entry.and_then(|entry| entry.closed.as_mut());
        let of_it = closed.filter(|closed| closed.generation == id.generation);
        of_it.is_some_and(|closed| core::mem::take(&mut closed.is_by_itself))
    }
}

#[cfg(test)]
mod tests {
    use super::Taken;

    #[test]
    fn what_polls_took_bounds_what_is_left() {
        let after = |polls: &[u32]| {
            let mut taken = Taken::default();
            polls.iter().for_each(|count| taken.note(*count));
            taken.left_of(10)
        };
        assert_eq!(after(&[]), 10, "nothing is known");
        assert_eq!(after(&[3]), 7);
        assert_eq!(after(&[3, 4]), 3);
        assert_eq!(after(&[3, 4, 8]), 0);
        assert_eq!(after(&[0]), 0);
        assert_eq!(after(&[0, 4]), 0, "what came since are others");
    }
}
