//! Threads that make queue pairs and look at ports. These calls take milliseconds, or seconds if a neighbour does not answer,
//! so they stay off the threads that poll and the threads that talk to peers.

use core::fmt;
use core::net::IpAddr;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::panic::catch_unwind;
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use doorbell_core::provider::MemoryError;
use doorbell_core::wire::InstanceId;

use crate::error::ConnectError;
use crate::machine::reaper::{Reaped, Reaper};
use crate::machine::signal::Signal;
use crate::machine::unfinished::network;

/// The peer that a job is for, so that its jobs do not hold up those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// A peer that came from this address.
    Address(IpAddr),
    /// A peer that is connected to, by whichever of its rails.
    Peer(InstanceId),
    /// All: a look at the ports, which comes behind what is made of one.
    All,
}

/// When to look again for what is made, where nothing says that it is there: queue pairs take milliseconds.
pub(crate) const POLL_AGAIN: Duration = Duration::from_millis(1);

/// A call of a device panicked on a thread of the makers.
pub(crate) struct Panicked;

impl Panicked {
    const STATE: &str = "a call of a device panicked on a helper thread";
}

impl From<Panicked> for ConnectError {
    fn from(_: Panicked) -> Self {
        Self::Unreachable(Panicked::STATE)
    }
}

impl From<Panicked> for MemoryError {
    fn from(_: Panicked) -> Self {
        Self::Unreachable(Panicked::STATE)
    }
}

/// Runs jobs, as many at a time as it has threads. At most half of those at a time are for one peer. At most all but one are
/// for one IPv6 network that a single host may own. The number of waiting jobs is bounded: each queue pair has a place of a
/// Worker's, and all who ask share one look.
///
/// Dropped, it waits until all is done, unless it is [detached](Makers::detached).
#[derive(Debug, Default)]
pub(crate) struct Makers {
    /// `None` makes it at once, where it is asked for.
    jobs: Option<Arc<Jobs>>,
    threads: Vec<JoinHandle<()>>,
    reaper: Reaper,
}

impl Makers {
    /// Makers with so many threads. Results that nobody wants any more go to the reaper.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn background(threads: usize, reaper: &Reaper) -> io::Result<Self> {
        Self::start(threads.max(1), 0, reaper)
    }

    /// Makers as [`Makers::background`] makes them, with one thread more for looks alone. Without it, neighbours that do not
    /// resolve could hold up all threads, and other peers would wait for a look.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn with_scans(threads: usize, reaper: &Reaper) -> io::Result<Self> {
        Self::start(threads.max(1), 1, reaper)
    }

    fn start(making: usize, scanning: usize, reaper: &Reaper) -> io::Result<Self> {
        let jobs = Arc::new(Jobs {
            for_all: making,
            for_one: making.div_ceil(2),
            for_network: making.saturating_sub(1).max(1),
            state: Mutex::default(),
            added: Condvar::new(),
            done: Condvar::new(),
        });
        let mut makers = Self {
            jobs: Some(Arc::clone(&jobs)),
            threads: Vec::new(),
            reaper: reaper.clone(),
        };
        for _ in 0..making.saturating_add(scanning) {
            let jobs = Arc::clone(&jobs);
            let thread = thread::Builder::new()
                .name("doorbell-maker".into())
                .spawn(move || jobs.work())?;
            makers.threads.push(thread);
        }
        Ok(makers)
    }

    /// Makers whose drop does not wait: the threads end by themselves, once all jobs are done.
    pub(crate) fn detached(mut self) -> Self {
        self.threads.clear();
        self
    }

    /// Whether jobs run on threads, and not at once on the caller's.
    pub(crate) const fn is_background(&self) -> bool {
        self.jobs.is_some()
    }

    /// Has something made. The caller looks for the result now and then, and may be woken by `waker` between.
    pub(crate) fn make<T: Send + 'static, E: Send + 'static>(
        &self,
        whom: Whom,
        waker: Option<&Waker>,
        make: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Commission<T, E> {
        let (to, from) = mpsc::sync_channel(1);
        let delivery = Delivery {
            to,
            wake: WakeOnDrop(waker.cloned()),
        };
        let reaper = self.reaper.clone();
        // A result that nobody waits for any more goes to the reaper from here.
        let run = move || delivery.hand_over(make().map(|made| reaper.keep(made)));
        let queued = match &self.jobs {
            Some(jobs) => {
                let run: Box<dyn FnOnce() + Send> = Box::new(run);
                Some((Arc::clone(jobs), jobs.add(whom, self.reaper.keep(run))))
            }
            None => {
                run();
                None
            }
        };
        Commission { from, queued }
    }

    /// Signal that a caller of [`Makers::make`] may wait for; `None` if jobs are run at once.
    ///
    /// # Errors
    /// The system gave no descriptor.
    pub(crate) fn signal(&self) -> io::Result<Option<Arc<Signal>>> {
        let signal = self.is_background().then(Signal::new);
        Ok(signal.transpose()?.map(Arc::new))
    }

    /// Waits until nothing is made any more that nobody wants, but no longer than `patience`; says whether that is so. It is
    /// the reaper's then.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let Some(jobs) = &self.jobs else {
            return true;
        };
        let waited = jobs
            .done
            .wait_timeout_while(jobs.state(), patience, |state| !state.is_settled());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_settled()
    }
}

