//! Workers taken apart, over the simulated fabric: sender and receiver of one channel on threads of their own.

use core::time::Duration;
use std::thread;

use crate::fabric::{End, LONG, pair_notified, pair_on, pair_with, small};
use crate::halves::{Halves, echo, exchange, exchange_counted};
use doorbell::provider::{ArenaConfig, Clock as _};
use doorbell::worker::{CloseProgress, SplitError};
use doorbell::{
    ChannelState, Deadline, Event, Lease, Node, Notify, Operation, PostFlags, SendErrorKind, Wait, WaitError,
    Woken,
};
use doorbell_sim::{Fabric, Host};

/// Each half has its node, which knows the network.
fn apart(end: End) -> (Node<Host, Host>, Halves<Host>) {
    let End {
        node,
        mut workers,
        at,
        ..
    } = end;
    (node, Halves::of(workers.swap_remove(at.worker)))
}

/// Two that have more room to send than the other has receives.
fn pair_apart(notify: Notify) -> (Node<Host, Host>, Halves<Host>, Halves<Host>) {
    let mut deep = small();
    deep.send_depth = 64;
    let (a, b) = pair_notified(deep, deep, notify);
    let ((node, a), (_, b)) = (apart(a), apart(b));
    (node, a, b)
}

fn polled(halves: &mut Halves<Host>) -> u32 {
    halves
        .sending
        .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
        .unwrap()
}

fn credits(halves: &mut Halves<Host>) -> u32 {
    halves.sending.channel(halves.id).unwrap().credits()
}

/// Sends until the other has no receive left.
fn flood(halves: &mut Halves<Host>) -> u32 {
    for sent in 0.. {
        if let Err(refused) = halves.send(sent) {
            assert_eq!(refused, SendErrorKind::WouldBlock);
            while polled(halves) > 0 {}
            return sent;
        }
    }
    unreachable!()
}

/// Polls once, and keeps the memory of all messages that have come.
fn keep_received(halves: &mut Halves<Host>, held: &mut Vec<Lease<Host>>) {
    halves
        .receiving
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                held.push(message.keep());
            }
        })
        .unwrap();
}

#[test]
fn four_threads_send_and_receive_both_ways() {
    let (node, mut a, mut b) = pair_apart(Notify::Never);
    // Both ways; and one way, where nothing goes back that could carry the announcements.
    for counts in [[100_000, 100_000], [50_000, 0], [0, 50_000]] {
        exchange_counted(&mut a, &mut b, counts, 16);
    }
    assert_eq!(node.provider().fabric().receivers_not_ready(), 0);
}

#[test]
fn what_one_half_received_the_other_sends() {
    let (node, mut a, mut b) = pair_apart(Notify::Never);
    echo(&mut a, &mut b, 50_000);
    assert_eq!(node.provider().fabric().receivers_not_ready(), 0);
    // All of it is home again, but for what is posted, now that there is memory for it.
    let id = b.id;
    let mut worker = b.join();
    worker.poll(|_, _| {}).unwrap();
    let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
    let posted = worker.channel(id).unwrap().receives_posted();
    assert!(posted > 16 - 4, "all but less than are posted at once: {posted}");
    assert_eq!(leases.len() + posted as usize, 64);
}

#[test]
fn receives_are_announced_once_both_halves_were_polled() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    for _ in 0..100 {
        assert_eq!(flood(&mut a), 16);
        assert_eq!(b.received(), (0..16).collect::<Vec<_>>());
        assert_eq!(credits(&mut a), 0, "the half that sends announces");
        polled(&mut b);
        assert_eq!(credits(&mut a), 16);
    }
}

#[test]
fn what_is_due_is_announced_though_the_halves_are_joined_first() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    flood(&mut a);
    assert_eq!(b.received().len(), 16);
    let mut worker = b.join();
    worker.poll(|_, _| {}).unwrap();
    assert_eq!(credits(&mut a), 16);
    // And taken apart again, with what was due before.
    flood(&mut a);
    let mut count = 0;
    while count < 16 {
        worker
            .poll(|_, event| count += u32::from(matches!(event, Event::Received { .. })))
            .unwrap();
    }
    let mut b = Halves::of(worker);
    polled(&mut b);
    assert_eq!(credits(&mut a), 16);
}

