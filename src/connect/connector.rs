//! The connecting side of one handshake: the choice of the rail, and the making of the queue pair.
//!
//! This file uses no socket and no clock: the caller passes the stream and the time to each poll. `Makers` make the slow calls of a
//! device, so a poll takes microseconds. The Worker reserves its resources, and another thread makes the queue pair from them.

use core::task::Waker;
use std::sync::Arc;

use doorbell_core::handshake::{Initiator, InitiatorConfig, Io, Step, Timing};
use doorbell_core::provider::Provider;
use doorbell_core::rail::RailPair;
use doorbell_core::wire::{AdvertisedRail, Endpoint, InstanceId, VersionRange};
use doorbell_core::{Deadline, Instant, Psn};

use crate::connect::attempt::{Connected, Created, Requested, reject_for};
use crate::connect::node::Node;
use crate::connect::node::{Connection, Entropy};
use crate::error::ConnectError;
use crate::error::NoRoute;
use crate::machine::log::log;
use crate::machine::makers::{Commission, Makers, Whom};
use crate::machine::reaper::Reaped;
use crate::machine::signal::Signal;
use crate::rails::{Rails, addresses};
use crate::trust::Trust;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;
use doorbell_core::network::Network;

/// Connecting side of the handshake with one listener.
pub(crate) struct Connector<P: Provider> {
    machine: Initiator<Trust>,
    trust: Trust,
    rails: Rails,
    config: ChannelConfig,
    psn: Psn,
    /// The required rail of the peer. `None` selects the best rail.
    to: Option<AdvertisedRail>,
    /// Raised by the thread that makes or connects the queue pair, at the end. `None` if the polling thread does so.
    signal: Option<Arc<Signal>>,
    stage: ConnectorState<P>,
}

/// Progress of the queue pair. If the handshake is given up, the reaper destroys the queue pair.
enum ConnectorState<P: Provider> {
    Started,
    /// The queue pair is being made, for the rail of the peer with this index.
    Creating(u8, Commission<Created<P>>),
    Created(Reaped<Created<P>>),
    Connecting(Commission<Connected<P>>),
    Connected(Reaped<Connected<P>>),
    Over,
}

impl<P: Provider> ConnectorState<P> {
    const fn take(&mut self) -> Self {
        core::mem::replace(self, Self::Over)
    }
}

/// The destination of a handshake, and the rails that may be used.
pub(crate) struct Target {
    pub(crate) rails: Rails,
    /// The instance of the listener, if it is known.
    pub(crate) listener: Option<InstanceId>,
    /// The only rail of the peer that may be used. `None` allows all.
    pub(crate) only: Option<AdvertisedRail>,
}

impl<P: Provider> Connector<P> {
    pub(crate) fn new(
        node: &Node<P, impl Network>,
        target: Target,
        config: &ChannelConfig,
        timing: Timing,
        entropy: &Entropy,
        now: Instant,
        signal: Option<Arc<Signal>>,
    ) -> Result<Self, ConnectError> {
        let trust = node.trust();
        let Target {
            rails,
            listener,
            only,
        } = target;
        let initiator = InitiatorConfig {
            instance: node.instance(),
            listener,
            nonce: entropy.nonce,
            timing,
            versions: VersionRange::OURS,
        };
        let machine = Initiator::with(initiator, &trust, rails.advertised(), now)?;
        Ok(Self {
            machine,
            trust,
            rails,
            config: *config,
            psn: entropy.psn,
            to: only,
            signal,
            stage: ConnectorState::Started,
        })
    }

    /// Returns the latest time of the next poll.
    pub(crate) fn deadline(&self) -> Deadline {
        self.machine.deadline()
    }

    /// Whether bytes wait for room in the stream.
    pub(crate) fn has_unsent(&self) -> bool {
        self.machine.has_unsent()
    }

    /// Returns the signal to wait for while another thread makes or connects the queue pair. `None` while the handshake waits for the
    /// peer.
    pub(crate) fn awaited(&self) -> Option<&Signal> {
        let is_making = matches!(
            self.stage,
            ConnectorState::Creating(..) | ConnectorState::Connecting(_)
        );
        self.signal.as_deref().filter(|_| is_making)
    }

    fn waker(&self) -> Option<Waker> {
        self.signal.clone().map(Waker::from)
    }

