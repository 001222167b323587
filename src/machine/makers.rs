//! Helper threads for slow device calls: they make queue pairs, register memory and scan ports. These calls take milliseconds, or
//! seconds if a neighbour does not resolve, so they do not run on threads that poll or that run handshakes.

use core::fmt;
use core::mem;
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

/// The peer that a job is for. Limits for each peer keep its jobs from delaying those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// A peer whose handshake came from this address.
    Address(IpAddr),
    /// A peer process, over any of its rails.
    Peer(InstanceId),
    /// No single peer: a scan of the ports, for all callers. Jobs for a peer run before it.
    All,
}

/// Interval of checks for a result that no signal announces: queue pairs take milliseconds.
pub(crate) const POLL_AGAIN: Duration = Duration::from_millis(1);

/// A device call panicked on a helper thread.
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

/// Runs jobs, as many at a time as it has threads. At most half of the jobs that run at a time, rounded up, are for one peer. At most all
/// but one are for handshakes from one IPv6 network of 64 bits, which a single host may own. The number of waiting jobs is bounded: each
/// queue pair has a place on a Worker, and callers share a scan.
///
/// Dropping it waits until all jobs are done, unless it is [detached](Makers::detached).
#[derive(Debug, Default)]
pub(crate) struct Makers {
    /// `None` runs each job at once, on the caller's thread.
    jobs: Option<Arc<Jobs>>,
    threads: Vec<JoinHandle<()>>,
    reaper: Reaper,
}

impl Makers {
    /// Makes this number of threads, at least one. Results that are not wanted any more go to the reaper.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn background(threads: usize, reaper: &Reaper) -> io::Result<Self> {
        Self::start(threads.max(1), 0, reaper)
    }

    /// Makes threads as [`Makers::background`] does, and one more, so that a scan always finds a thread. Without it, neighbours that do not
    /// resolve could occupy all threads, and other peers would wait for a scan.
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

    /// Makes dropping it not wait: the threads end once all jobs are done.
    pub(crate) fn detached(mut self) -> Self {
        self.threads.clear();
        self
    }

    /// Whether jobs run on helper threads, and not on the caller's thread.
    pub(crate) const fn is_background(&self) -> bool {
        self.jobs.is_some()
    }

    /// Queues a job. The caller polls for its result by [`Commission::take`]; `waker` is woken when the job has ended.
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
        // If the commission was dropped, sending fails, and the result goes to the reaper.
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

    /// Returns a signal to use as the waker of [`Makers::make`]; `None` if jobs run on the caller's thread.
    ///
    /// # Errors
    /// The system gave no descriptor.
    pub(crate) fn signal(&self) -> io::Result<Option<Arc<Signal>>> {
        let signal = self.is_background().then(Signal::new);
        Ok(signal.transpose()?.map(Arc::new))
    }

    /// Waits until no unwanted job runs, but no longer than `patience`. Returns whether none runs. The results of such jobs are with the
    /// reaper then.
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

/// A job and its result. Dropping it makes the job unwanted: if no thread has begun it, none does. The job's inputs, or its result, go
/// to the reaper.
#[derive(Debug)]
pub(crate) struct Commission<T: Send + 'static, E = ConnectError> {
    from: mpsc::Receiver<Result<Reaped<T>, E>>,
    queued: Option<(Arc<Jobs>, u64)>,
}

impl<T: Send + 'static, E: From<Panicked>> Commission<T, E> {
    /// Returns the result, once; `None` while the job waits or runs.
    ///
    /// # Errors
    /// The job failed or panicked, or the result was taken before.
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

/// Channel for a result. The fields are dropped in this order, so a woken waiter finds the result, or the closed channel if the call
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

/// Wakes a waker when it is dropped.
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
    /// Limit on running jobs that are not scans.
    for_all: usize,
    /// Limit on running jobs of one peer.
    for_one: usize,
    /// Limit on running jobs of addresses in one [`network`].
    for_network: usize,
    state: Mutex<State>,
    added: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Waiting jobs, the oldest in front.
    waiting: VecDeque<Job>,
    /// Jobs that are being run.
    running: Vec<Running>,
    /// The number of jobs so far, which is the next job's number.
    count: u64,
    is_over: bool,
}

struct Job {
    number: u64,
    whom: Whom,
    // If the job is given up, the reaper drops its inputs, off the caller's thread.
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

    /// The index of the next job to run: the first one within the limits. Scans come last.
    fn turn(&self, state: &State) -> Option<usize> {
        let may_make = state.count(|whom| whom != Whom::All) < self.for_all;
        let has_room = |job: &Job| {
            let of_it = state.count(|whom| whom == job.whom);
            match job.whom {
                // One at a time, so that callers that ask meanwhile share the next one.
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

    /// Queues a job, and returns its number.
    fn add(&self, whom: Whom, make: Reaped<Box<dyn FnOnce() + Send>>) -> u64 {
        let mut state = self.state();
        let number = state.count;
        state.count = number.wrapping_add(1);
        state.waiting.push_back(Job { number, whom, make });
        drop(state);
        // One thread is enough: a job that is beyond a limit now is taken later by the thread that ends another job.
        self.added.notify_one();
        number
    }

    /// Marks a running job as unwanted, or removes a waiting one.
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
            // It may have been the last waiting job, for which the threads stayed.
            self.added.notify_all();
        }
    }

    /// Runs jobs on one of the threads, until there are no more.
    fn work(&self) {
        while let Some(Job { number, make, .. }) = self.next() {
            // A panic of a provider fails only this job. The drop of the panic's payload might panic, too.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| Reaped::into_inner(make)())) {
                mem::forget(panic);
            }
            self.state().running.retain(|job| job.number != number);
            self.done.notify_all();
        }
    }

    /// Waits for the next job of a thread. Returns `None` once the makers are dropped and no job waits.
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
