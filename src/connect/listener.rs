//! The listening side: a TCP port, and all handshakes in progress on it.

use core::convert::Infallible;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::num::NonZeroU16;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_core::Deadline;
use doorbell_core::network::{Acceptor as _, Network};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, NoRails};
use doorbell_ffi::Rdma;

use crate::connect::acceptances::Acceptances;
use crate::connect::answer::PeerRequest;
use crate::connect::background::Background;
use crate::connect::handshakes::admission::Admission;
use crate::connect::handshakes::backlog::Backlog;
use crate::connect::handshakes::{HandshakeCounts, HandshakeLimits, Handshakes, Port, Settings};
use crate::connect::node::{Connection, Node};
use crate::error::ConnectError;
use crate::machine::log::log;
use crate::machine::reaper::Reaper;
use crate::machine::tcp::Tcp;
use crate::trust::Refusals;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;

/// A TCP port to which peers connect, and the handle that tells peers its address.
///
/// Handshakes run concurrently. They advance while [`Listener::accept`] or [`Listener::poll_accept`] runs. [`HandshakeLimits`] limits
/// their number, in all and from one address. At a limit, a new peer replaces a peer that has not proven itself yet. A silent, slow or
/// hostile peer does not delay others.
pub struct Listener<P: Provider = Rdma, N: Network = Tcp> {
    backlog: Backlog<P, N>,
    address: SocketAddr,
    limits: HandshakeLimits,
    unaccepted: Unaccepted<P>,
}

/// The queues of connections that wait to be accepted. When this is dropped, the reaper destroys the connections in them.
struct Unaccepted<P: Provider> {
    admissions: Vec<Arc<Admission<P>>>,
    reaper: Reaper,
}

impl<P: Provider> Drop for Unaccepted<P> {
    fn drop(&mut self) {
        for admission in &self.admissions {
            self.reaper.take(admission.abandon());
        }
    }
}

impl<P: Provider, N: Network> Listener<P, N> {
    /// Listens at `address` for peers that connect to the Workers' devices. Port 0 selects a free port.
    ///
    /// The handle contains the port and the addresses of the rails. At `[::]`, peers reach the rails of both IP versions; at `0.0.0.0`, the
    /// handle contains the IPv4 rails if there are any. If `address` is not the address of a rail, give peers `address`
    /// instead of the handle, for [`Node::connect_at`].
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the system refuses to listen at the address.
    pub fn bind(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        address: SocketAddr,
        config: &ChannelConfig,
    ) -> Result<Self, ConnectError> {
        Self::bind_with_limits(node, workers, address, config, &HandshakeLimits::default())
    }

    /// Listens as [`Listener::bind`] does, with these limits on handshakes. [`Listener::poll_accept`] does not use
    /// [`HandshakeLimits::making`]: there the Node's threads make the queue pairs.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the system refuses to listen at the address.
    pub fn bind_with_limits(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        address: SocketAddr,
        config: &ChannelConfig,
        limits: &HandshakeLimits,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        let rails = node.worker_rails(workers)?;
        let acceptor = node.network.listen(address)?;
        let address = acceptor.address();
        let handle = handle_of(rails.advertised(), address, node.instance())?;
        let port = Port {
            acceptor,
            handle,
            instance: node.instance(),
            settings: Settings::new(config),
        };
        Ok(Self {
            backlog: Backlog::new(port, limits).keeping_each_failure(),
            address,
            limits: *limits,
            unaccepted: Unaccepted {
                admissions: Vec::new(),
                reaper: node.reaper().clone(),
            },
        })
    }

    /// Sets the configuration for channels of peers that connect from now on. Handshakes in progress are ended, and count as failed.
    /// Connections that were not accepted yet are dropped. Later calls may pass other Workers of the same devices.
    pub fn reconfigure(&mut self, config: &ChannelConfig) {
        self.backlog.reconfigure(Settings::new(config));
    }

    /// Separates the handshakes from the threads that accept. The returned [`Handshakes`] are polled on any thread. Each Worker's thread
    /// accepts with its own [`Acceptances`], which are returned in the order of the Workers. Slow calls of a device are made as for
    /// [`Listener::poll_accept`]. Handshakes in progress are ended, and connections that were not accepted yet are dropped.
    ///
    /// The Workers belong to the devices that the listener was bound for. Several Workers of one device take turns.
    pub fn aside(
        self,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
        limits: &HandshakeLimits,
    ) -> (Handshakes<P, N>, Vec<Acceptances<P>>) {
        let outcome = Handshakes::new(self.into_port(), node, workers, limits, None, || {
            Ok::<_, Infallible>(None)
        });
        match outcome {
            Ok(both) => both,
            Err(never) => match never {},
        }
    }

