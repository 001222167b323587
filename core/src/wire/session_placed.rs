//! Frames of fragments that are written into memory of the receiver: the memory that it lends, and each fragment after its WRITE.
//!
//! The Lend frame is neither numbered nor stored: its sender sends it on each connection. The Placed frame is numbered like any fragment.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::session::{FixedFrame, SessionHeader, SessionKind};
use super::{Field, REMOTE_WINDOW_BYTES, Reason, RemoteWindow, WireError};
use crate::sequence::Epoch;

/// The bytes of a [`LendFrame`].
pub const SESSION_LEND_BYTES: usize = 44;

/// The bytes of a [`PlacedFrame`].
pub const SESSION_PLACED_BYTES: usize = 32;

/// The maximum bytes of a written fragment: 16 MiB.
pub const PLACED_BYTES_MAX: u32 = 1 << 24;

/// Memory of the frame's sender, into which the peer may write fragments over the connection that carries the frame. It is lent until
/// the session is over.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 20 | window | the address, length and key of the memory; the length is not 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LendFrame {
    header: SessionHeader,
    window: [u8; REMOTE_WINDOW_BYTES],
}

const_assert_eq!(size_of::<LendFrame>(), SESSION_LEND_BYTES);

/// Fields of a [`LendFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lend {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The memory.
    pub window: RemoteWindow,
}

impl FixedFrame for LendFrame {
    const FIELDS: &'static [(Field, usize)] = &[(Field::GrantWindow, offset_of!(LendFrame, window))];
}

impl LendFrame {
    /// Encodes the frame.
    #[must_use]
    pub fn new(lend: &Lend) -> Self {
        Self {
            header: SessionHeader::beside(SessionKind::Lend, lend.epoch),
            window: lend.window.without_access().to_bytes(),
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_LEND_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Lend, WireError> {
        let window = Self::memory(self.window)?;
        Ok(Lend {
            epoch: self.header.epoch(),
            window,
        })
    }
}

/// A fragment whose bytes were written into memory that the receiver lent, by an earlier WRITE on the same connection.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | flags, sequence and acknowledgement as for data |
/// | 24 | 4 | offset | of the first byte in the lent memory |
/// | 28 | 4 | bytes | of the fragment; 1 to 2^24 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PlacedFrame {
    header: SessionHeader,
    offset: U32,
    bytes: U32,
}

const_assert_eq!(size_of::<PlacedFrame>(), SESSION_PLACED_BYTES);

/// The place of a fragment in the memory that its receiver lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The offset of the first byte.
    pub offset: u32,
    /// The number of bytes.
    pub bytes: u32,
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {}", self.bytes, self.offset)
    }
}

impl FixedFrame for PlacedFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::PlacedOffset, offset_of!(PlacedFrame, offset)),
        (Field::PlacedBytes, offset_of!(PlacedFrame, bytes)),
    ];
}

impl PlacedFrame {
    /// Encodes the frame, with the header of the fragment ([`SessionHeader::placed`]).
    #[must_use]
    pub const fn new(header: SessionHeader, placed: Placed) -> Self {
        Self {
            header,
            offset: U32::new(placed.offset),
            bytes: U32::new(placed.bytes),
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_PLACED_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Placed, WireError> {
        let (offset, bytes) = (self.offset.get(), self.bytes.get());
        if bytes == 0 {
            return Err(Self::wrong(Field::PlacedBytes, Reason::Zero));
        }
        if bytes > PLACED_BYTES_MAX || offset.checked_add(bytes).is_none() {
            return Err(Self::wrong(Field::PlacedBytes, Reason::OutOfRange));
        }
        Ok(Placed { offset, bytes })
    }
}
