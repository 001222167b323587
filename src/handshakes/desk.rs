//! The desk between handshakes and one Worker: places on it are asked for and granted, connections handed over.
//!
//! A Worker's queues and memory are its own thread's, and what a device takes long for is not for that thread. So
//! the handshakes ask here for a place, the Worker grants one, which takes microseconds and calls no device, and what
//! is made of it elsewhere goes back the same way. A place among those that wait to be accepted is reserved before
//! anything is asked for (`core::accept_queue`), and so before the peer is told yes.
//!
//! The side of the handshakes locks, for moments. The Worker's looks at two words where there is nothing
//! to do, and tries locks where there is: what it does not get it gets at its next look. Only to take a connection, and to go,
//! it waits out one of those moments.

use core::fmt;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use doorbell_core::accept_queue::{AcceptQueue, AcceptSlot, Reservation, ReserveError, TakeError};
use doorbell_core::handshake::Established;
use doorbell_core::provider::Provider;
use doorbell_core::sync::{AtomicU64, Ordering};
use doorbell_core::wire::InstanceId;

use crate::answer::{Made, Wanted};
use crate::bring_up::{Ground, Place, Ready, Supply, admit_to};
use crate::edge::signal::Signal;
use crate::error::ConnectError;
use crate::{ChannelId, Worker, worker};

type Queue = AcceptQueue<Box<[AcceptSlot]>>;

/// What the handshakes and a Worker share.
pub(crate) struct Desk<P: Provider> {
    ground: Ground<P>,
    device: String,
    /// The Node its Worker is of.
    node: InstanceId,
    queue: Arc<Queue>,
    /// One for each place of the queue; whose turn it is with one, the queue and what is in it say.
    table: Box<[Mutex<Entry<P>>]>,
    /// Places that were asked for and not looked at yet, the first in front.
    asked: Mutex<VecDeque<u32>>,
    /// How many those are, for who looks without the lock.
    asked_count: AtomicU64,
    /// Whether nobody accepts any more. Locked behind a publishing, and before what was published is taken away: of the two,
    /// the later sees what the other did.
    is_abandoned: Mutex<bool>,
    signals: Option<Signals>,
}

/// What wakes either side.
pub(crate) struct Signals {
    /// The handshakes.
    pub(crate) handshakes: Arc<Signal>,
    /// The Worker's thread.
    pub(crate) accepting: Signal,
}

/// What is at a place.
enum Entry<P: Provider> {
    Empty,
    /// A channel on the Worker is wanted.
    Asked(Box<Wanted>),
    Granted(Box<Granted<P>>),
    Denied(ConnectError),
    /// A peer that was told yes, and knows.
    Connected(Box<Done<P>>),
}

struct Done<P: Provider> {
    ready: Ready<P>,
    established: Established,
}

/// All that a Worker gives to a channel.
pub(crate) struct Granted<P: Provider> {
    // Memory goes home before the place does.
    supply: Supply<P>,
    place: Place<P>,
}

impl<P: Provider> Granted<P> {
    /// Takes it from the Worker.
    pub(crate) fn of(worker: &mut Worker<P>, wanted: &Wanted) -> Result<Self, ConnectError> {
        let place = worker.place(&wanted.config)?;
        let supply = worker.supply(&place.reservation, wanted.peer.credit.start, &wanted.config)?;
        Ok(Self { supply, place })
    }

    /// What is there until this is given up, and whatever comes of it is closed.
    pub(crate) const fn reservation(&self) -> &Arc<worker::Reservation> {
        &self.place.reservation
    }

    /// Makes the queue pair that is wanted. On any thread.
    pub(crate) fn make(self, wanted: &Wanted, desk: &Desk<P>) -> Result<Made<P>, ConnectError> {
        wanted.make(self.place, self.supply, &desk.ground)
    }
}

/// Gives a peer its place on the Worker, or says why not.
pub(crate) trait Grant<P: Provider>:
    FnOnce(&mut Worker<P>, &Wanted) -> Result<Granted<P>, ConnectError>
{
}

impl<P: Provider, F> Grant<P> for F where
    F: FnOnce(&mut Worker<P>, &Wanted) -> Result<Granted<P>, ConnectError>
{
}

