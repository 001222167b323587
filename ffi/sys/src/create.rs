//! The extended creators: completion queues, queue pairs, shared receive queues and domains, with what
//! modifies and releases them.

use core::ffi::c_int;

use crate::bindings::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_parent_domain_init_attr,
    ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_qp_type, ibv_srq, ibv_srq_init_attr_ex, ibv_srq_init_attr_mask, ibv_srq_type, ibv_td,
    ibv_td_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::context::extended;
use crate::errno;
use crate::functions::{ibv_create_qp, ibv_create_srq};
use crate::unions::ibv_ops_wr;

extended! {
    /// Creates an extended completion queue, see `ibv_create_cq_ex(3)`.
    fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = create_cq_ex of [context];
    /// Changes a completion queue's moderation, see `ibv_modify_cq(3)`.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int
        = modify_cq of [(*cq).context];
    /// Opens a queue pair shared between processes, see `ibv_open_qp(3)`.
    fn ibv_open_qp(context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr) -> *mut ibv_qp
        = open_qp of [context];
    /// Limits a queue pair's rate, see `ibv_modify_qp_rate_limit(3)`.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = modify_qp_rate_limit of [(*qp).context];
    /// The number under which peers address an XRC shared receive queue, see `ibv_get_srq_num(3)`.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int
        = get_srq_num of [(*srq).context];
    /// Opens an XRC domain, see `ibv_open_xrcd(3)`.
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = open_xrcd of [context];
    /// Closes an XRC domain, see `ibv_open_xrcd(3)`.
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int
        = close_xrcd of [(*xrcd).context];
    /// Allocates a thread domain, see `ibv_alloc_td(3)`.
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td
        = alloc_td of [context];
    /// Releases a thread domain, see `ibv_alloc_td(3)`.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int
        = dealloc_td of [(*td).context];
    /// Allocates a parent domain, see `ibv_alloc_parent_domain(3)`.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = alloc_parent_domain of [context];
}

/// Creates a queue pair with extended attributes, see `ibv_create_qp_ex(3)`.
///
/// Attributes that name nothing but a protection domain go to `ibv_create_qp`, as in C.
///
/// # Errors
/// Null, with errno; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `context` is live and `qp_init_attr_ex` satisfies the manual page.
#[inline]
#[must_use]
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller vouches for the attributes.
    let mask = unsafe { (*qp_init_attr_ex).comp_mask };
    if mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        // SAFETY: as above; the mask says that this field is given.
        let pd = unsafe { (*qp_init_attr_ex).pd };
        // SAFETY: the extended attributes begin with the plain ones (asserted in `layout`).
        return unsafe { ibv_create_qp(pd, qp_init_attr_ex.cast()) };
    }
    // SAFETY: the caller vouches for the context, and the size is checked before the operation is read.
    let Some(create_qp_ex) = (unsafe { crate::verbs_get_ctx_op!(context, create_qp_ex) }) else {
        return errno::unsupported_null();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { create_qp_ex(context, qp_init_attr_ex) }
}

/// Creates a shared receive queue with extended attributes, see `ibv_create_srq_ex(3)`.
///
/// A basic queue with nothing but a protection domain (and its type) goes to `ibv_create_srq`, as in C;
/// every other kind needs the provider's extended operation.
///
/// # Errors
/// Null, with errno; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `context` is live and `srq_init_attr_ex` satisfies the manual page.
#[inline]
#[must_use]
pub unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;

    // SAFETY: the caller vouches for the attributes.
    let mask = unsafe { (*srq_init_attr_ex).comp_mask };
    let basic = mask & TYPE == 0 || {
        // SAFETY: as above; the mask says that this field is given.
        let srq_type = unsafe { (*srq_init_attr_ex).srq_type };
        srq_type == ibv_srq_type::IBV_SRQT_BASIC
    };
    if mask & !(PD | TYPE) == 0 && mask & PD != 0 && basic {
        // SAFETY: as above; the mask says that this field is given.
        let pd = unsafe { (*srq_init_attr_ex).pd };
        // SAFETY: the extended attributes begin with the plain ones (asserted in `layout`).
        return unsafe { ibv_create_srq(pd, srq_init_attr_ex.cast()) };
    }
    // SAFETY: the caller vouches for the context, and the size is checked before the operation is read.
    let Some(create_srq_ex) = (unsafe { crate::verbs_get_ctx_op!(context, create_srq_ex) }) else {
        return errno::unsupported_null();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { create_srq_ex(context, srq_init_attr_ex) }
}

/// Posts tag-matching operations to a shared receive queue, see `ibv_post_srq_ops(3)`.
///
/// # Errors
/// An errno value, with `*bad_op` at the first operation not posted; `EOPNOTSUPP` where the provider has no
/// such operation.
///
/// # Safety
/// `srq` is live, `op` a list that satisfies the manual page, `bad_op` writable.
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the caller vouches for the queue.
    let context = unsafe { (*srq).context };
    // SAFETY: a queue's context outlives it, and the size is checked before the operation is read.
    let Some(post_srq_ops) = (unsafe { crate::verbs_get_ctx_op!(context, post_srq_ops) }) else {
        // SAFETY: the caller vouches for `bad_op`.
        unsafe { bad_op.write(op) };
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { post_srq_ops(srq, op, bad_op) }
}

/// 1 where `caps`, a mask of transports as in `ibv_odp_caps` and the like, has the bit of `qpt`, else 0.
#[inline]
#[must_use]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    match 1_u32.checked_shl(qpt.0) {
        Some(bit) if caps & bit != 0 => 1,
        _ => 0,
    }
}