#[test]
fn a_half_whose_receives_wait_for_memory_never_sleeps_without_limit() {
    let (_node, mut a, mut b) = pair_apart(Notify::Every);
    let sleeps_at_most = |b: &mut Halves<Host>| loop {
        if let Some(sleep) = b.receiving.ready_to_sleep(|_, _| {}).unwrap() {
            break sleep.at_most();
        }
    };
    assert_eq!(sleeps_at_most(&mut b), None, "completions end the sleep");
    let all: Vec<_> = core::iter::from_fn(|| b.receiving.lease()).collect();
    let mut held = Vec::new();
    flood(&mut a);
    keep_received(&mut b, &mut held);
    assert!(
        sleeps_at_most(&mut b).is_some(),
        "nothing tells that memory is free"
    );
    drop((held, all));
    assert_eq!(sleeps_at_most(&mut b), None);
}

#[test]
fn receives_that_wait_for_memory_are_posted_when_it_comes_home() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    let all: Vec<_> = core::iter::from_fn(|| b.receiving.lease()).collect();
    let mut held = Vec::new();
    for _ in 0..16 {
        flood(&mut a);
        keep_received(&mut b, &mut held);
        polled(&mut b);
    }
    assert_eq!((held.len(), credits(&mut a)), (16, 0));
    // Dropped on the other thread.
    thread::spawn(move || drop((held, all))).join().unwrap();
    b.received();
    polled(&mut b);
    assert_eq!(credits(&mut a), 16);
}

#[test]
fn what_was_taken_of_a_refused_doorbell_is_told_by_the_half_that_sends() {
    let (node, mut a, _b) = pair_apart(Notify::Never);
    let id = a.id;
    let mut told = 0;
    for _ in 0..16 {
        node.provider()
            .fabric()
            .follow(&"fail 1st post of a with 12".parse().unwrap());
        let leases: [_; 4] = core::array::from_fn(|_| a.sending.lease().unwrap());
        let mut batch = a.sending.channel(id).unwrap().batch();
        for lease in leases {
            batch.push(Operation::Send, [lease], PostFlags::empty()).unwrap();
        }
        if batch.ring().unwrap_err().posted == 0 {
            continue;
        }
        while polled(&mut a) == 0 {}
        assert_eq!(a.sending.channel(id).unwrap().in_flight(), 0);
        told += 1;
        if told == 4 {
            return;
        }
    }
    panic!("the device took nothing {} times of 16", 16 - told);
}

#[test]
fn joined_again_channels_are_closed_and_made() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    exchange(&mut a, &mut b, [1000, 1000]);
    let (a_id, b_id) = (a.id, b.id);
    let (mut a, mut b) = (a.join(), b.join());
    // As one, they go on.
    a.channel(a_id)
        .unwrap()
        .post_inline(Operation::Send, b"x")
        .unwrap();
    let mut came = 0;
    while came == 0 {
        b.poll(|_, event| came += u32::from(matches!(event, Event::Received { .. })))
            .unwrap();
    }
    a.close(a_id, a.within(LONG), |_, _| {}).unwrap();
    b.close(b_id, b.within(LONG), |_, _| {}).unwrap();
    assert_eq!((a.channels().count(), b.channels().count()), (0, 0));
    for worker in [&mut a, &mut b] {
        let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
        assert_eq!(leases.len(), 64);
    }
    // One without channels is taken apart as well.
    let (sending, receiving) = a.split(&ArenaConfig::new(1, 64)).unwrap();
    assert_eq!((sending.channels().count(), receiving.channels().count()), (0, 0));
    sending.join(receiving).unwrap();
}

