//! What devices say of their ports and addresses, for whoever has to look at them again.

use doorbell::Worker;
use doorbell::provider::{AsyncEvent, Provider, ProviderError};

/// Whether any of the Workers' devices said, since this was last asked, that a port or an address of it changed.
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