impl<P: Provider> Desk<P> {
    pub(crate) fn new(worker: &Worker<P>, places: u32, signals: Option<Signals>) -> Self {
        let places = places.max(1);
        Self {
            ground: Ground::of(worker),
            device: worker.device().into(),
            node: worker.node,
            queue: Arc::new(AcceptQueue::new((0..places).map(|_| AcceptSlot::new()).collect())),
            table: (0..places).map(|_| Mutex::new(Entry::Empty)).collect(),
            asked: Mutex::new(VecDeque::with_capacity(places as usize)),
            asked_count: AtomicU64::new(0),
            is_abandoned: Mutex::new(false),
            signals,
        }
    }

    /// The device its Worker is on.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// The Node its Worker is of: its trust domain.
    pub(crate) const fn node(&self) -> InstanceId {
        self.node
    }

    /// No more places are given: of none that is reserved a peer is told from here on.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.tell_accepting();
    }

    fn asked(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandoned(&self) -> MutexGuard<'_, bool> {
        self.is_abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, index: u32) -> Option<MutexGuard<'_, Entry<P>>> {
        let entry = self.table.get(index as usize)?;
        Some(entry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts something at a place and gives what was there, to be dropped where nothing is locked: it may hold
    /// a queue pair.
    fn exchange(&self, index: u32, entry: Entry<P>) -> Option<Entry<P>> {
        let mut place = self.entry(index)?;
        Some(core::mem::replace(&mut *place, entry))
    }

    /// Relaxed: it only says that a look is worth it; the locks order what is looked at.
    fn count_asked(&self, asked: &VecDeque<u32>) {
        self.asked_count.store(asked.len() as u64, Ordering::Relaxed);
    }

    pub(super) fn tell_handshakes(&self) {
        if let Some(signals) = &self.signals {
            signals.handshakes.raise();
        }
    }

    fn tell_accepting(&self) {
        if let Some(signals) = &self.signals {
            signals.accepting.raise();
        }
    }

    /// Asks for a channel on the Worker.
    ///
    /// # Errors
    /// As many connections as may be are on their way to it, or wait to be accepted; or nobody accepts any more.
    pub(crate) fn ask(self: &Arc<Self>, wanted: &Wanted) -> Result<Seat<P>, ReserveError> {
        let place = AcceptQueue::reserve(Arc::clone(&self.queue))?;
        let index = place.index();
        self.exchange(index, Entry::Asked(Box::new(*wanted)));
        let mut asked = self.asked();
        asked.push_back(index);
        self.count_asked(&asked);
        drop(asked);
        self.tell_accepting();
        Ok(Seat {
            desk: Arc::clone(self),
            place: Some(place),
        })
    }

    /// Takes back what was asked for, granted or denied.
    fn withdraw(&self, index: u32) {
        let mut asked = self.asked();
        asked.retain(|other| *other != index);
        self.count_asked(&asked);
        drop(asked);
        self.exchange(index, Entry::Empty);
        // The other side may have met a lock of ours and looked no further.
        self.tell_accepting_of_left();
    }

    /// Has the Worker's thread look again, where places were asked for that it did not look at.
    fn tell_accepting_of_left(&self) {
        // Relaxed: see where it is stored.
        if self.asked_count.load(Ordering::Relaxed) > 0 {
            self.tell_accepting();
        }
    }

    /// The Worker's side: grants the place that was asked for first, if any was.
    fn serve(&self, worker: &mut Worker<P>, grant: impl Grant<P>) {
        let Some(mut asked) = tried(self.asked.try_lock()) else {
            return;
        };
        let Some(place) = asked.front().and_then(|index| self.table.get(*index as usize)) else {
            return;
        };
        let Some(mut entry) = tried(place.try_lock()) else {
            return;
        };
        asked.pop_front();
        self.count_asked(&asked);
        drop(asked);
        let Entry::Asked(wanted) = &*entry else {
            return;
        };
        *entry = match grant(worker, wanted) {
            Ok(granted) => Entry::Granted(Box::new(granted)),
            Err(error) => Entry::Denied(error),
        };
        drop(entry);
        self.tell_handshakes();
    }

    /// The Worker's side: does what there is to do for it, once each, and gives a connection if there is one. Whether a
    /// place is to be had, `grant` says.
    ///
    /// # Errors
    /// It is another Worker, or no more connections come.
    #[inline]
    pub(crate) fn look(
        &self,
        worker: &mut Worker<P>,
        grant: impl Grant<P>,
    ) -> Result<Option<ChannelId>, ConnectError> {
        if let Some(signals) = &self.signals {
            // Before the look, so that what is told of meanwhile is told again.
            signals.accepting.take();
        }
        // Relaxed: see where it is stored.
        if self.asked_count.load(Ordering::Relaxed) > 0 {
            if !self.ground.is_of(worker) {
                return Err(ConnectError::OtherWorkers);
            }
            self.serve(worker, grant);
            self.tell_accepting_of_left();
        }
        match AcceptQueue::take(&*self.queue) {
            Ok(taken) => {
                if !self.ground.is_of(worker) {
                    // It is lost, and its peer told by the end of its queue pair.
                    self.exchange(taken.index(), Entry::Empty);
                    return Err(ConnectError::OtherWorkers);
                }
                match self.exchange(taken.index(), Entry::Empty) {
                    Some(Entry::Connected(done)) => admit_to(done.ready, worker, done.established).map(Some),
                    _ => Ok(None),
                }
            }
            Err(TakeError::Closed) => Err(ConnectError::ListenerClosed),
            Err(_) => Ok(None),
        }
    }

    /// The Worker's side, which is going: takes the connections that nobody accepts any more, to be dropped where it
    /// takes nobody's time.
    pub(crate) fn abandon(&self) -> Vec<impl Send + 'static + use<P>> {
        *self.abandoned() = true;
        self.queue.close();
        let mut left = Vec::new();
        while let Ok(taken) = AcceptQueue::take(&*self.queue) {
            left.extend(self.exchange(taken.index(), Entry::Empty));
        }
        left
    }

    /// The Worker's side: whether a place is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: see where it is stored.
        self.asked_count.load(Ordering::Relaxed) > 0
    }

    /// What becomes readable when there is something to do for the Worker's thread.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signals.as_ref()?.accepting.descriptor())
    }

    /// What to wait at for that.
    pub(crate) fn signal(&self) -> Option<&Signal> {
        Some(&self.signals.as_ref()?.accepting)
    }
}

