//! The first cause of a queue pair's failure, kept apart from the flushes it triggers.

use core::fmt;

use doorbell_core::{Ticket, WcStatus};

/// The one completion that says why a queue pair failed.
///
/// A failing queue pair completes one request with the cause and flushes all others (S6).
/// Which is seen first depends on the order in which the completion queues are polled, so
/// a flush never replaces a cause, and a cause always replaces a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstCause {
    /// How the request ended.
    pub status: WcStatus,
    /// The request.
    pub ticket: Ticket,
    /// The device's own word on it; what it means is the vendor's.
    pub vendor_error: u32,
}

impl FirstCause {
    /// Notes an error; gives what is now known as the cause.
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
