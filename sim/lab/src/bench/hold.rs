//! Instruction counts that are held: the figure of each row that runs without a guest, beside its record in the repository.
//!
//! A record is of one compiler. Another compiler makes other code, so its figures are never compared with the record.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::rows::{ROWS, Row};
use crate::programs;
use crate::scenario::aligned;
use crate::tool;

/// Path of the record in the workspace.
const FILE: &str = "sim/lab/src/bench/instructions.toml";

const HEAD: &str = "# Instructions of each row of `cargo lab bench` that runs without a guest. `cargo lab bench --hold` compares, and\n\
                    # `cargo lab bench --record` writes this file.\n\n";

/// A row may take so much more than its record, or less, in hundredths.
const PERCENT_MAX: f64 = 2.0;

/// A difference of up to so many instructions is none.
const INSTRUCTIONS_MAX: f64 = 1.0;

/// The record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recorded {
    /// The compiler, as `rustc --version` names it.
    rustc: String,
    /// Instructions by row.
    rows: BTreeMap<String, f64>,
}

/// A row, and its figure or why it has none.
pub(super) type Figure = (&'static str, Result<f64, String>);

/// Result of the comparison in words, and whether all rows hold.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) text: String,
    pub(super) is_held: bool,
}

/// A figure beside its record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Held,
    /// It costs more than it may.
    Dearer,
    /// The record is to be renewed, so that the gain is held.
    Cheaper,
}

/// The rows whose figures are held: all that count instructions without a guest.
pub(super) fn held() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| row.source.is_held())
}

/// Name of the compiler that builds what is counted.
///
/// # Errors
///
/// It does not run.
pub(super) fn compiler() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut command = Command::new(rustc);
    command.current_dir(programs::workspace()?).arg("--version");
    let said = tool::output_of(&mut command)?;
    Ok(said.trim().trim_start_matches("rustc ").to_owned())
}

fn file() -> Result<PathBuf> {
    Ok(programs::workspace()?.join(FILE))
}

impl Recorded {
    /// Reads the record of the repository.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be read.
    pub(super) fn read() -> Result<Self> {
        let path = file()?;
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{FILE} is no record of instructions"))
    }

    /// The record with these figures for their rows. Rows that are no more go; figures of another compiler go, too.
    ///
    /// # Errors
    ///
    /// A figure is missing, or rows would be left with figures of another compiler.
    pub(super) fn renewed(earlier: Option<Self>, rustc: &str, figures: Vec<Figure>) -> Result<Self> {
        let kept = earlier.filter(|earlier| earlier.rustc == rustc);
        let mut rows = kept.map(|kept| kept.rows).unwrap_or_default();
        for (name, figure) in figures {
            match figure {
                Ok(figure) => drop(rows.insert(name.to_owned(), (figure * 100.0).round() / 100.0)),
                Err(why) => bail!("nothing is recorded: {name}: {why}"),
            }
        }
        rows.retain(|name, _| held().any(|row| row.name == name));
        let missing: Vec<_> = held()
            .map(|row| row.name)
            .filter(|name| !rows.contains_key(*name))
            .collect();
        ensure!(
            missing.is_empty(),
            "nothing is recorded: rustc {rustc} has no figure for {}; `cargo lab bench --record` records all rows",
            missing.join(", ")
        );
        let rustc = rustc.to_owned();
        Ok(Self { rustc, rows })
    }

    /// Writes the record into the repository; gives the path.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) fn write(&self) -> Result<&'static str> {
        let path = file()?;
        let text = format!("{HEAD}{}", toml::to_string(self)?);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(FILE)
    }

    /// Compares figures with the record. Nothing is measured where the record is another compiler's.
    pub(super) fn judge(&self, rustc: &str, measure: impl FnOnce() -> Vec<Figure>) -> Judged {
        if self.rustc != rustc {
            let text = format!(
                "UNTESTED: recorded with rustc {}, here {rustc}: no row is compared. `cargo lab bench --record` on the \
                 tree before the change, and again behind it, shows what it costs\n",
                self.rustc
            );
            return Judged { text, is_held: true };
        }
        let heads = ["row", "recorded", "here", "change"].map(str::to_owned).to_vec();
        let (mut lines, mut faults, mut gains) = (vec![heads], Vec::new(), Vec::new());
        for (name, figure) in measure() {
            let (recorded, here) = match (self.rows.get(name), figure) {
                (_, Err(why)) => {
                    faults.push(format!("{name}: not measured: {why}"));
                    continue;
                }
                (None, Ok(here)) => {
                    faults.push(format!(
                        "{name}: {here:.2} instructions here, and no record: `cargo lab bench {name} --record` makes one"
                    ));
                    continue;
                }
                (Some(recorded), Ok(here)) => (*recorded, here),
            };
            let change = (here / recorded - 1.0) * 100.0;
            lines.push(vec![
                name.to_owned(),
                format!("{recorded:.2}"),
                format!("{here:.2}"),
                format!("{change:+.1} %"),
            ]);
            let both = format!("{name}: {here:.2} instructions here, {recorded:.2} recorded: {change:+.1} %");
            match verdict(recorded, here) {
                Verdict::Held => {}
                Verdict::Dearer => faults.push(format!(
                    "{both}, where {PERCENT_MAX} % more are the most. A cost that is meant is recorded by \
                     `cargo lab bench {name} --record`"
                )),
                Verdict::Cheaper => gains.push(format!(
                    "{both}. The gain is held once `cargo lab bench {name} --record` has recorded it"
                )),
            }
        }
        for name in self.rows.keys() {
            if !held().any(|row| row.name == name) {
                faults.push(format!(
                    "{FILE} has a record of {name}, and no such row is held: `cargo lab bench --record` drops it"
                ));
            }
        }
        let mut text = aligned(&lines, &[true, false, false, false]);
        for gain in gains {
            text.push_str(&format!("CHEAPER: {gain}\n"));
        }
        for fault in &faults {
            text.push_str(&format!("NOT HELD: {fault}\n"));
        }
        let is_held = faults.is_empty();
        if is_held {
            text.push_str(&format!("all held, with rustc {rustc}\n"));
        }
        Judged { text, is_held }
    }
}

fn verdict(recorded: f64, here: f64) -> Verdict {
    let room = (recorded * PERCENT_MAX / 100.0).max(INSTRUCTIONS_MAX);
    if here > recorded + room {
        Verdict::Dearer
    } else if here < recorded - room {
        Verdict::Cheaper
    } else {
        Verdict::Held
    }
}

#[cfg(test)]
mod tests;
