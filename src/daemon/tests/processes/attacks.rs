//! Processes that use the socket in ways that no client does. After each the daemon serves its clients, and at the end it keeps nothing.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use doorbell::interprocess::SharedArena;
use doorbell_daemon::{
    AttachRefusal, AttachRequest, Client, ClientError, DaemonStatus, Endpoint, EndpointEvent, EndpointLayout,
    GoneReason, JobKey, JobNumber,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketType, UCred, shutdown,
};
use rustix::process::{Gid, Pid, Uid};

use crate::crowds::{DESCRIPTORS_MAX, Held, exchange};
use crate::hostile::{answer, connected, packet, try_send};
use crate::{Daemon, at, attach, process, receives, request, soon, until};

const ATTACHED: (u8, u8) = (4, 0);
const CUT: (u8, u8) = (6, 4);

fn refused(reason: u8) -> (u8, u8) {
    (5, reason)
}

/// The memory of an attach packet of [`packet`].
fn memory() -> Endpoint {
    Endpoint::new(EndpointLayout::new(4, 64).unwrap()).unwrap()
}

/// Memory of this many bytes without a seal.
fn memfd(bytes: u64) -> OwnedFd {
    let file = memfd_create("plain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// The same file, opened again in another way.
fn opened(file: BorrowedFd<'_>, flags: OFlags) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap()
}

/// Connects and sends an attach packet with these descriptors. Returns the connection and the answer.
fn attaches(socket: &Path, descriptors: &[BorrowedFd<'_>]) -> (OwnedFd, (u8, u8)) {
    let connection = connected(socket);
    try_send(&connection, &packet(1), descriptors).unwrap();
    let answer = answer(&connection);
    (connection, answer)
}

/// An attach packet with another job, key and endpoint.
fn named(job: u64, key: [u8; 16], endpoint: u32) -> [u8; 64] {
    let mut bytes = packet(1);
    bytes[16..24].copy_from_slice(&job.to_be_bytes());
    bytes[24..40].copy_from_slice(&key);
    bytes[40..44].copy_from_slice(&endpoint.to_be_bytes());
    bytes
}

/// A query for a status of this many bytes.
fn question(bytes: u32) -> [u8; 64] {
    let mut packet = packet(8);
    packet[12..16].copy_from_slice(&bytes.to_be_bytes());
    packet
}

fn sockets_of_other_kinds_are_not_connected(socket: &Path) {
    for kind in [SocketType::STREAM, SocketType::DGRAM] {
        let other = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
        assert!(rustix::net::connect(&other, &SocketAddrUnix::new(socket).unwrap()).is_err());
    }
}

fn descriptors_without_bytes(socket: &Path) {
    let null = File::open("/dev/null").unwrap();
    let connection = connected(socket);
    try_send(&connection, &[], &[null.as_fd(); DESCRIPTORS_MAX]).unwrap();
    let _ = try_send(&connection, &packet(1), &memory().descriptors());
    let mut end = [0; 64];
    // An empty packet is the end of a connection.
    let ended = rustix::net::recv(&connection, &mut end[..], rustix::net::RecvFlags::empty());
    assert!(matches!(ended, Ok((0, _)) | Err(_)), "{ended:?}");
}

fn descriptors_of_every_kind(socket: &Path) {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pipe = child.stdin.take().unwrap();
    let (stream, _peer) = UnixStream::pair().unwrap();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let poll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let folder = File::open("/").unwrap();
    let itself = connected(socket);
    for wrong in [
        pipe.as_fd(),
        stream.as_fd(),
        event.as_fd(),
        poll.as_fd(),
        folder.as_fd(),
        itself.as_fd(),
    ] {
        assert_eq!(attaches(socket, &[wrong; 2]).1, refused(4));
    }
    // Its own end of the connection, which nothing but the queue keeps open.
    let connection = connected(socket);
    try_send(&connection, &packet(1), &[connection.as_fd(); 2]).unwrap();
    drop(pipe);
    child.wait().unwrap();
}

fn connections_within_connections(socket: &Path) {
    let mut inner = connected(socket);
    for _ in 0..3 {
        let outer = connected(socket);
        // The kernel refuses what is nested too deep.
        if try_send(&outer, &packet(3), &[inner.as_fd(); 2]).is_err() {
            return;
        }
        inner = outer;
    }
}

fn memory_that_cannot_be_adopted(socket: &Path) {
    let good = memory();
    let [rings, cells] = good.descriptors()[..] else {
        panic!("no two descriptors")
    };
    let (path, read_only) = (opened(rings, OFlags::PATH), opened(rings, OFlags::RDONLY));
    let (short, long) = (memfd(64), memfd(1 << 30));
    let sealed = memfd(64 << 10);
    fcntl_add_seals(&sealed, SealFlags::SEAL).unwrap();
    for (descriptors, reason) in [
        ([path.as_fd(), cells], 4),
        ([read_only.as_fd(), cells], 4),
        ([short.as_fd(), cells], 4),
        ([long.as_fd(), cells], 4),
        ([sealed.as_fd(), cells], 4),
    ] {
        assert_eq!(attaches(socket, &descriptors).1, refused(reason));
    }
    // One file twice: it is sealed as the rings, or has the wrong size.
    let (_, (kind, reason)) = attaches(socket, &[cells; 2]);
    assert!(kind == 5 && (reason == 4 || reason == 5), "{kind} {reason}");
    let many = vec![rings; DESCRIPTORS_MAX];
    for descriptors in [&many[..], &many[..3], &many[..1]] {
        assert_eq!(attaches(socket, descriptors).1, refused(3));
    }
}

fn memory_that_changes_while_it_is_adopted(socket: &Path) {
    for _ in 0..100 {
        let (memory, is_done) = (memory(), AtomicBool::new(false));
        let rings = memory.descriptors()[0];
        let bytes = rustix::fs::fstat(rings).unwrap().st_size as u64;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // Fails once it is sealed.
                    let _ = (ftruncate(rings, 0), ftruncate(rings, bytes));
                }
            });
            let (_, answer) = attaches(socket, &memory.descriptors());
            is_done.store(true, Ordering::Relaxed);
            // The name may be one of the process before, whose end is not noticed yet.
            assert!([ATTACHED, refused(4), refused(8)].contains(&answer), "{answer:?}");
        });
    }
}

