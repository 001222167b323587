//! Data: what goes where, which receives are consumed, and in which order.

use doorbell_core::provider::{
    Arena, ArrivalKind, Operation, PostFlags, ReceiveBatch, ReceiveQueue, RemoteAccess, SendBatch, SendQueue,
    Slot, Window,
};

use super::{Rig, SLOT_BYTES, USUAL, WINDOW_BYTES, connected, connected_as, poll_nothing};

pub(crate) fn s17_a_send_consumes_one_receive<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(3);
    near.post(Operation::Send, b"one");
    near.post(Operation::SendWithImmediate(0x0102_0304), b"two!");
    assert!(near.sent(2).iter().all(|sent| sent.retired.status.is_success()));
    let received = far.received(2);
    assert_eq!(received[0].payload, b"one");
    assert_eq!(received[0].arrival.immediate, None);
    assert_eq!(received[1].payload, b"two!");
    assert_eq!(received[1].arrival.immediate, Some(0x0102_0304));
    assert_eq!(received[1].arrival.kind, ArrivalKind::Send);
    assert_eq!(received[1].arrival.payload_bytes, 4);
    assert_eq!(far.receive.in_flight(), 1);
}

pub(crate) fn s17_a_write_with_immediate_consumes_one_receive_untouched<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let mut slot = far.arena.lease().unwrap();
    slot.buffer_mut().fill(0x55);
    let mut batch = far.receive.stage();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    batch.ring().unwrap();
    far.post_receives(1);
    near.post(Operation::WriteWithImmediate(far.at(10), 7), b"written");
    assert!(near.status().is_success());
    let [received] = &far.received(1)[..] else {
        unreachable!()
    };
    assert_eq!(received.arrival.kind, ArrivalKind::WriteWithImmediate);
    assert_eq!(
        (received.arrival.immediate, received.arrival.payload_bytes),
        (Some(7), 7)
    );
    assert!(received.payload.is_empty(), "the bytes are in the window alone");
    assert_eq!(far.window_bytes(9, 9), b"\0written\0");
    assert_eq!(far.receive.in_flight(), 1);
}

pub(crate) fn s17_write_and_read_consume_no_receive<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(1);
    near.post(Operation::Write(far.at(0)), b"there");
    near.post(Operation::Read(far.at(1)), b"....");
    let sent = near.sent(2);
    assert_eq!(sent[1].slots[0].1, b"here");
    poll_nothing(&mut far.receive_completions);
    assert_eq!(far.receive.in_flight(), 1);
}

pub(crate) fn s17_a_message_gathers_and_scatters<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let slots = [far.arena.lease().unwrap(), far.arena.lease().unwrap()];
    let mut batch = far.receive.stage();
    batch.push(slots).map_err(|refused| refused.reason).unwrap();
    batch.ring().unwrap();
    let long: Vec<u8> = (0..=u8::MAX).cycle().take(SLOT_BYTES as usize).collect();
    let slots = [near.slot(&long), near.slot(&long[..100])];
    near.post_slots(Operation::Send, slots, PostFlags::SIGNALED);
    assert!(near.status().is_success());
    let [received] = &far.received(1)[..] else {
        unreachable!()
    };
    assert_eq!(received.payload, [&long[..], &long[..100]].concat());
}

pub(crate) fn s17_the_receive_is_needed_when_the_immediate_comes<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(Operation::WriteWithImmediate(far.at(0), 1), b"late");
    poll_nothing(&mut near.send_completions);
    far.post_receives(1);
    assert!(near.status().is_success());
    assert_eq!(far.received(1)[0].arrival.immediate, Some(1));
    assert_eq!(far.window_bytes(0, 4), b"late");
}

