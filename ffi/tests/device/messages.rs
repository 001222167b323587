//! SEND and receive: gather, inline, unsignaled, chained, and what is refused before it is posted.

use core::borrow::Borrow as _;
use core::mem::ManuallyDrop;
use std::collections::VecDeque;

use doorbell_core::provider::{
    Arena as _, ArrivalKind, Completion as _, Operation, PostFlags, PushError, QueuePair as _,
    ReceiveBatch as _, ReceiveQueue as _, SendBatch as _, SendQueue as _, Slot as _,
};
use doorbell_core::{QpState, WcStatus};
use doorbell_ffi::Slot;

use super::bench::{
    Bench, End, bench, config, poll, poll_success, post_receives, retire_sends, slot_with, take_arrival,
};

#[test]
fn one_message() {
    let Some(bench) = bench("one_message") else { return };
    let mut arena = bench.arena(4, 100);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    let slot = slot_with(&mut arena, b"first light");
    let mut batch = sender.parts.send.stage();
    batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut sender.sends);
    assert_eq!(retire_sends(&mut sender, &mut arena, completion), 1);
    let completion = poll_success(&mut receiver.receives);
    let (arrival, bytes) = take_arrival(&mut receiver, completion);
    assert_eq!(arrival.kind, ArrivalKind::Send);
    assert_eq!(arrival.payload_bytes, 11);
    assert_eq!(arrival.immediate, None);
    assert_eq!(bytes, [b"first light"]);
    eprintln!("one message over {} ({:?})", bench.port.device, bench.rdma);
}

#[test]
fn a_message_is_taken_in_its_turn_and_once() {
    let Some(bench) = bench("a_message_is_taken_in_its_turn_and_once") else {
        return;
    };
    let (mut sender, mut receiver) = bench.pair();
    // As many receives as make the ids of one round differ from those of the next by the generation alone.
    let mut arena = bench.arena(64, 64);
    let depth = receiver.parts.receive.room();
    for round in 0..2 * depth {
        post_receives(&mut receiver.parts.receive, &mut arena, 2);
        let mut batch = receiver.parts.receive.stage();
        batch.push([(); 2].map(|()| arena.lease().unwrap())).unwrap();
        assert_eq!(batch.ring(), Ok(1));
        let mut batch = sender.parts.send.stage();
        let operations = [
            Operation::Send,
            Operation::SendWithImmediate(round),
            Operation::Send,
        ];
        for (operation, text) in operations.into_iter().zip([b"one", b"two", b"six"]) {
            let slot = slot_with(&mut arena, text);
            batch.push(operation, [slot], PostFlags::SIGNALED).unwrap();
        }
        assert_eq!(batch.ring(), Ok(3));
        for completion in poll(&mut sender.sends, 3) {
            retire_sends(&mut sender, &mut arena, completion);
        }
        let came = poll(&mut receiver.receives, 3);
        let receive = &mut receiver.parts.receive;
        assert!(
            receive.retire_message(&came[1].lend()).is_none(),
            "it is not the next one"
        );
        let (message, immediate) = receive.retire_message(&came[0].lend()).expect("a message");
        let slot = Slot::from(message);
        assert_eq!((slot.payload(), immediate), (&b"one"[..], None));
        arena.release(slot);
        assert!(receive.retire_message(&came[0].lend()).is_none(), "it was taken");
        let (message, immediate) = receive.retire_message(&came[1].lend()).expect("a message");
        let slot = Slot::from(message);
        assert_eq!((slot.payload(), immediate), (&b"two"[..], Some(round)));
        arena.release(slot);
        let [_, _, last] = <[_; 3]>::try_from(came).expect("three");
        assert!(receive.retire_message(&last.lend()).is_none(), "it has two slots");
        assert_eq!(receive.in_flight(), 1, "nothing was given back");
        let mut bytes = Vec::new();
        let each = |_, slot: Slot| {
            bytes.push(slot.payload().to_vec());
            arena.release(slot);
        };
        receive.retire(last.lend(), each).expect("one of ours");
        assert_eq!(bytes, [&b"six"[..], &b""[..]]);
        assert_eq!((receive.in_flight(), receive.rejected()), (0, 0));
    }
    // A failure is no message.
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    receiver.parts.control.fail().unwrap();
    let flushed = poll(&mut receiver.receives, 1).remove(0);
    assert!(receiver.parts.receive.retire_message(&flushed.lend()).is_none());
    assert_eq!(receiver.parts.receive.in_flight(), 1);
}

