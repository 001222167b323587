//! Tests of the status of a daemon: its content, the users that may see it, and questions that could block the daemon.

use std::fs::Permissions;
use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::thread;

use doorbell::interprocess::SharedArena;
use doorbell_daemon::{
    AttachRefusal, Client, ClientError, CutReason, DaemonStatus, EndpointEvent, EndpointRefusal, JobKey,
    NodeNumber, StatusError,
};
use rustix::fs::SealFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType,
};

use crate::hostile::{answer, connected, packet, try_send};
use crate::{Daemon, at, attach, process_of, receives, request, soon, until};

/// A user without processes here.
const NOBODY: u32 = 65_534;

fn ask(socket: &Path) -> DaemonStatus {
    DaemonStatus::ask(socket, soon()).unwrap()
}

/// Creates a question with this length of the answer.
fn question(bytes: u32) -> [u8; 64] {
    let mut question = packet(8);
    question[12..16].copy_from_slice(&bytes.to_be_bytes());
    question
}

#[test]
fn a_status_has_each_process_and_all_that_was_counted() {
    let daemon = Daemon::start(|_| {});
    let none = ask(&daemon.socket);
    assert_eq!(
        (none.node, none.processes, none.endpoints.len()),
        (NodeNumber(5), 0, 0)
    );
    let mut client = attach(&daemon.socket, 0);
    let mut villain = attach(&daemon.socket, 1);
    client.send(at(1), b"four").unwrap();
    client.poll(|_| {}).unwrap();
    receives(&mut villain);
    let mut wrong = request(2);
    wrong.key = JobKey([4; 16]);
    for _ in 0..2 {
        let refused = Client::attach(&daemon.socket, &wrong, soon());
        assert!(matches!(
            refused,
            Err(ClientError::Refused(AttachRefusal::JobKey))
        ));
    }
    let two = ask(&daemon.socket);
    assert_eq!(two.epoch, client.epoch());
    assert!(two.sees_all, "this process is of the daemon's user");
    let pid = Some(std::process::id());
    let ours: Vec<_> = two
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.endpoint, endpoint.pid))
        .collect();
    assert_eq!(ours, [(0, pid), (1, pid)]);
    let traffic = |at: usize| {
        let traffic = &two.endpoints[at].traffic;
        (
            traffic.submitted,
            traffic.sent_bytes,
            traffic.reported,
            traffic.received_bytes,
        )
    };
    assert_eq!((traffic(0), traffic(1)), ((1, 4, 0, 0), (0, 0, 1, 4)));
    assert_eq!((two.jobs.len(), two.jobs[0].processes), (1, 2));
    let refused: Vec<_> = two.refused.iter().map(|of| (of.reason, of.count)).collect();
    assert!(refused.contains(&(AttachRefusal::JobKey, 2)), "{refused:?}");
    // A packet that is not valid.
    let sent = rustix::net::send(villain.as_fd(), b"nonsense", SendFlags::empty());
    assert_eq!(sent, Ok(8));
    until(&mut client, "its end", |event| {
        matches!(event, EndpointEvent::Gone { .. })
    });
    let one = ask(&daemon.socket);
    let cut: Vec<_> = one.cut.iter().map(|of| (of.reason, of.count)).collect();
    assert_eq!(cut, [(CutReason::Packet, 1)]);
    assert_eq!(one.counts.cut, 1, "each reason counts");
    assert_eq!((one.processes, one.dropped, one.counts.local), (1, 0, 1));
    assert_eq!(one.endpoints[0].traffic.submitted, 1);
}

#[test]
fn each_failure_has_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let missing = DaemonStatus::ask(&socket, soon()).unwrap_err();
    assert!(matches!(missing, StatusError::NoDaemon { .. }), "{missing}");
    // A daemon that does not know the question, and one with another version of packets.
    let mut refused = packet(5);
    refused[51] = 1;
    let mut other = packet(9);
    other[5] = 2;
    for reply in [refused, other] {
        let _ = std::fs::remove_file(&socket);
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let answers = thread::spawn(move || {
            let connection = rustix::net::accept(&listener).unwrap();
            rustix::net::send(&connection, &reply, SendFlags::empty()).unwrap();
            // Closed after the question was read. With an unread question, the other side might not see the answer.
            rustix::net::recv(&connection, &mut [0; 64][..], rustix::net::RecvFlags::empty()).unwrap();
        });
        let error = DaemonStatus::ask(&socket, soon()).unwrap_err();
        assert!(matches!(error, StatusError::OtherVersion { .. }), "{error}");
        answers.join().unwrap();
    }
    // A killed daemon has left its socket.
    let left = DaemonStatus::ask(&socket, soon()).unwrap_err();
    assert!(matches!(left, StatusError::NoDaemon { .. }), "{left}");
}

/// Listens as a stand-in for a daemon. It truncates a memory that comes with the first packet, and then answers.
fn truncates(socket: &Path, which: usize, answer: [u8; 64]) -> thread::JoinHandle<()> {
    let _ = std::fs::remove_file(socket);
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    thread::spawn(move || {
        let connection = rustix::net::accept(&listener).unwrap();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (mut bytes, flags) = ([0; 64], RecvFlags::empty());
        rustix::net::recvmsg(
            &connection,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        )
        .unwrap();
        let Some(RecvAncillaryMessage::ScmRights(memories)) = control.drain().next() else {
            panic!("no memory")
        };
        for (at, memory) in memories.enumerate() {
            if at == which {
                rustix::fs::ftruncate(&memory, 0).unwrap();
            }
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        }
        rustix::net::send(&connection, &answer, SendFlags::empty()).unwrap();
    })
}

