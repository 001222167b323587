//! One connection attempt, stage by stage. The connecting side and the accepting side use the same stages.
//!
//! | stage | the attempt has | next |
//! |---|---|---|
//! | [`Requested`] | a rail and a configuration | [`Requested::reserve`], on the Worker's thread |
//! | [`Reserved`] | a place on the Worker, and room in the completion queues | [`Reserved::create`], on any thread |
//! | [`Created`] | a queue pair in INIT | [`Created::connect`], on any thread |
//! | [`Connected`] | the queue pair in RTS, its receives posted | [`Connected::finish`], when the peer is ready, too |
//! | [`Finished`] | the negotiated settings | [`Finished::admit`], on the Worker's thread: a channel |
//!
//! Dropping an attempt undoes everything. The reservation is dropped last, since afterwards another channel may use the place on the
//! Worker.

use core::net::IpAddr;
use std::sync::{Arc, Weak};

use doorbell_core::handshake::{Agreed, Established};
use doorbell_core::provider::{
    Context, LookFailure, PostError, ProtectionDomain, Provider, QueuePair, QueuePairConfig, ReadyToReceive,
    ReadyToSend, ReceivesClaim, RemoteAccess, RemoteAddress,
};
use doorbell_core::wire::{Endpoint, EndpointParameters, Reject, RejectReason, VERSION_AUTHENTICATED};
use doorbell_core::{Psn, in_place};
use doorbell_hotpath::{
    Announcer, Credits, FarewellWord, Flow, Receiver, ReceiverConfig, RequestLimits, Sender, SenderConfig,
    Statistics, WindowWord, marks_for,
};

use crate::error::ConnectError;
use crate::rails::NodeRail;
use crate::worker::Worker;
use crate::worker::cells::Cells;
use crate::worker::channel::Channel;
use crate::worker::channel::ChannelId;
use crate::worker::class::Classes;
use crate::worker::config::ChannelConfig;
use crate::worker::ending::{Care, Ending, MissingMessages};
use crate::worker::half::{ReceiveHalf, SendHalf};
use crate::worker::half::{Receiving, Sending};
use crate::worker::peer::Peer;
use crate::worker::promised::{Promised, Supplied, Supply};
use crate::worker::submission::Records;
use crate::worker::{Notice, Reservation};

/// The objects of a Worker that its queue pairs are made from. Threads that make queue pairs hold them, too.
struct Parents<P: Provider> {
    /// Weak, since the cells end with the Worker.
    cells: Weak<Cells<P>>,
    domain: Arc<P::ProtectionDomain>,
    context: Arc<P::Context>,
    statistics: Arc<Statistics>,
    slot_bytes: u32,
}

/// A channel that is to be made on a rail.
#[derive(Clone, Copy)]
pub(crate) struct Requested {
    pub(crate) rail: NodeRail,
    pub(crate) rail_index: u8,
    pub(crate) config: ChannelConfig,
    pub(crate) psn: Psn,
}

impl Requested {
    /// Reserves a place on the Worker. `from` is the address of a peer that connects, for the limits of one address. The call takes
    /// microseconds, and calls no device.
    ///
    /// # Errors
    /// As for [`Worker::promise`].
    pub(crate) fn reserve<P: Provider>(
        self,
        worker: &mut Worker<P>,
        from: Option<IpAddr>,
    ) -> Result<Reserved<P>, ConnectError> {
        let requested = self.marked(worker.classes.as_deref());
        Ok(Reserved {
            supply: None,
            promised: worker.promise(&requested.config, from)?,
            parents: Parents {
                cells: Arc::downgrade(&worker.cells),
                domain: Arc::clone(&worker.domain),
                context: Arc::clone(&worker.context),
                statistics: Arc::clone(&worker.statistics),
                slot_bytes: worker.slot_bytes(),
            },
            requested,
        })
    }

    /// Sets the traffic class and the service level of the configured class.
    fn marked(mut self, classes: Option<&Classes>) -> Self {
        if let Some(classes) = classes {
            let class = classes.class(self.config.class);
            self.config.traffic_class = class.traffic_class;
            self.config.service_level = class.service_level;
        }
        self
    }
}

/// An attempt with a place on a Worker.
pub(crate) struct Reserved<P: Provider> {
    // Dropped first: the Worker gets the memory back before the reservation ends.
    supply: Option<Supply<P>>,
    promised: Promised<P>,
    parents: Parents<P>,
    requested: Requested,
}

impl<P: Provider> Reserved<P> {
    /// Takes memory for the receives from the Worker. The credit count begins at `start`.
    ///
    /// # Errors
    /// As for [`Worker::supply`].
    pub(crate) fn supply(mut self, worker: &mut Worker<P>, start: u32) -> Result<Self, ConnectError> {
        self.supply = Some(worker.supply(self.reservation(), start, &self.requested.config)?);
        Ok(self)
    }

