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

/// Magic number of a capture file with times in nanoseconds.
const PCAP_MAGIC: u32 = 0xa1b2_3c4d;
/// Ethernet, to readers of such files.
const PCAP_ETHERNET: u32 = 1;
const SECOND_NS: u64 = 1_000_000_000;

/// Frames as a file that Wireshark reads: pcap, with times in nanoseconds.
///
/// Two of its dissectors are to be turned off (`tshark --disable-protocol rpcordma --disable-heuristic eth_over_ib`, or Analyze,
/// Enabled Protocols). The dissector of RPC over RDMA claims any SEND whose fourth word is below five. It calls one that does not
/// fit malformed, and every SEND without a fourth word. The dissector of Ethernet over InfiniBand claims a packet that begins
/// with an Ethernet type and two zeros, as a little-endian count of 6 does.
///
/// Source: the pcap file format of tcpdump, pcap-savefile(5).
#[must_use]
pub fn pcap(frames: &[Frame]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(PCAP_MAGIC.to_le_bytes());
    // Version 2.4, in universal time, and no frame is cut.
    file.extend([2, 0, 4, 0]);
    file.extend([0; 8]);
    file.extend(u32::from(u16::MAX).to_le_bytes());
    file.extend(PCAP_ETHERNET.to_le_bytes());
    for frame in frames {
        // No run lasts 136 years, and no frame is longer than 2^16 bytes.
        let seconds = u32::try_from(frame.at_ns / SECOND_NS).unwrap_or(u32::MAX);
        let rest = u32::try_from(frame.at_ns % SECOND_NS).unwrap_or_default();
        let bytes = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
        for word in [seconds, rest, bytes, bytes] {
            file.extend(word.to_le_bytes());
        }
        file.extend_from_slice(&frame.bytes);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::{Frame, pcap};

    #[test]
    fn a_file_of_one_frame() {
        let frame = Frame {
            at_ns: 3_000_000_005,
            bytes: vec![0xaa, 0xbb],
        };
        let file = pcap(&[frame]);
        let expected = [
            0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0,
            0, // the file
            3, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0xaa, 0xbb, // the frame
        ];
        assert_eq!(file, expected);
    }
}
