//! `doorbell broker`, with a shell as its program and stand-ins as its devices. Hostile programs are in `ffi/sandbox/tests/broker`.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use tempfile::NamedTempFile;

use crate::started::{PATIENCE, Running, ended, program};

/// A policy with one stand-in.
fn policy() -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"devices = ['uverbs0']\n[stand_ins]\nuverbs0 = '/dev/null'\n")
        .unwrap();
    file
}

/// Whether this host can have a sandbox; else the test says that it has not run.
fn is_possible(said: &str) -> bool {
    let steps = [
        "cannot make user and mount namespaces",
        "cannot map the user",
        "cannot hide",
        "cannot drop capabilities",
        "cannot install the filter",
    ];
    let lacks = steps.iter().any(|step| said.contains(step));
    if lacks {
        // Not captured, as the output of a test is.
        let mut out = std::io::stdout();
        writeln!(out, "SKIPPED: UNTESTED: {said}").unwrap();
    }
    !lacks
}

fn run(words: &[&str]) -> (Option<i32>, String) {
    let file = policy();
    let head = ["broker", "--policy", file.path().to_str().unwrap()];
    ended(program(&[&head[..], words].concat()), Stdio::null())
}

#[test]
fn the_broker_ends_as_its_program_does() {
    for (shell, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let (ended, said) = run(&["--", "sh", "-c", shell]);
        if !is_possible(&said) {
            return;
        }
        assert_eq!((ended, said.as_str()), (Some(code), ""), "{shell}");
    }
    let (code, said) = run(&["--counts", "--", "sh", "-c", "test -c /dev/infiniband/uverbs0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("contexts opened: 0, opens refused: 0, nodes found: 1,"),
        "{said}"
    );
    let (code, said) = run(&[
        "--network",
        "none",
        "--",
        "sh",
        "-c",
        "test -c /dev/infiniband/uverbs1",
    ]);
    assert_eq!(code, Some(1), "it is not of the policy: {said}");
}

#[test]
fn a_program_that_cannot_start_and_a_policy_that_is_none_are_errors() {
    let (code, said) = run(&["--", "/nonexistent/program"]);
    if !is_possible(&said) {
        return;
    }
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with("doorbell: cannot execute the program: No such file"),
        "{said}"
    );
    for (words, expected) in [
        (
            &["broker", "--", "true"][..],
            "doorbell: the policy allows no device",
        ),
        (
            &["broker", "--policy", "/nonexistent", "--", "true"],
            "doorbell: /nonexistent: No such file",
        ),
        (
            &["broker", "-d", "a", "--contexts", "513", "--", "true"],
            "doorbell: 513 contexts",
        ),
    ] {
        let (code, said) = ended(program(words), Stdio::null());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.starts_with(expected), "{said}");
    }
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), "devices = ['a']\nqueues = 3\n").unwrap();
    let words = ["broker", "--policy", file.path().to_str().unwrap(), "--", "true"];
    let (code, said) = ended(program(&words), Stdio::null());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("line 2") && said.contains("queues"), "{said}");
}

/// A broker whose program is this shell, and the first line that the program says.
fn shell(text: &str) -> Option<(Running, String)> {
    let file = policy();
    let words = [
        "broker",
        "--policy",
        file.path().to_str().unwrap(),
        "--",
        "sh",
        "-c",
        text,
    ];
    let broker = Running::start(program(&words));
    let said = broker.said().next();
    is_possible(&said).then_some((broker, said))
}

fn of(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

#[test]
fn a_signal_for_the_broker_reaches_the_program() {
    let text = "trap 'exit 7' TERM; echo ready >&2; while :; do sleep 0.01; done";
    let Some((broker, _)) = shell(text) else { return };
    kill_process(of(broker.id()), Signal::TERM).unwrap();
    let (_, status) = waitpid(Some(of(broker.id())), WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(7));
}

#[test]
fn a_program_dies_with_its_broker() {
    let Some((broker, said)) = shell("echo $$ >&2; exec sleep 1000") else {
        return;
    };
    let process = pidfd_open(of(said.parse().unwrap()), rustix::process::PidfdFlags::empty()).unwrap();
    kill_process(of(broker.id()), Signal::KILL).unwrap();
    let begun = Instant::now();
    let mut watched = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec {
        tv_sec: PATIENCE.as_secs().try_into().unwrap(),
        tv_nsec: 0,
    };
    assert_eq!(
        rustix::event::poll(&mut watched, Some(&patience)),
        Ok(1),
        "it lives after {:?}",
        begun.elapsed()
    );
}
