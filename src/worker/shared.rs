//! Receives that the channels of a Worker share: the owner of each completion, and the return of receives and grants.
//!
//! A peer that takes receives granted to another is found out by the count of its own share. Its channel is failed, and the receives that
//! it took are posted again. On a split Worker the sending half fails the channel at its next poll.
//!
//! A channel that closes is failed first. The Worker waits until the device reports that the channel takes no more receives, or for 50 ms,
//! since not every device reports it. The channel's share is free again once the completion queue holds nothing of it. If a queue pair goes
//! while a message of several packets is half received, a device may keep the receive; then one receive less is posted than is counted.
//!
//! The device reports once, by an asynchronous event, that few receives are left. `Worker::next_event` returns it, and `Worker::tend` sets
//! the limit again once enough receives are posted.

use core::fmt;
use std::sync::{Arc, Weak};

use doorbell_core::provider::{
    Arena, ArrivalKind, AsyncEvent, Lent, LentCompletion, PostError, ProtectionDomain, Provider,
    ProviderError, SharedReceiveQueue, SharedReceiveQueueConfig,
};
use doorbell_core::unwinding::OnUnwind;
use doorbell_core::{Qpn, SharedReceiveId};
use doorbell_ffi::Loan;
use doorbell_hotpath::{Grants, Share, SharedReceiver, Statistics, Taken};

use super::channel_list::ChannelList;
use super::channel_table::{ChannelEntry, Listed, apart, listed_apart};
use super::early::Early;
use super::qpn_table::QpnTable;
use super::receive_side::note_end;
use super::{QueuePairNumber, Reservation, Turn, Worker};
use crate::error::{ConnectError, NodeError};
use crate::worker::config::{ChannelConfig, SharedReceivesConfig};
use crate::worker::event::Event;
use crate::worker::half::{Receives, Receiving, event_of};
use crate::worker::message::{self, Message};

/// The receives, and who may take them.
pub(crate) struct Shared<P: Provider> {
    receiver: SharedReceiver<P::SharedReceiveQueue, Arc<Statistics>>,
    depth: u32,
    channels: QpnTable,
    /// Shares of connections that are not admitted yet, and may never be.
    opened: Vec<Opened>,
    /// How often nothing was found in the completion queue.
    emptied: u64,
    limit: Limit,
}

/// A share that was granted to the peer of a connection on its way.
struct Opened {
    reservation: Weak<Reservation>,
    /// Held beside it: a reservation that is taken up for a look might be dropped here for good, by a poll.
    qpn: Arc<QueuePairNumber>,
    receives: u32,
    /// Receives of this share that the peer has used.
    early: u32,
    /// How often the completion queue had been empty when its queue pair was seen to be gone.
    gone_at: Option<u64>,
}

/// State of a Worker beside the receives, which polling them needs.
pub(super) struct Around<'w, P: Provider, C> {
    // The table, and not a slice of it: a poll in vain then reads neither pointer nor length.
    pub(super) table: &'w mut Vec<ChannelEntry<C>>,
    pub(super) arena: &'w mut P::Arena,
    /// Channels whose peers used receives that are not granted again for want of spare ones.
    pub(super) hungry: &'w mut ChannelList,
    pub(super) early: &'w mut Early<P>,
    pub(super) statistics: &'w Arc<Statistics>,
}

impl<P: Provider, C> Around<'_, P, C> {
    /// These, for a shorter time.
    // In line: a poll then puts them together only where something apart is called with them.
    #[inline(always)]
    pub(super) const fn again(&mut self) -> Around<'_, P, C> {
        Around {
            table: self.table,
            arena: self.arena,
            hungry: self.hungry,
            early: self.early,
            statistics: self.statistics,
        }
    }
}

struct Limit {
    receives: u32,
    /// Whether the device said that fewer are left, and is not asked again yet.
    is_passed: bool,
    /// Error of the device when it refused to set the limit again.
    refused: Option<ProviderError>,
}

/// How many of the receives that channels share are where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceives {
    /// Identifier that events about these receives carry.
    pub id: SharedReceiveId,
    /// Receives kept posted: the shares of all channels fit into it.
    pub depth: u32,
    /// Receives posted now, as far as was polled.
    pub posted: u32,
    /// Posted receives that peers may use.
    pub granted: u32,
}