#[test]
fn credits_that_were_wanted_end_a_wait_after_taking_apart_and_joining() {
    const SHORT: Duration = Duration::from_millis(5);
    let (node, mut a, mut b) = pair_apart(Notify::Never);
    for is_known in [false, true] {
        // Refused while apart, waited for together.
        flood(&mut a);
        if is_known {
            let short = node.within(SHORT);
            assert_eq!(a.sending.wait(Wait::Busy, short, |_, _| {}), Ok(Woken::Deadline));
        }
        let mut worker = a.join();
        assert!(!b.received().is_empty());
        polled(&mut b);
        let long = node.within(LONG);
        assert_eq!(worker.wait(Wait::Busy, long, |_, _| {}), Ok(Woken::Progress));
        // The other way round.
        let id = worker.channels().next().unwrap();
        let channel = worker.channel(id).unwrap();
        while channel.post_inline(Operation::Send, &7_u32.to_be_bytes()).is_ok() {}
        while worker.poll(|_, _| {}).unwrap() > 0 {}
        if is_known {
            let short = node.within(SHORT);
            assert_eq!(worker.wait(Wait::Busy, short, |_, _| {}), Ok(Woken::Deadline));
        }
        a = Halves::of(worker);
        assert!(!b.received().is_empty());
        polled(&mut b);
        assert_eq!(a.sending.wait(Wait::Busy, long, |_, _| {}), Ok(Woken::Progress));
    }
    a.join();
    b.join();
}

#[test]
fn only_the_two_halves_of_one_worker_are_joined() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    let not_a_pair = a.sending.join(b.receiving).unwrap_err();
    (a.sending, b.receiving) = (*not_a_pair.sending, *not_a_pair.receiving);
    // Nor where channels were exchanged.
    core::mem::swap(a.sending.channel(a.id).unwrap(), b.sending.channel(b.id).unwrap());
    let not_a_pair = a.sending.join(a.receiving).unwrap_err();
    (a.sending, a.receiving) = (*not_a_pair.sending, *not_a_pair.receiving);
    core::mem::swap(a.sending.channel(a.id).unwrap(), b.sending.channel(b.id).unwrap());
    // All goes on.
    exchange(&mut a, &mut b, [100, 100]);
    a.join();
    b.join();
}

#[test]
fn what_cannot_be_taken_apart_is_handed_back() {
    let (a, _b) = pair_with(small(), small());
    let End {
        node: _node,
        mut workers,
        at,
        ..
    } = a;
    let mut worker = workers.swap_remove(at.worker);
    let refused = worker.split(&ArenaConfig::new(0, 64)).unwrap_err();
    assert!(matches!(refused.reason, SplitError::Memory(_)), "{refused}");
    worker = *refused.worker;
    worker.begin_close(at.channel, worker.within(LONG)).unwrap();
    let refused = worker.split(&ArenaConfig::new(1, 64)).unwrap_err();
    assert_eq!(refused.reason, SplitError::Closing);
    worker = *refused.worker;
    while worker.channels().count() > 0 {
        worker.poll_tending(|_, _| {}).unwrap();
    }
}

#[test]
fn a_failure_is_told_by_each_half() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    a.sending.channel(a.id).unwrap().shut().unwrap();
    let mut failures = 0;
    a.receiving
        .poll(|_, event| failures += u32::from(matches!(event, Event::ChannelFailed { .. })))
        .unwrap();
    assert_eq!(failures, 1, "one failure, though sixteen receives were flushed");
    let state = a.receiving.channel(a.id).unwrap().state();
    assert!(matches!(state, ChannelState::Failed { .. }));
    // The peer hears by its own request.
    b.send(0).unwrap();
    let mut failed = 0;
    while failed == 0 {
        b.sending
            .poll(|_, event| failed += u32::from(matches!(event, Event::Failed { .. })))
            .unwrap();
    }
    let worker = b.join();
    drop((a, worker));
}

