//! Execution of requests at the peer: the checks of requester and responder, and the copying.
//!
//! Source of the answers: InfiniBand Architecture volume 1, sections 9.7.4 and 9.9.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use core::time::Duration;

use rdma_sys::{
    ibv_access_flags, ibv_event_type, ibv_pd, ibv_qp, ibv_qp_attr, ibv_sge, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status, ibv_wr_opcode,
};

use crate::completion_queue::Cqe;
use crate::copy::{Order, Piece, gather_scatter, read_shared, write_shared};
use crate::datagram;
use crate::device::{MESSAGE_BYTES_MAX, SEGMENTS_MAX};
use crate::events::{self, About};
use crate::handle::look_at;
use crate::memory::{self, Pinned};
use crate::queue_pair::{QueuePair, path, state};
use crate::receive::{FLUSHED, Receive};
use crate::registry::{self, Core};
use crate::send::{self, Request, Requester};
use crate::settings::settings;
use crate::shared_receive::SharedReceiveQueue;

/// The receiving side of a queue pair, as its core knows it.
pub(crate) struct Responder {
    /// The queue pair, or null; live as long as it stands here.
    pub(crate) qp: *mut ibv_qp,
    pub(crate) peer_qpn: u32,
    pub(crate) attributes: ResponderAttributes,
    /// Position where the receives of the core's next queue pair begin.
    pub(crate) next_position: u64,
}

/// Attributes of a queue pair for its peer's requests.
#[derive(Clone, Copy)]
pub(crate) struct ResponderAttributes {
    access: u32,
    reads_max: u8,
    rnr_timer: u8,
    /// Q_Key that datagrams must carry.
    pub(crate) qkey: u32,
}

impl From<ibv_qp_attr> for ResponderAttributes {
    fn from(attributes: ibv_qp_attr) -> Self {
        Self {
            access: attributes.qp_access_flags,
            reads_max: attributes.max_dest_rd_atomic,
            rnr_timer: attributes.min_rnr_timer,
            qkey: attributes.qkey,
        }
    }
}

impl Responder {
    pub(crate) const NONE: Self = Self {
        qp: ptr::null_mut(),
        peer_qpn: 0,
        attributes: ResponderAttributes {
            access: 0,
            reads_max: 0,
            rnr_timer: 0,
            qkey: 0,
        },
        next_position: 0,
    };

    /// The responder of a queue pair that begins.
    pub(crate) const fn of(qp: *mut ibv_qp) -> Self {
        Self { qp, ..Self::NONE }
    }

    /// No responder: the receives of the last queue pair ended at this position.
    pub(crate) const fn after(next_position: u64) -> Self {
        Self {
            next_position,
            ..Self::NONE
        }
    }
}

/// How a request ended, or that it did not.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Done {
        bytes: u32,
    },
    Wait(Wait),
    Failed {
        status: ibv_wc_status,
        /// The peer, where it failed too: its sends are to be flushed once no flag is held.
        peer: Option<&'static Core>,
    },
}

/// Reason why a request waits.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// A peer that answers.
    Peer,
    /// A receive of the peer's, which says when to try again.
    Receive(Duration),
    /// Requests before it.
    Turn,
}

impl Wait {
    pub(crate) const fn is_another(self, other: Self) -> bool {
        !matches!(
            (self, other),
            (Self::Peer, Self::Peer) | (Self::Receive(_), Self::Receive(_)) | (Self::Turn, Self::Turn)
        )
    }
}

pub(crate) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// An atomic works on a word of eight bytes.
const ATOMIC_BYTES: u64 = 8;

/// The local memory of a request.
pub(crate) struct Pieces {
    pieces: [Piece; SEGMENTS_MAX as usize],
    count: usize,
    pub(crate) bytes: u64,
}

impl Pieces {
    /// By keys; `None` where one does not open what it should.
    pub(crate) fn by_keys(pd: *mut ibv_pd, elements: &[ibv_sge], access: u32) -> Option<Self> {
        Self::of(elements, |element| {
            memory::local(element.lkey, pd, access, element.addr, element.length)
        })
    }

    /// Inline: as it lies, whatever the keys.
    fn inline(elements: &[ibv_sge]) -> Option<Self> {
        Self::of(elements, |element| {
            Some(Piece {
                start: ptr::with_exposed_provenance_mut(usize::try_from(element.addr).ok()?),
                bytes: element.length as usize,
            })
        })
    }