pub(crate) fn s16_psns_wrap_over_long_messages<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    // The rig begins two packets before the end of the number space.
    for round in 0..20_u8 {
        near.post(Operation::Write(far.at(0)), &[round; 100]);
        near.post(Operation::Read(far.at(0)), &[0xff; 200]);
        let sent = near.sent(2);
        assert_eq!(sent[1].slots[0].1[..100], [round; 100]);
        far.post(Operation::Write(near.at(0)), &[round; 10]);
        assert!(far.status().is_success());
    }
}

pub(crate) fn s16_long_messages_are_cut_and_put_together<R: Rig>(rig: &R) {
    let wish = super::Wish {
        path_mtu: doorbell_core::Mtu::B256,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [wish; 2]);
    let long: Vec<u8> = (0..=u8::MAX).chain(7..=u8::MAX).cycle().take(500).collect();
    let halves = |side: &mut super::Side<R::P>, bytes: &[u8]| {
        let (first, rest) = bytes.split_at(SLOT_BYTES as usize);
        [side.slot(first), side.slot(rest)]
    };
    let slots = [far.slot(b""), far.slot(b"")];
    let mut batch = far.receive.stage();
    batch.push(slots).map_err(|refused| refused.reason).unwrap();
    batch.ring().unwrap();
    let slots = halves(&mut near, &long);
    near.post_slots(Operation::Send, slots, PostFlags::empty());
    let slots = halves(&mut near, &long);
    near.post_slots(Operation::Write(far.at(3)), slots, PostFlags::empty());
    let slots = halves(&mut near, &[0; 500]);
    near.post_slots(Operation::Read(far.at(3)), slots, PostFlags::SIGNALED);
    let sent = near.sent(1).remove(0);
    assert!(sent.retired.status.is_success());
    let read: Vec<u8> = sent
        .slots
        .into_iter()
        .skip(4)
        .flat_map(|(_, bytes)| bytes)
        .collect();
    assert_eq!(read, long);
    assert_eq!(far.received(1)[0].payload, long);
    assert_eq!(far.window_bytes(3, 500), long);
}

pub(crate) fn s18_a_fence_waits_for_what_is_read<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    for round in 0..8_u8 {
        far.window.copy_in(0, &[round; 200]).unwrap();
        near.post_with(Operation::Read(far.at(0)), &[0xff; 200], PostFlags::empty());
        let flags = PostFlags::SIGNALED | PostFlags::FENCE;
        near.post_with(Operation::Write(far.at(0)), &[0xee; 200], flags);
        let sent = near.sent(1).remove(0);
        assert_eq!(sent.slots[0].1, [round; 200]);
        assert_eq!(far.window_bytes(0, 200), [0xee; 200]);
    }
}

pub(crate) fn s20_memory_may_be_polled_where_the_device_says_so<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    let promise = doorbell_core::provider::QueuePair::data_in_order(&far.control);
    for round in 1..20_u8 {
        near.post(Operation::Write(far.at(0)), &[round; 200]);
        if promise == doorbell_core::provider::DataInOrder::WholeMessage {
            while far.window.load_u8(199).unwrap() != round {}
        } else {
            assert!(near.status().is_success());
        }
        assert_eq!(far.window_bytes(0, 200), [round; 200]);
        if near.send.in_flight() > 0 {
            assert!(near.status().is_success());
        }
    }
}

pub(crate) fn s18_requests_complete_in_order_and_data_before_its_message<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(4);
    let mut tickets = Vec::new();
    for round in 0..4_u8 {
        near.post_with(Operation::Write(far.at(0)), &[round; 64], PostFlags::empty());
        tickets.push(near.post(Operation::Send, &[round]));
    }
    let ends: Vec<_> = near.sent(4).iter().map(|sent| sent.retired.last).collect();
    assert_eq!(ends, tickets);
    for (round, received) in (0..4_u8).zip(far.received(4)) {
        assert_eq!(received.payload, [round]);
    }
    assert_eq!(far.window_bytes(0, 64), [3; 64]);
}

