//! The Reject frame: a side ends the handshake for a reason.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::stage::Stage;
use super::{FRAME_HEADER_BYTES, Field, Part, Reason, WireError};

/// The bytes of the body.
pub(crate) const REJECT_BYTES: usize = size_of::<RawReject>();

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReject {
    reason: U16,
    reserved: U16,
    detail: U32,
}

const_assert_eq!(size_of::<RawReject>(), 8);

const REJECT_LAYOUT: &[(Field, usize)] = &[
    (Field::RejectReason, offset_of!(RawReject, reason)),
    (Field::Reserved, offset_of!(RawReject, reserved)),
    (Field::RejectDetail, offset_of!(RawReject, detail)),
];

/// The reason of a rejection. It is an integer newtype, since a newer side may have more reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The sides have no version in common. Detail: the sender's oldest version in bits 15 to 8, its newest in bits 7 to 0.
    pub const VERSION: Self = Self(1);
    /// The listener of the handle is gone.
    pub const STALE_HANDLE: Self = Self(2);
    /// No rail of one side reaches a rail of the other.
    pub const NO_COMMON_SUBNET: Self = Self(3);
    /// A frame was not valid wire format. Detail: the offset of the field.
    pub const MALFORMED: Self = Self(4);
    /// A valid frame came out of turn. Detail: its kind.
    pub const UNEXPECTED: Self = Self(5);
    /// A deadline passed. Detail: the number of the stage.
    pub const TIMED_OUT: Self = Self(6);
    /// The side has no room for another connection. Detail: the milliseconds after which to try again, or zero if
    /// unknown.
    pub const BUSY: Self = Self(7);
    /// The side could not create or set up its queue pair. Detail: its errno.
    pub const QUEUE_PAIR: Self = Self(8);
    /// The side cannot support the settings of the other side.
    pub const PARAMETERS: Self = Self(9);
    /// The side is closing.
    pub const CLOSING: Self = Self(10);
    /// The application declined this connection. Detail: defined by the application.
    pub const APPLICATION: Self = Self(11);
    /// The side accepts only peers that prove to have a key.
    pub const UNAUTHENTICATED: Self = Self(12);
    /// The side does not have the peer's key. Detail: the key's id.
    pub const UNKNOWN_KEY: Self = Self(13);
    /// The proof of having the key is wrong: the peer has another key, or bytes were changed in transit.
    pub const WRONG_KEY: Self = Self(14);
    /// The side accepts no peer at the peer's address.
    pub const NOT_ALLOWED: Self = Self(15);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::VERSION => "no version of the wire format in common",
            Self::STALE_HANDLE => "the handle is of a listener that is gone",
            Self::NO_COMMON_SUBNET => "no subnet in common",
            Self::MALFORMED => "a malformed frame",
            Self::UNEXPECTED => "a frame out of turn",
            Self::TIMED_OUT => "timed out",
            Self::BUSY => "no room for another connection",
            Self::QUEUE_PAIR => "its queue pair could not be set up",
            Self::PARAMETERS => "unsupported settings",
            Self::CLOSING => "it is closing",
            Self::APPLICATION => "the application declined",
            Self::UNAUTHENTICATED => "a key is required: open both Nodes with Trust::keys",
            Self::UNKNOWN_KEY => "it does not have that key",
            Self::WRONG_KEY => "the proof of having the key is wrong",
            Self::NOT_ALLOWED => {
                "the address is outside the subnets of Trust::only_from on the rejecting side"
            }
            Self(other) => return write!(f, "unknown reason {other}"),
        };
        f.write_str(text)
    }
}

/// A rejection: a reason and a number that adds detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reject {
    /// The reason.
    pub reason: RejectReason,
    /// The detail that the reason defines; zero if it defines none.
    pub detail: u32,
}

impl Reject {
    /// A rejection without a detail.
    #[must_use]
    pub const fn new(reason: RejectReason) -> Self {
        Self { reason, detail: 0 }
    }

    /// Parses the body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        let Ok((raw, _)) = RawReject::ref_from_prefix(body) else {
            return Err(WireError::truncated(
                Part::Reject,
                REJECT_LAYOUT,
                FRAME_HEADER_BYTES,
                body.len(),
            ));
        };
        if raw.reserved.get() != 0 {
            let offset = FRAME_HEADER_BYTES.saturating_add(offset_of!(RawReject, reserved));
            return Err(WireError::new(
                Part::Reject,
                Field::Reserved,
                offset,
                Reason::NotZero,
            ));
        }
        Ok(Self {
            reason: RejectReason(raw.reason.get()),
            detail: raw.detail.get(),
        })
    }

    /// Encodes the body.
    pub(crate) fn encode(&self) -> [u8; REJECT_BYTES] {
        let raw = RawReject {
            reason: U16::new(self.reason.0),
            reserved: U16::ZERO,
            detail: U32::new(self.detail),
        };
        zerocopy::transmute!(raw)
    }
}

/// Displays a number with commas between groups of three digits.
struct Thousands(u32);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1_000, self.0 % 1_000) {
            (0, small) => write!(f, "{small}"),
            (large, small) => write!(f, "{},{small:03}", Self(large)),
        }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, detail } = *self;
        write!(f, "{reason}")?;
        if detail == 0 {
            return Ok(());
        }
        match reason {
            RejectReason::VERSION => {
                let [.., oldest, newest] = detail.to_be_bytes();
                write!(f, " (it speaks versions {oldest} to {newest})")
            }
            RejectReason::MALFORMED => write!(f, " (the field at byte {detail})"),
            RejectReason::UNEXPECTED => write!(f, " (frame kind {detail})"),
            RejectReason::TIMED_OUT => match Stage::from_wire(detail) {
                Some(stage) => write!(f, " while {stage}"),
                None => write!(f, " (stage {detail})"),
            },
            RejectReason::BUSY => write!(f, " (retry in {} ms)", Thousands(detail)),
            RejectReason::QUEUE_PAIR => write!(f, " (errno {detail})"),
            RejectReason::UNKNOWN_KEY => write!(f, " (key id {detail})"),
            RejectReason::APPLICATION => write!(f, " (code {detail} of the application)"),
            _ => write!(f, " (detail {detail})"),
        }
    }
}