    fn of(elements: &[ibv_sge], find: impl Fn(&ibv_sge) -> Option<Piece>) -> Option<Self> {
        let mut all = Self {
            pieces: [Piece::EMPTY; SEGMENTS_MAX as usize],
            count: elements.len(),
            bytes: 0,
        };
        for (place, element) in all.pieces.iter_mut().zip(elements) {
            *place = find(element)?;
            all.bytes = all.bytes.wrapping_add(u64::from(element.length));
        }
        Some(all)
    }

    pub(crate) fn as_slice(&self) -> &[Piece] {
        self.pieces.get(..self.count).unwrap_or(&[])
    }

    /// At most 2^31, as every request is.
    pub(crate) fn length(&self) -> u32 {
        u32::try_from(self.bytes).unwrap_or(u32::MAX)
    }
}

const fn failed(status: ibv_wc_status) -> Outcome {
    Outcome::Failed { status, peer: None }
}

/// Carries a request out. The caller holds the requester's flag, and no responder's.
pub(crate) fn execute(qp: &QueuePair, requester: &Requester, request: &Request<'_>) -> Outcome {
    let pieces = if request.is_inline() {
        Pieces::inline(request.elements)
    } else {
        let access = if request.reads() { LOCAL_WRITE } else { 0 };
        Pieces::by_keys(qp.pd(), request.elements, access)
    };
    let Some(pieces) = pieces else {
        return failed(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    };
    if pieces.bytes > MESSAGE_BYTES_MAX {
        return failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
    }
    if let Some(way) = request.way {
        return datagram::send(qp, request, way, &pieces);
    }
    if request.reads() && requester.attributes.reads_max == 0 {
        return failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
    }
    let Some(core) = registry::find(requester.attributes.peer_qpn) else {
        return Outcome::Wait(Wait::Peer);
    };
    let responder = core.responder.lock();
    if responder.qp.is_null() {
        return Outcome::Wait(Wait::Peer);
    }
    // SAFETY: live as long as it stands there, and the flag is ours.
    let remote: &QueuePair = unsafe { look_at(responder.qp) };
    let answers = matches!(
        remote.state(),
        state::READY_TO_RECEIVE | state::READY_TO_SEND | state::DRAIN
    );
    let connected =
        !remote.is_datagram && remote.qpn == requester.attributes.peer_qpn && responder.peer_qpn == qp.qpn;
    if !answers || !connected {
        return Outcome::Wait(Wait::Peer);
    }
    let answer = Answer {
        remote,
        attributes: responder.attributes,
        request,
        pieces: &pieces,
    };
    match request.opcode {
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => answer.send(),
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => answer.write(),
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => answer.write_with_immediate(),
        ibv_wr_opcode::IBV_WR_RDMA_READ => answer.read(),
        _ => answer.atomic(),
    }
}

/// A request at the responder, whose flag is held.
struct Answer<'a> {
    remote: &'a QueuePair,
    attributes: ResponderAttributes,
    request: &'a Request<'a>,
    pieces: &'a Pieces,
}

