//! Basic types of transfers: their ids, and how their bytes are cut into pieces.

use core::fmt;

/// The maximum number of bytes of a transfer.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 40;

/// The minimum number of bytes of a piece other than the last.
pub const PIECE_BYTES_MIN: u32 = 1 << 12;

/// The maximum number of bytes of a piece.
pub const PIECE_BYTES_MAX: u32 = 1 << 24;

/// The maximum number of pieces on their way, counted from the first piece that the taker lacks.
pub const TRANSFER_WINDOW: u32 = 512;

/// Identifies a transfer of a session. One side uses even numbers, and the other odd ones. An id is used again after 2^31 further
/// transfers of its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u32);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A side's part in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "bytes go from one side to the other")]
pub enum TransferRole {
    /// The giver has the bytes, and writes them into the taker's memory.
    Giver,
    /// The taker has memory for them.
    Taker,
}

impl TransferRole {
    /// The other side's part.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Giver => Self::Taker,
            Self::Taker => Self::Giver,
        }
    }
}

impl fmt::Display for TransferRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Giver => "give",
            Self::Taker => "take",
        })
    }
}

/// The bytes of a transfer, cut into pieces of one size; the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    bytes: u64,
    piece_bytes: u32,
    count: u32,
}

impl Pieces {
    /// Cuts `bytes` into pieces. `None` if `bytes` is zero or more than [`TRANSFER_BYTES_MAX`], or if the piece size is not a power of two
    /// from [`PIECE_BYTES_MIN`] to [`PIECE_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: u64, piece_bytes: u32) -> Option<Self> {
        let is_size =
            piece_bytes.is_power_of_two() && (PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(&piece_bytes);
        if !is_size || bytes == 0 || bytes > TRANSFER_BYTES_MAX {
            return None;
        }
        let count = u32::try_from(bytes.div_ceil(piece_bytes.into())).ok()?;
        Some(Self {
            bytes,
            piece_bytes,
            count,
        })
    }

    /// The bytes of all pieces.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// The bytes of each piece except the last.
    #[must_use]
    pub const fn piece_bytes(self) -> u32 {
        self.piece_bytes
    }

    /// The number of pieces.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The offset and the length of a piece, in bytes. `None` if there is no such piece.
    #[must_use]
    pub fn range(self, piece: u32) -> Option<(u64, u32)> {
        let offset = u64::from(piece).checked_mul(self.piece_bytes.into())?;
        let left = self.bytes.checked_sub(offset).filter(|left| *left > 0)?;
        let bytes = left.min(self.piece_bytes.into());
        Some((offset, u32::try_from(bytes).ok()?))
    }

    /// The total bytes of the pieces before `piece`.
    #[must_use]
    pub fn bytes_before(self, piece: u32) -> u64 {
        u64::from(piece)
            .saturating_mul(self.piece_bytes.into())
            .min(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECE_BYTES_MAX, PIECE_BYTES_MIN, Pieces, TRANSFER_BYTES_MAX};

    #[test]
    fn the_last_piece_has_what_is_left() {
        let pieces = Pieces::new(10_000, 4096).unwrap();
        assert_eq!((pieces.count(), pieces.bytes()), (3, 10_000));
        assert_eq!(pieces.range(0), Some((0, 4096)));
        assert_eq!(pieces.range(2), Some((8192, 1808)));
        assert_eq!((pieces.range(3), pieces.range(u32::MAX)), (None, None));
        assert_eq!((pieces.bytes_before(2), pieces.bytes_before(3)), (8192, 10_000));
        assert_eq!(Pieces::new(8192, 4096).unwrap().count(), 2);
    }

    #[test]
    fn sizes_beyond_the_limits_are_none() {
        assert!(Pieces::new(TRANSFER_BYTES_MAX, PIECE_BYTES_MIN).is_some());
        assert!(Pieces::new(1, PIECE_BYTES_MAX).is_some());
        for (bytes, piece) in [
            (0, 4096),
            (TRANSFER_BYTES_MAX + 1, 4096),
            (1, 4095),
            (1, 4097),
            (1, 2048),
            (1, 1 << 25),
        ] {
            assert_eq!(Pieces::new(bytes, piece), None, "{bytes} {piece}");
        }
    }
}
