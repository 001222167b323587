//! The document: row by row what the book says, and what each provider does.

use core::fmt::{self, Write as _};
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use doorbell_conformance::OutOfReach;
use serde::Deserialize;

/// Observation of one case on one provider: a line of a run's results.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    provider: String,
    /// The kernel, or the one that is simulated: major and minor.
    kernel: Option<String>,
    pub(super) row: String,
    pub(super) case: String,
    about: String,
    book: String,
    observed: String,
    pub(super) outcome: String,
    pub(super) deviation: Option<String>,
    /// Observation that the deviation names.
    instead: Option<String>,
    pub(super) range: Option<String>,
    source: Option<String>,
}

impl Record {
    pub(super) fn is_good(&self) -> bool {
        self.outcome != "failed"
    }

    pub(super) fn column(&self) -> Column {
        let rank = match self.provider.as_str() {
            "simulated" => 0,
            "simulated-doubled" => 1,
            "simulated-rxe" => 2,
            "simulated-rxe-repeating" => 3,
            "simulated-mlx5" => 4,
            "fake" => 5,
            _ => 6,
        };
        let kernel = self.kernel.as_deref().unwrap_or_default();
        let numbers = kernel.split('.').map(|number| number.parse().unwrap_or(0));
        let name = match self.provider.as_str() {
            "simulated" => "simulator".to_owned(),
            "simulated-doubled" => "simulator, packets twice".to_owned(),
            "simulated-rxe" => format!("simulator as rxe {kernel}"),
            "simulated-rxe-repeating" => format!("simulator as repeating rxe {kernel}"),
            "simulated-mlx5" => "simulator as mlx5".to_owned(),
            "fake" => "ffi/fake".to_owned(),
            other => format!("{other} {kernel}"),
        };
        Column {
            rank,
            kernel: numbers.collect(),
            name,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            case, book, observed, ..
        } = self;
        let subject = self.column().name;
        write!(f, "{subject}: {case}\n  book:     {book}\n  observed: {observed}")
    }
}

/// A provider's column, in the order of columns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Column {
    rank: u8,
    kernel: Vec<u32>,
    pub(super) name: String,
}

/// Occurrences of a deviation, with their observations.
#[derive(Debug, Default)]
struct Shown<'r> {
    /// For each case and observation: the book's words, and the columns.
    cases: BTreeMap<(&'r str, &'r str), (&'r str, BTreeSet<Column>)>,
    ranges: BTreeSet<&'r str>,
    sources: BTreeSet<&'r str>,
}

const HEAD: &str = "\
# Conformance

This page is for readers who compare devices. After it you know the promises of verbs, row by row, and the behaviour of each provider that was run.

`cargo lab conformance` writes this file. `cargo lab conformance --check` and `cargo lab test` fail if it would write a different one. The cases and the
deviations are in `sim/conformance`.

The column `case` names the test in `sim/conformance`. The column `by the book` has the outcome that this test expects. In the other columns, `same` means that
the observation is exactly that outcome. A name is a deviation that is described below. Any other observation fails. `sometimes` means that the deviation is a
race in the device, so the expected outcome passes, too.

The kernels named after `rxe` were booted. For the kernels named after `simulator as rxe` the simulator had the quirks of that kernel. A range of kernels begins and
ends with tested kernels: `before 7.2` was observed on 6.12 and not on 7.2. If a range was observed only on the simulator, it comes from its source.
";

/// The whole document.
///
/// # Errors
///
/// A case was not run everywhere, or runs do not agree on what the book says.
pub(super) fn render(records: &[Record], out_of_reach: &[OutOfReach]) -> Result<String> {
    let columns: BTreeSet<Column> = records.iter().map(Record::column).collect();
    let mut rows: BTreeMap<(u32, usize), Vec<&Record>> = BTreeMap::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records {
        let next = places.len();
        let place = *places.entry(&record.case).or_insert(next);
        let row = number(&record.row)?;
        rows.entry((row, place)).or_default().push(record);
    }
    let mut text = String::from(HEAD);
    table(&mut text, &columns, &rows, out_of_reach)?;
    deviations(&mut text, records)?;
    Ok(text)
}

fn number(row: &str) -> Result<u32> {
    let digits = row.strip_prefix('S').context("a row without its S")?;
    digits.parse().with_context(|| format!("{row} is no row"))
}

fn table(
    text: &mut String,
    columns: &BTreeSet<Column>,
    rows: &BTreeMap<(u32, usize), Vec<&Record>>,
    out_of_reach: &[OutOfReach],
) -> Result<()> {
    write!(text, "\n| row | case | by the book |")?;
    for column in columns {
        write!(text, " {} |", column.name)?;
    }
    write!(text, "\n|---|---|---|{}\n", "---|".repeat(columns.len()))?;
    let mut out_of_reach = out_of_reach.iter().peekable();
    for ((row, _), of_case) in rows {
        while let Some(out) = out_of_reach.next_if(|out| u32::from(out.row) < *row) {
            unreached(text, out, columns.len())?;
        }
        let first = of_case.first().context("a case without results")?;
        ensure!(
            of_case.iter().all(|record| record.book == first.book),
            "{}: the runs are of different versions",
            first.case
        );
        write!(text, "| S{row} | `{}` | {} |", first.case, first.about)?;
        for column in columns {
            let mut here = of_case.iter().filter(|record| record.column() == *column);
            let record = here.next();
            let record = record.with_context(|| format!("{} was not run on {}", first.case, column.name))?;
            ensure!(
                here.next().is_none(),
                "{} was run twice on {}",
                first.case,
                column.name
            );
            let cell = match (&record.deviation, record.outcome.as_str()) {
                (_, "same") => "same".to_owned(),
                (Some(name), outcome @ ("deviates" | "sometimes")) => {
                    let sometimes = if outcome == "sometimes" { ", sometimes" } else { "" };
                    let range = record.range.as_deref().map(|range| format!(", {range}"));
                    format!("[{name}](#{name}){sometimes}{}", range.unwrap_or_default())
                }
                _ => "**failed**".to_owned(),
            };
            write!(text, " {cell} |")?;
        }
        text.push('\n');
    }
    for out in out_of_reach {
        unreached(text, out, columns.len())?;
    }
    Ok(())
}

