//! A report for people: aligned plain text, with colours where the reader is a terminal.

use core::fmt::{self, Write as _};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use super::report::{
    Before, ComparisonReport, MetricReport, Outcome, Report, StepReport, TableReport, Verdict,
};
use super::statistics::{INTERVAL_ROUNDS_MIN, Summary};

/// Whether words may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Plain,
    Ansi,
}

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Steps and metrics too.
    Whole,
    /// The scenario's own tables, comparisons, and what went wrong.
    Tables,
}

/// The whole report. The last line is the count of tests where there are any, else the verdict.
pub(super) fn render(report: &Report, detail: Detail, colour: Colour) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut text, report, detail, colour);
    text
}

fn write_report(text: &mut String, report: &Report, detail: Detail, colour: Colour) -> fmt::Result {
    writeln!(text, "{}: {}", report.scenario.name, report.scenario.about)?;
    let (hosts, links) = (
        counted(report.hosts.len(), "host"),
        counted(report.links.len(), "link"),
    );
    writeln!(
        text,
        "kernel {}, {}, {hosts}, {links}",
        report.kernel, report.shape
    )?;
    if detail == Detail::Whole {
        text.push('\n');
        text.push_str(&aligned(
            &steps(report),
            &[true, true, true, false, true, true, false],
        ));
        let metrics = metrics(report);
        if metrics.len() > 1 {
            text.push('\n');
            text.push_str(&aligned(
                &metrics,
                &[true, true, false, false, false, false, false, false, true, true],
            ));
        }
    }
    for table in &report.tables {
        write_table(text, table)?;
    }
    for comparison in &report.comparisons {
        text.push('\n');
        write_comparison(text, comparison, report)?;
    }
    if !report.rdma.devices.is_empty() {
        let (sent, rcvd, devices) = (
            report.rdma.sent_pkts,
            report.rdma.rcvd_pkts,
            report.rdma.devices.len(),
        );
        writeln!(
            text,
            "\nrxe: {sent} packets sent and {rcvd} received by {devices} devices"
        )?;
    }
    text.push('\n');
    for note in &report.notes {
        writeln!(text, "note: {note}")?;
    }
    for failure in &report.failures {
        writeln!(text, "{}: {failure}", colour.paint("failed", RED))?;
    }
    let Before {
        setup_s,
        build_s,
        boot_s,
    } = report.before;
    if setup_s + build_s + boot_s > 0.0 {
        writeln!(
            text,
            "time: set-up {setup_s:.1} s, build {build_s:.1} s, boot {boot_s:.1} s, run {:.1} s",
            report.duration_s
        )?;
    }
    writeln!(text, "output: {}", report.out.display())?;
    let verdict = match report.verdict {
        Verdict::Passed => colour.paint("PASSED", GREEN),
        Verdict::Failed => colour.paint("FAILED", RED),
    };
    writeln!(text, "{verdict} in {:.1} s", report.duration_s)?;
    if let Some(tests) = &report.tests {
        writeln!(text, "{tests}")?;
    }
    Ok(())
}

/// A title and a table, its figures to the right.
fn write_table(text: &mut String, table: &TableReport) -> fmt::Result {
    let is_figure = |cell: &String| cell == "-" || cell.parse::<f64>().is_ok();
    let left: Vec<bool> = (0..table.columns.len())
        .map(|column| {
            let mut cells = table.rows.iter().filter_map(|row| row.get(column));
            !cells.all(is_figure)
        })
        .collect();
    let rows: Vec<Vec<String>> = core::iter::once(&table.columns)
        .chain(&table.rows)
        .cloned()
        .collect();
    writeln!(text, "\n{}", table.title)?;
    text.push_str(&aligned(&rows, &left));
    Ok(())
}

