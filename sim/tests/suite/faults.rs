//! Faults: how each way to fail ends, on either side, and what becomes of the rest.

use doorbell_core::provider::{Arena, Slot};
use doorbell_core::provider::{
    ArenaConfig, ArrivalKind, AsyncEvent, Context, Operation, PostFlags, ProtectionDomain, Provider,
    QueuePair, ReceiveBatch, ReceiveQueue, RemoteAccess, RemoteAddress, SendQueue,
};
use doorbell_core::{Mtu, QpState, Rkey, WcStatus};

use super::{Rig, SLOT_BYTES, Side, USUAL, WINDOW_BYTES, Wish, connected, connected_as, poll_nothing};

const READ_ONLY: RemoteAccess = RemoteAccess::READ;
const RNR_ONCE: Wish = Wish {
    rnr_retry: 0,
    ..USUAL
};

/// A slot that is registered in another protection domain.
fn foreign_slot<P: Provider>(side: &Side<P>) -> P::Slot {
    let domain = side.context.protection_domain().unwrap();
    let mut arena = domain.arena(&ArenaConfig::new(1, SLOT_BYTES)).unwrap();
    let mut slot = arena.lease().unwrap();
    slot.set_len_bytes(4);
    slot
}

fn events<P: Provider>(side: &Side<P>) -> Vec<AsyncEvent> {
    core::iter::from_fn(|| side.context.next_event().unwrap()).collect()
}

/// What is told, where the device tells it.
fn told_if(is_told: bool, event: AsyncEvent) -> Vec<AsyncEvent> {
    is_told.then_some(event).into_iter().collect()
}

/// The request ends so, and both queue pairs have failed.
fn fails_both<R: Rig>([near, far]: [&mut Side<R::P>; 2], expected: WcStatus) {
    assert_eq!(near.status(), expected);
    assert_eq!(near.state(), QpState::Error);
    assert_eq!(far.state(), QpState::Error);
}

pub(crate) fn s06_one_cause_then_everything_is_flushed_in_order<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected_as(rig, [RNR_ONCE, USUAL]);
    near.post_receives(2);
    let mut batch = near.send.stage();
    let mut tickets = Vec::new();
    for _ in 0..3 {
        let pushed = doorbell_core::provider::SendBatch::push_inline(
            &mut batch,
            Operation::Send,
            b"nobody waits",
            PostFlags::empty(),
        );
        tickets.push(pushed.unwrap());
    }
    doorbell_core::provider::SendBatch::ring(batch).unwrap();
    let ends: Vec<_> = near
        .sent(3)
        .iter()
        .map(|sent| (sent.retired.last, sent.retired.status))
        .collect();
    let flushed = WcStatus::WR_FLUSH_ERR;
    let expected = [WcStatus::RNR_RETRY_EXC_ERR, flushed, flushed];
    assert_eq!(ends, tickets.into_iter().zip(expected).collect::<Vec<_>>());
    assert_eq!(near.state(), QpState::Error);
    let received = near.received(2);
    assert!(received.iter().all(|received| received.arrival.status == flushed));
    assert!(received[0].arrival.ticket < received[1].arrival.ticket);
    assert_eq!((near.send.in_flight(), near.receive.in_flight()), (0, 0));
    poll_nothing(&mut far.receive_completions);
}

pub(crate) fn s07_a_failure_tells_nothing_else<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    near.post_receives(1);
    near.control.fail().unwrap();
    let [received] = &near.received(1)[..] else {
        unreachable!()
    };
    assert_eq!(received.arrival.kind, ArrivalKind::Failed);
    assert_eq!(
        (received.arrival.payload_bytes, received.arrival.immediate),
        (0, None)
    );
    assert!(received.payload.is_empty());
}

pub(crate) fn s08_a_slot_of_another_domain_is_not_sent<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(1);
    let slot = foreign_slot(&near);
    near.post_slots(Operation::Send, [slot], PostFlags::empty());
    assert_eq!(near.status(), WcStatus::LOC_PROT_ERR);
    assert_eq!(near.state(), QpState::Error);
    poll_nothing(&mut far.receive_completions);
}

pub(crate) fn s08_an_inline_slot_needs_no_key<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(1);
    let slot = foreign_slot(&near);
    near.post_slots(Operation::Send, [slot], PostFlags::SIGNALED | PostFlags::INLINE);
    assert!(near.status().is_success());
}

