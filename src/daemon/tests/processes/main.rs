//! Tests of a daemon with real processes: attaching, messages, sleep, death, and refusals on the socket.
//!
//! A process is this program again. A variable names its part.

use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use doorbell::interprocess::{SharedBytes as _, SharedWords as _};
use doorbell::{Deadline, RemoteAccess, within};
use doorbell_daemon::{
    ArenaGrant, ArenaOperation, ArenaRange, AttachRefusal, AttachRequest, Client, ClientError, CutReason,
    EndpointAddress, EndpointEvent, EndpointLayout, GoneReason, JobKey, JobNumber, NodeNumber, Server,
    ServerConfig,
};

mod attacks;
mod crowds;
mod hostile;
mod job_keys;
mod names;
mod sandboxed;
mod status;
mod transfers;

const PART: &str = "DOORBELL_TEST_PART";
const ARENA_BYTES: u64 = 4 << 20;
const SOCKET: &str = "DOORBELL_TEST_SOCKET";

fn soon() -> Deadline {
    within(Duration::from_secs(120))
}

fn at(endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(5),
        endpoint,
    }
}

fn request(endpoint: u32) -> AttachRequest {
    AttachRequest {
        job: JobNumber(1),
        key: JobKey([3; 16]),
        endpoint,
        layout: EndpointLayout::default().with_arena(ARENA_BYTES).unwrap(),
    }
}

fn attach(socket: &Path, endpoint: u32) -> Client {
    Client::attach(socket, &request(endpoint), soon()).unwrap()
}

/// A daemon on a thread.
struct Daemon {
    socket: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Server>>,
    _folder: tempfile::TempDir,
}

impl Daemon {
    fn start(change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::start_after(change, |_| {})
    }

    /// Does the same, and first calls `before` with the path of the socket.
    fn start_after(change: impl FnOnce(&mut ServerConfig), before: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let mut config = ServerConfig::new(&socket);
        config.node = NodeNumber(5);
        change(&mut config);
        let socket = config.socket.clone();
        let mut server = Server::bind(&config).unwrap();
        before(&socket);
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            use std::os::fd::AsFd as _;
            server.run(stopped.as_fd()).unwrap();
            server
        });
        Self {
            socket,
            stop: Some(stop),
            thread: Some(thread),
            _folder: folder,
        }
    }

    fn stop(mut self) -> Server {
        self.stop = None;
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts another process with this part, and waits until it reports that it is ready.
fn process(part: &str, socket: &Path) -> Child {
    process_of(part, socket, |command| command)
}

/// Does the same, with a change of the command, such as another user.
fn process_of(part: &str, socket: &Path, change: impl FnOnce(&mut Command) -> &mut Command) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = change(&mut command)
        .args(["--exact", "part_of_another_process", "--nocapture"])
        .env(PART, part)
        .env(SOCKET, socket)
        .stdout(Stdio::null())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 1];
    child.stderr.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"R");
    child
}

