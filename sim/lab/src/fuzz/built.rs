//! Building the targets on the stock toolchain: coverage that libFuzzer reads, and where it is asked for AddressSanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use toml::Value;

use crate::programs;
use crate::tool;

/// Flags of the compiler: it counts edges and reports compared values, as libFuzzer expects. Branches are not folded, so the fuzzer meets
/// comparisons one by one. A panic reports its place without line tables, which take longer to build.
const FLAGS: [&str; 8] = [
    "-Cdebuginfo=0",
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// And to watch memory.
const SANITIZER: &str = "-Zsanitizer=address";

/// The targets that the package has.
///
/// # Errors
///
/// There is no such package.
pub(super) fn targets(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let manifest: toml::Table = text.parse()?;
    let programs = manifest.get("bin").and_then(Value::as_array);
    let names: Vec<String> = programs
        .into_iter()
        .flatten()
        .filter_map(|program| Some(program.get("name")?.as_str()?.to_owned()))
        .collect();
    ensure!(!names.is_empty(), "{} has no targets", path.display());
    Ok(names)
}

/// The C++ compiler that libFuzzer is built with; `None` where there is none.
pub(super) fn compiler() -> Option<String> {
    match std::env::var("CXX") {
        Ok(name) => tool::find(&name).map(|_| name),
        Err(_) => tool::find("c++").map(|_| "c++".to_owned()),
    }
}

/// Builds all targets, with AddressSanitizer or without; gives the folder they are in.
///
/// # Errors
///
/// They do not build.
pub(super) fn build(folder: &Path, has_sanitizer: bool) -> Result<PathBuf> {
    let host = host()?;
    // If the workspace was built in this folder, its macros and build scripts are reused: they are built without the flags.
    let mut built_in = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(shared) => PathBuf::from(shared),
        None => folder.with_file_name("target"),
    };
    let mut flags = FLAGS.join(" ");
    if has_sanitizer {
        built_in.push("sanitizer");
        flags.push(' ');
        flags.push_str(SANITIZER);
    }
    let mut command = Command::new(programs::program());
    command
        .current_dir(folder)
        // With a target named, build scripts and macros are built without the flags.
        .args(["build", "--quiet", "--locked", "--target", &host])
        .arg("--target-dir")
        .arg(&built_in)
        .env("RUSTFLAGS", flags);
    if has_sanitizer {
        // The sanitizer is no stable option; the variable changes nothing else.
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    tool::output_of(&mut command)?;
    Ok(built_in.join(host).join("debug"))
}

fn host() -> Result<String> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = tool::output_of(Command::new(compiler).arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say its host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_has_targets() {
        let folder = programs::workspace().unwrap().join("fuzz");
        let names = targets(&folder).unwrap();
        for name in ["handle", "sequence", "planted"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
        assert!(targets(Path::new("/nowhere")).is_err());
    }
}
