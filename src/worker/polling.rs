//! Polling: completions in bulk, each to its channel, and receives posted again. The same for a
//! whole Worker and for the halves of one.

use std::sync::Arc;

use doorbell_core::provider::{
    Arena, ArrivalKind, Completion, CompletionQueue, Lent, LentCompletion, Provider, ProviderError,
};
use doorbell_core::unwinding::OnUnwind;
use doorbell_core::{Ticket, WorkKind};
use doorbell_ffi::Loan;
use doorbell_hotpath::{Outcome, Statistics};

use super::channel_list::{ChannelList, Due, due};
use super::early::Early;
use super::places::{Entry, Listed, Others, apart};
use super::shared::{Around, Shared};
use super::submissions::Submissions;
use super::untold::{Telling, Untold, keep_untold, tell_untold};
use super::{Turn, Worker};
use crate::edge::reaper::Reaped;
use crate::event::Event;
use crate::half::{Lost, Receives, SendHalf, Sends, event_of};
use crate::lease::Lease;
use crate::message::Message;

/// State for polling sends: the completion queue, and the state kept between polls.
pub(crate) struct SendSide<P: Provider> {
    pub(crate) completions: Reaped<P::CompletionQueue>,
    /// The events of a completion of READs and atomics, until they are delivered.
    pub(super) untold: Vec<Untold<P>>,
    /// How many events one completion has at most.
    pub(super) events_max: usize,
    /// Channels that have receives to announce, and nothing yet that goes out.
    pub(super) unannounced: ChannelList,
    /// Channels that had themselves noticed since the last poll: a message was refused for want of a credit, or the device
    /// refused a doorbell.
    pub(crate) noticed: Arc<Due>,
    /// Channels on which a message was refused for want of a credit.
    pub(super) wanting: ChannelList,
    /// Channels that are lost, which the application was told, and that the Worker is to close.
    pub(super) lost: ChannelList,
    pub(super) submissions: Submissions<P>,
}

/// State for polling receives: the completion queue, and the state kept between polls.
pub(crate) struct ReceiveSide<P: Provider> {
    pub(crate) completions: Reaped<P::CompletionQueue>,
    /// Channels whose receives could not all be posted again for want of memory.
    pub(super) hungry: ChannelList,
    /// Completions of channels that are not admitted yet.
    pub(super) early: Early<P>,
    /// The channel of whose receive a callback panicked: it is still to be posted again.
    interrupted: Option<u32>,
    /// The shared receives, if the channels share theirs.
    pub(crate) shared: Option<Box<Reaped<Shared<P>>>>,
}

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
    /// sleeping: no descriptor tells of events that are left.
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
    /// call is reported. If completions never stop, it ends after twice the number that the queues hold.
    ///
    /// # Errors
    /// As for [`Worker::poll`].
    pub(crate) fn poll_through(
        &mut self,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<(), ProviderError> {
        let [sends, receives] = [self.sends.completions.depth(), self.receives.completions.depth()];
        let taken_max = sends.saturating_add(receives).saturating_mul(2);
        let mut taken = 0_u32;
        while taken < taken_max {
            match self.poll_and_tend(&mut each)?.completions() {
                0 => break,
                count => taken = taken.saturating_add(count),
            }
        }
        Ok(())
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
            places,
            sends,
            receives,
            arena,
            statistics,
            closing,
            upkeep,
            ..
        } = self;
        let places = &mut places.entries;
        let unannounced = &mut sends.unannounced;
        let mut due = |index: u32, listed: &mut Listed| listed.note_unannounced(index, unannounced);
        let early = receives.poll_early(places, arena, statistics, &mut due, each);
        let received = receives.poll(places, arena, statistics, &mut due, each)?;
        let sent = sends.poll(places, arena, statistics, each)?;
        // Behind the completions, which made room.
        let unsent = if sends.submissions.is_used() {
            sends.submissions.run(places, arena, each)
        } else {
            0
        };
        if sends.look_noticed(places, received) {
            upkeep.is_wanted();
        }
        if !closing.is_empty() {
            upkeep.note_taken(received, sent);
        }
        // Late, so that an answer given above carries what would go by itself here.
        let late = if sends.unannounced.is_empty() {
            0
        } else {
            sends.announce(places, arena, each)
        };
        Ok(Polled {
            early,
            received,
            sent,
            unsent: unsent.saturating_add(late),
        })
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
        self.early.saturating_add(self.received).saturating_add(self.sent)
    }

    /// Events that end a wait.
    #[inline]
    pub(super) const fn events(self) -> u32 {
        self.completions().saturating_add(self.unsent)
    }
}

