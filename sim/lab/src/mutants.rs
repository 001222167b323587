//! `cargo lab mutants`: wrong lines that a tool makes which knows nothing of this project, and what catches each.
//!
//! `cargo mutants` makes them and runs the tests of their own package. Seeds of the swarm run for those that survive, then the tests of all
//! packages. The rest has to stand in the list of survivors, with the reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::scenario::aligned;
use crate::steps::say;
use crate::{leash, programs};

mod record;
mod tool;

use record::Record;
use tool::{Mutant, Outcome, Tests};

/// Arguments of `cargo lab mutants`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MutantsArgs {
    /// Only mutants of these files, which may be patterns as in `core/src/wire/*.rs`
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// Only mutants of lines that were changed since this commit
    #[arg(long, value_name = "COMMIT", conflicts_with = "since_record")]
    since: Option<String>,
    /// Only mutants of lines that were changed since the day of the last try, which the list of survivors names
    #[arg(long)]
    since_record: bool,
    /// Try the mutants of the list of survivors, and no others: one that is caught by now has to leave the list
    #[arg(long)]
    listed: bool,
    /// Only each Nth mutant, from the Kth on, as in 0/8
    #[arg(long, value_name = "K/N", value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// Try so many at most, drawn by a hash of their names
    #[arg(long, value_name = "N")]
    most: Option<usize>,
    /// How long seeds of the swarm run for each that the tests of its package let through; 0 leaves the swarm out
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=3600))]
    budget: u64,
    /// Leave out the tests of other packages, which take a minute or more for each
    #[arg(long)]
    quick: bool,
    /// Write what came of it as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/');
    let parts = parts.and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parts
        .filter(|(k, n)| k < n)
        .ok_or_else(|| format!("a part is K/N with K below N, as 0/8, not {text:?}"))
}

/// The end of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum End {
    Unviable,
    /// By the tests of its own package.
    ByTests,
    BySwarm,
    /// By a test of another package, or by one that is not in the library.
    ByOtherTests,
    /// By nothing, as the list of survivors says.
    Known,
    Survived,
}

/// How many mutants ended in each way, of one folder or of all.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    mutants: usize,
    unviable: usize,
    by_tests: usize,
    by_swarm: usize,
    by_other_tests: usize,
    known: usize,
    survived: usize,
}

impl Counts {
    const fn add(&mut self, end: End) {
        let count = match end {
            End::Unviable => &mut self.unviable,
            End::ByTests => &mut self.by_tests,
            End::BySwarm => &mut self.by_swarm,
            End::ByOtherTests => &mut self.by_other_tests,
            End::Known => &mut self.known,
            End::Survived => &mut self.survived,
        };
        *count = count.saturating_add(1);
        self.mutants = self.mutants.saturating_add(1);
    }

    /// The part of those that build which nothing catches, in tenths of a percent.
    fn uncaught_permille(&self) -> usize {
        let viable = self.mutants.saturating_sub(self.unviable);
        let uncaught = self.known.saturating_add(self.survived);
        uncaught.saturating_mul(1000).checked_div(viable).unwrap_or(0)
    }
}

/// The ends of all mutants, counted.
#[derive(Debug, Serialize)]
struct Summary {
    budget_seconds: u64,
    has_other_tests: bool,
    listed: usize,
    of_folders: BTreeMap<String, Counts>,
    all: Counts,
    survivors: Vec<String>,
}

/// Tries mutants; whether each was caught or is in the list.
///
/// # Errors
///
/// `cargo mutants` cannot be had or run, or the tree as it is fails.
pub(crate) fn run(args: &MutantsArgs) -> Result<bool> {
    let workspace = programs::workspace()?;
    let out = workspace.join("target/mutants");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let record = Record::read(workspace)?;
    let diff = difference(args, workspace, &out)?;
    if diff
        .as_deref()
        .is_some_and(|diff| fs::read(diff).is_ok_and(|diff| diff.is_empty()))
    {
        say("no line was changed since");
        write_json(args, &summarized(&[], 0, args))?;
        return Ok(true);
    }
    tool::install()?;
    let listed = tool::list(&args.files, diff.as_deref())?;
    let (known, unknown) = parted(&listed, &record, workspace)?;
    let chosen = chosen(if args.listed { &known } else { &unknown }, args);
    say(format_args!(
        "{} of {} mutants, {} of which the list has",
        chosen.len(),
        listed.len(),
        known.len()
    ));
    let mut ends = ends(&chosen, args, &out)?;
    if !args.listed && args.shard.is_none() && args.most.is_none() {
        ends.extend(known.iter().map(|mutant| (*mutant, End::Known)));
    }
    let summary = summarized(&ends, listed.len(), args);
    write_json(args, &summary)?;
    print!("{}", render(&summary));
    for (mutant, _) in ends.iter().filter(|(_, end)| *end == End::Survived) {
        print!(
            "\n# {}\n{}",
            mutant.name,
            record::entry(mutant, &mutant.line(workspace)?)
        );
    }
    println!(
        "{} mutants tried, {} not caught; {} are listed in {}",
        summary.all.mutants,
        summary.survivors.len(),
        record.len(),
        record::FILE
    );
    if args.listed {
        for (mutant, _) in ends.iter().filter(|(_, end)| *end != End::Survived) {
            println!("caught by now, and still in the list: {}", mutant.name);
        }
        return Ok(ends.len() == summary.survivors.len());
    }
    Ok(summary.survivors.is_empty())
}

