//! The first cause of a queue pair's failure, distinguished from the flushes that it triggers.

use core::fmt;

use doorbell_core::{Ticket, WcStatus};

/// The completion that has the cause of a queue pair's failure.
///
/// A failing queue pair completes one request with the cause and flushes all others (S6).
/// The order in which these are seen depends on the polling of the completion queues. So a
/// flush never replaces a cause, and a cause always replaces a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstCause {
    /// The status of the request.
    pub status: WcStatus,
    /// The request.
    pub ticket: Ticket,
    /// The device's own error code; the vendor defines its meaning.
    pub vendor_error: u32,
}

impl FirstCause {
    /// Notes an error as the cause, unless a better one is known.
    pub(crate) fn note(known: &mut Option<Self>, seen: Self) {
        match known {
            Some(cause) if !cause.status.is_flush() || seen.status.is_flush() => {}
            _ => *known = Some(seen),
        }
    }
}

impl core::error::Error for FirstCause {}

impl fmt::Display for FirstCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} ended: {}", self.ticket.position(), self.status)?;
        match self.vendor_error {
            0 => Ok(()),
            vendor => write!(f, " (vendor error {vendor:#x})"),
        }
    }
}