    /// Advances the handshake as far as possible. Returns the outcome when there is one.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        io: &mut impl Io,
        workers: &mut [Worker<P>],
        makers: &Makers,
    ) -> Option<Result<Connection, ConnectError>> {
        if let Some(signal) = &self.signal {
            // The signal is cleared before the check, so that work that ends in between raises it again.
            signal.take();
        }
        loop {
            let answered = match self.machine.poll(now, io) {
                Step::ChooseRail => self.offer(now, workers, makers),
                Step::Prepare(prepare) => self.prepare(now, prepare.peer, workers, makers),
                Step::Connected(established) => {
                    let ConnectorState::Connected(connected) = self.stage.take() else {
                        return Some(Err(ConnectError::Unreachable("connected without a queue pair")));
                    };
                    let connected = Reaped::into_inner(connected);
                    let worker = connected.worker;
                    let to = workers.get_mut(worker).ok_or(ConnectError::OtherWorkers);
                    let channel = to.and_then(|to| connected.finish(established).admit(to));
                    return Some(channel.map(|channel| Connection { worker, channel }));
                }
                Step::Failed(error) => return Some(Err(error.into())),
                _ => return None,
            };
            match answered {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    // The peer gets one Reject, if the stream accepts it. The caller gets the cause of the failure, not the error
                    // of the rejected handshake.
                    if self.machine.reject(reject_for(&error)).is_ok() {
                        self.machine.poll(now, io);
                    }
                    return Some(Err(error));
                }
            }
        }
    }

    /// Advances the making of a queue pair to offer. Returns whether the offer was made.
    fn offer(
        &mut self,
        now: Instant,
        workers: &mut [Worker<P>],
        makers: &Makers,
    ) -> Result<bool, ConnectError> {
        if let ConnectorState::Started = self.stage {
            self.stage = self.begin_offer(workers, makers)?;
        }
        let ConnectorState::Creating(peer_rail, creating) = &self.stage else {
            return Err(ConnectError::Unreachable(
                "a rail was to be chosen after the offer",
            ));
        };
        let peer_rail = *peer_rail;
        let Some(created) = creating.take()? else {
            return Ok(false);
        };
        let local = created.local;
        self.stage = ConnectorState::Created(created);
        self.machine.offer(now, local, peer_rail)?;
        Ok(true)
    }

    fn begin_offer(
        &self,
        workers: &mut [Worker<P>],
        makers: &Makers,
    ) -> Result<ConnectorState<P>, ConnectError> {
        let pair = self.route()?;
        self.trust.check_rail(self.machine.peer_rails().get(pair.peer))?;
        let rail = self
            .rails
            .get(pair.local)
            .ok_or(ConnectError::Unreachable("the chosen rail is none of this node"))?;
        if let (Some(ours), Some(peers)) = (
            self.rails.advertised().get(pair.local),
            self.machine.peer_rails().get(pair.peer),
        ) {
            log!(debug, "rail chosen", ours = ours, peers = peers);
        }
        let worker = workers.get_mut(rail.worker).ok_or(ConnectError::OtherWorkers)?;
        let index = |index| {
            u8::try_from(index).map_err(|_| ConnectError::Unreachable("the index of a rail exceeds a byte"))
        };
        let (rail_index, peer_rail) = (index(pair.local)?, index(pair.peer)?);
        let requested = Requested {
            rail,
            rail_index,
            config: self.config,
            psn: self.psn,
        };
        let reserved = requested.reserve(worker, None)?;
        let creating = makers.make(self.whom()?, self.waker().as_ref(), move || reserved.create());
        Ok(ConnectorState::Creating(peer_rail, creating))
    }

    fn route(&self) -> Result<RailPair, NoRoute> {
        let peers = self.machine.peer_rails();
        let Some(to) = self.to else {
            return self.rails.route(peers);
        };
        // Address and GID identify the rail. The speed is not compared: the port may report another speed by now.
        let is_it = |rail: &AdvertisedRail| (rail.address(), rail.gid()) == (to.address(), to.gid());
        let Some((at, one)) = peers.iter().enumerate().find(|(_, rail)| is_it(rail)) else {
            // No rail of this side is the cause.
            return Err(NoRoute {
                ours: Vec::new(),
                failed: Vec::new(),
                peers: addresses(peers),
                gone: Some(to.address().to_string()),
            });
        };
        let mut pair = self.rails.route(core::slice::from_ref(one))?;
        pair.peer = at;
        Ok(pair)
    }

    /// Advances the connecting of the queue pair to the peer's. Returns whether the queue pair is ready.
    fn prepare(
        &mut self,
        now: Instant,
        peer: Endpoint,
        workers: &mut [Worker<P>],
        makers: &Makers,
    ) -> Result<bool, ConnectError> {
        let begun = match self.stage.take() {
            ConnectorState::Created(created) => self.begin_connect(created, peer, workers, makers)?,
            begun => begun,
        };
        self.stage = begun;
        let ConnectorState::Connecting(connecting) = &self.stage else {
            return Err(ConnectError::Unreachable(
                "a queue pair was to be connected before it was offered",
            ));
        };
        let Some(connected) = connecting.take()? else {
            return Ok(false);
        };
        self.stage = ConnectorState::Connected(connected);
        self.machine.ready(now)?;
        Ok(true)
    }

    fn begin_connect(
        &self,
        mut created: Reaped<Created<P>>,
        peer: Endpoint,
        workers: &mut [Worker<P>],
        makers: &Makers,
    ) -> Result<ConnectorState<P>, ConnectError> {
        let whom = self.whom()?;
        created.supply(workers, peer.credit.start)?;
        // Unwrapped only here: if a step above fails, the reaper destroys the queue pair.
        let created = Reaped::into_inner(created);
        let connecting = makers.make(whom, self.waker().as_ref(), move || created.connect(&peer));
        Ok(ConnectorState::Connecting(connecting))
    }

    /// Returns the peer that a job counts for in the limits of [`Makers`]. All rails of one peer count together.
    fn whom(&self) -> Result<Whom, ConnectError> {
        let peer = self.machine.peer_instance();
        peer.map(Whom::Peer).ok_or(ConnectError::Unreachable(
            "a peer that lists rails has no instance",
        ))
    }
}
