//! Both machines against each other in virtual time: their outcomes, and the frames that they send. The ends of stages
//! are in `stages`, the choice of a version in `versions`, and refused input in `refused`.

mod refused;
mod stages;
mod versions;

use doorbell_core::handshake::{
    Cause, HandshakeError, Initiator, Io, IoError, Responder, Stage, Step, Timing,
};
use doorbell_core::wire::{Endpoint, Frame, FrameHeader, FrameKind, PrivateData, RemoteWindow};
use doorbell_core::{Instant, Mtu, Rkey};
use zerocopy::{FromBytes, IntoBytes};

use crate::oracle::handshake::{endpoint, initiator, instance, rail, responder};
use crate::pipe::{Pair, connected, failed};

const MS: u64 = 1_000_000;

fn pair() -> Pair {
    Pair::new(initiator(Timing::default()), responder(Timing::default()))
}

/// Answers all requests of the two machines until both have ended, or nothing moves for `polls` polls.
fn run(pair: &mut Pair, local: [Endpoint; 2], polls: usize) -> (Step, Step) {
    let (mut initiator, mut responder) = (Step::Pending, Step::Pending);
    for _ in 0..polls {
        initiator = pair.poll_initiator();
        match initiator {
            Step::ChooseRail => pair.initiator.offer(pair.now(), local[0], 0).unwrap(),
            Step::Prepare(_) => pair.initiator.ready(pair.now()).unwrap(),
            _ => {}
        }
        initiator = pair.poll_initiator();
        responder = pair.poll_responder();
        if let Step::Prepare(_) = responder {
            pair.responder.accept(pair.now(), local[1]).unwrap();
            responder = pair.poll_responder();
        }
    }
    (initiator, responder)
}

fn kinds(mut bytes: &[u8]) -> Vec<FrameKind> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let header = FrameHeader::parse(bytes).unwrap();
        kinds.push(header.kind);
        bytes = &bytes[header.frame_bytes()..];
    }
    kinds
}

#[test]
fn both_connect_and_know_the_same() {
    let mut pair = pair();
    let window = RemoteWindow::new(0x7000_0000, 4096, Rkey(0x1234));
    let mut ours = endpoint(1);
    ours.private_data = PrivateData::new(window.as_bytes()).unwrap();
    ours.parameters.max_rd_atomic = 4;
    let mut theirs = endpoint(2);
    theirs.parameters.max_dest_rd_atomic = 2;
    theirs.parameters.max_rd_atomic = 9;
    let (initiator, responder) = run(&mut pair, [ours, theirs], 10);
    let (initiator, responder) = (connected(initiator), connected(responder));
    assert_eq!((initiator.local, initiator.peer), (ours, theirs));
    assert_eq!((responder.local, responder.peer), (theirs, ours));
    assert_eq!(
        (initiator.peer_instance, responder.peer_instance),
        (instance(2), instance(1))
    );
    assert_eq!((initiator.version, responder.version), (4, 4));
    assert_eq!((initiator.key, responder.key), (None, None));
    assert_eq!(
        (
            initiator.agreed.max_rd_atomic,
            responder.agreed.max_dest_rd_atomic
        ),
        (2, 2)
    );
    assert_eq!(
        (
            initiator.agreed.max_dest_rd_atomic,
            responder.agreed.max_rd_atomic
        ),
        (9, 9)
    );
    let received = RemoteWindow::read_from_bytes(responder.peer.private_data.as_bytes()).unwrap();
    assert_eq!(received, window);
    assert_eq!(
        kinds(&pair.up.history),
        [FrameKind::Hello, FrameKind::Connect, FrameKind::Ready]
    );
    assert_eq!(
        kinds(&pair.down.history),
        [FrameKind::Welcome, FrameKind::Accept, FrameKind::Ready]
    );
}

#[test]
fn one_byte_of_room_at_a_time_is_enough() {
    let mut pair = pair();
    (pair.up.room, pair.down.room) = (Some(1), Some(1));
    let (initiator, responder) = run(&mut pair, [endpoint(1), endpoint(2)], 1000);
    assert_eq!(connected(initiator).peer, endpoint(2));
    assert_eq!(connected(responder).peer, endpoint(1));
    assert!(!pair.initiator.has_unsent() && !pair.responder.has_unsent());
}

#[test]
fn what_follows_the_handshake_is_left_on_the_stream() {
    let mut pair = pair();
    for _ in 0..3 {
        let _ = run(&mut pair, [endpoint(1), endpoint(2)], 1);
    }
    // The responder has sent its last frame; its application goes on at once.
    connected(pair.poll_responder());
    pair.down.bytes.extend(b"first words");
    connected(pair.poll_initiator());
    assert_eq!(pair.down.bytes, b"first words");
}

