//! The listening side: a TCP port, and every handshake that is under way on it.

use core::convert::Infallible;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use std::sync::Arc;

use doorbell_core::network::{Acceptor as _, Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, NoRails};
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use crate::answer::{Answer, Answering};
use crate::bring_up::reject_for;
use crate::edge::background::Background;
use crate::edge::makers::LOOK_AGAIN;
use crate::error::ConnectError;
use crate::handshakes::{HandshakeLimits, Handshakes, Port, Settings, ToldRefusals, busy, source};
use crate::lobby::{Lobby, tell_reject};
use crate::look::Looking;
use crate::node::Connection;
use crate::rails::Rails;
use crate::tell::tell;
use crate::trust::Refusals;
use crate::{Acceptances, ChannelConfig, Node, Tcp, Trust, Worker};

/// Handshakes under way at most. A peer beyond them waits in the TCP backlog.
pub const HANDSHAKES_MAX: usize = 64;

/// A TCP port at which peers connect, and the handle that leads them there.
///
/// Handshakes go on side by side: one peer that is slow, silent or hostile does not hold up
/// another. They advance while [`Listener::accept`] or [`Listener::poll_accept`] runs.
pub struct Listener<P: Provider = Rdma, N: Network = Tcp> {
    acceptor: N::Acceptor,
    address: SocketAddr,
    handle: Handle,
    instance: InstanceId,
    settings: Settings,
    /// Those whose handshakes begin once our ports were looked at.
    arrived: Lobby<(N::Stream, IpAddr, Trust)>,
    under_way: Vec<(N::Stream, Answering<P>)>,
    /// When to look again for what a thread of the Node's does.
    again: Option<Deadline>,
    /// Why nobody more was taken in, until our caller is told.
    untold: Option<ConnectError>,
    failed: u64,
    refusals: Refusals,
    told: ToldRefusals,
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
        let rails = Rails::scan(node, workers)?;
        let acceptor = node.network.listen(address)?;
        let address = acceptor.address();
        let handle = handle_of(rails.advertised(), address, node.instance())?;
        Ok(Self {
            acceptor,
            address,
            handle,
            instance: node.instance(),
            settings: Settings::new(config),
            arrived: Lobby::new(),
            under_way: Vec::new(),
            again: None,
            untold: None,
            failed: 0,
            refusals: Refusals::default(),
            told: ToldRefusals::default(),
        })
    }

    /// Gives the channels of peers that connect from now on another configuration, or other
    /// Workers of the same devices. Handshakes under way, being of the one before, are broken
    /// off: their peers are told nothing and see the stream end.
    pub fn reconfigure(&mut self, config: &ChannelConfig) {
        let broken_off = u64::try_from(self.under_way.len()).unwrap_or(u64::MAX);
        self.failed = self.failed.saturating_add(broken_off);
        self.under_way.clear();
        self.settings = Settings::new(config);
    }

    /// Takes the handshakes off the threads that accept: they advance by polling what this gives, on whichever
    /// thread, and each Worker's thread accepts by its [`Acceptances`], in the order of the Workers. What a
    /// device takes long for is done as by [`Listener::poll_accept`]. Handshakes under way are broken off.
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
        Port {
            acceptor: self.acceptor,
            handle: self.handle,
            instance: self.instance,
            settings: self.settings,
        }
    }

    /// What to hand to peers: at most 128 bytes, or a line of text.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The TCP address it listens at.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many handshakes failed so far, by whoever's fault.
    #[must_use]
    pub const fn failed(&self) -> u64 {
        self.failed
    }

    /// How many of them for who or where the peers are.
    #[must_use]
    pub const fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// Takes new peers, moves every handshake as far as it can, and gives one outcome if
    /// there is one: a channel, or why a peer did not become one. No peer is waited for, nor, on a [`Node::open`], a device: that
    /// node's threads look at the ports for the peers that come, and make and connect the queue pairs.
    ///
    /// Where the port fails, the handshakes under way go on: each outcome that is there by now is given
    /// before the failure is.
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
            None => self.untold.take().map_or(Ok(None), Err),
        }
    }

    /// Takes new peers, unless what came of that last is yet to be told, and moves the handshakes up to
    /// the first outcome.
    fn advance(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        self.told.poll(node.network.now());
        if self.untold.is_none() {
            self.untold = self.take_new(node, workers).err();
        }
        let outcome = match self.begin(node, workers) {
            Ok(()) => self.move_on(node, workers),
            Err(error) => Some(Err(error)),
        };
        let is_awaited =
            self.arrived.is_looking() || self.under_way.iter().any(|(_, answer)| answer.is_making());
        self.again = is_awaited.then(|| Deadline::after(node.network.now(), LOOK_AGAIN));
        outcome
    }

    /// Moves the handshakes up to the first outcome.
    fn move_on(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        let ends = self.under_way.iter().map(|(_, answer)| answer.end());
        let busy = busy(node.network.now(), ends);
        // Who waits for others of its address keeps nobody else out.
        let may_wait = self.count() < HANDSHAKES_MAX / 2;
        for index in 0..self.under_way.len() {
            let (stream, answer) = self.under_way.get_mut(index)?;
            if let Some(outcome) =
                answer.poll(node.network.now(), stream, workers, node.makers(), busy, may_wait)
            {
                self.under_way.swap_remove(index);
                match &outcome {
                    Ok(connection) => tell!(info, "accepted", worker = connection.worker),
                    Err(error) => self.count_failed(node.network.now(), error),
                }
                return Some(outcome);
            }
        }
        None
    }

    /// Waits for one peer to be connected. Peers whose handshakes fail are counted and passed
    /// over. A port that fails ends the wait once no handshake is under way.
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
        let mut last_failure = None;
        loop {
            let failed = match self.advance(node, workers) {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) => Some(error),
                None => self.untold.take_if(|error| !is_of_port(error)),
            };
            let is_late = deadline.has_passed(node.network.now());
            let is_last = is_late || self.count() == 0;
            if let Some(error) = self.untold.take_if(|error| is_last && is_of_port(error)) {
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
        let deadline = self.deadline().map_or(deadline, |wake| wake.min(deadline));
        let streams = self.under_way.iter().map(|(stream, answer)| Waited {
            stream,
            has_unsent: answer.has_unsent(),
        });
        // A peer that is not taken in now is no reason to poll.
        let takes_in = !self.is_full() && self.untold.is_none();
        let acceptor = takes_in.then_some(&self.acceptor);
        Ok(node.network.wait(acceptor, streams, deadline)?)
    }

    /// When to poll again at the latest, whatever comes; `None` where no handshake is under way and nothing
    /// is to be told. In a millisecond where a thread of the Node's has something to do for one of them.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        let under_way = self.under_way.iter().map(|(_, answer)| answer.deadline());
        let others = self.again.into_iter().chain(self.told.deadline());
        under_way.chain(self.arrived.deadline()).chain(others).min()
    }

    /// Whether as many handshakes are under way as may be.
    fn is_full(&self) -> bool {
        self.count() >= HANDSHAKES_MAX
    }

    /// The peers that were taken in.
    fn count(&self) -> usize {
        self.under_way.len().saturating_add(self.arrived.len())
    }

    fn take_new(&mut self, node: &Node<P, N>, workers: &[Worker<P>]) -> Result<(), ConnectError> {
        let trust = node.trust();
        // However many are refused, the others have their turn.
        for _ in 0..HANDSHAKES_MAX {
            if self.is_full() {
                break;
            }
            let Some(stream) = node.network.accept(&self.acceptor)? else {
                break;
            };
            // One that is gone already is found out by its handshake.
            let address = stream.peer_address();
            let allowed = address.map_or(Ok(()), |at| trust.check_address(at.ip()));
            if let Err(error) = allowed {
                // Nothing is read of it, and nothing is kept for it.
                self.refuse(node.network.now(), stream, &error);
                continue;
            }
            if let Err(error) = node.check(workers) {
                self.refuse(node.network.now(), stream, &error);
                return Err(error);
            }
            // As long as a stage may take for which it is our turn.
            let until = node.within(self.settings.timing.stage);
            let arrived = (stream, source(address), trust.clone());
            self.arrived.enter(arrived, || Looking::beside(node, None, until));
        }
        Ok(())
    }

    /// Begins the handshakes of those for whom our ports were looked at.
    ///
    /// # Errors
    /// It came to nothing, of one at least; all are told.
    fn begin(&mut self, node: &Node<P, N>, workers: &[Worker<P>]) -> Result<(), ConnectError> {
        if !self.arrived.is_looking() {
            return Ok(());
        }
        let devices: Vec<_> = workers.iter().map(Worker::device).collect();
        let Some((arrived, rails)) = self.arrived.leave(node, &devices) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for (stream, from, trust) in arrived {
            let answer = rails.clone().map_err(ConnectError::from).and_then(|rails| {
                Answer::new(&node.network, self.instance, rails, &self.settings, trust, from)
            });
            match answer {
                Ok(answer) => self.under_way.push((stream, Answering::new(answer))),
                Err(error) => {
                    self.refuse(node.network.now(), stream, &error);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    fn refuse(&mut self, now: Instant, mut stream: N::Stream, error: &ConnectError) {
        tell_reject(&mut stream, &reject_for(error));
        self.count_failed(now, error);
    }

    fn count_failed(&mut self, now: Instant, error: &ConnectError) {
        if self.told.is_first(now, Some(error)) {
            tell!(warn, "handshake refused", at = self.address, reason = error);
        }
        self.failed = self.failed.saturating_add(1);
        self.refusals.count(error);
    }
}

/// The handle that leads to these rails of a process that listens at an address.
pub(crate) fn handle_of(
    advertised: &[AdvertisedRail],
    address: SocketAddr,
    instance: InstanceId,
) -> Result<Handle, ConnectError> {
    let port = address.port().try_into().map_err(|_| ConnectError::NoRails)?;
    let here = |rail: &&AdvertisedRail| rail.address().address() == address.ip();
    // Bound to one rail's address, the others lead nowhere.
    let only_here = advertised.iter().any(|rail| here(&rail));
    let rails = advertised.iter().filter(|rail| !only_here || here(rail));
    Ok(handle_with(port, instance, rails.collect())?)
}

/// A handle with the rails there is room for. Where that is not all, addresses that are of one link alone go last, and those
/// go first that take the least room: a peer finds one of as many ports as can be, and asks for the rest.
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

/// Whether it is the port that failed, and not a peer.
const fn is_of_port(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Tcp(_))
}

impl<P: Provider> Listener<P, Tcp> {
    /// The same, on a thread of its own that sleeps where nothing is to do, with others that make queue pairs:
    /// as many as [`HandshakeLimits::making`] says.
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
            .field("handle", &self.handle)
            .field("under_way", &self.under_way.len())
            .finish_non_exhaustive()
    }
}
