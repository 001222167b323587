//! Polling for what was received: completions in bulk, each to its channel, and receives posted again. The same for a whole Worker
//! and for the half of one that receives.

use std::sync::Arc;

use doorbell_core::WorkKind;
use doorbell_core::provider::{
    Arena, ArrivalKind, Completion, CompletionQueue, Lent, LentCompletion, Provider, ProviderError,
};
use doorbell_core::unwinding::OnUnwind;
use doorbell_ffi::Loan;
use doorbell_hotpath::Statistics;

use super::Turn;
use super::channel_list::ChannelList;
use super::channel_table::{ChannelEntry, Listed, Others, apart, channel_apart, listed_apart};
use super::early::Early;
use super::shared::{Around, Shared};
use crate::machine::reaper::Reaped;
use crate::worker::event::Event;
use crate::worker::half::{Receives, event_of};
use crate::worker::message::{Message, Taken};

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

    /// Whether receives could not be posted for want of memory: nothing announces when there is some.
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

    /// Takes what was received. `due` is notified of channels that have receives to announce.
    #[inline]
    pub(super) fn poll<C: Receives<P>>(
        &mut self,
        table: &mut Vec<ChannelEntry<C>>,
        arena: &mut P::Arena,
        statistics: &Arc<Statistics>,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let Self {
            completions,
            hungry,
            early,
            shared,
            interrupted,
        } = self;
        let mut around = Around {
            table: &mut *table,
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
                table,
                arena,
                hungry: &mut self.hungry,
                early: &mut self.early,
                statistics,
            };
            shared.tend(count, around, &mut due, each);
        }
        Ok(count)
    }

    /// A callback panicked as a message was delivered to it: its receive is posted again, and announced, with those that went without.
    #[cold]
    fn note_interrupted<C: Receives<P>>(&mut self, table: &mut [ChannelEntry<C>]) {
        let Some(index) = self.interrupted.take() else {
            return;
        };
        if let Some(entry) = table.get_mut(index as usize) {
            entry.listed.note_hungry(index, &mut self.hungry);
        }
    }

    /// Takes what had come before its channel was there, and says of how many it is settled whose they are. It goes in
    /// front of [`ReceiveSide::poll`]: a channel's messages keep their order, and the receive of a callback that panicked is noted.
    #[inline]
    pub(super) fn poll_early<C: Receives<P>>(
        &mut self,
        table: &mut Vec<ChannelEntry<C>>,
        arena: &mut P::Arena,
        statistics: &Arc<Statistics>,
        due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        // One word of both, so that a poll compares once.
        if self.early.len() | usize::from(self.interrupted.is_some()) == 0 {
            return 0;
        }
        self.take_early(table, arena, statistics, due, each)
    }

    #[cold]
    fn take_early<C: Receives<P>>(
        &mut self,
        table: &mut Vec<ChannelEntry<C>>,
        arena: &mut P::Arena,
        statistics: &Arc<Statistics>,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        self.note_interrupted(table);
        if let Some(shared) = &mut self.shared {
            shared.count_early_anew();
        }
        let mut count = 0_u32;
        let mut pass = self.early.pass_again();
        while let Some(completion) = pass.take() {
            let mut around = Around {
                table: &mut *table,
                arena: &mut *arena,
                hungry: &mut self.hungry,
                early: pass.early(),
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

    /// How many channels went without receives, for [`ReceiveSide::feed`].
    #[inline(always)]
    pub(super) fn unfed(&self) -> usize {
        self.hungry.len()
    }

    /// Posts receives for channels that went without, as far as memory came back.
    #[cold]
    pub(super) fn feed<C: Receives<P>>(
        &mut self,
        table: &mut [ChannelEntry<C>],
        arena: &mut P::Arena,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) {
        if self.shared.is_some() {
            // These are fed with the shared receives.
            return;
        }
        self.hungry.retain(|index| {
            let Some((entry, others)) = apart(table, index as usize) else {
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
    let place = channel_apart(around.table, id.channel_among(WorkKind::Receive));
    let message = place.and_then(|(channel, others)| {
        let taken = channel.receive_half().retire_message(&completion)?;
        Some((channel, others, taken))
    });
    let Some((channel, others, (taken, immediate))) = message else {
        return take_other(completion, shared, interrupted, around.again(), due, each);
    };
    // Should `each` panic, the next poll posts its receive again, and announces it.
    let owed = OnUnwind::new(|| *interrupted = Some(id.channel()));
    let mut memory = Some(taken);
    if let Some(message) = Loan::of(&mut memory).map(Message::lent) {
        let turn = Turn::new(channel, others, around.arena);
        each(turn, Event::Received { message, immediate });
    }
    if channel.receive_half().receiver.put_back(memory, around.arena) {
        look_after(id.channel(), around.again(), due, each);
    }
    owed.disarm();
    true
}

/// Takes a receive that brought no message into one slot of a channel's own queue, or is not the next one. Says whether it is settled
/// whose it was.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn take_other<P: Provider, C: Receives<P>>(
    completion: Lent<'_, P::Completion>,
    shared: &mut Option<Box<Reaped<Shared<P>>>>,
    interrupted: &mut Option<u32>,
    around: Around<'_, P, C>,
    due: &mut impl FnMut(u32, &mut Listed),
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) -> bool {
    let id = completion.work_id();
    if let (Some(WorkKind::SharedReceive), Some(shared)) = (id.kind(), shared) {
        return shared.take(completion, around, due, each);
    }
    let Some((entry, others)) = apart(around.table, id.channel_among(WorkKind::Receive)) else {
        return keep_or_orphan(completion, false, around.early, around.statistics);
    };
    let is_early = entry.awaits_admission();
    let Some((listed, channel)) = entry.split() else {
        return keep_or_orphan(completion, is_early, around.early, around.statistics);
    };
    let Some((arrival, slot)) = channel.receive_half().retire(completion) else {
        around.statistics.rejected.add_from_any(1);
        return true;
    };
    let mut memory = slot.map(Taken::<P>::from);
    let owed = OnUnwind::new(|| *interrupted = Some(id.channel()));
    let is_message = arrival.kind == ArrivalKind::Send;
    let lent = if is_message { Loan::of(&mut memory) } else { None };
    if let Some(message) = lent.map(Message::lent) {
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
            if let Some(message) = memory {
                around.arena.release(message.into());
            }
            // The other half of a Worker taken apart is notified. Before `each` is called, which may panic.
            let reported = note_end(channel, event);
            due(id.channel(), listed);
            if let Some(event) = reported {
                each(Turn::new(channel, others, around.arena), event);
            }
            return true;
        }
        each(Turn::new(channel, others, around.arena), event);
    }
    if channel.receive_half().receiver.put_back(memory, around.arena) {
        look_after(id.channel(), around, due, each);
    }
    owed.disarm();
    true
}

/// Posts the receives that are missing of a channel's own queue, and has them announced where that is due. A refusal of the device is
/// reported to `each`.
// Once for many messages: apart, it takes no registers from what happens for each.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn look_after<P: Provider, C: Receives<P>>(
    index: u32,
    around: Around<'_, P, C>,
    due: &mut impl FnMut(u32, &mut Listed),
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) {
    let place = listed_apart(around.table, index as usize);
    let Some((listed, channel, others)) = place else {
        return;
    };
    if !repost(channel, others, around.arena, each) {
        listed.note_hungry(index, around.hungry);
    }
    if channel.receive_half().receiver.is_announcement_due() {
        due(index, listed);
    }
}

/// Notes how a channel ended, and what of it is to be reported to the application now.
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

/// Posts the receives that are missing, and says whether none is left to post. A refusal of the device is reported to `each`.
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
