//! Loops that poll once a tick, and do not poll again until nothing is left: what one peer costs the next, and whose turn it is.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell::connect::{Connecting, HandshakeLimits};
use doorbell::provider::{Io as _, Network as _};
use doorbell::wire::RejectReason;
use doorbell::{ChannelConfig, ConnectError, Connection, Listener, Node, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host, LinkConfig, Stream};

use crate::fabric::{node, port};
use crate::handshakes::hub::{Hub, LATENCY, PORT, WHOLE, rejection};

const TICK: Duration = Duration::from_millis(10);

/// The addresses of one device of the hub.
const DEVICES: [&str; 2] = ["10.0.0", "10.1.0"];

fn config() -> ChannelConfig {
    let mut config = crate::handshakes::hub::config();
    config.handshake_stage = 50 * TICK;
    config
}

fn driven() -> Fabric {
    let link = LinkConfig {
        latency_ns: LATENCY.as_nanos() as u64,
        bandwidth_mbps: None,
    };
    Fabric::builder().link(link).driven().build()
}

/// A host with two devices.
fn hub_on(fabric: &Fabric) -> Node<Host, Host> {
    let ports = [0, 1].map(|device| port(&format!("hub{device}"), &format!("{}.1/24", DEVICES[device])));
    node(fabric, "hub", ports.into())
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], PORT))
}

/// A host in the subnet of a device of the hub, that connects.
struct Peer {
    node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    connecting: Connecting<Host, Host>,
}

impl Peer {
    fn new(fabric: &Fabric, device: usize, number: usize) -> Self {
        let (name, address) = (
            format!("c{device}-{number}"),
            format!("{}.{number}", DEVICES[device]),
        );
        let node = node(fabric, &name, vec![port(&name, &format!("{address}/24"))]);
        let mut own = WorkerConfig::default();
        own.slots = 64;
        let workers = node.workers(&own).unwrap();
        let to = SocketAddr::new(format!("{}.1", DEVICES[device]).parse().unwrap(), PORT);
        let begun = node.begin_connect_at(&workers, to, &config(), node.within(WHOLE));
        let connecting = begun.unwrap();
        Self {
            node,
            workers,
            connecting,
        }
    }

    fn poll(&mut self) -> Option<Result<Connection, ConnectError>> {
        self.connecting.poll(&self.node, &mut self.workers)
    }
}

/// A host that polls its listener once a tick.
struct Ticking {
    fabric: Fabric,
    node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    listener: Listener<Host, Host>,
    accepted: usize,
    failed: usize,
}

impl Ticking {
    fn new() -> Self {
        let fabric = driven();
        let node = hub_on(&fabric);
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let listener = Listener::bind(&node, &workers, anywhere(), &config()).unwrap();
        Self {
            fabric,
            node,
            workers,
            listener,
            accepted: 0,
            failed: 0,
        }
    }

    fn tick(&mut self) {
        match self.listener.poll_accept(&self.node, &mut self.workers) {
            Ok(accepted) => self.accepted += usize::from(accepted.is_some()),
            Err(_) => self.failed += 1,
        }
        self.fabric.run_for(TICK);
    }

    /// Ticks until this peer is connected; how many ticks that took.
    fn connect(&mut self, peer: &mut Peer) -> usize {
        let mut ticks = 0;
        loop {
            if let Some(outcome) = peer.poll() {
                outcome.unwrap();
                return ticks;
            }
            self.tick();
            ticks += 1;
        }
    }

    /// So many streams of a host that say nothing of the wire format.
    fn garbage(&self, number: u8, count: usize) -> Vec<Stream> {
        let (name, address) = (format!("g{number}"), format!("10.0.0.{number}/24"));
        let host = self.fabric.host(&name, vec![port(&name, &address)]).unwrap();
        let at = SocketAddr::from(([10, 0, 0, 1], PORT));
        let mut streams: Vec<_> = (0..count).map(|_| host.connect(at).unwrap()).collect();
        self.fabric.run_for(4 * LATENCY);
        for stream in &mut streams {
            assert_eq!(stream.write(&[0xff; 64]), Ok(64));
        }
        streams
    }
}

#[test]
fn failures_that_wait_to_be_taken_hold_up_no_handshake() {
    let mut hub = Ticking::new();
    let _streams = [66, 67].map(|number| hub.garbage(number, 64));
    let mut peer = Peer::new(&hub.fabric, 0, 2);
    let took = hub.connect(&mut peer);
    assert!(took < 12, "{took}");
    // Each failure is an outcome all the same, and the connection is one before them.
    assert!(hub.failed < took, "{} {took}", hub.failed);
    hub.tick();
    assert_eq!(hub.accepted, 1);
    for _ in 0..128 {
        hub.tick();
    }
    assert_eq!((hub.failed, hub.listener.failed()), (128, 128));
}

#[test]
fn failures_that_nobody_takes_are_kept_up_to_a_limit() {
    const KEPT: usize = 1024;
    let mut hub = Ticking::new();
    let mut streams = Vec::new();
    for round in 0..20 {
        streams.extend(hub.garbage(100 + round, 64));
        for _ in 0..4 {
            hub.tick();
        }
    }
    assert_eq!(hub.listener.failed(), 20 * 64);
    let taken = hub.failed;
    assert!(taken <= 20 * 4, "{taken}");
    for _ in 0..2 * KEPT {
        hub.tick();
    }
    // The last ticks took some that were kept.
    let kept = hub.failed - taken;
    assert!((KEPT - 4..KEPT).contains(&kept), "{kept}");
}

