//! Tests of the server with its intended clients, and with others.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::{CONVERSATIONS_MAX, MetricsServer};

const ANYWHERE: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
const LONG: Duration = Duration::from_secs(20);

/// Creates a server with a timeout that suffices on a busy machine.
fn patient() -> MetricsServer {
    MetricsServer::start_with(ANYWHERE, LONG, || "a 1\n".into()).unwrap()
}

fn connect(server: &MetricsServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ask(server: &MetricsServer, request: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn whoever_asks_is_told() {
    let server = patient();
    let told = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                Content-Length: 4\r\nConnection: close\r\n\r\n";
    for _ in 0..3 {
        assert_eq!(ask(&server, GET), format!("{told}a 1\n"));
    }
    assert_eq!(ask(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n"), told);
    assert!(ask(&server, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(&server, b"DELETE /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
}

#[test]
fn a_request_may_come_byte_by_byte_and_a_long_answer_goes_out_as_it_is_read() {
    let text = "x 1\n".repeat(2 << 20);
    let expected = text.clone();
    let server = MetricsServer::start_with(ANYWHERE, LONG, move || text.clone()).unwrap();
    let mut stream = connect(&server);
    stream.set_nodelay(true).unwrap();
    for byte in GET {
        stream.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    // A client that does not read does not delay others.
    assert!(ask(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with(&expected) && answer.starts_with("HTTP/1.1 200 "));
}

#[test]
fn what_is_too_long_is_refused_and_the_refusal_arrives() {
    let server = patient();
    let mut stream = connect(&server);
    stream.write_all(&[b'x'; 40_000]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // The server continues to read from a client that sends on, so that no reset arrives before the client reads the answer.
    // The server does not do so forever.
    let mut say_more = || {
        thread::sleep(Duration::from_millis(20));
        stream.write_all(&[b'x'; 8192])
    };
    assert!(say_more().is_ok() && say_more().is_ok());
    assert!((0..100).any(|_| say_more().is_err()));
}

#[test]
fn who_takes_too_long_is_left() {
    let span = Duration::from_secs(1);
    let server = MetricsServer::start_with(ANYWHERE, span, String::new).unwrap();
    let begun = Instant::now();
    // One client sends nothing, and one never completes its request.
    let mut silent = connect(&server);
    let mut endless = connect(&server);
    endless.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    for stream in [&mut silent, &mut endless] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    assert!((span..LONG).contains(&begun.elapsed()));
}

#[test]
fn however_many_are_silent_who_asks_is_told() {
    let server = patient();
    let mut silent: Vec<_> = (0..4 * CONVERSATIONS_MAX).map(|_| connect(&server)).collect();
    assert!(ask(&server, GET).ends_with("a 1\n"));
    // The oldest connections are closed in favour of new ones, long before their timeout.
    let mut nothing = [0];
    let left = silent[0].read(&mut nothing);
    let is_left = left.as_ref().map_or_else(
        |error| error.kind() == ErrorKind::ConnectionReset,
        |count| *count == 0,
    );
    assert!(is_left, "{left:?}");
    assert!(ask(&server, GET).ends_with("a 1\n"));
}

#[test]
fn whatever_comes_who_asks_next_is_told() {
    let server = patient();
    let hostile: [&[u8]; 5] = [
        b"",
        b"\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
    ];
    for bytes in hostile {
        let mut stream = connect(&server);
        stream.write_all(bytes).unwrap();
        drop(stream);
        assert!(ask(&server, GET).ends_with("a 1\n"), "{bytes:?}");
    }
}

#[test]
fn dropped_it_gives_up_the_port() {
    let server = patient();
    let address = server.address();
    let waits = connect(&server);
    drop(server);
    let begun = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(begun.elapsed() < LONG);
        thread::sleep(Duration::from_millis(5));
    }
    drop(waits);
    // A port in use is an error.
    let taken = TcpListener::bind(ANYWHERE).unwrap();
    assert!(MetricsServer::start(taken.local_addr().unwrap(), String::new).is_err());
}

/// The payload of a panic whose destructor panics, too.
struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("the payload's own"));
    }
}

#[test]
fn a_panic_of_the_text_ends_one_answer() {
    let mut asked = 0;
    let render = move || {
        asked += 1;
        if asked % 2 == 1 {
            std::panic::resume_unwind(Box::new(Again));
        }
        "a 1\n".into()
    };
    let server = MetricsServer::start_with(ANYWHERE, LONG, render).unwrap();
    for _ in 0..3 {
        assert!(ask(&server, GET).starts_with("HTTP/1.1 500 Internal Server Error\r\n"));
        assert!(ask(&server, GET).ends_with("\r\n\r\na 1\n"));
    }
}