    /// Returns the reservation. It lasts until the attempt is dropped, or its channel is closed.
    pub(crate) const fn reservation(&self) -> &Arc<Reservation> {
        &self.promised.reservation
    }

    /// Makes a queue pair in INIT. It is slow, and may run on any thread.
    pub(crate) fn create(self) -> Result<Created<P>, ConnectError> {
        // If a call below fails, these variables are dropped in an order that ends the reservation after all that it covers.
        let Self {
            parents,
            requested,
            promised:
                Promised {
                    reservation,
                    sends,
                    receives,
                    word,
                    credit,
                },
            supply,
        } = self;
        let (rail, config) = (&requested.rail, &requested.config);
        let is_shared = matches!(receives, ReceivesClaim::Shared(_));
        let asked = QueuePairConfig {
            channel: reservation.id.index,
            send_depth: config.sends_in_flight(),
            receive_depth: if is_shared { 0 } else { config.receive_depth },
            gather_max: config.gather_max,
            scatter_max: u8::from(!is_shared),
            inline_bytes_max: config.inline_bytes_max.max(ANNOUNCEMENT_BYTES),
        };
        let port = rail.port;
        let request_bytes_max = parents.context.request_bytes_max(port).map_err(|error| {
            let port = Some(port);
            ConnectError::Port(LookFailure { port, error })
        })?;
        let mut parts = parents.domain.queue_pair_of(sends, receives, &asked)?;
        let cells = parents.cells.upgrade().ok_or(ConnectError::OtherWorkers)?;
        cells
            .furnish(
                &mut parts.send,
                &parents.domain,
                asked.send_depth,
                config.cell_bytes,
            )
            .map_err(ConnectError::Cells)?;
        let mut control = parts.control;
        // The peer announces its receives by an RDMA WRITE.
        let remote = RemoteAccess {
            write: true,
            ..config.remote
        };
        control.initialize(rail.port, remote)?;
        reservation.note_queue_pair(control.qpn());
        let limits = parents.context.limits();
        let local = Endpoint {
            rail: requested.rail_index,
            gid: rail.gid,
            qpn: control.qpn(),
            psn: requested.psn,
            parameters: EndpointParameters {
                mtu: rail.active_mtu.min(config.mtu_max),
                max_rd_atomic: config.rd_atomic_max.min(limits.max_rd_atomic),
                max_dest_rd_atomic: config.rd_atomic_max.min(limits.max_dest_rd_atomic),
                traffic_class: config.traffic_class,
                flow_label: config.flow_label,
                service_level: config.service_level,
                receive_depth: config.receive_depth,
                slot_bytes: parents.slot_bytes,
            },
            credit,
            session: config.session,
            private_data: config.private_data,
        };
        Ok(Created {
            supply,
            control,
            send: parts.send,
            receive: parts.receive,
            word,
            request_bytes_max,
            local,
            requested,
            parents,
            reservation,
        })
    }
}

/// A queue pair that is not connected yet.
pub(crate) struct Created<P: Provider> {
    supply: Option<Supply<P>>,
    control: P::QueuePair,
    send: P::SendQueue,
    /// `None` if the Worker has shared receives.
    receive: Option<P::ReceiveQueue>,
    word: WindowWord<Arc<P::Window>>,
    /// The maximum size of one request on the port, in bytes.
    request_bytes_max: u32,
    /// The endpoint of this side, as it is sent to the peer.
    pub(crate) local: Endpoint,
    requested: Requested,
    parents: Parents<P>,
    // Dropped last, after the queue pair.
    reservation: Arc<Reservation>,
}

impl<P: Provider> Created<P> {
    /// Takes memory for the receives from the Worker of the reservation, as [`Reserved::supply`] does.
    pub(crate) fn supply(&mut self, workers: &mut [Worker<P>], start: u32) -> Result<(), ConnectError> {
        let worker = workers.get_mut(self.requested.rail.worker);
        let worker = worker.ok_or(ConnectError::OtherWorkers)?;
        self.supply = Some(worker.supply(&self.reservation, start, &self.requested.config)?);
        Ok(())
    }

