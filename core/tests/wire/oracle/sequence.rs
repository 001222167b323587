//! Two machines and a wire between them that may do anything: deliver late and in pieces, flip, cut, repeat,
//! swap, make up frames and close.
//!
//! The bytes select the events, one after the other. The oracle knows the bytes that each side read and wrote, in the
//! terms of the plain reading, and holds the machines to three promises.
//!
//! A side that is connected read three good frames, and not a byte more. If the wire was honest and the keys fit, both
//! sides are connected. If there is a key, a connected side read exactly the bytes that the other wrote: the wire can
//! only end the handshake.

use doorbell_core::handshake::{Initiator, Io, IoError, Responder, Step, Timing};
use doorbell_core::wire::{
    AdvertisedRail, Connect, Endpoint, FrameBuffer, FrameKind, Reject, RejectReason, SLOT_BYTES_MAX, VERSION,
    VERSION_AUTHENTICATED, VersionRange,
};
use doorbell_core::{Instant, Mtu};

use super::choices::Choices;
use super::frames::plain_of;
use super::handshake::{
    endpoint_on, initiator_config, instance, one_key, rail_on, responder_config, sent_by,
};
use super::keys::{Keys, key_of};
use super::plain::frames::{Frame, header, read};
use super::plain::mac::hmac;

const MS_NS: u64 = 1_000_000;
const STEPS_MAX: usize = 512;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) is_initiator_connected: bool,
    pub(crate) is_responder_connected: bool,
    /// Nothing was done that an honest wire, honest callers and a patient clock do not do.
    pub(crate) is_honest: bool,
}

/// One direction: bytes written and not arrived, bytes arrived, and all bytes ever read and written.
#[derive(Default)]
struct Lane {
    in_flight: Vec<u8>,
    arrived: Vec<u8>,
    consumed: Vec<u8>,
    written: Vec<u8>,
    is_closed: bool,
    fails: bool,
    /// How many bytes a write takes at most.
    room: Option<usize>,
}

struct End<'a> {
    incoming: &'a mut Lane,
    outgoing: &'a mut Lane,
}

impl Io for End<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        let lane = &mut *self.incoming;
        if lane.fails {
            return Err(IoError::Failed(104));
        }
        let bytes = buffer.len().min(lane.arrived.len());
        if bytes == 0 {
            return if lane.is_closed {
                Ok(0)
            } else {
                Err(IoError::WouldBlock)
            };
        }
        let piece: Vec<u8> = lane.arrived.drain(..bytes).collect();
        buffer[..bytes].copy_from_slice(&piece);
        lane.consumed.extend(piece);
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let lane = &mut *self.outgoing;
        if lane.is_closed {
            return Err(IoError::Closed);
        }
        let taken = bytes.len().min(lane.room.unwrap_or(usize::MAX));
        if taken == 0 {
            return Err(IoError::WouldBlock);
        }
        lane.in_flight.extend(&bytes[..taken]);
        lane.written.extend(&bytes[..taken]);
        Ok(taken)
    }
}

impl Lane {
    /// Returns the ends of the whole frames in flight.
    fn ends(&self) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut at = 0;
        while let Some((_, body)) = header(&self.in_flight[at..]) {
            at += 10 + body;
            if at > self.in_flight.len() {
                break;
            }
            ends.push(at);
        }
        ends
    }
}

/// Both machines with what their callers remember.
struct World {
    initiator: Initiator<Keys>,
    responder: Responder<Keys>,
    has_keys: [bool; 2],
    /// The key both have, and what it is made of.
    key: Option<(u64, u8)>,
    /// Whether two honest sides can connect.
    fit: bool,
    /// The newest version that both speak.
    version: u8,
    /// From the initiator to the responder, and back.
    lanes: [Lane; 2],
    rails: [Vec<AdvertisedRail>; 2],
    now_ns: u64,
    steps: [Step; 2],
    offered: Option<Connect>,
    accepted: Option<Endpoint>,
    is_honest: bool,
}