impl<P: Provider> ReceiveSide<P> {
    pub(super) fn new(
        completions: Reaped<P::CompletionQueue>,
        shared: Option<Box<Reaped<Shared<P>>>>,
    ) -> Self {
        Self {
            completions,
            hungry: ChannelList::default(),
            early: Early::default(),
            interrupted: None,
            shared,
        }
    }

    /// Whether receives could not be posted for want of memory: nothing tells when there is some.
    pub(super) fn awaits_memory(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.awaits_memory(),
            None => !self.hungry.is_empty(),
        }
    }

    /// Asks the device again to say when few shared receives are left, once it did and they are not few any more.
    #[inline]
    pub(super) fn renew_limit(&mut self) {
        if let Some(shared) = self.shared.as_mut().filter(|shared| shared.is_limit_due()) {
            shared.set_limit();
        }
    }

    /// Takes what was received. `due` is told of channels that have receives to announce.
    #[inline]
    pub(super) fn poll<C: Receives<P>>(
        &mut self,
        places: &mut [Entry<C>],
        arena: &mut P::Arena,
        statistics: &Statistics,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        if self.interrupted.is_some() {
            self.note_interrupted(places);
        }
        let Self {
            completions,
            hungry,
            early,
            shared,
            interrupted,
        } = self;
        let mut around = Around {
            places: &mut *places,
            arena: &mut *arena,
            hungry,
            early,
            statistics,
        };
        let count = completions.poll(|completion| {
            take(completion, shared, interrupted, &mut around, &mut due, each);
        })?;
        if let Some(shared) = &mut self.shared {
            let around = Around {
                places,
                arena,
                hungry: &mut self.hungry,
                early: &mut self.early,
                statistics,
            };
            shared.tend(count, around, &mut due, each);
        } else if !self.hungry.is_empty() {
            self.feed(places, arena, due, each);
        }
        Ok(count)
    }

    /// A callback panicked as it was told of a message: its receive is posted again, and announced, with those that went without.
    #[cold]
    fn note_interrupted<C: Receives<P>>(&mut self, places: &mut [Entry<C>]) {
        let Some(index) = self.interrupted.take() else {
            return;
        };
        if let Some(entry) = places.get_mut(index as usize) {
            if !entry.listed.is_hungry {
                entry.listed.is_hungry = self.hungry.put(index);
            }
        }
    }

    /// Takes what had come before its channel was there, and says of how many it is settled whose they are. It goes in
    /// front of [`ReceiveSide::poll`]: a channel's messages keep their order.
    #[inline]
    pub(super) fn poll_early<C: Receives<P>>(
        &mut self,
        places: &mut [Entry<C>],
        arena: &mut P::Arena,
        statistics: &Statistics,
        due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        if self.early.is_empty() {
            return 0;
        }
        self.take_early(places, arena, statistics, due, each)
    }

    #[cold]
    fn take_early<C: Receives<P>>(
        &mut self,
        places: &mut [Entry<C>],
        arena: &mut P::Arena,
        statistics: &Statistics,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        self.note_interrupted(places);
        if let Some(shared) = &mut self.shared {
            shared.count_early_anew();
        }
        let mut count = 0_u32;
        let mut looking = self.early.look_anew();
        while let Some(completion) = looking.take() {
            let mut around = Around {
                places: &mut *places,
                arena: &mut *arena,
                hungry: &mut self.hungry,
                early: looking.early(),
                statistics,
            };
            let (shared, interrupted) = (&mut self.shared, &mut self.interrupted);
            let is_settled = take(
                completion.lend(),
                shared,
                interrupted,
                &mut around,
                &mut due,
                each,
            );
            count = count.saturating_add(u32::from(is_settled));
        }
        count
    }

    /// Posts receives for channels that went without, as far as memory came back.
    #[cold]
    fn feed<C: Receives<P>>(
        &mut self,
        places: &mut [Entry<C>],
        arena: &mut P::Arena,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) {
        self.hungry.retain(|index| {
            let Some((entry, others)) = apart(places, index as usize) else {
                return false;
            };
            let Some((listed, channel)) = entry.split_open() else {
                entry.listed.is_hungry = false;
                return false;
            };
            // Hungry still if `each` panics.
            listed.is_hungry = !repost(channel, others, arena, each);
            if channel.receive_half().receiver.is_announcement_due() {
                due(index, listed);
            }
            listed.is_hungry
        });
    }
}

