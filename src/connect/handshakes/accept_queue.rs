//! The accept queue between the handshakes and one Worker. A handshake reserves a place and requests a channel there. The Worker answers.
//! The handshake publishes the connection at the place, and the Worker takes it. The types of requests, answers, connections and signals
//! are parameters.
//!
//! The models compile this file with loom's locks (`sim/lab/models/tests/models/accept_queue.rs`), and again with a mistake in each step.
//! So the locks come from `super::locks`, and this file imports nothing else of the crate.

use std::collections::VecDeque;
use std::sync::{PoisonError, TryLockError};

use doorbell_core::sync::{AtomicU64, Ordering};

use super::locks::{Arc, Mutex, MutexGuard};

/// Signals that wake either side.
pub(crate) trait Wakes {
    /// Wakes the thread that polls the handshakes.
    fn wake_handshakes(&self);

    /// Wakes the Worker's thread.
    fn wake_accepting(&self);

    /// Clears the signal of [`Wakes::wake_accepting`]. The Worker's thread calls this before it checks the queue.
    fn take_accepting(&self);
}

/// State that the handshakes and a Worker share.
pub(crate) struct AcceptQueue<W, A, C, S> {
    /// Which places are free, reserved or published.
    owners: Mutex<Owners>,
    /// Whether a connection is published or the queue has ended. The Worker's side reads it without the lock.
    news: AtomicU64,
    /// The content of each place.
    table: Box<[Mutex<AcceptEntry<W, A, C>>]>,
    /// The places with requests that were not answered yet, oldest first.
    asked: Mutex<VecDeque<u32>>,
    /// The length of `asked`, to be read without the lock.
    asked_count: AtomicU64,
    pub(crate) signals: S,
}

/// Places by their owners. A place is free, reserved by a handshake, or published for the Worker.
#[derive(Default)]
pub(crate) struct Owners {
    /// The number of places.
    capacity: usize,
    free: Vec<u32>,
    /// In the order of publishing.
    published: VecDeque<u32>,
    /// No place can be reserved any more.
    is_closed: bool,
    /// The Worker's side was dropped: a connection that is published now is dropped by the publishing side.
    is_abandoned: bool,
}

impl Owners {
    /// Whether the queue has ended: it is closed, and no place is reserved or published. No connection will come.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed && self.free.len() == self.capacity
    }

    /// Returns how many places are free; `None` after closing.
    pub(crate) fn free(&self) -> Option<usize> {
        (!self.is_closed).then_some(self.free.len())
    }
}

/// Reason why no place can be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveError {
    /// No place is free.
    Full,
    /// The queue is closed.
    Closed,
}

/// The content of a place.
#[derive(Default)]
pub(crate) enum AcceptEntry<W, A, C> {
    #[default]
    Empty,
    /// A request for a channel on the Worker.
    Asked(W),
    /// The answer of the Worker.
    Answered(A),
    /// A finished connection.
    Connected(C),
}

impl<W, A, C, S: Wakes> AcceptQueue<W, A, C, S> {
    pub(crate) fn new(capacity: u32, signals: S) -> Self {
        let capacity = capacity.max(1);
        Self {
            owners: Mutex::new(Owners {
                capacity: capacity as usize,
                free: (0..capacity).rev().collect(),
                ..Owners::default()
            }),
            news: AtomicU64::new(0),
            table: (0..capacity).map(|_| Mutex::new(AcceptEntry::Empty)).collect(),
            asked: Mutex::new(VecDeque::new()),
            asked_count: AtomicU64::new(0),
            signals,
        }
    }

    pub(crate) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of places.
    pub(crate) const fn capacity(&self) -> usize {
        self.table.len()
    }

    /// Changes the owners of places. `change` may lock the content of a place: no thread waits for this lock while it holds that lock.
    fn pass<T>(&self, change: impl FnOnce(&mut Owners) -> T) -> T {
        let mut owners = self.owners();
        let changed = change(&mut owners);
        let news = !owners.published.is_empty() || owners.is_over();
        // Relaxed: the word is only a hint that taking the lock is worthwhile. The lock orders the data.
        self.news.store(u64::from(news), Ordering::Relaxed);
        changed
    }