/// Handles events until one of them is the expected one.
fn until(client: &mut Client, what: &str, mut is_it: impl FnMut(EndpointEvent<'_>) -> bool) {
    let deadline = soon();
    let mut is_done = false;
    while !is_done {
        let woken = client.wait(deadline, |event| is_done |= is_it(event)).unwrap();
        assert!(woken, "not in time: {what}");
    }
}

/// Handles events until a message arrives.
fn receives(client: &mut Client) {
    until(client, "a message", |event| {
        matches!(event, EndpointEvent::Received { .. })
    });
}

#[test]
fn part_of_another_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let ready = || std::io::stderr().write_all(b"R").unwrap();
    if part == "daemon" || part == "replacing" {
        let mut config = ServerConfig::new(&socket);
        (config.node, config.replace) = (NodeNumber(5), part == "replacing");
        let mut server = Server::bind(&config).unwrap();
        ready();
        let (_stop, stopped) = UnixStream::pair().unwrap();
        server.run(std::os::fd::AsFd::as_fd(&stopped)).unwrap();
        assert!(server.is_replaced());
        return;
    }
    if part == "looks" || part == "may not look" {
        ready();
        return status::looks(&socket, part == "looks");
    }
    let mut client = attach(&socket, 1);
    match part.as_str() {
        "parent" => {
            let mut child = attacks::has_a_child(&client);
            ready();
            child.wait().unwrap();
        }
        "gives" => transfers::gives(&mut client),
        "polls" | "asks" => sandboxed::polls(client, part == "asks"),
        // Sends every message back, forever.
        "echo" | "hasty echo" => {
            if part == "hasty echo" {
                client.set_reattach_within(Duration::from_secs(2));
            }
            ready();
            loop {
                let mut back = Vec::new();
                let woken = client.wait(soon(), |event| {
                    if let EndpointEvent::Received { from, message } = event {
                        back.push((from, message.to_vec()));
                    }
                });
                woken.unwrap();
                // The next wait publishes these messages.
                for (from, message) in back {
                    client.send(from, &message).unwrap();
                }
            }
        }
        other => panic!("{other}"),
    }
}

#[test]
fn processes_exchange_messages_and_a_kill_is_reported_with_its_reason() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    assert_eq!(client.address(), at(0));
    let mut other = process("echo", &daemon.socket);
    for round in 0..200_u32 {
        client.send(at(1), &round.to_le_bytes()).unwrap();
        until(&mut client, "an echo", |event| match event {
            EndpointEvent::Received { from, message } => {
                assert_eq!((from, message), (at(1), &round.to_le_bytes()[..]));
                true
            }
            event => panic!("{event:?}"),
        });
    }
    other.kill().unwrap();
    let gone = EndpointEvent::Gone {
        who: at(1),
        reason: GoneReason::Died,
    };
    until(&mut client, "an end", |event| event == gone);
    other.wait().unwrap();
    // The name is free.
    let next = attach(&daemon.socket, 1);
    client.send(at(1), b"to the next").unwrap();
    client.poll(|_| {}).unwrap();
    drop(client);
    next.detach().unwrap();
    let server = daemon.stop();
    assert_eq!(server.counts().attached, 3);
}

#[test]
fn a_farewell_is_reported_as_such_and_the_last_messages_come_before_it() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut other = attach(&daemon.socket, 1);
    // More than the daemon moves in a turn.
    for number in 0..60_u8 {
        other.send(at(0), &[number]).unwrap();
    }
    other.detach().unwrap();
    let mut expected = 0;
    until(&mut client, "an end", |event| match event {
        EndpointEvent::Received { message, .. } => {
            assert_eq!(message, [expected]);
            expected += 1;
            false
        }
        EndpointEvent::Gone { who, reason } => {
            assert_eq!((who, reason, expected), (at(1), GoneReason::Detached, 60));
            true
        }
        event => panic!("{event:?}"),
    });
}

#[test]
fn a_full_ring_ends_a_sleep_once_there_is_room() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut slow = attach(&daemon.socket, 1);
    let (mut sent, mut received) = (0_u32, 0);
    while sent < 2000 {
        if client.send(at(1), &sent.to_le_bytes()).is_ok() {
            sent += 1;
            continue;
        }
        client.poll(|_| {}).unwrap();
        let soon = within(Duration::from_millis(1));
        if !client.wait(soon, |_| {}).unwrap() {
            let _ = slow.wait(soon, |event| {
                if let EndpointEvent::Received { message, .. } = event {
                    assert_eq!(message, u32::to_le_bytes(received));
                    received += 1;
                }
            });
        }
    }
    client.poll(|_| {}).unwrap();
    until(&mut slow, "all", |event| {
        if let EndpointEvent::Received { .. } = event {
            received += 1;
        }
        received == sent
    });
}

