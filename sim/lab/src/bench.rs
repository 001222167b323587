//! `cargo lab bench`: the figures the project has goals for, each measured or said not to have been.
//!
//! Which rows there are, with their goals, is in `rows`; `sources` measures them. Nothing is averaged over runs or
//! remembered between them: what is printed was measured by this very command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::kernel::Choice;
use crate::output;
use crate::scenario::{self, Lab, aligned};
use crate::steps::say;

mod cache;
mod callgrind;
mod daemon;
mod goal;
mod hold;
mod hot_loop;
mod idle;
mod links;
mod measurement;
mod memory;
mod native;
mod nccl;
mod record;
mod rings;
mod rows;
mod sources;
mod transfer;

use hold::Recorded;
use measurement::Bench;
use record::Record;
use rows::{ROWS, Row};
use sources::Source;

/// Arguments of `cargo lab bench`.
///
/// Instruction counts are the same on a loaded machine; ratios of times ask for a quiet one: two processors with
/// nothing else to do. A row that could not be measured says why and counts as not met.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Rows to measure: the name of one, or how the names of several begin; default: all of them
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Write one record for each row as JSON to this file (`-` for standard output, the table then going to
    /// standard error): name, unit, ours, theirs, whose, ratio, difference, interval, goal, met, command, note
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Three rounds instead of what a scenario says, and so no intervals: shows that all works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// List the rows with their goals, and measure nothing
    #[arg(long)]
    list: bool,
    /// Compare the instructions of rows that run without a guest with their record in the repository, and fail where one
    /// takes over 2 % more; the goals are not looked at
    #[arg(long, conflicts_with_all = ["json", "quick", "kernel", "record"])]
    hold: bool,
    /// Record the instructions of these rows in the repository
    #[arg(long, conflicts_with_all = ["json", "quick", "kernel"])]
    record: bool,
    /// Kernel to boot: 6.1, 6.12, newest, host or the path of an image; default: what the scenarios say
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<Choice>,
}

const EXAMPLES: &str = "Examples:\n  \
    cargo lab bench --list\n  \
    cargo lab bench handle                  the rows whose names begin so\n  \
    cargo lab bench instructions-send-1 latency --json bench.json\n  \
    cargo lab bench --hold                  instructions, beside their record\n\n\
    The exit code is 0 when every row asked for was measured and met its goal, else 1. With --hold it is 0 when every row is \
    within its record, or the record is another compiler's.";

