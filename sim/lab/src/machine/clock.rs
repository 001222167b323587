//! Whether a machine's clock runs as fast as this one's.
//!
//! A kernel finds the rate of its time-stamp counter by watching a slower clock
//! for a few milliseconds. Emulated on a busy machine that goes wrong at times, and
//! then every second measured in the guest is false. The rate does not change
//! while this machine is up. So it is found once, given to every kernel booted from then on, and checked at each
//! boot.

use core::time::Duration;
use std::fs;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::cache::Cache;

/// How long after the first reading there are others, until the clock is found true. A reading is off by half of
/// what an answer takes, which on a busy machine is more than the tolerance of a second, and not of ten.
const SPANS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), EXACT];

/// A reading so long after the first is exact enough to correct a rate by.
pub(super) const EXACT: Duration = Duration::from_secs(10);

/// How far the rates of two clocks may differ.
const TOLERANCE: f64 = 0.03;

/// Note that keeps the counter's rate.
const NOTE: &str = "tsc";

/// Both clocks read at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    here: Instant,
    there_ns: u64,
}

/// Reads both clocks a few times, and keeps the reading that took the shortest.
pub(super) fn read(mut ask: impl FnMut() -> Result<u64>) -> Result<Reading> {
    let mut best: Option<(Duration, Reading)> = None;
    for _ in 0..5 {
        let before = Instant::now();
        let there_ns = ask()?;
        let took = before.elapsed();
        if best.is_none_or(|(shortest, _)| took < shortest) {
            let here = before.checked_add(took.div_f64(2.0)).unwrap_or(before);
            best = Some((took, Reading { here, there_ns }));
        }
    }
    best.map(|(_, reading)| reading)
        .context("no reading of a machine's clock")
}

/// Waits until so long after a reading.
pub(super) fn wait_since(first: Reading, span: Duration) {
    thread::sleep(span.saturating_sub(first.here.elapsed()));
}

/// The rate over the first span over which it is true, or else over the longest.
pub(super) fn rate_since(
    first: Reading,
    mut read_after: impl FnMut(Duration) -> Result<Reading>,
) -> Result<f64> {
    let mut found = f64::NAN;
    for span in SPANS {
        found = rate(first, read_after(span)?);
        if is_true(found) {
            break;
        }
    }
    Ok(found)
}

/// How fast the clock there runs: 1 as it should, 2 where seconds are half as long.
pub(super) fn rate(first: Reading, last: Reading) -> f64 {
    let here = last.here.saturating_duration_since(first.here).as_secs_f64();
    let there = Duration::from_nanos(last.there_ns.saturating_sub(first.there_ns)).as_secs_f64();
    if here > 0.0 { there / here } else { f64::NAN }
}

/// Whether a clock of this rate may be measured with.
pub(crate) fn is_true(rate: f64) -> bool {
    (rate - 1.0).abs() <= TOLERANCE
}

/// The counter's rate in kHz, from what a kernel took it for and how fast its clock then ran.
pub(crate) fn corrected_khz(taken_khz: u32, rate: f64) -> Option<u32> {
    // Closer than a reading is exact, the kernel knows better.
    let khz = if (rate - 1.0).abs() < 0.01 {
        f64::from(taken_khz)
    } else {
        f64::from(taken_khz) * rate
    };
    let sensible = (100_000.0..20_000_000.0).contains(&khz);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the range just checked"
    )]
    sensible.then_some(khz.round() as u32)
}

/// Returns the rate that a kernel measured for its counter, from its log.
pub(crate) fn khz_in_log(log: &str) -> Option<u32> {
    // The refined one comes later and is better.
    log.lines().rev().find_map(|line| {
        let line = line.split("tsc: ").nth(1)?;
        let mhz = line
            .strip_prefix("Refined TSC clocksource calibration: ")
            .or_else(|| line.strip_prefix("Detected "))?
            .split_whitespace()
            .next()?;
        let (whole, thousandths) = mhz.split_once('.')?;
        whole
            .parse::<u32>()
            .ok()?
            .checked_mul(1000)?
            .checked_add(thousandths.parse().ok()?)
    })
}

