//! `cargo lab conformance`: runs the conformance cases on the simulated fabric, on the fake libibverbs and on
//! Soft-RoCE of each kernel, and writes what they observed to `docs/conformance.md`.
//!
//! `sim/conformance` has the cases and the known deviations; the scenario `conformance` lists the kernels. The
//! document is made in `document`, from the lines of JSON that the runs leave.

mod document;
mod summary;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use doorbell_conformance::OUT_OF_REACH;

use crate::kernel::Choice;
use crate::programs;
use crate::scenario::{self, Detail, Lab, Verdict};
use crate::steps::{say, step};
use crate::tool;
use document::Record;
use summary::Summary;

/// The scenario that runs the cases in guests.
pub(crate) const SCENARIO: &str = "conformance";
/// File that it leaves in its folder.
const RESULTS: &str = "conformance.jsonl";
/// Document that is written, as a path from the workspace.
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
    /// Write how many rows have cases, and what each provider deviates in, as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    let found = Found::of(&folder)?;
    for record in found.failed() {
        say(format_args!("failed: {record}"));
    }
    let failed = found.failed().count();
    say(format_args!(
        "{} observations, {failed} failed; results: {}",
        found.records.len(),
        folder.display()
    ));
    if let Some(path) = &args.json {
        let summary = Summary::of(&found.records, OUT_OF_REACH);
        let document = serde_json::to_string_pretty(&summary)?;
        std::fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let is_same = found.is_written()?;
    if args.check {
        if !is_same {
            say(OTHERWISE);
        }
        return Ok(is_same && failed == 0);
    }
    // A document of failures would name what nobody named.
    if failed == 0 && !is_same {
        let path = document_path()?;
        std::fs::write(&path, &found.document).with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("{DOCUMENT} is written"));
    }
    Ok(failed == 0)
}

const OTHERWISE: &str =
    "docs/conformance.md is not what the results make of it: `cargo lab conformance` writes it anew";

fn document_path() -> Result<PathBuf> {
    Ok(programs::workspace()?.join(DOCUMENT))
}

/// Compares the document with the results that the scenario left below a folder on each of its kernels, and those
/// that are had here; gives what is wrong.
///
/// # Errors
///
/// Something cannot be built or read.
pub(crate) fn check(folder: &Path) -> Result<Vec<String>> {
    observe_here(folder)?;
    let found = Found::of(folder)?;
    let mut wrong: Vec<String> = found.failed().map(ToString::to_string).collect();
    if !found.is_written()? {
        wrong.push(OTHERWISE.to_owned());
    }
    Ok(wrong)
}

/// Results of the runs, and the document that is made of them.
struct Found {
    records: Vec<Record>,
    document: String,
}

impl Found {
    fn of(folder: &Path) -> Result<Self> {
        let records = records(folder)?;
        let document = document::render(&records, OUT_OF_REACH)?;
        Ok(Self { records, document })
    }

    fn failed(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| !record.is_good())
    }

    /// Whether the file is as it should be.
    fn is_written(&self) -> Result<bool> {
        Ok(std::fs::read_to_string(document_path()?).is_ok_and(|text| text == self.document))
    }
}

/// Runs all cases everywhere; each run's results go to a folder of its own.
fn observe(folder: &Path, lab: &mut dyn Lab) -> Result<()> {
    observe_here(folder)?;
    let scenario = scenario::load(Path::new(SCENARIO))?;
    for kernel in &scenario.test_on {
        on_kernel(&scenario, kernel, folder, lab)?;
    }
    Ok(())
}

/// Runs the cases that need no kernel.
fn observe_here(folder: &Path) -> Result<()> {
    for package in HERE {
        let results = folder.join(package);
        std::fs::create_dir_all(&results).with_context(|| format!("cannot make {}", results.display()))?;
        step(format_args!("the cases of {package}"), || here(package, &results))?;
    }
    Ok(())
}

/// Runs a package's cases on this machine. The results report the cases that fail.
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
    let (is_there, status) = (results.join(RESULTS).is_file(), output.status);
    ensure!(
        is_there,
        "the cases of {package} left no results ({status}): {}",
        results.display()
    );
    Ok(())
}

fn on_kernel(scenario: &scenario::Scenario, kernel: &Choice, folder: &Path, lab: &mut dyn Lab) -> Result<()> {
    let out = scenario::output_folder(Some(&folder.join(kernel.to_string())), SCENARIO)?;
    let (report, cluster) = scenario::perform(scenario, kernel, &out, lab)?;
    drop(cluster);
    if report.verdict == Verdict::Failed {
        scenario::deliver(&report, Detail::Whole, None)?;
    }
    let is_there = out.join(RESULTS).is_file();
    ensure!(
        is_there,
        "the cases on kernel {kernel} left no results: {}",
        out.display()
    );
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
