//! Asynchronous events of the device: taken for the Worker, and reported to its callers.

use std::collections::VecDeque;

use doorbell_core::provider::{AsyncEvent, Context, Provider, ProviderError};

use super::channel_table::ChannelEntry;
use super::receive_side::ReceiveSide;
use super::{ReceiveWorker, Worker};
use crate::machine::log::log;
use crate::worker::half::Receives;

/// Events kept at most that nobody asked for: more than there are of one closing, and of ports that come
/// and go for a while.
const KEPT_MAX: usize = 64;

/// Events that were taken while something else was looked for.
#[derive(Debug)]
pub(super) struct DeviceEvents {
    /// The latest, and no more than [`KEPT_MAX`].
    waiting: VecDeque<AsyncEvent>,
    /// How many there were before them that nobody asked for in time.
    dropped: u64,
}

impl DeviceEvents {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(KEPT_MAX),
            dropped: 0,
        }
    }

    /// Keeps an event for later callers: the latest ones, since they give the present state.
    fn keep(&mut self, event: AsyncEvent) {
        if self.waiting.len() >= KEPT_MAX {
            self.waiting.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        self.waiting.push_back(event);
    }

    /// The next event, after it was noted where it is about what the Worker does.
    fn next<P: Provider, C: Receives<P>>(
        &mut self,
        context: &P::Context,
        receives: &mut ReceiveSide<P>,
        table: &mut [ChannelEntry<C>],
    ) -> Result<Option<AsyncEvent>, ProviderError> {
        if let Some(event) = self.waiting.pop_front() {
            return Ok(Some(event));
        }
        let Some(shared) = &mut receives.shared else {
            return context.next_event().inspect(log_event);
        };
        if let Some(error) = shared.limit_refused() {
            return Err(error);
        }
        let event = context.next_event().inspect(log_event)?;
        if let Some(event) = event {
            shared.note(event, table);
        }
        Ok(event)
    }

    /// Notes the waiting events, and keeps them for later callers. Events about queue pairs that take no more receives are only
    /// noted, since they concern nobody else.
    pub(super) fn look<P: Provider, C: Receives<P>>(
        &mut self,
        context: &P::Context,
        receives: &mut ReceiveSide<P>,
        table: &mut [ChannelEntry<C>],
    ) {
        let Some(shared) = &mut receives.shared else {
            return;
        };
        // A failed descriptor is reported to callers that ask for events.
        while let Ok(Some(event)) = context.next_event().inspect(log_event) {
            shared.note(event, table);
            if !matches!(event, AsyncEvent::LastReceiveReached(_)) {
                self.keep(event);
            }
        }
    }
}

impl<P: Provider> Worker<P> {
    /// Takes the next asynchronous event of the device, without blocking: `None` where none waits. One makes
    /// the descriptor of [`Worker::context`] readable; ask after a closing, too, which may have found some.
    ///
    /// With shared receives, take the events here and not from the context: the limit is set again only after it was reported here.
    /// The last 64 events that closings found are kept; see [`Worker::events_dropped`].
    ///
    /// # Errors
    /// The descriptor failed, or the device refused to set the limit of the shared receives again; then
    /// it reports no more of it.
    pub fn next_event(&mut self) -> Result<Option<AsyncEvent>, ProviderError> {
        let table = &mut self.table.entries;
        self.device_events.next(&*self.context, &mut self.receives, table)
    }

    /// How many asynchronous events were dropped, closings having found more than are kept, and nobody having
    /// asked for them.
    #[must_use]
    pub const fn events_dropped(&self) -> u64 {
        self.device_events.dropped
    }
}

impl<P: Provider> ReceiveWorker<P> {
    /// Takes the next asynchronous event of the device, as [`Worker::next_event`] does.
    ///
    /// # Errors
    /// As for [`Worker::next_event`].
    pub fn next_event(&mut self) -> Result<Option<AsyncEvent>, ProviderError> {
        let table = &mut self.table.entries;
        self.device_events.next(&*self.context, &mut self.receives, table)
    }
}

/// Logs what the device said: loudly where something of it works no more.
fn log_event(event: &Option<AsyncEvent>) {
    let Some(event) = event else { return };
    match event {
        AsyncEvent::QueuePairFatal(_)
        | AsyncEvent::SharedReceiveFatal(_)
        | AsyncEvent::CompletionQueueError
        | AsyncEvent::DeviceFatal => log!(error, "device event", event = format_args!("{event:?}")),
        AsyncEvent::PortError(_) | AsyncEvent::GidChange(_) => {
            log!(warn, "device event", event = format_args!("{event:?}"))
        }
        AsyncEvent::PortActive(_) => log!(info, "device event", event = format_args!("{event:?}")),
        _ => log!(debug, "device event", event = format_args!("{event:?}")),
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::provider::AsyncEvent;

    use super::{DeviceEvents, KEPT_MAX};

    #[test]
    fn as_many_are_kept_as_there_is_room_for_and_the_rest_is_counted() {
        let mut events = DeviceEvents::new();
        let capacity = events.waiting.capacity();
        let event = |number: usize| AsyncEvent::Other(u32::try_from(number).unwrap());
        for number in 0..KEPT_MAX {
            events.keep(event(number));
        }
        assert_eq!((events.dropped, events.waiting[0]), (0, event(0)));
        for number in KEPT_MAX..KEPT_MAX + 5 {
            events.keep(event(number));
        }
        assert_eq!(events.dropped, 5);
        let kept: Vec<_> = events.waiting.iter().copied().collect();
        assert_eq!(
            kept,
            (5..KEPT_MAX + 5).map(event).collect::<Vec<_>>(),
            "the latest"
        );
        assert_eq!(events.waiting.capacity(), capacity);
    }
}
