//! Libraries that tests make of a source file.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a source to a shared library, with the compiler that compiled this test.
pub(crate) fn shared_library(source: &Path, output: &Path, allowed: &[&str]) {
    let beside_cargo = Path::new(env!("CARGO")).with_file_name("rustc");
    let rustc = if beside_cargo.is_file() {
        beside_cargo
    } else {
        PathBuf::from("rustc")
    };
    let status = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib"])
        .args(allowed.iter().map(|lint| format!("-A{lint}")))
        .arg("-o")
        .arg(output)
        .arg(source)
        .status()
        .unwrap();
    assert!(status.success(), "the stand-in does not compile");
}
