//! Completion queues: any number of producers, one thread that polls.
//!
//! A producer takes a place by a compare-and-swap of `tail` and publishes it by the place's own number; no side
//! waits for another. `head` shows producers which places are free again.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type, ibv_wc, ibv_wc_opcode, ibv_wc_status,
    imm_data_invalidated_rkey_union_t,
};

use crate::channel::Channel;
use crate::context::{Children, OpenDevice};
use crate::control::{Call, Value};
use crate::device::COMPLETIONS_MAX;
use crate::events::{self, About, Unacknowledged};
use crate::handle::{Handle, hand_out, look_at, take_back};
use crate::{faults, registry, send};

/// Value of the fields of a failed completion that mean nothing (S7).
const RUBBISH: u32 = 0xdead_beef;

/// A completion, as it waits to be polled.
#[derive(Clone, Copy)]
pub(crate) struct Cqe {
    pub(crate) wr_id: u64,
    /// Counter that advances past `position` once this is polled; `None` for receives of a shared queue.
    pub(crate) progress: Option<&'static AtomicU64>,
    pub(crate) position: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) bytes: u32,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) qpn: u32,
    pub(crate) flags: u32,
    /// Sender of a datagram.
    pub(crate) source_qpn: u32,
}

/// A place: one cache line, published by its number, which is its position plus one.
#[repr(align(64))]
struct CqeSlot {
    published: AtomicU64,
    cqe: UnsafeCell<Cqe>,
}

/// On a cache line of its own, since different threads write them.
#[repr(align(64))]
struct Apart<T>(T);

/// Not armed, armed for solicited and failed completions, armed for all.
const IDLE: u8 = 0;
const SOLICITED: u8 = 1;
const ALL: u8 = 2;

#[repr(C)]
pub(crate) struct CompletionQueue {
    verbs: UnsafeCell<ibv_cq>,
    context: *mut ibv_context,
    user_context: *mut c_void,
    channel: Option<NonNull<ibv_comp_channel>>,
    places: Box<[CqeSlot]>,
    mask: u64,
    armed: AtomicU8,
    overrun: AtomicBool,
    /// How many queue pairs that complete into it have requests waiting.
    pub(crate) waiting: AtomicU32,
    pub(crate) children: Children,
    /// Asynchronous events, and those of the channel.
    pub(crate) events: Unacknowledged,
    pub(crate) notices: Unacknowledged,
    tail: Apart<AtomicU64>,
    head: Apart<AtomicU64>,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for CompletionQueue {
    type Verbs = ibv_cq;
}

impl CompletionQueue {
    pub(crate) const fn as_ptr(&self) -> *mut ibv_cq {
        self.verbs.get()
    }

    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.context
    }

    pub(crate) const fn user_context(&self) -> *mut c_void {
        self.user_context
    }

    #[inline]
    fn place(&self, position: u64) -> Option<&CqeSlot> {
        self.places.get(usize::try_from(position & self.mask).ok()?)
    }

    /// Adds a completion; one too many is dropped and makes an event (S21).
    #[inline]
    pub(crate) fn push(&self, cqe: Cqe, solicited: bool) {
        let Some(position) = self.reserve(self.tail.0.load(Ordering::Relaxed)) else {
            self.overrun();
            return;
        };
        let Some(place) = self.place(position) else { return };
        // SAFETY: the place is this producer's alone, from taking the position until it is published.
        unsafe { place.cqe.get().write(cqe) };
        // Release: pairs with the acquire in `poll`.
        place.published.store(position.wrapping_add(1), Ordering::Release);
        if self.channel.is_some() {
            // A solicited completion behind this one may have found its event in vain: this one was not published yet.
            let is_last = self.tail.0.load(Ordering::Relaxed) == position.wrapping_add(1);
            self.notify(solicited || !is_last || cqe.status != ibv_wc_status::IBV_WC_SUCCESS);
        }
    }

    /// Takes the next position for a producer that has seen `tail`; `None` if the queue is full.
    #[inline]
    fn reserve(&self, tail: u64) -> Option<u64> {
        let mut position = tail;
        loop {
            // Acquire: pairs with the release in `poll`, so what stood there was copied out.
            if position.wrapping_sub(self.head.0.load(Ordering::Acquire)) > self.mask {
                // Full, unless what was seen is old: then the head may even have passed it.
                let now = self.tail.0.load(Ordering::Relaxed);
                if now == position {
                    return None;
                }
                position = now;
                continue;
            }
            let next = position.wrapping_add(1);
            let taken =
                self.tail
                    .0
                    .compare_exchange_weak(position, next, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return Some(position),
                Err(now) => position = now,
            }
        }
    }

