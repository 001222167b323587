//! `doorbell broker`, with a shell as its program and stand-ins as its devices. Hostile programs are in `ffi/sandbox/tests/broker`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, waitpid};
use tempfile::NamedTempFile;

use crate::started::{PATIENCE, Running, Started, ended, program};

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
            "doorbell: the policy allows no device; name one in `devices`, or by --device\n",
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

/// A broker whose program is this shell, in a process group of its own, and the first line that the program says.
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
    let mut command = program(&words);
    command.process_group(0);
    let broker = Running::start(command);
    let said = broker.said().next();
    is_possible(&said).then_some((broker, said))
}

fn of(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

/// The next change of a child, by the time there is patience for.
fn changed(child: Pid, options: WaitOptions) -> WaitStatus {
    let begun = Instant::now();
    loop {
        if let Some((_, status)) = waitpid(Some(child), options | WaitOptions::NOHANG).unwrap() {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "the broker neither ends nor stops");
        std::thread::sleep(core::time::Duration::from_millis(2));
    }
}

#[test]
fn a_signal_for_the_broker_reaches_the_program() {
    let text = "trap 'exit 7' TERM; echo ready >&2; while :; do sleep 0.01; done";
    let Some((broker, _)) = shell(text) else { return };
    kill_process(of(broker.id()), Signal::TERM).unwrap();
    let status = changed(of(broker.id()), WaitOptions::empty());
    assert_eq!(status.exit_status(), Some(7));
}

#[test]
fn a_broker_stops_and_goes_on_with_its_program() {
    // As a terminal does, for the program; the broker blocks the signal.
    let text = "echo ready >&2; kill -TSTP $$; test -c /dev/infiniband/uverbs0 && echo on >&2; exit 5";
    let Some((broker, _)) = shell(text) else { return };
    let id = of(broker.id());
    let status = changed(id, WaitOptions::UNTRACED);
    assert!(status.stopped(), "{status:?}");
    kill_process(id, Signal::CONT).unwrap();
    broker.line_with("on");
    assert_eq!(changed(id, WaitOptions::empty()).exit_status(), Some(5));
    // A program that another process stopped for good is no job of a terminal.
    let text =
        "echo ready >&2; while sleep 0.05; kill -CONT $$ 2>/dev/null; do :; done & kill -STOP $$; exit 6";
    let Some((broker, _)) = shell(text) else { return };
    let status = changed(of(broker.id()), WaitOptions::UNTRACED);
    assert_eq!(status.exit_status(), Some(6), "{status:?}");
}

#[test]
fn a_listener_refuses_what_is_no_container_and_ends_by_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("socket"), policy());
    let words = [
        "broker",
        "--listen",
        socket.to_str().unwrap(),
        "--policy",
        file.path().to_str().unwrap(),
    ];
    for _ in 0..2 {
        let broker = Running::start(program(&words));
        broker.line_with("serves container runtimes at ");
        let mut runtime = UnixStream::connect(&socket).unwrap();
        runtime.write_all(b"{\"pid\": 1}").unwrap();
        broker.line_with("refused: this is no container process state: missing field `state`");
        // A second one does not take the place of the first.
        let (code, said) = ended(program(&words), Stdio::null());
        assert_eq!(code, Some(1));
        assert!(
            said.starts_with("doorbell: cannot listen at ") && said.contains("in use"),
            "{said}"
        );
        // One that was killed leaves its socket, which the next takes over.
        kill_process(of(broker.id()), Signal::KILL).unwrap();
        changed(of(broker.id()), WaitOptions::empty());
        assert!(socket.exists());
    }
    let broker = Running::start(program(&words));
    broker.line_with("serves container runtimes at ");
    kill_process(of(broker.id()), Signal::TERM).unwrap();
    assert_eq!(
        changed(of(broker.id()), WaitOptions::empty()).exit_status(),
        Some(0)
    );
    assert!(!socket.exists());
}

