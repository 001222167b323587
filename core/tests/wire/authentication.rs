//! Machines that have keys: against others, against machines without keys, and with an attacker on the wire who has
//! none.

use doorbell_core::Instant;
use doorbell_core::handshake::{Cause, Fault, Initiator, Responder, Stage, Step, Timing};
use doorbell_core::wire::{
    Connect, FrameBuffer, FrameHeader, KeyId, Nonce, Reject, RejectReason, TAG_BYTES, Tag, VERSION,
};

use crate::oracle::handshake::{
    endpoint, initiator_config, instance, one_key, rail, rail_on, responder_config,
};
use crate::oracle::keys::{Keys, key_of};
use crate::oracle::plain::mac::hmac;
use crate::pipe::{End, Lane, Pair, connected, failed};

fn pair(ours: &Keys, theirs: &Keys) -> Pair {
    pair_of(ours, theirs, Nonce([0xb2; 16]))
}

/// The same where the responder drew this nonce.
fn pair_of(ours: &Keys, theirs: &Keys, nonce: Nonce) -> Pair {
    let now = Instant::from_ns(0);
    let initiator = Initiator::with(initiator_config(Timing::default()), ours, &[rail(1)], now);
    let mut config = responder_config(Timing::default());
    config.nonce = nonce;
    let responder = Responder::with(config, theirs.clone(), &[rail(2)], now);
    Pair::new(initiator.unwrap(), responder.unwrap())
}

fn without() -> Keys {
    Keys::default()
}

/// Polls both as long as there is something to be done; `on_wire` sees each byte lane before it is read.
fn run(pair: &mut Pair, mut on_wire: impl FnMut(&mut Pair)) -> (Step, Step) {
    let mut steps = (Step::Pending, Step::Pending);
    for _ in 0..6 {
        steps.0 = pair.poll_initiator();
        match steps.0 {
            Step::ChooseRail => pair.initiator.offer(pair.now(), endpoint(1), 0).unwrap(),
            Step::Prepare(_) => pair.initiator.ready(pair.now()).unwrap(),
            _ => {}
        }
        steps.0 = pair.poll_initiator();
        on_wire(pair);
        steps.1 = pair.poll_responder();
        if let Step::Prepare(_) = steps.1 {
            pair.responder.accept(pair.now(), endpoint(2)).unwrap();
            steps.1 = pair.poll_responder();
        }
        on_wire(pair);
    }
    steps
}

fn rejected(reason: RejectReason, detail: u32) -> Cause {
    Cause::RejectedByPeer(Reject { reason, detail })
}

/// The frames of a lane.
fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (frame, rest) = bytes.split_at(FrameHeader::parse(bytes).unwrap().frame_bytes());
        frames.push(frame.to_vec());
        bytes = rest;
    }
    frames
}

#[test]
fn with_the_same_key_both_connect_and_know_which() {
    let mut pair = pair(&one_key(), &one_key());
    let (initiator, responder) = run(&mut pair, |_| {});
    let (initiator, responder) = (connected(initiator), connected(responder));
    assert_eq!((initiator.peer, responder.peer), (endpoint(2), endpoint(1)));
    assert_eq!(initiator.key.unwrap().to_u32(), 7);
    assert_eq!((initiator.key, initiator.version), (responder.key, VERSION));
    assert_eq!(responder.version, VERSION);
}

