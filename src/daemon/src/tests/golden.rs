//! The exact bytes and words of the layouts that the modules document. They never change within a version. Each kind has examples, and a
//! kind without one does not compile.

use doorbell::RemoteAccess;

use crate::descriptor::{Message, Report, Requested, Submission};
use crate::frame::{Frame, Job, Said};
use crate::grants::Granted;
use crate::layout::EndpointLayout;
use crate::name::{EndpointAddress, JobKey, JobNumber, NodeNumber};
use crate::one_sided::{Action, ArenaGrant, ArenaOffer, Asked, GrantPlace};
use crate::packet::{AttachRequest, Packet};
use crate::reason::{AttachRefusal, CutReason, GoneReason, UndeliveredReason};

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| core::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

const KEY: &str = "c0c1c2c3c4c5c6c7 c8c9cacbcccdcecf";
const WHO: EndpointAddress = EndpointAddress {
    node: NodeNumber(0x1112_1314),
    endpoint: 0x2122_2324,
};
const PLACE: GrantPlace = GrantPlace {
    index: 0x3132_3334,
    generation: 0x4142_4344,
};

fn key() -> JobKey {
    JobKey(core::array::from_fn(|at| 0xc0 + at as u8))
}

fn layout() -> EndpointLayout {
    EndpointLayout::new(0x200, 0x1c0)
        .unwrap()
        .with_arena(0x20_3000)
        .unwrap()
}

/// The version and kind of a packet, the bytes before the key, the bytes between the key and the arena's size, and the arena's size.
fn golden_packet(packet: &Packet) -> Vec<u8> {
    let (kind, front, key, rest) = match packet {
        Packet::Attach(_) => (
            "0001",
            "00000200 000001c0 5152535455565758",
            KEY,
            "2122232400000000 00000000 00000000 0000000000203000",
        ),
        Packet::Detach => ("0002", "", "", ""),
        Packet::Wake => ("0003", "", "", ""),
        Packet::Attached { .. } => (
            "0004",
            "00000000 00000000 6162636465666768",
            "",
            "00000000 11121314 00000000 00000000 7172737475767778",
        ),
        Packet::Refused(_) => ("0005", "", "", "00000000 00000000 00000008"),
        Packet::Cut(_) => ("0006", "", "", "00000000 00000000 00000003"),
        Packet::Replace => ("0007", "", "", ""),
        Packet::Status { .. } => ("0008", "00000000 81828384", "", ""),
        Packet::StatusGiven { .. } => ("0009", "00000000 91929394", "", ""),
    };
    let mut golden = bytes("646f6f72 0001");
    for (part, ends_at) in [(kind, 8), (front, 24), (key, 40), (rest, 64)] {
        golden.extend(bytes(part));
        golden.resize(ends_at, 0);
    }
    golden
}

#[test]
fn packets() {
    let attach = AttachRequest {
        job: JobNumber(0x5152_5354_5556_5758),
        key: key(),
        endpoint: 0x2122_2324,
        layout: layout(),
    };
    for packet in [
        Packet::Attach(attach),
        Packet::Detach,
        Packet::Wake,
        Packet::Attached {
            node: WHO.node,
            epoch: 0x6162_6364_6566_6768,
            incarnation: 0x7172_7374_7576_7778,
        },
        Packet::Refused(AttachRefusal::NameTaken),
        Packet::Cut(CutReason::Length),
        Packet::Replace,
        Packet::Status { bytes: 0x8182_8384 },
        Packet::StatusGiven { bytes: 0x9192_9394 },
    ] {
        let golden = golden_packet(&packet);
        assert_eq!(packet.bytes()[..], golden, "{packet:?}");
        assert_eq!(Packet::parse(&golden), Ok(packet));
    }
}

#[test]
fn frames() {
    let golden = |said| match said {
        Said::Hello => ("0001", "00000000"),
        Said::Message => ("0002", "00000000"),
        Said::Delivered => ("0003", "00000000"),
        Said::Refused(_) => ("0004", "0000000a"),
        Said::Gone(_) => ("0005", "00000003"),
        Said::Operation => ("0006", "00000000"),
        Said::Completed => ("0007", "00000000"),
    };
    for said in [
        Said::Hello,
        Said::Message,
        Said::Delivered,
        Said::Refused(UndeliveredReason::OutOfGrant),
        Said::Gone(GoneReason::CutOff),
        Said::Operation,
        Said::Completed,
    ] {
        let frame = Frame {
            said,
            job: Job {
                number: JobNumber(0x5152_5354_5556_5758),
                key: key(),
                user: 0x8182_8384,
            },
            from: 0x2122_2324,
            to: 0x9192_9394,
            incarnation: 0x7172_7374_7576_7778,
            number: 0x6162_6364_6566_6768,
        };
        let (kind, reason) = golden(said);
        let golden = bytes(&format!(
            "646f6f66 0001 {kind} 5152535455565758 {KEY} 81828384 21222324 91929394 {reason} 7172737475767778 6162636465666768"
        ));
        assert_eq!(frame.bytes()[..], golden, "{said:?}");
        assert_eq!(Frame::parse(&golden), Ok((frame, &[][..])));
    }
    let golden = bytes(&format!(
        "646f6f66 0001 0001 {} 00000000 21222324 00000000 00000000 7172737475767778 6162636465666768",
        "00".repeat(24)
    ));
    let hello = Frame::hello(0x2122_2324, 0x7172_7374_7576_7778, 0x6162_6364_6566_6768);
    assert_eq!(hello.bytes()[..], golden);
}

