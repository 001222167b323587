//! Loss: what reliable connections make of links that lose, double, delay and change packets.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[expect(dead_code, reason = "the suite's tests run elsewhere")]
mod suite;

use core::time::Duration;

use doorbell_core::provider::{
    Arena, Completion as _, CompletionQueue, Operation, PostFlags, ProtectionDomain, QueuePair,
    QueuePairConfig, ReceiveBatch, ReceiveQueue, RemoteAccess, SharedReceiveQueue, SharedReceiveQueueConfig,
    Window,
};
use doorbell_core::{Mtu, QpState, WcStatus};
use doorbell_sim::{Fabric, Host, LinkConfig, Plan, Quirks};
use suite::{Side, USUAL, Wish, connected_as, poll_nothing};

/// The acknowledgement timeout of the suite's queue pairs: 4.096 us * 2^10.
const TIMEOUT_NS: u64 = 4096 << 10;
/// The wait their receivers ask for, by code 12.
const NOT_READY_NS: u64 = 640_000;
const LATENCY_NS: u64 = 1000;

/// Hosts `a` and `b` on a fabric.
struct On(Fabric);

impl On {
    fn plan(plan: &str) -> Self {
        Self(Fabric::builder().plan(plan.parse().unwrap()).build())
    }

    fn quirks(quirks: Quirks, plan: &str) -> Self {
        let plan: Plan = plan.parse().unwrap();
        Self(Fabric::builder().quirks(quirks).plan(plan).build())
    }

    fn driven(plan: &str) -> Self {
        let link = LinkConfig {
            latency_ns: LATENCY_NS,
            // So fast that sending takes a nanosecond.
            bandwidth_mbps: Some(u32::MAX),
        };
        let plan: Plan = plan.parse().unwrap();
        Self(Fabric::builder().link(link).plan(plan).driven().build())
    }

    fn sides(&self, wishes: [Wish; 2]) -> [Side<Host>; 2] {
        connected_as(&self.0, wishes)
    }

    fn now_ns(&self) -> u64 {
        self.0.now().to_ns()
    }

    fn run_for(&self, ns: u64) {
        self.0.run_for(Duration::from_nanos(ns));
    }

    /// How many packets were sent.
    fn sent(&self) -> u64 {
        self.0.audit().unwrap().packets.sent
    }
}

/// Packets of 256 bytes, so that what the suite's slots hold takes several.
const SMALL: Wish = Wish {
    path_mtu: Mtu::B256,
    ..USUAL
};

fn pattern(bytes: usize, begin: u8) -> Vec<u8> {
    (begin..=u8::MAX).chain(0..=u8::MAX).cycle().take(bytes).collect()
}

/// A request of 512 bytes in two slots.
fn post_long(side: &mut Side<Host>, operation: Operation, bytes: &[u8], flags: PostFlags) {
    let (first, rest) = bytes.split_at(256);
    let slots = [side.slot(first), side.slot(rest)];
    side.post_slots(operation, slots, flags);
}

/// A receive of 512 bytes in two slots.
fn post_long_receive(side: &mut Side<Host>) {
    let slots = [side.slot(b""), side.slot(b"")];
    let mut batch = side.receive.stage();
    batch.push(slots).map_err(|refused| refused.reason).unwrap();
    batch.ring().unwrap();
}

#[test]
fn s13_what_is_lost_is_sent_again_after_the_timeout() {
    for kind in ["send", "ack"] {
        let flow = if kind == "send" { "a->b" } else { "b->a" };
        let on = On::plan(&format!("drop 1st {kind} of {flow}"));
        let [mut near, mut far] = on.sides([USUAL; 2]);
        far.post_receives(2);
        let begin = on.now_ns();
        near.post(Operation::Send, b"once");
        assert!(near.status().is_success());
        let passed = on.now_ns() - begin;
        assert!(
            (TIMEOUT_NS..2 * TIMEOUT_NS).contains(&passed),
            "{kind}: {passed} ns"
        );
        // One that came already is answered again, and not done again (S15).
        assert_eq!(far.received(1)[0].payload, b"once");
        poll_nothing(&mut far.receive_completions);
        on.0.audit().unwrap();
    }
}

