//! What the device says of its own accord: taken for the Worker, and told to whoever asks.

use std::collections::VecDeque;

use doorbell_core::provider::{AsyncEvent, Context, Provider, ProviderError};

use super::places::Entry;
use super::polling::ReceiveSide;
use super::{ReceiveWorker, Worker};
use crate::half::Receives;

/// Events that were taken while something else was looked for.
#[derive(Debug, Default)]
pub(super) struct DeviceEvents {
    waiting: VecDeque<AsyncEvent>,
}

impl DeviceEvents {
    /// The next event, after it was noted where it is about what the Worker does.
    fn next<P: Provider, C: Receives<P>>(
        &mut self,
        context: &P::Context,
        receives: &mut ReceiveSide<P>,
        places: &mut [Entry<C>],
    ) -> Result<Option<AsyncEvent>, ProviderError> {
        if let Some(event) = self.waiting.pop_front() {
            return Ok(Some(event));
        }
        let Some(shared) = &mut receives.shared else {
            return context.next_event();
        };
        if let Some(error) = shared.limit_refused() {
            return Err(error);
        }
        let event = context.next_event()?;
        if let Some(event) = event {
            shared.note(event, places);
        }
        Ok(event)
    }

    /// Notes the events that wait, and keeps them for whoever asks; but for those about queue pairs that take no
    /// more receives, which tell nobody else anything.
    pub(super) fn look<P: Provider, C: Receives<P>>(
        &mut self,
        context: &P::Context,
        receives: &mut ReceiveSide<P>,
        places: &mut [Entry<C>],
    ) {
        let Some(shared) = &mut receives.shared else {
            return;
        };
        // Where the descriptor failed, whoever asks is told.
        while let Ok(Some(event)) = context.next_event() {
            shared.note(event, places);
            if !matches!(event, AsyncEvent::LastReceiveReached(_)) {
                self.waiting.push_back(event);
            }
        }
    }
}

impl<P: Provider> Worker<P> {
    /// Takes the next asynchronous event of the device, without blocking: `None` where none waits. One makes
    /// the descriptor of [`Worker::context`] readable; ask after a closing, too, which may have found some.
    ///
    /// With shared receives, take the events here and not from the context: the limit is set
    /// again only after it was told here.
    ///
    /// # Errors
    /// The descriptor failed, or the device refused to set the limit of the shared receives again; then
    /// it tells no more of it.
    pub fn next_event(&mut self) -> Result<Option<AsyncEvent>, ProviderError> {
        let places = &mut self.places.entries;
        self.device_events
            .next(&*self.context, &mut self.receives, places)
    }
}

impl<P: Provider> ReceiveWorker<P> {
    /// Takes the next asynchronous event of the device, as [`Worker::next_event`] does.
    ///
    /// # Errors
    /// As there.
    pub fn next_event(&mut self) -> Result<Option<AsyncEvent>, ProviderError> {
        let places = &mut self.places.entries;
        self.device_events
            .next(&*self.context, &mut self.receives, places)
    }
}
