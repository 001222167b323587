//! Time and deadlines by the clock of this host.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};

/// Returns the time of this host's monotonic clock, counted from an origin in this process.
#[must_use]
pub fn now() -> Instant {
    doorbell_ffi::now()
}

/// Returns the deadline this long from now, by the clock of this machine. Use it for
/// [`Background::stop`](crate::connect::Background::stop), and if no Node is available.
///
/// Every other call takes a deadline by the clock of its host: [`Node::within`](crate::Node::within) and
/// [`Worker::within`](crate::Worker::within) make one. On a real host both clocks are the same. A simulated host has a separate clock, by
/// which a deadline made here may be far in the future or past.
#[must_use]
pub fn within(span: Duration) -> Deadline {
    Deadline::after(doorbell_ffi::now(), span)
}
