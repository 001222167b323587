//! Sends: posting them, and those that must wait.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use rdma_sys::{
    ibv_event_type, ibv_qp, ibv_qp_attr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode, ud_t,
};

use crate::completion_queue::{CompletionQueue, Cqe};
use crate::control::Call;
use crate::device::INLINE_BYTES_MAX;
use crate::engine::{self, Outcome, Wait};
use crate::events::{self, About};
use crate::faults;
use crate::handle::look_at;
use crate::queue_pair::{QueuePair, path, state};
use crate::receive::{Elements, NO_ELEMENTS, elements};
use crate::registry::{self, Core};

/// The sending side of a queue pair, as its core knows it.
pub(crate) struct Requester {
    /// The queue pair, or null; live as long as it stands here.
    pub(crate) qp: *mut ibv_qp,
    pub(crate) attributes: RequesterAttributes,
    /// Reason why the oldest send waits; from it on all sends are stored.
    waiting: Option<Waiting>,
    /// Whether an event is to report that no send is under way any more.
    pub(crate) reports_drained: bool,
    /// Position where the core's next queue pair begins.
    pub(crate) next_position: u64,
}

/// Attributes of a queue pair for its sends.
#[derive(Clone, Copy)]
pub(crate) struct RequesterAttributes {
    pub(crate) peer_qpn: u32,
    pub(crate) reads_max: u8,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
}

impl From<ibv_qp_attr> for RequesterAttributes {
    fn from(attributes: ibv_qp_attr) -> Self {
        Self {
            peer_qpn: attributes.dest_qp_num,
            reads_max: attributes.max_rd_atomic,
            timeout: attributes.timeout,
            retries: attributes.retry_cnt,
            rnr_retries: attributes.rnr_retry,
        }
    }
}

/// Shortest wait for a receive, whatever the timer was set to. A thread of this machine that is not running now
/// must get its turn. rxe takes 4 ms at least for a similar reason.
const TIMER_MIN: Duration = Duration::from_millis(50);

struct Waiting {
    /// The oldest send that waits.
    position: u64,
    reason: Wait,
    /// When it fails; never, where the retries have no end.
    until: Option<Instant>,
}

impl Requester {
    pub(crate) const NONE: Self = Self {
        qp: ptr::null_mut(),
        attributes: RequesterAttributes {
            peer_qpn: 0,
            reads_max: 0,
            timeout: 0,
            retries: 0,
            rnr_retries: 0,
        },
        waiting: None,
        reports_drained: false,
        next_position: 0,
    };

    /// The requester of a queue pair that begins.
    pub(crate) const fn of(qp: *mut ibv_qp) -> Self {
        Self { qp, ..Self::NONE }
    }

    /// No requester: the sends of the last queue pair ended at this position.
    pub(crate) const fn after(next_position: u64) -> Self {
        Self {
            next_position,
            ..Self::NONE
        }
    }

