//! Both machines against each other in virtual time, and against peers that go wrong.

use core::time::Duration;

use doorbell_core::handshake::{
    Cause, Established, Fault, HandshakeError, Initiator, Io, IoError, Misuse, Responder, Stage, Step, Timing,
};
use doorbell_core::wire::{
    Endpoint, Frame, FrameHeader, FrameKind, InstanceId, PrivateData, Reject, RejectReason, RemoteWindow,
    Resumption, VersionRange,
};
use doorbell_core::{Instant, Mtu, Qpn, Rkey};
use zerocopy::{FromBytes, IntoBytes};

use crate::oracle::handshake::{
    endpoint, initiator, initiator_config, instance, rail, responder, responder_config,
};
use crate::oracle::keys::Keys;
use crate::pipe::{End, Lane, Pair};
use crate::samples;

const MS: u64 = 1_000_000;

fn pair() -> Pair {
    Pair::new(initiator(Timing::default()), responder(Timing::default()))
}

/// Answers whatever the two ask for until both are at an end, or nothing moves for `polls` polls.
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

fn connected(step: Step) -> Established {
    let Step::Connected(established) = step else {
        panic!("{step:?}")
    };
    established
}

fn failed(step: Step) -> HandshakeError {
    let Step::Failed(error) = step else {
        panic!("{step:?}")
    };
    error
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
    assert_eq!((initiator.version, responder.version), (2, 2));
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
    let told = RemoteWindow::read_from_bytes(responder.peer.private_data.as_bytes()).unwrap();
    assert_eq!(told, window);
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
    // The responder has said its last; its application goes on at once.
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

/// Brings a pair to where `stage` is what one of the two waits for, and says which.
fn at(stage: Stage) -> (Pair, bool) {
    let mut pair = pair();
    if stage == Stage::Hello {
        return (pair, false);
    }
    assert_eq!(pair.poll_initiator(), Step::Pending);
    if stage == Stage::Welcome {
        return (pair, true);
    }
    assert_eq!(pair.poll_responder(), Step::Pending);
    if stage == Stage::Connect {
        return (pair, false);
    }
    assert_eq!(pair.poll_initiator(), Step::ChooseRail);
    if stage == Stage::ChooseRail {
        return (pair, true);
    }
    pair.initiator.offer(pair.now(), endpoint(1), 0).unwrap();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    if stage == Stage::Accept {
        return (pair, true);
    }
    assert!(matches!(pair.poll_responder(), Step::Prepare(_)));
    if stage == Stage::Prepare {
        return (pair, false);
    }
    pair.responder.accept(pair.now(), endpoint(2)).unwrap();
    assert_eq!(pair.poll_responder(), Step::Pending);
    assert!(matches!(pair.poll_initiator(), Step::Prepare(_)));
    if stage == Stage::Ready {
        return (pair, false);
    }
    assert_eq!(stage, Stage::LastWrite);
    pair.initiator.ready(pair.now()).unwrap();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    pair.down.room = Some(0);
    assert_eq!(pair.poll_responder(), Step::Pending);
    (pair, false)
}

const STAGES: [Stage; 8] = [
    Stage::Hello,
    Stage::Welcome,
    Stage::ChooseRail,
    Stage::Connect,
    Stage::Prepare,
    Stage::Accept,
    Stage::Ready,
    Stage::LastWrite,
];

fn poll(pair: &mut Pair, is_initiator: bool) -> Step {
    if is_initiator {
        pair.poll_initiator()
    } else {
        pair.poll_responder()
    }
}

#[test]
fn every_stage_ends_at_its_deadline_and_not_before() {
    for stage in STAGES {
        let (mut pair, is_initiator) = at(stage);
        pair.now_ns = 1000 * MS - 1;
        let waiting = poll(&mut pair, is_initiator);
        assert!(!matches!(waiting, Step::Failed(_)), "{stage}: {waiting:?}");
        pair.now_ns = 1000 * MS;
        let error = failed(poll(&mut pair, is_initiator));
        assert_eq!(
            error,
            HandshakeError {
                stage,
                cause: Cause::StageTimedOut
            },
            "{stage}"
        );
        let is_ours = matches!(stage, Stage::ChooseRail | Stage::Prepare);
        assert_eq!(
            error.fault(),
            if is_ours { Fault::Local } else { Fault::Peer },
            "{stage}"
        );
        assert!(error.to_string().contains(&stage.to_string()));
    }
}

#[test]
fn the_whole_ends_at_its_deadline_though_every_stage_is_in_time() {
    let timing = Timing {
        stage: Duration::from_millis(400),
        whole: Duration::from_millis(1000),
    };
    for (last_ns, is_good) in [(1000 * MS - 1, true), (1000 * MS, false)] {
        let mut pair = Pair::new(initiator(timing), responder(timing));
        let mut ends = (Step::Pending, Step::Pending);
        for now_ns in [0, 300 * MS, 650 * MS] {
            pair.now_ns = now_ns;
            ends = run(&mut pair, [endpoint(1), endpoint(2)], 1);
        }
        assert_eq!(ends.0, Step::Pending, "the initiator waits for the last Ready");
        pair.now_ns = last_ns;
        pair.down.bytes.clear();
        let end = pair.poll_initiator();
        if is_good {
            assert_eq!(end, Step::Pending);
        } else {
            assert_eq!(failed(end).cause, Cause::WholeTimedOut);
        }
    }
}

#[test]
fn a_peer_that_drips_does_not_outlive_the_stage() {
    let (mut donor, _) = at(Stage::Welcome);
    let hello: Vec<u8> = donor.up.bytes.drain(..).collect();
    let mut pair = pair();
    for (index, byte) in hello.iter().enumerate() {
        pair.now_ns = index as u64 * 20 * MS;
        pair.up.bytes.push_back(*byte);
        match pair.poll_responder() {
            Step::Pending => assert!(pair.now_ns < 1000 * MS),
            step => {
                assert_eq!(
                    failed(step),
                    HandshakeError {
                        stage: Stage::Hello,
                        cause: Cause::StageTimedOut
                    }
                );
                assert_eq!(pair.now_ns, 1000 * MS);
                return;
            }
        }
    }
    panic!("the drip went on for {} ms", pair.now_ns / MS);
}

#[test]
fn what_came_in_time_counts_though_the_poll_is_late() {
    let (mut pair, _) = at(Stage::Accept);
    pair.now_ns = 999 * MS;
    let _ = pair.poll_responder();
    pair.responder.accept(pair.now(), endpoint(2)).unwrap();
    let _ = pair.poll_responder();
    pair.now_ns = 3000 * MS;
    assert!(matches!(pair.poll_initiator(), Step::Prepare(_)));
}

#[test]
fn a_peer_that_closes_is_noticed_at_every_stage() {
    for stage in STAGES {
        let (mut pair, is_initiator) = at(stage);
        (pair.up.closed, pair.down.closed) = (true, true);
        // What arrived before counts; nothing more will.
        (pair.up.room, pair.down.room) = (None, None);
        if is_initiator {
            pair.down.bytes.clear()
        } else {
            pair.up.bytes.clear()
        }
        let error = failed(poll(&mut pair, is_initiator));
        assert_eq!(
            error,
            HandshakeError {
                stage,
                cause: Cause::PeerClosed
            },
            "{stage}"
        );
        assert_eq!(error.fault(), Fault::Peer);
    }
}

#[test]
fn rubbish_is_refused_at_every_stage_and_the_peer_is_told() {
    // The last write is not answered by anything, so nothing is read.
    for stage in STAGES.into_iter().filter(|stage| *stage != Stage::LastWrite) {
        let (mut pair, is_initiator) = at(stage);
        let lane = if is_initiator {
            &mut pair.down
        } else {
            &mut pair.up
        };
        lane.bytes.clear();
        lane.bytes.extend(b"GET / HTTP/1.1\r\n\r\n");
        let error = failed(poll(&mut pair, is_initiator));
        assert!(matches!(error.cause, Cause::Wire(_)), "{stage}: {error}");
        assert_eq!((error.stage, error.fault()), (stage, Fault::Peer));
        let told = if is_initiator { &pair.up } else { &pair.down };
        assert_eq!(kinds(&told.history).last(), Some(&FrameKind::Reject), "{stage}");
    }
}

#[test]
fn an_oversize_frame_is_refused_by_its_header() {
    let mut pair = pair();
    pair.up.bytes.extend(b"DBLF\x01\x01\x00\x00\xff\xff");
    let error = failed(pair.poll_responder());
    assert_eq!(
        error.to_string(),
        "handshake failed waiting for the peer's Hello: the peer's bytes are wrong: \
         frame header: body length at byte 8: too long"
    );
}

#[test]
fn a_rejection_reaches_the_other_side_with_its_reason() {
    let reject = Reject {
        reason: RejectReason::QUEUE_PAIR,
        detail: 12,
    };
    for stage in STAGES {
        let (mut pair, is_initiator) = at(stage);
        pair.down.room = None;
        if is_initiator {
            pair.initiator.reject(reject).unwrap();
            assert_eq!(pair.initiator.reject(reject), Err(Misuse::Over));
        } else {
            pair.responder.reject(reject).unwrap();
            assert_eq!(pair.responder.reject(reject), Err(Misuse::Over));
        }
        let error = failed(poll(&mut pair, is_initiator));
        assert_eq!(
            error,
            HandshakeError {
                stage,
                cause: Cause::RejectedHere(reject)
            }
        );
        (pair.up.closed, pair.down.closed) = (true, true);
        if stage == Stage::Hello {
            // Nothing was said yet; the initiator finds the rejection though its Hello meets a closed stream.
            assert!(pair.up.history.is_empty());
        }
        let other = match poll(&mut pair, !is_initiator) {
            // An end that was just now connected stays so; every other hears of it.
            Step::Connected(_) if stage == Stage::LastWrite => continue,
            step => failed(step),
        };
        assert_eq!(other.cause, Cause::RejectedByPeer(reject), "{stage}");
        assert_eq!(other.fault(), Fault::Peer);
        assert!(
            other
                .to_string()
                .contains("its queue pair could not be set up (detail 12)")
        );
    }
}

#[test]
fn a_rejection_waits_behind_a_frame_that_is_half_sent() {
    let (mut pair, _) = at(Stage::Hello);
    pair.up.room = Some(5);
    assert_eq!(pair.poll_initiator(), Step::Pending);
    pair.initiator.reject(Reject::new(RejectReason::CLOSING)).unwrap();
    failed(pair.poll_initiator());
    assert!(pair.initiator.has_unsent());
    pair.up.room = None;
    failed(pair.poll_initiator());
    assert!(!pair.initiator.has_unsent());
    assert_eq!(kinds(&pair.up.history), [FrameKind::Hello, FrameKind::Reject]);
    assert_eq!(
        failed(pair.poll_responder()),
        HandshakeError {
            stage: Stage::Connect,
            cause: Cause::RejectedByPeer(Reject::new(RejectReason::CLOSING))
        }
    );
}

#[test]
fn versions_that_do_not_meet_are_told_to_both() {
    let mut pair = pair();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    // The Hello of a peer that speaks 3 and 4 only.
    (pair.up.bytes[10], pair.up.bytes[11]) = (3, 4);
    let error = failed(pair.poll_responder());
    let theirs = VersionRange::new(3, 4).unwrap();
    assert_eq!(
        error.cause,
        Cause::Version {
            ours: VersionRange::OURS,
            theirs
        }
    );
    assert_eq!(error.fault(), Fault::Both);
    let reject = Reject {
        reason: RejectReason::VERSION,
        detail: 0x0102,
    };
    assert_eq!(failed(pair.poll_initiator()).cause, Cause::RejectedByPeer(reject));
}

#[test]
fn with_a_newer_initiator_the_lower_version_wins() {
    let mut pair = pair();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    pair.up.bytes[11] = 3;
    let (initiator, responder) = run(&mut pair, [endpoint(1), endpoint(2)], 10);
    assert_eq!(
        (connected(initiator).version, connected(responder).version),
        (2, 2)
    );
}

/// A pair of which each side speaks these versions.
fn of_versions(ours: [(u8, u8); 2]) -> Pair {
    let [ours, theirs] = ours.map(|(oldest, newest)| VersionRange::new(oldest, newest).unwrap());
    let now = Instant::from_ns(0);
    let mut config = initiator_config(Timing::default());
    config.versions = ours;
    let initiator = Initiator::with(config, &Keys::default(), &[rail(1)], now).unwrap();
    let mut config = responder_config(Timing::default());
    config.versions = theirs;
    let responder = Responder::with(config, Keys::default(), &[rail(2)], now).unwrap();
    Pair::new(initiator, responder)
}

#[test]
fn two_versions_meet_in_the_lower_and_the_session_is_there_where_it_has_a_place() {
    for (versions, spoken) in [
        ([(1, 1), (1, 1)], 1),
        ([(1, 1), (1, 2)], 1),
        ([(1, 2), (1, 1)], 1),
        ([(1, 2), (1, 2)], 2),
        ([(2, 2), (1, 2)], 2),
        ([(1, 2), (2, 2)], 2),
    ] {
        let mut pair = of_versions(versions);
        let mut local = [endpoint(1), endpoint(2)];
        if spoken == 2 {
            local[0].session = Some(samples::resumption());
            local[1].session = Some(Resumption {
                next_sequence: 9,
                ..samples::resumption()
            });
        }
        let (initiator, responder) = run(&mut pair, local, 10);
        let (initiator, responder) = (connected(initiator), connected(responder));
        assert_eq!((initiator.version, responder.version), (spoken, spoken));
        assert_eq!((initiator.peer, responder.peer), (local[1], local[0]));
    }
    for versions in [[(1, 1), (2, 2)], [(2, 2), (1, 1)]] {
        let (initiator, responder) = run(&mut of_versions(versions), [endpoint(1), endpoint(2)], 10);
        assert!(matches!(failed(responder).cause, Cause::Version { .. }));
        assert!(matches!(failed(initiator).cause, Cause::RejectedByPeer(_)));
    }
}

#[test]
fn a_session_is_not_left_out_where_the_version_has_no_place_for_it() {
    let mut pair = of_versions([(1, 2), (1, 1)]);
    let with_session = |host| Endpoint {
        session: Some(samples::resumption()),
        ..endpoint(host)
    };
    let _ = (pair.poll_initiator(), pair.poll_responder());
    assert_eq!(pair.poll_initiator(), Step::ChooseRail);
    let now = pair.now();
    assert_eq!(
        pair.initiator.offer(now, with_session(1), 0),
        Err(Misuse::Unsendable)
    );
    pair.initiator.offer(now, endpoint(1), 0).unwrap();
    let _ = (pair.poll_initiator(), pair.poll_responder());
    assert_eq!(
        pair.responder.accept(now, with_session(2)),
        Err(Misuse::Unsendable)
    );
    pair.responder.accept(now, endpoint(2)).unwrap();
}

#[test]
fn a_frame_in_another_version_than_was_chosen_is_refused() {
    // Ready is the same in both but for its header.
    let (mut pair, _) = at(Stage::Ready);
    pair.initiator.ready(pair.now()).unwrap();
    let _ = pair.poll_initiator();
    pair.up.bytes[4] = 1;
    let error = failed(pair.poll_responder());
    assert!(
        error
            .to_string()
            .ends_with("frame header: version at byte 4: contradicts what was said elsewhere"),
        "{error}"
    );
}

#[test]
fn a_responder_that_chooses_a_version_we_did_not_offer_is_refused() {
    let (mut pair, _) = at(Stage::Welcome);
    let _ = pair.poll_responder();
    // Neither in the header nor in the body, nor only in one of them.
    for (index, value) in [(4, 3), (10, 3), (4, 1), (10, 1)] {
        let mut other = pair.initiator.clone();
        let mut down = Lane::default();
        down.bytes.extend(&pair.down.bytes);
        down.bytes[index] = value;
        let mut io = End {
            incoming: &mut down,
            outgoing: &mut Lane::default(),
        };
        let error = failed(other.poll(Instant::from_ns(0), &mut io));
        assert!(matches!(error.cause, Cause::Wire(_)), "{index} {value}: {error}");
    }
    // One that says throughout what was not offered.
    let mut other = of_versions([(2, 2), (1, 1)]);
    let mut of_the_oldest = of_versions([(1, 1), (1, 1)]);
    let _ = of_the_oldest.poll_initiator();
    let _ = of_the_oldest.poll_responder();
    other.down.bytes = of_the_oldest.down.bytes;
    let error = failed(other.poll_initiator());
    let [ours, theirs] = [2, 1].map(|version| VersionRange::new(version, version).unwrap());
    assert_eq!(error.cause, Cause::Version { ours, theirs });
}

fn initiator_for(listener: Option<InstanceId>) -> Initiator<Keys> {
    let mut config = initiator_config(Timing::default());
    config.listener = listener;
    Initiator::with(config, &Keys::default(), &[rail(1)], Instant::from_ns(0)).unwrap()
}

#[test]
fn a_stale_handle_is_recognised_by_either_side() {
    let stale = instance(9);
    let mut pair = Pair::new(initiator_for(Some(stale)), responder(Timing::default()));
    let _ = pair.poll_initiator();
    let cause = Cause::StaleHandle {
        meant: stale,
        found: instance(2),
    };
    assert_eq!(failed(pair.poll_responder()).cause, cause);
    let error = failed(pair.poll_initiator());
    assert_eq!(
        error.cause,
        Cause::RejectedByPeer(Reject::new(RejectReason::STALE_HANDLE))
    );
    assert_eq!(error.fault(), Fault::Local);
    // A responder that does not care is found out by the initiator.
    let mut pair = Pair::new(initiator_for(None), responder(Timing::default()));
    let _ = pair.poll_initiator();
    let _ = pair.poll_responder();
    pair.initiator = initiator_for(Some(stale));
    assert_eq!(failed(pair.poll_initiator()).cause, cause);
}

#[test]
fn without_a_handle_any_listener_will_do() {
    let mut pair = Pair::new(initiator_for(None), responder(Timing::default()));
    let (initiator, _) = run(&mut pair, [endpoint(1), endpoint(2)], 10);
    assert_eq!(connected(initiator).peer_instance, instance(2));
}

#[test]
fn an_endpoint_that_contradicts_what_was_told_is_refused() {
    // Offsets in the frame: GID 10, MTU 34, sender's rail 43, receiver's rail 44.
    for (index, value) in [(25, 9), (43, 1), (44, 1)] {
        let (mut pair, _) = at(Stage::Accept);
        pair.up.bytes[index] = value;
        let error = failed(pair.poll_responder());
        assert!(
            matches!(error.cause, Cause::Wire(_)),
            "Connect byte {index}: {error}"
        );
    }
    for (index, value) in [(25, 9), (34, 5), (43, 1), (44, 1)] {
        let (mut pair, _) = at(Stage::Accept);
        let _ = pair.poll_responder();
        pair.responder.accept(pair.now(), endpoint(2)).unwrap();
        let _ = pair.poll_responder();
        pair.down.bytes[index] = value;
        let error = failed(pair.poll_initiator());
        assert!(
            matches!(error.cause, Cause::Wire(_)),
            "Accept byte {index}: {error}"
        );
    }
}

#[test]
fn a_caller_is_told_of_its_own_mistakes_and_the_handshake_goes_on() {
    let (mut pair, _) = at(Stage::ChooseRail);
    let now = pair.now();
    assert_eq!(
        pair.initiator.ready(now),
        Err(Misuse::OutOfTurn(Stage::ChooseRail))
    );
    let mut wrong = endpoint(1);
    wrong.rail = 1;
    assert_eq!(
        pair.initiator.offer(now, wrong, 0),
        Err(Misuse::NoSuchLocalRail(1))
    );
    assert_eq!(
        pair.initiator.offer(now, endpoint(1), 1),
        Err(Misuse::NoSuchPeerRail(1))
    );
    let mut wrong = endpoint(1);
    wrong.gid = rail(2).gid();
    assert_eq!(pair.initiator.offer(now, wrong, 0), Err(Misuse::GidNotOfRail));
    let mut wrong = endpoint(1);
    wrong.qpn = Qpn::new(1).unwrap();
    assert_eq!(pair.initiator.offer(now, wrong, 0), Err(Misuse::Unsendable));
    pair.initiator.offer(now, endpoint(1), 0).unwrap();
    assert_eq!(
        pair.initiator.offer(now, endpoint(1), 0),
        Err(Misuse::OutOfTurn(Stage::Accept))
    );
    let _ = pair.poll_initiator();
    assert_eq!(
        pair.responder.accept(now, endpoint(2)),
        Err(Misuse::OutOfTurn(Stage::Connect))
    );
    assert!(matches!(pair.poll_responder(), Step::Prepare(_)));
    let mut wrong = endpoint(2);
    wrong.rail = 1;
    assert_eq!(pair.responder.accept(now, wrong), Err(Misuse::NoSuchLocalRail(1)));
    assert_eq!(pair.responder.accept(now, endpoint(1)), Err(Misuse::GidNotOfRail));
    let (initiator, responder) = run(&mut pair, [endpoint(1), endpoint(2)], 5);
    connected(initiator);
    connected(responder);
    assert_eq!(pair.initiator.ready(now), Err(Misuse::Over));
}

#[test]
fn no_rail_in_common_is_the_callers_to_say() {
    let (mut pair, _) = at(Stage::ChooseRail);
    pair.initiator
        .reject(Reject::new(RejectReason::NO_COMMON_SUBNET))
        .unwrap();
    assert_eq!(failed(pair.poll_initiator()).fault(), Fault::Local);
    let error = failed(pair.poll_responder());
    assert_eq!(error.fault(), Fault::Both);
    assert!(
        error
            .to_string()
            .ends_with("the peer gave up: no subnet in common")
    );
}

#[test]
fn more_rails_than_can_be_told_are_refused_at_once() {
    let config = responder_config(Timing::default());
    let now = Instant::from_ns(0);
    assert!(Responder::new(config, &[rail(2); 64], now).is_ok());
    assert_eq!(Responder::new(config, &[rail(2); 65], now).unwrap_err().rails, 65);
    let config = initiator_config(Timing::default());
    assert!(Initiator::new(config, &[rail(1); 64], now).is_ok());
    assert_eq!(Initiator::new(config, &[rail(1); 65], now).unwrap_err().rails, 65);
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
fn what_the_stream_says_is_told_or_refused() {
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

/// What the documentation of the machines says they take.
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
