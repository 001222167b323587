//! Two hosts on a simulated fabric whose addresses are this machine's loopback, so that the
//! handshake's TCP is real.
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its part")]

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::thread;

use doorbell::vocabulary::IpPrefix;
use doorbell::{
    ChannelConfig, ChannelId, ConnectError, Connection, Event, Handle, Lease, Listener, Node, Notify, Worker,
    WorkerConfig, within,
};
use doorbell_sim::{Fabric, Host, PortConfig};

pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) fn prefix(text: &str) -> IpPrefix {
    let (address, bits) = text.split_once('/').unwrap();
    IpPrefix::new(address.parse::<IpAddr>().unwrap(), bits.parse().unwrap()).unwrap()
}

pub(crate) fn port(device: &str, address: &str) -> PortConfig {
    PortConfig::new(device, &[prefix(address)])
}

pub(crate) fn node(fabric: &Fabric, name: &str, ports: Vec<PortConfig>) -> Node<Host> {
    Node::with_provider(fabric.host(name, ports).unwrap()).unwrap()
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) node: Node<Host>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) at: Connection,
    /// What was polled and not yet asked for.
    pub(crate) events: VecDeque<Event<Host>>,
}

impl End {
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
    pub(crate) fn until<T>(&mut self, mut wanted: impl FnMut(Event<Host>) -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + SOON;
        loop {
            while let Some(event) = self.events.pop_front() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            assert!(std::time::Instant::now() < deadline, "nothing came");
            let Self {
                workers, events, at, ..
            } = self;
            workers[at.worker]
                .poll(|_, event| events.push_back(event))
                .unwrap();
        }
    }
}

/// Workers of a node with few, small slots.
pub(crate) fn workers(node: &Node<Host>) -> Vec<Worker<Host>> {
    workers_that(node, Notify::Never)
}

pub(crate) fn workers_that(node: &Node<Host>, notify: Notify) -> Vec<Worker<Host>> {
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
    config
}

/// Connects the second node to a listener of the first; each with its own configuration.
pub(crate) fn connect(
    nodes: (Node<Host>, Node<Host>),
    listening: ChannelConfig,
    connecting: ChannelConfig,
) -> (End, Result<End, ConnectError>) {
    connect_notified(nodes, listening, connecting, Notify::Never)
}

/// The same, with Workers that notify like this.
pub(crate) fn connect_notified(
    nodes: (Node<Host>, Node<Host>),
    listening: ChannelConfig,
    connecting: ChannelConfig,
    notify: Notify,
) -> (End, Result<End, ConnectError>) {
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
    let connecting = thread::spawn(move || {
        let mut workers = workers_that(&client, notify);
        let at = client.connect(&mut workers, &handle, &connecting, within(SOON))?;
        Ok(End {
            node: client,
            workers,
            at,
            events: VecDeque::new(),
        })
    });
    let at = listener
        .accept(&server, &mut server_workers, within(SOON))
        .unwrap();
    let client = connecting.join().unwrap();
    (
        End {
            node: server,
            workers: server_workers,
            at,
            events: VecDeque::new(),
        },
        client,
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
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let b = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let (server, client) = connect_notified((a, b), listening, connecting, notify);
    (server, client.unwrap())
}
