//! Upkeep of a Worker by `Worker::tend`: closing of lost channels, progress of channels that are being closed, and probes of
//! silent peers.

use core::time::Duration;

use doorbell_core::provider::{CompletionQueue as _, Provider};
use doorbell_core::{Clock as _, Deadline, Instant};

use super::Worker;
use crate::worker::channel::{Channel, ChannelId};
use crate::worker::ending::{Look, Traffic};
use crate::worker::event::ChannelState;

/// Maximum number of polls between two reads of the clock. A read costs some twenty nanoseconds, and these polls take tens of
/// microseconds.
const POLLS: u32 = 1024;

/// Number of polls between two reads of the clock before the duration of a poll is known.
const POLLS_FIRST: u32 = 16;

/// Target time between two reads of the clock, for loops that sleep between their polls. The number of polls between two reads is
/// adapted to it.
const LOOK_WITHIN: Duration = Duration::from_millis(20);

/// Interval at which all channels are checked for traffic while the Worker has any. A silent peer is probed late by at most this
/// time.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Schedule of a Worker's upkeep, for conditions that no completion reports.
#[derive(Debug)]
pub(super) struct Upkeep {
    /// Calls of `tend` left until the next upkeep.
    polls: u32,
    /// Calls of `tend` from one upkeep to the next while channels are probed.
    stride: u32,
    /// The time of the last upkeep. `None` if the next one was requested early, since the time between them then says nothing.
    looked: Option<Instant>,
    /// Whether a channel of the Worker is to be probed when its peer is silent.
    is_probing: bool,
    /// The time of the next check of all channels for traffic. `None` if it is not known; then the check is due at once.
    due: Option<Instant>,
    /// The Worker's traffic count at the last check of all channels.
    seen: u64,
    /// Completions that polls took since the closings advanced last.
    taken: TakenOfBoth,
}

/// Completions that polls took out of a completion queue since the closings advanced last.
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

    /// Whether there was a poll.
    pub(super) const fn is_polled(self) -> bool {
        self.is_empty || self.count > 0
    }

    /// Returns how many of `before` earlier completions may still be in the queue. After a poll that found the queue empty there
    /// are none: any completion in the queue is newer.
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

    /// Counts a call of [`Worker::tend`]. Returns whether the upkeep is due.
    #[inline]
    pub(super) const fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_sub(1);
        self.polls == 0
    }

    /// Makes the upkeep due at the next call of [`Worker::tend`].
    pub(super) const fn is_wanted(&mut self) {
        self.polls = 1;
        self.looked = None;
    }

    /// Notes the time of an upkeep, and adapts the stride so that the next one follows within about [`LOOK_WITHIN`].
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

    /// Returns the number of calls until the next upkeep, if nothing requests it earlier.
    const fn polls_to_next(&self) -> u32 {
        if self.is_probing { self.stride } else { POLLS }
    }

    /// Notes that the Worker has a new channel that is to be probed.
    pub(super) const fn probe(&mut self) {
        self.is_probing = true;
        self.due = None;
        self.is_wanted();
    }

    /// Returns the longest time that a thread may sleep before the next check for probes; `None` is no limit.
    pub(super) fn sleep_at_most(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        let due = self.due.filter(|_| self.is_probing)?;
        Some(Deadline::at(due).remaining(now()))
    }
}

impl<P: Provider> Worker<P> {
    /// Does the upkeep that polling leaves out. Channels that are being closed advance, and lost channels begin to close. Silent
    /// peers are probed, and a reached limit of shared receives is set again. The call may allocate and make system calls.
    ///
    /// A loop that polls by [`Worker::poll`] calls this every few milliseconds or more often, at moments that it chooses. Calling
    /// it after each poll, as [`Worker::poll_tending`] does, is cheap: if nothing is closing or due, a call costs a few
    /// instructions, and one call in 1,024 reads the clock. While the loop sleeps between its polls, more of them do.
    #[inline]
    pub fn tend(&mut self) {
        if self.upkeep.is_due() {
            self.keep_up();
        }
        self.receives.renew_limit();
    }

    /// Advances closings and closes lost channels before a new channel is admitted. So lost channels do not keep new peers out,
    /// even if the application never calls [`Worker::tend`].
    pub(crate) fn make_room(&mut self) {
        if !self.closing.is_empty() || !self.sends.lost.is_empty() {
            self.keep_up();
        }
    }

    /// Does the upkeep: advances all closings, begins to close lost channels, probes silent peers, and drops kept completions of
    /// connections that were given up.
    #[cold]
    fn keep_up(&mut self) {
        let taken = core::mem::take(&mut self.upkeep.taken);
        if !self.closing.is_empty() {
            self.advance_closings(taken);
        }
        // After the advance, since `taken` counts completions from before these closings began.
        if !self.sends.lost.is_empty() {
            self.close_lost();
        }
        if self.upkeep.is_probing {
            self.look_after();
        }
        if self.closing.is_empty() {
            self.upkeep.polls = self.upkeep.polls_to_next();
            // Not while channels are closing, since each call is an upkeep then.
            self.receives
                .let_go_early(&self.table.entries, &mut self.arena, &self.statistics);
        } else {
            self.upkeep.is_wanted();
        }
    }

    /// Begins to close the lost channels, whose ends were reported to the application.
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

    /// Takes over the ends of channels that the halves found while the Worker was split, and the probing of channels.
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

    /// Checks which channels had traffic, and probes the peers of those that were silent for long enough.
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
        // Read again, since probes count as traffic.
        self.upkeep.seen = self.traffic();
    }

    /// Returns a count that changes with the traffic of the Worker. Unsignaled requests count when they are posted.
    fn traffic(&self) -> u64 {
        let counts = &self.statistics;
        let came = counts.received.value().wrapping_add(counts.completions.value());
        came.wrapping_add(counts.requests.value())
    }
}

/// Probes the peer of a channel or gives it up, if that is due. Returns the time of the next check; `None` if the channel needs
/// none. While requests of the application are in flight, the transport's retransmissions detect a dead peer.
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
            // A refused probe is retried after the same time of silence. The device may have posted it despite the refusal.
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
            // If the device refuses, the channel counts as failed anyway.
            let _ = channel.send.shut();
            channel.send.sender.note_unanswered();
            channel.send.notice.note_lost();
            None
        }
    }
}

impl<P: Provider> Worker<P> {
    /// Takes over a closing that the Worker began by itself. Returns whether there is such a closing, finished or not, that no
    /// caller took over before.
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
