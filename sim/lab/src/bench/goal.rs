//! Goals of rows, and whether figures reach them.

use core::fmt;

use super::record::Measured;

/// Goal of a row. Ratios are ours over theirs, differences ours less theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// Ours, by itself.
    AtMost(f64),
    DifferenceAtMost(f64),
    RatioAtMost(f64),
    RatioBelow(f64),
    RatioAtLeast(f64),
    RatioAbove(f64),
    /// The 95 % interval of the ratio begins at `reaches` or below, and ends by `ends`.
    Interval {
        reaches: f64,
        ends: f64,
    },
}

impl Goal {
    /// Whether the figures reach it. A missing figure reaches no goal.
    pub(super) fn is_met(self, measured: &Measured) -> bool {
        let ratio =
            |met: fn(f64, f64) -> bool, bound| measured.ratio().is_some_and(|ratio| met(ratio, bound));
        match self {
            Self::AtMost(most) => measured.ours <= most,
            Self::DifferenceAtMost(most) => {
                measured.difference().is_some_and(|difference| difference <= most)
            }
            Self::RatioAtMost(most) => ratio(|ratio, most| ratio <= most, most),
            Self::RatioBelow(limit) => ratio(|ratio, limit| ratio < limit, limit),
            Self::RatioAtLeast(least) => ratio(|ratio, least| ratio >= least, least),
            Self::RatioAbove(limit) => ratio(|ratio, limit| ratio > limit, limit),
            Self::Interval { reaches, ends } => measured
                .interval
                .is_some_and(|interval| interval.low <= reaches && interval.high <= ends),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::DifferenceAtMost(most) => write!(f, "at most {most:+}"),
            Self::RatioAtMost(most) if *most < 1.0 => write!(f, "ratio at most 1/{}", most.recip()),
            Self::RatioAtMost(most) => write!(f, "ratio at most {most:.2}"),
            Self::RatioBelow(limit) => write!(f, "ratio below {limit:.2}"),
            Self::RatioAtLeast(least) => write!(f, "ratio at least {least:.2}"),
            Self::RatioAbove(limit) => write!(f, "ratio above {limit:.2}"),
            Self::Interval { reaches, ends } => {
                write!(
                    f,
                    "95 % interval of the ratio reaches {reaches:.2}, ends by {ends:.2}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Interval, Measured};
    use super::*;

    fn ratio(ours: f64) -> Measured {
        Measured {
            theirs: Some(100.0),
            ..Measured::of(ours)
        }
    }

    #[test]
    fn a_goal_is_met_at_its_bound_and_missed_past_it() {
        assert!(Goal::AtMost(50.0).is_met(&Measured::of(50.0)));
        assert!(!Goal::AtMost(50.0).is_met(&Measured::of(50.1)));
        assert!(Goal::DifferenceAtMost(8.0).is_met(&ratio(108.0)));
        assert!(!Goal::DifferenceAtMost(8.0).is_met(&ratio(108.1)));
        assert!(
            Goal::RatioAtMost(1.0).is_met(&ratio(100.0)) && !Goal::RatioAtMost(1.0).is_met(&ratio(100.1))
        );
        assert!(Goal::RatioBelow(1.0).is_met(&ratio(99.9)) && !Goal::RatioBelow(1.0).is_met(&ratio(100.0)));
        assert!(
            Goal::RatioAtLeast(1.0).is_met(&ratio(100.0)) && !Goal::RatioAtLeast(1.0).is_met(&ratio(99.9))
        );
        assert!(Goal::RatioAbove(1.0).is_met(&ratio(100.1)) && !Goal::RatioAbove(1.0).is_met(&ratio(100.0)));
    }

    #[test]
    fn an_interval_must_reach_its_goal_and_end_in_time() {
        let goal = Goal::Interval {
            reaches: 1.0,
            ends: 1.03,
        };
        let with = |low, high| Measured {
            interval: Some(Interval { low, high }),
            ..ratio(101.0)
        };
        assert!(goal.is_met(&with(1.0, 1.03)));
        assert!(!goal.is_met(&with(1.001, 1.03)), "it does not reach 1.00");
        assert!(!goal.is_met(&with(0.9, 1.031)), "it ends too late");
        assert!(!goal.is_met(&ratio(90.0)), "there is none");
    }

    #[test]
    fn without_theirs_nothing_relative_is_met() {
        let alone = Measured::of(0.0);
        for goal in [
            Goal::DifferenceAtMost(1.0),
            Goal::RatioAtMost(1.0),
            Goal::RatioBelow(1.0),
        ] {
            assert!(!goal.is_met(&alone), "{goal}");
        }
    }

    #[test]
    fn goals_in_words() {
        assert_eq!(Goal::RatioAtMost(1.0 / 32.0).to_string(), "ratio at most 1/32");
        assert_eq!(Goal::DifferenceAtMost(25.0).to_string(), "at most +25");
        assert_eq!(Goal::AtMost(50.0).to_string(), "at most 50");
    }
}
