//! For tests: how often a thread touched a page that was not present.

/// Returns the number of minor faults of this thread so far.
pub(crate) fn minor() -> i64 {
    // SAFETY: zero bytes are a value of this structure of integers.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: a writable structure (getrusage(2)).
    let status = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(status, 0);
    usage.ru_minflt
}
