//! The structures of verbs.h that hold anonymous unions, written by hand.
//!
//! C leaves the parts without a name; here they have the names that rdma-sys 0.3 gave them, so that code
//! written for it moves over. Their sizes and offsets are asserted with all others in `layout`.

use core::ffi::{c_int, c_uint, c_void};
use core::fmt;

use crate::bindings::{
    __be32, __be64, ibv_ah, ibv_cq, ibv_event_type, ibv_flow_spec_action_drop, ibv_flow_spec_action_handle,
    ibv_flow_spec_action_tag, ibv_flow_spec_counter_action, ibv_flow_spec_esp, ibv_flow_spec_eth,
    ibv_flow_spec_gre, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_mpls,
    ibv_flow_spec_tcp_udp, ibv_flow_spec_tunnel, ibv_flow_spec_type, ibv_mw, ibv_mw_bind_info,
    ibv_ops_wr_opcode, ibv_qp, ibv_sge, ibv_srq, ibv_wc_opcode, ibv_wc_status, ibv_wq, ibv_wr_opcode,
};

/// Prints a union by its name alone: which member is live is not for `Debug` to guess.
macro_rules! opaque_debug {
    ($($name:ident),* $(,)?) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

/// The two halves of a GID, each in network byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_gid_global_t {
    /// The upper 64 bits, big-endian.
    pub subnet_prefix: __be64,
    /// The lower 64 bits, big-endian.
    pub interface_id: __be64,
}

/// A global identifier: 16 bytes in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    /// All 16 bytes.
    pub raw: [u8; 16],
    /// The two halves.
    pub global: ibv_gid_global_t,
}

/// Subject of an asynchronous event; `event_type` says which member is live.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element_t {
    /// For `IBV_EVENT_CQ_ERR`.
    pub cq: *mut ibv_cq,
    /// For the queue-pair events.
    pub qp: *mut ibv_qp,
    /// For the shared-receive-queue events.
    pub srq: *mut ibv_srq,
    /// For `IBV_EVENT_WQ_FATAL`.
    pub wq: *mut ibv_wq,
    /// For the port events.
    pub port_num: c_int,
}

/// An asynchronous event, as `ibv_get_async_event(3)` fills it in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_async_event {
    /// Subject of the event.
    pub element: ibv_async_event_element_t,
    /// The kind: an integer, since a newer library may deliver kinds this crate has no name for.
    pub event_type: ibv_event_type,
}

/// Immediate data, or the key that was (or is to be) invalidated.
#[repr(C)]
#[derive(Clone, Copy)]
pub union imm_data_invalidated_rkey_union_t {
    /// Immediate data, in network byte order.
    pub imm_data: __be32,
    /// The remote key.
    pub invalidated_rkey: u32,
}

/// A work completion, as `ibv_poll_cq(3)` writes it.
///
/// If `status` is not success, only `wr_id`, `status`, `qp_num` and `vendor_err` are meaningful.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wc {
    /// The identifier given when the request was posted.
    pub wr_id: u64,
    /// How it ended.
    pub status: ibv_wc_status,
    /// What completed.
    pub opcode: ibv_wc_opcode,
    /// A code of the device's own.
    pub vendor_err: u32,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Live as `wc_flags` says.
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    /// The local queue pair.
    pub qp_num: u32,
    /// The sender's queue pair (UD).
    pub src_qp: u32,
    /// Bits of `ibv_wc_flags`.
    pub wc_flags: c_uint,
    /// Index of the partition key (GSI).
    pub pkey_index: u16,
    /// The sender's LID (UD).
    pub slid: u16,
    /// The service level (UD).
    pub sl: u8,
    /// Path bits of the destination LID (UD).
    pub dlid_path_bits: u8,
}

/// The target of a WRITE or READ.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_t {
    /// Address in the peer's memory.
    pub remote_addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
}

/// The target and operands of an atomic.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct atomic_t {
    /// Address in the peer's memory, 8-byte aligned.
    pub remote_addr: u64,
    /// Value to compare with, or to add.
    pub compare_add: u64,
    /// Value to store if the comparison holds.
    pub swap: u64,
    /// The peer's key for the memory.
    pub rkey: u32,
}

/// The destination of a datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ud_t {
    /// The way there.
    pub ah: *mut ibv_ah,
    /// The queue pair there.
    pub remote_qpn: u32,
    /// Its key.
    pub remote_qkey: u32,
}

/// The part of a send work request that depends on its opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub union wr_t {
    /// WRITE and READ.
    pub rdma: rdma_t,
    /// Atomics.
    pub atomic: atomic_t,
    /// Datagrams.
    pub ud: ud_t,
}

