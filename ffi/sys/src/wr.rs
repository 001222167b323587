//! The `ibv_wr_*` family: work requests written one call at a time into an extended queue pair.
//!
//! The operations of a queue pair are decided when it is created (`send_ops_flags`), and a provider may leave any
//! of them out. C would jump through a null pointer; here such a call stages nothing and reports it. So these
//! functions return an errno value where the C functions return nothing.

use core::ffi::{c_int, c_void};

use crate::bindings::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::errno;
use crate::newer::ibv_qp_ex_with_flush;

/// Functions that forward to the operation of the same name and return 0, or `EOPNOTSUPP` where there is none.
macro_rules! wr_operations {
    ($($(#[$doc:meta])* fn $name:ident => $op:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// `EOPNOTSUPP`, with nothing staged, where the queue pair has no such operation.
        ///
        /// # Safety
        /// `qp` is a live extended queue pair, and the call stands where `ibv_wr_post(3)` allows it.
        #[inline]
        #[must_use = "nothing was staged if the device lacks the operation"]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) -> c_int {
            // SAFETY: the caller vouches for the queue pair.
            let Some(op) = (unsafe { (*qp).$op }) else {
                return errno::unsupported();
            };
            // SAFETY: the provider's own operation, with the arguments the caller vouches for.
            unsafe { op(qp $(, $arg)*) };
            0
        }
    )*};
}

wr_operations! {
    /// Opens the critical region in which work requests are staged.
    fn ibv_wr_start => wr_start();
    /// Drops everything staged since [`ibv_wr_start`] and closes the critical region.
    fn ibv_wr_abort => wr_abort();
    /// Begins an atomic compare-and-swap.
    fn ibv_wr_atomic_cmp_swp => wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Begins an atomic fetch-and-add.
    fn ibv_wr_atomic_fetch_add => wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Begins an atomic write of the 8 bytes at `atomic_wr`.
    fn ibv_wr_atomic_write => wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
    /// Begins the binding of a memory window.
    fn ibv_wr_bind_mw => wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Begins a local invalidation.
    fn ibv_wr_local_inv => wr_local_inv(invalidate_rkey: u32);
    /// Begins a READ.
    fn ibv_wr_rdma_read => wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Begins a WRITE.
    fn ibv_wr_rdma_write => wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Begins a WRITE with immediate data (network byte order).
    fn ibv_wr_rdma_write_imm => wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);
    /// Begins a SEND.
    fn ibv_wr_send => wr_send();
    /// Begins a SEND with immediate data (network byte order).
    fn ibv_wr_send_imm => wr_send_imm(imm_data: __be32);
    /// Begins a SEND that invalidates a key at the peer.
    fn ibv_wr_send_inv => wr_send_inv(invalidate_rkey: u32);
    /// Begins a SEND with segmentation offload.
    fn ibv_wr_send_tso => wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// Says where the request begun last shall go (UD).
    fn ibv_wr_set_ud_addr => wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// Says which shared receive queue the request begun last is for (XRC).
    fn ibv_wr_set_xrc_srqn => wr_set_xrc_srqn(remote_srqn: u32);
    /// Copies `length` bytes into the request begun last.
    fn ibv_wr_set_inline_data => wr_set_inline_data(addr: *mut c_void, length: usize);
    /// Copies several buffers into the request begun last.
    fn ibv_wr_set_inline_data_list => wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
    /// Gives the request begun last one scatter/gather element.
    fn ibv_wr_set_sge => wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Gives the request begun last several scatter/gather elements.
    fn ibv_wr_set_sge_list => wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
}

/// Rings the doorbell for everything staged since [`ibv_wr_start`] and closes the critical region.
///
/// # Errors
/// An errno value, with nothing posted; `EOPNOTSUPP` where the queue pair has no such operation.
///
/// # Safety
/// `qp` is a live extended queue pair between `ibv_wr_start` and this call, see `ibv_wr_post(3)`.
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller vouches for the queue pair.
    let Some(wr_complete) = (unsafe { (*qp).wr_complete }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { wr_complete(qp) }
}

/// Begins a FLUSH of `len` bytes: `type_` by `IBV_FLUSH_GLOBAL` and `IBV_FLUSH_PERSISTENT`, `level` by
/// `IBV_FLUSH_RANGE` or `IBV_FLUSH_MR`.
///
/// # Errors
/// `EOPNOTSUPP`, with nothing staged, where the provider leaves the operation out.
///
/// # Safety
/// `qp` is a live extended queue pair **that was created with `IBV_QP_EX_WITH_FLUSH`**: in others the
/// structure may end before this operation. The call stands where `ibv_wr_post(3)` allows it.
#[inline]
#[must_use = "nothing was staged if the device lacks the operation"]
pub unsafe fn ibv_wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    type_: u8,
    level: u8,
) -> c_int {
    let longer = qp.cast::<ibv_qp_ex_with_flush>();
    // SAFETY: the caller vouches that the library made the longer structure.
    let Some(wr_flush) = (unsafe { (*longer).wr_flush }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { wr_flush(qp, rkey, remote_addr, len, type_, level) };
    0
}
