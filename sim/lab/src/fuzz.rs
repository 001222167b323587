//! `cargo lab fuzz`: builds the targets of `fuzz/` with the flags that libFuzzer needs, runs each for some seconds from its corpus, and
//! reports the outcomes.
//!
//! How they are built is in `built`, what libFuzzer says in `outcome`. A target with a mistake planted in it is
//! run first: fuzzing that does not find it finds nothing.

use core::num::NonZero;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::Serialize;

use crate::leash;
use crate::programs;
use crate::scenario::aligned;
use crate::steps::{say, step_saying};

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
    /// How long each is run; as many at a time as there are cores
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Seed of libFuzzer, for the same inputs again as far as the time goes; libFuzzer chooses one by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seed: Option<u32>,
    /// Watch memory by AddressSanitizer, too: slower, and for what is not safe Rust, which is in other packages alone
    #[arg(long)]
    sanitizer: bool,
    /// Write the outcomes as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Result of all targets.
#[derive(Debug, Serialize)]
struct Summary {
    seconds_each: u32,
    /// Seed of libFuzzer, if one was set.
    seed: Option<u32>,
    /// How many were run at a time.
    at_a_time: usize,
    has_sanitizer: bool,
    /// Outcome of the search for the planted mistake.
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
        println!(
            "UNTESTED: fuzzing: no C++ compiler for libFuzzer (c++, or CXX); `cargo lab setup` installs one"
        );
        return Ok(true);
    };
    let programs = step_saying("building the fuzz targets", || {
        let programs = built::build(&folder, args.sanitizer)?;
        Ok((programs, format!("libFuzzer by {compiler}")))
    })?;
    let fuzzer = Fuzzer {
        folder,
        programs,
        seed: args.seed,
    };
    let planted = step_saying("looking for what is planted", || {
        let outcome = fuzzer.planted()?;
        let said = outcome.to_string();
        Ok((outcome, said))
    })?;
    let at_a_time = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(targets.len());
    let summary = Summary {
        seconds_each: args.seconds,
        seed: args.seed,
        at_a_time,
        has_sanitizer: args.sanitizer,
        planted,
        targets: fuzzer.run_all(&targets, args.seconds, at_a_time)?,
    };
    if let Some(path) = &args.json {
        let document = serde_json::to_string_pretty(&summary)?;
        fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{}", render(&summary));
    Ok(summary.targets.iter().all(|outcome| outcome.finding.is_none()))
}

/// Returns the targets that were asked for, checked against the known ones.
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
    seed: Option<u32>,
}

impl Fuzzer {
    /// Looks for the planted mistake.
    fn planted(&self) -> Result<Outcome> {
        let (target, corpus) = PLANTED;
        let outcome = self.fuzz(target, corpus, PLANTED_S)?;
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

    /// Runs targets, each from its corpus, so many at a time; returns their outcomes, in their order.
    fn run_all(&self, targets: &[String], seconds: u32, at_a_time: usize) -> Result<Vec<Outcome>> {
        say(format_args!(
            "fuzzing {} targets for {seconds} s each, {at_a_time} at a time",
            targets.len()
        ));
        let next = AtomicUsize::new(0);
        // Each takes the next that nobody has, until there is none.
        let run_some = || -> Result<Vec<(usize, Outcome)>> {
            let mut outcomes = Vec::new();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(target) = targets.get(place) else {
                    return Ok(outcomes);
                };
                let outcome = self.fuzz(target, target, seconds)?;
                say(format_args!("fuzzing {target}: {outcome}"));
                outcomes.push((place, outcome));
            }
        };
        let mut outcomes = thread::scope(|scope| {
            let runs: Vec<_> = (0..at_a_time).map(|_| scope.spawn(run_some)).collect();
            let ends = runs.into_iter().map(|run| match run.join() {
                Ok(outcomes) => outcomes,
                Err(_) => Err(anyhow!("a thread that ran targets panicked")),
            });
            ends.collect::<Result<Vec<_>>>()
        })?
        .concat();
        outcomes.sort_by_key(|(place, _)| *place);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }

    /// Runs one target from a corpus.
    fn fuzz(&self, target: &str, corpus: &str, seconds: u32) -> Result<Outcome> {
        let seeds = self.folder.join("corpus").join(corpus);
        ensure!(
            fs::read_dir(&seeds).is_ok_and(|mut files| files.next().is_some()),
            "no seed in {}",
            seeds.display()
        );
        let (interesting, artifacts) = (self.interesting(target)?, self.kept("artifacts", target));
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
        if let Some(seed) = self.seed {
            command.arg(format!("-seed={seed}"));
        }
        let dictionary = self.folder.join("dictionaries").join(format!("{corpus}.dict"));
        if dictionary.exists() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        // New inputs go to the first folder.
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

    /// The folder of what is new to a target, which libFuzzer begins with, too. It is emptied where the same is to come of a seed, and for
    /// what is planted, which would be found again at once, without any fuzzing.
    fn interesting(&self, target: &str) -> Result<PathBuf> {
        let what = if self.seed.is_some() { "seeded" } else { "findings" };
        let folder = self.kept(what, target);
        if (self.seed.is_some() || target == PLANTED.0) && folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        Ok(folder)
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

    #[test]
    fn of_a_seed_nothing_is_begun_with_that_an_earlier_run_has_found() {
        let folder = tempfile::tempdir().unwrap();
        let begun_with = |seed, target| {
            let fuzzer = Fuzzer {
                folder: folder.path().to_owned(),
                programs: PathBuf::new(),
                seed,
            };
            let interesting = fuzzer.interesting(target).unwrap();
            let found = fs::read_dir(&interesting).map_or(0, Iterator::count);
            fs::create_dir_all(&interesting).unwrap();
            fs::write(interesting.join("found"), "").unwrap();
            found
        };
        let runs = [Some(1), None, Some(1), None];
        assert_eq!(runs.map(|seed| begun_with(seed, "handle")), [0, 0, 0, 1]);
        assert_eq!(runs.map(|seed| begun_with(seed, PLANTED.0)), [0; 4]);
    }
}