#[test]
fn s13_retries_are_counted_and_a_peer_that_is_cut_off_ends_them() {
    let on = On::driven("at 0ns link a-b down");
    let [mut near, far] = on.sides([USUAL; 2]);
    on.run_for(1);
    near.post(Operation::Write(far.at(0)), b"x");
    // The suite's queue pairs try once more.
    on.run_for(2 * TIMEOUT_NS - 1);
    poll_nothing(&mut near.send_completions);
    assert_eq!((near.state(), on.sent()), (QpState::ReadyToSend, 2));
    on.run_for(2);
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
    assert_eq!((near.state(), on.sent()), (QpState::Error, 2));
    assert_eq!(on.0.audit().unwrap().packets.lost, 2);
}

#[test]
fn s13_an_answer_begins_the_count_of_retries_anew() {
    // Each request is lost once; one retry for all would not do.
    let on = On::plan("drop every 2nd write of a->b");
    let [mut near, far] = on.sides([USUAL; 2]);
    for round in 0..10 {
        near.post(Operation::Write(far.at(0)), &[round; 8]);
        assert!(near.status().is_success(), "round {round}");
    }
    assert_eq!(far.window_bytes(0, 8), [9; 8]);
}

#[test]
fn s13_seven_retries_are_seven_or_endless() {
    for (quirks, ends) in [(Quirks::IBA, true), (Quirks::RXE_6_1, false)] {
        let on = On::quirks(quirks, "at 0ns link a-b down");
        let wish = Wish {
            retry_count: 7,
            ..USUAL
        };
        let [mut near, far] = on.sides([wish, USUAL]);
        near.post(Operation::Write(far.at(0)), b"x");
        for _ in 0..10 {
            near.send_completions.poll(|_| ()).unwrap();
        }
        let expected = if ends {
            QpState::Error
        } else {
            QpState::ReadyToSend
        };
        assert_eq!(near.state(), expected);
        assert_eq!(on.sent() == 8, ends, "{} packets", on.sent());
    }
}

#[test]
fn s15_a_gap_is_reported_and_not_waited_for() {
    let on = On::driven("drop 1st send of a->b");
    let [mut near, mut far] = on.sides([USUAL; 2]);
    far.post_receives(3);
    for text in [b"one", b"two", b"tri"] {
        near.post(Operation::Send, text);
    }
    // There, the refusal back, and there and back again.
    on.run_for(5 * LATENCY_NS);
    let payloads: Vec<_> = far
        .received(3)
        .into_iter()
        .map(|received| received.payload)
        .collect();
    assert_eq!(payloads, [b"one", b"two", b"tri"]);
    assert!(near.sent(3).iter().all(|sent| sent.retired.status.is_success()));
    // Three, one refusal for two that came too early, three again and their acknowledgements.
    assert_eq!(on.sent(), 3 + 1 + 3 + 3);
}

#[test]
fn s15_a_read_goes_on_where_a_packet_of_it_was_lost() {
    for lost in ["1st", "2nd"] {
        let on = On::plan(&format!("drop {lost} response of b->a"));
        let [mut near, far] = on.sides([SMALL; 2]);
        let data = pattern(512, 3);
        far.window.copy_in(0, &data).unwrap();
        post_long(
            &mut near,
            Operation::Read(far.at(0)),
            &[0; 512],
            PostFlags::SIGNALED,
        );
        let sent = near.sent(1).remove(0);
        assert!(sent.retired.status.is_success());
        let read: Vec<u8> = sent.slots.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert_eq!(read, data, "{lost}");
        // The request, its answers, the rest of it, and the answers to that.
        assert_eq!(
            on.sent(),
            if lost == "1st" {
                1 + 2 + 1 + 2
            } else {
                1 + 2 + 1 + 1
            }
        );
    }
}