    /// Whether a send has begun and is not done.
    pub(crate) fn is_under_way(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|waiting| !matches!(waiting.reason, Wait::Turn))
    }

    /// Emits the event that no send is under way any more, if it was asked for. The caller holds the flag.
    pub(crate) fn report_drained(&mut self, qp: &QueuePair) {
        if !self.reports_drained || self.is_under_way() || qp.state() != state::DRAIN {
            return;
        }
        self.reports_drained = false;
        let about = About::QueuePair(qp.as_ptr());
        // SAFETY: the queue pair is live, and its context open.
        unsafe {
            events::emit(qp.context(), ibv_event_type::IBV_EVENT_SQ_DRAINED, about);
        }
    }

    /// Forgets what waits.
    pub(crate) fn forget_waiting(&mut self, qp: &QueuePair) {
        if self.waiting.take().is_some() {
            qp.send_cq().waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn wait(&mut self, qp: &QueuePair, position: u64, reason: Wait) {
        let until = self
            .attributes
            .patience(reason)
            .and_then(|patience| Instant::now().checked_add(patience));
        let waiting = Waiting {
            position,
            reason,
            until,
        };
        if self.waiting.replace(waiting).is_none() {
            qp.send_cq().waiting.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl RequesterAttributes {
    /// How long a send waits before it fails; `None` for ever.
    fn patience(self, reason: Wait) -> Option<Duration> {
        match reason {
            // Source: InfiniBand Architecture volume 1, section 9.7.6.1.3 (S13).
            Wait::Peer if self.timeout == 0 => None,
            Wait::Peer => {
                let once = Duration::from_nanos(4096 << self.timeout.min(31));
                Some(once.saturating_mul(u32::from(self.retries).saturating_add(1)))
            }
            // It begins when its turn comes.
            Wait::Turn => None,
            // Seven is without end (S12).
            Wait::Receive(_) if self.rnr_retries == 7 => None,
            Wait::Receive(timer) => Some(timer.max(TIMER_MIN).saturating_mul(u32::from(self.rnr_retries))),
        }
    }
}

/// A send, wherever it lies.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) flags: u32,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Destination of a datagram.
    pub(crate) way: Option<ud_t>,
    pub(crate) elements: &'a [ibv_sge],
}

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

impl<'a> Request<'a> {
    /// Reads one of the caller's list.
    ///
    /// # Errors
    /// An errno value: what cannot be posted on this queue pair.
    ///
    /// # Safety
    /// The request satisfies `ibv_post_send(3)`, and its elements stay during `'a`.
    #[inline]
    unsafe fn of(wr: &ibv_send_wr, qp: &QueuePair) -> Result<Self, c_int> {
        // SAFETY: the caller's own words.
        let elements = unsafe { elements(wr.sg_list, wr.num_sge, qp.caps.max_send_sge) }?;
        let mut request = Self {
            opcode: wr.opcode,
            flags: wr.send_flags,
            immediate: 0,
            remote_address: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            way: None,
            elements,
        };
        if qp.is_datagram {
            if !matches!(
                wr.opcode,
                ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
            ) {
                return Err(libc::EINVAL);
            }
            // SAFETY: on a datagram queue pair the member `ud` is the live one.
            request.way = Some(unsafe { wr.wr.ud });
        }
        match wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND => {}
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
                // SAFETY: for this operation the word is the immediate data.
                request.immediate = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
            }
            ibv_wr_opcode::IBV_WR_RDMA_WRITE
            | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
            | ibv_wr_opcode::IBV_WR_RDMA_READ => {
                // SAFETY: for these operations the member `rdma` is the live one.
                let rdma = unsafe { wr.wr.rdma };
                (request.remote_address, request.rkey) = (rdma.remote_addr, rdma.rkey);
                // SAFETY: a word of plain bits, which only the operation with immediate looks at.
                request.immediate = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                // SAFETY: for these operations the member `atomic` is the live one.
                let atomic = unsafe { wr.wr.atomic };
                (request.remote_address, request.rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        if request.is_inline() {
            request.check_inline(qp)?;
        }
        Ok(request)
    }

    #[inline]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & INLINE != 0
    }

    #[inline]
    pub(crate) const fn is_solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    /// Whether it brings data back.
    pub(crate) const fn reads(&self) -> bool {
        matches!(
            self.opcode,
            ibv_wr_opcode::IBV_WR_RDMA_READ
                | ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
                | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        )
    }

    #[inline]
    fn check_inline(&self, qp: &QueuePair) -> Result<(), c_int> {
        let sum = |sum: u32, element: &ibv_sge| sum.saturating_add(element.length);
        if self.reads() || self.elements.iter().fold(0, sum) > qp.caps.max_inline_data {
            return Err(libc::EINVAL);
        }
        Ok(())
    }
}

/// A send that waits: all of it, inline bytes too.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    wr_id: u64,
    opcode: ibv_wr_opcode,
    flags: u32,
    immediate: u32,
    remote_address: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
    count: usize,
    elements: Elements,
    inline: [u8; INLINE_BYTES_MAX as usize],
}

impl Stored {
    /// # Safety
    /// The elements of an inline request name readable bytes.
    unsafe fn new(wr_id: u64, request: &Request<'_>) -> Self {
        let mut stored = Self {
            wr_id,
            opcode: request.opcode,
            flags: request.flags,
            immediate: request.immediate,
            remote_address: request.remote_address,
            rkey: request.rkey,
            compare_add: request.compare_add,
            swap: request.swap,
            count: request.elements.len(),
            elements: NO_ELEMENTS,
            inline: [0; INLINE_BYTES_MAX as usize],
        };
        if request.is_inline() {
            let mut length = 0_usize;
            for element in request.elements {
                let bytes = element.length as usize;
                let Some(place) = stored.inline.get_mut(length..length.wrapping_add(bytes)) else {
                    break;
                };
                let from = ptr::with_exposed_provenance::<u8>(usize::try_from(element.addr).unwrap_or(0));
                // SAFETY: readable, as the caller vouches, and as long as the place.
                unsafe { ptr::copy_nonoverlapping(from, place.as_mut_ptr(), bytes) };
                length = length.wrapping_add(bytes);
            }
            stored.count = 1;
            // The address is known once the request lies in its place.
            let [first, ..] = &mut stored.elements;
            first.length = u32::try_from(length).unwrap_or(0);
        } else {
            for (place, element) in stored.elements.iter_mut().zip(request.elements) {
                *place = *element;
            }
        }
        stored
    }

    /// Carries it out from where it lies.
    fn execute(&self, qp: &QueuePair, requester: &Requester) -> Outcome {
        let mut elements = self.elements;
        if self.flags & INLINE != 0 {
            let [first, ..] = &mut elements;
            first.addr = self.inline.as_ptr().expose_provenance() as u64;
        }
        let request = Request {
            opcode: self.opcode,
            flags: self.flags,
            immediate: self.immediate,
            remote_address: self.remote_address,
            rkey: self.rkey,
            compare_add: self.compare_add,
            swap: self.swap,
            // A datagram waits for nothing, and is never stored.
            way: None,
            elements: elements.get(..self.count).unwrap_or(&[]),
        };
        engine::execute(qp, requester, &request)
    }
}

/// Opcode of an operation in its completion.
const fn opcode_of(opcode: ibv_wr_opcode) -> ibv_wc_opcode {
    match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        _ => ibv_wc_opcode::IBV_WC_SEND,
    }
}

/// Completes the send at a position.
#[inline]
fn complete(
    qp: &QueuePair,
    position: u64,
    wr_id: u64,
    opcode: ibv_wr_opcode,
    status: ibv_wc_status,
    bytes: u32,
) {
    let cqe = Cqe {
        wr_id,
        progress: Some(&qp.core.sends_polled),
        position,
        status,
        opcode: opcode_of(opcode),
        bytes,
        immediate: 0,
        qpn: qp.qpn,
        flags: 0,
        source_qpn: 0,
    };
    qp.send_cq().push(cqe, false);
}

/// Whether the send at `position` finds no room: a place is free once it or a later one was polled.
#[inline]
fn is_full(qp: &QueuePair, position: u64) -> bool {
    // Acquire: what stood in the place was carried out.
    let polled = qp.core.sends_polled.load(Ordering::Acquire);
    position.wrapping_sub(polled) >= u64::from(qp.caps.max_send_wr)
}

/// Whether sends end in nothing but flushes.
fn flushes(qp: &QueuePair) -> bool {
    matches!(qp.state(), state::ERROR | state::SEND_ERROR)
}

/// Posts sends, see `ibv_post_send(3)`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    if let Some(error) = faults::due(Call::PostSend) {
        // SAFETY: writable, as the caller vouches (ibv_post_send(3)).
        unsafe { bad_wr.write(wr) };
        return error;
    }
    // SAFETY: live, as the caller vouches (ibv_post_send(3)).
    let qp: &QueuePair = unsafe { look_at(qp) };
    let mut next = wr;
    let outcome = match qp.path.load(Ordering::Relaxed) {
        // SAFETY: the list is as the manual says.
        path::NULL => unsafe { post_null(qp, &mut next) },
        // SAFETY: as above.
        path::LOOPBACK => unsafe { post_loopback(qp, &mut next) },
        _ => Err(libc::EINVAL),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: writable, as the caller vouches.
            unsafe { bad_wr.write(next) };
            error
        }
    }
}

