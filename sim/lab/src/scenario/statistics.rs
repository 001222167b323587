//! Medians, quartiles and the bootstrap interval of a ratio of medians.
//!
//! Pure arithmetic on slices: no scenario, step or output is known here. The random source is a fixed-seed
//! generator of our own, so the same figures give the same interval on every machine.

use serde::Serialize;

/// Fewest rounds for which a 95 % interval of a median exists: with five, even the whole range covers only
/// 1 - 2/2^5 = 93.75 %.
pub(super) const INTERVAL_ROUNDS_MIN: usize = 6;

/// Resamples of the bootstrap: the 2.5 % point of 10 000 rests on 250 of them, which keeps its own noise well
/// under that of nine noisy rounds.
const RESAMPLES: usize = 10_000;

/// Fixed, so that two runs of the arithmetic on the same rounds agree to the last digit.
const SEED: u64 = 0x0d00_4be1_1000_0001;

/// One metric's rounds in five figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Measured rounds.
    pub(crate) rounds: usize,
    pub(crate) min: f64,
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// The five figures of `values`, or `None` when there are none.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            rounds: sorted.len(),
            min: quantile(&sorted, 0, 4)?,
            q1: quantile(&sorted, 1, 4)?,
            median: quantile(&sorted, 2, 4)?,
            q3: quantile(&sorted, 3, 4)?,
            max: quantile(&sorted, 4, 4)?,
        })
    }
}

/// A ratio of two medians with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Median of the first metric over the median of the second.
    pub(crate) ratio: f64,
    /// 95 % percentile interval, absent with fewer than [`INTERVAL_ROUNDS_MIN`] pairs.
    pub(crate) interval: Option<Interval>,
    /// Pairs of rounds it rests on.
    pub(crate) pairs: usize,
}

/// The two ends of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Ratio of the medians of `pairs`' first and second figures, `None` when there are no pairs or the second
/// median is zero.
///
/// Whole pairs are drawn: the two figures of one round were taken next to each other, so a slow minute of the
/// machine is in both, and resampling them apart would throw that pairing away.
///
/// Source: B. Efron, "Bootstrap methods: another look at the jackknife", 1979 (percentile interval).
pub(super) fn ratio_of_medians(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let mut scratch = Scratch::default();
    let ratio = scratch.ratio(pairs.iter().copied())?;
    let interval = if pairs.len() < INTERVAL_ROUNDS_MIN {
        None
    } else {
        let mut rng = SplitMix64(SEED);
        let mut ratios: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                scratch.ratio((0..pairs.len()).filter_map(|_| pairs.get(rng.below(pairs.len())).copied()))
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        match (quantile(&ratios, 25, 1000), quantile(&ratios, 975, 1000)) {
            (Some(low), Some(high)) => Some(Interval { low, high }),
            _ => None,
        }
    };
    Some(Ratio {
        ratio,
        interval,
        pairs: pairs.len(),
    })
}

/// Buffers of one resample, kept between the ten thousand.
#[derive(Default)]
struct Scratch {
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Scratch {
    fn ratio(&mut self, pairs: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
        self.first.clear();
        self.second.clear();
        for (first, second) in pairs {
            self.first.push(first);
            self.second.push(second);
        }
        self.first.sort_by(f64::total_cmp);
        self.second.sort_by(f64::total_cmp);
        let below = quantile(&self.second, 1, 2)?;
        if below == 0.0 {
            return None;
        }
        Some(quantile(&self.first, 1, 2)? / below)
    }
}

/// The `numerator / denominator` quantile of sorted figures, linear between neighbours (the median of an even
/// number is the mean of the middle two).
fn quantile(sorted: &[f64], numerator: usize, denominator: usize) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let scaled = last.checked_mul(numerator)?;
    let index = scaled.checked_div(denominator)?;
    let rest = scaled.checked_rem(denominator)?;
    let low = *sorted.get(index)?;
    if rest == 0 {
        return Some(low);
    }
    let high = *sorted.get(index.checked_add(1)?)?;
    Some(low + (high - low) * (rest as f64 / denominator as f64))
}

/// Sebastiano Vigna's SplitMix64: eight lines, and good enough to draw round numbers.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number under `bound` (0 when `bound` is 0), by the high half of a 128-bit product.
    fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()).wrapping_mul(bound as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_known_figures() {
        let summary = Summary::of(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(
            summary,
            Summary {
                rounds: 5,
                min: 1.0,
                q1: 2.0,
                median: 3.0,
                q3: 4.0,
                max: 5.0
            }
        );
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0, 10.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_constant_ratio_has_an_interval_of_no_width() {
        let pairs: Vec<(f64, f64)> = (0..9).map(|_| (30.0, 20.0)).collect();
        let got = ratio_of_medians(&pairs).unwrap();
        assert_eq!(got.ratio, 1.5);
        assert_eq!(got.interval, Some(Interval { low: 1.5, high: 1.5 }));
    }

    /// Figures proportional round by round, with every round different: only pairs kept together leave the
    /// ratio exact in every resample.
    #[test]
    fn pairs_are_resampled_together() {
        let pairs: Vec<(f64, f64)> = (1..=9)
            .map(|n| (f64::from(n) * 4.0, f64::from(n) * 2.0))
            .collect();
        let got = ratio_of_medians(&pairs).unwrap();
        assert_eq!(got.ratio, 2.0);
        assert_eq!(got.interval, Some(Interval { low: 2.0, high: 2.0 }));
    }

    /// Nine rounds 1..9 over a constant. By the binomial law a resampled median is at most 1 in 0.14 % of the
    /// cases and at most 2 in 3.0 %, so the 2.5 % point is 2, and 8 at the other end.
    #[test]
    fn the_interval_of_a_median_of_nine_is_the_one_of_the_binomial_law() {
        let pairs: Vec<(f64, f64)> = (1..=9).map(|n| (f64::from(n), 1.0)).collect();
        let got = ratio_of_medians(&pairs).unwrap();
        assert_eq!(got.ratio, 5.0);
        assert_eq!(got.interval, Some(Interval { low: 2.0, high: 8.0 }));
    }

    #[test]
    fn five_rounds_have_no_interval_and_six_have_one() {
        let five: Vec<(f64, f64)> = (1..=5).map(|n| (f64::from(n), 1.0)).collect();
        assert_eq!(ratio_of_medians(&five).unwrap().interval, None);
        let six: Vec<(f64, f64)> = (1..=6).map(|n| (f64::from(n), 1.0)).collect();
        assert!(ratio_of_medians(&six).unwrap().interval.is_some());
    }

    #[test]
    fn no_pairs_and_a_zero_median_have_no_ratio() {
        assert_eq!(ratio_of_medians(&[]), None);
        assert_eq!(ratio_of_medians(&[(1.0, 0.0), (1.0, 0.0)]), None);
    }

    #[test]
    fn the_same_rounds_give_the_same_interval() {
        let pairs: Vec<(f64, f64)> = [63.8, 68.2, 64.1, 66.0, 65.3, 64.9, 67.7]
            .map(|value| (value, 64.0))
            .to_vec();
        assert_eq!(ratio_of_medians(&pairs), ratio_of_medians(&pairs));
    }
}