/// Takes a receive that ended to its channel. Says whether it is settled whose it was: not where it came early.
#[inline(always)]
fn take<P: Provider, C: Receives<P>>(
    completion: Lent<'_, P::Completion>,
    shared: &mut Option<Box<Reaped<Shared<P>>>>,
    interrupted: &mut Option<u32>,
    around: &mut Around<'_, P, C>,
    due: &mut impl FnMut(u32, &mut Listed),
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) -> bool {
    let id = completion.work_id();
    let place = apart(around.places, id.channel_among(WorkKind::Receive));
    let place = place.and_then(|(entry, others)| Some((entry.channel.as_mut()?, others)));
    let Some((channel, others)) = place else {
        return take_elsewhere(completion, shared, around, due, each);
    };
    let Some((slot, immediate)) = channel.receive_half().retire_message(&completion) else {
        take_other(completion, interrupted, around, due, each);
        return true;
    };
    // Should `each` panic, the next poll posts its receive again, and announces it.
    let owed = OnUnwind::new(|| *interrupted = Some(id.channel()));
    let mut slot = Some(slot);
    if let Some(message) = Loan::of(&mut slot).map(Message::lent) {
        let turn = Turn::new(channel, others, around.arena);
        each(turn, Event::Received { message, immediate });
    }
    if channel.receive_half().receiver.put_back(slot, around.arena) {
        look_after(id.channel(), around, due, each);
    }
    owed.disarm();
    true
}

/// Takes a receive that no channel has in a queue of its own. Says whether it is settled whose it was.
#[inline]
fn take_elsewhere<P: Provider, C: Receives<P>>(
    completion: Lent<'_, P::Completion>,
    shared: &mut Option<Box<Reaped<Shared<P>>>>,
    around: &mut Around<'_, P, C>,
    due: &mut impl FnMut(u32, &mut Listed),
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) -> bool {
    let id = completion.work_id();
    if let (Some(WorkKind::SharedReceive), Some(shared)) = (id.kind(), shared) {
        return shared.take(completion, around.again(), due, each);
    }
    let entry = around.places.get(id.channel_among(WorkKind::Receive));
    let is_early = entry.is_some_and(Entry::awaits_admission);
    keep_or_orphan(completion, is_early, around.early, around.statistics)
}

