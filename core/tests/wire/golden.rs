//! The bytes themselves, as `docs/wire-format.md` has them: what may never change within a version.

use doorbell_core::wire::{
    Field, Frame, FrameBuffer, Handle, Reason, Reject, RejectReason, SessionFrame, Tag,
};

use crate::{oracle, samples};

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| core::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

const RAILS: &str = "
    01 18 51 0a010203
    22 40 6c fd00 0000 0000 0000 0000 0000 0000 0001
    41 1f 00 c0000201 fe80 0000 0000 0000 0000 0000 0000 0002
    62 7f 7c 20010db8 0000 0000 0000 0000 0000 0005 fd00 0000 0000 0000 0000 0000 0000 0009";

const ENDPOINT: &str = "
    fd00 0000 0000 0000 0000 0000 0000 0001
    00abcdef 00123456 05 10 08 68 000abcde 03 01 02 02 00000200 00010000
    00007f0123456780 56789abc feed0010 6869";

#[test]
fn handle() {
    let golden = bytes(&format!(
        "44424c48 04 68 00 04 4853 01 00 0102030405060708 {RAILS}"
    ));
    assert_eq!(golden.len(), 20 + 7 + 19 + 23 + 35);
    let handle = samples::handle(&samples::rails());
    assert_eq!(handle.as_bytes(), golden);
    let view = Handle::parse(&golden).unwrap();
    assert_eq!(view.rails().iter().collect::<Vec<_>>(), samples::rails());
    assert_eq!(
        (view.port().get(), view.instance()),
        (18_515, samples::listener())
    );
    assert!(!view.has_more());
}

/// Version 1 said the same, but for its own number.
#[test]
fn handle_of_version_1() {
    let golden = bytes(&format!(
        "44424c48 01 68 00 04 4853 01 00 0102030405060708 {RAILS}"
    ));
    let view = Handle::parse(&golden).unwrap();
    assert_eq!(view.rails().iter().collect::<Vec<_>>(), samples::rails());
    assert_eq!((view.versions().oldest(), view.versions().newest()), (1, 1));
}

#[test]
fn handle_text() {
    let handle = samples::handle(&samples::rails()[..1]);
    let text = "doorbell:44424c48041b00014853010001020304050607080118510a010203464b";
    assert_eq!(handle.to_string(), text);
}

/// The tag of a frame with a key.
const TAG: &str = "
    c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0 c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0";

/// A session, its next message, its epoch.
const SESSION: &str = "2122232425262728 4142434445464748 31323334";

/// The endpoint as version 2 has it.
fn endpoint_2() -> String {
    let (fixed, private) = ENDPOINT.rsplit_once(' ').unwrap();
    format!("{fixed} {SESSION} {private}")
}

#[test]
fn hello() {
    let [oldest, newest] = [1, 2].map(samples::frames_in);
    let greeting = "1112131415161718 0102030405060708 a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0";
    for (frame, versions, length, key) in [
        (&oldest[0], "01 01", "0078", ""),
        (&newest[0], "01 02", "007c", "00000000"),
        (&samples::frames_in(3)[0], "01 03", "007c", "00000000"),
        (&samples::keyed_frames()[0], "02 04", "007c", "51525354"),
    ] {
        let golden = bytes(&format!(
            "44424c46 01 01 0000 {length} {versions} 04 00 {greeting} {RAILS} {key}"
        ));
        assert_eq!(frame.as_bytes(), golden);
        let Ok(Frame::Hello(parsed)) = Frame::parse(&golden) else {
            panic!("not a Hello")
        };
        assert!(parsed.rails.iter().eq(samples::rails()));
        let key = (key == "51525354").then(samples::key_id);
        assert_eq!(
            (parsed.hello.listener, parsed.hello.key),
            (Some(samples::listener()), key)
        );
    }
}

#[test]
fn welcome() {
    let [oldest, newest] = [1, 2].map(samples::frames_in);
    let greeting = "0102030405060708 b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0";
    for (frame, version, rest, key, tag) in [
        (&oldest[1], "01", "0000 0070", "", ""),
        (&newest[1], "02", "0000 0074", "00000000", ""),
        (&samples::frames_in(3)[1], "03", "0000 0074", "00000000", ""),
        (&samples::keyed_frames()[1], "02", "0001 0094", "51525354", TAG),
    ] {
        let golden = bytes(&format!(
            "44424c46 {version} 02 {rest} {version} 04 0000 {greeting} {key} {RAILS} {tag}"
        ));
        assert_eq!(frame.as_bytes(), golden);
        let Ok(Frame::Welcome(parsed)) = Frame::parse(&golden) else {
            panic!("not a Welcome")
        };
        assert!(parsed.rails.iter().eq(samples::rails()));
        let key = (key == "51525354").then(samples::key_id);
        assert_eq!(
            (parsed.welcome.listener, parsed.welcome.key),
            (samples::listener(), key)
        );
    }
}