fn gathered<const N: usize, const M: usize>(
    bench: &Bench,
    sender: &mut End,
    receiver: &mut End,
    lengths: [usize; N],
    scattered: [usize; M],
) {
    let mut arena = bench.arena(8, 64);
    let slots: [_; M] = core::array::from_fn(|_| arena.lease().unwrap());
    let mut batch = receiver.parts.receive.stage();
    batch.push(slots).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let mut sent = Vec::new();
    let slots = lengths.map(|length| {
        let bytes: Vec<u8> = (0..length).map(|at| (sent.len() + at) as u8).collect();
        sent.extend_from_slice(&bytes);
        slot_with(&mut arena, &bytes)
    });
    let mut batch = sender.parts.send.stage();
    batch
        .push(
            Operation::SendWithImmediate(0x0102_0304),
            slots,
            PostFlags::SIGNALED,
        )
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut sender.sends);
    let mut order = Vec::new();
    sender
        .parts
        .send
        .retire(completion.lend(), |_, slot| order.push(slot.len_bytes()))
        .unwrap();
    assert_eq!(order, lengths);
    let completion = poll_success(&mut receiver.receives);
    let (arrival, bytes) = take_arrival(receiver, completion);
    assert_eq!(arrival.immediate, Some(0x0102_0304));
    assert_eq!(arrival.payload_bytes as usize, sent.len());
    assert_eq!(bytes.concat(), sent);
    assert_eq!(bytes.iter().map(Vec::len).collect::<Vec<_>>(), scattered);
}

#[test]
fn gather_and_scatter() {
    let Some(bench) = bench("gather_and_scatter") else {
        return;
    };
    let (mut sender, mut receiver) = bench.pair();
    gathered(&bench, &mut sender, &mut receiver, [], [0]);
    gathered(&bench, &mut sender, &mut receiver, [7], [7]);
    gathered(&bench, &mut sender, &mut receiver, [64, 1], [64, 1]);
    gathered(&bench, &mut sender, &mut receiver, [3, 60, 40], [64, 39]);
    gathered(
        &bench,
        &mut sender,
        &mut receiver,
        [64, 64, 64, 64],
        [64, 64, 64, 64],
    );
    // Slots without a byte are left out, and still come back.
    gathered(&bench, &mut sender, &mut receiver, [0, 5, 0, 6], [11, 0, 0]);
    gathered(&bench, &mut sender, &mut receiver, [0, 0], [0, 0, 0, 0]);
}

#[test]
fn inline_bytes_are_the_callers_again_at_once() {
    let Some(bench) = bench("inline_bytes_are_the_callers_again_at_once") else {
        return;
    };
    let mut arena = bench.arena(8, 64);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 3);
    {
        let bytes = *b"gone when it rings";
        let mut batch = sender.parts.send.stage();
        batch
            .push_inline(Operation::Send, &bytes, PostFlags::empty())
            .unwrap();
        batch
            .push_inline(Operation::Send, &[], PostFlags::empty())
            .unwrap();
        assert_eq!(batch.ring(), Ok(2));
    }
    let slot = slot_with(&mut arena, b"inline from a slot");
    let mut batch = sender.parts.send.stage();
    batch
        .push(Operation::Send, [slot], PostFlags::INLINE | PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut sender.sends);
    assert_eq!(retire_sends(&mut sender, &mut arena, completion), 3);
    let completions = poll(&mut receiver.receives, 3);
    let seen: Vec<_> = completions
        .into_iter()
        .map(|completion| take_arrival(&mut receiver, completion).1.concat())
        .collect();
    assert_eq!(seen, [&b"gone when it rings"[..], b"", b"inline from a slot"]);
}

