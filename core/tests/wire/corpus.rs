//! The fuzzer's seeds and findings, replayed; and the seeds themselves, kept in step with the format.

use std::fs;

use doorbell_core::handshake::{Step, Timing};
use doorbell_core::transfer::TransferEnd;

use crate::oracle::handshake::{endpoint, initiator_with, one_key, responder_with};
use crate::oracle::keys::Keys;
use crate::pipe::Pair;
use crate::replay::{folder, replay};
use crate::{oracle, samples};

#[test]
fn handles() {
    replay("handle", oracle::handle::check);
}

#[test]
fn frames() {
    replay("frames", oracle::frames::check);
}

#[test]
fn handshakes() {
    replay("handshake", |bytes| {
        let _ = oracle::handshake::check(bytes);
    });
    // The oracle's caller does get a machine to its end, so the fuzzer has all of it to look at.
    for transcript in transcripts(false).into_iter().chain(transcripts(true)) {
        assert!(oracle::handshake::check(&transcript));
        assert!(!oracle::handshake::check(&transcript[..transcript.len() - 1]));
    }
}

#[test]
fn sequences() {
    replay("sequence", |bytes| {
        let _ = oracle::sequence::check(bytes);
    });
    // It does get two machines connected, and over a wire that lies, too.
    let both =
        |outcome: oracle::sequence::Outcome| outcome.is_initiator_connected && outcome.is_responder_connected;
    for (name, bytes) in conversations() {
        let outcome = oracle::sequence::check(&bytes);
        assert_eq!(outcome.is_honest, both(outcome), "{name}: {outcome:?}");
        assert_eq!(outcome.is_honest, name.starts_with("good"), "{name}: {outcome:?}");
    }
}

#[test]
fn texts() {
    replay("text", oracle::text::check);
}

#[test]
fn session_frames() {
    replay("session", oracle::session::check);
}

#[test]
fn transfers() {
    replay("transfers", |bytes| {
        let _ = oracle::transfer::check(bytes);
    });
    // The oracle does bring each side to its end, so the fuzzer has all of it to look at.
    for (name, bytes) in whole_transfers() {
        let outcome = oracle::transfer::check(&bytes);
        let is_done = outcome.end == Some(TransferEnd::Done);
        assert_eq!((is_done, outcome.is_broken), (true, false), "{name}: {outcome:?}");
    }
}

