//! Two hosts of a simulated fabric with a channel between them, for unit tests.

use core::time::Duration;

use doorbell_core::IpPrefix;
use doorbell_sim::{Fabric, Host, PortConfig};

use crate::connect::listener::Listener;
use crate::connect::node::Node;
use crate::trust::Trust;
use crate::worker::Worker;
use crate::worker::channel::ChannelId;
use crate::worker::config::{ChannelConfig, WorkerConfig};

const SOON: Duration = Duration::from_secs(10);

/// One of the hosts.
pub(crate) struct Side {
    /// Keeps the Node of the Workers alive.
    _node: Node<Host, Host>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) channel: ChannelId,
}

fn host(fabric: &Fabric, name: &str, address: &str) -> (Node<Host, Host>, Vec<Worker<Host>>) {
    let prefix = IpPrefix::new(address.parse().unwrap(), 24).unwrap();
    let port = PortConfig::new(name, &[prefix]);
    let host = fabric.host(name, vec![port]).unwrap();
    let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    (node, workers)
}

/// Returns the listening side and the connecting side.
pub(crate) fn connected(fabric: &Fabric, config: &ChannelConfig) -> [Side; 2] {
    let (server, mut ours) = host(fabric, "server", "10.0.0.1");
    let (client, mut theirs) = host(fabric, "client", "10.0.0.2");
    let any = "10.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&server, &ours, any, config).unwrap();
    let mut connecting = client
        .begin_connect(&theirs, listener.handle(), config, client.within(SOON))
        .unwrap();
    let (mut here, mut there) = (None, None);
    while here.is_none() || there.is_none() {
        there = there.or_else(|| connecting.poll(&client, &mut theirs));
        here = here.or_else(|| listener.poll_accept(&server, &mut ours).unwrap());
        listener
            .wait(&server, server.within(Duration::from_micros(10)))
            .unwrap();
    }
    let side = |node, workers, channel| Side {
        _node: node,
        workers,
        channel,
    };
    [
        side(server, ours, here.unwrap().channel),
        side(client, theirs, there.unwrap().unwrap().channel),
    ]
}
