//! The accepting side of one handshake: which rails it offers, and which queue pair it needs.
//!
//! This file uses no socket and no clock: the caller passes the stream and the time to each poll.

use core::net::IpAddr;
use doorbell_core::handshake::{Established, Io, Responder, ResponderConfig, Step};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Endpoint, InstanceId, Reject, VersionRange};
use doorbell_core::{Deadline, Instant, Psn};

use crate::connect::attempt::{Requested, Reserved, reject_for};
use crate::connect::handshakes::Settings;
use crate::connect::node::Entropy;
use crate::error::ConnectError;
use crate::rails::Rails;
use crate::trust::Trust;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;
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
    /// Waits for bytes of the peer, or for room in the stream.
    Nothing,
    /// Needs a queue pair that is connected to the peer's. Each poll returns this step until [`Answer::accept`] or [`Answer::reject`].
    QueuePair(PeerRequest),
    /// Both sides are ready: the channel can be admitted.
    Admission(Established),
}

/// Request of a peer for a channel.
#[derive(Clone, Copy)]
pub(crate) struct PeerRequest {
    pub(crate) requested: Requested,
    pub(crate) peer: Endpoint,
    /// The instance of the peer's process.
    pub(crate) peer_instance: Option<InstanceId>,
    /// Source address of the TCP stream. A peer can forge its list of rails, but not this address.
    pub(crate) from: IpAddr,
}

impl PeerRequest {
    /// Reserves everything on the Worker that the channel needs, memory for the receives included.
    ///
    /// # Errors
    /// The Worker has no room for the channel.
    pub(crate) fn reserve<P: Provider>(&self, worker: &mut Worker<P>) -> Result<Reserved<P>, ConnectError> {
        let mut requested = self.requested;
        if let Some(classes) = &worker.classes {
            let class = &mut requested.config.class;
            *class = classes.accepted(*class, &self.peer.parameters);
        }
        let reserved = requested.reserve(worker, Some(self.from))?;
        reserved.supply(worker, self.peer.credit.start)
    }
}

impl Answer {
    /// Begins the handshake with a peer whose stream comes from this address.
    pub(crate) fn new<N: Network>(
        network: &N,
        instance: InstanceId,
        rails: Rails,
        settings: &Settings,
        trust: Trust,
        from: IpAddr,
    ) -> Result<Self, ConnectError> {
        let entropy = Entropy::new(network)?;
        let responder = ResponderConfig {
            instance,
            nonce: entropy.nonce,
            timing: settings.timing,
            versions: VersionRange::OURS,
        };
        let machine = Responder::with(responder, trust.clone(), rails.advertised(), network.now())?;
        Ok(Self {
            machine,
            trust,
            rails,
            config: settings.config,
            psn: entropy.psn,
            from,
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

    /// Advances the handshake as far as possible, and returns the next step.
    ///
    /// # Errors
    /// The handshake failed. The peer gets a Reject, if the stream accepts the frame.
    pub(crate) fn poll(&mut self, now: Instant, io: &mut impl Io) -> Result<Next, ConnectError> {
        match self.machine.poll(now, io) {
            Step::Prepare(prepare) => {
                let theirs = self.machine.peer_rails().get(usize::from(prepare.peer.rail));
                if let Err(error) = self.trust.check_rail(theirs) {
                    self.reject(now, io, reject_for(&error));
                    return Err(error);
                }
                let rail = self.rails.get(usize::from(prepare.local_rail));
                Ok(Next::QueuePair(PeerRequest {
                    requested: Requested {
                        rail: rail.ok_or(ConnectError::Unreachable(
                            "the rail that a peer chose was checked and is gone",
                        ))?,
                        rail_index: prepare.local_rail,
                        config: self.config,
                        psn: self.psn,
                    },
                    peer: prepare.peer,
                    peer_instance: self.machine.peer_instance(),
                    from: self.from,
                }))
            }
            Step::Connected(established) => Ok(Next::Admission(established)),
            Step::Failed(error) => Err(error.into()),
            _ => Ok(Next::Nothing),
        }
    }

    /// Answers [`Next::QueuePair`] with the endpoint of the queue pair.
    pub(crate) fn accept(&mut self, now: Instant, local: Endpoint) -> Result<(), ConnectError> {
        Ok(self.machine.accept(now, local)?)
    }

    /// Gives up, and sends this Reject to the peer, if the stream accepts the frame.
    pub(crate) fn reject(&mut self, now: Instant, io: &mut impl Io, reject: Reject) {
        if self.machine.reject(reject).is_ok() {
            self.machine.poll(now, io);
        }
    }
}
