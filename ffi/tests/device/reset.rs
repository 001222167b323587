//! A queue pair that is reset: its slots come home, and what completed before names nothing.

use doorbell_core::QpState;
use doorbell_core::provider::{
    Arena as _, Completion as _, CompletionQueue as _, Operation, PostFlags, QueuePair as _,
    ReceiveQueue as _, RemoteAccess, SendBatch as _, SendQueue as _,
};

use super::bench::{End, bench, poll_success, post_receives, retire_sends, slot_with, take_arrival};
use super::lifetimes::nothing_refused;

fn send(end: &mut End, arena: &mut doorbell_ffi::Arena, bytes: &[u8]) {
    let mut batch = end.parts.send.stage();
    let slot = slot_with(arena, bytes);
    batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
}

#[test]
fn a_reset_sends_all_slots_home() {
    let Some(bench) = bench("a_reset_sends_all_slots_home") else {
        return;
    };
    let mut arena = bench.arena(32, 64);
    let (mut one, mut other) = bench.pair();
    for round in 0..20 {
        post_receives(&mut other.parts.receive, &mut arena, 1);
        post_receives(&mut one.parts.receive, &mut arena, 3);
        send(&mut one, &mut arena, b"arrives");
        let done = poll_success(&mut one.sends);
        let came = poll_success(&mut other.receives);
        // It waits for a receive.
        send(&mut one, &mut arena, b"waits");
        assert!(arena.free_slots() < 32);
        for parts in [&mut one.parts, &mut other.parts] {
            parts.control.reset(&mut parts.send, &mut parts.receive).unwrap();
            assert_eq!(parts.control.state(), Ok(QpState::Reset));
            assert_eq!([parts.send.in_flight(), parts.receive.in_flight()], [0, 0]);
        }
        assert_eq!(arena.free_slots(), 32, "round {round}");
        bench.connect(&mut one.parts, &mut other.parts);
        // Redeemed too late.
        assert!(
            one.parts
                .send
                .retire(done.lend(), |_, _| panic!("of before"))
                .is_err()
        );
        assert!(
            other
                .parts
                .receive
                .retire(came.lend(), |_, _| panic!("of before"))
                .is_err()
        );
    }
    post_receives(&mut other.parts.receive, &mut arena, 1);
    send(&mut one, &mut arena, b"again");
    let came = poll_success(&mut other.receives);
    let mut bytes = Vec::new();
    let each = |_, slot: doorbell_ffi::Slot| {
        use doorbell_core::provider::Slot as _;
        bytes.extend_from_slice(slot.payload());
    };
    other.parts.receive.retire(came.lend(), each).unwrap();
    assert_eq!(bytes, b"again");
    drop((one, other, arena));
    nothing_refused();
}

/// A request that the device still had to send at a reset is forgotten: the first request of the next life is the
/// first that is sent.
#[test]
fn what_was_under_way_at_a_reset_is_not_sent_later() {
    let Some(bench) = bench("what_was_under_way_at_a_reset_is_not_sent_later") else {
        return;
    };
    let mut arena = bench.arena(8, 64);
    let (mut one, mut other) = bench.pair();
    for round in 0..10_u8 {
        let parts = &mut other.parts;
        parts.control.reset(&mut parts.send, &mut parts.receive).unwrap();
        // Nobody answers.
        send(&mut one, &mut arena, b"lost");
        let parts = &mut one.parts;
        parts.control.reset(&mut parts.send, &mut parts.receive).unwrap();
        // The rest of that request would be an empty WRITE on Soft-RoCE, which the peer would refuse here.
        let (ours, theirs) = (&mut one.parts.control, &mut other.parts.control);
        bench.connect_with(ours, theirs, RemoteAccess::READ);
        post_receives(&mut other.parts.receive, &mut arena, 1);
        send(&mut one, &mut arena, &[round; 7]);
        let sent = poll_success(&mut one.sends);
        retire_sends(&mut one, &mut arena, sent);
        let came = poll_success(&mut other.receives);
        assert_eq!(take_arrival(&mut other, came).1, [[round; 7]]);
    }
    assert_eq!(arena.free_slots(), 8);
    drop((one, other, arena));
    nothing_refused();
}

#[test]
fn halves_of_another_are_not_reset() {
    let Some(bench) = bench("halves_of_another_are_not_reset") else {
        return;
    };
    let mut arena = bench.arena(8, 64);
    let (mut one, mut other) = bench.pair();
    post_receives(&mut one.parts.receive, &mut arena, 3);
    let refused = [
        one.parts
            .control
            .reset(&mut other.parts.send, &mut one.parts.receive),
        one.parts
            .control
            .reset(&mut one.parts.send, &mut other.parts.receive),
    ];
    for outcome in refused {
        assert_eq!(outcome.unwrap_err().errno, 22);
    }
    assert_eq!(one.parts.control.state(), Ok(QpState::ReadyToSend));
    assert_eq!(arena.free_slots(), 5);
    assert_eq!(one.receives.poll(|_| panic!("nothing was flushed")), Ok(0));
}
