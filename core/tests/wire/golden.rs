//! The bytes themselves, as `docs/wire-format.md` has them: what may never change within a version.

use doorbell_core::wire::{Frame, FrameBuffer, Handle, Reject, RejectReason};

use crate::samples;

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
        "44424c48 01 68 00 04 4853 01 00 0102030405060708 {RAILS}"
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

#[test]
fn handle_text() {
    let handle = samples::handle(&samples::rails()[..1]);
    let text = "doorbell:44424c48011b00014853010001020304050607080118510a010203a74d";
    assert_eq!(handle.to_string(), text);
}

#[test]
fn hello() {
    let golden = bytes(&format!(
        "44424c46 01 01 0000 0078
         01 01 04 00 1112131415161718 0102030405060708 a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0 {RAILS}"
    ));
    let frame = FrameBuffer::hello(&samples::hello(), &samples::rails().into_iter().collect());
    assert_eq!(frame.as_bytes(), golden);
    let Ok(Frame::Hello(parsed)) = Frame::parse(&golden) else {
        panic!("not a Hello")
    };
    assert_eq!(parsed.hello, samples::hello());
    assert!(parsed.rails.iter().eq(samples::rails()));
}

#[test]
fn welcome() {
    let golden = bytes(&format!(
        "44424c46 01 02 0000 0070
         01 04 0000 0102030405060708 b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0 {RAILS}"
    ));
    let frame = FrameBuffer::welcome(&samples::welcome(), &samples::rails().into_iter().collect());
    assert_eq!(frame.as_bytes(), golden);
    let Ok(Frame::Welcome(parsed)) = Frame::parse(&golden) else {
        panic!("not a Welcome")
    };
    assert_eq!(parsed.welcome, samples::welcome());
    assert!(parsed.rails.iter().eq(samples::rails()));
}

#[test]
fn connect() {
    let golden = bytes(&format!("44424c46 01 03 0000 003e {ENDPOINT}"));
    assert_eq!(FrameBuffer::connect(&samples::connect()).as_bytes(), golden);
    assert_eq!(Frame::parse(&golden), Ok(Frame::Connect(samples::connect())));
}

#[test]
fn accept() {
    let golden = bytes(&format!("44424c46 01 04 0000 003e {ENDPOINT}"));
    assert_eq!(FrameBuffer::accept(&samples::connect()).as_bytes(), golden);
    assert_eq!(Frame::parse(&golden), Ok(Frame::Accept(samples::connect())));
}

#[test]
fn ready() {
    let golden = bytes("44424c46 01 05 0000 0000");
    assert_eq!(FrameBuffer::ready().as_bytes(), golden);
    assert_eq!(Frame::parse(&golden), Ok(Frame::Ready));
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
