//! Connecting by polling ([`Connecting`]), and the blocking calls on top of it.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use doorbell_core::Deadline;
use doorbell_core::handshake::Timing;
use doorbell_core::network::{Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{AdvertisedRail, Handle};
use doorbell_ffi::Rdma;

use crate::connect::connector::{Connector, Target};
use crate::connect::node::Node;
use crate::connect::node::{Connection, Entropy};
use crate::connect::port_scan::{PendingScan, SCANNED_WITHIN};
use crate::error::ConnectError;
use crate::machine::log::log;
use crate::machine::signal::Signal;
use crate::machine::tcp::Tcp;
use crate::rails::Rails;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;

/// A connection attempt to a listener, which advances when it is polled. A poll never waits for the peer. With a Node of
/// [`Node::open`] it does not wait for the device either: helper threads scan the ports, and make and connect the queue pair.
///
/// The Workers may be polled meanwhile. The peer may send before [`Connecting::poll`] returns the connection. Such messages are
/// reported by the first poll of the Worker afterwards.
///
/// Dropping an unfinished attempt undoes it, also on the helper threads. The peer sees the stream end.
#[must_use = "it advances by being polled"]
pub struct Connecting<P: Provider = Rdma, N: Network = Tcp> {
    stage: ConnectingState<P, N>,
    config: ChannelConfig,
    time_limit: TimeLimit,
    /// Whether the outcome was returned.
    is_over: bool,
}

/// The time limit of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeLimit {
    /// A deadline for the whole attempt, including the scan of the local ports.
    Until(Deadline),
    /// A time from the end of the scan on. The scan itself has [`SCANNED_WITHIN`].
    OnceScanned(Duration),
}

enum ConnectingState<P: Provider, N: Network> {
    /// A thread scans the local ports, and raises the signal at the end.
    Scanning(PendingScan, Box<Destination>, Arc<Signal>),
    Dialing(Box<Dialing<P, N>>),
}

struct Dialing<P: Provider, N: Network> {
    connector: Connector<P>,
    stream: N::Stream,
    to: SocketAddr,
    deadline: Deadline,
}

/// The destination of an attempt.
pub(crate) enum Destination {
    /// The listener that handed out this handle, over the best rail.
    Listener(Handle),
    /// Any listener at this TCP address.
    Address(SocketAddr),
    /// One rail of the listener, over one local port.
    Rail {
        handle: Handle,
        device: String,
        port: u8,
        peer: AdvertisedRail,
    },
}

impl Destination {
    /// Returns the target of the handshake, and the TCP address to connect to.
    fn target(&self, rails: Rails) -> Result<(Target, SocketAddr), ConnectError> {
        let (rails, to, listener, only) = match self {
            Self::Listener(handle) => {
                let to = dial_address(&rails, handle)?;
                (rails, to, Some(handle.instance()), None)
            }
            Self::Address(to) if to.port() == 0 => return Err(ConnectError::NoPort(*to)),
            Self::Address(to) => (rails, *to, None, None),
            Self::Rail {
                handle,
                device,
                port,
                peer,
            } => {
                let ours = rails.of_port(device, *port, peer)?;
                let to = match peer.address().address() {
                    address if needs_interface(&address) => dial_address(&rails, handle)?,
                    address => SocketAddr::new(address, handle.port().get()),
                };
                (ours, to, Some(handle.instance()), Some(*peer))
            }
        };
        let target = Target {
            rails,
            listener,
            only,
        };
        Ok((target, to))
    }
}

