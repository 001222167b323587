//! Readers that stop: of the log and the metrics of the node daemon, and of the log of the broker. Processes and containers go on.

use core::time::Duration;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;

use doorbell::{now, within};
use doorbell_daemon::{Client, DaemonStatus, EndpointEvent};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, kill_process};

use crate::serve::{at, attach, report};
use crate::started::{PATIENCE, Started, program};

/// Fills a standard error of which this is a copy.
fn fill(stderr: &UnixStream) {
    while send(stderr, &[b'x'; 512], SendFlags::DONTWAIT).is_ok() {}
    while send(stderr, b"x", SendFlags::DONTWAIT).is_ok() {}
}

/// Waits until a daemon, whose log is not read, serves at a socket.
fn await_daemon(socket: &Path) {
    let deadline = within(PATIENCE);
    while DaemonStatus::ask(socket, deadline).is_err() {
        assert!(!deadline.has_passed(now()), "no daemon");
        sleep(Duration::from_millis(10));
    }
}

/// Sends a message to itself.
fn exchange(client: &mut Client) {
    client.send(at(client.address().endpoint), b"to itself").unwrap();
    let (deadline, mut came) = (within(PATIENCE), 0);
    while came == 0 {
        let woken = client.wait(deadline, |event| {
            came += u32::from(matches!(event, EndpointEvent::Received { .. }));
        });
        assert!(woken.unwrap(), "no message");
    }
}

fn attached(socket: &Path, endpoint: u32) -> Client {
    let mut client = attach(socket, endpoint);
    exchange(&mut client);
    client
}

#[test]
fn a_log_and_metrics_that_nobody_reads_hold_up_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let output = tempfile::NamedTempFile::new().unwrap();
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--node", "7"];
    let more = ["--log", "info", "--metrics", "127.0.0.1:0", "--json"];
    // As the journal is one.
    let (log, stderr) = UnixStream::pair().unwrap();
    log.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = program(&[&words[..], &more].concat());
    command.stdout(output.reopen().unwrap());
    command.stderr(OwnedFd::from(stderr.try_clone().unwrap()));
    let mut daemon = Started(command.spawn().unwrap());
    let mut log = BufReader::new(log);
    let mut until = |words: &str| {
        loop {
            let mut line = Vec::new();
            assert!(
                log.read_until(b'\n', &mut line).unwrap() > 0,
                "{words:?} is not there"
            );
            let line = String::from_utf8(line).unwrap();
            if line.contains(words) {
                return line;
            }
        }
    };
    until("serving at ");
    let metrics = until("metrics at http://");
    fill(&stderr);
    let scrapers: Vec<_> = (0..20)
        .map(|_| {
            let mut scraper = TcpStream::connect(metrics.split('/').nth(2).unwrap()).unwrap();
            let _ = scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
            scraper
        })
        .collect();
    let mut clients: Vec<_> = (0..3).map(|number| attached(&socket, number)).collect();
    // The lines that waited come once there is room.
    for number in 0..3 {
        let line = until("process attached");
        assert!(line.ends_with(&format!(" endpoint={number}\n")), "{line}");
    }
    fill(&stderr);
    clients.pop().unwrap().detach().unwrap();
    clients.iter_mut().for_each(exchange);
    // The end waits for no reader either.
    let pid = Pid::from_raw(i32::try_from(daemon.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(daemon.code(), Some(0));
    let report = report(output.path());
    assert_eq!(
        (&report["attached"], &report["local_messages"]),
        (&3.into(), &5.into())
    );
    drop(scrapers);
}

#[test]
fn a_daemon_whose_log_nobody_reads_ends_by_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let words = ["serve", "--socket", socket.to_str().unwrap()];
    let daemon = || {
        let mut command = program(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let _first = Started(daemon().spawn().unwrap());
    await_daemon(&socket);
    // The error is the first line of the second, which cannot listen there.
    let (_log, stderr) = UnixStream::pair().unwrap();
    fill(&stderr);
    let mut second = daemon();
    second.stderr(OwnedFd::from(stderr));
    assert_eq!(Started(second.spawn().unwrap()).code(), Some(1));
}

#[test]
fn a_log_that_takes_nothing_ends_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--node", "7"];
    let mut command = program(&[&words[..], &["--log", "info"]].concat());
    command.stdout(Stdio::null());
    command.stderr(File::options().write(true).open("/dev/full").unwrap());
    let _daemon = Started(command.spawn().unwrap());
    await_daemon(&socket);
    attached(&socket, 0).detach().unwrap();
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_container_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, policy] = ["socket", "policy"].map(|name| folder.path().join(name));
    std::fs::write(&policy, "devices = ['none']\n").unwrap();
    let words = ["broker", "--listen", socket.to_str().unwrap()];
    let (log, stderr) = UnixStream::pair().unwrap();
    let mut command = program(&[&words[..], &["--policy", policy.to_str().unwrap()]].concat());
    command.stderr(OwnedFd::from(stderr.try_clone().unwrap()));
    let mut broker = Started(command.spawn().unwrap());
    let mut first = String::new();
    BufReader::new(&log).read_line(&mut first).unwrap();
    assert!(first.contains("serves container runtimes at "), "{first}");
    fill(&stderr);
    // More than there are places.
    for _ in 0..200 {
        let mut runtime = UnixStream::connect(&socket).unwrap();
        runtime.set_read_timeout(Some(PATIENCE)).unwrap();
        // One without a place is closed at once.
        let _ = runtime.write_all(b"no container");
        let _ = runtime.shutdown(Shutdown::Write);
        let ended = runtime.read(&mut [0]);
        let is_over = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(
            ended.as_ref().map_or_else(is_over, |bytes| *bytes == 0),
            "{ended:?}"
        );
    }
    let pid = Pid::from_raw(i32::try_from(broker.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(broker.code(), Some(0));
}