    pub(crate) fn into_port(self) -> Port<N> {
        self.backlog.into_port()
    }

    /// Returns the handle to give to peers: at most 128 bytes, or a line of text.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.backlog.port().handle
    }

    /// Returns the TCP address of the listener.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counts of handshakes by outcome.
    #[must_use]
    pub fn counts(&self) -> HandshakeCounts {
        self.backlog.counts().snapshot()
    }

    /// Returns the number of failed handshakes so far, whichever side was at fault.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.counts().failed
    }

    /// Returns how many handshakes failed because of the peer's key or address.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.counts().untrusted
    }

    /// Accepts new TCP streams, advances every handshake, and returns one outcome if there is one: a new channel, or the reason why
    /// a handshake failed. The call never waits for a peer. With a Node of [`Node::open`] it does not wait for a device either: the
    /// Node's threads scan the ports, and make and connect the queue pairs. Lost channels of the Workers are closed as by
    /// [`Worker::tend`], so that new peers can use their places.
    ///
    /// Each call advances all handshakes, also while outcomes wait. Connections are returned before failures. At most 1024 failures wait:
    /// the oldest makes room for another. [`Listener::counts`] counts each.
    ///
    /// If the port fails, handshakes in progress continue, and outcomes that are ready are returned before the failure. A peer that
    /// is rejected for its address, or because there are too many, is not an outcome; [`Listener::counts`] counts it.
    ///
    /// # Errors
    /// The handshake of one peer failed, or accepting TCP streams failed. The listener stays usable.
    pub fn poll_accept(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Result<Option<Connection>, ConnectError> {
        match self.advance(node, workers) {
            Some(outcome) => outcome.map(Some),
            None => self.backlog.take_port_failure().map_or(Ok(None), Err),
        }
    }

    /// Returns the next outcome, if there is one.
    fn advance(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        workers.iter_mut().for_each(Worker::make_room);
        self.ask(workers);
        // A handshake continues as soon as a Worker has granted it a place. The loop ends when no handshake requests a place.
        loop {
            // All handshakes advance, and all Workers grant places, before an outcome is returned. So an outcome delays no handshake.
            self.backlog.poll(node);
            let has_granted = self.grant(workers);
            let outcome = self.take_connection(workers);
            let outcome = outcome.or_else(|| self.backlog.take_failure().map(Err));
            if outcome.is_some() || !has_granted {
                return outcome;
            }
        }
    }

    /// Makes handshakes request places on these Workers. If the Workers changed, handshakes in progress are given up.
    fn ask(&mut self, workers: &[Worker<P>]) {
        let admissions = self.backlog.admissions();
        let are_known = admissions.len() == workers.len()
            && admissions
                .iter()
                .zip(workers)
                .all(|(one, worker)| one.is_of(worker));
        if !are_known {
            self.backlog.change_workers();
            let admission = |worker| Arc::new(Admission::new(worker, &self.limits, None));
            let admissions: Vec<_> = workers.iter().map(admission).collect();
            self.unaccepted = Unaccepted {
                admissions: admissions.clone(),
                reaper: self.unaccepted.reaper.clone(),
            };
            self.backlog.admit_by(admissions);
        }
    }

    /// Grants or refuses all requested places. Returns whether there were any.
    fn grant(&self, workers: &mut [Worker<P>]) -> bool {
        let admissions = self.backlog.admissions().iter().zip(workers);
        admissions.fold(false, |has_granted, (admission, worker)| {
            admission.grant_all(worker, PeerRequest::reserve) || has_granted
        })
    }

    /// Accepts one finished connection.
    fn take_connection(&self, workers: &mut [Worker<P>]) -> Option<Result<Connection, ConnectError>> {
        for (index, (admission, worker)) in self.backlog.admissions().iter().zip(workers).enumerate() {
            match admission.poll(worker, PeerRequest::reserve).transpose() {
                Some(Ok(channel)) => {
                    log!(info, "accepted", worker = index);
                    let worker = index;
                    return Some(Ok(Connection { worker, channel }));
                }
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
        }
        None
    }

    /// Waits until one peer is connected. Handshakes that fail are counted, and the wait goes on. If the port fails, the wait ends
    /// once no handshake is in progress.
    ///
    /// # Errors
    /// No peer connected by the deadline ([`ConnectError::TimedOut`], with the last failure, if there was one), or accepting TCP
    /// streams failed.
    pub fn accept(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        deadline: Deadline,
    ) -> Result<Connection, ConnectError> {
        let (mut last_failure, mut port_failure) = (None, None);
        loop {
            let failed = match self.advance(node, workers) {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) => Some(error),
                None => None,
            };
            port_failure = self.backlog.take_port_failure().or(port_failure);
            let is_late = deadline.has_passed(node.network.now());
            let is_last = is_late || self.backlog.under_way() == 0;
            if let Some(error) = port_failure.take_if(|_| is_last) {
                return Err(error);
            }
            let has_failed = failed.is_some();
            last_failure = failed.map(Box::new).or(last_failure);
            if is_late {
                return Err(ConnectError::TimedOut { last_failure });
            }
            // After a failure the loop polls again without waiting. The deadline was checked above, so many failures cannot extend it.
            if !has_failed {
                self.wait(node, deadline)?;
            }
        }
    }

    /// Waits until a poll may make progress, or until the deadline.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, node: &Node<P, N>, deadline: Deadline) -> Result<(), ConnectError> {
        self.backlog.wait(node, deadline)
    }

    /// Returns the latest time of the next poll. `None` if no handshake is in progress and nothing has to be sent or logged.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.backlog.deadline()
    }
}

