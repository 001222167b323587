//! Descriptors of completion queues, made once an event loop asks for them.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A descriptor that is readable while a completion queue has a notification, or a wake-up, that was not taken.
#[derive(Debug)]
pub struct Descriptor {
    /// The watched descriptor, and the conditions that make it readable.
    ends: [UnixStream; 2],
}

impl Descriptor {
    fn new() -> io::Result<Self> {
        let (watched, signaled) = UnixStream::pair()?;
        watched.set_nonblocking(true)?;
        signaled.set_nonblocking(true)?;
        Ok(Self {
            ends: [watched, signaled],
        })
    }

    /// Makes it readable, or unreadable.
    fn set(&self, is_readable: bool) {
        let [mut watched, mut signaled] = self.ends.each_ref();
        if is_readable {
            // One byte is there at most, so there is room.
            let _ = signaled.write(&[1]);
        } else {
            let _ = watched.read(&mut [0]);
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let [watched, _] = &self.ends;
        watched.as_fd()
    }
}

/// The descriptors of one queue.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) notification: Descriptor,
    pub(crate) waking: Descriptor,
}

/// The descriptors of one queue as the device knows them, and whether each is readable.
#[derive(Default)]
pub(crate) struct Bells {
    descriptors: Option<Arc<Descriptors>>,
    is_readable: [bool; 2],
}

impl Descriptors {
    /// # Errors
    /// The system gave none.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            notification: Descriptor::new()?,
            waking: Descriptor::new()?,
        })
    }
}

impl Bells {
    pub(crate) fn hang(&mut self, descriptors: &Arc<Descriptors>) {
        self.descriptors = Some(Arc::clone(descriptors));
    }

    /// Whether one of these is one of them, and readable.
    pub(crate) fn is_readable(&self, among: &[RawFd]) -> bool {
        let Some(descriptors) = &self.descriptors else {
            return false;
        };
        let both = [&descriptors.notification, &descriptors.waking];
        let mut both = both.into_iter().zip(self.is_readable);
        both.any(|(descriptor, is_readable)| is_readable && among.contains(&descriptor.as_fd().as_raw_fd()))
    }

    /// Has each be readable, or not: that of notifications and that of wake-ups.
    pub(crate) fn set(&mut self, readable: [bool; 2]) {
        let Some(descriptors) = &self.descriptors else {
            return;
        };
        let both = [&descriptors.notification, &descriptors.waking];
        for ((descriptor, was), is) in both.into_iter().zip(&mut self.is_readable).zip(readable) {
            if *was != is {
                descriptor.set(is);
                *was = is;
            }
        }
    }
}