fn one_half_that_is_shut_down(socket: &Path) {
    for half in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        let connection = connected(socket);
        let _ = try_send(&connection, &packet(1), &memory().descriptors());
        shutdown(&connection, half).unwrap();
        let connection = connected(socket);
        shutdown(&connection, half).unwrap();
        let _ = try_send(&connection, &packet(1), &memory().descriptors());
        let memory = memory();
        let (connection, answered) = attaches(socket, &memory.descriptors());
        if answered == ATTACHED {
            shutdown(&connection, half).unwrap();
        }
    }
}

fn credentials_of_another_process(socket: &Path) {
    let connection = connected(socket);
    let forged = UCred {
        pid: Pid::INIT,
        uid: Uid::from_raw(12_345),
        gid: Gid::from_raw(12_345),
    };
    let memory = memory();
    let descriptors = memory.descriptors();
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2), ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    assert!(control.push(SendAncillaryMessage::ScmCredentials(forged)));
    let bytes = packet(1);
    let sent = rustix::net::sendmsg(
        &connection,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    // Only root may name others.
    if sent.is_err() {
        return;
    }
    assert_eq!(answer(&connection), ATTACHED);
    let status = DaemonStatus::ask(socket, soon()).unwrap();
    let own = rustix::process::getuid().as_raw();
    assert!(status.endpoints.iter().all(|endpoint| endpoint.uid == own));
    assert!(status.endpoints.iter().all(|endpoint| endpoint.pid != Some(1)));
}

