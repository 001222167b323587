//! Running the cases as a test program does, saying so wherever the caller wants it said, and writing down what was observed as
//! lines of JSON.

use core::fmt::Write as _;
use core::panic::AssertUnwindSafe;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::panic::catch_unwind;
use std::path::PathBuf;

use crate::{Case, Notes, Rig, Subject, Trouble, Verdict, cases, judge};

/// Options of a test program: the arguments of `cargo test -- …`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Only cases with one of these in their names.
    pub filters: Vec<String>,
    /// Say the names of the cases and run none.
    pub list: bool,
    /// Say what is observed of every case.
    pub shows_observed: bool,
    /// Append a line of JSON for each case to this file.
    pub json: Option<PathBuf>,
}

impl Options {
    /// Parses a program's arguments.
    ///
    /// # Errors
    /// One that does not exist.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Result<Self, Trouble> {
        let mut options = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => options.list = true,
                "--show-output" | "--nocapture" => options.shows_observed = true,
                "--json" => {
                    let path = arguments.next().ok_or(Trouble::new("--json needs a file"))?;
                    options.json = Some(path.into());
                }
                // These options mean nothing here, but every test program gets them.
                "--quiet" | "-q" => {}
                "--test-threads" => drop(arguments.next()),
                other if other.starts_with("--test-threads=") => {}
                other if other.starts_with('-') => {
                    return Err(Trouble(format!("there is no option {other}")));
                }
                filter => options.filters.push(filter.to_owned()),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }
}

/// Results of all cases so far.
#[derive(Clone, Debug, Default)]
pub struct Run {
    passed: u32,
    failed: Vec<String>,
    filtered_out: u32,
    /// Observations of the cases that passed, if they are shown.
    shown: String,
    lines: String,
}

/// Runs the cases on a rig, and says of each whether it passed.
///
/// A case that panics is observed to, and fails.
///
/// # Errors
/// It cannot be said.
pub fn run<R: Rig>(
    rig: &R,
    subject: Subject,
    options: &Options,
    sum: &mut Run,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for case in cases::<R>() {
        let name = format!("{subject}: {}", case.name);
        if !options.wants(&name) {
            sum.filtered_out = sum.filtered_out.saturating_add(1);
            continue;
        }
        if options.list {
            writeln!(out, "{name}: test")?;
            continue;
        }
        let observed = observe(rig, &case);
        let verdict = judge(subject, case.name, case.book, &observed);
        writeln!(
            out,
            "test {name} ... {}",
            if verdict.is_good() { "ok" } else { "FAILED" }
        )?;
        let said = sum.note(&name, subject, &case, &observed, verdict);
        if !verdict.is_good() {
            out.write_all(said.as_bytes())?;
        } else if options.shows_observed {
            let _ = writeln!(sum.shown, "---- {name} stdout ----\n{said}");
        }
    }
    Ok(())
}

/// Runs a case and returns its observation, with the reason if it stopped.
fn observe<R: Rig>(rig: &R, case: &Case<R>) -> String {
    let mut notes = Notes::default();
    let ended = catch_unwind(AssertUnwindSafe(|| (case.run)(rig, &mut notes)));
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(trouble)) => notes.put("trouble", trouble),
        Err(_) => notes.put("trouble", "a panic"),
    }
    notes.into_text()
}

impl Run {
    /// How many passed.
    #[must_use]
    pub const fn passed(&self) -> u32 {
        self.passed
    }

    /// Each that failed: its name, what the book says, and what was observed.
    #[must_use]
    pub fn failed(&self) -> &[String] {
        &self.failed
    }

