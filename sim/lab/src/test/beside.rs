//! Scenarios that are run at once, since they wait more than they work: each as a `cargo lab run` of its own, whose
//! output is kept in its folder, and shown where it failed.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use super::Run;
use super::in_lab::{TestReport, outcome, part};
use super::tally::Part;
use crate::course::Course;
use crate::leash;
use crate::scenario::{self, Lab};
use crate::steps::say;
use crate::up::HowArgs;

/// How many are run at once: more wait for each other's processors.
const AT_ONCE: usize = 3;
/// How often is looked whether one has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Runs them; gives their parts in the same order, and the names of the tests that passed in each. A run that is not
/// built or leaves no report is a part that failed.
pub(super) fn run(
    runs: &[&Run<'_>],
    how: &HowArgs,
    out: &Path,
    lab: &mut dyn Lab,
    course: &Course,
) -> Vec<(Part, Vec<String>)> {
    let built = runs.iter().map(|run| lab.programs(run.scenario.needs()));
    let built: Vec<_> = runs.iter().zip(built).collect();
    let next = Mutex::new(built.into_iter().enumerate());
    let parts = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(runs.len()) {
            scope.spawn(|| {
                loop {
                    let taken = held(&next).next();
                    let Some((index, (run, built))) = taken else { break };
                    let title = run.title();
                    course.began(&title);
                    let told = built.and_then(|_| child(run, how, &run.folder(out)));
                    let took = course.ended(&title, outcome(&told));
                    held(&parts).insert(index, part(run, told, took));
                }
            });
        }
    });
    parts
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .into_values()
        .collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one as a process of its own.
///
/// # Errors
///
/// It left no report.
pub(crate) fn child(run: &Run<'_>, how: &HowArgs, folder: &Path) -> Result<TestReport> {
    let title = run.title();
    let folder = scenario::output_folder(Some(folder), &run.scenario.name)?;
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(program);
    command
        .arg("run")
        .arg(&run.scenario.path)
        .arg("--kernel")
        .arg(run.kernel.to_string())
        .arg("--out")
        .arg(&folder)
        .args(how.as_arguments());
    // Not in its folder, which has to be empty.
    let mut log = folder.clone().into_os_string();
    log.push(".log");
    let log = PathBuf::from(log);
    let mut process = leash::spawn_logging(&command, &log)?;
    let status = loop {
        match process.status() {
            Some(status) => break status,
            None => thread::sleep(LOOK),
        }
    };
    if status.success() {
        return TestReport::read(&folder);
    }
    let said = fs::read(&log).unwrap_or_default();
    say(format_args!(
        "{title} failed with these lines:\n{}",
        String::from_utf8_lossy(&said)
    ));
    let told = TestReport::read(&folder)?;
    ensure!(
        told.has_failed(),
        "its process ended with {status}, after a report that it passed"
    );
    Ok(told)
}
