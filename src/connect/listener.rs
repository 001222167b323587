//! The listening side: a TCP port, and every handshake that is under way on it.

use core::convert::Infallible;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
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

/// A TCP port at which peers connect, and the handle that leads them there.
///
/// Handshakes go on side by side and advance while [`Listener::accept`] or [`Listener::poll_accept`] runs. How many
/// there may be, in all and from one address, is bounded by [`HandshakeLimits`]; with all places taken a peer that has
/// proven nothing makes room. One that is silent, slow or hostile does not hold up another.
pub struct Listener<P: Provider = Rdma, N: Network = Tcp> {
    backlog: Backlog<P, N>,
    address: SocketAddr,
    limits: HandshakeLimits,
    unaccepted: Unaccepted<P>,
}

/// Connections that nobody accepts any more are the reaper's.
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
    /// Listens at `address` (port 0: any free one) for peers of the Workers' devices.
    ///
    /// The handle leads to the port at the rails' own addresses. Listening at another address
    /// than those, give peers that address instead, for [`Node::connect_at`].
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the port cannot be had.
    pub fn bind(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        address: SocketAddr,
        config: &ChannelConfig,
    ) -> Result<Self, ConnectError> {
        Self::bind_with_limits(node, workers, address, config, &HandshakeLimits::default())
    }

    /// Listens as [`Listener::bind`] does, with other limits of handshakes than the default ones. `making` is not for
    /// [`Listener::poll_accept`]: there the Node's threads make queue pairs.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the port cannot be had.
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

    /// Gives the channels of peers that connect from now on another configuration, or other
    /// Workers of the same devices. Handshakes under way, being of the one before, are broken
    /// off, and count as failed.
    pub fn reconfigure(&mut self, config: &ChannelConfig) {
        self.backlog.reconfigure(Settings::new(config));
    }

    /// Takes the handshakes off the threads that accept: they advance by polling what this gives, on whichever
    /// thread, and each Worker's thread accepts by its [`Acceptances`], in the order of the Workers. Slow
    /// calls of a device are made as by [`Listener::poll_accept`]. Handshakes under way are broken off.
    ///
    /// The Workers are of the devices it was bound for; of one device there may be several, which have their turns.
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

    fn into_port(self) -> Port<N> {
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
    /// a handshake failed. No peer is waited for, nor, on a [`Node::open`], a device: that node's threads look at the ports for the
    /// peers that come, and make and connect the queue pairs. Channels of the Workers that are lost close, as [`Worker::tend`] has
    /// them do, so that their places serve new peers.
    ///
    /// If the port fails, the handshakes under way go on: each outcome that is there by now is given before the failure is. A
    /// peer that is rejected since there are too many is no outcome; [`Listener::counts`] counts it.
    ///
    /// # Errors
    /// One peer's handshake failed, or the port did. The listener can be used on.
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

    /// The next outcome, where there is one.
    fn advance(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        workers.iter_mut().for_each(Worker::make_room);
        self.ask(workers);
        if let Some(failure) = self.backlog.take_failure() {
            return Some(Err(failure));
        }
        // A handshake that a Worker granted a place goes on at once: each place is asked for once.
        loop {
            self.backlog.poll(node);
            let is_asked = self.backlog.admissions().iter().any(|one| one.is_asked());
            if let Some(outcome) = self.poll_admissions(workers) {
                return Some(outcome);
            }
            if let Some(failure) = self.backlog.take_failure() {
                return Some(Err(failure));
            }
            if !is_asked {
                return None;
            }
        }
    }

    /// Has places asked for of these Workers.
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

    /// Grants places, and accepts one connection that is done.
    fn poll_admissions(&self, workers: &mut [Worker<P>]) -> Option<Result<Connection, ConnectError>> {
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

    /// Waits until one peer is connected. Peers whose handshakes fail are counted and passed over. A port that fails ends the wait
    /// once no handshake is under way.
    ///
    /// # Errors
    /// None was by the deadline ([`ConnectError::TimedOut`], with why the last one failed, if
    /// any did), or the port failed.
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
            // However many fail one after the other, the deadline holds.
            if !has_failed {
                self.wait(node, deadline)?;
            }
        }
    }

    /// Waits until polling may get further, or the deadline.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, node: &Node<P, N>, deadline: Deadline) -> Result<(), ConnectError> {
        self.backlog.wait(node, deadline)
    }

    /// When to poll again at the latest, whatever comes; `None` where no handshake is under way and nothing
    /// is to be sent or logged.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.backlog.deadline()
    }
}

/// The handle that leads to these rails of a process that listens at an address.
pub(crate) fn handle_of(
    advertised: &[AdvertisedRail],
    address: SocketAddr,
    instance: InstanceId,
) -> Result<Handle, ConnectError> {
    let port = address
        .port()
        .try_into()
        .map_err(|_| ConnectError::NoPort(address))?;
    let here = |rail: &&AdvertisedRail| rail.address().address() == address.ip();
    // Bound to one rail's address, the others lead nowhere.
    let only_here = advertised.iter().any(|rail| here(&rail));
    let rails = advertised.iter().filter(|rail| !only_here || here(rail));
    Ok(handle_with(port, instance, rails.collect())?)
}

/// A handle with the rails that there is room for. If some have to be left out, addresses of one link alone go last, and rails
/// that take the least room go first. So a peer finds a rail of as many ports as possible, and asks for the rest.
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
    /// The descriptor that an event loop watches for input: a peer that comes, what peers say, and what threads of the Node's have done
    /// for them. The same for as long as the listener is there. Poll then until there is no more, and at
    /// [`Listener::deadline`] whatever comes.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.backlog.port().acceptor.descriptor()
    }

    /// Runs the handshakes of the listener on a separate thread, which sleeps when there is nothing to do, and makes queue pairs on
    /// further threads: as many as [`HandshakeLimits::making`] says.
    ///
    /// A peer that is silent, slow or hostile then costs neither the others nor a Worker's thread anything.
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
