//! The count of all parts: what was skipped on this machine and then run in the lab is counted once, as run.

use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::run_native::Ran;
use crate::scenario::{TestCounts, aligned, met};

/// One part of the tests.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    pub(super) name: String,
    /// The kernel that booted, or was to; none for native tests.
    pub(super) kernel: Option<String>,
    pub(super) counts: TestCounts,
    /// Skipped tests that ran in the lab.
    pub(super) ran_in_lab: u64,
    pub(super) duration_s: f64,
    /// Figures with a goal.
    pub(super) goals: Vec<GoalRow>,
    pub(super) failures: Vec<Failed>,
}

/// A failure, and the command that runs only that.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Failed {
    pub(super) text: String,
    pub(super) command: String,
}

/// A measured figure beside its goal.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GoalRow {
    pub(super) name: String,
    pub(super) figure: String,
    pub(super) goal: String,
    pub(super) is_met: Option<bool>,
}

impl Part {
    fn title(&self) -> String {
        match &self.kernel {
            Some(kernel) => format!("{} on {kernel}", self.name),
            None => self.name.clone(),
        }
    }
}

/// All parts so far.
#[derive(Debug)]
pub(super) struct Tally {
    setup: Duration,
    parts: Vec<Part>,
    /// For each native part, in order: tests that skipped themselves.
    skipped: Vec<Vec<String>>,
    left_out: Vec<String>,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'a> {
    setup_s: f64,
    parts: &'a [Part],
    left_out: &'a [String],
    total: TestCounts,
}

impl Tally {
    pub(super) fn new(setup: Duration) -> Self {
        Self {
            setup,
            parts: Vec::new(),
            skipped: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Takes in native tests; they come before everything else.
    pub(super) fn native(&mut self, (part, skipped): Ran) {
        self.parts.push(part);
        self.skipped.push(skipped);
    }

    /// Takes in a part that ran in the lab, with the names of tests that passed there.
    pub(super) fn in_lab(&mut self, part: Part, passed: Vec<String>) {
        self.parts.push(part);
        let passed: BTreeSet<String> = passed.into_iter().collect();
        for (native, skipped) in self.parts.iter_mut().zip(&mut self.skipped) {
            let before = skipped.len();
            skipped.retain(|name| !passed.contains(name));
            let ran = before.saturating_sub(skipped.len());
            let ran = u64::try_from(ran).unwrap_or(u64::MAX);
            native.ran_in_lab = native.ran_in_lab.saturating_add(ran);
        }
    }

    /// Takes note of what was not run.
    pub(super) fn left_out(&mut self, title: &str, why: &str) {
        self.left_out.push(format!("{title}: {why}"));
    }

    /// The sum: each test once, and what was left out among the skipped.
    pub(super) fn total(&self) -> TestCounts {
        let mut total = TestCounts {
            skipped: u64::try_from(self.left_out.len()).unwrap_or(u64::MAX),
            ..TestCounts::default()
        };
        for part in &self.parts {
            let mut counts = part.counts;
            counts.skipped = counts.skipped.saturating_sub(part.ran_in_lab);
            total.add(counts);
        }
        total
    }

    /// Figures with a goal, which fail nothing.
    fn render_goals(&self, text: &mut String) {
        let mut rows = vec![
            ["measured", "kernel", "figure", "goal", ""]
                .map(str::to_owned)
                .to_vec(),
        ];
        for part in &self.parts {
            rows.extend(part.goals.iter().map(|row| {
                vec![
                    format!("{}: {}", part.name, row.name),
                    part.kernel.clone().unwrap_or_else(|| "-".to_owned()),
                    row.figure.clone(),
                    row.goal.clone(),
                    row.is_met.map_or("-", met).to_owned(),
                ]
            }));
        }
        if rows.len() > 1 {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "\ngoals of time and rate, which fail no test on an emulated kernel:"
            );
            text.push_str(&aligned(&rows, &[true, true, false, true, true]));
            text.push('\n');
        }
    }

    pub(super) fn summary(&self) -> Summary<'_> {
        Summary {
            setup_s: self.setup.as_secs_f64(),
            parts: &self.parts,
            left_out: &self.left_out,
            total: self.total(),
        }
    }

