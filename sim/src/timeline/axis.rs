//! The axis of time of a picture: where on it each instant is.
//!
//! Microseconds of traffic lie between milliseconds of waiting, so the axis is not to scale. Instants are at least
//! a line of text apart. A long span is cut short and labelled with its length. Spans in between are in proportion.

use std::collections::BTreeMap;

/// How far two instants are apart at least: a line of text.
pub(super) const LINE: f64 = 14.0;
/// How far they are apart at most, but for what is written between them.
const GAP_MAX: f64 = 56.0;

/// A place on the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) y: f64,
    /// How much time was cut out just before it, in nanoseconds.
    pub(super) cut_ns: Option<u64>,
}

/// Vertical position of each instant.
pub(super) struct Axis {
    ticks: BTreeMap<u64, Tick>,
    ends: f64,
}

impl Axis {
    /// One for these instants, each with how many lines are written at it.
    pub(super) fn new(lines: &BTreeMap<u64, u32>, begins: f64) -> Self {
        let mut spans: Vec<u64> = lines
            .keys()
            .zip(lines.keys().skip(1))
            .map(|(a, b)| b.saturating_sub(*a))
            .collect();
        spans.sort_unstable();
        // The usual span between two of them is a line and a half.
        let usual_ns = spans
            .get(spans.len() / 2)
            .map_or(1.0, |span| *span as f64)
            .max(1.0);
        let mut ticks = BTreeMap::new();
        let mut y = begins;
        let mut before: Option<(u64, u32)> = None;
        for (at_ns, lines) in lines {
            let mut cut_ns = None;
            if let Some((before_ns, before_lines)) = before {
                let span_ns = at_ns.saturating_sub(before_ns);
                let gap = span_ns as f64 / usual_ns * LINE * 1.5;
                cut_ns = (gap > GAP_MAX).then_some(span_ns);
                y += gap.clamp(LINE, GAP_MAX) + LINE * f64::from(before_lines.saturating_sub(1));
            }
            ticks.insert(*at_ns, Tick { y, cut_ns });
            before = Some((*at_ns, *lines));
        }
        let last_lines = before.map_or(1, |(_, lines)| lines);
        Self {
            ticks,
            ends: y + LINE * f64::from(last_lines),
        }
    }

    /// Returns the vertical position of an instant. An instant that was not named is at the beginning.
    pub(super) fn y(&self, at_ns: u64) -> f64 {
        self.ticks
            .range(..=at_ns)
            .next_back()
            .map_or(0.0, |(_, tick)| tick.y)
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = (u64, Tick)> {
        self.ticks.iter().map(|(at_ns, tick)| (*at_ns, *tick))
    }

    /// Returns the end of the axis.
    pub(super) const fn ends(&self) -> f64 {
        self.ends
    }
}