    /// Connects the queue pair to the peer's: RTR, receives, RTS, in this order. So receives are posted before the peer can send.
    /// May run on any thread. If the neighbour does not answer, the call takes seconds.
    pub(crate) fn connect(self, peer: &Endpoint) -> Result<Connected<P>, ConnectError> {
        // If a call below fails, these variables are dropped in an order that ends the reservation after all that it covers.
        let Self {
            reservation,
            parents,
            requested,
            supply: Some(supply),
            mut control,
            send,
            receive,
            word,
            request_bytes_max,
            local,
        } = self
        else {
            return Err(ConnectError::Unreachable(
                "a queue pair was to be connected without its receives",
            ));
        };
        let (rail, config) = (&requested.rail, &requested.config);
        let agreed = Agreed::between(&local.parameters, &peer.parameters);
        let farewell = word.clone();
        let flow = Flow {
            credits: Credits::new(local.credit.start, peer.parameters.receive_depth),
            word,
            announcer: Announcer::new(
                Arc::clone(&supply.grants),
                config.receive_depth,
                RemoteAddress::new(peer.credit.address, peer.credit.rkey),
            ),
        };
        control.ready_to_receive(&ReadyToReceive {
            address: config.address(rail, peer.gid),
            path_mtu: agreed.mtu,
            destination_qpn: peer.qpn,
            receive_psn: peer.psn,
            max_dest_rd_atomic: agreed.max_dest_rd_atomic,
            min_rnr_timer: config.min_rnr_timer,
        })?;
        let (receiver, posted) = receiving(receive, supply, &parents.statistics, config)?;
        control.ready_to_send(&ReadyToSend {
            send_psn: local.psn,
            max_rd_atomic: agreed.max_rd_atomic,
            timeout: config.timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
        })?;
        let depth = control.limits().send_depth;
        let mut marks = vec![0; marks_for(depth)].into_boxed_slice();
        in_place::put(&mut marks, || 0);
        let sender_config = SenderConfig {
            unsignaled_max: config.unsignaled_max,
            limits: RequestLimits {
                message_bytes_max: peer.parameters.slot_bytes,
                request_bytes_max,
                rd_atomic_max: agreed.max_rd_atomic,
                atomics: parents.context.limits().atomics,
                domain: parents.domain.id(),
            },
        };
        let statistics = Arc::clone(&parents.statistics);
        let Ok(sender) = Sender::new(send, marks, flow, statistics, &sender_config) else {
            return Err(ConnectError::Unreachable(
                "the marks of a send queue are not for its depth",
            ));
        };
        let limits = control.limits();
        Ok(Connected {
            farewell: FarewellWord::new(farewell, local.credit.start),
            care: Care::new(config),
            port: rail.port,
            class: config.class,
            inline_alone_bytes_max: u16::try_from(
                config
                    .inline_alone_bytes_max
                    .min(config.inline_bytes_max)
                    .min(limits.inline_bytes_max),
            )
            .unwrap_or(u16::MAX),
            posted,
            sender,
            receiver,
            control,
            local,
            worker: rail.worker,
            reservation,
        })
    }
}

/// Makes the receiving half. The queue pair's own receives are posted here; shared receives are already posted. Returns the number of
/// receives that were posted.
fn receiving<P: Provider>(
    queue: Option<P::ReceiveQueue>,
    supply: Supply<P>,
    statistics: &Arc<Statistics>,
    config: &ChannelConfig,
) -> Result<(Receiving<P>, u32), ConnectError> {
    match (queue, supply.receives) {
        (None, Supplied::Shared(share)) => {
            let has_ended = false;
            Ok((Receiving::Shared { share, has_ended }, 0))
        }
        (Some(queue), Supplied::Own(slots)) => {
            let mut receiver = Receiver::new(
                queue,
                supply.grants,
                Arc::clone(statistics),
                &ReceiverConfig {
                    repost_batch: config.repost_batch,
                },
            );
            let posted = receiver
                .fill_with(slots)
                .map_err(|PostError { cause, .. }| cause)?;
            if posted < config.receive_depth {
                return Err(ConnectError::NoMemory);
            }
            Ok((Receiving::Own(receiver), posted))
        }
        // Queue and supply of one Worker agree: its receives are either shared or not.
        _ => Err(ConnectError::OtherWorkers),
    }
}

/// Inline bytes that each queue pair needs, so that it can send the announcement of receives inline.
const ANNOUNCEMENT_BYTES: u32 = 8;

/// A queue pair in RTS. The peer has not confirmed yet that it is ready, too.
pub(crate) struct Connected<P: Provider> {
    farewell: FarewellWord<Arc<P::Window>>,
    care: Care,
    port: u8,
    class: u8,
    inline_alone_bytes_max: u16,
    /// Receives that were posted on the queue pair's own queue, and that the Worker's statistics do not count yet.
    posted: u32,
    sender: Sending<P>,
    receiver: Receiving<P>,
    control: P::QueuePair,
    /// The endpoint of this side, as it is sent to the peer.
    pub(crate) local: Endpoint,
    /// The index of the Worker in the caller's slice.
    pub(crate) worker: usize,
    reservation: Arc<Reservation>,
}

