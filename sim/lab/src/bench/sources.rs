//! Sources of the figures: scenarios in the lab, and programs counted on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::cache;
use super::daemon;
use super::hot_loop;
use super::idle;
use super::links;
use super::memory;
use super::native;
use super::nccl;
use super::record::{Interval, Measured};
use super::rings;
use super::transfer;
use crate::kernel::Choice;
use crate::programs::Rival;
use crate::scenario::{self, Lab, Report, Verdict};

/// Rounds of `--quick`.
const QUICK_ROUNDS: u32 = 3;

/// A load average above this is another program's work.
const QUIET_LOAD: f64 = 0.5;

/// Something that measures several rows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The ratios of a scenario.
    Scenario(&'static str),
    /// Instructions per message in a guest, beside perftest's.
    Instructions,
    /// The same beside those by a rival's crate.
    Rival(Rival),
    /// Instructions of parsing a handle.
    Handle,
    /// Instructions of posting and polling through the fake libibverbs.
    Posting,
    /// Instructions of polling a Worker most of whose channels are idle.
    Idle,
    /// Instructions of polling links that have nothing to do.
    IdleLinks,
    /// Instructions of messages through a node daemon.
    Daemon,
    /// Instructions of calls of the plugin for NCCL.
    Nccl,
    /// Instructions of either side of a transfer.
    Transfer,
    /// Instructions of uses of a registration cache.
    Cache,
    /// The memory of a hub with many peers.
    Memory,
    /// The request rings between two threads.
    Rings,
    /// There is nothing yet that could be measured; why.
    Missing(&'static str),
}

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

impl Source {
    /// Whether it counts instructions on this machine, so that any tree can be compared with its record.
    pub(super) const fn is_held(self) -> bool {
        matches!(self, Self::Posting | Self::Handle | Self::Idle | Self::IdleLinks)
    }

    /// Measures.
    ///
    /// # Errors
    ///
    /// It cannot, for a reason that the rows then report.
    pub(super) fn measure(self, bench: &mut Bench<'_>) -> Result<Findings> {
        match self {
            Self::Scenario(name) => compared(name, bench),
            Self::Instructions => hot_loop::beside_perftest(bench),
            Self::Rival(rival) => hot_loop::beside_rival(rival, bench),
            Self::Handle => native::handle(bench),
            Self::Posting => native::posting(bench),
            Self::Idle => idle::measure(bench),
            Self::IdleLinks => links::measure(bench),
            Self::Daemon => daemon::measure(bench),
            Self::Nccl => nccl::measure(bench),
            Self::Transfer => transfer::measure(bench),
            Self::Cache => cache::measure(bench),
            Self::Memory => memory::measure(),
            Self::Rings => rings::measure(bench),
            Self::Missing(why) => bail!("{why}"),
        }
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

/// The ratios of a scenario.
fn compared(name: &str, bench: &mut Bench<'_>) -> Result<Findings> {
    let load = quiet();
    let report = bench.scenario(name)?;
    let median = |metric: &str| {
        let found = report.metrics.iter().find(|found| found.name == metric);
        found
            .and_then(|found| found.summary)
            .map(|summary| summary.median)
    };
    let mut findings = Findings::default();
    for comparison in &report.comparisons {
        let Some(ours) = median(&comparison.metric) else {
            continue;
        };
        let result = comparison.result;
        let pairs = result.map_or(0, |result| result.pairs);
        let (kernel, shape, plural) = (&report.kernel, &report.shape, if pairs == 1 { "" } else { "s" });
        let mut note = format!("kernel {kernel}, {shape}, {pairs} round{plural}");
        if let Some(load) = load.as_ref().filter(|_| pairs > 1) {
            note.push_str(&format!("; {load}"));
        }
        let measured = Measured {
            theirs: median(&comparison.to),
            interval: result
                .and_then(|result| result.interval)
                .map(|interval| Interval {
                    low: interval.low,
                    high: interval.high,
                }),
            note: Some(note),
            ..Measured::of(ours)
        };
        findings.add(format!("{}/{}", comparison.metric, comparison.to), measured);
    }
    Ok(findings)
}

/// Says so where the machine is not quiet: for what compares times.
pub(super) fn quiet() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next()?.parse().ok()?;
    (load > QUIET_LOAD).then(|| format!("the machine was not quiet: load average {load:.1} before"))
}
