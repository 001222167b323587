//! Tests of the name of a process that is stopped while its daemon ends and the next one starts.

use core::time::Duration;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Child;

use doorbell::within;
use doorbell_daemon::{
    AttachRefusal, Client, ClientError, EndpointEvent, JobKey, JobNumber, UndeliveredReason,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{Daemon, at, attach, process, process_of, receives, request, soon, until};

/// A user without processes here.
const NOBODY: u32 = 65_534;

/// Starts a daemon whose processes may take this long to attach again. All users may attach.
fn start(folder: &Path, reattach_within: Duration) -> Daemon {
    Daemon::start(|config| {
        config.socket = folder.join("socket");
        config.mode = 0o666;
        config.reattach_within = reattach_within;
    })
}

/// Starts the next daemon while an echo process is stopped. Returns the daemon, the client that
/// attached to it, and the process.
fn restarted(folder: &Path, part: &str, reattach_within: Duration) -> (Daemon, Client, Child) {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let first = start(folder, Duration::ZERO);
    let mut client = attach(&first.socket, 0);
    let echo = process(part, &first.socket);
    client.send(at(1), b"they met").unwrap();
    receives(&mut client);
    let pid = pid(&echo);
    kill_process(pid, Signal::STOP).unwrap();
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    drop(first.stop());
    let next = start(folder, reattach_within);
    until(&mut client, "the next daemon", |event| {
        matches!(event, EndpointEvent::Restarted { .. })
    });
    (next, client, echo)
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// Returns the reason why a request is refused.
fn refused(socket: &Path, request: &doorbell_daemon::AttachRequest) -> AttachRefusal {
    match Client::attach(socket, request, soon()) {
        Err(ClientError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_that_was_stopped_has_its_name_again_and_no_stranger_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (next, mut client, mut echo) = restarted(folder.path(), "echo", Duration::from_secs(120));
    client.send(at(1), b"waits").unwrap();
    client.poll(|_| {}).unwrap();
    // The same name with another key, of another job, and of another user.
    let mut strange = request(1);
    strange.key = JobKey([9; 16]);
    assert_eq!(refused(&next.socket, &strange), AttachRefusal::JobKey);
    strange.job = JobNumber(2);
    let mut stranger = Client::attach(&next.socket, &strange, soon()).unwrap();
    let foreign = rustix::process::geteuid()
        .is_root()
        .then(|| process_of("echo", &next.socket, |command| command.uid(NOBODY).gid(NOBODY)));
    if foreign.is_none() {
        eprintln!("skipped in part: only root has processes of other users");
    }
    for one in [&mut client, &mut stranger] {
        let moment = within(Duration::from_millis(50));
        one.wait(moment, |event| panic!("{event:?}")).unwrap();
    }
    kill_process(pid(&echo), Signal::CONT).unwrap();
    until(&mut client, "what waited", |event| match event {
        EndpointEvent::Received { from, message } => {
            assert_eq!((from, message), (at(1), &b"waits"[..]));
            true
        }
        event => panic!("{event:?}"),
    });
    assert_eq!(refused(&next.socket, &request(1)), AttachRefusal::NameTaken);
    for mut child in foreign.into_iter() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    echo.kill().unwrap();
    echo.wait().unwrap();
}

#[test]
fn the_name_of_a_process_that_is_away_for_too_long_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let (next, mut client, echo) = restarted(folder.path(), "hasty echo", Duration::ZERO);
    client.send(at(1), b"for nobody").unwrap();
    until(&mut client, "its end", |event| match event {
        EndpointEvent::Undelivered { reason, .. } => reason == UndeliveredReason::NoEndpoint,
        event => panic!("{event:?}"),
    });
    let mut other = attach(&next.socket, 1);
    kill_process(pid(&echo), Signal::CONT).unwrap();
    let ended = echo.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("Refused(NameTaken)"),
        "{said}"
    );
    client.send(at(1), b"for the other").unwrap();
    client.poll(|_| {}).unwrap();
    receives(&mut other);
}
