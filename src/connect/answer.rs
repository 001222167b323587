//! The listening side of one connection: the handshake's answers, made of rails and queue pairs.
//!
//! No socket and no clock is here: both come with each poll.

use core::net::IpAddr;
use std::sync::Arc;

use doorbell_core::handshake::{Agreed, Established, Io, Responder, ResponderConfig, Step};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Endpoint, InstanceId, Reject, VersionRange};
use doorbell_core::{Deadline, Instant, Psn};

use crate::connect::bring_up::{self, Agreement, Ground, Ready};
use crate::connect::handshakes::Settings;
use crate::connect::node::Draw;
use crate::error::ConnectError;
use crate::rails::{NodeRail, Rails};
use crate::trust::Trust;
use crate::worker::config::ChannelConfig;
use crate::worker::promised::{Place, Supply};
use doorbell_core::network::Network;

/// Accepting side of the handshake with one peer.
pub(crate) struct Answer {
    machine: Responder<Trust>,
    trust: Trust,
    rails: Rails,
    config: ChannelConfig,
    psn: Psn,
    from: IpAddr,
}

/// Next step that an answer needs.
pub(crate) enum Next {
    /// Bytes of the peer, or room for ours.
    Nothing,
    /// A queue pair, connected to this one: repeated until there is one, or it is refused.
    QueuePair(Wanted),
    /// Nothing more: both sides are ready.
    Admission(Established),
}

/// The queue pair that a peer is to be connected to.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) rail: NodeRail,
    pub(crate) rail_index: u8,
    pub(crate) peer: Endpoint,
    /// The process that it is.
    pub(crate) peer_instance: Option<InstanceId>,
    /// Source address of its stream, which the peer cannot forge as it can its list of rails.
    pub(crate) from: IpAddr,
    pub(crate) config: ChannelConfig,
    pub(crate) psn: Psn,
}

impl Wanted {
    /// Makes it, of what its Worker promised. On any thread.
    pub(crate) fn make<P: Provider>(
        &self,
        place: Place<P>,
        supply: Supply<P>,
        ground: &Ground<P>,
    ) -> Result<Made<P>, ConnectError> {
        let (rail, config) = (&self.rail, &self.config);
        // Declared before the memory, so that it goes behind that where something fails.
        let _reservation = Arc::clone(&place.reservation);
        let supply = supply;
        let pending = bring_up::prepare(place, ground, rail, self.rail_index, config, self.psn)?;
        let local = pending.local;
        let agreement = Agreement {
            peer: self.peer,
            agreed: Agreed::between(&local.parameters, &self.peer.parameters),
        };
        let ready = bring_up::connect(pending, supply, ground, rail, config, &agreement)?;
        Ok(Made { local, ready })
    }
}

/// A queue pair that may be announced to a peer.
pub(crate) struct Made<P: Provider> {
    pub(crate) local: Endpoint,
    pub(crate) ready: Ready<P>,
}

impl Answer {
    /// The handshake with a peer whose stream comes from this address.
    pub(crate) fn new<N: Network>(
        network: &N,
        instance: InstanceId,
        rails: Rails,
        settings: &Settings,
        trust: Trust,
        from: IpAddr,
    ) -> Result<Self, ConnectError> {
        let draw = Draw::new(network)?;
        let responder = ResponderConfig {
            instance,
            nonce: draw.nonce,
            timing: settings.timing,
            versions: VersionRange::OURS,
        };
        let machine = Responder::with(responder, trust.clone(), rails.advertised(), network.now())?;
        Ok(Self {
            machine,
            trust,
            rails,
            config: settings.config,
            psn: draw.psn,
            from,
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

    /// Moves as far as it can.
    ///
    /// # Errors
    /// It came to nothing. The peer was notified, as far as the stream still took the frame.
    pub(crate) fn poll(&mut self, now: Instant, io: &mut impl Io) -> Result<Next, ConnectError> {
        match self.machine.poll(now, io) {
            Step::Prepare(prepare) => {
                let theirs = self.machine.peer_rails().get(usize::from(prepare.peer.rail));
                if let Err(error) = self.trust.check_rail(theirs) {
                    self.refuse(now, io, bring_up::reject_for(&error));
                    return Err(error);
                }
                let rail = self.rails.get(usize::from(prepare.local_rail));
                Ok(Next::QueuePair(Wanted {
                    rail: rail.ok_or(ConnectError::Unreachable(
                        "the rail that a peer chose was checked and is gone",
                    ))?,
                    rail_index: prepare.local_rail,
                    peer: prepare.peer,
                    peer_instance: self.machine.peer_instance(),
                    from: self.from,
                    config: self.config,
                    psn: self.psn,
                }))
            }
            Step::Connected(established) => Ok(Next::Admission(established)),
            Step::Failed(error) => Err(error.into()),
            _ => Ok(Next::Nothing),
        }
    }

    /// Answers [`Next::QueuePair`]: this is the one.
    pub(crate) fn accept(&mut self, now: Instant, local: Endpoint) -> Result<(), ConnectError> {
        Ok(self.machine.accept(now, local)?)
    }

    /// Gives up, and notifies the peer, as far as the stream takes the frame.
    pub(crate) fn refuse(&mut self, now: Instant, io: &mut impl Io, reject: Reject) {
        if self.machine.reject(reject).is_ok() {
            self.machine.poll(now, io);
        }
    }
}
