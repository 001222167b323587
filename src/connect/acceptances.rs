//! Connections whose handshakes were done elsewhere, as one Worker's thread accepts them.

use core::fmt;
use core::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_core::provider::Provider;
use doorbell_core::wire::Handle;
use doorbell_core::{Clock as _, Deadline};
use doorbell_ffi::Rdma;

use crate::connect::answer::PeerRequest;
use crate::connect::attempt::Reserved;
use crate::connect::handshakes::accept_queue::poll_until;
use crate::connect::handshakes::admission::Admission;
use crate::connect::handshakes::{Counts, HandshakeCounts};
use crate::error::ConnectError;
use crate::machine::reaper::Reaper;
use crate::worker::Worker;
use crate::worker::channel::ChannelId;

/// Accepts connections of one Worker whose handshakes run on another thread
/// ([`Listener::background`](crate::Listener::background)).
///
/// Poll it from the Worker's thread, as often as the Worker: handshakes ask it for places, too. If there is nothing to
/// do, that is a look at three words. A place takes microseconds: the room in the completion queues, and memory for
/// the receives. No device is called.
///
/// Dropped, it accepts no more: peers whose handshakes were accepted meanwhile see their connection fail.
pub struct Acceptances<P: Provider = Rdma> {
    admission: Arc<Admission<P>>,
    counts: Arc<Counts>,
    reaper: Reaper,
    /// The handle that leads peers to the listener, and where it listens.
    way: (Handle, SocketAddr),
}

impl<P: Provider> Acceptances<P> {
    pub(crate) const fn new(
        admission: Arc<Admission<P>>,
        counts: Arc<Counts>,
        reaper: Reaper,
        way: (Handle, SocketAddr),
    ) -> Self {
        Self {
            admission,
            counts,
            reaper,
            way,
        }
    }

    /// The handle that led peers to the listener when it was bound, and where it listens.
    pub(crate) const fn way(&self) -> (Handle, SocketAddr) {
        self.way
    }

    /// Grants the place that was asked for first, and accepts the connection that was first done, if there are
    /// any. Never waits.
    ///
    /// # Errors
    /// It is not the Worker it came with ([`ConnectError::OtherWorkers`]), or the handshakes are over and none of
    /// their connections is left ([`ConnectError::ListenerClosed`]).
    #[inline]
    pub fn poll_accept(&mut self, worker: &mut Worker<P>) -> Result<Option<ChannelId>, ConnectError> {
        self.poll_accept_where(worker, PeerRequest::reserve)
    }

    /// Polls as [`Acceptances::poll_accept`] does; `grant` decides whether a place is to be had.
    #[inline]
    pub(crate) fn poll_accept_where(
        &mut self,
        worker: &mut Worker<P>,
        grant: impl FnOnce(&PeerRequest, &mut Worker<P>) -> Result<Reserved<P>, ConnectError>,
    ) -> Result<Option<ChannelId>, ConnectError> {
        self.admission.poll(worker, grant)
    }

    /// Whether a place is asked for, which the next poll grants.
    pub(crate) fn is_asked(&self) -> bool {
        self.admission.is_asked()
    }

    /// Waits for one connection. The Worker is not polled meanwhile.
    ///
    /// # Errors
    /// As for [`Acceptances::poll_accept`]; or there was none by the deadline ([`ConnectError::TimedOut`], with why
    /// the last handshake failed, if any did); or its handshakes have no thread of their own, and are polled.
    pub fn accept(&mut self, worker: &mut Worker<P>, deadline: Deadline) -> Result<ChannelId, ConnectError> {
        let admission = &self.admission;
        let rest = |worker: &mut Worker<P>| {
            let now = worker.context().now();
            if deadline.has_passed(now) {
                return Ok(false);
            }
            let signal = admission.signal().ok_or(ConnectError::Misuse(
                "accept waits for a thread that runs the handshakes, and these are polled: call poll_accept",
            ))?;
            signal.wait(deadline.remaining(now)).map_err(ConnectError::Tcp)?;
            Ok(true)
        };
        let poll = |worker: &mut _| admission.poll(worker, PeerRequest::reserve);
        let accepted = poll_until(worker, poll, rest)?;
        accepted.ok_or_else(|| ConnectError::TimedOut {
            last_failure: self.counts.take_failure().map(Box::new),
        })
    }

    /// The descriptor that an event loop watches for input, to poll then until there is no more. `None` where the handshakes have no
    /// thread of their own.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.admission.descriptor()
    }

    /// Returns the reason of the last failed handshake, or of the port's last failure, once.
    pub(crate) fn take_failure(&self) -> Option<ConnectError> {
        self.counts.take_failure()
    }

    /// The counts of the handshakes so far, for all Workers together.
    #[must_use]
    pub fn counts(&self) -> HandshakeCounts {
        self.counts.snapshot()
    }
}

impl<P: Provider> Drop for Acceptances<P> {
    fn drop(&mut self) {
        self.reaper.take(self.admission.abandon());
    }
}

impl<P: Provider> fmt::Debug for Acceptances<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptances")
            .field("admission", &self.admission)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
