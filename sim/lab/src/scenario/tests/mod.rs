//! Scenarios as a whole: files that are refused, and runs on plain local processes.

mod kernels;
mod mutated;
mod refused;
mod reports;
mod running;

use std::path::Path;

use super::check;
use super::model::{Folders, Scenario};
use super::progress::Progress;
use super::report::{Report, StepReport};
use super::runner::{self, Settings};
use crate::cluster::LocalCluster;

/// The scenario in `text`, with a name and hosts `a` and `b` put before it.
fn scenario(text: &str) -> Scenario {
    let text = format!("name = \"t\"\nabout = \"a test\"\nhosts = [\"a\", \"b\"]\n{text}");
    check::parse(Path::new("t.toml"), &text).unwrap()
}

/// Runs `text` on local processes and returns the report; the output folder lives as long as the second
/// value.
fn run(text: &str) -> (Report, tempfile::TempDir) {
    run_scenario(&scenario(text))
}

fn run_scenario(scenario: &Scenario) -> (Report, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let cluster = LocalCluster::new(&["a", "b"], folder.path());
    let settings = Settings {
        programs: &Folders::default(),
        out: folder.path(),
    };
    let report = runner::run(scenario, &cluster, settings, &mut Progress::silent()).unwrap();
    (report, folder)
}

fn step<'a>(report: &'a Report, id: &str) -> &'a StepReport {
    report.steps.iter().find(|step| step.id == id).unwrap()
}

/// Failures with the output folder's name taken out.
fn failures(report: &Report) -> Vec<String> {
    let folder = report.out.to_string_lossy().into_owned();
    report
        .failures
        .iter()
        .map(|failure| failure.replace(&folder, "OUT"))
        .collect()
}
