//! The functions that libibverbs exports: one table of names, symbol versions and signatures. Three things come
//! from it: the structure of pointers that [`load`](crate::load) fills in, the declarations that the feature
//! `link` links, and the forwarders under the C names.
//!
//! Functions that verbs.h defines inline must not live here. Three functions are visible to this crate alone: C
//! hides them behind macros of the same name, which `device` and `memory` provide.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;

use libc::ssize_t;

use crate::bindings::{
    __be16, __be64, _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_device, ibv_device_attr, ibv_dm, ibv_ece, ibv_event_type, ibv_fork_status, ibv_gid_entry, ibv_grh,
    ibv_mr, ibv_node_type, ibv_pd, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_rate, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc_status, ibv_wr_opcode,
};
use crate::unions::{ibv_async_event, ibv_gid, ibv_wc};
use crate::{errno, library};

/// Answer of the functions that describe a value, if there is no library to ask.
const NO_LIBRARY: &CStr = c"unknown (libibverbs is not loaded)";

/// `ENOSYS` as the one function fails that returns a count.
const NO_GID_TABLE: ssize_t = -(libc::ENOSYS as ssize_t);

/// One exported function, as the loader looks it up.
#[cfg(not(feature = "link"))]
pub(crate) struct Symbol {
    /// The name in the library's symbol table.
    pub(crate) name: &'static CStr,
    /// The version node that has carried its present signature since.
    pub(crate) version: &'static CStr,
}

#[cfg(not(feature = "link"))]
impl Symbol {
    /// Whether every libibverbs of the last decade has it; the others came one by one.
    fn is_required(&self) -> bool {
        matches!(self.version.to_bytes(), b"IBVERBS_1.0" | b"IBVERBS_1.1")
    }
}

macro_rules! library_functions {
    ($(
        $version:literal $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?, else $fail:expr;
    )*) => {
        /// The functions of an opened libibverbs; `None` where the library is too old to have one.
        ///
        /// A hot path may take a pointer from here once and call it without a look at the table.
        #[derive(Debug)]
        #[expect(missing_docs, reason = "each field is the function of the same name")]
        pub struct Functions {
            $(pub $name: Option<unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?>,)*
        }

        impl Functions {
            /// Fills the table by `find`, which gives the address of a symbol, or null.
            ///
            /// # Errors
            /// The first function that is missing and that no supported library lacks.
            ///
            /// # Safety
            /// An address that `find` gives is that of a function with the signature libibverbs documents
            /// for the symbol, and stays one for the life of the process.
            #[cfg(not(feature = "link"))]
            pub(crate) unsafe fn resolve(
                mut find: impl FnMut(&Symbol) -> *mut c_void,
            ) -> Result<Self, Symbol> {
                $(
                    let symbol = Symbol { name: name_of(concat!(stringify!($name), "\0")), version: $version };
                    let address = find(&symbol);
                    if address.is_null() && symbol.is_required() {
                        return Err(symbol);
                    }
                    // SAFETY: a null address becomes `None`; another is that of a function with this
                    // signature, as the caller vouches.
                    let $name = unsafe {
                        core::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?>,
                        >(address)
                    };
                )*
                Ok(Self { $($name),* })
            }

            /// The table of what was linked.
            #[cfg(feature = "link")]
            pub(crate) fn linked() -> Self {
                Self { $($name: Some(linked::$name)),* }
            }
        }

        #[cfg(feature = "link")]
        mod linked {
            // The signatures are those of the table around it.
            use super::*;

            #[link(name = "ibverbs")]
            unsafe extern "C" {
                $(pub(super) fn $name($($arg: $ty),*) $(-> $ret)?;)*
            }
        }

        $(
            #[doc = concat!("`", stringify!($name), "` of libibverbs, see its manual page.")]
            ///
            /// # Errors
            /// As the manual page says. Without a library, or with one too old to have the function, it fails
            /// in the same manner with errno `ENOSYS`.
            ///
            /// # Safety
            /// The arguments satisfy the manual page.
            #[inline]
            $vis unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                match library::functions().and_then(|functions| functions.$name) {
                    // SAFETY: the library's own function, with the arguments the caller vouches for.
                    Some(function) => unsafe { function($($arg),*) },
                    None => {
                        errno::set(libc::ENOSYS);
                        $fail
                    }
                }
            }
        )*
    };
}

