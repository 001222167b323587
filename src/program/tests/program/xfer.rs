//! Files to another process, as far as they get without a device between the two: what is wrong on either side is said, with its name.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::schema;
use crate::started::{PATIENCE, Running, ended, program};

const LISTEN: [&str; 4] = ["xfer", "--listen", "127.0.0.1:0", "--unauthenticated"];

/// The words of a command that has to fail, on standard error and in its report.
fn failure(arguments: &[&str]) -> String {
    let output = tempfile::NamedTempFile::new().unwrap();
    let (code, said) = ended(program(arguments), output.reopen().unwrap().into());
    let said = said + &fs::read_to_string(output.path()).unwrap();
    assert_eq!(code, Some(1), "{arguments:?}: {said}");
    said
}

/// A receiver, and its address.
fn receiver(more: &[&str]) -> (Running, String) {
    let receiver = Running::start(program(&[&LISTEN[..], more].concat()));
    let line = receiver.line_with("listening at ");
    let at = line.strip_prefix("listening at ").unwrap();
    let (address, handle) = at.split_once("; ").unwrap();
    assert!(handle.starts_with("doorbell:"), "{line}");
    (receiver, address.to_owned())
}

fn send(file: &Path, address: &str, more: &[&str]) -> String {
    let words = ["xfer", file.to_str().unwrap(), address];
    failure(&[&words[..], more].concat())
}

fn a_file(folder: &Path) -> std::path::PathBuf {
    let file = folder.join("file");
    fs::write(&file, "bytes").unwrap();
    file
}

#[test]
fn what_cannot_be_sent_is_said_before_any_device_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none");
    for (path, more, why) in [
        (none.as_path(), &[][..], "none: No such file or directory"),
        (folder.path(), &[], "it is a folder"),
        (
            Path::new("/dev/zero"),
            &[],
            "it is a device: --bytes says how much",
        ),
        (
            Path::new("/dev/zero"),
            &["--bytes", "1G", "--memory", "100K"],
            "--memory 102400: less than two chunks",
        ),
    ] {
        let mut command = program(
            &[
                &["xfer", path.to_str().unwrap(), "127.0.0.1", "--unauthenticated"],
                more,
            ]
            .concat(),
        );
        command.env("DOORBELL_LIBIBVERBS", "/no/libibverbs.so");
        let (code, said) = ended(command, Stdio::null());
        assert!(code == Some(1) && said.contains(why), "{path:?}: {said}");
    }
}

#[test]
fn a_place_that_cannot_be_written_to_is_said_before_any_peer_comes() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/out");
    for (out, why) in [
        (folder.path(), "it is a folder: name the file in it"),
        (missing.as_path(), "No such file or directory"),
        (Path::new("/dev/full"), "it is no plain file"),
    ] {
        let said = failure(&[&LISTEN[..], &["--out", out.to_str().unwrap()]].concat());
        assert!(
            said.contains(why) && said.contains(out.to_str().unwrap()),
            "{said}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn memory_that_is_not_there_is_said_before_any_peer_comes() {
    let said = failure(&[&LISTEN[..], &["--memory", "1000000T", "--timeout", "0.3"]].concat());
    assert!(
        said.contains("bytes of memory: ") && said.contains("lower --memory"),
        "{said}"
    );
    assert!(!said.contains("listening at"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = failure(&["xfer", "--listen", &address, "--unauthenticated"]);
    let why = format!("listening at {address}: ");
    assert!(
        said.contains(&why) && said.contains("--listen ADDR:PORT"),
        "{said}"
    );
}

#[test]
fn a_receiver_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = a_file(folder.path());
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let more = ["--unauthenticated", "--timeout", "0.3"];
    let said = send(&file, &free.to_string(), &more);
    assert!(said.contains(&format!("{free}: nobody listens there")), "{said}");
    let said = send(&file, "@no/handle", &more);
    assert!(said.contains("no/handle: no such file after 0.3 s"), "{said}");
    let said = send(&file, "doorbell:nothing", &more);
    assert!(said.contains("doorbell:nothing: "), "{said}");
    let said = failure(&[&LISTEN[..], &["--timeout", "0.3"]].concat());
    assert!(said.contains("no sender came within 0.3 s"), "{said}");
}

#[test]
fn another_key_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = a_file(folder.path());
    let key = |name: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let (code, said) = ended(program(&["keygen", &path]), Stdio::null());
        assert_eq!(code, Some(0), "{said}");
        path
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let listen = ["xfer", "--listen", "127.0.0.1:0", "--key-file", &ours];
    let receiver = Running::start(program(&listen));
    let line = receiver.line_with("listening at ");
    let address = line["listening at ".len()..].split(';').next().unwrap();
    let said = send(&file, address, &["--key-file", &theirs]);
    assert!(said.contains(address) && said.contains("key"), "{said}");
}

/// Bytes do not get from one process to another here: the sender gives up, and says how far it came.
#[test]
fn a_link_that_carries_nothing_ends_by_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let file = a_file(folder.path());
    let out = folder.path().join("out");
    let (_receiver, address) = receiver(&["--out", out.to_str().unwrap()]);
    let said = send(
        &file,
        &address,
        &["--unauthenticated", "--timeout", "1", "--recover-within", "1"],
    );
    let is_named = [
        "was not reached within 1 s",
        "the link ended",
        "no progress for 1 s",
    ];
    assert!(is_named.iter().any(|why| said.contains(why)), "{said}");
    assert!(!out.exists());
}

/// The document of a command that is interrupted once a line with these words is there.
fn interrupted(arguments: &[&str], words: &str) -> Value {
    let output = tempfile::NamedTempFile::new().unwrap();
    let running = Running::start_to(program(arguments), output.reopen().unwrap().into());
    running.line_with(words);
    let process = Pid::from_raw(i32::try_from(running.id()).unwrap()).unwrap();
    kill_process(process, Signal::INT).unwrap();
    let begun = std::time::Instant::now();
    let document: Value = loop {
        assert!(begun.elapsed() < PATIENCE, "no document");
        let text = fs::read_to_string(output.path()).unwrap();
        if let Ok(document) = serde_json::from_str(&text) {
            break document;
        }
        std::thread::sleep(core::time::Duration::from_millis(5));
    };
    schema::check(&document, &mut Default::default());
    assert_eq!(document["error"], "interrupted by a signal");
    assert_eq!(document["passed"], false);
    document
}

#[test]
fn an_interrupt_ends_a_side_that_waits() {
    let document = interrupted(&[&LISTEN[..], &["--json"]].concat(), "listening at ");
    assert_eq!(document["landed_bytes"], 0);
}

#[test]
fn an_interrupt_ends_a_simulated_transfer_with_the_reason() {
    // It would last for hours.
    let arguments = ["xfer", "/dev/zero", "--bytes", "1000G", "--simulated", "--json"];
    let document = interrupted(&arguments, "SIMULATED");
    assert_eq!(document["simulated"], true);
}

#[test]
fn rails_are_limited_by_number_and_by_name() {
    let start = |rails: &str| {
        let mut command = program(&[&LISTEN[..], &["--rails", rails]].concat());
        command.env("DOORBELL_FAKE_DEVICES", "2");
        command
    };
    for rails in ["1", "fake1"] {
        Running::start(start(rails)).line_with("listening at ");
    }
    let (code, said) = ended(start("none*"), Stdio::null());
    assert!(code == Some(1) && said.contains("fake0"), "{said}");
}
