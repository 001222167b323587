//! Packets on the socket between a process and the daemon: 64 bytes each, big-endian.
//!
//! ```text
//! 0 magic u32   4 version u16   6 kind u16   8 depth u32   12 message bytes u32   16 job u64   24 key [16]   40 endpoint u32
//! 44 node u32   48 reason u32   52 zero u32   56 arena bytes u64
//! ```
//!
//! The answer to an attach packet has the epoch in the field of the job, and the incarnation in the field of the arena bytes. The
//! status packets have the length of the status in the field of the message bytes.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::EndpointLayout;
use crate::name::{JobKey, JobNumber, NodeNumber};
use crate::reason::{AttachRefusal, CutReason};

/// Length of a packet.
pub(crate) const PACKET_BYTES: usize = 64;

/// Maximum length of a status in bytes.
pub(crate) const STATUS_BYTES_MAX: u32 = 8 << 20;

const MAGIC: u32 = 0x646f_6f72;
const VERSION: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U32,
    version: U16,
    kind: U16,
    depth: U32,
    message_bytes: U32,
    job: U64,
    key: [u8; 16],
    endpoint: U32,
    node: U32,
    reason: U32,
    zero: U32,
    arena_bytes: U64,
}

/// Request of a process to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The job of the process.
    pub job: JobNumber,
    /// The job's secret.
    pub key: JobKey,
    /// The number of its endpoint, unique in the job on this node.
    pub endpoint: u32,
    /// The layout of its memory.
    pub layout: EndpointLayout,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// Client to daemon, with the descriptors of the rings, of the cells, and of the arena if there is one.
    Attach(AttachRequest),
    /// Client to daemon: the client detaches.
    Detach,
    /// New daemon to running daemon: exit, and close this connection last.
    Replace,
    /// Process to daemon, with a descriptor of shared memory of this size: write the status there.
    Status { bytes: u32 },
    /// Daemon to process: this number of bytes were written. 0 means that the status does not fit into the memory.
    StatusGiven { bytes: u32 },
    /// Either direction: wakes the receiver, which sleeps although there is something for it.
    Wake,
    /// Daemon to client.
    Attached {
        node: NodeNumber,
        /// Epoch of the daemon, higher than the epochs of all daemons before it.
        epoch: u64,
        /// Incarnation of the client, unique within the daemon.
        incarnation: u64,
    },
    /// Daemon to client.
    Refused(AttachRefusal),
    /// Daemon to client: the client is cut off.
    Cut(CutReason),
}

