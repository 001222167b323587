//! Tests of the circuits of a relay. Numbers stand for links.

use core::num::NonZeroU16;
use core::time::Duration;

use super::{Circuits, Heard, Sent};
use crate::frame::{Frame, Receive};
use crate::places::Key;
use crate::relay::credit::{WINDOW_BYTES, cost};
use crate::relay::frame::tests::handle;
use crate::relay::frame::{CircuitFrame, End, Route};

/// A relay, with the messages that its links sent and the links that it closed.
struct Relay {
    circuits: Circuits<u32>,
    /// Links that have no room now.
    full: Vec<u32>,
    said: Vec<(u32, Vec<u8>)>,
    closed: Vec<(u32, bool)>,
    over: usize,
    is_late: bool,
}

const ORIGIN: u32 = 1;
const DESTINATION: u32 = 2;

fn until() -> doorbell::Deadline {
    doorbell::within(Duration::from_secs(3600))
}

fn message(frame: &CircuitFrame) -> Vec<u8> {
    frame.to_vec()
}

fn request(relays: u8) -> Vec<u8> {
    message(&CircuitFrame::Request {
        relays,
        route: Route::NONE,
        handle: handle(),
    })
}

fn hello(port: u16) -> Vec<u8> {
    let port = NonZeroU16::new(port).unwrap();
    Frame::Hello { port }.to_vec()
}

/// Creates a message of the two ends with this length.
fn plain(bytes: usize, fill: u8) -> Vec<u8> {
    let mut message = vec![fill; bytes];
    message[0] = 6;
    message
}

impl Relay {
    fn new(most: usize) -> Self {
        Self {
            circuits: Circuits::new(most, NonZeroU16::MAX),
            full: Vec::new(),
            said: Vec::new(),
            closed: Vec::new(),
            over: 0,
            is_late: false,
        }
    }

    /// Creates a relay with an open circuit, whose first messages were sent.
    fn open() -> Self {
        let mut relay = Self::new(4);
        relay.begin(ORIGIN, DESTINATION);
        relay.said.clear();
        relay
    }

    fn begin(&mut self, origin: u32, destination: u32) -> Key {
        self.circuits.accepted(origin, until());
        let heard = self.hear(origin, &request(1));
        let Heard::Wanted { key, relays: 1, .. } = heard else {
            panic!("{heard:?}");
        };
        assert!(self.circuits.is_searching(key));
        let mut route = Route::NONE;
        route.push([10, 0, 0, 1].into());
        assert!(self.circuits.found(key, (destination, route), Some(route), false));
        self.go_on();
        key
    }

    fn hear(&mut self, link: u32, message: &[u8]) -> Heard {
        self.circuits.hear(link, message, until())
    }

    fn go_on(&mut self) {
        let Self {
            circuits,
            full,
            said,
            closed,
            over,
            is_late,
        } = self;
        circuits.go_on(
            |_| *is_late,
            |link, message| {
                if full.contains(&link) {
                    return Sent::Later;
                }
                said.push((link, message.to_vec()));
                Sent::Taken
            },
            |link, is_orderly| closed.push((link, is_orderly)),
            |_| *over += 1,
        );
    }

    /// Takes the messages sent over a link since the last call.
    fn take(&mut self, link: u32) -> Vec<Vec<u8>> {
        let (of, others) = self.said.drain(..).partition(|(to, _)| *to == link);
        self.said = others;
        let of: Vec<(u32, Vec<u8>)> = of;
        of.into_iter().map(|(_, message)| message).collect()
    }

    /// Checks that both sides are told this end, and that their links are closed.
    fn ends(&mut self, end: End, links: &[u32]) {
        self.go_on();
        self.go_on();
        for link in links {
            let last = self.take(*link).pop();
            assert_eq!(last, Some(message(&CircuitFrame::End { end })), "link {link}");
        }
        let mut closed: Vec<u32> = self.closed.drain(..).map(|(link, _)| link).collect();
        closed.sort_unstable();
        assert_eq!(closed, links);
        assert_eq!(self.circuits.count(), 0);
    }
}

#[test]
fn messages_pass_in_order_both_ways() {
    let mut relay = Relay::new(4);
    relay.begin(ORIGIN, DESTINATION);
    let mut route = Route::NONE;
    route.push([10, 0, 0, 1].into());
    let hello = hello(u16::MAX);
    let connected = message(&CircuitFrame::Connected { route });
    assert_eq!(relay.take(ORIGIN), [hello.clone(), connected]);
    let from = message(&CircuitFrame::From { route });
    assert_eq!(relay.take(DESTINATION), [hello, from]);
    for fill in 1..=5 {
        assert_eq!(relay.hear(ORIGIN, &plain(100, fill)), Heard::Nothing);
        assert_eq!(relay.hear(DESTINATION, &plain(7, fill)), Heard::Nothing);
    }
    assert!(relay.circuits.has_queued());
    relay.go_on();
    let sent = |bytes| -> Vec<_> { (1..=5).map(|fill| plain(bytes, fill)).collect() };
    assert_eq!(relay.take(DESTINATION), sent(100));
    assert_eq!(relay.take(ORIGIN), sent(7));
    assert!(!relay.circuits.has_queued());
}

