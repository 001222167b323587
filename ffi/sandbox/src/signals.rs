//! Signals of the supervising thread: all are blocked, and those that matter are read from a descriptor.

use core::mem::MaybeUninit;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// A signal that came for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// If a process sent it, and not the kernel: a terminal sends its signals to the program as well.
    pub is_sent: bool,
}

/// All signals blocked in the thread that made this, until it is dropped.
///
/// A signal that interrupts the hand-over of a descriptor makes the target's `openat` return 0, on kernels 6.1 to 7.2.
#[derive(Debug)]
pub struct BlockedSignals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

/// The signals that are read: the end of a child, and those by which a program is asked to end, to stop or to go on.
const READ: [i32; 9] = [
    libc::SIGCHLD,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// An empty set of signals.
fn no_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: a set to write (sigemptyset(3)).
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was just written.
    unsafe { set.assume_init() }
}

/// Sets the signals that this thread blocks, and returns those that it blocked.
pub(crate) fn set_blocked(set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = no_signals();
    // SAFETY: two sets (pthread_sigmask(3)).
    let status = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, &raw mut before) };
    if status == 0 {
        Ok(before)
    } else {
        Err(io::Error::from_raw_os_error(status))
    }
}

impl BlockedSignals {
    /// Blocks all signals of this thread.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (mut all, mut read) = (no_signals(), no_signals());
        // SAFETY: a set (sigfillset(3)).
        unsafe { libc::sigfillset(&raw mut all) };
        for signal in READ {
            // SAFETY: a set that was emptied, and the number of a signal (sigaddset(3)).
            unsafe { libc::sigaddset(&raw mut read, signal) };
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: a set that was emptied before signals were added (signalfd(2)).
        let number = unsafe { libc::signalfd(-1, &raw const read, flags) };
        if number == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nothing else owns.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let before = set_blocked(&all)?;
        Ok(Self { descriptor, before })
    }

    /// The signals that were blocked before: a child has them.
    pub(crate) const fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// The next signal, if one came.
    #[must_use]
    pub fn next(&self) -> Option<Received> {
        let mut found = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        // SAFETY: room for one structure (signalfd(2)).
        let count = unsafe {
            libc::read(
                self.descriptor.as_raw_fd(),
                found.as_mut_ptr().cast(),
                size_of::<libc::signalfd_siginfo>(),
            )
        };
        if usize::try_from(count) != Ok(size_of::<libc::signalfd_siginfo>()) {
            return None;
        }
        // SAFETY: all of it was written.
        let found = unsafe { found.assume_init() };
        Some(Received {
            signal: i32::try_from(found.ssi_signo).ok()?,
            is_sent: found.ssi_code <= 0,
        })
    }
}

impl AsFd for BlockedSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let _ = set_blocked(&self.before);
    }
}
