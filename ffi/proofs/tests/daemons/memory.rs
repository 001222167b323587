//! Memory of a daemon for each process, and queue pairs for each pair of nodes, on the simulated fabric (`docs/performance.md`).
//!
//! Each process of node 0 exchanges a message with its neighbour, and one with a process of node 1 over the links. Then its own side is
//! closed: the memory of the daemon is left.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use doorbell::link::LinkConfig;
use doorbell::provider::IpPrefix;
use doorbell::{Node, Trust, WorkerConfig};
use doorbell_daemon::{
    AttachRequest, Credentials, Endpoint, EndpointAddress, EndpointEvent, EndpointLayout, JobKey, JobNumber,
    NodeNumber, Peers, Router, RouterLimits,
};
use doorbell_proofs::owners::{Counting, HUB, PEERS, in_use, of};
use doorbell_sim::{Fabric, Host, PortConfig};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new(0);

/// Goal for the daemon's own memory, for each further process.
const BYTES_MAX: i64 = 1024;

/// A process in the server's table: its name, its socket, its pidfd, in a tree whose nodes are half full.
const OF_SERVER: i64 = 64;

/// Links to the other node, each of one queue pair: a pair of nodes has them once each way.
const LANES: u32 = 2;

/// Processes that are attached at a time.
const AT_A_TIME: u32 = 1024;

/// Processes of node 1 that answer.
const ANSWERING: u32 = 4;

/// Longer than anything takes.
const POLLS_MAX: u32 = 100_000;

struct Daemon {
    router: Router,
    peers: Peers<Host, Host>,
}

impl Daemon {
    fn new(fabric: &Fabric, number: u8) -> (Self, doorbell::Handle) {
        let address = IpPrefix::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number + 1)), 24).unwrap();
        let port = PortConfig::new("sim0", &[address]);
        let host = fabric.host(&format!("host{number}"), vec![port]).unwrap();
        let trust = Trust::unauthenticated_on_purpose();
        let node = Arc::new(Node::with(host.clone(), host, trust).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = LinkConfig::default();
        (config.retained, config.ahead) = (64, 64);
        let mut peers = Peers::new(node, workers, &config, LANES).unwrap();
        let handle = peers.listen_polled("0.0.0.0:0".parse().unwrap()).unwrap();
        let limits = RouterLimits {
            clients_max: 1 << 15,
            clients_of_user_max: 1 << 15,
            clients_of_job_max: 1 << 15,
            contacts_max: 1 << 15,
            ..RouterLimits::default()
        };
        let router = Router::new(NodeNumber(number.into()), &limits);
        (Self { router, peers }, handle)
    }

    fn attach(&mut self, endpoint: u32) -> Endpoint {
        let layout = EndpointLayout::new(4, 64).unwrap();
        let ours = of(PEERS, || Endpoint::new(layout).unwrap());
        let memory = layout.adopt(&ours.descriptors()).unwrap();
        let (uid, gid, pid) = (1, 1, None);
        let request = AttachRequest {
            job: JobNumber(1),
            key: JobKey([7; 16]),
            endpoint,
            layout,
        };
        let who = Credentials { uid, gid, pid };
        self.router.attach(who, &request, memory).unwrap();
        ours
    }

    fn poll(&mut self) {
        self.router.poll(|_| {});
        self.peers.poll(&mut self.router).unwrap();
    }
}

fn at(node: u32, endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(node),
        endpoint,
    }
}

struct Nodes {
    fabric: Fabric,
    near: Daemon,
    far: Daemon,
    answering: Vec<Endpoint>,
    attached: u32,
}

impl Nodes {
    fn new() -> Self {
        let fabric = Fabric::builder().driven().build();
        let (mut near, near_handle) = of(HUB, || Daemon::new(&fabric, 0));
        let (mut far, far_handle) = Daemon::new(&fabric, 1);
        of(HUB, || {
            near.peers.add(&mut near.router, NodeNumber(1), far_handle)
        });
        far.peers.add(&mut far.router, NodeNumber(0), near_handle);
        let answering = (0..ANSWERING).map(|endpoint| far.attach(endpoint)).collect();
        Self {
            fabric,
            near,
            far,
            answering,
            attached: 0,
        }
    }

    /// Attaches processes until there are so many, and lets each exchange its messages.
    fn up_to(&mut self, count: u32) {
        while self.attached < count {
            let some = AT_A_TIME.min(count - self.attached);
            let first = self.attached;
            let mut all: Vec<_> = (first..first + some)
                .map(|endpoint| of(HUB, || self.near.attach(endpoint)))
                .collect();
            for (number, endpoint) in (first..).zip(&mut all) {
                endpoint
                    .send(at(0, first + (number - first + 1) % some), b"here")
                    .unwrap();
                endpoint.send(at(1, number % ANSWERING), b"there").unwrap();
                endpoint.flush();
            }
            let mut received = 0;
            for polls in 0.. {
                assert!(polls < POLLS_MAX, "{received} of {some} got both");
                of(HUB, || self.near.poll());
                self.far.poll();
                for endpoint in &mut self.answering {
                    let mut asked = Vec::new();
                    endpoint.poll(|event| asked.extend(sender(&event))).unwrap();
                    for from in asked {
                        endpoint.send(from, b"back").unwrap();
                    }
                    endpoint.flush();
                }
                for endpoint in &mut all {
                    endpoint
                        .poll(|event| received += u32::from(sender(&event).is_some()))
                        .unwrap();
                }
                if received == 2 * some {
                    break;
                }
                self.fabric.run_for(core::time::Duration::from_micros(10));
            }
            // Slots that they handed back, and answers of the other daemon.
            for _ in 0..10 {
                of(HUB, || self.near.poll());
                self.far.poll();
                self.fabric.run_for(core::time::Duration::from_micros(10));
            }
            self.attached += some;
        }
    }
}

fn sender(event: &EndpointEvent<'_>) -> Option<EndpointAddress> {
    match event {
        EndpointEvent::Received { from, .. } => Some(*from),
        event => panic!("{event:?}"),
    }
}

#[test]
fn a_further_process_costs_the_daemon_no_more_than_the_goal_and_no_queue_pair() {
    // Two for each process that is attached just now. The daemon keeps none of them.
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
    let mut nodes = Nodes::new();
    let mut before = Vec::new();
    let mut pairs = Vec::new();
    for count in [1, 64, 512, 1024, 16_384] {
        nodes.up_to(count);
        before.push((i64::from(count), in_use(HUB)));
        // Both ends of each are on the fabric.
        pairs.push(nodes.fabric.queue_pairs() / 2);
    }
    let [.., (few, of_few), (many, of_many)] = before[..] else {
        panic!("{before:?}");
    };
    let each = (of_many - of_few) / (many - few) + OF_SERVER;
    println!(
        "{each} bytes for each further process, from {few} to {many}; queue pairs of a node with 1, 64, 512, 1,024 and 16,384: {pairs:?}"
    );
    assert!((1..=BYTES_MAX).contains(&each), "{each}: {before:?}");
    assert_eq!(pairs[1..], [2 * LANES as usize; 4], "once each way");
}
