//! `cargo lab test`: native tests, then in the lab what needs a device, and one count of everything.
//!
//! Which scenarios belong to it, and on which kernels, is written in the scenario files (`test_on`, `slow`).
//! Running the native tests is in `native`, reading what they print in `harness`, a scenario in `in_lab`, several at once
//! in `beside`, what is printed and counted in the end in `tally`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::conformance;
use crate::headers;
use crate::kernel::Choice;
use crate::scenario::{self, Lab, Scenario, TestCounts};
use crate::setup;
use crate::steps::say;
use crate::up::HowArgs;

mod beside;
mod harness;
mod in_lab;
mod native;
mod tally;

use tally::{Part, Tally};

/// Arguments of `cargo lab test`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Leave out what is slow, and every kernel but the first of each scenario; what was left out is said, and
    /// counted as skipped
    #[arg(long)]
    quick: bool,
    /// Run the scenarios on this kernel (several times for several) instead of those they name
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<Choice>,
    /// Write the counts of each part as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A scenario on a kernel.
struct Run<'a> {
    scenario: &'a Scenario,
    kernel: &'a Choice,
    /// Why it is left out.
    left_out: Option<&'static str>,
}

impl Run<'_> {
    fn title(&self) -> String {
        format!("{} on {}", self.scenario.name, self.kernel)
    }

    /// The folder of its output, in that of all.
    fn folder(&self, out: &Path) -> PathBuf {
        let kernel = self.kernel.to_string();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '_'
            }
        };
        let kernel: String = kernel.chars().map(plain).collect();
        out.join(format!("{}-{kernel}", self.scenario.name))
    }
}

/// `cargo lab test`; whether nothing failed.
///
/// # Errors
///
/// The lab cannot be set up, or results cannot be written. A part that fails is counted, not an error.
pub(crate) fn run(args: &TestArgs, how: &HowArgs, lab: &mut dyn Lab) -> Result<bool> {
    let scenarios = scenario::repository()?;
    let runs = plan(&scenarios, args);
    ensure!(
        runs.iter().any(|run| run.left_out.is_none()),
        "no scenario is part of the tests"
    );
    let started = Instant::now();
    for run in runs.iter().filter(|run| run.left_out.is_none()) {
        lab.set_up(run.scenario, run.kernel)?;
    }
    let headers = headers::ensure()?;
    // What reads the captures of `sim/tests/dissected.rs`, which says that it was skipped where there is none.
    if let Err(error) = setup::install_missing(|need| need.package == "tshark") {
        say(format_args!(
            "no capture is read by Wireshark's dissector: {error:#}"
        ));
    }
    let mut tally = Tally::new(started.elapsed());
    let out = scenario::output_folder(None, "test")?;
    // Whoever is in want of one that does not build says so.
    let build = || {
        for run in runs.iter().filter(|run| run.left_out.is_none()) {
            let _ = lab.programs(run.scenario.needs());
        }
    };
    for ran in native::run_all(&headers, &out, build)? {
        tally.native(ran);
    }
    for run in &runs {
        if let Some(why) = run.left_out {
            say(format_args!("{}: left out, {why}", run.title()));
            tally.left_out(&run.scenario.name, run.kernel, why);
        }
    }
    let (beside, alone): (Vec<_>, Vec<_>) = runs
        .iter()
        .filter(|run| run.left_out.is_none())
        .partition(|run| run.scenario.beside_others);
    for run in alone {
        let (part, ran) = in_lab::run(run, &out, lab);
        tally.in_lab(part, ran);
    }
    // After those, by which the speed of a guest's clock is known: it is found out on a machine that does nothing else.
    for (part, ran) in beside::run(&beside, how, &out, lab) {
        tally.in_lab(part, ran);
    }
    if let Some(part) = conformance_document(&runs, args, &out) {
        tally.in_lab(part, Vec::new());
    }
    if let Some(path) = &args.json {
        let document = serde_json::to_string_pretty(&tally.summary())?;
        std::fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("\n{}", tally.render(&out));
    Ok(tally.total().failed == 0)
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
        failures,
    })
}

/// What is run on which kernel, and what is left out.
fn plan<'a>(scenarios: &'a [Scenario], args: &'a TestArgs) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    for scenario in scenarios.iter().filter(|scenario| !scenario.test_on.is_empty()) {
        let kernels = if args.kernel.is_empty() {
            &scenario.test_on
        } else {
            &args.kernel
        };
        for (index, kernel) in kernels.iter().enumerate() {
            let left_out = match (args.quick, scenario.slow, index) {
                (false, ..) | (true, false, 0) => None,
                (true, true, _) => Some("it is slow"),
                (true, false, _) if args.kernel.is_empty() => Some("--quick takes one kernel"),
                (true, false, _) => None,
            };
            runs.push(Run {
                scenario,
                kernel,
                left_out,
            });
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(quick: bool, kernels: &[&str], file: &str) -> Vec<(String, bool)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let step = "[[steps]]\nid = 'one'\nhost = 'a'\ncommand = 'true'\n";
        std::fs::write(
            &path,
            format!("name = 't'\nabout = 't'\nhosts = ['a']\n{file}\n{step}"),
        )
        .unwrap();
        let args = TestArgs {
            quick,
            kernel: kernels.iter().map(|kernel| kernel.parse().unwrap()).collect(),
            json: None,
        };
        let scenarios = [scenario::load(&path).unwrap()];
        plan(&scenarios, &args)
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
        let on_two = "test_on = ['newest', '6.1']";
        assert_eq!(
            left_out(false, &[], on_two),
            runs(&[("newest", false), ("6.1", false)])
        );
        assert_eq!(
            left_out(true, &[], on_two),
            runs(&[("newest", false), ("6.1", true)])
        );
        assert_eq!(left_out(true, &["6.12"], on_two), runs(&[("6.12", false)]));
        let slow = "test_on = ['newest']\nslow = true";
        assert_eq!(left_out(false, &[], slow), runs(&[("newest", false)]));
        assert_eq!(left_out(true, &["6.1"], slow), runs(&[("6.1", true)]));
        assert_eq!(left_out(false, &["6.1"], ""), runs(&[]));
    }
}