impl<P: Provider, N: Network> Node<P, N> {
    /// Begins to connect to the listener that handed out `handle`, over the rail of the Workers' devices that reaches it best.
    /// [`Connecting::poll`] advances it.
    ///
    /// # Errors
    /// A setting is out of its range, a Worker belongs to another Node, or the system gave no descriptor. [`Connecting::poll`] reports
    /// later errors: no rail reaches the listener, or a device or the network refuses at once. On a Node without threads, this call
    /// reports these, too.
    pub fn begin_connect(
        &self,
        workers: &[Worker<P>],
        handle: &Handle,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connecting<P, N>, ConnectError> {
        self.begin(
            workers,
            Destination::Listener(*handle),
            config,
            TimeLimit::Until(deadline),
        )
    }

    /// Begins to connect to the listener at a TCP address, without a handle.
    ///
    /// # Errors
    /// As for [`Node::begin_connect`]. An address with port 0 is a later error, too.
    pub fn begin_connect_at(
        &self,
        workers: &[Worker<P>],
        address: SocketAddr,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<Connecting<P, N>, ConnectError> {
        self.begin(
            workers,
            Destination::Address(address),
            config,
            TimeLimit::Until(deadline),
        )
    }

    pub(crate) fn begin(
        &self,
        workers: &[Worker<P>],
        destination: Destination,
        config: &ChannelConfig,
        time_limit: TimeLimit,
    ) -> Result<Connecting<P, N>, ConnectError> {
        config.check()?;
        let stage = match self.makers().signal().map_err(ConnectError::Tcp)? {
            None => self.dial(
                destination.target(self.worker_rails(workers)?)?,
                config,
                time_limit,
                None,
            )?,
            Some(signal) => {
                let until = match time_limit {
                    TimeLimit::Until(deadline) => deadline,
                    TimeLimit::OnceScanned(_) => self.within(SCANNED_WITHIN),
                };
                let scan = PendingScan::begin(self, workers, Some(Arc::clone(&signal).into()), until)?;
                ConnectingState::Scanning(scan, Box::new(destination), signal)
            }
        };
        Ok(Connecting {
            stage,
            config: *config,
            time_limit,
            is_over: false,
        })
    }

    fn dial(
        &self,
        (target, to): (Target, SocketAddr),
        config: &ChannelConfig,
        time_limit: TimeLimit,
        signal: Option<Arc<Signal>>,
    ) -> Result<ConnectingState<P, N>, ConnectError> {
        let now = self.network.now();
        let deadline = match time_limit {
            TimeLimit::Until(deadline) => deadline,
            TimeLimit::OnceScanned(span) => Deadline::after(now, span),
        };
        let entropy = Entropy::new(&self.network)?;
        let timing = Timing {
            stage: config.handshake_stage,
            whole: deadline.remaining(now),
        };
        self.trust().check_address(to.ip())?;
        log!(debug, "connecting", to = to);
        let connector = Connector::new(self, target, config, timing, &entropy, now, signal)?;
        let stream = self.network.connect(to)?;
        Ok(ConnectingState::Dialing(Box::new(Dialing {
            connector,
            stream,
            to,
            deadline,
        })))
    }

    /// Connects to the listener that handed out `handle`, over the rail of the Workers'
    /// devices that reaches it best.
    ///
    /// # Errors
    /// No rail reaches the listener, it does not answer by the deadline, it rejects the connection, or a call of a device fails.
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

    /// Connects to the listener at a TCP address, without a handle.
    ///
    /// # Errors
    /// As for [`Node::connect`]; or the address has port 0.
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
    /// Advances the attempt without waiting. Returns `None` until there is an outcome, and then the outcome. A poll after the outcome does
    /// nothing, and returns [`ConnectError::Misuse`]. Pass the Workers that the attempt began with, in the same order.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        if self.is_over {
            return Some(Err(ConnectError::Misuse(
                "Connecting::poll was called after the outcome: begin another connection",
            )));
        }
        let outcome = self.advance(node, workers)?;
        self.is_over = true;
        match (&outcome, &self.stage) {
            (Ok(connection), ConnectingState::Dialing(dialing)) => {
                log!(info, "connected", to = dialing.to, worker = connection.worker);
            }
            (Err(reason), ConnectingState::Dialing(dialing)) => {
                log!(warn, "not connected", to = dialing.to, reason = reason);
            }
            (Err(reason), ConnectingState::Scanning(..)) => log!(warn, "not connected", reason = reason),
            (Ok(_), ConnectingState::Scanning(..)) => {}
        }
        Some(outcome)
    }

    fn advance(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        if let Err(error) = self.dial_once_scanned(node, workers) {
            return Some(Err(error));
        }
        let ConnectingState::Dialing(dialing) = &mut self.stage else {
            return None;
        };
        let Dialing {
            connector,
            stream,
            to,
            ..
        } = &mut **dialing;
        match connector.poll(node.network.now(), stream, workers, node.makers())? {
            // No answer to the TCP connection is a different error than a connected peer that says nothing.
            Err(_) if stream.is_connecting() => Some(Err(ConnectError::Unanswered(*to))),
            outcome => Some(outcome),
        }
    }