impl<P: Provider> Shared<P> {
    /// Makes the queue, and posts all receives there can be.
    ///
    /// # Errors
    /// The device refused or has no such queue, or the arena has not as many slots.
    pub(super) fn new(
        domain: &P::ProtectionDomain,
        completions: &P::CompletionQueue,
        arena: &mut P::Arena,
        statistics: &Arc<Statistics>,
        config: &SharedReceivesConfig,
        channels_max: u32,
    ) -> Result<Self, NodeError> {
        let asked = SharedReceiveQueueConfig {
            depth: config.depth,
            scatter_max: 1,
        };
        let queue = domain.shared_receive_queue(completions, &asked)?;
        let mut receiver = SharedReceiver::new(queue, Arc::clone(statistics), config.repost_batch);
        let posted = receiver.fill(arena).map_err(|PostError { cause, .. }| cause)?;
        if posted < config.depth {
            return Err(NodeError::SharedReceives {
                depth: config.depth,
                slots: posted,
            });
        }
        if config.limit > 0 {
            receiver.queue_mut().set_limit(config.limit)?;
        }
        Ok(Self {
            receiver,
            depth: config.depth,
            channels: QpnTable::new(channels_max),
            opened: Vec::new(),
            emptied: 0,
            limit: Limit {
                receives: config.limit,
                is_passed: false,
                refused: None,
            },
        })
    }

    /// The queue that queue pairs are made on.
    pub(crate) const fn queue(&self) -> &P::SharedReceiveQueue {
        self.receiver.queue()
    }

    /// Receives kept posted.
    pub(super) const fn depth(&self) -> u32 {
        self.depth
    }

    fn counts(&self) -> SharedReceives {
        SharedReceives {
            id: self.queue().id(),
            depth: self.depth,
            posted: self.queue().in_flight(),
            granted: self.receiver.granted(),
        }
    }

    /// Receives that may be promised, but for what is promised to channels there are.
    ///
    /// Receives granted for a connection that failed are free again once the completion queue was seen empty after its queue
    /// pair was gone: then no message is left that took one.
    pub(super) fn promisable(&mut self) -> u32 {
        let Self {
            receiver,
            opened,
            emptied,
            ..
        } = self;
        let mut unsettled = 0_u32;
        opened.retain_mut(|share| {
            if share.reservation.strong_count() > 0 {
                return true;
            }
            let is_settled = *emptied > *share.gone_at.get_or_insert(*emptied);
            if is_settled {
                receiver.release(share.receives);
            } else {
                unsettled = unsettled.saturating_add(share.receives);
            }
            !is_settled
        });
        self.depth.saturating_sub(unsettled)
    }

    /// Grants its share to the peer of a connection that was promised one.
    ///
    /// # Errors
    /// The device refused receives, or there is no memory for as many as are missing.
    pub(crate) fn open(
        &mut self,
        reservation: &Arc<Reservation>,
        grants: Arc<Grants>,
        arena: &mut P::Arena,
        config: &ChannelConfig,
    ) -> Result<Share<Arc<Grants>>, ConnectError> {
        self.receiver.want();
        self.receiver
            .replenish(arena)
            .map_err(|PostError { cause, .. }| cause)?;
        let receives = config.receive_depth;
        let share = self.receiver.open(grants, receives, config.repost_batch);
        let share = share.ok_or(ConnectError::NoMemory)?;
        self.opened.push(Opened {
            reservation: Arc::downgrade(reservation),
            qpn: Arc::clone(&reservation.qpn),
            receives,
            early: 0,
            gone_at: None,
        });
        Ok(share)
    }

    /// Notes whose completions of this queue pair are, from now on.
    pub(super) fn admit(&mut self, reservation: &Arc<Reservation>, qpn: Qpn) {
        let admitted = Arc::as_ptr(reservation);
        self.opened.retain(|share| share.reservation.as_ptr() != admitted);
        self.channels.insert(qpn, reservation.id.index);
    }

    /// Forgets a queue pair that is given to the reaper.
    pub(super) fn dismiss(&mut self, qpn: Qpn) {
        self.channels.remove(qpn);
    }

