//! Delivery of datagrams: each arrives, or is lost without a word.
//!
//! Source: InfiniBand Architecture volume 1, sections 9.8.3 and C10-93.1.1.

use rdma_sys::{ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode, ud_t};

use crate::address::AddressHandle;
use crate::completion_queue::Cqe;
use crate::copy::{Piece, gather_scatter};
use crate::device::SEGMENTS_MAX;
use crate::engine::{LOCAL_WRITE, Outcome, Pieces, complete_receive, to_error};
use crate::handle::look_at;
use crate::port::MTU_BYTES;
use crate::queue_pair::{QueuePair, state};
use crate::registry;
use crate::send::Request;

/// Bytes in front of a datagram.
const GRH_BYTES: usize = 40;
/// Bytes of an IPv4 header, which lies at the end of those.
const IPV4_BYTES: usize = 20;
/// `UDP`.
const PROTOCOL: u8 = 17;

/// Sends one. The caller holds the requester's flag, and no responder's.
pub(crate) fn send(qp: &QueuePair, request: &Request<'_>, way: ud_t, pieces: &Pieces) -> Outcome {
    if way.ah.is_null() {
        return Outcome::Failed {
            status: ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
            peer: None,
        };
    }
    // SAFETY: live until the request is done, as who posts it vouches (ibv_post_send(3)).
    let address: &AddressHandle = unsafe { look_at(way.ah) };
    if address.pd() != qp.pd() {
        return Outcome::Failed {
            status: ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            peer: None,
        };
    }
    if pieces.bytes <= u64::from(MTU_BYTES) {
        arrive(qp, request, way, address, pieces);
    }
    // S31: it went, whatever becomes of it.
    Outcome::Done {
        bytes: pieces.length(),
    }
}

/// Puts it into the next receive of whom it is for, where there is one and it is long enough.
fn arrive(qp: &QueuePair, request: &Request<'_>, way: ud_t, address: &AddressHandle, pieces: &Pieces) {
    let Some(core) = registry::find(way.remote_qpn) else {
        return;
    };
    let responder = core.responder.lock();
    if responder.qp.is_null() {
        return;
    }
    // SAFETY: live as long as it stands there, and the flag is ours.
    let remote: &QueuePair = unsafe { look_at(responder.qp) };
    let hears = matches!(
        remote.state(),
        state::READY_TO_RECEIVE | state::READY_TO_SEND | state::SEND_ERROR
    );
    let is_meant = remote.is_datagram && remote.qpn == way.remote_qpn;
    if !hears || !is_meant || responder.attributes.qkey != way.remote_qkey {
        return;
    }
    let Some((receive, position)) = remote.take_receive() else {
        return;
    };
    let Some(places) = Pieces::by_keys(remote.pd(), receive.elements(), LOCAL_WRITE) else {
        complete_receive(
            remote,
            receive.wr_id,
            position,
            ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        );
        to_error(remote);
        return;
    };
    let bytes = pieces.bytes.saturating_add(GRH_BYTES as u64);
    if places.bytes < bytes {
        remote.put_back(position);
        return;
    }
    let mut header = header(address, pieces.length());
    let mut whole = [Piece::EMPTY; SEGMENTS_MAX as usize + 1];
    let [first, rest @ ..] = &mut whole;
    *first = Piece {
        start: header.as_mut_ptr(),
        bytes: GRH_BYTES,
    };
    for (place, piece) in rest.iter_mut().zip(pieces.as_slice()) {
        *place = *piece;
    }
    // SAFETY: the header is ours; both lists were found by their keys (or are inline and readable during the
    // call); a program leaves posted memory alone.
    unsafe { gather_scatter(&whole, places.as_slice()) };
    let with_immediate = request.opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
    let immediate = if with_immediate {
        ibv_wc_flags::IBV_WC_WITH_IMM.0
    } else {
        0
    };
    let cqe = Cqe {
        wr_id: receive.wr_id,
        progress: remote.receive_progress(),
        position,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode: ibv_wc_opcode::IBV_WC_RECV,
        // At most the MTU and a header.
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        immediate: request.immediate,
        qpn: remote.qpn,
        flags: ibv_wc_flags::IBV_WC_GRH.0 | immediate,
        source_qpn: qp.qpn,
    };
    remote.receive_cq().push(cqe, request.is_solicited());
}

/// The header that a datagram arrives with: of IPv6, or of IPv4 at its end.
fn header(address: &AddressHandle, payload_bytes: u32) -> [u8; GRH_BYTES] {
    let mut header = [0; GRH_BYTES];
    // SAFETY: of its two views the bytes are always good.
    let (source, destination) = (address.source, unsafe { address.route.dgid.raw });
    let (class, hops) = (address.route.traffic_class, address.route.hop_limit);
    let length = u16::try_from(payload_bytes).unwrap_or(u16::MAX);
    let is_v4 = |gid: &[u8; 16]| gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    if is_v4(&source) && is_v4(&destination) {
        let (_, place) = header.split_at_mut(GRH_BYTES - IPV4_BYTES);
        let bytes = IPV4_BYTES.saturating_add(usize::from(length));
        let [high, low] = u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
        let fixed = [0x45, class, high, low, 0, 0, 0x40, 0, hops, PROTOCOL, 0, 0];
        let last_four = |gid: &[u8; 16]| u32::from_be_bytes(*gid.last_chunk().unwrap_or(&[0; 4]));
        let addresses = [&source, &destination].map(|gid| last_four(gid).to_be_bytes());
        let bytes = fixed.iter().chain(addresses.as_flattened());
        place
            .iter_mut()
            .zip(bytes)
            .for_each(|(place, byte)| *place = *byte);
    } else {
        let [high, low] = length.to_be_bytes();
        let fixed = [0x60 | class >> 4, class << 4, 0, 0, high, low, PROTOCOL, hops];
        let bytes = fixed.iter().chain(&source).chain(&destination);
        header
            .iter_mut()
            .zip(bytes)
            .for_each(|(place, byte)| *place = *byte);
    }
    header
}