/// A C string from a literal that ends in its only NUL.
#[cfg(not(feature = "link"))]
const fn name_of(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

library_functions! {
    c"IBVERBS_1.1" pub fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_free_device_list(list: *mut *mut ibv_device), else ();
    c"IBVERBS_1.1" pub fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char, else ptr::null();
    c"IBVERBS_1.9" pub fn ibv_get_device_index(device: *mut ibv_device) -> c_int, else -1;
    c"IBVERBS_1.1" pub fn ibv_get_device_guid(device: *mut ibv_device) -> __be64, else 0;
    c"IBVERBS_1.1" pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_close_device(context: *mut ibv_context) -> c_int, else -1;
    c"IBVERBS_1.10" pub fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context, else ptr::null_mut();
    c"IBVERBS_1.10" pub fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd, else ptr::null_mut();
    c"IBVERBS_1.10" pub fn ibv_unimport_pd(pd: *mut ibv_pd), else ();
    c"IBVERBS_1.10" pub fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr, else ptr::null_mut();
    c"IBVERBS_1.10" pub fn ibv_unimport_mr(mr: *mut ibv_mr), else ();
    c"IBVERBS_1.13" pub fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm, else ptr::null_mut();
    c"IBVERBS_1.13" pub fn ibv_unimport_dm(dm: *mut ibv_dm), else ();
    c"IBVERBS_1.1" pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, else -1;
    c"IBVERBS_1.1" pub fn ibv_ack_async_event(event: *mut ibv_async_event), else ();
    c"IBVERBS_1.1" pub fn ibv_query_device(
        context: *mut ibv_context, device_attr: *mut ibv_device_attr,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub(crate) fn ibv_query_port(
        context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_query_gid(
        context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid,
    ) -> c_int, else -1;
    c"IBVERBS_1.11" pub fn _ibv_query_gid_ex(
        context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32,
        entry_size: usize,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.11" pub fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize,
    ) -> ssize_t, else NO_GID_TABLE;
    c"IBVERBS_1.1" pub fn ibv_query_pkey(
        context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16,
    ) -> c_int, else -1;
    c"IBVERBS_1.5" pub fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int, else -1;
    c"IBVERBS_1.1" pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub(crate) fn ibv_reg_mr(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int,
    ) -> *mut ibv_mr, else ptr::null_mut();
    c"IBVERBS_1.7" pub(crate) fn ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int,
    ) -> *mut ibv_mr, else ptr::null_mut();
    c"IBVERBS_1.8" pub fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
    ) -> *mut ibv_mr, else ptr::null_mut();
    c"IBVERBS_1.12" pub fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
    ) -> *mut ibv_mr, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_rereg_mr(
        mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int,
    ) -> c_int, else crate::bindings::ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
    c"IBVERBS_1.1" pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.0" pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel, else ptr::null_mut();
    c"IBVERBS_1.0" pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void,
    ) -> c_int, else -1;
    c"IBVERBS_1.1" pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint), else ();
    c"IBVERBS_1.1" pub fn ibv_create_srq(
        pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr,
    ) -> *mut ibv_srq, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_modify_srq(
        srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_create_qp(
        pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr,
    ) -> *mut ibv_qp, else ptr::null_mut();
    c"IBVERBS_1.6" pub fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_modify_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.14" pub fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int, else 0;
    c"IBVERBS_1.1" pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.10" pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.10" pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_init_ah_from_wc(
        context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr,
    ) -> c_int, else -1;
    c"IBVERBS_1.1" pub fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8,
    ) -> *mut ibv_ah, else ptr::null_mut();
    c"IBVERBS_1.1" pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_fork_init() -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.13" pub fn ibv_is_fork_initialized() -> ibv_fork_status, else crate::bindings::IBV_FORK_DISABLED;
    c"IBVERBS_1.1" pub fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16,
    ) -> c_int, else libc::ENOSYS;
    c"IBVERBS_1.1" pub fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char, else NO_LIBRARY.as_ptr();
    c"IBVERBS_1.1" pub fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char, else NO_LIBRARY.as_ptr();
    c"IBVERBS_1.1" pub fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char, else NO_LIBRARY.as_ptr();
    c"IBVERBS_1.1" pub fn ibv_event_type_str(event: ibv_event_type) -> *const c_char, else NO_LIBRARY.as_ptr();
    c"IBVERBS_1.0" pub fn ibv_rate_to_mult(rate: ibv_rate) -> c_int, else -1;
    c"IBVERBS_1.0" pub fn mult_to_ibv_rate(mult: c_int) -> ibv_rate, else ibv_rate::IBV_RATE_MAX;
    c"IBVERBS_1.1" pub fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int, else -1;
    c"IBVERBS_1.1" pub fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate, else ibv_rate::IBV_RATE_MAX;
}
