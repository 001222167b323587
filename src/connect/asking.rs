//! Asking a listener at a TCP address for its handle: its instance, and the rails that reach it now.

use core::fmt;
use core::net::SocketAddr;
use core::num::NonZeroU16;

use doorbell_core::handshake::{Initiator, InitiatorConfig, Step, Timing};
use doorbell_core::network::{Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{AdvertisedRail, Handle, Reject, RejectReason, VersionRange};
use doorbell_core::{Deadline, Instant};

use crate::connect::listener::handle_with;
use crate::connect::node::Entropy;
use crate::connect::node::Node;
use crate::error::ConnectError;
use crate::machine::tcp::Tcp;
use crate::trust::Trust;

/// A query for the handle of a listener, which advances when it is polled, and never blocks.
///
/// The query is the beginning of a handshake. It ends when the listener has sent its rails, and has proven its key, if keys are used.
/// The asking side needs no rail, and the listener makes no queue pair for it.
#[must_use = "it advances by being polled"]
pub struct Asking<N: Network = Tcp> {
    machine: Initiator<Trust>,
    stream: N::Stream,
    to: SocketAddr,
    port: NonZeroU16,
}

impl<P: Provider, N: Network> Node<P, N> {
    /// Begins to ask the listener at a TCP address for its current handle. A link made with the handle uses all rails that reach the
    /// listener, independent of the network of the address.
    ///
    /// # Errors
    /// The address is outside the trusted subnets or has port 0, or the network refuses at once.
    pub fn begin_ask(&self, to: SocketAddr, deadline: Deadline) -> Result<Asking<N>, ConnectError> {
        let trust = self.trust();
        trust.check_address(to.ip())?;
        let port = NonZeroU16::new(to.port()).ok_or(ConnectError::NoPort(to))?;
        let now: Instant = self.network().now();
        let entropy = Entropy::new(self.network())?;
        let whole = deadline.remaining(now);
        let config = InitiatorConfig {
            instance: self.instance(),
            listener: None,
            nonce: entropy.nonce,
            timing: Timing { stage: whole, whole },
            versions: VersionRange::OURS,
        };
        let machine = Initiator::with(config, &trust, &[], now)?;
        let stream = self.network().connect(to)?;
        Ok(Asking {
            machine,
            stream,
            to,
            port,
        })
    }
}

impl<N: Network> Asking<N> {
    /// Advances the query without waiting. Returns `None` until there is an outcome, and then the outcome. Do not poll again after the
    /// outcome.
    ///
    /// # Errors
    /// Nobody answered, or the answer did not come from a trusted listener.
    pub fn poll<P: Provider>(&mut self, node: &Node<P, N>) -> Option<Result<Handle, ConnectError>> {
        let now = node.network().now();
        match self.machine.poll(now, &mut self.stream) {
            Step::ChooseRail => {
                let handle = self.handle();
                // The answer is complete. If the Reject cannot be sent, the peer sees the stream end.
                if self.machine.reject(Reject::new(RejectReason::CLOSING)).is_ok() {
                    self.machine.poll(now, &mut self.stream);
                }
                Some(handle)
            }
            Step::Failed(_) if self.stream.is_connecting() => Some(Err(ConnectError::Unanswered(self.to))),
            Step::Failed(error) => Some(Err(error.into())),
            _ => None,
        }
    }

    fn handle(&self) -> Result<Handle, ConnectError> {
        let instance = self.machine.peer_instance().ok_or(ConnectError::Unreachable(
            "a peer that lists rails has no instance",
        ))?;
        let rails = self.rails().iter().collect();
        Ok(handle_with(self.port, instance, rails)?)
    }

    /// Returns all rails of the listener, including rails that do not fit into the handle.
    pub(crate) fn rails(&self) -> &[AdvertisedRail] {
        self.machine.peer_rails()
    }

    /// Returns the latest time of the next poll.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.machine.deadline()
    }

    /// Waits until a poll may make progress, or until the deadline.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait<P: Provider>(&self, node: &Node<P, N>) -> Result<(), ConnectError> {
        let stream = core::iter::once(self.waited());
        Ok(node.network().wait(None, stream, self.deadline())?)
    }

    /// Returns the stream to wait for.
    pub(crate) fn waited(&self) -> Waited<'_, N::Stream> {
        Waited {
            stream: &self.stream,
            has_unsent: self.machine.has_unsent(),
        }
    }
}

impl<N: Network> fmt::Debug for Asking<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking")
            .field("to", &self.to)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
