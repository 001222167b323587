//! Handshakes of every way to accept: on a thread that polls them, on threads of their own, or on the Worker's.
//!
//! The [`backlog`] decides, by polling and without a thread, a socket or a clock of its own; the threads are in `background`. Work
//! that only a Worker's thread may do is requested at a [`admission`].

pub(crate) mod accept_queue;
pub(crate) mod admission;
pub(crate) mod backlog;
mod counts;
mod limits;
mod rejection_log;
mod rejections;
mod under_way;

/// Locks of `places`, which the models replace.
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

/// The time a handshake may take, from that of one stage.
pub(crate) fn timing(config: &ChannelConfig) -> Timing {
    let whole = Timing::default().whole;
    Timing {
        stage: config.handshake_stage,
        whole: whole.max(config.handshake_stage.saturating_mul(2)),
    }
}

/// Every handshake at one port, and the port.
///
/// They advance while [`Handshakes::poll`] runs, on whatever thread, and are accepted by the [`Acceptances`] that came
/// with them, each on its Worker's thread. On a [`Node::open`] no device is waited for: that node's threads look at the ports, and
/// make the queue pairs. [`Listener::background`](crate::Listener::background) is the same with a
/// thread that polls.
///
/// Dropped, it gives up the port and all handshakes under way, and rejects the peers that were not accepted yet. Connections
/// that wait to be accepted still can be.
pub struct Handshakes<P: Provider = Rdma, N: Network = Tcp> {
    node: Arc<Node<P, N>>,
    backlog: Backlog<P, N>,
}

/// Parts that a listener hands over.
pub(crate) struct Port<N: Network> {
    pub(crate) acceptor: N::Acceptor,
    pub(crate) handle: Handle,
    pub(crate) instance: InstanceId,
    pub(crate) settings: Settings,
}

impl<P: Provider, N: Network> Handshakes<P, N> {
    /// Handshakes at a port, for these Workers, with an [`Acceptances`] for each. `accepting` makes the signal that wakes a
    /// Worker's thread, if that thread may sleep.
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

    /// Handle for peers: at most 128 bytes, or a line of text.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.backlog.port().handle
    }

    /// The TCP address it listens at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.backlog.port().acceptor.address()
    }

    /// The outcomes of handshakes so far.
    #[must_use]
    pub fn counts(&self) -> HandshakeCounts {
        self.backlog.counts().snapshot()
    }

    /// How many are under way.
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

    /// Takes peers in or turns them away, and moves every handshake as far as it can. Never waits.
    pub fn poll(&mut self) {
        self.backlog.poll(&self.node);
    }

    /// When to poll again at the latest, whatever comes; `None` where nothing is under way.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.backlog.deadline()
    }

    /// Waits until something comes from a peer, a Worker's thread or one of the Node's, or the deadline.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, deadline: Deadline) -> Result<(), ConnectError> {
        self.backlog.wait(&self.node, deadline)
    }

    /// The port and the streams that are waited for.
    pub(crate) fn waited(&self) -> (Option<&N::Acceptor>, impl Iterator<Item = Waited<'_, N::Stream>>) {
        self.backlog.waited()
    }

    /// The signal that ends a wait from another thread.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.backlog.port().acceptor.waker()
    }
}

impl<P: Provider> Handshakes<P, Tcp> {
    /// Descriptor that an event loop watches for input, to poll then; poll at [`Handshakes::deadline`], too.
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
