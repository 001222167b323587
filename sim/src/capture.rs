//! Captures: packets as frames, with the time each left its port.

use crate::packet::Packet;
use crate::packet::encode::encode;

/// A frame that left a port, whether it arrived or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// When its last bit was sent, in nanoseconds since the fabric was made.
    pub at_ns: u64,
    /// From the Ethernet header on to the invariant checksum, without Ethernet's own.
    pub bytes: Vec<u8>,
}

/// Frames that were kept.
pub(crate) struct Capture {
    frames: Vec<Frame>,
    frames_max: usize,
}

impl Capture {
    pub(crate) const fn new(frames_max: usize) -> Self {
        Self {
            frames: Vec::new(),
            frames_max,
        }
    }

    /// Keeps a packet, as long as there is room.
    pub(crate) fn keep(&mut self, at_ns: u64, packet: &Packet) {
        if self.frames.len() < self.frames_max {
            let mut bytes = Vec::new();
            encode(packet, &mut bytes);
            self.frames.push(Frame { at_ns, bytes });
        }
    }

    pub(crate) fn into_frames(self) -> Vec<Frame> {
        self.frames
    }
}
