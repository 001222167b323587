use core::time::Duration;

use super::{KeptRequest, Repeat, RequestEnd, RequestId, Requests, UnknownReason};
use crate::Instant;
use crate::session::{Epoch, FinalReason};

const PATIENCE: Duration = Duration::from_millis(100);

const fn ms(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

const fn epoch(number: u32) -> Epoch {
    Epoch::from_wire(number)
}

fn requests() -> Requests<[KeptRequest; 3]> {
    Requests::new([KeptRequest::default(); 3], PATIENCE)
}

fn waiting(requests: &Requests<[KeptRequest; 3]>) -> std::vec::Vec<RequestId> {
    requests.waiting(ms(1000)).map(|(id, _)| id).collect()
}

/// Ends the requests whose time is over. A rail leads to the windows in `reached`.
fn look(requests: &mut Requests<[KeptRequest; 3]>, now: Instant, reached: &[u32]) {
    while let Some((late, window)) = requests.look_at_deadlines(now) {
        requests.end_late(late, reached.contains(&window));
    }
}

const fn unknown(was_posted: bool, reason: UnknownReason) -> RequestEnd {
    RequestEnd::Unknown { was_posted, reason }
}

#[test]
fn as_many_as_there_are_places_and_each_ends_once() {
    let mut requests = requests();
    let ids = [(); 3].map(|()| requests.begin(1, Repeat::Never, ms(0)).unwrap());
    assert_eq!(requests.begin(1, Repeat::Never, ms(0)), None);
    assert_eq!(waiting(&requests), ids);
    requests.posted(ids[1], 0, epoch(1));
    assert!(!requests.done(ids[0]) && requests.done(ids[1]) && !requests.done(ids[1]));
    assert_eq!(requests.poll_end(), Some((ids[1], RequestEnd::Done)));
    assert_eq!(requests.poll_end(), None);
    let next = requests.begin(1, Repeat::Never, ms(0)).unwrap();
    assert_eq!(next.place(), ids[1].place());
    assert_ne!(next, ids[1]);
    assert!(!requests.done(ids[1]));
}

#[test]
fn what_reads_goes_again_at_once_what_writes_once_fenced_and_an_atomic_never() {
    let mut requests = requests();
    let kinds = [Repeat::AtOnce, Repeat::OnceFenced, Repeat::Never];
    let [read, write, atomic] = kinds.map(|repeat| requests.begin(1, repeat, ms(0)).unwrap());
    for id in [read, write, atomic] {
        requests.posted(id, 2, epoch(5));
    }
    requests.rail_lost(1, ms(1));
    assert_eq!((waiting(&requests).len(), requests.fence_due()), (0, None));
    requests.rail_lost(2, ms(1));
    assert_eq!(waiting(&requests), [read]);
    assert_eq!(
        requests.poll_end(),
        Some((atomic, unknown(true, UnknownReason::RailFailed)))
    );
    assert_eq!(requests.fence_due(), Some((2, epoch(5))));
    requests.fence_asked(2);
    assert_eq!(requests.fence_due(), None);
    // The rail over which it was asked is lost, too.
    requests.rail_lost(0, ms(2));
    assert_eq!(requests.fence_due(), Some((2, epoch(5))));
    // A fence of another connection changes nothing.
    requests.fenced(2, epoch(4));
    requests.fenced(1, epoch(9));
    assert_eq!(waiting(&requests), [read]);
    requests.fenced(2, epoch(5));
    assert_eq!(
        (waiting(&requests), requests.fence_due()),
        (std::vec![read, write], None)
    );
}

#[test]
fn nothing_waits_for_ever() {
    let mut requests = requests();
    let never = requests.begin(1, Repeat::AtOnce, ms(0)).unwrap();
    let write = requests.begin(2, Repeat::OnceFenced, ms(10)).unwrap();
    requests.posted(write, 0, epoch(1));
    assert_eq!(requests.wake().unwrap().instant(), ms(100));
    look(&mut requests, ms(99), &[]);
    assert_eq!(requests.poll_end(), None);
    look(&mut requests, ms(100), &[]);
    assert_eq!(
        requests.poll_end(),
        Some((never, unknown(false, UnknownReason::NoRail)))
    );
    // A posted request has no deadline of its own while its rail lives.
    assert_eq!(requests.wake(), None);
    requests.rail_lost(0, ms(150));
    assert_eq!(requests.wake().unwrap().instant(), ms(250));
    // However often its rails fail.
    requests.fenced(0, epoch(1));
    requests.posted(write, 1, epoch(2));
    requests.rail_lost(1, ms(200));
    assert_eq!(requests.wake().unwrap().instant(), ms(250));
    look(&mut requests, ms(250), &[]);
    assert_eq!(
        requests.poll_end(),
        Some((write, unknown(true, UnknownReason::NoRail)))
    );
}

#[test]
fn what_was_posted_to_a_window_that_is_withdrawn_ends_so_where_its_rail_fails() {
    let mut requests = requests();
    let kinds = [Repeat::AtOnce, Repeat::OnceFenced, Repeat::Never];
    let [read, write, atomic] = kinds.map(|repeat| requests.begin(7, repeat, ms(0)).unwrap());
    for id in [read, write, atomic] {
        requests.posted(id, 0, epoch(1));
    }
    requests.withdrawn(7);
    assert_eq!(requests.poll_end(), None);
    requests.rail_lost(0, ms(1));
    assert_eq!((waiting(&requests).len(), requests.fence_due()), (0, None));
    for (id, reason) in [
        (read, UnknownReason::Withdrawn),
        (write, UnknownReason::Withdrawn),
        (atomic, UnknownReason::RailFailed),
    ] {
        assert_eq!(requests.poll_end(), Some((id, unknown(true, reason))));
    }
    // Another may have its place.
    let next = requests.begin(8, Repeat::AtOnce, ms(2)).unwrap();
    requests.posted(next, 0, epoch(2));
    requests.rail_lost(0, ms(3));
    assert_eq!(waiting(&requests), [next]);
}

#[test]
fn a_request_that_no_rail_takes_in_time_ends_with_the_reason() {
    let mut requests = requests();
    let [never, late, none] = [7, 7, 8].map(|window| requests.begin(window, Repeat::AtOnce, ms(0)).unwrap());
    requests.refused(never, ms(3));
    requests.refused(late, ms(5));
    let due = |requests: &Requests<_>, now| {
        requests
            .waiting(now)
            .map(|(id, _)| id)
            .collect::<std::vec::Vec<_>>()
    };
    assert_eq!(requests.wake().unwrap().instant(), ms(13));
    assert_eq!(
        (due(&requests, ms(12)), due(&requests, ms(14))),
        (std::vec![none], std::vec![never, none])
    );
    // The device accepts it, and it waits again, for room.
    requests.posted(late, 0, epoch(1));
    requests.rail_lost(0, ms(1));
    assert!(requests.is_any_open());
    look(&mut requests, ms(101), &[7]);
    assert!(!requests.is_any_open());
    for (id, end) in [
        (never, unknown(false, UnknownReason::Refused)),
        (late, unknown(true, UnknownReason::NoRoom)),
        (none, unknown(false, UnknownReason::NoRail)),
    ] {
        assert_eq!(requests.poll_end(), Some((id, end)));
    }
}

#[test]
fn a_refused_request_wakes_once_and_then_waits_for_a_rail() {
    for (reached, reason) in [
        (&[1][..], UnknownReason::Refused),
        (&[][..], UnknownReason::NoRail),
    ] {
        let mut requests = requests();
        let id = requests.begin(1, Repeat::AtOnce, ms(0)).unwrap();
        requests.refused(id, ms(3));
        look(&mut requests, ms(12), reached);
        assert_eq!(requests.wake().unwrap().instant(), ms(13));
        look(&mut requests, ms(13), reached);
        assert_eq!(requests.wake().unwrap().instant(), ms(100));
        assert_eq!(requests.waiting(ms(13)).count(), 1);
        look(&mut requests, ms(100), reached);
        assert_eq!(requests.poll_end(), Some((id, unknown(false, reason))));
    }
}

#[test]
fn a_request_that_waits_for_a_fence_ends_for_lack_of_a_rail() {
    let mut requests = requests();
    let id = requests.begin(1, Repeat::OnceFenced, ms(0)).unwrap();
    requests.posted(id, 0, epoch(1));
    requests.rail_lost(0, ms(1));
    look(&mut requests, ms(101), &[1]);
    assert_eq!(
        requests.poll_end(),
        Some((id, unknown(true, UnknownReason::NoRail)))
    );
}

#[test]
fn what_is_withdrawn_denied_or_over_ends_with_that() {
    let mut requests = requests();
    let [one, other, denied] = [7, 8, 7].map(|window| requests.begin(window, Repeat::AtOnce, ms(0)).unwrap());
    requests.posted(denied, 0, epoch(1));
    requests.withdrawn(7);
    requests.denied(denied);
    requests.denied(other);
    let over = FinalReason::Unreachable;
    requests.over(over);
    let mut ends = std::vec::Vec::new();
    while let Some(end) = requests.poll_end() {
        ends.push(end);
    }
    assert_eq!(
        ends,
        [
            (one, unknown(false, UnknownReason::Withdrawn)),
            (other, unknown(false, UnknownReason::Over(over))),
            (denied, unknown(true, UnknownReason::Denied)),
        ]
    );
}

#[test]
fn a_request_of_others_ends_by_their_word_alone() {
    let mut requests = requests();
    let long = requests.begin_long(7, ms(0)).unwrap();
    assert!(requests.is_any_open() && waiting(&requests).is_empty());
    assert_eq!(requests.wake(), None);
    requests.posted(long, 0, epoch(1));
    requests.withdrawn(7);
    requests.rail_lost(0, ms(1));
    look(&mut requests, ms(1000), &[]);
    requests.denied(long);
    requests.over(FinalReason::Unreachable);
    assert!(!requests.done(long));
    assert_eq!(requests.poll_end(), None);
    let short = requests.begin(7, Repeat::AtOnce, ms(0)).unwrap();
    requests.end_long(short, RequestEnd::Done);
    requests.end_long(long, RequestEnd::Done);
    assert_eq!(requests.poll_end(), Some((long, RequestEnd::Done)));
    assert_eq!((requests.poll_end(), requests.is_any_open()), (None, true));
    requests.end_long(long, RequestEnd::Done);
    assert_eq!(requests.poll_end(), None);
}

#[test]
fn what_is_given_up_is_not_repeated_and_ends_behind_its_fence() {
    let mut requests = requests();
    let [waits, fencing, posted] = [(); 3].map(|()| requests.begin(1, Repeat::OnceFenced, ms(0)).unwrap());
    requests.posted(fencing, 0, epoch(1));
    requests.posted(posted, 1, epoch(2));
    requests.rail_lost(0, ms(1));
    for id in [waits, fencing, posted] {
        requests.give_up(id, UnknownReason::Denied);
    }
    assert_eq!(
        requests.poll_end(),
        Some((waits, unknown(false, UnknownReason::Denied)))
    );
    requests.give_up(waits, UnknownReason::Denied);
    assert_eq!(requests.poll_end(), None);
    let rail_failed = unknown(true, UnknownReason::RailFailed);
    requests.fenced(0, epoch(1));
    assert_eq!(requests.poll_end(), Some((fencing, rail_failed)));
    requests.rail_lost(1, ms(2));
    assert_eq!(
        (requests.poll_end(), requests.fence_due()),
        (None, Some((1, epoch(2))))
    );
    requests.fenced(1, epoch(2));
    assert_eq!(requests.poll_end(), Some((posted, rail_failed)));
    assert_eq!((requests.is_any_open(), requests.fence_due()), (false, None));
}
