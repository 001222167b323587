//! Output whose reader is gone, or that cannot be written.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use crate::started::{ended, program};

#[test]
fn who_reads_no_further_is_no_error() {
    for arguments in [
        &["config"][..],
        &["config", "--json"],
        &["devices"],
        &["demo", "--simulated"],
    ] {
        let (ours, read) = UnixStream::pair().unwrap();
        drop(read);
        let out = Stdio::from(OwnedFd::from(ours));
        let quietly = (Some(141), String::new());
        assert_eq!(ended(program(arguments), out), quietly, "{arguments:?}");
    }
}

#[test]
fn what_cannot_be_written_is_told_in_a_line() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let told = "failed printing to stdout: No space left on device (os error 28)\n";
    let ended = ended(program(&["config"]), Stdio::from(full));
    assert_eq!(ended, (Some(1), told.to_owned()));
}
