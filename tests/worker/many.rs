//! Many channels between two Workers.

use doorbell::{ChannelConfig, ChannelId, ConnectError, Listener, Node, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

use crate::fabric::{SOON, nodes};

/// A Worker of the first node that listens, one of the second that connects, and the names of their channels.
pub(crate) struct Many {
    pub(crate) fabric: Fabric,
    pub(crate) nodes: [Node<Host, Host>; 2],
    pub(crate) hub: Vec<Worker<Host>>,
    pub(crate) peer: Vec<Worker<Host>>,
    pub(crate) listener: Listener<Host, Host>,
    pub(crate) channels: Vec<[ChannelId; 2]>,
    /// Why the last handshake failed at the side that listens.
    pub(crate) failure: Option<ConnectError>,
}

impl Many {
    pub(crate) fn new(own: &WorkerConfig, channel: &ChannelConfig, theirs: &WorkerConfig) -> Self {
        Self::on(Fabric::new(), own, channel, theirs)
    }

    /// On a fabric that is there.
    pub(crate) fn on(
        fabric: Fabric,
        own: &WorkerConfig,
        channel: &ChannelConfig,
        theirs: &WorkerConfig,
    ) -> Self {
        let nodes = nodes(&fabric);
        let hub = nodes[0].workers(own).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&nodes[0], &hub, any, channel).unwrap();
        Self {
            fabric,
            hub,
            peer: nodes[1].workers(theirs).unwrap(),
            listener,
            channels: Vec::new(),
            failure: None,
            nodes,
        }
    }

    /// Connects once more.
    pub(crate) fn connect(&mut self, config: &ChannelConfig) -> Result<(), ConnectError> {
        let Self {
            nodes: [a, b],
            hub,
            peer,
            listener,
            channels,
            failure,
            ..
        } = self;
        *failure = None;
        let mut connecting = b.begin_connect(peer, listener.handle(), config, b.within(SOON))?;
        let (mut accepted, mut connected) = (None, None);
        while connected.is_none() || accepted.is_none() {
            connected = connected.or_else(|| connecting.poll(b, peer));
            if accepted.is_none() {
                match listener.poll_accept(a, hub) {
                    Ok(at) => accepted = at,
                    Err(error) => *failure = Some(error),
                }
            }
            if failure.is_some() && matches!(connected, Some(Err(_))) {
                break;
            }
            listener
                .wait(a, a.within(core::time::Duration::from_micros(10)))
                .unwrap();
        }
        let there = connected.unwrap()?.channel;
        channels.push([accepted.unwrap().channel, there]);
        Ok(())
    }
}
