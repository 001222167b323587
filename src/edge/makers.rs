//! Where queue pairs are made, and ports looked at: calls that take milliseconds, and seconds where a neighbour does
//! not answer, kept off the threads that poll and off those that talk to peers.

use core::fmt;
use core::net::IpAddr;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::panic::catch_unwind;
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use doorbell_core::provider::ProviderError;

use super::signal::Signal;
use crate::error::ConnectError;

/// `ECANCELED`.
const CANCELED: i32 = 125;

/// Makes what it is asked for, as much at a time as it has threads, and of that for one address half at most. Dropped,
/// it waits until all is done.
#[derive(Debug, Default)]
pub(crate) struct Makers {
    /// `None` makes it at once, where it is asked for.
    jobs: Option<Arc<Jobs>>,
    threads: Vec<JoinHandle<()>>,
}

impl Makers {
    /// Makers with so many threads.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn background(threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let jobs = Arc::new(Jobs {
            for_one: threads.div_ceil(2),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut makers = Self {
            jobs: Some(Arc::clone(&jobs)),
            threads: Vec::new(),
        };
        for _ in 0..threads {
            let jobs = Arc::clone(&jobs);
            let thread = thread::Builder::new()
                .name("doorbell-maker".into())
                .spawn(move || {
                    while let Some(job) = jobs.next() {
                        jobs.run(job);
                    }
                })?;
            makers.threads.push(thread);
        }
        Ok(makers)
    }

    /// Has something made, for this address where it is for one. Whoever wants it looks for it now and then, and may wait
    /// for `signal` between.
    pub(crate) fn make<T: Send + 'static>(
        &self,
        of: Option<IpAddr>,
        signal: Option<&Arc<Signal>>,
        make: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
    ) -> Commission<T> {
        let (to, from) = mpsc::sync_channel(1);
        let signal = signal.cloned();
        let make = move || {
            // Where nobody waits for it any more, it is undone here.
            let _ = to.send(make());
            if let Some(signal) = signal {
                signal.raise();
            }
        };
        let customer = Arc::new(Customer(self.jobs.clone()));
        match &self.jobs {
            Some(jobs) => jobs.add(Job {
                of,
                wanted: Arc::downgrade(&customer),
                make: Box::new(make),
            }),
            None => make(),
        }
        Commission { from, customer }
    }

    /// What whoever has something made may wait for: nothing where it is made at once.
    ///
    /// # Errors
    /// The system gave no descriptor.
    pub(crate) fn signal(&self) -> io::Result<Option<Arc<Signal>>> {
        let signal = self.jobs.as_ref().map(|_| Signal::new());
        Ok(signal.transpose()?.map(Arc::new))
    }

    /// Waits until all that was asked for is done, but no longer than `patience`; says whether it is.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let Some(jobs) = &self.jobs else {
            return true;
        };
        let waited = jobs
            .changed
            .wait_timeout_while(jobs.state(), patience, |state| !state.is_idle());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_idle()
    }
}

impl Drop for Makers {
    fn drop(&mut self) {
        if let Some(jobs) = &self.jobs {
            jobs.state().is_over = true;
            jobs.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Something that is being made. Dropped, it is no longer wanted: what it was to be made of goes home from the thread that
/// was to make it, and what is made of it all the same is undone there, or here if it was made by then.
#[derive(Debug)]
pub(crate) struct Commission<T> {
    from: mpsc::Receiver<Result<T, ConnectError>>,
    #[expect(dead_code, reason = "that it is there says that it is wanted")]
    customer: Arc<Customer>,
}

impl<T> Commission<T> {
    /// What came of it, once; `None` while it is made.
    ///
    /// # Errors
    /// It came to nothing.
    pub(crate) fn take(&self) -> Result<Option<T>, ConnectError> {
        match self.from.try_recv() {
            Ok(made) => made.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ConnectError::Provider(ProviderError {
                call: "call of a device that panicked",
                errno: CANCELED,
            })),
        }
    }
}

/// Who wants something made. Gone, it says so to those who make.
#[derive(Debug)]
struct Customer(Option<Arc<Jobs>>);

impl Drop for Customer {
    fn drop(&mut self) {
        if let Some(jobs) = &self.0 {
            // Locked, so that nobody is between a look and the wait.
            drop(jobs.state());
            jobs.changed.notify_all();
        }
    }
}

/// What there is to do.
struct Jobs {
    /// How many of those at a time are of one address at most.
    for_one: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The first in front.
    waiting: VecDeque<Job>,
    /// Whom those are for that are done now.
    running: Vec<Option<IpAddr>>,
    is_over: bool,
}

struct Job {
    of: Option<IpAddr>,
    wanted: Weak<Customer>,
    make: Box<dyn FnOnce() + Send>,
}

impl Job {
    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Whether its turn may be now.
    fn has_room(&self, job: &Job, for_one: usize) -> bool {
        let own = self.running.iter().filter(|of| **of == job.of).count();
        job.of.is_none() || own < for_one || !job.is_wanted()
    }
}

impl Jobs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, job: Job) {
        self.state().waiting.push_back(job);
        self.changed.notify_all();
    }

