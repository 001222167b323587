//! Waiting over the simulated fabric: the events that wake each sleeper, and that none sleeps through one.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::fabric::{End, LONG, SOON, pair, pair_notified, pair_on, small};
use doorbell::provider::{Clock as _, Rkey};
use doorbell::{
    Event, Lease, Notify, Operation, PostFlags, RemoteAddress, SendErrorKind, Wait, WaitError, Woken,
};
use doorbell_sim::{Fabric, Host, LinkConfig, Quirks};

const SHORT: Duration = Duration::from_millis(30);

/// Sleeps as soon as nothing is there.
const SLEEP: Wait = Wait::SpinThenSleep { spins: 0 };

fn pair_that(notify: Notify) -> (End, End) {
    // The second has more room than the first has receives.
    let mut deep = small();
    deep.send_depth = 64;
    pair_notified(small(), deep, notify)
}

/// Sends until the peer has no receive left, and takes what completes.
fn flood(end: &mut End) {
    while send(end, b"flood").is_ok() {}
    while end.worker().poll(|_, _| {}).unwrap() > 0 {}
}

/// Waits, and keeps the messages that came.
fn wait(end: &mut End, how: Wait, deadline: Duration, into: &mut Vec<Lease<Host>>) -> Woken {
    let deadline = end.worker().within(deadline);
    end.worker()
        .wait(how, deadline, |_, event| match event {
            Event::Received { message, .. } => into.push(message.keep()),
            Event::Done { .. } => {}
            other => panic!("{other:?}"),
        })
        .unwrap()
}

fn send(end: &mut End, bytes: &[u8]) -> Result<(), SendErrorKind> {
    let (lease, id) = (end.lease(bytes), end.id());
    let sent = end.worker().channel(id).unwrap().send_lease(lease);
    sent.map(|_| ()).map_err(|error| error.kind)
}

#[test]
fn messages_to_and_fro_wake_either_side_however_it_waits() {
    // A spinning thread is in the other's way if processors are few.
    for (how, rounds) in [(SLEEP, 500_u32), (Wait::SPIN_THEN_SLEEP, 100), (Wait::Busy, 20)] {
        let (mut a, mut b) = pair_that(Notify::Every);
        let echo = thread::spawn(move || {
            let (mut messages, mut echoed) = (Vec::new(), 0);
            while echoed < rounds {
                assert_eq!(wait(&mut a, how, LONG, &mut messages), Woken::Progress);
                for message in messages.drain(..) {
                    let id = a.id();
                    a.worker().channel(id).unwrap().send_lease(message).unwrap();
                    echoed += 1;
                }
            }
            a
        });
        let mut messages = Vec::new();
        for round in 0..rounds {
            send(&mut b, &round.to_be_bytes()).unwrap();
            while messages.is_empty() {
                assert_eq!(wait(&mut b, how, LONG, &mut messages), Woken::Progress);
            }
            for message in messages.drain(..) {
                assert_eq!(message.payload(), round.to_be_bytes());
            }
        }
        echo.join().unwrap();
    }
}

#[test]
fn every_wait_ends_at_its_deadline() {
    let (mut a, _b) = pair_that(Notify::Every);
    for how in [SLEEP, Wait::SPIN_THEN_SLEEP, Wait::Busy] {
        let deadline = a.node.within(SHORT);
        assert_eq!(wait(&mut a, how, SHORT, &mut Vec::new()), Woken::Deadline);
        assert!(deadline.has_passed(a.node.network().now()), "{how:?}");
    }
}

#[test]
fn a_wait_for_an_event_returns_the_first_that_is_wanted() {
    for (how, notify) in [(SLEEP, Notify::Every), (Wait::Busy, Notify::Never)] {
        let (mut a, mut b) = pair_that(notify);
        (0..5_u8).for_each(|number| send(&mut b, &[number]).unwrap());
        let deadline = a.worker().within(LONG);
        let mut seen = Vec::new();
        let mut wanted = |least: u8| {
            let found = a.worker().wait_for(how, deadline, |_, event| {
                let Event::Received { message, .. } = event else {
                    panic!("{event:?}");
                };
                seen.push(message.payload()[0]);
                seen.last().copied().filter(|number| *number >= least)
            });
            found.unwrap()
        };
        assert_eq!(wanted(2), Some(2), "the first");
        while seen.len() < 5 {
            a.worker()
                .poll(|_, event| {
                    if let Event::Received { message, .. } = event {
                        seen.push(message.payload()[0]);
                    }
                })
                .unwrap();
        }
        assert_eq!(seen, [0, 1, 2, 3, 4], "those behind it were shown, too");
        let soon = a.worker().within(SHORT);
        let none = a
            .worker()
            .wait_for(how, soon, |_, event| Some(format!("{event:?}")));
        assert_eq!(none, Ok(None));
    }
    let (mut a, _b) = pair();
    let soon = a.worker().within(SHORT);
    let refused = a.worker().wait_for(SLEEP, soon, |_, _| Some(()));
    assert_eq!(refused, Err(WaitError::NeverNotified));
}

#[test]
fn a_worker_that_never_notifies_is_only_polled() {
    let (mut a, mut b) = pair();
    let short = a.worker().within(SHORT);
    let refused = a.worker().wait(Wait::SPIN_THEN_SLEEP, short, |_, _| {});
    assert_eq!(refused, Err(WaitError::NeverNotified));
    let refused = a.worker().ready_to_sleep(|_, _| {});
    assert_eq!(refused.err(), Some(WaitError::NeverNotified));
    send(&mut b, b"x").unwrap();
    assert_eq!(wait(&mut a, Wait::Busy, SOON, &mut Vec::new()), Woken::Progress);
}

