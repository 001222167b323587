//! Receives that the channels of a Worker share: finding the channel of each completion, and returning receives and grants.
//!
//! If a peer uses receives that were granted to another, the count of its own share shows it. Its channel is failed, and the
//! receives that it used are reposted. On a split Worker the sending half fails the channel at its next poll.
//!
//! The queue pair of a channel that is being closed is first moved to ERR. Then the Worker waits until the device reports that
//! the queue pair takes no more receives, or for 50 ms, since not every device reports it. The channel's share is free again once
//! the completion queue has no completion of the channel. If a queue pair is destroyed while a message of several packets is
//! partly received, the device may keep the receive. Then one receive less is posted than the Worker counts.
//!
//! The device reports once, by an asynchronous event, that few receives are left. `Worker::next_event` returns the event, and
//! `Worker::tend` sets the limit again once enough receives are posted.

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

/// The shared receives, and the shares of the channels in them.
pub(crate) struct Shared<P: Provider> {
    receiver: SharedReceiver<P::SharedReceiveQueue, Arc<Statistics>>,
    depth: u32,
    channels: QpnTable,
    /// Shares of connections that are not admitted yet. Some of them may never be admitted.
    opened: Vec<Opened>,
    /// How many polls found the receive completion queue empty, modulo 2^32.
    emptied: u32,
    limit: Limit,
}

/// A share that was granted to the peer of a connection in progress.
struct Opened {
    reservation: Weak<Reservation>,
    /// A separate reference, since a poll must not upgrade `reservation`: the upgraded reference could be the last one.
    qpn: Arc<QueuePairNumber>,
    receives: u32,
    /// Kept completions of receives of this share.
    early: u32,
    /// The counts when the connection was first seen to be gone.
    gone_at: Option<Counted>,
}

/// Counts that show whether polls have taken all completions that were in the receive completion queue before.
#[derive(Clone, Copy)]
struct Counted {
    /// The value of [`Shared::emptied`].
    emptied: u32,
    /// Messages that channels received, modulo 2^32.
    received: u32,
}

/// State of a Worker that the polling of receives needs in addition to the receives.
pub(super) struct Around<'w, P: Provider, C> {
    // A reference to the `Vec` and not a slice, so that an empty poll reads neither its pointer nor its length.
    pub(super) table: &'w mut Vec<ChannelEntry<C>>,
    pub(super) arena: &'w mut P::Arena,
    /// Channels that lack receives: missing ones that could not be posted, or used ones that could not be granted again.
    pub(super) hungry: &'w mut ChannelList,
    pub(super) early: &'w mut Early<P>,
    pub(super) statistics: &'w Arc<Statistics>,
}

impl<P: Provider, C> Around<'_, P, C> {
    /// Reborrows all fields.
    // Inlined, so that a poll builds the struct only where it calls a separate function with it.
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

/// The low watermark of the shared receives.
struct Limit {
    receives: u32,
    /// Whether the device reported the limit, and it is not set again yet.
    is_passed: bool,
    /// Error of the device when it refused to set the limit again.
    refused: Option<ProviderError>,
}

/// Counts of the shared receives of a Worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceives {
    /// Identifier of the shared receive queue, which events about it carry.
    pub id: SharedReceiveId,
    /// Receives kept posted. The shares of all channels together do not exceed this number.
    pub depth: u32,
    /// Receives posted now, as of the last poll.
    pub posted: u32,
    /// Posted receives that are granted to peers.
    pub granted: u32,
}

impl<P: Provider> Shared<P> {
    /// Makes the shared receive queue, and posts all its receives.
    ///
    /// # Errors
    /// The device refused or has no shared receive queues, or the arena does not have enough slots.
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

    /// Returns the queue, to make queue pairs on it.
    pub(crate) const fn queue(&self) -> &P::SharedReceiveQueue {
        self.receiver.queue()
    }

    /// Returns the number of receives kept posted.
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

    /// Returns how many receives may be reserved by channels, including those that existing channels have reserved.
    ///
    /// The receives of a failed connection are free again once no completion of the connection is left after its queue pair was
    /// destroyed. A poll found the completion queue empty since then, or as many messages came as there are shared receives.
    pub(super) fn promisable(&mut self, statistics: &Statistics) -> u32 {
        let Self {
            receiver,
            opened,
            emptied,
            depth,
            ..
        } = self;
        // A message whose completion was kept early counts late, but its receive was not in the queue any more.
        let now = Counted {
            emptied: *emptied,
            received: (statistics.received.value() & 0xffff_ffff) as u32,
        };
        let mut unsettled = 0_u32;
        opened.retain_mut(|share| {
            if share.reservation.strong_count() > 0 {
                return true;
            }
            let gone_at = *share.gone_at.get_or_insert(now);
            let received = now.received.wrapping_sub(gone_at.received);
            let is_settled = now.emptied != gone_at.emptied || received >= *depth;
            if is_settled {
                receiver.release(share.receives);
            } else {
                unsettled = unsettled.saturating_add(share.receives);
            }
            !is_settled
        });
        self.depth.saturating_sub(unsettled)
    }

