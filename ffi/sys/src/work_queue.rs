//! Work queues that stand outside a queue pair, and the tables that spread receives over them.

use core::ffi::c_int;
use core::ptr;

use crate::bindings::{
    ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr,
};
use crate::context::extended;
use crate::errno;

extended! {
    /// Changes a work queue, see `ibv_modify_wq(3)`.
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int = modify_wq of [(*wq).context];
    /// Releases a work queue, see `ibv_create_wq(3)`.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = destroy_wq of [(*wq).context];
    /// Makes an indirection table, see `ibv_create_rwq_ind_table(3)`.
    fn ibv_create_rwq_ind_table(
        context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table = create_rwq_ind_table of [context];
    /// Releases an indirection table, see `ibv_create_rwq_ind_table(3)`.
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        = destroy_rwq_ind_table of [(*rwq_ind_table).context];
}

/// Makes a work queue, see `ibv_create_wq(3)`.
///
/// The part of the structure that is the caller's business in C (context pointer, event count, lock and
/// condition) is set up here as the C inline function does it.
///
/// # Errors
/// Null, with errno; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `context` is live and `wq_init_attr` satisfies the manual page.
#[inline]
pub unsafe fn ibv_create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: the caller vouches for the context; the size is checked before the operation is read.
    let Some(create_wq) = (unsafe { crate::verbs_get_ctx_op!(context, create_wq) }) else {
        return errno::unsupported_null();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    let wq = unsafe { create_wq(context, wq_init_attr) };
    if wq.is_null() {
        return wq;
    }
    // SAFETY: the caller vouches for the attributes.
    let wq_context = unsafe { (*wq_init_attr).wq_context };
    // SAFETY: the provider has just made the queue, and nobody else knows of it yet.
    unsafe { (*wq).wq_context = wq_context };
    // SAFETY: as above.
    unsafe { (*wq).events_completed = 0 };
    // SAFETY: as above; no reference to the lock is formed.
    let mutex = unsafe { &raw mut (*wq).mutex };
    // SAFETY: memory for a lock that nobody uses yet; with default attributes Linux does not fail here.
    unsafe { libc::pthread_mutex_init(mutex, ptr::null()) };
    // SAFETY: as for the lock.
    let cond = unsafe { &raw mut (*wq).cond };
    // SAFETY: as for the lock.
    unsafe { libc::pthread_cond_init(cond, ptr::null()) };
    wq
}

/// Posts a list of work requests to a work queue, see `ibv_post_wq_recv(3)`.
///
/// # Errors
/// An errno value, with `*bad_recv_wr` at the first request not posted; `EOPNOTSUPP` where the queue has no
/// such operation.
///
/// # Safety
/// `wq` is live, `recv_wr` a list that satisfies the manual page, `bad_recv_wr` writable.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller vouches for the queue.
    let Some(post_recv) = (unsafe { (*wq).post_recv }) else {
        // SAFETY: the caller vouches for `bad_recv_wr`.
        unsafe { bad_recv_wr.write(recv_wr) };
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { post_recv(wq, recv_wr, bad_recv_wr) }
}
