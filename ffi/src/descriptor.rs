//! Descriptors of libibverbs, lent so that callers can watch them but not read them.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use doorbell_core::provider::ProviderError;

use crate::errno;

/// A descriptor that is readable while another one is. Event loops may watch it, level-triggered or edge-triggered.
///
/// A borrowed descriptor can be cloned. With a clone of a descriptor of libibverbs, safe code could read events that are
/// then never acknowledged, and destroying the object of such an event would wait forever
/// (ibv_get_async_event(3), ibv_get_cq_event(3)). There is nothing to read from this descriptor.
///
/// Source: `epoll(7)`.
#[derive(Debug)]
pub struct Descriptor(OwnedFd);

impl Descriptor {
    /// Makes a descriptor that watches this open one.
    pub(crate) fn new(watched: BorrowedFd<'_>) -> Result<Self, ProviderError> {
        // SAFETY: makes a descriptor, and touches no memory (epoll_create1(2)).
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let fd = errno::from_minus_one("epoll_create1", fd)?;
        // SAFETY: made just now, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (at, watched) = (fd.as_raw_fd(), watched.as_raw_fd());
        // SAFETY: two open descriptors, and an event that outlives the call (epoll_ctl(2)).
        let status = unsafe { libc::epoll_ctl(at, libc::EPOLL_CTL_ADD, watched, &raw mut event) };
        errno::from_minus_one("epoll_ctl", status).map(|_| Self(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::Descriptor;
    use crate::Waker;
    use doorbell_core::provider::Waker as _;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::{AsFd as _, AsRawFd as _};

    fn is_readable(watched: &Descriptor) -> bool {
        let mut entry = libc::pollfd {
            fd: watched.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry (poll(2)).
        let count = unsafe { libc::poll(&raw mut entry, 1, 0) };
        count == 1 && entry.revents == libc::POLLIN
    }

    #[test]
    fn it_notifies_and_takes_nothing() {
        let waker = Waker::new().unwrap();
        let watched = Descriptor::new(waker.descriptor()).unwrap();
        assert!(!is_readable(&watched));
        waker.wake();
        assert!(is_readable(&watched));
        let mut clone = File::from(watched.as_fd().try_clone_to_owned().unwrap());
        let error = clone.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert!(is_readable(&watched), "nothing was taken");
        waker.take().unwrap();
        assert!(!is_readable(&watched));
    }
}
