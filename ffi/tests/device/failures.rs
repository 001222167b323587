//! What goes wrong on a connection, and what is refused at set-up.

use doorbell_core::provider::{
    Arena as _, ArenaConfig, ArrivalKind, Completion as _, CompletionQueue as _, CompletionQueueConfig,
    Context as _, DataInOrder, MemoryError, Operation, PostFlags, ProtectionDomain as _, Provider as _,
    ProviderError, QueuePair as _, ReceiveQueue as _, RemoteAccess, RemoteAddress, SendBatch as _,
    SendQueue as _, Slot as _, WindowConfig,
};
use doorbell_core::{QpState, Rkey, WcStatus};
use doorbell_ffi::ProviderKind;

use crate::bench::{Bench, bench, config, poll, post_receives, slot_with};

#[test]
fn s9_a_bad_key_fails_the_request_and_flushes_the_rest() {
    let Some(bench) = bench("s9_a_bad_key") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut one, _other) = bench.pair();
    post_receives(&mut one.parts.receive, &mut arena, 3);
    let remote = RemoteAddress {
        address: 0x1000,
        rkey: Rkey(0x00be_ef00),
    };
    let mut batch = one.parts.send.stage();
    let slot = slot_with(&mut arena, b"nowhere");
    batch
        .push(Operation::Write(remote), [slot], PostFlags::empty())
        .unwrap();
    for _ in 0..2 {
        let slot = slot_with(&mut arena, b"behind");
        batch.push(Operation::Send, [slot], PostFlags::empty()).unwrap();
    }
    assert_eq!(batch.ring(), Ok(3));
    // S6: one that is no flush, then flushes, in order.
    let mut back = Vec::new();
    let statuses: Vec<_> = poll(&mut one.sends, 3)
        .into_iter()
        .map(|completion| {
            let retired = one.parts.send.retire(completion, |ticket, slot| {
                back.push(ticket.position());
                arena.release(slot);
            });
            let retired = retired.unwrap();
            assert_eq!(retired.count(), 1);
            retired.status
        })
        .collect();
    assert_eq!(
        statuses,
        [
            WcStatus::REM_ACCESS_ERR,
            WcStatus::WR_FLUSH_ERR,
            WcStatus::WR_FLUSH_ERR
        ]
    );
    assert_eq!(back, [0, 1, 2]);
    for completion in poll(&mut one.receives, 3) {
        let arrival = one.parts.receive.retire(completion, |_, slot| {
            assert_eq!(slot.len_bytes(), 0);
            arena.release(slot);
        });
        let arrival = arrival.unwrap();
        assert_eq!(
            (arrival.kind, arrival.status),
            (ArrivalKind::Failed, WcStatus::WR_FLUSH_ERR)
        );
        assert_eq!((arrival.payload_bytes, arrival.immediate), (0, None));
    }
    assert_eq!(one.parts.control.state(), Ok(QpState::Error));
    assert_eq!(arena.free_slots(), 16);
}

#[test]
fn s3_a_failed_queue_pair_takes_requests_and_flushes_them() {
    let Some(bench) = bench("s3_a_failed_queue_pair") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut one, _other) = bench.pair();
    post_receives(&mut one.parts.receive, &mut arena, 2);
    one.parts.control.fail().unwrap();
    assert_eq!(one.parts.control.state(), Ok(QpState::Error));
    let statuses = |completions: Vec<doorbell_ffi::Completion>| {
        assert!(
            completions
                .iter()
                .all(|completion| completion.status() == WcStatus::WR_FLUSH_ERR)
        );
        completions
    };
    for completion in statuses(poll(&mut one.receives, 2)) {
        one.parts
            .receive
            .retire(completion, |_, slot| arena.release(slot))
            .unwrap();
    }
    let mut batch = one.parts.send.stage();
    for _ in 0..2 {
        let slot = slot_with(&mut arena, b"too late");
        batch.push(Operation::Send, [slot], PostFlags::empty()).unwrap();
    }
    assert_eq!(batch.ring(), Ok(2));
    for completion in statuses(poll(&mut one.sends, 2)) {
        one.parts
            .send
            .retire(completion, |_, slot| arena.release(slot))
            .unwrap();
    }
    assert_eq!(arena.free_slots(), 16);
    // Failing again changes nothing.
    one.parts.control.fail().unwrap();
}

