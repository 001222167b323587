//! Requests that wait for credits, and threads that sleep meanwhile.

use core::mem;
use core::time::Duration;
use std::thread;

use doorbell::worker::Submitter;
use doorbell::{
    Channel, ChannelState, Event, Lease, Notify, Operation, PostFlags, SendErrorKind, Wait, Woken,
};
use doorbell_sim::Host;

use super::{Hub, config, home, hub, numbers, submit, until};
use crate::fabric::{LONG, SOON, pair_notified, small};

const SHORT: Duration = Duration::from_millis(5);

/// Sends until the end at `at` has no receive left.
fn exhaust(hub: &mut Hub, at: usize) {
    let id = hub.ids[at];
    while hub.worker.channel(id).unwrap().credits() > 0 {
        let channel = hub.worker.channel(id).unwrap();
        channel
            .post_inline(Operation::Send, &7_u32.to_be_bytes())
            .unwrap();
        hub.poll();
    }
    while hub.worker.poll(|_, _| {}).unwrap() > 0 {}
}

fn wait(hub: &mut Hub, span: Duration) -> Woken {
    let deadline = hub.worker.within(span);
    hub.worker.wait(Wait::Busy, deadline, |_, _| {}).unwrap()
}

#[test]
fn credits_end_a_wait_whichever_channel_was_refused_and_however() {
    type Refused = fn(&mut Channel<Host>, Lease<Host>) -> SendErrorKind;
    let ways: [Refused; 4] = [
        |channel, lease| channel.send_lease(lease).unwrap_err().kind,
        |channel, _| channel.post_inline(Operation::Send, b"x").unwrap_err(),
        |channel, lease| {
            let mut batch = channel.batch();
            let pushed = batch.push(Operation::Send, [lease], PostFlags::empty());
            pushed.unwrap_err().kind
        },
        |channel, _| {
            let mut batch = channel.batch();
            batch
                .push_inline(Operation::Send, b"x", PostFlags::empty())
                .unwrap_err()
        },
    ];
    let mut deep = small();
    deep.send_depth = 64;
    let mut hub = hub(3, deep);
    for (at, way) in [2, 0, 1, 2].into_iter().zip(ways) {
        exhaust(&mut hub, at);
        // However often it is tried, polled between or not.
        for is_polled in [false, true, false] {
            let lease = hub.worker.lease().unwrap();
            let channel = hub.worker.channel(hub.ids[at]).unwrap();
            assert_eq!(way(channel, lease), SendErrorKind::WouldBlock);
            if is_polled {
                hub.poll();
            }
        }
        assert_eq!(wait(&mut hub, SHORT), Woken::Deadline);
        assert!(!numbers(&mut hub.ends[at]).is_empty());
        assert_eq!(wait(&mut hub, SOON), Woken::Progress);
        // Told once.
        assert_eq!(wait(&mut hub, SHORT), Woken::Deadline);
    }
}

#[test]
fn a_channel_that_wanted_credits_and_was_exchanged_is_waited_for() {
    let mut deep = small();
    deep.send_depth = 64;
    let mut hub = hub(2, deep);
    let (here, there) = (hub.ids[0], hub.ends[1].id());
    let exchange = |hub: &mut Hub| {
        let here = hub.worker.channel(here).unwrap();
        mem::swap(here, hub.ends[1].worker().channel(there).unwrap());
    };
    for is_known in [false, true] {
        exhaust(&mut hub, 0);
        let channel = hub.worker.channel(here).unwrap();
        let refused = channel.post_inline(Operation::Send, b"x");
        assert_eq!(refused, Err(SendErrorKind::WouldBlock));
        if is_known {
            hub.poll();
        }
        exchange(&mut hub);
        assert_eq!(wait(&mut hub, SHORT), Woken::Deadline);
        exchange(&mut hub);
        assert!(!numbers(&mut hub.ends[0]).is_empty());
        assert_eq!(wait(&mut hub, SOON), Woken::Progress);
    }
}

