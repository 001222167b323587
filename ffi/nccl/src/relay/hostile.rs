//! Checks arbitrary bytes as messages of a circuit, and as actions of peers at a relay.

use core::num::NonZeroU16;
use core::time::Duration;
use std::collections::VecDeque;

use super::circuits::{Circuits, Heard, Sent};
use super::credit::{WINDOW_BYTES, cost};
use super::frame::{CircuitFrame, End, Route};
use crate::frame::Frame;
use crate::places::Key;

/// Number of circuits of the relay.
const CIRCUITS: usize = 3;

/// Number of links that peers may have. The low bits of a byte select one.
const LINKS: u8 = 16;

/// Checks that a parsed message is encoded as it was received, except for zeros after a handle.
fn check_frames(bytes: &[u8]) {
    if let Some(frame) = CircuitFrame::parse(bytes) {
        assert!(CircuitFrame::is_one(bytes));
        let again = frame.to_vec();
        let (same, rest) = bytes.split_at(again.len());
        assert_eq!(same, again);
        assert!(rest.iter().all(|byte| *byte == 0));
        assert_eq!(CircuitFrame::parse(&again), Some(frame));
    }
    if let Some(frame) = Frame::parse(bytes) {
        assert!(!CircuitFrame::is_one(bytes));
        let again = frame.to_vec();
        assert_eq!(bytes, again);
    }
}

/// Messages that peers have sent, and that the other side has not received yet.
#[derive(Default)]
struct Books {
    /// For each link, the other link of its circuit.
    beside: [Option<u8>; LINKS as usize],
    way: [VecDeque<Vec<u8>>; LINKS as usize],
}

/// Interprets bytes as actions: a byte for the action, one for the link, one for a length, and then a
/// message.
fn check_acts(mut bytes: &[u8]) {
    let mut circuits = Circuits::new(CIRCUITS, NonZeroU16::MAX);
    let mut books = Books::default();
    let mut searched: Vec<(Key, u8)> = Vec::new();
    let mut used = [false; LINKS as usize];
    let until = doorbell::within(Duration::from_secs(3600));
    while let [act, link, length, rest @ ..] = bytes {
        let link = link % LINKS;
        let at = usize::from(link);
        let length = usize::from(*length).min(rest.len());
        let (message, behind) = rest.split_at(length);
        bytes = behind;
        check_frames(message);
        match act % 8 {
            0 if !used[at] && circuits.count() < 2 * CIRCUITS => {
                used[at] = true;
                circuits.accepted(link, until);
            }
            1 => {
                if let Some((key, origin)) = searched.pop().filter(|_| !used[at]) {
                    if circuits.found(key, (link, Route::NONE), Some(Route::NONE), false) {
                        used[at] = true;
                        books.beside[at] = Some(origin);
                        books.beside[usize::from(origin)] = Some(link);
                    }
                }
            }
            2 => {
                circuits.over(link, End::LOST, until);
            }
            3 => circuits.end_all(until),
            other => {
                let repeats = if other == 4 { 64 } else { 1 };
                for _ in 0..repeats {
                    if let Heard::Wanted { key, .. } = circuits.hear(link, message, until) {
                        searched.push((key, link));
                    }
                    let is_plain = !message.is_empty() && Frame::is_relayed(message);
                    if let Some(to) = books.beside[at].filter(|_| is_plain) {
                        books.way[usize::from(to)].push_back(message.to_vec());
                    }
                }
            }
        }
        let full = act >> 3;
        circuits.go_on(
            |_| act & 0xf0 == 0xf0,
            |to, message| {
                if to & 3 == full & 7 {
                    return Sent::Later;
                }
                let is_plain = Frame::is_relayed(message);
                if is_plain {
                    let way = &mut books.way[usize::from(to)];
                    // Messages arrive in order, and each was sent.
                    assert_eq!(way.pop_front().as_deref(), Some(message));
                }
                Sent::Taken
            },
            |link, _| assert!(link < LINKS),
            |_| {},
        );
        assert!(circuits.count() <= 2 * CIRCUITS);
        assert!(circuits.queued_bytes_max() <= WINDOW_BYTES + cost(255));
    }
}

