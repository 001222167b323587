//! Polling of the send completion queue, and announcement of receives. The code serves a whole Worker and the sending half of a
//! split one.

use std::sync::Arc;

use doorbell_core::provider::{Arena, CompletionQueue, Lent, LentCompletion, Provider, ProviderError};
use doorbell_core::{Instant, Ticket, WorkKind};
use doorbell_hotpath::{Outcome, Statistics};

use super::Turn;
use super::channel_list::{ChannelList, Due, due};
use super::channel_table::{ChannelEntry, Others, apart, channel_apart};
use super::submissions::Submissions;
use super::undelivered::{Delivering, Undelivered, deliver, keep_undelivered};
use crate::machine::reaper::Reaped;
use crate::worker::class::Classes;
use crate::worker::event::Event;
use crate::worker::half::{Lost, SendHalf, Sends};
use crate::worker::lease::Lease;

/// The send completion queue, and the state that is kept between its polls.
pub(crate) struct SendSide<P: Provider> {
    pub(crate) completions: Reaped<P::CompletionQueue>,
    /// Events that are kept until they are delivered: those of a completion of READs and atomics, and events after a panic of a
    /// callback.
    pub(super) undelivered: Vec<Undelivered<P>>,
    /// The maximum number of events of one completion.
    pub(super) events_max: usize,
    /// Channels with receives to announce that no send has carried yet.
    pub(super) unannounced: ChannelList,
    /// Channels that reported themselves since the last poll: a message was refused for lack of a credit, the device refused a
    /// doorbell, the channel failed, or a probe is overdue.
    pub(crate) noticed: Arc<Due>,
    /// Channels on which a message was refused for lack of a credit.
    pub(super) wanting: ChannelList,
    /// Lost channels that were reported to the application, and that the Worker has to close.
    pub(super) lost: ChannelList,
    sent: Rounds,
    received: Rounds,
    pub(super) submissions: Submissions<P>,
}

/// Rounds of the completions of one queue, counted while a channel is noticed at each poll.
struct Rounds {
    /// The entries of the queue. A round ends after as many completions.
    depth: u32,
    /// Completions taken in the current round.
    taken: u32,
}

impl Rounds {
    /// Notes the completions of a poll. Returns whether the round is over.
    fn note(&mut self, count: u32) -> bool {
        self.taken = self.taken.saturating_add(count);
        let is_over = self.taken >= self.depth;
        if is_over {
            self.taken = 0;
        }
        is_over
    }
}

impl<P: Provider> SendSide<P> {
    pub(super) fn new(
        completions: Reaped<P::CompletionQueue>,
        receives_depth: u32,
        channels_max: u32,
        submissions_per_poll: u32,
        classes: Option<(&Classes, Instant)>,
    ) -> Self {
        let rounds = |depth| Rounds { depth, taken: 0 };
        Self {
            sent: rounds(completions.depth()),
            received: rounds(receives_depth),
            completions,
            undelivered: Vec::new(),
            events_max: 0,
            unannounced: ChannelList::default(),
            noticed: due(channels_max as usize),
            wanting: ChannelList::default(),
            lost: ChannelList::default(),
            submissions: Submissions::new(channels_max, submissions_per_poll, classes),
        }
    }

    /// Returns a value that is 0 if a poll has nothing to do but completions and `noticed`.
    #[inline(always)]
    pub(super) fn waiting(&self) -> usize {
        self.submissions.rings() | self.unannounced.len()
    }

    /// Handles the channels that reported themselves, after a poll that took so many receives and sends. Channels that want
    /// credits go on the list `wanting`. If the device took only a part of a channel's doorbell, the channel goes on the list
    /// `unannounced`, for a signaled announcement. The ends of lost channels are queued as events. Returns whether the Worker has
    /// to close a channel or to give up a peer.
    #[inline]
    pub(super) fn look_noticed<C: Sends<P>>(
        &mut self,
        table: &mut [ChannelEntry<C>],
        received: u32,
        sent: u32,
    ) -> bool {
        !self.noticed.is_empty() && self.list_noticed(table, received, sent)
    }

    #[cold]
    fn list_noticed<C: Sends<P>>(&mut self, table: &mut [ChannelEntry<C>], received: u32, sent: u32) -> bool {
        let is_round_over = self.sent.note(sent);
        let is_receive_round_over = self.received.note(received);
        let Self {
            noticed,
            unannounced,
            wanting,
            undelivered,
            lost,
            ..
        } = self;
        let is_left = !undelivered.is_empty();
        let mut is_unanswered = false;
        noticed.take(|index| {
            let entry = table.get_mut(index as usize);
            let Some((listed, channel)) = entry.and_then(ChannelEntry::split) else {
                return;
            };
            if undelivered.len() >= undelivered.capacity() {
                // There is no room for its event, so the next poll reports the end.
                noticed.notify(index);
            } else {
                match channel.ending(received, is_receive_round_over) {
                    Lost::No => {}
                    Lost::Soon => noticed.notify(index),
                    Lost::Now(event) => {
                        keep_undelivered(undelivered, index, event);
                        listed.note_lost(index, lost);
                        // `announce` delivers the event.
                        listed.note_unannounced(index, unannounced);
                    }
                    Lost::Reported => listed.note_lost(index, lost),
                }
            }
            let is_open = channel.is_open();
            let SendHalf {
                sender, notice, care, ..
            } = channel.send_half();
            match care.note_poll(sent, is_round_over) {
                Some(true) => is_unanswered = true,
                Some(false) => noticed.notify(index),
                None => {}
            }
            if notice.keep_wanting(noticed, index, is_open && sender.wants_credits()) {
                listed.note_wanting(index, wanting);
            }
            if is_left || (is_open && sender.has_unreported()) {
                listed.note_unannounced(index, unannounced);
            }
        });
        is_unanswered || !lost.is_empty()
    }

