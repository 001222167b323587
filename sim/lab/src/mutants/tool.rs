//! `cargo mutants`: which mutants there are, and what became of those that were tried.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::steps::{say, step};
use crate::{leash, programs};

/// The version that the list of survivors was made by. Another one makes other mutants.
const VERSION: &str = "27.1.0";

/// Seconds that a test may take at least before it counts as one that does not end.
const TEST_S: &str = "60";

/// So many mutants are named in one command at most: each is a pattern, of which there is a limit.
const NAMED_MAX: usize = 1000;

/// The packages that mutants are made of, from the ground, and which of their own tests each mutant meets first: those that take seconds.
pub(crate) const PACKAGES: [(&str, &str); 3] = [
    ("doorbell-core", "--tests"),
    ("doorbell-hotpath", "--tests"),
    ("doorbell", "--lib"),
];

/// A wrong line, made by `cargo mutants`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Mutant {
    /// Names it with its place, as in `core/src/id.rs:40:9: replace + with -`.
    pub(crate) name: String,
    pub(crate) package: String,
    pub(crate) file: String,
    span: Span,
    /// The difference that it makes. Absent where outcomes are read.
    #[serde(default)]
    diff: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Span {
    start: SourceLine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct SourceLine {
    line: usize,
}

impl Mutant {
    /// The change without its place, as in `replace + with -`.
    pub(crate) fn change(&self) -> &str {
        let behind = self.name.splitn(4, ':').nth(3);
        behind.map_or(self.name.as_str(), str::trim_start)
    }

    /// The line that it changes, as it stands in this tree.
    pub(crate) fn line(&self, workspace: &Path) -> Result<String> {
        let path = workspace.join(&self.file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let line = text.lines().nth(self.span.start.line.saturating_sub(1));
        Ok(line.unwrap_or_default().trim().to_owned())
    }

    /// The folder that a table counts it under.
    pub(crate) fn folder(&self) -> String {
        let path = self.file.strip_suffix(".rs").unwrap_or(&self.file);
        path.split('/').take(3).collect::<Vec<_>>().join("/")
    }

    /// The change as a patch that git applies.
    pub(crate) fn patch(&self) -> String {
        let body = self.diff.split_inclusive('\n').skip(2).collect::<String>();
        format!("--- a/{0}\n+++ b/{0}\n{body}", self.file)
    }
}

/// The outcome of a mutant's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Outcome {
    /// A test failed.
    CaughtMutant,
    /// No test failed.
    MissedMutant,
    /// A test did not end, or building did not.
    Timeout,
    /// It does not build.
    Unviable,
    /// The tree as it is passed.
    Success,
    /// The tree as it is failed.
    Failure,
}

/// Installs `cargo mutants` unless this very version is there.
pub(crate) fn install() -> Result<()> {
    let said = cargo().args(["mutants", "--version"]).output();
    let said = said.context("cannot run cargo")?;
    let is_there = said.status.success() && String::from_utf8_lossy(&said.stdout).contains(VERSION);
    if is_there {
        return Ok(());
    }
    step(format_args!("installing cargo-mutants {VERSION}"), || {
        let status = cargo()
            .args([
                "install",
                "--quiet",
                "--locked",
                "--force",
                "cargo-mutants",
                "--version",
                VERSION,
            ])
            .status()
            .context("cannot run cargo")?;
        ensure!(status.success(), "cargo-mutants cannot be installed ({status})");
        Ok(())
    })
}

/// Lists the mutants of these files, or of all that `.cargo/mutants.toml` leaves in; of the lines of a difference alone where there is one.
pub(crate) fn list(files: &[String], diff: Option<&Path>) -> Result<Vec<Mutant>> {
    let mut command = mutants()?;
    command.args(["--list", "--json", "--diff"]);
    command.args(PACKAGES.iter().flat_map(|(package, _)| ["--package", package]));
    command.args(files.iter().flat_map(|file| ["--file", file]));
    if let Some(diff) = diff {
        command.arg("--in-diff").arg(diff);
    }
    let listed = crate::tool::output_of(&mut command)?;
    // Without a line of Rust in a difference it says so, and lists nothing.
    if !listed.starts_with('[') {
        return Ok(Vec::new());
    }
    serde_json::from_str(&listed).context("cargo mutants lists something else")
}

/// The tests of one try: of these packages, as far as these arguments of cargo leave them in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tests<'a> {
    /// Names the folder of the logs.
    pub(crate) name: &'a str,
    pub(crate) packages: &'a [&'a str],
    pub(crate) arguments: &'a [&'a str],
}

/// Tries mutants by tests; says what became of each.
pub(crate) fn try_all(all: &[&Mutant], tests: Tests<'_>, out: &Path) -> Result<Vec<(Mutant, Outcome)>> {
    let mut outcomes = Vec::new();
    for some in all.chunks(NAMED_MAX) {
        outcomes.extend(try_some(some, tests, out)?);
    }
    Ok(outcomes)
}

