//! One scenario on one kernel as a part of the tests, counted from the report it leaves.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::Run;
use super::tally::{Failed, GoalRow, Part};
use crate::course::Course;
use crate::guests;
use crate::harness;
use crate::scenario::{self, Detail, Goal, Lab, REPORT, TestCounts, Verdict, short};
use crate::steps::say;

/// Results of tests in a report.
#[derive(Debug, Deserialize)]
pub(crate) struct TestReport {
    kernel: String,
    verdict: Verdict,
    failures: Vec<String>,
    /// Absent when no step declares tests.
    tests: Option<TestCounts>,
    steps: Vec<ReportedStep>,
    #[serde(default)]
    metrics: Vec<ReportedMetric>,
    #[serde(default)]
    comparisons: Vec<ReportedComparison>,
}

#[derive(Debug, Deserialize)]
struct ReportedMetric {
    name: String,
    unit: String,
    summary: Option<ReportedSummary>,
    goal: Option<Goal>,
    met: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ReportedSummary {
    median: f64,
}

#[derive(Debug, Deserialize)]
struct ReportedComparison {
    name: String,
    min: Option<f64>,
    max: Option<f64>,
    is_goal: bool,
    result: Option<ReportedRatio>,
    within_bounds: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ReportedRatio {
    ratio: f64,
}

#[derive(Debug, Deserialize)]
struct ReportedStep {
    stdout: PathBuf,
    tests: Option<TestCounts>,
}

impl TestReport {
    /// Reads the report in the folder of a run.
    ///
    /// # Errors
    ///
    /// There is none: something before the run failed.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(REPORT);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no report", path.display()))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.verdict == Verdict::Failed
    }

    /// The error in words.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Figures with a goal: reported, and no failure if missed.
    fn goals(&self) -> Vec<GoalRow> {
        let metrics = self.metrics.iter().filter_map(|metric| {
            Some(GoalRow {
                name: metric.name.clone(),
                figure: metric.summary.as_ref().map_or_else(
                    || "-".to_owned(),
                    |summary| format!("{} {}", short(summary.median), metric.unit),
                ),
                goal: metric.goal?.to_string(),
                is_met: metric.met,
            })
        });
        let compared = self.comparisons.iter().filter(|compared| compared.is_goal);
        let compared = compared.map(|compared| GoalRow {
            name: compared.name.clone(),
            figure: compared
                .result
                .as_ref()
                .map_or_else(|| "-".to_owned(), |result| short(result.ratio)),
            goal: Goal {
                at_least: compared.min,
                at_most: compared.max,
            }
            .to_string(),
            is_met: compared.within_bounds,
        });
        metrics.chain(compared).collect()
    }

    /// The tests of its steps, or itself as one. A run that failed is never without a failure.
    fn counts(&self) -> TestCounts {
        let failed = self.has_failed();
        let mut counts = self.tests.unwrap_or(TestCounts {
            passed: u64::from(!failed),
            ..TestCounts::default()
        });
        if failed && counts.failed == 0 {
            counts.failed = 1;
        }
        counts
    }

    /// The names of the tests that passed in its steps.
    fn passed(&self) -> Vec<String> {
        let mut names = Vec::new();
        for step in self.steps.iter().filter(|step| step.tests.is_some()) {
            let text = fs::read(&step.stdout).unwrap_or_default();
            names.extend(harness::passed(&String::from_utf8_lossy(&text)));
        }
        names
    }
}

/// Runs a scenario; gives its part, and the names of the tests that passed in it.
pub(super) fn run(run: &Run<'_>, out: &Path, lab: &mut dyn Lab, course: &Course) -> (Part, Vec<String>) {
    let title = run.title();
    course.began(&title);
    let folder = run.folder(out);
    let perform = || {
        let folder = scenario::output_folder(Some(&folder), &run.scenario.name)?;
        let (report, cluster) = scenario::perform(run.scenario, run.kernel, &folder, lab)?;
        drop(cluster);
        if report.verdict == Verdict::Failed {
            // The count below stands whether or not the table can be shown.
            let _ = scenario::deliver(&report, Detail::Whole, None);
        }
        TestReport::read(&folder)
    };
    let told = again_if_trapped(&folder, perform);
    let outcome = outcome(&told);
    let took = course.ended(&title, outcome);
    part(run, told, took)
}

/// Performs a run that leaves its report in this folder, once more if an emulated kernel died of a trap of its own. The output
/// of the first stays beside. Such a death says nothing of the programs that ran: [`guests::have_said`] has its cause.
fn again_if_trapped(folder: &Path, mut perform: impl FnMut() -> Result<TestReport>) -> Result<TestReport> {
    let told = perform();
    let has_failed = told.as_ref().map_or(true, TestReport::has_failed);
    if !has_failed || !guests::have_said(&folder.join("consoles"), "Oops: int3") {
        return told;
    }
    let mut kept = folder.as_os_str().to_owned();
    kept.push("-trapped");
    fs::rename(folder, &kept).with_context(|| format!("cannot move {}", folder.display()))?;
    say(format_args!(
        "the emulated kernel met a trap of its own, as they do now and then (consoles: {}): running the scenario again",
        Path::new(&kept).display()
    ));
    perform()
}

/// One word for a run.
pub(super) fn outcome(told: &Result<TestReport>) -> &'static str {
    match told {
        Ok(told) if !told.has_failed() => "passed",
        _ => "FAILED",
    }
}

