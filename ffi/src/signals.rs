//! Signals of helper threads. The NCCL plugin also includes this file, since it depends on `doorbell` and not on this
//! package.

/// Blocks on this thread all signals that can be blocked.
pub(crate) fn block_signals() {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a writable set, which the call fills (sigfillset(3)).
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is filled, and the former mask is not asked for (pthread_sigmask(3)).
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), core::ptr::null_mut()) };
}
