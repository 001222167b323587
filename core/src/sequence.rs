//! Numbers of a session's connections and of its fragments, with the limits that the session's frames and its tables share.
//!
//! Frames and protocol stand above: `wire` and `session`.

/// Rails of a session at most.
pub const SESSION_RAILS_MAX: u8 = 8;

/// Fragments that are taken ahead of the one expected at most.
pub const SESSION_WINDOW_MAX: u32 = 1 << 16;

/// Number of a connection of a session, on whatever rail: higher than that of every connection before it. Zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// Before the first connection.
    pub const NONE: Self = Self(0);

    /// Makes the epoch of a checked header.
    #[must_use]
    pub const fn from_wire(raw: u32) -> Self {
        Self(raw)
    }

    /// The number.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The one after it; `None` where there is none. At a thousand connections a second that is after seven weeks.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(next) => Some(Self(next)),
            None => None,
        }
    }
}

/// The number of a fragment, from zero. 64 bits do not come round: at a thousand million a second they last five
/// hundred years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The number so many later; the last there is where it would be beyond it.
    #[must_use]
    pub const fn plus(self, fragments: u64) -> Self {
        Self(self.0.saturating_add(fragments))
    }

    /// The one before it; zero has none, and is its own.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// How many there are from `earlier` up to it; none where that is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Its place in a table of so many.
    pub(crate) fn place(self, of: usize) -> usize {
        let of = u64::try_from(of).unwrap_or(u64::MAX);
        self.0
            .checked_rem(of)
            .and_then(|place| usize::try_from(place).ok())
            .unwrap_or(0)
    }
}
