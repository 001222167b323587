//! Frames on the links of a mesh, behind the header that names source and destination.

use core::mem::size_of;

use doorbell_core::rank::Rank;
use doorbell_core::route::{ANNOUNCEMENT_BYTES, RELAY_HEADER_BYTES, RelayHeader};

/// Kind of a frame of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum MeshFrameKind {
    /// The first on a link: which mesh, which rank, of how many.
    Join = 1,
    /// The neighbours of a member.
    Announcement = 2,
    /// A message, and what a grant says.
    Data = 3,
    /// How many messages came, and how many may be sent: where no message goes that could say it.
    Grant = 4,
}

impl MeshFrameKind {
    pub(super) const fn from_wire(raw: u16) -> Option<Self> {
        match raw {
            1 => Some(Self::Join),
            2 => Some(Self::Announcement),
            3 => Some(Self::Data),
            4 => Some(Self::Grant),
            _ => None,
        }
    }
}

/// Bytes behind the header of a Join: the mesh and the start of the member, 8 bytes each, then the number of ranks.
pub(super) const JOIN_BYTES: usize = 17;

/// The bytes of the longest frame that is no message: links copy those, and share messages with the mesh.
pub(super) const SHORT_BYTES_MAX: u32 = 64;

const _: () = {
    let most = SHORT_BYTES_MAX as usize - RELAY_HEADER_BYTES;
    assert!(JOIN_BYTES <= most);
    assert!(ANNOUNCEMENT_BYTES <= most);
    assert!(PAIR_HEADER_BYTES <= most);
};

/// Content of a Join: the mesh, the start of the member that sends it, and the number of ranks.
pub(super) struct Join {
    pub(super) mesh: u64,
    pub(super) started: u64,
    pub(super) ranks: u8,
}

impl Join {
    pub(super) fn to_bytes(&self, rank: Rank) -> [u8; RELAY_HEADER_BYTES + JOIN_BYTES] {
        let header = RelayHeader::new(rank, rank, 0, MeshFrameKind::Join as u16);
        let mut bytes = [0; RELAY_HEADER_BYTES + JOIN_BYTES];
        put(&mut bytes, 0, &header.to_bytes());
        put(&mut bytes, 8, &self.mesh.to_be_bytes());
        put(&mut bytes, 16, &self.started.to_be_bytes());
        put(&mut bytes, 24, &[self.ranks]);
        bytes
    }

    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let (mesh, rest) = body.split_first_chunk()?;
        let (started, rest) = rest.split_first_chunk()?;
        let [ranks] = *rest else { return None };
        Some(Self {
            mesh: u64::from_be_bytes(*mesh),
            started: u64::from_be_bytes(*started),
            ranks,
        })
    }
}

/// The bytes of a [`PairHeader`].
pub(super) const PAIR_HEADER_BYTES: usize = 28;

/// Offset of the grant in a frame of data: a retransmitted frame carries the newest grant.
const GRANT_AT: usize = RELAY_HEADER_BYTES + 20;

/// Header of the frames between two members: the number of the message, and the grant for the other direction. Numbers begin
/// anew with each start of either member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairHeader {
    /// Start of the member that sends this.
    pub(super) source_started: u64,
    /// Start of the member that this is for, as far as the sender knows.
    pub(super) destination_started: u64,
    /// The message's number. Zero in a grant.
    pub(super) sequence: u32,
    /// Grant for the messages of the other member.
    pub(super) grant: Grant,
}

/// Flow control of a member for the messages that come to it: how many came, and how many may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Number of the next message that is expected.
    pub(super) expected: u32,
    /// Number of messages, from that one on, that may be sent.
    pub(super) room: u32,
}

const _: () = assert!(size_of::<u64>() * 2 + size_of::<u32>() * 3 == PAIR_HEADER_BYTES);

impl Grant {
    /// Puts it into a frame of data, in the place of what it said before.
    pub(super) fn put_into(self, frame: &mut [u8]) {
        put(frame, GRANT_AT, &self.expected.to_be_bytes());
        put(frame, GRANT_AT + 4, &self.room.to_be_bytes());
    }
}

impl PairHeader {
    pub(super) fn to_bytes(self, header: RelayHeader) -> [u8; RELAY_HEADER_BYTES + PAIR_HEADER_BYTES] {
        let mut bytes = [0; RELAY_HEADER_BYTES + PAIR_HEADER_BYTES];
        put(&mut bytes, 0, &header.to_bytes());
        put(&mut bytes, 8, &self.source_started.to_be_bytes());
        put(&mut bytes, 16, &self.destination_started.to_be_bytes());
        put(&mut bytes, 24, &self.sequence.to_be_bytes());
        self.grant.put_into(&mut bytes);
        bytes
    }

    /// Reads that of a grant; `None` where it is none of a grant, which numbers no message, and behind which there is nothing.
    pub(super) fn parse_grant(body: &[u8]) -> Option<Self> {
        match Self::parse(body)? {
            (pair, []) if pair.sequence == 0 => Some(pair),
            _ => None,
        }
    }

    /// Reads it, and gives what is behind it: of data the message; `None` where it is none.
    pub(super) fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (source, rest) = body.split_first_chunk()?;
        let (destination, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (expected, rest) = rest.split_first_chunk()?;
        let (room, rest) = rest.split_first_chunk()?;
        let header = Self {
            source_started: u64::from_be_bytes(*source),
            destination_started: u64::from_be_bytes(*destination),
            sequence: u32::from_be_bytes(*sequence),
            grant: Grant {
                expected: u32::from_be_bytes(*expected),
                room: u32::from_be_bytes(*room),
            },
        };
        Some((header, rest))
    }
}

/// Writes bytes where they are known to fit.
fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = into.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
}
