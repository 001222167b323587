//! Native tests as parts of the whole: all programs of all suites, two at once, counted by suite.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::plain;
use super::tally::{Failed, Part};
use crate::busy::Busy;
use crate::course::Course;
use crate::native::{self, Program, SUITES};
use crate::scenario::TestCounts;
use crate::steps::say;

/// So many programs run at once: each waits about half of its time, and some wait for a linker with one thread.
const LANES: usize = 2;

/// The part, and the names of the tests that skipped themselves.
pub(super) type Ran = (Part, Vec<String>);

/// Runs all programs; gives the part of each suite that has any.
///
/// # Errors
///
/// The folder of the logs cannot be made. A program that cannot be run is a failure of its part.
pub(super) fn run_all(programs: &[Program], headers: &Path, out: &Path, course: &Course) -> Result<Vec<Ran>> {
    let logs = out.join("native");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let began = Instant::now();
    // Programs that build for themselves take longest, and come first; documentation builds most.
    let mut queue: Vec<&Program> = programs.iter().collect();
    queue.sort_by_key(|program| (program.executable().is_some(), core::cmp::Reverse(program.suite)));
    let queue = Mutex::new(VecDeque::from(queue));
    let parts: Vec<Ran> = SUITES.iter().map(|suite| empty(suite.name)).collect();
    let parts = Mutex::new(parts);
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let taken = held(&queue).pop_front();
                    let Some(program) = taken else { break };
                    let log = logs.join(format!("{}.log", plain(&program.name)));
                    let ran = one(program, headers, &log, course);
                    if let Some((part, skipped)) = held(&parts).get_mut(program.suite) {
                        part.counts.add(ran.0.counts);
                        part.failures.extend(ran.0.failures);
                        part.duration_s = began.elapsed().as_secs_f64();
                        skipped.extend(ran.1);
                    }
                }
            });
        }
    });
    let parts = parts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let has_any = |suite: usize| programs.iter().any(|program| program.suite == suite);
    let parts = parts.into_iter().enumerate();
    Ok(parts
        .filter(|(suite, _)| has_any(*suite))
        .map(|(_, ran)| ran)
        .collect())
}

/// So many busy processes are beside a program in its second run.
const BUSY: usize = 4;

/// Runs each program once more, one at a time, beside busy processes.
///
/// # Errors
///
/// The processes cannot be started, or the folder of the logs cannot be made.
pub(super) fn run_beside_busy(
    programs: &[Program],
    headers: &Path,
    out: &Path,
    course: &Course,
) -> Result<Ran> {
    let logs = out.join("native-beside-busy");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let began = Instant::now();
    let _busy = Busy::start(BUSY)?;
    let (mut part, mut skipped) = empty("all, beside busy processes");
    for program in programs {
        let log = logs.join(format!("{}.log", plain(&program.name)));
        let (ran, more) = one(program, headers, &log, course);
        part.counts.add(ran.counts);
        part.failures.extend(ran.failures);
        skipped.extend(more);
    }
    part.duration_s = began.elapsed().as_secs_f64();
    Ok((part, skipped))
}

/// Runs one program; shows its failures at once.
fn one(program: &Program, headers: &Path, log: &Path, course: &Course) -> Ran {
    course.began(&program.name);
    let (mut part, mut skipped) = empty(program.suite().name);
    match native::run(program, headers, log) {
        Ok(ran) => {
            part.counts = ran.counts;
            part.failures = ran
                .failures
                .into_iter()
                .map(|failure| Failed {
                    text: failure.text,
                    command: failure.command,
                })
                .collect();
            skipped = ran.skipped;
        }
        Err(error) => {
            part.counts.failed = 1;
            part.failures.push(Failed {
                text: format!("{}: {error:#}", program.name),
                command: program.command(None),
            });
        }
    }
    course.ended(&program.name, part.counts);
    for failure in &part.failures {
        say(format_args!("FAILED: {}\n  log: {}", failure.text, log.display()));
    }
    (part, skipped)
}

fn empty(suite: &str) -> Ran {
    let part = Part {
        name: format!("native tests: {suite}"),
        kernel: None,
        counts: TestCounts::default(),
        ran_in_lab: 0,
        duration_s: 0.0,
        goals: Vec::new(),
        failures: Vec::new(),
    };
    (part, Vec::new())
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
