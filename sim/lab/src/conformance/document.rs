//! The document: row by row what the book says, and what each provider does.

use core::fmt::{self, Write as _};
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// What one case observed of one provider: a line of a run's results.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    provider: String,
    /// The kernel, or the one that is simulated: major and minor.
    kernel: Option<String>,
    row: String,
    case: String,
    about: String,
    book: String,
    observed: String,
    outcome: String,
    deviation: Option<String>,
    range: Option<String>,
    source: Option<String>,
}

impl Record {
    pub(super) fn is_good(&self) -> bool {
        self.outcome != "failed"
    }

    fn column(&self) -> Column {
        let rank = match self.provider.as_str() {
            "simulated" => 0,
            "simulated-doubled" => 1,
            "simulated-rxe" => 2,
            "simulated-mlx5" => 3,
            "fake" => 4,
            _ => 5,
        };
        let kernel = self.kernel.as_deref().unwrap_or_default();
        let numbers = kernel.split('.').map(|number| number.parse().unwrap_or(0));
        let name = match self.provider.as_str() {
            "simulated" => "simulator".to_owned(),
            "simulated-doubled" => "simulator, packets twice".to_owned(),
            "simulated-rxe" => format!("simulator as rxe {kernel}"),
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
struct Column {
    rank: u8,
    kernel: Vec<u32>,
    name: String,
}

/// Where a deviation was observed, and how.
#[derive(Debug, Default)]
struct Shown<'r> {
    /// For each case and observation: the book's words, and the columns.
    cases: BTreeMap<(&'r str, &'r str), (&'r str, BTreeSet<Column>)>,
    ranges: BTreeSet<&'r str>,
    sources: BTreeSet<&'r str>,
}

const HEAD: &str = "\
# Conformance

What verbs promise, row by row (S1 to S32), and what each provider was observed to do. `cargo lab conformance` writes this
file; `cargo lab conformance --check` fails where it would write another. What a case observes is in `sim/conformance`,
and so are the deviations: `same` is word for word what the book says, a name is a deviation described below, and nothing
else passes. The kernels behind `rxe` are those that booted; behind `simulator as rxe`, those that its quirks are of.
";

/// The whole document.
///
/// # Errors
///
/// A case was not run everywhere, or runs do not agree on what the book says.
pub(super) fn render(records: &[Record]) -> Result<String> {
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
    table(&mut text, &columns, &rows)?;
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
) -> Result<()> {
    write!(text, "\n| row | case | by the book |")?;
    for column in columns {
        write!(text, " {} |", column.name)?;
    }
    write!(text, "\n|---|---|---|{}\n", "---|".repeat(columns.len()))?;
    for ((row, _), of_case) in rows {
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
                (Some(name), "deviates") => {
                    format!(
                        "[{name}](#{name}), {}",
                        record.range.as_deref().unwrap_or("always")
                    )
                }
                _ => "**failed**".to_owned(),
            };
            write!(text, " {cell} |")?;
        }
        text.push('\n');
    }
    Ok(())
}

fn deviations(text: &mut String, records: &[Record]) -> Result<()> {
    let mut all: BTreeMap<&str, Shown<'_>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.outcome == "deviates") {
        let name = record
            .deviation
            .as_deref()
            .context("a deviation without a name")?;
        let shown = all.entry(name).or_default();
        let how = (record.case.as_str(), record.observed.as_str());
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
            writeln!(text, "  - by the book: {book}")?;
            writeln!(text, "  - observed: {observed}")?;
        }
    }
    Ok(())
}