#[test]
fn connect_and_accept() {
    let connect = |version| Frame::Connect(samples::connect(version));
    let accept = |version| Frame::Accept(samples::connect(version));
    for (at, kind, frame_of) in [
        (2, "03", &connect as &dyn Fn(u8) -> Frame<'static>),
        (3, "04", &accept),
    ] {
        for (frame, version, rest, body, tag) in [
            (
                &samples::frames_in(1)[at],
                1,
                "0000 003e",
                ENDPOINT.to_owned(),
                "",
            ),
            (&samples::frames_in(2)[at], 2, "0000 0052", endpoint_2(), ""),
            (&samples::frames_in(3)[at], 3, "0000 0052", endpoint_2(), ""),
            (&samples::keyed_frames()[at], 2, "0001 0072", endpoint_2(), TAG),
        ] {
            let golden = bytes(&format!("44424c46 0{version} {kind} {rest} {body} {tag}"));
            assert_eq!(frame.as_bytes(), golden);
            assert_eq!(Frame::parse(&golden), Ok(frame_of(version)));
        }
    }
}

#[test]
fn ready() {
    for (frame, version, rest, tag) in [
        (&samples::frames_in(1)[4], "01", "0000 0000", ""),
        (&samples::frames_in(2)[4], "02", "0000 0000", ""),
        (&samples::keyed_frames()[4], "02", "0001 0020", TAG),
    ] {
        let golden = bytes(&format!("44424c46 {version} 05 {rest} {tag}"));
        assert_eq!(frame.as_bytes(), golden);
        assert_eq!(Frame::parse(&golden), Ok(Frame::Ready));
        let (covered, found) = Tag::split(&golden);
        assert_eq!(found, (!tag.is_empty()).then_some(samples::TAG));
        assert_eq!(covered, &golden[..10]);
    }
}

#[test]
fn reject() {
    let golden = bytes("44424c46 01 06 0000 0008 0008 0000 0000000c");
    let reject = Reject {
        reason: RejectReason::QUEUE_PAIR,
        detail: 12,
    };
    assert_eq!(FrameBuffer::reject(&reject).as_bytes(), golden);
    assert_eq!(Frame::parse(&golden), Ok(Frame::Reject(reject)));
}

#[test]
fn session_frames() {
    let golden = [
        "01 01 03 00 00000009 0123456789abcdef 0000000000000005 6869",
        "01 01 03 00 00000009 0000000000000001 0000000000000005",
        "01 01 00 00 00000009 0000000000000002 0000000000000005 70617274",
        "01 02 00 00 00000009 0000000000000000 0000000000000005",
        "01 03 04 00 00000009 1122334455667788 0000000000000005 0102030405060708 00000200 07 000000",
        "01 04 00 00 00000009 0000000000000000 0000000000000000 02 00000000000000",
        "01 05 00 00 00000009 0000000000000006 0000000000000005",
        "01 06 00 00 00000009 0000000000000002 0000000000000000 \
         44424c48 04 1b 00 01 4853 01 00 0102030405060708 01 18 51 0a010203",
        "01 07 00 00 00000009 0000000000000000 0000000000000000 00000005 03 00000000000000 1112131415161718 0022232425262728 31323334",
        "01 07 00 00 00000009 0000000000000000 0000000000000000 00000005 00 00000000000000 0000000000000000 0000000000000000 00000000",
        "01 08 00 00 00000009 0000000000000000 0000000000000000 03 000000 00000007",
        "01 09 00 00 00000009 0000000000000000 0000000000000000 03 000000 00000007",
        "01 0a 00 00 00000009 0000000000000000 0000000000000000 01020304 00040000 000000aa01020304 1112131415161718 01 00000000000000",
        "01 0b 00 00 00000009 0000000000000000 0000000000000000 01020304 1112131415161718 0022232425262728 31323334",
        "01 0c 00 00 00000009 0000000000000000 0000000000000000 01020304 21222324 00000200 41424344",
        "01 0c 00 00 00000009 0000000000000000 0000000000000000 01020304 00000000 00000000 41424344",
        &format!(
            "01 0d 00 00 00000009 0000000000000000 0000000000000000 01020304 21222324 41424344 00000000 06 81 {} 80",
            "00".repeat(61)
        ),
        "01 0e 00 00 00000009 0000000000000000 0000000000000000 01020304 02 00 0000",
        "01 0e 00 00 00000009 0000000000000000 0000000000000000 01020304 01 01 0000",
        "01 0f 00 00 00000009 0000000000000000 0000000000000000 1112131415161718 0022232425262728 31323334",
        "01 10 01 00 00000009 0123456789abcdef 0000000000000005 61626364 00010000",
    ];
    assert_eq!(samples::session_frames().len(), golden.len());
    for ((name, written), golden) in samples::session_frames().iter().zip(golden) {
        assert_eq!(*written, bytes(golden), "{name}");
    }
    let attach = SessionFrame::Attach(samples::attach());
    assert_eq!(SessionFrame::parse(&bytes(golden[4])), Ok(attach));
}

#[test]
fn frames_print_in_one_line() {
    let texts = [
        "fragment 81985529216486895 of 2 bytes, expecting 5",
        "fragment 1 of 0 bytes, expecting 5",
        "fragment 2 of 4 bytes, expecting 5",
        "acknowledgement, expecting 5",
        "attach of rail 7 to session 0102030405060708, epoch 9",
        "refusal of epoch 9: the rail has had a later connection",
        "farewell before fragment 6",
        "moved, handle 2",
        "grant 5 of 9608787357214504 bytes",
        "grant 5 withdrawn",
        "fence of rail 3, epochs to 7",
        "answer to the fence of rail 3, epochs to 7",
        "transfer 16909060 of 730161349380 bytes, tag 1230066625199609624: the sender gives",
        "memory for transfer 16909060",
        "512 pieces of transfer 16909060 from 555885348, question 1094861636",
        "0 pieces of transfer 16909060 from 0, question 1094861636",
        "transfer 16909060 up to piece 555885348, answer to question 1094861636",
        "end of transfer 16909060: cancelled",
        "answer to the end of transfer 16909060: all of it arrived",
        "lends 9608787357214504 bytes",
        "fragment 81985529216486895 of 65536 bytes at offset 1633837924, expecting 5",
    ];
    assert_eq!(samples::session_frames().len(), texts.len());
    for ((_, written), text) in samples::session_frames().iter().zip(texts) {
        assert_eq!(SessionFrame::parse(written).unwrap().to_string(), text);
    }
    for frame in samples::frames() {
        let text = Frame::parse(frame.as_bytes()).unwrap().to_string();
        let kind = text.split([' ', ':']).next().unwrap();
        assert!(
            ["Hello", "Welcome", "Connect", "Accept", "Ready", "Reject"].contains(&kind),
            "{text}"
        );
        assert!(text.len() < 120 && !text.contains('\n'), "{text}");
    }
    assert_eq!(
        samples::invitations().map(|ring| ring.to_string().split(' ').count()),
        [7; 2]
    );
}

/// A kind that a parser knows and that has no golden bytes above is found here.
#[test]
fn every_kind_of_frame_has_golden_bytes() {
    let sessions = samples::session_frames();
    let has_golden = |kind: u8| sessions.iter().any(|(_, frame)| frame[1] == kind);
    for kind in 0..=u8::MAX {
        let mut frame = [0; 256];
        (frame[0], frame[1]) = (1, kind);
        let error = SessionFrame::parse(&frame).err();
        let is_unknown =
            error.is_some_and(|error| (error.field, error.reason) == (Field::Kind, Reason::Unknown));
        assert_eq!(!is_unknown, has_golden(kind), "session frames of kind {kind}");
    }
    // Hello to Reject, by the tests above.
    let of_handshake = 1..=6;
    for kind in 0..=u8::MAX {
        let mut frame = FrameBuffer::ready(4).as_bytes().to_vec();
        frame[5] = kind;
        let error = Frame::parse(&frame).err();
        let is_unknown =
            error.is_some_and(|error| (error.field, error.reason) == (Field::Kind, Reason::Unknown));
        let has_golden = of_handshake.contains(&kind);
        assert_eq!(!is_unknown, has_golden, "frames of a handshake of kind {kind}");
    }
}

/// No field is lost or exchanged between the bytes and the values: the values write the same bytes again.
#[test]
fn session_frames_are_read_as_they_were_written() {
    for (name, frame) in samples::session_frames() {
        let parsed = SessionFrame::parse(&frame).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let SessionFrame::Moved(_, handle) = parsed {
            assert!(handle.rails().iter().eq(samples::rails().into_iter().take(1)));
        }
        oracle::session::check(&frame);
    }
}
