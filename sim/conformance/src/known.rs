//! The deviations that are known, each with the words of the case that shows it.
//!
//! Kernels that were run show where one begins and ends: `from` is the first of them that shows it, `until` the first that does not any more. If a
//! deviation was only simulated, its source says so. Files are of the kernel's drivers/infiniband/sw/rxe, where no other project is named.

use crate::deviation::ProviderName::{Fake, Rxe, SimulatedMlx5, SimulatedRxe, SimulatedRxeRepeating};
use crate::{Deviation, Kernel, ProviderName};

const RXE: &[ProviderName] = &[Rxe, SimulatedRxe, SimulatedRxeRepeating];
const RXE_AND_FAKE: &[ProviderName] = &[Rxe, SimulatedRxe, SimulatedRxeRepeating, Fake];
const LINUX_6_4: Option<Kernel> = Some(Kernel(6, 4));
const LINUX_6_12: Option<Kernel> = Some(Kernel(6, 12));
const LINUX_7_2: Option<Kernel> = Some(Kernel(7, 2));

/// Defaults that hold for all kernels.
const NONE: Deviation = Deviation {
    name: "",
    case: "",
    observed: "",
    providers: &[],
    from: None,
    until: None,
    is_a_race: false,
    source: "",
};

const NO_ON_DEMAND: Deviation = Deviation {
    name: "has_no_on_demand",
    case: "s26_memory_is_paged_on_demand",
    observed: "made: cannot provide the required on-demand paging: the device has none for SEND, WRITE, READ, atomics",
    providers: RXE,
    source: "Soft-RoCE supports on-demand paging from Linux 6.15 on: rxe_odp.c. It ignores the offset in a page: on 7.2, 100 \
             bytes for offset 100 were written at 0, and those for offset 12238 at 8192. So doorbell treats it as a device \
             without on-demand paging.",
    ..NONE
};

