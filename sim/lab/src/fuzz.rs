//! `cargo lab fuzz`: the targets of `fuzz/` built with what libFuzzer needs, each run for some seconds from its
//! corpus, and what came of it.
//!
//! How they are built is in `built`, what libFuzzer says in `outcome`. A target with a mistake planted in it is
//! run first: fuzzing that does not find it finds nothing.

use core::time::Duration;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use crate::leash;
use crate::programs;
use crate::scenario::aligned;
use crate::steps::step_saying;

mod built;
mod outcome;

use outcome::Outcome;

/// The target with a mistake in it, and the one it is a copy of.
const PLANTED: (&str, &str) = ("planted", "handle");

/// How long the planted mistake is looked for at most: it takes a second, and this is a busy machine's.
const PLANTED_S: u32 = 30;

/// How long one input may take, in seconds: a thousand times what the slowest does.
const INPUT_S: u32 = 10;

/// The memory a target may have, in MiB.
const MEMORY_MIB: u32 = 1024;

/// How long beyond its time a target may take to end.
const GRACE: Duration = Duration::from_secs(60);

/// Arguments of `cargo lab fuzz`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FuzzArgs {
    /// The targets; all of them where none is named
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// How long each is run
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Write what came of it as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What came of all of it.
#[derive(Debug, Serialize)]
struct Summary {
    seconds_each: u32,
    /// What it took to find the planted mistake.
    planted: Outcome,
    targets: Vec<Outcome>,
}

