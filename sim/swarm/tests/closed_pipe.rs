//! The program ends silently when nobody reads its output any more.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

#[test]
fn who_reads_no_further_is_no_error() {
    let (ours, read) = UnixStream::pair().unwrap();
    drop(read);
    let output = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["replay", "1"])
        .stdout(OwnedFd::from(ours))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said), (Some(141), String::new()));
}
