//! Ownership: where slots are, and which completions give them back.

use doorbell_core::provider::{
    Arena, ArenaConfig, Completion, CompletionQueue, CompletionQueueConfig, Context, MemoryError, NumaNode,
    Operation, PostFlags, ProtectionDomain, ProviderError, QueuePair, QueuePairConfig, QueuePairParts,
    ReceiveBatch, ReceiveQueue, ReceivesClaim, SendBatch, SendQueue, Slot, WindowConfig, Wish,
};

use super::{
    CHANNEL, DEPTH, QUEUE_PAIR, Rig, SLOT_BYTES, SLOTS, Side, USUAL, connected, poll_nothing, poll_until,
};

const EINVAL: i32 = 22;
const EEXIST: i32 = 17;

pub(crate) fn a_slot_moves_in_by_posting_and_back_by_retiring<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    near.post(Operation::Send, b"x");
    far.post_receives(1);
    assert_eq!((near.slots_home(), far.slots_home()), (SLOTS - 1, SLOTS - 1));
    assert_eq!((near.send.in_flight(), far.receive.in_flight()), (1, 1));
    near.sent(1);
    far.received(1);
    assert_eq!((near.slots_home(), far.slots_home()), (SLOTS, SLOTS));
}

pub(crate) fn a_slot_dropped_elsewhere_goes_home<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let slots: Vec<_> = core::iter::from_fn(|| near.arena.lease()).collect();
    assert_eq!(slots.len(), SLOTS as usize);
    std::thread::spawn(move || drop(slots)).join().unwrap();
    assert_eq!(near.slots_home(), SLOTS);
    // One released to an arena that is not its own goes to its own.
    let stray = near.arena.lease().unwrap();
    far.arena.release(stray);
    assert_eq!((near.slots_home(), far.slots_home()), (SLOTS, SLOTS));
}

pub(crate) fn a_lease_is_empty_and_its_length_is_cut<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    let mut slot = near.slot(b"abc");
    assert_eq!(slot.payload(), b"abc");
    slot.set_len_bytes(usize::MAX);
    assert_eq!(slot.len_bytes(), slot.capacity_bytes());
    near.arena.release(slot);
    assert_eq!(near.arena.lease().unwrap().len_bytes(), 0);
}

pub(crate) fn an_arena_may_go_before_its_slots<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let config = ArenaConfig::new(2, SLOT_BYTES);
    let (mut ours, mut theirs) = (
        near.domain.arena(&config).unwrap(),
        far.domain.arena(&config).unwrap(),
    );
    let mut slot = ours.lease().unwrap();
    slot.buffer_mut()[..5].copy_from_slice(b"still");
    slot.set_len_bytes(5);
    let mut batch = far.receive.stage();
    batch
        .push([theirs.lease().unwrap()])
        .map_err(|refused| refused.reason)
        .unwrap();
    batch.ring().unwrap();
    drop((ours, theirs));
    near.post_slots(Operation::Send, [slot], PostFlags::SIGNALED);
    assert_eq!(near.sent(1)[0].slots[0].1, b"still");
    assert_eq!(far.received(1)[0].payload, b"still");
}

pub(crate) fn an_unrung_batch_sends_its_slots_home<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let slot = near.slot(b"dropped");
    let mut batch = near.send.stage();
    batch
        .push(Operation::Send, [slot], PostFlags::SIGNALED)
        .map_err(|refused| refused.reason)
        .unwrap();
    drop(batch);
    assert_eq!((near.send.in_flight(), near.slots_home()), (0, SLOTS));

    let slot = near.slot(b"forgotten");
    let mut batch = near.send.stage();
    batch
        .push(Operation::Send, [slot], PostFlags::SIGNALED)
        .map_err(|refused| refused.reason)
        .unwrap();
    core::mem::forget(batch);
    assert_eq!(near.send.stage().staged(), 0, "a new batch begins empty");
    assert_eq!((near.send.in_flight(), near.slots_home()), (0, SLOTS));

    let slot = far.slot(b"");
    let mut batch = far.receive.stage();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    core::mem::forget(batch);
    assert_eq!(far.receive.stage().staged(), 0);
    assert_eq!((far.receive.in_flight(), far.slots_home()), (0, SLOTS));
    far.post_receives(1);
    near.post(Operation::Send, b"posted");
    assert_eq!(far.received(1)[0].payload, b"posted");
}

