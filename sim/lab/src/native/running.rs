//! Running one test program: its deadline, its log, and its results.

use core::time::Duration;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::{Kind, Program};
use crate::harness;
use crate::leash;
use crate::programs;
use crate::scenario::{TestCounts, count_tests};

/// Names folders of C headers that the bindings are compared with, beside the installed ones.
const HEADERS_VARIABLE: &str = "DOORBELL_RDMA_HEADERS";

/// Between looks whether a program has ended.
const TURN: Duration = Duration::from_millis(20);

/// So many failed tests are shown in full: more have failed of one thing.
const FAILURES_MAX: usize = 20;

/// The result of one run of a program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) counts: TestCounts,
    pub(crate) failures: Vec<Failure>,
    /// The tests that skipped themselves.
    pub(crate) skipped: Vec<String>,
}

/// A failed test, or a program that failed without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The test's name; absent if the program itself failed.
    pub(crate) test: Option<String>,
    /// The program, the test, and the last lines of its output.
    pub(crate) text: String,
    /// The command that runs only that.
    pub(crate) command: String,
}

/// Runs a program, with its output going to `log`. One that prints nothing for too long is killed: how long it may take in all
/// depends on how busy the machine is.
///
/// # Errors
///
/// The program cannot be started, or its output cannot be read.
pub(crate) fn run(program: &Program, headers: &Path, log: &Path) -> Result<Ran> {
    let mut leashed = leash::spawn_logging(&command(program, headers)?, log)?;
    let silence_max = Duration::from_secs(program.silence_s());
    let (mut printed, mut printed_at) = (0, Instant::now());
    let status = loop {
        let status = leashed.status();
        let bytes = fs::metadata(log).map_or(printed, |metadata| metadata.len());
        if bytes != printed {
            (printed, printed_at) = (bytes, Instant::now());
        }
        if status.is_some() || printed_at.elapsed() > silence_max {
            break status;
        }
        thread::sleep(TURN);
    };
    leashed.end();
    let lines = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(judge(program, status, &String::from_utf8_lossy(&lines)))
}

fn command(program: &Program, headers: &Path) -> Result<Command> {
    let mut command = Command::new("env");
    command.arg("-C");
    match &program.kind {
        Kind::Built {
            executable, folder, ..
        } => {
            // As cargo runs them: in the package's folder, with both variables.
            command
                .arg(folder)
                .arg(executable)
                .env("CARGO", programs::program())
                .env("CARGO_MANIFEST_DIR", folder);
        }
        Kind::Documentation => {
            let workspace = programs::workspace()?;
            let rustdoc = workspace.join(".ci/rustdoc");
            command
                .arg(workspace)
                .arg(programs::program())
                .args(["test", "--doc", "--no-fail-fast"])
                .args(program.suite().arguments)
                .arg("--")
                // It holds a doctest that is to fail to the error that it names.
                .env("RUSTDOC", rustdoc);
        }
    }
    command
        // The output of a test that passed says that it skipped itself, above all.
        .arg("--show-output")
        .env(HEADERS_VARIABLE, headers)
        .env("CARGO_TERM_COLOR", "never");
    Ok(command)
}

/// The result of a program that ended with `status`, or was killed.
fn judge(program: &Program, status: Option<ExitStatus>, lines: &str) -> Ran {
    let name = &program.name;
    let failure = |test: Option<&str>, text: String| Failure {
        test: test.map(str::to_owned),
        text,
        command: program.command(test),
    };
    let mut failures: Vec<Failure> = harness::failed(lines)
        .into_iter()
        .map(|(test, last)| failure(Some(&test), format!("{name}: {test}{last}")))
        .collect();
    let more = failures.len().saturating_sub(FAILURES_MAX);
    failures.truncate(FAILURES_MAX);
    if more > 0 {
        failures.push(failure(None, format!("{name}: {more} more tests failed")));
    }
    let counted = count_tests(lines);
    let ended = match status {
        None => {
            let stuck = harness::unfinished(lines);
            let stuck = if stuck.is_empty() {
                String::new()
            } else {
                format!("; still running: {}", stuck.join(", "))
            };
            let seconds = program.silence_s();
            Some(format!("printed nothing for {seconds} s and was killed{stuck}"))
        }
        Some(status) if !status.success() && failures.is_empty() => Some(format!("ended with {status}")),
        Some(_) => counted.as_ref().err().map(|error| format!("{error:#}")),
    };
    if let Some(ended) = ended {
        failures.push(failure(None, harness::ending(&format!("{name}: {ended}"), lines)));
    }
    let mut counts = counted.unwrap_or_default();
    if !failures.is_empty() && counts.failed == 0 {
        counts.failed = 1;
    }
    Ran {
        counts,
        failures,
        skipped: harness::skipped(lines),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A program that is this script.
    fn script(folder: &Path, text: &str, suite: usize) -> Program {
        let executable = folder.join("program");
        fs::write(&executable, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        Program {
            name: "doorbell test script".to_owned(),
            suite,
            kind: Kind::Built {
                executable,
                folder: folder.to_owned(),
                selector: ["-p", "doorbell", "--test", "script"].map(str::to_owned).to_vec(),
            },
        }
    }

    fn ran(text: &str) -> Ran {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), text, 0);
        run(&program, Path::new("/headers"), &folder.path().join("log")).unwrap()
    }

    #[test]
    fn a_program_runs_as_cargo_runs_it() {
        let ran = ran("test \"$1\" = --show-output || exit 1\n\
             test \"$PWD\" = \"$CARGO_MANIFEST_DIR\" && test \"$DOORBELL_RDMA_HEADERS\" = /headers || exit 2\n\
             test -n \"$CARGO\" || exit 3\n\
             echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'\n");
        assert_eq!(ran.failures, []);
        assert_eq!(ran.counts.to_string(), "3 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_program_that_dies_is_a_failure_with_its_last_lines() {
        let ran = ran("echo 'running 2 tests'; echo 'memory is gone'; kill -ABRT $$\n");
        assert_eq!(ran.counts.failed, 1);
        let [failure] = ran.failures.as_slice() else {
            panic!("{:?}", ran.failures)
        };
        assert!(
            failure
                .text
                .starts_with("doorbell test script: ended with signal: 6"),
            "{}",
            failure.text
        );
        assert!(failure.text.ends_with("\n  | memory is gone"), "{}", failure.text);
        assert_eq!(failure.command, "cargo test -p doorbell --test script");
    }

    #[test]
    fn a_program_without_a_result_is_a_failure() {
        assert!(
            ran("exit 0\n").failures[0]
                .text
                .contains("no line `test result: …`")
        );
    }

    #[test]
    fn a_program_that_is_killed_is_a_failure_that_names_the_stuck_test() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "", 0);
        let lines = "running 3 tests\ntest a ... ok\ntest b has been running for over 60 seconds\n\
                     test c has been running for over 60 seconds\ntest c ... ok\n";
        let ran = judge(&program, None, lines);
        let expected = "doorbell test script: printed nothing for 900 s and was killed; still running: b\n";
        assert!(
            ran.failures[0].text.starts_with(expected),
            "{}",
            ran.failures[0].text
        );
        assert_eq!(ran.counts.failed, 1);
    }
}
