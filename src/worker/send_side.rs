//! Polling for what was sent: completions in bulk, each to its channel, and receives announced. The same for a whole Worker and for the
//! half of one that sends.

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

/// State for polling sends: the completion queue, and the state kept between polls.
pub(crate) struct SendSide<P: Provider> {
    pub(crate) completions: Reaped<P::CompletionQueue>,
    /// The events of a completion of READs and atomics, until they are delivered.
    pub(super) undelivered: Vec<Undelivered<P>>,
    /// How many events one completion has at most.
    pub(super) events_max: usize,
    /// Channels that have receives to announce, and nothing yet that goes out.
    pub(super) unannounced: ChannelList,
    /// Channels that had themselves noticed since the last poll: a message was refused for want of a credit, or the device
    /// refused a doorbell.
    pub(crate) noticed: Arc<Due>,
    /// Channels on which a message was refused for want of a credit.
    pub(super) wanting: ChannelList,
    /// Channels that are lost, which were reported to the application, and that the Worker is to close.
    pub(super) lost: ChannelList,
    /// Completions that polls took in this round, which ends with as many as the queue has places.
    taken: u32,
    pub(super) submissions: Submissions<P>,
}

impl<P: Provider> SendSide<P> {
    pub(super) fn new(
        completions: Reaped<P::CompletionQueue>,
        channels_max: u32,
        submissions_per_poll: u32,
        classes: Option<(&Classes, Instant)>,
    ) -> Self {
        Self {
            completions,
            undelivered: Vec::new(),
            events_max: 0,
            unannounced: ChannelList::default(),
            noticed: due(channels_max as usize),
            wanting: ChannelList::default(),
            lost: ChannelList::default(),
            taken: 0,
            submissions: Submissions::new(channels_max, submissions_per_poll, classes),
        }
    }

    /// How much a poll is to look at beside completions, the noticed channels aside: 0 for nothing.
    #[inline(always)]
    pub(super) fn waiting(&self) -> usize {
        self.submissions.rings() | self.unannounced.len()
    }

    /// Lists the channels that had themselves noticed: those that want credits; and for an announcement, which is
    /// signaled, those of whose doorbell the device took a part. Has those reported that are lost, after a poll that took so
    /// many receives and sends; says whether the Worker is to close any, or to give a peer up.
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
        let Self {
            noticed,
            unannounced,
            wanting,
            undelivered,
            lost,
            taken,
            completions,
            ..
        } = self;
        *taken = taken.saturating_add(sent);
        let is_round_over = *taken >= completions.depth();
        if is_round_over {
            *taken = 0;
        }
        let is_left = !undelivered.is_empty();
        let mut is_unanswered = false;
        noticed.take(|index| {
            let entry = table.get_mut(index as usize);
            let Some((listed, channel)) = entry.and_then(ChannelEntry::split) else {
                return;
            };
            if undelivered.len() >= undelivered.capacity() {
                // The next poll reports its end.
                noticed.notify(index);
            } else {
                match channel.ending(received == 0) {
                    Lost::No => {}
                    Lost::Soon => noticed.notify(index),
                    Lost::Now(event) => {
                        keep_undelivered(undelivered, index, event);
                        listed.note_lost(index, lost);
                        // By which it is reported.
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
            if notice.keep_wanting(noticed, index, sender.wants_credits()) {
                listed.note_wanting(index, wanting);
            }
            if is_left || (is_open && sender.has_unreported()) {
                listed.note_unannounced(index, unannounced);
            }
        });
        is_unanswered || !lost.is_empty()
    }

    /// Announces receives of channels on which nothing went out to carry that, or to report what is undelivered. Reports first
    /// what a callback that panicked left, and returns how much that is.
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
            // Listed still if `each` panics.
            let is_due = channel.is_announcement_due() || channel.send_half().sender.has_unreported();
            listed.is_unannounced = is_due && !announce(channel, others, arena, each);
            listed.is_unannounced
        });
        left
    }

    /// Takes what was sent.
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

/// State of the side that sends, for a completion that takes more.
struct Kept<'s, P: Provider> {
    undelivered: &'s mut Vec<Undelivered<P>>,
    events_max: usize,
    noticed: &'s Due,
    submissions: &'s mut Submissions<P>,
}

/// Takes what failed, what brought data back, and what went out beside announcements of receives.
// Apart, so that a poll does not set up what only this needs.
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
    // The slot of a failed request is kept: it may be a submitter's.
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
    // Made where it is delivered: an event that may be none would be copied.
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
        // There is none of nothing but announcements.
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

/// Announces by itself what receives the peer does not know of, and says whether none is left to
/// announce. A refusal of the device is reported to `each`.
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
