//! Keys that are changed while the program runs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Resource, prlimit};

use crate::started::{Running, ended, program};

const OLD: &str = "1:6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19\n";
const NEW: &str = "2:bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd196a09e667\n";

/// Puts a file of keys there in one step, as it is to be done.
pub(crate) fn put(path: &Path, text: &str, mode: u32) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, Permissions::from_mode(mode)).unwrap();
    fs::rename(&beside, path).unwrap();
}

/// Returns the refusal that a client with these keys gets. No message gets from one process to another here, so that it fails in
/// any case: after so many seconds, unless it is refused.
fn refusal(address: &str, keys: &Path, timeout_s: &str) -> String {
    let keys = keys.to_str().unwrap();
    let client = [
        "lat",
        address,
        "--key-file",
        keys,
        "--op",
        "send",
        "--timeout",
        timeout_s,
    ];
    let (code, said) = ended(program(&client), Stdio::null());
    assert_eq!(code, Some(1), "{said}");
    said
}

#[test]
fn a_listener_takes_the_keys_of_the_moment() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, old, new]: [PathBuf; 3] = ["ours", "old", "new"].map(|name| folder.path().join(name));
    put(&ours, OLD, 0o600);
    put(&old, OLD, 0o600);
    put(&new, NEW, 0o600);
    let listen = ["lat", "--listen", "127.0.0.1:0", "--keep", "--timeout", "2"];
    let listener = Running::start(program(
        &[&listen[..], &["--key-file", ours.to_str().unwrap()]].concat(),
    ));
    let line = listener.line_with("listening at ");
    let address = line
        .strip_prefix("listening at ")
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    const NOT_THAT: &str = "it does not have that key";
    let is_refused = |keys: &Path| refusal(address, keys, "20").contains(NOT_THAT);
    let is_let_in = |keys: &Path| !refusal(address, keys, "2").contains(NOT_THAT);
    assert!(is_let_in(&old));
    assert!(is_refused(&new));

    // One after the other, each reported once: others may read it, it is not there, it has no keys.
    put(&ours, NEW, 0o644);
    listener.line_with("the keys stay as they are: ");
    fs::remove_file(&ours).unwrap();
    listener.line_with("the keys stay as they are: ");
    put(&ours, "2:1011", 0o600);
    listener.line_with("the keys stay as they are: ");
    assert!(is_let_in(&old));
    assert!(is_refused(&new));

    put(&ours, NEW, 0o600);
    assert!(listener.line_with("keys in force from now on").ends_with("[2]"));
    assert!(is_refused(&old));
    assert!(is_let_in(&new));
}

/// It is not the file's fault, and does not show in it.
#[test]
fn keys_that_could_not_be_read_for_a_moment_are_taken_later() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    put(&ours, OLD, 0o600);
    let listen = ["lat", "--listen", "127.0.0.1:0", "--keep", "--timeout", "2"];
    let listener = Running::start(program(
        &[&listen[..], &["--key-file", ours.to_str().unwrap()]].concat(),
    ));
    listener.line_with("listening at ");
    let process = Pid::from_raw(i32::try_from(listener.id()).unwrap());
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let mut none = limit;
    none.current = Some(0);
    prlimit(process, Resource::Nofile, none).unwrap();
    put(&ours, NEW, 0o600);
    listener.line_with("the keys stay as they are: ");
    prlimit(process, Resource::Nofile, limit).unwrap();
    assert!(listener.line_with("keys in force from now on").ends_with("[2]"));
}
