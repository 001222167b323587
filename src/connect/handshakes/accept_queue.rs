//! The accept queue: places are asked for, granted or denied, published and taken. The types of requests, answers, connections and
//! signals are parameters.
//!
//! The models compile this file with loom's locks (`sim/lab/models/tests/models/accept_queue.rs`), and with each of its steps done
//! wrong. So locks come from `super::locks`, and nothing else of the crate is named here.

use std::collections::VecDeque;
use std::sync::{PoisonError, TryLockError};

use doorbell_core::sync::{AtomicU64, Ordering};

use super::locks::{Arc, Mutex, MutexGuard};

/// Signals that wake either side.
pub(crate) trait Wakes {
    /// The handshakes have something to do.
    fn wake_handshakes(&self);

    /// The Worker's thread has.
    fn wake_accepting(&self);

    /// The Worker's thread is about to look.
    fn take_accepting(&self);
}

/// State that the handshakes and a Worker share.
pub(crate) struct AcceptQueue<W, A, C, S> {
    /// The places that are free, reserved or published.
    owners: Mutex<Owners>,
    /// Whether the Worker's side has a connection or the end to take, readable without the lock.
    news: AtomicU64,
    /// Content of each place.
    table: Box<[Mutex<AcceptEntry<W, A, C>>]>,
    /// Places that were asked for and not looked at yet, the first in front.
    asked: Mutex<VecDeque<u32>>,
    /// Number of those, to be read without the lock.
    asked_count: AtomicU64,
    pub(crate) signals: S,
}

/// Places by their owners. A place is free, reserved by a handshake, or published for the Worker.
#[derive(Default)]
pub(crate) struct Owners {
    /// How many there are.
    capacity: usize,
    free: Vec<u32>,
    /// In the order of publishing.
    published: VecDeque<u32>,
    /// No place can be reserved any more.
    is_closed: bool,
    /// The Worker's side is gone: the side that publishes drops the connection.
    is_abandoned: bool,
}

impl Owners {
    /// Whether no connection comes any more: no place is reserved or published.
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
    /// All places are held.
    Full,
    /// The Worker's side accepts no more connections.
    Closed,
}

/// Content of a place.
#[derive(Default)]
pub(crate) enum AcceptEntry<W, A, C> {
    #[default]
    Empty,
    /// A channel on the Worker is wanted.
    Asked(W),
    /// Answer of the Worker.
    Answered(A),
    /// A peer that was accepted, and has confirmed it.
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

    /// How many places there are.
    pub(crate) const fn capacity(&self) -> usize {
        self.table.len()
    }

    /// Changes the owners of places. `change` may lock the content of a place: nobody holds that lock and waits for this one.
    fn pass<T>(&self, change: impl FnOnce(&mut Owners) -> T) -> T {
        let mut owners = self.owners();
        let changed = change(&mut owners);
        let news = !owners.published.is_empty() || owners.is_over();
        // Relaxed: it only says that the lock is worth taking; the lock orders the rest.
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
    /// No connection comes any more.
    fn take(&self) -> Result<Option<AcceptEntry<W, A, C>>, PollError> {
        // Relaxed: see where it is stored.
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

    /// No more places are given: no reserved one is announced to a peer from here on.
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

    /// Puts something at a place and gives what was there, to be dropped where nothing is locked: it may hold
    /// a queue pair.
    fn exchange(&self, index: u32, entry: AcceptEntry<W, A, C>) -> Option<AcceptEntry<W, A, C>> {
        let mut place = self.entry(index)?;
        Some(core::mem::replace(&mut *place, entry))
    }

    /// Relaxed: it only says that a look is worth it; the locks order what is looked at.
    fn count_asked(&self, asked: &VecDeque<u32>) {
        self.asked_count.store(asked.len() as u64, Ordering::Relaxed);
    }

    /// Asks for a channel on the Worker.
    ///
    /// # Errors
    /// As many connections as may be are on their way to it, or wait to be accepted; or nobody accepts any more.
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

    /// Takes back what was asked for, granted or denied.
    fn withdraw(&self, index: u32) {
        let mut asked = self.asked();
        asked.retain(|other| *other != index);
        self.count_asked(&asked);
        drop(asked);
        self.exchange(index, AcceptEntry::Empty);
    }

    /// The Worker's side: whether a place is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: see where it is stored.
        self.asked_count.load(Ordering::Relaxed) > 0
    }

    /// The Worker's side: answers the place that was asked for first, if any was, and takes the connection that was first
    /// published, if there is one.
    ///
    /// # Errors
    /// The Worker is not the one that answers here, or no more connections come.
    #[inline]
    pub(crate) fn poll<K>(
        &self,
        worker: &mut K,
        is_ours: impl Fn(&K) -> bool,
        answer: impl FnOnce(&mut K, &W) -> A,
    ) -> Result<Option<C>, PollError> {
        // Before the look, so that what is announced meanwhile is announced again.
        self.signals.take_accepting();
        if self.is_asked() {
            if !is_ours(worker) {
                return Err(PollError::OtherWorkers);
            }
            if self.serve(|wanted| answer(worker, wanted)).is_some() {
                self.signals.wake_handshakes();
            }
            // Others were asked for, too, or one of these locks was somebody's.
            if self.is_asked() {
                self.signals.wake_accepting();
            }
        }
        match self.take()? {
            // A connection of another Worker is dropped: its peer learns that from the end of its queue pair.
            Some(_) if !is_ours(worker) => Err(PollError::OtherWorkers),
            Some(AcceptEntry::Connected(connected)) => Ok(Some(connected)),
            _ => Ok(None),
        }
    }

    /// Answers the place that was asked for first, if there is one and nobody has it locked.
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

    /// The Worker's side, which is going: takes the connections that nobody accepts any more, to be dropped where it
    /// takes nobody's time.
    pub(crate) fn abandon(&self) -> Vec<AcceptEntry<W, A, C>> {
        self.pass(|owners| (owners.is_closed, owners.is_abandoned) = (true, true));
        let mut left = Vec::new();
        while let Ok(Some(taken)) = self.take() {
            left.push(taken);
        }
        left
    }
}

/// Why there was nothing to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollError {
    /// Another Worker's thread looked.
    OtherWorkers,
    /// No more connections come.
    Closed,
}

/// The guard, if the lock was free. A panic never leaves a lock with a thing half done.
fn tried<T>(outcome: Result<T, TryLockError<T>>) -> Option<T> {
    match outcome {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Looks until something is found, and rests in between; none where `rest` says that it is too late.
///
/// # Errors
/// Of either.
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

/// A place among those that wait to be accepted, for one handshake. Dropped, all that was asked for or granted is
/// given up.
pub(crate) struct AcceptPlace<W, A, C, S: Wakes> {
    queue: Arc<AcceptQueue<W, A, C, S>>,
    /// There until it is published.
    index: Option<u32>,
}

impl<W, A, C, S: Wakes> AcceptPlace<W, A, C, S> {
    /// Answer of the Worker, once.
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

    /// Hands the connection over.
    pub(crate) fn publish(mut self, connected: C) {
        if let Some(index) = self.index.take() {
            self.queue.exchange(index, AcceptEntry::Connected(connected));
            let is_abandoned = self.queue.pass(|owners| {
                owners.published.push_back(index);
                owners.is_abandoned
            });
            if is_abandoned {
                drop(self.queue.abandon());
            }
            self.queue.signals.wake_accepting();
        }
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
        // If this was the last place, the accepting side waits for nobody any more. Closing signaled it before.
        if is_closed {
            self.queue.signals.wake_accepting();
        }
    }
}
