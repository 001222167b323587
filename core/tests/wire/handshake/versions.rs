//! How two machines of several versions meet, or do not.

use doorbell_core::Instant;
use doorbell_core::handshake::{Cause, Fault, Initiator, Misuse, Responder, Stage, Step, Timing};
use doorbell_core::wire::{Endpoint, Field, Reject, RejectReason, Resumption, VersionRange};

use super::stages::at;
use super::{connected, failed, pair, run};
use crate::oracle::handshake::{endpoint, initiator_config, rail, responder_config};
use crate::oracle::keys::Keys;
use crate::pipe::{End, Lane, Pair};
use crate::samples;

#[test]
fn versions_that_do_not_meet_are_reported_to_both() {
    let mut pair = pair();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    // The Hello of a peer that speaks 5 and 6 only.
    (pair.up.bytes[10], pair.up.bytes[11]) = (5, 6);
    let error = failed(pair.poll_responder());
    let theirs = VersionRange::new(5, 6).unwrap();
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
        detail: 0x0104,
    };
    assert_eq!(failed(pair.poll_initiator()).cause, Cause::RejectedByPeer(reject));
}

#[test]
fn with_a_newer_initiator_the_lower_version_wins() {
    let mut pair = pair();
    assert_eq!(pair.poll_initiator(), Step::Pending);
    pair.up.bytes[11] = 5;
    let (initiator, responder) = run(&mut pair, [endpoint(1), endpoint(2)], 10);
    assert_eq!(
        (connected(initiator).version, connected(responder).version),
        (4, 4)
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
        ([(1, 3), (1, 2)], 2),
        ([(2, 2), (1, 3)], 2),
        ([(1, 3), (1, 1)], 1),
        ([(1, 3), (2, 4)], 3),
        ([(1, 4), (2, 4)], 4),
    ] {
        let mut pair = of_versions(versions);
        let mut local = [endpoint(1), endpoint(2)];
        if spoken >= 2 {
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
        Err(Misuse::Unsendable(Field::Session))
    );
    pair.initiator.offer(now, endpoint(1), 0).unwrap();
    let _ = (pair.poll_initiator(), pair.poll_responder());
    assert_eq!(
        pair.responder.accept(now, with_session(2)),
        Err(Misuse::Unsendable(Field::Session))
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
    for (index, value) in [(4, 5), (10, 5), (4, 2), (10, 2), (4, 1), (10, 1)] {
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