/// `cargo lab bench`; whether every row was measured and met its goal, or its record.
///
/// # Errors
///
/// There is no such row, or the results cannot be written. A row that cannot be measured is no error, unless it is recorded.
pub(crate) fn run(args: &BenchArgs, lab: &mut dyn Lab) -> Result<bool> {
    let mut rows = chosen(&args.rows)?;
    if args.hold || args.record {
        rows.retain(|row| row.source.is_held());
        ensure!(
            !rows.is_empty(),
            "no such row counts instructions without a guest"
        );
    }
    if args.list {
        print(&listed(&rows), false)?;
        return Ok(true);
    }
    let out = scenario::output_folder(None, "bench")?;
    let mut bench = Bench {
        lab,
        out: &out,
        kernel: args.kernel.as_ref(),
        quick: args.quick,
        is_of_record: args.hold || args.record,
        counted: BTreeMap::new(),
    };
    if args.record {
        return recorded(&rows, &mut bench).map(|()| true);
    }
    if args.hold {
        return is_held(&rows, &mut bench);
    }
    let records = measure(&rows, &mut bench);
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    print(&format!("\n{}", record::table(&records)), to_stdout)?;
    say(format_args!("everything measured is kept in {}", out.display()));
    if let Some(path) = &args.json {
        let document = serde_json::to_string_pretty(&records)?;
        if to_stdout {
            print(&format!("{document}\n"), false)?;
        } else {
            std::fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(records.iter().all(|record| record.met))
}

/// Whether the rows hold beside their record; prints both.
fn is_held(rows: &[&'static Row], bench: &mut Bench<'_>) -> Result<bool> {
    let judged = Recorded::read()?.judge(&hold::compiler()?, || figures(rows, bench));
    print(&format!("\n{}", judged.text), false)?;
    Ok(judged.is_held)
}

/// Measures the rows, and records their figures.
fn recorded(rows: &[&'static Row], bench: &mut Bench<'_>) -> Result<()> {
    let (earlier, rustc) = (Recorded::read().ok(), hold::compiler()?);
    let renewed = Recorded::renewed(earlier, &rustc, figures(rows, bench))?;
    say(format_args!(
        "{} rows are recorded in {}",
        rows.len(),
        renewed.write()?
    ));
    Ok(())
}

fn figures(rows: &[&'static Row], bench: &mut Bench<'_>) -> Vec<hold::Figure> {
    measure(rows, bench).iter().map(Record::figure).collect()
}

/// The rows asked for, in their own order.
fn chosen(wanted: &[String]) -> Result<Vec<&'static Row>> {
    for word in wanted {
        if !ROWS.iter().any(|row| row.name.starts_with(word.as_str())) {
            bail!("no row is called `{word}` or begins so; `cargo lab bench --list` shows all");
        }
    }
    let is_wanted = |row: &&Row| {
        // A name that is whole is no beginning of another.
        wanted.is_empty()
            || wanted.iter().any(|word| {
                let whole = ROWS.iter().any(|row| row.name == word);
                if whole {
                    row.name == word
                } else {
                    row.name.starts_with(word.as_str())
                }
            })
    };
    Ok(ROWS.iter().filter(is_wanted).collect())
}

fn listed(rows: &[&Row]) -> String {
    let heads = ["row", "measured", "against", "goal"].map(str::to_owned).to_vec();
    let lines = rows.iter().map(|row| {
        vec![
            row.name.to_owned(),
            format!("{} ({})", row.what, row.unit),
            row.whose.unwrap_or("-").to_owned(),
            row.goal.to_string(),
        ]
    });
    let table: Vec<_> = core::iter::once(heads).chain(lines).collect();
    aligned(&table, &[true, true, true, true])
}

/// Measures what the rows stand on, each source once, and judges the rows.
fn measure(rows: &[&'static Row], bench: &mut Bench<'_>) -> Vec<Record> {
    let mut found = BTreeMap::new();
    for row in rows {
        let source: Source = row.source;
        found.entry(source).or_insert_with(|| {
            let measured = source.measure(bench);
            if let Err(error) = &measured {
                say(format_args!("{}: not measured: {error:#}", row.name));
            }
            measured
        });
    }
    rows.iter()
        .map(|row| {
            let measured = match found.get(&row.source) {
                Some(Ok(findings)) => findings.of(row.figure).map_err(|error| format!("{error:#}")),
                Some(Err(error)) => Err(format!("{error:#}")),
                None => Err("nothing was measured".to_owned()),
            };
            Record::new(row, measured)
        })
        .collect()
}

fn print(text: &str, to_stderr: bool) -> Result<()> {
    if to_stderr {
        eprint!("{text}");
        return Ok(());
    }
    output::write(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &[&str]) -> Vec<&'static str> {
        let wanted: Vec<String> = wanted.iter().map(|&word| word.to_owned()).collect();
        chosen(&wanted).unwrap().iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_chosen_by_name_or_by_their_beginning() {
        assert_eq!(names(&[]).len(), ROWS.len());
        assert_eq!(names(&["handle-header"]), ["handle-header"]);
        assert!(names(&["handle"]).len() > 1);
        assert!(chosen(&["nosuch".to_owned()]).is_err());
    }

    #[test]
    fn a_whole_name_chooses_one_row_even_where_others_begin_with_it() {
        assert_eq!(names(&["rate", "rate-"]), ["rate", "rate-32"]);
        for row in &ROWS {
            assert_eq!(names(&[row.name]), [row.name]);
        }
    }
}
