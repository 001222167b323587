//! The programs that run the whole data path, as they are and with what must not be planted.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

/// Where something is planted, it is found however few requests there are.
const FEW: &str = "2000";

fn run(program: &str, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, said)
}

/// Whether a line begins like this.
fn says(output: &Output, wanted: &str) -> bool {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .any(|line| line.starts_with(wanted))
}

#[test]
fn nothing_is_allocated() {
    let (output, said) = run(env!("CARGO_BIN_EXE_allocations"), &[]);
    assert!(says(&output, "0 calls of the allocator, "), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn an_allocation_is_found() {
    let (output, said) = run(env!("CARGO_BIN_EXE_allocations"), &["--requests", FEW, "--plant"]);
    // It is made, and it is freed.
    assert!(says(&output, "2 calls of the allocator, "), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn no_page_is_touched_for_the_first_time() {
    let (output, said) = run(env!("CARGO_BIN_EXE_page_faults"), &[]);
    assert!(says(&output, "0 minor page faults, 0 major, "), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_first_touch_is_found() {
    let (output, said) = run(env!("CARGO_BIN_EXE_page_faults"), &["--requests", FEW, "--plant"]);
    assert!(says(&output, "1 minor page faults, 0 major, "), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn no_system_call_is_made() {
    let (output, said) = run(env!("CARGO_BIN_EXE_system_calls"), &[]);
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, b"no system call\n", "{said}");
}

#[test]
fn a_system_call_is_fatal() {
    let (output, said) = run(
        env!("CARGO_BIN_EXE_system_calls"),
        &["--requests", FEW, "--plant"],
    );
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{said}");
    assert!(output.stdout.is_empty(), "{said}");
}