    /// Sends the event that was asked for (S23).
    fn notify(&self, solicited: bool) {
        // Pairs with the one in `arm`: either this sees the queue armed, or the program that polls after
        // arming sees the completion.
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        if armed == IDLE || armed == SOLICITED && !solicited {
            return;
        }
        // If two producers get here at once, only one sends the event.
        if self.armed.swap(IDLE, Ordering::Relaxed) == IDLE {
            return;
        }
        if let Some(channel) = self.channel {
            // SAFETY: the channel is live as long as the queue: it counts as its child.
            let channel: &Channel = unsafe { look_at(channel.as_ptr()) };
            channel.events.push(self.as_ptr());
        }
    }

    #[cold]
    fn overrun(&self) {
        if !self.overrun.swap(true, Ordering::Relaxed) {
            let about = About::CompletionQueue(self.as_ptr());
            // SAFETY: a queue's context is open as long as the queue: it counts as its child.
            unsafe { events::emit(self.context, ibv_event_type::IBV_EVENT_CQ_ERR, about) };
        }
    }

    fn arm(&self, solicited_only: bool) {
        self.armed
            .store(if solicited_only { SOLICITED } else { ALL }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Takes completions, see `ibv_poll_cq(3)`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    if let Some(error) = faults::due(Call::PollCq) {
        return error.wrapping_neg();
    }
    // SAFETY: live, as the caller vouches (ibv_poll_cq(3)).
    let queue: &CompletionQueue = unsafe { look_at(cq) };
    if queue.waiting.load(Ordering::Relaxed) != 0 {
        send::run_waiting(queue);
    }
    let first = queue.head.0.load(Ordering::Relaxed);
    let (mut position, mut count, mut wc) = (first, 0, wc);
    while count < room {
        let Some(place) = queue.place(position) else { break };
        if place.published.load(Ordering::Acquire) != position.wrapping_add(1) {
            break;
        }
        // SAFETY: published, and not written again until `head` passes it.
        let cqe = unsafe { &*place.cqe.get() };
        if let Some(progress) = cqe.progress {
            registry::polled(progress, cqe.position);
        }
        // SAFETY: the caller has room for as many as it says.
        unsafe { wc.write(cqe.as_wc()) };
        wc = wc.wrapping_add(1);
        position = position.wrapping_add(1);
        count = count.wrapping_add(1);
    }
    if position != first {
        queue.head.0.store(position, Ordering::Release);
    }
    let said = faults::value(Value::WcCount, u32::from_ne_bytes(count.to_ne_bytes()));
    c_int::from_ne_bytes(said.to_ne_bytes())
}

impl Cqe {
    #[inline]
    fn as_wc(&self) -> ibv_wc {
        let mut wc = ibv_wc {
            wr_id: self.wr_id,
            status: self.status,
            opcode: self.opcode,
            vendor_err: 0,
            byte_len: self.bytes,
            imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t {
                imm_data: self.immediate,
            },
            qp_num: self.qpn,
            src_qp: self.source_qpn,
            wc_flags: self.flags,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        };
        if self.status != ibv_wc_status::IBV_WC_SUCCESS {
            wc.opcode = ibv_wc_opcode(RUBBISH);
            wc.byte_len = RUBBISH;
            wc.imm_data_invalidated_rkey_union.imm_data = RUBBISH;
            wc.wc_flags = RUBBISH;
            wc.src_qp = RUBBISH;
        }
        odd(wc)
    }
}

/// A completion as a test wants it.
#[inline]
fn odd(mut wc: ibv_wc) -> ibv_wc {
    wc.status = ibv_wc_status(faults::value(Value::WcStatus, wc.status.0));
    wc.opcode = ibv_wc_opcode(faults::value(Value::WcOpcode, wc.opcode.0));
    wc.byte_len = faults::value(Value::WcByteLen, wc.byte_len);
    wc.wc_flags = faults::value(Value::WcFlags, wc.wc_flags);
    wc.src_qp = faults::value(Value::WcSrcQp, wc.src_qp);
    let [a, b, c, d, low @ ..] = wc.wr_id.to_be_bytes();
    let low = faults::value(Value::WcWrId, u32::from_be_bytes(low));
    wc.wr_id = u64::from(u32::from_be_bytes([a, b, c, d])) << 32 | u64::from(low);
    wc
}

/// Asks for an event at the next completion, see `ibv_req_notify_cq(3)`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    if let Some(error) = faults::due(Call::ReqNotifyCq) {
        return error;
    }
    // SAFETY: live, as the caller vouches (ibv_req_notify_cq(3)).
    let queue: &CompletionQueue = unsafe { look_at(cq) };
    queue.arm(solicited_only != 0);
    0
}