impl Answer<'_> {
    fn done(&self) -> Outcome {
        Outcome::Done {
            bytes: self.pieces.length(),
        }
    }

    /// The responder fails too, by a receive that says so, or by an event where none is at hand.
    fn refused(
        &self,
        status: ibv_wc_status,
        receive: Option<(&Receive, u64, ibv_wc_status)>,
        event: ibv_event_type,
    ) -> Outcome {
        if let Some((receive, position, status)) = receive {
            complete_receive(self.remote, receive.wr_id, position, status);
        } else {
            let about = About::QueuePair(self.remote.as_ptr());
            // SAFETY: the queue pair is live, and its context open.
            unsafe { events::emit(self.remote.context(), event, about) };
        }
        to_error(self.remote);
        Outcome::Failed {
            status,
            peer: Some(self.remote.core),
        }
    }

    /// A key that does not open what it should (S9).
    fn access_refused(&self) -> Outcome {
        self.refused(
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            None,
            ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
        )
    }

    /// A request that cannot be (S27, S28).
    fn request_refused(&self) -> Outcome {
        self.refused(
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            None,
            ibv_event_type::IBV_EVENT_QP_REQ_ERR,
        )
    }

    fn no_receive(&self) -> Outcome {
        Outcome::Wait(Wait::Receive(rnr_timer(self.attributes.rnr_timer)))
    }

    /// Memory that the request's key opens for this much.
    fn opened(&self, access: u32, bytes: u64) -> Option<Pinned> {
        if self.attributes.access & access == 0 {
            return None;
        }
        let request = self.request;
        memory::remote(
            request.rkey,
            self.remote.pd(),
            access,
            request.remote_address,
            bytes,
        )
    }

    fn send(&self) -> Outcome {
        let Some((receive, position)) = self.remote.take_receive() else {
            return self.no_receive();
        };
        let pd = self.remote.srq().map_or(self.remote.pd(), SharedReceiveQueue::pd);
        let Some(places) = Pieces::by_keys(pd, receive.elements(), LOCAL_WRITE) else {
            // S11.
            return self.refused(
                ibv_wc_status::IBV_WC_REM_OP_ERR,
                Some((&receive, position, ibv_wc_status::IBV_WC_LOC_PROT_ERR)),
                ibv_event_type::IBV_EVENT_QP_FATAL,
            );
        };
        if places.bytes < self.pieces.bytes {
            // S10.
            return self.refused(
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
                Some((&receive, position, ibv_wc_status::IBV_WC_LOC_LEN_ERR)),
                ibv_event_type::IBV_EVENT_QP_FATAL,
            );
        }
        // SAFETY: both lists were found by their keys (or are inline and readable during the call); a
        // program leaves posted memory alone.
        unsafe { gather_scatter(self.pieces.as_slice(), places.as_slice()) };
        let with_immediate = self.request.opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        self.arrived(&receive, position, ibv_wc_opcode::IBV_WC_RECV, with_immediate);
        self.done()
    }

    fn write(&self) -> Outcome {
        match self.place_write() {
            Ok(()) => self.done(),
            Err(()) => self.access_refused(),
        }
    }

    /// Puts the bytes where they belong; without bytes no key is looked at.
    fn place_write(&self) -> Result<(), ()> {
        if self.pieces.bytes == 0 {
            return Ok(());
        }
        let target = self.opened(REMOTE_WRITE, self.pieces.bytes).ok_or(())?;
        let order: Order = settings().order;
        // SAFETY: the target is pinned and as long as the pieces, which a program leaves alone.
        unsafe { write_shared(self.pieces.as_slice(), target.piece.start, order) };
        Ok(())
    }

    fn write_with_immediate(&self) -> Outcome {
        let Some((receive, position)) = self.remote.take_receive() else {
            return self.no_receive();
        };
        if self.place_write() == Err(()) {
            return self.refused(
                ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                Some((&receive, position, ibv_wc_status::IBV_WC_LOC_ACCESS_ERR)),
                ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            );
        }
        self.arrived(&receive, position, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, true);
        self.done()
    }

    fn read(&self) -> Outcome {
        if self.attributes.reads_max == 0 {
            return self.request_refused();
        }
        if self.pieces.bytes != 0 {
            let Some(source) = self.opened(REMOTE_READ, self.pieces.bytes) else {
                return self.access_refused();
            };
            // SAFETY: the source is pinned and as long as the pieces, which a program leaves alone.
            unsafe { read_shared(source.piece.start, self.pieces.as_slice()) };
        }
        self.done()
    }

    fn atomic(&self) -> Outcome {
        if self.attributes.reads_max == 0 || self.request.remote_address % ATOMIC_BYTES != 0 {
            return self.request_refused();
        }
        if self.pieces.bytes < ATOMIC_BYTES {
            return failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        let Some(target) = self.opened(REMOTE_ATOMIC, ATOMIC_BYTES) else {
            return self.access_refused();
        };
        if !target.piece.start.cast::<u64>().is_aligned() {
            return self.request_refused();
        }
        // SAFETY: pinned, aligned, and as long as a word.
        let word = unsafe { AtomicU64::from_ptr(target.piece.start.cast()) };
        let request = self.request;
        let mut before = if request.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
            word.fetch_add(request.compare_add, Ordering::SeqCst)
        } else {
            let swapped = word.compare_exchange(
                request.compare_add,
                request.swap,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            swapped.unwrap_or_else(|found| found)
        };
        let result = [Piece {
            start: (&raw mut before).cast(),
            bytes: size_of::<u64>(),
        }];
        // SAFETY: a word of ours, into pieces that were found by their keys.
        unsafe { gather_scatter(&result, self.pieces.as_slice()) };
        Outcome::Done { bytes: 8 }
    }

    /// Completes a receive that a message consumed.
    fn arrived(&self, receive: &Receive, position: u64, opcode: ibv_wc_opcode, with_immediate: bool) {
        let cqe = Cqe {
            wr_id: receive.wr_id,
            progress: self.remote.receive_progress(),
            position,
            status: ibv_wc_status::IBV_WC_SUCCESS,
            opcode,
            bytes: self.pieces.length(),
            immediate: self.request.immediate,
            qpn: self.remote.qpn,
            flags: if with_immediate {
                ibv_wc_flags::IBV_WC_WITH_IMM.0
            } else {
                0
            },
            source_qpn: 0,
        };
        self.remote.receive_cq().push(cqe, self.request.is_solicited());
    }
}

