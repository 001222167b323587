//! Our own programs, and tests that need a device, built for guests.
//!
//! Guests run what is built here as it is: they see this machine's file system.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::native::{SUITES, Suite};
use crate::scenario::Profile;
use crate::{setup, tool};

mod rival;

pub(crate) use rival::Rival;

/// The names of those integration tests that run on a device: `tests/device.rs` and `tests/conformance.rs`.
const DEVICE_TESTS: [&str; 2] = ["device", "conformance"];

/// The packages whose programs and libraries are measured here. They are chosen and have features together whichever of them is built, so that
/// what they share is built once.
const MEASURED: [&str; 4] = [
    "doorbell-proofs",
    "doorbell-benches",
    "doorbell-daemon",
    "doorbell-fake",
];

/// Measured programs are built whole: incremental code has other boundaries of inlining, and takes other counts of instructions.
const INCREMENTAL: (&str, &str) = ("CARGO_INCREMENTAL", "0");

/// Message of cargo about something it has built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds `doorbell`; gives the folder it is in.
///
/// # Errors
///
/// It does not build.
pub(crate) fn build(profile: Profile) -> Result<PathBuf> {
    let built = build_of(&["doorbell-program"], &["--bin", "doorbell"], profile)?;
    let program = built
        .iter()
        .find_map(|artifact| artifact.executable.as_deref())
        .context("cargo has not said where doorbell is")?;
    Ok(program.parent().context("a program without a folder")?.to_owned())
}

/// Builds some of what guests run, of packages and with features as the suite's tests are, so that what both need is built once.
fn as_tested(suite: &Suite, targets: &[&str]) -> Result<Vec<Artifact>> {
    let words: Vec<_> = [&["build"], suite.arguments, targets].concat();
    cargo(&words, "dev")
}

/// Builds some of what is measured here, as an engine builds what it ships.
fn measured(targets: &[&str]) -> Result<Vec<Artifact>> {
    build_of(&MEASURED, targets, Profile::Release)
}

fn build_of(packages: &[&str], targets: &[&str], profile: Profile) -> Result<Vec<Artifact>> {
    let chosen = packages.iter().flat_map(|package| ["--package", package]);
    let words = ["build"].into_iter().chain(chosen);
    let words: Vec<_> = words.chain(targets.iter().copied()).collect();
    cargo(&words, profile.name())
}

/// Builds an example that is measured here; gives its path.
///
/// # Errors
///
/// It does not build.
pub(crate) fn build_example(example: &str) -> Result<PathBuf> {
    build_one("--example", example)
}

/// Builds an example of the plugin for NCCL that is measured here; gives its path.
///
/// # Errors
///
/// It does not build.
pub(crate) fn build_nccl_example(example: &str) -> Result<PathBuf> {
    let built = build_of(&["doorbell-nccl"], &["--example", example], Profile::Release)?;
    executable_of(built, example)
}

/// Builds a program that is measured here; gives its path.
///
/// # Errors
///
/// It does not build.
pub(crate) fn build_program(program: &str) -> Result<PathBuf> {
    build_one("--bin", program)
}

fn build_one(kind: &str, name: &str) -> Result<PathBuf> {
    executable_of(measured(&[kind, name])?, name)
}

fn executable_of(built: Vec<Artifact>, name: &str) -> Result<PathBuf> {
    built
        .into_iter()
        .filter(|artifact| artifact.target.name == name)
        .find_map(|artifact| artifact.executable)
        .with_context(|| format!("cargo has not said where {name} is"))
}

/// Builds the program by a rival; gives its path.
///
/// # Errors
///
/// It does not build: it needs what is not installed.
pub(crate) fn build_rival(rival: Rival) -> Result<PathBuf> {
    match rival {
        Rival::Sideway | Rival::Ibverbs => build_crate(rival),
        Rival::OpenMpi => build_mpi(),
    }
}

