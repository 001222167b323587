//! A signal between threads that can be waited for together with sockets: an `eventfd`. Raising it again before it is taken writes
//! nothing.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use doorbell_hotpath::NotifyFlag;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Signal {
    descriptor: OwnedFd,
    /// Whether it was raised and not taken: then the descriptor is readable, or about to be.
    is_raised: NotifyFlag,
}

impl Signal {
    /// # Errors
    /// The system gave no descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_raised: NotifyFlag::new(),
        })
    }

    /// Ends the present wait for the signal, or the next one.
    pub(crate) fn raise(&self) {
        if self.is_raised.notify() {
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Resets the signal, if it was raised. The caller checks afterwards for what it announces.
    #[inline]
    pub(crate) fn take(&self) {
        self.is_raised.take_heard(|| self.read());
    }

    /// Reads the descriptor. Returns whether it had been written.
    #[cold]
    fn read(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; size_of::<u64>()]).is_ok()
    }

    /// Waits until the signal is raised, or until the span is over. The wait may end early.
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

    /// Descriptor that becomes readable when the signal is raised.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Waking raises the signal.
impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::Signal;
    use core::hint::black_box;
    use doorbell_core::sync::{AtomicU32, Ordering};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;
    use std::thread;

    fn is_readable_within(signal: &Signal, seconds: i64) -> bool {
        let descriptor = signal.descriptor();
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut descriptors, Some(&timeout)).unwrap() > 0
    }

    fn is_readable(signal: &Signal) -> bool {
        is_readable_within(signal, 0)
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
        const ROUNDS: u32 = 40_000;
        let signal = Arc::new(Signal::new().unwrap());
        // The last round of work that is done, and the last one that was seen.
        let work = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let order = Ordering::Relaxed;
        let (raising, done) = (Arc::clone(&signal), Arc::clone(&work));
        let thread = thread::spawn(move || {
            for round in 1..=ROUNDS {
                done[0].store(round, order);
                raising.raise();
                // Only this thread raises the signal, so the other would wait for a lost one in vain. The next comes at once, or a little later.
                let mut looks = 0_u32;
                while done[1].load(order) < round {
                    looks += 1;
                    if looks % 4096 == 0 {
                        thread::yield_now();
                    }
                }
                for step in 0..round % 256 {
                    black_box(step);
                }
            }
        });
        let look = || {
            let seen = work[0].load(order);
            work[1].store(seen, order);
            seen
        };
        while look() < ROUNDS {
            assert!(
                is_readable_within(&signal, 20),
                "{} seen, and asleep for ever",
                look()
            );
            // The round is seen before the signal is taken, so the next raise may come at the same time.
            look();
            signal.take();
        }
        thread.join().unwrap();
        signal.take();
        assert!(!is_readable(&signal));
    }
}
