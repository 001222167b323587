//! The descriptor: the item of a ring.

use static_assertions::const_assert_eq;

/// One item of a ring: 30 bytes, whose meaning its owner defines.
///
/// Layout: four words of 64 bits, half a cache line. Two bytes belong to the ring: they mark a slot as written,
/// so no side reads a second cache line. Larger items are in registered memory, and the descriptor carries their
/// index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
#[expect(
    clippy::exhaustive_structs,
    reason = "it is full, and made by whoever pushes it"
)]
pub struct Descriptor {
    /// Three words: addresses, keys, lengths.
    pub words: [u64; 3],
    /// One half word: a slot, a channel.
    pub index: u32,
    /// The kind of the descriptor, for rings with several kinds.
    pub kind: u16,
}

const_assert_eq!(size_of::<Descriptor>(), 32);

/// The bit of the last word that shows in which lap of the ring a slot was written.
pub(super) const LAP: u64 = 1 << 63;

impl Descriptor {
    /// The four words for a slot, of which the last carries the lap.
    #[inline(always)]
    pub(super) const fn pack(self, lap: u64) -> [u64; 4] {
        let [a, b, c] = self.words;
        [a, b, c, lap | (self.kind as u64) << 32 | self.index as u64]
    }

    /// The descriptor in the words of a slot.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each takes the bits that are its own"
    )]
    pub(super) const fn unpack([a, b, c, last]: [u64; 4]) -> Self {
        Self {
            words: [a, b, c],
            index: last as u32,
            kind: (last >> 32) as u16,
        }
    }
}
