//! Meshes whose members are linked to while ports are looked at.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::link::{LinkConfig, LinkError};
use doorbell::mesh::{Mesh, MeshConfig, NotLinked, Rank};
use doorbell::provider::Clock as _;
use doorbell::{Deadline, Node, Worker, WorkerConfig, within};
use doorbell_fake::{Call, Control};

use crate::held::{SOON, all_destroyed, open};
use crate::links::Side;

/// One member of a mesh.
type Member = (Arc<Node>, Vec<Worker>, Mesh);

/// Two members, each with room for so many links.
fn members(links_max: u32) -> [Member; 2] {
    [0, 1].map(|number| {
        let node = open();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = MeshConfig::new(Rank::new(number).unwrap(), 2, 1);
        config.link.session.attach_within = SOON;
        config.link.links_max = links_max;
        let mesh = Mesh::new(&node, &workers, &config).unwrap();
        (node, workers, mesh)
    })
}

fn poll(members: &mut [Member; 2]) {
    for (node, workers, mesh) in members {
        mesh.poll(node, workers, |_| {}).unwrap();
    }
}

/// A member whose handle is known, or that is asked for it, is linked to.
pub(crate) fn mesh(control: Control, is_asked: bool) {
    control.heal();
    let mut sides = members(LinkConfig::default().links_max);
    let [(node, workers, mesh), _] = &mut sides;
    let handle = mesh.listen(node, workers, "[::]:0".parse().unwrap()).unwrap();
    let [_, (node, workers, mesh)] = &mut sides;
    let first = Rank::new(0).unwrap();
    // One that is asked looks first, to be able to answer.
    let before = u32::from(is_asked);
    let held = control
        .calls(Call::OpenDevice)
        .saturating_add(before)
        .saturating_add(1);
    control.hold(Call::OpenDevice, before);
    if is_asked {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, handle.port().get()));
        mesh.connect_at(first, at).unwrap();
    } else {
        mesh.connect(node, workers, first, &handle).unwrap();
    }
    let began = Instant::now();
    while control.calls(Call::OpenDevice) < held {
        assert!(began.elapsed() < SOON);
        poll(&mut sides);
    }
    for _ in 0..100 {
        poll(&mut sides);
    }
    assert_eq!(control.let_go(), 0);
    while !sides.iter().all(|(.., mesh)| mesh.reached().len() == 2) {
        assert!(began.elapsed() < SOON);
        poll(&mut sides);
    }
    drop(sides);
    all_destroyed(control);
}

/// A member whose handle is known is linked to as soon as there is a place for the link.
pub(crate) fn mesh_without_room(control: Control) {
    control.heal();
    let mut sides = members(2);
    let handles = sides
        .each_mut()
        .map(|(node, workers, mesh)| mesh.listen(node, workers, "[::]:0".parse().unwrap()).unwrap());
    let mut strangers = Side::new(SOON);
    for _ in 0..2 {
        strangers
            .links
            .connect(&strangers.node, &strangers.workers, &handles[1])
            .unwrap();
    }
    let began = Instant::now();
    while sides[1].2.links().ids().count() < 2 {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    let first = Rank::new(0).unwrap();
    let [_, (node, workers, mesh)] = &mut sides;
    control.hold(Call::OpenDevice, 0);
    mesh.connect(node, workers, first, &handles[0]).unwrap();
    assert_eq!(control.let_go(), 0);
    let is_refused = |mesh: &Mesh| {
        let mut reasons = mesh.not_linked(first);
        reasons.any(|reason| matches!(reason, NotLinked::NotBegun(LinkError::TooManyLinks { .. })))
    };
    while !is_refused(&sides[1].2) {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    // Nobody has to poll for it more often than it is tried.
    let wakes_soon = |(node, _, mesh): &Member| {
        let now = node.network().now();
        let soon = Deadline::after(now, Duration::from_millis(2));
        mesh.wake(now).is_some_and(|wake| wake <= soon)
    };
    while wakes_soon(&sides[1]) {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    for id in strangers.links.ids().collect::<Vec<_>>() {
        strangers.links.close(id, within(SOON));
    }
    while !sides.iter().all(|(.., mesh)| mesh.reached().len() == 2) {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    drop((sides, strangers));
    all_destroyed(control);
}
