//! Members of a mesh: their numbers, and sets of them.

use core::fmt;

/// The maximum number of members of a mesh.
pub const RANKS_MAX: u8 = 64;

/// The number of a member of a mesh, from 0, below [`RANKS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(u8);

impl Rank {
    /// Rank 0, which every mesh has.
    pub const FIRST: Self = Self(0);

    /// The rank of this number; `None` from [`RANKS_MAX`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < RANKS_MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank this many places after this one, in a ring of `ranks`.
    ///
    /// `None` if this rank is not in the ring, or if `ranks` exceeds [`RANKS_MAX`].
    #[must_use]
    pub const fn after(self, places: u8, ranks: u8) -> Option<Self> {
        if self.0 >= ranks || ranks > RANKS_MAX {
            return None;
        }
        let Some(places) = places.checked_rem(ranks) else {
            return None;
        };
        // Both numbers are below 64, so the sum does not overflow. The remainder is below `ranks`.
        match self.0.wrapping_add(places).checked_rem(ranks) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The rank this many places before this one, in a ring of `ranks`.
    ///
    /// `None` if this rank is not in the ring, or if `ranks` exceeds [`RANKS_MAX`].
    #[must_use]
    pub const fn before(self, places: u8, ranks: u8) -> Option<Self> {
        match places.checked_rem(ranks) {
            // `places` is below `ranks`, so the difference is not negative.
            Some(places) => self.after(ranks.wrapping_sub(places), ranks),
            None => None,
        }
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rank({})", self.0)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A set of ranks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ranks(u64);

impl Ranks {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set whose members are the bits that are one.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// A bit for each member, the lowest for rank 0.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The first `ranks` ranks, at most [`RANKS_MAX`].
    #[must_use]
    pub const fn first(ranks: u8) -> Self {
        if ranks >= RANKS_MAX {
            Self(u64::MAX)
        } else {
            Self(Self::bit(ranks).wrapping_sub(1))
        }
    }

    /// Whether the set contains the rank.
    #[must_use]
    pub const fn contains(self, rank: Rank) -> bool {
        self.0 & Self::bit(rank.0) != 0
    }

    /// The set with this member added.
    #[must_use]
    pub const fn with(self, rank: Rank) -> Self {
        Self(self.0 | Self::bit(rank.0))
    }

    /// The set without this member.
    #[must_use]
    pub const fn without(self, rank: Rank) -> Self {
        Self(self.0 & !Self::bit(rank.0))
    }

    /// The members of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The members of either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The members that are not in the other set.
    #[must_use]
    pub const fn and_not(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of members.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Rank> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let lowest = u8::try_from(left.trailing_zeros()).ok()?;
            // An empty set has 64 trailing zeros, which is no rank.
            let rank = Rank::new(lowest)?;
            left &= left.wrapping_sub(1);
            Some(rank)
        })
    }

    /// The bit of a number below [`RANKS_MAX`].
    const fn bit(number: u8) -> u64 {
        1_u64.wrapping_shl(number as u32)
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Rank::number)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::{RANKS_MAX, Rank, Ranks};

    fn rank(number: u8) -> Rank {
        Rank::new(number).unwrap()
    }

    #[test]
    fn the_last_rank_is_one_below_the_limit() {
        assert!(Rank::new(RANKS_MAX - 1).is_some());
        assert!(Rank::new(RANKS_MAX).is_none());
    }

    #[test]
    fn circles_close() {
        assert_eq!(rank(63).after(1, 64), Some(rank(0)));
        assert_eq!(rank(0).before(1, 64), Some(rank(63)));
        assert_eq!(rank(2).after(7, 3), Some(rank(0)));
        assert_eq!(rank(2).before(7, 3), Some(rank(1)));
        assert_eq!(rank(2).before(3, 3), Some(rank(2)));
        assert_eq!(rank(3).after(1, 3), None);
        assert_eq!(rank(0).after(1, 0), None);
        assert_eq!(rank(0).before(1, 65), None);
    }

    #[test]
    fn sets_list_their_members_in_order() {
        let set = Ranks::NONE.with(rank(63)).with(rank(0)).with(rank(5));
        let listed: Vec<_> = set.iter().map(Rank::number).collect();
        assert_eq!(listed, [0, 5, 63]);
        assert_eq!(set.len(), 3);
        assert_eq!(set.without(rank(5)).iter().count(), 2);
        assert_eq!(Ranks::first(0), Ranks::NONE);
        assert_eq!(Ranks::first(64).len(), 64);
        assert_eq!(
            Ranks::first(3).and_not(set).iter().map(Rank::number).sum::<u8>(),
            3
        );
    }
}