/// A one-sided request that the responder refuses, its peer being told by an event.
fn refused_access<R: Rig>(rig: &R, far_wish: Wish, request: impl Fn(&Side<R::P>) -> (Operation, usize)) {
    let [mut near, mut far] = connected_as(rig, [USUAL, far_wish]);
    far.post_receives(1);
    let (operation, bytes) = request(&far);
    near.post_with(operation, &vec![9; bytes], PostFlags::empty());
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_ACCESS_ERR);
    let told = AsyncEvent::QueuePairAccess(far.control.qpn());
    assert_eq!(events(&far), told_if(rig.quirks().refused_access_is_told, told));
    assert_eq!(far.received(1)[0].arrival.status, WcStatus::WR_FLUSH_ERR);
    assert!(
        far.window_bytes(0, WINDOW_BYTES).iter().all(|byte| *byte == 0),
        "not a byte was written"
    );
}

pub(crate) fn s09_a_wrong_key_opens_nothing<R: Rig>(rig: &R) {
    let wrong = |far: &Side<R::P>| {
        let RemoteAddress { address, rkey } = far.at(0);
        RemoteAddress {
            address,
            rkey: Rkey(rkey.0 ^ 0xff00),
        }
    };
    refused_access(rig, USUAL, |far| (Operation::Write(wrong(far)), 8));
    refused_access(rig, USUAL, |far| (Operation::Read(wrong(far)), 8));
    refused_access(rig, USUAL, |far| {
        (
            Operation::FetchAndAdd {
                remote: wrong(far),
                add: 1,
            },
            8,
        )
    });
}

pub(crate) fn s09_nothing_beyond_the_window_is_reached<R: Rig>(rig: &R) {
    let end = WINDOW_BYTES as u64;
    refused_access(rig, USUAL, |far| (Operation::Write(far.at(end - 7)), 8));
    refused_access(rig, USUAL, |far| (Operation::Read(far.at(end - 7)), 8));
    refused_access(rig, USUAL, |far| {
        let RemoteAddress { address, rkey } = far.at(0);
        (
            Operation::Write(RemoteAddress {
                address: address - 1,
                rkey,
            }),
            8,
        )
    });
    refused_access(rig, USUAL, |far| {
        let rkey = far.at(0).rkey;
        (
            Operation::Write(RemoteAddress {
                address: u64::MAX - 3,
                rkey,
            }),
            8,
        )
    });
    // And up to the end everything is.
    let [mut near, far] = connected(rig);
    near.post(Operation::Write(far.at(end - 8)), &[1; 8]);
    assert!(near.status().is_success());
}

pub(crate) fn s09_rights_of_window_and_queue_pair_are_both_needed<R: Rig>(rig: &R) {
    for wish in [
        Wish {
            to_window: READ_ONLY,
            ..USUAL
        },
        Wish {
            through_queue_pair: READ_ONLY,
            ..USUAL
        },
    ] {
        refused_access(rig, wish, |far| (Operation::Write(far.at(0)), 8));
        refused_access(rig, wish, |far| {
            (
                Operation::FetchAndAdd {
                    remote: far.at(0),
                    add: 1,
                },
                8,
            )
        });
        let [mut near, far] = connected_as(rig, [USUAL, wish]);
        near.post(Operation::Read(far.at(0)), &[0; 8]);
        assert!(near.status().is_success());
    }
    let write_only = Wish {
        to_window: RemoteAccess::WRITE,
        ..USUAL
    };
    refused_access(rig, write_only, |far| (Operation::Read(far.at(0)), 8));
}

pub(crate) fn s09_a_refused_write_with_immediate_fails_the_receive<R: Rig>(rig: &R) {
    let wish = Wish {
        to_window: READ_ONLY,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [USUAL, wish]);
    far.post_receives(2);
    near.post(Operation::WriteWithImmediate(far.at(0), 1), b"x");
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_ACCESS_ERR);
    let ends: Vec<_> = far
        .received(2)
        .iter()
        .map(|received| received.arrival.status)
        .collect();
    assert_eq!(ends, [rig.quirks().refused_immediate, WcStatus::WR_FLUSH_ERR]);
    assert_eq!(events(&far), []);
}

pub(crate) fn s09_a_dropped_window_is_closed<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let remote = far.at(0);
    let config = doorbell_core::provider::WindowConfig::new(64, RemoteAccess::ALL);
    far.window = far.domain.window(&config).unwrap();
    near.post(Operation::Write(remote), b"x");
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_ACCESS_ERR);
}