    /// Counts a case, and gives what there is to say of it.
    fn note<R: Rig>(
        &mut self,
        name: &str,
        subject: Subject,
        case: &Case<R>,
        observed: &str,
        verdict: Verdict,
    ) -> String {
        let (outcome, deviation) = match verdict {
            Verdict::Same => ("same", None),
            Verdict::Deviates(named) => ("deviates", Some(named)),
            Verdict::Sometimes(named) => ("sometimes", Some(named)),
            Verdict::Otherwise(named) | Verdict::NoLonger(named) => ("failed", Some(named)),
            Verdict::Unnamed => ("failed", None),
        };
        let said = if verdict.is_good() {
            self.passed = self.passed.saturating_add(1);
            format!("  {outcome}: {observed}\n")
        } else {
            let mut why = format!("{name}\n  book:     {}\n  observed: {observed}\n", case.book);
            let _ = match verdict {
                Verdict::Otherwise(named) => {
                    writeln!(why, "  named:    {} ({})", named.observed, named.name)
                }
                Verdict::NoLonger(named) => writeln!(why, "  {} is named, and does not occur", named.name),
                _ => writeln!(why, "  nobody named that"),
            };
            self.failed.push(why.clone());
            why
        };
        let kernel = subject.kernel.map(|kernel| kernel.to_string());
        let _ = writeln!(
            self.lines,
            "{{\"provider\":{},\"kernel\":{},\"row\":\"S{}\",\"case\":{},\"about\":{},\"book\":{},\"observed\":{},\
             \"outcome\":{},\"deviation\":{},\"instead\":{},\"range\":{},\"source\":{}}}",
            quoted(subject.provider.name()),
            kernel.as_deref().map_or("null".to_owned(), quoted),
            case.row,
            quoted(case.name),
            quoted(case.about),
            quoted(case.book),
            quoted(observed),
            quoted(outcome),
            deviation.map_or("null".to_owned(), |named| quoted(named.name)),
            deviation.map_or("null".to_owned(), |named| quoted(named.observed)),
            deviation
                .filter(|_| kernel.is_some())
                .map_or("null".to_owned(), |named| quoted(&named.range())),
            deviation.map_or("null".to_owned(), |named| quoted(named.source)),
        );
        said
    }

    /// Says the sum as test programs do, and writes what was observed where that was asked for; whether all passed.
    ///
    /// # Errors
    /// It cannot be said, or written.
    pub fn end(self, options: &Options, out: &mut dyn io::Write) -> io::Result<bool> {
        if options.list {
            return Ok(true);
        }
        if let Some(path) = &options.json {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(self.lines.as_bytes())?;
        }
        if !self.shown.is_empty() {
            writeln!(out, "\nsuccesses:\n\n{}successes:", self.shown)?;
        }
        let is_good = self.failed.is_empty();
        if !is_good {
            writeln!(out, "\nfailures:\n")?;
            for why in &self.failed {
                let (name, why) = why.split_once('\n').unwrap_or((why, ""));
                writeln!(out, "---- {name} stdout ----\n{why}")?;
            }
        }
        writeln!(
            out,
            "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out\n",
            if is_good { "ok" } else { "FAILED" },
            self.passed,
            self.failed.len(),
            self.filtered_out
        )?;
        Ok(is_good)
    }
}

/// A text in JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::{Options, quoted};

    fn options(arguments: &[&str]) -> Result<Options, crate::Trouble> {
        Options::of(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn arguments_are_those_of_test_programs() {
        let given = options(&[
            "--quiet",
            "s05",
            "--json",
            "out",
            "--test-threads",
            "1",
            "--show-output",
        ]);
        let given = given.unwrap();
        assert!(given.wants("fake: s05_x") && !given.wants("fake: s06_x"));
        assert_eq!(given.json.as_deref(), Some("out".as_ref()));
        assert!(given.shows_observed && !given.list);
        assert!(options(&[]).unwrap().wants("anything"));
        assert!(options(&["--bogus"]).is_err() && options(&["--json"]).is_err());
    }

    #[test]
    fn texts_are_quoted_as_json_has_them() {
        assert_eq!(quoted("a \"b\" \\ \u{1}é"), "\"a \\\"b\\\" \\\\ \\u0001é\"");
    }
}
