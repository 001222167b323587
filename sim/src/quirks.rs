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
    /// The acknowledgement timeout runs on while a receiver is not ready, and uses up retries (S12). rxe
    /// before 7.
    pub waiting_is_silence: bool,
    /// Every timer is rounded up to a multiple of this, in nanoseconds, and at least one of it;
    /// zero is exact (S12, S13). Soft-RoCE counts in jiffies: 4 ms on a kernel that has 250 a second.
    pub timer_step_ns: u64,
    /// Whether a path MTU is refused that is larger than the port's (S2). rxe takes any.
    pub path_mtus_are_checked: bool,
    /// Status of a request whose memory is of another protection domain (S8). Soft-RoCE of 6.1 reports `LOC_QP_OP_ERR`.
    /// From 6.12 on it fails the queue pair before it looks at the request, which is flushed like those behind it.
    pub foreign_gather: WcStatus,
    /// An access that the queue pair's own rights forbid is an invalid request and no refused access (S9). rxe.
    pub forbidden_is_invalid: bool,
    /// How a receive ends that is too small (S10). rxe says `LOC_QP_OP_ERR`.
    pub short_receive: WcStatus,
    /// Status that the requester gets for it (S10). rxe says `REM_OP_ERR`.
    pub short_receive_reported: WcStatus,
    /// How a receive ends whose memory is of another protection domain (S11). rxe says
    /// `LOC_QP_OP_ERR`.
    pub foreign_receive: WcStatus,
    /// How the receive ends of a WRITE with immediate that is refused (S9). rxe says
    /// `REM_ACCESS_ERR`.
    pub refused_immediate: WcStatus,
    /// A refused access raises an event, `QP_ACCESS_ERR` (S9, S30). rxe does from 7 on.
    pub refused_access_is_reported: bool,
    /// A refused request raises an event, `QP_REQ_ERR` (S30). rxe has no such.
    pub refused_requests_are_reported: bool,
    /// A completion in error notifies a thread that armed for solicited ones (S23). Not in rxe from 6.12 on, where it was
    /// flushed.
    pub failures_are_solicited: bool,
    /// The first packet on a queue pair that is only ready to receive raises an event, and so does a queue pair that fails
    /// for its completion queue (S30). rxe has neither.
    pub states_are_reported: bool,
    /// A queue pair that fails and has a shared receive queue reports that it takes no more of it (S22). rxe does from
    /// 6.12 on.
    pub last_receive_is_reported: bool,
    /// A receive that is posted to a queue pair that failed already is flushed at once (S3). In
    /// rxe it waits for the queue pair to be asked for something else.
    pub late_receives_are_flushed: bool,
    /// A completion queue that overran works on; what did not fit is lost, and the queue pair
    /// fails only where that was a receive (S21). rxe.
    pub overrun_queues_work_on: bool,
    /// A request that is posted to a queue pair that failed already makes no completion (S3, S6).
    /// mlx5: google/rdma-unit-test, internal/introspection_mlx5.h, `ReqestOnFailedQp`.
    pub late_requests_vanish: bool,
    /// A queue pair that fails no longer than this after a message came, in nanoseconds, delivers that message again, as a
    /// success, into every posted receive; zero is never (S6, S17). Soft-RoCE from 6.4 on (49dc9c1f0c7e) does so if it
    /// fails while a packet completes: rxe_resp.c. This was corrected in July 2026 (Debian: 6.12.117).
    pub repeats_failing_ns: u64,
    /// A request for a queue pair that failed is tried for as long as that is there, and makes no completion (S14). mlx5: the
    /// same file, `WriteRemoteQpInErrorState` and its like. Whether it ends once the queue pair is destroyed is not observed.
    pub failed_peers_are_waited_for: bool,
    /// A datagram that is longer than the receive whose turn it is fails that receive, as `short_receive` says,
    /// and the queue pair, and is not dropped (S31). rxe of 6.1.
    pub short_datagrams_fail: bool,
    /// A datagram that cannot be sent fails the queue pair, and not its send queue alone: it is in ERR and not in SQE
    /// (S1). rxe.
    pub failed_datagrams_fail_all: bool,
    /// A send queue that drained goes on with the next doorbell, and not where it is resumed (S1). rxe.
    pub resumed_queues_wait: bool,
    /// A request that is to be tried again counts as one that has not begun, where the send queue drains (S1, S30). rxe.
    pub retries_do_not_drain: bool,
    /// There are no atomics, as the limits say (`ibv_query_device(3)`: `IBV_ATOMIC_NONE`). One that is posted all the same
    /// fails its queue pair: not every provider looks at what it is given.
    pub has_no_atomics: bool,
    /// There is no on-demand paging. rxe before 6.15, and since then none that could be trusted.
    pub has_no_on_demand: bool,
    /// How many packets may be unanswered. rxe has 128.
    pub window_packets: i32,
}

