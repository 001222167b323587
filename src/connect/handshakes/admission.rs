//! Admission of peers to one Worker: handshakes request places, the Worker grants them, and finished connections are handed over.
//!
//! Only the Worker's thread may use the Worker's queues and memory, and that thread must not make slow calls of a device. So a handshake
//! requests a place here, and the Worker's thread grants it, which takes microseconds. Another thread makes the queue pair, and the
//! connection returns through the same queue. The request first reserves a place in the queue. So there is always room for the
//! connection of a peer that was sent an Accept. `accept_queue` implements the queue.
//!
//! The handshakes take the locks of the queue, for short times. The Worker's side reads two words if there is nothing to do. To answer a
//! request it only tries the locks, and tries again at the next poll if a lock is held. It blocks on a lock only to take a connection, to
//! see that the listener has ended, and at its drop.

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

/// The answer of a Worker to a request. The queue carries requests, answers and finished attempts.
type Answered<P> = Result<Box<Reserved<P>>, ConnectError>;
type QueueOf<P> = AcceptQueue<Box<PeerRequest>, Answered<P>, Box<Finished<P>>, Option<Signals>>;
type PlaceOf<P> = accept_queue::AcceptPlace<Box<PeerRequest>, Answered<P>, Box<Finished<P>>, Option<Signals>>;

/// State that the handshakes and a Worker share.
pub(crate) struct Admission<P: Provider> {
    /// The statistics of the Worker. Their address identifies the Worker.
    statistics: Arc<Statistics>,
    device: String,
    /// The Node of the Worker.
    node: InstanceId,
    queue: Arc<QueueOf<P>>,
    /// Addresses of peers that have a place and are not connected yet, one entry for each place.
    unfinished_from: Mutex<Vec<IpAddr>>,
}

/// Signals that wake either side.
pub(crate) struct Signals {
    /// Wakes the thread that polls the handshakes.
    pub(crate) handshakes: Waker,
    /// Wakes the Worker's thread. `None` if that thread does not sleep.
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

    /// Returns the device of the Worker.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Returns the Node of the Worker: its trust domain.
    pub(crate) const fn node(&self) -> InstanceId {
        self.node
    }

    /// Whether this admission belongs to `worker`.
    pub(crate) fn is_of(&self, worker: &Worker<P>) -> bool {
        Arc::ptr_eq(&self.statistics, &worker.statistics)
    }

    /// Closes the queue: from now on no place can be reserved.
    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Requests a channel on the Worker.
    ///
    /// # Errors
    /// Too many connections are in progress or wait to be accepted, in all or from one address; or the queue is closed.
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

    /// The Worker's side: answers one request, and takes one connection, if there are any. `grant` grants or refuses the place.
    ///
    /// # Errors
    /// `worker` is another Worker, or no more connections come.
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

    /// The Worker's side, on the thread of the handshakes: answers all requests. `grant` grants or refuses each place. Returns whether
    /// there were any.
    pub(crate) fn grant_all(
        &self,
        worker: &mut Worker<P>,
        grant: impl Fn(&PeerRequest, &mut Worker<P>) -> Result<Reserved<P>, ConnectError>,
    ) -> bool {
        self.queue
            .answer_all(|request| grant(request, worker).map(Box::new))
    }

    /// The Worker's side ends: returns the connections that will not be accepted. The caller drops them on a thread that may call the
    /// device. Handshakes that wait for a place are woken.
    pub(crate) fn abandon(&self) -> Vec<impl Send + 'static + use<P>> {
        let unaccepted = self.queue.abandon();
        self.queue.signals.wake_handshakes();
        unaccepted
    }

    /// Whether an answer of the Worker wakes the thread that polls the handshakes.
    pub(crate) fn wakes_handshakes(&self) -> bool {
        self.queue.signals.is_some()
    }

    /// The Worker's side: whether a place is requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.queue.is_asked()
    }

    /// Returns the descriptor that is readable when the Worker's thread has something to do.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal()?.descriptor())
    }

    /// Returns the signal of that descriptor.
    pub(crate) fn signal(&self) -> Option<&Signal> {
        self.queue.signals.as_ref()?.accepting.as_ref()
    }
}

/// A place in the accept queue, reserved for one handshake. Dropping it withdraws the request or the grant.
pub(crate) struct ReservedPlace<P: Provider> {
    // Dropped before the reference to the admission in the next field.
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
    /// Returns the answer of the Worker, once.
    pub(crate) fn answer(&self) -> Option<Answered<P>> {
        self.place.answer()
    }

    /// Whether the Worker's side has ended.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.place.is_abandoned()
    }

    /// Hands the finished connection to the Worker. Returns the connections that will not be accepted, since the Worker's side has ended.
    /// The caller drops them on a thread that may call the device.
    pub(crate) fn publish(self, finished: Finished<P>) -> Vec<impl Send + 'static + use<P>> {
        self.place.publish(Box::new(finished))
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
