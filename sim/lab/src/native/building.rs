//! Building test programs: by cargo, without a deadline, with progress.

use core::time::Duration;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::{Kind, Program, SUITES, Suite};
use crate::course::{Course, span};
use crate::leash;
use crate::programs;
use crate::steps::say;

/// Between looks at what cargo has written.
const TURN: Duration = Duration::from_millis(100);

/// Time after which the progress of building is reported.
const TELL: Duration = Duration::from_secs(20);

/// So many of the last lines of a build that failed are shown: the first error of a compiler is among them.
const LINES_MAX: usize = 200;

/// A line of cargo's about something it has built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: ArtifactProfile,
    executable: Option<PathBuf>,
    fresh: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct ArtifactProfile {
    test: bool,
}

/// Builds the test programs of all suites.
///
/// # Errors
///
/// Cargo cannot be started, or something does not build.
pub(crate) fn build(out: &Path, course: &Course) -> Result<Vec<Program>> {
    let mut all = Vec::new();
    for (index, suite) in SUITES.iter().enumerate() {
        let name = part(suite);
        course.began(&name);
        let log = out.join(format!("build-{}.log", suite.name));
        let built = cargo(suite, &log);
        course.ended(&name, if built.is_ok() { "built" } else { "FAILED" });
        all.extend(programs_of(index, suite, &built?)?);
    }
    Ok(all)
}

/// The name of the part that building a suite is.
fn part(suite: &Suite) -> String {
    format!("building native tests: {}", suite.name)
}

/// Runs cargo; gives what it has built.
fn cargo(suite: &Suite, log: &Path) -> Result<Vec<Artifact>> {
    let mut command = Command::new("env");
    command
        .arg("-C")
        .arg(programs::workspace()?)
        .arg(programs::program())
        .args(["test", "--no-run", "--message-format", "json-render-diagnostics"])
        .args(suite.arguments)
        .env("CARGO_TERM_COLOR", "never");
    let began = Instant::now();
    let mut leashed = leash::spawn_logging(&command, log)?;
    let file = File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    let (mut artifacts, mut told) = (Vec::<Artifact>::new(), Instant::now());
    let status = loop {
        // Asked before reading: what cargo wrote until its end is then read in any case.
        let status = leashed.status();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            artifacts.extend(serde_json::from_slice::<Artifact>(&line));
            line.clear();
        }
        if let Some(status) = status {
            break status;
        }
        if told.elapsed() > TELL {
            told = Instant::now();
            let compiled = artifacts.iter().filter(|artifact| !artifact.fresh).count();
            let last = artifacts
                .last()
                .map_or("", |artifact| artifact.target.name.as_str());
            say(format_args!(
                "  {}: {compiled} compiled, {} were there, the last was {last} ({})",
                part(suite),
                artifacts.len().saturating_sub(compiled),
                span(began.elapsed())
            ));
        }
        thread::sleep(TURN);
    };
    if !status.success() {
        let said = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with('{')).collect();
        let skipped = lines.len().saturating_sub(LINES_MAX);
        let last: Vec<&str> = lines.into_iter().skip(skipped).collect();
        bail!(
            "native tests do not build (`cargo test --no-run {}`, {status}):\n{}",
            suite.arguments.join(" "),
            last.join("\n")
        );
    }
    Ok(artifacts)
}

/// The test programs among what was built.
fn programs_of(index: usize, suite: &Suite, artifacts: &[Artifact]) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for artifact in artifacts.iter().filter(|artifact| artifact.profile.test) {
        let Some(executable) = &artifact.executable else {
            continue;
        };
        let folder = artifact
            .manifest_path
            .parent()
            .context("a manifest without a folder")?;
        let package = programs::package(&artifact.manifest_path)
            .with_context(|| format!("{} names no package", artifact.manifest_path.display()))?;
        let kind = artifact.target.kind.first().map_or("", String::as_str);
        let target = artifact.target.name.as_str();
        let (name, target) = match kind {
            "bin" | "test" | "example" | "bench" => (
                format!("{package} {kind} {target}"),
                vec![format!("--{kind}"), target.to_owned()],
            ),
            _ => (format!("{package} lib"), vec!["--lib".to_owned()]),
        };
        let mut selector = vec!["-p".to_owned(), package.clone()];
        // A feature is named for the package that has it alone.
        let features = suite
            .arguments
            .iter()
            .filter_map(|word| word.strip_prefix(&format!("{package}/")));
        for feature in features {
            selector.extend(["--features".to_owned(), feature.to_owned()]);
        }
        selector.extend(target);
        found.push(Program {
            name,
            suite: index,
            kind: Kind::Built {
                executable: executable.clone(),
                folder: folder.to_owned(),
                selector,
            },
        });
    }
    ensure!(
        !found.is_empty(),
        "cargo has built no test program of {}",
        suite.name
    );
    if suite.is_documented {
        found.push(Program {
            name: "documentation".to_owned(),
            suite: index,
            kind: Kind::Documentation,
        });
    }
    Ok(found)
}

