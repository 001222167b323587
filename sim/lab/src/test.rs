//! `cargo lab test`: native tests, then scenarios in the lab, and one count of everything.
//!
//! Which scenarios belong to it, and on which kernels, is written in the scenario files (`test_on`, `all_on`, `quick`).
//! Native tests are in `native`, a scenario is in `in_lab`, several at once are in `beside`, what is printed and counted in the
//! end is in `tally`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::conformance;
use crate::course::Course;
use crate::headers;
use crate::kernel::Choice;
use crate::native::{self, Program};
use crate::scenario::{self, Lab, Scenario, TestCounts};
use crate::setup;
use crate::steps::say;
use crate::up::HowArgs;

mod beside;
mod in_lab;
mod run_native;
mod tally;

pub(crate) use beside::child;
use tally::{Failed, Part, Tally};

/// Arguments of `cargo lab test`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TestArgs {
    /// Run only the test programs and scenarios of these names or parts of names, as a run prints them; no part is left out then
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run native tests and one guest: under ten minutes on two cores after a build
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Run every scenario on every kernel, and each native test program a second time beside busy processes
    #[arg(long)]
    all: bool,
    /// Run the scenarios on this kernel (several times for several) instead of those they name
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<Choice>,
    /// Write the counts of each part as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl TestArgs {
    /// The kind of run, by which durations are kept.
    fn kind(&self) -> String {
        let mut kind = "test".to_owned();
        for (is_given, word) in [(self.quick, " --quick"), (self.all, " --all")] {
            if is_given {
                kind.push_str(word);
            }
        }
        for name in &self.names {
            kind.push_str(&format!(" '{name}'"));
        }
        kind
    }
}

/// A scenario on a kernel.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) kernel: &'a Choice,
    /// Why it is left out.
    left_out: Option<&'static str>,
}

impl<'a> Run<'a> {
    /// One that is not left out.
    pub(crate) fn of(scenario: &'a Scenario, kernel: &'a Choice) -> Self {
        Self {
            scenario,
            kernel,
            left_out: None,
        }
    }

    /// `NAME on KERNEL`.
    pub(crate) fn title(&self) -> String {
        format!("{} on {}", self.scenario.name, self.kernel)
    }

    /// The command that runs it alone.
    pub(crate) fn command(&self) -> String {
        let name = self.scenario.path.file_stem().unwrap_or_default();
        format!(
            "cargo lab run {} --kernel {}",
            name.to_string_lossy(),
            self.kernel
        )
    }

    /// The folder of its output, in that of all.
    pub(crate) fn folder(&self, out: &Path) -> PathBuf {
        out.join(plain(&format!("{}-{}", self.scenario.name, self.kernel)))
    }
}

/// A name as that of a file.
pub(crate) fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ['.', '-'].contains(&c);
    name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// `cargo lab test`; whether nothing failed.
