//! Posting and polling through the plain context: the calls a program makes for every message.
//!
//! Each is two loads and one indirect call. A program that wants neither the loads nor the check takes the
//! function pointer out of `ibv_context_ops` once, when it makes its queue.

use core::ffi::c_int;

use crate::bindings::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_srq};
use crate::errno;
use crate::unions::{ibv_send_wr, ibv_wc};

/// Posts a list of work requests to a send queue.
///
/// # Errors
/// An errno value, with `*bad_wr` at the first request not posted; `EOPNOTSUPP` where the provider has no
/// such operation.
///
/// # Safety
/// `qp` is live; `wr` is a null-terminated list that, with its scatter lists and the memory they name,
/// satisfies `ibv_post_send(3)`; `bad_wr` is writable.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller vouches for the queue pair.
    let context = unsafe { (*qp).context };
    // SAFETY: a queue pair's context lives at least as long as the queue pair.
    let Some(post_send) = (unsafe { (*context).ops.post_send }) else {
        // SAFETY: the caller vouches for `bad_wr`.
        unsafe { bad_wr.write(wr) };
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { post_send(qp, wr, bad_wr) }
}

/// Posts a list of work requests to a receive queue.
///
/// # Errors
/// An errno value, with `*bad_wr` at the first request not posted; `EOPNOTSUPP` where the provider has no
/// such operation.
///
/// # Safety
/// `qp` is live; `wr` is a null-terminated list that, with its scatter lists and the memory they name,
/// satisfies `ibv_post_recv(3)`; `bad_wr` is writable.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller vouches for the queue pair.
    let context = unsafe { (*qp).context };
    // SAFETY: a queue pair's context lives at least as long as the queue pair.
    let Some(post_recv) = (unsafe { (*context).ops.post_recv }) else {
        // SAFETY: the caller vouches for `bad_wr`.
        unsafe { bad_wr.write(wr) };
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { post_recv(qp, wr, bad_wr) }
}

/// Posts a list of work requests to a shared receive queue.
///
/// # Errors
/// An errno value, with `*bad_recv_wr` at the first request not posted; `EOPNOTSUPP` where the provider has
/// no such operation.
///
/// # Safety
/// `srq` is live; `recv_wr` is a null-terminated list that, with its scatter lists and the memory they name,
/// satisfies `ibv_post_srq_recv(3)`; `bad_recv_wr` is writable.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller vouches for the queue.
    let context = unsafe { (*srq).context };
    // SAFETY: a queue's context lives at least as long as the queue.
    let Some(post_srq_recv) = (unsafe { (*context).ops.post_srq_recv }) else {
        // SAFETY: the caller vouches for `bad_recv_wr`.
        unsafe { bad_recv_wr.write(recv_wr) };
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { post_srq_recv(srq, recv_wr, bad_recv_wr) }
}

/// Takes up to `num_entries` completions off a queue and returns how many there were.
///
/// # Errors
/// A negative number; `-EOPNOTSUPP`, with errno, where the provider has no such operation.
///
/// # Safety
/// `cq` is live and `wc` has room for `num_entries` completions, see `ibv_poll_cq(3)`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller vouches for the completion queue.
    let context = unsafe { (*cq).context };
    // SAFETY: a completion queue's context lives at least as long as the queue.
    let Some(poll_cq) = (unsafe { (*context).ops.poll_cq }) else {
        return errno::unsupported_value(-libc::EOPNOTSUPP);
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { poll_cq(cq, num_entries, wc) }
}

/// Asks for one event on the queue's channel when the next completion arrives.
///
/// # Errors
/// An errno value; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `cq` is live, see `ibv_req_notify_cq(3)`.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller vouches for the completion queue.
    let context = unsafe { (*cq).context };
    // SAFETY: a completion queue's context lives at least as long as the queue.
    let Some(req_notify_cq) = (unsafe { (*context).ops.req_notify_cq }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { req_notify_cq(cq, solicited_only) }
}