#[test]
fn one_completion_retires_the_unsignaled_before_it() {
    let Some(bench) = bench("one_completion_retires_the_unsignaled_before_it") else {
        return;
    };
    let mut arena = bench.arena(32, 64);
    let (mut sender, mut receiver) = bench.pair();
    // More rounds than the queue is deep, so that the table and the device's ring come round.
    for round in 0..20_u8 {
        post_receives(&mut receiver.parts.receive, &mut arena, 5);
        let mut batch = sender.parts.send.stage();
        for index in 0..5 {
            let slot = slot_with(&mut arena, &[round, index]);
            let ticket = batch.push(Operation::Send, [slot], PostFlags::empty()).unwrap();
            assert_eq!(ticket.position(), u64::from(round) * 5 + u64::from(index));
        }
        batch.signal_last();
        assert_eq!(batch.staged(), 5);
        assert_eq!(batch.ring(), Ok(5));
        assert_eq!(sender.parts.send.in_flight(), 5);
        let completion = poll_success(&mut sender.sends);
        let mut back = Vec::new();
        let retired = sender
            .parts
            .send
            .retire(completion.lend(), |_, slot| {
                back.push(slot.payload().to_vec());
                arena.release(slot);
            })
            .unwrap();
        assert_eq!(retired.count(), 5);
        assert_eq!(back, (0..5).map(|index| vec![round, index]).collect::<Vec<_>>());
        for (index, completion) in poll(&mut receiver.receives, 5).into_iter().enumerate() {
            receiver
                .parts
                .receive
                .retire(completion.lend(), |_, slot| {
                    assert_eq!(slot.payload(), [round, index as u8]);
                    arena.release(slot);
                })
                .unwrap();
        }
    }
    assert_eq!(arena.free_slots(), 32);
}

#[test]
fn a_full_queue_hands_the_slots_back() {
    let Some(bench) = bench("a_full_queue_hands_the_slots_back") else {
        return;
    };
    let mut arena = bench.arena(64, 64);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 16);
    let refused = receiver
        .parts
        .receive
        .stage()
        .push([arena.lease().unwrap()])
        .unwrap_err();
    assert_eq!(refused.reason, PushError::Full);
    arena.release(refused.item.into_iter().next().unwrap());
    assert_eq!(
        (receiver.parts.receive.room(), receiver.parts.receive.in_flight()),
        (0, 16)
    );

    let mut batch = sender.parts.send.stage();
    for index in 0..16 {
        let slot = slot_with(&mut arena, &[index]);
        batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    }
    let slot = slot_with(&mut arena, b"too many");
    let refused = batch
        .push(Operation::Send, [slot], PostFlags::SIGNALED)
        .unwrap_err();
    assert_eq!(refused.reason, PushError::Full);
    assert_eq!(refused.item[0].payload(), b"too many");
    assert_eq!(
        batch.push_inline(Operation::Send, b"x", PostFlags::empty()),
        Err(PushError::Full)
    );
    assert_eq!(batch.ring(), Ok(16));
    assert_eq!(sender.parts.send.room(), 0);
    for completion in poll(&mut sender.sends, 16) {
        assert_eq!(retire_sends(&mut sender, &mut arena, completion), 1);
    }
    assert_eq!(sender.parts.send.room(), 16);
    poll(&mut receiver.receives, 16);
}

#[test]
fn misuse_is_refused_before_it_is_posted() {
    let Some(bench) = bench("misuse_is_refused_before_it_is_posted") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let mut narrow = config(3);
    narrow.gather_max = 1;
    narrow.scatter_max = 1;
    let mut end = bench.end(&narrow);

    // S3: nothing is posted in RESET, and no sends before RTS.
    let refused = end
        .parts
        .receive
        .stage()
        .push([arena.lease().unwrap()])
        .unwrap_err();
    assert_eq!(refused.reason, PushError::State(QpState::Reset));
    drop(refused);
    let slot = slot_with(&mut arena, b"early");
    let refused = end
        .parts
        .send
        .stage()
        .push(Operation::Send, [slot], PostFlags::empty())
        .unwrap_err();
    assert_eq!(refused.reason, PushError::State(QpState::Reset));
    drop(refused);

    let mut peer = bench.end(&config(4));
    bench.connect(&mut end.parts, &mut peer.parts);
    let limits = end.parts.control.limits();
    assert!(limits.inline_bytes_max >= 64 && limits.send_depth == 16);
    // More than any device takes is no error: the queue pair has what the device grants.
    let mut greedy = config(5);
    greedy.inline_bytes_max = 1 << 16;
    let granted = bench.end(&greedy).parts.control.limits().inline_bytes_max;
    assert!((64..1 << 16).contains(&granted), "{granted}");
    let too_long = vec![0; limits.inline_bytes_max as usize + 1];
    let mut batch = end.parts.send.stage();
    let bytes_max = limits.inline_bytes_max;
    assert_eq!(
        batch.push_inline(Operation::Send, &too_long, PostFlags::empty()),
        Err(PushError::InlineTooLong {
            bytes: bytes_max + 1,
            bytes_max
        })
    );
    let remote = doorbell_core::provider::RemoteAddress::new(0, doorbell_core::Rkey(0));
    assert_eq!(
        batch.push_inline(Operation::Read(remote), b"", PostFlags::empty()),
        Err(PushError::NotInline)
    );
    let slots: [_; 4] = core::array::from_fn(|_| slot_with(&mut arena, b"many"));
    if limits.gather_max < 4 {
        let refused = batch
            .push(Operation::Send, slots, PostFlags::empty())
            .unwrap_err();
        let segments_max = limits.gather_max;
        assert_eq!(
            refused.reason,
            PushError::TooManySegments {
                segments: 4,
                segments_max
            }
        );
    }
    let add = Operation::FetchAndAdd { remote, add: 1 };
    let refused = batch.push(add, [], PostFlags::empty()).unwrap_err();
    assert_eq!(refused.reason, PushError::AtomicNeedsEightBytes);
    let slot = arena.lease().unwrap();
    let refused = batch.push(add, [slot], PostFlags::INLINE).unwrap_err();
    assert_eq!(refused.reason, PushError::NotInline);
    assert_eq!(batch.staged(), 0);
    assert_eq!(batch.ring(), Ok(0));
}