#[test]
fn hellos_are_for_the_relay_and_come_once() {
    let mut relay = Relay::open();
    let port = NonZeroU16::new(77).unwrap();
    assert_eq!(relay.hear(ORIGIN, &hello(77)), Heard::Lifelines(port));
    assert_eq!(relay.hear(DESTINATION, &hello(77)), Heard::Lifelines(port));
    relay.go_on();
    assert_eq!(relay.said, []);
    assert_eq!(relay.hear(ORIGIN, &hello(78)), Heard::Nothing);
    relay.ends(End::WRONG, &[ORIGIN, DESTINATION]);
}

#[test]
fn one_slow_receiver_blocks_its_own_circuit_alone_and_bounds_it() {
    let mut relay = Relay::open();
    relay.begin(3, 4);
    relay.said.clear();
    relay.full.push(DESTINATION);
    // As many messages as a sender with credit may send.
    let count = WINDOW_BYTES / cost(1000);
    for _ in 0..count {
        assert_eq!(relay.hear(ORIGIN, &plain(1000, 1)), Heard::Nothing);
        assert_eq!(relay.hear(3, &plain(10, 1)), Heard::Nothing);
        relay.go_on();
    }
    assert_eq!(relay.take(4).len(), count);
    assert_eq!(relay.take(DESTINATION).len(), 0);
    assert_eq!(relay.circuits.count(), 2);
    // No credit was reported to the origin.
    assert!(relay.take(ORIGIN).is_empty());
    relay.full.clear();
    relay.go_on();
    // The window of the destination has the same size, and its credit lets the rest pass.
    let passed = relay.take(DESTINATION).len();
    assert_eq!(passed, count);
    relay.go_on();
    let credit: Vec<_> = relay
        .take(ORIGIN)
        .iter()
        .map(|credit| CircuitFrame::parse(credit))
        .collect();
    let bytes = u32::try_from(count * cost(1000)).unwrap();
    assert_eq!(credit, [Some(CircuitFrame::Credit { bytes })]);
    // Further messages wait for the credit of the destination.
    relay.hear(ORIGIN, &plain(1000, 2));
    relay.go_on();
    assert_eq!(relay.take(DESTINATION).len(), 0);
    let credit = message(&CircuitFrame::Credit { bytes });
    assert_eq!(relay.hear(DESTINATION, &credit), Heard::Nothing);
    relay.go_on();
    assert_eq!(relay.take(DESTINATION), [plain(1000, 2)]);
}

#[test]
fn a_sender_beyond_its_credit_ends_its_circuit() {
    let mut relay = Relay::open();
    relay.full.push(DESTINATION);
    let mut held = 0;
    while relay
        .circuits
        .list
        .iter()
        .all(|(_, circuit)| circuit.stage == super::Stage::Open)
    {
        relay.hear(ORIGIN, &plain(5000, 1));
        held += cost(5000);
    }
    assert!(held <= WINDOW_BYTES + cost(5000));
    relay.full.clear();
    relay.ends(End::WRONG, &[ORIGIN, DESTINATION]);
}

#[test]
fn what_breaks_the_rules_ends_its_circuit_and_both_sides_hear_so() {
    let clear = || {
        Frame::Clear {
            to: Key(1),
            request: crate::frame::RequestNumber(0),
            receives: [Receive::default(); 8],
            count: 1,
            placed: 0,
        }
        .to_vec()
    };
    let wrong: [Vec<u8>; 8] = [
        Vec::new(),
        vec![64],
        vec![255; 40],
        request(1),
        message(&CircuitFrame::Credit { bytes: 1 }),
        message(&CircuitFrame::From { route: Route::NONE }),
        message(&CircuitFrame::Connected { route: Route::NONE }),
        hello(1)[..15].iter().map(|byte| byte | 64).collect(),
    ];
    for (number, bytes) in wrong.iter().enumerate() {
        for link in [ORIGIN, DESTINATION] {
            let mut relay = Relay::open();
            assert_eq!(relay.hear(link, bytes), Heard::Nothing, "{number}");
            relay.ends(End::WRONG, &[ORIGIN, DESTINATION]);
        }
    }
    // The first message must be a request.
    for bytes in [
        clear(),
        message(&CircuitFrame::End { end: End::LOST }),
        request(0),
    ] {
        let mut relay = Relay::new(1);
        relay.circuits.accepted(ORIGIN, until());
        assert_eq!(relay.hear(ORIGIN, &bytes), Heard::Nothing);
        relay.ends(End::WRONG, &[ORIGIN]);
    }
}

