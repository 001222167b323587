//! A completion: a token, lent or kept, that exactly one queue can redeem, once.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use doorbell_core::ledger::{Origin, QueueId};
use doorbell_core::provider::ArrivalKind;
use doorbell_core::{Qpn, WcStatus, WorkId};
use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

/// A completion, as a [`CompletionQueue`](crate::CompletionQueue) lends it.
///
/// A lent completion can be neither cloned:
/// ```compile_fail,E0599
/// # fn f(completion: doorbell_ffi::LentCompletion<'_>) {
/// let twin = completion.clone();
/// # }
/// ```
/// nor made:
/// ```compile_fail,E0451
/// let completion = doorbell_ffi::LentCompletion { wc: unreachable!(), ..unreachable!() };
/// ```
/// nor redeemed twice:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::SendQueue as _;
/// # fn f(send: &mut doorbell_ffi::SendQueue, completion: doorbell_ffi::LentCompletion<'_>) {
/// send.retire(completion, |_, _| ()).ok();
/// send.retire(completion, |_, _| ()).ok();
/// # }
/// ```
/// nor held beyond the callback, unless it is kept:
/// ```compile_fail,E0521
/// # use doorbell_core::provider::CompletionQueue as _;
/// # fn f(queue: &mut doorbell_ffi::CompletionQueue) {
/// let mut held = None;
/// queue.poll(|completion| held = Some(completion)).ok();
/// # }
/// ```
pub struct LentCompletion<'c> {
    /// The completion as the device wrote it. If it failed, only the id, the status, the vendor's error and the
    /// queue pair are valid (S7).
    wc: &'c ibv_wc,
    // Borrowed, so that a lent completion is two words, which functions take in registers.
    origin: &'c Origin,
}

impl doorbell_core::provider::LentCompletion for LentCompletion<'_> {
    type Kept = Completion;

    #[inline]
    fn work_id(&self) -> WorkId {
        WorkId::from_raw(self.wc.wr_id)
    }

    #[inline]
    fn status(&self) -> WcStatus {
        WcStatus(self.wc.status.0)
    }

    #[inline]
    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(self.wc.qp_num)
    }

    fn keep(self) -> Completion {
        Completion {
            wc: *self.wc,
            origin: *self.origin,
        }
    }
}

/// A completion that was kept.
///
/// A kept completion can be neither cloned:
/// ```compile_fail,E0599
/// # fn f(completion: doorbell_ffi::Completion) {
/// let twin = completion.clone();
/// # }
/// ```
/// nor made:
/// ```compile_fail,E0451
/// let completion = doorbell_ffi::Completion { wc: unreachable!(), ..unreachable!() };
/// ```
pub struct Completion {
    wc: ibv_wc,
    origin: Origin,
}

impl doorbell_core::provider::Completion for Completion {
    type Lent<'c> = LentCompletion<'c>;

    fn lend(&self) -> LentCompletion<'_> {
        LentCompletion::new(&self.wc, &self.origin)
    }
}

impl<'c> LentCompletion<'c> {
    /// Makes the token for a completion that a poll returned.
    #[inline]
    pub(crate) const fn new(wc: &'c ibv_wc, origin: &'c Origin) -> Self {
        Self { wc, origin }
    }

    /// The completion queue that it came from, and its number there.
    #[inline]
    pub(crate) const fn origin(&self) -> Origin {
        *self.origin
    }

    /// Length of the message in bytes if this is a SEND that arrived.
    #[inline(always)]
    pub(crate) fn message_bytes(&self) -> Option<u32> {
        // Compares both words at once, since they are adjacent.
        let outcome = |status: ibv_wc_status, opcode: ibv_wc_opcode| {
            u64::from(status.0) | u64::from(opcode.0) << u32::BITS
        };
        let of_message = outcome(ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_opcode::IBV_WC_RECV);
        (outcome(self.wc.status, self.wc.opcode) == of_message).then_some(self.wc.byte_len)
    }

    pub(crate) const fn vendor_error(&self) -> u32 {
        self.wc.vendor_err
    }

