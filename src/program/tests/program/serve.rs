//! The node daemon as it is started, over the fake libibverbs, with real processes that attach to it.

use core::time::Duration;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use doorbell::within;
use doorbell_daemon::{
    AttachRequest, Client, EndpointAddress, EndpointEvent, EndpointLayout, GoneReason, JobKey, JobNumber,
    NodeNumber,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::schema;
use crate::started::{self, PATIENCE, Running, program};

const SOCKET: &str = "DOORBELL_TEST_SOCKET";

pub(crate) fn attach(socket: &Path, endpoint: u32) -> Client {
    let request = AttachRequest {
        job: JobNumber(1),
        key: JobKey([1; 16]),
        endpoint,
        layout: EndpointLayout::default(),
    };
    Client::attach(socket, &request, within(PATIENCE)).unwrap()
}

pub(crate) fn at(endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(7),
        endpoint,
    }
}

/// Ends a daemon, and returns its report.
fn ended(daemon: &Running, output: &Path) -> Value {
    let pid = Pid::from_raw(i32::try_from(daemon.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    report(output)
}

/// The report of a daemon that ends.
pub(crate) fn report(output: &Path) -> Value {
    let deadline = within(PATIENCE);
    loop {
        let text = std::fs::read_to_string(output).unwrap();
        if let Ok(report) = serde_json::from_str::<Value>(&text) {
            return report;
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(!deadline.has_passed(doorbell::now()), "no report: {text}");
    }
}

/// A process that sends back what comes, until it is killed. It is this program again.
#[test]
fn part_of_an_echo() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let mut client = attach(&PathBuf::from(socket), 1);
    std::io::stderr().write_all(b"R").unwrap();
    loop {
        let mut back = Vec::new();
        let woken = client.wait(within(PATIENCE), |event| {
            if let EndpointEvent::Received { from, message } = event {
                back.push((from, message.to_vec()));
            }
        });
        woken.unwrap();
        for (from, message) in back {
            client.send(from, &message).unwrap();
        }
    }
}

#[test]
fn processes_attach_exchange_and_learn_of_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("made/socket");
    let output = tempfile::NamedTempFile::new().unwrap();
    let words = [
        "serve",
        "--socket",
        socket.to_str().unwrap(),
        "--node",
        "7",
        "--json",
    ];
    let more = ["--listen", "127.0.0.1:0", "--unauthenticated"];
    let daemon = Running::start_to(
        program(&[&words[..], &more].concat()),
        output.reopen().unwrap().into(),
    );
    assert!(
        daemon.line_with("doorbell:").starts_with("doorbell:"),
        "its handle"
    );
    daemon.line_with("serving at ");

    let mut client = attach(&socket, 0);
    let mut echo = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve::part_of_an_echo", "--nocapture"])
        .env(SOCKET, &socket)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    echo.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let deadline = within(PATIENCE);
    for number in 0..50_u8 {
        client.send(at(1), &[number]).unwrap();
        let mut came = Vec::new();
        while came.is_empty() {
            let event = client.wait(deadline, |event| match event {
                EndpointEvent::Received { from, message } => came.push((from, message.to_vec())),
                event => panic!("{event:?}"),
            });
            assert!(event.unwrap(), "no echo");
        }
        assert_eq!(came, [(at(1), vec![number])]);
    }
    echo.kill().unwrap();
    let mut ends = Vec::new();
    while ends.is_empty() {
        let event = client.wait(deadline, |event| {
            if let EndpointEvent::Gone { who, reason } = event {
                ends.push((who, reason));
            }
        });
        assert!(event.unwrap(), "no end");
    }
    assert_eq!(ends, [(at(1), GoneReason::Died)]);
    echo.wait().unwrap();
    client.detach().unwrap();

    let report = ended(&daemon, output.path());
    schema::check(&report, &mut BTreeSet::new());
    assert_eq!(report["command"], "serve", "{report}");
    assert_eq!(
        (&report["attached"], &report["local_messages"]),
        (&2.into(), &100.into()),
        "{report}"
    );
}

#[test]
fn a_daemon_that_is_to_leave_its_handle_listens() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, handle] = ["socket", "handle"].map(|name| folder.path().join(name));
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--unauthenticated"];
    let more = ["--handle-file", handle.to_str().unwrap()];
    let daemon = Running::start(program(&[&words[..], &more].concat()));
    let own = daemon.line_with("doorbell:");
    daemon.line_with("serving at ");
    let deadline = within(PATIENCE);
    while !handle.exists() {
        std::thread::sleep(Duration::from_millis(5));
        assert!(!deadline.has_passed(doorbell::now()), "no handle");
    }
    assert_eq!(std::fs::read_to_string(handle).unwrap().trim(), own);
}

