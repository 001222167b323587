//! Events that are kept for delivery: those of a completion with several events, ends of channels, and events after a callback
//! panicked.

use doorbell_core::Ticket;
use doorbell_core::provider::Provider;

use super::Turn;
use super::channel_list::Due;
use super::channel_table::{ChannelEntry, channel_apart};
use crate::worker::event::Event;
use crate::worker::half::Sends;

/// An event that is kept for delivery, with the index of its channel.
pub(super) struct Undelivered<P: Provider> {
    channel: u32,
    event: Event<'static, P>,
}

impl<P: Provider> Undelivered<P> {
    /// Whether the event has the data that this request of the channel brought back.
    pub(super) fn is_fetched_by(&self, channel: u32, request: Ticket) -> bool {
        self.channel == channel && matches!(self.event, Event::Fetched { ticket, .. } if ticket == request)
    }
}

/// Keeps an event for delivery. Admission made room for it, so this never allocates.
// The length is compared directly before the push, so the optimiser removes the push's own check.
#[inline(always)]
pub(super) fn keep_undelivered<P: Provider>(
    undelivered: &mut Vec<Undelivered<P>>,
    channel: u32,
    event: Event<'static, P>,
) {
    if undelivered.len() < undelivered.capacity() {
        undelivered.push(Undelivered { channel, event });
    }
}

/// Delivers the kept events in order. If `each` panics, the rest is kept for the next poll.
// `#[cold]` keeps it a separate function; see `Sender::retire_fetched`.
#[cold]
pub(super) fn deliver<P: Provider, C: Sends<P>>(
    delivering: Delivering<'_, P>,
    table: &mut [ChannelEntry<C>],
    arena: &mut P::Arena,
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) {
    delivering.undelivered.reverse();
    while let Some(Undelivered { channel, event }) = delivering.undelivered.pop() {
        if let Some((channel, others)) = channel_apart(table, channel as usize) {
            each(Turn::new(channel, others, arena), event);
        }
    }
    core::mem::forget(delivering);
}

/// Events that are being delivered, in reverse order meanwhile. If a panic drops this guard, the rest is kept in order.
pub(super) struct Delivering<'u, P: Provider> {
    pub(super) undelivered: &'u mut Vec<Undelivered<P>>,
    pub(super) events_max: usize,
    pub(super) noticed: &'u Due,
}

impl<P: Provider> Drop for Delivering<'_, P> {
    #[cold]
    fn drop(&mut self) {
        // The next completion needs room for its own events.
        self.undelivered.reserve(self.events_max);
        self.undelivered.reverse();
        if let Some(first) = self.undelivered.first() {
            self.noticed.notify(first.channel);
        }
    }
}