const ACTIONS: [Action; 6] = [
    Action::Write { immediate: None },
    Action::Write {
        immediate: Some(0xa1a2_a3a4),
    },
    Action::Read,
    Action::Add(0xb1b2_b3b4_b5b6_b7b8),
    Action::Swap {
        compare: 0xb1b2_b3b4_b5b6_b7b8,
        swap: 0xd1d2_d3d4_d5d6_d7d8,
    },
    Action::End(0xa1a2_a3a4),
];

/// The number of an operation, its bytes, and its two words.
const fn golden_action(action: Action) -> (u32, u32, [u64; 2]) {
    match action {
        Action::Write { immediate: None } => (1, 0x40, [0; 2]),
        Action::Write { immediate: Some(_) } => (2, 0x40, [0xa1a2_a3a4, 0]),
        Action::Read => (3, 0x40, [0; 2]),
        Action::Add(_) => (4, 8, [0xb1b2_b3b4_b5b6_b7b8, 0]),
        Action::Swap { .. } => (5, 8, [0xb1b2_b3b4_b5b6_b7b8, 0xd1d2_d3d4_d5d6_d7d8]),
        Action::End(_) => (6, 0, [0xa1a2_a3a4, 0]),
    }
}

fn asked(action: Action) -> Asked {
    let (_, bytes, _) = golden_action(action);
    Asked {
        action,
        place: PLACE,
        offset: 0xe1e2_e3e4_e5e6_e7e8,
        bytes,
    }
}

#[test]
fn operations_in_frames() {
    for action in ACTIONS {
        let (kind, length, [first, second]) = golden_action(action);
        let golden = bytes(&format!(
            "{kind:08x} {length:08x} 31323334 41424344 e1e2e3e4e5e6e7e8 {first:016x} {second:016x}"
        ));
        assert_eq!(asked(action).to_bytes()[..], golden, "{action:?}");
        let payload = vec![7; action.sent(length) as usize];
        let whole = [golden, payload.clone()].concat();
        assert_eq!(Asked::parse(&whole), Some((asked(action), &payload[..])));
    }
}

#[test]
fn grants_and_offers() {
    let grant = ArenaGrant {
        owner: WHO,
        place: PLACE,
    };
    let offer = ArenaOffer {
        grant,
        bytes: 0x6162_6364_6566_6768,
    };
    let golden = bytes("11121314 21222324 31323334 41424344 6162636465666768");
    assert_eq!(offer.to_bytes()[..], golden);
    assert_eq!(grant.to_bytes()[..], golden[..16]);
    assert_eq!(ArenaOffer::from_bytes(golden.try_into().unwrap()), offer);
}

const ADDRESS_WORD: u64 = 0x1112_1314_2122_2324;
const PLACE_WORD: u64 = 0x3132_3334_4142_4344;
const NUMBER: u64 = 0x6162_6364_6566_6768;
const OFFSET: u64 = 0xe1e2_e3e4_e5e6_e7e8;

fn golden_submission(submission: &Submission) -> [u64; 8] {
    match submission {
        Submission::Message(_) => [0x0000_0001_0000_0040, ADDRESS_WORD, NUMBER, 0, 0, 0, 0, 0],
        // Rights: write 1, read 2, atomic 4.
        Submission::Grant(..) => [
            0x0000_0002_0000_0006,
            ADDRESS_WORD,
            0,
            PLACE_WORD,
            OFFSET,
            0x1000,
            0,
            0,
        ],
        Submission::Revoke(_) => [0x0000_0003_0000_0000, 0, 0, PLACE_WORD, 0, 0, 0, 0],
        Submission::Operation(requested) => {
            let (kind, bytes, [first, second]) = golden_action(requested.asked.action);
            let head = u64::from(16 + kind) << 32 | u64::from(bytes);
            let own = if kind == 4 || kind == 5 { 0 } else { 0x2040 };
            [head, ADDRESS_WORD, NUMBER, PLACE_WORD, OFFSET, own, first, second]
        }
    }
}

