//! Builds that are themselves what is tested: by cargo, in the profile `proof`, in the target
//! directory of these tests.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROFILE: &str = "proof";

fn target() -> &'static Path {
    // Cargo has a folder for tests right below it.
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Where the programs are put.
pub(crate) fn folder() -> PathBuf {
    target().join(PROFILE)
}

/// Builds, with arguments for cargo and, behind `--`, for the last compiler; says whether that succeeded, and what cargo said.
pub(crate) fn build(what: &[&str], more: &[&str]) -> (bool, String) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .arg("rustc")
        .args(["--profile", PROFILE, "--color", "never", "--target-dir"])
        .arg(target())
        .args(what)
        .args(more)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}
