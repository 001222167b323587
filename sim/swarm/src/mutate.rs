//! Planted mistakes: each patch is put into a copy of the tree, which is built and runs seeds until one fails. A patch whose first line
//! is `caught by: cargo test …` is of code that the swarm does not run: that command has to fail.
//!
//! A mistake that no seed finds shows that an oracle or some kind of work is missing. The unchanged tree has to pass
//! first.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

/// The result of one patch.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Mutation {
    name: String,
    caught: bool,
    /// The seed that failed; none where a run did not end, or the patch could not be tried.
    seed: Option<String>,
    /// Which oracle spoke, or why the patch could not be tried.
    oracle: String,
    /// Seeds until then.
    seeds: u64,
    seconds: f64,
    build_seconds: f64,
}

/// How long a run may take beyond its budget before it counts as one that does not end: a slow case on a busy machine takes less.
const GRACE: Duration = Duration::from_secs(300);

/// A copy of the tree, and what it is built into.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

/// Tries each patch; says what came of it. `None` names all of the repository.
/// `each` gets all so far after each.
pub(crate) fn run(
    patches: &[PathBuf],
    budget: Duration,
    jobs: usize,
    mut each: impl FnMut(&[Mutation]) -> Result<()>,
) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let all = if patches.is_empty() {
        every_patch(&root)?
    } else {
        patches.iter().map(fs::canonicalize).collect::<Result<_, _>>()?
    };
    let home = root.join("target/mutations");
    let copy = Copy {
        tree: home.join("tree"),
        target: home.join("target"),
    };
    copy.refresh(&root)?;
    println!("the tree as it is, for {} s", budget.as_secs());
    let plain = copy.try_seeds("as it is", budget, jobs)?;
    ensure!(
        !plain.caught,
        "without a mutation, {} fails: {}",
        plain.seed.unwrap_or_default(),
        plain.oracle
    );
    let mut mutations = Vec::new();
    for patch in &all {
        let name = patch
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        // One that does not fit, or not build, is told as missed: the others are tried all the same.
        let mutation = copy.plant(patch, &name, budget, jobs)?;
        let verdict = if mutation.caught { "caught" } else { "MISSED" };
        println!(
            "{verdict} {name}: {} ({} seeds, {:.1} s; built in {:.0} s)",
            match &mutation.seed {
                Some(seed) => format!("{} by seed {seed}", mutation.oracle),
                None => mutation.oracle.clone(),
            },
            mutation.seeds,
            mutation.seconds,
            mutation.build_seconds,
        );
        mutations.push(mutation);
        each(&mutations)?;
    }
    let caught = mutations.iter().filter(|mutation| mutation.caught).count();
    println!(
        "{caught} of {} mutations caught, each within {} s",
        mutations.len(),
        budget.as_secs()
    );
    Ok(())
}

/// Whether it was found.
pub(crate) const fn is_caught(mutation: &Mutation) -> bool {
    mutation.caught
}

/// The command that a patch names, behind `cargo`.
fn command_of(patch: &Path) -> Option<String> {
    let text = fs::read_to_string(patch).ok()?;
    let command = text.lines().next()?.strip_prefix("caught by: cargo ")?;
    Some(command.to_owned())
}

fn every_patch(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("sim/mutations"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            found.push(path);
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "there is no patch");
    Ok(found)
}

