//! From an agreement with a peer to a channel: the queue pair made, connected and filled.

use std::sync::Arc;

use doorbell_core::handshake::Established;
use doorbell_core::provider::{
    AddressVector, Context, PostError, ProtectionDomain, Provider, ProviderError, QueuePair, QueuePairConfig,
    QueuePairParts, ReadyToReceive, ReadyToSend,
};
use doorbell_core::wire::{Endpoint, EndpointParameters, Reject, RejectReason};
use doorbell_core::{Psn, Qpn};
use doorbell_hotpath::{Receiver, ReceiverConfig, Sender, SenderConfig, kept_words_for};

use crate::channel::Channel;
use crate::error::ConnectError;
use crate::node::Connection;
use crate::rails::NodeRail;
use crate::worker::Reservation;
use crate::{ChannelConfig, Peer, Worker};

/// A queue pair made for a connection that is not agreed yet. Dropping it undoes everything.
pub(crate) struct Pending<P: Provider> {
    parts: QueuePairParts<P>,
    reservation: Arc<Reservation>,
    /// What our side says of itself.
    pub(crate) local: Endpoint,
}

/// Makes a queue pair in INIT on `rail` and says how it is told to the peer.
pub(crate) fn prepare<P: Provider>(
    worker: &mut Worker<P>,
    rail: &NodeRail,
    rail_index: u8,
    config: &ChannelConfig,
    psn: Psn,
) -> Result<Pending<P>, ConnectError> {
    let reservation = worker.reserve(config.send_depth, config.receive_depth)?;
    let asked = QueuePairConfig {
        channel: reservation.id.index,
        send_depth: config.send_depth,
        receive_depth: config.receive_depth,
        gather_max: config.gather_max,
        scatter_max: 1,
        inline_bytes_max: config.inline_bytes_max,
    };
    let mut parts =
        worker
            .domain
            .queue_pair(&worker.send_completions, &worker.receive_completions, &asked)?;
    parts.control.initialize(rail.port, config.remote)?;
    let limits = worker.context.limits();
    let local = Endpoint {
        rail: rail_index,
        gid: rail.gid,
        qpn: parts.control.qpn(),
        psn,
        parameters: EndpointParameters {
            mtu: rail.active_mtu.min(config.mtu_max),
            max_rd_atomic: config.rd_atomic_max.min(limits.max_rd_atomic),
            max_dest_rd_atomic: config.rd_atomic_max.min(limits.max_dest_rd_atomic),
            traffic_class: config.traffic_class,
            flow_label: config.flow_label,
            service_level: config.service_level,
            receive_depth: config.receive_depth,
            slot_bytes: worker.slot_bytes(),
        },
        private_data: config.private_data,
    };
    Ok(Pending {
        parts,
        reservation,
        local,
    })
}

/// What a connection goes by once both sides have said theirs.
pub(crate) struct Agreement {
    /// The peer's GID.
    pub(crate) gid: doorbell_core::Gid,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) agreed: doorbell_core::handshake::Agreed,
}

/// Connects the queue pair: RTR, receives, RTS, in this order, so that a receive is there
/// before the peer can send.
pub(crate) fn connect<P: Provider>(
    pending: Pending<P>,
    worker: &mut Worker<P>,
    rail: &NodeRail,
    config: &ChannelConfig,
    agreement: &Agreement,
) -> Result<Ready<P>, ConnectError> {
    let Pending {
        parts: QueuePairParts {
            mut control,
            send,
            receive,
        },
        reservation,
        local,
    } = pending;
    let mut receiver = Receiver::new(
        receive,
        &ReceiverConfig {
            repost_batch: config.repost_batch,
        },
    );
    control.ready_to_receive(&ReadyToReceive {
        address: AddressVector {
            destination: agreement.gid,
            source_gid_index: rail.gid_index,
            port: rail.port,
            hop_limit: config.hop_limit,
            traffic_class: config.traffic_class,
            flow_label: config.flow_label,
            service_level: config.service_level,
        },
        path_mtu: agreement.agreed.mtu,
        destination_qpn: agreement.qpn,
        receive_psn: agreement.psn,
        max_dest_rd_atomic: agreement.agreed.max_dest_rd_atomic,
        min_rnr_timer: config.min_rnr_timer,
    })?;
    receiver
        .replenish(&mut worker.arena)
        .map_err(|PostError { cause, .. }| cause)?;
    if config.receive_depth > 0 && receiver.in_flight() == 0 {
        return Err(ConnectError::NoMemory);
    }
    control.ready_to_send(&ReadyToSend {
        send_psn: local.psn,
        max_rd_atomic: agreement.agreed.max_rd_atomic,
        timeout: config.timeout,
        retry_count: config.retry_count,
        rnr_retry: config.rnr_retry,
    })?;
    let depth = control.limits().send_depth;
    let kept = vec![0; kept_words_for(depth)].into_boxed_slice();
    let sender_config = SenderConfig {
        unsignaled_max: config.unsignaled_max,
    };
    let Ok(sender) = Sender::new(send, kept, &sender_config) else {
        return Err(ConnectError::Provider(ProviderError {
            call: "queue pair depth",
            errno: EINVAL,
        }));
    };
    Ok(Ready {
        sender,
        receiver,
        control,
        reservation,
    })
}

const EINVAL: i32 = 22;

/// A queue pair in RTS whose peer has not yet said that it is too.
pub(crate) struct Ready<P: Provider> {
    sender: Sender<P::SendQueue, Box<[u64]>>,
    receiver: Receiver<P::ReceiveQueue>,
    control: P::QueuePair,
    reservation: Arc<Reservation>,
}

/// Admits the channel to its Worker.
///
/// # Errors
/// It is not the Worker the queue pair was made on.
pub(crate) fn admit<P: Provider>(
    ready: Ready<P>,
    workers: &mut [Worker<P>],
    at: usize,
    established: Established,
) -> Result<Connection, ConnectError> {
    let Ready {
        sender,
        receiver,
        control,
        reservation,
    } = ready;
    let peer = Peer { established };
    let channel = workers
        .get_mut(at)
        .ok_or(ConnectError::OtherWorkers)?
        .admit(Channel {
            sender,
            receiver,
            control,
            reservation,
            peer,
        })?;
    Ok(Connection { worker: at, channel })
}

/// What a peer is told when our side fails.
pub(crate) fn reject_for(error: &ConnectError) -> Reject {
    match error {
        ConnectError::NoRoute(_) | ConnectError::NoRails => Reject::new(RejectReason::NO_COMMON_SUBNET),
        ConnectError::Provider(error) => Reject {
            reason: RejectReason::QUEUE_PAIR,
            detail: u32::try_from(error.errno).unwrap_or(0),
        },
        ConnectError::NoRoom { .. } | ConnectError::NoMemory | ConnectError::TooManyChannels => {
            Reject::new(RejectReason::BUSY)
        }
        _ => Reject::new(RejectReason::PARAMETERS),
    }
}