pub(crate) fn s18_what_waits_holds_back_what_follows<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(Operation::Send, b"first");
    near.post(Operation::Write(far.at(0)), b"second");
    poll_nothing(&mut near.send_completions);
    assert_eq!(far.window_bytes(0, 6), [0; 6], "the SEND before it is not done");
    far.post_receives(1);
    near.sent(2);
    assert_eq!(far.window_bytes(0, 6), b"second");
}

pub(crate) fn s26_the_right_to_write_is_enough<R: Rig>(rig: &R) {
    // Each right alone, with the local one it needs, can be registered and used.
    for remote in [
        RemoteAccess::WRITE,
        RemoteAccess {
            write: false,
            read: false,
            atomic: true,
        },
    ] {
        let wish = super::Wish {
            to_window: remote,
            ..USUAL
        };
        let [mut near, far] = connected_as(rig, [USUAL, wish]);
        if remote.write {
            near.post(Operation::Write(far.at(0)), b"x");
        } else {
            near.post(
                Operation::FetchAndAdd {
                    remote: far.at(0),
                    add: 1,
                },
                &[0; 8],
            );
        }
        assert!(near.status().is_success());
    }
}

pub(crate) fn s27_atomics_work_on_words<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.window.copy_in(8, &41_u64.to_ne_bytes()).unwrap();
    let remote = far.at(8);
    let word = |sent: &super::Sent| u64::from_ne_bytes(sent.slots[0].1[..].try_into().unwrap());
    near.post(Operation::FetchAndAdd { remote, add: 1 }, &[]);
    near.post(
        Operation::CompareAndSwap {
            remote,
            compare: 41,
            swap: 1,
        },
        &[],
    );
    near.post(
        Operation::CompareAndSwap {
            remote,
            compare: 42,
            swap: 1,
        },
        &[],
    );
    near.post(
        Operation::FetchAndAdd {
            remote,
            add: u64::MAX,
        },
        &[],
    );
    let before: Vec<_> = near.sent(4).iter().map(word).collect();
    assert_eq!(before, [41, 42, 42, 1]);
    assert_eq!(far.window.load_u64(8).unwrap(), 0);
    poll_nothing(&mut far.receive_completions);
}

pub(crate) fn inline_bytes_and_empty_messages<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(3);
    let text = *b"inline";
    let mut batch = near.send.stage();
    batch
        .push_inline(Operation::Send, &text, PostFlags::empty())
        .unwrap();
    batch
        .push_inline(Operation::Write(far.at(0)), &text, PostFlags::empty())
        .unwrap();
    batch
        .push(Operation::Send, [], PostFlags::empty())
        .map_err(|refused| refused.reason)
        .unwrap();
    batch.signal_last();
    assert_eq!(batch.ring(), Ok(3));
    let slot = near.slot(b"mine");
    near.post_slots(Operation::Send, [slot], PostFlags::INLINE | PostFlags::SIGNALED);
    let sent = near.sent(2);
    assert_eq!((sent[0].retired.count(), sent[1].retired.count()), (3, 1));
    assert_eq!(sent[1].slots[0].1, b"mine");
    let payloads: Vec<_> = far
        .received(3)
        .into_iter()
        .map(|received| received.payload)
        .collect();
    assert_eq!(payloads, [&b"inline"[..], b"", b"mine"]);
    assert_eq!(far.window_bytes(0, 6), text);
}

pub(crate) fn windows_are_checked_locally<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    let window = &mut near.window;
    assert_eq!(window.bytes(), WINDOW_BYTES);
    window.copy_in(WINDOW_BYTES - 8, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(window.load_u64(WINDOW_BYTES - 8), Ok(7));
    assert!(window.load_u64(WINDOW_BYTES - 4).is_err());
    assert!(window.load_u64(4).is_err(), "not aligned");
    assert!(window.load_u8(WINDOW_BYTES).is_err());
    assert!(window.copy_out(usize::MAX, &mut [0; 2]).is_err());
    assert!(window.copy_in(WINDOW_BYTES, &[]).is_ok());
    assert_ne!(near.window.remote().rkey().0, 0);
}