/// Counts what became of all.
fn summarized(ends: &[(&Mutant, End)], listed: usize, args: &MutantsArgs) -> Summary {
    let mut summary = Summary {
        budget_seconds: args.budget,
        has_other_tests: !args.quick,
        listed,
        of_folders: BTreeMap::new(),
        all: Counts::default(),
        survivors: Vec::new(),
    };
    for (mutant, end) in ends {
        summary.of_folders.entry(mutant.folder()).or_default().add(*end);
        summary.all.add(*end);
        if *end == End::Survived {
            summary.survivors.push(mutant.name.clone());
        }
    }
    summary
}

/// The mutants that the list has, and the others.
fn parted<'m>(
    listed: &'m [Mutant],
    record: &Record,
    workspace: &Path,
) -> Result<(Vec<&'m Mutant>, Vec<&'m Mutant>)> {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for mutant in listed {
        match record.has(mutant, &mutant.line(workspace)?) {
            true => known.push(mutant),
            false => unknown.push(mutant),
        }
    }
    Ok((known, unknown))
}

/// The file with what was changed, where only that is meant.
fn difference(args: &MutantsArgs, workspace: &Path, out: &Path) -> Result<Option<PathBuf>> {
    let since = match (&args.since, args.since_record) {
        (Some(commit), _) => commit.clone(),
        (None, true) => {
            let is_shallow = git(workspace, &["rev-parse", "--is-shallow-repository"])?;
            ensure!(
                is_shallow.trim() == "false",
                "the clone has no history: `git fetch --unshallow`"
            );
            let commit = git(
                workspace,
                &[
                    "log",
                    "-1",
                    "--format=%H",
                    "-G",
                    record::TRIED,
                    "--",
                    record::FILE,
                ],
            )?;
            let commit = commit.trim().to_owned();
            ensure!(
                !commit.is_empty(),
                "no commit says when mutants were tried, in {}",
                record::FILE
            );
            commit
        }
        (None, false) => return Ok(None),
    };
    let path = out.join("since.diff");
    let diff = git(
        workspace,
        &["diff", &since, "HEAD", "--", "core/src", "hotpath/src", "src"],
    )?;
    fs::write(&path, diff).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Some(path))
}

fn git(workspace: &Path, arguments: &[&str]) -> Result<String> {
    crate::tool::output_of(Command::new("git").current_dir(workspace).args(arguments))
}

/// Returns the mutants to try, in their order.
fn chosen<'m>(all: &[&'m Mutant], args: &MutantsArgs) -> Vec<&'m Mutant> {
    let (first, every) = args.shard.unwrap_or((0, 1));
    let mut part: Vec<(usize, &Mutant)> = all
        .iter()
        .copied()
        .skip(first)
        .step_by(every)
        .enumerate()
        .collect();
    // By name, so that the draw of one line does not depend on other lines.
    part.sort_by_key(|(_, mutant)| Sha256::digest(format!("{}: {}", mutant.file, mutant.change())));
    part.truncate(args.most.unwrap_or(usize::MAX));
    part.sort_by_key(|(index, _)| *index);
    part.into_iter().map(|(_, mutant)| mutant).collect()
}

/// Tries mutants by tests and by the swarm; gives the end of each.
fn ends<'m>(chosen: &[&'m Mutant], args: &MutantsArgs, out: &Path) -> Result<Vec<(&'m Mutant, End)>> {
    let mut ends = Vec::new();
    let mut left = chosen.to_vec();
    for (package, tests) in tool::PACKAGES {
        let of_it: Vec<&Mutant> = left
            .iter()
            .copied()
            .filter(|mutant| mutant.package == package)
            .collect();
        left.retain(|mutant| mutant.package != package);
        let tests = Tests {
            name: package,
            packages: &[package],
            arguments: &[tests],
        };
        left.extend(by_tests(&of_it, tests, End::ByTests, out, &mut ends)?);
    }
    let left = by_swarm(left, args, out, &mut ends)?;
    let left = match args.quick {
        true => left,
        false => {
            let tests = Tests {
                name: "all packages",
                packages: &["doorbell-core", "doorbell-hotpath", "doorbell-sim", "doorbell"],
                arguments: &["--tests"],
            };
            by_tests(&left, tests, End::ByOtherTests, out, &mut ends)?
        }
    };
    ends.extend(left.into_iter().map(|mutant| (mutant, End::Survived)));
    Ok(ends)
}

