//! Report of libFuzzer at the end of a run.

use core::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

/// Outcome of one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) target: String,
    pub(super) executions: u64,
    pub(super) executions_per_s: u64,
    /// Edges of the program that were come upon.
    pub(super) edges: u64,
    /// Edges there are, most of them not of what is tested.
    pub(super) edges_total: u64,
    /// Inputs that are each worth keeping, the seeds among them.
    pub(super) inputs: u64,
    pub(super) finding: Option<Finding>,
}

/// An input that breaks a promise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    /// File that keeps the input.
    pub(super) input: Option<PathBuf>,
    /// Whether a check failed, and not time, memory or the sanitizer.
    pub(super) is_panic: bool,
    pub(super) said: String,
}

impl Outcome {
    /// Reads what a target said before it ended.
    ///
    /// # Errors
    ///
    /// It never came to fuzzing: without coverage to go by, or without an input.
    pub(super) fn read(target: &str, status: ExitStatus, said: &str) -> Result<Self> {
        let number = |text: &str| text.split_whitespace().next()?.parse().ok();
        let after = |lead: &str| {
            said.lines()
                .rev()
                .find_map(|line| line.split_once(lead).and_then(|(_, rest)| number(rest)))
        };
        let edges_total = said
            .lines()
            .find_map(|line| {
                line.split_once("modules")?
                    .1
                    .split_once('(')
                    .and_then(|(_, rest)| number(rest))
            })
            .context("no edges are counted")?;
        let finding = (!status.success()).then(|| Finding::read(status, said));
        // A check may fail with an input of the corpus, before the first edges are told.
        let is_early = finding.as_ref().is_some_and(|finding| finding.is_panic);
        let edges = match after("cov: ") {
            None if is_early => 0,
            edges => edges.context("no edge was come upon")?,
        };
        let executions = after("stat::number_of_executed_units:").context("nothing was executed")?;
        ensure!(is_early || (edges > 0 && executions > 0), "nothing was executed");
        Ok(Self {
            target: target.to_owned(),
            executions,
            executions_per_s: after("stat::average_exec_per_sec:").unwrap_or(0),
            edges,
            edges_total,
            inputs: said
                .lines()
                .rev()
                .find_map(|line| line.split_once("corp: ")?.1.split_once('/')?.0.parse().ok())
                .unwrap_or(0),
            finding,
        })
    }
}

impl Finding {
    fn read(status: ExitStatus, said: &str) -> Self {
        let mut lines = said.lines();
        let panic = lines.find(|line| line.contains(" panicked at "));
        // The place, and the first lines of what the check said.
        let reasons = lines
            .take_while(|line| !line.starts_with("note: ") && !line.starts_with("stack "))
            .take(4);
        let summary = || said.lines().find(|line| line.starts_with("SUMMARY: "));
        let text = match (panic, summary()) {
            (Some(place), _) => core::iter::once(place)
                .chain(reasons)
                .collect::<Vec<_>>()
                .join("\n"),
            (None, Some(summary)) => summary.to_owned(),
            (None, None) => format!("it ended with {status}"),
        };
        Self {
            input: said
                .lines()
                .find_map(|line| line.split_once("Test unit written to "))
                .map(|(_, path)| PathBuf::from(path.trim())),
            is_panic: panic.is_some(),
            said: text,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} executions, {} edges", self.executions, self.edges)?;
        match &self.finding {
            Some(_) => f.write_str(", and a finding"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)?;
        match &self.input {
            Some(path) => write!(f, "\n  by {}", path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const STARTED: &str = "INFO: Loaded 1 modules   (2757 inline 8-bit counters): 2757 [0x1, 0x2), \n\
        #5\tINITED cov: 449 ft: 679 corp: 4/462b exec/s: 0 rss: 36Mb\n\
        #8\tNEW    cov: 471 ft: 734 corp: 6/705b lim: 128 exec/s: 0 rss: 37Mb L: 126/128 MS: 1 Custom-\n";
    const ENDED: &str = "stat::number_of_executed_units: 152832\nstat::average_exec_per_sec:     21833\n";

    fn status(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_run_without_a_finding() {
        let said = format!("{STARTED}{ENDED}");
        let outcome = Outcome::read("handle", status(0), &said).unwrap();
        assert_eq!(
            (outcome.executions, outcome.executions_per_s, outcome.edges),
            (152_832, 21_833, 471)
        );
        assert_eq!((outcome.edges_total, outcome.inputs), (2757, 6));
        assert_eq!(outcome.finding, None);
    }

    #[test]
    fn a_check_that_fails() {
        let panic = "thread '<unnamed>' (5) panicked at fuzz/src/planted.rs:12:9:\nassertion failed: planted\n\
            stack backtrace:\n   0: std::panicking\nartifact_prefix='/a/'; Test unit written to /a/crash-0b\n";
        let outcome = Outcome::read("handle", status(77), &format!("{STARTED}{panic}{ENDED}")).unwrap();
        let finding = outcome.finding.unwrap();
        assert!(finding.is_panic);
        assert_eq!(
            finding.to_string(),
            "thread '<unnamed>' (5) panicked at fuzz/src/planted.rs:12:9:\nassertion failed: planted\n  by /a/crash-0b"
        );
    }

    #[test]
    fn a_check_that_fails_with_an_input_of_the_corpus() {
        let loaded = STARTED.lines().next().unwrap();
        let panic = "thread '<unnamed>' (5) panicked at fuzz/src/planted.rs:12:9:\nassertion failed: planted\n\
            artifact_prefix='/a/'; Test unit written to /a/crash-0b\n";
        let said = format!("{loaded}\n{panic}stat::number_of_executed_units: 0\n");
        let outcome = Outcome::read("handle", status(77), &said).unwrap();
        assert_eq!((outcome.executions, outcome.edges), (0, 0));
        assert!(
            outcome
                .finding
                .is_some_and(|finding| finding.is_panic && finding.input.is_some())
        );
    }

    #[test]
    fn what_is_not_a_check() {
        let slow = "SUMMARY: libFuzzer: timeout\n";
        let outcome = Outcome::read("handle", status(70), &format!("{STARTED}{slow}{ENDED}")).unwrap();
        let finding = outcome.finding.unwrap();
        assert!(!finding.is_panic && finding.input.is_none());
        assert_eq!(finding.to_string(), "SUMMARY: libFuzzer: timeout");
        let outcome = Outcome::read("handle", status(3), &format!("{STARTED}{ENDED}")).unwrap();
        assert!(outcome.finding.unwrap().said.contains("exit status: 3"));
    }

    #[test]
    fn a_program_that_counts_no_edges_is_none_that_fuzzes() {
        for said in [
            ENDED.to_owned(),
            STARTED.to_owned(),
            format!("{}{ENDED}", STARTED.replace("cov:", "ft:")),
        ] {
            assert!(Outcome::read("handle", status(0), &said).is_err(), "{said}");
        }
    }
}