/// All of them. For one case, of one provider on one kernel there is at most one.
pub const DEVIATIONS: &[Deviation] = &[
    Deviation {
        name: "resumed_queues_wait",
        case: "s01_a_send_queue_drains_and_goes_on",
        observed: "to SQD: done, SQD; posted there: nothing; back: done, RTS; then: nothing; \
                   behind another: SUCCESS SUCCESS; received: later last",
        providers: RXE,
        source: "Nothing runs the requester when a queue pair moves from SQD to RTS: rxe_qp.c, rxe_qp_from_attr. Requests that \
                 were posted in SQD are sent with the next doorbell.",
        ..NONE
    },
    Deviation {
        name: "failed_datagrams_fail_all",
        case: "s01_a_datagram_that_fails_leaves_the_receives",
        observed: "sent: LOC_QP_OP_ERR; state: ERR; posted there: WR_FLUSH_ERR; received: WR_FLUSH_ERR; back: EINVAL, ERR; \
                   then: WR_FLUSH_ERR, received nothing",
        until: LINUX_6_12,
        ..SEND_ERROR
    },
    Deviation {
        name: "failed_datagrams_are_flushed",
        case: "s01_a_datagram_that_fails_leaves_the_receives",
        observed: "sent: WR_FLUSH_ERR; state: ERR; posted there: WR_FLUSH_ERR; received: WR_FLUSH_ERR; back: EINVAL, ERR; \
                   then: WR_FLUSH_ERR, received nothing",
        from: LINUX_6_12,
        ..SEND_ERROR
    },
    Deviation {
        name: "path_mtu_unchecked",
        case: "s02_a_bad_modify_changes_nothing",
        observed: "bad: path_mtu; good: INIT RTR RTS",
        providers: RXE_AND_FAKE,
        source: "A path MTU may be larger than the MTU of the port: rxe_qp.c, rxe_qp_chk_attr compares it only with the \
                 maximum of all ports, 4096. The fake libibverbs has the same limit.",
        ..NONE
    },
    Deviation {
        name: "late_sends_vanish",
        case: "s03_a_send_posted_in_error_is_flushed",
        observed: "sent: nothing",
        providers: &[SimulatedMlx5],
        source: "A request that is posted in ERR has no completion. google/rdma-unit-test reports this of mlx5; it was not \
                 observed here.",
        ..NONE
    },
    Deviation {
        name: "late_receives_wait",
        case: "s03_a_receive_posted_in_error_is_flushed",
        observed: "those before: WR_FLUSH_ERR; received: nothing",
        providers: RXE,
        source: "A receive that is posted in ERR stays in its queue. The library posts without a system call, so it does not \
                 call rxe_verbs.c, rxe_post_recv, and nothing runs the responder.",
        ..NONE
    },
    Deviation {
        providers: &[SimulatedRxeRepeating],
        ..REPEATING
    },
    Deviation {
        providers: &[Rxe],
        is_a_race: true,
        ..REPEATING
    },
    FOREIGN_GATHER,
    Deviation {
        case: "s08_a_range_of_another_domain_is_not_sent",
        ..FOREIGN_GATHER
    },
    FOREIGN_GATHER_FLUSHED,
    Deviation {
        case: "s08_a_range_of_another_domain_is_not_sent",
        ..FOREIGN_GATHER_FLUSHED
    },
    Deviation {
        name: "forbidden_is_invalid",
        case: "s09_the_right_of_the_queue_pair_to_write_is_needed",
        observed: "READ: SUCCESS; WRITE: REM_INV_REQ_ERR, ERR ERR; window: untouched",
        ..FORBIDDEN
    },
    Deviation {
        name: "forbidden_is_invalid",
        case: "s09_the_right_of_the_queue_pair_to_run_atomics_is_needed",
        observed: "atomic: REM_INV_REQ_ERR, ERR ERR; window: untouched",
        ..FORBIDDEN
    },
    Deviation {
        name: "refused_immediate_is_remote",
        case: "s09_a_refused_write_with_immediate_fails_the_receive",
        observed: "sent: REM_ACCESS_ERR; received: REM_ACCESS_ERR WR_FLUSH_ERR; states: ERR ERR",
        providers: RXE,
        source: "The receive completes with the requester's status: rxe_resp.c, RESPST_ERR_RKEY_VIOLATION.",
        ..NONE
    },
    NO_ON_DEMAND,
    Deviation {
        case: "s26_bytes_of_paged_memory_lie_where_they_are_named",
        ..NO_ON_DEMAND
    },
    Deviation {
        name: "short_receive_is_an_operation_error",
        case: "s10_a_receive_that_is_too_small_fails_both",
        observed: "sent: REM_OP_ERR; received: LOC_QP_OP_ERR WR_FLUSH_ERR; states: ERR ERR",
        ..SHORT
    },
    Deviation {
        name: "short_receive_is_an_operation_error",
        case: "s10_only_the_shared_receive_that_was_taken_fails",
        observed: "sent: REM_OP_ERR; received: LOC_QP_OP_ERR of the first; left: 1; the other connection: SUCCESS; \
                   received: the other of the second",
        ..SHORT
    },
    Deviation {
        name: "foreign_receive_is_an_operation_error",
        case: "s11_a_receive_of_another_domain_fails_both",
        observed: "sent: REM_OP_ERR; received: LOC_QP_OP_ERR; states: ERR ERR",
        providers: RXE,
        source: "A receive whose memory may not be used is reported as malformed: rxe_resp.c, RESPST_ERR_MALFORMED_WQE.",
        ..NONE
    },
    Deviation {
        name: "waiting_uses_up_retries",
        case: "s12_waiting_for_a_receive_uses_up_no_retries",
        observed: "sent: RETRY_EXC_ERR",
        providers: &[Rxe],
        until: LINUX_7_2,
        is_a_race: true,
        source: "The retransmission timer continues while a receiver is not ready. If it expires while the retransmitted \
                 request is in flight, the device counts a retry as if the peer had not answered: rxe_comp.c, rxe_completer.",
        ..NONE
    },
    Deviation {
        name: "waiting_uses_up_retries",
        case: "s12_waiting_for_a_receive_uses_up_no_retries",
        observed: "sent: RETRY_EXC_ERR",
        providers: &[SimulatedRxe, SimulatedRxeRepeating],
        until: LINUX_7_2,
        source: "In the simulator the device always counts so.",
        ..NONE
    },
    Deviation {
        name: "seven_retries_are_endless",
        case: "s13_seven_retries_end_too",
        observed: "to RTS: EINVAL",
        providers: &[Rxe],
        source: "rxe_comp.c, COMPST_ERROR_RETRY does not count down from 7. So `ffi` refuses 7 there.",
        ..NONE
    },
    Deviation {
        name: "seven_retries_are_endless",
        case: "s13_seven_retries_end_too",
        observed: "to RTS: done; sent: nothing",
        providers: &[SimulatedRxe, SimulatedRxeRepeating],
        source: "rxe_comp.c, COMPST_ERROR_RETRY does not count down from 7. So `ffi` refuses 7 there.",
        ..NONE
    },
    Deviation {
        name: "failed_peers_are_waited_for",
        case: "s14_a_peer_in_error_does_not_answer",
        observed: "WRITE: nothing",
        ..WAITED_FOR
    },
    Deviation {
        name: "failed_peers_are_waited_for",
        case: "s14_what_waits_learns_that_the_peer_is_gone",
        observed: "peer in ERR: nothing; peer gone: RETRY_EXC_ERR",
        ..WAITED_FOR
    },
    Deviation {
        case: "s15_what_comes_again_is_done_once",
        observed: "messages: 20, in order; adds: 20, in order; word: 20; READs: 20 right; packets: left alone",
        ..LEFT_ALONE
    },
    Deviation {
        case: "s15_what_follows_a_gap_is_sent_again",
        observed: "sent: 16 of 16, at once; received: 8, in order; words: 8 written; packets: left alone",
        ..LEFT_ALONE
    },
    Deviation {
        case: "s18_a_fenced_write_waits_for_the_read",
        observed: "READs: 20 of what was there; window: 20 times written; packets: left alone",
        ..LEFT_ALONE
    },
    Deviation {
        name: "overrun_queues_work_on",
        case: "s21_a_send_queue_that_overruns_is_lost",
        observed: "events: CQ_ERR; the queue: polled on; state: RTS",
        providers: RXE_AND_FAKE,
        ..OVERRUN
    },
    Deviation {
        name: "overrun_queues_work_on",
        case: "s21_a_receive_queue_that_overruns_is_lost",
        observed: "events: CQ_ERR; the queue: polled on; state: ERR",
        providers: RXE,
        ..OVERRUN
    },
    Deviation {
        name: "overrun_queues_work_on",
        case: "s21_a_receive_queue_that_overruns_is_lost",
        observed: "events: CQ_ERR; the queue: polled on; state: RTS",
        providers: &[Fake],
        ..OVERRUN
    },
    Deviation {
        name: "last_receive_untold",
        case: "s22_the_last_receive_of_a_failed_queue_pair_is_told",
        observed: "events: nothing",
        providers: RXE,
        until: LINUX_6_12,
        source: "rxe_resp.c does not report QP_LAST_WQE_REACHED yet.",
        ..NONE
    },
    Deviation {
        name: "flushes_are_not_solicited",
        case: "s23_failed_completions_count_as_solicited",
        observed: "flushed: 0",
        providers: RXE,
        from: LINUX_6_12,
        source: "A flushed completion does not notify a completion queue that is armed for solicited completions: rxe_resp.c, \
                 flush_recv_wqe.",
        ..NONE
    },
    Deviation {
        name: "misaligned_atomics_are_not_posted",
        case: "s27_an_atomic_must_be_aligned",
        observed: "atomic: refused when posted, RTS RTS; words: 0 0",
        providers: &[Rxe],
        source: "The library refuses the request before the device can: rdma-core, providers/rxe/rxe.c, validate_send_wr. The \
                 simulator has no such library.",
        ..NONE
    },
    Deviation {
        name: "reads_without_depth_fail",
        case: "s28_a_requester_without_depth_stalls",
        observed: "WRITE: SUCCESS LOC_QP_OP_ERR; READ: nothing; state: ERR; when failed: nothing",
        providers: &[Fake],
        source: "The fake libibverbs fails a request that could never start.",
        ..NONE
    },
    Deviation {
        name: "first_packet_untold",
        case: "s30_the_first_packet_of_a_queue_pair_in_rtr_is_told",
        observed: "sent: SUCCESS SUCCESS; events: nothing; state: RTR",
        providers: RXE_AND_FAKE,
        source: "Neither the driver nor the fake libibverbs reports COMM_EST.",
        ..NONE
    },
    Deviation {
        name: "refused_access_untold",
        case: "s30_a_refused_access_is_told",
        observed: "sent: REM_ACCESS_ERR; events: nothing",
        providers: RXE,
        until: LINUX_7_2,
        source: "rxe_resp.c does not report QP_ACCESS_ERR yet.",
        ..NONE
    },
    Deviation {
        name: "refused_request_untold",
        case: "s30_a_refused_request_is_told",
        observed: "sent: REM_INV_REQ_ERR; events: nothing",
        providers: RXE,
        source: "The driver does not report QP_REQ_ERR.",
        ..NONE
    },
    Deviation {
        name: "retries_do_not_drain",
        case: "s30_a_send_queue_that_drained_is_told",
        observed: "meanwhile: nothing SQ_DRAINED; sent: nothing; events: nothing",
        providers: RXE,
        source: "A request that is to be retried counts as posted, not as in flight: rxe_req.c, req_retry. So it waits in SQD, \
                 and the send queue is reported as drained.",
        ..NONE
    },
    Deviation {
        name: "removal_waits",
        case: "s30_a_device_that_breaks_is_told",
        observed: "device: nothing",
        providers: &[Rxe],
        source: "The driver does not report DEVICE_FATAL. The kernel reports it if an open device is removed. If the driver \
                 has no disassociate_ucontext, the kernel waits instead until no process has the device open: \
                 drivers/infiniband/core/uverbs_main.c, ib_uverbs_remove_one.",
        ..NONE
    },
    Deviation {
        name: "port_stays",
        case: "s30_a_port_that_goes_and_comes_is_told",
        observed: "down: there is no network device to change",
        ..PORT
    },
    Deviation {
        name: "port_stays",
        case: "s30_a_new_address_is_told",
        observed: "address: there is no network device to change",
        ..PORT
    },
    Deviation {
        name: "hop_limit_of_the_route",
        case: "s31_the_route_comes_in_front_of_a_datagram",
        observed: "sent: SUCCESS; received: hello of 5 bytes; from: its queue pair, its GID; to: our GID; class: 0x28; \
                   hops: 64",
        providers: &[Rxe],
        source: "The kernel takes the hop limit from its routes, not from the address handle: drivers/infiniband/core/verbs.c, \
                 ib_resolve_unicast_gid_dmac. Datagrams use the kernel's copy of the handle: rxe_av.c, rxe_get_av. The \
                 simulator has no such kernel.",
        ..NONE
    },
    Deviation {
        name: "short_datagram_receive_fails",
        case: "s31_a_datagram_longer_than_the_receive_is_dropped",
        observed: "too long: SUCCESS, received LOC_QP_OP_ERR; receives left: 1; the next: SUCCESS, received nothing; \
                   state: ERR",
        providers: RXE,
        until: LINUX_6_12,
        source: "rxe_resp.c, check_length does not compare the length of a datagram with its receive yet. So for a longer \
                 datagram rxe_mr.c, copy_data returns EINVAL, and the receive is malformed, as on connections. In later \
                 kernels rxe_resp_check_length compares them, and RESPST_ERR_LENGTH drops the datagram.",
        ..NONE
    },
];