/// Checks bytes as a message, and as actions.
pub(crate) fn check(bytes: &[u8]) {
    check_frames(bytes);
    check_acts(bytes);
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU16;

    use super::super::frame::tests::handle;
    use super::{CircuitFrame, End, Frame, Route, check};
    use crate::frame::{RECEIVES_MAX, Receive, RequestNumber, Target};
    use crate::places::Key;
    use crate::replay;

    /// Encodes the action of sending a request.
    fn request(link: u8) -> Vec<u8> {
        let message = CircuitFrame::Request {
            relays: 1,
            route: Route::NONE,
            handle: handle(),
        }
        .to_vec();
        [&[5, link, message.len() as u8], &message[..]].concat()
    }

    /// Encodes the action of sending a message.
    fn say(link: u8, message: &[u8]) -> Vec<u8> {
        [&[5, link, message.len() as u8], message].concat()
    }

    fn seeds() -> [(&'static str, Vec<u8>); 4] {
        let accepted = |link| vec![0, link, 0];
        let port = NonZeroU16::new(7).unwrap();
        let hello = |link| say(link, &Frame::Hello { port }.to_vec());
        let target = Target {
            to: Key(1),
            request: RequestNumber::new(3, 7),
            index: 0,
        };
        let mut receives = [Receive::default(); RECEIVES_MAX];
        receives[0].bytes = 8;
        let clear = Frame::Clear {
            to: Key(1),
            request: target.request,
            receives,
            count: 1,
            placed: 0,
        };
        let payload = &[7; 8];
        let eager = Frame::Eager { target, payload }.to_vec();
        let part = Frame::Part {
            target,
            total: 64,
            payload,
        };
        let (credit, end) = (
            CircuitFrame::Credit { bytes: 80 },
            CircuitFrame::End { end: End::CLOSED },
        );
        let begun = [accepted(0), hello(0), request(0), vec![1, 4, 0], hello(4)].concat();
        let both = [say(4, &clear.to_vec()), say(0, &eager), say(0, &part.to_vec())].concat();
        let often = [&[4, 0, eager.len() as u8], &eager[..]].concat();
        let route = Route::NONE.then(&Route::NONE);
        let words = [CircuitFrame::Connected { route }, CircuitFrame::From { route }];
        let words = words.map(|frame| say(1, &frame.to_vec())).concat();
        [
            (
                "messages",
                [
                    &begun[..],
                    &both,
                    &say(4, &credit.to_vec()),
                    &say(4, &end.to_vec()),
                ]
                .concat(),
            ),
            ("flood", [&begun[..], &often, &often, &[2, 4, 0]].concat()),
            ("wrong", [accepted(1), words, accepted(2), vec![3, 0, 0]].concat()),
            (
                "many",
                (0..8)
                    .flat_map(|link| [accepted(link), request(link)].concat())
                    .collect(),
            ),
        ]
    }

    #[test]
    fn seeds_are_those_of_this_version_and_break_nothing() {
        for (name, bytes) in seeds() {
            let path = replay::folder("circuits").join(name);
            if std::env::var_os("DOORBELL_WRITE_SEEDS").is_some() {
                std::fs::write(&path, &bytes).unwrap();
            }
            assert_eq!(std::fs::read(path).unwrap(), bytes, "{name}");
        }
        replay::replay("circuits", check);
    }

    #[test]
    fn acts_of_strangers_pass_nothing_on_but_messages_in_order() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..3000 {
            let mut script = Vec::new();
            for _ in 0..draw() % 40 {
                let link = (draw() % 4) as u8;
                match draw() % 8 {
                    // A valid start of a circuit.
                    0 => script.extend([vec![0, link, 0], request(link), vec![1, link + 4, 0]].concat()),
                    // Messages of the two ends.
                    1..=4 => {
                        let bytes = (draw() % 250 + 1) as u8;
                        script.extend([(draw() % 16) as u8 | 4, (draw() % 8) as u8, bytes, 6]);
                        script.extend((1..bytes).map(|_| draw() as u8));
                    }
                    5 => script.extend(request(link)),
                    _ => script.extend((0..draw() % 40).map(|_| draw() as u8)),
                }
            }
            check(&script);
        }
    }

    #[test]
    fn changed_bytes_of_messages_never_panic() {
        let whole = request(0)[3..].to_vec();
        for place in 0..whole.len() {
            for value in 0..=255 {
                let mut changed = whole.clone();
                changed[place] = value;
                super::check_frames(&changed);
                super::check_frames(&changed[..place]);
            }
        }
    }
}