/// Steps that bring a side of a transfer of three pieces to its end, as the oracle reads them.
fn whole_transfers() -> [(&'static str, Vec<u8>); 2] {
    let key = [0, 13, 0];
    let (begins, post, say, done, fence) = ([0, 3], [0, 1], [0, 3], [0, 5], [0, 10]);
    let giver = [
        &[4, 100][..],
        &begins,
        &key,
        &[post, say, post, say, post, say].concat(),
        // Pieces of a lost connection are written again: it is fenced, a question is put, and the answer lacks all.
        &[0, 6, 0, 7, 1],
        &key,
        &say,
        &[0, 12, 0, 0, 2],
        &[post, say, post, say, post, say].concat(),
        &[done, done, done].concat(),
        &[0, 14, 1, 0],
        &say,
    ];
    let taker = [
        &[6, 0][..],
        &[0, 0],
        // Joined; a question; the key; pieces; then the memory is fenced, and the end answered.
        &[0, 11, 0, 0, 0, 0, 1],
        &say,
        &say,
        &[0, 11, 0, 0, 0, 2, 0],
        &[1, 11, 0, 2, 0, 1, 2],
        &fence,
        &say,
        &[0, 14, 1, 1],
    ];
    [("giver", giver.concat()), ("taker", taker.concat())]
}

#[test]
fn ring_invitations() {
    replay("ring_invitation", oracle::ring::check);
}

#[test]
fn route_headers() {
    replay("grh", oracle::grh::check);
}

/// Handshakes on a wire, as the sequence's check reads them: a byte for what happens, with the side in its
/// highest bit, and what that takes.
fn conversations() -> [(&'static str, Vec<u8>); 7] {
    const BACK: u8 = 0x80;
    let poll = [0, 3, 8, BACK, 1, 8 | BACK];
    let halting = [
        13,
        5,
        13 | BACK,
        9,
        12,
        7,
        12 | BACK,
        11,
        15,
        20,
        16,
        0,
        16 | BACK,
        2,
    ];
    [
        ("good", [&[6][..], &poll, &poll, &poll].concat()),
        ("good_with_a_key", [&[14][..], &poll, &poll, &poll].concat()),
        (
            "flipped_with_a_key",
            [&[8][..], &[0, 0, 25, 4, 1], &poll].concat(),
        ),
        (
            "good_in_pieces",
            [&[0][..], &halting, &poll, &halting, &poll, &poll].concat(),
        ),
        ("flipped", [&[0][..], &[0, 0, 25, 4, 1], &poll].concat()),
        ("repeated", [&[0][..], &[0, 0, 30, 0], &poll, &poll].concat()),
        (
            "made_up",
            [&[0][..], &[21 | BACK, 1, 2, 14, 7, 15, 1], &poll, &[17, 3], &poll].concat(),
        ),
    ]
}

/// Transcripts of a good handshake: the bytes that each side receives, behind the byte that selects how they are fed.
fn transcripts(with_key: bool) -> [Vec<u8>; 2] {
    let keys = if with_key { one_key() } else { Keys::default() };
    let mut pair = Pair::new(
        initiator_with(Timing::default(), &keys),
        responder_with(Timing::default(), &keys),
    );
    for _ in 0..10 {
        match pair.poll_initiator() {
            Step::ChooseRail => pair.initiator.offer(pair.now(), endpoint(1), 0).unwrap(),
            Step::Prepare(_) => pair.initiator.ready(pair.now()).unwrap(),
            _ => {}
        }
        if let Step::Prepare(_) = pair.poll_responder() {
            pair.responder.accept(pair.now(), endpoint(2)).unwrap();
        }
    }
    let how = if with_key { 0x7e } else { 0x3e };
    [
        [vec![how], pair.down.history].concat(),
        [vec![how + 1], pair.up.history].concat(),
    ]
}

/// With `DOORBELL_WRITE_SEEDS` set, writes them anew; without, says whether they are still what they were.
#[test]
fn seeds_are_what_this_version_writes() {
    let rails = samples::rails();
    let [heard_by_initiator, heard_by_responder] = transcripts(false);
    let [proven_to_initiator, proven_to_responder] = transcripts(true);
    let mut seeds = vec![
        ("handle", "all_kinds", samples::handle(&rails).as_bytes().to_vec()),
        (
            "handle",
            "padded",
            samples::handle(&rails[..1]).as_padded_bytes().to_vec(),
        ),
        (
            "handle",
            "more",
            samples::handle(&vec![rails[0]; 16]).as_bytes().to_vec(),
        ),
        (
            "handle",
            "text",
            samples::handle(&rails[..2]).to_string().into_bytes(),
        ),
        ("handshake", "heard_by_initiator", heard_by_initiator),
        ("handshake", "heard_by_responder", heard_by_responder),
        ("handshake", "proven_to_initiator", proven_to_initiator),
        ("handshake", "proven_to_responder", proven_to_responder),
    ];
    seeds.extend(conversations().map(|(name, bytes)| ("sequence", name, bytes)));
    seeds.push(("text", "spelled", samples::handle(&rails).as_bytes().to_vec()));
    seeds.push((
        "text",
        "whole",
        samples::handle(&rails[..1]).to_string().into_bytes(),
    ));
    let filled_up = samples::handle(&rails[..1]).as_padded_bytes().to_vec();
    seeds.push(("text", "spelled_filled_up", filled_up));
    for (name, invitation) in ["trailer", "immediate"].iter().zip(samples::invitations()) {
        seeds.push(("ring_invitation", name, invitation.to_bytes().to_vec()));
    }
    seeds.extend(samples::route_headers().map(|(name, bytes)| ("grh", name, bytes.to_vec())));
    for (names, frames) in [
        (
            &["hello", "welcome", "connect", "accept", "ready", "reject"][..],
            &samples::frames_in(1)[..],
        ),
        (
            &["hello_2", "welcome_2", "connect_2", "accept_2", "ready_2"],
            &samples::frames_in(2)[..5],
        ),
        (
            &[
                "hello_keyed",
                "welcome_keyed",
                "connect_keyed",
                "accept_keyed",
                "ready_keyed",
            ],
            &samples::keyed_frames(),
        ),
    ] {
        for (name, frame) in names.iter().zip(frames) {
            seeds.push(("frames", name, frame.as_bytes().to_vec()));
        }
    }
    seeds.extend(
        samples::session_frames()
            .into_iter()
            .map(|(name, bytes)| ("session", name, bytes)),
    );
    seeds.extend(whole_transfers().map(|(name, bytes)| ("transfers", name, bytes)));
    for (target, name, bytes) in seeds {
        let path = folder(target).join(name);
        if std::env::var_os("DOORBELL_WRITE_SEEDS").is_some() {
            fs::create_dir_all(folder(target)).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_default();
        assert_eq!(
            kept, bytes,
            "{target}/{name}: run again with DOORBELL_WRITE_SEEDS=1 if the format was meant to change"
        );
    }
}
