//! Tests that the conformance cases can fail, and the rules of their tables.
#![expect(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests")]

#[path = "conformance/rig.rs"]
#[expect(dead_code, reason = "another test program uses all of it")]
mod rig;

use core::time::Duration;
use std::collections::BTreeSet;

use doorbell_conformance::{
    Case, DEVIATIONS, Deviation, Disturbance, End, OUT_OF_REACH, Options, Patience, ROWS, Rig, Run, Struck,
    Subject, Trouble, cases, run,
};
use doorbell_sim::{Host, Quirks};
use rig::{SUBJECTS, Simulated};

/// The names of the cases that fail when a fabric with these quirks is taken for this one.
fn failing(quirks: Quirks, taken_for: Subject) -> BTreeSet<&'static str> {
    let mut sum = Run::default();
    // The cases are to fail here: their output must not read as the failure of a test.
    let mut said = Vec::new();
    run(
        &Simulated::new(quirks),
        taken_for,
        &Options::default(),
        &mut sum,
        &mut said,
    )
    .unwrap();
    let said = String::from_utf8(said).unwrap();
    let failures = said.lines().filter(|line| line.ends_with(" ... FAILED")).count();
    assert_eq!(failures, sum.failed().len());
    let all = cases::<Simulated>();
    let failed = sum.failed().iter().map(|why| {
        let name = why.lines().next().unwrap().rsplit(' ').next().unwrap();
        all.iter().find(|case| case.name == name).unwrap().name
    });
    let failed: BTreeSet<_> = failed.collect();
    assert_eq!(failed.len() + sum.passed() as usize, all.len());
    failed
}

/// The cases that show a deviation of this one.
fn named(subject: Subject) -> BTreeSet<&'static str> {
    let of_it = DEVIATIONS.iter().filter(|known| known.is_of(subject));
    of_it.map(|known| known.case).collect()
}

#[test]
fn a_deviation_that_nobody_named_fails() {
    let (book, _) = SUBJECTS[0];
    for (subject, quirks) in &SUBJECTS[1..] {
        let deviating = named(*subject);
        assert!(!deviating.is_empty(), "{subject}");
        assert_eq!(failing(*quirks, book), deviating, "{subject} taken for the book");
    }
}

#[test]
fn a_deviation_that_does_not_occur_fails() {
    for (subject, _) in &SUBJECTS[1..] {
        let deviating = named(*subject);
        assert_eq!(
            failing(Quirks::IBA, *subject),
            deviating,
            "the book taken for {subject}"
        );
    }
}

/// A fabric by the book that is to disturb packets, and strikes none.
struct Idle(Simulated);

impl Rig for Idle {
    type P = Host;

    fn ends(&self) -> Result<[End<Host>; 2], Trouble> {
        self.0.ends()
    }

    fn disturbed_ends(&self, _: Disturbance) -> Result<Option<[End<Host>; 2]>, Trouble> {
        self.0.ends().map(Some)
    }

    fn struck(&self) -> Result<Option<Struck>, Trouble> {
        Ok(Some(Struck::default()))
    }

    fn patience(&self) -> Patience {
        self.0.patience()
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn set_port(&self, up: bool) -> Result<(), Trouble> {
        self.0.set_port(up)
    }

    fn change_address(&self) -> Result<(), Trouble> {
        self.0.change_address()
    }

    fn break_device(&self) -> Result<(), Trouble> {
        self.0.break_device()
    }

    fn mend_device(&self) -> Result<(), Trouble> {
        self.0.mend_device()
    }
}

#[test]
fn a_case_in_which_no_packet_is_struck_fails() {
    let (book, quirks) = SUBJECTS[0];
    let mut sum = Run::default();
    let idle = Idle(Simulated::new(quirks));
    run(&idle, book, &Options::default(), &mut sum, &mut std::io::sink()).unwrap();
    let why = sum.failed().concat();
    let observed: Vec<&str> = why.lines().filter(|line| line.contains("observed: ")).collect();
    assert_eq!(observed.len(), 3, "{why}");
    assert!(
        observed[0].ends_with("packets: none lost and none repeated"),
        "{why}"
    );
    assert!(observed[1].ends_with("packets: 0 lost, 0 gap told"), "{why}");
    assert!(
        observed[2].ends_with("packets: none lost and none repeated"),
        "{why}"
    );
}

#[test]
fn every_row_has_a_case_or_a_reason() {
    let mut rows: BTreeSet<u8> = cases::<Simulated>().iter().map(|case| case.row).collect();
    for out in OUT_OF_REACH {
        rows.insert(out.row);
        assert!(!out.about.is_empty() && !out.why.is_empty());
    }
    assert!(
        OUT_OF_REACH.is_sorted_by(|a, b| a.row < b.row),
        "by row, each once"
    );
    assert!(rows.into_iter().eq(1..=ROWS));
}

#[test]
fn cases_are_named_by_their_row_and_once() {
    let all: Vec<Case<Simulated>> = cases();
    let mut names = BTreeSet::new();
    for case in &all {
        assert!(
            case.name.starts_with(&format!("s{:02}_", case.row)),
            "{}",
            case.name
        );
        assert!(names.insert(case.name), "{} is there twice", case.name);
        // They are cells of a table.
        let texts = [case.about, case.book];
        assert!(
            texts.iter().all(|text| !text.is_empty() && !text.contains('|')),
            "{}",
            case.name
        );
    }
}

#[test]
fn deviations_are_of_cases_and_differ_from_the_book() {
    let all: Vec<Case<Simulated>> = cases();
    for known in DEVIATIONS {
        let case = all.iter().find(|case| case.name == known.case);
        let case = case.unwrap_or_else(|| panic!("{}: there is no case {}", known.name, known.case));
        assert_ne!(case.book, known.observed, "{}", known.name);
        assert!(
            !known.providers.is_empty() && !known.source.is_empty(),
            "{}",
            known.name
        );
        assert!(
            known.from.is_none() || known.until.is_none() || known.from < known.until,
            "{}",
            known.name
        );
    }
}

#[test]
fn of_one_provider_on_one_kernel_a_case_has_one_deviation() {
    let overlap = |one: &Deviation, other: &Deviation| {
        let before = |until: Option<_>, from: Option<_>| matches!((until, from), (Some(until), Some(from)) if until <= from);
        let apart = before(one.until, other.from) || before(other.until, one.from);
        !apart
            && one
                .providers
                .iter()
                .any(|provider| other.providers.contains(provider))
    };
    for (place, one) in DEVIATIONS.iter().enumerate() {
        for other in &DEVIATIONS[place + 1..] {
            assert!(
                one.case != other.case || !overlap(one, other),
                "{}: {}",
                one.case,
                other.name
            );
        }
    }
}

#[test]
fn the_document_has_a_line_for_each_case_and_no_other() {
    let document = include_str!("../../docs/conformance.md");
    let lines = document.lines().filter(|line| line.starts_with("| S"));
    let listed: BTreeSet<_> = lines
        .map(|line| line.split(" | ").take(3).collect::<Vec<_>>().join(" | "))
        .collect();
    let cases = cases::<Simulated>().into_iter();
    let known = cases.map(|case| format!("| S{} | `{}` | {}", case.row, case.name, case.about));
    let known: BTreeSet<_> = known.collect();
    let missing: Vec<_> = known.difference(&listed).collect();
    let stale: Vec<_> = listed
        .difference(&known)
        .filter(|line| line.contains("| `s"))
        .collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "`cargo lab conformance` writes the document anew: without a line {missing:#?}, of no case {stale:#?}"
    );
}