    /// Takes back what a peer had left whose queue pair is gone, and of which the completion queue holds nothing.
    pub(super) fn release(&mut self, receives: u32) {
        self.receiver.release(receives);
    }

    /// Whether receives are needed that there was no memory for, so far.
    pub(super) const fn awaits_memory(&self) -> bool {
        self.receiver.is_wanted()
    }

    /// Whether a receive is of a connection on its way, and to be kept: one more than its peer may use, so that the
    /// channel finds out a peer that used more.
    #[cold]
    fn is_early(&mut self, qpn: Qpn) -> bool {
        let opened = self.opened.iter_mut();
        let mut on_their_way = opened.filter(|share| share.reservation.strong_count() > 0);
        let Some(share) = on_their_way.find(|share| share.qpn.is(qpn)) else {
            return false;
        };
        let is_kept = share.early <= share.receives;
        share.early = share.early.saturating_add(u32::from(is_kept));
        is_kept
    }

    /// Forgets how many came early: all of them are looked at again.
    pub(super) fn count_early_anew(&mut self) {
        for share in &mut self.opened {
            share.early = 0;
        }
    }

    /// Takes a receive that ended to the channel whose peer used it, and grants that another. Says whether it is
    /// settled whose it was: not where it came early.
    pub(super) fn take<C: Receives<P>>(
        &mut self,
        completion: Lent<'_, P::Completion>,
        around: Around<'_, P, C>,
        due: &mut impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> bool {
        let Around {
            table,
            arena,
            hungry,
            early,
            statistics,
        } = around;
        let index = self.channels.get(completion.qpn());
        if index.is_none() && early.has_room() && self.is_early(completion.qpn()) {
            early.keep(completion.keep());
            return false;
        }
        let mut slot = None;
        let arrival = self.receiver.retire(completion, |_, its| slot = Some(its));
        let Ok(arrival) = arrival else {
            statistics.rejected.add_from_any(1);
            return true;
        };
        let place = index.and_then(|index| Some((index, listed_apart(table, index as usize)?)));
        let Some((index, (listed, channel, others))) = place else {
            self.take_orphan(slot, arena, statistics);
            return true;
        };
        let Receiving::Shared { share, .. } = &mut channel.receive_half().receiver else {
            self.take_orphan(slot, arena, statistics);
            return true;
        };
        match self.receiver.charge(share, &arrival) {
            Taken::Message => {}
            taken => {
                if let Some(slot) = slot {
                    arena.release(slot);
                }
                let mut event = None;
                match taken {
                    Taken::OverdrawnAgain => statistics.rejected.add_from_any(1),
                    Taken::Overdrawn => {
                        channel.refuse();
                        // Its end is reported behind that.
                        let _ = channel.note_failed();
                        event = Some(Event::Overdrawn);
                    }
                    _ => event = channel.note_failed(),
                }
                // The other half of a Worker taken apart fails it. Before `each` is called, which may panic.
                due(index, listed);
                if let Some(event) = event {
                    each(Turn::new(channel, others, arena), event);
                }
                return true;
            }
        }
        let half = channel.receive_half();
        let other = (arrival.kind != ArrivalKind::Send).then(|| event_of(&arrival, || half.is_farewell()));
        if let Some(event @ Event::PeerClosed { .. }) = other {
            if let Some(slot) = slot {
                arena.release(slot);
            }
            let reported = note_end(channel, event);
            due(index, listed);
            if let Some(event) = reported {
                each(Turn::new(channel, others, arena), event);
            }
            return true;
        }
        // If `each` panics, the next poll grants it again.
        let again = OnUnwind::new(|| {
            self.receiver.want();
            listed.note_hungry(index, hungry);
        });
        let mut memory = slot.map(message::Taken::<P>::from);
        let turn = Turn::new(channel, others, arena);
        match other {
            Some(event) => each(turn, event),
            None => {
                if let Some(message) = Loan::of(&mut memory).map(Message::lent) {
                    let immediate = arrival.immediate;
                    each(turn, Event::Received { message, immediate });
                }
            }
        }
        again.disarm();
        if let Some(message) = memory {
            arena.release(message.into());
        }
        if !channel.is_open() {
            return true;
        }
        let Receiving::Shared { share, .. } = &mut channel.receive_half().receiver else {
            return true;
        };
        if !self.receiver.grant(share) {
            listed.note_hungry(index, hungry);
        }
        if share.is_announcement_due() {
            due(index, listed);
        }
        true
    }

    /// Takes a receive that a queue pair had used which is closed, or was never admitted.
    #[cold]
    fn take_orphan(&mut self, slot: Option<P::Slot>, arena: &mut P::Arena, statistics: &Statistics) {
        statistics.orphaned.add_from_any(1);
        if let Some(slot) = slot {
            arena.release(slot);
        }
        self.receiver.want();
    }

    /// Posts the receives that are missing for all channels at once, and grants them to those that used some;
    /// after a poll that took so many completions.
    #[inline]
    pub(super) fn tend<C: Receives<P>>(
        &mut self,
        count: u32,
        around: Around<'_, P, C>,
        due: &mut impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) {
        if count == 0 {
            self.emptied = self.emptied.wrapping_add(1);
            if !self.receiver.is_wanted() {
                return;
            }
        }
        let refused = self.receiver.replenish(around.arena).err();
        if !around.hungry.is_empty() && (refused.is_some() || self.receiver.spare() > 0) {
            self.feed(refused, around, due, each);
        }
    }

    /// Grants receives that are spare to the channels that used some. A refusal of the device is reported to each of them.
    fn feed<C: Receives<P>>(
        &mut self,
        refused: Option<PostError>,
        around: Around<'_, P, C>,
        due: &mut impl FnMut(u32, &mut Listed),
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) {
        let Around {
            table, arena, hungry, ..
        } = around;
        hungry.retain(|index| {
            let Some((entry, others)) = apart(table, index as usize) else {
                return false;
            };
            let Some((listed, channel)) = entry.split_open() else {
                entry.listed.is_hungry = false;
                return false;
            };
            // Hungry still if `each` panics.
            if let Some(error) = refused {
                each(
                    Turn::new(channel, others, arena),
                    Event::ReceivesRefused { error },
                );
            }
            let Receiving::Shared { share, .. } = &mut channel.receive_half().receiver else {
                listed.is_hungry = false;
                return false;
            };
            listed.is_hungry = !self.receiver.grant(share);
            if share.is_announcement_due() {
                due(index, listed);
            }
            listed.is_hungry
        });
    }

    /// Looks whether an event of the device is about these receives. Events about queue pairs are noted at their channels.
    pub(super) fn note<C: Receives<P>>(&mut self, event: AsyncEvent, table: &mut [ChannelEntry<C>]) {
        match event {
            AsyncEvent::SharedReceiveLimit(id) if id == self.queue().id() => self.limit.is_passed = true,
            AsyncEvent::LastReceiveReached(qpn) => {
                let index = self.channels.get(qpn);
                let entry = index.and_then(|index| table.get_mut(index as usize));
                let channel = entry.and_then(|entry| entry.channel.as_mut());
                if let Some(Receiving::Shared { has_ended, .. }) =
                    channel.map(|channel| &mut channel.receive_half().receiver)
                {
                    *has_ended = true;
                }
            }
            _ => {}
        }
    }

    /// Whether the device is to be asked again to say when few receives are left, and they are not few.
    #[inline]
    pub(super) fn is_limit_due(&self) -> bool {
        self.limit.is_passed && self.queue().in_flight() >= self.limit.receives
    }

    /// Sets the limit at the device again. [`Shared::limit_refused`] returns the error if the device refuses.
    #[cold]
    pub(super) fn set_limit(&mut self) {
        self.limit.is_passed = false;
        self.limit.refused = self.receiver.queue_mut().set_limit(self.limit.receives).err();
    }

    /// Error of the device when it refused to set the limit again; returned once.
    pub(super) const fn limit_refused(&mut self) -> Option<ProviderError> {
        self.limit.refused.take()
    }
}

impl<P: Provider> Worker<P> {
    /// How many of the receives that its channels share are where; `None` where each has its own.
    #[must_use]
    pub fn shared_receives(&self) -> Option<SharedReceives> {
        self.receives.shared.as_ref().map(|shared| shared.counts())
    }
}

impl<P: Provider> fmt::Debug for Shared<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.counts(), f)
    }
}

#[cfg(test)]
mod tests;