/// Makes a new queue pair in the place of the one there was.
fn replace_queue_pair<R: Rig>(side: &mut Side<R::P>) {
    // The old parts must go first, or the channel would be taken.
    let other = QueuePairConfig {
        channel: CHANNEL + 1,
        ..QUEUE_PAIR
    };
    for config in [other, QUEUE_PAIR] {
        let parts = side
            .domain
            .queue_pair(&side.send_completions, &side.receive_completions, &config);
        let QueuePairParts {
            control,
            send,
            receive,
        } = parts.unwrap();
        (side.control, side.send, side.receive) = (control, send, receive);
    }
}

pub(crate) fn what_never_completed_goes_home_with_the_queue_pair<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    near.post_receives(DEPTH);
    near.post(Operation::Send, b"waits for a receive");
    assert_eq!(near.slots_home(), SLOTS - DEPTH - 1);
    replace_queue_pair::<R>(&mut near);
    assert_eq!(near.slots_home(), SLOTS);
    drop(far);
}

pub(crate) fn the_queue_pair_lives_until_its_last_part_goes<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    let Side {
        control,
        send,
        receive,
        send_completions,
        receive_completions,
        mut arena,
        domain,
        ..
    } = far;
    let mut receive = receive;
    let mut batch = receive.stage();
    batch
        .push([arena.lease().unwrap()])
        .map_err(|refused| refused.reason)
        .unwrap();
    batch.ring().unwrap();
    drop((control, receive));
    // The send half still holds it: the receive that was posted is consumed.
    near.post(Operation::Send, b"x");
    assert!(near.status().is_success());
    drop(send);
    near.post(Operation::Send, b"y");
    assert!(!near.status().is_success());
    assert_eq!(
        core::iter::from_fn(|| arena.lease().map(core::mem::forget)).count(),
        SLOTS as usize
    );
    drop((send_completions, receive_completions, domain));
}

pub(crate) fn what_is_kept_is_redeemed_once<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    for round in 1..=3 {
        far.post_receives(2);
        for _ in 0..2 {
            near.post(Operation::Send, b"x");
        }
        for kept in poll_until(&mut near.send_completions, 2) {
            assert!(near.send.retire(kept.lend(), |_, slot| drop(slot)).is_ok());
            // Requests of the next round have the same places.
            near.post(Operation::Write(far.at(0)), b"y");
            assert!(near.send.retire(kept.lend(), |_, _| panic!("twice")).is_err());
        }
        near.sent(2);
        let mut came = poll_until(&mut far.receive_completions, 2);
        let (second, first) = (came.remove(1), came.remove(0));
        assert!(
            far.receive.retire_message(&second.lend()).is_none(),
            "it is not the next one"
        );
        assert!(far.receive.retire_message(&first.lend()).is_some());
        assert!(far.receive.retire(second.lend(), |_, slot| drop(slot)).is_ok());
        for kept in [first, second] {
            far.post_receives(1);
            assert!(far.receive.retire_message(&kept.lend()).is_none());
            assert!(far.receive.retire(kept.lend(), |_, _| panic!("twice")).is_err());
        }
        assert_eq!(
            (near.send.rejected(), far.receive.rejected()),
            (2 * round, 2 * round)
        );
        assert_eq!(far.receive.in_flight(), 2);
        for _ in 0..2 {
            near.post(Operation::Send, b"z");
        }
        near.sent(2);
        far.received(2);
    }
}

