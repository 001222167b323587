//! Frames: every byte cut or changed, limits in pairs, newer peers.

use doorbell_core::wire::{
    AdvertisedRail, Endpoint, FRAME_BODY_BYTES_MAX, FRAME_BYTES_MAX, Field, Frame, FrameBuffer, FrameHeader,
    PRIVATE_DATA_BYTES_MAX, Part, PrivateData, RAILS_MAX, Reason, RejectReason, VersionRange, WireError,
};

use crate::{oracle, samples};

fn refusal(bytes: &[u8]) -> (Part, Field, u16, Reason) {
    let WireError {
        part,
        field,
        offset,
        reason,
        ..
    } = Frame::parse(bytes).unwrap_err();
    (part, field, offset, reason)
}

fn changed(frame: &FrameBuffer, index: usize, value: u8) -> Vec<u8> {
    let mut bytes = frame.as_bytes().to_vec();
    bytes[index] = value;
    bytes
}

#[test]
fn each_truncation_is_refused_as_one() {
    for frame in samples::frames() {
        for length in 0..frame.as_bytes().len() {
            let (_, _, offset, reason) = refusal(&frame.as_bytes()[..length]);
            assert_eq!(reason, Reason::Truncated, "{length}");
            assert!(usize::from(offset) <= length);
        }
    }
    let hello = &samples::frames_in(1)[0];
    for (length, field) in [
        (0, Field::Magic),
        (9, Field::BodyLength),
        (10, Field::VersionMin),
        (12, Field::RailCount),
        (20, Field::Instance),
        (29, Field::ListenerInstance),
        (45, Field::Nonce),
        (46, Field::RailTag),
        (52, Field::RailAddress),
    ] {
        assert_eq!(refusal(&hello.as_bytes()[..length]).1, field, "{length}");
    }
    let connect = &samples::frames_in(1)[2];
    for (length, field) in [
        (25, Field::Gid),
        (26, Field::Qpn),
        (33, Field::Psn),
        (34, Field::Mtu),
        (37, Field::TrafficClass),
        (45, Field::PrivateLength),
        (53, Field::SlotBytes),
        (61, Field::CreditAddress),
        (65, Field::CreditRkey),
        (69, Field::CreditStart),
        (70, Field::PrivateData),
        (71, Field::PrivateData),
    ] {
        assert_eq!(refusal(&connect.as_bytes()[..length]).1, field, "{length}");
    }
    // Fields that only version 2 has.
    let [hello, welcome, connect, _, ready] = &samples::keyed_frames();
    let rails = samples::frames_in(1)[0].as_bytes().len();
    for (frame, length, field) in [
        (hello, rails, Field::KeyId),
        (hello, rails + 3, Field::KeyId),
        (welcome, 38, Field::KeyId),
        (welcome, 41, Field::KeyId),
        (welcome, 42, Field::RailTag),
        (connect, 69, Field::CreditStart),
        (connect, 70, Field::Session),
        (connect, 78, Field::NextSequence),
        (connect, 86, Field::Epoch),
        (connect, 89, Field::Epoch),
        (connect, 90, Field::PrivateData),
        (connect, 92, Field::Tag),
        (connect, 123, Field::Tag),
        (ready, 10, Field::Tag),
        (ready, 41, Field::Tag),
    ] {
        assert_eq!(refusal(&frame.as_bytes()[..length]).1, field, "{length}");
    }
}

#[test]
fn each_changed_byte_is_refused_or_means_what_it_says() {
    for frame in samples::frames() {
        for index in 0..frame.as_bytes().len() {
            for value in 0..=u8::MAX {
                oracle::frames::check(&changed(&frame, index, value));
            }
        }
    }
}

#[test]
fn bytes_after_a_frame_are_refused() {
    for frame in samples::frames() {
        let mut bytes = frame.as_bytes().to_vec();
        bytes.push(0);
        let (_, field, offset, reason) = refusal(&bytes);
        assert_eq!((field, reason), (Field::Trailing, Reason::TooLong));
        assert_eq!(usize::from(offset), frame.as_bytes().len());
    }
}

