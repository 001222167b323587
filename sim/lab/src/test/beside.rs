//! Scenarios that are run at once, since they wait more than they work: each as a `cargo lab run` of its own, whose
//! output is kept in its folder, and shown where it failed.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::Run;
use super::in_lab::{Told, part};
use super::tally::Part;
use crate::leash;
use crate::scenario::{self, Lab};
use crate::steps::say;
use crate::up::HowArgs;

/// How many are run at once: more wait for each other's processors.
const AT_ONCE: usize = 3;
/// How often is looked whether one has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Runs them; gives their parts in the same order, and the names of the tests that passed in each.
///
/// # Errors
///
/// What they run does not build. One that fails is counted, not an error.
pub(super) fn run(
    runs: &[&Run<'_>],
    how: &HowArgs,
    out: &Path,
    lab: &mut dyn Lab,
) -> Result<Vec<(Part, Vec<String>)>> {
    for run in runs {
        lab.programs(run.scenario.needs())?;
    }
    let next = Mutex::new(runs.iter().enumerate());
    let mut parts = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE.min(runs.len()))
            .map(|_| {
                scope.spawn(|| {
                    let mut parts = Vec::new();
                    loop {
                        let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((index, run)) = taken else { break parts };
                        let started = Instant::now();
                        let told = child(run, how, out);
                        parts.push((index, part(run, told, started.elapsed())));
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect::<Vec<_>>()
    });
    ensure!(parts.len() == runs.len(), "a scenario was not run to its end");
    parts.sort_by_key(|&(index, _)| index);
    Ok(parts.into_iter().map(|(_, part)| part).collect())
}

/// Runs one as a process of its own.
///
/// # Errors
///
/// It left no report.
fn child(run: &Run<'_>, how: &HowArgs, out: &Path) -> Result<Told> {
    let title = run.title();
    let folder = run.folder(out);
    let folder = scenario::output_folder(Some(&folder), &run.scenario.name)?;
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
    let started = Instant::now();
    let mut process = leash::spawn_logging(&command, &log)?;
    let status = loop {
        match process.status() {
            Some(status) => break status,
            None => thread::sleep(LOOK),
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    if status.success() {
        say(format_args!("{title} ({seconds:.1} s, beside others)"));
    } else {
        let said = fs::read(&log).unwrap_or_default();
        say(format_args!(
            "{title}: failed after {seconds:.1} s; it said:\n{}",
            String::from_utf8_lossy(&said)
        ));
    }
    Told::read(&folder)
}
