//! Output of a row: its record for `--json`, and its line in the table.

use serde::Serialize;

use super::goal::Goal;
use super::hold::Figure;
use super::rows::Row;
use crate::scenario::aligned;

/// Measured figures of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) ours: f64,
    pub(super) theirs: Option<f64>,
    /// Ours over theirs, where it is not simply that of the two figures.
    pub(super) ratio: Option<f64>,
    /// The 95 % interval of the ratio.
    pub(super) interval: Option<Interval>,
    /// Owner of the other figure, if the row leaves it open.
    pub(super) whose: Option<String>,
    /// Remark that a reader of the figures needs.
    pub(super) note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Measured {
    pub(super) fn of(ours: f64) -> Self {
        Self {
            ours,
            ..Self::default()
        }
    }

    /// Ours over theirs.
    pub(super) fn ratio(&self) -> Option<f64> {
        let ratio = self.ratio.unwrap_or(self.ours / self.theirs?);
        ratio.is_finite().then_some(ratio)
    }

    /// Ours less theirs.
    pub(super) fn difference(&self) -> Option<f64> {
        Some(self.ours - self.theirs?)
    }
}

/// A row and its outcome.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Record {
    name: &'static str,
    measured: &'static str,
    unit: &'static str,
    /// Absent, as all figures are, where it could not be measured.
    ours: Option<f64>,
    theirs: Option<f64>,
    whose: Option<String>,
    ratio: Option<f64>,
    difference: Option<f64>,
    interval: Option<Interval>,
    #[serde(skip)]
    is_by_difference: bool,
    goal: String,
    pub(super) met: bool,
    command: &'static str,
    note: Option<String>,
}

impl Record {
    /// Judges what was measured, or keeps why nothing was.
    pub(super) fn new(row: &'static Row, measured: Result<Measured, String>) -> Self {
        let whose = row.whose.map(str::to_owned);
        let record = Self {
            name: row.name,
            measured: row.what,
            unit: row.unit,
            ours: None,
            theirs: None,
            whose,
            ratio: None,
            difference: None,
            interval: None,
            is_by_difference: matches!(row.goal, Goal::DifferenceAtMost(_)),
            goal: row.goal.to_string(),
            met: false,
            command: row.command,
            note: None,
        };
        match measured {
            Ok(measured) => Self {
                met: row.goal.is_met(&measured),
                ours: Some(measured.ours),
                ratio: measured.ratio(),
                difference: measured.difference(),
                theirs: measured.theirs,
                whose: measured.whose.or(record.whose),
                interval: measured.interval,
                note: measured.note,
                ..record
            },
            Err(why) => Self {
                note: Some(format!("not measured: {why}")),
                ..record
            },
        }
    }
}

impl Record {
    /// The row's figure of ours, or why it has none.
    pub(super) fn figure(&self) -> Figure {
        let figure = self.ours.ok_or_else(|| self.note.clone().unwrap_or_default());
        (self.name, figure)
    }
}

/// The rows as a table, then the remarks on them, then the count.
pub(super) fn table(records: &[Record]) -> String {
    let heads = [
        "row",
        "unit",
        "ours",
        "theirs",
        "whose",
        "ratio",
        "difference",
        "95 % interval",
        "goal",
        "met",
    ];
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
    let lines = records.iter().map(|record| {
        let interval = record.interval.map_or_else(
            || "-".to_owned(),
            |interval| format!("{:.3} to {:.3}", interval.low, interval.high),
        );
        vec![
            record.name.to_owned(),
            record.unit.to_owned(),
            figure(record.ours),
            figure(record.theirs),
            record.whose.clone().unwrap_or_else(|| "-".to_owned()),
            record
                .ratio
                .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            record
                .difference
                .filter(|_| record.is_by_difference)
                .map_or_else(|| "-".to_owned(), |less| format!("{less:+.1}")),
            interval,
            record.goal.clone(),
            if record.met { "met" } else { "NOT MET" }.to_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = core::iter::once(heads.map(str::to_owned).to_vec())
        .chain(lines)
        .collect();
    let mut text = aligned(
        &rows,
        &[true, true, false, false, true, false, false, false, true, true],
    );
    text.push('\n');
    for (note, names) in notes(records) {
        text.push_str(&format!("{}: {note}\n", names.join(", ")));
    }
    let met = records.iter().filter(|record| record.met).count();
    let unmeasured = records.iter().filter(|record| record.ours.is_none()).count();
    text.push_str(&format!(
        "{} rows: {met} met, {} not met, {unmeasured} of these not measured\n",
        records.len(),
        records.len().saturating_sub(met)
    ));
    text
}

/// Each note once, with the rows it holds for.
fn notes(records: &[Record]) -> Vec<(&str, Vec<&str>)> {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for record in records {
        let Some(note) = record.note.as_deref() else {
            continue;
        };
        match notes.iter_mut().find(|(known, _)| *known == note) {
            Some((_, names)) => names.push(record.name),
            None => notes.push((note, vec![record.name])),
        }
    }
    notes
}

/// A figure with four digits or so.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.1 => format!("{value:.5}"),
        size if size < 100.0 => format!("{value:.2}"),
        size if size < 10_000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn what_was_not_measured_has_no_figures_and_is_not_met() {
        let record = Record::new(&ROWS[0], Err("no valgrind".to_owned()));
        assert!(!record.met && record.ours.is_none() && record.ratio.is_none());
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["note"], "not measured: no valgrind");
        assert_eq!(json["met"], false);
        assert!(json["ours"].is_null());
        let text = table(&[record]);
        assert!(
            text.contains("NOT MET") && text.ends_with("0 met, 1 not met, 1 of these not measured\n"),
            "{text}"
        );
    }

    #[test]
    fn a_record_has_every_field_that_is_promised() {
        let measured = Measured {
            theirs: Some(4.0),
            ..Measured::of(2.0)
        };
        let json = serde_json::to_value(Record::new(&ROWS[0], Ok(measured))).unwrap();
        for field in [
            "name",
            "measured",
            "unit",
            "ours",
            "theirs",
            "whose",
            "ratio",
            "difference",
            "interval",
            "goal",
            "met",
            "command",
            "note",
        ] {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!(json["ratio"], 0.5);
        assert_eq!(json["difference"], -2.0);
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0.03125, 1.5, 563.25, 18000.0].map(short),
            ["0.03125", "1.50", "563.2", "18000"]
        );
    }
}