/// Panics where two machines that meet so break a promise.
pub(crate) fn check(bytes: &[u8]) -> Outcome {
    let mut choices = Choices::new(bytes);
    let how = choices.byte();
    let rails = [1, 2].map(|host| {
        let count = (how >> host & 1) + 1;
        (0..count).map(|index| rail_on(host, index)).collect::<Vec<_>>()
    });
    let both = one_key().0[0];
    let (ours, theirs, fit) = match how >> 3 & 7 {
        0 => (vec![], vec![], true),
        1 => (vec![both], vec![both], true),
        2 => (vec![both], vec![], false),
        3 => (vec![], vec![both], false),
        4 => (vec![both], vec![(both.0, 1)], false),
        5 => (vec![both], vec![(both.0 + 1, both.1)], false),
        // Keys that are being changed: each side knows both, and they begin with another.
        6 => (vec![both, (9, 9)], vec![(9, 9), both], true),
        _ => (vec![both], vec![(9, 9), (8, 8), both], true),
    };
    let has_keys = [&ours, &theirs].map(|keys| !keys.is_empty());
    let key = (fit && !ours.is_empty()).then_some((both.0.into(), both.1));
    // With keys, a side speaks only versions that have a place for them, whatever its settings.
    let newest = |is_older: u8, keys: &[_]| match (is_older != 0, keys.is_empty()) {
        (true, true) => 1,
        (true, false) => VERSION_AUTHENTICATED,
        (false, _) => VERSION,
    };
    let version = newest(how & 0x40, &ours).min(newest(how & 0x80, &theirs));
    let versions = |is_older: u8| VersionRange::new(1, if is_older == 0 { VERSION } else { 1 }).unwrap();
    let begin = Instant::from_ns(0);
    let mut initiator = initiator_config(Timing::default());
    initiator.versions = versions(how & 0x40);
    let mut responder = responder_config(Timing::default());
    responder.versions = versions(how & 0x80);
    let mut world = World {
        initiator: Initiator::with(initiator, &Keys(ours), &rails[0], begin).unwrap(),
        responder: Responder::with(responder, Keys(theirs), &rails[1], begin).unwrap(),
        has_keys,
        key,
        fit,
        version,
        lanes: [Lane::default(), Lane::default()],
        rails,
        now_ns: 0,
        steps: [Step::Pending, Step::Pending],
        offered: None,
        accepted: None,
        is_honest: true,
    };
    for _ in 0..STEPS_MAX {
        if choices.is_over() {
            break;
        }
        world.step(&mut choices);
    }
    world.finish();
    world.judge()
}

impl World {
    fn now(&self) -> Instant {
        Instant::from_ns(self.now_ns)
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let what = choices.byte();
        let side = usize::from(what >> 7);
        match what & 0x1f {
            0..=7 => self.poll(side, choices.byte()),
            8..=11 => self.deliver(side, usize::MAX),
            12 => self.deliver(side, choices.below(4096)),
            13 => self.lanes[side].room = Some(choices.below(64)),
            14 => self.lanes[side].room = None,
            15 => self.now_ns += MS_NS * u64::from(choices.byte()),
            16 => self.misuse(side, choices.byte()),
            17 => {
                self.is_honest = false;
                let reject = Reject {
                    reason: RejectReason(choices.byte().into()),
                    detail: 7,
                };
                let is_over = matches!(self.steps[side], Step::Connected(_) | Step::Failed(_));
                let rejected = match side {
                    0 => self.initiator.reject(reject),
                    _ => self.responder.reject(reject),
                };
                assert!(!is_over || rejected.is_err(), "an end is an end");
            }
            18 => {
                self.is_honest = false;
                self.lanes[side].is_closed = true;
            }
            19 => {
                self.is_honest = false;
                self.lanes[side].fails = true;
            }
            20 => {
                self.is_honest = false;
                self.now_ns += MS_NS * 1000 * u64::from(choices.byte() & 7);
            }
            21..=24 => {
                self.is_honest = false;
                let frame = made_up(choices);
                self.lanes[side].in_flight.extend(frame);
            }
            _ => self.tamper(side, what & 0x1f, choices),
        }
    }

