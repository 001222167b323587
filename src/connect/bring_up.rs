//! From an agreement with a peer to a channel: the queue pair made, connected and filled.

use core::time::Duration;
use std::sync::{Arc, Weak};

use doorbell_core::handshake::{Agreed, Established};
use doorbell_core::provider::{
    AddressVector, Context, LookFailure, PostError, ProtectionDomain, Provider, QueuePair, QueuePairConfig,
    ReadyToReceive, ReadyToSend, ReceivesClaim, RemoteAccess, RemoteAddress,
};
use doorbell_core::wire::{Endpoint, EndpointParameters, Reject, RejectReason, VERSION_AUTHENTICATED};
use doorbell_core::{Psn, in_place};
use doorbell_hotpath::{
    Announcer, Credits, FarewellWord, Flow, Receiver, ReceiverConfig, RequestLimits, Sender, SenderConfig,
    Statistics, WindowWord, marks_for,
};

use crate::connect::node::Connection;
use crate::error::ConnectError;
use crate::rails::NodeRail;
use crate::worker::Worker;
use crate::worker::cells::Cells;
use crate::worker::channel::Channel;
use crate::worker::channel::ChannelId;
use crate::worker::config::ChannelConfig;
use crate::worker::ending::{Care, Ending};
use crate::worker::half::{ReceiveHalf, SendHalf};
use crate::worker::half::{Receiving, Sending};
use crate::worker::peer::Peer;
use crate::worker::promised::{Place, Supplied, Supply};
use crate::worker::submission::Records;
use crate::worker::{Notice, Reservation};

/// Objects that queue pairs of a Worker are made from; other threads may hold them, too.
pub(crate) struct Ground<P: Provider> {
    /// The Worker's own: it ends with the Worker.
    cells: Weak<Cells<P>>,
    domain: Arc<P::ProtectionDomain>,
    context: Arc<P::Context>,
    statistics: Arc<Statistics>,
    slot_bytes: u32,
}

impl<P: Provider> Ground<P> {
    pub(crate) fn of(worker: &Worker<P>) -> Self {
        Self {
            cells: Arc::downgrade(&worker.cells),
            domain: Arc::clone(&worker.domain),
            context: Arc::clone(&worker.context),
            statistics: Arc::clone(&worker.statistics),
            slot_bytes: worker.slot_bytes(),
        }
    }

    /// Whether it is of this Worker.
    pub(crate) fn is_of(&self, worker: &Worker<P>) -> bool {
        Arc::ptr_eq(&self.statistics, &worker.statistics)
    }
}

/// A queue pair made for a connection that is not agreed yet. Dropping it undoes everything.
pub(crate) struct Pending<P: Provider> {
    control: P::QueuePair,
    send: P::SendQueue,
    /// None where its receives are shared.
    receive: Option<P::ReceiveQueue>,
    word: WindowWord<Arc<P::Window>>,
    /// Bytes of one request at most, on the port.
    request_bytes_max: u32,
    /// Parameters of our side, as the peer gets them.
    pub(crate) local: Endpoint,
    // Goes last, once the queue pair is gone.
    pub(crate) reservation: Arc<Reservation>,
}