#[test]
fn a_dropped_batch_rings_nothing_and_a_forgotten_one_is_unstaged() {
    let Some(bench) = bench("a_dropped_batch_rings_nothing") else {
        return;
    };
    let mut arena = bench.arena(8, 64);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    for forget in [false, true] {
        let slot = slot_with(&mut arena, b"never");
        let gone = *b"gone";
        let mut batch = sender.parts.send.stage();
        batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
        batch
            .push_inline(Operation::Send, &gone, PostFlags::SIGNALED)
            .unwrap();
        if forget {
            core::mem::forget(batch);
        } else {
            drop(batch);
        }
        let mut batch = receiver.parts.receive.stage();
        batch.push([arena.lease().unwrap()]).unwrap();
        if forget {
            core::mem::forget(batch);
        }
    }
    let slot = slot_with(&mut arena, b"this");
    let mut batch = sender.parts.send.stage();
    assert_eq!(batch.staged(), 0);
    let ticket = batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(ticket.position(), 0);
    assert_eq!(batch.ring(), Ok(1));
    assert_eq!(receiver.parts.receive.stage().ring(), Ok(0));
    let completion = poll_success(&mut sender.sends);
    assert_eq!(retire_sends(&mut sender, &mut arena, completion), 1);
    let completion = poll_success(&mut receiver.receives);
    assert_eq!(take_arrival(&mut receiver, completion).1, [b"this"]);
    assert_eq!(receiver.parts.receive.in_flight(), 0);
    assert_eq!(arena.free_slots(), 8);
}

#[test]
fn a_completion_that_is_dropped_is_covered_by_the_next() {
    let Some(bench) = bench("a_completion_that_is_dropped_is_covered_by_the_next") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 3);
    let mut batch = sender.parts.send.stage();
    for index in 0..3 {
        let slot = slot_with(&mut arena, &[index; 3]);
        batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    }
    assert_eq!(batch.ring(), Ok(3));
    let mut completions = poll(&mut sender.sends, 3);
    let last = completions.pop().unwrap();
    assert_eq!(retire_sends(&mut sender, &mut arena, last), 3);
    // Completions that a later one covered are spent.
    for spent in completions {
        assert!(sender.parts.send.retire(spent.lend(), |_, _| ()).is_err());
    }
    let last = poll(&mut receiver.receives, 3).pop().unwrap();
    let (arrival, bytes) = take_arrival(&mut receiver, last);
    assert_eq!(arrival.status, WcStatus::SUCCESS);
    // The receives whose completions were dropped say nothing of what they hold.
    assert_eq!(bytes, [vec![], vec![], vec![2; 3]]);
    assert_eq!(arena.free_slots(), 16);
}