/// Takes a receive of a channel's own queue that brought no message or one in several slots, or is not the next one.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn take_other<P: Provider, C: Receives<P>>(
    completion: Lent<'_, P::Completion>,
    interrupted: &mut Option<u32>,
    around: &mut Around<'_, P, C>,
    due: &mut impl FnMut(u32, &mut Listed),
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) {
    let id = completion.work_id();
    let place = apart(around.places, id.channel_among(WorkKind::Receive));
    let place = place.and_then(|(entry, others)| Some((entry.split()?, others)));
    let Some(((listed, channel), others)) = place else {
        // The caller found it.
        around.statistics.orphaned.add_from_any(1);
        return;
    };
    let Some((arrival, mut slot)) = channel.receive_half().retire(completion) else {
        around.statistics.rejected.add_from_any(1);
        return;
    };
    let owed = OnUnwind::new(|| *interrupted = Some(id.channel()));
    let is_message = arrival.kind == ArrivalKind::Send;
    let memory = if is_message { Loan::of(&mut slot) } else { None };
    if let Some(message) = memory.map(Message::lent) {
        let immediate = arrival.immediate;
        each(
            Turn::new(channel, others, around.arena),
            Event::Received { message, immediate },
        );
    } else {
        let half = channel.receive_half();
        let event = event_of(&arrival, || half.is_farewell());
        if matches!(event, Event::ChannelFailed { .. } | Event::PeerClosed { .. }) {
            owed.disarm();
            if let Some(slot) = slot {
                around.arena.release(slot);
            }
            // The other half of a Worker taken apart is told. Before `each` is called, which may panic.
            let told = note_end(channel, event);
            due(id.channel(), listed);
            if let Some(event) = told {
                each(Turn::new(channel, others, around.arena), event);
            }
            return;
        }
        each(Turn::new(channel, others, around.arena), event);
    }
    if channel.receive_half().receiver.put_back(slot, around.arena) {
        look_after(id.channel(), around, due, each);
    }
    owed.disarm();
}

/// Posts the receives that are missing of a channel's own queue, and has them announced where that is due. A refusal of the device is
/// told to `each`.
// Once for many messages: apart, it takes no registers from what happens for each.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn look_after<P: Provider, C: Receives<P>>(
    index: u32,
    around: &mut Around<'_, P, C>,
    due: &mut impl FnMut(u32, &mut Listed),
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) {
    let place = apart(around.places, index as usize);
    let place = place.and_then(|(entry, others)| Some((entry.split()?, others)));
    let Some(((listed, channel), others)) = place else {
        return;
    };
    if !repost(channel, others, around.arena, each) && !listed.is_hungry {
        listed.is_hungry = around.hungry.put(index);
    }
    if channel.receive_half().receiver.is_announcement_due() {
        due(index, listed);
    }
}

/// Notes how a channel ended, and what of it the application is to be told now.
#[cold]
pub(super) fn note_end<P: Provider, C: Receives<P>>(
    channel: &mut C,
    event: Event<'static, P>,
) -> Option<Event<'static, P>> {
    match event {
        Event::PeerClosed { .. } => channel.note_peer_closed().then_some(event),
        _ => channel.note_failed(),
    }
}

/// Keeps a receive of a channel that is not admitted yet, and drops that of one that is gone.
#[cold]
fn keep_or_orphan<P: Provider>(
    completion: Lent<'_, P::Completion>,
    is_early: bool,
    early: &mut Early<P>,
    statistics: &Statistics,
) -> bool {
    let is_kept = is_early && early.has_room();
    if is_kept {
        early.keep(completion.keep());
    } else {
        statistics.orphaned.add_from_any(1);
    }
    !is_kept
}

impl<P: Provider> SendSide<P> {
    pub(super) fn new(
        completions: Reaped<P::CompletionQueue>,
        channels_max: u32,
        submissions_per_poll: u32,
    ) -> Self {
        Self {
            completions,
            untold: Vec::new(),
            events_max: 0,
            unannounced: ChannelList::default(),
            noticed: due(channels_max as usize),
            wanting: ChannelList::default(),
            lost: ChannelList::default(),
            submissions: Submissions::new(channels_max, submissions_per_poll),
        }
    }

    /// Lists the channels that had themselves noticed: those that want credits; and for an announcement, which is
    /// signaled, those of whose doorbell the device took a part. Has those told of that are lost, after a poll that took so
    /// many receives; says whether the Worker is to close any.
    #[inline]
    pub(super) fn look_noticed<C: Sends<P>>(&mut self, places: &mut [Entry<C>], received: u32) -> bool {
        !self.noticed.is_empty() && self.list_noticed(places, received)
    }

