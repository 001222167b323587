//! Jobs whose keys are in a file, which changes while processes are attached.

use core::time::Duration;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;

use doorbell::within;
use doorbell_daemon::{
    AttachRefusal, Client, ClientError, DaemonStatus, JobKey, JobKeys, JobNumber, NodeNumber, Server,
    ServerConfig,
};

use crate::{at, attach, process, receives, request, soon};

/// Writes a file of keys in one step, and reads it.
fn written(path: &Path, text: &str) -> JobKeys {
    let beside = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&beside);
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
    fs::rename(&beside, path).unwrap();
    JobKeys::from_file(path).unwrap()
}

/// Attaches as endpoint 7 of a job, and detaches.
fn tries(socket: &Path, job: u64, key: u8) -> Result<(), AttachRefusal> {
    let mut request = request(7);
    (request.job, request.key) = (JobNumber(job), JobKey([key; 16]));
    match Client::attach(socket, &request, soon()) {
        Ok(client) => {
            client.detach().unwrap();
            Ok(())
        }
        Err(ClientError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_job_that_is_removed_keeps_its_processes_and_gets_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, file] = ["socket", "keys"].map(|name| folder.path().join(name));
    let mut config = ServerConfig::new(&socket);
    config.node = NodeNumber(5);
    let mut server = Server::bind(&config).unwrap();
    let key = "03".repeat(16);
    server.set_job_keys(written(&file, &format!("1:{key}\n")));
    let (stop, stopped) = UnixStream::pair().unwrap();
    let (change, changed) = channel();
    let thread = thread::spawn(move || {
        while !server
            .run_until(stopped.as_fd(), within(Duration::from_millis(5)))
            .unwrap()
        {
            changed.try_iter().for_each(|keys| server.set_job_keys(keys));
        }
    });
    let mut client = attach(&socket, 0);
    let mut echo = process("echo", &socket);
    let mut exchange = || {
        client.send(at(1), b"and back").unwrap();
        receives(&mut client);
    };
    exchange();
    assert_eq!(tries(&socket, 1, 4), Err(AttachRefusal::JobKey));
    assert_eq!(tries(&socket, 2, 3), Err(AttachRefusal::UnlistedJob));
    change.send(written(&file, &format!("2:{key}\n"))).unwrap();
    let deadline = soon();
    // Before, it attaches, or the name is not free yet.
    while tries(&socket, 1, 3) != Err(AttachRefusal::UnlistedJob) {
        assert!(!deadline.has_passed(doorbell::now()), "still attached anew");
    }
    assert_eq!(tries(&socket, 2, 3), Ok(()));
    exchange();
    let status = DaemonStatus::ask(&socket, soon()).unwrap();
    assert!(status.are_keys_of_file && status.processes >= 2, "{status:?}");
    let refused = |of| status.refused.iter().any(|refused| refused.reason == of);
    assert!(refused(AttachRefusal::UnlistedJob) && refused(AttachRefusal::JobKey));
    drop(stop);
    thread.join().unwrap();
    echo.kill().unwrap();
    echo.wait().unwrap();
}

#[test]
fn a_file_of_keys_has_to_be_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link] = ["keys", "link"].map(|name| folder.path().join(name));
    drop(written(&file, "*"));
    symlink(&file, &link).unwrap();
    assert!(JobKeys::from_file(&link).is_ok(), "its file is its owner's alone");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    for path in [&file, &link] {
        let error = JobKeys::from_file(path).unwrap_err().to_string();
        assert!(error.contains("its mode is 0640"), "{error}");
    }
    let error = JobKeys::from_file(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not a plain file"), "{error}");
}