    fn reserve(&self) -> Result<u32, ReserveError> {
        self.pass(|owners| {
            if owners.is_closed {
                return Err(ReserveError::Closed);
            }
            owners.free.pop().ok_or(ReserveError::Full)
        })
    }

    /// Takes the connection that was published first, and frees its place.
    ///
    /// # Errors
    /// The queue has ended.
    fn take(&self) -> Result<Option<AcceptEntry<W, A, C>>, PollError> {
        // Relaxed: see the store.
        if self.news.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        self.pass(|owners| match owners.published.pop_front() {
            Some(index) => {
                owners.free.push(index);
                Ok(self.exchange(index, AcceptEntry::Empty))
            }
            None if owners.is_over() => Err(PollError::Closed),
            None => Ok(None),
        })
    }

    /// Closes the queue: from now on no place can be reserved.
    pub(crate) fn close(&self) {
        self.pass(|owners| owners.is_closed = true);
        self.signals.wake_accepting();
    }

    fn asked(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, index: u32) -> Option<MutexGuard<'_, AcceptEntry<W, A, C>>> {
        let entry = self.table.get(index as usize)?;
        Some(entry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the content of a place and returns the old content. The caller drops it without a lock, since it may contain a queue
    /// pair.
    fn exchange(&self, index: u32, entry: AcceptEntry<W, A, C>) -> Option<AcceptEntry<W, A, C>> {
        let mut place = self.entry(index)?;
        Some(core::mem::replace(&mut *place, entry))
    }

    /// Publishes the number of unanswered requests. Relaxed: the word is only a hint; the locks order the data.
    fn count_asked(&self, asked: &VecDeque<u32>) {
        self.asked_count.store(asked.len() as u64, Ordering::Relaxed);
    }

    /// Reserves a place, and requests a channel on the Worker.
    ///
    /// # Errors
    /// No place is free, or the queue is closed.
    pub(crate) fn ask(queue: &Arc<Self>, wanted: W) -> Result<AcceptPlace<W, A, C, S>, ReserveError> {
        let index = queue.reserve()?;
        queue.exchange(index, AcceptEntry::Asked(wanted));
        let mut asked = queue.asked();
        asked.push_back(index);
        queue.count_asked(&asked);
        drop(asked);
        queue.signals.wake_accepting();
        Ok(AcceptPlace {
            queue: Arc::clone(queue),
            index: Some(index),
        })
    }

    /// Removes the request or the answer from a place.
    fn withdraw(&self, index: u32) {
        let mut asked = self.asked();
        asked.retain(|other| *other != index);
        self.count_asked(&asked);
        drop(asked);
        self.exchange(index, AcceptEntry::Empty);
    }

    /// The Worker's side: whether there is an unanswered request.
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: see the store.
        self.asked_count.load(Ordering::Relaxed) > 0
    }

    /// The Worker's side: answers the oldest request, and takes the connection that was published first, if there are any.
    ///
    /// # Errors
    /// `worker` is not the Worker of this queue, or the queue has ended.
    #[inline]
    pub(crate) fn poll<K>(
        &self,
        worker: &mut K,
        is_ours: impl Fn(&K) -> bool,
        answer: impl FnOnce(&mut K, &W) -> A,
    ) -> Result<Option<C>, PollError> {
        // The signal is cleared before the checks, so that an event after them raises it again.
        self.signals.take_accepting();
        if self.is_asked() {
            if !is_ours(worker) {
                return Err(PollError::OtherWorkers);
            }
            if self.serve(|wanted| answer(worker, wanted)).is_some() {
                self.signals.wake_handshakes();
            }
            // There are more requests, or a lock was held by another thread.
            if self.is_asked() {
                self.signals.wake_accepting();
            }
        }
        match self.take()? {
            // A connection that another Worker takes is dropped. Its peer sees its queue pair fail.
            Some(_) if !is_ours(worker) => Err(PollError::OtherWorkers),
            Some(AcceptEntry::Connected(connected)) => Ok(Some(connected)),
            _ => Ok(None),
        }
    }

    /// The Worker's side, on the thread of the handshakes: answers all requests, and wakes nobody. Returns whether there were any.
    pub(crate) fn answer_all(&self, mut answer: impl FnMut(&W) -> A) -> bool {
        let mut has_answered = false;
        while self.is_asked() && self.serve(&mut answer).is_some() {
            has_answered = true;
        }
        has_answered
    }

