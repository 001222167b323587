//! Requests that the polling thread submits itself: one doorbell with those of others, and in front of them.

use doorbell::provider::ArenaConfig;
use doorbell::worker::{CloseError, CloseProgress, SubmissionError};
use doorbell::{Event, Operation, PostFlags, SendErrorKind, WcStatus};

use core::time::Duration;

use super::{config, home, numbers, silent, submit, until};
use crate::fabric::{End, pair, pair_with, small};

/// Submits a message with this number on the channel itself.
pub(super) fn submit_own(end: &mut End, number: u32) {
    let lease = end.lease(&number.to_be_bytes());
    let id = end.id();
    let channel = end.worker().channel(id).unwrap();
    channel
        .submit(Operation::Send, lease, PostFlags::empty())
        .unwrap();
}

/// The bytes of a message that came back, and why.
pub(super) type Unsent = (Vec<u8>, SubmissionError);

/// Polls once; what comes back.
pub(super) fn unsent(end: &mut End) -> Vec<Unsent> {
    let mut back = Vec::new();
    let polled = end.worker().poll_tending(|mut turn, event| {
        if let Event::Unsent { lease, error } = event {
            let lease = lease.expect("it is named");
            back.push((lease.payload().to_vec(), error));
            turn.release(lease);
        }
    });
    polled.unwrap();
    back
}

/// How many doorbells polling once rings, and of how many requests in all.
fn rung(end: &mut End) -> (u64, u64) {
    let before = end.worker().statistics().snapshot();
    assert_eq!(unsent(end), []);
    let since = end.worker().statistics().snapshot().since(&before);
    assert_eq!(since.batches.iter().sum::<u64>(), since.doorbells);
    (since.doorbells, since.requests)
}

#[test]
fn what_this_thread_and_others_submit_is_one_doorbell() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut own_ring = a.worker().submitter(&config(8, 8)).unwrap();
    let mut shared = a.worker().submitters(2, &config(8, 8)).unwrap();
    // The polling thread's own goes first, in either order of submission.
    submit(&mut own_ring, to, 10);
    submit_own(&mut a, 0);
    submit(&mut shared[0], to, 11);
    submit(&mut shared[1], to, 12);
    submit_own(&mut a, 1);
    submit_own(&mut a, 2);
    submit(&mut own_ring, to, 13);
    assert_eq!(rung(&mut a), (1, 7));
    let came = numbers(&mut b);
    assert_eq!(came[..3], [0, 1, 2]);
    let mut others = came[3..].to_vec();
    others.sort_unstable();
    assert_eq!(others, [10, 11, 12, 13]);
    numbers(&mut a);
    assert_eq!(home(&mut own_ring), 8);
    // Nothing is left of it.
    assert_eq!(rung(&mut a), (0, 0));
    assert_eq!(a.worker().channel(to).unwrap().in_flight(), 0);
}

#[test]
fn answers_given_during_a_poll_are_one_doorbell() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    for number in 0..4_u32 {
        let (lease, id) = (b.lease(&number.to_be_bytes()), b.id());
        b.worker().channel(id).unwrap().send_lease(lease).unwrap();
    }
    numbers(&mut b);
    submit(&mut submitter, to, 10);
    let before = a.worker().statistics().snapshot();
    let mut asked = 0;
    until("they come", || {
        a.worker()
            .poll_tending(|turn, event| {
                if let Event::Received { message, .. } = event {
                    let none = PostFlags::empty();
                    turn.channel
                        .submit(Operation::Send, message.keep(), none)
                        .unwrap();
                    asked += 1;
                }
            })
            .unwrap();
        asked > 0
    });
    let since = a.worker().statistics().snapshot().since(&before);
    // With the announcement of receives.
    assert_eq!(
        (asked, since.doorbells, since.requests - since.announcements),
        (4, 1, 5)
    );
    assert_eq!(numbers(&mut b), [0, 1, 2, 3, 10]);
}

