//! The monotonic clock of this host as [`Instant`]s.

use std::sync::OnceLock;

use doorbell_core::Instant;

/// Now, counted from the first time anyone asked.
pub fn now() -> Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    let origin = ORIGIN.get_or_init(std::time::Instant::now);
    Instant::from_ns(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
