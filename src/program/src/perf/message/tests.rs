use doorbell::RemoteWindow;
use doorbell::provider::{Mtu, Rkey};

use super::{Message, MessageError, Purpose, Ready, Setup, Verdict};
use crate::perf::pattern::Mismatch;
use crate::perf::test::{Kind, Op, Plant, Test};

fn setup() -> Setup {
    Setup {
        token: 0x0102_0304_0506_0708,
        test: Test {
            kind: Kind::Bandwidth,
            op: Op::WriteImm,
            message_bytes: 4096,
            iterations: 5000,
            warmup: 7,
            inline_bytes_max: 220,
            batch: 16,
            depth: 128,
            unsignaled_max: 64,
            buffers: 0,
            traffic_class: 0x68,
            mtu_max: Mtu::B1024,
            plant: Some(Plant::Client),
        },
        window: RemoteWindow::new(0x1000, 0x2000, Rkey(0xaabb_ccdd)),
    }
}

fn messages() -> Vec<Message> {
    let verdict = Verdict {
        token: 9,
        messages_checked: 5007,
        bytes_checked: 12,
        faults: 1,
        first_fault: Some(Mismatch {
            sequence: 2507,
            offset: 2047,
            expected: 0x5a,
            got: 0x5b,
        }),
        gave_up: None,
    };
    vec![
        Message::Setup(setup()),
        Message::Ready(Ready {
            token: 1,
            window: RemoteWindow::new(0, 0, Rkey(0)),
        }),
        Message::Refused("no memory".into()),
        Message::Verdict(verdict.clone()),
        Message::Verdict(Verdict {
            faults: 0,
            first_fault: None,
            gave_up: Some(String::new()),
            ..verdict
        }),
        Message::Finished,
    ]
}

#[test]
fn everything_comes_back_as_it_was() {
    for message in messages() {
        let bytes = message.encode();
        assert!(bytes.len() <= super::CONTROL_BYTES_MAX as usize);
        assert_eq!(Message::parse(&bytes), Ok(message));
    }
    for purpose in [Purpose::Control, Purpose::UnderTest(0xffee)] {
        assert_eq!(Purpose::parse(&purpose.encode()), Ok(purpose));
    }
}

#[test]
fn a_setup_is_these_bytes() {
    let golden = [
        0x64, 0x62, 0x50, 0x66, 0, 2, 0, 1, // header
        1, 2, 3, 4, 5, 6, 7, 8, // token
        0, 0, 0, 0, 0, 0, 0x13, 0x88, // iterations
        0, 0, 0, 0, 0, 0, 0, 7, // warm-up
        0, 0, 0x10, 0, 0, 0, 0, 220, 0, 0, 0, 16, 0, 0, 0, 128, 0, 0, 0, 64, 0, 0, 0, 0, // sizes
        2, 3, 1, 0x68, 3, 0, 0, 0, 0, 0, 0, 0, // kinds, reserved
        0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0xaa, 0xbb, 0xcc, 0xdd, // window
    ];
    assert_eq!(Message::Setup(setup()).encode(), golden);
}

#[test]
fn every_truncation_and_every_extension_is_refused() {
    let purposes = [Purpose::Control, Purpose::UnderTest(3)].map(|purpose| purpose.encode().to_vec());
    for bytes in messages().iter().map(Message::encode).chain(purposes) {
        let parses = |bytes: &[u8]| Message::parse(bytes).is_ok() || Purpose::parse(bytes).is_ok();
        assert!(parses(&bytes));
        for end in 0..bytes.len() {
            assert!(!parses(&bytes[..end]), "{end} of {} bytes", bytes.len());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(!parses(&longer));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let good = Message::Setup(setup()).encode();
    let refused = |offset: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[offset] = value;
        Message::parse(&bytes).unwrap_err()
    };
    assert!(matches!(refused(0, 0), MessageError::Magic(_)));
    assert_eq!(refused(5, 1), MessageError::Version(1));
    assert_eq!(refused(7, 99), MessageError::Kind(99));
    for (offset, field) in [
        (56, "kind of test"),
        (57, "operation"),
        (58, "self-test"),
        (60, "path MTU"),
        (61, "reserved byte"),
        (67, "reserved byte"),
    ] {
        assert_eq!(refused(offset, 9), MessageError::Field { field, value: 9 });
    }
    for (offset, value, what) in [
        (32, 0xff, "the message size"),
        (16, 0xff, "the number of iterations"),
        (24, 0xff, "the number of warm-up iterations"),
        (36, 0xff, "the inline size"),
        (40, 0xff, "the batch"),
        (44, 0xff, "the depth"),
        (48, 0xff, "the number of unsignaled requests"),
        (52, 1, "the number of buffers"),
    ] {
        assert!(
            matches!(refused(offset, value), MessageError::OutOfRange(unfit) if unfit.what == what),
            "{what}"
        );
    }
    // A changed byte of a header or of a setting gives another message, or an error.
    for offset in 0..good.len() {
        let mut bytes = good.clone();
        bytes[offset] ^= 0x40;
        assert_ne!(
            Message::parse(&bytes),
            Ok(Message::Setup(setup())),
            "offset {offset}"
        );
    }
}

#[test]
fn a_fault_cannot_hide() {
    let mut bytes = messages()[3].encode();
    // The marker of a fault, while the count remains.
    bytes[8 + 64] = 0;
    assert!(matches!(
        Message::parse(&bytes),
        Err(MessageError::Field {
            field: "number of faults",
            ..
        })
    ));
}

#[test]
fn reasons_are_cut_at_a_character_and_cannot_drive_a_terminal() {
    let long = "ä".repeat(150);
    let Ok(Message::Refused(cut)) = Message::parse(&Message::Refused(long).encode()) else {
        panic!("no refusal");
    };
    assert_eq!(cut, "ä".repeat(100));
    let Ok(Message::Refused(tame)) = Message::parse(&Message::Refused("a\u{1b}[2J".into()).encode()) else {
        panic!("no refusal");
    };
    assert_eq!(tame, "a [2J");
}
