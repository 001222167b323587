//! Every byte of what is good at the values where something begins or ends to be allowed, and near its own.

use crate::{oracle, samples};

/// Tags, versions and kinds; lengths of prefixes and of lists; networks that are none of a host's.
const EDGES: [u8; 24] = [
    0, 1, 2, 3, 5, 6, 7, 8, 20, 21, 32, 33, 64, 65, 127, 128, 129, 223, 224, 239, 240, 253, 254, 255,
];

/// Checks `good` with each byte at each of the values, with each bit of it the other way round, and cut at
/// each length.
fn every_byte(good: &[u8], check: fn(&[u8])) {
    let mut bytes = good.to_vec();
    for at in 0..good.len() {
        let near = (0..8).map(|bit| good[at] ^ 1 << bit);
        for value in near.chain(EDGES) {
            bytes[at] = value;
            check(&bytes);
        }
        bytes[at] = good[at];
        check(&good[..at]);
    }
    check(&[good, &[0]].concat());
    check(&[good, &[1]].concat());
}

#[test]
fn handles() {
    let rails = samples::rails();
    // Rails of one family, of both, and as many as fit: the parser has a path for each case.
    for listed in [&rails[..1], &rails[1..2], &rails[..], &[rails[0]; 16]] {
        let handle = samples::handle(listed);
        every_byte(handle.as_bytes(), oracle::handle::check);
        every_byte(
            &handle.as_padded_bytes()[..128.min(handle.as_bytes().len() + 9)],
            oracle::handle::check,
        );
    }
}

#[test]
fn texts() {
    let rails = samples::rails();
    let handle = samples::handle(&rails[..1]);
    every_byte(handle.to_string().as_bytes(), oracle::text::check);
    every_byte(handle.as_bytes(), oracle::text::check);
}

#[test]
fn frames() {
    for frame in samples::frames() {
        every_byte(frame.as_bytes(), oracle::frames::check);
    }
}

/// Each bit of each frame of a good handshake, changed on its way.
#[test]
fn sequences() {
    const BACK: u8 = 0x80;
    // Each side in turn is polled twice, with its answers, and what it wrote is delivered.
    let turns = [[0, 3, 0, 3, 8], [BACK, 5, BACK, 5, 8 | BACK]];
    let good: Vec<u8> = [6].into_iter().chain(turns.concat().repeat(4)).collect();
    let outcome = oracle::sequence::check(&good);
    assert!(outcome.is_honest && outcome.is_initiator_connected && outcome.is_responder_connected);
    for turn in 0..6 {
        let side = turn % 2;
        // Before the delivery of this turn.
        let at = 1 + turn * 5 + 4;
        let (before, after) = good.split_at(at);
        for byte in 0..90 {
            for bit in 0..8 {
                let flip = [25 | u8::try_from(side).unwrap() << 7, byte, bit];
                let _ = oracle::sequence::check(&[before, &flip, after].concat());
            }
        }
    }
}

#[test]
fn ring_invitations() {
    for good in samples::invitations() {
        every_byte(&good.to_bytes(), oracle::ring::check);
    }
}

#[test]
fn route_headers() {
    for (_, good) in samples::route_headers() {
        every_byte(&good, oracle::grh::check);
    }
}

#[test]
fn session_frames() {
    for (_, good) in samples::session_frames() {
        every_byte(&good, oracle::session::check);
    }
}

/// Good frames of every kind in every order, up to four of them, said to either side: none is taken out of its turn.
#[test]
fn frames_in_any_order() {
    for side in [0_u8, 1] {
        let mut connected = 0;
        for order in 0..7_u32.pow(4) {
            // Said to one side, each delivered and looked at; the other says nothing meanwhile.
            let to = if side == 0 { 0x80 } else { 0 };
            let kinds = (0..4).map(|place| order / 7_u32.pow(place) % 7);
            // 132 is a multiple of the six kinds; above 127 it is the one who answers that is mimicked.
            let base = if side == 0 { 132 } else { 0 };
            let said = kinds.filter(|kind| *kind < 6).flat_map(|kind| {
                let kind = u8::try_from(kind).unwrap();
                [to | 21, base + kind, 0, to | 8, side << 7, 0]
            });
            let bytes: Vec<u8> = [0, side << 7, 0].into_iter().chain(said).collect();
            let outcome = oracle::sequence::check(&bytes);
            let is_connected = [outcome.is_initiator_connected, outcome.is_responder_connected];
            connected += usize::from(is_connected[usize::from(side)]);
        }
        assert!(connected > 0, "side {side} never receives what connects it");
    }
}