    #[cold]
    fn list_noticed<C: Sends<P>>(&mut self, places: &mut [Entry<C>], received: u32) -> bool {
        let Self {
            noticed,
            unannounced,
            wanting,
            untold,
            lost,
            ..
        } = self;
        let is_left = !untold.is_empty();
        noticed.take(|index| {
            let entry = places.get_mut(index as usize);
            let Some((listed, channel)) = entry.and_then(Entry::split) else {
                return;
            };
            if untold.len() >= untold.capacity() {
                // The next poll tells its end.
                noticed.tell(index);
            } else {
                match channel.ending(received == 0) {
                    Lost::No => {}
                    Lost::Soon => noticed.tell(index),
                    Lost::Now(event) => {
                        keep_untold(untold, index, event);
                        listed.note_lost(index, lost);
                        // By which it is told.
                        listed.note_unannounced(index, unannounced);
                    }
                    Lost::Told => listed.note_lost(index, lost),
                }
            }
            let is_open = channel.is_open();
            let SendHalf { sender, notice, .. } = channel.send_half();
            if notice.keep_wanting(noticed, index, sender.wants_credits()) {
                listed.note_wanting(index, wanting);
            }
            if is_left || (is_open && sender.has_untold()) {
                listed.note_unannounced(index, unannounced);
            }
        });
        !lost.is_empty()
    }

    /// Announces receives of channels on which nothing went out to carry that, or to tell of what is untold. Tells first
    /// what a callback that panicked left, and returns how much that is.
    pub(super) fn announce<C: Sends<P>>(
        &mut self,
        places: &mut [Entry<C>],
        arena: &mut P::Arena,
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        let left = u32::try_from(self.untold.len()).unwrap_or(u32::MAX);
        if left > 0 {
            let telling = Telling {
                untold: &mut self.untold,
                events_max: self.events_max,
                noticed: &self.noticed,
            };
            tell_untold(telling, places, arena, each);
        }
        self.unannounced.retain(|index| {
            let Some((entry, others)) = apart(places, index as usize) else {
                return false;
            };
            let Some((listed, channel)) = entry.split_open() else {
                entry.listed.is_unannounced = false;
                return false;
            };
            // Listed still if `each` panics.
            let is_due = channel.is_announcement_due() || channel.send_half().sender.has_untold();
            listed.is_unannounced = is_due && !announce(channel, others, arena, each);
            listed.is_unannounced
        });
        left
    }

    /// Takes what was sent.
    #[inline]
    pub(super) fn poll<C: Sends<P>>(
        &mut self,
        places: &mut [Entry<C>],
        arena: &mut P::Arena,
        statistics: &Statistics,
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let Self {
            completions,
            untold,
            events_max,
            noticed,
            submissions,
            ..
        } = self;
        completions.poll(|completion| {
            let id = completion.work_id();
            let place = apart(places, id.channel_among(WorkKind::Send));
            let place = place.and_then(|(entry, others)| Some((entry.channel.as_mut()?, others)));
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
                    keep_untold(untold, id.channel(), Event::Fetched { ticket, data });
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
            // Made where it is told: an event that may be none would be copied.
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
            if untold.is_empty() {
                // There is none of nothing but announcements.
                if let Some(through) = through {
                    each(Turn::new(channel, others, arena), event(through));
                }
                return;
            }
            let is_lost = |last: &Untold<P>| !success && last.is_fetched_by(id.channel(), retired.last);
            while untold.last().is_some_and(is_lost) {
                untold.pop();
            }
            if let Some(through) = through {
                keep_untold(untold, id.channel(), event(through));
            }
            let telling = Telling {
                untold,
                events_max: *events_max,
                noticed,
            };
            tell_untold(telling, places, arena, each);
        })
    }
}

/// Posts the receives that are missing, and says whether none is left to post. A refusal of the device is told to `each`.
#[inline]
fn repost<P: Provider, C: Receives<P>>(
    channel: &mut C,
    others: Others<'_, C>,
    arena: &mut P::Arena,
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) -> bool {
    let (is_full, refused) = channel.receive_half().receiver.repost(arena);
    if let Some(error) = refused {
        each(
            Turn::new(channel, others, arena),
            Event::ReceivesRefused { error },
        );
    }
    is_full
}

/// Announces by itself what receives the peer does not know of, and says whether none is left to
/// announce. A refusal of the device is told to `each`.
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