/// One row for each step, however often it was run.
fn steps(report: &Report) -> Vec<Vec<String>> {
    let head = [
        "step",
        "host",
        "group",
        "runs",
        "outcome",
        "last exit",
        "median s",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut seen: Vec<&str> = Vec::new();
    for step in &report.steps {
        if seen.contains(&step.id.as_str()) {
            continue;
        }
        seen.push(&step.id);
        let runs: Vec<&StepReport> = report.steps.iter().filter(|other| other.id == step.id).collect();
        let durations: Vec<f64> = runs.iter().map(|run| run.duration_s).collect();
        let median = Summary::of(&durations).map_or(0.0, |summary| summary.median);
        let worst = runs
            .iter()
            .map(|run| run.outcome)
            .find(|&outcome| outcome == Outcome::Failed);
        let word = match worst.unwrap_or(step.outcome) {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::Stopped => "stopped",
        };
        let exit = runs
            .last()
            .and_then(|run| run.exit)
            .map_or_else(|| "-".to_owned(), |exit| exit.to_string());
        let group = if step.group.is_empty() { "-" } else { &step.group };
        rows.push(vec![
            step.id.clone(),
            step.host.clone(),
            group.to_owned(),
            runs.len().to_string(),
            word.to_owned(),
            exit,
            format!("{median:.2}"),
        ]);
    }
    rows
}

fn metrics(report: &Report) -> Vec<Vec<String>> {
    let mut head = vec!["metric", "unit", "rounds", "min", "q1", "median", "q3", "max"];
    if report.metrics.iter().any(|metric| metric.goal.is_some()) {
        head.extend(["goal", ""]);
    }
    let mut rows: Vec<Vec<String>> = vec![head.into_iter().map(str::to_owned).collect()];
    let in_table = |metric: &&MetricReport| {
        let mut shown = report.tables.iter().flat_map(|table| &table.metrics);
        // One figure is in the table as it is; of several, the table has the median alone.
        metric.goal.is_none() && metric.rounds.len() <= 1 && shown.any(|shown| *shown == metric.name)
    };
    for metric in report.metrics.iter().filter(|metric| !in_table(metric)) {
        let mut row = vec![
            metric.name.clone(),
            metric.unit.clone(),
            metric.rounds.len().to_string(),
        ];
        match &metric.summary {
            Some(Summary {
                min,
                q1,
                median,
                q3,
                max,
                ..
            }) => {
                row.extend([min, q1, median, q3, max].map(|&figure| short(figure)));
            }
            None => row.extend(["-"; 5].map(str::to_owned)),
        }
        if let Some(goal) = metric.goal {
            row.extend([goal.to_string(), metric.met.map_or("-", met).to_owned()]);
        }
        rows.push(row);
    }
    rows
}

fn write_comparison(text: &mut String, comparison: &ComparisonReport, report: &Report) -> fmt::Result {
    write!(text, "compare {}: ", comparison.name)?;
    match &comparison.result {
        None => writeln!(text, "no ratio")?,
        Some(result) => {
            write!(text, "ratio of medians {:.3}", result.ratio)?;
            match &result.interval {
                Some(interval) => {
                    write!(
                        text,
                        ", 95 % interval {:.3} to {:.3}",
                        interval.low, interval.high
                    )?;
                }
                None => write!(text, ", no interval (it needs {INTERVAL_ROUNDS_MIN} rounds)")?,
            }
            writeln!(text, ", {} pairs of rounds", result.pairs)?;
        }
    }
    let unit = report
        .metrics
        .iter()
        .find(|metric| metric.name == comparison.metric)
        .map(|metric| &metric.unit);
    let width = comparison.metric.len().max(comparison.to.len());
    for (name, command) in [
        (&comparison.metric, &comparison.metric_command),
        (&comparison.to, &comparison.to_command),
    ] {
        let summary = report
            .metrics
            .iter()
            .find(|metric| metric.name == *name)
            .and_then(|metric| metric.summary);
        let median = summary.map_or_else(|| "-".to_owned(), |summary| short(summary.median));
        writeln!(
            text,
            "  {name:width$}  {median} {}  {command}",
            unit.map_or("", String::as_str)
        )?;
    }
    for (word, bound) in [("at least", comparison.min), ("at most", comparison.max)] {
        if let (Some(bound), Some(result)) = (bound, &comparison.result) {
            let held = if word == "at least" {
                result.ratio >= bound
            } else {
                result.ratio <= bound
            };
            if comparison.is_goal {
                writeln!(text, "  goal {word} {bound}: {}", met(held))?;
                continue;
            }
            writeln!(
                text,
                "  should be {word} {bound}: {}",
                if held { "it is" } else { "it is NOT" }
            )?;
        }
    }
    Ok(())
}

/// A goal is reported as one of these.
pub(crate) fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

/// Columns padded to the widest cell, two spaces between them; `left` says which are text.
pub(crate) fn aligned(rows: &[Vec<String>], left: &[bool]) -> String {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .add_rows(rows);
    for (column, left) in table.column_iter_mut().zip(left) {
        column.set_padding((0, 2));
        if !left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// `1 link`, `2 links`.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A figure with about four digits that mean something.
pub(crate) fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 1000.0 || size == 0.0 => format!("{figure:.0}"),
        size if size >= 100.0 => format!("{figure:.1}"),
        size if size >= 1.0 => format!("{figure:.2}"),
        _ => format!("{figure:.5}"),
    }
}

const RED: &str = "31";
const GREEN: &str = "32";

impl Colour {
    fn paint(self, word: &str, code: &str) -> String {
        match self {
            Self::Plain => word.to_owned(),
            Self::Ansi => format!("\u{1b}[1;{code}m{word}\u{1b}[0m"),
        }
    }
}
