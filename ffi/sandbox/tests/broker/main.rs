//! Programs under the broker, on stand-ins for devices: `uverbs0` is `/dev/null` and allowed, `uverbs1` is `/dev/zero` and denied.
//!
//! A test starts this program again as a broker, which starts it again as the program in the sandbox.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod containers;
mod program;

use core::time::Duration;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use doorbell_broker::{BrokerError, LaunchError, Network, Policy, Program, Step, run};

/// Names the part of a program, for this program started again.
const PART: &str = "DOORBELL_TEST_PART";
const CONTEXTS: &str = "DOORBELL_TEST_CONTEXTS";

/// A program that hangs is a failure then. No program takes as long.
const PATIENCE: Duration = Duration::from_secs(300);

const POLICY: &str = "devices = ['uverbs0']\n\
                      [stand_ins]\n\
                      uverbs0 = '/dev/null'\n\
                      uverbs1 = '/dev/zero'\n";

/// This program again, with one of its tests alone.
fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let is_here = ["part_of_a_broker", "part_of_a_program"].contains(&test);
    let test = if is_here {
        test.to_owned()
    } else {
        format!("containers::{test}")
    };
    command.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
    command
}

/// The broker of a test. It is this program again.
#[test]
fn part_of_a_broker() {
    if std::env::var_os(CONTEXTS).is_none() {
        return;
    }
    let mut policy = Policy::parse(POLICY).unwrap();
    policy.contexts = std::env::var(CONTEXTS).unwrap().parse().unwrap();
    let command = again("part_of_a_program");
    let program = Program {
        program: command.get_program().to_owned(),
        arguments: command.get_args().map(ToOwned::to_owned).collect(),
        namespaces: Some(Network::Host),
        snapshot: b"{}\n".to_vec(),
    };
    let own = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = own();
    let ended = run(&policy, &program);
    assert_eq!(own(), before, "descriptors of the program are left behind");
    match ended {
        Ok(report) => println!("ended as {:?}, {:?}", report.end, report.counts),
        Err(BrokerError::Launch(LaunchError { step, error })) if is_lacking(step, &error) => {
            println!("LACKS {step:?}: {error}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether the host forbids this step or does not have it. Anything else is a fault.
fn is_lacking(step: Step, error: &std::io::Error) -> bool {
    let numbers: &[i32] = match step {
        // No ENOSPC: mounts have sizes of ours.
        Step::Mounts => &[libc::EPERM, libc::EACCES],
        Step::Namespaces | Step::Users | Step::Privileges => {
            &[libc::EPERM, libc::EACCES, libc::ENOSPC, libc::ENOSYS]
        }
        Step::Filter => &[libc::EBUSY, libc::ENOSYS],
        _ => &[],
    };
    error
        .raw_os_error()
        .is_some_and(|number| numbers.contains(&number))
}

/// The program in the sandbox. It is this program again.
#[test]
fn part_of_a_program() {
    if let Ok(part) = std::env::var(PART) {
        program::run(&part);
    }
}

/// Waits for a process with a deadline, and returns how it ended and all that it printed.
fn ended(mut command: Command) -> (ExitStatus, String) {
    let mut output = tempfile::tempfile().unwrap();
    let both = |file: &File| Stdio::from(file.try_clone().unwrap());
    let mut child = command
        .stdout(both(&output))
        .stderr(both(&output))
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    (status.unwrap_or_else(|| panic!("it hangs: {text}")), text)
}

/// Runs a part under a broker that allows this many contexts. The part has to end well, and `expected` to be in what is printed.
fn runs(part: &str, contexts: u32, expected: &str) {
    let mut command = again("part_of_a_broker");
    command.env(PART, part).env(CONTEXTS, contexts.to_string());
    let (status, text) = ended(command);
    if let Some(lack) = text.lines().find(|line| line.contains("LACKS ")) {
        // Not captured, as the output of a test is.
        let said = format!(
            "SKIPPED: UNTESTED: {part}: this host has no user namespaces or no user notification: {lack}\n"
        );
        std::io::stdout().write_all(said.as_bytes()).unwrap();
        return;
    }
    assert!(status.success(), "{text}");
    assert!(text.contains("ended as Exited(0)"), "{text}");
    assert!(text.contains(&format!("part {part} is done")), "{text}");
    assert!(text.contains(expected), "{expected:?}: {text}");
}

#[test]
fn an_allowed_device_is_found_and_opened() {
    runs("allowed", 8, "opened: 2, refused: 0");
}

#[test]
fn a_denied_device_does_not_exist_and_nothing_waits_for_it() {
    runs("denied", 8, "opened: 0, refused: 2");
}

#[test]
fn a_path_that_changes_opens_what_was_decided_about() {
    runs("changing", 4, "");
}

#[test]
fn bad_pointers_are_errors_of_the_program() {
    runs("pointers", 8, "");
}

#[test]
fn a_path_is_read_up_to_the_end_of_its_page() {
    runs("pages", 8, "opened: 1, refused: 1");
}

#[test]
fn the_limit_holds_for_copies_and_children_and_a_close_makes_room() {
    runs("limit", 4, "");
}

#[test]
fn locks_of_open_files_are_refused() {
    runs("locks", 8, "opened: 1, refused: 0");
}

#[test]
fn doorbells_are_rung_on_the_device_alone() {
    runs("doorbells", 8, "doorbells: 0");
}

#[test]
fn a_program_that_is_killed_while_it_opens_leaves_nothing() {
    runs("killed", 2, "");
}

#[test]
fn signals_of_the_program_interrupt_no_answer() {
    runs("signals", 2, "opened: 2000, refused: 0");
}

#[test]
fn threads_of_the_program_open_at_once() {
    runs("threads", 64, "opened: 400, refused: 0");
}

#[test]
fn the_program_has_no_privileges_and_no_nodes() {
    runs("privileges", 8, "opened: 1, refused: 0");
}

#[test]
fn an_orphan_of_the_program_is_answered() {
    runs("orphan", 8, "opened: 1, refused: 0");
}
