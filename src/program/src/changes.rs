//! Device events that report a changed port or address.

use core::error::Error;
use core::time::Duration;

use doorbell::link::Links;
use doorbell::provider::{AsyncEvent, Instant, Network, Provider, ProviderError};
use doorbell::{Deadline, Handle, Node, Worker};

use crate::log;
use crate::report::Failure;

/// Interval at which devices are polled for changes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval at which a scan that failed is repeated.
const REPEAT_EVERY: Duration = Duration::from_secs(1);

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
        let Some(is_wanted) = self.is_scan_wanted(workers, now)? else {
            return Ok(None);
        };
        if is_wanted {
            self.outcome(links.refresh(node, workers), now);
        }
        let refreshed = links.take_refreshed();
        Ok(refreshed.and_then(|handle| self.outcome(handle, now)).flatten())
    }

    /// Whether the ports are to be scanned, since a device reported a change or the last scan failed. `None` if it is not time to look.
    pub(crate) fn is_scan_wanted<P: Provider>(
        &mut self,
        workers: &mut [Worker<P>],
        now: Instant,
    ) -> Result<Option<bool>, ProviderError> {
        if self.next.is_some_and(|next| !next.has_passed(now)) {
            return Ok(None);
        }
        self.next = Some(Deadline::after(now, LOOK_EVERY));
        let is_wanted = have_changed(workers)? || self.is_unread;
        self.is_unread = false;
        Ok(Some(is_wanted))
    }

    /// Returns what the beginning or the end of a scan brought. A scan that fails now, for example for want of descriptors, is repeated: the
    /// links go on with the rails that they have.
    pub(crate) fn outcome<T, E: Error>(&mut self, scan: Result<T, E>, now: Instant) -> Option<T> {
        if let Err(error) = &scan {
            self.is_unread = true;
            self.next = Some(Deadline::after(now, REPEAT_EVERY));
            log::write_line(&format!(
                "doorbell: the ports are scanned again in a second: {error}"
            ));
        }
        scan.ok()
    }
}

/// Returns whether any device of the Workers reported a changed port or address since the last call.
fn have_changed<P: Provider>(workers: &mut [Worker<P>]) -> Result<bool, ProviderError> {
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