#[test]
fn the_lower_mtu_counts_whoever_has_it() {
    for (ours, theirs) in [
        (Mtu::B4096, Mtu::B1024),
        (Mtu::B512, Mtu::B2048),
        (Mtu::B256, Mtu::B256),
    ] {
        let mut local = [endpoint(1), endpoint(2)];
        local[0].parameters.mtu = ours;
        local[1].parameters.mtu = theirs;
        let (initiator, responder) = run(&mut pair(), local, 10);
        assert_eq!(connected(initiator).agreed.mtu, ours.min(theirs));
        assert_eq!(connected(responder).agreed.mtu, ours.min(theirs));
    }
}

#[test]
fn neither_connects_before_it_knows_the_other_is_ready() {
    let mut pair = pair();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    assert_eq!(pair.poll_responder(), Step::Pending);
    assert_eq!(pair.poll_initiator(), Step::ChooseRail);
    assert_eq!(pair.initiator.peer_rails(), [rail(2)]);
    assert_eq!(pair.responder.peer_rails(), [rail(1)]);
    pair.initiator.offer(pair.now(), endpoint(1), 0).unwrap();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    let Step::Prepare(prepare) = pair.poll_responder() else {
        panic!("no Connect came")
    };
    assert_eq!((prepare.peer, prepare.local_rail), (endpoint(1), 0));
    // Until the responder says that it is in RTS, the initiator has nothing to connect to.
    for _ in 0..3 {
        assert_eq!(pair.poll_initiator(), Step::Pending);
        assert!(matches!(pair.poll_responder(), Step::Prepare(_)));
    }
    pair.responder.accept(pair.now(), endpoint(2)).unwrap();
    // Until the initiator says so too, the responder is not connected.
    for _ in 0..3 {
        assert_eq!(pair.poll_responder(), Step::Pending);
        let Step::Prepare(prepare) = pair.poll_initiator() else {
            panic!("no Accept came")
        };
        assert_eq!((prepare.peer, prepare.local_rail), (endpoint(2), 0));
    }
    pair.initiator.ready(pair.now()).unwrap();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    // The last Ready has to be on its way before the responder is done.
    pair.down.room = Some(0);
    assert_eq!(pair.poll_responder(), Step::Pending);
    assert_eq!(pair.poll_initiator(), Step::Pending);
    pair.down.room = None;
    connected(pair.poll_responder());
    connected(pair.poll_initiator());
}

#[test]
fn everything_both_say_is_a_frame() {
    let mut pair = pair();
    let _ = run(&mut pair, [endpoint(1), endpoint(2)], 10);
    for lane in [&pair.up, &pair.down] {
        let mut rest = lane.history.as_slice();
        while !rest.is_empty() {
            let (frame, after) = rest.split_at(FrameHeader::parse(rest).unwrap().frame_bytes());
            assert!(Frame::parse(frame).is_ok());
            rest = after;
        }
    }
}

/// A stream that answers every call in the same way.
struct Always(Result<usize, IoError>);

impl Io for Always {
    fn read(&mut self, _: &mut [u8]) -> Result<usize, IoError> {
        self.0
    }

    fn write(&mut self, _: &[u8]) -> Result<usize, IoError> {
        self.0
    }
}

/// A stream on which nothing ever comes.
struct Deaf(Always);

impl Io for Deaf {
    fn read(&mut self, _: &mut [u8]) -> Result<usize, IoError> {
        Err(IoError::WouldBlock)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.0.write(bytes)
    }
}

#[test]
fn what_the_stream_says_is_reported_or_refused() {
    for (answer, cause) in [
        (Err(IoError::Failed(5)), Cause::Stream(5)),
        (Err(IoError::Closed), Cause::PeerClosed),
        (Ok(100_000), Cause::StreamMiscounted),
    ] {
        let now = Instant::from_ns(0);
        let error = failed(responder(Timing::default()).poll(now, &mut Always(answer)));
        assert_eq!((error.stage, error.cause), (Stage::Hello, cause));
        let error = failed(initiator(Timing::default()).poll(now, &mut Always(answer)));
        assert_eq!((error.stage, error.cause), (Stage::Welcome, cause));
    }
    for (answer, step) in [
        (IoError::WouldBlock, Step::Pending),
        (
            IoError::Failed(32),
            Step::Failed(HandshakeError {
                stage: Stage::Welcome,
                cause: Cause::Stream(32),
            }),
        ),
    ] {
        let mut only_writing = Deaf(Always(Err(answer)));
        assert_eq!(
            initiator(Timing::default()).poll(Instant::from_ns(0), &mut only_writing),
            step
        );
    }
}

/// The sizes that the documentation of the machines states.
#[test]
fn a_machine_is_a_few_kilobytes() {
    assert!(
        (8 << 10..10 << 10).contains(&size_of::<Initiator>()),
        "{}",
        size_of::<Initiator>()
    );
    assert!(
        (9 << 10..12 << 10).contains(&size_of::<Responder>()),
        "{}",
        size_of::<Responder>()
    );
}
