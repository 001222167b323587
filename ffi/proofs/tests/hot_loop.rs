//! The programs that run the whole data path, as they are and with what must not be planted.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

/// Requests of a run with something planted: few are enough to find it.
const FEW: &str = "2000";

/// Setting of the fake by which bytes of a WRITE land in no order, as rxe promises none: see `doorbell_fake`.
const RELAXED: [(&str, &str); 1] = [("DOORBELL_FAKE_ORDER", "relaxed")];

/// Words of a program about the rings: for bytes that land in order, and for bytes that do not.
const BY_TRAILERS: &str = "rings are published by trailers";
const BY_IMMEDIATES: &str = "rings are published by immediates";

fn run(program: &str, arguments: &[&str]) -> (Output, String) {
    run_with(program, arguments, &[])
}

fn run_with(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("DOORBELL_FAKE_ORDER");
    let output = command.envs(variables.iter().copied()).output().unwrap();
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
    for (variables, rings) in [(&[][..], BY_TRAILERS), (&RELAXED, BY_IMMEDIATES)] {
        let (output, said) = run_with(env!("CARGO_BIN_EXE_allocations"), &[], variables);
        assert!(says(&output, "0 calls of the allocator, "), "{said}");
        assert!(says(&output, rings), "{said}");
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn an_allocation_is_found() {
    for variables in [&[][..], &RELAXED] {
        let arguments = ["--requests", FEW, "--plant"];
        let (output, said) = run_with(env!("CARGO_BIN_EXE_allocations"), &arguments, variables);
        // It is made, and it is freed.
        assert!(says(&output, "2 calls of the allocator, "), "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
    }
}

/// Runs a program until it says so, ten times at most.
///
/// The kernel moves pages of a process where it wants larger ones, and the next touch of such a page is a fault, too. A page that is not in
/// place, however, is touched in every run.
fn run_until(wanted: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (Output, String) {
    let run = || run_with(env!("CARGO_BIN_EXE_page_faults"), arguments, variables);
    let mut ran = run();
    for _ in 1..10 {
        if !says(&ran.0, wanted) {
            println!("again: {}", ran.1);
            ran = run();
        }
    }
    ran
}

#[test]
fn no_page_is_touched_for_the_first_time() {
    for (variables, rings) in [(&[][..], BY_TRAILERS), (&RELAXED, BY_IMMEDIATES)] {
        let (output, said) = run_until("0 minor page faults, 0 major, ", &[], variables);
        assert!(says(&output, "0 minor page faults, 0 major, "), "{said}");
        assert!(says(&output, rings), "{said}");
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn a_first_touch_is_found() {
    let planted = ["--requests", FEW, "--plant"];
    let (output, said) = run_until("1 minor page faults, 0 major, ", &planted, &[]);
    assert!(says(&output, "1 minor page faults, 0 major, "), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn no_system_call_is_made() {
    for (variables, rings) in [(&[][..], BY_TRAILERS), (&RELAXED, BY_IMMEDIATES)] {
        let (output, said) = run_with(env!("CARGO_BIN_EXE_system_calls"), &[], variables);
        assert!(output.status.success(), "{said}");
        assert!(says(&output, rings), "{said}");
        assert!(output.stdout.ends_with(b"\nno system call\n"), "{said}");
    }
}

#[test]
fn a_system_call_is_fatal() {
    let (output, said) = run(
        env!("CARGO_BIN_EXE_system_calls"),
        &["--requests", FEW, "--plant"],
    );
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{said}");
    assert!(!says(&output, "no system call"), "{said}");
}

#[test]
fn a_long_busy_wait_asks_the_clock_without_a_system_call() {
    let (output, said) = run(env!("CARGO_BIN_EXE_system_calls"), &["--requests", FEW]);
    if says(&output, "SKIPPED") {
        eprintln!(
            "SKIPPED: a_long_busy_wait_asks_the_clock_without_a_system_call: here it is one to read the clock"
        );
        return;
    }
    assert!(says(&output, "waits look at the clock"), "{said}");
    assert!(output.status.success(), "{said}");
}
