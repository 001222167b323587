//! Two hosts on a simulated fabric. Their addresses are this machine's loopback, so that the
//! handshake can go over real TCP, too.
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its part")]

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::time::Instant;

use doorbell::provider::{Gid, IpPrefix, Network};
use doorbell::rails::{AdvertisedRail, SpeedClass};
use doorbell::trust::Key;
use doorbell::wire::{Frame, FrameBuffer, FrameHeader, Hello, InstanceId, KeyId, Nonce, VersionRange};
use doorbell::{
    ChannelConfig, ChannelId, ConnectError, Connection, Event, Handle, Lease, Listener, Node, Notify, Trust,
    Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host, PortConfig};
use sha2::{Digest as _, Sha256};

pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Longer than anything takes, by the time of a fabric: that passes while nobody has anything to do.
pub(crate) const LONG: Duration = Duration::from_secs(600);

const A_MOMENT: Duration = Duration::from_micros(10);

/// A secret that is as good as random, the same each time for a name.
pub(crate) fn secret(name: &str) -> [u8; 32] {
    Sha256::digest(name).into()
}

/// The key of this id with the secret of a name.
pub(crate) fn key(id: u32, name: &str) -> Key {
    Key::new(id, &secret(name)).unwrap()
}

/// A Hello from this address that names a key by its id. Nothing of the key is in it, so that anybody can send it.
pub(crate) fn hello(address: IpAddr, key: u32) -> Vec<u8> {
    let prefix = IpPrefix::new(address, 8).unwrap();
    let speed = SpeedClass::from_mbps(100_000);
    let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), speed).unwrap();
    let hello = Hello {
        versions: VersionRange::OURS,
        initiator: InstanceId::new(7).unwrap(),
        listener: None,
        nonce: Nonce([7; 16]),
        key: KeyId::new(key),
    };
    let frame = FrameBuffer::hello(&hello, &[rail].into_iter().collect());
    frame.as_bytes().to_vec()
}

/// Whether there is a Reject among the frames that were heard.
pub(crate) fn is_rejected(mut heard: &[u8]) -> bool {
    while let Ok(header) = FrameHeader::parse(heard) {
        let Some((frame, rest)) = heard.split_at_checked(header.frame_bytes()) else {
            break;
        };
        if matches!(Frame::parse(frame), Ok(Frame::Reject(_))) {
            return true;
        }
        heard = rest;
    }
    false
}

pub(crate) fn prefix(text: &str) -> IpPrefix {
    let (address, bits) = text.split_once('/').unwrap();
    IpPrefix::new(address.parse::<IpAddr>().unwrap(), bits.parse().unwrap()).unwrap()
}

pub(crate) fn port(device: &str, address: &str) -> PortConfig {
    PortConfig::new(device, &[prefix(address)])
}

/// A host whose connections are made over the fabric, in its time.
pub(crate) fn node(fabric: &Fabric, name: &str, ports: Vec<PortConfig>) -> Node<Host, Host> {
    node_that(fabric, name, ports, Trust::unauthenticated_on_purpose())
}

/// Two of them, `a` and `b`, on one subnet.
pub(crate) fn nodes(fabric: &Fabric) -> [Node<Host, Host>; 2] {
    [("a", "simA", "127.0.0.1/24"), ("b", "simB", "127.0.0.2/24")]
        .map(|(name, device, address)| node(fabric, name, vec![port(device, address)]))
}

/// One that trusts like this.
pub(crate) fn node_that(
    fabric: &Fabric,
    name: &str,
    ports: Vec<PortConfig>,
    trust: Trust,
) -> Node<Host, Host> {
    Node::simulated(fabric.host(name, ports).unwrap(), trust).unwrap()
}

/// A host whose connections are made over TCP, in this machine's time.
pub(crate) fn tcp_node(fabric: &Fabric, name: &str, ports: Vec<PortConfig>) -> Node<Host> {
    Node::with_provider(
        fabric.host(name, ports).unwrap(),
        Trust::unauthenticated_on_purpose(),
    )
    .unwrap()
}

/// One end of a connection.
pub(crate) struct End<N: Network = Host> {
    pub(crate) node: Node<Host, N>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) at: Connection,
    /// Events that were polled and not asked for yet.
    pub(crate) events: VecDeque<Event<'static, Host>>,
}

impl<N: Network> End<N> {
    pub(crate) fn worker(&mut self) -> &mut Worker<Host> {
        &mut self.workers[self.at.worker]
    }

    pub(crate) fn id(&self) -> ChannelId {
        self.at.channel
    }

