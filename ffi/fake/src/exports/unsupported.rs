//! The functions that fail always: what this fake has no use for, each failing in its own manner.

use core::ffi::{c_int, c_void};
use core::ptr;

use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_cq, ibv_dm, ibv_ece, ibv_gid, ibv_grh, ibv_mr, ibv_pd, ibv_qp,
    ibv_rate, ibv_rereg_mr_err_code, ibv_wc,
};

use crate::errno;

macro_rules! unsupported {
    ($(fn $name:ident($($type:ty),* $(,)?) -> $ret:ty = $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($(_: $type),*) -> $ret {
            errno::set(libc::EOPNOTSUPP);
            $value
        }
    )*};
}

unsupported! {
    fn ibv_import_device(c_int) -> *mut ibv_context = ptr::null_mut();
    fn ibv_import_pd(*mut ibv_context, u32) -> *mut ibv_pd = ptr::null_mut();
    fn ibv_unimport_pd(*mut ibv_pd) -> () = ();
    fn ibv_import_mr(*mut ibv_pd, u32) -> *mut ibv_mr = ptr::null_mut();
    fn ibv_unimport_mr(*mut ibv_mr) -> () = ();
    fn ibv_import_dm(*mut ibv_context, u32) -> *mut ibv_dm = ptr::null_mut();
    fn ibv_unimport_dm(*mut ibv_dm) -> () = ();
    fn ibv_rereg_mr(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int
        = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
    fn ibv_resize_cq(*mut ibv_cq, c_int) -> c_int = libc::EOPNOTSUPP;
    fn ibv_set_ece(*mut ibv_qp, *mut ibv_ece) -> c_int = libc::EOPNOTSUPP;
    fn ibv_query_ece(*mut ibv_qp, *mut ibv_ece) -> c_int = libc::EOPNOTSUPP;
    fn ibv_init_ah_from_wc(*mut ibv_context, u8, *mut ibv_wc, *mut ibv_grh, *mut ibv_ah_attr) -> c_int = -1;
    fn ibv_create_ah_from_wc(*mut ibv_pd, *mut ibv_wc, *mut ibv_grh, u8) -> *mut ibv_ah = ptr::null_mut();
    fn ibv_attach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int = libc::EOPNOTSUPP;
    fn ibv_detach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int = libc::EOPNOTSUPP;
    fn ibv_resolve_eth_l2_from_gid(*mut ibv_context, *mut ibv_ah_attr, *mut u8, *mut u16) -> c_int
        = libc::EOPNOTSUPP;
    fn ibv_rate_to_mult(ibv_rate) -> c_int = -1;
    fn mult_to_ibv_rate(c_int) -> ibv_rate = ibv_rate::IBV_RATE_MAX;
    fn ibv_rate_to_mbps(ibv_rate) -> c_int = -1;
    fn mbps_to_ibv_rate(c_int) -> ibv_rate = ibv_rate::IBV_RATE_MAX;
}
