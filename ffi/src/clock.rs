//! The monotonic clock of this host as [`Instant`]s.

use core::time::Duration;

use doorbell_core::Instant;

/// Now, as the kernel's monotonic clock has it.
///
/// Source: `clock_gettime(2)`.
// Not by std's clock, which may panic: who waits asks this.
pub fn now() -> Instant {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable structure that outlives the call (clock_gettime(2)).
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // This clock is there on every Linux, and begins at zero: the call does not fail.
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
    let span = seconds.saturating_add(Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0)));
    Instant::from_ns(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}
