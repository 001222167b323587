//! Deadlines by the clock of this host.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};

/// The time by the clock of this host: monotonic, since an origin of this process.
#[must_use]
pub fn now() -> Instant {
    doorbell_ffi::now()
}

/// The deadline this long from now, by the clock of this host. On a simulated one it is
/// [`Node::within`](crate::Node::within).
#[must_use]
pub fn within(span: Duration) -> Deadline {
    Deadline::after(doorbell_ffi::now(), span)
}
