//! The connecting side: the handshake's answers, made of rails and queue pairs.
//!
//! No socket and no clock is here: both come with each poll. Slow calls of a device are made by `Makers`, so that polling takes
//! microseconds. The Worker promises its own resources, and the queue pair is made from them on another thread.

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
use crate::rails::Rails;
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
    /// The one rail of the peer's it is to go to, where it is not the best that is looked for.
    to: Option<AdvertisedRail>,
    /// Raised once what is being made is there, where it is made on another thread.
    signal: Option<Arc<Signal>>,
    stage: ConnectorState<P>,
}

/// Progress of its queue pair. If the handshake is given up, the reaper destroys the queue pair.
enum ConnectorState<P: Provider> {
    Started,
    /// It is being made, for this rail of the peer's.
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

/// Whom it goes to, and over what.
pub(crate) struct Way {
    pub(crate) rails: Rails,
    /// The listener that is meant, where it is known.
    pub(crate) listener: Option<InstanceId>,
    /// The one rail of the peer's it is to go to, and no other.
    pub(crate) only: Option<AdvertisedRail>,
}

impl<P: Provider> Connector<P> {
    pub(crate) fn new(
        node: &Node<P, impl Network>,
        way: Way,
        config: &ChannelConfig,
        timing: Timing,
        entropy: &Entropy,
        now: Instant,
        signal: Option<Arc<Signal>>,
    ) -> Result<Self, ConnectError> {
        let trust = node.trust();
        let Way {
            rails,
            listener,
            only,
        } = way;
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

    /// When to poll again at the latest.
    pub(crate) fn deadline(&self) -> Deadline {
        self.machine.deadline()
    }

    /// Whether to wait for room to write, too.
    pub(crate) fn has_unsent(&self) -> bool {
        self.machine.has_unsent()
    }

    /// Signal that is raised once the handshake can go on, while it does not wait for the peer.
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

    /// Moves as far as it can; the outcome once there is one.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        io: &mut impl Io,
        workers: &mut [Worker<P>],
        makers: &Makers,
    ) -> Option<Result<Connection, ConnectError>> {
        if let Some(signal) = &self.signal {
            // Before the look, so that what is made meanwhile is announced again.
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
                    // The peer gets one Reject, as far as the stream still takes it. The caller gets the cause,
                    // and not that we gave up.
                    if self.machine.reject(reject_for(&error)).is_ok() {
                        self.machine.poll(now, io);
                    }
                    return Some(Err(error));
                }
            }
        }
    }

    /// Gets on with a queue pair to offer; says whether it is offered.
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
        // The port may report another speed by now.
        let is_it = |rail: &AdvertisedRail| (rail.address(), rail.gid()) == (to.address(), to.gid());
        let at = peers.iter().position(is_it).unwrap_or(peers.len());
        let one = peers.get(at).map_or(&[][..], core::slice::from_ref);
        let mut pair = self.rails.route(one)?;
        pair.peer = at;
        Ok(pair)
    }

    /// Gets on with connecting the queue pair to the peer's; says whether it is ready.
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
        // Not before: if something above fails, the reaper destroys it.
        let created = Reaped::into_inner(created);
        let connecting = makers.make(whom, self.waker().as_ref(), move || created.connect(&peer));
        Ok(ConnectorState::Connecting(connecting))
    }

    /// The peer whose share of the makers a job counts against: the same one by whichever of its rails it is reached.
    fn whom(&self) -> Result<Whom, ConnectError> {
        let peer = self.machine.peer_instance();
        peer.map(Whom::Peer).ok_or(ConnectError::Unreachable(
            "a peer that lists rails has no instance",
        ))
    }
}
