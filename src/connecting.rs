//! A connection that is being made, by polling; and the loop over it that blocks.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};

use doorbell_core::handshake::Timing;
use doorbell_core::network::{Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{AdvertisedRail, Handle, InstanceId};
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use crate::dial::Dial;
use crate::error::ConnectError;
use crate::node::{Connection, Draw};
use crate::rails::Rails;
use crate::tell::tell;
use crate::{ChannelConfig, Node, Tcp, Worker};

/// A connection on its way to a listener. It advances while it is polled, and never waits for the peer; what its own
/// device takes to make and connect a queue pair, it takes on this thread.
///
/// The Workers may be polled meanwhile. The peer knows first that the connection stands, and may send at once: what
/// comes before [`Connecting::poll`] said so is told by the first poll of its Worker afterwards.
///
/// Dropped before it is there, it undoes what it made; the peer sees the stream end.
#[must_use = "it advances by being polled"]
pub struct Connecting<P: Provider = Rdma, N: Network = Tcp> {
    dial: Dial<P>,
    stream: N::Stream,
    to: SocketAddr,
    deadline: Deadline,
}

impl<P: Provider, N: Network> Node<P, N> {
    /// Begins to connect to the listener that handed out `handle`, over the rail of the Workers' devices
    /// that reaches it best. [`Connecting::poll`] goes on with it.
    ///
    /// # Errors
    /// No rail reaches it, or a device or the network refuses at once.
    pub fn begin_connect(
        &self,
        workers: &[Worker<P>],
        handle: &Handle,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connecting<P, N>, ConnectError> {
        let rails = Rails::scan(self, workers)?;
        let to = dial_address(&rails, handle)?;
        self.begin(rails, to, Some(handle.instance()), config, deadline)
    }

    /// Begins to connect to whatever listener is at a TCP address.
    ///
    /// # Errors
    /// As for [`Node::begin_connect`].
    pub fn begin_connect_at(
        &self,
        workers: &[Worker<P>],
        address: SocketAddr,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connecting<P, N>, ConnectError> {
        let rails = Rails::scan(self, workers)?;
        self.begin(rails, address, None, config, deadline)
    }

    /// Begins to connect over one rail of ours, alone in `rails`, to one of the peer's.
    pub(crate) fn begin_connect_over(
        &self,
        rails: Rails,
        to: AdvertisedRail,
        handle: &Handle,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connecting<P, N>, ConnectError> {
        let address = SocketAddr::new(to.address().address(), handle.port().get());
        let mut connecting = self.begin(rails, address, Some(handle.instance()), config, deadline)?;
        connecting.dial.keep_to(to);
        Ok(connecting)
    }

    fn begin(
        &self,
        rails: Rails,
        to: SocketAddr,
        listener: Option<InstanceId>,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connecting<P, N>, ConnectError> {
        let now: Instant = self.network.now();
        let draw = Draw::new(&self.network)?;
        let timing = Timing {
            stage: config.handshake_stage,
            whole: deadline.remaining(now),
        };
        self.trust().check_address(to.ip())?;
        tell!(debug, "connecting", to = to);
        let dial = Dial::new(self, listener, rails, config, timing, &draw, now)?;
        let stream = self.network.connect(to)?;
        Ok(Connecting {
            dial,
            stream,
            to,
            deadline,
        })
    }

    /// Connects to the listener that handed out `handle`, over the rail of the Workers'
    /// devices that reaches it best.
    ///
    /// # Errors
    /// No rail reaches it, it does not answer by the deadline, it refuses, or a device does.
    pub fn connect(
        &self,
        workers: &mut [Worker<P>],
        handle: &Handle,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connection, ConnectError> {
        self.begin_connect(workers, handle, config, deadline)?
            .finish(self, workers)
    }

    /// Connects to whatever listener is at a TCP address.
    ///
    /// # Errors
    /// As for [`Node::connect`].
    pub fn connect_at(
        &self,
        workers: &mut [Worker<P>],
        address: SocketAddr,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connection, ConnectError> {
        self.begin_connect_at(workers, address, config, deadline)?
            .finish(self, workers)
    }
}

impl<P: Provider, N: Network> Connecting<P, N> {
    /// Goes on as far as it can without waiting; the outcome once there is one, and nothing behind it.
    /// The Workers are those it began with, in the same order.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        let outcome = self.dial.poll(node.network.now(), &mut self.stream, workers)?;
        let outcome = match outcome {
            // That nobody answers at all is another thing than a peer that says nothing.
            Err(_) if self.stream.is_connecting() => Err(ConnectError::Unanswered(self.to)),
            outcome => outcome,
        };
        match &outcome {
            Ok(connection) => tell!(info, "connected", to = self.to, worker = connection.worker),
            Err(reason) => tell!(warn, "not connected", to = self.to, reason = reason),
        }
        Some(outcome)
    }

    /// When to poll again at the latest, whatever comes.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.dial.deadline().min(self.deadline)
    }

    /// Waits until polling may get further, or the deadline of what goes on now.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, node: &Node<P, N>) -> Result<(), ConnectError> {
        let stream = Waited {
            stream: &self.stream,
            has_unsent: self.dial.has_unsent(),
        };
        let streams = core::iter::once(stream);
        Ok(node.network.wait(None, streams, self.deadline())?)
    }

    /// Whether the stream is waited for to take bytes: it is not up yet, or there is something unsent.
    #[must_use]
    pub fn awaits_room(&self) -> bool {
        self.stream.is_connecting() || self.dial.has_unsent()
    }

    fn finish(mut self, node: &Node<P, N>, workers: &mut [Worker<P>]) -> Result<Connection, ConnectError> {
        loop {
            if let Some(outcome) = self.poll(node, workers) {
                return outcome;
            }
            self.wait(node)?;
        }
    }
}

impl<P: Provider> Connecting<P, Tcp> {
    /// What an event loop watches: for input, and for output where [`Connecting::awaits_room`] says so.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The TCP address to reach a listener at: that of the rail that will be used, where it can
/// be named without an interface.
fn dial_address(rails: &Rails, handle: &Handle) -> Result<SocketAddr, ConnectError> {
    let peer: Vec<_> = handle.rails().iter().collect();
    let routed = match rails.route(&peer) {
        Ok(pair) => peer.get(pair.peer),
        // The complete list comes with the handshake; any address may lead to it.
        Err(_) if handle.has_more() => None,
        Err(no_route) => return Err(no_route.into()),
    };
    let needs_interface = |address: IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    routed
        .into_iter()
        .chain(&peer)
        .map(|rail| rail.address().address())
        .find(|address| !needs_interface(*address))
        .map(|address| SocketAddr::new(address, handle.port().get()))
        .ok_or(ConnectError::NoRails)
}

impl<P: Provider, N: Network> fmt::Debug for Connecting<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("to", &self.to)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
