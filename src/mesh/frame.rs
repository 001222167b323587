//! The frames on the links of a mesh. Each follows the header with its source and destination.

use core::mem::size_of;

use doorbell_core::rank::Rank;
use doorbell_core::route::{ANNOUNCEMENT_BYTES, RELAY_HEADER_BYTES, RelayHeader};

/// Kind of a frame of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum MeshFrameKind {
    /// The first frame on a link: the mesh, the rank and start of the sender, and the number of ranks.
    Join = 1,
    /// The neighbours of a member.
    Announcement = 2,
    /// A message, which also carries a grant.
    Data = 3,
    /// A grant without a message.
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

/// The length of a Join without the header: the mesh and the start of the member, 8 bytes each, then the number of ranks.
pub(super) const JOIN_BYTES: usize = 17;

/// The maximum length of frames that links copy. No frame without a message is longer. Links share longer frames with the mesh.
pub(super) const SHORT_BYTES_MAX: u32 = 64;

const _: () = {
    let most = SHORT_BYTES_MAX as usize - RELAY_HEADER_BYTES;
    assert!(JOIN_BYTES <= most);
    assert!(ANNOUNCEMENT_BYTES <= most);
    assert!(PAIR_HEADER_BYTES <= most);
};

/// The content of a Join: the mesh, the start of the sender, and the number of ranks.
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

/// The length of a [`PairHeader`] in bytes.
pub(super) const PAIR_HEADER_BYTES: usize = 28;

/// Offset of the grant in a data frame. The grant is replaced before a retransmission.
const GRANT_AT: usize = RELAY_HEADER_BYTES + 20;

/// Header of data and grants between two members: the number of the message, and the grant for the other direction. Numbers
/// begin at zero with each start of either member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairHeader {
    /// Start of the source.
    pub(super) source_started: u64,
    /// Start of the destination, as the source knows it.
    pub(super) destination_started: u64,
    /// The number of the message. Zero in a grant without a message.
    pub(super) sequence: u32,
    /// The grant for messages from the destination to the source.
    pub(super) grant: Grant,
}

/// Acknowledgement and flow control for the messages of one direction: which arrived, and how many more may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The number of the next expected message. All earlier messages have arrived.
    pub(super) expected: u32,
    /// How many messages may be sent, from the expected one on.
    pub(super) room: u32,
}

const _: () = assert!(size_of::<u64>() * 2 + size_of::<u32>() * 3 == PAIR_HEADER_BYTES);

impl Grant {
    /// Writes the grant into a data frame, in place of the earlier grant.
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

    /// Reads the body of a grant without a message. `None` if it is invalid: its sequence has to be zero, and nothing may follow.
    pub(super) fn parse_grant(body: &[u8]) -> Option<Self> {
        match Self::parse(body)? {
            (pair, []) if pair.sequence == 0 => Some(pair),
            _ => None,
        }
    }

    /// Reads the header, and returns it with the bytes after it, which are the message of a data frame. `None` if it is too short.
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

/// Writes bytes at an offset. Callers ensure that the bytes fit.
fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = into.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::rank::{Rank, Ranks};
    use doorbell_core::route::{Announcement, RelayHeader};

    use super::{Grant, Join, MeshFrameKind, PairHeader};