/// Makes a completion queue, see `ibv_create_cq(3)`.
///
/// # Errors
/// An errno value.
///
/// # Safety
/// The context is open, and the channel live or null.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    depth: c_int,
    user_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<*mut ibv_cq, c_int> {
    let depth = u32::try_from(depth)
        .ok()
        .filter(|depth| (1..=COMPLETIONS_MAX).contains(depth));
    let depth = depth.ok_or(libc::EINVAL)?;
    if vector != 0 {
        return Err(libc::EINVAL);
    }
    if let Some(channel) = NonNull::new(channel) {
        // SAFETY: live, as the caller vouches.
        let channel: &Channel = unsafe { look_at(channel.as_ptr()) };
        if channel.context() != context {
            return Err(libc::EINVAL);
        }
        channel.children.add();
    }
    let length = depth.next_power_of_two();
    // SAFETY: integers, pointers, and locks of which zero bytes are the initial value.
    let mut verbs: ibv_cq = unsafe { core::mem::zeroed() };
    verbs.context = context;
    verbs.channel = channel;
    verbs.cq_context = user_context;
    verbs.cqe = c_int::try_from(length).unwrap_or(c_int::MAX);
    // SAFETY: open, as the caller vouches.
    unsafe { OpenDevice::of(context) }.children.add();
    let places = (0..length).map(|_| CqeSlot {
        published: AtomicU64::new(0),
        cqe: UnsafeCell::new(Cqe::NONE),
    });
    Ok(hand_out(CompletionQueue {
        verbs: UnsafeCell::new(verbs),
        context,
        user_context,
        channel: NonNull::new(channel),
        places: places.collect(),
        mask: u64::from(length).wrapping_sub(1),
        armed: AtomicU8::new(IDLE),
        overrun: AtomicBool::new(false),
        waiting: AtomicU32::new(0),
        children: Children::new(),
        events: Unacknowledged::default(),
        notices: Unacknowledged::default(),
        tail: Apart(AtomicU64::new(0)),
        head: Apart(AtomicU64::new(0)),
    }))
}

impl Cqe {
    const NONE: Self = Self {
        wr_id: 0,
        progress: None,
        position: 0,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode: ibv_wc_opcode::IBV_WC_SEND,
        bytes: 0,
        immediate: 0,
        qpn: 0,
        flags: 0,
        source_qpn: 0,
    };
}

/// Destroys a completion queue; waits for its events to be acknowledged, see `ibv_create_cq(3)`.
///
/// # Errors
/// `EBUSY` while a queue pair completes into it.
///
/// # Safety
/// The queue is live, and not used again after a success.
pub(crate) unsafe fn destroy(cq: *mut ibv_cq) -> Result<(), c_int> {
    // SAFETY: live, as the caller vouches.
    let queue: &CompletionQueue = unsafe { look_at(cq) };
    queue.children.none()?;
    if let Some(channel) = queue.channel {
        // SAFETY: live as long as the queue: it counts as its child.
        let channel: &Channel = unsafe { look_at(channel.as_ptr()) };
        channel.events.retain(|about| *about != cq);
        queue.notices.wait();
        channel.children.remove();
    }
    // SAFETY: the context is open as long as the queue, and the queue is live.
    unsafe { events::settle(queue.context, About::CompletionQueue(cq)) };
    // SAFETY: open, as above.
    unsafe { OpenDevice::of(queue.context) }.children.remove();
    // SAFETY: nobody uses it any more.
    drop(unsafe { take_back::<CompletionQueue>(cq) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{CompletionQueue, Cqe, create, destroy, poll_cq};
    use crate::context::OpenDevice;
    use crate::device::{self, Device};
    use crate::handle::look_at;
    use core::ptr;

    #[test]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a test of unsafe functions")]
    fn a_producer_who_was_away_does_not_take_the_queue_for_full() {
        // SAFETY: everything is made here, in order, and given back.
        unsafe {
            let (list, _) = device::list();
            let context = OpenDevice::open(Device::of(list.read()));
            let cq = create(context, 4, ptr::null_mut(), ptr::null_mut(), 0).unwrap();
            let queue: &CompletionQueue = look_at(cq);
            let mut completions = [core::mem::zeroed(); 4];
            for _ in 0..3 {
                queue.push(Cqe::NONE, false);
            }
            assert_eq!(poll_cq(cq, 4, completions.as_mut_ptr()), 3);
            // The tail was seen at 0, and the head has passed that.
            assert_eq!(queue.reserve(0), Some(3));
            for position in 4..7 {
                assert_eq!(queue.reserve(position), Some(position));
            }
            assert_eq!(queue.reserve(7), None);
            assert_eq!(queue.reserve(1), None);
            assert_eq!(destroy(cq), Ok(()));
            assert_eq!(OpenDevice::close(context), 0);
            device::free_list(list);
        }
    }
}
