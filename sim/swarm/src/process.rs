//! A process that has links: its node, its Workers, and the port at which others connect to it.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use doorbell::link::Links;
use doorbell::trust::Key;
use doorbell::{Handle, KeyRing, Node, Trust, Worker};
use doorbell_sim::Host;

use crate::case::{Case, Scene};
use crate::station::{link_config, worker_config};

const TCP_PORT: u16 = 4000;

/// The secret of all processes: the first words of SHA-256.
const SECRET: [u8; 32] = *b"\x6a\x09\xe6\x67\xbb\x67\xae\x85\x3c\x6e\xf3\x72\xa5\x4f\xf5\x3a\
    \x51\x0e\x52\x7f\x9b\x05\x68\x8c\x1f\x83\xd9\xab\x5b\xe0\xcd\x19";

/// In this order it goes.
pub(crate) struct Process {
    pub(crate) links: Links<Host, Host>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) node: Arc<Node<Host, Host>>,
    pub(crate) handle: Handle,
}

impl Process {
    pub(crate) fn new(case: &Case, number: usize, host: &Host) -> anyhow::Result<Self> {
        // With proofs, as links are to be used.
        let key = Key::new(1, &SECRET)?;
        let node = Arc::new(Node::with(
            host.clone(),
            host.clone(),
            Trust::keys(KeyRing::new(key)),
        )?);
        let mut config = worker_config(&case.hosts[number], None);
        if let Some(Scene::Full(full)) = &case.scene {
            full.rooms[number].limit_worker(&mut config);
        }
        config.classes = case.classes.as_ref().and_then(|classes| classes.of(number));
        let workers = node.workers(&config)?;
        let mut links = Links::new(&node, &workers, &link_config(case, number)?)?;
        let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), TCP_PORT);
        let handle = links.listen_polled(&node, &workers, at)?;
        // A device that is not usable yet would have no Worker, and no rail in the handle.
        let rails = handle.rails().iter().count();
        let is_whole = rails == case.hosts[number].subnets.count_ones() as usize;
        anyhow::ensure!(is_whole, "a rail is missing");
        Ok(Self {
            links,
            workers,
            node,
            handle,
        })
    }
}
