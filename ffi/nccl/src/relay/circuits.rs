//! The circuits of a relay, as a state machine without I/O. The caller's type identifies links, and the caller's function sends messages.

use core::num::NonZeroU16;
use std::collections::VecDeque;

use doorbell::{Deadline, Handle};

use super::credit::Credit;
use super::frame::{CircuitFrame, End, Route};
use crate::frame::{Frame, HEADER_BYTES};
use crate::places::{Key, Places};

/// Maximum number of buffers kept for further messages.
const SPARE_MAX: usize = 64;

/// A link of a circuit, and the messages that wait to be sent over it.
#[derive(Debug)]
struct Side<L> {
    link: L,
    /// Messages of the relay itself, sent before all others.
    control: VecDeque<Vec<u8>>,
    /// Messages forwarded from the other side.
    queue: VecDeque<Vec<u8>>,
    /// The end of the circuit, sent after all other messages.
    end: Option<End>,
    credit: Credit,
    /// Whether the peer has sent the port of its lifelines.
    has_port: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No request has arrived yet.
    Begun,
    /// The destination is being connected.
    Searching,
    Open,
    /// The end is being sent to both sides.
    Ending,
}

#[derive(Debug)]
struct Circuit<L> {
    /// The side of the origin, and the side of the destination.
    sides: [Option<Side<L>>; 2],
    stage: Stage,
    /// Deadline of this stage.
    until: Option<Deadline>,
    messages: u64,
    bytes: u64,
}

/// The caller's action after a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    /// The caller must connect the destination, over at most `relays` relays including this one.
    Wanted {
        key: Key,
        relays: u8,
        route: Route,
        handle: Handle,
    },
    /// The peer's lifelines are at this port.
    Lifelines(NonZeroU16),
}

/// Result of an attempt to send a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Taken,
    Later,
    Over,
}

/// Counters of a circuit that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// The circuits of a relay. See the module.
#[derive(Debug)]
pub(crate) struct Circuits<L> {
    list: Places<Circuit<L>>,
    most: usize,
    /// The port of the relay's lifelines.
    port: NonZeroU16,
    spare: Vec<Vec<u8>>,
}

impl<L: Copy + PartialEq> Circuits<L> {
    pub(crate) const fn new(most: usize, port: NonZeroU16) -> Self {
        Self {
            list: Places::new(),
            most,
            port,
            spare: Vec::new(),
        }
    }

    /// Returns the number of circuits, including those that are ending.
    pub(crate) fn count(&self) -> usize {
        self.list.count()
    }

    /// Adds a circuit for a link that a peer has connected. The peer must send a request by `until`. Beyond the limit the circuit ends
    /// as FULL.
    pub(crate) fn accepted(&mut self, link: L, until: Deadline) {
        let is_full = self.count() >= self.most;
        let side = self.side(link, false);
        let key = self.list.add(Circuit {
            sides: [Some(side), None],
            stage: Stage::Begun,
            until: Some(until),
            messages: 0,
            bytes: 0,
        });
        if let Some(key) = key.filter(|_| is_full) {
            self.end(key, End::FULL, until);
        }
    }

    fn side(&self, link: L, has_port: bool) -> Side<L> {
        let mut hello = vec![0; HEADER_BYTES];
        Frame::Hello { port: self.port }.write(&mut hello);
        Side {
            link,
            control: [hello].into(),
            queue: VecDeque::new(),
            end: None,
            credit: Credit::default(),
            has_port,
        }
    }

    fn find(&self, link: L) -> Option<(Key, usize)> {
        self.list.iter().find_map(|(key, circuit)| {
            let is_it = |side: &Option<Side<L>>| side.as_ref().is_some_and(|side| side.link == link);
            Some((key, circuit.sides.iter().position(is_it)?))
        })
    }

    /// Handles a message. A message that violates the protocol ends its circuit by `until`.
    pub(crate) fn hear(&mut self, link: L, message: &[u8], until: Deadline) -> Heard {
        let Some((key, at)) = self.find(link) else {
            return Heard::Nothing;
        };
        self.take(key, at, message, until).unwrap_or_else(|| {
            self.end(key, End::WRONG, until);
            Heard::Nothing
        })
    }