    /// A lease with these bytes.
    pub(crate) fn lease(&mut self, bytes: &[u8]) -> Lease<Host> {
        let mut lease = self.worker().lease().expect("memory");
        lease.fill(bytes).unwrap();
        lease
    }

    /// Polls until an event makes something of itself; those before it are dropped.
    pub(crate) fn until<T>(&mut self, mut wanted: impl FnMut(Event<'_, Host>) -> Option<T>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            while let Some(event) = self.events.pop_front() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            assert!(Instant::now() < deadline, "nothing came");
            let Self {
                workers, events, at, ..
            } = self;
            workers[at.worker]
                .poll_tending(|_, event| events.push_back(event.keep()))
                .unwrap();
        }
    }
}

/// Workers of a node with few, small slots.
pub(crate) fn workers<N: Network>(node: &Node<Host, N>) -> Vec<Worker<Host>> {
    workers_that(node, Notify::Never)
}

pub(crate) fn workers_that<N: Network>(node: &Node<Host, N>, notify: Notify) -> Vec<Worker<Host>> {
    let mut config = WorkerConfig::default();
    config.notify = notify;
    config.slots = 64;
    config.slot_bytes = 8192;
    node.workers(&config).unwrap()
}

pub(crate) fn small() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 16;
    config.receive_depth = 16;
    config.repost_batch = 4;
    // The time of a fabric that nobody drives runs ahead of a thread that has no processor.
    config.handshake_stage = LONG;
    // Lost channels are kept for a look, and time passes at the test's request.
    (config.close_when_lost, config.probe_after) = (false, None);
    config
}

/// Connects the second node to a listener of the first; each with its own configuration.
pub(crate) fn connect<N: Network>(
    nodes: (Node<Host, N>, Node<Host, N>),
    listening: ChannelConfig,
    connecting: ChannelConfig,
) -> (End<N>, Result<End<N>, ConnectError>) {
    connect_notified(nodes, listening, connecting, Notify::Never)
}

/// The same, with Workers that notify like this.
pub(crate) fn connect_notified<N: Network>(
    nodes: (Node<Host, N>, Node<Host, N>),
    listening: ChannelConfig,
    connecting: ChannelConfig,
    notify: Notify,
) -> (End<N>, Result<End<N>, ConnectError>) {
    let (server, client) = nodes;
    let mut server_workers = workers_that(&server, notify);
    let mut listener = Listener::bind(
        &server,
        &server_workers,
        "127.0.0.1:0".parse().unwrap(),
        &listening,
    )
    .unwrap();
    let handle: Handle = listener.handle().to_string().parse().unwrap();
    let mut client_workers = workers_that(&client, notify);
    let mut connecting = client
        .begin_connect(&client_workers, &handle, &connecting, client.within(SOON))
        .unwrap();
    let (mut accepted, mut connected) = (None, None);
    let deadline = Instant::now() + SOON;
    while accepted.is_none() || connected.is_none() {
        assert!(Instant::now() < deadline, "{accepted:?} {connected:?}");
        if connected.is_none() {
            connected = connecting.poll(&client, &mut client_workers);
        }
        if accepted.is_none() {
            accepted = listener.poll_accept(&server, &mut server_workers).unwrap();
        }
        // On a fabric that is driven, time passes in waits alone.
        listener.wait(&server, server.within(A_MOMENT)).unwrap();
    }
    let end = |node, workers, at| End {
        node,
        workers,
        at,
        events: VecDeque::new(),
    };
    (
        end(server, server_workers, accepted.unwrap()),
        connected.unwrap().map(|at| end(client, client_workers, at)),
    )
}

/// Two hosts on one subnet, connected.
pub(crate) fn pair() -> (End, End) {
    pair_with(small(), small())
}

pub(crate) fn pair_with(listening: ChannelConfig, connecting: ChannelConfig) -> (End, End) {
    pair_notified(listening, connecting, Notify::Never)
}

pub(crate) fn pair_notified(
    listening: ChannelConfig,
    connecting: ChannelConfig,
    notify: Notify,
) -> (End, End) {
    pair_on(&Fabric::new(), listening, connecting, notify)
}

/// The same, on a fabric that is there.
pub(crate) fn pair_on(
    fabric: &Fabric,
    listening: ChannelConfig,
    connecting: ChannelConfig,
    notify: Notify,
) -> (End, End) {
    let [a, b] = nodes(fabric);
    let (server, client) = connect_notified((a, b), listening, connecting, notify);
    (server, client.unwrap())
}
