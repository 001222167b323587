//! `cargo lab demo`: the scenario `demo`, shown by its tables and a plain verdict.
//!
//! The scenario sets the steps and the figures of the tables, not this file.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::kernel::Choice;
use crate::scenario::{self, Detail, Lab, Verdict};
use crate::steps::say;

/// Arguments of `cargo lab demo`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Kernel to boot: 6.1, 6.12, newest, host or the path of an image; default: the one a lab takes by itself
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<Choice>,
    /// Write everything that was found out as JSON to this file (`-` for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `cargo lab demo`; whether everything went well.
///
/// # Errors
///
/// The lab cannot be set up, built or booted.
pub(crate) fn run(args: &DemoArgs, lab: &mut dyn Lab) -> Result<bool> {
    let scenario = scenario::load(Path::new("demo"))?;
    let kernel = args.kernel.as_ref().unwrap_or(&scenario.kernel);
    say(&scenario.about);
    let out = scenario::output_folder(None, &scenario.name)?;
    let (report, _cluster) = scenario::perform(&scenario, kernel, &out, lab)?;
    scenario::deliver(&report, Detail::Tables, args.json.as_deref())?;
    Ok(report.verdict == Verdict::Passed)
}
