//! A completion: the token that exactly one queue can redeem, once.

use core::sync::atomic::{AtomicU64, Ordering};

use doorbell_core::provider::{ArrivalKind, Rejected};
use doorbell_core::{WcStatus, WorkId};
use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

/// A completion, as a [`CompletionQueue`](crate::CompletionQueue) polled it.
///
/// It can be neither cloned:
/// ```compile_fail,E0599
/// # fn f(completion: doorbell_ffi::Completion) {
/// let twin = completion.clone();
/// # }
/// ```
/// nor made:
/// ```compile_fail,E0451
/// let completion = doorbell_ffi::Completion { wr_id: 0, ..unreachable!() };
/// ```
/// nor redeemed twice:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::SendQueue as _;
/// # fn f(send: &mut doorbell_ffi::SendQueue, completion: doorbell_ffi::Completion) {
/// send.retire(completion, |_, _| ()).ok();
/// send.retire(completion, |_, _| ()).ok();
/// # }
/// ```
#[derive(Debug)]
pub struct Completion {
    wr_id: u64,
    /// Which completion queue it is from.
    queue: QueueId,
    /// The how manieth of that queue.
    sequence: u64,
    status: u32,
    vendor_error: u32,
    /// What follows holds where the status is success only.
    opcode: u32,
    bytes: u32,
    /// As it came: in network byte order.
    immediate: u32,
    flags: u32,
}

impl doorbell_core::provider::Completion for Completion {
    #[inline]
    fn work_id(&self) -> WorkId {
        WorkId::from_raw(self.wr_id)
    }

    #[inline]
    fn status(&self) -> WcStatus {
        WcStatus(self.status)
    }
}

impl Completion {
    /// The token for what a poll of `queue` gave as its `sequence`th.
    #[inline]
    pub(crate) fn new(wc: &ibv_wc, queue: QueueId, sequence: u64) -> Self {
        Self {
            wr_id: wc.wr_id,
            queue,
            sequence,
            status: wc.status.0,
            vendor_error: wc.vendor_err,
            opcode: wc.opcode.0,
            bytes: wc.byte_len,
            // SAFETY: both members are words of 32 bits; the array it lies in began zeroed.
            immediate: unsafe { wc.imm_data_invalidated_rkey_union.imm_data },
            flags: wc.wc_flags,
        }
    }

    pub(crate) const fn vendor_error(&self) -> u32 {
        self.vendor_error
    }

    #[inline]
    const fn is_success(&self) -> bool {
        self.status == ibv_wc_status::IBV_WC_SUCCESS.0
    }

    /// What consumed the receive; on failure nothing else of it can be told (S7).
    #[inline]
    pub(crate) fn arrival_kind(&self) -> ArrivalKind {
        if !self.is_success() {
            return ArrivalKind::Failed;
        }
        match ibv_wc_opcode(self.opcode) {
            ibv_wc_opcode::IBV_WC_RECV => ArrivalKind::Send,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => ArrivalKind::WriteWithImmediate,
            _ => ArrivalKind::Failed,
        }
    }

    /// How many bytes came; zero on failure. A GRH is not among them on a reliable connection,
    /// whatever the flags say.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        if self.is_success() { self.bytes } else { 0 }
    }

    /// The peer's word, in host order.
    #[inline]
    pub(crate) fn immediate(&self) -> Option<u32> {
        let present = self.is_success() && self.flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        present.then_some(u32::from_be(self.immediate))
    }
}

/// Names a completion queue: unique in the process, and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId(u64);

impl QueueId {
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number matters. It does not come round: 2^64 queues.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Which completions a queue may still redeem.
///
/// Completions of one queue are polled in the order its requests end. So of two of them the
/// one polled earlier is spent once the later was redeemed, and everything polled before the
/// queue was made was never its own. Without this a completion kept for 2^24 rounds of the
/// table would name a request again.
#[derive(Debug)]
pub(crate) struct Ledger {
    queue: QueueId,
    newest: u64,
}

impl Ledger {
    /// For a queue made when the completion queue had given out `polled` completions.
    pub(crate) const fn new(queue: QueueId, polled: u64) -> Self {
        Self {
            queue,
            newest: polled,
        }
    }

    /// Lets a completion through that the queue's own table may look at.
    ///
    /// # Errors
    /// It is another completion queue's, or spent.
    #[inline]
    pub(crate) fn admit(&self, completion: &Completion) -> Result<(), Rejected> {
        if completion.queue == self.queue && completion.sequence > self.newest {
            return Ok(());
        }
        Err(Rejected(WorkId::from_raw(completion.wr_id)))
    }

    /// Notes that a completion was redeemed.
    #[inline]
    pub(crate) const fn spend(&mut self, sequence: u64) {
        self.newest = sequence;
    }
}

impl Completion {
    /// The how manieth of its completion queue it is.
    #[inline]
    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::{Completion, Ledger, QueueId};
    use doorbell_core::provider::ArrivalKind;
    use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

    fn wc() -> ibv_wc {
        // SAFETY: integers only, for which zero bytes are a value.
        let mut wc: ibv_wc = unsafe { core::mem::zeroed() };
        wc.opcode = ibv_wc_opcode::IBV_WC_RECV;
        wc.byte_len = 9;
        wc.wc_flags = 3;
        wc.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
        wc
    }

    #[test]
    fn a_success_is_read_whole() {
        let completion = Completion::new(&wc(), QueueId::fresh(), 1);
        assert_eq!(completion.arrival_kind(), ArrivalKind::Send);
        assert_eq!(completion.bytes(), 9);
        assert_eq!(completion.immediate(), Some(0x0102_0304));
        let mut write = wc();
        write.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        let completion = Completion::new(&write, QueueId::fresh(), 1);
        assert_eq!(completion.arrival_kind(), ArrivalKind::WriteWithImmediate);
    }

    #[test]
    fn s7_of_a_failure_nothing_else_is_read() {
        let mut failed = wc();
        failed.status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let completion = Completion::new(&failed, QueueId::fresh(), 1);
        assert_eq!(completion.arrival_kind(), ArrivalKind::Failed);
        assert_eq!((completion.bytes(), completion.immediate()), (0, None));
        let mut newer = wc();
        newer.opcode = ibv_wc_opcode(4711);
        newer.status = ibv_wc_status(4711);
        assert_eq!(
            Completion::new(&newer, QueueId::fresh(), 1).arrival_kind(),
            ArrivalKind::Failed
        );
    }

    #[test]
    fn the_ledger_lets_through_what_is_newer_and_its_own() {
        let (ours, other) = (QueueId::fresh(), QueueId::fresh());
        let mut ledger = Ledger::new(ours, 10);
        let at = |queue, sequence| Completion::new(&wc(), queue, sequence);
        assert!(ledger.admit(&at(ours, 10)).is_err());
        assert!(ledger.admit(&at(ours, 11)).is_ok());
        assert!(ledger.admit(&at(other, 11)).is_err());
        ledger.spend(12);
        assert!(ledger.admit(&at(ours, 11)).is_err());
        assert!(ledger.admit(&at(ours, 12)).is_err());
        assert!(ledger.admit(&at(ours, 13)).is_ok());
    }
}
