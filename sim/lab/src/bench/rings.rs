//! The request rings beside other crates' queues, from what the benchmark `ring` prints.

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

use super::measurement::{Bench, Findings, quiet};
use super::record::Measured;
use crate::programs;
use crate::steps::step;

/// Rounds, for figures and for `--quick`.
const ROUNDS: &str = "31";
const ROUNDS_QUICK: &str = "3";

/// Runs the benchmark.
///
/// # Errors
///
/// It does not build or run, or what it printed is not as it should be.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    let rounds = if bench.quick { ROUNDS_QUICK } else { ROUNDS };
    let load = quiet();
    let printed = step("moving descriptors through rings", || {
        programs::run_bench("doorbell-benches", "ring", &[rounds])
    })?;
    let mut findings = Findings::default();
    for found in read(&printed)? {
        let Found {
            figure,
            ours_ns,
            rival,
        } = found;
        let mut note = format!(
            "{rounds} rounds, ours between any two of theirs; the ratio is the median, half of the rounds lie within {}",
            rival.half
        );
        if let Some(load) = &load {
            note.push_str(&format!("; {load}"));
        }
        let measured = Measured {
            theirs: Some(1e9 / rival.ns),
            ratio: Some(rival.ratio),
            whose: Some(rival.name),
            note: Some(note),
            ..Measured::of(1e9 / ours_ns)
        };
        findings.add(figure, measured);
    }
    Ok(findings)
}

/// One of ours, and the best rival.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    /// The ring, and how many descriptors at a time: `SpscRing one`.
    figure: String,
    ours_ns: f64,
    rival: Rival,
}

#[derive(Clone, Debug, PartialEq)]
struct Rival {
    name: String,
    ns: f64,
    ratio: f64,
    half: String,
}

/// Reads `one at a time: SpscRing 6.00 ns an item`, and the rivals below it.
fn read(printed: &str) -> Result<Vec<Found>> {
    let ours = Regex::new(r"^(\w+) at a time: (\w+) +([\d.]+) ns an item$")?;
    let rival = Regex::new(r"^ +(\S.*?) +([\d.]+) ns an item, ratio ([\d.]+) \(half of the rounds (.+)\)$")?;
    let mut found: Vec<(String, f64, Option<Rival>)> = Vec::new();
    for line in printed.lines() {
        if let Some(words) = ours.captures(line) {
            let figure = format!("{} {}", &words[2], &words[1]);
            found.push((figure, words[3].parse()?, None));
        } else if let Some(words) = rival.captures(line) {
            let (_, _, best) = found.last_mut().context("a rival of nobody")?;
            let this = Rival {
                name: words[1].to_owned(),
                ns: words[2].parse()?,
                ratio: words[3].parse()?,
                half: words[4].to_owned(),
            };
            // The best of them is the one that ours is least ahead of.
            if best.as_ref().is_none_or(|best| this.ratio < best.ratio) {
                *best = Some(this);
            }
        }
    }
    ensure!(
        !found.is_empty(),
        "the benchmark `ring` printed no figures: {printed}"
    );
    found
        .into_iter()
        .map(|(figure, ours_ns, rival)| {
            let rival = rival.with_context(|| format!("{figure} has no rivals"))?;
            Ok(Found {
                figure,
                ours_ns,
                rival,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rival_is_the_one_that_counts() {
        let printed = "one at a time: SpscRing 6.00 ns an item\n    \
                       rtrb                      12.00 ns an item, ratio 2.01 (half of the rounds 1.90 to 2.10)\n    \
                       heapless spsc              9.00 ns an item, ratio 1.50 (half of the rounds 1.40 to 1.60)\n\
                       sixteen at a time: MpscRing 1.25 ns an item\n    \
                       crossbeam ArrayQueue      20.00 ns an item, ratio 16.00 (half of the rounds 15.00 to 17.00)\n";
        let found = read(printed).unwrap();
        assert_eq!(found[0].figure, "SpscRing one");
        assert_eq!(
            (found[0].ours_ns, found[0].rival.name.as_str()),
            (6.0, "heapless spsc")
        );
        assert_eq!(
            (found[0].rival.ratio, found[0].rival.half.as_str()),
            (1.5, "1.40 to 1.60")
        );
        assert_eq!(
            (found[1].figure.as_str(), found[1].rival.ns),
            ("MpscRing sixteen", 20.0)
        );
        assert!(read("skipped: two threads need two processors").is_err());
        assert!(read("one at a time: SpscRing 6.00 ns an item\n").is_err());
    }
}
