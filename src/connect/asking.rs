//! Asking a listener that is known by its address alone for its handle: who it is, and by which rails it is reached now.

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
/// It is the beginning of a handshake, which ends once the listener has said by which rails it is reached: with the proof of
/// its key, where there are keys. The asking side has no rail yet, and the listener makes nothing for it.
#[must_use = "it advances by being polled"]
pub struct Asking<N: Network = Tcp> {
    machine: Initiator<Trust>,
    stream: N::Stream,
    to: SocketAddr,
    port: NonZeroU16,
}

impl<P: Provider, N: Network> Node<P, N> {
    /// Begins to ask the listener at a TCP address for its handle, as it is now. Linking to it by the handle goes over all
    /// rails that reach it, whichever network the address is of.
    ///
    /// # Errors
    /// The address is not one that is trusted, or the network refuses at once.
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
    /// Goes on as far as it can without waiting; the outcome once there is one, and nothing behind it.
    ///
    /// # Errors
    /// Nobody answered, or what answered is no listener that is trusted.
    pub fn poll<P: Provider>(&mut self, node: &Node<P, N>) -> Option<Result<Handle, ConnectError>> {
        let now = node.network().now();
        match self.machine.poll(now, &mut self.stream) {
            Step::ChooseRail => {
                let handle = self.handle();
                // The peer has answered; if no Reject can be sent any more, it sees the stream end.
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

    /// All rails of who answered, those too that the handle has no room for.
    pub(crate) fn rails(&self) -> &[AdvertisedRail] {
        self.machine.peer_rails()
    }

    /// When to poll again at the latest, whatever comes.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.machine.deadline()
    }

    /// Waits until polling may get further, or the deadline.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait<P: Provider>(&self, node: &Node<P, N>) -> Result<(), ConnectError> {
        let stream = core::iter::once(self.waited());
        Ok(node.network().wait(None, stream, self.deadline())?)
    }

    /// The stream.
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
