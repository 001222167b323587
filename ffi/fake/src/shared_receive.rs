//! Shared receive queues: receives that the messages of many queue pairs consume.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rdma_sys::{
    ibv_context, ibv_event_type, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask,
    ibv_srq_init_attr,
};

use crate::context::Children;
use crate::control::Call;
use crate::device::{QUEUE_DEPTH_MAX, SEGMENTS_MAX};
use crate::domain::Domain;
use crate::events::{self, About, Unacknowledged};
use crate::flag::Guarded;
use crate::handle::{Handle, hand_out, look_at, take_back};
use crate::receive::Receive;
use crate::ring::Ring;
use crate::{faults, registry, send};

#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    verbs: UnsafeCell<ibv_srq>,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    depth: u32,
    segments_max: u32,
    receives: Ring<Receive>,
    posted: AtomicU64,
    taken: AtomicU64,
    /// Whether a peer's request waits for a receive.
    wanted: AtomicBool,
    /// Held by a thread that takes a receive; inside is the limit, zero if none is armed.
    limit: Guarded<u32>,
    pub(crate) children: Children,
    pub(crate) events: Unacknowledged,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for SharedReceiveQueue {
    type Verbs = ibv_srq;
}

impl SharedReceiveQueue {
    pub(crate) const fn as_ptr(&self) -> *mut ibv_srq {
        self.verbs.get()
    }

    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.context
    }

    pub(crate) const fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    /// Takes the oldest receive; if there is none, the next one posted will be reported.
    pub(crate) fn take(&self) -> Option<Receive> {
        let mut limit = self.limit.lock();
        let taken = self.taken.load(Ordering::Relaxed);
        if self.posted.load(Ordering::Acquire) == taken {
            self.wanted.store(true, Ordering::Relaxed);
            // Pairs with the one in `post_srq_recv`.
            fence(Ordering::SeqCst);
            if self.posted.load(Ordering::Acquire) == taken {
                return None;
            }
        }
        // SAFETY: posted and not taken, and the acquire above pairs with its release.
        let receive = *unsafe { self.receives.read(taken) };
        let taken = taken.wrapping_add(1);
        // Release: the place was copied out before a posting thread sees this.
        self.taken.store(taken, Ordering::Release);
        let left = self.posted.load(Ordering::Relaxed).wrapping_sub(taken);
        if left < u64::from(*limit) {
            // Once, and then it is disarmed (S22).
            *limit = 0;
            let about = About::SharedReceiveQueue(self.as_ptr());
            // SAFETY: the context is open as long as the queue's domain, and that as long as the queue.
            unsafe { events::emit(self.context, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, about) };
        }
        Some(receive)
    }
}

/// Posts receives, see `ibv_post_srq_recv(3)`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    if let Some(error) = faults::due(Call::PostSrqRecv) {
        // SAFETY: writable, as the caller vouches (ibv_post_srq_recv(3)).
        unsafe { bad_wr.write(wr) };
        return error;
    }
    // SAFETY: live, as the caller vouches (ibv_post_srq_recv(3)).
    let srq: &SharedReceiveQueue = unsafe { look_at(srq) };
    let mut next = wr;
    let mut position = srq.posted.load(Ordering::Relaxed);
    let outcome = loop {
        // SAFETY: null, or a request of the caller's list.
        let Some(request) = (unsafe { next.as_ref() }) else {
            break 0;
        };
        if position.wrapping_sub(srq.taken.load(Ordering::Acquire)) >= u64::from(srq.depth) {
            break libc::ENOMEM;
        }
        // SAFETY: a request of the caller's list.
        let receive = match unsafe { Receive::copied(request, srq.segments_max) } {
            Ok(receive) => receive,
            Err(error) => break error,
        };
        // SAFETY: free, as just checked, and not published; one thread posts.
        unsafe { srq.receives.write(position, receive) };
        position = position.wrapping_add(1);
        next = request.next;
    };
    srq.posted.store(position, Ordering::Release);
    // Pairs with the one in `take`.
    fence(Ordering::SeqCst);
    if srq.wanted.load(Ordering::Relaxed) && srq.wanted.swap(false, Ordering::Relaxed) {
        registry::each(send::run);
    }
    if outcome != 0 {
        // SAFETY: writable, as the caller vouches.
        unsafe { bad_wr.write(next) };
    }
    outcome
}