#[test]
fn what_the_device_refuses_comes_back_to_whoever_submitted_it() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let fabric = a.node.provider().fabric().clone();
    let mut parts = Vec::new();
    for round in 0..40_u32 {
        // A part of the doorbell goes, the rest is refused.
        fabric.follow(&"fail 1st post of a with 12".parse().unwrap());
        let all: Vec<_> = (10 * round..10 * round + 6).collect();
        let (own, others) = all.split_at(3);
        others
            .iter()
            .for_each(|number| submit(&mut submitter, to, *number));
        own.iter().for_each(|number| submit_own(&mut a, *number));
        let back = unsent(&mut a);
        let came = numbers(&mut b);
        // Requests of others go all the same if the refused one is the polling thread's own.
        let taken = if back.is_empty() {
            came.len()
        } else {
            3 - back.len()
        };
        let (sent, refused) = own.split_at(taken.min(3));
        if refused.is_empty() {
            assert_eq!(came, all[..taken]);
        } else {
            assert_eq!(came, [sent, others].concat());
        }
        assert!(taken < 6);
        assert_eq!(back.len(), refused.len());
        for (number, (bytes, error)) in refused.iter().zip(back) {
            assert_eq!(bytes, number.to_be_bytes());
            assert_eq!(error, SubmissionError::Post { errno: 12 });
        }
        for number in all.iter().skip(taken.max(3)).filter(|_| refused.is_empty()) {
            let failed = submitter.failure().unwrap();
            assert_eq!(failed.error, SubmissionError::Post { errno: 12 });
            assert_eq!(failed.lease.unwrap().payload(), number.to_be_bytes());
        }
        assert!(submitter.failure().is_none());
        parts.push(taken);
        // The channel goes on, and what was refused is in flight for nobody, nor counted as sent.
        submit_own(&mut a, 10 * round + 8);
        submit(&mut submitter, to, 10 * round + 9);
        assert_eq!(unsent(&mut a), []);
        assert_eq!(numbers(&mut b), [10 * round + 8, 10 * round + 9]);
        until("all is home", || {
            numbers(&mut a);
            home(&mut submitter) == 8 && a.worker().channel(to).unwrap().in_flight() == 0
        });
    }
    // Before all, in the middle of either half, and between them.
    assert!((0..6).all(|part| parts.contains(&part)), "{parts:?}");
}

#[test]
fn what_cannot_go_waits_and_goes_in_order() {
    // Every doorbell is signaled, or few are.
    for settings in [small(), silent()] {
        let (mut a, mut b) = pair_with(settings, settings);
        let to = a.id();
        let mut submitter = a.worker().submitter(&config(64, 64)).unwrap();
        let (mut own, mut others) = (0..300_u32, 1000..1300_u32);
        let mut came = Vec::new();
        until("all come", || {
            // More than there are credits for.
            for _ in 0..12 {
                if let (false, Some(mut lease)) = (own.is_empty(), a.worker().lease()) {
                    lease.fill(&own.start.to_be_bytes()).unwrap();
                    let channel = a.worker().channel(to).unwrap();
                    match channel.submit(Operation::Send, lease, PostFlags::empty()) {
                        Ok(()) => drop(own.next()),
                        Err(refused) => assert_eq!(refused.kind, SendErrorKind::WouldBlock),
                    }
                }
                if let (false, Some(mut lease)) = (others.is_empty(), submitter.lease()) {
                    lease.fill(&others.start.to_be_bytes()).unwrap();
                    if submitter.send(to, lease).is_ok() {
                        others.next();
                    }
                }
            }
            numbers(&mut a);
            came.extend(numbers(&mut b));
            came.len() == 600
        });
        let of = |numbers: core::ops::Range<u32>| came.iter().copied().filter(move |n| numbers.contains(n));
        assert!(of(0..300).eq(0..300) && of(1000..1300).eq(1000..1300), "{came:?}");
        until("all is home", || {
            numbers(&mut a);
            home(&mut submitter) == 64
        });
    }
}