#[test]
fn a_client_that_breaks_the_protocol_learns_why_and_its_peer_too() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut villain = attach(&daemon.socket, 1);
    villain.send(at(0), b"hello").unwrap();
    villain.poll(|_| {}).unwrap();
    receives(&mut client);
    let rings = villain.endpoint().rings();
    rings
        .word(0)
        .unwrap()
        .store(1 << 40, core::sync::atomic::Ordering::Relaxed);
    client.send(at(1), b"wakes the daemon").unwrap();
    until(&mut client, "its end", |event| {
        let gone = EndpointEvent::Gone {
            who: at(1),
            reason: GoneReason::CutOff,
        };
        event == gone
    });
    let cut = loop {
        match villain.wait(soon(), |_| {}) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(cut, ClientError::Cut(CutReason::Index)), "{cut}");
}

#[test]
fn each_refusal_has_its_reason() {
    let daemon = Daemon::start(|config| {
        config.limits.clients_max = 2;
        config.limits.bytes_of_job_max = 2 * request(0).layout.bytes();
    });
    let refused = |request: &AttachRequest| match Client::attach(&daemon.socket, request, soon()) {
        Err(ClientError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let _client = attach(&daemon.socket, 0);
    assert_eq!(refused(&request(0)), AttachRefusal::NameTaken);
    let mut wrong = request(1);
    wrong.key = JobKey([4; 16]);
    assert_eq!(refused(&wrong), AttachRefusal::JobKey);
    let mut large = request(1);
    large.layout = large.layout.with_arena(ARENA_BYTES + 4096).unwrap();
    assert_eq!(refused(&large), AttachRefusal::MemoryOfJob);
    let _other = attach(&daemon.socket, 1);
    assert_eq!(refused(&request(2)), AttachRefusal::TooManyClients);
    let second = ServerConfig::new(&daemon.socket);
    let error = Server::bind(&second).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
}

#[test]
fn packets_and_descriptors_that_are_none_are_refused_and_the_others_go_on() {
    use rustix::net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType,
    };
    use std::os::fd::AsFd as _;

    let daemon = Daemon::start(|config| config.attach_within = Duration::from_secs(60));
    let mut client = attach(&daemon.socket, 0);
    let address = SocketAddrUnix::new(&daemon.socket).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let packet = |kind: u8| {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&[0x64, 0x6f, 0x6f, 0x72, 0, 1, 0, kind]);
        bytes[8..16].copy_from_slice(&[0, 0, 0, 4, 0, 0, 0, 64]);
        bytes[23] = 9;
        bytes
    };
    // The reason is the last of the four bytes at 48.
    let cases: &[(&[u8], usize, u8)] = &[
        (b"nonsense", 0, 1),
        (&[0; 64], 0, 1),
        (&[7; 100], 0, 3),
        (&packet(2), 0, 1),
        (&packet(1), 0, 3),
        (&packet(1), 1, 3),
        (&packet(1), 2, 4),
        (&packet(1), 9, 3),
    ];
    for (bytes, descriptors, reason) in cases {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let rights = vec![null.as_fd(); *descriptors];
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if *descriptors > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        }
        let parts = [std::io::IoSlice::new(bytes)];
        rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::empty()).unwrap();
        let mut answer = [0; 64];
        let (count, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
        assert_eq!(
            (count, answer[7], answer[51]),
            (64, 5, *reason),
            "{bytes:?} with {descriptors}"
        );
    }
    client.send(at(0), b"to itself").unwrap();
    receives(&mut client);
}

/// Record of one client of a pair: numbers of messages, numbers with an unknown outcome, completed additions.
#[derive(Default)]
struct Tally {
    received: Vec<u64>,
    sent: u64,
    /// Numbers of submissions that are messages, with the message's own number.
    messages: std::collections::BTreeMap<u64, u64>,
    additions: std::collections::BTreeSet<u64>,
    /// Additions that were completed or refused.
    completed: u64,
    unknown: std::collections::BTreeSet<u64>,
    refused: std::collections::BTreeSet<u64>,
    restarts: u64,
    last_epoch: u64,
    grant: Option<ArenaGrant>,
}

