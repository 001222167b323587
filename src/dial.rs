//! The connecting side: the handshake's answers, made of rails and queue pairs.
//!
//! No socket and no clock is here: both come with each poll.

use doorbell_core::handshake::{Agreed, Initiator, InitiatorConfig, Io, Step, Timing};
use doorbell_core::provider::Provider;
use doorbell_core::rail::RailPair;
use doorbell_core::wire::{AdvertisedRail, InstanceId, VersionRange};
use doorbell_core::{Deadline, Instant, Psn};

use crate::bring_up::{self, Agreement, Ground, Pending, Ready};
use crate::error::ConnectError;
use crate::node::{Connection, Draw};
use crate::rails::{NoRoute, NodeRail, Rails};
use crate::tell::tell;
use crate::{ChannelConfig, Network, Node, Trust, Worker};

/// A connection on its way.
pub(crate) struct Dial<P: Provider> {
    machine: Initiator<Trust>,
    trust: Trust,
    rails: Rails,
    config: ChannelConfig,
    psn: Psn,
    /// The one rail of the peer's it is to go to, where it is not the best that is looked for.
    to: Option<AdvertisedRail>,
    stage: Stage<P>,
}

enum Stage<P: Provider> {
    Started,
    Offered(NodeRail, Pending<P>),
    Prepared(usize, Ready<P>),
    Over,
}

impl<P: Provider> Dial<P> {
    pub(crate) fn new(
        node: &Node<P, impl Network>,
        listener: Option<InstanceId>,
        rails: Rails,
        config: &ChannelConfig,
        timing: Timing,
        draw: &Draw,
        now: Instant,
    ) -> Result<Self, ConnectError> {
        let trust = node.trust();
        let initiator = InitiatorConfig {
            instance: node.instance(),
            listener,
            nonce: draw.nonce,
            timing,
            versions: VersionRange::OURS,
        };
        let machine =
            Initiator::with(initiator, &trust, rails.advertised(), now).map_err(|_| ConnectError::NoRails)?;
        Ok(Self {
            machine,
            trust,
            rails,
            config: *config,
            psn: draw.psn,
            to: None,
            stage: Stage::Started,
        })
    }

    /// Goes to this rail of the peer's, and no other.
    pub(crate) fn keep_to(&mut self, rail: AdvertisedRail) {
        self.to = Some(rail);
    }

    /// When to poll again at the latest.
    pub(crate) fn deadline(&self) -> Deadline {
        self.machine.deadline()
    }

    /// Whether to wait for room to write, too.
    pub(crate) fn has_unsent(&self) -> bool {
        self.machine.has_unsent()
    }

    /// Moves as far as it can; the outcome once there is one.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        io: &mut impl Io,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        loop {
            let answered = match self.machine.poll(now, io) {
                Step::ChooseRail => self.offer(now, workers),
                Step::Prepare(prepare) => {
                    let agreement = Agreement {
                        peer: prepare.peer,
                        agreed: match &self.stage {
                            Stage::Offered(_, pending) => {
                                Agreed::between(&pending.local.parameters, &prepare.peer.parameters)
                            }
                            _ => return Some(Err(ConnectError::NoRails)),
                        },
                    };
                    self.prepare(now, &agreement, workers)
                }
                Step::Connected(established) => {
                    let Stage::Prepared(worker, ready) = core::mem::replace(&mut self.stage, Stage::Over)
                    else {
                        return Some(Err(ConnectError::NoRails));
                    };
                    return Some(bring_up::admit(ready, workers, worker, established));
                }
                Step::Failed(error) => return Some(Err(error.into())),
                _ => return None,
            };
            if let Err(error) = answered {
                // The peer is told once, as far as the stream still takes it; what is told to
                // our caller is the cause and not that we gave up.
                if self.machine.reject(bring_up::reject_for(&error)).is_ok() {
                    self.machine.poll(now, io);
                }
                return Some(Err(error));
            }
        }
    }

    fn offer(&mut self, now: Instant, workers: &mut [Worker<P>]) -> Result<(), ConnectError> {
        let pair = self.route()?;
        self.trust.check_rail(self.machine.peer_rails().get(pair.peer))?;
        let rail = self.rails.get(pair.local).ok_or(ConnectError::NoRails)?;
        if let (Some(ours), Some(peers)) = (
            self.rails.advertised().get(pair.local),
            self.machine.peer_rails().get(pair.peer),
        ) {
            tell!(debug, "rail chosen", ours = ours, peers = peers);
        }
        let worker = workers.get_mut(rail.worker).ok_or(ConnectError::OtherWorkers)?;
        let index = |index| u8::try_from(index).map_err(|_| ConnectError::NoRails);
        let place = worker.place(&self.config)?;
        let ground = Ground::of(worker);
        let pending = bring_up::prepare(place, &ground, &rail, index(pair.local)?, &self.config, self.psn)?;
        self.machine.offer(now, pending.local, index(pair.peer)?)?;
        self.stage = Stage::Offered(rail, pending);
        Ok(())
    }

    fn route(&self) -> Result<RailPair, NoRoute> {
        let peers = self.machine.peer_rails();
        let Some(to) = self.to else {
            return self.rails.route(peers);
        };
        // Its speed may be told as another by now.
        let is_it = |rail: &AdvertisedRail| (rail.address(), rail.gid()) == (to.address(), to.gid());
        let at = peers.iter().position(is_it).unwrap_or(peers.len());
        let one = peers.get(at).map_or(&[][..], core::slice::from_ref);
        let mut pair = self.rails.route(one)?;
        pair.peer = at;
        Ok(pair)
    }

    fn prepare(
        &mut self,
        now: Instant,
        agreement: &Agreement,
        workers: &mut [Worker<P>],
    ) -> Result<(), ConnectError> {
        let Stage::Offered(rail, pending) = core::mem::replace(&mut self.stage, Stage::Over) else {
            return Err(ConnectError::NoRails);
        };
        let worker = workers.get_mut(rail.worker).ok_or(ConnectError::OtherWorkers)?;
        let supply = worker.supply(&pending.reservation, agreement.peer.credit.start, &self.config)?;
        let ground = Ground::of(worker);
        let ready = bring_up::connect(pending, supply, &ground, &rail, &self.config, agreement)?;
        self.machine.ready(now)?;
        self.stage = Stage::Prepared(rail.worker, ready);
        Ok(())
    }
}
