//! What waits for credits, and who sleeps meanwhile.

use core::time::Duration;
use std::thread;

use doorbell::{Event, Notify, Submitter, Wait, Woken};
use doorbell_sim::Host;

use super::{config, home, hub, numbers, submit, until};
use crate::fabric::{LONG, pair_notified, small};

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