#[test]
fn a_handle_file_that_is_half_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, handle] = ["socket", "handle"].map(|name| folder.path().join(name));
    std::fs::write(&handle, "doorbell:").unwrap();
    let peer = format!("2=@{}", handle.display());
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--unauthenticated"];
    let more = ["--listen", "127.0.0.1:0", "--peer", &peer];
    let daemon = Running::start(program(&[&words[..], &more].concat()));
    let own = daemon.line_with("doorbell:");
    daemon.line_with("serving at ");
    // It serves, so it has read the file.
    let client = attach(&socket, 0);
    // A whole handle: its own, for want of another one.
    std::fs::write(&handle, own).unwrap();
    client.detach().unwrap();
}

#[test]
fn another_daemon_takes_over_and_the_processes_come_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let words = [
        "serve",
        "--socket",
        socket.to_str().unwrap(),
        "--node",
        "7",
        "--json",
    ];
    let outputs = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    let first = Running::start_to(program(&words), outputs[0].reopen().unwrap().into());
    first.line_with("serving at ");
    let mut client = attach(&socket, 0);
    let epoch = client.epoch();
    let replacing = program(&[&words[..], &["--replace"]].concat());
    let second = Running::start_to(replacing, outputs[1].reopen().unwrap().into());
    second.line_with("serving at ");
    first.line_with("another daemon takes over");
    assert_eq!(report(outputs[0].path())["replaced"], true);
    let deadline = within(PATIENCE);
    while client.epoch() == epoch {
        client.wait(deadline, |_| {}).unwrap();
    }
    client.send(at(0), b"to itself").unwrap();
    let mut came = 0;
    while came == 0 {
        let woken = client.wait(deadline, |event| {
            came += u32::from(matches!(event, EndpointEvent::Received { .. }));
        });
        assert!(woken.unwrap(), "no message");
    }
    client.detach().unwrap();
    let report = ended(&second, outputs[1].path());
    let counts = [&report["attached"], &report["local_messages"]];
    assert_eq!(counts, [1, 1], "{report}");
    assert_eq!(report["replaced"], false);
}

#[test]
fn a_daemon_that_cannot_begin_replaces_none() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, keys] = ["socket", "keys"].map(|name| folder.path().join(name));
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--node", "7"];
    let first = Running::start(program(&words));
    first.line_with("serving at ");
    std::fs::write(&keys, "no keys").unwrap();
    let keys = keys.to_str().unwrap();
    for (more, why) in [
        (&["--listen", "127.0.0.1:0", "--key-file", keys][..], keys),
        // The address is for documentation, and no host has it.
        (
            &["--listen", "192.0.2.1:0", "--unauthenticated"],
            "listening at 192.0.2.1:0: ",
        ),
    ] {
        let second = program(&[&words[..], &["--replace"], more].concat());
        let (code, said) = started::ended(second, Stdio::null());
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
    let mut client = attach(&socket, 0);
    client.send(at(0), b"to itself").unwrap();
    let mut came = 0;
    while came == 0 {
        let woken = client.wait(within(PATIENCE), |event| {
            came += u32::from(matches!(event, EndpointEvent::Received { .. }));
        });
        assert!(woken.unwrap(), "no message");
    }
    client.detach().unwrap();
    drop(first);
}

/// The metrics at an address.
fn scraped(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_daemon_takes_over_the_port_of_the_metrics_or_serves_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    // The port is chosen by the first daemon, which the next ones name.
    let start = |port: &str, more: &[&str]| {
        let words = ["serve", "--socket", socket.to_str().unwrap(), "--metrics", port];
        let daemon = Running::start(program(&[&words[..], more].concat()));
        daemon.line_with("serving at ");
        daemon
    };
    let first = start("127.0.0.1:0", &[]);
    let metrics = first.line_with("metrics at http://");
    let address = metrics.split('/').nth(2).unwrap();
    let second = start(address, &["--replace"]);
    first.line_with("another daemon takes over");
    second.line_with("metrics at http://");
    let client = attach(&socket, 0);
    let deadline = within(PATIENCE);
    // Figures are up to 200 ms old.
    let answer = loop {
        let answer = scraped(address);
        if answer.contains("doorbell_daemon_processes 1\n") {
            break answer;
        }
        assert!(!deadline.has_passed(doorbell::now()), "{answer}");
    };
    assert!(
        !answer.contains("uid="),
        "no user's figures are for all: {answer}"
    );
    client.detach().unwrap();
    // The port is another program's, and the word for the service manager goes nowhere.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--replace"];
    let port = taken.local_addr().unwrap().to_string();
    let mut third = program(&[&words[..], &["--metrics", &port]].concat());
    third.env("NOTIFY_SOCKET", folder.path().join("nobody"));
    let third = Running::start(third);
    third.line_with("serving at ");
    third.line_with("metrics at 127.0.0.1:");
    third.line_with("READY=1 for the service manager");
    attach(&socket, 0).detach().unwrap();
}