impl Packet {
    pub(crate) fn bytes(&self) -> [u8; PACKET_BYTES] {
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC.into();
        raw.version = VERSION.into();
        let kind: u16 = match *self {
            Self::Attach(request) => {
                raw.depth = request.layout.depth().into();
                raw.message_bytes = request.layout.message_bytes().into();
                raw.arena_bytes = request.layout.arena_bytes().into();
                raw.job = request.job.0.into();
                raw.key = request.key.0;
                raw.endpoint = request.endpoint.into();
                1
            }
            Self::Detach => 2,
            Self::Wake => 3,
            Self::Replace => 7,
            Self::Status { bytes } => {
                raw.message_bytes = bytes.into();
                8
            }
            Self::StatusGiven { bytes } => {
                raw.message_bytes = bytes.into();
                9
            }
            Self::Attached {
                node,
                epoch,
                incarnation,
            } => {
                raw.node = node.0.into();
                raw.job = epoch.into();
                raw.arena_bytes = incarnation.into();
                4
            }
            Self::Refused(reason) => {
                raw.reason = reason.number().into();
                5
            }
            Self::Cut(reason) => {
                raw.reason = reason.number().into();
                6
            }
        };
        raw.kind = kind.into();
        zerocopy::transmute!(raw)
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// The packet is of no known version, or a size in it is out of bounds. Bits that this version does not use have to be zero.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, AttachRefusal> {
        let raw = Raw::read_from_bytes(bytes).map_err(|_| AttachRefusal::Packet)?;
        if raw.magic.get() != MAGIC || raw.version.get() != VERSION {
            return Err(AttachRefusal::Packet);
        }
        let reason = raw.reason.get();
        let packet = match raw.kind.get() {
            1 => Self::Attach(AttachRequest {
                job: JobNumber(raw.job.get()),
                key: JobKey(raw.key),
                endpoint: raw.endpoint.get(),
                layout: EndpointLayout::new(raw.depth.get(), raw.message_bytes.get())
                    .and_then(|layout| layout.with_arena(raw.arena_bytes.get()))
                    .ok_or(AttachRefusal::Geometry)?,
            }),
            2 => Self::Detach,
            3 => Self::Wake,
            4 => Self::Attached {
                node: NodeNumber(raw.node.get()),
                epoch: raw.job.get(),
                incarnation: raw.arena_bytes.get(),
            },
            5 => Self::Refused(AttachRefusal::of(reason).ok_or(AttachRefusal::Packet)?),
            7 => Self::Replace,
            6 => Self::Cut(CutReason::of(reason).ok_or(AttachRefusal::Packet)?),
            8 => Self::Status {
                bytes: raw.message_bytes.get(),
            },
            9 => Self::StatusGiven {
                bytes: raw.message_bytes.get(),
            },
            _ => return Err(AttachRefusal::Packet),
        };
        // Each meaning has exactly one encoding.
        if packet.bytes() == bytes {
            Ok(packet)
        } else {
            Err(AttachRefusal::Packet)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{AttachRequest, PACKET_BYTES, Packet};
    use crate::layout::EndpointLayout;
    use crate::name::{JobKey, JobNumber, NodeNumber};
    use crate::reason::{AttachRefusal, CutReason};

    pub(crate) fn packets() -> [Packet; 9] {
        [
            Packet::Attach(AttachRequest {
                job: JobNumber(1 << 40),
                key: JobKey(*b"sixteen letters!"),
                endpoint: 3,
                layout: EndpointLayout::new(4, 64).unwrap().with_arena(1 << 20).unwrap(),
            }),
            Packet::Detach,
            Packet::Wake,
            Packet::Replace,
            Packet::Attached {
                node: NodeNumber(5),
                epoch: u64::MAX,
                incarnation: 1 << 63,
            },
            Packet::Refused(AttachRefusal::NameTaken),
            Packet::Cut(CutReason::Length),
            Packet::Status { bytes: 1 << 20 },
            Packet::StatusGiven { bytes: 776 },
        ]
    }

    #[test]
    fn each_packet_is_read_as_it_was_written_and_none_that_is_cut_or_changed_in_its_zeros() {
        for packet in packets() {
            let bytes = packet.bytes();
            assert_eq!(Packet::parse(&bytes), Ok(packet));
            for length in 0..PACKET_BYTES {
                assert_eq!(Packet::parse(&bytes[..length]), Err(AttachRefusal::Packet));
            }
            for at in [0, 4, 6, 52, 55] {
                let mut wrong = bytes;
                wrong[at] ^= 0x40;
                assert_eq!(
                    Packet::parse(&wrong),
                    Err(AttachRefusal::Packet),
                    "{packet:?} {at}"
                );
            }
        }
    }

    #[test]
    fn sizes_are_bounded() {
        for (depth, bytes, arena, is_right) in [
            (2, 64, 0, true),
            (4096, 65536, 1 << 30, true),
            (1, 64, 0, false),
            (8192, 64, 0, false),
            (6, 64, 0, false),
            (4, 0, 0, false),
            (4, 65, 0, false),
            (4, 65600, 0, false),
            (4, 64, 4096, true),
            (4, 64, 4095, false),
            (4, 64, (1 << 30) + 4096, false),
            (4, 64, 1 << 63, false),
        ] {
            let mut packet = packets()[0].bytes();
            packet[8..12].copy_from_slice(&u32::to_be_bytes(depth));
            packet[12..16].copy_from_slice(&u32::to_be_bytes(bytes));
            packet[56..].copy_from_slice(&u64::to_be_bytes(arena));
            let parsed = Packet::parse(&packet);
            assert_eq!(parsed.is_ok(), is_right, "{depth} {bytes} {arena}");
            assert!(is_right || parsed == Err(AttachRefusal::Geometry));
        }
    }
}