#[test]
fn neither_this_thread_nor_others_wait_for_ever() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    (1000..1008).for_each(|number| submit(&mut submitter, to, number));
    let (mut own, mut next, mut came) = (0_u32, 1008_u32, Vec::new());
    for _ in 0..40 {
        // As much as can wait, always.
        while let Some(mut lease) = a.worker().lease() {
            lease.fill(&own.to_be_bytes()).unwrap();
            let channel = a.worker().channel(to).unwrap();
            if channel
                .submit(Operation::Send, lease, PostFlags::empty())
                .is_err()
            {
                break;
            }
            own += 1;
        }
        while let Some(mut lease) = submitter.lease() {
            lease.fill(&next.to_be_bytes()).unwrap();
            submitter.send(to, lease).unwrap();
            next += 1;
        }
        assert_eq!(unsent(&mut a), []);
        came.extend(numbers(&mut b));
    }
    let (others, mine): (Vec<_>, Vec<_>) = came.into_iter().partition(|number| *number >= 1000);
    assert!(
        others.len() > 40 && others.iter().copied().eq((1000..).take(others.len())),
        "{others:?}"
    );
    assert!(
        mine.len() > 40 && mine.iter().copied().eq((0..).take(mine.len())),
        "{mine:?}"
    );
}

#[test]
fn as_many_wait_as_the_queue_takes() {
    let (mut a, mut b) = pair();
    let to = a.id();
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    let places = a.worker().channel(to).unwrap().room().next_power_of_two();
    (0..places).for_each(|number| submit_own(&mut a, number));
    let lease = a.lease(b"too many");
    let channel = a.worker().channel(to).unwrap();
    let refused = channel.submit(Operation::Send, lease, PostFlags::empty());
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, SendErrorKind::WouldBlock);
    assert_eq!(refused.item.unwrap().payload(), b"too many");
    let mut came = Vec::new();
    until("they come", || {
        numbers(&mut a);
        came.extend(numbers(&mut b));
        came.len() == places as usize
    });
    assert!(came.into_iter().eq(0..places));
}

#[test]
fn without_submitters_it_is_posted_at_once() {
    let (mut a, mut b) = pair();
    let before = a.worker().statistics().snapshot();
    submit_own(&mut a, 7);
    let since = a.worker().statistics().snapshot().since(&before);
    assert_eq!((since.doorbells, since.requests), (1, 1));
    assert_eq!(rung(&mut a), (0, 0));
    assert_eq!(numbers(&mut b), [7]);
}

#[test]
fn a_short_one_goes_inline_where_it_is_alone() {
    let mut settings = small();
    settings.inline_alone_bytes_max = 8;
    let (mut a, mut b) = pair_with(settings, settings);
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let mut inline_of = |own: u32, others: u32| {
        (0..own).for_each(|number| submit_own(&mut a, number));
        (0..others).for_each(|number| submit(&mut submitter, to, own + number));
        let before = a.worker().statistics().snapshot();
        assert_eq!(rung(&mut a), (1, u64::from(own + others)));
        assert_eq!(numbers(&mut b).len(), (own + others) as usize);
        numbers(&mut a);
        let since = a.worker().statistics().snapshot().since(&before);
        since.inline - since.announcements
    };
    assert_eq!(inline_of(1, 0), 1);
    assert_eq!(inline_of(0, 1), 1);
    assert_eq!(inline_of(1, 1), 0);
    assert_eq!(inline_of(2, 0), 0);
}

#[test]
fn what_cannot_be_posted_comes_back_and_holds_up_nothing() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let bytes_max = a.worker().channel(to).unwrap().limits().inline_bytes_max;
    submit_own(&mut a, 0);
    let long = vec![7; bytes_max as usize + 1];
    let lease = a.lease(&long);
    let channel = a.worker().channel(to).unwrap();
    channel.submit(Operation::Send, lease, PostFlags::INLINE).unwrap();
    submit_own(&mut a, 1);
    submit(&mut submitter, to, 2);
    let bytes = bytes_max + 1;
    let error = SubmissionError::InlineTooLong { bytes, bytes_max };
    assert_eq!(unsent(&mut a), [(long, error)]);
    assert_eq!(numbers(&mut b), [0, 1, 2]);
}

