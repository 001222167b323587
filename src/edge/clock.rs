//! The monotonic clock as [`Instant`]s.

use std::sync::OnceLock;

use doorbell_core::{Deadline, Instant};

/// Now, counted from the first time anyone asked.
pub(crate) fn now() -> Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    let origin = ORIGIN.get_or_init(std::time::Instant::now);
    Instant::from_ns(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The deadline this long from now.
#[must_use]
pub fn within(span: core::time::Duration) -> Deadline {
    Deadline::after(now(), span)
}