fn packets_out_of_order(socket: &Path) {
    let null = File::open("/dev/null").unwrap();
    // Each ends a connection that has attached: an attach packet, a query, a request to end, one of the daemon's own, and a long one.
    for after in [
        &packet(1)[..],
        &question(4096),
        &packet(7),
        &packet(9),
        &[0; 4096],
    ] {
        let memory = memory();
        let (connection, answered) = attaches(socket, &memory.descriptors());
        assert_eq!(answered, ATTACHED);
        let _ = try_send(&connection, after, &[null.as_fd()]);
        assert_eq!(answer(&connection), CUT);
    }
    // A request to end is none with a descriptor.
    let connection = connected(socket);
    try_send(&connection, &packet(7), &[null.as_fd()]).unwrap();
    assert_eq!(answer(&connection), refused(1));
    // All packets at once, before the first answer.
    let (connection, memory) = (connected(socket), memory());
    for _ in 0..3 {
        let _ = try_send(&connection, &packet(1), &memory.descriptors());
        let _ = try_send(&connection, &packet(2), &[]);
    }
}

fn names_and_keys_at_their_bounds(socket: &Path) {
    let mut kept = Vec::new();
    for job in [0, u64::MAX] {
        for endpoint in [0, u32::MAX] {
            let (connection, memory) = (connected(socket), memory());
            let bytes = named(job, [0xff; 16], endpoint);
            try_send(&connection, &bytes, &memory.descriptors()).unwrap();
            assert_eq!(answer(&connection), ATTACHED);
            kept.push((connection, memory));
        }
        let connection = connected(socket);
        try_send(&connection, &named(job, [0; 16], 1), &memory().descriptors()).unwrap();
        assert_eq!(answer(&connection), refused(7));
    }
}

fn questions_with_wrong_memory(socket: &Path) {
    let null = File::open("/dev/null").unwrap();
    let (arena, small) = (SharedArena::create(4096).unwrap(), memfd(64));
    let arena = arena.descriptor().unwrap();
    for (bytes, descriptors) in [
        (0, &[arena][..]),
        (u32::MAX, &[arena]),
        (8192, &[arena]),
        (4096, &[null.as_fd()]),
        (4096, &[small.as_fd()]),
        (4096, &[arena, arena]),
        (4096, &[]),
    ] {
        let deadline = soon();
        loop {
            let connection = connected(socket);
            try_send(&connection, &question(bytes), descriptors).unwrap();
            match answer(&connection) {
                // Others were answered just now.
                (5, 15) => assert!(!deadline.has_passed(doorbell::now())),
                (kind, reason) => break assert_eq!(kind, 5, "{bytes} {reason}"),
            }
        }
    }
}

fn an_end_right_after_the_packet(socket: &Path) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    let memory = memory();
                    let connection = connected(socket);
                    let _ = try_send(&connection, &packet(1), &memory.descriptors());
                }
            });
        }
    });
}

#[test]
fn no_trick_at_the_socket_stops_the_daemon_or_leaves_anything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut daemon = process("daemon", &socket);
    let mut client = attach(&socket, 0);
    let tricks: [fn(&Path); 13] = [
        sockets_of_other_kinds_are_not_connected,
        descriptors_without_bytes,
        descriptors_of_every_kind,
        connections_within_connections,
        memory_that_cannot_be_adopted,
        memory_that_changes_while_it_is_adopted,
        one_half_that_is_shut_down,
        credentials_of_another_process,
        packets_out_of_order,
        names_and_keys_at_their_bounds,
        questions_with_wrong_memory,
        an_end_right_after_the_packet,
        |socket| drop(attaches(socket, &memory().descriptors())),
    ];
    let play = |client: &mut Client| {
        for trick in tricks {
            trick(&socket);
            exchange(client);
            // Names are free again.
            let deadline = soon();
            while DaemonStatus::ask(&socket, soon()).unwrap().processes > 1 {
                assert!(!deadline.has_passed(doorbell::now()));
            }
        }
    };
    play(&mut client);
    let before = Held::by(daemon.id());
    play(&mut client);
    before.is_all_of(daemon.id());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn the_end_of_a_process_is_noticed_although_its_child_keeps_the_connection() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut parent = process("parent", &daemon.socket);
    client.send(at(1), b"they meet").unwrap();
    client.poll(|_| {}).unwrap();
    parent.kill().unwrap();
    let gone = EndpointEvent::Gone {
        who: at(1),
        reason: GoneReason::Died,
    };
    until(&mut client, "an end", |event| event == gone);
    // The child ends with its input, which it has from the test.
    parent.wait().unwrap();
    let _next = attach(&daemon.socket, 1);
    exchange(&mut client);
}

