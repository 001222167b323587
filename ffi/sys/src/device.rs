//! Queries of a device: attributes, ports, the GID table, clocks, thread and protection domains' capabilities.

use core::ffi::c_int;
use core::mem::size_of;

use libc::ssize_t;

use crate::bindings::{
    ibv_context, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};
use crate::context::extended;
use crate::functions::{self, _ibv_query_gid_ex, _ibv_query_gid_table, ibv_query_device};

extended! {
    /// Reads a device's clock, see `ibv_query_rt_values_ex(3)`.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query_rt_values of [context];
}

/// The attributes of a device, extended ones included, see `ibv_query_device_ex(3)`.
///
/// If the provider knows only the plain attributes, the extended ones are zero.
///
/// # Errors
/// An errno value; `EINVAL` where `input` asks for something unknown.
///
/// # Safety
/// `context` is live, `input` null or readable, `attr` writable.
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller vouches for `input` where it is not null.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller vouches for the context; the size is checked before the operation is read.
    if let Some(query_device_ex) = unsafe { crate::verbs_get_ctx_op!(context, query_device_ex) } {
        // SAFETY: the provider's own operation; the size is that of what `attr` points to.
        let status = unsafe { query_device_ex(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if status != libc::EOPNOTSUPP && status != libc::ENOSYS {
            return status;
        }
    }
    // SAFETY: the caller vouches for `attr`, a structure of integers for which zero bytes are a value.
    unsafe { attr.write_bytes(0, 1) };
    // SAFETY: a field of what the caller vouches for; no reference is formed.
    let plain = unsafe { &raw mut (*attr).orig_attr };
    // SAFETY: a live context and a writable structure.
    unsafe { ibv_query_device(context, plain) }
}

/// The attributes of a port, see `ibv_query_port(3)`.
///
/// It does as the macro of that name in C: it calls the provider's extended query if there is one, else the
/// library's older function. The structure is zeroed first, since the older function fills in only a part of it.
///
/// # Errors
/// An errno value.
///
/// # Safety
/// `context` is live and `port_attr` writable.
#[inline]
pub unsafe fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller vouches for the context; the size is checked before the operation is read.
    if let Some(query_port) = unsafe { crate::verbs_get_ctx_op!(context, query_port) } {
        // SAFETY: the provider's own operation; the size is that of what `port_attr` points to.
        return unsafe { query_port(context, port_num, port_attr, size_of::<ibv_port_attr>()) };
    }
    // SAFETY: the caller vouches for `port_attr`, a structure of integers for which zero bytes are a value.
    unsafe { port_attr.write_bytes(0, 1) };
    // SAFETY: the older structure is a prefix of this one.
    unsafe { functions::ibv_query_port(context, port_num, port_attr.cast()) }
}

/// The function behind the C macro `ibv_query_port`: the same as [`ibv_query_port`].
///
/// # Errors
/// An errno value.
///
/// # Safety
/// As for [`ibv_query_port`].
#[inline]
pub unsafe fn ___ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { ibv_query_port(context, port_num, port_attr) }
}

/// One entry of a port's GID table, see `ibv_query_gid_ex(3)`.
///
/// # Errors
/// An errno value: `ENODATA` where the entry is empty, `ENOSYS` where the library is older than rdma-core 32.
///
/// # Safety
/// `context` is live and `entry` writable.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the caller vouches for the pointers; the size is that of what `entry` points to.
    unsafe {
        _ibv_query_gid_ex(
            context,
            port_num,
            gid_index,
            entry,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

/// All valid entries of the GID tables of all ports, and how many there were, see `ibv_query_gid_table(3)`.
///
/// # Errors
/// A negated errno value: `-ENOSYS` where the library is older than rdma-core 32.
///
/// # Safety
/// `context` is live and `entries` has room for `max_entries`.
#[inline]
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> ssize_t {
    // SAFETY: the caller vouches for the pointers; the size is that of one entry.
    unsafe { _ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
}

/// The UDP source port that a RoCEv2 packet with this flow label has.
#[inline]
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    let folded = (fl & 0x3fff) ^ ((fl & 0xf_c000) >> 14);
    let port = folded | crate::bindings::IB_ROCE_UDP_ENCAP_VALID_PORT_MIN;
    let [_, _, high, low] = port.to_be_bytes();
    u16::from_be_bytes([high, low])
}