#[test]
fn a_port_that_came_during_the_search_is_the_only_one() {
    for has_port in [false, true] {
        let mut relay = Relay::new(1);
        relay.circuits.accepted(ORIGIN, until());
        let Heard::Wanted { key, .. } = relay.hear(ORIGIN, &request(1)) else {
            panic!();
        };
        assert!(
            relay
                .circuits
                .found(key, (DESTINATION, Route::NONE), None, has_port)
        );
        let heard = relay.hear(DESTINATION, &hello(1));
        assert_eq!(heard == Heard::Nothing, has_port, "{heard:?}");
    }
}

#[test]
fn an_end_comes_behind_what_was_sent_before_it() {
    let mut relay = Relay::open();
    relay.full.push(DESTINATION);
    relay.hear(ORIGIN, &plain(10, 1));
    relay.hear(ORIGIN, &plain(10, 2));
    assert!(relay.circuits.over(ORIGIN, End::PROCESS_ENDED, until()).is_some());
    relay.go_on();
    assert_eq!((relay.said.len(), relay.closed.len()), (0, 0));
    relay.full.clear();
    relay.go_on();
    let end = message(&CircuitFrame::End {
        end: End::PROCESS_ENDED,
    });
    assert_eq!(relay.take(DESTINATION), [plain(10, 1), plain(10, 2), end]);
    assert_eq!((&relay.closed[..], relay.over), (&[(DESTINATION, true)][..], 1));
    // The links of the circuit are forgotten.
    assert_eq!(relay.hear(DESTINATION, &plain(10, 3)), Heard::Nothing);
    assert_eq!(relay.circuits.over(DESTINATION, End::LOST, until()), None);
}

#[test]
fn a_side_that_takes_nothing_is_closed_in_time() {
    let mut relay = Relay::open();
    relay.full.extend([ORIGIN, DESTINATION]);
    relay.hear(ORIGIN, &plain(10, 1));
    relay.circuits.end_all(until());
    relay.go_on();
    assert_eq!(relay.circuits.count(), 1);
    relay.is_late = true;
    relay.go_on();
    relay.go_on();
    assert_eq!(relay.circuits.count(), 0);
    assert!(relay.closed.iter().all(|(_, is_orderly)| !is_orderly));
}

#[test]
fn a_link_that_asks_for_nothing_is_closed_in_time() {
    let mut relay = Relay::new(1);
    relay.circuits.accepted(ORIGIN, until());
    relay.go_on();
    assert_eq!(relay.circuits.count(), 1);
    relay.is_late = true;
    relay.go_on();
    relay.is_late = false;
    relay.go_on();
    assert_eq!(relay.circuits.count(), 0);
}

#[test]
fn circuits_beyond_the_limit_are_refused_and_others_stay() {
    let mut relay = Relay::open();
    for link in 10..1010 {
        relay.circuits.accepted(link, until());
        relay.hear(link, &request(2));
        relay.go_on();
    }
    let refused = message(&CircuitFrame::End { end: End::FULL });
    let count = relay.said.iter().filter(|(_, said)| *said == refused).count();
    assert_eq!(count, 997);
    assert_eq!(relay.circuits.count(), 4);
    // The end of one circuit makes room for another.
    relay.circuits.over(10, End::CLOSED, until());
    relay.go_on();
    relay.begin(2000, 2001);
    relay.hear(ORIGIN, &plain(10, 9));
    relay.go_on();
    assert_eq!(relay.take(DESTINATION), [plain(10, 9)]);
}

#[test]
fn an_end_of_a_further_relay_is_passed_on_with_its_cause() {
    let mut relay = Relay::open();
    let end = message(&CircuitFrame::End {
        end: End::PROCESS_ENDED,
    });
    assert_eq!(relay.hear(DESTINATION, &end), Heard::Nothing);
    relay.ends(End::PROCESS_ENDED, &[ORIGIN, DESTINATION]);
    // A destination that is found too late is not used.
    let mut relay = Relay::new(1);
    relay.circuits.accepted(ORIGIN, until());
    let Heard::Wanted { key, .. } = relay.hear(ORIGIN, &request(1)) else {
        panic!("no request");
    };
    relay.circuits.over(ORIGIN, End::CLOSED, until());
    assert!(!relay.circuits.is_searching(key));
    assert!(!relay.circuits.found(key, (DESTINATION, Route::NONE), None, false));
}
