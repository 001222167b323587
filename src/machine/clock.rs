//! Deadlines by the clock of this host.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};

/// Returns the time of this host's monotonic clock, counted from an origin in this process.
#[must_use]
pub fn now() -> Instant {
    doorbell_ffi::now()
}

/// Returns the deadline this long from now, by the clock of this machine: for
/// [`Background::stop`](crate::connect::Background::stop), and where there is no Node at hand.
///
/// Every other call takes a deadline by the clock of its host: [`Node::within`](crate::Node::within) and
/// [`Worker::within`](crate::Worker::within) make one. On a real host that is the same clock. A simulated host has a time of
/// its own, in which a deadline made here may be far away or past.
#[must_use]
pub fn within(span: Duration) -> Deadline {
    Deadline::after(doorbell_ffi::now(), span)
}