/// Completes what is signaled, and nothing else.
///
/// # Safety
/// The list satisfies `ibv_post_send(3)`.
#[inline]
unsafe fn post_null(qp: &QueuePair, next: &mut *mut ibv_send_wr) -> Result<(), c_int> {
    let mut position = qp.sends_posted.load(Ordering::Relaxed);
    let outcome = loop {
        // SAFETY: null, or a request of the caller's list.
        let Some(wr) = (unsafe { next.as_ref() }) else {
            break Ok(());
        };
        // SAFETY: a request of the caller's list.
        let request = match unsafe { Request::of(wr, qp) } {
            Ok(request) => request,
            Err(error) => break Err(error),
        };
        if is_full(qp, position) {
            break Err(libc::ENOMEM);
        }
        if request.flags & SIGNALED != 0 || qp.signals_all {
            complete(
                qp,
                position,
                wr.wr_id,
                wr.opcode,
                ibv_wc_status::IBV_WC_SUCCESS,
                0,
            );
        }
        position = position.wrapping_add(1);
        *next = wr.next;
    };
    qp.sends_posted.store(position, Ordering::Relaxed);
    outcome
}

/// Carries requests out, or stores them behind one that waits.
///
/// # Safety
/// The list satisfies `ibv_post_send(3)`.
unsafe fn post_loopback(qp: &QueuePair, next: &mut *mut ibv_send_wr) -> Result<(), c_int> {
    let mut failed_peer = None;
    let mut requester = qp.core.requester.lock();
    if requester.waiting.is_some() {
        failed_peer = run_stored(qp, &mut requester);
    }
    let mut position = qp.sends_posted.load(Ordering::Relaxed);
    let outcome = loop {
        // SAFETY: null, or a request of the caller's list.
        let Some(wr) = (unsafe { next.as_ref() }) else {
            break Ok(());
        };
        // SAFETY: a request of the caller's list.
        let request = match unsafe { Request::of(wr, qp) } {
            Ok(request) => request,
            Err(error) => break Err(error),
        };
        if is_full(qp, position) {
            break Err(libc::ENOMEM);
        }
        if flushes(qp) {
            complete(
                qp,
                position,
                wr.wr_id,
                wr.opcode,
                ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
                0,
            );
        } else {
            let outcome = if requester.waiting.is_some() {
                None
            } else if qp.state() == state::DRAIN {
                Some(Outcome::Wait(Wait::Turn))
            } else {
                Some(engine::execute(qp, &requester, &request))
            };
            match outcome {
                Some(Outcome::Done { bytes }) => {
                    if request.flags & SIGNALED != 0 || qp.signals_all {
                        complete(
                            qp,
                            position,
                            wr.wr_id,
                            wr.opcode,
                            ibv_wc_status::IBV_WC_SUCCESS,
                            bytes,
                        );
                    }
                }
                Some(Outcome::Failed { status, peer }) => {
                    complete(qp, position, wr.wr_id, wr.opcode, status, 0);
                    engine::fail_for_send(qp);
                    failed_peer = failed_peer.or(peer);
                }
                Some(Outcome::Wait(_)) | None => {
                    // SAFETY: inline bytes are readable during the call.
                    let stored = unsafe { Stored::new(wr.wr_id, &request) };
                    // SAFETY: free, as just checked; the flag is this thread's.
                    unsafe { qp.stored.write(position, stored) };
                    if let Some(Outcome::Wait(reason)) = outcome {
                        requester.wait(qp, position, reason);
                    }
                }
            }
        }
        position = position.wrapping_add(1);
        *next = wr.next;
        qp.sends_posted.store(position, Ordering::Relaxed);
    };
    drop(requester);
    if let Some(peer) = failed_peer {
        flush(peer);
    }
    outcome
}