    /// Delivers the kept events, then announces receives of the channels whose sends did not carry an announcement. Also posts a
    /// signaled announcement where possibly no signaled request is in flight. Returns the number of kept events.
    pub(super) fn announce<C: Sends<P>>(
        &mut self,
        table: &mut [ChannelEntry<C>],
        arena: &mut P::Arena,
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        let left = u32::try_from(self.undelivered.len()).unwrap_or(u32::MAX);
        if left > 0 {
            let delivering = Delivering {
                undelivered: &mut self.undelivered,
                events_max: self.events_max,
                noticed: &self.noticed,
            };
            deliver(delivering, table, arena, each);
        }
        self.unannounced.retain(|index| {
            let Some((entry, others)) = apart(table, index as usize) else {
                return false;
            };
            let Some((listed, channel)) = entry.split_open() else {
                entry.listed.is_unannounced = false;
                return false;
            };
            // If `each` panics, the channel stays listed.
            let is_due = channel.is_announcement_due() || channel.send_half().sender.has_unreported();
            listed.is_unannounced = is_due && !announce(channel, others, arena, each);
            listed.is_unannounced
        });
        left
    }

    /// Polls the send completion queue. Returns the number of completions.
    #[inline]
    pub(super) fn poll<C: Sends<P>>(
        &mut self,
        table: &mut [ChannelEntry<C>],
        arena: &mut P::Arena,
        statistics: &Arc<Statistics>,
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let Self {
            completions,
            undelivered,
            events_max,
            noticed,
            submissions,
            ..
        } = self;
        completions.poll(|completion| {
            let id = completion.work_id();
            let place = channel_apart(table, id.channel_among(WorkKind::Send));
            if let Some((channel, others)) = place.filter(|_| undelivered.is_empty()) {
                let half = channel.send_half();
                let retired = half.sender.retire_done(&completion, |slot| arena.release(slot));
                if let Some(through) = retired {
                    half.records.settle(through);
                    each(Turn::new(channel, others, arena), Event::Done { through });
                    return;
                }
            }
            let kept = Kept {
                undelivered,
                events_max: *events_max,
                noticed,
                submissions,
            };
            take_other(completion, kept, table, arena, statistics, each);
        })
    }
}

/// State of the sending side that [`take_other`] needs.
struct Kept<'s, P: Provider> {
    undelivered: &'s mut Vec<Undelivered<P>>,
    events_max: usize,
    noticed: &'s Due,
    submissions: &'s mut Submissions<P>,
}

/// Handles completions that failed, that brought data back, or that come while an announcement is in flight.
// A separate function, so that a poll does not set up registers and stack for it.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn take_other<P: Provider, C: Sends<P>>(
    completion: Lent<'_, <P::CompletionQueue as CompletionQueue>::Completion>,
    kept: Kept<'_, P>,
    table: &mut [ChannelEntry<C>],
    arena: &mut P::Arena,
    statistics: &Statistics,
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) {
    let Kept {
        undelivered,
        events_max,
        noticed,
        submissions,
    } = kept;
    let id = completion.work_id();
    let place = channel_apart(table, id.channel_among(WorkKind::Send));
    let Some((channel, others)) = place else {
        statistics.orphaned.add_from_any(1);
        return;
    };
    let half = channel.send_half();
    let success = completion.status().is_success();
    // The slot of a failed request is held back, since it may belong to a submitter.
    let mut failed = None;
    let outcome = half.sender.retire(
        completion,
        |ticket, slot| {
            let data = Lease { slot };
            keep_undelivered(undelivered, id.channel(), Event::Fetched { ticket, data });
        },
        |slot| {
            if success {
                arena.release(slot);
            } else if let Some(before) = failed.replace(slot) {
                arena.release(before);
            }
        },
    );
    let Ok(Outcome { retired, through, .. }) = outcome else {
        statistics.rejected.add_from_any(1);
        return;
    };
    half.records.settle(retired.last);
    if let Some(slot) = failed {
        match half.records.take(retired.last) {
            Some(record) => submissions.ended(half.id(), record, slot, retired.status),
            None => arena.release(slot),
        }
    }
    if !success {
        channel.send_half().notice.note_lost();
    }
    // A closure, since an `Option<Event>` made here would be copied to where it is delivered.
    let event = |through: Ticket| {
        if success || through != retired.last {
            Event::Done { through }
        } else {
            Event::Failed {
                ticket: through,
                status: retired.status,
            }
        }
    };
    if undelivered.is_empty() {
        // If only announcements completed, there is no event.
        if let Some(through) = through {
            each(Turn::new(channel, others, arena), event(through));
        }
        return;
    }
    let is_lost = |last: &Undelivered<P>| !success && last.is_fetched_by(id.channel(), retired.last);
    while undelivered.last().is_some_and(is_lost) {
        undelivered.pop();
    }
    if let Some(through) = through {
        keep_undelivered(undelivered, id.channel(), event(through));
    }
    let delivering = Delivering {
        undelivered,
        events_max,
        noticed,
    };
    deliver(delivering, table, arena, each);
}

/// Announces the receives that the peer does not know of, by a separate request. Returns whether none is left to announce. If the
/// device refuses, `each` gets the error.
fn announce<P: Provider, C: Sends<P>>(
    channel: &mut C,
    others: Others<'_, C>,
    arena: &mut P::Arena,
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) -> bool {
    match channel.send_half().sender.announce() {
        Ok(is_done) => is_done,
        Err(error) => {
            let turn = Turn::new(channel, others, arena);
            each(turn, Event::AnnouncementRefused { error });
            false
        }
    }
}
