//! Accepting on a Worker's thread, while the handshakes run on another thread.

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
/// Poll it on the Worker's thread, as often as the Worker itself: handshakes also request places there. If there is nothing to do,
/// a poll reads three words. Granting a place takes microseconds: it reserves entries of the completion queues and memory for the
/// receives. It makes no slow call of a device.
///
/// After a drop nothing more is accepted. Peers whose connections were not accepted see them fail.
pub struct Acceptances<P: Provider = Rdma> {
    admission: Arc<Admission<P>>,
    counts: Arc<Counts>,
    reaper: Reaper,
    /// The handle and the TCP address of the listener.
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

    /// Returns the handle of the listener, as it was bound, and its TCP address.
    pub(crate) const fn way(&self) -> (Handle, SocketAddr) {
        self.way
    }

    /// Grants the oldest requested place, and accepts the oldest finished connection, if there are any. Never waits.
    ///
    /// # Errors
    /// `worker` is not the Worker that this was made for ([`ConnectError::OtherWorkers`]), or the listener has ended and all its
    /// connections were accepted ([`ConnectError::ListenerClosed`]).
    #[inline]
    pub fn poll_accept(&mut self, worker: &mut Worker<P>) -> Result<Option<ChannelId>, ConnectError> {
        self.poll_accept_where(worker, PeerRequest::reserve)
    }

    /// Polls as [`Acceptances::poll_accept`] does; `grant` grants or refuses the place.
    #[inline]
    pub(crate) fn poll_accept_where(
        &mut self,
        worker: &mut Worker<P>,
        grant: impl FnOnce(&PeerRequest, &mut Worker<P>) -> Result<Reserved<P>, ConnectError>,
    ) -> Result<Option<ChannelId>, ConnectError> {
        self.admission.poll(worker, grant)
    }

    /// Whether a handshake requests a place. The next poll answers it.
    pub(crate) fn is_asked(&self) -> bool {
        self.admission.is_asked()
    }

    /// Waits for one connection. The Worker is not polled meanwhile.
    ///
    /// # Errors
    /// As for [`Acceptances::poll_accept`]. [`ConnectError::TimedOut`] if there was no connection by the deadline, with the last failure,
    /// if there was one. [`ConnectError::Misuse`] if the handshakes are polled and so have no thread.
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

    /// Returns the descriptor that an event loop watches for input. When it is readable, call [`Acceptances::poll_accept`] until that
    /// returns `None`. There is no descriptor if the handshakes have no separate thread.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.admission.descriptor()
    }

    /// Returns the reason of the last failed handshake, or of the port's last failure, once.
    pub(crate) fn take_failure(&self) -> Option<ConnectError> {
        self.counts.take_failure()
    }

    /// Returns the counts of handshakes by outcome, for all Workers together.
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