const REPEATING: Deviation = Deviation {
    name: "failing_queue_pairs_repeat",
    case: "s06_what_came_does_not_come_again",
    observed: "received: once once once once; state: ERR",
    from: LINUX_6_4,
    until: LINUX_7_2,
    source: "If a queue pair fails while a packet completes, its message is delivered again into every posted receive: \
             rxe_resp.c, from 49dc9c1f0c7e until it was corrected in July 2026, as in Debian's 6.12.117. It is a race, which \
             did not occur on 6.12.95 in the lab.",
    ..NONE
};

const FOREIGN_GATHER: Deviation = Deviation {
    name: "foreign_gather_is_an_operation_error",
    case: "s08_a_slot_of_another_domain_is_not_sent",
    observed: "sent: LOC_QP_OP_ERR; state: ERR; peer: nothing",
    providers: RXE,
    until: LINUX_6_12,
    source: "For a key that may not be used, rxe_mr.c, copy_data returns EINVAL. rxe_req.c, rxe_requester reports only EFAULT \
             as a protection error.",
    ..NONE
};

const FOREIGN_GATHER_FLUSHED: Deviation = Deviation {
    name: "foreign_gather_is_flushed",
    case: "s08_a_slot_of_another_domain_is_not_sent",
    observed: "sent: WR_FLUSH_ERR; state: ERR; peer: nothing",
    providers: RXE,
    from: LINUX_6_12,
    source: "The cause is lost: rxe_req.c, rxe_requester moves the queue pair to ERR. Then rxe_comp.c, rxe_completer flushes \
             all requests, including the failed one.",
    ..NONE
};

