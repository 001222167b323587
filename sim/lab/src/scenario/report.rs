//! Results of a run as data: the document of `--json`, and the source of the tables.
//!
//! Nothing is decided here; [`super::runner`] fills it in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::counters::Traffic;
use super::goal::Goal;
use super::measure::TestCounts;
use super::statistics::{Ratio, Summary};
use crate::cluster::Exit;

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: ScenarioFacts,
    pub(crate) verdict: Verdict,
    /// Everything that made the run fail, the first cause first.
    pub(crate) failures: Vec<String>,
    /// Oddities that are no failure.
    pub(crate) notes: Vec<String>,
    /// The kernel that booted, as `uname -r` gives it.
    pub(crate) kernel: String,
    /// How the hosts were made.
    pub(crate) shape: String,
    /// The run itself, without what came before it.
    pub(crate) duration_s: f64,
    /// The parts before the run.
    pub(crate) before: Before,
    /// Folder of all output.
    pub(crate) out: PathBuf,
    pub(crate) hosts: Vec<HostFacts>,
    pub(crate) links: Vec<LinkFacts>,
    pub(crate) steps: Vec<StepReport>,
    pub(crate) metrics: Vec<MetricReport>,
    pub(crate) comparisons: Vec<ComparisonReport>,
    pub(crate) tables: Vec<TableReport>,
    pub(crate) rdma: Traffic,
    /// Absent when no step declares tests.
    pub(crate) tests: Option<TestCounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Passed,
    Failed,
}

/// How long it took until the hosts were there.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Before {
    /// Installing and fetching what was missing.
    pub(crate) setup_s: f64,
    /// Building our programs.
    pub(crate) build_s: f64,
    /// Booting the hosts.
    pub(crate) boot_s: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ScenarioFacts {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) file: PathBuf,
}

#[derive(Debug, Serialize)]
pub(crate) struct HostFacts {
    pub(crate) name: String,
    pub(crate) ports: Vec<PortFacts>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PortFacts {
    pub(crate) link: String,
    pub(crate) peer: String,
    pub(crate) netdev: String,
    pub(crate) device: String,
    pub(crate) address: String,
    pub(crate) gid_index: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct LinkFacts {
    pub(crate) name: String,
    pub(crate) hosts: [String; 2],
    pub(crate) subnet: String,
    pub(crate) mtu: u32,
    pub(crate) rate_bps: Option<u64>,
    pub(crate) delay_s: f64,
    pub(crate) loss_percent: f64,
}

/// One execution of one step.
#[derive(Debug, Serialize)]
pub(crate) struct StepReport {
    pub(crate) id: String,
    pub(crate) host: String,
    /// The group it ran in; empty outside all groups.
    pub(crate) group: String,
    /// From 1; absent for what runs once.
    pub(crate) round: Option<u32>,
    /// A round that is not measured.
    pub(crate) warmup: bool,
    /// The command as it was run, after substitution.
    pub(crate) command: Vec<String>,
    /// The command, as a line for people.
    pub(crate) command_line: String,
    pub(crate) outcome: Outcome,
    /// Why it failed.
    pub(crate) reason: Option<String>,
    pub(crate) exit: Option<Exit>,
    /// Since the start of the run.
    pub(crate) started_s: f64,
    pub(crate) duration_s: f64,
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
    /// Files that were brought back.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) tests: Option<TestCounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// A background step ended by us at the end of its scope, or any step ended because another failed.
    Stopped,
}

#[derive(Debug, Serialize)]
pub(crate) struct MetricReport {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) step: String,
    /// One figure for each measured round, in order.
    pub(crate) rounds: Vec<f64>,
    /// Absent without rounds.
    pub(crate) summary: Option<Summary>,
    /// The goal of the median.
    pub(crate) goal: Option<Goal>,
    /// Whether the goal is met; absent without a goal or without a figure.
    pub(crate) met: Option<bool>,
}

/// A table of the scenario's own, as it is printed.
#[derive(Debug, Serialize)]
pub(crate) struct TableReport {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// The metrics it shows.
    #[serde(skip)]
    pub(crate) metrics: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ComparisonReport {
    pub(crate) name: String,
    pub(crate) metric: String,
    pub(crate) to: String,
    /// The command line behind `metric`, of its last round.
    pub(crate) metric_command: String,
    /// The command line behind `to`, of its last round.
    pub(crate) to_command: String,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    /// Whether the bounds are a goal: a ratio past them is reported and fails nothing.
    pub(crate) is_goal: bool,
    /// Absent when a metric has no figures or the lower median is zero.
    pub(crate) result: Option<Ratio>,
    /// Whether the ratio lies within its bounds; absent without bounds or without a ratio.
    pub(crate) within_bounds: Option<bool>,
}
