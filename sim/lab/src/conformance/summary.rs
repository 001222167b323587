//! Results of runs in numbers, for `--json`: how many rows have cases, and the deviations of each provider.

use std::collections::{BTreeMap, BTreeSet};

use doorbell_conformance::{OutOfReach, ROWS};
use serde::Serialize;

use super::document::{Column, Record};

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'r> {
    rows: Rows<'r>,
    cases: usize,
    observations: usize,
    failed: usize,
    providers: Vec<OfProvider<'r>>,
}

#[derive(Debug, Serialize)]
struct Rows<'r> {
    all: usize,
    /// Rows that the traits reach at least in part.
    reachable: usize,
    /// Rows with a case.
    covered: usize,
    out_of_reach: Vec<Unreached<'r>>,
}

#[derive(Debug, Serialize)]
struct Unreached<'r> {
    row: String,
    about: &'r str,
    why: &'r str,
}

/// A provider, on a kernel where that matters.
#[derive(Debug, Serialize)]
struct OfProvider<'r> {
    name: String,
    cases: usize,
    same: usize,
    /// Cases that deviate as it is named.
    named: usize,
    /// Cases that deviate otherwise: the run fails.
    unnamed: usize,
    deviations: Vec<Deviating<'r>>,
}

#[derive(Debug, Serialize)]
struct Deviating<'r> {
    name: &'r str,
    cases: Vec<&'r str>,
    /// The kernels it holds on, where these matter.
    kernels: Option<&'r str>,
}

impl<'r> Summary<'r> {
    pub(super) fn of(records: &'r [Record], out_of_reach: &'r [OutOfReach]) -> Self {
        let covered: BTreeSet<&str> = records.iter().map(|record| record.row.as_str()).collect();
        let name = |out: &OutOfReach| format!("S{}", out.row);
        let without = out_of_reach
            .iter()
            .filter(|out| !covered.contains(name(out).as_str()));
        let all = usize::from(ROWS);
        let cases: BTreeSet<&str> = records.iter().map(|record| record.case.as_str()).collect();
        let mut by_column: BTreeMap<Column, Vec<&Record>> = BTreeMap::new();
        for record in records {
            by_column.entry(record.column()).or_default().push(record);
        }
        Self {
            rows: Rows {
                all,
                reachable: all.saturating_sub(without.count()),
                covered: covered.len(),
                out_of_reach: out_of_reach
                    .iter()
                    .map(|out| Unreached {
                        row: name(out),
                        about: out.about,
                        why: out.why,
                    })
                    .collect(),
            },
            cases: cases.len(),
            observations: records.len(),
            failed: records.iter().filter(|record| !record.is_good()).count(),
            providers: by_column.into_iter().map(OfProvider::of).collect(),
        }
    }
}

impl<'r> OfProvider<'r> {
    fn of((column, records): (Column, Vec<&'r Record>)) -> Self {
        let mut deviations: BTreeMap<&str, Deviating<'_>> = BTreeMap::new();
        let count = |outcomes: &[&str]| {
            let of_these = |record: &&&Record| outcomes.contains(&record.outcome.as_str());
            records.iter().filter(of_these).count()
        };
        let (same, named) = (count(&["same"]), count(&["deviates", "sometimes"]));
        for record in records.iter().filter(|record| record.is_good()) {
            if let Some(name) = record.deviation.as_deref() {
                let deviating = deviations.entry(name).or_insert_with(|| Deviating {
                    name,
                    cases: Vec::new(),
                    kernels: record.range.as_deref(),
                });
                deviating.cases.push(&record.case);
            }
        }
        Self {
            name: column.name,
            cases: records.len(),
            same,
            named,
            unnamed: records.len().saturating_sub(same).saturating_sub(named),
            deviations: deviations.into_values().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_conformance::OutOfReach;

    use super::Summary;
    use crate::conformance::document::tests::{record, records};

    const OUT: &[OutOfReach] = &[
        OutOfReach {
            row: 2,
            about: "hopping",
            why: "one leg",
        },
        OutOfReach {
            row: 3,
            about: "flying",
            why: "no wings",
        },
    ];

    #[test]
    fn rows_and_deviations_are_counted() {
        let mut all = records("it: walks");
        all.push(record("simulated", None, 5, "it: crawls", "failed"));
        let summary = serde_json::to_value(Summary::of(&all, OUT)).unwrap();
        let rows = &summary["rows"];
        // The traits reach a part of row 2, and nothing of row 3.
        assert_eq!(
            [&rows["all"], &rows["reachable"], &rows["covered"]],
            [32, 31, 3].map(serde_json::Value::from).each_ref()
        );
        assert_eq!(rows["out_of_reach"][1]["row"], "S3");
        assert_eq!(
            [&summary["cases"], &summary["failed"]],
            [3, 1].map(serde_json::Value::from).each_ref()
        );
        let providers = summary["providers"].as_array().unwrap();
        let names: Vec<_> = providers
            .iter()
            .map(|provider| provider["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["simulator", "rxe 6.1", "rxe 6.12"]);
        assert_eq!(providers[0]["unnamed"], 1);
        let old = &providers[1];
        assert_eq!(
            [&old["same"], &old["named"]],
            [0, 2].map(serde_json::Value::from).each_ref()
        );
        let expected =
            serde_json::json!([{ "name": "lame", "cases": ["s04_x", "s02_x"], "kernels": "before 6.12" }]);
        assert_eq!(old["deviations"], expected);
        assert_eq!(providers[2]["deviations"], serde_json::json!([]));
    }
}
