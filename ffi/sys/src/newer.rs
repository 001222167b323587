//! Names that came after the rdma-core the bindings were generated from (44.0), by hand.
//!
//! Enumerations are open, so these are constants and nothing else changes. They are compared with the C
//! headers of a newer rdma-core by `tests/headers.rs`.

use crate::bindings::{
    ibv_access_flags, ibv_event_type, ibv_qp_create_send_ops_flags, ibv_qp_ex, ibv_wc_opcode, ibv_wr_opcode,
};

impl ibv_wc_opcode {
    /// A FLUSH completed (rdma-core 45).
    pub const IBV_WC_FLUSH: Self = Self(8);
}

impl ibv_wr_opcode {
    /// FLUSH: make earlier writes visible or persistent at the peer (rdma-core 45).
    pub const IBV_WR_FLUSH: Self = Self(14);
}

impl ibv_event_type {
    /// A port's effective speed changed (rdma-core 62).
    pub const IBV_EVENT_DEVICE_SPEED_CHANGE: Self = Self(20);
}

impl ibv_access_flags {
    /// The peer may FLUSH for global visibility (rdma-core 45).
    pub const IBV_ACCESS_FLUSH_GLOBAL: Self = Self(1 << 8);
    /// The peer may FLUSH for persistence (rdma-core 45).
    pub const IBV_ACCESS_FLUSH_PERSISTENT: Self = Self(1 << 9);
}

impl ibv_qp_create_send_ops_flags {
    /// The queue pair shall offer FLUSH (rdma-core 45).
    pub const IBV_QP_EX_WITH_FLUSH: Self = Self(1 << 11);
}

/// Guarantee of a FLUSH: visibility to every agent (`ibv_placement_type`, rdma-core 45).
pub const IBV_FLUSH_GLOBAL: u8 = 1 << 0;
/// Guarantee of a FLUSH: persistence (`ibv_placement_type`, rdma-core 45).
pub const IBV_FLUSH_PERSISTENT: u8 = 1 << 1;
/// Range of a FLUSH: the given range (`ibv_selectivity_level`, rdma-core 45).
pub const IBV_FLUSH_RANGE: u8 = 0;
/// Range of a FLUSH: the whole memory region (`ibv_selectivity_level`, rdma-core 45).
pub const IBV_FLUSH_MR: u8 = 1;

/// Asks `ibv_query_qp_data_in_order` for a set of capabilities instead of a yes or no (rdma-core 48).
pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: u32 = 1 << 0;
/// Such a capability: a whole message is written in order (rdma-core 48).
pub const IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG: u32 = 1 << 0;
/// Such a capability: each aligned block of 128 bytes is written in order (rdma-core 48).
pub const IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES: u32 = 1 << 1;

/// The operation that an extended queue pair has after those of [`ibv_qp_ex`] from rdma-core 45 on.
pub type ibv_wr_flush_fn =
    unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8);

/// [`ibv_qp_ex`] as rdma-core 45 and later make it.
///
/// The structure carries no size of its own: `wr_flush` exists only on a queue pair whose creation with
/// `IBV_QP_EX_WITH_FLUSH` succeeded, since an older library refuses that flag.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp_ex_with_flush {
    /// The part that rdma-core 44 knows.
    pub base: ibv_qp_ex,
    /// Stages a FLUSH.
    pub wr_flush: Option<ibv_wr_flush_fn>,
}
