//! Errors of a ring.

use core::fmt;

use super::Descriptor;

/// A descriptor that was not taken into a ring, given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError {
    /// Back-pressure: the ring holds as many as it can. Try again once some were taken.
    Full(Descriptor),
    /// The ring was closed by either side: nothing goes in any more.
    Closed(Descriptor),
}

impl PushError {
    /// The descriptor.
    #[must_use]
    #[inline]
    pub const fn into_item(self) -> Descriptor {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the ring is full",
            Self::Closed(_) => "the ring is closed",
        })
    }
}

impl core::error::Error for PushError {}

/// Why nothing was taken out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeError {
    /// Nothing is there now.
    Empty,
    /// Nothing is there, and nothing comes any more.
    Closed,
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the ring is empty",
            Self::Closed => "the ring is closed and empty",
        })
    }
}

impl core::error::Error for TakeError {}

/// The ring was closed by either side: nothing goes in any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is closed")
    }
}

impl core::error::Error for Closed {}

/// A half of a ring that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimError {
    /// Caller misuse: somebody has it. It can be had again once that one is dropped.
    Claimed,
    /// The ring was closed, so that nobody can push any more.
    Closed,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claimed => "somebody has this half of the ring",
            Self::Closed => "the ring is closed",
        })
    }
}

impl core::error::Error for ClaimError {}

/// A ring cannot be made of this storage: the number of slots is no power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityError {
    /// How many slots there were.
    pub slots: usize,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a ring needs a power of two of slots, and there were {}",
            self.slots
        )
    }
}

impl core::error::Error for CapacityError {}
