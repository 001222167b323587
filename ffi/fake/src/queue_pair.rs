//! Queue pairs: how one is made, asked and destroyed.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use rdma_sys::{
    ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, ibv_srq,
};

use crate::completion_queue::CompletionQueue;
use crate::control::Value;
use crate::device::{INLINE_BYTES_MAX, QUEUE_DEPTH_MAX, SEGMENTS_MAX};
use crate::domain::Domain;
use crate::engine::Responder;
use crate::events::{self, About, Unacknowledged};
use crate::faults;
use crate::handle::{Handle, hand_out, look_at, take_back};
use crate::receive::{Receive, WANTED};
use crate::registry::{self, Core};
use crate::ring::Ring;
use crate::send::{Requester, Stored};
use crate::shared_receive::SharedReceiveQueue;

/// The states, as `ibv_qp_state` numbers them.
pub(crate) mod state {
    use rdma_sys::ibv_qp_state;

    pub(crate) const RESET: u32 = ibv_qp_state::IBV_QPS_RESET.0;
    pub(crate) const INIT: u32 = ibv_qp_state::IBV_QPS_INIT.0;
    pub(crate) const READY_TO_RECEIVE: u32 = ibv_qp_state::IBV_QPS_RTR.0;
    pub(crate) const READY_TO_SEND: u32 = ibv_qp_state::IBV_QPS_RTS.0;
    pub(crate) const DRAIN: u32 = ibv_qp_state::IBV_QPS_SQD.0;
    /// A state of datagram queue pairs alone.
    pub(crate) const SEND_ERROR: u32 = ibv_qp_state::IBV_QPS_SQE.0;
    pub(crate) const ERROR: u32 = ibv_qp_state::IBV_QPS_ERR.0;
}

/// Effect of posting a send: it is refused, completed, or carried out (or flushed).
pub(crate) mod path {
    pub(crate) const REFUSE: u8 = 0;
    pub(crate) const NULL: u8 = 1;
    pub(crate) const LOOPBACK: u8 = 2;
}

#[repr(C)]
pub(crate) struct QueuePair {
    verbs: UnsafeCell<ibv_qp>,
    pub(crate) path: AtomicU8,
    pub(crate) caps: ibv_qp_cap,
    pub(crate) signals_all: bool,
    pub(crate) is_datagram: bool,
    pub(crate) qpn: u32,
    pub(crate) core: &'static Core,
    /// The position behind the last send that was posted, and of the first receive that was not taken.
    pub(crate) sends_posted: AtomicU64,
    pub(crate) receives_posted: AtomicU64,
    pub(crate) receives_taken: AtomicU64,
    send_cq: NonNull<ibv_cq>,
    receive_cq: NonNull<ibv_cq>,
    srq: Option<NonNull<ibv_srq>>,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    state: AtomicU32,
    /// Bits of what wants to hear of a receive that is posted.
    pub(crate) attention: AtomicU32,
    /// Sends that wait, by position.
    pub(crate) stored: Ring<Stored>,
    pub(crate) receives: Ring<Receive>,
    /// The attributes as they were given, for queries; a thread that modifies holds the lock.
    pub(crate) attributes: Mutex<ibv_qp_attr>,
    pub(crate) events: Unacknowledged,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for QueuePair {
    type Verbs = ibv_qp;
}

impl QueuePair {
    pub(crate) const fn as_ptr(&self) -> *mut ibv_qp {
        self.verbs.get()
    }

    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.context
    }

    pub(crate) const fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Sets the state; the caller holds the responder's flag.
    pub(crate) fn set_state(&self, state: u32, path: u8) {
        self.state.store(state, Ordering::Relaxed);
        self.path.store(path, Ordering::Relaxed);
        // SAFETY: a field of our own structure; no reference is formed.
        let place = unsafe { &raw mut (*self.as_ptr()).state };
        // SAFETY: callers only read it, and libibverbs writes it so too.
        unsafe { place.write(ibv_qp_state(state)) };
    }

    #[inline]
    pub(crate) fn send_cq(&self) -> &CompletionQueue {
        // SAFETY: live as long as the queue pair: it counts as its child.
        unsafe { look_at(self.send_cq.as_ptr()) }
    }

    #[inline]
    pub(crate) fn receive_cq(&self) -> &CompletionQueue {
        // SAFETY: as above.
        unsafe { look_at(self.receive_cq.as_ptr()) }
    }

    #[inline]
    pub(crate) fn srq(&self) -> Option<&SharedReceiveQueue> {
        // SAFETY: as above.
        self.srq.map(|srq| unsafe { look_at(srq.as_ptr()) })
    }