    /// Tampers with bytes in flight.
    fn tamper(&mut self, side: usize, how: u8, choices: &mut Choices<'_>) {
        let lane = &mut self.lanes[side];
        if lane.in_flight.is_empty() {
            return;
        }
        self.is_honest = false;
        let at = choices.below(lane.in_flight.len());
        let ends = lane.ends();
        match (how, ends.first(), ends.get(1)) {
            (25..=27, ..) => lane.in_flight[at] ^= 1 << (choices.byte() & 7),
            (28, ..) => lane.in_flight[at] = choices.byte(),
            (29, ..) => drop(lane.in_flight.drain(..at)),
            (30, Some(first), _) => {
                let frame = lane.in_flight[..*first].to_vec();
                lane.in_flight.extend(frame);
            }
            (_, Some(first), Some(second)) => lane.in_flight[..*second].rotate_left(*first),
            _ => lane.in_flight.truncate(at),
        }
    }

    fn deliver(&mut self, side: usize, bytes: usize) {
        let lane = &mut self.lanes[side];
        let bytes = bytes.min(lane.in_flight.len());
        let piece: Vec<u8> = lane.in_flight.drain(..bytes).collect();
        lane.arrived.extend(piece);
    }

    /// Calls at a wrong time: refused, and without effect.
    fn misuse(&mut self, side: usize, how: u8) {
        let now = self.now();
        let mut wrong = endpoint_on(u8::try_from(side).unwrap() + 1, 0);
        match how & 3 {
            0 => wrong.rail = 200,
            1 => wrong.parameters.slot_bytes = SLOT_BYTES_MAX + 1,
            2 => wrong.gid.0[3] ^= 1,
            _ => wrong.credit.address = 4,
        }
        if side == 0 {
            assert!(self.initiator.offer(now, wrong, 0).is_err());
            assert!(self.initiator.offer(now, endpoint_on(1, 0), 200).is_err());
            if !matches!(self.steps[0], Step::Prepare(_)) {
                assert!(self.initiator.ready(now).is_err());
            }
        } else {
            assert!(self.responder.accept(now, wrong).is_err());
        }
    }

    /// Polls a machine, and answers what it asks for.
    fn poll(&mut self, side: usize, answer: u8) {
        let now = self.now();
        let was = self.steps[side];
        let consumed = self.lanes[1 - side].consumed.len();
        let [up, down] = &mut self.lanes;
        let step = if side == 0 {
            let mut io = End {
                incoming: down,
                outgoing: up,
            };
            self.initiator.poll(now, &mut io)
        } else {
            let mut io = End {
                incoming: up,
                outgoing: down,
            };
            self.responder.poll(now, &mut io)
        };
        self.steps[side] = step;
        if matches!(was, Step::Connected(_) | Step::Failed(_)) {
            assert_eq!(step, was, "an end is an end");
            assert_eq!(
                self.lanes[1 - side].consumed.len(),
                consumed,
                "nothing is read after the end"
            );
            return;
        }
        let deadline = if side == 0 {
            self.initiator.deadline()
        } else {
            self.responder.deadline()
        };
        if !matches!(step, Step::Connected(_) | Step::Failed(_)) {
            assert!(!deadline.has_passed(now), "past its deadline, and not at an end");
        }
        match step {
            Step::ChooseRail => self.choose(answer),
            Step::Prepare(prepare) if side == 0 => {
                assert_eq!(
                    Some(prepare.local_rail),
                    self.offered.map(|offer| offer.endpoint.rail)
                );
                assert!(prepare.peer.is_sendable());
                self.initiator.ready(now).unwrap();
            }
            Step::Prepare(prepare) => {
                assert!(usize::from(prepare.local_rail) < self.rails[1].len());
                assert!(prepare.peer.is_sendable());
                let mut local = endpoint_on(2, prepare.local_rail);
                local.parameters.mtu = Mtu::from_wire(answer % 5 + 1).unwrap();
                self.responder.accept(now, local).unwrap();
                local.parameters.mtu = local.parameters.mtu.min(prepare.peer.parameters.mtu);
                self.accepted = Some(local);
            }
            _ => {}
        }
    }