/// The destination of a request on an XRC queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct xrc_t {
    /// The shared receive queue at the peer.
    pub remote_srqn: u32,
}

/// The part of a send work request that depends on the queue pair's type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union qp_type_t {
    /// XRC.
    pub xrc: xrc_t,
}

/// Binding of a memory window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bind_mw_t {
    /// The window.
    pub mw: *mut ibv_mw,
    /// Its key from now on.
    pub rkey: u32,
    /// Memory that it shall expose.
    pub bind_info: ibv_mw_bind_info,
}

/// Segmentation offload.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tso_t {
    /// The packet header.
    pub hdr: *mut c_void,
    /// Its length in bytes.
    pub hdr_sz: u16,
    /// Maximum segment size in bytes.
    pub mss: u16,
}

/// The part of a send work request for `IBV_WR_BIND_MW` and `IBV_WR_TSO`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union bind_mw_tso_union_t {
    /// `IBV_WR_BIND_MW`.
    pub bind_mw: bind_mw_t,
    /// `IBV_WR_TSO`.
    pub tso: tso_t,
}

/// A send work request, see `ibv_post_send(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next of the list, or null.
    pub next: *mut Self,
    /// Elements that hold the payload.
    pub sg_list: *mut ibv_sge,
    /// How many elements `sg_list` has.
    pub num_sge: c_int,
    /// Operation.
    pub opcode: ibv_wr_opcode,
    /// Bits of `ibv_send_flags`.
    pub send_flags: c_uint,
    /// For the operations with immediate data, or with invalidation.
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    /// Arguments that depend on the opcode.
    pub wr: wr_t,
    /// Arguments that depend on the queue pair's type.
    pub qp_type: qp_type_t,
    /// For memory windows and segmentation offload.
    pub bind_mw_tso_union: bind_mw_tso_union_t,
}

/// A tagged receive buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct add_t {
    /// Comes back in the completion.
    pub recv_wr_id: u64,
    /// Elements into which the payload goes.
    pub sg_list: *mut ibv_sge,
    /// How many elements `sg_list` has.
    pub num_sge: c_int,
    /// The tag to match.
    pub tag: u64,
    /// Which bits of it count.
    pub mask: u64,
}

/// A tag-matching operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tm_t {
    /// Unexpected messages seen so far.
    pub unexpected_cnt: u32,
    /// The buffer's handle.
    pub handle: u32,
    /// The buffer.
    pub add: add_t,
}

/// A request on a tag-matching shared receive queue, see `ibv_post_srq_ops(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_ops_wr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next of the list, or null.
    pub next: *mut Self,
    /// Operation.
    pub opcode: ibv_ops_wr_opcode,
    /// Bits of `ibv_ops_flags`.
    pub flags: c_int,
    /// The operation's arguments.
    pub tm: tm_t,
}

/// The first two fields of every flow specification.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hdr_t {
    /// Which specification it is.
    pub type_: ibv_flow_spec_type,
    /// Its size in bytes.
    pub size: u16,
}

/// One flow specification, distinguished by `hdr.type_`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "each member is the structure of the same name")]
pub union ibv_flow_spec_union_t {
    pub hdr: hdr_t,
    pub eth: ibv_flow_spec_eth,
    pub ipv4: ibv_flow_spec_ipv4,
    pub tcp_udp: ibv_flow_spec_tcp_udp,
    pub ipv4_ext: ibv_flow_spec_ipv4_ext,
    pub ipv6: ibv_flow_spec_ipv6,
    pub esp: ibv_flow_spec_esp,
    pub tunnel: ibv_flow_spec_tunnel,
    pub gre: ibv_flow_spec_gre,
    pub mpls: ibv_flow_spec_mpls,
    pub flow_tag: ibv_flow_spec_action_tag,
    pub drop: ibv_flow_spec_action_drop,
    pub handle: ibv_flow_spec_action_handle,
    pub flow_count: ibv_flow_spec_counter_action,
}

/// A flow specification, see `ibv_create_flow(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_flow_spec {
    /// The one that is meant.
    pub ibv_flow_spec_union: ibv_flow_spec_union_t,
}

opaque_debug!(
    bind_mw_tso_union_t,
    ibv_async_event_element_t,
    ibv_flow_spec_union_t,
    imm_data_invalidated_rkey_union_t,
    qp_type_t,
    wr_t,
);

impl fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: every member is 16 bytes of plain integers, so `raw` is valid whichever was written.
        let raw = unsafe { self.raw };
        f.debug_tuple("ibv_gid").field(&raw).finish()
    }
}
