//! The tests that `cargo test` runs on this machine itself: started, shown as far as they fail, counted. All they say is in a log.

use core::time::Duration;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::harness::{self, Shown};
use super::tally::Part;
use crate::leash;
use crate::output;
use crate::programs;
use crate::scenario::{TestCounts, count_tests};
use crate::steps::say;

/// Tests of one call of cargo.
pub(super) struct Suite {
    name: &'static str,
    arguments: &'static [&'static str],
}

/// All of them.
pub(super) const SUITES: [Suite; 2] = [
    Suite {
        name: "workspace",
        // With what stands behind features, and so once: without them the library is another one, that tests the same.
        arguments: &["test", "--no-fail-fast", "--features", "doorbell/cli"],
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
        .env(HEADERS_VARIABLE, headers)
        // Its lines are read.
        .env("CARGO_TERM_COLOR", "never");
    say(format_args!("native tests: cargo {}", suite.arguments.join(" ")));
    let log = out.join(format!("{}.log", suite.name));
    let mut leashed = leash::spawn_logging(&command, &log)?;
    let mut file = File::open(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let mut written = Vec::new();
    let mut shown = Shown::default();
    let status = loop {
        // Asked before reading: what it wrote until its end is then read in any case.
        let status = leashed.status();
        let before = written.len();
        file.read_to_end(&mut written)
            .with_context(|| format!("cannot read {}", log.display()))?;
        output::write(shown.take(written.get(before..).unwrap_or_default()).as_bytes())?;
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
    let ended = match status {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("cargo ended with {status}")),
        None => Some(format!(
            "ran past its deadline of {} s and was killed",
            DEADLINE.as_secs()
        )),
    };
    if let Some(ended) = ended {
        part.failures.extend(harness::failed(&lines));
        // It names the programs that failed, and says why one was not built.
        part.failures.push(harness::ending(&ended, &lines));
    }
    if !part.failures.is_empty() && part.counts.failed == 0 {
        part.counts.failed = 1;
    }
    Ok((part, harness::skipped(&lines)))
}