/// `cargo lab fuzz`; whether nothing was found but what was planted.
///
/// # Errors
///
/// The targets do not build or do not run, one that is named is none, or the planted mistake is not found.
pub(crate) fn run(args: &FuzzArgs) -> Result<bool> {
    let folder = programs::workspace()?.join("fuzz");
    let targets = chosen(&built::targets(&folder)?, &args.targets)?;
    let Some(compiler) = built::compiler() else {
        println!("UNTESTED: fuzzing: libFuzzer needs a C++ compiler, and here is none (c++, or CXX)");
        return Ok(true);
    };
    let programs = step_saying("building the fuzz targets", || {
        Ok((built::build(&folder)?, format!("libFuzzer by {compiler}")))
    })?;
    let fuzzer = Fuzzer { folder, programs };
    let planted = fuzzer.planted()?;
    let mut summary = Summary {
        seconds_each: args.seconds,
        planted,
        targets: Vec::new(),
    };
    for target in &targets {
        let outcome = fuzzer.run(target, target, args.seconds)?;
        summary.targets.push(outcome);
    }
    if let Some(path) = &args.json {
        let document = serde_json::to_string_pretty(&summary)?;
        fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{}", render(&summary));
    Ok(summary.targets.iter().all(|outcome| outcome.finding.is_none()))
}

/// Those that are asked for, of those there are.
fn chosen(known: &[String], asked: &[String]) -> Result<Vec<String>> {
    let open: Vec<String> = known.iter().filter(|name| *name != PLANTED.0).cloned().collect();
    if let Some(stranger) = asked.iter().find(|name| !open.contains(name)) {
        bail!("no target `{stranger}`; there are {}", open.join(", "));
    }
    Ok(if asked.is_empty() { open } else { asked.to_vec() })
}

/// Built targets, and where their corpora are.
struct Fuzzer {
    folder: PathBuf,
    programs: PathBuf,
}

impl Fuzzer {
    /// Looks for the planted mistake.
    fn planted(&self) -> Result<Outcome> {
        let (target, corpus) = PLANTED;
        // What an earlier run has found would be found again at once, without any fuzzing.
        let kept = self.kept("findings", target);
        if kept.exists() {
            fs::remove_dir_all(&kept).with_context(|| format!("cannot empty {}", kept.display()))?;
        }
        let outcome = self.run(target, corpus, PLANTED_S)?;
        ensure!(
            outcome
                .finding
                .as_ref()
                .is_some_and(|finding| finding.is_panic && finding.said.contains("planted")),
            "the mistake planted in `{target}` was not found in {PLANTED_S} s: what is run here finds nothing"
        );
        // The seeds are executed first, after an empty input.
        let seeds = fs::read_dir(self.folder.join("corpus").join(corpus))?.count();
        ensure!(
            outcome.executions > u64::try_from(seeds)?.saturating_add(1),
            "a seed of `{corpus}` is what is planted in `{target}`: nothing had to be found"
        );
        Ok(outcome)
    }

    /// Runs one target from a corpus.
    fn run(&self, target: &str, corpus: &str, seconds: u32) -> Result<Outcome> {
        step_saying(format_args!("fuzzing {target}"), || {
            let outcome = self.fuzz(target, corpus, seconds)?;
            let said = outcome.to_string();
            Ok((outcome, said))
        })
    }

    fn fuzz(&self, target: &str, corpus: &str, seconds: u32) -> Result<Outcome> {
        let seeds = self.folder.join("corpus").join(corpus);
        ensure!(
            fs::read_dir(&seeds).is_ok_and(|mut files| files.next().is_some()),
            "no seed in {}",
            seeds.display()
        );
        let (interesting, artifacts) = (self.kept("findings", target), self.kept("artifacts", target));
        for folder in [&interesting, &artifacts] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut command = Command::new(self.programs.join(target));
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_S}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg("-print_final_stats=1");
        let dictionary = self.folder.join("dictionaries").join(format!("{corpus}.dict"));
        if dictionary.exists() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        // What is new goes to the first folder.
        command.args([&interesting, &seeds]);
        let log = artifacts.join("log");
        let mut process = leash::spawn_logging(&command, &log)?;
        let given_up = Instant::now()
            .checked_add(Duration::from_secs(seconds.into()))
            .and_then(|end| end.checked_add(GRACE))
            .context("too long")?;
        let status = loop {
            if let Some(status) = process.status() {
                break status;
            }
            ensure!(
                Instant::now() < given_up,
                "`{target}` does not end; what it said is in {}",
                log.display()
            );
            thread::sleep(Duration::from_millis(20));
        };
        let said = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
        Outcome::read(target, status, &String::from_utf8_lossy(&said))
            .with_context(|| format!("`{target}` did not run; what it said is in {}", log.display()))
    }

    /// A folder beside the corpus that is not kept in the repository.
    fn kept(&self, what: &str, target: &str) -> PathBuf {
        self.folder.join(what).join(target)
    }
}

/// The table, and what was found.
fn render(summary: &Summary) -> String {
    let mut rows = vec![
        ["target", "executions", "per second", "edges", "of", "corpus", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for outcome in core::iter::once(&summary.planted).chain(&summary.targets) {
        let verdict = match &outcome.finding {
            Some(_) if outcome.target == PLANTED.0 => "found what was planted",
            Some(_) => "FOUND",
            None => "",
        };
        rows.push(vec![
            outcome.target.clone(),
            outcome.executions.to_string(),
            outcome.executions_per_s.to_string(),
            outcome.edges.to_string(),
            outcome.edges_total.to_string(),
            outcome.inputs.to_string(),
            verdict.to_owned(),
        ]);
    }
    let mut text = aligned(&rows, &[true, false, false, false, false, false, true]);
    for outcome in &summary.targets {
        if let Some(finding) = &outcome.finding {
            text.push_str(&format!("{}: {finding}\n", outcome.target));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_target_is_chosen_by_its_name_and_the_planted_one_is_not() {
        let known = names(&["handle", "planted", "frames"]);
        assert_eq!(chosen(&known, &[]).unwrap(), names(&["handle", "frames"]));
        assert_eq!(chosen(&known, &names(&["frames"])).unwrap(), names(&["frames"]));
        let error = chosen(&known, &names(&["planted"])).unwrap_err();
        assert_eq!(error.to_string(), "no target `planted`; there are handle, frames");
    }
}
