//! Events that are yet to be delivered: further events of one completion, and events behind a callback that panicked.

use doorbell_core::Ticket;
use doorbell_core::provider::Provider;

use super::Turn;
use super::channel_list::Due;
use super::places::{Entry, channel_apart};
use crate::worker::event::Event;
use crate::worker::half::Sends;

/// An event of the channel of this index that is yet to be delivered.
pub(super) struct Untold<P: Provider> {
    channel: u32,
    event: Event<'static, P>,
}

impl<P: Provider> Untold<P> {
    /// Whether it is what this request of a channel brought back.
    pub(super) fn is_fetched_by(&self, channel: u32, request: Ticket) -> bool {
        self.channel == channel && matches!(self.event, Event::Fetched { ticket, .. } if ticket == request)
    }
}

/// Keeps an event to be delivered. Admission made room for it, so this never allocates.
// The comparison stands beside the push, where the optimiser sees that both mean the same length.
#[inline(always)]
pub(super) fn keep_untold<P: Provider>(untold: &mut Vec<Untold<P>>, channel: u32, event: Event<'static, P>) {
    if untold.len() < untold.capacity() {
        untold.push(Untold { channel, event });
    }
}

/// Tells events that were kept, in order. If `each` panics, the rest is kept, and the next poll tells it.
// Apart, and by being cold: see `Sender::retire_fetched`.
#[cold]
pub(super) fn tell_untold<P: Provider, C: Sends<P>>(
    telling: Telling<'_, P>,
    places: &mut [Entry<C>],
    arena: &mut P::Arena,
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) {
    telling.untold.reverse();
    while let Some(Untold { channel, event }) = telling.untold.pop() {
        if let Some((channel, others)) = channel_apart(places, channel as usize) {
            each(Turn::new(channel, others, arena), event);
        }
    }
    core::mem::forget(telling);
}

/// Events that are to be told, the next one last while it is under way: dropped, as by a panic, it keeps the rest.
pub(super) struct Telling<'u, P: Provider> {
    pub(super) untold: &'u mut Vec<Untold<P>>,
    pub(super) events_max: usize,
    pub(super) noticed: &'u Due,
}

impl<P: Provider> Drop for Telling<'_, P> {
    #[cold]
    fn drop(&mut self) {
        // The next completion has room for its own.
        self.untold.reserve(self.events_max);
        self.untold.reverse();
        if let Some(first) = self.untold.first() {
            self.noticed.notify(first.channel);
        }
    }
}
