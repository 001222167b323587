//! Unsent requests of the polling thread: the poll reports them, in whatever way they come back.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::{catch_unwind, resume_unwind};

use doorbell::provider::{ArenaConfig, PushError, QpState};
use doorbell::worker::{CloseError, CloseProgress, SubmissionError};
use doorbell::{ChannelId, Event, Operation, PostFlags, SendErrorKind, Turn, Wait, WcStatus, Woken};
use doorbell_sim::Host;

use super::own::{close, submit_own, unsent};
use super::{config, home, numbers, submit, until};
use crate::fabric::{End, LONG, pair, pair_notified, small};

const SLEEP: Wait = Wait::SpinThenSleep { spins: 0 };

/// Error of requests on a channel that failed, or is being closed.
const FAILED: SubmissionError = SubmissionError::ChannelFailed(WcStatus::WR_FLUSH_ERR);

/// Polls until nothing more happens.
fn settle(end: &mut End) {
    for _ in 0..4 {
        while end.worker().poll_tending(|_, _| ()).unwrap() > 0 {}
    }
}

/// A pair, and nothing that submits to it but this thread.
fn alone() -> (End, End) {
    let (mut a, b) = pair_notified(small(), small(), doorbell::Notify::Every);
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    (a, b)
}

#[test]
fn what_comes_back_ends_a_wait_and_there_is_no_leave_to_sleep() {
    let (mut a, _b) = alone();
    let to = a.id();
    a.worker().channel(to).unwrap().shut().unwrap();
    settle(&mut a);
    let mut back = 0;
    let mut count = |event: Event<'_, Host>| back += u32::from(matches!(event, Event::Unsent { .. }));
    submit_own(&mut a, 0);
    let leave = a.worker().ready_to_sleep(|_, event| count(event)).unwrap();
    assert!(leave.is_none());
    for how in [Wait::Busy, SLEEP] {
        let long = a.worker().within(LONG);
        submit_own(&mut a, 1);
        let woken = a.worker().wait_tending(how, long, |_, event| count(event));
        assert_eq!(woken, Ok(Woken::Progress));
        submit_own(&mut a, 2);
        let woken = a.worker().wait(how, long, |_, event| count(event));
        assert_eq!(woken, Ok(Woken::Progress));
    }
    assert_eq!(back, 5);
    // They are no completions.
    submit_own(&mut a, 3);
    assert_eq!(a.worker().poll_tending(|_, _| ()), Ok(0));
    let leave = a.worker().ready_to_sleep(|_, _| ()).unwrap();
    assert_eq!(leave.expect("nothing happens").at_most(), None);
}

#[test]
fn what_comes_back_ends_a_wait_of_the_half_that_sends() {
    let (mut a, _b) = alone();
    let to = a.id();
    let at = a.at.worker;
    let worker = a.workers.swap_remove(at);
    let (mut sending, _receiving) = worker.split(&ArenaConfig::new(16, 8192)).unwrap();
    let mut back = 0;
    for round in 0..3 {
        let half = sending.channel(to).unwrap();
        let too_long = half.limits().inline_bytes_max as usize + 1;
        let mut lease = sending.lease().unwrap();
        lease.fill(&vec![7; too_long]).unwrap();
        let half = sending.channel(to).unwrap();
        half.submit(Operation::Send, lease, PostFlags::INLINE).unwrap();
        let mut count = |event: Event<'_, Host>| back += u32::from(matches!(event, Event::Unsent { .. }));
        let woken = match round {
            0 => {
                let leave = sending.ready_to_sleep(|_, event| count(event)).unwrap();
                assert!(leave.is_none());
                continue;
            }
            1 => sending.wait(Wait::Busy, a.node.within(LONG), |_, event| count(event)),
            _ => sending.wait(SLEEP, a.node.within(LONG), |_, event| count(event)),
        };
        assert_eq!(woken, Ok(Woken::Progress));
    }
    assert_eq!(back, 3);
}

/// Two ends. The first has to announce receives, which is the last that a poll does, and is refused.
fn refused_to_announce() -> (End, End) {
    let (a, mut b) = alone();
    let fabric = a.node.provider().fabric().clone();
    fabric.follow(&"fail every 1st post of a with 12".parse().unwrap());
    for number in 0..12_u32 {
        let (lease, id) = (b.lease(&number.to_be_bytes()), b.id());
        b.worker().channel(id).unwrap().send_lease(lease).unwrap();
    }
    settle(&mut b);
    (a, b)
}