impl Drop for Makers {
    fn drop(&mut self) {
        if let Some(jobs) = &self.jobs {
            jobs.state().is_over = true;
            jobs.added.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Something that is being made. Dropped, it is no longer wanted: where no thread has begun yet, none does, and what it was to
/// be made of, or what was made of it, goes to the reaper.
#[derive(Debug)]
pub(crate) struct Commission<T: Send + 'static, E = ConnectError> {
    from: mpsc::Receiver<Result<Reaped<T>, E>>,
    queued: Option<(Arc<Jobs>, u64)>,
}

impl<T: Send + 'static, E: From<Panicked>> Commission<T, E> {
    /// Returns the result, once; `None` while it is made.
    ///
    /// # Errors
    /// It came to nothing.
    pub(crate) fn take(&self) -> Result<Option<Reaped<T>>, E> {
        match self.from.try_recv() {
            Ok(made) => made.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Panicked.into()),
        }
    }
}

impl<T: Send + 'static, E> Drop for Commission<T, E> {
    fn drop(&mut self) {
        if let Some((jobs, number)) = &self.queued {
            jobs.give_up(*number);
        }
    }
}

/// Channel for a result. The fields are dropped in this order, so a waiter that is woken finds the end, also if a call
/// panicked.
struct Delivery<T: Send + 'static, E> {
    to: mpsc::SyncSender<Result<Reaped<T>, E>>,
    wake: WakeOnDrop,
}

impl<T: Send + 'static, E> Delivery<T, E> {
    fn hand_over(self, made: Result<Reaped<T>, E>) {
        let Self { to, wake } = self;
        let _ = to.send(made);
        drop(to);
        drop(wake);
    }
}

/// Wakes once it is dropped.
struct WakeOnDrop(Option<Waker>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

/// Queue of jobs.
struct Jobs {
    /// Limit on jobs at a time that are not looks.
    for_all: usize,
    /// Limit on those of one peer.
    for_one: usize,
    /// Limit on those of peers of one [`network`].
    for_network: usize,
    state: Mutex<State>,
    added: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// The first in front.
    waiting: VecDeque<Job>,
    /// Jobs that are being run.
    running: Vec<Running>,
    /// How many there were so far, which names them.
    count: u64,
    is_over: bool,
}

struct Job {
    number: u64,
    whom: Whom,
    // Undone where that takes nobody's time.
    make: Reaped<Box<dyn FnOnce() + Send>>,
}

struct Running {
    number: u64,
    whom: Whom,
    is_wanted: bool,
}

impl State {
    fn is_settled(&self) -> bool {
        self.running.iter().all(|job| job.is_wanted)
    }

    fn count(&self, is_counted: impl Fn(Whom) -> bool) -> usize {
        self.running.iter().filter(|job| is_counted(job.whom)).count()
    }
}

impl Jobs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job whose turn it is: those of looks come last.
    fn turn(&self, state: &State) -> Option<usize> {
        let may_make = state.count(|whom| whom != Whom::All) < self.for_all;
        let has_room = |job: &Job| {
            let of_it = state.count(|whom| whom == job.whom);
            match job.whom {
                // One at a time, so that all who ask meanwhile have one to share.
                Whom::All => of_it == 0,
                Whom::Peer(_) => may_make && of_it < self.for_one,
                Whom::Address(address) => {
                    let is_beside =
                        |whom| matches!(whom, Whom::Address(other) if network(other) == network(address));
                    may_make && of_it < self.for_one && state.count(is_beside) < self.for_network
                }
            }
        };
        let turn = |is_scan| {
            let mut waiting = state.waiting.iter();
            waiting.position(|job| (job.whom == Whom::All) == is_scan && has_room(job))
        };
        turn(false).or_else(|| turn(true))
    }

    /// Puts a job behind the others, and gives its number.
    fn add(&self, whom: Whom, make: Reaped<Box<dyn FnOnce() + Send>>) -> u64 {
        let mut state = self.state();
        let number = state.count;
        state.count = number.wrapping_add(1);
        state.waiting.push_back(Job { number, whom, make });
        drop(state);
        // One is enough: what has no room now has it where another is done, by the thread that did it.
        self.added.notify_one();
        number
    }

    /// Nobody wants it any more.
    fn give_up(&self, number: u64) {
        let mut state = self.state();
        if let Some(running) = state.running.iter_mut().find(|job| job.number == number) {
            running.is_wanted = false;
        }
        let at = state.waiting.iter().position(|job| job.number == number);
        let job = at.and_then(|at| state.waiting.remove(at));
        let is_over = state.is_over;
        drop(state);
        drop(job);
        if is_over {
            // It may have been what the threads had yet to do.
            self.added.notify_all();
        }
    }

    /// Runs jobs on one of the threads, until there are no more.
    fn work(&self) {
        while let Some(Job { number, make, .. }) = self.next() {
            // A provider that panics costs who asked, and nobody else.
            let _ = catch_unwind(AssertUnwindSafe(|| Reaped::into_inner(make)()));
            self.state().running.retain(|job| job.number != number);
            self.done.notify_all();
        }
    }

    /// The next job, for one of the threads; none where nobody asks for more.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            let at = self.turn(&state);
            if let Some(job) = at.and_then(|at| state.waiting.remove(at)) {
                state.running.push(Running {
                    number: job.number,
                    whom: job.whom,
                    is_wanted: true,
                });
                return Some(job);
            }
            if state.is_over && state.waiting.is_empty() {
                self.added.notify_all();
                return None;
            }
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("for_all", &self.for_all)
            .field("for_one", &self.for_one)
            .field("for_network", &self.for_network)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