#[test]
fn what_waits_at_a_channel_that_fails_comes_back() {
    let (mut a, _b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(32, 32)).unwrap();
    // Sixteen have credits; the others wait.
    (0..16).for_each(|number| submit(&mut submitter, to, number));
    numbers(&mut a);
    (16..20).for_each(|number| submit_own(&mut a, number));
    assert_eq!(unsent(&mut a), []);
    a.worker().channel(to).unwrap().shut().unwrap();
    let mut back = Vec::new();
    until("they come back", || {
        back.extend(unsent(&mut a));
        back.len() == 4
    });
    let error = SubmissionError::ChannelFailed(WcStatus::WR_FLUSH_ERR);
    let expected = (16..20_u32).map(|number| (number.to_be_bytes().to_vec(), error));
    assert!(back.iter().cloned().eq(expected), "{back:?}");
    submit_own(&mut a, 20);
    assert_eq!(unsent(&mut a), [(20_u32.to_be_bytes().to_vec(), error)]);
}

/// Closes the channel with this patience; what comes back meanwhile, and how it ended.
pub(super) fn close(end: &mut End, patience: Duration) -> (Vec<Unsent>, Result<(), CloseError>) {
    let id = end.id();
    let deadline = end.worker().within(patience);
    end.worker().begin_close(id, deadline).unwrap();
    let mut back = Vec::new();
    let mut outcome = CloseProgress::UnderWay;
    until("it is closed", || {
        back.extend(unsent(end));
        outcome = end.worker().close_progress(id);
        outcome != CloseProgress::UnderWay
    });
    let CloseProgress::Closed(outcome) = outcome else {
        panic!("{outcome:?}");
    };
    (back, outcome)
}

#[test]
fn what_waits_at_a_channel_is_sent_before_it_is_closed() {
    let (mut a, mut b) = pair();
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    (0..5).for_each(|number| submit_own(&mut a, number));
    assert_eq!(close(&mut a, Duration::from_secs(10)), (vec![], Ok(())));
    let mut came = Vec::new();
    until("they come", || {
        let polled = b.worker().poll_tending(|_, event| {
            if let Event::Received { message, .. } = event {
                came.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
            }
        });
        polled.unwrap();
        came.len() == 5
    });
    assert_eq!(came, [0, 1, 2, 3, 4]);
}

#[test]
fn what_waits_longer_than_a_closing_comes_back() {
    let (mut a, _b) = pair();
    drop(a.worker().submitter(&config(8, 8)).unwrap());
    // Sixteen have credits; the others wait.
    (0..16).for_each(|number| submit_own(&mut a, number));
    numbers(&mut a);
    (16..19).for_each(|number| submit_own(&mut a, number));
    let (back, outcome) = close(&mut a, Duration::from_millis(1));
    assert_eq!(outcome, Err(CloseError::TimedOut));
    let error = SubmissionError::ChannelFailed(WcStatus::WR_FLUSH_ERR);
    let expected = (16..19_u32).map(|number| (number.to_be_bytes().to_vec(), error));
    assert!(back.iter().cloned().eq(expected), "{back:?}");
}

#[test]
fn the_half_that_sends_takes_what_is_submitted_on_it() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let at = a.at.worker;
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    // It waits across the splitting and the joining.
    submit_own(&mut a, 0);
    let worker = a.workers.swap_remove(at);
    let (mut sending, receiving) = worker.split(&ArenaConfig::new(16, 128)).unwrap();
    let mut lease = sending.lease().unwrap();
    lease.fill(&1_u32.to_be_bytes()).unwrap();
    let half = sending.channel(to).unwrap();
    half.submit(Operation::Send, lease, PostFlags::empty()).unwrap();
    submit(&mut submitter, to, 2);
    let before = sending.statistics().snapshot();
    sending.poll(|_, event| panic!("{event:?}")).unwrap();
    let since = sending.statistics().snapshot().since(&before);
    assert_eq!((since.doorbells, since.requests), (1, 3));
    assert_eq!(numbers(&mut b), [0, 1, 2]);
    let mut lease = sending.lease().unwrap();
    lease.fill(&3_u32.to_be_bytes()).unwrap();
    let half = sending.channel(to).unwrap();
    half.submit(Operation::Send, lease, PostFlags::empty()).unwrap();
    let mut worker = sending.join(receiving).unwrap();
    worker
        .poll_tending(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
        .unwrap();
    assert_eq!(numbers(&mut b), [3]);
}
