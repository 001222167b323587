//! Versions, and the numbers that identify a listener and an attempt.

use core::fmt;

use super::number::drawn_number;

/// The newest version of the wire format that this code speaks. It is used if the peer speaks it, too.
pub const VERSION: u8 = 4;

/// The oldest version that this code speaks, with old peers, and only without authentication.
pub const VERSION_OLDEST: u8 = 1;

/// The first version with authentication, and with connections that continue a session.
pub const VERSION_AUTHENTICATED: u8 = 2;

/// The first version whose sides know the frames of transfers. Its handshake has the same bytes as version 2.
pub const VERSION_TRANSFERS: u8 = 3;

/// The first version whose sides know fragments that are written into memory of the receiver. Its handshake has the same bytes as
/// version 2.
pub const VERSION_PLACED: u8 = 4;

/// The versions that a side speaks, both ends included. The oldest is never above the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    oldest: u8,
    newest: u8,
}

impl VersionRange {
    /// The versions that this code speaks.
    pub const OURS: Self = Self {
        oldest: VERSION_OLDEST,
        newest: VERSION,
    };

    /// The versions that this code speaks with authentication.
    pub const AUTHENTICATED: Self = Self {
        oldest: VERSION_AUTHENTICATED,
        newest: VERSION,
    };

    /// The range from `oldest` to `newest`; `None` if `oldest` is zero or above `newest`.
    #[must_use]
    pub const fn new(oldest: u8, newest: u8) -> Option<Self> {
        if oldest == 0 || oldest > newest {
            None
        } else {
            Some(Self { oldest, newest })
        }
    }

    /// The oldest version.
    #[must_use]
    pub const fn oldest(self) -> u8 {
        self.oldest
    }

    /// The newest version.
    #[must_use]
    pub const fn newest(self) -> u8 {
        self.newest
    }

    /// Limits this range to the versions that this code speaks, with or without keys. A side with keys never speaks a
    /// version without authentication, even if the range has no other.
    pub(crate) fn spoken(self, has_keys: bool) -> Self {
        let may = if has_keys { Self::AUTHENTICATED } else { Self::OURS };
        Self {
            oldest: self.oldest.clamp(may.oldest, may.newest),
            newest: self.newest.clamp(may.oldest, may.newest),
        }
    }

    /// The version that two sides speak with each other: the lower of their newest versions, if both speak it.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u8> {
        let version = self.newest.min(other.newest);
        (version >= self.oldest && version >= other.oldest).then_some(version)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

drawn_number! {
    /// A random number, drawn when a listener or node starts. It distinguishes a handle of an earlier listener.
    ///
    /// It is never zero, which would be the value of forgotten entropy.
    InstanceId
}

/// Sixteen random bytes, new for each attempt and each side: no two handshakes have the same transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 16]);

#[cfg(test)]
mod tests {
    use super::VersionRange;

    #[test]
    fn the_lower_version_wins() {
        let range = |oldest, newest| VersionRange::new(oldest, newest).unwrap();
        assert_eq!(range(1, 1).common(range(1, 3)), Some(1));
        assert_eq!(range(1, 3).common(range(2, 2)), Some(2));
        assert_eq!(range(1, 1).common(range(2, 3)), None);
        assert_eq!(range(3, 4).common(range(1, 2)), None);
        for (asked, without, with) in [
            (range(1, 2), (1, 2), (2, 2)),
            (range(1, 1), (1, 1), (2, 2)),
            (range(2, 9), (2, 4), (2, 4)),
            (range(7, 9), (4, 4), (4, 4)),
        ] {
            assert_eq!(asked.spoken(false), range(without.0, without.1));
            assert_eq!(asked.spoken(true), range(with.0, with.1));
        }
        assert_eq!(VersionRange::new(0, 1), None);
        assert_eq!(VersionRange::new(2, 1), None);
    }
}
