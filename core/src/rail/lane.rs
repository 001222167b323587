//! Fast lanes and management lanes: the use of a rail, by its speed compared with the other rails.

use core::fmt;

use crate::advertised_rail::SpeedClass;

/// How many times slower than the fastest rail a rail for bulk data may be.
///
/// The ports of one generation of hosts differ by at most a factor of four: a port may run at a lower speed, or with one
/// of its four physical lanes. Management ports are slower by more than that.
pub const LANE_FACTOR: u64 = 4;

/// The use of a rail. Greater lanes are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "it is near the fastest or it is not")]
pub enum Lane {
    /// The rail is more than [`LANE_FACTOR`] times slower than the fastest, or its speed is unknown and that of
    /// the fastest is known. It comes after every fast rail. [`choose`](super::choose) uses it only if nothing
    /// else reaches, and [`pairs`](super::pairs) lists it last.
    Management,
    /// The rail is the fastest, or not much slower.
    Fast,
}

impl Lane {
    /// The lane of a rail of this speed; `fastest` is the fastest speed that it is compared with.
    #[must_use]
    pub const fn of(speed: SpeedClass, fastest: SpeedClass) -> Self {
        if speed.to_mbps().saturating_mul(LANE_FACTOR) >= fastest.to_mbps() {
            Self::Fast
        } else {
            Self::Management
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Management => "management lane",
            Self::Fast => "fast lane",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Lane;
    use crate::advertised_rail::SpeedClass;

    #[test]
    fn a_quarter_is_fast_and_less_is_not() {
        let lane = |mbps, fastest| Lane::of(SpeedClass::from_mbps(mbps), SpeedClass::from_mbps(fastest));
        assert_eq!(lane(100_000, 100_000), Lane::Fast);
        assert_eq!(lane(25_000, 100_000), Lane::Fast);
        assert_eq!(lane(24_000, 100_000), Lane::Management);
        assert_eq!(lane(1_000, 25_000), Lane::Management);
        assert_eq!(lane(1_000, 1_000), Lane::Fast);
        // Not known beside what is known, and where nothing is.
        assert_eq!(lane(0, 1_000), Lane::Management);
        assert_eq!(lane(0, 0), Lane::Fast);
        assert!(Lane::Fast > Lane::Management);
    }
}
