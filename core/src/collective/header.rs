//! What stands in front of each message of a collective.

use core::mem::size_of;

use static_assertions::const_assert_eq;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::{Field, Part, Reason, WireError};

use super::Collective;

/// The size of a [`CollectiveHeader`] on the wire, in bytes.
pub const COLLECTIVE_HEADER_BYTES: usize = 16;

const VERSION: u8 = 1;

/// Which message of which collective it is.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 1 | version | 1 |
/// | 1 | 1 | collective | 1 barrier, 2 broadcast, 3 all-gather, 4 reduce-scatter, 5 all-reduce, 6 all-to-all |
/// | 2 | 1 | step | from 0 |
/// | 3 | 1 | reserved | 0 |
/// | 4 | 4 | operation | counts the collectives of the group, modulo 2^32 |
/// | 8 | 4 | offset | of the message's bytes in those of the step |
/// | 12 | 4 | bytes | of the whole step between these two |
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
}

const_assert_eq!(size_of::<CollectiveHeader>(), COLLECTIVE_HEADER_BYTES);

impl CollectiveHeader {
    /// The header of one message.
    #[must_use]
    pub const fn new(collective: Collective, operation: u32, step: u8, offset: u32, bytes: u32) -> Self {
        Self {
            version: VERSION,
            collective: collective.to_wire(),
            step,
            reserved: 0,
            operation: U32::new(operation),
            offset: U32::new(offset),
            bytes: U32::new(bytes),
        }
    }

    /// Reads one in place, and gives the bytes behind it.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<(&Self, &[u8]), WireError> {
        let wrong = |field, offset, reason| WireError::new(Part::Collective, field, offset, reason);
        let Ok((header, rest)) = Self::ref_from_prefix(bytes) else {
            return Err(wrong(Field::Trailing, bytes.len(), Reason::Truncated));
        };
        if header.version != VERSION {
            return Err(wrong(Field::Version, 0, Reason::Unknown));
        }
        if !matches!(header.collective, 1..=6) {
            return Err(wrong(Field::Kind, 1, Reason::Unknown));
        }
        if header.reserved != 0 {
            return Err(wrong(Field::Reserved, 3, Reason::NotZero));
        }
        Ok((header, rest))
    }

    /// Its bytes, as they go to the other rank.
    #[must_use]
    pub fn to_bytes(self) -> [u8; COLLECTIVE_HEADER_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Which collective of the group it is of.
    #[must_use]
    pub const fn operation(&self) -> u32 {
        self.operation.get()
    }

    /// Which step it is of.
    #[must_use]
    pub const fn step(&self) -> u8 {
        self.step
    }

    /// Where its bytes lie in those of the step.
    #[must_use]
    pub const fn offset(&self) -> u32 {
        self.offset.get()
    }
}