#[test]
fn either_half_is_dropped_first_or_alone_with_traffic_under_way() {
    for order in 0..4 {
        let (_node, mut a, mut b) = pair_apart(Notify::Never);
        exchange(&mut a, &mut b, [100, 100]);
        let lease = a.sending.lease().unwrap();
        let sent = flood(&mut a);
        let Halves {
            sending,
            mut receiving,
            id,
        } = b;
        match order {
            0 => {
                drop(sending);
                // Messages that came are still there, and are received.
                let mut came = 0;
                receiving
                    .poll(|_, event| came += u32::from(matches!(event, Event::Received { .. })))
                    .unwrap();
                assert_eq!(came, sent);
                drop(receiving);
            }
            1 => {
                drop(receiving);
                let mut sending = sending;
                let channel = sending.channel(id).unwrap();
                channel
                    .post_inline(Operation::Send, &7_u32.to_be_bytes())
                    .unwrap();
                assert_eq!(a.received(), [7]);
                drop(sending);
            }
            2 => {
                thread::spawn(move || drop(receiving));
                drop(sending);
            }
            _ => {
                thread::spawn(move || drop(sending));
                drop(receiving);
            }
        }
        drop(a.receiving);
        drop(a.sending);
        drop(lease);
    }
}

#[test]
fn each_half_sleeps_and_is_woken() {
    let (node, mut a, mut b) = pair_apart(Notify::Every);
    let how = Wait::SpinThenSleep { spins: 0 };
    // A thread that wants credits wakes once they come, one that receives once a message came.
    let (mut next, mut expected) = (0_u32, 0_u32);
    thread::scope(|scope| {
        scope.spawn(|| {
            while next < 2000 {
                match a.send(next) {
                    Ok(()) => next += 1,
                    Err(_) => {
                        assert_eq!(
                            a.sending.wait(how, node.within(LONG), |_, _| {}),
                            Ok(Woken::Progress)
                        );
                    }
                }
            }
        });
        scope.spawn(|| {
            while expected < 2000 {
                let woken = b.receiving.wait(how, node.within(LONG), |_, event| {
                    if let Event::Received { .. } = event {
                        expected += 1;
                    }
                });
                assert_eq!(woken, Ok(Woken::Progress));
            }
        });
        scope.spawn(|| {
            // No completion here shows it: the side looks by itself.
            while b.sending.statistics().received.value() < 2000 {
                let short = node.within(Duration::from_millis(20));
                b.sending.wait(how, short, |_, _| {}).unwrap();
            }
        });
    });
    let short = node.within(Duration::from_millis(20));
    assert_eq!(a.receiving.wait(how, short, |_, _| {}), Ok(Woken::Deadline));
    assert!(short.has_passed(node.network().now()));
    let sleep = a.receiving.ready_to_sleep(|_, _| {}).unwrap().unwrap();
    assert_eq!(sleep.at_most(), None);
    while polled(&mut a) > 0 {}
    let sleep = a.sending.ready_to_sleep(|_, _| {}).unwrap().unwrap();
    assert!(sleep.at_most().is_some());
}

#[test]
fn halves_of_a_worker_that_never_notifies_do_not_sleep() {
    let (node, mut a, _b) = pair_apart(Notify::Never);
    let (how, short) = (Wait::SPIN_THEN_SLEEP, node.within(LONG));
    let never = Err(WaitError::NeverNotified);
    assert_eq!(a.sending.wait(how, short, |_, _| {}), never);
    assert_eq!(a.receiving.wait(how, short, |_, _| {}), never);
}

#[test]
fn reads_and_batches_are_the_sending_half_s() {
    let (_node, mut a, mut b) = pair_apart(Notify::Never);
    let mut batch = a.sending.channel(a.id).unwrap().batch();
    let words = [1_u32, 2, 3].map(u32::to_be_bytes);
    for bytes in &words {
        batch
            .push_inline(Operation::Send, bytes, PostFlags::empty())
            .unwrap();
    }
    assert_eq!(batch.ring(), Ok(3));
    assert_eq!(b.received(), [1, 2, 3]);
}

/// How a peer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    Closed,
    Dropped,
    Killed,
}

