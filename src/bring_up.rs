//! From an agreement with a peer to a channel: the queue pair made, connected and filled.

use std::sync::Arc;

use doorbell_core::handshake::{Agreed, Established};
use doorbell_core::provider::{
    AddressVector, Context, PostError, ProtectionDomain, Provider, ProviderError, QueuePair, QueuePairConfig,
    ReadyToReceive, ReadyToSend, RemoteAccess, RemoteAddress, Window,
};
use doorbell_core::wire::{CreditWord, Endpoint, EndpointParameters, Reject, RejectReason};
use doorbell_core::{Psn, Qpn, in_place};
use doorbell_hotpath::{
    Announcer, Credits, Flow, Grants, Receiver, ReceiverConfig, Sender, SenderConfig, WindowWord, marks_for,
};

use crate::channel::Channel;
use crate::error::ConnectError;
use crate::half::{Receiving, Sending};
use crate::node::Connection;
use crate::rails::NodeRail;
use crate::submission::Records;
use crate::worker::{CREDIT_WORD_BYTES, Reservation};
use crate::{ChannelConfig, Peer, ReceiveHalf, SendHalf, Worker};

/// A queue pair made for a connection that is not agreed yet. Dropping it undoes everything.
pub(crate) struct Pending<P: Provider> {
    control: P::QueuePair,
    send: P::SendQueue,
    /// None where its receives are shared.
    receive: Option<P::ReceiveQueue>,
    reservation: Arc<Reservation>,
    word: WindowWord<Arc<P::Window>>,
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
    // One more than the application's: receives are announced whatever it has posted.
    let send_depth = config.send_depth.saturating_add(1);
    let reservation = worker.reserve(send_depth, config.receive_depth)?;
    let (word, credit) = credit_word(&worker.credit_words, reservation.id.index)?;
    let mut asked = QueuePairConfig {
        channel: reservation.id.index,
        send_depth,
        receive_depth: config.receive_depth,
        gather_max: config.gather_max,
        scatter_max: 1,
        inline_bytes_max: config.inline_bytes_max.max(ANNOUNCEMENT_BYTES),
    };
    let Worker {
        domain,
        sends,
        receives,
        ..
    } = &*worker;
    let (mut control, send, receive) = if let Some(shared) = &receives.shared {
        (asked.receive_depth, asked.scatter_max) = (0, 0);
        let parts = domain.queue_pair_on(shared.queue(), &sends.completions, &asked)?;
        (parts.control, parts.send, None)
    } else {
        let parts = domain.queue_pair(&sends.completions, &receives.completions, &asked)?;
        (parts.control, parts.send, Some(parts.receive))
    };
    // The peer announces its receives by WRITE.
    let remote = RemoteAccess {
        write: true,
        ..config.remote
    };
    control.initialize(rail.port, remote)?;
    let limits = worker.context.limits();
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
            slot_bytes: worker.slot_bytes(),
        },
        credit,
        private_data: config.private_data,
    };
    Ok(Pending {
        control,
        send,
        receive,
        reservation,
        word,
        local,
    })
}

/// The word in which a channel's peer announces receives, for us and as the peer is told.
fn credit_word<W: Window>(
    words: &Arc<W>,
    channel: u32,
) -> Result<(WindowWord<Arc<W>>, CreditWord), ConnectError> {
    let offset = (channel as usize).saturating_mul(CREDIT_WORD_BYTES);
    let remote = words.remote();
    let address = remote.address_of(offset as u64, CREDIT_WORD_BYTES as u64);
    let word = WindowWord::new(Arc::clone(words), offset);
    let (Some(word), Some(address)) = (word, address) else {
        // There is one for each channel that can be reserved.
        return Err(ConnectError::TooManyChannels);
    };
    let told = CreditWord {
        address,
        rkey: remote.rkey(),
        // Counting goes on from what an earlier channel's peer left there.
        start: word.load().unwrap_or_default(),
    };
    Ok((word, told))
}

/// What a connection goes by once both sides have said theirs.
pub(crate) struct Agreement {
    pub(crate) peer: Endpoint,
    pub(crate) agreed: Agreed,
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
        mut control,
        send,
        receive,
        reservation,
        word,
        local,
    } = pending;
    let peer = &agreement.peer;
    let grants = Arc::new(Grants::new(peer.credit.start, config.receive_depth));
    let flow = Flow {
        credits: Credits::new(local.credit.start, peer.parameters.receive_depth),
        word,
        announcer: Announcer::new(
            Arc::clone(&grants),
            config.receive_depth,
            RemoteAddress {
                address: peer.credit.address,
                rkey: peer.credit.rkey,
            },
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
    let receiver = receiving(receive, grants, &reservation, local.qpn, worker, config)?;
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
    };
    let Ok(sender) = Sender::new(send, marks, flow, Arc::clone(&worker.statistics), &sender_config) else {
        return Err(ConnectError::Provider(ProviderError {
            call: "queue pair depth",
            errno: EINVAL,
        }));
    };
    let limits = control.limits();
    Ok(Ready {
        inline_alone_bytes_max: config
            .inline_alone_bytes_max
            .min(config.inline_bytes_max)
            .min(limits.inline_bytes_max),
        sender,
        receiver,
        control,
        reservation,
    })
}

/// Sees to it that the peer may use every receive it was told of.
fn receiving<P: Provider>(
    queue: Option<P::ReceiveQueue>,
    grants: Arc<Grants>,
    reservation: &Arc<Reservation>,
    qpn: Qpn,
    worker: &mut Worker<P>,
    config: &ChannelConfig,
) -> Result<Receiving<P>, ConnectError> {
    if let Some(shared) = &mut worker.receives.shared {
        return Ok(Receiving::Shared {
            share: shared.open(reservation, qpn, grants, &mut worker.arena, config)?,
            has_ended: false,
        });
    }
    // The one or the other was made.
    let queue = queue.ok_or(ConnectError::OtherWorkers)?;
    let mut receiver = Receiver::new(
        queue,
        grants,
        Arc::clone(&worker.statistics),
        &ReceiverConfig {
            repost_batch: config.repost_batch,
        },
    );
    receiver
        .fill(&mut worker.arena)
        .map_err(|PostError { cause, .. }| cause)?;
    if receiver.in_flight() < config.receive_depth {
        return Err(ConnectError::NoMemory);
    }
    Ok(Receiving::Own(receiver))
}

const EINVAL: i32 = 22;

/// An announcement of receives goes inline.
const ANNOUNCEMENT_BYTES: u32 = 8;

/// A queue pair in RTS whose peer has not yet said that it is too.
pub(crate) struct Ready<P: Provider> {
    inline_alone_bytes_max: u32,
    sender: Sending<P>,
    receiver: Receiving<P>,
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
        inline_alone_bytes_max,
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
            receive: ReceiveHalf {
                receiver,
                reservation: Arc::clone(&reservation),
            },
            send: SendHalf {
                records: Records::none(reservation.id),
                sender,
                control,
                reservation,
                peer,
                inline_alone_bytes_max,
            },
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
        ConnectError::NoRoom { .. }
        | ConnectError::NoShare { .. }
        | ConnectError::NoMemory
        | ConnectError::TooManyChannels => Reject::new(RejectReason::BUSY),
        _ => Reject::new(RejectReason::PARAMETERS),
    }
}
