//! The listening side of one connection: the handshake's answers, made of rails and queue pairs.
//!
//! No socket and no clock is here: both come with each poll.

use doorbell_core::handshake::{Agreed, Io, Responder, ResponderConfig, Step, Timing};
use doorbell_core::provider::Provider;
use doorbell_core::wire::InstanceId;
use doorbell_core::{Deadline, Instant, Psn};

use crate::bring_up::{self, Agreement, Ready};
use crate::error::ConnectError;
use crate::node::{Connection, Draw};
use crate::rails::Rails;
use crate::{ChannelConfig, Worker};

/// A peer's connection on its way.
pub(crate) struct Answer<P: Provider> {
    machine: Responder,
    rails: Rails,
    config: ChannelConfig,
    psn: Psn,
    /// The queue pair in RTS and its Worker, once the peer has said where it is.
    ready: Option<(usize, Ready<P>)>,
}

impl<P: Provider> Answer<P> {
    pub(crate) fn new(
        instance: InstanceId,
        rails: Rails,
        config: &ChannelConfig,
        timing: Timing,
        draw: &Draw,
        now: Instant,
    ) -> Result<Self, ConnectError> {
        let responder = ResponderConfig {
            instance,
            nonce: draw.nonce,
            timing,
        };
        let machine =
            Responder::new(responder, rails.advertised(), now).map_err(|_| ConnectError::NoRails)?;
        Ok(Self {
            machine,
            rails,
            config: *config,
            psn: draw.psn,
            ready: None,
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

    /// Moves as far as it can; the outcome once there is one.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        io: &mut impl Io,
        workers: &mut [Worker<P>],
    ) -> Option<Result<Connection, ConnectError>> {
        loop {
            let prepare = match self.machine.poll(now, io) {
                Step::Prepare(prepare) => prepare,
                Step::Connected(established) => {
                    let (worker, ready) = self.ready.take()?;
                    return Some(bring_up::admit(ready, workers, worker, established));
                }
                Step::Failed(error) => return Some(Err(error.into())),
                _ => return None,
            };
            let accepted = self.accept(now, workers, prepare.local_rail, |local| Agreement {
                peer: prepare.peer,
                agreed: Agreed::between(local, &prepare.peer.parameters),
            });
            if let Err(error) = accepted {
                // The peer is told once, as far as the stream still takes it; what is told to
                // our caller is the cause and not that we gave up.
                if self.machine.reject(bring_up::reject_for(&error)).is_ok() {
                    self.machine.poll(now, io);
                }
                return Some(Err(error));
            }
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        workers: &mut [Worker<P>],
        rail_index: u8,
        agree: impl FnOnce(&doorbell_core::wire::EndpointParameters) -> Agreement,
    ) -> Result<(), ConnectError> {
        let rail = self
            .rails
            .get(usize::from(rail_index))
            .ok_or(ConnectError::NoRails)?;
        let worker = workers.get_mut(rail.worker).ok_or(ConnectError::OtherWorkers)?;
        let pending = bring_up::prepare(worker, &rail, rail_index, &self.config, self.psn)?;
        let local = pending.local;
        let ready = bring_up::connect(pending, worker, &rail, &self.config, &agree(&local.parameters))?;
        self.machine.accept(now, local)?;
        self.ready = Some((rail.worker, ready));
        Ok(())
    }
}
