//! Builds that are themselves what is tested: by cargo, in the profile `proof`, in the target
//! directory of these tests.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROFILE: &str = "proof";

fn target() -> &'static Path {
    // Cargo has a folder for tests right below it.
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// The folder of programs that are built with these variables.
pub(crate) fn folder(variables: &[(&str, &str)]) -> PathBuf {
    // Apart, so that neither of two tests builds again what the other has built.
    let target = if variables.is_empty() {
        target().to_path_buf()
    } else {
        target().join("with-variables")
    };
    target.join(PROFILE)
}

/// Builds with variables for cargo, with arguments for cargo and, behind `--`, for the last compiler; says whether that succeeded,
/// and what cargo said.
pub(crate) fn build(variables: &[(&str, &str)], what: &[&str], more: &[&str]) -> (bool, String) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .arg("rustc")
        .args(["--profile", PROFILE, "--color", "never", "--target-dir"])
        .arg(folder(variables).parent().unwrap())
        .args(what)
        .args(more)
        .envs(variables.iter().copied())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}
