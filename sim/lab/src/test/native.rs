//! The tests that `cargo test` runs on this machine itself: started, shown as far as they fail, counted. All they say is in a log.
//!
//! Those of the workspace wait half of their time, and what the proofs wait for is a linker that has one thread: so both run at once.

use core::time::Duration;
use std::fs::File;
use std::io::Read as _;
use std::panic::resume_unwind;
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
struct Suite {
    name: &'static str,
    arguments: &'static [&'static str],
}

/// With what stands behind features, and so once: without them the library is another one, that tests the same.
const WORKSPACE: Suite = Suite {
    name: "workspace",
    arguments: &["test", "--no-fail-fast", "--features", "doorbell/cli"],
};

/// Apart, since it builds what nobody else needs: `cargo test` by itself stays quick.
const PROOFS: Suite = Suite {
    name: "proofs",
    arguments: &["test", "--no-fail-fast", "--package", "doorbell-proofs"],
};

/// How long one suite may take, building it included: three times what it takes on two slow cores, with the other beside it.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// Between looks at what has been written.
const TURN: Duration = Duration::from_millis(50);

/// The part, and the names of those tests that skipped themselves, as far as they are known.
pub(super) type Ran = (Part, Vec<String>);

/// Names folders of C headers that the bindings are compared with, beside the installed ones.
const HEADERS_VARIABLE: &str = "DOORBELL_RDMA_HEADERS";

/// Runs all of them at once, and `meanwhile` beside them. What the others show comes after the first, so that no lines are between those
/// of another.
///
/// # Errors
///
/// Cargo cannot be started, or its output cannot be kept.
pub(super) fn run_all(headers: &Path, out: &Path, meanwhile: impl FnOnce()) -> Result<[Ran; 2]> {
    let mut later = String::new();
    let [workspace, proofs] = thread::scope(|scope| {
        let workspace =
            scope.spawn(|| run(&WORKSPACE, headers, out, |shown| output::write(shown.as_bytes())));
        let proofs = scope.spawn(|| {
            run(&PROOFS, headers, out, |shown| {
                later.push_str(shown);
                Ok(())
            })
        });
        meanwhile();
        [workspace, proofs].map(|suite| suite.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    output::write(later.as_bytes())?;
    Ok([workspace?, proofs?])
}

/// Runs a suite.
///
/// # Errors
///
/// Cargo cannot be started, or its output cannot be kept or shown.
fn run(suite: &Suite, headers: &Path, out: &Path, mut show: impl FnMut(&str) -> Result<()>) -> Result<Ran> {
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
        show(&shown.take(written.get(before..).unwrap_or_default()))?;
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