    /// Takes the oldest receive with its position; if there is none, the next one posted will be reported. The
    /// caller holds the responder's flag.
    pub(crate) fn take_receive(&self) -> Option<(Receive, u64)> {
        if let Some(srq) = self.srq() {
            return srq.take().map(|receive| (receive, 0));
        }
        let taken = self.receives_taken.load(Ordering::Relaxed);
        // Acquire: pairs with the release in `post_list`.
        if self.receives_posted.load(Ordering::Acquire) == taken {
            self.attention.fetch_or(WANTED, Ordering::Relaxed);
            // Pairs with the one in `post_recv`.
            fence(Ordering::SeqCst);
            if self.receives_posted.load(Ordering::Acquire) == taken {
                return None;
            }
        }
        // SAFETY: posted, and not written again before its completion was polled.
        let receive = *unsafe { self.receives.read(taken) };
        self.receives_taken
            .store(taken.wrapping_add(1), Ordering::Relaxed);
        Some((receive, taken))
    }

    /// Puts back the receive that was taken last, as if it had not been; not one of a shared queue. The caller
    /// holds the responder's flag.
    pub(crate) fn put_back(&self, position: u64) {
        self.receives_taken.store(position, Ordering::Relaxed);
    }

    /// Counter of polled receives; `None` for a shared queue, which has its own.
    pub(crate) fn receive_progress(&self) -> Option<&'static AtomicU64> {
        if self.srq.is_some() {
            None
        } else {
            Some(&self.core.receives_polled)
        }
    }
}