/// That a message that does not fit its receive ends so on both sides (S10): by the book, or as
/// rxe says it, until Linux 6.1 by the sender's word, later as a receive that is malformed.
pub(crate) fn fails_as_too_short(at_sender: WcStatus, at_receiver: WcStatus) {
    let known = [
        (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
        (WcStatus::REM_INV_REQ_ERR, WcStatus::REM_INV_REQ_ERR),
        (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
    ];
    assert!(
        known.contains(&(at_sender, at_receiver)),
        "{at_sender:?}, {at_receiver:?}"
    );
}

#[test]
fn s10_a_receive_that_is_too_short_fails_both_sides() {
    let Some(bench) = bench("s10_a_receive_that_is_too_short") else {
        return;
    };
    let mut small = bench.arena(4, 64);
    let mut large = bench.arena(4, 4096);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut small, 1);
    let mut batch = sender.parts.send.stage();
    let slot = slot_with(&mut large, &[1; 65]);
    batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll(&mut sender.sends, 1).pop().unwrap();
    let at_sender = completion.status();
    sender
        .parts
        .send
        .retire(completion, |_, slot| large.release(slot))
        .unwrap();
    let completion = poll(&mut receiver.receives, 1).pop().unwrap();
    let arrival = receiver
        .parts
        .receive
        .retire(completion, |_, slot| small.release(slot))
        .unwrap();
    assert_eq!(arrival.kind, ArrivalKind::Failed);
    fails_as_too_short(at_sender, arrival.status);
}

#[test]
fn s12_without_a_receive_the_retries_end() {
    let Some(bench) = bench("s12_without_a_receive_the_retries_end") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (mut sender, mut receiver) = (bench.end(&config(1)), bench.end(&config(2)));
    let to_sender = bench.receive_with(&receiver.parts, 7);
    let to_receiver = bench.receive_with(&sender.parts, 5);
    for (end, receive, send) in [
        (&mut sender, to_sender, Bench::send_with(5)),
        (&mut receiver, to_receiver, Bench::send_with(7)),
    ] {
        let mut send = send;
        send.rnr_retry = 1;
        end.parts
            .control
            .initialize(bench.port.port, RemoteAccess::ALL)
            .unwrap();
        end.parts.control.ready_to_receive(&receive).unwrap();
        end.parts.control.ready_to_send(&send).unwrap();
    }
    let mut batch = sender.parts.send.stage();
    batch
        .push(
            Operation::Send,
            [slot_with(&mut arena, b"anybody?")],
            PostFlags::SIGNALED,
        )
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll(&mut sender.sends, 1).pop().unwrap();
    assert_eq!(completion.status(), WcStatus::RNR_RETRY_EXC_ERR);
    sender
        .parts
        .send
        .retire(completion, |_, slot| arena.release(slot))
        .unwrap();
}

#[test]
fn s14_a_peer_that_is_gone_is_noticed() {
    let Some(bench) = bench("s14_a_peer_that_is_gone_is_noticed") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (mut sender, receiver) = bench.pair();
    drop(receiver);
    let mut batch = sender.parts.send.stage();
    batch
        .push(
            Operation::Send,
            [slot_with(&mut arena, b"hello?")],
            PostFlags::SIGNALED,
        )
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll(&mut sender.sends, 1).pop().unwrap();
    assert_eq!(completion.status(), WcStatus::RETRY_EXC_ERR);
    sender
        .parts
        .send
        .retire(completion, |_, slot| arena.release(slot))
        .unwrap();
}

#[test]
fn s8_a_slot_of_another_domain_is_a_protection_error() {
    let Some(bench) = bench("s8_a_slot_of_another_domain") else {
        return;
    };
    let elsewhere = bench.context.protection_domain().unwrap();
    let mut arena = elsewhere.arena(&ArenaConfig::new(4, 64)).unwrap();
    let (mut sender, _receiver) = bench.pair();
    let mut batch = sender.parts.send.stage();
    batch
        .push(
            Operation::Send,
            [slot_with(&mut arena, b"foreign")],
            PostFlags::SIGNALED,
        )
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll(&mut sender.sends, 1).pop().unwrap();
    // LOC_PROT_ERR by the book.
    assert!(!completion.status().is_success());
    eprintln!("a slot of another domain: {:?}", completion.status());
    sender
        .parts
        .send
        .retire(completion, |_, slot| arena.release(slot))
        .unwrap();
    assert_eq!(arena.free_slots(), 4);
}

#[test]
fn a_completion_of_another_queue_is_rejected() {
    let Some(bench) = bench("a_completion_of_another_queue_is_rejected") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    // Channel 1 exists twice, on completion queues of its own each time.
    let ((mut one, mut two), (mut three, mut four)) = (bench.pair(), bench.pair());
    for (sender, receiver) in [(&mut one, &mut two), (&mut three, &mut four)] {
        post_receives(&mut receiver.parts.receive, &mut arena, 1);
        let mut batch = sender.parts.send.stage();
        batch
            .push(
                Operation::Send,
                [slot_with(&mut arena, b"x")],
                PostFlags::SIGNALED,
            )
            .unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }
    let foreign = poll(&mut three.sends, 1).pop().unwrap();
    assert!(one.parts.send.retire(foreign, |_, _| ()).is_err());
    let receive = poll(&mut two.receives, 1).pop().unwrap();
    assert!(two.parts.send.retire(receive, |_, _| ()).is_err());
    assert_eq!(
        (one.parts.send.in_flight(), two.parts.receive.in_flight()),
        (1, 1)
    );
    let own = poll(&mut one.sends, 1).pop().unwrap();
    assert!(one.parts.send.retire(own, |_, _| ()).is_ok());
}

#[test]
fn s1_transitions_out_of_order_are_refused() {
    let Some(bench) = bench("s1_transitions_out_of_order_are_refused") else {
        return;
    };
    let (mut one, other) = (bench.end(&config(1)), bench.end(&config(2)));
    let receive = bench.receive_with(&other.parts, 0);
    let send = Bench::send_with(0);
    let control = &mut one.parts.control;
    let refused = |outcome: Result<(), doorbell_core::provider::ProviderError>| {
        assert_eq!(outcome.unwrap_err().errno, libc::EINVAL);
    };
    assert_eq!(control.state(), Ok(QpState::Reset));
    refused(control.fail());
    refused(control.ready_to_receive(&receive));
    refused(control.ready_to_send(&send));
    control.initialize(bench.port.port, RemoteAccess::READ).unwrap();
    assert_eq!(control.state(), Ok(QpState::Init));
    refused(control.initialize(bench.port.port, RemoteAccess::READ));
    refused(control.ready_to_send(&send));
    let mut out_of_range = receive;
    out_of_range.address.flow_label = 1 << 20;
    refused(control.ready_to_receive(&out_of_range));
    control.ready_to_receive(&receive).unwrap();
    for wrong in [(0, 6), (32, 6), (14, 8)] {
        let mut wanted = send;
        (wanted.timeout, wanted.retry_count) = wrong;
        refused(control.ready_to_send(&wanted));
    }
    let provider = crate::described_provider(&bench.port.device);
    assert_eq!(bench.context.quirks().provider, provider);
    if provider == ProviderKind::Rxe {
        let mut endless = send;
        endless.retry_count = 7;
        let error = control.ready_to_send(&endless).unwrap_err();
        assert!(error.to_string().contains("never gives up"), "{error}");
    }
    if provider == ProviderKind::Rxe {
        // It has no answer, so whoever polls memory would poll on luck (S20).
        assert_eq!(control.data_in_order(), DataInOrder::No);
    }
    assert_eq!(control.state(), Ok(QpState::ReadyToReceive));
    control.ready_to_send(&send).unwrap();
    assert_eq!(control.state(), Ok(QpState::ReadyToSend));
}

#[test]
fn what_cannot_be_made_is_refused_with_its_errno() {
    let Some(bench) = bench("what_cannot_be_made_is_refused_with_its_errno") else {
        return;
    };
    let missing = bench.rdma.open("no-such-device").unwrap_err();
    assert_eq!(missing.errno, libc::ENODEV);
    assert!(bench.context.port(0).is_err());
    assert!(bench.context.port(200).is_err());
    for depth in [0, u32::MAX] {
        let config = CompletionQueueConfig { depth, notify: false };
        assert_eq!(
            bench.context.completion_queue(&config).unwrap_err().errno,
            libc::EINVAL
        );
    }
    let empty = WindowConfig::new(0, RemoteAccess::ALL);
    let is_invalid = |error| {
        matches!(
            error,
            MemoryError::Provider(ProviderError {
                errno: libc::EINVAL,
                ..
            })
        )
    };
    assert!(is_invalid(bench.domain.window(&empty).unwrap_err()));
    for (slots, slot_bytes) in [(0, 64), (64, 0)] {
        let config = ArenaConfig::new(slots, slot_bytes);
        assert!(is_invalid(bench.domain.arena(&config).unwrap_err()));
    }
    let (sends, receives) = (bench.queue(), bench.queue());
    let refused = |config| {
        bench
            .domain
            .queue_pair(&sends, &receives, &config)
            .unwrap_err()
            .errno
    };
    for wrong in [
        doorbell_core::provider::QueuePairConfig {
            channel: 1 << 20,
            ..config(1)
        },
        doorbell_core::provider::QueuePairConfig {
            gather_max: 5,
            ..config(1)
        },
        doorbell_core::provider::QueuePairConfig {
            send_depth: 0,
            ..config(1)
        },
        doorbell_core::provider::QueuePairConfig {
            receive_depth: 65_537,
            ..config(1)
        },
    ] {
        assert_eq!(refused(wrong), libc::EINVAL, "{wrong:?}");
    }
    // None of those kept the channel.
    let live = bench.domain.queue_pair(&sends, &receives, &config(1)).unwrap();
    assert_eq!(refused(config(1)), libc::EEXIST);
    drop(live);
    drop(bench.domain.queue_pair(&sends, &receives, &config(1)).unwrap());
    // Completion queues of another opening of the device.
    let again = bench.rdma.open(&bench.port.device).unwrap();
    let config_of_queue = CompletionQueueConfig {
        depth: 8,
        notify: false,
    };
    let elsewhere = again.completion_queue(&config_of_queue).unwrap();
    assert!(elsewhere.depth() >= 8);
    let mixed = bench.domain.queue_pair(&sends, &elsewhere, &config(2));
    assert_eq!(mixed.unwrap_err().errno, libc::EINVAL);
}

#[test]
fn devices_are_reported_whole() {
    let Some(bench) = bench("devices_are_reported_whole") else {
        return;
    };
    let devices = bench.rdma.devices().unwrap();
    let ours = devices
        .iter()
        .find(|device| device.name == bench.port.device)
        .unwrap();
    eprintln!("{ours:#?}");
    assert!(ours.failures.is_empty());
    let port = ours
        .ports
        .iter()
        .find(|port| port.port == bench.port.port)
        .unwrap();
    assert_eq!(*port, bench.context.port(port.port).unwrap());
    assert!(port.is_ethernet && port.active_mtu.is_some() && port.active_mtu <= port.mtu_max);
    let gid = port.usable_gids().next().unwrap();
    assert_eq!(gid.address.unwrap().address(), gid.gid.to_ip());
    assert!(gid.interface.is_some());
    let limits = bench.context.limits();
    assert!(limits.queue_depth_max > 0 && limits.completion_depth_max > 0 && limits.segments_max > 0);
}
