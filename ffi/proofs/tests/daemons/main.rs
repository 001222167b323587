//! Two node daemons over `ffi` on the fake libibverbs, and a client of each. All four sleep unless there is something to do. A lost
//! wake-up is found as a wait that ends by its deadline.
//!
//! A third client is a process of its own under a filter: it may sleep at its socket, and do nothing else.
//!
//! One test, since the fake is loaded for the whole process. The memory of a daemon is counted beside it, on the simulated fabric.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use doorbell::interprocess::SharedBytes as _;
use doorbell::link::LinkConfig;
use doorbell::{Handle, Node, Notify, RemoteAccess, Trust, WorkerConfig, within};
use doorbell_daemon::{
    ArenaGrant, ArenaOffer, ArenaOperation, ArenaRange, ArenaTransferEnd, AttachRequest, Client,
    EndpointAddress, EndpointEvent, EndpointLayout, GoneReason, JobKey, JobNumber, NodeNumber, Peers, Server,
    ServerConfig, UndeliveredReason,
};
use doorbell_sandbox::Confinement;

mod memory;

/// No wait takes as long, unless a wake-up is lost.
const SOON: Duration = Duration::from_secs(60);

const ROUNDS: u32 = 100;

fn server(folder: &Path, number: u32) -> (Server, Handle) {
    let mut config = ServerConfig::new(folder.join(number.to_string()));
    config.node = NodeNumber(number);
    // Asleep as often as may be.
    config.spin = Duration::ZERO;
    let mut server = Server::bind(&config).unwrap();
    let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let mut own = WorkerConfig::default();
    own.notify = Notify::Every;
    let workers = node.workers(&own).unwrap();
    let mut peers = Peers::new(node, workers, &LinkConfig::default(), 2).unwrap();
    let handle = peers.listen("[::]:0".parse().unwrap()).unwrap();
    server.set_peers(peers);
    (server, handle)
}

fn attach(server: &Path, endpoint: u32) -> Client {
    let request = AttachRequest {
        job: JobNumber(1),
        key: JobKey([1; 16]),
        endpoint,
        layout: EndpointLayout::default().with_arena(4 << 20).unwrap(),
    };
    Client::attach(server, &request, within(SOON)).unwrap()
}

fn at(node: u32, endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(node),
        endpoint,
    }
}

/// The next event, as a text and a message.
fn next(client: &mut Client) -> (String, Vec<u8>) {
    let mut events = Vec::new();
    let woken = client.wait(within(SOON), |event| match event {
        EndpointEvent::Received { from, message } => events.push((from.to_string(), message.to_vec())),
        EndpointEvent::Undelivered { to, reason, .. } => events.push((format!("{to}: {reason}"), Vec::new())),
        EndpointEvent::Gone { who, reason } => events.push((format!("{who}: {reason}"), Vec::new())),
        _ => {}
    });
    assert!(woken.unwrap(), "it sleeps, and nothing wakes it");
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

const SOCKET: &str = "DOORBELL_CONFINED_TO";
const PAGE: ArenaRange = ArenaRange {
    offset: 0,
    bytes: 4096,
};

/// Bytes of a transfer: no whole number of parts.
const TAKEN: ArenaRange = ArenaRange {
    offset: 1 << 20,
    bytes: (2 << 20) + 5,
};

/// The confined process: it asks for a grant on the other node, and writes, reads and counts there.
#[test]
fn part_of_a_confined_process() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let mut client = attach(Path::new(&socket), 1);
    client.set_reattach_within(Duration::ZERO);
    let confinement = Confinement::default().may_sleep_at(client.as_fd());
    confinement.enter().unwrap();
    client.send(at(1, 0), b"a grant, please").unwrap();
    let mut grant = None;
    while grant.is_none() {
        let woken = client.wait(within(SOON), |event| {
            if let EndpointEvent::Received { message, .. } = event {
                grant = message.try_into().ok().map(ArenaGrant::from_bytes);
            }
        });
        assert!(woken.unwrap());
    }
    for round in 0..ROUNDS {
        let arena = client.arena().unwrap();
        assert!(arena.copy_in(PAGE.offset, &[round as u8; 4096]));
        let second = ArenaRange { offset: 8192, ..PAGE };
        let mut open = 0;
        for operation in [
            ArenaOperation::Write(PAGE),
            ArenaOperation::Read(second),
            ArenaOperation::FetchAndAdd(0),
            ArenaOperation::WriteWithImmediate(PAGE, round),
        ] {
            client.request(&grant.unwrap(), 0, &operation).unwrap();
            open += 1;
        }
        while open > 0 {
            let woken = client.wait(within(SOON), |event| match event {
                EndpointEvent::Completed { .. } => open -= 1,
                event => panic!("{event:?}"),
            });
            assert!(woken.unwrap());
        }
        let mut read = [0; 4096];
        assert!(client.arena().unwrap().copy_out(second.offset, &mut read));
        assert_eq!(read, [round as u8; 4096]);
    }
    client.send(at(1, 0), b"an offer, please").unwrap();
    let (mut offer, mut ended) = (None, None);
    while ended.is_none() {
        let woken = client.wait(within(SOON), |event| match event {
            EndpointEvent::Received { message, .. } => offer = message.try_into().ok(),
            EndpointEvent::TransferEnded { end, bytes, .. } => ended = Some((end, bytes)),
            event => panic!("{event:?}"),
        });
        assert!(woken.unwrap());
        if let Some(offer) = offer.take().map(ArenaOffer::from_bytes) {
            client.take(&offer, TAKEN.offset, within(SOON)).unwrap();
        }
    }
    assert_eq!(ended, Some((ArenaTransferEnd::Done, TAKEN.bytes as u64)));
    let mut pattern = pattern();
    for offset in (0..TAKEN.bytes).step_by(4096) {
        let mut taken = [0; 4096];
        let taken = &mut taken[..4096.min(TAKEN.bytes - offset)];
        assert!(client.arena().unwrap().copy_out(TAKEN.offset + offset, taken));
        assert!(taken.iter().all(|byte| pattern.next() == Some(*byte)));
    }
    std::process::exit(0);
}