    /// Renders the results at the end; the last line is the count alone.
    pub(super) fn render(&self, out: &Path) -> String {
        let head = ["part", "kernel", "passed", "failed", "skipped", "seconds"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for part in &self.parts {
            rows.push(vec![
                part.name.clone(),
                part.kernel.clone().unwrap_or_else(|| "-".to_owned()),
                part.counts.passed.to_string(),
                part.counts.failed.to_string(),
                part.counts.skipped.to_string(),
                format!("{:.1}", part.duration_s),
            ]);
        }
        let mut text = aligned(&rows, &[true, true, false, false, false, false]);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "set-up took {:.1} s", self.setup.as_secs_f64());
        for part in self.parts.iter().filter(|part| part.ran_in_lab > 0) {
            let _ = writeln!(
                text,
                "{}: {} of the skipped ran in the lab, and count there only",
                part.name, part.ran_in_lab
            );
        }
        for name in &self.left_out {
            let _ = writeln!(text, "left out, and counted as skipped: {name}");
        }
        self.render_goals(&mut text);
        let failures = || {
            let parts = self.parts.iter();
            parts.flat_map(|part| part.failures.iter().map(move |failure| (part, failure)))
        };
        for (part, failure) in failures() {
            let _ = writeln!(text, "FAILED: {}: {}", part.title(), failure.text);
        }
        let _ = writeln!(text, "output: {}", out.display());
        for (part, failure) in failures() {
            let first = failure.text.lines().next().unwrap_or_default();
            let _ = writeln!(
                text,
                "FAILED: {}: {first}\n  run only that: {}",
                part.title(),
                failure.command
            );
        }
        let _ = writeln!(text, "{}", self.total());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, kernel: Option<&str>, passed: u64, failed: u64, skipped: u64) -> Part {
        Part {
            name: name.to_owned(),
            kernel: kernel.map(str::to_owned),
            counts: TestCounts {
                passed,
                failed,
                skipped,
            },
            ran_in_lab: 0,
            duration_s: 1.0,
            goals: Vec::new(),
            failures: (0..failed)
                .map(|_| Failed {
                    text: "broken\n  | in two lines".to_owned(),
                    command: "cargo lab run".to_owned(),
                })
                .collect(),
        }
    }

    #[test]
    fn what_was_skipped_here_and_ran_in_the_lab_is_counted_once() {
        let mut tally = Tally::new(Duration::ZERO);
        let names = ["x", "y", "z"].map(str::to_owned).to_vec();
        tally.native((part("native", None, 10, 0, 4), names));
        tally.in_lab(
            part("devices", Some("7.2"), 2, 0, 0),
            vec!["x".into(), "y".into()],
        );
        // The same tests on another kernel.
        let goal = |is_met| GoalRow {
            name: "outage".to_owned(),
            figure: "2.00 s".to_owned(),
            goal: "at most 1".to_owned(),
            is_met: Some(is_met),
        };
        let mut on_another = part("devices", Some("6.1"), 1, 1, 0);
        on_another.goals = vec![goal(false)];
        tally.in_lab(on_another, vec!["x".into()]);
        tally.left_out("long on 6.1", "only --all runs it");
        assert_eq!(tally.total().to_string(), "13 passed, 1 failed, 3 skipped");
        let text = tally.render(Path::new("OUT"));
        assert_eq!(
            text,
            "part     kernel  passed  failed  skipped  seconds\n\
             native   -           10       0        4      1.0\n\
             devices  7.2          2       0        0      1.0\n\
             devices  6.1          1       1        0      1.0\n\
             set-up took 0.0 s\n\
             native: 2 of the skipped ran in the lab, and count there only\n\
             left out, and counted as skipped: long on 6.1: only --all runs it\n\n\
             goals of time and rate, which fail no test on an emulated kernel:\n\
             measured         kernel  figure  goal\n\
             devices: outage  6.1     2.00 s  at most 1  MISSED\n\n\
             FAILED: devices on 6.1: broken\n  | in two lines\n\
             output: OUT\n\
             FAILED: devices on 6.1: broken\n  run only that: cargo lab run\n\
             13 passed, 1 failed, 3 skipped\n"
        );
    }
}
