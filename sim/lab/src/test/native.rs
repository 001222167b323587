//! The tests that `cargo test` runs on this machine itself: started, shown as they go, counted.

use core::time::Duration;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::tally::Part;
use crate::leash;
use crate::programs;
use crate::scenario::{TestCounts, count_tests};
use crate::steps::say;

/// Tests of one call of cargo.
pub(super) struct Suite {
    name: &'static str,
    arguments: &'static [&'static str],
}

/// All of them.
pub(super) const SUITES: [Suite; 3] = [
    Suite {
        name: "workspace",
        arguments: &["test", "--no-fail-fast"],
    },
    Suite {
        // What stands behind features, too.
        name: "program",
        arguments: &[
            "test",
            "--no-fail-fast",
            "--package",
            "doorbell",
            "--features",
            "cli",
            "--lib",
            "--bins",
            "--test",
            "settings",
            "--test",
            "telling",
        ],
    },
    // Apart, since it builds what nobody else needs: `cargo test` by itself stays quick.
    Suite {
        name: "proofs",
        arguments: &["test", "--no-fail-fast", "--package", "doorbell-proofs"],
    },
];

/// How long one suite may take, building it included: three times what it takes on two slow cores.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// Between looks at what has been written.
const TURN: Duration = Duration::from_millis(50);

/// The part, and the names of those tests that skipped themselves, as far as they are known.
pub(super) type Ran = (Part, Vec<String>);

/// Names folders of C headers that the bindings are compared with, beside the installed ones.
const HEADERS_VARIABLE: &str = "DOORBELL_RDMA_HEADERS";

/// Runs a suite.
///
/// # Errors
///
/// Cargo cannot be started, or its output cannot be kept.
pub(super) fn run(suite: &Suite, headers: &Path, out: &Path) -> Result<Ran> {
    let started = Instant::now();
    let mut command = Command::new("env");
    command
        .arg("-C")
        .arg(programs::workspace()?)
        .arg(programs::program())
        .args(suite.arguments)
        // What a passing test says is otherwise kept from us: that it skipped itself, above all.
        .args(["--", "--show-output"])
        .env(HEADERS_VARIABLE, headers);
    say(format_args!("native tests: cargo {}", suite.arguments.join(" ")));
    let log = out.join(format!("{}.log", suite.name));
    let mut leashed = leash::spawn_logging(&command, &log)?;
    let mut file = File::open(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let mut written = Vec::new();
    let status = loop {
        // Asked before reading: what it wrote until its end is then read in any case.
        let status = leashed.status();
        let before = written.len();
        file.read_to_end(&mut written)
            .with_context(|| format!("cannot read {}", log.display()))?;
        std::io::stdout()
            .write_all(written.get(before..).unwrap_or_default())
            .context("cannot write to standard output")?;
        if status.is_some() || started.elapsed() > DEADLINE {
            break status;
        }
        thread::sleep(TURN);
    };
    leashed.end();
    let lines = String::from_utf8_lossy(&written).into_owned();
    let mut part = Part {
        name: format!("cargo test: {}", suite.name),
        kernel: None,
        counts: TestCounts::default(),
        ran_in_lab: 0,
        duration_s: started.elapsed().as_secs_f64(),
        failures: Vec::new(),
    };
    match count_tests(&lines) {
        Ok(counts) => part.counts = counts,
        Err(error) => part.failures.push(format!("{error:#}")),
    }
    match status {
        Some(status) if status.success() => {}
        Some(status) => part.failures.push(format!("cargo ended with {status}")),
        None => part.failures.push(format!(
            "ran past its deadline of {} s and was killed",
            DEADLINE.as_secs()
        )),
    }
    if !part.failures.is_empty() && part.counts.failed == 0 {
        part.counts.failed = 1;
    }
    Ok((part, skipped(&lines)))
}

/// The names of tests that said `SKIPPED:`, where the output has them under a test's name.
fn skipped(lines: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut current = None;
    for line in lines.lines() {
        if let Some(name) = section(line) {
            current = Some(name);
        } else if line.starts_with("test result: ") || line == "successes:" {
            current = None;
        } else if let Some(name) = current.filter(|_| line.contains("SKIPPED:")) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The test whose output follows the line.
fn section(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The names of the tests that passed, from what they printed.
pub(super) fn passed(lines: &str) -> Vec<String> {
    lines
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... ok"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_named_by_the_section_they_speak_in() {
        let lines = "running 2 tests\ntest a::x ... ok\ntest a::y ... ok\n\nsuccesses:\n\n\
                     ---- a::x stdout ----\nSKIPPED: x: there is no RDMA device\n\n\
                     ---- a::y stdout ----\nall well\n\nsuccesses:\n    a::x\n    a::y\n\n\
                     test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\nSKIPPED: z\n";
        assert_eq!(skipped(lines), ["a::x"]);
        assert_eq!(passed(lines), ["a::x", "a::y"]);
    }
}
