//! A Join that is sent while the return of the link's rail is not reported yet.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell_core::rank::Rank;
use doorbell_core::session::SessionEvent;
use doorbell_core::{Clock as _, IpPrefix};
use doorbell_sim::{Fabric, Host, PortConfig};

use crate::connect::node::Node;
use crate::link::LinkEvent;
use crate::mesh::{Mesh, MeshConfig, MeshEvent};
use crate::trust::Trust;
use crate::worker::Worker;
use crate::worker::config::WorkerConfig;

struct Member {
    node: Arc<Node<Host, Host>>,
    workers: Vec<Worker<Host>>,
    mesh: Mesh<Host, Host>,
}

impl Member {
    fn new(fabric: &Fabric, rank: u8) -> Self {
        let prefix = IpPrefix::new([10, 0, 0, rank + 1].into(), 24).unwrap();
        let name = format!("h{rank}");
        let host = fabric
            .host(&name, vec![PortConfig::new(&name, &[prefix])])
            .unwrap();
        let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap());
        let own = WorkerConfig {
            slot_bytes: 16 << 10,
            ..WorkerConfig::default()
        };
        let workers = node.workers(&own).unwrap();
        let config = MeshConfig::new(Rank::new(rank).unwrap(), 2, 1);
        let mesh = Mesh::new(&node, &workers, &config).unwrap();
        Self { node, workers, mesh }
    }

    fn poll(&mut self) {
        self.mesh.poll(&self.node, &mut self.workers, |_| {}).unwrap();
    }
}

#[test]
fn a_link_that_is_held_down_is_reported_once_when_its_rail_is_back() {
    let fabric = Fabric::builder().driven().build();
    let (mut one, mut other) = (Member::new(&fabric, 0), Member::new(&fabric, 1));
    let any = SocketAddr::from(([0, 0, 0, 0], 7000));
    let handle = one.mesh.listen_polled(&one.node, &one.workers, any).unwrap();
    let rank = one.mesh.rank();
    other
        .mesh
        .connect(&other.node, &other.workers, rank, &handle)
        .unwrap();
    for _ in 0..1000 {
        one.poll();
        other.poll();
        fabric.run_for(Duration::from_micros(100));
    }
    let now = other.node.network().now();
    let Mesh { links, state, .. } = &mut other.mesh;
    let link = state.neighbours[0].link;
    assert_eq!(state.neighbours[0].joined(), Some(rank));
    // The link flaps. It lost its rail before the Join was sent, and the rail is there again, which is reported behind the Join.
    for _ in 0..2 {
        state.note_lost(rank, now);
        state.note_back(rank, now);
    }
    state.note_lost(rank, now);
    state.events.clear();
    state.neighbours[0].is_without_rail = true;
    state.neighbours[0].has_joined = false;
    state.say(links, now);
    assert!(state.neighbours[0].has_joined);
    assert!(state.events.is_empty(), "{:?}", state.events);
    state.hear(link, LinkEvent::Session(SessionEvent::Recovered), now);
    let held: Vec<_> = state.events.drain(..).collect();
    assert!(
        matches!(held[..], [MeshEvent::HeldDown(of)] if of == rank),
        "{held:?}"
    );
}