impl Copy {
    /// Makes it as the tree is; what is the same is left alone, so that it need not be built again.
    fn refresh(&self, root: &Path) -> Result<()> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("cannot run git")?;
        ensure!(listed.status.success(), "git lists no files");
        let mut present = BTreeSet::new();
        for name in listed
            .stdout
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let name = core::str::from_utf8(name)?;
            let (from, to) = (root.join(name), self.tree.join(name));
            let Ok(bytes) = fs::read(&from) else {
                // Listed, and deleted since.
                continue;
            };
            present.insert(to.clone());
            if fs::read(&to).is_ok_and(|there| there == bytes) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&to, bytes).with_context(|| to.display().to_string())?;
        }
        remove_others(&self.tree, &present)
    }

    fn patch(&self, patch: &Path, is_back: bool) -> Result<()> {
        let mut command = Command::new("git");
        command.arg("apply").current_dir(&self.tree);
        // A tree of its own, not a folder of the repository around it.
        command.env(
            "GIT_CEILING_DIRECTORIES",
            self.tree.parent().unwrap_or(&self.tree),
        );
        if is_back {
            command.arg("--reverse");
        }
        let status = command.arg(patch).status().context("cannot run git")?;
        ensure!(status.success(), "{} does not fit the tree", patch.display());
        Ok(())
    }

    /// Tries one patch, and takes it out again.
    fn plant(&self, patch: &Path, name: &str, budget: Duration, jobs: usize) -> Result<Mutation> {
        let tried = match self.patch(patch, false) {
            Ok(()) => {
                let tried = match command_of(patch) {
                    Some(command) => self.try_command(name, &command),
                    None => self.try_seeds(name, budget, jobs),
                };
                self.patch(patch, true)?;
                tried
            }
            Err(error) => Err(error),
        };
        Ok(tried.unwrap_or_else(|error| Mutation {
            name: name.to_owned(),
            oracle: format!("{error:#}"),
            ..Mutation::default()
        }))
    }

    /// Builds what a command tests, and runs it.
    fn try_command(&self, name: &str, command: &str) -> Result<Mutation> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let run = |more: &[&str]| {
            Command::new(&cargo)
                .args(command.split_whitespace())
                .args(more)
                .env("CARGO_TARGET_DIR", &self.target)
                .env("RUSTFLAGS", "-Awarnings")
                .current_dir(&self.tree)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .context("cannot run cargo")
        };
        let began = Instant::now();
        ensure!(run(&["--no-run"])?.success(), "it does not build");
        let build_seconds = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let caught = !run(&[])?.success();
        Ok(Mutation {
            name: name.to_owned(),
            caught,
            seed: None,
            oracle: format!("cargo {command}"),
            seeds: 0,
            seconds: began.elapsed().as_secs_f64(),
            build_seconds,
        })
    }

    /// Builds it and runs seeds.
    fn try_seeds(&self, name: &str, budget: Duration, jobs: usize) -> Result<Mutation> {
        let began = Instant::now();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "--profile",
                "mutation",
                "--package",
                "doorbell-swarm",
                "--target-dir",
            ])
            .arg(&self.target)
            .current_dir(&self.tree)
            .env("RUSTFLAGS", "-Awarnings")
            .status()
            .context("cannot run cargo")?;
        ensure!(built.success(), "it does not build");
        let build_seconds = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let report = self.target.join("report.json");
        let _ = fs::remove_file(&report);
        let mut child = Command::new(self.target.join("mutation/swarm"))
            .args(["swarm", "--first", "0", "--stop"])
            .args(["--minutes", &(budget.as_secs_f64() / 60.0).to_string()])
            .args(["--jobs", &jobs.to_string()])
            .arg("--json")
            .arg(&report)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run what was built")?;
        let (status, is_killed) = loop {
            if let Some(status) = child.try_wait()? {
                break (status, false);
            }
            if began.elapsed() > budget + GRACE {
                child.kill()?;
                break (child.wait()?, true);
            }
            thread::sleep(Duration::from_millis(20));
        };
        let mut mutation = Mutation {
            name: name.to_owned(),
            caught: true,
            seed: None,
            oracle: "a run that does not end".into(),
            seeds: 0,
            seconds: began.elapsed().as_secs_f64(),
            build_seconds,
        };
        match status.code() {
            Some(code @ (0 | 1)) => {
                let text = fs::read_to_string(&report).context("the swarm wrote no report")?;
                let value: serde_json::Value = serde_json::from_str(&text)?;
                let first = &value["failures"][0];
                mutation.caught = code == 1;
                mutation.seed = first["what"].as_str().map(str::to_owned);
                mutation.oracle = first["oracle"].as_str().unwrap_or("nothing").to_owned();
                mutation.seeds = value["seeds"].as_u64().unwrap_or(0);
            }
            Some(code) => bail!("the swarm ended with {code}"),
            None => ensure!(is_killed, "the swarm died: {status}"),
        }
        Ok(mutation)
    }
}

/// Removes the files in a folder that are not present in the tree any more: a module that moved would be there twice.
fn remove_others(folder: &Path, present: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, present)?;
        } else if !present.contains(&path) {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn what_the_tree_has_no_more_leaves_the_copy() {
        let copy = tempfile::tempdir().unwrap();
        let (kept, moved) = (copy.path().join("kept.rs"), copy.path().join("src/moved.rs"));
        fs::create_dir(copy.path().join("src")).unwrap();
        fs::write(&kept, "").unwrap();
        fs::write(&moved, "").unwrap();
        super::remove_others(copy.path(), &BTreeSet::from([kept.clone()])).unwrap();
        assert!(kept.exists() && !moved.exists());
    }

    #[test]
    fn a_patch_names_the_command_that_catches_it_in_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let patch = folder.path().join("patch");
        let command = |text: &str| {
            fs::write(&patch, text).unwrap();
            super::command_of(&patch)
        };
        assert_eq!(command("--- a/x\ncaught by: cargo test\n"), None);
        let named = command("caught by: cargo test -p x\n--- a/x\n");
        assert_eq!(named.as_deref(), Some("test -p x"));
    }

    /// A patch that does not apply plants nothing. Without this test only a run of all patches would report it.
    #[test]
    fn every_patch_fits_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let patches = super::every_patch(&root).unwrap();
        assert!(patches.len() >= 30, "{}", patches.len());
        for patch in patches {
            let fits = Command::new("git")
                .args(["apply", "--check"])
                .arg(patch.canonicalize().unwrap())
                .current_dir(&root)
                .status()
                .unwrap();
            assert!(fits.success(), "{}", patch.display());
        }
    }
}
