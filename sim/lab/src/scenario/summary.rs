//! From what a run found to its [`Report`]: metrics summed up, ratios formed and judged, traffic required,
//! the verdict.

use core::time::Duration;
use std::path::Path;

use super::counters::Traffic;
use super::measure::TestCounts;
use super::model::{Cell, Comparison, Scenario, Table};
use super::report::{
    Before, ComparisonReport, HostFacts, LinkFacts, MetricReport, PortFacts, Report, ScenarioFacts,
    StepReport, TableReport, Verdict,
};
use super::statistics::{Summary, ratio_of_medians};
use super::table::short;
use crate::cluster::Cluster;

/// Results that the runner hands over.
pub(super) struct Found {
    pub(super) steps: Vec<StepReport>,
    pub(super) failures: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Measured rounds of each metric.
    pub(super) figures: Vec<Vec<f64>>,
    pub(super) traffic: Traffic,
    pub(super) duration: Duration,
}

/// The report of a run.
pub(super) fn report(scenario: &Scenario, cluster: &dyn Cluster, out: &Path, found: Found) -> Report {
    let Found {
        steps,
        mut failures,
        notes,
        figures,
        traffic,
        duration,
    } = found;
    let metrics: Vec<MetricReport> = scenario
        .metrics
        .iter()
        .zip(figures)
        .map(|(metric, rounds)| {
            let step = scenario.steps.get(metric.step);
            let summary = Summary::of(&rounds);
            MetricReport {
                name: metric.name.clone(),
                unit: metric.unit.clone(),
                step: step.map(|step| step.id.clone()).unwrap_or_default(),
                goal: metric.goal,
                met: metric
                    .goal
                    .zip(summary)
                    .map(|(goal, summary)| goal.is_met(summary.median)),
                summary,
                rounds,
            }
        })
        .collect();
    let complete = failures.is_empty();
    let mut comparisons = Vec::new();
    for comparison in &scenario.comparisons {
        if let Some(report) = compare(comparison, &metrics, &steps) {
            // A run that was cut short has failed already, for the reason that cut it short.
            if let Some(failure) = bounds_failure(&report).filter(|_| complete && !comparison.is_goal) {
                failures.push(failure);
            }
            comparisons.push(report);
        }
    }
    if traffic.required && complete && (traffic.sent_pkts == 0 || traffic.rcvd_pkts == 0) {
        failures.push(format!(
            "no byte crossed rxe: its devices sent {} packets and received {}",
            traffic.sent_pkts, traffic.rcvd_pkts
        ));
    }
    Report {
        scenario: ScenarioFacts {
            name: scenario.name.clone(),
            about: scenario.about.clone(),
            file: scenario.path.clone(),
        },
        verdict: if failures.is_empty() {
            Verdict::Passed
        } else {
            Verdict::Failed
        },
        failures,
        notes,
        kernel: cluster.kernel_release().to_owned(),
        shape: cluster.shape().to_string(),
        duration_s: duration.as_secs_f64(),
        before: Before::default(),
        out: out.to_owned(),
        hosts: hosts(cluster),
        links: links(scenario),
        tests: tests(&steps),
        tables: tables(scenario, &metrics),
        steps,
        metrics,
        comparisons,
        rdma: traffic,
    }
}

fn compare(
    comparison: &Comparison,
    metrics: &[MetricReport],
    steps: &[StepReport],
) -> Option<ComparisonReport> {
    let (first, second) = (metrics.get(comparison.metric)?, metrics.get(comparison.to)?);
    let pairs: Vec<(f64, f64)> = first
        .rounds
        .iter()
        .copied()
        .zip(second.rounds.iter().copied())
        .collect();
    let result = ratio_of_medians(&pairs);
    let (min, max) = (comparison.min, comparison.max);
    let within_bounds = result
        .filter(|_| min.is_some() || max.is_some())
        .map(|result| min.is_none_or(|min| result.ratio >= min) && max.is_none_or(|max| result.ratio <= max));
    let command = |step: &str| {
        let last = steps.iter().rev().find(|report| report.id == step);
        last.map(|report| report.command_line.clone()).unwrap_or_default()
    };
    Some(ComparisonReport {
        name: comparison.name.clone(),
        metric: first.name.clone(),
        to: second.name.clone(),
        metric_command: command(&first.step),
        to_command: command(&second.step),
        min,
        max,
        is_goal: comparison.is_goal,
        result,
        within_bounds,
    })
}

