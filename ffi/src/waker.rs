//! Waker of a thread that sleeps at a completion queue: a counter in the kernel, in addition to the queue's channel.

use core::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use doorbell_core::provider::ProviderError;

use crate::{errno, events};

/// Wakes a thread that sleeps at a completion queue.
///
/// Source: `eventfd(2)`.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self, ProviderError> {
        // SAFETY: makes a descriptor, and touches no memory (eventfd(2)).
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let fd = errno::from_minus_one("eventfd", fd)?;
        // SAFETY: made just now, and nothing else owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The descriptor is readable while a wake-up has not been taken.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes all wake-ups.
    pub(crate) fn take(&self) -> Result<(), ProviderError> {
        let mut count = 0_u64;
        loop {
            // SAFETY: an open descriptor, and eight writable bytes (eventfd(2)).
            let status = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
            match errno::from_minus_one("read", i32::try_from(status).unwrap_or(-1)) {
                Err(error) if error.errno == libc::EINTR => {}
                Err(error) if !events::is_empty(error) => return Err(error),
                _ => return Ok(()),
            }
        }
    }
}

impl doorbell_core::provider::Waker for Waker {
    fn wake(&self) {
        let one = 1_u64;
        loop {
            // SAFETY: an open descriptor, and eight readable bytes (eventfd(2)).
            let status =
                unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
            // Any other failure means that the counter is at its maximum. Then it is readable.
            match errno::from_minus_one("write", i32::try_from(status).unwrap_or(-1)) {
                Err(error) if error.errno == libc::EINTR => {}
                _ => return,
            }
        }
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waker").field(&self.0.as_raw_fd()).finish()
    }
}
