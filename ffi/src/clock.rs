//! The monotonic clock of this host as [`Instant`]s.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use doorbell_core::Instant;

/// Time of the kernel's clock at the first call. It is 0 before that.
static ORIGIN_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the time since the first call in this process.
///
/// Source: `clock_gettime(2)`.
pub fn now() -> Instant {
    let now_ns = kernel_ns();
    // Relaxed: no other memory depends on the origin, and all callers agree on the first value.
    let first = ORIGIN_NS.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    let origin_ns = first.err().unwrap_or(now_ns);
    Instant::from_ns(now_ns.saturating_sub(origin_ns))
}

/// Reads the kernel's monotonic clock. Waiting calls use it, so it avoids std's clock, which may panic.
fn kernel_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable structure that outlives the call (clock_gettime(2)).
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // Every Linux has this clock, and it begins at zero: the call does not fail.
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
    let span = seconds.saturating_add(Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0)));
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
