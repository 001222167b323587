//! Tests of the table, against a simple model, with honest and hostile messages.

use core::panic::AssertUnwindSafe;
use std::collections::BTreeMap;
use std::panic::{catch_unwind, resume_unwind};

use doorbell_core::wire::{CorrelationId, RequestHeader, RequestKind};
use doorbell_core::{Deadline, Instant, WcStatus};
use doorbell_sim::Random;

use super::{Ended, Heard, RequestFailure, Requests};
use crate::worker::channel::ChannelId;

fn at(ns: u64) -> Deadline {
    Deadline::at(Instant::from_ns(ns))
}

fn answer(id: CorrelationId, body: &[u8]) -> Vec<u8> {
    [&RequestHeader::new(RequestKind::Answer, id).to_bytes(), body].concat()
}

#[test]
fn no_more_are_in_flight_than_may_be() {
    let mut requests = Requests::new(2, 0);
    let first = requests.begin(at(10), "first").unwrap();
    requests.begin(at(10), "second").unwrap();
    assert_eq!(requests.begin(at(10), "third"), Err("third"));
    assert_eq!(requests.cancel(first), Some("first"));
    assert_eq!(requests.cancel(first), None);
    let third = requests.begin(at(10), "third").unwrap();
    assert_eq!(
        requests.hear(&answer(first, b"old")),
        Heard::Late(first, &b"old"[..])
    );
    assert_eq!(
        requests.hear(&answer(third, b"new")),
        Heard::Answer("third", &b"new"[..])
    );
    assert_eq!((requests.counts().late, requests.counts().unasked), (1, 0));
}

#[test]
fn a_deadline_is_passed_at_the_instant_itself() {
    let mut requests = Requests::new(4, 0);
    for (ns, name) in [(30, "third"), (10, "first"), (20, "second")] {
        requests.begin(at(ns), name).unwrap();
    }
    let mut expired = |ns| {
        let mut names = Vec::new();
        requests.expire(Instant::from_ns(ns), |name, end| {
            assert_eq!(end, Ended::TimedOut);
            names.push(name);
        });
        (names, requests.wake().map(|wake| wake.instant().to_ns()))
    };
    assert_eq!(expired(9), (vec![], Some(10)));
    assert_eq!(expired(10), (vec!["first"], Some(20)));
    assert_eq!(expired(29), (vec!["second"], Some(30)));
    assert_eq!(expired(u64::MAX), (vec!["third"], None));
}

#[test]
fn a_panic_in_the_callback_leaves_the_others_an_end() {
    let reason = RequestFailure::PeerClosed;
    for panics_at in 0..4 {
        let mut requests = Requests::new(4, 0);
        for name in 0..4 {
            requests.begin(at(1000), name).unwrap();
        }
        let mut ends = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            requests.fail(reason, |name, end| {
                ends.push((name, end == Ended::Failed(reason)));
                if name == panics_at {
                    resume_unwind(Box::new("the callback's own"));
                }
            });
        }));
        assert!(outcome.is_err());
        // This is before all deadlines.
        requests.expire(Instant::from_ns(1), |name, end| {
            ends.push((name, end == Ended::Failed(reason)))
        });
        assert_eq!(ends, [0, 1, 2, 3].map(|name| (name, true)), "{panics_at}");
        assert_eq!((requests.in_flight(), requests.counts().failed), (0, 4));
        assert_eq!(requests.wake(), None);
    }
}

#[test]
fn a_length_without_limit_is_one_that_can_be_had() {
    let requests = Requests::<()>::new(1, usize::MAX);
    assert_eq!(requests.framing.body_bytes_max(), 1 << 30);
}

#[test]
fn a_request_that_was_never_made_is_distinguished_from_a_late_one() {
    let mut requests = Requests::new(2, 0);
    let id = requests.begin(at(10), ()).unwrap();
    // Ids with an index beyond the table, a later generation, generation 0, and arbitrary values.
    for hostile in [
        id.0 | 7,
        id.0 + (1 << 32),
        id.0 & u64::from(u32::MAX),
        1,
        u64::MAX,
    ] {
        assert_eq!(
            requests.hear(&answer(CorrelationId(hostile), b"")),
            Heard::Unasked
        );
    }
    assert_eq!((requests.counts().late, requests.counts().unasked), (0, 5));
    assert_eq!(requests.hear(&answer(id, b"")), Heard::Answer((), &b""[..]));
    assert_eq!(requests.hear(&answer(id, b"")), Heard::Late(id, &b""[..]));
    assert_eq!((requests.counts().late, requests.counts().unasked), (1, 5));
}