/// The part that a run is, and the names of the tests that passed in it.
pub(super) fn part(run: &Run<'_>, told: Result<TestReport>, took: Duration) -> (Part, Vec<String>) {
    let (kernel, counts, failures, passed, goals) = match told {
        Ok(told) => (
            told.kernel.clone(),
            told.counts(),
            told.failures.clone(),
            told.passed(),
            told.goals(),
        ),
        Err(error) => {
            let counts = TestCounts {
                failed: 1,
                ..TestCounts::default()
            };
            (
                run.kernel.to_string(),
                counts,
                vec![format!("{error:#}")],
                Vec::new(),
                Vec::new(),
            )
        }
    };
    let part = Part {
        name: run.scenario.name.clone(),
        kernel: Some(kernel),
        counts,
        ran_in_lab: 0,
        duration_s: took.as_secs_f64(),
        goals,
        failures: failures
            .into_iter()
            .map(|text| Failed {
                text,
                command: run.command(),
            })
            .collect(),
    };
    (part, passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_repeated_once_if_its_kernel_met_a_trap_and_for_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let told = |verdict| TestReport {
            kernel: String::new(),
            verdict,
            failures: Vec::new(),
            tests: None,
            steps: Vec::new(),
            metrics: Vec::new(),
            comparisons: Vec::new(),
        };
        // Each run: the last words of its kernel, and whether it passes.
        let ran = |name: &str, runs: &[(&str, bool)]| {
            let folder = place.path().join(name);
            let mut left = runs.iter();
            let last = again_if_trapped(&folder, || {
                let (console, passes) = left.next().expect("no more runs");
                fs::create_dir_all(folder.join("consoles"))?;
                fs::write(folder.join("consoles/lab.log"), console)?;
                Ok(told(if *passes { Verdict::Passed } else { Verdict::Failed }))
            });
            assert_eq!(left.len(), 0, "{name}");
            !last.unwrap().has_failed()
        };
        let trap = "[   53.3] Oops: int3: 0000 [#1] SMP";
        let panic = "[   53.3] BUG: kernel NULL pointer dereference";
        assert!(ran("passed", &[(trap, true)]));
        assert!(ran("again", &[(trap, false), ("", true)]));
        assert!(place.path().join("again-trapped/consoles/lab.log").exists());
        assert!(
            !ran("twice", &[(trap, false), (trap, false)]),
            "once more, not for ever"
        );
        assert!(!ran("other", &[(panic, false)]), "another panic is a failure");
        assert!(!place.path().join("other-trapped").exists());
    }

    #[test]
    fn a_run_that_failed_is_never_without_a_failure() {
        let told = |verdict, tests| TestReport {
            kernel: String::new(),
            verdict,
            failures: Vec::new(),
            tests,
            steps: Vec::new(),
            metrics: Vec::new(),
            comparisons: Vec::new(),
        };
        let counts = |passed, failed| TestCounts {
            passed,
            failed,
            skipped: 0,
        };
        assert_eq!(told(Verdict::Passed, None).counts(), counts(1, 0));
        assert_eq!(told(Verdict::Failed, None).counts(), counts(0, 1));
        assert_eq!(told(Verdict::Passed, Some(counts(7, 0))).counts(), counts(7, 0));
        assert_eq!(told(Verdict::Failed, Some(counts(7, 0))).counts(), counts(7, 1));
        assert_eq!(told(Verdict::Failed, Some(counts(7, 2))).counts(), counts(7, 2));
    }
}
