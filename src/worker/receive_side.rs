//! Polling of the receive completion queue, and reposting of receives. The code serves a whole Worker and the receiving half of a
//! split one.

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

/// The receive completion queue, and the state that is kept between its polls.
pub(crate) struct ReceiveSide<P: Provider> {
    pub(crate) completions: Reaped<P::CompletionQueue>,
    /// Channels whose missing receives could not all be posted, for lack of memory.
    pub(super) hungry: ChannelList,
    /// Completions of channels that are not admitted yet.
    pub(super) early: Early<P>,
    /// The channel whose callback panicked on a message. The message's receive still has to be reposted.
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

    /// Whether receives wait for memory. No completion reports when memory becomes free, so a sleeping thread has to poll.
    pub(super) fn awaits_memory(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.awaits_memory(),
            None => !self.hungry.is_empty(),
        }
    }

    /// Sets the low watermark of the shared receives again, if the device reported it and enough receives are posted now.
    #[inline]
    pub(super) fn renew_limit(&mut self) {
        if let Some(shared) = self.shared.as_mut().filter(|shared| shared.is_limit_due()) {
            shared.set_limit();
        }
    }

    /// Polls the receive completion queue. Returns the number of completions. `due` is called for channels with receives to
    /// announce.
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

    /// Lists the channel whose callback panicked as hungry, so that its receive is reposted and announced.
    #[cold]
    fn note_interrupted<C: Receives<P>>(&mut self, table: &mut [ChannelEntry<C>]) {
        let Some(index) = self.interrupted.take() else {
            return;
        };
        if let Some(entry) = table.get_mut(index as usize) {
            entry.listed.note_hungry(index, &mut self.hungry);
        }
    }

    /// Handles the completions that were kept because their channel was not admitted, if one was admitted since. Returns how many
    /// were handled, and so are not kept any more. Called before [`ReceiveSide::poll`], so that the messages of a channel keep their order, and so that
    /// the receive of a callback that panicked is noted.
    #[inline]
    pub(super) fn poll_early<C: Receives<P>>(
        &mut self,
        table: &mut Vec<ChannelEntry<C>>,
        arena: &mut P::Arena,
        statistics: &Arc<Statistics>,
        due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        // Both conditions in one value, so that a poll compares once.
        if !(self.early.is_due() | self.interrupted.is_some()) {
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
        drop(pass);
        self.early.note_passed();
        count
    }

    /// Drops the kept completions of connections that were given up. Called before their places and their receives are given to others.
    pub(super) fn let_go_early<C>(
        &mut self,
        table: &[ChannelEntry<C>],
        arena: &mut P::Arena,
        statistics: &Statistics,
    ) {
        let shared = &mut self.shared;
        let mut pass = self.early.pass_again();
        while let Some(completion) = pass.take() {
            let id = completion.lend().work_id();
            let shared = shared
                .as_mut()
                .filter(|_| id.kind() == Some(WorkKind::SharedReceive));
            let is_dropped = match shared {
                Some(shared) => shared.let_go(completion.lend(), arena, statistics),
                None => {
                    let entry = table.get(id.channel_among(WorkKind::Receive));
                    let is_awaited =
                        entry.is_some_and(|entry| entry.channel.is_some() || entry.awaits_admission());
                    statistics.orphaned.add_from_any((!is_awaited).into());
                    !is_awaited
                }
            };
            if !is_dropped {
                pass.early().keep(completion);
            }
        }
    }

    /// Returns how many channels lack receives, for [`ReceiveSide::feed`].
    #[inline(always)]
    pub(super) fn unfed(&self) -> usize {
        self.hungry.len()
    }

    /// Posts receives for the channels that lack some, as far as there is memory.
    #[cold]
    pub(super) fn feed<C: Receives<P>>(
        &mut self,
        table: &mut [ChannelEntry<C>],
        arena: &mut P::Arena,
        mut due: impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) {
        if self.shared.is_some() {
            // `Shared::tend` feeds these.
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
            // If `each` panics, the channel stays hungry.
            listed.is_hungry = !repost(channel, others, arena, each);
            if channel.receive_half().receiver.is_announcement_due() {
                due(index, listed);
            }
            listed.is_hungry
        });
    }
}

/// Passes a completed receive to its channel. Returns `false` if the completion is kept, since its channel is not admitted yet.
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
    // If `each` panics, the next poll reposts the receive and announces it.
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

/// Handles receive completions that [`take`] does not: shared receives, failures, WRITEs with immediate, and completions that are
/// kept. Returns `false` if the completion is kept.
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
            // Reported to the sending half of a split Worker, before the call of `each`, which may panic.
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

/// Posts the missing receives of a channel's own queue, and lists the channel if an announcement is due. If the device refuses,
/// `each` gets the error.
// Called once for many messages. A separate function, so that it takes no registers from the code that runs for each message.
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

/// Notes the end of a channel. Returns the event for the application, if one is due now.
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

/// Keeps a completion if its channel is not admitted yet, and drops it if the channel is gone. Returns `false` if it is kept.
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

/// Posts the missing receives. Returns whether less than a batch is missing now. If the device refuses, `each` gets the error.
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
