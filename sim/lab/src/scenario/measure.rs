//! Results read from a finished step's output: metrics, and counts of tests.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::model::{Metric, MetricSource};

/// Tests of one step, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl TestCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.skipped = self.skipped.saturating_add(other.skipped);
    }
}

impl core::fmt::Display for TestCounts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// The figure of one round: `lines` is both streams, `stdout` the one that a pointer needs.
///
/// # Errors
///
/// The output has no such figure, or it is no finite number.
pub(super) fn metric(metric: &Metric, lines: &str, stdout: &str) -> Result<f64> {
    let value = match &metric.source {
        MetricSource::Pattern(regex) => {
            let captures = regex
                .captures_iter(lines)
                .last()
                .with_context(|| format!("the pattern `{regex}` matches nothing in the output"))?;
            let text = captures.get(1).map(|capture| capture.as_str()).with_context(|| {
                format!("the pattern `{regex}` matches, but its capture takes no part in the match")
            })?;
            text.trim()
                .parse::<f64>()
                .map_err(|_| anyhow!("the pattern `{regex}` captured `{text}`, which is no number"))?
        }
        MetricSource::Pointer(pointer) => {
            let document: serde_json::Value =
                serde_json::from_str(stdout).context("standard output is not one JSON document")?;
            let value = document
                .pointer(pointer)
                .with_context(|| format!("the JSON has nothing at {pointer}"))?;
            value
                .as_f64()
                .with_context(|| format!("the JSON has {value} at {pointer}, which is no number"))?
        }
    };
    ensure!(value.is_finite(), "{value} is not a finite number");
    Ok(value * metric.scale)
}

/// Counts the tests in the output of test programs in the form of libtest.
///
/// A test that skips itself says `SKIPPED:` and returns, so libtest counts it among the passed: it is taken
/// out there and counted as skipped. An ignored test is skipped as well.
///
/// # Errors
///
/// There is no result line at all, or more lines say `SKIPPED:` than tests passed.
pub(crate) fn tests(lines: &str) -> Result<TestCounts> {
    let mut counts = TestCounts::default();
    let mut results: usize = 0;
    for line in lines.lines() {
        if let Some((_, figures)) = line.split_once("test result: ") {
            results = results.saturating_add(1);
            counts.add(TestCounts {
                passed: before(figures, " passed")?,
                failed: before(figures, " failed")?,
                skipped: before(figures, " ignored")?,
            });
        }
    }
    ensure!(
        results > 0,
        "the output has no line `test result: …`, so nothing is known to have been tested"
    );
    let said = said_skipped(lines);
    let Some(passed) = counts.passed.checked_sub(said) else {
        bail!(
            "{said} lines say SKIPPED: but only {} tests passed",
            counts.passed
        );
    };
    Ok(TestCounts {
        passed,
        failed: counts.failed,
        skipped: counts.skipped.saturating_add(said),
    })
}

/// How many tests have skipped themselves aloud.
pub(super) fn said_skipped(lines: &str) -> u64 {
    let lines = lines.lines().filter(|line| line.contains("SKIPPED:")).count();
    u64::try_from(lines).unwrap_or(u64::MAX)
}

/// The number that stands directly before `word`.
fn before(figures: &str, word: &str) -> Result<u64> {
    let text = figures.split(word).next().unwrap_or_default();
    let number = text
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap_or_default();
    ensure!(
        figures.contains(word),
        "the line `test result: {figures}` has no figure for `{}`",
        word.trim()
    );
    number.parse().with_context(|| {
        format!(
            "the line `test result: {figures}` has no figure for `{}`",
            word.trim()
        )
    })
}

/// The first of `patterns` that matches in `text`.
pub(super) fn matching<'a>(patterns: &'a [Regex], text: &str) -> Option<&'a Regex> {
    patterns.iter().find(|pattern| pattern.is_match(text))
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn by_pattern(pattern: &str) -> Metric {
        Metric {
            name: "m".to_owned(),
            step: 0,
            source: MetricSource::Pattern(
                regex::RegexBuilder::new(pattern)
                    .multi_line(true)
                    .build()
                    .unwrap(),
            ),
            unit: "us".to_owned(),
            scale: 1.0,
            goal: None,
        }
    }

    fn by_pointer(pointer: &str, scale: f64) -> Metric {
        let source = MetricSource::Pointer(pointer.to_owned());
        Metric {
            name: "m".to_owned(),
            step: 0,
            source,
            unit: "us".to_owned(),
            scale,
            goal: None,
        }
    }

    #[test]
    fn the_last_match_counts() {
        let got = metric(
            &by_pattern(r"^ *64 +\d+ +([\d.]+)"),
            " 64 1000 3.5\n 64 1000 4.25\n",
            "",
        );
        assert_eq!(got.unwrap(), 4.25);
    }

    #[test]
    fn a_pointer_finds_its_number_and_is_scaled() {
        let json = r#"{"latency_ns":{"p50":[64250]}}"#;
        assert_eq!(
            metric(&by_pointer("/latency_ns/p50/0", 0.001), "", json).unwrap(),
            64.25
        );
    }

    #[test]
    fn a_missing_figure_is_an_error_that_says_where_it_was_sought() {
        let message = |got: Result<f64>| format!("{:#}", got.unwrap_err());
        assert_eq!(
            message(metric(&by_pattern("x(1)"), "y", "")),
            "the pattern `x(1)` matches nothing in the output"
        );
        assert_eq!(
            message(metric(&by_pattern("x(.)"), "xy", "")),
            "the pattern `x(.)` captured `y`, which is no number"
        );
        assert_eq!(
            message(metric(&by_pointer("/a", 1.0), "", r#"{"b":1}"#)),
            "the JSON has nothing at /a"
        );
        assert_eq!(
            message(metric(&by_pointer("/a", 1.0), "", r#"{"a":"1"}"#)),
            r#"the JSON has "1" at /a, which is no number"#
        );
        assert!(
            message(metric(&by_pointer("/a", 1.0), "", "x")).starts_with("standard output is not one JSON")
        );
        assert_eq!(
            message(metric(&by_pattern("(.+)"), "inf", "")),
            "inf is not a finite number"
        );
    }

    #[test]
    fn results_of_several_test_programs_add_up() {
        let lines = "test a ... ok\ntest b ... SKIPPED: no device\nok\n\
                     test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                     test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        assert_eq!(
            tests(lines).unwrap(),
            TestCounts {
                passed: 4,
                failed: 1,
                skipped: 2
            }
        );
    }

    #[test]
    fn output_without_results_is_not_a_success() {
        assert!(
            tests("SKIPPED: everything\n")
                .unwrap_err()
                .to_string()
                .contains("no line `test result")
        );
        let lines = "SKIPPED: a\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";
        assert_eq!(
            tests(lines).unwrap_err().to_string(),
            "1 lines say SKIPPED: but only 0 tests passed"
        );
    }
}