/// Tries mutants by tests; gives those that they let through.
fn by_tests<'m>(
    left: &[&'m Mutant],
    tests: Tests<'_>,
    caught: End,
    out: &Path,
    ends: &mut Vec<(&'m Mutant, End)>,
) -> Result<Vec<&'m Mutant>> {
    let outcomes = tool::try_all(left, tests, out)?;
    let mut missed = Vec::new();
    for mutant in left.iter().copied() {
        let outcome = outcomes.iter().find(|(tried, _)| tried.name == mutant.name);
        match outcome.map(|(_, outcome)| *outcome) {
            Some(Outcome::CaughtMutant | Outcome::Timeout) => ends.push((mutant, caught)),
            Some(Outcome::Unviable) => ends.push((mutant, End::Unviable)),
            Some(Outcome::MissedMutant | Outcome::Success | Outcome::Failure) => missed.push(mutant),
            None => bail!("{} was not tried", mutant.name),
        }
    }
    Ok(missed)
}

/// The swarm's report, as far as it is about planted mistakes.
#[derive(Deserialize)]
struct Swarm {
    mutations: Vec<Planted>,
}

#[derive(Deserialize)]
struct Planted {
    name: String,
    caught: bool,
}

/// Has the swarm look for mutants; gives those that it does not find.
fn by_swarm<'m>(
    left: Vec<&'m Mutant>,
    args: &MutantsArgs,
    out: &Path,
    ends: &mut Vec<(&'m Mutant, End)>,
) -> Result<Vec<&'m Mutant>> {
    if left.is_empty() || args.budget == 0 {
        return Ok(left);
    }
    let folder = out.join("patches");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // The report of an earlier run is none of this one's.
    let report = out.join("swarm.json");
    let _ = fs::remove_file(&report);
    let mut command = leash::tied(programs::program());
    command
        .args([
            "run",
            "--quiet",
            "--profile",
            "lab",
            "--package",
            "doorbell-swarm",
            "--",
            "swarm",
        ])
        .args(["--budget", &args.budget.to_string(), "--json"])
        .arg(&report)
        .current_dir(programs::workspace()?);
    for (index, mutant) in left.iter().enumerate() {
        say(format_args!("{index} is {}", mutant.name));
        let path = folder.join(format!("{index}.patch"));
        fs::write(&path, mutant.patch()).with_context(|| format!("cannot write {}", path.display()))?;
        command.arg("--mutate").arg(&path);
    }
    // Its status says whether all were caught.
    let status = command.status().context("cannot run cargo")?;
    ensure!(
        matches!(status.code(), Some(0 | 1)),
        "the swarm ended with {status}"
    );
    let text = fs::read(&report).with_context(|| format!("the swarm ended with {status}"))?;
    let Swarm { mutations } = serde_json::from_slice(&text)?;
    let is_caught = |index: usize| {
        let name = index.to_string();
        mutations
            .iter()
            .any(|planted| planted.name == name && planted.caught)
    };
    let mut missed = Vec::new();
    for (index, mutant) in left.into_iter().enumerate() {
        match is_caught(index) {
            true => ends.push((mutant, End::BySwarm)),
            false => missed.push(mutant),
        }
    }
    Ok(missed)
}

/// Writes the report as JSON, if it was asked for.
fn write_json(args: &MutantsArgs, summary: &Summary) -> Result<()> {
    let Some(path) = &args.json else { return Ok(()) };
    let document = serde_json::to_string_pretty(summary)?;
    fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))
}

/// The table.
fn render(summary: &Summary) -> String {
    let head = [
        "",
        "mutants",
        "do not build",
        "by tests",
        "by the swarm",
        "by other tests",
        "listed",
        "survived",
        "not caught",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let all = ("all".to_owned(), summary.all);
    for (folder, counts) in summary
        .of_folders
        .iter()
        .map(|(folder, counts)| (folder.clone(), *counts))
        .chain([all])
    {
        let permille = counts.uncaught_permille();
        let mut row = vec![folder];
        let numbers = [
            counts.mutants,
            counts.unviable,
            counts.by_tests,
            counts.by_swarm,
            counts.by_other_tests,
            counts.known,
            counts.survived,
        ];
        row.extend(numbers.map(|number| number.to_string()));
        row.push(format!(
            "{}.{} %",
            permille.wrapping_div(10),
            permille.wrapping_rem(10)
        ));
        rows.push(row);
    }
    aligned(
        &rows,
        &[true, false, false, false, false, false, false, false, false],
    )
}

#[cfg(test)]
mod tests {
    use super::{Counts, End, shard};

    #[test]
    fn a_part_is_below_the_number_of_parts() {
        assert_eq!(shard("0/8"), Ok((0, 8)));
        assert_eq!(shard("7/8"), Ok((7, 8)));
        for wrong in ["8/8", "1", "a/b", "-1/2", "/"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_part_that_is_not_caught_is_of_those_that_build() {
        let mut counts = Counts::default();
        assert_eq!(counts.uncaught_permille(), 0);
        for end in [
            End::Unviable,
            End::ByTests,
            End::BySwarm,
            End::Known,
            End::Survived,
        ] {
            counts.add(end);
        }
        assert_eq!((counts.mutants, counts.uncaught_permille()), (5, 500));
    }
}
