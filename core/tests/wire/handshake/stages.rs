//! Failures of a stage: its deadline, and peers that drip, close or send rubbish.

use core::time::Duration;
use doorbell_core::handshake::{Cause, Fault, HandshakeError, Stage, Step, Timing};
use doorbell_core::wire::FrameKind;

use super::{MS, failed, kinds, pair, run};
use crate::oracle::handshake::{endpoint, initiator, responder};
use crate::pipe::Pair;

/// Brings a pair to where one of the two machines waits at `stage`, and returns which.
pub(super) fn at(stage: Stage) -> (Pair, bool) {
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

pub(super) const STAGES: [Stage; 8] = [
    Stage::Hello,
    Stage::Welcome,
    Stage::ChooseRail,
    Stage::Connect,
    Stage::Prepare,
    Stage::Accept,
    Stage::Ready,
    Stage::LastWrite,
];

pub(super) fn poll(pair: &mut Pair, is_initiator: bool) -> Step {
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
        // Bytes that arrived earlier would still count, so they are cleared; nothing more arrives.
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
fn rubbish_is_refused_at_every_stage_and_the_peer_is_notified() {
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
        let lane = if is_initiator { &pair.up } else { &pair.down };
        assert_eq!(kinds(&lane.history).last(), Some(&FrameKind::Reject), "{stage}");
    }
}

#[test]
fn an_oversize_frame_is_refused_by_its_header() {
    let mut pair = pair();
    pair.up.bytes.extend(b"DBLF\x01\x01\x00\x00\xff\xff");
    let error = failed(pair.poll_responder());
    assert_eq!(
        error.to_string(),
        "handshake failed while waiting for a Hello: the peer sent invalid bytes: \
         frame header: body length at byte 8: too long"
    );
}