#[test]
fn nobody_sleeps_on_what_a_handler_submitted_late() {
    let (mut a, _b) = refused_to_announce();
    settle(&mut a);
    let lease = a.lease(b"late");
    let mut lease = Some(lease);
    let leave = a
        .worker()
        .ready_to_sleep(|turn, event| {
            if let (Event::AnnouncementRefused { .. }, Some(lease)) = (event, lease.take()) {
                let none = PostFlags::empty();
                turn.channel.submit(Operation::Send, lease, none).unwrap();
            }
        })
        .unwrap();
    assert_eq!(leave.expect("nothing completes").at_most(), Some(Duration::ZERO));
    assert!(lease.is_none());
}

#[test]
fn a_wait_for_a_refused_announcement_ends_with_it() {
    let (mut a, _b) = refused_to_announce();
    let (deadline, mut refused) = (a.node.within(LONG), 0);
    let found = a.worker().wait_for(Wait::Busy, deadline, |_, event| {
        let is_refused = matches!(event, Event::AnnouncementRefused { .. });
        refused += u32::from(is_refused);
        is_refused.then_some(())
    });
    assert_eq!((found, refused), (Ok(Some(())), 1));
}

/// Sends what there are credits for, and leaves three waiting.
fn leave_three(end: &mut End) {
    (0..16).for_each(|number| submit_own(end, number));
    settle(end);
    let id = end.id();
    assert_eq!(end.worker().channel(id).unwrap().in_flight(), 0);
    (16..19).for_each(|number| submit_own(end, number));
}

#[test]
fn what_waits_at_a_channel_that_cannot_be_failed_comes_back() {
    let (mut a, _b) = pair();
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    leave_three(&mut a);
    let fabric = a.node.provider().fabric().clone();
    fabric.follow(&"fail every 1st shut of a with 5".parse().unwrap());
    let (back, outcome) = close(&mut a, Duration::ZERO);
    assert_eq!(outcome, Err(CloseError::TimedOut));
    let expected = (16..19_u32).map(|number| (number.to_be_bytes().to_vec(), FAILED));
    assert!(back.iter().cloned().eq(expected), "{back:?}");
}

/// A closing advances by `tend`, and as a new channel is reserved, however seldom the loop polls.
#[test]
fn what_waits_at_a_channel_comes_back_by_the_poll_behind_two_upkeeps() {
    let (mut a, _b) = alone();
    leave_three(&mut a);
    let (to, now) = (a.id(), a.worker().within(Duration::ZERO));
    a.worker().begin_close(to, now).unwrap();
    a.worker().tend();
    a.node.provider().fabric().run_for(Duration::from_secs(1));
    a.worker().tend();
    let expected = (16..19_u32).map(|number| (number.to_be_bytes().to_vec(), FAILED));
    let back = unsent(&mut a);
    assert!(back.iter().cloned().eq(expected), "{back:?}");
    until("it is closed", || {
        assert_eq!(unsent(&mut a), []);
        closed(&mut a, to)
    });
}

/// Submits it again, in vain.
fn again(turn: Turn<'_, Host>, event: Event<'_, Host>) -> u32 {
    let Event::Unsent { lease, .. } = event else {
        return 0;
    };
    let none = PostFlags::empty();
    let refused = turn.channel.submit(Operation::Send, lease.unwrap(), none);
    let refused = refused.expect_err("it is being closed");
    let closed = SendErrorKind::Refused(PushError::State(QpState::Error));
    assert_eq!(refused.kind, closed);
    assert!(refused.item.is_some());
    1
}

fn closed(end: &mut End, id: ChannelId) -> bool {
    end.worker().close_progress(id) != CloseProgress::UnderWay
}

#[test]
fn nothing_more_waits_at_a_channel_that_is_flushed() {
    // However late there were submitters at all.
    for is_late in [false, true] {
        let (mut a, _b) = pair();
        let to = a.id();
        let mut expected = 0;
        if !is_late {
            drop(a.worker().submitter(&config(8, 8)).unwrap());
            leave_three(&mut a);
            expected = 3;
        }
        let now = a.worker().within(Duration::ZERO);
        a.worker().begin_close(to, now).unwrap();
        let mut back = 0;
        if is_late {
            drop(a.worker().submitter(&config(8, 8)).unwrap());
        }
        until("it is closed", || {
            a.worker()
                .poll_tending(|turn, event| back += again(turn, event))
                .unwrap();
            closed(&mut a, to)
        });
        assert_eq!(back, expected);
    }
}

