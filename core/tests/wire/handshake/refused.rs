//! Refusals: by the other side, with a reason, and of our own caller.

use doorbell_core::handshake::{
    Cause, Fault, HandshakeError, Initiator, Misuse, Responder, Stage, Step, Timing,
};
use doorbell_core::wire::{Field, FrameKind, InstanceId, Reject, RejectReason};
use doorbell_core::{Instant, Qpn};

use super::stages::{STAGES, at, poll};
use super::{connected, failed, kinds, run};
use crate::oracle::handshake::{endpoint, initiator_config, instance, rail, responder, responder_config};
use crate::oracle::keys::Keys;
use crate::pipe::Pair;

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
            // No frame was sent yet; the initiator finds the Reject though its Hello meets a closed stream.
            assert!(pair.up.history.is_empty());
        }
        let other = match poll(&mut pair, !is_initiator) {
            // An end that is connected by now stays so; every other one gets the Reject.
            Step::Connected(_) if stage == Stage::LastWrite => continue,
            step => failed(step),
        };
        assert_eq!(other.cause, Cause::RejectedByPeer(reject), "{stage}");
        assert_eq!(other.fault(), Fault::Peer);
        assert!(
            other
                .to_string()
                .contains("its queue pair could not be set up (errno 12)")
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
    // A responder that does not check is found out by the initiator.
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
fn an_endpoint_that_contradicts_an_earlier_frame_is_refused() {
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
fn a_mistake_of_the_caller_is_reported_and_the_handshake_goes_on() {
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
    assert_eq!(
        pair.initiator.offer(now, wrong, 0),
        Err(Misuse::Unsendable(Field::Qpn))
    );
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
            .ends_with("the peer rejected the connection: no subnet in common")
    );
}

#[test]
fn more_rails_than_can_be_listed_are_refused_at_once() {
    let config = responder_config(Timing::default());
    let now = Instant::from_ns(0);
    assert!(Responder::new(config, &[rail(2); 64], now).is_ok());
    assert_eq!(Responder::new(config, &[rail(2); 65], now).unwrap_err().rails, 65);
    let config = initiator_config(Timing::default());
    assert!(Initiator::new(config, &[rail(1); 64], now).is_ok());
    assert_eq!(Initiator::new(config, &[rail(1); 65], now).unwrap_err().rails, 65);
}
