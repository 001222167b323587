//! The invitation to a peer to write messages into a ring of cells in our memory.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Field, Part, Reason, RemoteWindow, WireError};

/// The size of a [`RingInvitation`] on the wire, in bytes.
pub const RING_INVITATION_BYTES: usize = 32;

/// The bytes of the trailer at the end of each cell, which is not payload.
pub const RING_TRAILER_BYTES: u32 = 8;

/// The bytes after the cells. The first eight are a word for the ring in the other direction: it tells that ring's writer
/// how many of its messages were read.
pub const RING_WORD_BYTES: u32 = 64;

/// The maximum number of cells of a ring.
pub const RING_CELLS_MAX: u32 = 1 << 20;

/// The maximum number of bytes of a cell.
pub const RING_CELL_BYTES_MAX: u32 = 1 << 24;

const VERSION: u8 = 1;

/// The way in which the reader learns of a message in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Publication {
    /// By the message's trailer, which lands last: the reader polls its own memory.
    Trailer = 1,
    /// By a WRITE with immediate, for a reader whose device does not guarantee the order in which bytes land.
    Immediate = 2,
}

/// A ring of cells in a window: the window, and how it is cut into cells. It fits in the private data of a handshake, or
/// in a message.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 20 | window | the cells, and [`RING_WORD_BYTES`] after them |
/// | 20 | 4 | cells | a power of two, 2 to 2^20 |
/// | 24 | 4 | cell bytes | a multiple of 64, at most 2^24 |
/// | 28 | 1 | version | 1 |
/// | 29 | 1 | publication | 1: trailer, 2: immediate |
/// | 30 | 2 | reserved | 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RingInvitation {
    window: RemoteWindow,
    cells: U32,
    cell_bytes: U32,
    version: u8,
    publication: u8,
    reserved: [u8; 2],
}

const_assert_eq!(size_of::<RingInvitation>(), RING_INVITATION_BYTES);
const_assert_eq!(offset_of!(RingInvitation, window), 0);

const LAYOUT: [(Field, usize); 6] = [
    (Field::RingWindow, offset_of!(RingInvitation, window)),
    (Field::RingCells, offset_of!(RingInvitation, cells)),
    (Field::RingCellBytes, offset_of!(RingInvitation, cell_bytes)),
    (Field::Version, offset_of!(RingInvitation, version)),
    (Field::RingPublication, offset_of!(RingInvitation, publication)),
    (Field::Reserved, offset_of!(RingInvitation, reserved)),
];

/// The bytes of the window for a ring of `cells` cells of `cell_bytes`; `None` if such a ring is not possible.
#[must_use]
pub const fn ring_window_bytes(cells: u32, cell_bytes: u32) -> Option<u64> {
    let cells_fit = cells.is_power_of_two() && cells >= 2 && cells <= RING_CELLS_MAX;
    let bytes_fit = cell_bytes % 64 == 0 && cell_bytes > 0 && cell_bytes <= RING_CELL_BYTES_MAX;
    if !cells_fit || !bytes_fit {
        return None;
    }
    // At most 2^44 + 64.
    Some(
        (cells as u64)
            .wrapping_mul(cell_bytes as u64)
            .wrapping_add(RING_WORD_BYTES as u64),
    )
}

impl fmt::Display for RingInvitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cells, cell_bytes) = (self.cells(), self.cell_bytes());
        write!(f, "ring of {cells} cells of {cell_bytes} bytes")
    }
}

impl RingInvitation {
    /// An invitation to a ring in a window. `None` if the ring does not fit in the window, or is not possible.
    #[must_use]
    pub fn new(window: RemoteWindow, cells: u32, cell_bytes: u32, publication: Publication) -> Option<Self> {
        if ring_window_bytes(cells, cell_bytes)? > window.length_bytes() {
            return None;
        }
        Some(Self {
            window: window.without_access(),
            cells: U32::new(cells),
            cell_bytes: U32::new(cell_bytes),
            version: VERSION,
            publication: publication as u8,
            reserved: [0; 2],
        })
    }

    /// Parses an invitation in place.
    ///
    /// # Errors
    /// The first wrong field. Only the window's device knows whether the window
    /// exists.
    pub fn parse(bytes: &[u8]) -> Result<&Self, WireError> {
        let wrong = |field, reason| WireError::at(Part::RingInvitation, &LAYOUT, 0, field, reason);
        let Ok(invitation) = Self::ref_from_bytes(bytes) else {
            return Err(if bytes.len() < RING_INVITATION_BYTES {
                WireError::truncated(Part::RingInvitation, &LAYOUT, 0, bytes.len())
            } else {
                WireError::new(
                    Part::RingInvitation,
                    Field::Trailing,
                    RING_INVITATION_BYTES,
                    Reason::TooLong,
                )
            });
        };
        if invitation.version != VERSION {
            return Err(wrong(Field::Version, Reason::Unknown));
        }
        if !matches!(invitation.publication, 1 | 2) {
            return Err(wrong(Field::RingPublication, Reason::Unknown));
        }
        if invitation.reserved != [0; 2] {
            return Err(wrong(Field::Reserved, Reason::NotZero));
        }
        let cell_bytes = invitation.cell_bytes();
        if ring_window_bytes(2, cell_bytes).is_none() {
            return Err(wrong(Field::RingCellBytes, Reason::OutOfRange));
        }
        let Some(needed) = ring_window_bytes(invitation.cells(), cell_bytes) else {
            return Err(wrong(Field::RingCells, Reason::OutOfRange));
        };
        if invitation.window.access_bits() != 0 {
            let (part, offset) = (Part::RingInvitation, RemoteWindow::ACCESS_OFFSET);
            return Err(WireError::new(part, Field::RingWindow, offset, Reason::NotZero));
        }
        // So all offsets within the ring have addresses, too.
        if invitation.window.address_of(0, needed).is_none() {
            return Err(wrong(Field::RingWindow, Reason::Mismatch));
        }
        Ok(invitation)
    }

