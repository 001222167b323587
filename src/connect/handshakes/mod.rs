//! The handshakes of a listener. They run on the Worker's thread, on a thread that polls them, or on separate threads.
//!
//! The [`backlog`] makes all decisions. It is polled, and has no thread, socket or clock of its own; the threads are in `background`.
//! Through [`admission`], handshakes request work that only the Worker's thread may do.

pub(crate) mod accept_queue;
mod active;
pub(crate) mod admission;
pub(crate) mod backlog;
mod counts;
mod limits;
mod rejection_log;
mod rejections;
#[cfg(test)]
mod tests;

/// The locks of `accept_queue`. The models replace them by those of loom.
mod locks {
    pub(super) use std::sync::{Arc, Mutex, MutexGuard};
}

use core::fmt;
use core::net::SocketAddr;
use core::task::Waker;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use doorbell_core::Deadline;
use doorbell_core::handshake::Timing;
use doorbell_core::network::{Acceptor as _, Network, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Handle, InstanceId};
use doorbell_ffi::Rdma;

use crate::connect::acceptances::Acceptances;
use crate::connect::node::Node;
use crate::error::ConnectError;
use crate::machine::makers::Makers;
use crate::machine::signal::Signal;
use crate::machine::tcp::Tcp;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;

use admission::{Admission, Signals};
use backlog::Backlog;
pub(crate) use counts::Counts;
pub use counts::HandshakeCounts;
pub use limits::HandshakeLimits;

/// Settings for handshakes that begin from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) config: ChannelConfig,
    pub(crate) timing: Timing,
}

impl Settings {
    pub(crate) fn new(config: &ChannelConfig) -> Self {
        Self {
            config: *config,
            timing: timing(config),
        }
    }
}

/// Returns the time limits of a handshake, derived from the limit of one stage.
pub(crate) fn timing(config: &ChannelConfig) -> Timing {
    let whole = Timing::default().whole;
    Timing {
        stage: config.handshake_stage,
        whole: whole.max(config.handshake_stage.saturating_mul(2)),
    }
}

/// A TCP port, and all handshakes on it.
///
/// The handshakes advance while [`Handshakes::poll`] runs, on any thread. The [`Acceptances`] that were returned with this accept the
/// connections, each on its Worker's thread. With a Node of [`Node::open`] a poll does not wait for a device: the Node's threads scan
/// the ports and make the queue pairs. [`Listener::background`](crate::Listener::background) does the same, and also runs the thread
/// that polls.
///
/// Dropping this closes the port, ends all handshakes in progress, and rejects their peers as far as possible. Connections that wait to
/// be accepted can still be accepted.
pub struct Handshakes<P: Provider = Rdma, N: Network = Tcp> {
    node: Arc<Node<P, N>>,
    backlog: Backlog<P, N>,
}

/// The parts of a listener that it hands over to [`Handshakes`].
pub(crate) struct Port<N: Network> {
    pub(crate) acceptor: N::Acceptor,
    pub(crate) handle: Handle,
    pub(crate) instance: InstanceId,
    pub(crate) settings: Settings,
}

impl<P: Provider, N: Network> Handshakes<P, N> {
    /// Makes the handshakes at a port for these Workers, and one [`Acceptances`] for each Worker. `accepting` makes the signal that
    /// wakes a Worker's thread; it returns `None` if that thread only polls.
    pub(crate) fn new<E>(
        port: Port<N>,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
        limits: &HandshakeLimits,
        makers: Option<Makers>,
        accepting: impl Fn() -> Result<Option<Signal>, E>,
    ) -> Result<(Self, Vec<Acceptances<P>>), E> {
        let mut admissions = Vec::with_capacity(workers.len());
        for worker in workers {
            let accepting = accepting()?;
            let signals = port.acceptor.waker().map(|handshakes| Signals {
                handshakes,
                accepting,
            });
            admissions.push(Arc::new(Admission::new(worker, limits, signals)));
        }
        let way = (port.handle, port.acceptor.address());
        let mut backlog = Backlog::new(port, limits).made_by(makers);
        let acceptances = admissions
            .iter()
            .map(|admission| {
                let counts = Arc::clone(backlog.counts());
                Acceptances::new(Arc::clone(admission), counts, node.reaper().clone(), way)
            })
            .collect();
        backlog.admit_by(admissions);
        let node = Arc::clone(node);
        Ok((Self { node, backlog }, acceptances))
    }

    /// Returns the handle to give to peers: at most 128 bytes, or a line of text.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.backlog.port().handle
    }

    /// Returns the TCP address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.backlog.port().acceptor.address()
    }

    /// Returns the counts of handshakes by outcome.
    #[must_use]
    pub fn counts(&self) -> HandshakeCounts {
        self.backlog.counts().snapshot()
    }

    /// Returns the number of handshakes in progress.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.backlog.under_way()
    }

    /// Returns the reason of the last failed handshake, or of the port's last failure, once.
    #[must_use]
    pub fn take_failure(&self) -> Option<ConnectError> {
        self.backlog.counts().take_failure()
    }

    pub(crate) const fn counting(&self) -> &Arc<Counts> {
        self.backlog.counts()
    }

    pub(crate) const fn shared_settings(&self) -> &Arc<Mutex<Settings>> {
        self.backlog.shared_settings()
    }

    /// Admits or rejects new peers, and advances every handshake as far as possible. Never waits.
    pub fn poll(&mut self) {
        self.backlog.poll(&self.node);
    }

    /// Returns the latest time of the next poll; `None` if nothing is in progress.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.backlog.deadline()
    }

    /// Waits until a peer, a Worker's thread or a thread of the Node has something for the handshakes, or until the deadline.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, deadline: Deadline) -> Result<(), ConnectError> {
        self.backlog.wait(&self.node, deadline)
    }

    /// Returns the port and the streams to wait for.
    pub(crate) fn waited(&self) -> (Option<&N::Acceptor>, impl Iterator<Item = Waited<'_, N::Stream>>) {
        self.backlog.waited()
    }

    /// Returns the waker that ends a wait from another thread.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.backlog.port().acceptor.waker()
    }
}

impl<P: Provider> Handshakes<P, Tcp> {
    /// Returns the descriptor that an event loop watches for input. Poll when it is readable, and at [`Handshakes::deadline`].
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.backlog.port().acceptor.descriptor()
    }
}

impl<P: Provider, N: Network> Drop for Handshakes<P, N> {
    fn drop(&mut self) {
        let now = self.node.network.now();
        self.backlog.end(now);
    }
}

impl<P: Provider, N: Network> fmt::Debug for Handshakes<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("address", &self.address())
            .field("under_way", &self.under_way())
            .field("counts", self.backlog.counts())
            .finish_non_exhaustive()
    }
}