/// The rate found earlier on this boot of this machine, in kHz.
pub(crate) fn known_khz(cache: &Cache) -> Option<u32> {
    let note = cache.note(NOTE)?;
    let (boot, khz) = note.trim().split_once(' ')?;
    (boot == boot_id()).then(|| khz.parse().ok())?
}

/// Keeps the rate for this boot of this machine.
pub(crate) fn remember_khz(cache: &Cache, khz: u32) -> Result<()> {
    cache.set_note(NOTE, &format!("{} {khz}\n", boot_id()))
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(start: Instant, here_ms: u64, there_ms: u64) -> Reading {
        let here = start.checked_add(Duration::from_millis(here_ms)).unwrap();
        Reading {
            here,
            there_ns: there_ms.saturating_mul(1_000_000),
        }
    }

    #[test]
    fn a_clock_that_runs_fast_is_told_from_one_that_is_true() {
        let start = Instant::now();
        let rate_of = |there_ms| rate(reading(start, 0, 5000), reading(start, 1000, there_ms));
        assert!(is_true(rate_of(6000)) && is_true(rate_of(6029)) && is_true(rate_of(5971)));
        assert!(!is_true(rate_of(6031)) && !is_true(rate_of(5969)) && !is_true(rate_of(35_000)));
        assert!(
            !is_true(rate(reading(start, 0, 0), reading(start, 0, 0))),
            "no time between them"
        );
    }

    #[test]
    fn a_clock_that_seems_false_is_read_again_over_longer_spans() {
        let start = Instant::now();
        let first = reading(start, 0, 5000);
        // Error of each reading, and number of readings of the clock.
        let rate_of = |off_ms: u64, runs: u64| {
            let mut spans = Vec::new();
            let rate = rate_since(first, |span| {
                spans.push(span.as_secs());
                let here_ms = u64::try_from(span.as_millis())?;
                Ok(reading(start, here_ms, 5000 + here_ms * runs + off_ms))
            });
            (is_true(rate.unwrap()), spans)
        };
        assert_eq!(rate_of(0, 1), (true, vec![1]));
        assert_eq!(rate_of(60, 1), (true, vec![1, 4]));
        assert_eq!(rate_of(250, 1), (true, vec![1, 4, 10]));
        assert_eq!(rate_of(0, 2), (false, vec![1, 4, 10]));
    }

    #[test]
    fn the_rate_is_corrected_by_how_false_the_clock_was() {
        assert_eq!(corrected_khz(2_596_136, 1.002), Some(2_596_136));
        assert_eq!(corrected_khz(100_000, 25.96), Some(2_596_000));
        assert_eq!(corrected_khz(2_596_136, f64::NAN), None);
        assert_eq!(corrected_khz(2_596_136, 1000.0), None);
    }

    #[test]
    fn the_kernel_s_own_rate_is_read_from_its_log() {
        let log = "[    0.0] tsc: Detected 2596.136 MHz processor\n[    1.0] other\n";
        assert_eq!(khz_in_log(log), Some(2_596_136));
        let refined = format!("{log}[    2.1] tsc: Refined TSC clocksource calibration: 2595.999 MHz\n");
        assert_eq!(khz_in_log(&refined), Some(2_595_999));
        assert_eq!(khz_in_log("[    0.0] tsc: Marking TSC unstable\n"), None);
    }

    #[test]
    fn the_quickest_reading_is_kept() {
        let mut delays = [250, 1, 250, 250, 250].into_iter().zip(1..);
        let kept = read(|| {
            let (delay_ms, n) = delays.next().unwrap();
            thread::sleep(Duration::from_millis(delay_ms));
            Ok(n)
        });
        assert_eq!(kept.unwrap().there_ns, 2);
    }
}