/// Makes a queue pair in RESET, see `ibv_create_qp(3)`.
///
/// # Errors
/// An errno value.
///
/// # Safety
/// The domain is live, and so are the queues that the attributes name.
pub(crate) unsafe fn create(pd: *mut ibv_pd, wanted: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, c_int> {
    let is_datagram = wanted.qp_type == ibv_qp_type::IBV_QPT_UD;
    // Nothing here sends datagrams to a shared receive queue.
    if !is_datagram && wanted.qp_type != ibv_qp_type::IBV_QPT_RC || is_datagram && !wanted.srq.is_null() {
        return Err(libc::EOPNOTSUPP);
    }
    let caps = granted(wanted)?;
    let send_cq = NonNull::new(wanted.send_cq).ok_or(libc::EINVAL)?;
    let receive_cq = NonNull::new(wanted.recv_cq).ok_or(libc::EINVAL)?;
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    // SAFETY: live, as the caller vouches.
    let sends: &CompletionQueue = unsafe { look_at(send_cq.as_ptr()) };
    // SAFETY: live, as the caller vouches.
    let receives: &CompletionQueue = unsafe { look_at(receive_cq.as_ptr()) };
    let context = domain.context();
    if sends.context() != context || receives.context() != context {
        return Err(libc::EINVAL);
    }
    let srq = NonNull::new(wanted.srq);
    if let Some(srq) = srq {
        // SAFETY: live, as the caller vouches.
        let srq: &SharedReceiveQueue = unsafe { look_at(srq.as_ptr()) };
        if srq.context() != context {
            return Err(libc::EINVAL);
        }
    }
    let Some((qpn, core)) = registry::take() else {
        return Err(libc::ENOMEM);
    };
    if let Some(srq) = srq {
        // SAFETY: live, as the caller vouches.
        let srq: &SharedReceiveQueue = unsafe { look_at(srq.as_ptr()) };
        srq.children.add();
    }
    domain.children.add();
    sends.children.add();
    receives.children.add();
    // SAFETY: integers, pointers, and locks of which zero bytes are the initial value.
    let mut verbs: ibv_qp = unsafe { core::mem::zeroed() };
    verbs.context = context;
    verbs.qp_context = wanted.qp_context;
    verbs.pd = pd;
    verbs.send_cq = wanted.send_cq;
    verbs.recv_cq = wanted.recv_cq;
    verbs.srq = wanted.srq;
    verbs.qp_num = faults::value(Value::QpNum, qpn);
    verbs.qp_type = wanted.qp_type;
    wanted.cap = caps;
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    let attributes: ibv_qp_attr = unsafe { core::mem::zeroed() };
    let mut requester = core.requester.lock();
    let mut responder = core.responder.lock();
    // Positions go on where the core's last queue pair ended.
    let (sends_from, receives_from) = (requester.next_position, responder.next_position);
    core.sends_polled.store(sends_from, Ordering::Relaxed);
    core.receives_polled.store(receives_from, Ordering::Relaxed);
    let qp = hand_out(QueuePair {
        verbs: UnsafeCell::new(verbs),
        path: AtomicU8::new(path::REFUSE),
        caps,
        signals_all: wanted.sq_sig_all != 0,
        is_datagram,
        qpn,
        core,
        sends_posted: AtomicU64::new(sends_from),
        receives_posted: AtomicU64::new(receives_from),
        receives_taken: AtomicU64::new(receives_from),
        send_cq,
        receive_cq,
        srq,
        context,
        pd,
        state: AtomicU32::new(state::RESET),
        attention: AtomicU32::new(0),
        stored: Ring::new(caps.max_send_wr),
        receives: Ring::new(caps.max_recv_wr),
        attributes: Mutex::new(attributes),
        events: Unacknowledged::default(),
    });
    *requester = Requester::of(qp);
    *responder = Responder::of(qp);
    Ok(qp)
}

/// Capacities that are granted: as asked for, and one element at least.
fn granted(wanted: &ibv_qp_init_attr) -> Result<ibv_qp_cap, c_int> {
    let mut caps = wanted.cap;
    let too_much = caps.max_send_wr > QUEUE_DEPTH_MAX
        || caps.max_recv_wr > QUEUE_DEPTH_MAX
        || caps.max_send_sge > SEGMENTS_MAX
        || caps.max_recv_sge > SEGMENTS_MAX
        || caps.max_inline_data > INLINE_BYTES_MAX;
    if too_much {
        return Err(libc::EINVAL);
    }
    caps.max_send_sge = caps.max_send_sge.max(1);
    caps.max_recv_sge = caps.max_recv_sge.max(1);
    Ok(caps)
}

/// Says what a queue pair is, see `ibv_query_qp(3)`.
///
/// # Safety
/// The queue pair is live, and both structures are writable.
pub(crate) unsafe fn query(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, init: *mut ibv_qp_init_attr) {
    // SAFETY: live, as the caller vouches.
    let qp: &QueuePair = unsafe { look_at(qp) };
    let mut attributes = *qp.attributes.lock().unwrap_or_else(PoisonError::into_inner);
    attributes.qp_state = ibv_qp_state(faults::value(Value::QpState, qp.state()));
    attributes.cur_qp_state = attributes.qp_state;
    attributes.cap = qp.caps;
    // SAFETY: writable, as the caller vouches.
    unsafe { attr.write(attributes) };
    let made_with = ibv_qp_init_attr {
        // SAFETY: a field of our own structure, written before it was handed out.
        qp_context: unsafe { (*qp.as_ptr()).qp_context },
        send_cq: qp.send_cq.as_ptr(),
        recv_cq: qp.receive_cq.as_ptr(),
        srq: qp.srq.map_or(core::ptr::null_mut(), NonNull::as_ptr),
        cap: qp.caps,
        qp_type: if qp.is_datagram {
            ibv_qp_type::IBV_QPT_UD
        } else {
            ibv_qp_type::IBV_QPT_RC
        },
        sq_sig_all: c_int::from(qp.signals_all),
    };
    // SAFETY: writable, as the caller vouches.
    unsafe { init.write(made_with) };
}

/// Destroys a queue pair: once it returns, nothing of it touches any memory. It waits for its events to
/// be acknowledged, see `ibv_create_qp(3)`.
///
/// # Safety
/// The queue pair is live, and not used again.
pub(crate) unsafe fn destroy(handle: *mut ibv_qp) {
    // SAFETY: live, as the caller vouches.
    let qp: &QueuePair = unsafe { look_at(handle) };
    let mut requester = qp.core.requester.lock();
    requester.forget_waiting(qp);
    *requester = Requester::after(qp.sends_posted.load(Ordering::Relaxed));
    drop(requester);
    let mut responder = qp.core.responder.lock();
    *responder = Responder::after(qp.receives_posted.load(Ordering::Relaxed));
    drop(responder);
    // SAFETY: the context is open as long as the queue pair's domain, and the queue pair is live.
    unsafe { events::settle(qp.context, About::QueuePair(handle)) };
    qp.send_cq().children.remove();
    qp.receive_cq().children.remove();
    if let Some(srq) = qp.srq() {
        srq.children.remove();
    }
    // SAFETY: live as long as the queue pair: it counts as its child.
    let domain: &Domain = unsafe { look_at(qp.pd) };
    domain.children.remove();
    let qpn = qp.qpn;
    // SAFETY: nobody uses it any more: neither half of the core leads to it.
    drop(unsafe { take_back::<QueuePair>(handle) });
    registry::give_back(qpn);
}
