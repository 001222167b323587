//! The header of requests and answers: 16 bytes before the application's body.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Field, Part, Reason, WireError};

/// The bytes of the header of a request or an answer.
pub const REQUEST_HEADER_BYTES: usize = 16;

const VERSION: u8 = 1;

/// Identifies a request among those of its requester. An answer carries the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CorrelationId(pub u64);

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whether a message is a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// A request.
    Request = 1,
    /// An answer.
    Answer = 2,
}

impl fmt::Display for RequestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Answer => "answer",
        })
    }
}

/// The first 16 bytes of a request or an answer.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 1 | version | 1 |
/// | 1 | 1 | kind | 1: request, 2: answer |
/// | 2 | 6 | reserved | 0 |
/// | 8 | 8 | correlation | in a request any number; in an answer the number of its request |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    version: u8,
    kind: u8,
    reserved: [u8; 6],
    correlation: U64,
}

const_assert_eq!(size_of::<RequestHeader>(), REQUEST_HEADER_BYTES);

const LAYOUT: [(Field, usize); 4] = [
    (Field::Version, offset_of!(RequestHeader, version)),
    (Field::Kind, offset_of!(RequestHeader, kind)),
    (Field::Reserved, offset_of!(RequestHeader, reserved)),
    (Field::Correlation, offset_of!(RequestHeader, correlation)),
];

impl RequestHeader {
    /// A header of the current version.
    #[must_use]
    pub const fn new(kind: RequestKind, id: CorrelationId) -> Self {
        Self {
            version: VERSION,
            kind: kind as u8,
            reserved: [0; 6],
            correlation: U64::new(id.0),
        }
    }

    /// The bytes of the header, as they are sent to a peer.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> [u8; REQUEST_HEADER_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Splits a message into its kind, its correlation and its body, which may be empty.
    ///
    /// # Errors
    /// The message is not a request or an answer of a known version.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<(RequestKind, CorrelationId, &[u8]), WireError> {
        let (header, body) = Self::ref_from_prefix(message)
            .map_err(|_| WireError::truncated(Part::Request, &LAYOUT, 0, message.len()))?;
        let wrong = |field, reason| WireError::at(Part::Request, &LAYOUT, 0, field, reason);
        if header.version != VERSION {
            return Err(wrong(Field::Version, Reason::Unknown));
        }
        let kind = match header.kind {
            1 => RequestKind::Request,
            2 => RequestKind::Answer,
            _ => return Err(wrong(Field::Kind, Reason::Unknown)),
        };
        if header.reserved != [0; 6] {
            return Err(wrong(Field::Reserved, Reason::NotZero));
        }
        Ok((kind, CorrelationId(header.correlation.get()), body))
    }
}

#[cfg(test)]
mod tests {
    use super::{CorrelationId, REQUEST_HEADER_BYTES, RequestHeader, RequestKind};
    use crate::wire::{Field, Part, Reason, WireError};

    const GOLDEN: [u8; 18] = [1, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, b'o', b'k'];

    #[test]
    fn golden_bytes() {
        let id = CorrelationId(0x0102_0304_0506_0708);
        let header = RequestHeader::new(RequestKind::Answer, id);
        assert_eq!(header.to_bytes(), GOLDEN[..REQUEST_HEADER_BYTES]);
        assert_eq!(
            RequestHeader::parse(&GOLDEN),
            Ok((RequestKind::Answer, id, &b"ok"[..]))
        );
        let request = RequestHeader::new(RequestKind::Request, id).to_bytes();
        assert_eq!(
            RequestHeader::parse(&request),
            Ok((RequestKind::Request, id, &[][..]))
        );
    }

    #[test]
    fn every_truncation_says_what_is_cut() {
        let cut = |bytes: usize| RequestHeader::parse(&GOLDEN[..bytes]).unwrap_err();
        for bytes in 0..REQUEST_HEADER_BYTES {
            let (field, offset) = match bytes {
                0 => (Field::Version, 0),
                1 => (Field::Kind, 1),
                2..8 => (Field::Reserved, 2),
                _ => (Field::Correlation, 8),
            };
            let expected = WireError {
                part: Part::Request,
                field,
                offset,
                reason: Reason::Truncated,
            };
            assert_eq!(cut(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn every_other_value_is_refused() {
        for offset in 0..8 {
            for value in 0..=u8::MAX {
                let mut bytes = GOLDEN;
                bytes[offset] = value;
                let is_known = match offset {
                    0 => value == 1,
                    1 => matches!(value, 1 | 2),
                    _ => value == 0,
                };
                assert_eq!(
                    RequestHeader::parse(&bytes).is_ok(),
                    is_known,
                    "{value} at {offset}"
                );
            }
        }
    }
}
