//! Asynchronous events of the device: those that the Worker handles, and those that it passes on to its callers.

use std::collections::VecDeque;

use doorbell_core::provider::{AsyncEvent, Context, Provider, ProviderError};

use super::channel_table::ChannelEntry;
use super::receive_side::ReceiveSide;
use super::{ReceiveWorker, Worker};
use crate::machine::log::log;
use crate::worker::half::Receives;

/// Maximum number of kept events. The number exceeds the events of one closing, together with some port changes.
const KEPT_MAX: usize = 64;

/// Events that closings took from the device, kept for callers of `next_event`.
#[derive(Debug)]
pub(super) struct DeviceEvents {
    /// The latest events, at most [`KEPT_MAX`].
    waiting: VecDeque<AsyncEvent>,
    /// The number of older events that were dropped, since no caller took them in time.
    dropped: u64,
}

impl DeviceEvents {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(KEPT_MAX),
            dropped: 0,
        }
    }

    /// Keeps an event for later callers. If there is no room, the oldest event is dropped, since later events show the present
    /// state.
    fn keep(&mut self, event: AsyncEvent) {
        if self.waiting.len() >= KEPT_MAX {
            self.waiting.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        self.waiting.push_back(event);
    }

    /// Returns the next event. Events about shared receives are first handled for the Worker.
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

    /// Takes all waiting events of the device, handles those about shared receives, and keeps them for later callers. Reports of
    /// the last receive of a queue pair are not kept, since only the Worker needs them.
    pub(super) fn look<P: Provider, C: Receives<P>>(
        &mut self,
        context: &P::Context,
        receives: &mut ReceiveSide<P>,
        table: &mut [ChannelEntry<C>],
    ) {
        let Some(shared) = &mut receives.shared else {
            return;
        };
        // An error of the descriptor ends the loop here, and is reported to callers of `next_event`.
        while let Ok(Some(event)) = context.next_event().inspect(log_event) {
            shared.note(event, table);
            if !matches!(event, AsyncEvent::LastReceiveReached(_)) {
                self.keep(event);
            }
        }
    }
}

impl<P: Provider> Worker<P> {
    /// Takes the next asynchronous event of the device, without blocking; `None` if no event waits. The descriptor of
    /// [`Worker::context`] is readable while the device has an event. With shared receives, call this after closings, too, since
    /// they take events from the device.
    ///
    /// With shared receives, take the events here and not from the context, since the Worker sets the limit again only after it
    /// saw the event. The last 64 events that closings took are kept; see [`Worker::events_dropped`].
    ///
    /// # Errors
    /// The descriptor failed, or the device refused to set the limit of the shared receives again. After a refusal the device
    /// reports the limit no more.
    pub fn next_event(&mut self) -> Result<Option<AsyncEvent>, ProviderError> {
        let table = &mut self.table.entries;
        self.device_events.next(&*self.context, &mut self.receives, table)
    }

    /// Returns how many asynchronous events were dropped, since closings took more than are kept and no caller asked for them.
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

/// Logs an event of the device: failures as errors, changes of ports and GIDs as warnings.
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