#[test]
fn s15_an_atomic_is_done_once_and_its_result_repeated() {
    let on = On::plan("drop 1st result of b->a; drop 3rd result of b->a");
    let [mut near, far] = on.sides([USUAL; 2]);
    for before in 0..3_u64 {
        let remote = far.at(8);
        near.post(Operation::FetchAndAdd { remote, add: 1 }, &[]);
        let sent = near.sent(1).remove(0);
        assert!(sent.retired.status.is_success());
        assert_eq!(sent.slots[0].1, before.to_ne_bytes());
    }
    assert_eq!(far.window_bytes(8, 8), 3_u64.to_ne_bytes());
}

#[test]
fn s15_as_many_atomics_as_may_be_outstanding_are_remembered() {
    let on = On::plan("drop 1st result of b->a; drop 2nd result of b->a; drop 3rd result of b->a");
    let [mut near, far] = on.sides([USUAL; 2]);
    for _ in 0..4 {
        let remote = far.at(0);
        near.post(Operation::FetchAndAdd { remote, add: 1 }, &[]);
    }
    let before: Vec<_> = near
        .sent(4)
        .into_iter()
        .map(|sent| sent.slots[0].1.clone())
        .collect();
    assert_eq!(before, [0_u64, 1, 2, 3].map(|count| count.to_ne_bytes().to_vec()));
    assert_eq!(far.window_bytes(0, 8), 4_u64.to_ne_bytes());
}

#[test]
fn s13_what_is_answered_in_parts_is_not_silent() {
    // A packet of data takes 2.7 ms, which is less than the timeout; two take more.
    let link = LinkConfig {
        latency_ns: LATENCY_NS,
        bandwidth_mbps: Some(1),
    };
    let on = On(Fabric::builder().link(link).driven().build());
    let [mut near, far] = on.sides([SMALL; 2]);
    let begin = on.now_ns();
    post_long(
        &mut near,
        Operation::Read(far.at(0)),
        &[0; 512],
        PostFlags::SIGNALED,
    );
    on.run_for(2 * TIMEOUT_NS);
    assert!(near.status().is_success());
    assert_eq!(
        (on.sent(), on.now_ns() - begin),
        (1 + 2, 2 * TIMEOUT_NS),
        "nothing twice"
    );
}

#[test]
fn s15_a_read_that_is_done_again_sees_what_was_written_meanwhile() {
    // Unless the WRITE waits for it (S18).
    for (flags, expected) in [
        (PostFlags::SIGNALED, b"new!"),
        (PostFlags::SIGNALED.union(PostFlags::FENCE), b"old!"),
    ] {
        let on = On::plan("drop 1st response of b->a");
        let [mut near, far] = on.sides([USUAL; 2]);
        far.window.copy_in(0, b"old!").unwrap();
        near.post(Operation::Read(far.at(0)), b"....");
        near.post_with(Operation::Write(far.at(0)), b"new!", flags);
        let sent = near.sent(2);
        assert_eq!(sent[0].slots[0].1, expected);
        assert_eq!(far.window_bytes(0, 4), b"new!");
    }
}