    /// Handles a message of a side. Returns `None` if the message violates the protocol.
    fn take(&mut self, key: Key, at: usize, message: &[u8], until: Deadline) -> Option<Heard> {
        let circuit = self.list.get_mut(key)?;
        let [near, far] = match at {
            0 => circuit.sides.each_mut(),
            _ => {
                let [origin, destination] = circuit.sides.each_mut();
                [destination, origin]
            }
        };
        let near = near.as_mut()?;
        if circuit.stage == Stage::Ending {
            return Some(Heard::Nothing);
        }
        if CircuitFrame::is_one(message) {
            return match (CircuitFrame::parse(message)?, circuit.stage) {
                (CircuitFrame::Credit { bytes }, _) => near.credit.granted(bytes).map(|()| Heard::Nothing),
                (
                    CircuitFrame::Request {
                        relays,
                        route,
                        handle,
                    },
                    Stage::Begun,
                ) => {
                    (circuit.stage, circuit.until) = (Stage::Searching, None);
                    Some(Heard::Wanted {
                        key,
                        relays,
                        route,
                        handle,
                    })
                }
                (CircuitFrame::End { end }, Stage::Open) => {
                    self.end(key, end, until);
                    Some(Heard::Nothing)
                }
                _ => None,
            };
        }
        if let Some(Frame::Hello { port }) = Frame::parse(message) {
            let is_first = !core::mem::replace(&mut near.has_port, true);
            return is_first.then_some(Heard::Lifelines(port));
        }
        let far = far.as_mut().filter(|_| circuit.stage == Stage::Open)?;
        if message.is_empty() {
            return None;
        }
        near.credit.received(message.len())?;
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(message);
        far.queue.push_back(buffer);
        circuit.messages = circuit.messages.wrapping_add(1);
        circuit.bytes = circuit
            .bytes
            .wrapping_add(u64::try_from(message.len()).unwrap_or(u64::MAX));
        Some(Heard::Nothing)
    }

    /// Adds the link to the destination. `has_port` says whether its peer has sent the port of its lifelines. Returns whether the circuit still
    /// exists and was searching.
    pub(crate) fn found(
        &mut self,
        key: Key,
        (link, rest): (L, Route),
        from: Option<Route>,
        has_port: bool,
    ) -> bool {
        let mut side = self.side(link, has_port);
        let Some(circuit) = self
            .list
            .get_mut(key)
            .filter(|circuit| circuit.stage == Stage::Searching)
        else {
            return false;
        };
        // If the link leads to a further relay, the request has told it the route.
        if let Some(route) = from {
            side.control.push_back(CircuitFrame::From { route }.to_vec());
        }
        circuit.stage = Stage::Open;
        circuit.sides[1] = Some(side);
        if let Some(origin) = &mut circuit.sides[0] {
            origin
                .control
                .push_back(CircuitFrame::Connected { route: rest }.to_vec());
        }
        true
    }

    /// Ends a circuit. Both sides are told why, if they take the message by `until`.
    pub(crate) fn end(&mut self, key: Key, end: End, until: Deadline) {
        let circuit = self.list.get_mut(key);
        if let Some(circuit) = circuit.filter(|circuit| circuit.stage != Stage::Ending) {
            (circuit.stage, circuit.until) = (Stage::Ending, Some(until));
            for side in circuit.sides.iter_mut().flatten() {
                side.end = Some(end);
            }
        }
    }

    /// Handles the end of a link: the other side is told why. Returns the circuit, if the link belonged to one.
    pub(crate) fn over(&mut self, link: L, end: End, until: Deadline) -> Option<Key> {
        let (key, at) = self.find(link)?;
        if let Some(side) = self.list.get_mut(key)?.sides.get_mut(at) {
            *side = None;
        }
        self.end(key, end, until);
        Some(key)
    }