#[test]
fn a_refusal_that_names_no_request_is_told_once() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let fabric = a.node.provider().fabric().clone();
    for own in [2, 0, 1] {
        fabric.follow(&"fail 1st unclear-post of a with 5".parse().unwrap());
        (0..own).for_each(|number| submit_own(&mut a, number));
        submit(&mut submitter, to, own);
        let mut told = Vec::new();
        for _ in 0..3 {
            let polled = a.worker().poll_tending(|_, event| {
                if let Event::Unsent { lease, error } = event {
                    assert!(lease.is_none());
                    told.push(error);
                }
            });
            polled.unwrap();
        }
        if own == 0 {
            assert_eq!(told, []);
        } else {
            assert_eq!(told, [SubmissionError::Post { errno: 5 }]);
        }
        // It had all.
        assert_eq!(numbers(&mut b), (0..=own).collect::<Vec<_>>());
        until("all is home", || {
            numbers(&mut a);
            home(&mut submitter) == 8 && a.worker().channel(to).unwrap().in_flight() == 0
        });
    }
}

#[test]
fn what_is_refused_by_itself_is_not_taken_for_another() {
    let (mut a, mut b) = pair();
    let to = a.id();
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    let fabric = a.node.provider().fabric().clone();
    let mut parts = [false; 4];
    for _ in 0..40 {
        let too_long = a.worker().channel(to).unwrap().limits().inline_bytes_max as usize + 1;
        let mut submitted = Vec::new();
        for number in 0..6_u32 {
            // Each second.
            let (bytes, flags) = match number % 2 {
                0 => (vec![7; too_long], PostFlags::INLINE),
                _ => (number.to_be_bytes().to_vec(), PostFlags::empty()),
            };
            let lease = a.lease(&bytes);
            let channel = a.worker().channel(to).unwrap();
            channel.submit(Operation::Send, lease, flags).unwrap();
            submitted.push(bytes);
        }
        fabric.follow(&"fail 1st post of a with 12".parse().unwrap());
        let back = unsent(&mut a);
        let came = numbers(&mut b);
        let taken = came.len();
        assert_eq!(came, [1, 3, 5][..taken]);
        submitted.retain(|bytes| !came.iter().any(|number| number.to_be_bytes() == bytes[..]));
        assert!(back.iter().map(|(bytes, _)| bytes).eq(&submitted), "{back:?}");
        for (bytes, error) in back {
            let is_device = matches!(error, SubmissionError::Post { errno: 12 });
            assert_eq!(is_device, bytes.len() == 4, "{error:?}");
        }
        parts[taken] = true;
        settle(&mut a);
    }
    assert_eq!(parts, [true, true, true, false]);
}

#[test]
fn requests_that_a_panic_left_come_back_beside_those_of_a_later_doorbell() {
    let (mut a, mut b) = pair();
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    let fabric = a.node.provider().fabric().clone();
    let mut are_left = [false; 4];
    for _ in 0..40 {
        let mut back = Vec::new();
        (0..3).for_each(|number| submit_own(&mut a, number));
        fabric.follow(&"fail 1st post of a with 12".parse().unwrap());
        let polled = catch_unwind(AssertUnwindSafe(|| {
            a.worker().poll_tending(|mut turn, event| {
                if let Event::Unsent { lease, error } = event {
                    let lease = lease.expect("it is named");
                    back.push((lease.payload().to_vec(), error));
                    turn.release(lease);
                    resume_unwind(Box::new("the callback's own"));
                }
            })
        }));
        assert!(polled.is_err());
        (3..6).for_each(|number| submit_own(&mut a, number));
        fabric.follow(&"fail 1st post of a with 11".parse().unwrap());
        back.extend(unsent(&mut a));
        let came = numbers(&mut b);
        let expected = (0..6_u32).filter(|number| !came.contains(number)).map(|number| {
            let errno = if number < 3 { 12 } else { 11 };
            (number.to_be_bytes().to_vec(), SubmissionError::Post { errno })
        });
        assert!(back.iter().cloned().eq(expected), "{back:?}, and {came:?} came");
        assert_eq!(unsent(&mut a), []);
        are_left[3 - came.iter().filter(|number| **number < 3).count()] = true;
        settle(&mut a);
    }
    assert_eq!(are_left, [false, true, true, true]);
}
