//! Device events that report a changed port or address.

use doorbell::Worker;
use doorbell::provider::{AsyncEvent, Provider, ProviderError};

/// Returns whether any device of the Workers reported a changed port or address since the last call.
pub(crate) fn were_told<P: Provider>(workers: &mut [Worker<P>]) -> Result<bool, ProviderError> {
    let mut has_changed = false;
    for worker in workers {
        while let Some(event) = worker.next_event()? {
            has_changed |= matches!(
                event,
                AsyncEvent::PortActive(_) | AsyncEvent::PortError(_) | AsyncEvent::GidChange(_)
            );
        }
    }
    Ok(has_changed)
}
