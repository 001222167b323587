//! The extended completion queue: a cursor over completions, and the fields readable at it.
//!
//! Which fields a queue offers is decided when it is created (`wc_flags`). A reader that is missing gives
//! zero and sets errno to `EOPNOTSUPP`, since a reader has no other way to say it.

use core::ffi::{c_int, c_uint};

use crate::bindings::{__be32, ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};
use crate::errno;

/// The plain queue inside an extended one.
///
/// # Safety
/// `cq` is a live extended completion queue.
#[inline]
#[must_use]
pub unsafe fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Puts the cursor on the first completion; `ENOENT` where the queue is empty.
///
/// # Errors
/// An errno value, and then [`ibv_end_poll`] must not be called; `EOPNOTSUPP` where the provider has no such
/// operation.
///
/// # Safety
/// `cq` is a live extended queue that is not being polled, `attr` readable, see `ibv_create_cq_ex(3)`.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller vouches for the queue.
    let Some(start_poll) = (unsafe { (*cq).start_poll }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { start_poll(cq, attr) }
}

/// Moves the cursor to the next completion; `ENOENT` where there is none.
///
/// # Errors
/// An errno value; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `cq` is between a successful [`ibv_start_poll`] and its [`ibv_end_poll`].
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller vouches for the queue.
    let Some(next_poll) = (unsafe { (*cq).next_poll }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { next_poll(cq) }
}

/// Ends the polling that [`ibv_start_poll`] began.
///
/// # Safety
/// `cq` is between a successful [`ibv_start_poll`] and this call.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller vouches for the queue.
    let Some(end_poll) = (unsafe { (*cq).end_poll }) else {
        return errno::set(libc::EOPNOTSUPP);
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { end_poll(cq) }
}

/// Functions that read one field of the completion under the cursor.
macro_rules! wc_readers {
    ($($(#[$doc:meta])* fn $name:ident => $op:ident() -> $ret:ty, else $missing:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// Zero, and errno `EOPNOTSUPP`, where the queue was not created with this field.
        ///
        /// # Safety
        /// `cq` is between a successful [`ibv_start_poll`] and its [`ibv_end_poll`].
        #[inline]
        #[must_use]
        pub unsafe fn $name(cq: *mut ibv_cq_ex) -> $ret {
            // SAFETY: the caller vouches for the queue.
            let Some(read) = (unsafe { (*cq).$op }) else {
                return errno::unsupported_value($missing);
            };
            // SAFETY: the provider's own operation, with the arguments the caller vouches for.
            unsafe { read(cq) }
        }
    )*};
}

wc_readers! {
    /// What completed.
    fn ibv_wc_read_opcode => read_opcode() -> ibv_wc_opcode, else ibv_wc_opcode(0);
    /// The device's own code for a failure.
    fn ibv_wc_read_vendor_err => read_vendor_err() -> u32, else 0;
    /// Bytes transferred.
    fn ibv_wc_read_byte_len => read_byte_len() -> u32, else 0;
    /// Immediate data, in network byte order.
    fn ibv_wc_read_imm_data => read_imm_data() -> __be32, else 0;
    /// The key that was invalidated.
    fn ibv_wc_read_invalidated_rkey => read_imm_data() -> u32, else 0;
    /// The local queue pair.
    fn ibv_wc_read_qp_num => read_qp_num() -> u32, else 0;
    /// The sender's queue pair (UD).
    fn ibv_wc_read_src_qp => read_src_qp() -> u32, else 0;
    /// Bits of `ibv_wc_flags`.
    fn ibv_wc_read_wc_flags => read_wc_flags() -> c_uint, else 0;
    /// The sender's LID (UD).
    fn ibv_wc_read_slid => read_slid() -> u32, else 0;
    /// The service level (UD).
    fn ibv_wc_read_sl => read_sl() -> u8, else 0;
    /// Path bits of the destination LID (UD).
    fn ibv_wc_read_dlid_path_bits => read_dlid_path_bits() -> u8, else 0;
    /// The device's clock at completion, in its own ticks.
    fn ibv_wc_read_completion_ts => read_completion_ts() -> u64, else 0;
    /// The wall clock at completion, in nanoseconds.
    fn ibv_wc_read_completion_wallclock_ns => read_completion_wallclock_ns() -> u64, else 0;
    /// The VLAN tag that was stripped.
    fn ibv_wc_read_cvlan => read_cvlan() -> u16, else 0;
    /// The tag of the flow that matched.
    fn ibv_wc_read_flow_tag => read_flow_tag() -> u32, else 0;
}

/// The tag-matching part of the completion under the cursor.
///
/// # Errors
/// Zeroes, and errno `EOPNOTSUPP`, where the queue was not created with this field.
///
/// # Safety
/// `cq` is between a successful [`ibv_start_poll`] and its [`ibv_end_poll`]; `tm_info` is writable.
#[inline]
pub unsafe fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) {
    // SAFETY: the caller vouches for the queue.
    let Some(read_tm_info) = (unsafe { (*cq).read_tm_info }) else {
        // SAFETY: the caller vouches for `tm_info`, a structure of integers.
        unsafe { tm_info.write_bytes(0, 1) };
        return errno::set(libc::EOPNOTSUPP);
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { read_tm_info(cq, tm_info) }
}