/// No credits come to a lost channel, but its place may belong to one that waits for some.
#[test]
fn a_channel_that_wanted_credits_and_was_exchanged_for_a_lost_one_is_waited_for() {
    let mut deep = small();
    deep.send_depth = 64;
    let mut hub = hub(2, deep);
    let (here, there) = (hub.ids[0], hub.ends[1].id());
    let exchange = |hub: &mut Hub| {
        let here = hub.worker.channel(here).unwrap();
        mem::swap(here, hub.ends[1].worker().channel(there).unwrap());
    };
    exhaust(&mut hub, 0);
    let channel = hub.worker.channel(here).unwrap();
    let refused = channel.post_inline(Operation::Send, b"x");
    assert_eq!(refused, Err(SendErrorKind::WouldBlock));
    let worker = hub.ends[1].worker();
    worker.channel(there).unwrap().shut().unwrap();
    until("the loss is found", || {
        worker.poll(|_, _| {}).unwrap();
        worker.channel(there).unwrap().state() != ChannelState::Open
    });
    for _ in 0..2 {
        // Known before, or refused while the other one is there.
        exchange(&mut hub);
        assert_eq!(wait(&mut hub, SHORT), Woken::Deadline);
        exchange(&mut hub);
        assert_eq!(wait(&mut hub, SHORT), Woken::Deadline);
    }
    assert!(!numbers(&mut hub.ends[0]).is_empty());
    assert_eq!(wait(&mut hub, SOON), Woken::Progress);
}

#[test]
fn a_channel_without_credits_holds_up_no_other() {
    let mut deep = small();
    deep.send_depth = 64;
    let mut hub = hub(2, deep);
    let [blocked, open] = hub.ids[..] else { panic!() };
    // As many as all its memory, through a ring that is far smaller.
    let mut submitter = hub.worker.submitter(&config(128, 8)).unwrap();
    for number in 0..64 {
        submit(&mut submitter, blocked, number);
        hub.poll();
    }
    assert_eq!(hub.worker.channel(blocked).unwrap().credits(), 0);
    for number in 0..64 {
        submit(&mut submitter, open, number);
        hub.poll();
        assert_eq!(numbers(&mut hub.ends[1]), [number]);
        hub.poll();
    }
    // It goes on where it stood.
    let mut seen = Vec::new();
    until("the rest goes out", || {
        seen.extend(numbers(&mut hub.ends[0]));
        hub.poll();
        seen.len() == 64
    });
    assert_eq!(seen, (0..64).collect::<Vec<_>>());
    until("all is home", || {
        hub.poll();
        home(&mut submitter) == 128
    });
    assert_eq!(hub.node.provider().fabric().receivers_not_ready(), 0);
}

#[test]
fn a_submission_wakes_a_worker_that_sleeps() {
    let (mut a, mut b) = pair_notified(small(), small(), Notify::Every);
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    // A wait far longer than naps would be needed for, and polled but once where nothing wakes it.
    let sleepy = Wait::SpinThenSleep { spins: 0 };
    for number in 0..50_u32 {
        let worker = a.worker();
        thread::scope(|scope| {
            let submitter = &mut submitter;
            scope.spawn(move || {
                if number % 2 == 0 {
                    thread::sleep(Duration::from_millis(3));
                }
                submit(submitter, to, number);
            });
            // It wakes to post it, and once more for the completion.
            let woken = worker.wait(sleepy, worker.within(LONG), |_, event| {
                assert!(matches!(event, Event::Done { .. }), "{event:?}");
            });
            assert_eq!(woken, Ok(Woken::Progress));
        });
        assert_eq!(numbers(&mut b), [number]);
        numbers(&mut a);
    }
    // Nothing is awaited: nobody naps.
    let leave = a
        .worker()
        .ready_to_sleep(|_, _| ())
        .unwrap()
        .expect("nothing happens");
    assert_eq!(leave.at_most(), None);
}

#[test]
fn no_more_is_taken_by_a_poll_than_is_said() {
    let (mut a, _b) = pair_notified(small(), small(), Notify::Every);
    let to = a.id();
    let mut submitters: Vec<_> = (0..3)
        .map(|_| a.worker().submitter(&config(60, 64)).unwrap())
        .collect();
    a.worker().channel(to).unwrap().shut().unwrap();
    for submitter in &mut submitters {
        (0..60).for_each(|number| submit(submitter, to, number));
    }
    // 64 at most, and the first is another each time.
    let mut failed = [0; 3];
    let mut count = |submitters: &mut [Submitter<Host>]| {
        for (count, submitter) in failed.iter_mut().zip(submitters) {
            while let Some(failure) = submitter.failure() {
                assert!(failure.lease.is_some());
                *count += 1;
            }
        }
        failed
    };
    a.worker().poll(|_, _| ()).unwrap();
    assert_eq!(count(&mut submitters), [60, 4, 0]);
    // More may be in the rings: it does not sleep on them.
    let leave = a.worker().ready_to_sleep(|_, _| ()).unwrap();
    assert_eq!(leave.expect("nothing completes").at_most(), Some(Duration::ZERO));
    assert_eq!(count(&mut submitters), [60, 60, 8]);
    let leave = a.worker().ready_to_sleep(|_, _| ()).unwrap();
    assert_eq!(leave.expect("nothing completes").at_most(), None);
    assert_eq!(count(&mut submitters), [60; 3]);
}