#[test]
fn connections_of_one_worker_hold_up_no_place_of_another() {
    let alone = {
        let mut hub = Ticking::new();
        let mut peer = Peer::new(&hub.fabric, 1, 2);
        hub.connect(&mut peer)
    };
    for head_start in 0..8 {
        let mut hub = Ticking::new();
        let mut others: Vec<_> = (0..16)
            .map(|number| Peer::new(&hub.fabric, 0, 10 + number))
            .collect();
        let mut connected = 0;
        let mut tick = |hub: &mut Ticking| {
            for other in &mut others {
                if let Some(outcome) = other.poll() {
                    outcome.unwrap();
                    connected += 1;
                }
            }
            others.retain(|other| other.workers[0].channels().count() == 0);
            hub.tick();
        };
        (0..head_start).for_each(|_| tick(&mut hub));
        let mut peer = Peer::new(&hub.fabric, 1, 2);
        let mut took = 0;
        let outcome = loop {
            if let Some(outcome) = peer.poll() {
                break outcome;
            }
            tick(&mut hub);
            took += 1;
        };
        outcome.unwrap();
        // A place that is granted beside another outcome is used at the next tick.
        assert!(took <= alone + 1, "{took}, alone {alone}, behind {head_start}");
        (0..32).for_each(|_| tick(&mut hub));
        assert_eq!((connected, hub.accepted), (16, 17), "{head_start}");
    }
}

#[test]
fn the_workers_of_each_device_take_turns() {
    let fabric = driven();
    let node = Arc::new(hub_on(&fabric));
    let own = WorkerConfig::default();
    let mut workers = ["hub0", "hub0", "hub1", "hub1"].map(|device| node.worker(device, &own).unwrap());
    let listener = Listener::bind(&node, &workers, anywhere(), &config()).unwrap();
    let (mut handshakes, mut acceptances) = listener.aside(&node, &workers, &HandshakeLimits::default());
    let mut accepted = [0; 4];
    // The peers come over one device and the other in turn.
    for number in 0..8 {
        let mut peer = Peer::new(&fabric, number % 2, 10 + number);
        let (mut outcome, before) = (None, accepted);
        while outcome.is_none() || accepted == before {
            handshakes.poll();
            for ((acceptances, worker), accepted) in
                acceptances.iter_mut().zip(&mut workers).zip(&mut accepted)
            {
                *accepted += usize::from(acceptances.poll_accept(worker).unwrap().is_some());
            }
            outcome = outcome.or_else(|| peer.poll());
            fabric.run_for(LATENCY);
        }
        outcome.unwrap().unwrap();
    }
    assert_eq!(accepted, [2; 4]);
}

/// Without threads that wake each other, the handshakes look again by themselves for a place that a Worker grants.
#[test]
fn a_wait_is_short_while_a_worker_may_grant_a_place() {
    let (mut hub, mut guest, mut connecting) = Hub::with_guest_that_waits();
    let granted = hub.acceptances.as_mut().unwrap().poll_accept(&mut hub.worker);
    assert!(matches!(granted, Ok(None)), "{granted:?}");
    let (began, deadline) = (hub.fabric.now(), hub.node.within(WHOLE));
    hub.handshakes.as_ref().unwrap().wait(deadline).unwrap();
    let waited = Duration::from_nanos(hub.fabric.now().to_ns() - began.to_ns());
    assert!(waited <= LATENCY, "{waited:?}");
    hub.accepts = true;
    while guest.poll(&mut connecting).is_none() {
        hub.run(LATENCY);
    }
    drop(connecting);
    hub.run(LATENCY);
    assert_eq!(hub.accepted.len(), 1);
    hub.end(vec![guest]);
}

#[test]
fn a_worker_that_is_gone_is_no_fault_of_the_peers_settings() {
    let (mut hub, mut guest, mut connecting) = Hub::with_guest_that_waits();
    let granted = hub.acceptances.as_mut().unwrap().poll_accept(&mut hub.worker);
    assert!(matches!(granted, Ok(None)), "{granted:?}");
    let another = hub.node.workers(&WorkerConfig::default()).unwrap().remove(0);
    drop(core::mem::replace(&mut hub.worker, another));
    let outcome = loop {
        hub.run(LATENCY);
        if let Some(outcome) = guest.poll(&mut connecting) {
            break outcome;
        }
    };
    assert_eq!(rejection(outcome), (RejectReason::QUEUE_PAIR, 0));
    let why = hub.handshakes.as_ref().unwrap().take_failure();
    assert!(matches!(why, Some(ConnectError::OtherWorkers)), "{why:?}");
}

/// The Worker's side ends while a peer waits for its place: the peer does not wait for a deadline.
#[test]
fn a_peer_that_waits_for_a_place_is_rejected_at_once_if_nobody_accepts_any_more() {
    let (mut hub, mut guest, mut connecting) = Hub::with_guest_that_waits();
    assert!(hub.counts().begun == 1 && hub.counts().failed == 0);
    drop(hub.acceptances.take());
    let outcome = (0..4).find_map(|_| {
        hub.run(LATENCY);
        guest.poll(&mut connecting)
    });
    assert_eq!(rejection(outcome.unwrap()), (RejectReason::CLOSING, 0));
    let why = hub.handshakes.as_ref().unwrap().take_failure();
    assert!(matches!(why, Some(ConnectError::ListenerClosed)), "{why:?}");
    drop(connecting);
    hub.end(vec![guest]);
}
