//! `cargo lab conformance`: runs the conformance cases on the simulated fabric, on the fake libibverbs and on
//! Soft-RoCE of each kernel, and writes what they observed to `docs/conformance.md`.
//!
//! What the cases are and which deviations are known says `sim/conformance`; which kernels, the scenario
//! `conformance`. The document is made in `document`, of the lines of JSON that the runs leave.

mod document;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::kernel::Choice;
use crate::programs;
use crate::scenario::{self, Detail, Lab, Verdict};
use crate::steps::{say, step};
use crate::tool;
use document::Record;

/// The scenario that runs the cases in guests.
const SCENARIO: &str = "conformance";
/// What it leaves in its folder.
const RESULTS: &str = "conformance.jsonl";
/// What is written, from the workspace.
const DOCUMENT: &str = "docs/conformance.md";

/// Packages whose test `conformance` runs here.
const HERE: [&str; 2] = ["doorbell-sim", "doorbell-ffi"];

/// Arguments of `cargo lab conformance`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConformanceArgs {
    /// Write nothing; fail where docs/conformance.md is not what the results make of it
    #[arg(long)]
    check: bool,
    /// Run nothing; take the results that an earlier run, or `cargo lab test`, left in this folder
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
}

/// `cargo lab conformance`; whether every case passed, and with `--check` whether the document is as it should be.
///
/// # Errors
///
/// Something cannot be built, booted or read, or a run left no results.
pub(crate) fn run(args: &ConformanceArgs, lab: &mut dyn Lab) -> Result<bool> {
    let folder = match &args.from {
        Some(folder) => folder.clone(),
        None => {
            let folder = scenario::output_folder(None, SCENARIO)?;
            observe(&folder, lab)?;
            folder
        }
    };
    let records = records(&folder)?;
    let failed = records.iter().filter(|record| !record.is_good()).count();
    for record in records.iter().filter(|record| !record.is_good()) {
        say(format_args!("failed: {record}"));
    }
    let wanted = document::render(&records)?;
    let path = programs::workspace()?.join(DOCUMENT);
    let is_same = std::fs::read_to_string(&path).is_ok_and(|text| text == wanted);
    say(format_args!(
        "{} observations, {failed} failed; results: {}",
        records.len(),
        folder.display()
    ));
    if args.check {
        if !is_same {
            say(format_args!(
                "{DOCUMENT} is not what these results make of it: `cargo lab conformance` writes it anew"
            ));
        }
        return Ok(is_same && failed == 0);
    }
    // A document of failures would name what nobody named.
    if failed == 0 && !is_same {
        std::fs::write(&path, wanted).with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("{DOCUMENT} is written"));
    }
    Ok(failed == 0)
}

/// Runs all cases everywhere; each run's results go to a folder of its own.
fn observe(folder: &Path, lab: &mut dyn Lab) -> Result<()> {
    for package in HERE {
        let results = folder.join(package);
        std::fs::create_dir_all(&results).with_context(|| format!("cannot make {}", results.display()))?;
        step(format_args!("the cases of {package}"), || here(package, &results))?;
    }
    let scenario = scenario::load(Path::new(SCENARIO))?;
    for kernel in &scenario.test_on {
        on_kernel(&scenario, kernel, folder, lab)?;
    }
    Ok(())
}

/// Runs a package's cases on this machine. Cases that fail are told by the results.
fn here(package: &str, results: &Path) -> Result<()> {
    let build = ["test", "--quiet", "--package", package, "--test", "conformance"];
    let mut command = Command::new(programs::program());
    command.current_dir(programs::workspace()?).args(build);
    tool::output_of(command.arg("--no-run"))?;
    let mut command = Command::new(programs::program());
    command
        .current_dir(programs::workspace()?)
        .args(build)
        .args(["--", "--json"])
        .arg(results.join(RESULTS));
    let output = command.output().context("cannot run cargo")?;
    std::fs::write(results.join("output.txt"), &output.stdout).context("cannot keep the output")?;
    Ok(())
}

fn on_kernel(scenario: &scenario::Scenario, kernel: &Choice, folder: &Path, lab: &mut dyn Lab) -> Result<()> {
    let out = scenario::output_folder(Some(&folder.join(kernel.to_string())), SCENARIO)?;
    let (report, cluster) = scenario::perform(scenario, kernel, &out, lab)?;
    drop(cluster);
    if report.verdict == Verdict::Failed {
        scenario::deliver(&report, Detail::Whole, None)?;
    }
    Ok(())
}

/// All results below a folder.
fn records(folder: &Path) -> Result<Vec<Record>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path().join(RESULTS);
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "there are no results in {}", folder.display());
    let mut records = Vec::new();
    for path in found {
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for line in text.lines() {
            let record: Record = serde_json::from_str(line)
                .with_context(|| format!("{}: a line that is no result", path.display()))?;
            records.push(record);
        }
    }
    Ok(records)
}