    /// The bytes of the invitation, as they are sent to the peer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RING_INVITATION_BYTES] {
        zerocopy::transmute!(self)
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> &RemoteWindow {
        &self.window
    }

    /// The number of cells.
    #[must_use]
    pub const fn cells(&self) -> u32 {
        self.cells.get()
    }

    /// The bytes of each cell, the trailer included.
    #[must_use]
    pub const fn cell_bytes(&self) -> u32 {
        self.cell_bytes.get()
    }

    /// Returns the way in which the reader learns of a message.
    #[must_use]
    pub const fn publication(&self) -> Publication {
        match self.publication {
            1 => Publication::Trailer,
            _ => Publication::Immediate,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::{Publication, RING_INVITATION_BYTES, RingInvitation, ring_window_bytes};
    use crate::Rkey;
    use crate::wire::{Field, Reason, RemoteWindow};

    fn invitation() -> RingInvitation {
        let window = RemoteWindow::new(0x1000, 4 * 128 + 64, Rkey(7));
        RingInvitation::new(window, 4, 128, Publication::Immediate).unwrap()
    }

    #[test]
    fn golden_bytes() {
        let golden = [
            0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 2, 0x40, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 128, 1, 2,
            0, 0,
        ];
        assert_eq!(invitation().to_bytes(), golden);
        assert_eq!(RingInvitation::parse(&golden), Ok(&invitation()));
    }

    #[test]
    fn sizes_have_limits() {
        assert_eq!(ring_window_bytes(2, 64), Some(192));
        assert_eq!(ring_window_bytes(1 << 20, 1 << 24), Some((1 << 44) + 64));
        for (cells, cell_bytes) in [
            (0, 64),
            (1, 64),
            (3, 64),
            (1 << 21, 64),
            (2, 0),
            (2, 96),
            (2, (1 << 24) + 64),
        ] {
            assert_eq!(ring_window_bytes(cells, cell_bytes), None, "{cells} {cell_bytes}");
        }
        let small = RemoteWindow::new(0x1000, 4 * 128 + 63, Rkey(7));
        assert_eq!(RingInvitation::new(small, 4, 128, Publication::Trailer), None);
    }

    #[test]
    fn every_wrong_byte_has_its_reason() {
        let golden = invitation().to_bytes();
        for length in 0..RING_INVITATION_BYTES {
            let error = RingInvitation::parse(&golden[..length]).unwrap_err();
            let (field, offset) = match length {
                0..20 => (Field::RingWindow, 0),
                20..24 => (Field::RingCells, 20),
                24..28 => (Field::RingCellBytes, 24),
                28 => (Field::Version, 28),
                29 => (Field::RingPublication, 29),
                _ => (Field::Reserved, 30),
            };
            let found = (error.field, error.offset, error.reason);
            assert_eq!(found, (field, offset, Reason::Truncated), "{length}");
        }
        let mut long = [0; RING_INVITATION_BYTES + 1];
        long[..RING_INVITATION_BYTES].copy_from_slice(&golden);
        let error = RingInvitation::parse(&long).unwrap_err();
        assert_eq!(
            (error.field, error.offset, error.reason),
            (Field::Trailing, 32, Reason::TooLong)
        );
        for (byte, value, field, offset, reason) in [
            (28, 2, Field::Version, 28, Reason::Unknown),
            (29, 0, Field::RingPublication, 29, Reason::Unknown),
            (29, 3, Field::RingPublication, 29, Reason::Unknown),
            (30, 1, Field::Reserved, 30, Reason::NotZero),
            (31, 1, Field::Reserved, 30, Reason::NotZero),
            (27, 0, Field::RingCellBytes, 24, Reason::OutOfRange),
            (27, 129, Field::RingCellBytes, 24, Reason::OutOfRange),
            (23, 3, Field::RingCells, 20, Reason::OutOfRange),
            (8, 0x80, Field::RingWindow, 8, Reason::NotZero),
            (23, 8, Field::RingWindow, 0, Reason::Mismatch),
            (15, 0x3f, Field::RingWindow, 0, Reason::Mismatch),
        ] {
            let mut bytes = golden;
            bytes[byte] = value;
            let error = RingInvitation::parse(&bytes).unwrap_err();
            let found = (error.field, error.offset, error.reason);
            assert_eq!(found, (field, offset, reason), "byte {byte}");
        }
    }

    #[test]
    fn golden_texts() {
        assert_eq!(invitation().to_string(), "ring of 4 cells of 128 bytes");
        let mut bytes = invitation().to_bytes();
        bytes[23] = 3;
        let error = RingInvitation::parse(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ring invitation: ring's cells at byte 20: out of range"
        );
    }
}