pub(crate) fn a_completion_of_another_queue_is_rejected<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(1);
    far.post(Operation::Write(near.at(0)), b"x");
    near.post(Operation::Write(far.at(0)), b"x");
    // A completion for this channel, slot and generation, of another completion queue.
    let [theirs] = &mut poll_until(&mut far.send_completions, 1)
        .into_iter()
        .map(Some)
        .collect::<Vec<_>>()[..]
    else {
        unreachable!()
    };
    let theirs = theirs.take().unwrap();
    let work_id = theirs.work_id();
    assert_eq!(
        near.send
            .retire(theirs.lend(), |_, _| panic!("nothing is given back"))
            .unwrap_err()
            .0,
        work_id
    );
    assert_eq!((near.send.in_flight(), near.send.rejected()), (1, 1));
    near.sent(1);

    // A send's completion redeemed at the receive queue of the same pair.
    near.post(Operation::Write(far.at(0)), b"x");
    near.post_receives(1);
    let ours = poll_until(&mut near.send_completions, 1).remove(0);
    assert!(
        near.receive
            .retire(ours.lend(), |_, _| panic!("nothing is given back"))
            .is_err()
    );
    assert_eq!((near.send.in_flight(), near.receive.in_flight()), (1, 1));
    assert_eq!((near.send.rejected(), near.receive.rejected()), (1, 1));

    // The other way round.
    far.post(Operation::Send, b"x");
    let ours = poll_until(&mut near.receive_completions, 1).remove(0);
    assert!(
        near.send
            .retire(ours.lend(), |_, _| panic!("nothing is given back"))
            .is_err()
    );
    assert_eq!((near.send.rejected(), near.receive.rejected()), (2, 1));
}

pub(crate) fn an_older_completion_is_spent_by_a_newer<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    near.post(Operation::Write(far.at(0)), b"a");
    near.post(Operation::Write(far.at(0)), b"b");
    let mut completions = poll_until(&mut near.send_completions, 2);
    let newer = completions.remove(1);
    let older = completions.remove(0);
    assert_eq!(near.retire_send(newer).slots.len(), 2);
    assert!(
        near.send
            .retire(older.lend(), |_, _| panic!("already given back"))
            .is_err()
    );
    // A completion of an earlier request at the place of a later one.
    let mut kept = None;
    for round in 0..=near.control.limits().send_depth.next_power_of_two() {
        near.post(Operation::Write(far.at(0)), b"c");
        let completion = poll_until(&mut near.send_completions, 1).remove(0);
        if round == 0 {
            kept = Some(completion);
        } else {
            near.retire_send(completion);
        }
    }
    assert!(
        near.send
            .retire(kept.unwrap().lend(), |_, _| panic!("already given back"))
            .is_err()
    );
    assert_eq!(near.send.rejected(), 2);
}

pub(crate) fn receives_behind_a_dropped_completion_come_back_empty<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(2);
    near.post(Operation::Send, b"lost");
    near.post(Operation::Send, b"kept");
    let kept = poll_until(&mut far.receive_completions, 2).remove(1);
    let mut slots = Vec::new();
    far.receive
        .retire(kept.lend(), |_, slot| slots.push(slot.payload().to_vec()))
        .unwrap();
    assert_eq!(slots, [&b""[..], b"kept"]);
}

pub(crate) fn a_channel_is_taken_once<R: Rig>(rig: &R) {
    let [near, _far] = connected(rig);
    let queue = CompletionQueueConfig {
        depth: 8,
        notify: false,
    };
    let fresh = near.context.completion_queue(&queue).unwrap();
    let make = |send, receive| near.domain.queue_pair(send, receive, &QUEUE_PAIR);
    // Taken on either queue; and what fails halfway leaves nothing taken.
    for _ in 0..2 {
        assert_eq!(make(&near.send_completions, &fresh).unwrap_err().errno, EEXIST);
        assert_eq!(make(&fresh, &near.receive_completions).unwrap_err().errno, EEXIST);
    }
    // One queue may serve both halves of one pair, and swapped kinds do not meet.
    drop(make(&fresh, &fresh).unwrap());
    drop(make(&near.receive_completions, &near.send_completions).unwrap());
}