/// Starts a child that has the connection of its parent.
pub(crate) fn has_a_child(client: &Client) -> Child {
    let kept = rustix::io::dup(client.as_fd()).unwrap();
    rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new("cat");
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn processes_attach_while_daemons_replace_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut daemon = process("daemon", &socket);
    let mut client = attach(&socket, 0);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 1..3 {
            let (socket, is_done) = (&socket, &is_done);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    match Client::attach(socket, &request(number), soon()) {
                        Ok(mut other) => exchange_in_time(&mut other),
                        // Between two daemons there is none, and the end of the process before may not be noticed yet.
                        Err(
                            ClientError::DaemonGone
                            | ClientError::Connect { .. }
                            | ClientError::Refused(AttachRefusal::NameTaken),
                        ) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            let null = File::open("/dev/null").unwrap();
            while !is_done.load(Ordering::Relaxed) {
                let connection =
                    rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
                if rustix::net::connect(&connection, &SocketAddrUnix::new(&socket).unwrap()).is_ok() {
                    let _ = try_send(&connection, &packet(1), &[null.as_fd(); DESCRIPTORS_MAX]);
                }
            }
        });
        for _ in 0..5 {
            let mut next = process("replacing", &socket);
            assert!(daemon.wait().unwrap().success(), "the one before ended by itself");
            until(&mut client, "the next daemon", |event| {
                matches!(event, EndpointEvent::Restarted { .. })
            });
            core::mem::swap(&mut daemon, &mut next);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    exchange(&mut client);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// Sends itself a message, whose outcome may be unknown if the daemon ends.
fn exchange_in_time(client: &mut Client) {
    client.send(client.address(), b"to itself").unwrap();
    until(client, "a message or the next daemon", |event| {
        matches!(
            event,
            EndpointEvent::Received { .. } | EndpointEvent::Restarted { .. }
        )
    });
}

#[test]
fn connections_without_a_packet_keep_out_no_process_of_their_user() {
    let daemon = Daemon::start(|config| config.attach_within = Duration::from_secs(600));
    let silent: Vec<_> = (0..12).map(|_| connected(&daemon.socket)).collect();
    // The oldest ones give way.
    assert_eq!(answer(&silent[0]), refused(15));
    for number in 0..4 {
        receives_itself(&mut attach(&daemon.socket, number));
    }
    let hasty = Daemon::start(|config| config.attach_within = Duration::from_millis(10));
    assert_eq!(answer(&connected(&hasty.socket)), refused(11), "it had its time");
}

pub(crate) fn receives_itself(client: &mut Client) {
    client.send(client.address(), b"to itself").unwrap();
    receives(client);
}

#[test]
fn a_job_at_its_limits_keeps_out_no_other_job_of_its_user() {
    let daemon = Daemon::start(|config| config.limits.clients_of_job_max = 2);
    let _greedy = [0, 1].map(|number| attach(&daemon.socket, number));
    let more = Client::attach(&daemon.socket, &request(2), soon());
    assert!(
        matches!(more, Err(ClientError::Refused(AttachRefusal::TooManyOfJob))),
        "{more:?}"
    );
    let other = AttachRequest {
        job: JobNumber(2),
        key: JobKey([5; 16]),
        ..request(0)
    };
    receives_itself(&mut Client::attach(&daemon.socket, &other, soon()).unwrap());
}
