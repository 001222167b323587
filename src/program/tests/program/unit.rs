//! The unit of systemd for the node daemon, and its word that it is ready.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::started::{PATIENCE, Running, program};

const UNIT: &str = include_str!("../../systemd/doorbell.service");

/// Runs a tool on the unit, whose program is the one that was built. `None` if there is no such tool.
fn analyzed(arguments: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("doorbell.service");
    std::fs::write(
        &unit,
        UNIT.replace("/usr/bin/doorbell", env!("CARGO_BIN_EXE_doorbell")),
    )
    .unwrap();
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .arg(&unit)
        .output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: there is no systemd-analyze");
        return None;
    };
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    // Versions before 250 look at units that systemd has loaded, and at no files.
    if told.contains("unrecognized option") {
        eprintln!("SKIPPED: this systemd-analyze does not know one of {arguments:?}");
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {told}");
    Some(told)
}

#[test]
fn systemd_takes_each_line_of_the_unit() {
    if let Some(told) = analyzed(&["verify", "--man=no"]) {
        // A word that it does not know is no failure there.
        assert!(!told.contains("doorbell.service"), "{told}");
    }
}

#[test]
fn the_unit_leaves_the_daemon_little() {
    // From 0 to 100. Without the options of hardening it is 92.
    analyzed(&["security", "--offline=true", "--threshold=25"]);
}

#[test]
fn systemd_is_told_once_the_daemon_serves_and_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let manager = UnixDatagram::bind(at("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut told = [0; 64];
        let length = manager.recv(&mut told).unwrap();
        String::from_utf8_lossy(&told[..length]).into_owned()
    };
    let socket = at("socket");
    let mut command = program(&["serve", "--socket", socket.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", at("notify"));
    command.env("WATCHDOG_USEC", "3000000");
    let daemon = Running::start_to(command, Stdio::null());
    assert_eq!(told(), "READY=1");
    for _ in 0..3 {
        assert_eq!(told(), "WATCHDOG=1", "it is told again and again");
    }
    assert!(is_listening(&socket), "it is said to be ready");
    let stopped = Command::new("kill")
        .arg(daemon.id().to_string())
        .status()
        .unwrap();
    assert!(stopped.success());
    let last = loop {
        let told = told();
        if told != "WATCHDOG=1" {
            break told;
        }
    };
    assert_eq!(last, "STOPPING=1");
}

#[test]
fn systemd_that_reads_nothing_for_a_while_is_told_later() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, notify] = ["socket", "notify"].map(|name| folder.path().join(name));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let fills = || {
        let filler = UnixDatagram::unbound()?;
        filler.set_nonblocking(true)?;
        filler.send_to(b"STATUS=busy", &notify)
    };
    // Each from a socket of its own, whose room does not end first.
    while fills().is_ok() {}
    let mut command = program(&["serve", "--socket", socket.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &notify);
    let daemon = Running::start(command);
    daemon.line_with("READY=1 for the service manager");
    assert!(is_listening(&socket), "it serves");
    let mut told = [0; 64];
    while manager.recv(&mut told).unwrap() != "READY=1".len() {}
    assert!(told.starts_with(b"READY=1"));
}

fn is_listening(socket: &Path) -> bool {
    let kind = rustix::net::SocketType::SEQPACKET;
    let connection = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::connect(&connection, &rustix::net::SocketAddrUnix::new(socket).unwrap()).is_ok()
}