    /// Returns the bytes of a frame of each kind, as in `docs/wire-format.md`. They may never change within a version.
    const fn golden(kind: MeshFrameKind) -> &'static str {
        match kind {
            MeshFrameKind::Join => "02 05 05 00 0001 0000  1112131415161718 2122232425262728 07",
            MeshFrameKind::Announcement => {
                "02 05 06 00 0002 0000  02 05 0000 31323334 2122232425262728 0000000000000089 0000000000000081"
            }
            MeshFrameKind::Data => {
                "02 05 06 07 0003 0000  2122232425262728 4142434445464748 51525354 61626364 71727374 6869"
            }
            MeshFrameKind::Grant => {
                "02 05 06 07 0004 0000  2122232425262728 4142434445464748 00000000 61626364 71727374"
            }
        }
    }

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits: Vec<u8> = hexadecimal.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2).map(|pair| core::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    fn rank(number: u8) -> Rank {
        Rank::new(number).unwrap()
    }

    fn ranks(numbers: &[u8]) -> Ranks {
        let with = |ranks: Ranks, number: &u8| ranks.with(rank(*number));
        numbers.iter().fold(Ranks::NONE, with)
    }

    fn pair(sequence: u32) -> PairHeader {
        PairHeader {
            source_started: 0x2122_2324_2526_2728,
            destination_started: 0x4142_4344_4546_4748,
            sequence,
            grant: Grant {
                expected: 0x6162_6364,
                room: 0x7172_7374,
            },
        }
    }

    fn written(kind: MeshFrameKind) -> Vec<u8> {
        let header = |hops| RelayHeader::new(rank(5), rank(6), hops, kind as u16);
        match kind {
            MeshFrameKind::Join => {
                let join = Join {
                    mesh: 0x1112_1314_1516_1718,
                    started: 0x2122_2324_2526_2728,
                    ranks: 7,
                };
                join.to_bytes(rank(5)).to_vec()
            }
            MeshFrameKind::Announcement => {
                let said = Announcement::new(
                    rank(5),
                    0x2122_2324_2526_2728,
                    0x3132_3334,
                    ranks(&[0, 3, 7]),
                    ranks(&[0, 7]),
                );
                [&header(0).to_bytes()[..], &said.to_bytes()].concat()
            }
            MeshFrameKind::Data => [&pair(0x5152_5354).to_bytes(header(7))[..], b"hi"].concat(),
            MeshFrameKind::Grant => pair(0).to_bytes(header(7)).to_vec(),
        }
    }

    #[test]
    fn every_kind_of_frame_has_golden_bytes() {
        let mut kinds = 0;
        for kind in (0..=u16::MAX).filter_map(MeshFrameKind::from_wire) {
            let golden = bytes(golden(kind));
            assert_eq!(written(kind), golden, "{kind:?}");
            let (header, body) = RelayHeader::parse(&golden).unwrap();
            assert_eq!(MeshFrameKind::from_wire(header.kind()), Some(kind));
            assert_eq!(header.source(), rank(5));
            match kind {
                MeshFrameKind::Join => {
                    let join = Join::parse(body).unwrap();
                    let said = (join.mesh, join.started, join.ranks);
                    assert_eq!(said, (0x1112_1314_1516_1718, 0x2122_2324_2526_2728, 7));
                }
                MeshFrameKind::Announcement => {
                    let said = Announcement::parse(body).unwrap();
                    assert_eq!(
                        (said.rank(), said.started(), said.sequence()),
                        (rank(5), 0x2122_2324_2526_2728, 0x3132_3334)
                    );
                    assert_eq!(
                        (said.neighbours(), said.without_rail()),
                        (ranks(&[0, 3, 7]), ranks(&[0, 7]))
                    );
                }
                MeshFrameKind::Data => {
                    assert_eq!((header.destination(), header.hops_left()), (rank(6), 7));
                    assert_eq!(PairHeader::parse(body), Some((pair(0x5152_5354), &b"hi"[..])));
                }
                MeshFrameKind::Grant => assert_eq!(PairHeader::parse_grant(body), Some(pair(0))),
            }
            kinds += 1;
        }
        assert_eq!(kinds, 4);
    }

    #[test]
    fn a_grant_is_put_into_the_place_of_the_one_before() {
        let mut frame = bytes(golden(MeshFrameKind::Data));
        let newest = Grant {
            expected: 0x0102_0304,
            room: 0x0506_0708,
        };
        newest.put_into(&mut frame);
        let text = golden(MeshFrameKind::Data).replace("61626364 71727374", "01020304 05060708");
        assert_eq!(frame, bytes(&text));
    }
}