#[test]
fn submissions() {
    let granted = Granted {
        to: WHO,
        offset: OFFSET,
        bytes: 0x1000,
        access: RemoteAccess {
            write: false,
            read: true,
            atomic: true,
        },
    };
    let operation = |action: Action| {
        Submission::Operation(Requested {
            to: WHO,
            number: NUMBER,
            asked: asked(action),
            own: if action.is_atomic() { 0 } else { 0x2040 },
        })
    };
    let message = Message {
        to: WHO,
        bytes: 0x40,
        number: NUMBER,
    };
    let mut all = vec![
        Submission::Message(message),
        Submission::Grant(PLACE, granted),
        Submission::Revoke(PLACE),
    ];
    all.extend(ACTIONS.map(operation));
    for submission in all {
        let golden = golden_submission(&submission);
        assert_eq!(submission.words(), golden, "{submission:?}");
        assert_eq!(Submission::parse(&golden, &layout()), Ok(submission));
    }
}

const fn golden_report(report: &Report) -> [u64; 8] {
    match report {
        Report::Message { .. } => [0x0000_0001_0000_0040, ADDRESS_WORD, 0, 0, 0, 0, 0, 0],
        Report::Undelivered { .. } => [0x0000_0002_0000_0000, ADDRESS_WORD, NUMBER, 10, 0, 0, 0, 0],
        Report::Gone { .. } => [0x0000_0003_0000_0000, ADDRESS_WORD, 0, 3, 0, 0, 0, 0],
        Report::Completed { .. } => [0x0000_0004_0000_0000, ADDRESS_WORD, NUMBER, 0, OFFSET, 0, 0, 0],
        Report::Written { .. } => [
            0x0000_0005_0000_0040,
            ADDRESS_WORD,
            0,
            PLACE_WORD,
            OFFSET,
            0,
            0xa1a2_a3a4,
            0,
        ],
        Report::Revoked(_) => [0x0000_0006_0000_0000, 0, 0, PLACE_WORD, 0, 0, 0, 0],
    }
}

#[test]
fn reports() {
    for report in [
        Report::Message {
            from: WHO,
            bytes: 0x40,
        },
        Report::Undelivered {
            to: WHO,
            number: NUMBER,
            reason: UndeliveredReason::OutOfGrant,
        },
        Report::Gone {
            who: WHO,
            reason: GoneReason::CutOff,
        },
        Report::Completed {
            to: WHO,
            number: NUMBER,
            value: OFFSET,
        },
        Report::Written {
            from: WHO,
            place: PLACE,
            offset: OFFSET,
            bytes: 0x40,
            immediate: 0xa1a2_a3a4,
        },
        Report::Revoked(PLACE),
    ] {
        let golden = golden_report(&report);
        assert_eq!(report.words(), golden, "{report:?}");
        assert_eq!(Report::parse(&golden, 0x40), Some(report));
    }
}

/// The reasons by their numbers, from 1 on. A number with another meaning in another build would mislead the user.
#[test]
fn numbers_of_reasons() {
    use AttachRefusal as A;
    let refusals = [
        A::Packet,
        A::Geometry,
        A::Descriptors,
        A::Rings,
        A::Cells,
        A::Arena,
        A::JobKey,
        A::NameTaken,
        A::TooManyClients,
        A::TooManyOfUser,
        A::TooLate,
        A::Gone,
        A::MemoryOfUser,
        A::MemoryOfJob,
        A::TooManyPending,
        A::NoMemory,
        A::NoDescriptors,
        A::UnlistedJob,
        A::UserOfJob,
        A::TooManyOfJob,
    ];
    use UndeliveredReason as U;
    let undelivered = [
        U::NoEndpoint,
        U::NoNode,
        U::TooLong,
        U::TooManyPeers,
        U::Unknown,
        U::ReceiverGone,
        U::ReceiverFull,
        U::NoGrant,
        U::NoRight,
        U::OutOfGrant,
        U::Unaligned,
    ];
    use CutReason as C;
    let cuts = [C::Index, C::Descriptor, C::Length, C::Packet, C::Grant, C::Range];
    use GoneReason as G;
    let gone = [G::Detached, G::Died, G::CutOff, G::NodeLost];
    for number in 0..1000_u32 {
        let at = (number as usize).wrapping_sub(1);
        assert_eq!(A::of(number), refusals.get(at).copied());
        assert_eq!(U::of(number), undelivered.get(at).copied());
        assert_eq!(C::of(number), cuts.get(at).copied());
        assert_eq!(G::of(number), gone.get(at).copied());
    }
    assert_eq!(refusals.map(A::number), core::array::from_fn(|at| at as u32 + 1));
    assert_eq!(
        undelivered.map(U::number),
        core::array::from_fn(|at| at as u32 + 1)
    );
    assert_eq!(cuts.map(C::number), core::array::from_fn(|at| at as u32 + 1));
    assert_eq!(gone.map(G::number), core::array::from_fn(|at| at as u32 + 1));
}