    #[inline]
    pub(crate) const fn is_success(&self) -> bool {
        self.wc.status.0 == ibv_wc_status::IBV_WC_SUCCESS.0
    }

    /// Kind of the operation that consumed the receive. A failed completion does not tell it (S7).
    #[inline]
    pub(crate) fn arrival_kind(&self) -> ArrivalKind {
        if !self.is_success() {
            return ArrivalKind::Failed;
        }
        match self.wc.opcode {
            ibv_wc_opcode::IBV_WC_RECV => ArrivalKind::Send,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => ArrivalKind::WriteWithImmediate,
            _ => ArrivalKind::Failed,
        }
    }

    /// How many bytes arrived, 0 on failure. On a reliable connection a GRH is never among them, even if the flags
    /// claim one.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        if self.is_success() { self.wc.byte_len } else { 0 }
    }

    /// The queue pair that sent the datagram.
    #[inline]
    pub(crate) const fn source_qpn(&self) -> Qpn {
        Qpn::from_low_bits(self.wc.src_qp)
    }

    /// Whether a GRH precedes the datagram. False on failure.
    #[inline]
    pub(crate) const fn has_route(&self) -> bool {
        self.is_success() && self.wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0
    }

    /// The peer's immediate word, in host order.
    #[inline]
    pub(crate) fn immediate(&self) -> Option<u32> {
        let present = self.is_success() && self.wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both members are words of 32 bits, and the array that the completion was polled into began zeroed.
        let word = unsafe { self.wc.imm_data_invalidated_rkey_union.imm_data };
        present.then_some(u32::from_be(word))
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&doorbell_core::provider::Completion::lend(self), f)
    }
}

impl fmt::Debug for LentCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use doorbell_core::provider::LentCompletion as _;
        f.debug_struct("Completion")
            .field("work_id", &self.work_id())
            .field("origin", &self.origin)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Returns an id for a new completion queue.
pub(crate) fn fresh_queue() -> QueueId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number matters. It wraps round only after 2^64 queues.
    QueueId(NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::{LentCompletion, fresh_queue};
    use doorbell_core::ledger::Origin;
    use doorbell_core::provider::ArrivalKind;
    use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

    fn origin() -> Origin {
        Origin {
            queue: fresh_queue(),
            sequence: 1,
        }
    }

    fn wc() -> ibv_wc {
        // SAFETY: integers only, for which zero bytes are a value.
        let mut wc: ibv_wc = unsafe { core::mem::zeroed() };
        wc.opcode = ibv_wc_opcode::IBV_WC_RECV;
        wc.byte_len = 9;
        wc.src_qp = 18;
        wc.wc_flags = 3;
        wc.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
        wc
    }

    #[test]
    fn a_success_is_read_whole() {
        let (wc, origin) = (wc(), origin());
        let completion = LentCompletion::new(&wc, &origin);
        assert_eq!(completion.arrival_kind(), ArrivalKind::Send);
        assert_eq!(completion.message_bytes(), Some(9));
        assert_eq!(completion.bytes(), 9);
        assert_eq!(completion.immediate(), Some(0x0102_0304));
        assert_eq!(
            (completion.source_qpn().to_u32(), completion.has_route()),
            (18, true)
        );
        let mut write = wc;
        write.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        let completion = LentCompletion::new(&write, &origin);
        assert_eq!(completion.arrival_kind(), ArrivalKind::WriteWithImmediate);
    }

    #[test]
    fn s7_of_a_failure_nothing_else_is_read() {
        let (mut failed, origin) = (wc(), origin());
        failed.status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let completion = LentCompletion::new(&failed, &origin);
        assert_eq!(completion.arrival_kind(), ArrivalKind::Failed);
        assert_eq!((completion.bytes(), completion.immediate()), (0, None));
        assert!(!completion.has_route());
        let mut newer = wc();
        newer.opcode = ibv_wc_opcode(4711);
        newer.status = ibv_wc_status(4711);
        assert_eq!(
            LentCompletion::new(&newer, &origin).arrival_kind(),
            ArrivalKind::Failed
        );
    }
}
