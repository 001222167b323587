//! Admission of peers to one Worker: handshakes ask for places, the Worker grants them, and connections are handed over.
//!
//! A Worker's queues and memory belong to its own thread, and slow calls of a device do not belong on that thread. So the
//! handshakes ask here for a place, and the Worker grants one, which takes microseconds and calls no device. The connection
//! that is made of it elsewhere comes back the same way. A place among those that wait to be accepted is reserved before
//! anything is asked for, and so before the peer is accepted. `accept_queue` moves places from one side to the other.
//!
//! The side of the handshakes locks, for moments. The Worker's side looks at two words if there is nothing to do, and otherwise
//! tries locks: a lock that is taken is tried again at the next look. It waits out one of those moments only to take a connection,
//! to learn of the end, and to go.

use core::fmt;
use core::net::IpAddr;
use core::task::Waker;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_core::provider::Provider;
use doorbell_core::wire::InstanceId;
use doorbell_hotpath::Statistics;

use super::accept_queue::{self, AcceptQueue, PollError, ReserveError, Wakes};
use super::limits::HandshakeLimits;
use crate::connect::answer::PeerRequest;
use crate::connect::attempt::{Finished, Reserved};
use crate::error::ConnectError;
use crate::machine::signal::Signal;
use crate::machine::unfinished::Unfinished;
use crate::worker::Worker;
use crate::worker::channel::ChannelId;

/// Answer of a Worker to a request; the queue carries requests, answers and finished attempts.
type Answered<P> = Result<Box<Reserved<P>>, ConnectError>;
type QueueOf<P> = AcceptQueue<Box<PeerRequest>, Answered<P>, Box<Finished<P>>, Option<Signals>>;
type PlaceOf<P> = accept_queue::AcceptPlace<Box<PeerRequest>, Answered<P>, Box<Finished<P>>, Option<Signals>>;

/// State that the handshakes and a Worker share.
pub(crate) struct Admission<P: Provider> {
    /// The Worker's own, by which it is known.
    statistics: Arc<Statistics>,
    device: String,
    /// The Node its Worker is of.
    node: InstanceId,
    queue: Arc<QueueOf<P>>,
    /// Addresses of peers that have a place and are not connected yet.
    unfinished_from: Mutex<Vec<IpAddr>>,
}

/// Signals that wake either side.
pub(crate) struct Signals {
    /// The handshakes.
    pub(crate) handshakes: Waker,
    /// The Worker's thread, where it may sleep.
    pub(crate) accepting: Option<Signal>,
}

impl Wakes for Option<Signals> {
    fn wake_handshakes(&self) {
        if let Some(signals) = self {
            signals.handshakes.wake_by_ref();
        }
    }

    fn wake_accepting(&self) {
        if let Some(accepting) = self.as_ref().and_then(|signals| signals.accepting.as_ref()) {
            accepting.raise();
        }
    }

    #[inline]
    fn take_accepting(&self) {
        if let Some(accepting) = self.as_ref().and_then(|signals| signals.accepting.as_ref()) {
            accepting.take();
        }
    }
}