/// Builds the program by MPI, with what is installed for that first.
fn build_mpi() -> Result<PathBuf> {
    setup::install_missing(|need| need.package == "libopenmpi-dev")
        .context("Open MPI cannot be compared with")?;
    let workspace = workspace()?;
    let folder = workspace.join("target/lab/rivals");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (source, program) = (
        workspace.join("ffi/rivals/mpi/all_to_all.c"),
        folder.join("all-to-all"),
    );
    let mut compile = Command::new("mpicc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    tool::output_of(compile.arg(&program).arg(source))?;
    Ok(program)
}

/// Builds the program by a crate.
fn build_crate(rival: Rival) -> Result<PathBuf> {
    let folder = workspace()?.join("ffi/rivals");
    let built = cargo_in(
        &folder,
        &["build", "--features", rival.name()],
        Profile::Release.name(),
    );
    let built = built.with_context(|| {
        format!(
            "the crate {} does not build here; Debian has what it needs in cmake, libclang-dev, libnl-3-dev and \
             libnl-route-3-dev",
            rival.name()
        )
    })?;
    let name = format!("rival-{}", rival.name());
    built
        .into_iter()
        .filter(|artifact| artifact.target.name == name)
        .find_map(|artifact| artifact.executable)
        .with_context(|| format!("cargo has not said where {name} is"))
}

/// Builds a shared library that is measured with; gives its path.
///
/// # Errors
///
/// It does not build.
pub(crate) fn build_library(library: &str) -> Result<PathBuf> {
    let built = build_of(&["doorbell-fake"], &["--lib"], Profile::Release)?;
    built
        .into_iter()
        .filter(|artifact| artifact.target.name == library)
        .flat_map(|artifact| artifact.filenames)
        .find(|file| file.extension().is_some_and(|extension| extension == "so"))
        .with_context(|| format!("cargo has not said where {library} is"))
}

/// Runs a benchmark of a package; gives what it printed.
///
/// # Errors
///
/// It does not build, or fails.
pub(crate) fn run_bench(package: &str, bench: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program());
    command
        .current_dir(workspace()?)
        .env(INCREMENTAL.0, INCREMENTAL.1)
        .args(["bench", "--quiet", "--package", package, "--bench", bench, "--"])
        .args(arguments);
    tool::output_of(&mut command)
}

/// Builds the examples as tests are built; gives the folder they are in.
///
/// # Errors
///
/// One does not build, or there are none.
pub(crate) fn build_examples() -> Result<PathBuf> {
    let built = as_tested(&SUITES[0], &["--examples"])?;
    let program = built
        .iter()
        .find_map(|artifact| artifact.executable.as_deref())
        .context("doorbell has no examples")?;
    Ok(program
        .parent()
        .context("an example without a folder")?
        .to_owned())
}