impl Quirks {
    /// The architecture's own words.
    pub const IBA: Self = Self {
        seven_retries_are_endless: false,
        waiting_is_silence: false,
        timer_step_ns: 0,
        path_mtus_are_checked: true,
        foreign_gather: WcStatus::LOC_PROT_ERR,
        forbidden_is_invalid: false,
        short_receive: WcStatus::LOC_LEN_ERR,
        short_receive_reported: WcStatus::REM_INV_REQ_ERR,
        foreign_receive: WcStatus::LOC_PROT_ERR,
        refused_immediate: WcStatus::LOC_ACCESS_ERR,
        refused_access_is_reported: true,
        refused_requests_are_reported: true,
        failures_are_solicited: true,
        states_are_reported: true,
        last_receive_is_reported: true,
        late_receives_are_flushed: true,
        overrun_queues_work_on: false,
        late_requests_vanish: false,
        repeats_failing_ns: 0,
        failed_peers_are_waited_for: false,
        short_datagrams_fail: false,
        failed_datagrams_fail_all: false,
        resumed_queues_wait: false,
        retries_do_not_drain: false,
        has_no_atomics: false,
        has_no_on_demand: false,
        window_packets: 128,
    };

    /// Soft-RoCE of Linux 6.1.
    pub const RXE_6_1: Self = Self {
        seven_retries_are_endless: true,
        waiting_is_silence: true,
        timer_step_ns: 4_000_000,
        path_mtus_are_checked: false,
        foreign_gather: WcStatus::LOC_QP_OP_ERR,
        forbidden_is_invalid: true,
        short_receive: WcStatus::LOC_QP_OP_ERR,
        short_receive_reported: WcStatus::REM_OP_ERR,
        foreign_receive: WcStatus::LOC_QP_OP_ERR,
        refused_immediate: WcStatus::REM_ACCESS_ERR,
        refused_access_is_reported: false,
        refused_requests_are_reported: false,
        states_are_reported: false,
        last_receive_is_reported: false,
        late_receives_are_flushed: false,
        overrun_queues_work_on: true,
        short_datagrams_fail: true,
        failed_datagrams_fail_all: true,
        resumed_queues_wait: true,
        retries_do_not_drain: true,
        has_no_on_demand: true,
        ..Self::IBA
    };

    /// Soft-RoCE of Linux 6.12.
    pub const RXE_6_12: Self = Self {
        foreign_gather: WcStatus::WR_FLUSH_ERR,
        failures_are_solicited: false,
        last_receive_is_reported: true,
        short_datagrams_fail: false,
        ..Self::RXE_6_1
    };

    /// Soft-RoCE of Linux 6.4 to 7, as long as it repeats what a queue pair takes that fails.
    pub const RXE_REPEATING: Self = Self {
        repeats_failing_ns: 1_000,
        ..Self::RXE_6_12
    };

    /// Soft-RoCE of Linux 7.
    pub const RXE_7: Self = Self {
        waiting_is_silence: false,
        refused_access_is_reported: true,
        ..Self::RXE_6_12
    };

    /// mlx5, as google/rdma-unit-test describes it, as far as the traits reach. The device hangs if more events are
    /// acknowledged than were taken (S24), but no caller above the traits can cause that.
    pub const MLX5: Self = Self {
        late_requests_vanish: true,
        failed_peers_are_waited_for: true,
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