/// Returns the handle of a process that listens at `address` and advertises these rails.
pub(crate) fn handle_of(
    advertised: &[AdvertisedRail],
    address: SocketAddr,
    instance: InstanceId,
) -> Result<Handle, ConnectError> {
    let port = address
        .port()
        .try_into()
        .map_err(|_| ConnectError::NoPort(address))?;
    let selected = |rail: &&AdvertisedRail| is_selected(address, rail);
    let selects_any = advertised.iter().any(|rail| selected(&rail));
    let rails = advertised.iter().filter(|rail| !selects_any || selected(rail));
    Ok(handle_with(port, instance, rails.collect())?)
}

/// Whether a listener's address selects this rail: `0.0.0.0` selects IPv4 rails, and the address of one rail selects that rail. The
/// addresses of other rails do not reach the listener then. Any other address, such as `[::]`, selects none.
pub(crate) fn is_selected(address: SocketAddr, rail: &AdvertisedRail) -> bool {
    let at = rail.address().address();
    at == address.ip() || (at.is_ipv4() && address.ip() == Ipv4Addr::UNSPECIFIED)
}

/// Returns a handle with as many rails as fit. If not all fit, IPv4 rails go first, since they need the least room, and link-local
/// addresses go last. The peer gets the complete list of rails in the handshake.
pub(crate) fn handle_with(
    port: NonZeroU16,
    instance: InstanceId,
    mut rails: Vec<&AdvertisedRail>,
) -> Result<Handle, NoRails> {
    let fill = |rails: &[&AdvertisedRail]| {
        let mut builder = Handle::builder(port, instance);
        for rail in rails {
            if builder.push(rail) == Fit::LeftOut {
                break;
            }
        }
        builder.finish()
    };
    let handle = fill(&rails)?;
    if !handle.has_more() {
        return Ok(handle);
    }
    rails.sort_by_key(|rail| match rail.address().address() {
        IpAddr::V4(v4) => (v4.is_link_local(), false),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), true),
    });
    fill(&rails)
}

impl<P: Provider> Listener<P, Tcp> {
    /// Returns the descriptor that an event loop watches for input. The descriptor is readable when a peer arrives, a peer sends data,
    /// or a thread of the Node has finished work. The descriptor does not change. When it is readable, and at [`Listener::deadline`],
    /// call [`Listener::poll_accept`] until it returns `None`.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.backlog.port().acceptor.descriptor()
    }

    /// Runs the handshakes of the listener on a separate thread, which sleeps when there is nothing to do.
    /// [`HandshakeLimits::making`] further threads make the queue pairs. As with [`Listener::aside`], handshakes in progress are ended.
    ///
    /// A silent, slow or hostile peer then delays neither other peers nor a Worker's thread.
    ///
    /// # Errors
    /// The system gave no thread, or no descriptor.
    pub fn background(
        self,
        node: &Arc<Node<P>>,
        workers: &[Worker<P>],
        limits: &HandshakeLimits,
    ) -> Result<(Background, Vec<Acceptances<P>>), ConnectError> {
        Background::start(self.into_port(), node, workers, limits).map_err(ConnectError::Tcp)
    }
}

impl<P: Provider, N: Network> fmt::Debug for Listener<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address)
            .field("handle", self.handle())
            .field("under_way", &self.backlog.under_way())
            .finish_non_exhaustive()
    }
}