pub(crate) fn s09_a_window_of_another_domain_is_closed<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let domain = far.context.protection_domain().unwrap();
    let config = doorbell_core::provider::WindowConfig::new(64, RemoteAccess::ALL);
    far.window = domain.window(&config).unwrap();
    near.post(Operation::Write(far.at(0)), b"x");
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_ACCESS_ERR);
}

pub(crate) fn s10_a_receive_that_is_too_small_fails_both<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(2);
    let slots = [near.slot(&[1; SLOT_BYTES as usize]), near.slot(b"x")];
    near.post_slots(Operation::Send, slots, PostFlags::empty());
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_INV_REQ_ERR);
    let ends: Vec<_> = far
        .received(2)
        .iter()
        .map(|received| received.arrival.status)
        .collect();
    assert_eq!(ends, [rig.quirks().short_receive, WcStatus::WR_FLUSH_ERR]);
}

pub(crate) fn s10_a_receive_that_just_fits_is_enough<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(1);
    near.post(Operation::Send, &[1; SLOT_BYTES as usize]);
    assert!(near.status().is_success());
    assert_eq!(far.received(1)[0].payload, [1; SLOT_BYTES as usize]);
}

pub(crate) fn s11_a_receive_of_another_domain_fails_both<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let slot = foreign_slot(&far);
    let mut batch = far.receive.stage();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    batch.ring().unwrap();
    near.post(Operation::Send, b"x");
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_OP_ERR);
    let expected = rig.quirks().foreign_receive;
    assert_eq!(far.received(1)[0].arrival.status, expected);
}

pub(crate) fn s12_seven_retries_wait_for_a_receive<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(Operation::Send, b"one");
    near.post(Operation::Send, b"two");
    poll_nothing(&mut near.send_completions);
    far.post_receives(1);
    assert!(near.status().is_success());
    poll_nothing(&mut near.send_completions);
    far.post_receives(1);
    assert!(near.status().is_success());
    let payloads: Vec<_> = far
        .received(2)
        .into_iter()
        .map(|received| received.payload)
        .collect();
    assert_eq!(payloads, [b"one", b"two"]);
}

pub(crate) fn s12_fewer_retries_are_exhausted<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected_as(rig, [RNR_ONCE, USUAL]);
    far.post_receives(1);
    near.post(Operation::Send, b"one");
    assert!(near.status().is_success());
    near.post(Operation::Send, b"two");
    assert_eq!(near.status(), WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(
        (near.state(), far.state()),
        (QpState::Error, QpState::ReadyToSend)
    );
}

pub(crate) fn s13_a_peer_that_is_silent_ends_the_retries<R: Rig>(rig: &R) {
    let [mut near, far] = super::sides(rig, [USUAL; 2]);
    // It is there, and never became ready.
    near.connect(&USUAL, far.name());
    near.post(Operation::Send, b"x");
    near.post_with(Operation::Send, b"y", PostFlags::empty());
    let ends: Vec<_> = near.sent(2).iter().map(|sent| sent.retired.status).collect();
    assert_eq!(ends, [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR]);
    assert_eq!((near.state(), far.state()), (QpState::Error, QpState::Reset));
}

pub(crate) fn s24_nothing_is_told_of_what_is_gone<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    let super::Side {
        control,
        send,
        receive,
        send_completions,
        receive_completions,
        window,
        context,
        ..
    } = far;
    let remote = doorbell_core::provider::Window::remote(&window);
    let beyond = RemoteAddress {
        address: remote.address_of(0, 0).unwrap().wrapping_sub(1),
        rkey: remote.rkey(),
    };
    near.post(Operation::Write(beyond), b"x");
    assert_eq!(near.status(), WcStatus::REM_ACCESS_ERR);
    drop((control, send, receive, send_completions, receive_completions));
    assert_eq!(context.next_event(), Ok(None));
}

pub(crate) fn s30_the_first_packet_is_told_to_who_cannot_send_yet<R: Rig>(rig: &R) {
    let [mut near, mut far] = super::sides(rig, [USUAL; 2]);
    near.connect(&USUAL, far.name());
    far.initialize(&USUAL);
    far.post_receives(2);
    let to_receive = far.to_receive(&USUAL, near.name());
    far.control.ready_to_receive(&to_receive).unwrap();
    assert_eq!(events(&far), []);
    near.post(Operation::Send, b"first");
    assert!(near.status().is_success());
    near.post(Operation::Send, b"second");
    assert!(near.status().is_success());
    let established = AsyncEvent::CommunicationEstablished(far.control.qpn());
    let expected = told_if(rig.quirks().states_are_told, established);
    assert_eq!(events(&far), expected, "once");
}