/// Output of `doorbell status` for the daemon at a socket, and its exit code.
pub(crate) fn status(socket: &Path, more: &[&str]) -> (String, Option<i32>) {
    let words = ["status", "--socket", socket.to_str().unwrap(), "--once"];
    let output = program(&[&words[..], more].concat()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn the_state_of_a_daemon_is_shown_scraped_and_logged() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let (failure, code) = status(&socket, &["--json"]);
    let failure: Value = serde_json::from_str(&failure).unwrap();
    schema::check(&failure, &mut BTreeSet::new());
    assert_eq!((code, &failure["passed"]), (Some(1), &false.into()));
    let why = failure["error"].as_str().unwrap();
    assert!(
        why.starts_with("no daemon at ") && why.contains("doorbell serve"),
        "{why}"
    );

    let words = [
        "serve",
        "--socket",
        socket.to_str().unwrap(),
        "--node",
        "7",
        "--log",
        "info",
    ];
    let more = [
        "--metrics",
        "127.0.0.1:0",
        "--metrics-jobs",
        "--listen",
        "127.0.0.1:0",
        "--unauthenticated",
    ];
    let daemon = Running::start(program(&[&words[..], &more].concat()));
    let own = daemon.line_with("doorbell:");
    daemon.line_with("serving at ");
    let metrics = daemon.line_with("metrics at http://");
    let address = metrics.split('/').nth(2).unwrap().to_owned();
    let mut client = attach(&socket, 3);
    daemon.line_with("process attached");
    client.send(at(3), b"to itself").unwrap();
    let mut came = 0;
    while came == 0 {
        client.wait(within(PATIENCE), |_| came += 1).unwrap();
    }
    let (report, code) = status(&socket, &["--json"]);
    assert_eq!(code, Some(0), "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["daemon"]["job_keys_by_file"], false);
    schema::check(&report, &mut BTreeSet::new());
    let of_daemon = &report["daemon"];
    let counts = [
        "node",
        "processes",
        "attached",
        "local_messages",
        "taken_bytes",
        "dropped",
    ];
    assert_eq!(
        counts.map(|name| of_daemon[name].as_u64().unwrap()),
        [7, 1, 1, 1, 9, 0],
        "{report}"
    );
    let endpoint = &report["endpoints"][0];
    let names = [
        "endpoint",
        "pid",
        "submitted",
        "sent_bytes",
        "reported",
        "received_bytes",
        "in_flight",
    ];
    let expected = [3, std::process::id().into(), 1, 9, 1, 9, 0];
    assert_eq!(
        names.map(|name| endpoint[name].as_u64().unwrap()),
        expected,
        "{report}"
    );
    assert!(
        endpoint["sent_bytes_per_second"].is_null(),
        "there is no interval yet"
    );
    let (text, _) = status(&socket, &[]);
    assert!(
        text.contains("node 7, up ") && text.contains("0 arrived = 0 answered + 0 waiting + 0 dropped"),
        "{text}"
    );
    let pid = std::process::id().to_string();
    let is_row = |line: &str| {
        let mut cells = line.split_whitespace();
        cells.next() == Some("3") && cells.any(|cell| cell == pid)
    };
    assert!(text.lines().any(is_row), "{text}");

    let deadline = within(PATIENCE);
    // Figures are up to 200 ms old.
    loop {
        let answer = scraped(&address);
        if answer.contains("doorbell_daemon_job_sent_bytes_total{uid=") {
            for line in [
                "doorbell_daemon_processes 1",
                "doorbell_daemon_dropped_messages 0",
                "doorbell_daemon_messages_total{way=\"local\"} 1",
                "doorbell_links{state=\"connected\"} 0",
            ] {
                assert!(answer.lines().any(|is| is == line), "{line}: {answer}");
            }
            break;
        }
        assert!(!deadline.has_passed(doorbell::now()), "{answer}");
    }
    assert!(own.contains("doorbell:"));
    client.detach().unwrap();
    daemon.line_with("process gone");
}