/// A row without a case: the reason stands in the first of its cells.
fn unreached(text: &mut String, out: &OutOfReach, columns: usize) -> Result<()> {
    let OutOfReach { row, about, why } = out;
    writeln!(
        text,
        "| S{row} | none | {about} | out of the traits' reach: {why} |{}",
        " |".repeat(columns.saturating_sub(1))
    )?;
    Ok(())
}

fn deviations(text: &mut String, records: &[Record]) -> Result<()> {
    let mut all: BTreeMap<&str, Shown<'_>> = BTreeMap::new();
    let deviating = |record: &&Record| matches!(record.outcome.as_str(), "deviates" | "sometimes");
    for record in records.iter().filter(deviating) {
        let name = record.deviation.as_deref();
        let name = name.context("a deviation without a name")?;
        let instead = record.instead.as_deref().context("a deviation without words")?;
        let shown = all.entry(name).or_default();
        let how = (record.case.as_str(), instead);
        let (_, columns) = shown
            .cases
            .entry(how)
            .or_insert_with(|| (&record.book, BTreeSet::new()));
        columns.insert(record.column());
        shown.ranges.extend(record.range.as_deref());
        shown.sources.extend(record.source.as_deref());
    }
    text.push_str("\n## Deviations\n");
    for (name, shown) in all {
        write!(text, "\n### {name}\n\n")?;
        for source in shown.sources {
            writeln!(text, "{source}")?;
        }
        text.push('\n');
        for ((case, observed), (book, columns)) in shown.cases {
            let columns: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            writeln!(text, "- `{case}` on {}", columns.join(", "))?;
            writeln!(text, "  - By the book: {book}")?;
            writeln!(text, "  - Observed: {observed}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use doorbell_conformance::OutOfReach;

    use super::{Record, render};

    const OUT: &[OutOfReach] = &[OutOfReach {
        row: 3,
        about: "flying",
        why: "no wings",
    }];

    pub(in crate::conformance) fn record(
        provider: &str,
        kernel: Option<&str>,
        row: u8,
        observed: &str,
        outcome: &str,
    ) -> Record {
        let is_named = matches!(outcome, "deviates" | "sometimes");
        let named = |text: &str| is_named.then(|| text.to_owned());
        Record {
            provider: provider.to_owned(),
            kernel: kernel.map(str::to_owned),
            row: format!("S{row}"),
            case: format!("s{row:02}_x"),
            about: "it runs".to_owned(),
            book: "it: runs".to_owned(),
            observed: observed.to_owned(),
            outcome: outcome.to_owned(),
            deviation: named("lame"),
            instead: named("it: walks"),
            range: named("before 6.12"),
            source: named("leg.c."),
        }
    }

    pub(in crate::conformance) fn records(of_race: &str) -> Vec<Record> {
        vec![
            record("rxe", Some("6.12"), 4, "it: runs", "same"),
            record("rxe", Some("6.1"), 4, of_race, "sometimes"),
            record("simulated", None, 4, "it: runs", "same"),
            record("rxe", Some("6.1"), 2, "it: walks", "deviates"),
            record("rxe", Some("6.12"), 2, "it: runs", "same"),
            record("simulated", None, 2, "it: runs", "same"),
        ]
    }

    #[test]
    fn rows_and_columns_are_ordered_and_deviations_described() {
        let text = render(&records("it: walks"), OUT).unwrap();
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            table,
            [
                "| row | case | by the book | simulator | rxe 6.1 | rxe 6.12 |",
                "|---|---|---|---|---|---|",
                "| S2 | `s02_x` | it runs | same | [lame](#lame), before 6.12 | same |",
                "| S3 | none | flying | out of the traits' reach: no wings | | |",
                "| S4 | `s04_x` | it runs | same | [lame](#lame), sometimes, before 6.12 | same |",
            ]
        );
        let described = "### lame\n\nleg.c.\n\n- `s02_x` on rxe 6.1\n  - By the book: it: runs\n  - Observed: it: walks\n";
        assert!(text.contains(described), "{text}");
    }

    #[test]
    fn the_luck_of_a_race_changes_nothing() {
        assert_eq!(
            render(&records("it: walks"), OUT).unwrap(),
            render(&records("it: runs"), OUT).unwrap()
        );
    }

    #[test]
    fn what_was_not_run_everywhere_or_twice_is_refused() {
        let mut missing = records("it: runs");
        missing.pop();
        let error = render(&missing, OUT).unwrap_err().to_string();
        assert_eq!(error, "s02_x was not run on simulator");
        let mut twice = records("it: runs");
        twice.push(record("rxe", Some("6.1"), 2, "it: runs", "same"));
        assert_eq!(
            render(&twice, OUT).unwrap_err().to_string(),
            "s02_x was run twice on rxe 6.1"
        );
        let mut other = records("it: runs");
        other[0].book = "it: flies".to_owned();
        let error = render(&other, OUT).unwrap_err().to_string();
        assert_eq!(error, "s04_x: the runs are of different versions");
    }
}