/// The ones that a filter names: the one of that very name, else all whose name has it as a part; without filters, all.
pub(crate) fn chosen<'a, T>(all: &'a [T], filters: &[String], name: impl Fn(&T) -> &str) -> Vec<&'a T> {
    if filters.is_empty() {
        return all.iter().collect();
    }
    let exact: Vec<&String> = filters
        .iter()
        .filter(|filter| all.iter().any(|item| name(item) == filter.as_str()))
        .collect();
    all.iter()
        .filter(|item| {
            filters.iter().any(|filter| {
                if exact.contains(&filter) {
                    name(item) == filter
                } else {
                    name(item).contains(filter.as_str())
                }
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, kind: &str, name: &str, is_test: bool) -> (tempfile::TempDir, Artifact) {
        let folder = tempfile::tempdir().unwrap();
        let manifest_path = folder.path().join("Cargo.toml");
        fs::write(&manifest_path, format!("[package]\nname = '{package}'\n")).unwrap();
        let artifact = Artifact {
            manifest_path,
            target: Target {
                name: name.to_owned(),
                kind: vec![kind.to_owned()],
            },
            profile: ArtifactProfile { test: is_test },
            executable: Some(folder.path().join(name)),
            fresh: true,
        };
        (folder, artifact)
    }

    #[test]
    fn each_program_has_a_name_and_the_command_that_runs_it_alone() {
        let built = [
            artifact("doorbell", "lib", "doorbell", true),
            artifact("doorbell", "bin", "doorbell", false),
            artifact("doorbell-ffi", "test", "fake", true),
        ];
        let (_folders, artifacts): (Vec<_>, Vec<_>) = built.into_iter().unzip();
        let suite = Suite {
            name: "all",
            arguments: &["--features", "doorbell/tracing"],
            silence_s: 1,
            is_documented: true,
        };
        let programs = programs_of(0, &suite, &artifacts).unwrap();
        let names: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["doorbell lib", "doorbell-ffi test fake", "documentation"]);
        assert_eq!(
            programs[0].command(None),
            "cargo test -p doorbell --features tracing --lib"
        );
        assert_eq!(
            programs[1].command(Some("a::b")),
            "cargo test -p doorbell-ffi --test fake -- --exact a::b"
        );
        let doc = programs[2].command(Some("src/lib.rs - a (line 3)"));
        assert!(
            doc.starts_with("cargo test --doc ") && doc.ends_with(" -- src/lib.rs"),
            "{doc}"
        );
        let error = programs_of(0, &suite, &[]).unwrap_err().to_string();
        assert_eq!(error, "cargo has built no test program of all");
    }

    #[test]
    fn a_filter_is_a_name_or_a_part_of_names() {
        let all = ["doorbell test link", "doorbell test links", "doorbell lib"];
        let chosen = |filters: &[&str]| {
            let filters: Vec<String> = filters.iter().map(|&filter| filter.to_owned()).collect();
            let chosen = chosen(&all, &filters, |name| *name);
            chosen.into_iter().copied().collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), all);
        assert_eq!(chosen(&["doorbell test link"]), ["doorbell test link"]);
        assert_eq!(
            chosen(&["test link"]),
            ["doorbell test link", "doorbell test links"]
        );
        assert_eq!(chosen(&["lib", "links"]), ["doorbell test links", "doorbell lib"]);
        assert_eq!(chosen(&["none"]), [""; 0]);
    }
}