#[test]
fn memory_that_is_cut_short_ends_no_process_that_asks() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut given = question(776);
    given[7] = 9;
    let answers = truncates(&socket, 0, given);
    let error = DaemonStatus::ask(&socket, soon()).unwrap_err();
    assert!(matches!(error, StatusError::OtherVersion { .. }), "{error}");
    answers.join().unwrap();
}

#[test]
fn memory_that_is_cut_short_ends_no_process_that_attaches() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    for which in 0..3 {
        let answers = truncates(&socket, which, packet(4));
        let error = Client::attach(&socket, &request(0), soon())
            .map(drop)
            .unwrap_err();
        let expected = ClientError::Broken(EndpointRefusal::Broken);
        assert_eq!(error.to_string(), expected.to_string(), "{which}");
        answers.join().unwrap();
    }
    let answers = truncates(&socket, 3, packet(4));
    Client::attach(&socket, &request(0), soon()).unwrap();
    answers.join().unwrap();
}

/// The part of a process of another user. It attaches, and sees only its own entries. Or it may not connect to the
/// socket.
pub(crate) fn looks(socket: &Path, may_look: bool) {
    if !may_look {
        let error = DaemonStatus::ask(socket, soon()).unwrap_err();
        return assert!(matches!(error, StatusError::NotPermitted { .. }), "{error}");
    }
    let _client = attach(socket, 7);
    let status = ask(socket);
    assert!(!status.sees_all && status.processes == 2);
    assert_eq!((status.counts.attached, status.counts.local), (2, 0));
    let seen: Vec<_> = status
        .endpoints
        .iter()
        .map(|of| (of.uid, of.endpoint, of.pid))
        .collect();
    assert_eq!(seen, [(NOBODY, 7, Some(std::process::id()))]);
    let jobs: Vec<_> = status.jobs.iter().map(|job| job.uid).collect();
    assert_eq!(jobs, [NOBODY]);
}

#[test]
fn another_user_sees_its_own_endpoints_alone_and_one_that_may_not_attach_sees_nothing() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root has processes of other users");
    }
    for (mode, part) in [(0o666, "looks"), (0o600, "may not look")] {
        let daemon = Daemon::start(|config| config.mode = mode);
        let folder = daemon.socket.parent().unwrap();
        std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        let mut client = attach(&daemon.socket, 0);
        client.send(at(0), b"not for others to count").unwrap();
        receives(&mut client);
        let other = process_of(part, &daemon.socket, |command| command.uid(NOBODY).gid(NOBODY));
        let output = other.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn questions_without_right_memory_are_refused() {
    let daemon = Daemon::start(|_| {});
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let memory = || SharedArena::create(1 << 16).unwrap();
    let (whole, sealed) = (memory(), memory());
    SharedArena::adopt(sealed.descriptor().unwrap(), 1 << 16).unwrap();
    let cases: [(u32, &[_], (u8, u8)); 7] = [
        (1 << 16, &[], (5, 3)),
        (1 << 16, &[null.as_fd()], (5, 6)),
        (1 << 16, &[null.as_fd(); 2], (5, 3)),
        ((8 << 20) + 4096, &[whole.descriptor().unwrap()], (5, 3)),
        (1 << 20, &[whole.descriptor().unwrap()], (5, 6)),
        (0, &[whole.descriptor().unwrap()], (5, 6)),
        (1 << 16, &[sealed.descriptor().unwrap()], (5, 6)),
    ];
    for (bytes, descriptors, expected) in cases {
        let got = loop {
            let connection = connected(&daemon.socket);
            // A connection refused for lack of room already has its answer.
            let _ = match descriptors {
                [] => rustix::net::send(&connection, &question(bytes), SendFlags::NOSIGNAL),
                descriptors => try_send(&connection, &question(bytes), descriptors),
            };
            let got = answer(&connection);
            // The daemon limits the time that it spends on answers, and does not answer a user whose descriptors are
            // being closed.
            if ![(5, 15), (5, 11)].contains(&got) {
                break got;
            }
        };
        assert_eq!(got, expected, "{bytes} {}", descriptors.len());
    }
    // No process tried to attach. Only connections that found no room, or were late, are counted.
    let mut refused = ask(&daemon.socket).refused.into_iter().map(|of| of.reason);
    assert!(refused.all(|of| [AttachRefusal::TooLate, AttachRefusal::TooManyPending].contains(&of)));
}

#[test]
fn questions_without_end_that_nobody_reads_hold_up_nobody() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut unread = Vec::new();
    for round in 0..400_u32 {
        let memory = SharedArena::create(1 << 16).unwrap();
        let connection = connected(&daemon.socket);
        // A connection beyond the limit is refused before it asks.
        let _ = try_send(&connection, &question(1 << 16), &[memory.descriptor().unwrap()]);
        unread.push(connection);
        client.send(at(0), &round.to_le_bytes()).unwrap();
        receives(&mut client);
    }
    let status = ask(&daemon.socket);
    assert_eq!((status.counts.local, status.processes), (400, 1));
    // Each connection was answered or told to try again, and none is still open: each has its end after the answer.
    for connection in unread {
        let (kind, reason) = answer(&connection);
        assert!(
            kind == 9 || (kind == 5 && [11, 15].contains(&reason)),
            "{kind} {reason}"
        );
        let end = rustix::net::recv(&connection, &mut [0; 64][..], rustix::net::RecvFlags::empty());
        assert_eq!(end.unwrap().0, 0);
    }
}
