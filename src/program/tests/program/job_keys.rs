//! `doorbell serve` with the keys of jobs in a file.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use doorbell::within;
use doorbell_daemon::{
    AttachRefusal, AttachRequest, Client, ClientError, EndpointEvent, EndpointLayout, JobKey, JobNumber,
};
use serde_json::Value;

use crate::keys::put;
use crate::serve::{at, attach, status};
use crate::started::{PATIENCE, Running, ended, program};

/// The key of the job that `attach` attaches to.
const KEY: &str = "01010101010101010101010101010101";

/// Returns why a process of another job is refused, if it is.
fn refusal(socket: &Path, job: u64) -> Option<AttachRefusal> {
    let request = AttachRequest {
        job: JobNumber(job),
        key: JobKey([1; 16]),
        endpoint: 9,
        layout: EndpointLayout::default(),
    };
    match Client::attach(socket, &request, within(PATIENCE)) {
        Ok(client) => {
            client.detach().unwrap();
            None
        }
        Err(ClientError::Refused(refusal)) => Some(refusal),
        Err(error) => panic!("{error}"),
    }
}

/// Sends a message to the same process.
fn exchange(client: &mut Client) {
    client.send(at(0), b"to itself").unwrap();
    let mut came = 0;
    while came == 0 {
        let woken = client.wait(within(PATIENCE), |event| {
            came += u32::from(matches!(event, EndpointEvent::Received { .. }));
        });
        assert!(woken.unwrap(), "no message");
    }
}

#[test]
fn a_file_decides_about_jobs_and_is_read_again_while_processes_stay() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, file] = ["socket", "keys"].map(|name| folder.path().join(name));
    put(&file, &format!("1:{KEY}\n"), 0o600);
    let words = ["serve", "--socket", socket.to_str().unwrap(), "--node", "7"];
    let more = ["--job-keys", file.to_str().unwrap()];
    let daemon = Running::start(program(&[&words[..], &more].concat()));
    daemon.line_with("serving at ");
    let mut client = attach(&socket, 0);
    exchange(&mut client);
    assert_eq!(refusal(&socket, 2), Some(AttachRefusal::UnlistedJob));
    let (report, _) = status(&socket, &["--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["daemon"]["job_keys_by_file"], true, "{report}");
    assert!(status(&socket, &[]).0.contains("\nkeys of jobs: from a file\n"));

    // An invalid file changes nothing.
    put(&file, &format!("# two\n2 {KEY}\n"), 0o600);
    let why = daemon.line_with("the job keys stay as they are: ");
    assert!(
        why.ends_with("keys: line 2 is not a key: there is no colon after a job"),
        "{why}"
    );
    assert_eq!(refusal(&socket, 1), None);
    put(&file, &format!("2:{KEY}\n"), 0o600);
    daemon.line_with("keys: keys in force from now on: 1 jobs");
    // The server's thread takes them soon. Before, the process attaches, or the name is not free yet.
    let deadline = within(PATIENCE);
    while refusal(&socket, 1) != Some(AttachRefusal::UnlistedJob) {
        assert!(!deadline.has_passed(doorbell::now()), "still attached anew");
    }
    assert_eq!(refusal(&socket, 2), None);
    exchange(&mut client);
    client.detach().unwrap();
}

#[test]
fn a_daemon_with_an_invalid_file_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, file] = ["socket", "keys"].map(|name| folder.path().join(name));
    for (text, mode, why) in [
        (
            format!("1:{KEY}"),
            0o644,
            "keys is not a secret: its mode is 0644",
        ),
        (
            "1:77".to_owned(),
            0o600,
            "keys: line 1 is not a key: the key is not 32 hexadecimal digits",
        ),
    ] {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        // The variable names the file, too.
        let mut command = program(&["serve", "--socket", socket.to_str().unwrap()]);
        command.env("DOORBELL_JOB_KEYS", &file);
        let (code, said) = ended(command, Stdio::null());
        assert!(code == Some(1) && said.contains(why), "{code:?} {said}");
        assert!(!socket.exists());
    }
}