#[test]
fn bytes_after_a_body_are_refused() {
    let bodies = samples::frames_in(1).into_iter().take(4);
    let bodies = bodies.chain(samples::frames_in(2).into_iter().take(4));
    for (index, frame) in bodies.enumerate() {
        let mut bytes = frame.as_bytes().to_vec();
        bytes.push(0);
        let body_bytes = u16::try_from(bytes.len() - 10).unwrap();
        bytes[8..10].copy_from_slice(&body_bytes.to_be_bytes());
        let (_, field, offset, reason) = refusal(&bytes);
        assert_eq!((field, reason), (Field::Trailing, Reason::TooLong), "{index}");
        assert_eq!(usize::from(offset), bytes.len() - 1);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let [hello, welcome, connect, _, _, reject] = samples::frames_in(1);
    let [newer_hello, newer_welcome, newer_connect, ..] = samples::frames_in(2);
    let header = Part::FrameHeader;
    for (frame, index, value, refused) in [
        (&hello, 3, 0, (header, Field::Magic, 0, Reason::Unknown)),
        (&hello, 4, 0, (header, Field::Version, 4, Reason::Unknown)),
        (&hello, 4, 2, (header, Field::Version, 4, Reason::Unknown)),
        (&hello, 5, 0, (header, Field::Kind, 5, Reason::Unknown)),
        (&hello, 5, 7, (header, Field::Kind, 5, Reason::Unknown)),
        (&hello, 7, 1, (header, Field::Flags, 6, Reason::NotZero)),
        (&hello, 10, 0, (Part::Hello, Field::VersionMin, 10, Reason::Zero)),
        (
            &hello,
            10,
            2,
            (Part::Hello, Field::VersionMin, 10, Reason::Mismatch),
        ),
        (&hello, 13, 1, (Part::Hello, Field::Reserved, 13, Reason::NotZero)),
        (
            &hello,
            46,
            0x80,
            (Part::Hello, Field::RailTag, 46, Reason::Unknown),
        ),
        (
            &welcome,
            10,
            0,
            (Part::Welcome, Field::Version, 10, Reason::Mismatch),
        ),
        (&newer_hello, 4, 2, (header, Field::Version, 4, Reason::Unknown)),
        (&newer_welcome, 4, 5, (header, Field::Version, 4, Reason::Unknown)),
        (&newer_welcome, 7, 2, (header, Field::Flags, 6, Reason::NotZero)),
        // Neither version 1 nor a Hello has a place for a tag.
        (&connect, 7, 1, (header, Field::Flags, 6, Reason::NotZero)),
        (&newer_hello, 7, 1, (header, Field::Flags, 6, Reason::NotZero)),
        (
            &newer_welcome,
            10,
            1,
            (Part::Welcome, Field::Version, 10, Reason::Mismatch),
        ),
        (
            &newer_connect,
            26,
            1,
            (Part::Connect, Field::Qpn, 26, Reason::OutOfRange),
        ),
        (
            &welcome,
            13,
            1,
            (Part::Welcome, Field::Reserved, 12, Reason::NotZero),
        ),
        (
            &connect,
            26,
            1,
            (Part::Connect, Field::Qpn, 26, Reason::OutOfRange),
        ),
        (
            &connect,
            30,
            1,
            (Part::Connect, Field::Psn, 30, Reason::OutOfRange),
        ),
        (&connect, 34, 0, (Part::Connect, Field::Mtu, 34, Reason::Unknown)),
        (&connect, 34, 6, (Part::Connect, Field::Mtu, 34, Reason::Unknown)),
        (
            &connect,
            39,
            0x10,
            (Part::Connect, Field::FlowLabel, 38, Reason::OutOfRange),
        ),
        (
            &connect,
            42,
            16,
            (Part::Connect, Field::ServiceLevel, 42, Reason::OutOfRange),
        ),
        (
            &connect,
            45,
            65,
            (Part::Connect, Field::PrivateLength, 45, Reason::TooLong),
        ),
        (
            &connect,
            46,
            1,
            (Part::Connect, Field::ReceiveDepth, 46, Reason::OutOfRange),
        ),
        (
            &connect,
            50,
            0x81,
            (Part::Connect, Field::SlotBytes, 50, Reason::OutOfRange),
        ),
        (
            &reject,
            13,
            1,
            (Part::Reject, Field::Reserved, 12, Reason::NotZero),
        ),
    ] {
        assert_eq!(
            refusal(&changed(frame, index, value)),
            refused,
            "byte {index} = {value}"
        );
    }
    for (frame, at, part) in [(&hello, 14, Part::Hello), (&welcome, 14, Part::Welcome)] {
        let mut zero = frame.as_bytes().to_vec();
        zero[at..at + 8].fill(0);
        assert_eq!(
            refusal(&zero),
            (part, Field::Instance, u16::try_from(at).unwrap(), Reason::Zero)
        );
    }
    // Without a session, the fields that describe one are zero.
    for (from, to, field) in [(70, 86, Field::Epoch), (70, 78, Field::NextSequence)] {
        let mut bytes = newer_connect.as_bytes().to_vec();
        bytes[from..to].fill(0);
        let (_, found, offset, reason) = refusal(&bytes);
        assert_eq!((found, usize::from(offset), reason), (field, to, Reason::NotZero));
    }
    let mut no_gid = connect.as_bytes().to_vec();
    no_gid[10..26].fill(0);
    assert_eq!(refusal(&no_gid), (Part::Connect, Field::Gid, 10, Reason::Zero));
    let mut misaligned = connect.as_bytes().to_vec();
    misaligned[61] |= 4;
    assert_eq!(
        refusal(&misaligned),
        (Part::Connect, Field::CreditAddress, 54, Reason::OutOfRange)
    );
    for (qpn, is_good) in [
        (0, false),
        (1, false),
        (2, true),
        (0x00ff_ffff, true),
        (0x0100_0000, false),
    ] {
        let mut bytes = connect.as_bytes().to_vec();
        bytes[26..30].copy_from_slice(&u32::to_be_bytes(qpn));
        assert_eq!(Frame::parse(&bytes).is_ok(), is_good, "{qpn:#x}");
    }
}

#[test]
fn limits_hold_exactly() {
    let connect = samples::connect(2).endpoint;
    let with = |change: fn(&mut Endpoint)| {
        let mut endpoint = connect;
        change(&mut endpoint);
        endpoint.is_sendable()
    };
    assert!(with(|endpoint| endpoint.parameters.receive_depth = 1 << 16));
    assert!(!with(|endpoint| endpoint.parameters.receive_depth = (1 << 16) + 1));
    assert!(with(|endpoint| endpoint.parameters.slot_bytes = 1 << 31));
    assert!(!with(|endpoint| endpoint.parameters.slot_bytes = (1 << 31) + 1));
    assert!(with(|endpoint| endpoint.credit.address = u64::MAX - 7));
    for address in 1..8 {
        let mut endpoint = connect;
        endpoint.credit.address = address;
        assert!(!endpoint.is_sendable(), "{address}");
    }
    assert!(with(|endpoint| endpoint.credit.start = u32::MAX));
    assert!(with(|endpoint| endpoint.parameters.flow_label = 0xf_ffff));
    assert!(!with(|endpoint| endpoint.parameters.flow_label = 0x10_0000));
    assert!(with(|endpoint| endpoint.parameters.service_level = 15));
    assert!(!with(|endpoint| endpoint.parameters.service_level = 16));
    assert!(PrivateData::new(&[7; PRIVATE_DATA_BYTES_MAX]).is_ok());
    assert_eq!(
        PrivateData::new(&[7; PRIVATE_DATA_BYTES_MAX + 1])
            .unwrap_err()
            .bytes,
        65
    );
}

#[test]
fn announced_lengths_are_refused_before_the_body_is_there() {
    let header = |version: u8, kind: u8, flags: u8, body_bytes: usize| {
        let mut bytes = b"DBLF\x01\x00\x00\x00\x00\x00".to_vec();
        (bytes[4], bytes[5], bytes[7]) = (version, kind, flags);
        bytes[8..].copy_from_slice(&u16::try_from(body_bytes).unwrap().to_be_bytes());
        FrameHeader::parse(&bytes)
            .map(|header| header.body_bytes)
            .map_err(|error| error.reason)
    };
    for (version, kind, flags, min, max) in [
        (1, 1, 0, 36, FRAME_BODY_BYTES_MAX),
        (1, 2, 0, 28, 28 + 64 * 35),
        (1, 3, 0, 60, 124),
        (1, 4, 0, 60, 124),
        (1, 5, 0, 0, 0),
        (1, 6, 0, 8, 8),
        (2, 2, 0, 32, 32 + 64 * 35),
        (2, 2, 1, 64, 64 + 64 * 35),
        (2, 3, 0, 80, 144),
        (2, 3, 1, 112, 176),
        (2, 4, 1, 112, 176),
        (2, 5, 0, 0, 0),
        (2, 5, 1, 32, 32),
    ] {
        let header = |body_bytes| header(version, kind, flags, body_bytes);
        assert_eq!(header(min), Ok(min));
        assert_eq!(header(max), Ok(max));
        assert_eq!(header(max + 1), Err(Reason::TooLong));
        if min > 0 {
            assert_eq!(header(min - 1), Err(Reason::OutOfRange));
        }
        assert_eq!(header(usize::from(u16::MAX)), Err(Reason::TooLong));
    }
}

#[test]
fn sixty_four_of_the_longest_rails_fit_and_no_more() {
    let longest = samples::rails()[3];
    let rails: heapless::Vec<AdvertisedRail, RAILS_MAX> = (0..RAILS_MAX).map(|_| longest).collect();
    let welcome = FrameBuffer::welcome(&samples::welcome(2), &rails);
    let frames = [
        FrameBuffer::hello(&samples::hello(1), &rails),
        FrameBuffer::welcome(&samples::welcome(1), &rails),
        FrameBuffer::hello(&samples::hello(2), &rails),
        welcome.clone(),
        welcome.tagged(|_| samples::TAG),
    ];
    for (frame, count_at) in frames.iter().zip([12, 11, 12, 11, 11]) {
        assert!(frame.as_bytes().len() <= FRAME_BYTES_MAX);
        oracle::frames::check(frame.as_bytes());
        assert!(Frame::parse(frame.as_bytes()).is_ok());
        let one_more = changed(frame, count_at, 65);
        assert_eq!(refusal(&one_more).1, Field::RailCount);
    }
}

#[test]
fn of_a_newer_hello_the_unknown_is_passed_over() {
    let newer_hello = {
        let mut hello = samples::hello(2);
        hello.versions = VersionRange::new(1, 5).unwrap();
        hello.key = Some(samples::key_id());
        hello
    };
    let known = samples::rails()[0];
    let frame = FrameBuffer::hello(&newer_hello, &[known].into_iter().collect());
    let mut bytes = frame.as_bytes().to_vec();
    // A rail of another kind goes before the key.
    let key_at = bytes.len() - 4;
    bytes.splice(key_at..key_at, [0xff, 4, 1, 2]);
    bytes.extend_from_slice(b"whatever a newer version has to say");
    bytes[12] = 2;
    bytes[13] = 0xff;
    let body_bytes = u16::try_from(bytes.len() - 10).unwrap();
    bytes[8..10].copy_from_slice(&body_bytes.to_be_bytes());
    let Ok(Frame::Hello(hello)) = Frame::parse(&bytes) else {
        panic!("not a Hello")
    };
    assert_eq!(hello.hello, newer_hello);
    assert!(hello.rails.iter().eq([known]));
    for known in [1, 2] {
        bytes[11] = known;
        assert!(Frame::parse(&bytes).is_err());
    }
}

#[test]
fn reasons_have_words() {
    for raw in 1..=15 {
        assert!(!RejectReason(raw).to_string().contains("unknown"), "{raw}");
    }
    assert_eq!(RejectReason(16).to_string(), "unknown reason 16");
    let error = Frame::parse(b"DBLF\x01\x03\x00\x00\x00\x7d").unwrap_err();
    assert_eq!(error.to_string(), "frame header: body length at byte 8: too long");
}