pub(crate) fn s28_more_reads_than_may_be_outstanding_are_done_in_turn<R: Rig>(rig: &R) {
    let wish = Wish {
        max_rd_atomic: 2,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [wish, USUAL]);
    doorbell_core::provider::Window::copy_in(&mut far.window, 0, &[7; 64]).unwrap();
    for place in 0..super::DEPTH {
        let remote = far.at(u64::from(place) * 8);
        if place % 2 == 0 {
            near.post(Operation::Read(remote), &[0; 8]);
        } else {
            near.post(Operation::FetchAndAdd { remote, add: 1 }, &[]);
        }
    }
    let sent = near.sent(super::DEPTH as usize);
    assert!(sent.iter().all(|sent| sent.slots[0].1 == [7; 8]));
}

pub(crate) fn s14_a_peer_that_is_gone_does_not_answer<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    drop(far);
    near.post(Operation::Send, b"x");
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
    assert_eq!(near.state(), QpState::Error);
}

pub(crate) fn s14_a_peer_that_failed_does_not_answer<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.control.fail().unwrap();
    near.post_with(Operation::Write(far.at(0)), b"x", PostFlags::empty());
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
}

pub(crate) fn s14_what_waits_learns_that_the_peer_is_gone<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(Operation::Send, b"x");
    poll_nothing(&mut near.send_completions);
    far.control.fail().unwrap();
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);

    let [mut near, far] = connected(rig);
    near.post(Operation::Send, b"x");
    drop(far);
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
}

pub(crate) fn s27_an_atomic_must_be_aligned<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(
        Operation::FetchAndAdd {
            remote: far.at(4),
            add: 1,
        },
        &[],
    );
    fails_both::<R>([&mut near, &mut far], WcStatus::REM_INV_REQ_ERR);
    assert_eq!(far.window_bytes(0, 16), [0; 16]);
}

pub(crate) fn s28_a_responder_without_depth_refuses<R: Rig>(rig: &R) {
    let wish = Wish {
        max_dest_rd_atomic: 0,
        ..USUAL
    };
    for atomic in [false, true] {
        let [mut near, mut far] = connected_as(rig, [USUAL, wish]);
        let remote = far.at(0);
        let operation = if atomic {
            Operation::FetchAndAdd { remote, add: 1 }
        } else {
            Operation::Read(remote)
        };
        near.post(operation, &[0; 8]);
        fails_both::<R>([&mut near, &mut far], WcStatus::REM_INV_REQ_ERR);
        let told = AsyncEvent::QueuePairRequest(far.control.qpn());
        assert_eq!(
            events(&far),
            told_if(rig.quirks().refused_requests_are_told, told)
        );
    }
}

pub(crate) fn s28_a_requester_stalls_at_its_depth<R: Rig>(rig: &R) {
    let [mut near, far] = connected_as(
        rig,
        [
            Wish {
                max_rd_atomic: 0,
                ..USUAL
            },
            USUAL,
        ],
    );
    near.post(Operation::Write(far.at(0)), b"goes");
    near.post(Operation::Read(far.at(0)), &[0; 4]);
    assert!(near.status().is_success());
    poll_nothing(&mut near.send_completions);
    assert_eq!(near.state(), QpState::ReadyToSend);
    near.control.fail().unwrap();
    assert_eq!(near.status(), WcStatus::WR_FLUSH_ERR);
}

pub(crate) fn unequal_path_mtus_fail_long_messages<R: Rig>(rig: &R) {
    for (ours, theirs) in [(Mtu::B256, Mtu::B1024), (Mtu::B1024, Mtu::B256)] {
        let wishes = [
            Wish {
                path_mtu: ours,
                ..USUAL
            },
            Wish {
                path_mtu: theirs,
                ..USUAL
            },
        ];
        let [mut near, mut far] = connected_as(rig, wishes);
        near.post(Operation::Write(far.at(0)), &[1; 256]);
        assert!(near.status().is_success(), "one packet either way");
        let slots = [near.slot(&[1; 256]), near.slot(b"x")];
        near.post_slots(Operation::Write(far.at(0)), slots, PostFlags::SIGNALED);
        fails_both::<R>([&mut near, &mut far], WcStatus::REM_INV_REQ_ERR);
    }
}
