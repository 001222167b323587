//! Tests of the daemon's log events: processes that attach and end, refusals, and other nodes. Many events of one process are
//! only counted.

#[path = "../../../../tests/telling/log.rs"]
mod log;

use core::time::Duration;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use doorbell::link::LinkConfig;
use doorbell::{Handle, Node, Trust, WorkerConfig, within};
use doorbell_daemon::{
    AttachRefusal, AttachRequest, Client, ClientError, Credentials, Endpoint, EndpointAddress,
    EndpointLayout, JobKey, JobNumber, NodeNumber, Peers, Router, RouterLimits, Server, ServerConfig,
};
use doorbell_sim::{Fabric, Host};
use log::{Log, assert_told, count_told};
use tracing_subscriber::filter::LevelFilter;

fn request(endpoint: u32) -> AttachRequest {
    AttachRequest {
        job: JobNumber(9),
        key: JobKey(*b"a key of letters"),
        endpoint,
        layout: EndpointLayout::new(4, 64).unwrap(),
    }
}

/// Serves on this thread, which records the events, while `other` runs on another thread.
fn serving(other: impl FnOnce(&Path, &Log) + Send + 'static) -> String {
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("socket");
    let log = Log::watched(LevelFilter::INFO, |log| {
        let mut server = Server::bind(&ServerConfig::new(&socket)).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (path, log) = (socket.clone(), log.clone());
        let other = thread::spawn(move || {
            other(&path, &log);
            drop(stop);
        });
        server.run(stopped.as_fd()).unwrap();
        // The other thread may wait for the end of this daemon.
        drop(server);
        other.join().unwrap();
    });
    assert!(!log.contains("letters") && !log.contains("97, 32, 107"), "{log}");
    log
}

/// Attaches a process. Its name may be that of a process that is just ending.
fn attach(socket: &Path, endpoint: u32) -> Client {
    let deadline = within(Duration::from_secs(120));
    loop {
        match Client::attach(socket, &request(endpoint), deadline) {
            Err(ClientError::Refused(AttachRefusal::NameTaken)) if !deadline.has_passed(doorbell::now()) => {}
            attached => return attached.unwrap(),
        }
    }
}

/// Waits until a client is cut off, or is told of an end.
fn waits(client: &mut Client) {
    let deadline = within(Duration::from_secs(120));
    let mut is_told = false;
    while !is_told {
        is_told |= client.wait(deadline, |_| is_told = true).is_err();
        assert!(!deadline.has_passed(doorbell::now()), "nothing comes");
    }
}

#[test]
fn processes_are_told_of_as_they_come_and_go() {
    let log = serving(|socket, _| {
        let mut client = attach(socket, 0);
        let mut villain = attach(socket, 1);
        villain
            .send(
                EndpointAddress {
                    node: NodeNumber(0),
                    endpoint: 0,
                },
                b"hello",
            )
            .unwrap();
        villain.poll(|_| {}).unwrap();
        waits(&mut client);
        let mut wrong = request(2);
        wrong.key = JobKey([1; 16]);
        assert!(Client::attach(socket, &wrong, within(Duration::from_secs(120))).is_err());
        rustix::net::send(villain.as_fd(), b"nonsense", rustix::net::SendFlags::empty()).unwrap();
        waits(&mut client);
        client.detach().unwrap();
        // The daemon has read the detach packet when the name is free again.
        drop(attach(socket, 0));
        attach(socket, 0).detach().unwrap();
        drop(attach(socket, 0));
    });
    assert_told(
        &log,
        &[
            "INFO doorbell: process attached .. uid= .. pid= .. job=9 .. endpoint=0",
            "WARN doorbell: process refused .. uid= .. pid= .. reason=the job has another key",
            "WARN doorbell: process cut off .. uid= .. pid= .. job=9 .. endpoint=1 .. reason=a packet on the socket",
            "INFO doorbell: process gone .. uid= .. pid= .. job=9 .. endpoint=0 .. reason=the process detached",
            "INFO doorbell: last process of a job gone .. uid= .. job=9",
        ],
    );
}