    /// Ends all circuits, since the relay ends.
    pub(crate) fn end_all(&mut self, until: Deadline) {
        let keys: Vec<Key> = self.list.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.end(key, End::RELAY_ENDS, until);
        }
    }

    /// Whether the destination of a circuit is still being connected.
    pub(crate) fn is_searching(&self, key: Key) -> bool {
        self.list
            .get(key)
            .is_some_and(|circuit| circuit.stage == Stage::Searching)
    }

    /// Whether any message waits to be sent.
    pub(crate) fn has_queued(&self) -> bool {
        let mut sides = self
            .list
            .iter()
            .flat_map(|(_, circuit)| circuit.sides.iter().flatten());
        sides.any(|side| !side.control.is_empty() || !side.queue.is_empty() || side.end.is_some())
    }

    /// Returns the length of the longest queue of a side, as credit counts it.
    #[cfg(any(test, fuzzing))]
    pub(super) fn queued_bytes_max(&self) -> usize {
        let sides = self
            .list
            .iter()
            .flat_map(|(_, circuit)| circuit.sides.iter().flatten());
        let queued = sides.map(|side| {
            side.queue
                .iter()
                .map(|message| super::credit::cost(message.len()))
                .sum()
        });
        queued.max().unwrap_or(0)
    }

    /// Sends the messages that links and credit allow. Calls `close` with each link to be closed, and with whether all its messages were
    /// sent. Calls `closed` for each circuit that has ended.
    pub(crate) fn go_on(
        &mut self,
        has_passed: impl Fn(Deadline) -> bool,
        mut send: impl FnMut(L, &[u8]) -> Sent,
        mut close: impl FnMut(L, bool),
        mut closed: impl FnMut(Closed),
    ) {
        let Self { list, spare, .. } = self;
        let mut late = Vec::new();
        let mut gone = Vec::new();
        for (key, circuit) in list.iter_mut() {
            let is_late = circuit.until.is_some_and(&has_passed);
            for at in 0..2 {
                circuit.move_to(at, spare, &mut send);
            }
            for place in &mut circuit.sides {
                let is_done =
                    |side: &Side<L>| side.control.is_empty() && side.queue.is_empty() && side.end.is_none();
                if circuit.stage != Stage::Ending {
                    break;
                }
                if let Some(side) = place.take_if(|side| is_late || is_done(side)) {
                    close(side.link, is_done(&side));
                }
            }
            if is_late && circuit.stage == Stage::Begun {
                late.push((key, circuit.until));
            }
            if circuit.stage == Stage::Ending && circuit.sides.iter().all(Option::is_none) {
                gone.push(key);
            }
        }
        for (key, until) in late {
            if let Some(until) = until {
                // The deadline has passed, so the circuit is removed in the next turn.
                self.end(key, End::WRONG, until);
            }
        }
        for key in gone {
            if let Some(Circuit { messages, bytes, .. }) = self.list.remove(key) {
                closed(Closed { messages, bytes });
            }
        }
    }
}

impl<L: Copy + PartialEq> Circuit<L> {
    /// Sends the messages for one side, as far as the link and its credit allow.
    fn move_to(&mut self, at: usize, spare: &mut Vec<Vec<u8>>, send: &mut impl FnMut(L, &[u8]) -> Sent) {
        let [origin, destination] = self.sides.each_mut();
        let (to, from) = match at {
            0 => (origin, destination),
            _ => (destination, origin),
        };
        let Some(to) = to else { return };
        let mut say = |message: &[u8]| send(to.link, message) == Sent::Taken;
        while let Some(message) = to.control.front() {
            if !say(message) {
                return;
            }
            to.control.pop_front();
        }
        if let Some(bytes) = to.credit.owes() {
            if say(&CircuitFrame::Credit { bytes }.to_vec()) {
                to.credit.paid(bytes);
            }
        }
        while let Some(message) = to.queue.front() {
            let bytes = message.len();
            if !to.credit.may_send(bytes) || !say(message) {
                return;
            }
            to.credit.did_send(bytes);
            if let Some(from) = from {
                from.credit.took(bytes);
            }
            if let Some(message) = to.queue.pop_front().filter(|_| spare.len() < SPARE_MAX) {
                spare.push(message);
            }
        }
        if let Some(end) = to.end {
            if say(&CircuitFrame::End { end }.to_vec()) {
                to.end = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