/// A closed channel's index may be reused for another peer, which can guess the ids of requests.
#[test]
fn an_answer_over_another_channel_ends_nothing() {
    let channel = |generation| ChannelId { index: 3, generation };
    let mut requests = Requests::new(2, 0);
    let id = requests.begin(at(10), "asked").unwrap();
    let own = requests.begin(at(10), "own").unwrap();
    requests.note_sent(id, channel(1));
    let (first, said) = (answer(id, b"made up"), answer(own, b""));
    assert_eq!(requests.hear_from(channel(2), &first), Heard::Unasked);
    assert_eq!((requests.in_flight(), requests.counts().unasked), (2, 1));
    let heard = requests.hear_from(channel(1), &first);
    assert_eq!(heard, Heard::Answer("asked", &b"made up"[..]));
    // The table does not know the channel of the other request.
    let heard = requests.hear_from(channel(2), &said);
    assert_eq!(heard, Heard::Answer("own", &b""[..]));
    assert_eq!(
        requests.hear_from(channel(2), &first),
        Heard::Late(id, &b"made up"[..])
    );
    // The entry is reused for a request over the next channel. A late answer of an honest peer does not count as unasked.
    for _ in 0..2 {
        let next = requests.begin(at(10), "next").unwrap();
        requests.note_sent(next, channel(2));
    }
    let late = requests.hear_from(channel(1), &first);
    assert_eq!(late, Heard::Late(id, &b"made up"[..]));
    assert_eq!((requests.counts().late, requests.counts().unasked), (2, 1));
}

#[test]
fn a_late_answer_is_shown_with_the_name_of_its_request() {
    let mut requests = Requests::new(1, 0);
    let id = requests.begin(at(10), ()).unwrap();
    requests.expire(Instant::from_ns(10), |(), end| assert_eq!(end, Ended::TimedOut));
    // The entry is reused for another request by then.
    let other = requests.begin(at(20), ()).unwrap();
    let late = answer(id, b"filled");
    assert_eq!(requests.hear(&late), Heard::Late(id, &b"filled"[..]));
    let in_time = answer(other, b"");
    assert_eq!(requests.hear(&in_time), Heard::Answer((), &b""[..]));
    let counts = requests.counts();
    assert_eq!((counts.timed_out, counts.late, counts.answered), (1, 1, 1));
}

/// A callback that panics loses only the event that it was called with.
#[test]
fn a_panic_in_a_callback_loses_no_other_end() {
    let mut requests = Requests::new(4, 0);
    for number in 0..4 {
        requests.begin(at(10), number).unwrap();
    }
    let mut ended = Vec::new();
    let panicked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        requests.expire(Instant::from_ns(10), |number, _| {
            ended.push(number);
            assert_ne!(number, 1, "as planned");
        });
    }));
    assert!(panicked.is_err());
    requests.expire(Instant::from_ns(10), |number, _| ended.push(number));
    assert_eq!(ended, [0, 1, 2, 3]);
    assert_eq!((requests.in_flight(), requests.counts().timed_out), (0, 4));
}

const fn channel(index: u32) -> ChannelId {
    ChannelId { index, generation: 1 }
}

#[test]
fn a_flush_of_one_channel_is_not_forgotten_for_that_of_another() {
    let flush = RequestFailure::Channel(WcStatus::WR_FLUSH_ERR);
    let mut requests = Requests::new(4, 0);
    for number in 1..=2 {
        let id = requests.begin(at(10), number).unwrap();
        requests.note_sent(id, channel(number));
    }
    let mut ended: Vec<u32> = Vec::new();
    requests.note_failure(channel(1), flush, |number, _| ended.push(number));
    assert!(ended.is_empty(), "its cause may follow");
    requests.note_failure(channel(2), flush, |number, _| ended.push(number));
    assert_eq!(ended, [1]);
    requests.expire(Instant::from_ns(0), |number, end| {
        assert_eq!(end, Ended::Failed(flush));
        ended.push(number);
    });
    assert_eq!((ended, requests.in_flight()), (vec![1, 2], 0));
}

