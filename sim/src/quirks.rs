//! Quirks: where devices are known to differ from the architecture, each as a switch with a name.

use doorbell_core::WcStatus;

/// How a device behaves where devices differ. The default is what the architecture says.
///
/// Each field says what it changes and where that was seen; `rxe` is the Soft-RoCE driver of
/// Linux (drivers/infiniband/sw/rxe).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// A retry count of 7 is without end, as it is of retries for a receiver that is not ready
    /// (S13). rxe, all versions: rxe_comp.c.
    pub seven_retries_are_endless: bool,
    /// Every timer is rounded up to a multiple of this, in nanoseconds, and at least one of it;
    /// zero is exact (S12, S13). rxe counts in jiffies: 4 ms where the kernel has 250 of them.
    pub timer_step_ns: u64,
    /// How a receive ends that is too small (S10). rxe says `REM_INV_REQ_ERR`, which is the
    /// requester's.
    pub short_receive: WcStatus,
    /// How a receive ends whose memory is of another protection domain (S11). rxe says
    /// `LOC_QP_OP_ERR`.
    pub foreign_receive: WcStatus,
    /// How the receive ends of a WRITE with immediate that is refused (S9). rxe says
    /// `REM_ACCESS_ERR`.
    pub refused_immediate: WcStatus,
    /// A refused access without a receive is told by an event, `QP_ACCESS_ERR` (S9, S30). rxe does
    /// from 7.1 on.
    pub refused_access_is_told: bool,
    /// A refused request without a receive is told by an event, `QP_REQ_ERR` (S30). rxe never does.
    pub refused_requests_are_told: bool,
    /// The first packet on a queue pair that is only ready to receive is told by an event, and
    /// so is a queue pair that fails for its completion queue (S30). rxe has neither.
    pub states_are_told: bool,
    /// A queue pair that fails and has a shared receive queue tells that it takes no more of it
    /// (S22). rxe does from 6.12 on.
    pub last_receive_is_told: bool,
    /// A receive that is posted to a queue pair that failed already is flushed at once (S3). In
    /// rxe it waits for the queue pair to be asked for something else.
    pub late_receives_are_flushed: bool,
    /// A completion queue that overran works on; what did not fit is lost, and the queue pair
    /// fails only where that was a receive (S21). rxe.
    pub overrun_queues_work_on: bool,
    /// A request that is posted to a queue pair that failed already makes no completion (S3, S6).
    /// Seen of mlx5 by others' tests.
    pub late_requests_vanish: bool,
    /// How many packets may be unanswered. rxe has 128.
    pub window_packets: i32,
}

impl Quirks {
    /// The architecture's own words.
    pub const IBA: Self = Self {
        seven_retries_are_endless: false,
        timer_step_ns: 0,
        short_receive: WcStatus::LOC_LEN_ERR,
        foreign_receive: WcStatus::LOC_PROT_ERR,
        refused_immediate: WcStatus::LOC_ACCESS_ERR,
        refused_access_is_told: true,
        refused_requests_are_told: true,
        states_are_told: true,
        last_receive_is_told: true,
        late_receives_are_flushed: true,
        overrun_queues_work_on: false,
        late_requests_vanish: false,
        window_packets: 128,
    };

    /// Soft-RoCE of Linux 6.1.
    pub const RXE_6_1: Self = Self {
        seven_retries_are_endless: true,
        timer_step_ns: 4_000_000,
        short_receive: WcStatus::REM_INV_REQ_ERR,
        foreign_receive: WcStatus::LOC_QP_OP_ERR,
        refused_immediate: WcStatus::REM_ACCESS_ERR,
        refused_access_is_told: false,
        refused_requests_are_told: false,
        states_are_told: false,
        last_receive_is_told: false,
        late_receives_are_flushed: false,
        overrun_queues_work_on: true,
        ..Self::IBA
    };

    /// Soft-RoCE of Linux 7, from 7.1 on.
    pub const RXE_7: Self = Self {
        refused_access_is_told: true,
        last_receive_is_told: true,
        ..Self::RXE_6_1
    };

    /// The hardware of which most is published, where that differs.
    pub const MLX5: Self = Self {
        late_requests_vanish: true,
        ..Self::IBA
    };

    /// A span as the device's timers have it.
    pub(crate) const fn round_up(&self, span_ns: u64) -> u64 {
        if self.timer_step_ns == 0 {
            return span_ns;
        }
        let span_ns = if span_ns == 0 { 1 } else { span_ns };
        let steps = span_ns.div_ceil(self.timer_step_ns);
        steps.saturating_mul(self.timer_step_ns)
    }
}

impl Default for Quirks {
    fn default() -> Self {
        Self::IBA
    }
}
