//! The record of a soak: how often each unit ran and failed, and of what; and the table of that.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::scenario::aligned;

/// A program or a scenario, in one way of running it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unit {
    /// The digest of the build that ran.
    stamp: String,
    pub(super) runs: u32,
    pub(super) failed: u32,
    /// The failures, and the number of runs with each.
    failures: BTreeMap<String, u32>,
}

/// All units, in a file.
#[derive(Debug)]
pub(super) struct Record {
    file: PathBuf,
    units: BTreeMap<String, Unit>,
}

/// A unit beside what was asked of it.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) title: String,
    pub(super) wanted: u32,
    #[serde(flatten)]
    pub(super) unit: Unit,
    /// The command that runs only that again.
    pub(super) command: String,
}

impl Record {
    /// Reads the record; one that is absent or of another version is an empty one.
    pub(super) fn read(file: &Path) -> Self {
        let read = fs::read(file).ok();
        let units = read.and_then(|text| serde_json::from_slice(&text).ok());
        Self {
            file: file.to_owned(),
            units: units.unwrap_or_default(),
        }
    }

    /// Begins or goes on with a unit: what ran before another build, or is to be forgotten, does not count.
    pub(super) fn begin(&mut self, title: &str, stamp: &str, is_fresh: bool) {
        let unit = self.units.entry(title.to_owned()).or_default();
        if is_fresh || unit.stamp != stamp {
            *unit = Unit {
                stamp: stamp.to_owned(),
                ..Unit::default()
            };
        }
    }

    pub(super) fn unit(&self, title: &str) -> Unit {
        self.units.get(title).cloned().unwrap_or_default()
    }

    /// Adds a run in which this failed, and keeps the record.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn add(&mut self, title: &str, failed: &[String]) -> Result<()> {
        let unit = self.units.entry(title.to_owned()).or_default();
        unit.runs = unit.runs.saturating_add(1);
        unit.failed = unit.failed.saturating_add(u32::from(!failed.is_empty()));
        for name in failed {
            let count = unit.failures.entry(name.clone()).or_default();
            *count = count.saturating_add(1);
        }
        let text = serde_json::to_vec_pretty(&self.units)?;
        fs::write(&self.file, text).with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// The table of what failed, how many runs are missing, and one line of counts.
pub(super) fn render(rows: &[Row]) -> String {
    let head = ["unit", "runs", "failed", "failures, and how often"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let mut commands = String::new();
    for row in rows.iter().filter(|row| row.unit.failed > 0) {
        let what: Vec<String> = row
            .unit
            .failures
            .iter()
            .map(|(name, count)| format!("{name} ({count})"))
            .collect();
        table.push(vec![
            row.title.clone(),
            row.unit.runs.to_string(),
            row.unit.failed.to_string(),
            what.join(", "),
        ]);
        // Writing to a string cannot fail.
        let _ = writeln!(commands, "run only that again: {}", row.command);
    }
    let sum = |of: &dyn Fn(&Row) -> u32| rows.iter().map(of).fold(0, u32::saturating_add);
    let failed = sum(&|row| row.unit.failed);
    let missing = sum(&|row| row.wanted.saturating_sub(row.unit.runs));
    let mut text = String::from("\n");
    if failed > 0 {
        text.push_str(&aligned(&table, &[true, false, false, true]));
        text.push_str(&commands);
    }
    let _ = writeln!(
        text,
        "{} units, {} runs: {failed} failed, {missing} are still to come",
        rows.len(),
        sum(&|row| row.unit.runs)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(record: &Record, title: &str) -> Row {
        Row {
            title: title.to_owned(),
            wanted: 3,
            unit: record.unit(title),
            command: format!("cargo lab soak {title}"),
        }
    }

    #[test]
    fn a_record_goes_on_and_what_was_built_anew_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("record.json");
        let mut record = Record::read(&file);
        record.begin("a, alone", "1", false);
        record.add("a, alone", &[]).unwrap();
        record.add("a, alone", &["x::y".to_owned()]).unwrap();
        let mut again = Record::read(&file);
        again.begin("a, alone", "1", false);
        assert_eq!(
            (again.unit("a, alone").runs, again.unit("a, alone").failed),
            (2, 1)
        );
        again.begin("a, alone", "2", false);
        assert_eq!(again.unit("a, alone").runs, 0);
        let mut fresh = Record::read(&file);
        fresh.begin("a, alone", "1", true);
        assert_eq!(fresh.unit("a, alone").runs, 0);
        fs::write(&file, "{").unwrap();
        assert_eq!(Record::read(&file).unit("a, alone"), Unit::default());
    }

    #[test]
    fn the_table_has_what_failed_and_how_often() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::read(&folder.path().join("record.json"));
        for failed in [&["x".to_owned()][..], &["x".to_owned(), "y".to_owned()], &[]] {
            record.add("a", failed).unwrap();
        }
        record.add("b", &[]).unwrap();
        assert_eq!(
            render(&[row(&record, "a"), row(&record, "b")]),
            "\nunit  runs  failed  failures, and how often\n\
             a        3       2  x (2), y (1)\n\
             run only that again: cargo lab soak a\n\
             2 units, 4 runs: 2 failed, 2 are still to come\n"
        );
        assert_eq!(
            render(&[row(&record, "b")]),
            "\n1 units, 1 runs: 0 failed, 2 are still to come\n"
        );
    }
}