#[test]
fn a_process_that_comes_and_goes_without_end_is_counted() {
    let begun = doorbell::now();
    let log = serving(|socket, log| {
        let deadline = within(Duration::from_secs(120));
        while !log.text().contains("were not logged") {
            attach(socket, 0).detach().unwrap();
            assert!(!deadline.has_passed(doorbell::now()), "{}", log.text());
        }
    });
    assert_told(
        &log,
        &["WARN doorbell: events of processes were not logged .. events="],
    );
    // Each second of counting starts after the one before.
    let seconds = (doorbell::now().to_ns() - begun.to_ns()) / 1_000_000_000 + 2;
    let lines = log.lines().count() as u64;
    assert!(lines <= seconds * 2 * (8 + 1), "{lines} in {seconds}: {log}");
}

#[test]
fn a_refusal_is_told_of_behind_however_many_that_come_and_go() {
    let log = serving(|socket, _| {
        let _client = attach(socket, 0);
        // Each has its own name, so none is refused because of the one before.
        for endpoint in 1..=20 {
            attach(socket, endpoint).detach().unwrap();
        }
        let mut wrong = request(21);
        wrong.key = JobKey([1; 16]);
        assert!(Client::attach(socket, &wrong, within(Duration::from_secs(120))).is_err());
    });
    assert_told(
        &log,
        &["WARN doorbell: process refused .. reason=the job has another key"],
    );
}

#[test]
fn a_daemon_that_is_replaced_says_by_whom() {
    let log = serving(|socket, _| {
        let mut config = ServerConfig::new(socket);
        config.replace = true;
        drop(Server::bind(&config).unwrap());
    });
    assert_told(
        &log,
        &["INFO doorbell: replaced by another daemon .. uid= .. pid="],
    );
}

/// Creates a daemon on a simulated host.
fn daemon(host: Host, number: u32) -> (Router, Peers<Host, Host>, Handle) {
    let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap());
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    let mut config = LinkConfig::default();
    (config.retained, config.ahead) = (64, 64);
    config.session.recover_within = Duration::from_millis(100);
    let mut peers = Peers::new(node, workers, &config, 1).unwrap();
    let handle = peers.listen_polled("0.0.0.0:0".parse().unwrap()).unwrap();
    (
        Router::new(NodeNumber(number), &RouterLimits::default()),
        peers,
        handle,
    )
}

#[test]
fn other_nodes_are_told_of_as_they_are_linked_and_lost() {
    let log = Log::of(LevelFilter::INFO, || {
        let fabric = Fabric::builder().driven().build();
        let [one, other] = fabric.hosts().unwrap();
        let (mut router, mut peers, handle) = daemon(one, 1);
        let (mut far_router, mut far, far_handle) = daemon(other, 2);
        peers.add(&mut router, NodeNumber(2), far_handle);
        far.add(&mut far_router, NodeNumber(1), handle);
        let layout = request(0).layout;
        let mut attached = [&mut router, &mut far_router].map(|router| {
            let ours = Endpoint::new(layout).unwrap();
            let memory = layout.adopt(&ours.descriptors()).unwrap();
            let (uid, gid, pid) = (1, 1, None);
            router
                .attach(Credentials { uid, gid, pid }, &request(0), memory)
                .unwrap();
            ours
        });
        attached[0]
            .send(
                EndpointAddress {
                    node: NodeNumber(2),
                    endpoint: 0,
                },
                b"hello",
            )
            .unwrap();
        attached[0].flush();
        let mut came = 0;
        for _ in 0..100_000 {
            router.poll(|_| {});
            peers.poll(&mut router).unwrap();
            far_router.poll(|_| {});
            far.poll(&mut far_router).unwrap();
            attached[1].poll(|_| came += 1).unwrap();
            if came > 0 {
                break;
            }
            fabric.run_for(Duration::from_micros(100));
        }
        assert_eq!(came, 1);
        drop((far_router, far));
        for _ in 0..100_000 {
            router.poll(|_| {});
            peers.poll(&mut router).unwrap();
            if peers.links() == 0 {
                break;
            }
            fabric.run_for(Duration::from_micros(100));
        }
        assert_eq!(peers.links(), 0);
    });
    assert_told(
        &log,
        &[
            "INFO doorbell: link to a node .. node=2 .. epoch=1",
            "INFO doorbell: link of a node .. node=1 .. instance=",
            "WARN doorbell: node lost .. node=2 .. links=1",
        ],
    );
    assert_eq!(count_told(&log, "node lost"), 1, "{log}");
}