impl<P: Provider> Admission<P> {
    pub(crate) fn new(worker: &Worker<P>, limits: &HandshakeLimits, signals: Option<Signals>) -> Self {
        Self {
            statistics: Arc::clone(&worker.statistics),
            device: worker.device().into(),
            node: worker.node,
            queue: Arc::new(AcceptQueue::new(limits.places(), signals)),
            unfinished_from: Mutex::default(),
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

    /// Whether it is this Worker's.
    pub(crate) fn is_of(&self, worker: &Worker<P>) -> bool {
        Arc::ptr_eq(&self.statistics, &worker.statistics)
    }

    /// No more places are given: no reserved one is announced to a peer from here on.
    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Asks for a channel on the Worker.
    ///
    /// # Errors
    /// Too many connections are on their way to it or wait to be accepted, in all or from one address; or nobody accepts any
    /// more.
    pub(crate) fn ask(self: &Arc<Self>, request: &PeerRequest) -> Result<ReservedPlace<P>, ConnectError> {
        let from = request.from;
        let mut unfinished_from = self.unfinished_from();
        let left = self.queue.owners().free().and_then(|free| free.checked_sub(1));
        let unfinished = Unfinished::of(from, unfinished_from.iter().copied());
        left.map_or(Ok(()), |left| unfinished.check(from, left))?;
        let place = AcceptQueue::ask(&self.queue, Box::new(*request)).map_err(|error| match error {
            ReserveError::Full => ConnectError::TooManyUnaccepted {
                unaccepted: self.queue.capacity(),
            },
            ReserveError::Closed => ConnectError::ListenerClosed,
        })?;
        unfinished_from.push(from);
        let admission = Arc::clone(self);
        Ok(ReservedPlace {
            place,
            _unfinished: UnfinishedPeer { admission, from },
        })
    }

    fn unfinished_from(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.unfinished_from
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The Worker's side: does what there is to do for it, once each, and gives a connection if there is one. Whether a
    /// place is to be had, `grant` says.
    ///
    /// # Errors
    /// It is another Worker, or no more connections come.
    #[inline]
    pub(crate) fn poll(
        &self,
        worker: &mut Worker<P>,
        grant: impl FnOnce(&PeerRequest, &mut Worker<P>) -> Result<Reserved<P>, ConnectError>,
    ) -> Result<Option<ChannelId>, ConnectError> {
        let polled = self.queue.poll(
            worker,
            |worker| self.is_of(worker),
            |worker, request| grant(request, worker).map(Box::new),
        );
        match polled {
            Ok(Some(finished)) => finished.admit(worker).map(Some),
            Ok(None) => Ok(None),
            Err(PollError::OtherWorkers) => Err(ConnectError::OtherWorkers),
            Err(PollError::Closed) => Err(ConnectError::ListenerClosed),
        }
    }

    /// The Worker's side, which is going: takes the connections that nobody accepts any more, to be dropped where it
    /// takes nobody's time.
    pub(crate) fn abandon(&self) -> Vec<impl Send + 'static + use<P>> {
        self.queue.abandon()
    }

    /// The Worker's side: whether a place is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.queue.is_asked()
    }

    /// Descriptor that becomes readable when there is something to do for the Worker's thread.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal()?.descriptor())
    }

    /// Signal of that descriptor.
    pub(crate) fn signal(&self) -> Option<&Signal> {
        self.queue.signals.as_ref()?.accepting.as_ref()
    }
}

/// A place among those that wait to be accepted, for one handshake. Dropped, all that was asked for or granted is
/// given up.
pub(crate) struct ReservedPlace<P: Provider> {
    // Given up before the admission may be gone.
    place: PlaceOf<P>,
    _unfinished: UnfinishedPeer<P>,
}

/// Record that a peer from this address has a place, until it is connected or given up.
struct UnfinishedPeer<P: Provider> {
    admission: Arc<Admission<P>>,
    from: IpAddr,
}

impl<P: Provider> Drop for UnfinishedPeer<P> {
    fn drop(&mut self) {
        let mut unfinished = self.admission.unfinished_from();
        if let Some(at) = unfinished.iter().position(|from| *from == self.from) {
            unfinished.swap_remove(at);
        }
    }
}

impl<P: Provider> ReservedPlace<P> {
    /// Answer of the Worker, once.
    pub(crate) fn answer(&self) -> Option<Answered<P>> {
        self.place.answer()
    }

    /// Hands the connection over.
    pub(crate) fn publish(self, finished: Finished<P>) {
        self.place.publish(Box::new(finished));
    }
}

impl<P: Provider> fmt::Debug for Admission<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.queue.owners().free();
        f.debug_struct("Admission")
            .field("device", &self.device)
            .field("free", &free)
            .finish_non_exhaustive()
    }
}