/// One end taken apart, after whose three messages the other end goes, while neither half is polled.
fn ended_unpolled(going: Going) -> (Fabric, Node<Host, Host>, Halves<Host>) {
    let fabric = Fabric::new();
    let mut config = small();
    config.close_when_lost = true;
    config.probe_after = Some(Duration::from_secs(1));
    (config.timeout, config.retry_count) = (10, 3);
    let (a, mut b) = pair_on(&fabric, config, config, Notify::Never);
    let (node, a) = apart(a);
    let id = b.id();
    for number in 0..3_u32 {
        let channel = b.worker().channel(id).unwrap();
        channel
            .post_inline(Operation::Send, &number.to_be_bytes())
            .unwrap();
    }
    match going {
        Going::Closed => {
            let long = b.worker().within(LONG);
            b.worker().close(id, long, |_, _| {}).unwrap();
        }
        Going::Dropped => {}
        Going::Killed => {
            fabric.run_for(Duration::from_millis(1));
            fabric.follow(&"at 0s kill b".parse().unwrap());
        }
    }
    drop(b);
    fabric.run_for(Duration::from_secs(30));
    (fabric, node, a)
}

#[test]
fn an_end_that_neither_half_polled_is_told_by_the_whole() {
    for going in [Going::Closed, Going::Dropped, Going::Killed] {
        let (fabric, _node, a) = ended_unpolled(going);
        let id = a.id;
        let mut worker = a.join();
        let (mut received, mut ends) = (0, Vec::new());
        let began = fabric.now();
        while worker.close_progress(id) != CloseProgress::Closed(Ok(())) {
            assert!(Deadline::after(began, LONG).remaining(fabric.now()) > Duration::ZERO);
            fabric.run_for(Duration::from_millis(1));
            worker
                .poll_tending(|_, event| match event {
                    Event::Received { .. } => received += 1,
                    Event::PeerClosed { all_arrived } => ends.push(Some(all_arrived)),
                    // By the probes, which the halves do not send.
                    Event::ChannelFailed { .. } => ends.push(None),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        let expected = if going == Going::Killed { None } else { Some(true) };
        assert_eq!((received, &ends[..]), (3, &[expected][..]), "{going:?}");
        let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
        assert_eq!(leases.len(), 64, "{going:?}");
    }
}

#[test]
fn halves_that_are_dropped_behind_an_end_leave_nothing() {
    for going in [Going::Closed, Going::Dropped, Going::Killed] {
        let (fabric, node, a) = ended_unpolled(going);
        assert_eq!(fabric.queue_pairs(), 1, "{going:?}");
        let Halves {
            sending, receiving, ..
        } = a;
        drop((receiving, sending));
        assert!(node.settle(node.within(LONG)));
        assert_eq!(fabric.queue_pairs(), 0, "{going:?}");
    }
}

#[test]
fn an_end_that_was_told_before_is_told_by_neither_half_nor_after() {
    for is_closed in [true, false] {
        let (mut a, mut b) = pair_with(small(), small());
        let (a_id, b_id) = (a.id(), b.id());
        if is_closed {
            drop(b);
        } else {
            b.worker().channel(b_id).unwrap().shut().unwrap();
            let channel = a.worker().channel(a_id).unwrap();
            channel.post_inline(Operation::Send, b"x").unwrap();
        }
        let mut ends = 0;
        while ends == 0 {
            a.worker()
                .poll_tending(|_, event| match event {
                    Event::PeerClosed { all_arrived: true } => ends += u32::from(is_closed),
                    Event::ChannelFailed { .. } => ends += u32::from(!is_closed),
                    Event::Failed { .. } => {}
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        let before = a.worker().state(a_id).unwrap();
        let (_node, mut halves) = apart(a);
        if is_closed {
            assert_eq!(halves.send(0), Err(SendErrorKind::PeerClosed));
            // A failure behind its end is a consequence of that.
            halves.sending.channel(a_id).unwrap().shut().unwrap();
        }
        for _ in 0..100 {
            halves.receiving.poll(|_, event| panic!("{event:?}")).unwrap();
            halves.sending.poll(|_, event| panic!("{event:?}")).unwrap();
        }
        let mut worker = halves.join();
        for _ in 0..100 {
            worker.poll_tending(|_, event| panic!("{event:?}")).unwrap();
        }
        assert_eq!(worker.state(a_id), Some(before));
        assert_eq!(worker.close(a_id, worker.within(LONG), |_, _| {}), Ok(()));
    }
}
