//! Errors of a ring.

use core::fmt;

use super::Descriptor;

/// A descriptor that could not be pushed, returned to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError {
    /// Backpressure: the ring is full. Try again after some descriptors were taken.
    Full(Descriptor),
    /// Either side closed the ring: it accepts nothing more.
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

/// The reason why nothing was taken from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeError {
    /// The ring is empty now.
    Empty,
    /// The ring is empty, and nothing will be pushed any more.
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

/// Either side closed the ring: it accepts nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is closed")
    }
}

impl core::error::Error for Closed {}

/// The reason why a half of a ring cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimError {
    /// Caller misuse: the half is claimed already. It can be claimed again after it was dropped.
    Claimed,
    /// The ring is closed, so that nothing can be pushed any more.
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

/// A ring cannot use this storage: the number of slots is not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityError {
    /// The number of slots.
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