fn bounds_failure(report: &ComparisonReport) -> Option<String> {
    let name = &report.name;
    let Some(result) = &report.result else {
        return Some(format!(
            "compare `{name}`: there is no ratio, `{}` has no median above 0",
            report.to
        ));
    };
    let bounds: Vec<String> = [("at least", report.min), ("at most", report.max)]
        .into_iter()
        .filter_map(|(word, bound)| Some(format!("{word} {}", bound?)))
        .collect();
    (report.within_bounds == Some(false)).then(|| {
        format!(
            "compare `{name}`: the ratio is {:.3}, but should be {}",
            result.ratio,
            bounds.join(" and ")
        )
    })
}

/// The sum over all steps that declare tests.
fn tests(steps: &[StepReport]) -> Option<TestCounts> {
    steps
        .iter()
        .filter_map(|step| step.tests)
        .reduce(|mut sum, counts| {
            sum.add(counts);
            sum
        })
}

/// The scenario's own tables, with medians in place of metrics.
fn tables(scenario: &Scenario, metrics: &[MetricReport]) -> Vec<TableReport> {
    let median = |index: usize| Some(metrics.get(index)?.summary?.median);
    let cell = |cell: &Cell| {
        let figure = match cell {
            Cell::Text(text) => return text.clone(),
            Cell::Metric(metric) => median(*metric).map(short),
            Cell::Ratio(metric, to) => match (median(*metric), median(*to)) {
                (Some(metric), Some(to)) if to > 0.0 => Some(format!("{:.2}", metric / to)),
                _ => None,
            },
        };
        figure.unwrap_or_else(|| "-".to_owned())
    };
    let table = |table: &Table| TableReport {
        title: table.title.clone(),
        columns: table.columns.clone(),
        rows: table
            .rows
            .iter()
            .map(|row| row.iter().map(cell).collect())
            .collect(),
        metrics: table
            .rows
            .iter()
            .flatten()
            .flat_map(|cell| match cell {
                Cell::Text(_) => [None, None],
                Cell::Metric(metric) => [Some(*metric), None],
                Cell::Ratio(metric, to) => [Some(*metric), Some(*to)],
            })
            .flatten()
            .filter_map(|index| Some(metrics.get(index)?.name.clone()))
            .collect(),
    };
    scenario.tables.iter().map(table).collect()
}

fn hosts(cluster: &dyn Cluster) -> Vec<HostFacts> {
    let ports = |host: &crate::cluster::Host| {
        host.ports
            .iter()
            .map(|port| PortFacts {
                link: port.link.clone(),
                peer: port.peer.clone(),
                netdev: port.netdev.clone(),
                device: port.device.clone(),
                address: format!("{}/{}", port.address, port.prefix),
                gid_index: port.gid_index,
            })
            .collect()
    };
    cluster
        .hosts()
        .iter()
        .map(|host| HostFacts {
            name: host.name.clone(),
            ports: ports(host),
        })
        .collect()
}

fn links(scenario: &Scenario) -> Vec<LinkFacts> {
    let facts = scenario.topology.links.iter().map(|link| LinkFacts {
        name: link.name.clone(),
        hosts: link.ends.clone(),
        subnet: link.subnet.to_string(),
        mtu: link.mtu,
        rate_bps: link.shaping.rate_bps,
        delay_s: link.shaping.delay.as_secs_f64(),
        loss_percent: link.shaping.loss_percent,
    });
    facts.collect()
}