fn try_some(some: &[&Mutant], tests: Tests<'_>, out: &Path) -> Result<Vec<(Mutant, Outcome)>> {
    let out = out.join(tests.name);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    say(format_args!(
        "{} mutants, by the tests {}",
        some.len(),
        tests.name
    ));
    let mut command = mutants()?;
    command.args([
        "--no-shuffle",
        "--colors",
        "never",
        "--minimum-test-timeout",
        TEST_S,
    ]);
    command.args(PACKAGES.iter().flat_map(|(package, _)| ["--package", package]));
    command.args(
        tests
            .packages
            .iter()
            .flat_map(|package| ["--test-package", package]),
    );
    command.args(
        tests
            .arguments
            .iter()
            .map(|argument| format!("--cargo-arg={argument}")),
    );
    let files: BTreeSet<&str> = some.iter().map(|mutant| mutant.file.as_str()).collect();
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.args(
        some.iter()
            .map(|mutant| format!("--re=^{}$", regex::escape(&mutant.name))),
    );
    // The outcomes of an earlier run are none of this one's.
    let logs = out.join("mutants.out");
    let _ = fs::remove_dir_all(&logs);
    let status = command.arg("--output").arg(&out).status();
    let status = status.context("cannot run cargo mutants")?;
    let outcomes = outcomes(&logs.join("outcomes.json"))
        .with_context(|| format!("cargo mutants ended with {status}"))?;
    let mut of_mutants = Vec::new();
    for Tried { scenario, summary } in outcomes {
        ensure!(
            summary != Outcome::Failure,
            "the tree as it is fails the tests {}: see {}",
            tests.name,
            logs.display()
        );
        if let Scenario::Mutant(mutant) = scenario {
            of_mutants.push((mutant, summary));
        }
    }
    // Deleted fields are tried whatever is asked for, so there may be more; one that is lacking, its caller finds.
    Ok(of_mutants)
}

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Tried>,
}

#[derive(Deserialize)]
struct Tried {
    scenario: Scenario,
    summary: Outcome,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Mutant),
}

fn outcomes(path: &Path) -> Result<Vec<Tried>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let Outcomes { outcomes } = serde_json::from_str(&text).context("outcomes of another kind")?;
    Ok(outcomes)
}

/// `cargo mutants` in the workspace, with paths of its own.
fn mutants() -> Result<Command> {
    let mut command = cargo();
    command
        .arg("mutants")
        .current_dir(programs::workspace()?)
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_INCREMENTAL", "1")
        // The copy is not built where the lab itself is.
        .env_remove("CARGO_TARGET_DIR");
    Ok(command)
}

fn cargo() -> Command {
    let mut command = leash::tied(programs::program());
    command.env("PATH", with_installed());
    command
}

/// `PATH`, with the folder where cargo installs programs at its end.
fn with_installed() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let installed = home.map(|home| home.join("bin"));
    std::env::join_paths(std::env::split_paths(&path).chain(installed)).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::{Mutant, Outcome, Outcomes, Scenario, SourceLine, Span};

    fn mutant() -> Mutant {
        Mutant {
            name: "core/src/wire/id.rs:59:39: replace || with && in Ledger::redeem".into(),
            package: "doorbell-core".into(),
            file: "core/src/wire/id.rs".into(),
            span: Span {
                start: SourceLine { line: 59 },
            },
            diff: "--- core/src/wire/id.rs\n+++ replace || with &&\n@@ -1 +1 @@\n-a || b\n+a && b\n".into(),
        }
    }

    #[test]
    fn a_mutant_is_named_without_its_place() {
        assert_eq!(mutant().change(), "replace || with && in Ledger::redeem");
        assert_eq!(mutant().folder(), "core/src/wire");
    }

    #[test]
    fn its_patch_names_the_file_as_git_does() {
        let patch = "--- a/core/src/wire/id.rs\n+++ b/core/src/wire/id.rs\n@@ -1 +1 @@\n-a || b\n+a && b\n";
        assert_eq!(mutant().patch(), patch);
    }

    #[test]
    fn outcomes_are_read() {
        let text = r#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "a.rs:1:2: replace + with -", "package": "p", "file": "a.rs",
                "span": {"start": {"line": 1, "column": 2}, "end": {"line": 1, "column": 3}}}}, "summary": "MissedMutant"}]}"#;
        let Outcomes { outcomes } = serde_json::from_str(text).unwrap();
        let [baseline, missed] = &outcomes[..] else {
            panic!("two outcomes");
        };
        assert!(matches!(baseline.scenario, Scenario::Baseline));
        assert_eq!(missed.summary, Outcome::MissedMutant);
        assert!(matches!(&missed.scenario, Scenario::Mutant(mutant) if mutant.file == "a.rs"));
    }
}
