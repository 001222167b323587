//! The header of a message that other members may relay.

use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::rank::Rank;
use crate::wire::{Field, Part, Reason, WireError};

/// The size of a [`RelayHeader`] on the wire, in bytes.
pub const RELAY_HEADER_BYTES: usize = 8;

const VERSION: u8 = 2;

/// Source and destination of a message, and the hops that it may still take.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 1 | version | 2 |
/// | 1 | 1 | source | rank, 0 to 63 |
/// | 2 | 1 | destination | rank, 0 to 63 |
/// | 3 | 1 | hops left | the hops that it may still take; with 0 it is not forwarded |
/// | 4 | 2 | kind | the kind of the message, which its sender and receiver define |
/// | 6 | 2 | reserved | 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RelayHeader {
    version: u8,
    source: u8,
    destination: u8,
    hops_left: u8,
    kind: U16,
    reserved: [u8; 2],
}

const_assert_eq!(size_of::<RelayHeader>(), RELAY_HEADER_BYTES);

const LAYOUT: [(Field, usize); 6] = [
    (Field::Version, offset_of!(RelayHeader, version)),
    (Field::Source, offset_of!(RelayHeader, source)),
    (Field::Destination, offset_of!(RelayHeader, destination)),
    (Field::HopsLeft, offset_of!(RelayHeader, hops_left)),
    (Field::Kind, offset_of!(RelayHeader, kind)),
    (Field::Reserved, offset_of!(RelayHeader, reserved)),
];

impl RelayHeader {
    /// The header of a message.
    #[must_use]
    pub const fn new(source: Rank, destination: Rank, hops_left: u8, kind: u16) -> Self {
        Self {
            version: VERSION,
            source: source.number(),
            destination: destination.number(),
            hops_left,
            kind: U16::new(kind),
            reserved: [0; 2],
        }
    }

    /// Parses a header in place, and returns it with the message after it.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn parse(bytes: &[u8]) -> Result<(&Self, &[u8]), WireError> {
        let wrong = |field, reason| WireError::at(Part::Relay, &LAYOUT, 0, field, reason);
        // Checked first, since another version may have another length.
        if bytes.first().is_some_and(|version| *version != VERSION) {
            return Err(wrong(Field::Version, Reason::Unknown));
        }
        let (header, message) = Self::ref_from_prefix(bytes)
            .map_err(|_| WireError::truncated(Part::Relay, &LAYOUT, 0, bytes.len()))?;
        if Rank::new(header.source).is_none() {
            return Err(wrong(Field::Source, Reason::OutOfRange));
        }
        if Rank::new(header.destination).is_none() {
            return Err(wrong(Field::Destination, Reason::OutOfRange));
        }
        if header.reserved != [0; 2] {
            return Err(wrong(Field::Reserved, Reason::NotZero));
        }
        Ok((header, message))
    }

    /// The bytes of the header, as they are sent to the next hop.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RELAY_HEADER_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Returns the sender of the message.
    #[must_use]
    pub fn source(&self) -> Rank {
        // The constructor and the parser make no header without valid ranks.
        Rank::new(self.source).unwrap_or(Rank::FIRST)
    }

    /// Returns the receiver of the message.
    #[must_use]
    pub fn destination(&self) -> Rank {
        Rank::new(self.destination).unwrap_or(Rank::FIRST)
    }

    /// The hops that the message may still take.
    #[must_use]
    pub const fn hops_left(&self) -> u8 {
        self.hops_left
    }

    /// Returns the kind of the message, which its sender and receiver define.
    #[must_use]
    pub const fn kind(&self) -> u16 {
        self.kind.get()
    }

    /// Returns the header for the next hop; `None` if no hops are left.
    #[must_use]
    pub const fn passed_on(self) -> Option<Self> {
        match self.hops_left.checked_sub(1) {
            Some(hops_left) => Some(Self { hops_left, ..self }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RelayHeader;
    use crate::Rank;
    use crate::route::Announcement;
    use crate::wire::{Field, Reason};

    #[test]
    fn a_message_goes_no_further_than_it_may() {
        let (from, to) = (Rank::FIRST, Rank::new(63).unwrap());
        let header = RelayHeader::new(from, to, 1, 7);
        let passed = header.passed_on().unwrap();
        assert_eq!((passed.hops_left(), passed.destination()), (0, to));
        assert_eq!(passed.passed_on(), None);
        let bytes = [&header.to_bytes()[..], b"rest"].concat();
        assert_eq!(RelayHeader::parse(&bytes), Ok((&header, b"rest".as_slice())));
        assert_eq!(bytes[..8], [2, 0, 63, 1, 0, 7, 0, 0]);
    }

    #[test]
    fn every_truncation_and_every_wrong_byte_has_its_field() {
        let header = RelayHeader::new(Rank::FIRST, Rank::FIRST, 1, 7).to_bytes();
        let error = |bytes: &[u8]| {
            let error = RelayHeader::parse(bytes).unwrap_err();
            (error.field, error.offset, error.reason)
        };
        let fields = [
            (Field::Version, 0),
            (Field::Source, 1),
            (Field::Destination, 2),
            (Field::HopsLeft, 3),
            (Field::Kind, 4),
            (Field::Kind, 4),
            (Field::Reserved, 6),
            (Field::Reserved, 6),
        ];
        for (length, (field, offset)) in fields.into_iter().enumerate() {
            assert_eq!(
                error(&header[..length]),
                (field, offset, Reason::Truncated),
                "{length}"
            );
        }
        for (byte, value, reason) in [
            (0, 1, Reason::Unknown),
            (1, 64, Reason::OutOfRange),
            (2, 64, Reason::OutOfRange),
            (6, 1, Reason::NotZero),
            (7, 1, Reason::NotZero),
        ] {
            let mut bytes = header;
            bytes[byte] = value;
            let (field, offset) = fields[byte];
            assert_eq!(error(&bytes), (field, offset, reason), "byte {byte}");
        }
    }

    #[test]
    fn another_version_is_reported_for_any_length() {
        let bytes = [1; 40];
        for length in [1, 8, 24, 32, 40] {
            let relay = RelayHeader::parse(&bytes[..length]).unwrap_err();
            assert_eq!((relay.field, relay.offset), (Field::Version, 0), "{length}");
            let announcement = Announcement::parse(&bytes[..length]).unwrap_err();
            assert_eq!(
                (announcement.field, announcement.offset),
                (Field::Version, 0),
                "{length}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_what_they_say_or_an_error(bytes in proptest::collection::vec(0_u8..80, 0..32)) {
            if let Ok((header, rest)) = RelayHeader::parse(&bytes) {
                prop_assert_eq!([&header.to_bytes(), rest].concat(), bytes.clone());
            }
            if let Ok(announcement) = Announcement::parse(&bytes) {
                prop_assert_eq!(announcement.to_bytes().to_vec(), bytes.clone());
                prop_assert_eq!(bytes[0], 2);
            }
        }
    }
}
