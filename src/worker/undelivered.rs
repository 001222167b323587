//! Events that are yet to be delivered: further events of one completion, and events behind a callback that panicked.

use doorbell_core::Ticket;
use doorbell_core::provider::Provider;

use super::Turn;
use super::channel_list::Due;
use super::channel_table::{ChannelEntry, channel_apart};
use crate::worker::event::Event;
use crate::worker::half::Sends;

/// An event of the channel of this index that is yet to be delivered.
pub(super) struct Undelivered<P: Provider> {
    channel: u32,
    event: Event<'static, P>,
}

impl<P: Provider> Undelivered<P> {
    /// Whether it is what this request of a channel brought back.
    pub(super) fn is_fetched_by(&self, channel: u32, request: Ticket) -> bool {
        self.channel == channel && matches!(self.event, Event::Fetched { ticket, .. } if ticket == request)
    }
}

/// Keeps an event to be delivered. Admission made room for it, so this never allocates.
// The comparison stands beside the push, where the optimiser sees that both mean the same length.
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

/// Delivers events that were kept, in order. If `each` panics, the rest is kept for the next poll.
// Apart, and by being cold: see `Sender::retire_fetched`.
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

/// Events that are being delivered, the next one last while it is under way: dropped, as by a panic, it keeps the rest.
pub(super) struct Delivering<'u, P: Provider> {
    pub(super) undelivered: &'u mut Vec<Undelivered<P>>,
    pub(super) events_max: usize,
    pub(super) noticed: &'u Due,
}

impl<P: Provider> Drop for Delivering<'_, P> {
    #[cold]
    fn drop(&mut self) {
        // The next completion has room for its own.
        self.undelivered.reserve(self.events_max);
        self.undelivered.reverse();
        if let Some(first) = self.undelivered.first() {
            self.noticed.notify(first.channel);
        }
    }
}
