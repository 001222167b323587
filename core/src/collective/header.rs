//! The header of each message of a collective.

use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::{Field, Part, Reason, WireError};

use super::Collective;

/// The size of a [`CollectiveHeader`] on the wire, in bytes.
pub const COLLECTIVE_HEADER_BYTES: usize = 40;

const VERSION: u8 = 2;

/// Identifies a group among those of a mesh. All members compute the same id without exchanging messages, and a
/// later group has a greater id.
///
/// The id consists of the sum of the members' start numbers, which grows when a member restarts, and of a count of the
/// groups with the same starts. A group is over once a member restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId {
    starts: u128,
    number: u64,
}

impl GroupId {
    /// The group after this one, of members with these start numbers. The first group follows the default id.
    #[must_use]
    pub fn next(self, starts: impl IntoIterator<Item = u64>) -> Self {
        // One start for each member, and at most 64 members: the sum does not overflow.
        let starts = starts
            .into_iter()
            .fold(0_u128, |sum, start| sum.wrapping_add(start.into()));
        let before = if starts == self.starts { self.number } else { 0 };
        Self {
            starts,
            number: before.wrapping_add(1),
        }
    }
}

/// The collective and the step that a message belongs to, and the place of its bytes.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 1 | version | 2 |
/// | 1 | 1 | collective | 1 barrier, 2 broadcast, 3 all-gather, 4 reduce-scatter, 5 all-reduce, 6 all-to-all |
/// | 2 | 1 | step | from 0 |
/// | 3 | 1 | reserved | 0 |
/// | 4 | 4 | operation | counts the collectives of the group, modulo 2^32 |
/// | 8 | 4 | offset | of the message's bytes within the bytes of the step |
/// | 12 | 4 | bytes | of the complete step between these two ranks |
/// | 16 | 16 | starts | the sum of the start numbers of all members of the group |
/// | 32 | 8 | group | counts the groups with these start numbers, from 1 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CollectiveHeader {
    version: u8,
    collective: u8,
    step: u8,
    reserved: u8,
    operation: U32,
    offset: U32,
    bytes: U32,
    starts: U128,
    group: U64,
}

const_assert_eq!(size_of::<CollectiveHeader>(), COLLECTIVE_HEADER_BYTES);

const LAYOUT: [(Field, usize); 9] = [
    (Field::Version, offset_of!(CollectiveHeader, version)),
    (Field::Kind, offset_of!(CollectiveHeader, collective)),
    (Field::Step, offset_of!(CollectiveHeader, step)),
    (Field::Reserved, offset_of!(CollectiveHeader, reserved)),
    (Field::Operation, offset_of!(CollectiveHeader, operation)),
    (Field::StepOffset, offset_of!(CollectiveHeader, offset)),
    (Field::StepBytes, offset_of!(CollectiveHeader, bytes)),
    (Field::Starts, offset_of!(CollectiveHeader, starts)),
    (Field::Group, offset_of!(CollectiveHeader, group)),
];

impl CollectiveHeader {
    /// The header of one message, in an operation of a group.
    #[must_use]
    pub const fn new(
        collective: Collective,
        (group, operation): (GroupId, u32),
        step: u8,
        offset: u32,
        bytes: u32,
    ) -> Self {
        Self {
            version: VERSION,
            collective: collective.to_wire(),
            step,
            reserved: 0,
            operation: U32::new(operation),
            offset: U32::new(offset),
            bytes: U32::new(bytes),
            starts: U128::new(group.starts),
            group: U64::new(group.number),
        }
    }

    /// Parses a header in place, and returns it with the bytes after it.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn parse(bytes: &[u8]) -> Result<(&Self, &[u8]), WireError> {
        let wrong = |field, reason| WireError::at(Part::Collective, &LAYOUT, 0, field, reason);
        let (header, rest) = Self::ref_from_prefix(bytes)
            .map_err(|_| WireError::truncated(Part::Collective, &LAYOUT, 0, bytes.len()))?;
        if header.version != VERSION {
            return Err(wrong(Field::Version, Reason::Unknown));
        }
        if !matches!(header.collective, 1..=6) {
            return Err(wrong(Field::Kind, Reason::Unknown));
        }
        if header.reserved != 0 {
            return Err(wrong(Field::Reserved, Reason::NotZero));
        }
        Ok((header, rest))
    }

    /// The bytes of the header, as they are sent to the other rank.
    #[must_use]
    pub fn to_bytes(self) -> [u8; COLLECTIVE_HEADER_BYTES] {
        zerocopy::transmute!(self)
    }

    /// The group of the message.
    #[must_use]
    pub const fn group(&self) -> GroupId {
        GroupId {
            starts: self.starts.get(),
            number: self.group.get(),
        }
    }

    /// The number of the collective in its group.
    #[must_use]
    pub const fn operation(&self) -> u32 {
        self.operation.get()
    }

    /// The step of the message.
    #[must_use]
    pub const fn step(&self) -> u8 {
        self.step
    }

    /// The offset of the message's bytes within the bytes of the step.
    #[must_use]
    pub const fn offset(&self) -> u32 {
        self.offset.get()
    }
}

#[cfg(test)]
mod tests {
    use super::{COLLECTIVE_HEADER_BYTES, CollectiveHeader, GroupId};
    use crate::collective::Collective;
    use crate::wire::{Field, Part, Reason, WireError};

    fn header() -> [u8; COLLECTIVE_HEADER_BYTES] {
        let group = GroupId::default().next([0x0102, 0x0203]);
        CollectiveHeader::new(Collective::AllGather, (group, 7), 1, 16, 64).to_bytes()
    }

    fn error(bytes: &[u8]) -> Option<(Field, u16, Reason)> {
        let error: Option<WireError> = CollectiveHeader::parse(bytes).err();
        error.map(|error| {
            assert_eq!(error.part, Part::Collective);
            (error.field, error.offset, error.reason)
        })
    }

    #[test]
    fn golden_bytes() {
        let golden = [
            2, 3, 1, 0, 0, 0, 0, 7, 0, 0, 0, 16, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 5,
            0, 0, 0, 0, 0, 0, 0, 1,
        ];
        assert_eq!(header(), golden);
        assert_eq!(error(&golden), None);
    }

    #[test]
    fn every_truncation_says_what_is_cut() {
        for bytes in 0..COLLECTIVE_HEADER_BYTES {
            let (field, offset) = match bytes {
                0 => (Field::Version, 0),
                1 => (Field::Kind, 1),
                2 => (Field::Step, 2),
                3 => (Field::Reserved, 3),
                4..8 => (Field::Operation, 4),
                8..12 => (Field::StepOffset, 8),
                12..16 => (Field::StepBytes, 12),
                16..32 => (Field::Starts, 16),
                _ => (Field::Group, 32),
            };
            assert_eq!(
                error(&header()[..bytes]),
                Some((field, offset, Reason::Truncated)),
                "{bytes}"
            );
        }
    }

    #[test]
    fn every_wrong_byte_has_its_reason() {
        for (offset, value, field, reason) in [
            (0, 1, Field::Version, Reason::Unknown),
            (1, 0, Field::Kind, Reason::Unknown),
            (1, 7, Field::Kind, Reason::Unknown),
            (3, 1, Field::Reserved, Reason::NotZero),
        ] {
            let mut bytes = header();
            bytes[usize::from(offset)] = value;
            assert_eq!(error(&bytes), Some((field, offset, reason)), "byte {offset}");
        }
    }
}