#[test]
fn memory_of_a_message_goes_back_into_any_queue_and_stays_where_it_is_kept() {
    let Some(bench) = bench("memory_of_a_message_goes_back_into_any_queue") else {
        return;
    };
    // Two queues whose messages have the same ids, and completions of the same numbers. If this fails, a slot has two owners. Once both let
    // go of it, a walk through the free slots has no end. So a failure drops none of them.
    let mut pairs = ManuallyDrop::new([bench.pair(), bench.pair()]);
    let mut arena = ManuallyDrop::new(bench.arena(64, 64));
    let depth = pairs[0].1.parts.receive.room();
    for (_, receiver) in &mut *pairs {
        post_receives(&mut receiver.parts.receive, &mut arena, depth);
    }
    // Each for more rounds than it takes until its place has the next message.
    let mut kept = ManuallyDrop::new(VecDeque::<(Slot, [u8; 8])>::new());
    let kept_max = depth as usize / 5 + 1;
    for round in 0..6 * depth {
        let mut came = Vec::new();
        for (number, (sender, receiver)) in (0_u32..).zip(&mut *pairs) {
            let text = (u64::from(round) << 8 | u64::from(number)).to_be_bytes();
            let slot = slot_with(&mut arena, &text);
            let mut batch = sender.parts.send.stage();
            batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
            assert_eq!(batch.ring(), Ok(1));
            let completion = poll_success(&mut sender.sends);
            assert_eq!(retire_sends(sender, &mut arena, completion), 1);
            let completion = poll_success(&mut receiver.receives);
            let receive = &mut receiver.parts.receive;
            let (message, _) = receive.retire_message(&completion.lend()).expect("a message");
            let slot: &Slot = message.borrow();
            let is_its = slot.payload() == text;
            came.push((ManuallyDrop::new(message), text));
            assert!(is_its, "round {round}");
        }
        let [(first, text), (second, _)] = <[_; 2]>::try_from(came).expect("two");
        let [first, second] = [first, second].map(ManuallyDrop::into_inner);
        let [(_, one), (_, other)] = &mut *pairs;
        let queues = [&mut one.parts.receive, &mut other.parts.receive];
        let [one, other] = queues;
        match round % 5 {
            // The first is kept in place of one that was kept before. The other queue's memory comes to its queue.
            3 => {
                one.put_back(second).expect("room");
                kept.push_back((first.into(), text));
                let before = if kept.len() > kept_max {
                    kept.pop_front()
                } else {
                    None
                };
                let slot = before.map_or_else(|| arena.lease().unwrap(), |(slot, _)| slot);
                other.restage(slot).expect("room");
            }
            4 => {
                one.put_back(second).expect("room");
                other.put_back(first).expect("room");
            }
            _ => {
                one.put_back(first).expect("room");
                other.put_back(second).expect("room");
            }
        }
        for (slot, text) in kept.iter() {
            assert_eq!(slot.payload(), text, "it is ours: round {round}");
        }
        if round % 3 == 0 {
            for queue in [one, other] {
                let missing = queue.missing();
                assert_eq!(queue.stage().ring(), Ok(missing), "round {round}");
            }
        }
    }
    for (_, receiver) in &*pairs {
        assert_eq!(receiver.parts.receive.rejected(), 0);
    }
    drop((ManuallyDrop::into_inner(pairs), ManuallyDrop::into_inner(kept)));
    assert_eq!(ManuallyDrop::into_inner(arena).free_slots(), 64);
}

#[test]
fn a_message_put_back_behind_a_forgotten_batch_is_the_only_one_staged() {
    let Some(bench) = bench("a_message_put_back_behind_a_forgotten_batch") else {
        return;
    };
    let mut arena = bench.arena(64, 64);
    let (mut sender, mut receiver) = bench.pair();
    let depth = receiver.parts.receive.room();
    post_receives(&mut receiver.parts.receive, &mut arena, depth - 1);
    let free = arena.free_slots();
    let mut batch = sender.parts.send.stage();
    batch
        .push_inline(Operation::Send, b"this", PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut sender.sends);
    assert_eq!(retire_sends(&mut sender, &mut arena, completion), 1);
    let completion = poll_success(&mut receiver.receives);
    let receive = &mut receiver.parts.receive;
    let mut batch = receive.stage();
    batch.push([arena.lease().unwrap()]).unwrap();
    core::mem::forget(batch);
    // All places have receives, and the message's place is the next: with one that was forgotten in front.
    let (message, _) = receive.retire_message(&completion.lend()).expect("a message");
    receive.put_back(message).expect("room");
    assert_eq!(arena.free_slots(), free, "the forgotten one is home");
    assert_eq!(receive.missing() - receive.room(), 1);
    assert_eq!(receive.stage().ring(), Ok(1));
    assert_eq!(receive.in_flight(), depth - 1);
}
