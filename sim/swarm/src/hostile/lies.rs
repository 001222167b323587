//! Frames with one wrong field, and what each has to be told, by the document.

use crate::by_document::{CONNECT, HELLO, READY};

/// Bytes that take the place of those at an offset of a frame, or of all of it where the offset is no number.
pub(super) struct Lie {
    pub(super) frame: u8,
    pub(super) at: usize,
    pub(super) bytes: &'static [u8],
    /// The reason it is refused for, and the detail where that is said.
    pub(super) reason: u16,
    pub(super) detail: Option<u32>,
    /// Only a frame of version 2 has the field.
    pub(super) is_new: bool,
}

const NO_VERSION: u16 = 1;
const STALE_HANDLE: u16 = 2;
const MALFORMED: u16 = 4;
const OUT_OF_TURN: u16 = 5;

/// A field of a frame that is malformed, named by its offset.
const fn malformed(frame: u8, at: usize, bytes: &'static [u8], field: u32) -> Lie {
    Lie {
        frame,
        at,
        bytes,
        reason: MALFORMED,
        detail: Some(field),
        is_new: false,
    }
}

/// A whole frame, Ready, that takes the place of another.
const fn out_of_turn(frame: u8, bytes: &'static [u8]) -> Lie {
    Lie {
        frame,
        at: usize::MAX,
        bytes,
        reason: OUT_OF_TURN,
        detail: Some(READY as u32),
        is_new: false,
    }
}

const fn of_new(lie: Lie) -> Lie {
    Lie { is_new: true, ..lie }
}

pub(super) const LIES: &[Lie] = &[
    // The header: magic, version, kind, flags, length.
    malformed(HELLO, 0, b"X", 0),
    malformed(HELLO, 4, &[0], 4),
    malformed(HELLO, 4, &[3], 4),
    malformed(HELLO, 5, &[9], 5),
    malformed(HELLO, 6, &[0x80, 0], 6),
    malformed(HELLO, 6, &[0, 1], 6),
    malformed(HELLO, 8, &[0xff, 0xff], 8),
    malformed(HELLO, 8, &[0, 5], 8),
    malformed(CONNECT, 8, &[0, 200], 8),
    malformed(CONNECT, 8, &[0, 59], 8),
    // Hello: versions, reserved, instance, rails.
    malformed(HELLO, 10, &[0], 10),
    malformed(HELLO, 13, &[1], 13),
    malformed(HELLO, 14, &[0; 8], 14),
    malformed(HELLO, 46, &[0x1f], 46),
    malformed(HELLO, 47, &[33], 47),
    Lie {
        reason: STALE_HANDLE,
        detail: None,
        ..malformed(HELLO, 22, &[1, 2, 3, 4, 5, 6, 7, 8], 0)
    },
    Lie {
        reason: NO_VERSION,
        detail: Some(0x0104),
        ..of_new(malformed(HELLO, 10, &[5, 6], 0))
    },
    // Another frame than the one whose turn it is.
    out_of_turn(HELLO, b"DBLF\x01\x05\0\0\0\0"),
    out_of_turn(CONNECT, b"DBLF\x01\x05\0\0\0\0"),
    out_of_turn(HELLO, b"DBLF\x02\x05\0\0\0\0"),
    // Connect: each field beyond what it may say.
    malformed(CONNECT, 25, &[0x77], 10),
    malformed(CONNECT, 10, &[0; 16], 10),
    malformed(CONNECT, 26, &[0, 0, 0, 1], 26),
    malformed(CONNECT, 26, &[1, 0, 0, 0], 26),
    malformed(CONNECT, 30, &[1, 0, 0, 0], 30),
    malformed(CONNECT, 34, &[0], 34),
    malformed(CONNECT, 34, &[6], 34),
    malformed(CONNECT, 38, &[0, 0x10, 0, 0], 38),
    malformed(CONNECT, 42, &[16], 42),
    malformed(CONNECT, 43, &[1], 43),
    malformed(CONNECT, 44, &[63], 44),
    malformed(CONNECT, 45, &[65], 45),
    malformed(CONNECT, 46, &[0, 1, 0, 1], 46),
    malformed(CONNECT, 50, &[0x80, 0, 0, 1], 50),
    malformed(CONNECT, 61, &[4], 54),
    of_new(malformed(CONNECT, 78, &[0, 0, 0, 0, 0, 0, 0, 1], 78)),
    of_new(malformed(CONNECT, 86, &[0, 0, 0, 1], 86)),
];

/// Bytes of the fuzzers, as a peer may say them.
pub(super) const NOISE: &[&[u8]] = &[
    include_bytes!("../../../../fuzz/corpus/frames/accept"),
    include_bytes!("../../../../fuzz/corpus/frames/accept_keyed"),
    include_bytes!("../../../../fuzz/corpus/frames/connect"),
    include_bytes!("../../../../fuzz/corpus/frames/connect_2"),
    include_bytes!("../../../../fuzz/corpus/frames/connect_keyed"),
    include_bytes!("../../../../fuzz/corpus/frames/hello"),
    include_bytes!("../../../../fuzz/corpus/frames/hello_2"),
    include_bytes!("../../../../fuzz/corpus/frames/hello_keyed"),
    include_bytes!("../../../../fuzz/corpus/frames/ready"),
    include_bytes!("../../../../fuzz/corpus/frames/ready_2"),
    include_bytes!("../../../../fuzz/corpus/frames/reject"),
    include_bytes!("../../../../fuzz/corpus/frames/welcome"),
    include_bytes!("../../../../fuzz/corpus/frames/welcome_2"),
    include_bytes!("../../../../fuzz/corpus/handshake/heard_by_responder"),
    include_bytes!("../../../../fuzz/corpus/handshake/heard_by_initiator"),
    include_bytes!("../../../../fuzz/corpus/handshake/proven_to_responder"),
];
