//! Device events that report a changed port or address.

use core::time::Duration;

use doorbell::link::Links;
use doorbell::provider::{AsyncEvent, Instant, Network, Provider, ProviderError};
use doorbell::{Deadline, Handle, Node, Worker};

use crate::log;
use crate::report::Failure;

/// Interval at which devices are polled for changes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval at which a scan that failed is repeated.
pub(crate) const REPEAT_EVERY: Duration = Duration::from_secs(1);

/// Polls the devices for changes, every 20 ms.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    next: Option<Deadline>,
    /// Whether a change was seen whose scan failed.
    is_unread: bool,
}

impl Changes {
    /// Polls the devices if it is time, and updates the links after a change. Returns the new handle of the process, if there is
    /// one.
    pub(crate) fn follow<P: Provider, N: Network>(
        &mut self,
        (node, workers): (&Node<P, N>, &mut [Worker<P>]),
        links: &mut Links<P, N>,
        now: Instant,
    ) -> Result<Option<Handle>, Failure> {
        if self.next.is_some_and(|next| !next.has_passed(now)) {
            return Ok(None);
        }
        self.next = Some(Deadline::after(now, LOOK_EVERY));
        if have_changed(workers)? || self.is_unread {
            // A scan that fails now, for example for want of descriptors, is repeated: the links go on with the rails that they have.
            self.is_unread = false;
            if let Err(error) = links.refresh(node, workers) {
                self.repeat(now, &error);
            }
        }
        Ok(match links.take_refreshed() {
            Some(Ok(moved)) => moved,
            Some(Err(error)) => {
                self.repeat(now, &error);
                None
            }
            None => None,
        })
    }

    fn repeat(&mut self, now: Instant, error: &dyn core::error::Error) {
        self.is_unread = true;
        self.next = Some(Deadline::after(now, REPEAT_EVERY));
        log_repeat(error);
    }
}

pub(crate) fn log_repeat(error: &dyn core::error::Error) {
    log::write_line(&format!(
        "doorbell: the ports are scanned again in a second: {error}"
    ));
}

/// Returns whether any device of the Workers reported a changed port or address since the last call.
pub(crate) fn have_changed<P: Provider>(workers: &mut [Worker<P>]) -> Result<bool, ProviderError> {
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