///
/// # Errors
///
/// The lab cannot be set up, native tests do not build, or results cannot be written. A part that fails is counted, not an error.
pub(crate) fn run(args: &TestArgs, how: &HowArgs, lab: &mut dyn Lab) -> Result<bool> {
    let scenarios = scenario::repository()?;
    let runs = plan(&scenarios, args);
    let started = Instant::now();
    let wanted: Vec<&Run<'_>> = runs.iter().filter(|run| run.left_out.is_none()).collect();
    for run in &wanted {
        lab.set_up(run.scenario, run.kernel)?;
    }
    let headers = headers::ensure()?;
    // Reads the captures of `sim/tests/dissected.rs`, which says that it was skipped where there is none.
    if let Err(error) = setup::install_missing(|need| need.package == "tshark") {
        say(format_args!(
            "no capture is read by Wireshark's dissector: {error:#}"
        ));
    }
    let mut tally = Tally::new(started.elapsed());
    let out = scenario::output_folder(None, "test")?;
    let programs = build(args, &wanted, &out, lab)?;
    ensure!(
        !programs.is_empty() || !wanted.is_empty(),
        "no test program and no scenario has the name {}; `cargo lab list` shows scenarios",
        args.names.join(" or ")
    );
    let busy = if args.all { programs.len() } else { 0 };
    let parts = programs.len().saturating_add(wanted.len()).saturating_add(busy);
    let course = Course::begin(&args.kind(), parts)?;
    for ran in run_native::run_all(&programs, &headers, &out, &course)? {
        tally.native(ran);
    }
    if args.all && !programs.is_empty() {
        tally.native(run_native::run_beside_busy(&programs, &headers, &out, &course)?);
    }
    for run in &runs {
        if let Some(why) = run.left_out {
            tally.left_out(&run.title(), why);
        }
    }
    let (beside, alone): (Vec<&Run<'_>>, Vec<&Run<'_>>) =
        wanted.iter().partition(|run| run.scenario.beside_others);
    for run in alone {
        let (part, ran) = in_lab::run(run, &out, lab, &course);
        tally.in_lab(part, ran);
    }
    // After those, by which the speed of a guest's clock is known: it is found out where no other guest runs.
    for (part, ran) in beside::run(&beside, how, &out, lab, &course) {
        tally.in_lab(part, ran);
    }
    if let Some(part) = conformance_document(&runs, args, &out) {
        tally.in_lab(part, Vec::new());
    }
    course.finish();
    if let Some(path) = &args.json {
        let document = serde_json::to_string_pretty(&tally.summary())?;
        std::fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("\n{}", tally.render(&out));
    Ok(tally.total().failed == 0)
}

/// Builds all that is run, before anything is: how long that takes depends on what was there, and no deadline counts it.
fn build(args: &TestArgs, wanted: &[&Run<'_>], out: &Path, lab: &mut dyn Lab) -> Result<Vec<Program>> {
    let for_guests = !wanted.is_empty();
    let parts = native::SUITES.len().saturating_add(usize::from(for_guests));
    let course = Course::begin("build", parts)?;
    let built = native::build(out, &course)?;
    if for_guests {
        let name = "building programs for the guests";
        course.began(name);
        // The part that needs a program that does not build reports the failure.
        let failed = wanted
            .iter()
            .filter(|run| lab.programs(run.scenario.needs()).is_err())
            .count();
        course.ended(name, if failed == 0 { "built" } else { "FAILED" });
    }
    course.finish();
    let chosen = native::chosen(&built, &args.names, |program| &program.name);
    Ok(chosen.into_iter().cloned().collect())
}

/// Whether `docs/conformance.md` is what was observed, where that was on every kernel it is of.
fn conformance_document(runs: &[Run<'_>], args: &TestArgs, out: &Path) -> Option<Part> {
    let mut meant = runs
        .iter()
        .filter(|run| run.scenario.name == conformance::SCENARIO)
        .peekable();
    meant.peek()?;
    if !args.kernel.is_empty() || meant.any(|run| run.left_out.is_some()) {
        say("docs/conformance.md is not compared: the cases did not run on every kernel it is of");
        return None;
    }
    let started = Instant::now();
    let failures = conformance::check(out).unwrap_or_else(|error| vec![format!("{error:#}")]);
    let failed = u64::from(!failures.is_empty());
    Some(Part {
        name: "docs/conformance.md".to_owned(),
        kernel: None,
        counts: TestCounts {
            passed: 1_u64.saturating_sub(failed),
            failed,
            ..TestCounts::default()
        },
        ran_in_lab: 0,
        duration_s: started.elapsed().as_secs_f64(),
        goals: Vec::new(),
        failures: failures
            .into_iter()
            .map(|text| Failed {
                text,
                command: "cargo lab conformance".to_owned(),
            })
            .collect(),
    })
}

/// Plans the runs on each kernel, and the ones left out.
fn plan<'a>(scenarios: &'a [Scenario], args: &'a TestArgs) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    let tested: Vec<&Scenario> = scenarios
        .iter()
        .filter(|scenario| !scenario.test_on.is_empty() || !scenario.all_on.is_empty())
        .collect();
    for scenario in native::chosen(&tested, &args.names, |scenario| &scenario.name) {
        let is_named = !args.names.is_empty();
        let gate: &[Choice] = if !args.kernel.is_empty() {
            &args.kernel
        } else if is_named && scenario.test_on.is_empty() {
            &scenario.all_on
        } else {
            &scenario.test_on
        };
        for (index, kernel) in gate.iter().enumerate() {
            let is_of_quick = scenario.quick && (index == 0 || !args.kernel.is_empty());
            let left_out = (args.quick && !is_of_quick && !is_named).then_some("--quick boots one guest");
            runs.push(Run {
                left_out,
                ..Run::of(scenario, kernel)
            });
        }
        if args.kernel.is_empty() && !is_named || args.all {
            let further = scenario.all_on.iter().filter(|kernel| !gate.contains(kernel));
            runs.extend(further.map(|kernel| Run {
                left_out: (!args.all).then_some("only --all runs it"),
                ..Run::of(scenario, kernel)
            }));
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(args: &TestArgs, file: &str) -> Vec<(String, bool)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let step = "[[steps]]\nid = 'one'\nhost = 'a'\ncommand = 'true'\n";
        std::fs::write(
            &path,
            format!("name = 't'\nabout = 't'\nhosts = ['a']\n{file}\n{step}"),
        )
        .unwrap();
        let scenarios = [scenario::load(&path).unwrap()];
        plan(&scenarios, args)
            .iter()
            .map(|run| (run.kernel.to_string(), run.left_out.is_some()))
            .collect()
    }

    fn runs(runs: &[(&str, bool)]) -> Vec<(String, bool)> {
        runs.iter()
            .map(|&(kernel, out)| (kernel.to_owned(), out))
            .collect()
    }

    #[test]
    fn files_say_what_is_run_where() {
        let gate = TestArgs::default();
        let quick = TestArgs {
            quick: true,
            ..TestArgs::default()
        };
        let all = TestArgs {
            all: true,
            ..TestArgs::default()
        };
        let named = TestArgs {
            names: vec!["t".to_owned()],
            ..TestArgs::default()
        };
        let on = |kernel: &str, args: &TestArgs| TestArgs {
            kernel: vec![kernel.parse().unwrap()],
            ..args.clone()
        };
        let file = "test_on = ['newest', '6.12']\nall_on = ['6.1']";
        let outcome = [("newest", false), ("6.12", false), ("6.1", true)];
        assert_eq!(left_out(&gate, file), runs(&outcome));
        let outcome = [("newest", true), ("6.12", true), ("6.1", true)];
        assert_eq!(left_out(&quick, file), runs(&outcome));
        let outcome = [("newest", false), ("6.12", false), ("6.1", false)];
        assert_eq!(left_out(&all, file), runs(&outcome));
        assert_eq!(
            left_out(&named, file),
            runs(&[("newest", false), ("6.12", false)])
        );
        assert_eq!(left_out(&on("6.1", &gate), file), runs(&[("6.1", false)]));
        let guest = "test_on = ['newest', '6.1']\nquick = true";
        assert_eq!(left_out(&quick, guest), runs(&[("newest", false), ("6.1", true)]));
        assert_eq!(left_out(&on("6.1", &quick), guest), runs(&[("6.1", false)]));
        let only_all = "all_on = ['newest']";
        assert_eq!(left_out(&gate, only_all), runs(&[("newest", true)]));
        assert_eq!(left_out(&all, only_all), runs(&[("newest", false)]));
        assert_eq!(left_out(&named, only_all), runs(&[("newest", false)]));
        assert_eq!(left_out(&on("6.1", &gate), ""), runs(&[]));
    }

    #[test]
    fn quick_boots_one_guest() {
        let scenarios = scenario::repository().unwrap();
        let args = TestArgs {
            quick: true,
            ..TestArgs::default()
        };
        let runs = plan(&scenarios, &args);
        let wanted = runs.iter().filter(|run| run.left_out.is_none());
        assert_eq!(
            wanted.map(Run::title).collect::<Vec<_>>(),
            ["device-tests on newest"]
        );
    }
}