#[test]
fn a_listener_without_a_standard_error_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("socket"), policy());
    let words = [
        "broker",
        "--listen",
        socket.to_str().unwrap(),
        "--policy",
        file.path().to_str().unwrap(),
    ];
    // Each write fails there.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut broker = Started(program(&words).stderr(full).spawn().unwrap());
    let id = of(broker.0.id());
    let begun = Instant::now();
    let mut refused = 0;
    while refused < 2 {
        assert!(begun.elapsed() < PATIENCE, "it does not listen");
        assert!(broker.0.try_wait().unwrap().is_none(), "it ended");
        let Ok(mut runtime) = UnixStream::connect(&socket) else {
            std::thread::sleep(core::time::Duration::from_millis(2));
            continue;
        };
        runtime.write_all(b"{\"pid\": 1}").unwrap();
        // It is closed once the event was reported.
        let _ = runtime.read(&mut [0]);
        refused += 1;
    }
    kill_process(id, Signal::TERM).unwrap();
    assert_eq!(changed(id, WaitOptions::empty()).exit_status(), Some(0));
}

#[test]
fn the_part_of_a_config_is_printed_with_the_config_or_alone() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, r#"{"root": {"path": "rootfs"}}"#).unwrap();
    let (out, file) = (folder.path().join("out.json"), policy());
    let words = [
        "broker",
        "--listen",
        "/run/b.sock",
        "--policy",
        file.path().to_str().unwrap(),
        "--oci-config",
    ];
    for (more, root) in [
        (&[][..], None),
        (&["--merge", config.to_str().unwrap()], Some("rootfs")),
    ] {
        let to = Stdio::from(fs::File::create(&out).unwrap());
        let (code, said) = ended(program(&[&words[..], more].concat()), to);
        assert_eq!((code, said.as_str()), (Some(0), ""));
        let printed: serde_json::Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        assert_eq!(printed["root"]["path"].as_str(), root);
        assert_eq!(printed["linux"]["seccomp"]["listenerPath"], "/run/b.sock");
    }
    // One policy for all has no name.
    let named = [&words[..], &["--metadata", "train"]].concat();
    let (code, said) = ended(program(&named), Stdio::null());
    assert!(
        code == Some(1) && said.contains("no folder of policies"),
        "{said}"
    );
    let words = [&words[..], &["--", "true"]].concat();
    let (code, said) = ended(program(&words), Stdio::null());
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
}

#[test]
fn a_topology_is_there_for_the_program_alone_and_cannot_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let text = "cat topology.json; ls class; test -z \"$(ls class/infiniband)\" || exit 3; \
                touch new 2>/dev/null && exit 4; exit 5";
    let text = format!("cd {at} && {{ {text}; }} >&2");
    let (code, said) = run(&["--topology", at, "--", "sh", "-c", &text]);
    if !is_possible(&said) {
        return;
    }
    assert_eq!(code, Some(5), "{said}");
    assert!(
        said.contains("\"ports\":") && said.contains("infiniband_verbs"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "outside it is as it was"
    );
    let (code, said) = run(&["--topology", at, "--no-namespaces", "--", "true"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("without a mount namespace of its own has no topology"),
        "{said}"
    );
    let new = folder.path().join("new");
    let (code, said) = run(&["--write-topology", new.to_str().unwrap()]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(new.join("topology.json").exists() && new.join("class/infiniband").exists());
}

#[test]
fn limits_that_nothing_holds_are_refused_and_pinned_memory_is_limited() {
    let file = NamedTempFile::new().unwrap();
    let head = ["broker", "--policy", file.path().to_str().unwrap()];
    let with = |limits: &str, words: &[&str]| {
        fs::write(file.path(), format!("devices = ['absent']\n{limits}\n")).unwrap();
        ended(program(&[&head[..], words].concat()), Stdio::null())
    };
    let text = "ulimit -Hl >&2";
    let (code, said) = with("pinned_bytes = 8192", &["--", "bash", "-c", text]);
    if !is_possible(&said) {
        return;
    }
    assert_eq!((code, said.trim()), (Some(0), "8"));
    for (limits, words, expected) in [
        (
            "objects = 3",
            &["--", "true"][..],
            "none of the policy's devices, and `objects`",
        ),
        (
            "pinned_bytes = 1",
            &["--no-namespaces", "--", "true"],
            "no limit for a program that keeps its privileges",
        ),
        (
            "objects = 3",
            &["--no-namespaces", "--", "true"],
            "no limit for a program that keeps its privileges",
        ),
        (
            "queue_pairs = 3",
            &["--", "true"],
            "nothing enforces `queue_pairs`",
        ),
    ] {
        let (code, said) = with(limits, words);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
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