impl Tally {
    /// Whether each addition has an outcome, and each message was received there or has another outcome.
    fn is_settled(&self, there: &Self) -> bool {
        let mut messages = self.messages.iter();
        self.additions.is_empty()
            && messages.all(|(number, message)| {
                let is_known = self.unknown.contains(number) || self.refused.contains(number);
                is_known || there.received.contains(message)
            })
    }

    /// Handles the events of a short wait. A message of 8 bytes is a number. A message of 16 bytes is the name of a
    /// grant.
    fn wait(&mut self, client: &mut Client, time: Duration) {
        let woken = client.wait(within(time), |event| match event {
            EndpointEvent::Received { message, .. } => match <[u8; 16]>::try_from(message) {
                Ok(name) => self.grant = Some(ArenaGrant::from_bytes(name)),
                Err(_) => self
                    .received
                    .push(u64::from_le_bytes(message.try_into().unwrap())),
            },
            EndpointEvent::Undelivered { number, .. } => assert!(self.refused.insert(number)),
            EndpointEvent::Completed { number, .. } => {
                assert!(
                    self.additions.remove(&number),
                    "{number} twice, or after it was unknown"
                );
                self.completed += 1;
            }
            EndpointEvent::Restarted { epoch, unknown_from } => {
                assert!(epoch > self.last_epoch);
                self.last_epoch = epoch;
                self.restarts += 1;
                self.grant = None;
                self.unknown
                    .extend(self.messages.range(unknown_from..).map(|(number, _)| *number));
                let lost: Vec<_> = self.additions.iter().copied().collect();
                for number in lost {
                    assert!(number >= unknown_from, "the end of {number} is lost");
                    self.additions.remove(&number);
                    self.unknown.insert(number);
                }
            }
            EndpointEvent::Gone { .. } => {}
            event => panic!("{event:?}"),
        });
        woken.unwrap();
    }
}