/// Carries out what is stored, as far as it goes; says whose sends must be flushed.
fn run_stored(qp: &QueuePair, requester: &mut Requester) -> Option<&'static Core> {
    let mut failed_peer = None;
    while let Some(waiting) = &requester.waiting {
        if qp.state() == state::DRAIN && matches!(waiting.reason, Wait::Turn) {
            break;
        }
        let position = waiting.position;
        if position == qp.sends_posted.load(Ordering::Relaxed) {
            requester.forget_waiting(qp);
            break;
        }
        // SAFETY: stored, and its place not free before its completion was polled; the flag is ours.
        let stored = unsafe { qp.stored.read(position) };
        let complete = |status, bytes| complete(qp, position, stored.wr_id, stored.opcode, status, bytes);
        let outcome = if flushes(qp) {
            complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
            Outcome::Done { bytes: 0 }
        } else {
            let outcome = waiting.out_of_patience(stored.execute(qp, requester));
            if let Outcome::Done { bytes } = outcome {
                if stored.flags & SIGNALED != 0 || qp.signals_all {
                    complete(ibv_wc_status::IBV_WC_SUCCESS, bytes);
                }
            }
            outcome
        };
        match outcome {
            Outcome::Done { .. } => {}
            Outcome::Failed { status, peer } => {
                complete(status, 0);
                engine::fail_for_send(qp);
                failed_peer = failed_peer.or(peer);
            }
            Outcome::Wait(reason) => {
                if waiting.reason.is_another(reason) {
                    requester.wait(qp, position, reason);
                }
                break;
            }
        }
        if let Some(waiting) = &mut requester.waiting {
            waiting.position = position.wrapping_add(1);
            // The next one has a patience of its own, once it is known what it waits for.
            (waiting.reason, waiting.until) = (Wait::Turn, None);
        }
    }
    requester.report_drained(qp);
    failed_peer
}

