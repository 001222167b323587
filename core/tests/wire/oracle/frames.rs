//! Any bytes as a frame: refused with a place in them, or understood and written again the same.

use doorbell_core::wire::{FRAME_BYTES_MAX, Frame, FrameBuffer, FrameHeader, VERSION};

/// Panics where reading `bytes` as a frame breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(header) = FrameHeader::parse(bytes) {
        assert!(header.frame_bytes() <= FRAME_BYTES_MAX);
    }
    let frame = match Frame::parse(bytes) {
        Ok(frame) => frame,
        Err(error) => {
            assert!(usize::from(error.offset) <= bytes.len(), "{error}");
            return;
        }
    };
    let again = match frame {
        // What a newer version adds is passed over, so it cannot be written again.
        Frame::Hello(hello) if hello.hello.versions.newest() > VERSION => return,
        Frame::Hello(hello) => FrameBuffer::hello(&hello.hello, &hello.rails.iter().collect()),
        Frame::Welcome(welcome) => FrameBuffer::welcome(&welcome.welcome, &welcome.rails.iter().collect()),
        Frame::Connect(connect) => FrameBuffer::connect(&connect),
        Frame::Accept(accept) => FrameBuffer::accept(&accept),
        Frame::Ready => FrameBuffer::ready(),
        Frame::Reject(reject) => FrameBuffer::reject(&reject),
        other => panic!("a kind nobody writes: {other:?}"),
    };
    assert_eq!(again.as_bytes(), bytes);
}