/// Makes a queue pair in INIT on `rail` and returns its parameters for the peer. On any thread: devices take long.
pub(crate) fn prepare<P: Provider>(
    place: Place<P>,
    ground: &Ground<P>,
    rail: &NodeRail,
    rail_index: u8,
    config: &ChannelConfig,
    psn: Psn,
) -> Result<Pending<P>, ConnectError> {
    // Before what is made below, so that it goes behind that where something fails.
    let reservation = place.reservation;
    let is_shared = matches!(place.receives, ReceivesClaim::Shared(_));
    let asked = QueuePairConfig {
        channel: reservation.id.index,
        send_depth: config.sends_in_flight(),
        receive_depth: if is_shared { 0 } else { config.receive_depth },
        gather_max: config.gather_max,
        scatter_max: u8::from(!is_shared),
        inline_bytes_max: config.inline_bytes_max.max(ANNOUNCEMENT_BYTES),
    };
    let port = rail.port;
    let request_bytes_max = ground.context.request_bytes_max(port).map_err(|error| {
        let port = Some(port);
        ConnectError::Port(LookFailure { port, error })
    })?;
    let mut parts = ground.domain.queue_pair_of(place.sends, place.receives, &asked)?;
    let cells = ground.cells.upgrade().ok_or(ConnectError::OtherWorkers)?;
    cells
        .furnish(
            &mut parts.send,
            &ground.domain,
            asked.send_depth,
            config.cell_bytes,
        )
        .map_err(ConnectError::Cells)?;
    let mut control = parts.control;
    // The peer announces its receives by WRITE.
    let remote = RemoteAccess {
        write: true,
        ..config.remote
    };
    control.initialize(rail.port, remote)?;
    reservation.note_queue_pair(control.qpn());
    let limits = ground.context.limits();
    let local = Endpoint {
        rail: rail_index,
        gid: rail.gid,
        qpn: control.qpn(),
        psn,
        parameters: EndpointParameters {
            mtu: rail.active_mtu.min(config.mtu_max),
            max_rd_atomic: config.rd_atomic_max.min(limits.max_rd_atomic),
            max_dest_rd_atomic: config.rd_atomic_max.min(limits.max_dest_rd_atomic),
            traffic_class: config.traffic_class,
            flow_label: config.flow_label,
            service_level: config.service_level,
            receive_depth: config.receive_depth,
            slot_bytes: ground.slot_bytes,
        },
        credit: place.credit,
        session: config.session,
        private_data: config.private_data,
    };
    Ok(Pending {
        control,
        send: parts.send,
        receive: parts.receive,
        word: place.word,
        request_bytes_max,
        local,
        reservation,
    })
}

/// Terms of a connection, once each side has stated its own.
pub(crate) struct Agreement {
    pub(crate) peer: Endpoint,
    pub(crate) agreed: Agreed,
}

/// Connects the queue pair: RTR, receives, RTS, in this order, so that a receive is there
/// before the peer can send. On any thread: a neighbour that does not answer takes seconds.
pub(crate) fn connect<P: Provider>(
    pending: Pending<P>,
    supply: Supply<P>,
    ground: &Ground<P>,
    rail: &NodeRail,
    config: &ChannelConfig,
    agreement: &Agreement,
) -> Result<Ready<P>, ConnectError> {
    // Before what is taken apart below, so that it goes behind that where something fails.
    let reservation = Arc::clone(&pending.reservation);
    let Pending {
        mut control,
        send,
        receive,
        word,
        request_bytes_max,
        local,
        ..
    } = pending;
    let peer = &agreement.peer;
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
        address: AddressVector {
            destination: peer.gid,
            source_gid_index: rail.gid_index,
            port: rail.port,
            hop_limit: config.hop_limit,
            traffic_class: config.traffic_class,
            flow_label: config.flow_label,
            service_level: config.service_level,
        },
        path_mtu: agreement.agreed.mtu,
        destination_qpn: peer.qpn,
        receive_psn: peer.psn,
        max_dest_rd_atomic: agreement.agreed.max_dest_rd_atomic,
        min_rnr_timer: config.min_rnr_timer,
    })?;
    let (receiver, posted) = receiving(receive, supply, ground, config)?;
    control.ready_to_send(&ReadyToSend {
        send_psn: local.psn,
        max_rd_atomic: agreement.agreed.max_rd_atomic,
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
            rd_atomic_max: agreement.agreed.max_rd_atomic,
            atomics: ground.context.limits().atomics,
            domain: ground.domain.id(),
        },
    };
    let Ok(sender) = Sender::new(send, marks, flow, Arc::clone(&ground.statistics), &sender_config) else {
        return Err(ConnectError::Unreachable(
            "the marks of a send queue are not for its depth",
        ));
    };
    let limits = control.limits();
    let farewell = FarewellWord::new(farewell, local.credit.start);
    Ok(Ready {
        farewell,
        close_when_lost: config.close_when_lost,
        probe_after: config.probe_after,
        port: rail.port,
        inline_alone_bytes_max: config
            .inline_alone_bytes_max
            .min(config.inline_bytes_max)
            .min(limits.inline_bytes_max),
        posted,
        sender,
        receiver,
        control,
        reservation,
    })
}