fn pattern() -> impl Iterator<Item = u8> {
    (0..TAKEN.bytes).map(|at| (at % 251) as u8)
}

fn reached_by_a_confined_process(owner: &mut Client, socket: &Path) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "part_of_a_confined_process", "--nocapture"]);
    let mut process = command.env(SOCKET, socket).spawn().unwrap();
    let bytes: Vec<_> = pattern().collect();
    assert!(owner.arena().unwrap().copy_in(TAKEN.offset, &bytes));
    let (mut round, mut asked, mut ended, mut gone) = (0, None, None, None);
    while ended.is_none() || gone.is_none() {
        let woken = owner.wait(within(SOON), |event| match event {
            EndpointEvent::Received { from, message } => asked = Some((from, message == b"an offer, please")),
            EndpointEvent::TransferEnded { end, .. } => ended = Some(end),
            EndpointEvent::Gone { who, reason } => gone = Some((who, reason)),
            EndpointEvent::Written { immediate, .. } => {
                assert_eq!(immediate, round);
                round += 1;
            }
            event => panic!("{event:?}"),
        });
        assert!(woken.unwrap());
        if let Some((to, true)) = asked {
            let (_, offer) = owner.offer(to, TAKEN, within(SOON)).unwrap();
            owner.send(to, &offer.to_bytes()).unwrap();
        } else if let Some((to, _)) = asked {
            let grant = owner.grant(to, PAGE, RemoteAccess::ALL).unwrap();
            owner.send(to, &grant.to_bytes()).unwrap();
        }
        asked = None;
    }
    assert_eq!((ended, round), (Some(ArenaTransferEnd::Done), ROUNDS));
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert_eq!(gone, Some((at(0, 1), GoneReason::Died)));
}

#[test]
fn messages_between_nodes_wake_daemons_and_clients_that_sleep() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (mut servers, handles): (Vec<_>, Vec<_>) = [0, 1]
        .map(|number| server(folder.path(), number))
        .into_iter()
        .unzip();
    servers[0].add_peer(NodeNumber(1), handles[1]);
    servers[1].add_peer(NodeNumber(0), handles[0]);
    let stops: Vec<_> = servers
        .into_iter()
        .map(|mut server| {
            let (stop, stopped) = UnixStream::pair().unwrap();
            (
                stop,
                thread::spawn(move || server.run(stopped.as_fd()).map(|()| server.counts())),
            )
        })
        .collect();

    let [mut a, mut b] = ["0", "1"].map(|name| attach(&folder.path().join(name), 0));
    for round in 0..ROUNDS {
        // Longer now and then than what is polled in vain.
        if round % 25 == 0 {
            thread::sleep(Duration::from_millis(50));
        }
        a.send(at(1, 0), &round.to_be_bytes()).unwrap();
        a.poll(|_| {}).unwrap();
        let there = (at(0, 0).to_string(), round.to_be_bytes().to_vec());
        assert_eq!(next(&mut b), there);
        b.send(at(0, 0), &round.to_be_bytes()).unwrap();
        b.poll(|_| {}).unwrap();
        let back = (at(1, 0).to_string(), round.to_be_bytes().to_vec());
        assert_eq!(next(&mut a), back);
    }
    a.send(at(1, 9), b"nobody").unwrap();
    let refused = format!("{}: {}", at(1, 9), UndeliveredReason::NoEndpoint);
    assert_eq!(next(&mut a), (refused, Vec::new()));
    reached_by_a_confined_process(&mut b, &folder.path().join("0"));
    b.detach().unwrap();
    let ended = format!("{}: {}", at(1, 0), GoneReason::Detached);
    assert_eq!(next(&mut a), (ended, Vec::new()));
    for (stop, thread) in stops {
        drop(stop);
        let counts = thread.join().unwrap().unwrap();
        assert_eq!(
            (counts.attached > 0, counts.received >= u64::from(ROUNDS)),
            (true, true),
            "{counts:?}"
        );
    }
}