#[test]
fn s12_the_receiver_says_how_long_to_wait_and_the_count_begins_anew() {
    let wish = Wish {
        rnr_retry: 2,
        ..USUAL
    };
    let on = On::driven("");
    let [mut near, mut far] = on.sides([wish, USUAL]);
    for round in 0..3_u64 {
        let begin = on.now_ns();
        near.post(Operation::Send, b"late");
        // Refused twice: the second retry finds a receive.
        on.run_for(NOT_READY_NS + 5 * LATENCY_NS);
        assert_eq!(on.0.receivers_not_ready(), 2 * round + 2);
        far.post_receives(1);
        on.run_for(NOT_READY_NS + 3 * LATENCY_NS);
        assert!(near.status().is_success(), "round {round}");
        assert!(on.now_ns() - begin < TIMEOUT_NS, "no timeout in between");
        far.received(1);
    }
    near.post(Operation::Send, b"never");
    on.run_for(2 * (NOT_READY_NS + 2 * LATENCY_NS));
    poll_nothing(&mut near.send_completions);
    on.run_for(3 * LATENCY_NS);
    assert_eq!(near.status(), WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(on.0.receivers_not_ready(), 9);
}

#[test]
fn s12_what_follows_a_message_without_a_receive_is_left_aside_without_a_word() {
    let on = On::driven("");
    let [mut near, mut far] = on.sides([USUAL; 2]);
    for _ in 0..3 {
        near.post(Operation::Send, b"late");
    }
    on.run_for(3 * LATENCY_NS);
    assert_eq!(on.sent(), 3 + 1);
    far.post_receives(3);
    on.run_for(NOT_READY_NS + 2 * LATENCY_NS);
    assert_eq!(near.sent(3).len(), 3);
    assert_eq!(on.sent(), 3 + 1 + 3 + 3);
}

#[test]
fn s12_timers_of_software_devices_are_coarse() {
    let on = On::quirks(Quirks::RXE_7, "");
    let [mut near, mut far] = on.sides([USUAL; 2]);
    let begin = on.now_ns();
    near.post(Operation::Send, b"late");
    assert_eq!(on.0.receivers_not_ready(), 1);
    far.post_receives(1);
    assert!(near.status().is_success());
    assert!(on.now_ns() - begin >= 4_000_000);
}

#[test]
fn packets_that_are_doubled_swapped_late_or_changed_do_no_harm() {
    for plan in [
        "duplicate every 1st packet of any->any",
        "reorder every 3rd packet of a->b",
        "reorder every 2nd packet of b->a",
        "delay every 4th packet of a->b by 3us",
        "delay every 3rd packet of b->a by 6ms",
        "corrupt every 5th packet of any->any",
        "seed 7; drop 10% packet of any->any; duplicate 10% packet of any->any; \
         corrupt 5% packet of any->any; reorder 10% packet of any->any",
    ] {
        let on = On::plan(plan);
        let wish = Wish {
            retry_count: 7,
            ..SMALL
        };
        let [mut near, mut far] = on.sides([wish; 2]);
        for round in 0..30_u8 {
            post_long_receive(&mut far);
            let data = pattern(400, round);
            post_long(&mut near, Operation::Send, &data, PostFlags::empty());
            post_long(&mut near, Operation::Write(far.at(0)), &data, PostFlags::empty());
            near.post(
                Operation::FetchAndAdd {
                    remote: far.at(1024),
                    add: 1,
                },
                &[],
            );
            post_long(
                &mut near,
                Operation::Read(far.at(0)),
                &[0; 400],
                PostFlags::SIGNALED,
            );
            let sent = near.sent(2);
            assert!(sent.iter().all(|sent| sent.retired.status.is_success()), "{plan}");
            let slots = &sent[0].slots;
            assert_eq!(slots.last().unwrap().1, u64::from(round).to_ne_bytes(), "{plan}");
            let read: Vec<u8> = sent[1]
                .slots
                .iter()
                .flat_map(|(_, bytes)| bytes)
                .copied()
                .collect();
            assert_eq!(read, data, "{plan}");
            assert_eq!(far.received(1)[0].payload, data, "{plan}");
        }
        poll_nothing(&mut far.receive_completions);
        let tally = on.0.audit().unwrap();
        assert_eq!(tally.packets.corrupt > 0, plan.contains("corrupt"), "{plan}");
    }
}

#[test]
fn s22_a_shared_receive_that_was_begun_fails_and_the_others_stay() {
    // Only the first packet of the message ever comes.
    let on = On::plan("drop every 2nd send of a->b");
    let [mut near, mut far] = suite::sides(&on.0, [SMALL; 2]);
    let config = SharedReceiveQueueConfig {
        depth: 4,
        scatter_max: 2,
    };
    let shared = far.domain.shared_receive_queue(&far.receive_completions, &config);
    let mut shared = shared.unwrap();
    let config = QueuePairConfig {
        channel: 9,
        receive_depth: 0,
        scatter_max: 0,
        ..suite::QUEUE_PAIR
    };
    let parts = far.domain.queue_pair_on(&shared, &far.send_completions, &config);
    let mut parts = parts.unwrap();
    let name = (far.name().0, parts.control.qpn());
    near.connect(&SMALL, name);
    parts.control.initialize(1, RemoteAccess::ALL).unwrap();
    let to_receive = far.to_receive(&SMALL, near.name());
    parts.control.ready_to_receive(&to_receive).unwrap();
    let mut batch = shared.stage();
    for _ in 0..3 {
        let slots = [far.arena.lease().unwrap(), far.arena.lease().unwrap()];
        batch.push(slots).map_err(|refused| refused.reason).unwrap();
    }
    batch.ring().unwrap();
    post_long(&mut near, Operation::Send, &pattern(500, 1), PostFlags::empty());
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
    poll_nothing(&mut far.receive_completions);
    on.0.audit().unwrap();
    parts.control.fail().unwrap();
    let flushed = suite::poll_until(&mut far.receive_completions, 1).remove(0);
    let arrival = shared.retire(flushed.lend(), |_, _| ()).unwrap();
    assert_eq!(arrival.status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(shared.in_flight(), 2);
    assert_eq!(on.0.audit().unwrap().receives.retired, 1);
    drop((parts, shared));
    assert_eq!(on.0.audit().unwrap().receives.destroyed, 2);
    assert_eq!(far.slots_home(), suite::SLOTS);
}

#[test]
fn s28_only_so_many_reads_are_outstanding() {
    for depth in [1, 3] {
        let on = On::driven("");
        let wish = Wish {
            max_rd_atomic: depth,
            ..USUAL
        };
        let [mut near, far] = on.sides([wish, USUAL]);
        for _ in 0..5 {
            near.post(Operation::Read(far.at(0)), &[0; 8]);
        }
        on.run_for(LATENCY_NS / 2);
        assert_eq!(on.sent(), u64::from(depth));
        on.run_for(20 * LATENCY_NS);
        assert_eq!(near.sent(5).len(), 5);
    }
}

#[test]
fn s17_a_write_may_be_in_place_before_its_receive_is() {
    let on = On::plan("");
    let [mut near, mut far] = on.sides([SMALL; 2]);
    let data = pattern(400, 9);
    let flags = PostFlags::SIGNALED;
    post_long(
        &mut near,
        Operation::WriteWithImmediate(far.at(0), 5),
        &data,
        flags,
    );
    poll_nothing(&mut far.receive_completions);
    assert_eq!(
        far.window_bytes(0, 256),
        data[..256],
        "all but the packet with the word"
    );
    assert_eq!(far.window_bytes(256, 144), [0; 144]);
    far.post_receives(1);
    assert!(near.status().is_success());
    assert_eq!(far.window_bytes(0, 400), data);
    let received = far.received(1).remove(0);
    assert_eq!(
        (received.arrival.immediate, received.arrival.payload_bytes),
        (Some(5), 400)
    );
}

#[test]
fn s09_of_a_long_write_that_does_not_fit_nothing_lands() {
    let on = On::plan("");
    let [mut near, far] = on.sides([SMALL; 2]);
    // The first packet alone would fit.
    let remote = far.at(suite::WINDOW_BYTES as u64 - 300);
    post_long(
        &mut near,
        Operation::Write(remote),
        &pattern(500, 1),
        PostFlags::empty(),
    );
    assert_eq!(near.status(), WcStatus::REM_ACCESS_ERR);
    assert_eq!(far.state(), QpState::Error);
    assert_eq!(
        far.window_bytes(0, suite::WINDOW_BYTES),
        vec![0; suite::WINDOW_BYTES]
    );
}

#[test]
fn s16_only_so_many_packets_are_unanswered() {
    let quirks = Quirks {
        window_packets: 3,
        ..Quirks::IBA
    };
    let on = On(Fabric::builder().quirks(quirks).driven().build());
    let [mut near, far] = on.sides([SMALL; 2]);
    for _ in 0..4 {
        let data = pattern(512, 1);
        post_long(&mut near, Operation::Write(far.at(0)), &data, PostFlags::SIGNALED);
    }
    on.run_for(LATENCY_NS / 2);
    assert_eq!(on.sent(), 3, "of eight");
    on.run_for(20 * LATENCY_NS);
    assert_eq!(near.sent(4).len(), 4);
    assert_eq!(on.sent(), 8 + 4, "and their acknowledgements");
}

#[test]
fn faults_strike_the_packets_they_name_and_no_others() {
    let lost = |plan: &str| {
        let on = On::plan(plan);
        let [mut near, mut far] = on.sides([USUAL; 2]);
        far.post_receives(2);
        near.post(Operation::Send, b"x");
        near.post(Operation::Write(far.at(0)), b"x");
        near.post(Operation::Read(far.at(0)), b"x");
        near.post(Operation::Send, b"x");
        near.sent(4);
        on.0.audit().unwrap().packets.lost
    };
    assert_eq!(lost("drop 1st write of a->b"), 1);
    assert_eq!(lost("drop 1st read of a->any; drop 2nd send of any->b"), 2);
    assert_eq!(
        lost("drop 1st read of b->a; drop 1st send of c->b; drop 9th send of a->b"),
        0
    );
    assert_eq!(lost("drop 1st packet of a/sim0:1->b/sim0"), 1);
    assert_eq!(lost("drop 1st packet of a/sim1->b; drop 1st packet of a:2->b"), 0);
    // A link that is down is so in both directions, whichever is named first.
    let on = On::driven("at 0ns link b-a down for 10us");
    let [mut near, far] = on.sides([USUAL; 2]);
    near.post(Operation::Write(far.at(0)), b"x");
    on.run_for(5 * LATENCY_NS);
    assert_eq!((on.sent(), on.0.audit().unwrap().packets.lost), (1, 1));
}

#[test]
fn a_packet_that_nothing_overtakes_comes_late() {
    let on = On::driven("reorder 1st write of a->b");
    let [mut near, far] = on.sides([USUAL; 2]);
    near.post(Operation::Write(far.at(0)), b"x");
    on.run_for(4 * LATENCY_NS);
    poll_nothing(&mut near.send_completions);
    on.run_for(20 * LATENCY_NS);
    assert!(near.status().is_success());
    assert_eq!(on.sent(), 2, "it was not sent again");
}

#[test]
fn s19_a_success_means_that_the_peer_has_it_and_no_more_than_that() {
    let on = On::driven("");
    let [mut near, far] = on.sides([USUAL; 2]);
    near.post(Operation::Write(far.at(0)), b"x");
    on.run_for(LATENCY_NS + LATENCY_NS / 2);
    assert_eq!(far.window_bytes(0, 1), b"x");
    poll_nothing(&mut near.send_completions);
    on.run_for(LATENCY_NS);
    assert!(near.status().is_success());
}

#[test]
fn one_seed_makes_one_run() {
    let run = |seed: u64| {
        let on = On::plan(&format!("seed {seed}; drop 20% packet of any->any"));
        on.0.capture(10_000);
        let [mut near, far] = on.sides([SMALL; 2]);
        for round in 0..20_u8 {
            let data = pattern(400, round);
            post_long(&mut near, Operation::Write(far.at(0)), &data, PostFlags::SIGNALED);
            if !near.status().is_success() {
                break;
            }
        }
        (on.now_ns(), on.0.audit().unwrap(), on.0.take_captured())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
