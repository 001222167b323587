//! A queue of notices behind a descriptor: readable as long as one waits.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Notices, first come first served.
pub(crate) struct Signal<T> {
    fd: OwnedFd,
    waiting: Mutex<VecDeque<T>>,
}

impl<T> Signal<T> {
    /// An empty one.
    ///
    /// # Errors
    /// The process has no descriptor left; errno says so.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: takes plain numbers (eventfd(2)).
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        Some(Self {
            // SAFETY: just opened, and owned by nobody else.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            waiting: Mutex::new(VecDeque::new()),
        })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        // Nothing panics while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a notice.
    pub(crate) fn push(&self, notice: T) {
        let mut waiting = self.lock();
        waiting.push_back(notice);
        if waiting.len() == 1 {
            let one = 1_u64;
            // SAFETY: eight readable bytes (eventfd(2)). It cannot fail: the counter was zero.
            unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of::<u64>()) };
        }
    }

    /// Makes the descriptor unreadable, the queue having run empty.
    fn lower(&self) {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes (eventfd(2)). It does not block: the counter was raised.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }

    /// Takes the first notice; waits for one where the descriptor was not set to do otherwise.
    /// `taken` looks at it while it can still be withdrawn by nobody.
    ///
    /// # Errors
    /// `EAGAIN` where none waits and the descriptor does not block, `EINTR` after a signal.
    pub(crate) fn take(&self, taken: impl Fn(&T)) -> Result<T, c_int> {
        loop {
            let mut waiting = self.lock();
            if let Some(notice) = waiting.pop_front() {
                if waiting.is_empty() {
                    self.lower();
                }
                taken(&notice);
                return Ok(notice);
            }
            drop(waiting);
            self.wait()?;
        }
    }

    fn wait(&self) -> Result<(), c_int> {
        // SAFETY: reads the flags of our own descriptor (fcntl(2)).
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 {
            return Err(libc::EAGAIN);
        }
        let mut entry = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry (poll(2)).
        if unsafe { libc::poll(&raw mut entry, 1, -1) } < 0 {
            return Err(std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO));
        }
        Ok(())
    }

    /// Withdraws what `keep` does not want.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut waiting = self.lock();
        let before = waiting.len();
        waiting.retain(keep);
        if before != 0 && waiting.is_empty() {
            self.lower();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Signal;

    fn readable(signal: &Signal<u32>) -> bool {
        let mut entry = libc::pollfd {
            fd: signal.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry (poll(2)).
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_while_a_notice_waits() {
        let signal = Signal::new().unwrap();
        assert!(!readable(&signal));
        signal.push(1);
        signal.push(2);
        assert!(readable(&signal));
        assert_eq!(signal.take(|_| ()), Ok(1));
        assert!(readable(&signal));
        assert_eq!(signal.take(|_| ()), Ok(2));
        assert!(!readable(&signal));
        signal.push(3);
        signal.retain(|_| false);
        assert!(!readable(&signal));
        // SAFETY: sets a flag of a live descriptor (fcntl(2)).
        unsafe { libc::fcntl(signal.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(signal.take(|_| ()), Err(libc::EAGAIN));
    }

    #[test]
    fn a_blocking_take_waits() {
        let signal = std::sync::Arc::new(Signal::new().unwrap());
        let other = std::sync::Arc::clone(&signal);
        let pushing = std::thread::spawn(move || {
            std::thread::sleep(core::time::Duration::from_millis(20));
            other.push(7);
        });
        assert_eq!(signal.take(|_| ()), Ok(7));
        pushing.join().unwrap();
    }
}
