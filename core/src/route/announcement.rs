//! The announcement of a mesh member's neighbours to all other members.

use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::rank::{Rank, Ranks};
use crate::wire::{Field, Part, Reason, WireError};

/// The size of an [`Announcement`] on the wire, in bytes.
pub const ANNOUNCEMENT_BYTES: usize = 32;

const VERSION: u8 = 2;

/// A member's announcement of its neighbours.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 1 | version | 2 |
/// | 1 | 1 | rank | the announcing member, 0 to 63 |
/// | 2 | 2 | reserved | 0 |
/// | 4 | 4 | sequence | counts the announcements since the start of the member |
/// | 8 | 8 | started | the start number, greater for each start of the member |
/// | 16 | 8 | neighbours | a bit for each, the lowest for rank 0 |
/// | 24 | 8 | without a rail | a bit for each neighbour whose link has no rail for now |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Announcement {
    version: u8,
    rank: u8,
    reserved: [u8; 2],
    sequence: U32,
    started: U64,
    neighbours: U64,
    without_rail: U64,
}

const_assert_eq!(size_of::<Announcement>(), ANNOUNCEMENT_BYTES);

const LAYOUT: [(Field, usize); 7] = [
    (Field::Version, offset_of!(Announcement, version)),
    (Field::Rank, offset_of!(Announcement, rank)),
    (Field::Reserved, offset_of!(Announcement, reserved)),
    (Field::Sequence, offset_of!(Announcement, sequence)),
    (Field::Started, offset_of!(Announcement, started)),
    (Field::Neighbours, offset_of!(Announcement, neighbours)),
    (Field::WithoutRail, offset_of!(Announcement, without_rail)),
];

impl Announcement {
    /// Makes an announcement. `without_rail` holds the neighbours whose link has no rail for now. It has to be a subset
    /// of `neighbours`, or [`Announcement::parse`] refuses the bytes. `started` grows with each start of the member, by
    /// a clock that a restart does not set back.
    #[must_use]
    pub const fn new(
        rank: Rank,
        started: u64,
        sequence: u32,
        neighbours: Ranks,
        without_rail: Ranks,
    ) -> Self {
        Self {
            version: VERSION,
            rank: rank.number(),
            reserved: [0; 2],
            sequence: U32::new(sequence),
            started: U64::new(started),
            neighbours: U64::new(neighbours.to_bits()),
            without_rail: U64::new(without_rail.to_bits()),
        }
    }

    /// Parses an announcement in place.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn parse(bytes: &[u8]) -> Result<&Self, WireError> {
        let wrong = |field, reason| WireError::at(Part::Announcement, &LAYOUT, 0, field, reason);
        // Checked first, since another version may have another length.
        if bytes.first().is_some_and(|version| *version != VERSION) {
            return Err(wrong(Field::Version, Reason::Unknown));
        }
        let Ok(announcement) = Self::ref_from_bytes(bytes) else {
            return Err(if bytes.len() < ANNOUNCEMENT_BYTES {
                WireError::truncated(Part::Announcement, &LAYOUT, 0, bytes.len())
            } else {
                let (part, end) = (Part::Announcement, ANNOUNCEMENT_BYTES);
                WireError::new(part, Field::Trailing, end, Reason::TooLong)
            });
        };
        if Rank::new(announcement.rank).is_none() {
            return Err(wrong(Field::Rank, Reason::OutOfRange));
        }
        if announcement.reserved != [0; 2] {
            return Err(wrong(Field::Reserved, Reason::NotZero));
        }
        if !announcement
            .without_rail()
            .and_not(announcement.neighbours())
            .is_empty()
        {
            return Err(wrong(Field::WithoutRail, Reason::Mismatch));
        }
        Ok(announcement)
    }

    /// The bytes of the announcement, as they are sent to the neighbours.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ANNOUNCEMENT_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Returns the member that announces its neighbours.
    #[must_use]
    pub fn rank(&self) -> Rank {
        // The constructor and the parser make no announcement without a valid rank.
        Rank::new(self.rank).unwrap_or(Rank::FIRST)
    }

    /// The number of earlier announcements since the start of the member.
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    /// The start number of the member.
    #[must_use]
    pub const fn started(&self) -> u64 {
        self.started.get()
    }

    /// The neighbours.
    #[must_use]
    pub const fn neighbours(&self) -> Ranks {
        Ranks::from_bits(self.neighbours.get())
    }

    /// Returns the neighbours whose link has no rail for now.
    #[must_use]
    pub const fn without_rail(&self) -> Ranks {
        Ranks::from_bits(self.without_rail.get())
    }
}

#[cfg(test)]
mod tests {
    use super::Announcement;
    use crate::rank::{Rank, Ranks};
    use crate::wire::{Field, Reason};

    #[test]
    fn another_length_is_refused_as_what_it_is() {
        let bytes = Announcement::new(Rank::FIRST, 1, 1, Ranks::NONE, Ranks::NONE).to_bytes();
        let reason = |bytes: &[u8]| {
            let error = Announcement::parse(bytes).err();
            error.map(|error| (error.field, error.offset, error.reason))
        };
        for length in 0..bytes.len() {
            let (field, offset) = match length {
                0 => (Field::Version, 0),
                1 => (Field::Rank, 1),
                2..4 => (Field::Reserved, 2),
                4..8 => (Field::Sequence, 4),
                8..16 => (Field::Started, 8),
                16..24 => (Field::Neighbours, 16),
                _ => (Field::WithoutRail, 24),
            };
            let expected = Some((field, offset, Reason::Truncated));
            assert_eq!(reason(&bytes[..length]), expected, "{length}");
        }
        assert_eq!(reason(&bytes), None);
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(reason(&longer), Some((Field::Trailing, 32, Reason::TooLong)));
    }

    #[test]
    fn every_wrong_byte_has_its_reason() {
        let golden = Announcement::new(Rank::FIRST, 1, 1, Ranks::NONE, Ranks::NONE).to_bytes();
        for (byte, value, field, offset, reason) in [
            (0, 1, Field::Version, 0, Reason::Unknown),
            (1, 64, Field::Rank, 1, Reason::OutOfRange),
            (2, 1, Field::Reserved, 2, Reason::NotZero),
            (3, 1, Field::Reserved, 2, Reason::NotZero),
            (31, 1, Field::WithoutRail, 24, Reason::Mismatch),
        ] {
            let mut bytes = golden;
            bytes[byte] = value;
            let error = Announcement::parse(&bytes).unwrap_err();
            assert_eq!(
                (error.field, error.offset, error.reason),
                (field, offset, reason),
                "byte {byte}"
            );
        }
    }

    #[test]
    fn nobody_is_without_a_rail_who_is_no_neighbour() {
        let of = |without_rail| {
            Announcement::new(
                Rank::FIRST,
                1,
                1,
                Ranks::first(4).without(Rank::FIRST),
                without_rail,
            )
            .to_bytes()
        };
        let neighbours = Ranks::first(4).without(Rank::FIRST);
        for rank in (0..64).filter_map(Rank::new) {
            let bytes = of(Ranks::NONE.with(rank));
            let read = Announcement::parse(&bytes).map_err(|error| (error.field, error.offset, error.reason));
            let is_neighbour = neighbours.contains(rank);
            assert_eq!(read.is_ok(), is_neighbour, "{rank}");
            if !is_neighbour {
                assert_eq!(read.err(), Some((Field::WithoutRail, 24, Reason::Mismatch)));
            }
        }
        assert!(Announcement::parse(&of(neighbours)).is_ok());
    }
}
