//! Sources of the figures: scenarios in the lab, and programs counted on this machine.

use anyhow::{Result, bail};

use super::cache;
use super::daemon;
use super::hot_loop;
use super::idle;
use super::links;
use super::measurement::{Bench, Findings, quiet};
use super::memory;
use super::native;
use super::nccl;
use super::record::{Interval, Measured};
use super::rings;
use super::transfer;
use crate::programs::Rival;

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

impl Source {
    /// Whether it counts instructions on this machine, so that any tree can be compared with its record.
    pub(super) const fn is_held(self) -> bool {
        matches!(
            self,
            Self::Posting | Self::Handle | Self::Idle | Self::IdleLinks | Self::Nccl | Self::Cache
        )
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
