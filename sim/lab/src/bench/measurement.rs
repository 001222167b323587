//! A measurement: what it runs with, what it found, and scenarios that it takes its figures from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::record::Measured;
use crate::kernel::Choice;
use crate::scenario::{self, Lab, Report, Verdict};

/// Rounds of `--quick`.
const QUICK_ROUNDS: u32 = 3;

/// A load average above this is another program's work.
const QUIET_LOAD: f64 = 0.5;

/// Context of a measurement.
pub(super) struct Bench<'a> {
    pub(super) lab: &'a mut dyn Lab,
    /// Folder for output.
    pub(super) out: &'a Path,
    pub(super) kernel: Option<&'a Choice>,
    pub(super) quick: bool,
    /// Whether only what the record holds is counted.
    pub(super) is_of_record: bool,
    /// Counts of the scenarios so far, or why there are none.
    pub(super) counted: BTreeMap<&'static str, Result<Profiles, String>>,
}

/// Profiles that a scenario has left.
#[derive(Clone, Debug)]
pub(super) struct Profiles {
    pub(super) folder: PathBuf,
    pub(super) kernel: String,
}

/// Figures of one source, by their names there.
#[derive(Debug, Default)]
pub(super) struct Findings(BTreeMap<String, Measured>);

impl Findings {
    pub(super) fn add(&mut self, figure: impl Into<String>, measured: Measured) {
        self.0.insert(figure.into(), measured);
    }

    /// One of them.
    ///
    /// # Errors
    ///
    /// It was not found.
    pub(super) fn of(&self, figure: &str) -> Result<Measured> {
        self.0
            .get(figure)
            .cloned()
            .with_context(|| format!("the run gave no figure for {figure}"))
    }
}

impl Bench<'_> {
    /// Runs a scenario of the repository to its end.
    ///
    /// # Errors
    ///
    /// It cannot be run, or it failed.
    pub(super) fn scenario(&mut self, name: &str) -> Result<Report> {
        let mut scenario = scenario::load(Path::new(name))?;
        if self.quick && scenario.rounds() > QUICK_ROUNDS {
            scenario.set_rounds(QUICK_ROUNDS);
        }
        let kernel = self.kernel.unwrap_or(&scenario.kernel);
        let out = scenario::output_folder(Some(&self.out.join(name)), name)?;
        let (report, cluster) = scenario::perform(&scenario, kernel, &out, self.lab)?;
        drop(cluster);
        ensure!(
            report.verdict == Verdict::Passed,
            "{}",
            report.failures.join("; ")
        );
        Ok(report)
    }

    /// Runs a scenario for the profiles it leaves, once.
    ///
    /// # Errors
    ///
    /// It cannot be run, or it failed.
    pub(super) fn profiles(&mut self, name: &'static str) -> Result<Profiles> {
        if !self.counted.contains_key(name) {
            let profiles = self.scenario(name).map(|report| Profiles {
                folder: report.out,
                kernel: report.kernel,
            });
            self.counted
                .insert(name, profiles.map_err(|error| format!("{error:#}")));
        }
        match self.counted.get(name) {
            Some(Ok(profiles)) => Ok(profiles.clone()),
            Some(Err(why)) => bail!("{why}"),
            None => bail!("nothing was counted"),
        }
    }

    /// A new folder for output.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        scenario::output_folder(Some(&self.out.join(name)), name)
    }
}

/// Says so where the machine is not quiet: for what compares times.
pub(super) fn quiet() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next()?.parse().ok()?;
    (load > QUIET_LOAD).then(|| format!("the machine was not quiet: load average {load:.1} before"))
}