    /// Answers the oldest request, if there is one and no other thread holds its locks.
    fn serve(&self, answer: impl FnOnce(&W) -> A) -> Option<()> {
        let mut asked = tried(self.asked.try_lock())?;
        let place = asked.front().and_then(|index| self.table.get(*index as usize))?;
        let mut entry = tried(place.try_lock())?;
        asked.pop_front();
        self.count_asked(&asked);
        drop(asked);
        let AcceptEntry::Asked(wanted) = &*entry else {
            return None;
        };
        *entry = AcceptEntry::Answered(answer(wanted));
        Some(())
    }

    /// The Worker's side ends: closes the queue, and returns the connections that will not be accepted. The caller drops them on a thread
    /// that may call the device.
    pub(crate) fn abandon(&self) -> Vec<AcceptEntry<W, A, C>> {
        self.pass(|owners| (owners.is_closed, owners.is_abandoned) = (true, true));
        let mut left = Vec::new();
        while let Ok(Some(taken)) = self.take() {
            left.push(taken);
        }
        left
    }
}

/// Reason why a poll failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollError {
    /// The poll was made with another Worker.
    OtherWorkers,
    /// The queue has ended: no more connections come.
    Closed,
}

/// Returns the guard if the lock was free. Poisoning is ignored, since a panic never leaves the locked data inconsistent.
fn tried<T>(outcome: Result<T, TryLockError<T>>) -> Option<T> {
    match outcome {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Calls `poll` until it finds something, and `rest` in between. Returns `None` if `rest` returns false, at the deadline.
///
/// # Errors
/// `poll` or `rest` failed.
pub(crate) fn poll_until<K, T, E>(
    worker: &mut K,
    mut poll: impl FnMut(&mut K) -> Result<Option<T>, E>,
    mut rest: impl FnMut(&mut K) -> Result<bool, E>,
) -> Result<Option<T>, E> {
    loop {
        if let Some(found) = poll(worker)? {
            return Ok(Some(found));
        }
        if !rest(worker)? {
            return Ok(None);
        }
    }
}

/// A place in the accept queue, reserved for one handshake. Dropping it withdraws the request or the answer, and frees the place.
pub(crate) struct AcceptPlace<W, A, C, S: Wakes> {
    queue: Arc<AcceptQueue<W, A, C, S>>,
    /// `None` after publishing.
    index: Option<u32>,
}

impl<W, A, C, S: Wakes> AcceptPlace<W, A, C, S> {
    /// Returns the answer of the Worker, once.
    pub(crate) fn answer(&self) -> Option<A> {
        let mut entry = self.queue.entry(self.index?)?;
        if let AcceptEntry::Asked(_) = &*entry {
            return None;
        }
        match core::mem::take(&mut *entry) {
            AcceptEntry::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Whether the Worker's side has ended, so that no answer comes.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.queue.owners().is_abandoned
    }

    /// Hands the connection to the Worker's side. Returns the connections that will not be accepted, since that side has ended. The caller
    /// drops them on a thread that may call the device.
    pub(crate) fn publish(mut self, connected: C) -> Vec<AcceptEntry<W, A, C>> {
        let mut unaccepted = Vec::new();
        if let Some(index) = self.index.take() {
            self.queue.exchange(index, AcceptEntry::Connected(connected));
            let is_abandoned = self.queue.pass(|owners| {
                owners.published.push_back(index);
                owners.is_abandoned
            });
            if is_abandoned {
                unaccepted = self.queue.abandon();
            }
            self.queue.signals.wake_accepting();
        }
        unaccepted
    }
}

impl<W, A, C, S: Wakes> Drop for AcceptPlace<W, A, C, S> {
    fn drop(&mut self) {
        let Some(index) = self.index.take() else {
            return;
        };
        self.queue.withdraw(index);
        let is_closed = self.queue.pass(|owners| {
            owners.free.push(index);
            owners.is_closed
        });
        // The queue may have ended by this: then the Worker's side must not wait any more. The wake-up at closing may have come too early.
        if is_closed {
            self.queue.signals.wake_accepting();
        }
    }
}