const SEND_ERROR: Deviation = Deviation {
    providers: RXE,
    source: "There is no SQE state: rxe_req.c, rxe_requester moves a datagram queue pair to ERR, too. The failed request \
             completes as on a connection (S8).",
    ..NONE
};

const WAITED_FOR: Deviation = Deviation {
    providers: &[SimulatedMlx5],
    source: "A request for a queue pair in ERR has no completion. google/rdma-unit-test reports this of mlx5; it was not \
             observed here.",
    ..NONE
};

const LEFT_ALONE: Deviation = Deviation {
    name: "not_disturbed_here",
    providers: &[Fake],
    source: "The fake libibverbs has no packets that could be lost or duplicated.",
    ..NONE
};

const FORBIDDEN: Deviation = Deviation {
    providers: RXE,
    source: "An access that the flags of the queue pair forbid is not reported as an access error: rxe_resp.c, check_op_valid \
             returns RESPST_ERR_UNSUPPORTED_OPCODE.",
    ..NONE
};

const SHORT: Deviation = Deviation {
    providers: RXE,
    source: "If a message is longer than its receive, rxe_mr.c, copy_data returns EINVAL. rxe_resp.c, send_data_in reports \
             only ENOSPC as a length error, so the receive is malformed.",
    ..NONE
};

const OVERRUN: Deviation = Deviation {
    source: "A completion that does not fit is dropped, CQ_ERR reports it, and the completion queue continues to work. Only \
             the responder of the queue pair fails: rxe_cq.c, rxe_cq_post, and rxe_resp.c, RESPST_ERR_CQ_OVERFLOW. In the fake \
             libibverbs no queue pair fails.",
    ..NONE
};

const PORT: Deviation = Deviation {
    providers: &[Fake],
    source: "The fake libibverbs uses a network device of this host, which the test does not change.",
    ..NONE
};
