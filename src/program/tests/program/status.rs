//! `doorbell status` as it goes on: what it shows of each interval, and of a node that is gone for a while.

use core::net::SocketAddr;
use std::fs::File;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use serde_json::Value;

use crate::started::{Lines, PATIENCE, Running, program};

/// A node of which metrics are asked, one connection after the other.
struct Node(TcpListener);

impl Node {
    /// An address that no outgoing connection uses. So it is free when the node comes back, and a client that asks
    /// there while it is away does not connect to itself.
    fn begin() -> Self {
        Self::at(([127, 94, 0, 1], 0).into())
    }

    fn at(address: SocketAddr) -> Self {
        Self(TcpListener::bind(address).unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Accepts the next question, and reads all of it.
    fn asked(&self) -> TcpStream {
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let waited = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&patience));
        assert_eq!(waited, Ok(1), "nobody asks");
        let (mut stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut question, mut byte) = (Vec::new(), [0]);
        while !question.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            question.push(byte[0]);
        }
        stream
    }

    /// Answers with metrics that report `relayed` relayed frames.
    fn answers(&self, relayed: u32) {
        let text = format!(
            "doorbell_mesh_members 3\ndoorbell_mesh_reached_members 2\ndoorbell_mesh_relayed_frames_total {relayed}\n"
        );
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
        self.asked().write_all((head + &text).as_bytes()).unwrap();
    }
}

/// Starts `doorbell status` for a node, and returns it with its output.
fn watching(
    node: &Node,
    options: &[&str],
    out: Stdio,
    shown: impl Read + Send + 'static,
) -> (Running, Lines) {
    let address = node.address().to_string();
    let arguments = [&["status", &address, "--interval", "0.1"], options].concat();
    (Running::start_to(program(&arguments), out), Lines::of(shown))
}

/// Both ends of something that is no terminal.
fn pipe() -> (Stdio, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (OwnedFd::from(theirs).into(), ours)
}

/// Returns a terminal as standard output, and its other end.
fn terminal() -> (Stdio, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    (theirs.into(), ours.into())
}

#[test]
fn a_node_that_is_gone_for_a_while_is_asked_until_it_answers_again() {
    let node = Node::begin();
    let (out, shown) = pipe();
    let (running, shown) = watching(&node, &["--json"], out, shown);
    let mesh = || -> Value {
        let report: Value = serde_json::from_str(&shown.next()).unwrap();
        report["mesh"].clone()
    };
    node.answers(10);
    node.answers(30);
    let first = mesh();
    assert_eq!(first["relayed"], 30);
    assert!(first["relayed_per_second"].as_f64().unwrap() > 0.0, "{first}");
    node.answers(30);
    assert_eq!(mesh()["relayed_per_second"], 0.0);

    let address = node.address();
    drop(node);
    let lost = running.said().next();
    assert!(
        lost.starts_with("doorbell: ") && lost.ends_with("; asking again"),
        "{lost}"
    );
    let node = Node::at(address);
    // A server that accepts and answers nothing counts as gone, which is reported already.
    drop(node.asked());
    drop(node.asked());
    node.answers(7);
    node.answers(7);
    assert_eq!(running.said().next(), "doorbell: the node answers again");
    let again = mesh();
    // Counters from before give no rate: they were another process's.
    assert_eq!(
        (&again["relayed"], &again["relayed_per_second"]),
        (&Value::from(7), &Value::from(0.0))
    );

    // Said each time.
    drop(node.asked());
    assert!(running.said().next().ends_with("; asking again"));
    node.answers(8);
    node.answers(8);
    assert_eq!(running.said().next(), "doorbell: the node answers again");
}

#[test]
fn the_remedy_stands_behind_a_long_path_of_a_daemon_that_is_not_there() {
    let path = format!("/nonexistent/{}", "s".repeat(80));
    let running = Running::start(program(&["status", "--socket", &path]));
    let line = running.said().next();
    assert!(
        line.ends_with("or name its socket with --socket; asking again"),
        "{line}"
    );
}

#[test]
fn a_table_takes_the_place_of_the_one_before_on_a_terminal_alone() {
    const CLEAR: &str = "\x1b[H\x1b[J";
    let told = |shown: &Lines, clear: &str| {
        let begin = format!("{clear}mesh: 2 of 3 members reached; passed on ");
        let table = shown.next();
        assert!(table.starts_with(&begin), "{table:?}");
        // A table ends with an empty line.
        assert_eq!(shown.next(), "");
        table
    };
    let node = Node::begin();
    let (out, shown) = terminal();
    let (running, shown) = watching(&node, &[], out, shown);
    node.answers(1);
    for relayed in [2, 3] {
        node.answers(relayed);
        assert!(told(&shown, CLEAR).contains(&format!("passed on {relayed} (")));
    }
    drop(node.asked());
    assert!(running.said().next().ends_with("; asking again"));
    drop(running);

    let (out, shown) = pipe();
    let (_running, shown) = watching(&node, &[], out, shown);
    node.answers(1);
    node.answers(2);
    told(&shown, "");
    // The next is at once.
    node.answers(3);
    told(&shown, "");
}