pub(crate) fn what_is_claimed_is_made_elsewhere_or_free_again<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let other = QueuePairConfig {
        channel: CHANNEL + 1,
        ..QUEUE_PAIR
    };
    // A completion polled before the claim is none of the queue pair that is made of it.
    near.post(Operation::Write(far.at(0)), b"kept");
    let kept = poll_until(&mut near.send_completions, 1).remove(0);
    let claims = |side: &Side<R::P>| {
        (
            side.send_completions.claim_sends(other.channel).unwrap(),
            side.receive_completions.claim_receives(other.channel).unwrap(),
        )
    };
    for side in [&near, &far] {
        let taken = side.send_completions.claim_sends(CHANNEL);
        assert_eq!(taken.err().map(|error| error.errno), Some(EEXIST));
        let claimed = claims(side);
        let again = side.receive_completions.claim_receives(other.channel);
        assert_eq!(again.err().map(|error| error.errno), Some(EEXIST));
        let made = side
            .domain
            .queue_pair(&side.send_completions, &side.receive_completions, &other);
        assert_eq!(made.unwrap_err().errno, EEXIST);
        drop(claimed);
        // Claims that do not fit together are refused, and given up.
        let (sends, receives) = claims(side);
        let swapped = side
            .domain
            .queue_pair_of(receives, ReceivesClaim::Own(sends), &other);
        assert_eq!(swapped.unwrap_err().errno, EINVAL);
        let (sends, receives) = claims(side);
        let misnamed = side
            .domain
            .queue_pair_of(sends, ReceivesClaim::Own(receives), &QUEUE_PAIR);
        assert_eq!(misnamed.unwrap_err().errno, EINVAL);
    }
    let (sends, _) = claims(&far);
    let (_, receives) = claims(&near);
    let foreign = near
        .domain
        .queue_pair_of(sends, ReceivesClaim::Own(receives), &other);
    assert_eq!(foreign.unwrap_err().errno, EINVAL);
    // Made on another thread, they are as good as any.
    for side in [&mut near, &mut far] {
        let (sends, receives) = claims(side);
        let domain = &side.domain;
        let parts = std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                let made = domain.queue_pair_of(sends, ReceivesClaim::Own(receives), &other);
                made.unwrap()
            });
            making.join().unwrap()
        });
        side.control = parts.control;
        side.send = parts.send;
        side.receive = parts.receive.unwrap();
    }
    near.connect(&USUAL, far.name());
    far.connect(&USUAL, near.name());
    far.post_receives(1);
    near.post(Operation::Send, b"by claim");
    assert_eq!(far.received(1)[0].payload, b"by claim");
    assert!(
        near.send
            .retire(kept.lend(), |_, _| panic!("of another"))
            .is_err()
    );
    near.sent(1);
}