#[test]
fn leave_to_sleep_is_given_only_when_nothing_is_there() {
    let (mut a, mut b) = pair_that(Notify::Every);
    send(&mut b, b"before").unwrap();
    let mut came = 0;
    assert!(a.worker().ready_to_sleep(|_, _| came += 1).unwrap().is_none());
    assert_eq!(came, 1);
    let long = a.worker().within(LONG);
    let sleep = a.worker().ready_to_sleep(|_, _| came += 1).unwrap().unwrap();
    assert_eq!(sleep.at_most(), None);
    let sending = thread::spawn(move || {
        thread::sleep(SHORT);
        send(&mut b, b"after").unwrap();
        b
    });
    let began = Instant::now();
    sleep.until(long).unwrap();
    assert!(began.elapsed() < SOON, "it was not woken");
    assert!(a.worker().ready_to_sleep(|_, _| came += 1).unwrap().is_none());
    assert_eq!(came, 2);
    sending.join().unwrap();
}

#[test]
fn where_only_the_solicited_wake_others_wait() {
    // Posted before and under way while the other sleeps, which lets the time of this fabric pass.
    let link = LinkConfig {
        latency_ns: u64::try_from(SHORT.as_nanos()).unwrap(),
        bandwidth_mbps: None,
    };
    let fabric = Fabric::builder().link(link).driven().build();
    let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Solicited);
    let mut messages = Vec::new();
    let id = b.id();
    for (flags, count) in [(PostFlags::empty(), 1), (PostFlags::SOLICITED, 2)] {
        let lease = b.lease(b"x");
        let channel = b.worker().channel(id).unwrap();
        channel.post(Operation::Send, lease, flags).unwrap();
        let began = fabric.now();
        assert_eq!(wait(&mut a, SLEEP, 10 * SHORT, &mut messages), Woken::Progress);
        assert_eq!(messages.len(), count);
        let woken = flags == PostFlags::SOLICITED;
        let until = began.after(if woken { 2 } else { 10 } * SHORT);
        assert_eq!(fabric.now() < until, woken, "{:?} after {began:?}", fabric.now());
        assert!(fabric.now() >= began.after(SHORT));
    }
}

/// Rxe of 6.12 and later notifies no thread of flushed receives that waits for solicited completions (S23).
#[test]
fn a_failure_that_notifies_nobody_is_found_within_a_second() {
    let fabric = Fabric::builder().quirks(Quirks::RXE_6_12).driven().build();
    let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Solicited);
    let id = b.id();
    let denied = Operation::Write(RemoteAddress::new(0, Rkey(1)));
    b.worker().channel(id).unwrap().post_inline(denied, &[7]).unwrap();
    let (began, mut failed) = (fabric.now(), false);
    let deadline = a.worker().within(LONG);
    let woken = a.worker().wait(SLEEP, deadline, |_, event| {
        failed |= matches!(event, Event::ChannelFailed { .. });
    });
    assert_eq!((woken, failed), (Ok(Woken::Progress), true));
    let took = fabric.now().to_ns() - began.to_ns();
    assert!(took <= 1_000_000_000, "{took} ns");
}

#[test]
fn credits_wake_who_was_refused_for_want_of_them() {
    for how in [SLEEP, Wait::Busy] {
        let (mut a, mut b) = pair_that(Notify::Every);
        // The messages sent are done; the missing credit word comes without a completion.
        flood(&mut b);
        assert_eq!(wait(&mut b, how, SHORT, &mut Vec::new()), Woken::Deadline);
        let sleep = b.worker().ready_to_sleep(|_, _| {});
        assert!(sleep.unwrap().unwrap().at_most().is_some());
        let taking = thread::spawn(move || {
            thread::sleep(SHORT);
            let mut messages = Vec::new();
            wait(&mut a, Wait::Busy, LONG, &mut messages);
            messages.clear();
            // Announced once they are posted again.
            a.worker().poll(|_, _| {}).unwrap();
            a
        });
        let began = Instant::now();
        assert_eq!(wait(&mut b, how, LONG, &mut Vec::new()), Woken::Progress);
        assert!(began.elapsed() < SOON, "{how:?}");
        send(&mut b, b"one more").unwrap();
        taking.join().unwrap();
        while b.worker().poll(|_, _| {}).unwrap() > 0 {}
        // Told once.
        assert_eq!(wait(&mut b, how, SHORT, &mut Vec::new()), Woken::Deadline);
    }
}

#[test]
fn a_channel_that_wanted_credits_may_be_closed() {
    let (_a, mut b) = pair_that(Notify::Every);
    flood(&mut b);
    assert_eq!(wait(&mut b, SLEEP, SHORT, &mut Vec::new()), Woken::Deadline);
    let (id, long) = (b.id(), b.node.within(LONG));
    b.worker().close(id, long, |_, _| {}).unwrap();
    assert_eq!(wait(&mut b, SLEEP, SHORT, &mut Vec::new()), Woken::Deadline);
    let sleep = b.worker().ready_to_sleep(|_, _| {}).unwrap().unwrap();
    assert_eq!(sleep.at_most(), None);
}

/// No credits come to it any more, and it stays until the application closes it.
#[test]
fn a_channel_that_wanted_credits_and_failed_lets_the_worker_sleep() {
    let (_a, mut b) = pair_that(Notify::Every);
    flood(&mut b);
    let id = b.id();
    let denied = Operation::Write(RemoteAddress::new(0, Rkey(1)));
    b.worker().channel(id).unwrap().post_inline(denied, &[7]).unwrap();
    b.until(|event| matches!(event, Event::ChannelFailed { .. }).then_some(()));
    let at_most = loop {
        if let Some(sleep) = b.worker().ready_to_sleep(|_, _| {}).unwrap() {
            break sleep.at_most();
        }
    };
    assert_eq!(at_most, None);
}