/// Builds the tests that run on a device; gives a folder with each as `PACKAGE-TEST`.
///
/// # Errors
///
/// One does not build, or there are none.
pub(crate) fn build_tests() -> Result<PathBuf> {
    let [device, conformance] = DEVICE_TESTS;
    let targets = ["--test", device, "--test", conformance];
    let mut built = as_tested(&SUITES[0], &targets)?;
    built.extend(as_tested(&SUITES[1], &["--test", device])?);
    let mut folder = None;
    for artifact in &built {
        let test = artifact.target.name.as_str();
        if !DEVICE_TESTS.contains(&test) {
            continue;
        }
        let (Some(program), Some(package)) = (&artifact.executable, package(&artifact.manifest_path)) else {
            continue;
        };
        // Cargo puts a hash into the name; beside it, in the same file system, is one that lasts.
        let folder = folder.get_or_insert(
            program
                .parent()
                .context("a test without a folder")?
                .join("device-tests"),
        );
        fs::create_dir_all(&*folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let named = folder.join(format!("{package}-{test}"));
        if named.exists() {
            fs::remove_file(&named).with_context(|| format!("cannot replace {}", named.display()))?;
        }
        fs::hard_link(program, &named).with_context(|| format!("cannot make {}", named.display()))?;
    }
    folder.context("no package has tests that need a device")
}

/// The name in a package's manifest.
pub(crate) fn package(manifest: &Path) -> Option<String> {
    let text = fs::read_to_string(manifest).ok()?;
    let manifest: toml::Table = text.parse().ok()?;
    Some(manifest.get("package")?.get("name")?.as_str()?.to_owned())
}

/// Runs cargo in the workspace; gives what it has built.
fn cargo(arguments: &[&str], profile: &str) -> Result<Vec<Artifact>> {
    cargo_in(workspace()?, arguments, profile)
}

/// Runs cargo in a package's folder.
fn cargo_in(folder: &Path, arguments: &[&str], profile: &str) -> Result<Vec<Artifact>> {
    let mut command = Command::new(program());
    if profile == Profile::Release.name() {
        command.env(INCREMENTAL.0, INCREMENTAL.1);
    }
    let output = command
        .current_dir(folder)
        .args(arguments)
        .args([
            "--profile",
            profile,
            "--message-format",
            "json-render-diagnostics",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "`cargo {}` failed ({})",
        arguments.join(" "),
        output.status
    );
    // Lines about anything else are no artifacts.
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// The cargo that runs this, or else the one in `PATH`.
pub(crate) fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The folder of the workspace.
///
/// # Errors
///
/// None but that this package has been moved out of it.
pub(crate) fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("no workspace")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use regex::Regex;
    use serde_json::Value;

    use super::{DEVICE_TESTS, program, workspace};
    use crate::tool;

    /// Returns the programs of each folder that guests can run: `examples/echo`, for one.
    fn built() -> Vec<String> {
        let mut metadata = Command::new(program());
        metadata.current_dir(workspace().unwrap()).args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ]);
        let metadata: Value = serde_json::from_str(&tool::output_of(&mut metadata).unwrap()).unwrap();
        let default = metadata["workspace_default_members"].as_array().unwrap();
        let mut built = vec!["bin/doorbell".to_owned()];
        for package in metadata["packages"].as_array().unwrap() {
            let name = package["name"].as_str().unwrap();
            let is_default = default.contains(&package["id"]);
            for target in package["targets"].as_array().unwrap() {
                let (kind, target) = (&target["kind"][0], target["name"].as_str().unwrap());
                match kind.as_str() {
                    Some("example") if is_default => built.push(format!("examples/{target}")),
                    Some("test") if DEVICE_TESTS.contains(&target) => {
                        built.push(format!("tests/{name}-{target}"))
                    }
                    _ => {}
                }
            }
        }
        built
    }

    /// The programs of a scenario that no build for guests makes, each behind its line.
    fn unbuilt(text: &str, built: &[String]) -> Vec<String> {
        let named = Regex::new(r"\{(bin|examples|tests)\}/([\w-]+)").unwrap();
        let mut unbuilt = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            for name in named.captures_iter(line) {
                let name = format!("{}/{}", &name[1], &name[2]);
                if !built.contains(&name) {
                    unbuilt.push(format!("{number}: no {name} is built"));
                }
            }
        }
        unbuilt
    }

    #[test]
    fn every_program_of_a_scenario_is_built() {
        let built = built();
        let mut folder = Vec::new();
        for entry in fs::read_dir(workspace().unwrap().join("sim/scenarios")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let faults = unbuilt(&fs::read_to_string(&path).unwrap(), &built);
                folder.extend(
                    faults
                        .into_iter()
                        .map(|fault| format!("{}:{fault}", path.display())),
                );
            }
        }
        assert!(folder.is_empty(), "{folder:#?}");
        let planted =
            "command = [\"{bin}/doorbell\"]\nexec {examples}/echo-task\n{tests}/doorbell-ffi-device";
        assert_eq!(unbuilt(planted, &built), ["2: no examples/echo-task is built"]);
    }
}