    /// Grants the reserved share to the peer of a new connection.
    ///
    /// # Errors
    /// The device refused receives, or there is no memory for the missing receives.
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

    /// Assigns completions of this queue pair to the admitted channel from now on.
    pub(super) fn admit(&mut self, reservation: &Arc<Reservation>, qpn: Qpn) {
        let admitted = Arc::as_ptr(reservation);
        self.opened.retain(|share| share.reservation.as_ptr() != admitted);
        self.channels.insert(qpn, reservation.id.index);
    }

    /// Removes a queue pair that the reaper gets.
    pub(super) fn dismiss(&mut self, qpn: Qpn) {
        self.channels.remove(qpn);
    }

    /// Takes back the remaining grants of a peer. Its queue pair is destroyed, and the completion queue has no completion of it.
    pub(super) fn release(&mut self, receives: u32) {
        self.receiver.release(receives);
    }

    /// Whether receives still have to be posted, for which there was no memory so far.
    pub(super) const fn awaits_memory(&self) -> bool {
        self.receiver.is_wanted()
    }

    /// Whether to keep the completion of a receive, since it belongs to a connection in progress. One more than the peer's share
    /// is kept, so that the channel later detects a peer that used more.
    #[cold]
    fn is_early(&mut self, qpn: Qpn) -> bool {
        let Some(share) = self.opened_to(qpn) else {
            return false;
        };
        let is_kept = share.early <= share.receives;
        share.early = share.early.saturating_add(u32::from(is_kept));
        is_kept
    }

    /// Returns the share of a connection in progress, by its queue pair.
    fn opened_to(&mut self, qpn: Qpn) -> Option<&mut Opened> {
        let opened = self.opened.iter_mut();
        let mut on_their_way = opened.filter(|share| share.reservation.strong_count() > 0);
        on_their_way.find(|share| share.qpn.is(qpn))
    }

    /// Drops a kept completion if its connection was given up. Returns whether it was.
    pub(super) fn let_go(
        &mut self,
        completion: Lent<'_, P::Completion>,
        arena: &mut P::Arena,
        statistics: &Statistics,
    ) -> bool {
        let qpn = completion.qpn();
        if self.channels.get(qpn).is_some() || self.opened_to(qpn).is_some() {
            return false;
        }
        let mut slot = None;
        match self.receiver.retire(completion, |_, its| slot = Some(its)) {
            Ok(_) => self.take_orphan(slot, arena, statistics),
            Err(_) => statistics.rejected.add_from_any(1),
        }
        true
    }

    /// Resets the counts of kept completions, before all of them are handled again.
    pub(super) fn count_early_anew(&mut self) {
        for share in &mut self.opened {
            share.early = 0;
        }
    }

    /// Passes a completed receive to the channel whose peer used it, and grants the peer another one. Returns `false` if the
    /// completion is kept, since its channel is not admitted yet.
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
                        // The end of the channel is reported after this event.
                        let _ = channel.note_failed();
                        // Last, since the sending half gets one note: a farewell's would leave the queue pair as it is.
                        channel.refuse();
                        event = Some(Event::Overdrawn);
                    }
                    _ => event = channel.note_failed(),
                }
                // Reported to the sending half of a split Worker, before the call of `each`, which may panic.
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
        // If `each` panics, the next poll grants the receive again.
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

    /// Returns the slot of a receive whose queue pair belongs to no channel: the channel is closed, or was never admitted.
    #[cold]
    fn take_orphan(&mut self, slot: Option<P::Slot>, arena: &mut P::Arena, statistics: &Statistics) {
        statistics.orphaned.add_from_any(1);
        if let Some(slot) = slot {
            arena.release(slot);
        }
        self.receiver.want();
    }

    /// Posts missing receives for all channels in one call, and grants them to the channels whose peers used some. Called after a
    /// poll that took `count` completions.
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

    /// Grants spare receives to the channels whose peers used some. If the device refused receives, each of these channels gets
    /// the error.
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
            // If `each` panics, the channel stays hungry.
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

    /// Handles an event of the device if it is about these receives. The last receive of a queue pair is noted at its channel.
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

    /// Whether to set the limit at the device again: the device reported it, and enough receives are posted.
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
    /// Returns the counts of the shared receives; `None` if each channel has its own receive queue.
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
