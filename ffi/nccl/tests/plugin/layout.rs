//! A C program finds the plugin's tables, and agrees with it about every size and offset.

use std::path::Path;
use std::process::Command;

use crate::built;

/// The sizes and offsets of all structures.
const NUMBERS: usize = 196;

#[test]
fn a_c_compiler_agrees_about_every_size_and_offset() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join("nccl-layout");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugin/layout.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(compiler)
        .args(["-std=c99", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let ran = Command::new(&program).arg(built::plugin()).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(told.ends_with(&format!("\n{NUMBERS} numbers agree\n")), "{told}");
}