/// How long a peer without a receive asks to wait.
///
/// Source: InfiniBand Architecture volume 1, table 45 (timer codes): steps of 10 microseconds that double
/// and add a half in turn, from code 1 on; code 0 is the longest.
fn rnr_timer(code: u8) -> Duration {
    const HUNDREDTHS_MS: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
        2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    let hundredths = HUNDREDTHS_MS.get(usize::from(code)).copied().unwrap_or(65_536);
    Duration::from_micros(u64::from(hundredths).wrapping_mul(10))
}

/// Completes a receive that failed.
pub(crate) fn complete_receive(qp: &QueuePair, wr_id: u64, position: u64, status: ibv_wc_status) {
    let cqe = Cqe {
        wr_id,
        progress: qp.receive_progress(),
        position,
        status,
        opcode: ibv_wc_opcode::IBV_WC_RECV,
        bytes: 0,
        immediate: 0,
        qpn: qp.qpn,
        flags: 0,
        source_qpn: 0,
    };
    qp.receive_cq().push(cqe, true);
}

/// Flushes the receives of a queue pair in ERR, whose responder's flag is held (S6).
pub(crate) fn flush_receives(qp: &QueuePair) {
    if qp.srq().is_some() {
        // Receives of a shared queue are not flushed (S22).
        return;
    }
    let mut taken = qp.receives_taken.load(Ordering::Relaxed);
    while qp.receives_posted.load(Ordering::Acquire) != taken {
        // SAFETY: posted, and not written again before its completion was polled.
        let wr_id = unsafe { qp.receives.read(taken) }.wr_id;
        complete_receive(qp, wr_id, taken, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        taken = taken.wrapping_add(1);
    }
    qp.receives_taken.store(taken, Ordering::Relaxed);
}

/// Brings a queue pair to ERR and flushes its receives; its responder's flag is held.
pub(crate) fn to_error(qp: &QueuePair) {
    if qp.state() == state::ERROR {
        return;
    }
    qp.set_state(state::ERROR, path::LOOPBACK);
    qp.attention.fetch_or(FLUSHED, Ordering::Relaxed);
    // Pairs with the one in `post_recv`: a receive that is not seen here is flushed there.
    fence(Ordering::SeqCst);
    flush_receives(qp);
    if qp.srq().is_some() {
        let about = About::QueuePair(qp.as_ptr());
        // SAFETY: the queue pair is live, and its context open.
        unsafe {
            events::emit(qp.context(), ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED, about);
        }
    }
}

/// Brings a queue pair to ERR whose requester's flag is held; the holder flushes the sends.
fn fail_receives(qp: &QueuePair) {
    let _held = qp.core.responder.lock();
    to_error(qp);
}

/// Fails a queue pair for a send. Its requester's flag is held, and the holder flushes the sends. A datagram
/// queue pair still receives afterwards.
pub(crate) fn fail_for_send(qp: &QueuePair) {
    if !qp.is_datagram {
        fail_receives(qp);
        return;
    }
    let _held = qp.core.responder.lock();
    if qp.state() == state::READY_TO_SEND {
        qp.set_state(state::SEND_ERROR, path::LOOPBACK);
    }
}

/// Brings a queue pair to ERR and flushes both its queues.
pub(crate) fn fail(qp: &QueuePair) {
    fail_receives(qp);
    send::flush_own(qp);
}