#[test]
fn a_request_of_no_known_channel_ends_with_what_else_is_reported_of_one_that_failed() {
    let failure = RequestFailure::Channel(WcStatus::RETRY_EXC_ERR);
    let mut requests = Requests::new(4, 0);
    let mut ended = Vec::new();
    for number in 1..=2 {
        requests.begin(at(10), number).unwrap();
        let elsewhere = requests.begin(at(10), 10 * number).unwrap();
        requests.note_sent(elsewhere, channel(2));
        requests.note_failure(channel(1), failure, |number, _| ended.push(number));
    }
    assert_eq!((ended, requests.in_flight()), (vec![1, 2], 2));
}

/// A model of the requests that wait and of those that have ended, by number.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<u64, (CorrelationId, u64)>,
    ended: BTreeMap<u64, CorrelationId>,
    next: u64,
}

impl Model {
    fn end(&mut self, number: u64) -> (CorrelationId, u64) {
        let (id, deadline) = self.waiting.remove(&number).expect("ended twice, or never asked");
        self.ended.insert(number, id);
        (id, deadline)
    }

    fn any(of: &[CorrelationId], random: &mut Random) -> Option<CorrelationId> {
        let count = u64::try_from(of.len()).unwrap();
        (count > 0).then(|| of[usize::try_from(random.below(count)).unwrap()])
    }
}

#[test]
fn each_request_ends_once_whatever_the_peer_says() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let (mut requests, mut model, mut now) = (Requests::new(8, 0), Model::default(), 0);
        for _ in 0..2000 {
            let waiting: Vec<_> = model.waiting.values().map(|(id, _)| *id).collect();
            let ended: Vec<_> = model.ended.values().copied().collect();
            match random.below(10) {
                0..3 => {
                    let (number, deadline) = (model.next, now + random.below(50));
                    match requests.begin(at(deadline), number) {
                        Ok(id) => {
                            assert!(model.waiting.values().all(|(other, _)| *other != id));
                            assert!(!ended.contains(&id), "a name was used again");
                            model.waiting.insert(number, (id, deadline));
                            model.next += 1;
                        }
                        Err(back) => assert_eq!((back, waiting.len()), (number, 8)),
                    }
                }
                3..5 => {
                    if let Some(id) = Model::any(&waiting, &mut random) {
                        match requests.hear(&answer(id, b"yes")) {
                            Heard::Answer(number, b"yes") => assert_eq!(model.end(number).0, id),
                            other => panic!("{other:?}"),
                        }
                    }
                }
                5 => {
                    if let Some(id) = Model::any(&ended, &mut random) {
                        assert_eq!(requests.hear(&answer(id, b"")), Heard::Late(id, &b""[..]));
                    }
                }
                6 => {
                    // A valid answer with some bits flipped, truncated at any length.
                    let id = Model::any(&waiting, &mut random).unwrap_or(CorrelationId(random.draw()));
                    let mut bytes = answer(id, b"body");
                    for _ in 0..random.below(3) {
                        let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                        bytes[at] ^= 1 << random.below(8);
                    }
                    bytes.truncate(usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap());
                    if let Heard::Answer(number, _) = requests.hear(&bytes) {
                        let (id, _) = model.end(number);
                        assert_eq!(RequestHeader::parse(&bytes).unwrap().1, id);
                    }
                }
                7 => {
                    if let Some(id) = Model::any(&waiting, &mut random) {
                        let number = requests.cancel(id).expect("it waits");
                        assert_eq!(model.end(number).0, id);
                    }
                }
                8 => {
                    now += random.below(30);
                    requests.expire(Instant::from_ns(now), |number, _| {
                        assert!(model.end(number).1 <= now);
                    });
                    assert!(model.waiting.values().all(|(_, deadline)| *deadline > now));
                }
                _ => {
                    if random.below(20) == 0 {
                        requests.fail(RequestFailure::GivenUp, |number, _| {
                            model.end(number);
                        });
                        assert!(model.waiting.is_empty());
                    }
                }
            }
            assert_eq!(requests.in_flight(), model.waiting.len());
            let earliest = model.waiting.values().map(|(_, deadline)| *deadline).min();
            let wake = requests.wake().map(|wake| wake.instant().to_ns());
            assert!(wake <= earliest && wake.is_some() == earliest.is_some());
        }
        let counts = requests.counts();
        let ends = counts.answered + counts.timed_out + counts.cancelled + counts.failed;
        assert_eq!(ends, u64::try_from(model.ended.len()).unwrap());
        assert_eq!(counts.sent, ends + u64::try_from(model.waiting.len()).unwrap());
        assert!(counts.late > 0 && counts.unasked > 0 && counts.timed_out > 0);
    }
}
