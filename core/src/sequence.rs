//! Numbers of a session's connections and fragments, with the limits that the session's frames and tables share.
//!
//! Frames and protocol are in `wire` and `session`.

/// The maximum number of rails of a session.
pub const SESSION_RAILS_MAX: u8 = 8;

/// The maximum number of fragments accepted ahead of the expected one.
pub const SESSION_WINDOW_MAX: u32 = 1 << 16;

/// The number of a connection of a session. It is greater than the numbers of all earlier connections, on any rail. Zero stands for no connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// Before the first connection.
    pub const NONE: Self = Self(0);

    /// The epoch in a checked header.
    #[must_use]
    pub const fn from_wire(raw: u32) -> Self {
        Self(raw)
    }

    /// The number.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The next epoch; `None` after the last one, which a thousand connections a second reach after seven weeks.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(next) => Some(Self(next)),
            None => None,
        }
    }
}

/// The number of a fragment, from zero. 64 bits do not wrap: at a thousand million fragments a second they last five
/// hundred years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The number `fragments` later, at most the largest number.
    #[must_use]
    pub const fn plus(self, fragments: u64) -> Self {
        Self(self.0.saturating_add(fragments))
    }

    /// The number before this one; zero for zero.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The number of fragments from `earlier` up to this one; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The index of the fragment in a ring table of this length.
    pub(crate) fn place(self, of: usize) -> usize {
        let of = u64::try_from(of).unwrap_or(u64::MAX);
        self.0
            .checked_rem(of)
            .and_then(|place| usize::try_from(place).ok())
            .unwrap_or(0)
    }
}