pub(crate) fn a_stale_completion_names_nothing_of_the_next_queue_pair<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    // The send queue comes round once, so that its generations differ from the receive queue's.
    for _ in 0..near.control.limits().send_depth.next_power_of_two() {
        near.post(Operation::Write(far.at(0)), b"round");
        near.sent(1);
    }
    // Left unpolled by a queue pair that is gone.
    near.post(Operation::Write(far.at(0)), b"stale");
    replace_queue_pair::<R>(&mut near);
    replace_queue_pair::<R>(&mut far);
    near.connect(&USUAL, far.name());
    far.connect(&USUAL, near.name());
    near.post(Operation::Write(far.at(0)), b"fresh");
    let mut completions = poll_until(&mut near.send_completions, 2);
    let (fresh, stale) = (completions.remove(1), completions.remove(0));
    assert_ne!(stale.work_id(), fresh.work_id());
    assert!(
        near.send
            .retire(stale.lend(), |_, _| panic!("of a queue pair that is gone"))
            .is_err()
    );
    assert_eq!(near.retire_send(fresh).slots[0].1, b"fresh");

    // Polled before the next queue pair was made, and kept.
    near.post(Operation::Write(far.at(0)), b"kept");
    let kept = poll_until(&mut near.send_completions, 1).remove(0);
    replace_queue_pair::<R>(&mut near);
    assert!(
        near.send
            .retire(kept.lend(), |_, _| panic!("of a queue pair that is gone"))
            .is_err()
    );
    assert_eq!(near.send.rejected(), 1, "each queue counts its own");
    poll_nothing(&mut near.send_completions);
}

pub(crate) fn what_cannot_be_made_is_refused<R: Rig>(rig: &R) {
    let [near, far] = connected(rig);
    for (slots, slot_bytes) in [(0, 8), (8, 0), (u32::MAX, u32::MAX)] {
        let made = near.domain.arena(&ArenaConfig::new(slots, slot_bytes));
        assert!(made.is_err(), "{slots} slots of {slot_bytes}");
    }
    let remote = USUAL.to_window;
    assert_eq!(
        near.domain
            .window(&WindowConfig::new(0, remote))
            .map(drop)
            .map_err(|error| matches!(error, MemoryError::Provider(ProviderError { errno: EINVAL, .. }))),
        Err(true)
    );
    // No machine has this node, and memory somewhere else is not what was asked for.
    let mut config = ArenaConfig::new(4, 8);
    config.placement.node = NumaNode::Number(u16::MAX);
    let elsewhere = near.domain.arena(&config).unwrap().placement();
    assert_eq!(
        elsewhere
            .shortfalls()
            .filter(|(wish, _)| *wish == Wish::Node(Some(u16::MAX)))
            .count(),
        1
    );
    assert!(
        elsewhere.bytes >= 32 && elsewhere.mapped_bytes >= elsewhere.bytes,
        "{elsewhere}"
    );
    config.placement.node_required = true;
    let mut window = WindowConfig::new(64, remote);
    window.placement = config.placement;
    for error in [
        near.domain.arena(&config).map(drop),
        near.domain.window(&window).map(drop),
    ] {
        assert!(
            matches!(error, Err(MemoryError::Unmet(Wish::Node(Some(u16::MAX)), _))),
            "{error:?}"
        );
    }
    let queue = CompletionQueueConfig {
        depth: 0,
        notify: false,
    };
    assert_eq!(
        near.context.completion_queue(&queue).map(drop).unwrap_err().errno,
        EINVAL
    );
    let make = |config: &QueuePairConfig| {
        let made = near
            .domain
            .queue_pair(&near.send_completions, &near.receive_completions, config);
        made.unwrap_err().errno
    };
    let good = QueuePairConfig {
        channel: CHANNEL + 1,
        ..QUEUE_PAIR
    };
    assert_eq!(
        make(&QueuePairConfig {
            channel: doorbell_core::work_id::CHANNELS_MAX,
            ..good
        }),
        EINVAL
    );
    assert_eq!(
        make(&QueuePairConfig {
            gather_max: 5,
            ..good
        }),
        EINVAL
    );
    assert_eq!(
        make(&QueuePairConfig {
            send_depth: 0,
            ..good
        }),
        EINVAL
    );
    // Completion queues of another device, or another opening of it.
    let made = near
        .domain
        .queue_pair(&near.send_completions, &far.receive_completions, &good);
    assert_eq!(made.unwrap_err().errno, EINVAL);
    // None of these took the channel.
    near.domain
        .queue_pair(&near.send_completions, &near.receive_completions, &good)
        .unwrap();
    assert!(near.control.limits().send_depth >= DEPTH);
}