impl<P: Provider> Connected<P> {
    /// Records that the peer is ready, too, and the handshake is finished.
    pub(crate) fn finish(self, established: Established) -> Finished<P> {
        self.reservation.note_finished();
        Finished {
            connected: self,
            established,
        }
    }
}

/// A queue pair that is in RTS on both sides, and waits to be admitted.
pub(crate) struct Finished<P: Provider> {
    connected: Connected<P>,
    established: Established,
}

impl<P: Provider> Finished<P> {
    /// Admits the channel to its Worker.
    ///
    /// # Errors
    /// The reservation is on another Worker.
    pub(crate) fn admit(self, worker: &mut Worker<P>) -> Result<ChannelId, ConnectError> {
        let Self {
            connected,
            established,
        } = self;
        let Connected {
            farewell,
            mut care,
            port,
            class,
            inline_alone_bytes_max,
            posted,
            sender,
            receiver,
            control,
            reservation,
            ..
        } = connected;
        care.says_farewell = established.version >= VERSION_AUTHENTICATED;
        let peer = Peer::new(&established);
        let notice = Notice::new(&worker.sends.noticed, reservation.id.index);
        let channel = worker.admit(Channel {
            receive: ReceiveHalf {
                receiver,
                farewell,
                ending: Ending::default(),
                missing: MissingMessages::default(),
                reservation: Arc::clone(&reservation),
                user: 0,
            },
            send: SendHalf {
                records: Records::none(reservation.id),
                deferred: None,
                is_closed: false,
                is_without_leases: false,
                sender,
                control,
                notice,
                reservation,
                peer,
                port,
                class,
                inline_alone_bytes_max,
                user: 0,
                ending: Ending::default(),
                care,
            },
        })?;
        worker.statistics.receives_posted.add(posted.into());
        Ok(channel)
    }
}

/// Returns the Reject for a failure of this side. If there is no room for the peer, that is `busy`.
pub(crate) fn reject_or(error: &ConnectError, busy: Reject) -> Reject {
    let reject = reject_for(error);
    if reject.reason == RejectReason::BUSY {
        return busy;
    }
    reject
}

/// Returns the Reject for a failure of this side.
pub(crate) fn reject_for(error: &ConnectError) -> Reject {
    match error {
        ConnectError::NoRoute(_) | ConnectError::NoRails => Reject::new(RejectReason::NO_COMMON_SUBNET),
        ConnectError::Provider(error) | ConnectError::Port(LookFailure { error, .. }) => Reject {
            reason: RejectReason::QUEUE_PAIR,
            detail: u32::try_from(error.errno).unwrap_or(0),
        },
        ConnectError::NotAllowed(_) => Reject::new(RejectReason::NOT_ALLOWED),
        ConnectError::NoRoom { .. }
        | ConnectError::NoShare { .. }
        | ConnectError::NoSlots { .. }
        | ConnectError::NoMemory
        | ConnectError::Cells(_)
        | ConnectError::TooManyChannels { .. }
        | ConnectError::TooManyChannelsFrom { .. }
        | ConnectError::TooManyUnaccepted { .. }
        | ConnectError::TooManyUnfinishedFrom { .. }
        | ConnectError::PortsTimedOut
        | ConnectError::TooManyLinks { .. }
        | ConnectError::TooManyLinksFrom { .. } => Reject::new(RejectReason::BUSY),
        ConnectError::ListenerClosed => Reject::new(RejectReason::CLOSING),
        ConnectError::Entropy(errno) => Reject {
            reason: RejectReason::QUEUE_PAIR,
            detail: u32::try_from(*errno).unwrap_or(0),
        },
        // An endpoint cannot be sent to this peer.
        ConnectError::Configuration(_) | ConnectError::Setting(_) => Reject::new(RejectReason::PARAMETERS),
        // For example, the Worker is gone, or a call of the device panicked. The peer's settings are not the cause.
        _ => Reject::new(RejectReason::QUEUE_PAIR),
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectError, Reject, RejectReason, reject_for, reject_or};

    #[test]
    fn a_reject_has_the_errno_of_this_side_and_blames_no_setting_of_the_peer() {
        let entropy = reject_for(&ConnectError::Entropy(5));
        assert_eq!((entropy.reason, entropy.detail), (RejectReason::QUEUE_PAIR, 5));
        let gone = reject_for(&ConnectError::OtherWorkers);
        assert_eq!((gone.reason, gone.detail), (RejectReason::QUEUE_PAIR, 0));
        // A reason of its own is named where there is one for a lack of room, and for nothing else.
        let busy = Reject::new(RejectReason::NOT_ALLOWED);
        let reason = |error| reject_or(&error, busy).reason;
        assert_eq!(reason(ConnectError::NoMemory), RejectReason::NOT_ALLOWED);
        assert_eq!(reason(ConnectError::ListenerClosed), RejectReason::CLOSING);
    }
}