/// What was locked at once; a lock is never left with a thing half done.
fn tried<T>(outcome: Result<T, TryLockError<T>>) -> Option<T> {
    match outcome {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A place among those that wait to be accepted, for one handshake. Dropped, all that was asked for or granted is
/// given up.
pub(crate) struct Seat<P: Provider> {
    desk: Arc<Desk<P>>,
    /// There until it is published.
    place: Option<Reservation<Arc<Queue>>>,
}

impl<P: Provider> Seat<P> {
    pub(crate) const fn desk(&self) -> &Arc<Desk<P>> {
        &self.desk
    }

    /// What the Worker says, once.
    pub(crate) fn answer(&self) -> Option<Result<Box<Granted<P>>, ConnectError>> {
        let mut entry = self.desk.entry(self.place.as_ref()?.index())?;
        if let Entry::Asked(_) = &*entry {
            return None;
        }
        match core::mem::replace(&mut *entry, Entry::Empty) {
            Entry::Granted(granted) => Some(Ok(granted)),
            Entry::Denied(error) => Some(Err(error)),
            _ => None,
        }
    }

    /// Hands the connection over.
    pub(crate) fn publish(mut self, ready: Ready<P>, established: Established) {
        if let Some(place) = self.place.take() {
            let done = Box::new(Done { ready, established });
            self.desk.exchange(place.index(), Entry::Connected(done));
            place.publish();
            let is_abandoned = *self.desk.abandoned();
            if is_abandoned {
                drop(self.desk.abandon());
            }
            self.desk.tell_accepting();
        }
    }
}

impl<P: Provider> Drop for Seat<P> {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            self.desk.withdraw(place.index());
        }
    }
}

impl<P: Provider> fmt::Debug for Desk<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("device", &self.device)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