/// Sees to it that the peer may use every receive announced to it; says how many were posted for that.
fn receiving<P: Provider>(
    queue: Option<P::ReceiveQueue>,
    supply: Supply<P>,
    ground: &Ground<P>,
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
                Arc::clone(&ground.statistics),
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
        // They are of one Worker, which has the one or the other.
        _ => Err(ConnectError::OtherWorkers),
    }
}

/// An announcement of receives goes inline.
const ANNOUNCEMENT_BYTES: u32 = 8;

/// A queue pair in RTS whose peer has not yet said that it is too.
pub(crate) struct Ready<P: Provider> {
    farewell: FarewellWord<Arc<P::Window>>,
    close_when_lost: bool,
    probe_after: Option<Duration>,
    port: u8,
    inline_alone_bytes_max: u32,
    /// Receives posted on a queue of its own, that are not counted yet.
    posted: u32,
    sender: Sending<P>,
    receiver: Receiving<P>,
    control: P::QueuePair,
    reservation: Arc<Reservation>,
}

impl<P: Provider> Ready<P> {
    /// Says that its peer is ready, too, and waits for nothing more.
    pub(crate) fn note_finished(&self) {
        self.reservation.note_finished();
    }
}

/// Admits the channel to one of these Workers.
///
/// # Errors
/// It is not the Worker the queue pair was made on.
pub(crate) fn admit<P: Provider>(
    ready: Ready<P>,
    workers: &mut [Worker<P>],
    at: usize,
    established: Established,
) -> Result<Connection, ConnectError> {
    let worker = workers.get_mut(at).ok_or(ConnectError::OtherWorkers)?;
    let channel = admit_to(ready, worker, established)?;
    Ok(Connection { worker: at, channel })
}

/// Admits the channel to its Worker.
///
/// # Errors
/// It is not the Worker the queue pair was made on.
pub(crate) fn admit_to<P: Provider>(
    ready: Ready<P>,
    worker: &mut Worker<P>,
    established: Established,
) -> Result<ChannelId, ConnectError> {
    let Ready {
        farewell,
        close_when_lost,
        probe_after,
        port,
        inline_alone_bytes_max,
        posted,
        sender,
        receiver,
        control,
        reservation,
    } = ready;
    let says_farewell = established.version >= VERSION_AUTHENTICATED;
    let care = Care::new(says_farewell, close_when_lost, probe_after);
    let peer = Peer::new(&established);
    let notice = Notice::new(&worker.sends.noticed, reservation.id.index);
    let channel = worker.admit(Channel {
        receive: ReceiveHalf {
            receiver,
            farewell,
            ending: Ending::default(),
            reservation: Arc::clone(&reservation),
            user: 0,
        },
        send: SendHalf {
            records: Records::none(reservation.id),
            deferred: None,
            is_closed: false,
            sender,
            control,
            notice,
            reservation,
            peer,
            port,
            inline_alone_bytes_max,
            user: 0,
            ending: Ending::default(),
            care,
        },
    })?;
    worker.statistics.receives_posted.add(posted.into());
    Ok(channel)
}

/// Reject for a failure of our side; `busy` if there is no room for the peer.
pub(crate) fn reject_or(error: &ConnectError, busy: Reject) -> Reject {
    let reject = reject_for(error);
    if reject.reason == RejectReason::BUSY {
        return busy;
    }
    reject
}

/// Reject for a failure of our side.
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
        | ConnectError::TooManyUnfinishedFrom(_)
        | ConnectError::PortsTimedOut
        | ConnectError::TooManyLinks { .. }
        | ConnectError::TooManyLinksFrom { .. } => Reject::new(RejectReason::BUSY),
        ConnectError::ListenerClosed => Reject::new(RejectReason::CLOSING),
        _ => Reject::new(RejectReason::PARAMETERS),
    }
}
