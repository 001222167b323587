//! Judgement of a step that has ended: its exit, its output, its metrics and tests, the files it leaves, and
//! the words for its failure.
//!
//! [`super::runner`] decides when a step starts, and when it has to end.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::counters;
use super::measure::{self, TestCounts};
use super::report::{Outcome, StepReport};
use super::runner::Runner;
use super::schema::ExpectExit;
use super::template::Values;
use crate::cluster::Exit;

impl Runner<'_> {
    /// Judges a step that has ended, by itself or on request.
    pub(super) fn judge(&mut self, index: usize, warmup: bool) -> Result<()> {
        let step = self.step(index);
        let Some(tracked) = self.tracked.get_mut(&index) else {
            return Ok(());
        };
        tracked.done = true;
        let (told, slot) = (tracked.told, tracked.report);
        let ready = step.ready.is_none() || tracked.live.ready;
        let (exit, duration) = (tracked.live.exit, tracked.live.elapsed());
        let lines = tracked.live.output.lines().to_owned();
        let Some(report) = self.steps.get_mut(slot) else {
            return Ok(());
        };
        report.exit = exit;
        report.duration_s = duration.as_secs_f64();
        let stdout = report.stdout.clone();
        let others_failed = self.failed();
        let cut_short = told && (!step.background || others_failed);
        // Before the exit: that tests failed says more than that the code was 101.
        let counted = step.tests.then(|| self.count_tests(index, &lines));
        if told {
            if let Some(report) = self
                .steps
                .get_mut(slot)
                .filter(|report| report.outcome == Outcome::Passed)
            {
                report.outcome = Outcome::Stopped;
            }
        } else if let Some(exit) = exit.filter(|&exit| !expected(step.expect_exit, exit)) {
            self.fail(index, format!("{exit}, expected {}", step.expect_exit));
        } else if !ready {
            self.fail(index, "ended before it was ready".to_owned());
        }
        if let Some(counted) = counted {
            let skips = measure::said_skipped(&lines) > 0;
            self.keep_counts(index, slot, counted, skips);
        }
        self.bring_back(index, slot)?;
        if cut_short {
            // Half an output cannot be asked for what belongs into a whole one.
            self.progress.ended(self.steps.get(slot));
            return Ok(());
        }
        if let Some(missing) = step
            .expect_output
            .iter()
            .find(|pattern| !pattern.is_match(&lines))
        {
            self.fail(index, format!("its output lacks expect_output `{missing}`"));
        }
        for (number, metric) in self
            .scenario
            .metrics
            .iter()
            .enumerate()
            .filter(|(_, metric)| metric.step == index)
        {
            let text = std::fs::read(&stdout).with_context(|| format!("cannot read {}", stdout.display()))?;
            match measure::metric(metric, &lines, &String::from_utf8_lossy(&text)) {
                Ok(_) if warmup => {}
                Ok(figure) => {
                    if let Some(figures) = self.figures.get_mut(number) {
                        figures.push(figure);
                    }
                }
                Err(error) => self.fail(index, format!("metric `{}`: {error:#}", metric.name)),
            }
        }
        self.progress.ended(self.steps.get(slot));
        Ok(())
    }

    /// Counts the tests in a step's output, and fails the step for those that failed or skipped themselves.
    fn count_tests(&mut self, index: usize, lines: &str) -> Result<TestCounts> {
        let counts = measure::tests(lines)?;
        let skipped = measure::said_skipped(lines);
        if counts.failed > 0 {
            self.fail(index, format!("{} of its tests failed", counts.failed));
        } else if skipped > 0 {
            self.fail(
                index,
                format!("{skipped} of its tests skipped themselves, which is a failure in the lab"),
            );
        }
        Ok(counts)
    }

    /// Keeps the counts with the step. One that failed for no test's fault counts as a failed test itself: a
    /// program that crashed must not leave a sum without failures.
    fn keep_counts(&mut self, index: usize, slot: usize, counted: Result<TestCounts>, skips: bool) {
        let stopped = |report: &StepReport| report.outcome == Outcome::Stopped;
        let mut counts = match counted {
            Ok(counts) => counts,
            Err(_) if self.steps.get(slot).is_some_and(stopped) => TestCounts::default(),
            Err(error) => {
                self.fail(index, format!("{error:#}"));
                TestCounts::default()
            }
        };
        if let Some(report) = self.steps.get_mut(slot) {
            if report.outcome == Outcome::Failed && counts.failed == 0 && !skips {
                counts.failed = 1;
            }
            report.tests = Some(counts);
        }
    }

    /// Copies the files a step should bring back into the output folder.
    fn bring_back(&mut self, index: usize, slot: usize) -> Result<()> {
        let step = self.step(index);
        if step.files.is_empty() {
            return Ok(());
        }
        let Some(stdout) = self.steps.get(slot).map(|report| report.stdout.clone()) else {
            return Ok(());
        };
        let folder = stdout.with_extension("files");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let values = Values {
            topology: &self.scenario.topology,
            hosts: self.cluster.hosts(),
            bin: &self.settings.programs.bin,
            examples: &self.settings.programs.examples,
            tests: &self.settings.programs.tests,
            rivals: &self.settings.programs.rivals,
            out: self.settings.out,
        };
        for file in &step.files {
            let brought = file.fill(&values).and_then(|path| {
                let name = Path::new(&path)
                    .file_name()
                    .with_context(|| format!("{path} names no file"))?;
                let copy = folder.join(name);
                let argv = ["cp", "-R", "--", &path, &copy.to_string_lossy()]
                    .map(str::to_owned)
                    .to_vec();
                counters::run(self.cluster, &step.host, argv)?;
                Ok(copy)
            });
            match brought {
                Ok(copy) => {
                    if let Some(report) = self.steps.get_mut(slot) {
                        report.files.push(copy);
                    }
                }
                Err(error) => self.fail(index, format!("a file cannot be brought back: {error:#}")),
            }
        }
        Ok(())
    }
}

fn expected(expected: ExpectExit, exit: Exit) -> bool {
    match (expected, exit) {
        (ExpectExit::Any, _) | (ExpectExit::Zero, Exit::Code(0)) => true,
        (ExpectExit::Code(wanted), Exit::Code(code)) => wanted == code,
        (ExpectExit::Nonzero, Exit::Code(code)) => code != 0,
        _ => false,
    }
}

/// A failure as a person wants to read it: what, where, why, the command, its last words.
pub(super) fn failure_text(report: &StepReport, tail: &[String]) -> String {
    use core::fmt::Write as _;
    let mut text = format!("step `{}` on host `{}`", report.id, report.host);
    // Writing to a string cannot fail.
    if let Some(round) = report.round {
        let kind = if report.warmup { "warm-up" } else { "round" };
        let _ = write!(text, ", {kind} {round}");
    }
    let _ = write!(text, ": {}", report.reason.as_deref().unwrap_or("failed"));
    if !report.command_line.is_empty() {
        let _ = write!(text, "\n  command: {}", report.command_line);
    }
    if let Some(exit) = report.exit {
        let _ = write!(text, "\n  ended with {exit} after {:.1} s", report.duration_s);
    }
    match tail {
        [] => text.push_str("\n  no output"),
        lines => {
            text.push_str("\n  its last lines:");
            for line in lines {
                let _ = write!(text, "\n  | {line}");
            }
        }
    }
    let _ = write!(text, "\n  all of it: {} and .stderr", report.stdout.display());
    text
}