impl Waiting {
    /// Returns the outcome, or a failure if it waits for the same reason past its deadline.
    fn out_of_patience(&self, outcome: Outcome) -> Outcome {
        let Outcome::Wait(reason) = outcome else {
            return outcome;
        };
        if self.reason.is_another(reason) || self.until.is_none_or(|until| Instant::now() < until) {
            return outcome;
        }
        let status = match reason {
            Wait::Receive(_) => ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
            Wait::Peer | Wait::Turn => ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        };
        Outcome::Failed { status, peer: None }
    }
}

/// Carries out what waits on a queue pair, if anything does.
pub(crate) fn run(core: &'static Core) {
    let mut requester = core.requester.lock();
    if requester.waiting.is_none() {
        return;
    }
    // SAFETY: live as long as it stands there, and the flag is ours.
    let qp: &QueuePair = unsafe { look_at(requester.qp) };
    let failed_peer = run_stored(qp, &mut requester);
    drop(requester);
    if let Some(peer) = failed_peer {
        flush(peer);
    }
}

/// Flushes the sends of a queue pair that failed while another's flag was held.
fn flush(core: &'static Core) {
    let mut requester = core.requester.lock();
    if requester.waiting.is_none() {
        return;
    }
    // SAFETY: live as long as it stands there, and the flag is ours.
    let qp: &QueuePair = unsafe { look_at(requester.qp) };
    if qp.state() == state::ERROR {
        // All of them are flushed, so nobody else fails.
        run_stored(qp, &mut requester);
    }
}

/// Flushes the sends of a queue pair that has just been brought to ERR.
pub(crate) fn flush_own(qp: &QueuePair) {
    flush(qp.core);
}

/// Carries out what waits on the queue pairs that complete into this queue.
#[cold]
pub(crate) fn run_waiting(queue: &CompletionQueue) {
    registry::each(|core| {
        let requester = core.requester.lock();
        // SAFETY: what waits has a queue pair, live as long as it stands there; the flag is ours.
        let ours = requester.waiting.is_some()
            && ptr::eq(unsafe { look_at::<QueuePair>(requester.qp) }.send_cq(), queue);
        drop(requester);
        if ours {
            run(core);
        }
    });
}
