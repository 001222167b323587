//! A signal between threads that can be waited for beside sockets: an `eventfd`, written to once however
//! often it is raised.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use doorbell_core::sync::{AtomicU32, Ordering};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Signal {
    descriptor: OwnedFd,
    /// Whether it was raised and not taken: then it is readable, or about to be.
    is_raised: AtomicU32,
}

impl Signal {
    /// # Errors
    /// The system gave no descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_raised: AtomicU32::new(0),
        })
    }

    /// Ends a wait for it, or the next one.
    pub(crate) fn raise(&self) {
        // Acquire and release, as in `take`: of the two that meet, the later sees what the earlier did before.
        if self.is_raised.swap(1, Ordering::AcqRel) == 0 {
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Takes it, if it was raised: whoever takes it looks afterwards for what it was raised for.
    #[inline]
    pub(crate) fn take(&self) {
        // Relaxed: where it is not seen yet, it is at the next look.
        if self.is_raised.load(Ordering::Relaxed) != 0 {
            self.take_raised();
        }
    }

    #[cold]
    fn take_raised(&self) {
        let mut count = [0; size_of::<u64>()];
        // Not there yet where whoever raised it is about to write: it stays raised, and is taken at the next look.
        if rustix::io::read(&self.descriptor, &mut count).is_ok() {
            self.is_raised.swap(0, Ordering::AcqRel);
        }
    }

    /// Waits until it is raised, or for so long.
    pub(crate) fn wait(&self, span: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What becomes readable when it is raised.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::Signal;
    use core::time::Duration;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;
    use std::thread;

    fn is_readable(signal: &Signal) -> bool {
        let descriptor = signal.descriptor();
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut descriptors, Some(&now)).unwrap() > 0
    }

    #[test]
    fn it_is_readable_until_it_is_taken() {
        let signal = Signal::new().unwrap();
        assert!(!is_readable(&signal));
        signal.raise();
        signal.raise();
        assert!(is_readable(&signal));
        signal.take();
        assert!(!is_readable(&signal));
        signal.take();
        signal.raise();
        assert!(is_readable(&signal));
    }

    #[test]
    fn no_raise_is_lost() {
        const ROUNDS: u32 = 10_000;
        let signal = Arc::new(Signal::new().unwrap());
        let work = Arc::new(doorbell_core::sync::AtomicU32::new(0));
        let order = doorbell_core::sync::Ordering::Relaxed;
        let (raising, given) = (Arc::clone(&signal), Arc::clone(&work));
        let thread = thread::spawn(move || {
            for round in 1..=ROUNDS {
                given.store(round, order);
                raising.raise();
            }
        });
        let mut seen = 0;
        while seen < ROUNDS {
            signal.wait(Duration::from_secs(20)).unwrap();
            signal.take();
            let now = work.load(order);
            assert!(now > seen || is_readable(&signal) || now == seen);
            seen = now;
        }
        thread.join().unwrap();
        signal.take();
        assert!(!is_readable(&signal));
    }
}