/// Two clients continue while their daemon is killed and replaced repeatedly. Names, memory and numbers are kept.
#[test]
fn clients_survive_the_death_of_their_daemon_and_nothing_comes_twice_or_is_lost_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut daemon = process("daemon", &socket);
    let (mut client, mut other) = (attach(&socket, 0), attach(&socket, 1));
    assert!(other.arena().unwrap().copy_in(100, b"stays"));
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    let mut additions_unknown = 0;
    for round in 0..6_u64 {
        // A grant is made at each daemon, and its name is sent in a message.
        let range = ArenaRange { offset: 0, bytes: 8 };
        let grant = loop {
            match other.grant(at(0), range, RemoteAccess::ALL) {
                Ok(grant) => break grant,
                Err(_) => theirs.wait(&mut other, Duration::from_millis(1)),
            }
        };
        other.send(at(0), &grant.to_bytes()).unwrap();
        let until = ours.sent + 300;
        while ours.sent < until {
            if let Ok(number) = client.send(at(1), &ours.sent.to_le_bytes()) {
                ours.messages.insert(number, ours.sent);
                ours.sent += 1;
            }
            if let Some(grant) = &ours.grant {
                if let Ok(number) = client.request(grant, 0, &ArenaOperation::FetchAndAdd(1)) {
                    ours.additions.insert(number);
                }
            }
            ours.wait(&mut client, Duration::from_micros(100));
            theirs.wait(&mut other, Duration::from_micros(100));
        }
        // The daemon is killed while operations are in flight. The last daemon is replaced while it runs.
        let before = ours.additions.len();
        let last = if round == 5 {
            let next = process("replacing", &socket);
            assert!(daemon.wait().unwrap().success(), "it ends in order");
            next
        } else {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            process("daemon", &socket)
        };
        daemon = last;
        additions_unknown += before as u64;
        let deadline = soon();
        while ours.restarts <= round || theirs.restarts <= round {
            ours.wait(&mut client, Duration::from_millis(5));
            theirs.wait(&mut other, Duration::from_millis(5));
            assert!(!deadline.has_passed(doorbell::now()), "no restart");
        }
    }
    // The remaining events arrive as soon as the daemon runs. This is also the time in which unexpected events
    // would arrive.
    let (deadline, mut waits) = (soon(), 0);
    while waits < 50 || !ours.is_settled(&theirs) && !deadline.has_passed(doorbell::now()) {
        ours.wait(&mut client, Duration::from_millis(2));
        theirs.wait(&mut other, Duration::from_millis(2));
        waits += 1;
    }
    assert!(
        ours.additions.is_empty() && ours.completed > 100,
        "{}",
        ours.completed
    );
    assert!(
        theirs.received.is_sorted_by(|before, after| before < after),
        "twice, or out of order"
    );
    for (number, message) in &ours.messages {
        let is_known = ours.unknown.contains(number) || ours.refused.contains(number);
        let is_received = theirs.received.binary_search(message).is_ok();
        assert!(is_received || is_known, "{number} is lost in silence");
        assert!(
            !(is_received && ours.refused.contains(number)),
            "{number} is refused, and comes"
        );
    }
    let mut stays = [0; 5];
    assert!(other.arena().unwrap().copy_out(100, &mut stays));
    assert_eq!(&stays, b"stays");
    let word = other.arena().unwrap().word(0).unwrap();
    let word = word.load(core::sync::atomic::Ordering::Relaxed);
    assert!(
        (ours.completed..=ours.completed + additions_unknown).contains(&word),
        "{word} of {}",
        ours.completed
    );
    assert_eq!((client.address(), other.address()), (at(0), at(1)));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    // Without another daemon, a client reports that after its time limit.
    client.set_reattach_within(Duration::from_millis(50));
    let gone = loop {
        if let Err(error) = client.wait(soon(), |_| {}) {
            break error;
        }
    };
    assert!(matches!(gone, ClientError::DaemonGone), "{gone}");
}

/// The socket file tells the next daemon that there was a daemon before, whose processes attach again.
#[test]
fn a_message_for_a_process_that_is_not_back_yet_waits_after_an_orderly_end_too() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        Daemon::start(|config| {
            config.socket = folder.path().join("socket");
            config.reattach_within = Duration::from_secs(120);
        })
    };
    let first = start();
    let (mut client, mut other) = (attach(&first.socket, 0), attach(&first.socket, 1));
    drop(first.stop());
    let next = start();
    until(&mut client, "the next daemon", |event| {
        matches!(event, EndpointEvent::Restarted { .. })
    });
    client.send(at(1), b"waits").unwrap();
    client.poll(|_| {}).unwrap();
    // A message would be refused at once, or waits.
    client
        .wait(within(Duration::from_millis(50)), |event| panic!("{event:?}"))
        .unwrap();
    receives(&mut other);
    drop(next);
}

/// A daemon that has no room for the question answers when it has room.
#[test]
fn a_daemon_whose_places_are_taken_is_replaced_once_one_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut first = process("daemon", &socket);
    // As many silent connections as one user may have. Each is refused after a second.
    let address = rustix::net::SocketAddrUnix::new(&socket).unwrap();
    let silent: Vec<_> = (0..8)
        .map(|_| {
            let kind = rustix::net::SocketType::SEQPACKET;
            let silent = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
            rustix::net::connect(&silent, &address).unwrap();
            silent
        })
        .collect();
    let mut second = process("replacing", &socket);
    assert!(first.wait().unwrap().success(), "it was asked to end");
    let client = attach(&socket, 0);
    client.detach().unwrap();
    drop(silent);
    second.kill().unwrap();
    second.wait().unwrap();
}