    /// Begins to dial if the scan of the local ports has ended.
    fn dial_once_scanned(&mut self, node: &Node<P, N>, workers: &[Worker<P>]) -> Result<(), ConnectError> {
        let ConnectingState::Scanning(scan, destination, signal) = &self.stage else {
            return Ok(());
        };
        // The signal is cleared before the check, so that a scan that ends in between raises it again.
        signal.take();
        if let Some(rails) = scan.take(node, workers) {
            let signal = Some(Arc::clone(signal));
            self.stage = node.dial(destination.target(rails?)?, &self.config, self.time_limit, signal)?;
        }
        Ok(())
    }

    /// Returns the latest time of the next poll.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        match &self.stage {
            ConnectingState::Scanning(scan, ..) => scan.deadline(),
            ConnectingState::Dialing(dialing) => dialing.connector.deadline().min(dialing.deadline),
        }
    }

    /// Waits until a poll may make progress, or until [`Connecting::deadline`].
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, node: &Node<P, N>) -> Result<(), ConnectError> {
        if let Some(signal) = self.making() {
            let span = self.deadline().remaining(node.network.now());
            return signal.wait(span).map_err(ConnectError::Tcp);
        }
        let stream = self.waited().into_iter();
        Ok(node.network.wait(None, stream, self.deadline())?)
    }

    /// Whether to watch [`Connecting::descriptor`] for output, too: the stream is not connected yet, or has unsent bytes.
    #[must_use]
    pub fn awaits_room(&self) -> bool {
        let stream = self.waited().filter(|_| self.making().is_none());
        stream.is_some_and(|waited| waited.stream.is_connecting() || waited.has_unsent)
    }

    /// Returns the stream to wait for, if there is one already.
    pub(crate) fn waited(&self) -> Option<Waited<'_, N::Stream>> {
        match &self.stage {
            ConnectingState::Scanning(..) => None,
            ConnectingState::Dialing(dialing) => Some(Waited {
                stream: &dialing.stream,
                has_unsent: dialing.connector.has_unsent(),
            }),
        }
    }

    /// Returns the signal that a thread of the Node raises when its work is done. `None` if the attempt waits for the peer instead.
    pub(crate) fn making(&self) -> Option<&Signal> {
        match &self.stage {
            ConnectingState::Scanning(.., signal) => Some(signal),
            ConnectingState::Dialing(dialing) => dialing.connector.awaited(),
        }
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
    /// Returns the descriptor that an event loop watches for input, and for output if [`Connecting::awaits_room`] is true. Call it again
    /// after each poll: while a thread of the Node works for the attempt, the descriptor is not that of the stream.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.stage {
            ConnectingState::Scanning(.., signal) => signal.descriptor(),
            ConnectingState::Dialing(dialing) => {
                let signal = dialing.connector.awaited();
                signal.map_or_else(|| dialing.stream.as_fd(), Signal::descriptor)
            }
        }
    }
}

/// Returns the TCP address of a listener: that of the rail that the route selects, or of another rail if that address is link-local. A
/// link-local address needs an interface, which a handle does not name.
fn dial_address(rails: &Rails, handle: &Handle) -> Result<SocketAddr, ConnectError> {
    let peer: Vec<_> = handle.rails().iter().collect();
    let routed = match rails.route(&peer) {
        Ok(pair) => peer.get(pair.peer),
        // The handle lists only a part of the rails. The handshake brings the complete list, over any address.
        Err(_) if handle.has_more() => None,
        Err(no_route) => return Err(no_route.into()),
    };
    routed
        .into_iter()
        .chain(&peer)
        .map(|rail| rail.address().address())
        .find(|address| !needs_interface(address))
        .map(|address| SocketAddr::new(address, handle.port().get()))
        .ok_or(ConnectError::OnlyLinkLocal)
}

/// Whether an address is link-local, so that only an address with an interface can be dialed.
pub(crate) const fn needs_interface(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

impl<P: Provider, N: Network> fmt::Debug for Connecting<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