/// The bytes of a whole handshake, with every tag computed by hand: what may never change within the version.
#[test]
fn each_tag_is_of_all_that_was_said() {
    let mut pair = pair(&one_key(), &one_key());
    let _ = run(&mut pair, |_| {});
    let (up, down) = (frames(&pair.up.history), frames(&pair.down.history));
    assert_eq!((up.len(), down.len()), (3, 3));
    let mut said = b"doorbell handshake".to_vec();
    for turn in 0..6 {
        let (frame, from) = if turn % 2 == 0 {
            (&up[turn / 2], 1)
        } else {
            (&down[turn / 2], 2)
        };
        if turn == 0 {
            // Hello, from version 2 to version 4, with the key's id at its end.
            assert_eq!((frame[7], frame[10], frame[11]), (0, 2, 4));
            assert!(frame.ends_with(&[0, 0, 0, 7]));
            said.extend(frame);
            continue;
        }
        let (covered, tag) = Tag::split(frame);
        said.extend(covered);
        let kind = [2, 3, 4, 5, 5][turn - 1];
        let expected = hmac(&key_of(0x77), &[&said[..], &[from, kind]].concat());
        assert_eq!(tag, Some(Tag(expected)), "{turn}");
        said.extend(expected);
    }
    // The last tag is over everything before it: one number to hold all of the above.
    let last: String = said[said.len() - TAG_BYTES..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(last, LAST_TAG);
}

const LAST_TAG: &str = "5642e9bcabddd04498b4ad39c25c40bf7675b63d215456cd8409335f588af1bb";

#[test]
fn keys_that_do_not_fit_are_refused_by_name() {
    let other_secret = Keys::of(&[(7, 0x78)]);
    let other_id = Keys::of(&[(8, 0x77)]);
    let unknown = Cause::UnknownKey(KeyId::new(7).unwrap());
    for (ours, theirs, responder_found, initiator_found) in [
        (
            without(),
            one_key(),
            Cause::Unauthenticated,
            rejected(RejectReason::UNAUTHENTICATED, 0),
        ),
        (
            one_key(),
            without(),
            unknown,
            rejected(RejectReason::UNKNOWN_KEY, 7),
        ),
        (
            one_key(),
            other_id,
            unknown,
            rejected(RejectReason::UNKNOWN_KEY, 7),
        ),
        (
            one_key(),
            other_secret,
            rejected(RejectReason::WRONG_KEY, 0),
            Cause::WrongKey,
        ),
    ] {
        let (initiator, responder) = run(&mut pair(&ours, &theirs), |_| {});
        let (initiator, responder) = (failed(initiator), failed(responder));
        assert_eq!(responder.cause, responder_found);
        assert_eq!(initiator.cause, initiator_found);
        assert_eq!((initiator.fault(), responder.fault()), (Fault::Both, Fault::Both));
    }
}

#[test]
fn a_side_with_a_key_reveals_nothing_of_its_endpoint_to_one_without() {
    for theirs in [without(), Keys::of(&[(7, 0x78)]), Keys::of(&[(8, 0x77)])] {
        let mut pair = pair(&one_key(), &theirs);
        let _ = run(&mut pair, |_| {});
        let said = frames(&pair.up.history);
        let kinds: Vec<_> = said.iter().map(|frame| frame[5]).collect();
        assert!(kinds == [1] || kinds == [1, 6], "{kinds:?}");
    }
    for ours in [without(), Keys::of(&[(8, 0x77)])] {
        let mut pair = pair(&ours, &one_key());
        let (_, responder) = run(&mut pair, |_| {});
        // It never came to make a queue pair.
        assert_eq!(failed(responder).stage, Stage::Hello);
        assert_eq!(frames(&pair.down.history).len(), 1);
    }
}

/// Keys are rotated in three steps on each host, in any order of the hosts, and at no time do two hosts fail to
/// connect.
#[test]
fn a_key_is_changed_while_peers_connect() {
    let (old, new) = ((1, 0x10), (2, 0x20));
    let steps = [
        Keys::of(&[old]),
        Keys::of(&[old, new]),
        Keys::of(&[new, old]),
        Keys::of(&[new]),
    ];
    for (ours, before) in steps.iter().enumerate() {
        for (theirs, after) in steps.iter().enumerate() {
            let (initiator, responder) = run(&mut pair(before, after), |_| {});
            if ours.abs_diff(theirs) < 2 {
                let used = if ours < 2 { 1 } else { 2 };
                assert_eq!(connected(initiator).key.unwrap().to_u32(), used);
                assert_eq!(connected(responder).key.unwrap().to_u32(), used);
            } else if ours < 2 && theirs == 3 || ours > 1 && theirs == 0 {
                let unknown = matches!(failed(responder).cause, Cause::UnknownKey(_));
                assert!(unknown, "{ours} {theirs}");
            }
        }
    }
}

#[test]
fn each_changed_bit_of_each_frame_is_refused() {
    let mut good = pair(&one_key(), &one_key());
    let _ = run(&mut good, |_| {});
    for (is_up, history) in [(true, good.up.history), (false, good.down.history)] {
        for at in 0..history.len() {
            for bit in 0..8 {
                let mut pair = pair(&one_key(), &one_key());
                let mut passed = 0;
                let mut changed = false;
                let ends = run(&mut pair, |pair| {
                    let lane = if is_up { &mut pair.up } else { &mut pair.down };
                    // The lane holds bytes that were written and not read; each write is read whole before the next.
                    let start = lane.history.len() - lane.bytes.len();
                    if !changed && (start..lane.history.len()).contains(&at) {
                        lane.bytes[at - start] ^= 1 << bit;
                        changed = true;
                    }
                    passed = passed.max(lane.history.len());
                });
                assert!(changed, "{is_up} {at}");
                let (initiator, responder) = ends;
                let hearer = if is_up { responder } else { initiator };
                // A length made longer waits for what never comes; nothing else goes on.
                match hearer {
                    Step::Failed(_) | Step::Pending => {}
                    step => panic!("{is_up}, byte {at}, bit {bit}: {step:?}"),
                }
                assert!(!matches!(initiator, Step::Connected(_)), "{is_up} {at} {bit}");
            }
        }
    }
}

/// Replays one side's frames of an earlier handshake under the same keys.
#[test]
fn what_was_said_before_is_worth_nothing_now() {
    let mut earlier = pair(&one_key(), &one_key());
    let _ = run(&mut earlier, |_| {});
    // To a responder, which draws another nonce: the Connect is not of this handshake.
    let mut responder = pair_of(&one_key(), &one_key(), Nonce([0xb3; 16])).responder;
    let mut up = Lane::default();
    up.bytes.extend(&earlier.up.history);
    let mut io = End {
        incoming: &mut up,
        outgoing: &mut Lane::default(),
    };
    let error = failed(responder.poll(Instant::from_ns(0), &mut io));
    assert_eq!((error.stage, error.cause), (Stage::Connect, Cause::WrongKey));
    // With the same nonce, it would be: only the nonce protects.
    let mut responder = pair(&one_key(), &one_key()).responder;
    up.bytes.clear();
    up.bytes.extend(frames(&earlier.up.history)[..2].concat());
    let mut io = End {
        incoming: &mut up,
        outgoing: &mut Lane::default(),
    };
    assert!(matches!(
        responder.poll(Instant::from_ns(0), &mut io),
        Step::Prepare(_)
    ));
    // To an initiator: the Welcome is not.
    let mut config = initiator_config(Timing::default());
    config.nonce = Nonce([0xa2; 16]);
    let now = Instant::from_ns(0);
    let mut initiator = Initiator::with(config, &one_key(), &[rail(1)], now).unwrap();
    let mut down = Lane::default();
    down.bytes.extend(&earlier.down.history);
    let mut io = End {
        incoming: &mut down,
        outgoing: &mut Lane::default(),
    };
    let error = failed(initiator.poll(now, &mut io));
    assert_eq!((error.stage, error.cause), (Stage::Welcome, Cause::WrongKey));
}

/// Each frame of a side, given back to it in the place of what it awaits.
#[test]
fn what_a_side_said_itself_is_not_the_others() {
    // Hello for Welcome, Connect for Accept: other kinds. Ready for Ready: the same bytes but for the tag.
    let kinds = [(0, Stage::Welcome), (1, Stage::Accept), (2, Stage::Ready)];
    for (frame, stage) in kinds {
        let mut pair = pair(&one_key(), &one_key());
        let mut given_back = false;
        let (initiator, _) = run(&mut pair, |pair| {
            let said = frames(&pair.up.history);
            if said.len() == frame + 1 && !given_back {
                pair.up.bytes.clear();
                pair.down.bytes.extend(&said[frame]);
                given_back = true;
            }
        });
        let error = failed(initiator);
        assert_eq!(error.stage, stage);
        match stage {
            Stage::Ready => assert_eq!(error.cause, Cause::WrongKey),
            _ => assert!(matches!(error.cause, Cause::UnexpectedFrame(_)), "{error}"),
        }
    }
    // Without keys, a frame that is given back goes unnoticed.
    let mut pair = pair(&without(), &without());
    let (initiator, _) = run(&mut pair, |pair| {
        let said = frames(&pair.up.history);
        if said.len() == 3 && !pair.up.bytes.is_empty() {
            pair.up.bytes.clear();
            pair.down.bytes.extend(&said[2]);
        }
    });
    connected(initiator);
}

/// An attacker between the two sides has no key, and wants both to speak a version without proofs.
#[test]
fn nobody_is_talked_down() {
    // A Hello that says the older version, as one without keys says it.
    let mut pair = pair(&one_key(), &one_key());
    let older = {
        let mut hello = crate::samples::hello(1);
        (hello.initiator, hello.listener) = (instance(1), Some(instance(2)));
        FrameBuffer::hello(&hello, &[rail(1)].into_iter().collect())
    };
    let _ = pair.poll_initiator();
    pair.up.bytes.clear();
    pair.up.bytes.extend(older.as_bytes());
    let error = failed(pair.poll_responder());
    assert!(matches!(error.cause, Cause::Version { .. }), "{error}");
    // Without the key in it, or with the versions changed, in whatever way it still reads well.
    for (oldest, newest, key) in [
        (1, 2, 0),
        (2, 4, 0),
        (1, 2, 7),
        (1, 3, 7),
        (2, 2, 7),
        (2, 3, 7),
        (2, 5, 7),
        (2, 9, 7),
    ] {
        let mut pair = self::pair(&one_key(), &one_key());
        let mut is_first = true;
        let (initiator, responder) = run(&mut pair, |pair| {
            if core::mem::take(&mut is_first) {
                (pair.up.bytes[10], pair.up.bytes[11]) = (oldest, newest);
                let last = pair.up.bytes.len() - 1;
                pair.up.bytes[last] = key;
            }
        });
        failed(initiator);
        assert!(matches!(
            failed(responder).cause,
            Cause::Unauthenticated | Cause::RejectedByPeer(_)
        ));
    }
    // A Welcome of one without keys, in either version, for one who has a key.
    for version in [1, 2, 3, 4] {
        let mut pair = self::pair(&one_key(), &without());
        let _ = pair.poll_initiator();
        let mut welcome = crate::samples::welcome(version);
        welcome.listener = instance(2);
        let welcome = FrameBuffer::welcome(&welcome, &[rail(2)].into_iter().collect());
        pair.down.bytes.extend(welcome.as_bytes());
        assert_eq!(failed(pair.poll_initiator()).cause, Cause::Unauthenticated);
    }
    // A frame whose tag is left out.
    for without_tag in 1..6 {
        let mut pair = self::pair(&one_key(), &one_key());
        let mut turn = 0;
        let (initiator, responder) = run(&mut pair, |pair| {
            for (lane, frames_before) in [(&mut pair.up, 0), (&mut pair.down, 1)] {
                let said = frames(&lane.history).len();
                let is_it = said > 0 && (said - 1) * 2 + frames_before == without_tag;
                if is_it && !lane.bytes.is_empty() && turn == 0 {
                    let bytes: Vec<u8> = lane.bytes.drain(..).collect();
                    let mut cut = bytes[..bytes.len() - TAG_BYTES].to_vec();
                    cut[7] = 0;
                    let body = u16::try_from(cut.len() - 10).unwrap();
                    cut[8..10].copy_from_slice(&body.to_be_bytes());
                    lane.bytes.extend(cut);
                    turn = 1;
                }
            }
        });
        assert_eq!(turn, 1);
        let hearer = if without_tag % 2 == 0 {
            responder
        } else {
            initiator
        };
        assert_eq!(failed(hearer).cause, Cause::Unauthenticated, "{without_tag}");
    }
}

#[test]
fn one_without_keys_takes_no_proof_for_granted() {
    for (is_up, stage) in [(true, Stage::Connect), (false, Stage::Accept)] {
        let mut pair = pair(&without(), &without());
        let connect = |host| Connect {
            endpoint: endpoint(host),
            peer_rail: 0,
        };
        let (initiator, responder) = run(&mut pair, |pair| {
            let (lane, frame) = if is_up {
                (&mut pair.up, FrameBuffer::connect(VERSION, &connect(1)))
            } else {
                (&mut pair.down, FrameBuffer::accept(VERSION, &connect(2)))
            };
            if frames(&lane.history).len() == 2 && !lane.bytes.is_empty() {
                lane.bytes.clear();
                lane.bytes
                    .extend(frame.tagged(|_| crate::samples::TAG).as_bytes());
            }
        });
        let error = failed(if is_up { responder } else { initiator });
        assert_eq!(error.stage, stage);
        assert!(
            error.to_string().contains("tag at byte 90: contradicts"),
            "{error}"
        );
    }
}

/// The tag covers all settings of a connection: a peer's rails, its GID, its identity, the position of the session.
#[test]
fn every_change_on_the_way_ends_it() {
    type Change = fn(&mut Pair);
    let with_other_rails: Change = |pair| {
        let mut config = initiator_config(Timing::default());
        config.nonce = Nonce([0xa1; 16]);
        let rails = [rail(1), rail_on(1, 1)];
        let other = Initiator::with(config, &one_key(), &rails, Instant::from_ns(0));
        let mut lane = Lane::default();
        let mut io = End {
            incoming: &mut Lane::default(),
            outgoing: &mut lane,
        };
        let _ = other.unwrap().poll(Instant::from_ns(0), &mut io);
        // A Hello that is good in itself, of one who has the key, but not what this one said.
        pair.up.bytes = lane.bytes;
    };
    let as_another: Change = |pair| pair.up.bytes[14] ^= 1;
    let for_any: Change = |pair| {
        pair.up
            .bytes
            .iter_mut()
            .skip(22)
            .take(8)
            .for_each(|byte| *byte = 0)
    };
    for change in [with_other_rails, as_another, for_any] {
        let mut pair = pair(&one_key(), &one_key());
        let mut is_first = true;
        let (initiator, _) = run(&mut pair, |pair| {
            if core::mem::take(&mut is_first) {
                change(pair);
            }
        });
        assert_eq!(failed(initiator).cause, Cause::WrongKey);
    }
}