    /// The next job, for one of the threads; none where nobody asks for more.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            let mut waiting = state.waiting.iter();
            let at = waiting.position(|job| state.has_room(job, self.for_one));
            if let Some(job) = at.and_then(|at| state.waiting.remove(at)) {
                state.running.push(job.of);
                return Some(job);
            }
            if state.is_over && state.waiting.is_empty() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self, job: Job) {
        let of = job.of;
        if job.is_wanted() {
            // A provider that panics costs who asked, and nobody else.
            let _ = catch_unwind(AssertUnwindSafe(job.make));
        } else {
            drop(job);
        }
        let mut state = self.state();
        if let Some(at) = state.running.iter().position(|other| *other == of) {
            state.running.swap_remove(at);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("for_one", &self.for_one)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Commission, Makers};
    use core::net::{IpAddr, Ipv4Addr};
    use core::time::Duration;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(20);

    fn address(last: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, last).into())
    }

    /// What makes a number once it is let, and says that it began.
    struct Slow {
        go: mpsc::Sender<()>,
        made: Commission<u8>,
    }

    fn slow(makers: &Makers, of: Option<IpAddr>, number: u8, began: &mpsc::Sender<u8>) -> Slow {
        let (go, wait) = mpsc::channel();
        let began = began.clone();
        let made = makers.make(of, None, move || {
            began.send(number).unwrap();
            let _ = wait.recv();
            Ok(number)
        });
        Slow { go, made }
    }

    #[test]
    fn one_that_takes_long_holds_up_no_other() {
        let makers = Makers::background(2).unwrap();
        let signal = makers.signal().unwrap().unwrap();
        let (began, begins) = mpsc::channel();
        let long = slow(&makers, None, 9, &began);
        for number in 0..3 {
            let made = makers.make(None, Some(&signal), move || Ok(number));
            signal.wait(SOON).unwrap();
            signal.take();
            assert_eq!(made.take().unwrap(), Some(number));
        }
        assert_eq!(begins.recv_timeout(SOON), Ok(9));
        assert_eq!(long.made.take().unwrap(), None);
        assert!(!makers.settle(Duration::from_millis(1)));
        long.go.send(()).unwrap();
        assert!(makers.settle(SOON));
        assert_eq!(long.made.take().unwrap(), Some(9));
        // What is asked for last is made, too.
        let last = makers.make(None, None, || Ok(1));
        drop(makers);
        assert_eq!(last.take().unwrap(), Some(1));
    }

    #[test]
    fn half_of_those_at_a_time_are_an_address_s_at_most() {
        let makers = Makers::background(4).unwrap();
        let (began, begins) = mpsc::channel();
        // One whose neighbour does not answer leaves the others half of them.
        let mut all: Vec<_> = (1..=3)
            .map(|number| slow(&makers, address(1), number, &began))
            .collect();
        all.extend((4..=5).map(|number| slow(&makers, address(number), number, &began)));
        let mut first: Vec<_> = (0..4).map(|_| begins.recv_timeout(SOON).unwrap()).collect();
        first.sort_unstable();
        assert_eq!(first, [1, 2, 4, 5]);
        // No other is there, and all the same it is not its turn.
        all[3].go.send(()).unwrap();
        assert!(begins.recv_timeout(Duration::from_millis(20)).is_err());
        all[0].go.send(()).unwrap();
        assert_eq!(begins.recv_timeout(SOON), Ok(3));
        drop(all);
        assert!(makers.settle(SOON));
        // Where one is made at a time, it is anybody's.
        let one = Makers::background(0).unwrap();
        let alone = slow(&one, address(1), 6, &began);
        assert_eq!(begins.recv_timeout(SOON), Ok(6));
        drop(alone);
    }

    #[test]
    fn what_is_given_up_goes_home_beside_those_that_take_long() {
        let makers = Makers::background(2).unwrap();
        let (began, begins) = mpsc::channel();
        let long = slow(&makers, address(1), 1, &began);
        assert_eq!(begins.recv_timeout(SOON), Ok(1));
        // Not its turn as long as the other is there.
        let (held, home) = mpsc::channel::<()>();
        let (make, made) = mpsc::channel();
        let waiting = makers.make(address(1), None, move || {
            drop(held);
            make.send(()).unwrap();
            Ok(())
        });
        assert_eq!(home.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(waiting);
        assert_eq!(home.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
        assert!(made.recv_timeout(SOON).is_err(), "it is not made");
        drop(long);
        assert!(makers.settle(SOON));
    }

    #[test]
    fn one_that_panics_costs_no_other() {
        let makers = Makers::background(1).unwrap();
        let lost = makers.make(None, None, || -> Result<(), _> { panic!("a provider that does") });
        assert!(makers.settle(SOON));
        assert!(lost.take().is_err());
        let made = makers.make(None, None, || Ok(1));
        assert!(makers.settle(SOON));
        assert_eq!(made.take().unwrap(), Some(1));
    }

    #[test]
    fn without_threads_it_is_made_at_once() {
        let makers = Makers::default();
        assert!(makers.signal().unwrap().is_none());
        assert_eq!(makers.make(address(1), None, || Ok(1)).take().unwrap(), Some(1));
        assert!(makers.settle(Duration::ZERO));
    }
}