    fn choose(&mut self, answer: u8) {
        let now = self.now();
        let theirs = self.initiator.peer_rails().len();
        if theirs == 0 {
            self.is_honest = false;
            let none = Reject::new(RejectReason::NO_COMMON_SUBNET);
            self.initiator.reject(none).unwrap();
            return;
        }
        let own_rail = answer % u8::try_from(self.rails[0].len()).unwrap();
        let connect = Connect {
            endpoint: endpoint_on(1, own_rail),
            peer_rail: answer / 2 % u8::try_from(theirs).unwrap(),
        };
        self.initiator
            .offer(now, connect.endpoint, connect.peer_rail)
            .unwrap();
        self.offered = Some(connect);
    }

    /// Lets what is under way go on, and then the time run out.
    fn finish(&mut self) {
        // Slower than a stage may be, so that it is no longer the wire's doing.
        self.is_honest &= self.now_ns < 1000 * MS_NS;
        self.lanes.iter_mut().for_each(|lane| lane.room = None);
        for _ in 0..8 {
            for side in [0, 1] {
                self.poll(side, 0);
                self.deliver(side, usize::MAX);
            }
        }
        let before = self.steps;
        self.now_ns += 6000 * MS_NS;
        for side in [0, 1] {
            self.poll(side, 0);
            let step = self.steps[side];
            assert!(
                matches!(step, Step::Connected(_) | Step::Failed(_)),
                "all time is up, and it is {step:?}"
            );
        }
        if self.is_honest && self.fit {
            assert!(
                matches!(before, [Step::Connected(_), Step::Connected(_)]),
                "nothing stood in the way: {before:?}"
            );
        }
    }

    fn judge(&self) -> Outcome {
        self.judge_written(0, &[1, 3, 5]);
        self.judge_written(1, &[2, 4, 5]);
        for side in [0, 1] {
            self.judge_proof(side);
        }
        if let Step::Connected(established) = self.steps[0] {
            let read = frames(&self.lanes[1].consumed);
            let [Frame::Welcome(welcome), Frame::Accept(accept), Frame::Ready] = &read[..] else {
                panic!("connected by {read:?}");
            };
            let offer = self.offered.expect("connected without an offer");
            assert_eq!(welcome.version, u64::from(established.version));
            assert!((1..=self.version).contains(&established.version));
            assert_eq!(welcome.instance, instance(2).to_u64());
            assert_eq!(established.peer_instance, instance(2));
            let peer = Connect {
                endpoint: established.peer,
                peer_rail: offer.endpoint.rail,
            };
            assert_eq!(accept, &plain_of(&peer));
            assert_eq!(accept.own_rail, u64::from(offer.peer_rail));
            let rail = &welcome.rails[usize::from(offer.peer_rail)];
            assert_eq!(accept.gid, rail.gid);
            assert!(accept.mtu <= u64::from(offer.endpoint.parameters.mtu.to_wire()));
            assert_eq!(established.local, offer.endpoint);
            assert_eq!(u64::from(established.agreed.mtu.to_wire()), accept.mtu);
        }
        if let Step::Connected(established) = self.steps[1] {
            let read = frames(&self.lanes[0].consumed);
            let [Frame::Hello(hello), Frame::Connect(connect), Frame::Ready] = &read[..] else {
                panic!("connected by {read:?}");
            };
            let spoken = u64::from(established.version);
            assert!((hello.oldest..=hello.newest).contains(&spoken));
            assert!(established.version <= VERSION);
            assert!(hello.listener == 0 || hello.listener == instance(2).to_u64());
            assert_eq!(established.peer_instance.to_u64(), hello.instance);
            let local = self.accepted.expect("connected without being accepted");
            assert_eq!(established.local, local);
            let peer = Connect {
                endpoint: established.peer,
                peer_rail: local.rail,
            };
            assert_eq!(connect, &plain_of(&peer));
            let rail = &hello.rails[usize::try_from(connect.own_rail).unwrap()];
            assert_eq!(connect.gid, rail.gid);
            assert_eq!(established.agreed.mtu, local.parameters.mtu);
        }
        if let ([Step::Connected(ours), Step::Connected(theirs)], true) = (self.steps, self.is_honest) {
            assert_eq!((ours.local, ours.peer), (theirs.peer, theirs.local));
            assert_eq!((ours.version, theirs.version), (self.version, self.version));
            let (a, b) = (ours.agreed, theirs.agreed);
            assert_eq!(
                (a.mtu, a.max_rd_atomic, a.max_dest_rd_atomic),
                (b.mtu, b.max_dest_rd_atomic, b.max_rd_atomic)
            );
        }
        let [is_initiator_connected, is_responder_connected] =
            self.steps.map(|step| matches!(step, Step::Connected(_)));
        Outcome {
            is_initiator_connected,
            is_responder_connected,
            is_honest: self.is_honest,
        }
    }

