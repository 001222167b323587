use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use doorbell_daemon::{NodeNumber, Server, ServerConfig};

use super::{answer, ask, attach};

/// Runs a daemon during the call of `run`, which gets the path of its socket.
fn with_daemon(run: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut config = ServerConfig::new(&socket);
    config.node = NodeNumber(5);
    let mut server = Server::bind(&config).unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || server.run(stopped.as_fd()).unwrap());
        // The end of `stop` ends the daemon, also after a panic.
        let _stop = stop;
        run(&socket);
    });
}

#[test]
fn a_message_is_answered() {
    with_daemon(|socket| {
        let [first, second] = [0, 1].map(|endpoint| attach(socket, endpoint).unwrap());
        thread::scope(|scope| {
            let answering = scope.spawn(|| answer(first).unwrap());
            assert_eq!(ask(second).unwrap(), b"hello");
            assert_eq!(answering.join().unwrap(), b"hello");
        });
    });
}

#[test]
fn a_message_to_nobody_is_an_error() {
    with_daemon(|socket| {
        let error = ask(attach(socket, 1).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("endpoint 0 of node 5: "), "{error}");
    });
}

#[test]
fn the_book_has_the_program() {
    let (_, text) = include_str!("main.rs").split_once("//! ```\nuse").unwrap();
    let (shown, _) = text.split_once("\n// The page").unwrap();
    let page = include_str!("../../../../docs/concepts/node-daemon.md");
    assert!(page.contains(&format!("```rust,no_run\nuse{shown}```\n")));
}