/// Makes a shared receive queue, see `ibv_create_srq(3)`.
///
/// # Errors
/// An errno value.
///
/// # Safety
/// The domain is live.
pub(crate) unsafe fn create(pd: *mut ibv_pd, wanted: &ibv_srq_init_attr) -> Result<*mut ibv_srq, c_int> {
    let attributes = wanted.attr;
    if !(1..=QUEUE_DEPTH_MAX).contains(&attributes.max_wr) || attributes.max_sge > SEGMENTS_MAX {
        return Err(libc::EINVAL);
    }
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    domain.children.add();
    let context = domain.context();
    // SAFETY: integers, pointers, and locks of which zero bytes are the initial value.
    let mut verbs: ibv_srq = unsafe { core::mem::zeroed() };
    verbs.context = context;
    verbs.pd = pd;
    verbs.srq_context = wanted.srq_context;
    Ok(hand_out(SharedReceiveQueue {
        verbs: UnsafeCell::new(verbs),
        context,
        pd,
        depth: attributes.max_wr,
        segments_max: attributes.max_sge.max(1),
        receives: Ring::new(attributes.max_wr),
        posted: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        wanted: AtomicBool::new(false),
        limit: Guarded::new(0),
        children: Children::new(),
        events: Unacknowledged::default(),
    }))
}

/// Arms the limit, see `ibv_modify_srq(3)`.
///
/// # Errors
/// `EINVAL` for a limit beyond the depth, `EOPNOTSUPP` for another depth.
///
/// # Safety
/// The queue is live.
pub(crate) unsafe fn modify(srq: *mut ibv_srq, wanted: &ibv_srq_attr, mask: u32) -> Result<(), c_int> {
    // SAFETY: live, as the caller vouches.
    let srq: &SharedReceiveQueue = unsafe { look_at(srq) };
    if mask & ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if mask & ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 != 0 {
        if wanted.srq_limit > srq.depth {
            return Err(libc::EINVAL);
        }
        *srq.limit.lock() = wanted.srq_limit;
    }
    Ok(())
}

/// Attributes of the queue, as `ibv_query_srq(3)` returns them.
///
/// # Safety
/// The queue is live.
pub(crate) unsafe fn query(srq: *mut ibv_srq) -> ibv_srq_attr {
    // SAFETY: live, as the caller vouches.
    let srq: &SharedReceiveQueue = unsafe { look_at(srq) };
    ibv_srq_attr {
        max_wr: srq.depth,
        max_sge: srq.segments_max,
        srq_limit: *srq.limit.lock(),
    }
}

/// # Errors
/// `EBUSY` while a queue pair uses it.
///
/// # Safety
/// The queue is live, and not used again after a success.
pub(crate) unsafe fn destroy(srq: *mut ibv_srq) -> Result<(), c_int> {
    // SAFETY: live, as the caller vouches.
    let live: &SharedReceiveQueue = unsafe { look_at(srq) };
    live.children.none()?;
    // SAFETY: the context is open as long as the queue's domain, and the queue is live.
    unsafe { events::settle(live.context, About::SharedReceiveQueue(srq)) };
    // SAFETY: live as long as the queue: it counts as its child.
    let domain: &Domain = unsafe { look_at(live.pd) };
    domain.children.remove();
    // SAFETY: nobody uses it any more.
    drop(unsafe { take_back::<SharedReceiveQueue>(srq) });
    Ok(())
}