    /// A side that has keys is connected by what the other said and by nothing else, and each frame of it but the
    /// first of all proves it.
    fn judge_proof(&self, side: usize) {
        let Step::Connected(established) = self.steps[side] else {
            return;
        };
        let used = established.key.map(|key| u64::from(key.to_u32()));
        if !self.has_keys[side] {
            assert_eq!(used, None);
            return;
        }
        let (id, byte) = self.key.expect("connected, and the other has no such key");
        assert_eq!((used, established.version), (Some(id), self.version));
        let heard = &self.lanes[1 - side].consumed;
        assert!(self.lanes[1 - side].written.starts_with(heard));
        let (up, down) = if side == 0 {
            (&self.lanes[0].written, heard)
        } else {
            (heard, &self.lanes[1].written)
        };
        let mut rest = [&up[..], down];
        let mut said = b"doorbell handshake".to_vec();
        for turn in 0..6 {
            let from = turn % 2;
            // The last Ready may not have been heard, nor what it answers.
            let Some((kind, body)) = header(rest[from]) else {
                break;
            };
            let (frame, after) = rest[from].split_at(10 + body);
            rest[from] = after;
            if turn == 0 {
                said.extend(frame);
                continue;
            }
            let (covered, tag) = frame.split_at(frame.len() - 32);
            said.extend(covered);
            let ending = [u8::try_from(from).unwrap() + 1, u8::try_from(kind).unwrap()];
            assert_eq!(hmac(&key_of(byte), &[&said[..], &ending].concat()), tag);
            said.extend(tag);
        }
    }

    /// A side sends its own frames, in order, and at most a Reject after them.
    fn judge_written(&self, side: usize, turns: &[u64]) {
        let written = &self.lanes[side].written;
        let mut kinds = Vec::new();
        let mut rest = &written[..];
        while let Some((kind, body)) = header(rest) {
            kinds.push(kind);
            if rest.len() < 10 + body {
                // Cut where the stream took no more.
                rest = &[];
                break;
            }
            assert!(read(&rest[..10 + body]).is_some(), "{rest:?}");
            rest = &rest[10 + body..];
        }
        assert!(rest.len() < 10, "{written:?}");
        if kinds.last() == Some(&6) {
            kinds.pop();
        }
        assert!(turns.starts_with(&kinds), "{kinds:?}");
    }
}

/// All of these bytes as frames.
fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (_, body) = header(bytes).expect("not a frame");
        let (frame, rest) = bytes.split_at(10 + body);
        frames.push(read(frame).expect("not a frame"));
        bytes = rest;
    }
    frames
}

/// A frame that one of the two might have sent, with changes.
fn made_up(choices: &mut Choices<'_>) -> Vec<u8> {
    let which = choices.byte();
    let kind = FrameKind::from_wire(which % 6 + 1).unwrap();
    let frame: FrameBuffer = sent_by((which >> 7) + 1, kind);
    let mut bytes = frame.as_bytes().to_vec();
    let changes = choices.byte();
    for _ in 0..changes & 3 {
        let at = choices.below(bytes.len());
        bytes[at] = choices.byte();
    }
    // Longer or shorter, and honest about it: the newest version is the second byte of a Hello.
    let more = usize::from(changes >> 4);
    if changes & 4 != 0 {
        bytes.extend((0..more).map(|_| choices.byte()));
    }
    if changes & 8 != 0 {
        if let Some(newest) = bytes.get_mut(11) {
            *newest = 5;
        }
    }
    let body = u16::try_from(bytes.len() - 10).unwrap().to_be_bytes();
    bytes[8..10].copy_from_slice(&body);
    bytes
}
