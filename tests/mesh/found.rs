//! Members that are found by the addresses they listen at.

use core::net::SocketAddr;

use crate::world::{PORT, World, ms, rank};

/// In a line each knows the one below it by the address that one has on the cable between them.
fn found(world: &mut World) {
    for at in 1..world.hosts.len() {
        let below = SocketAddr::from(([10, 1, (at - 1) as u8, at as u8], PORT));
        let mesh = &mut world.member(at).mesh;
        mesh.connect_at(rank(at - 1), below).unwrap();
        // Who is above it looks for itself.
        mesh.connect_at(rank(at), below).unwrap();
    }
}

#[test]
fn members_that_are_known_by_their_addresses_are_found_and_found_again() {
    let mut world = World::apart(3, &[(0, 1), (1, 2)], "");
    found(&mut world);
    world.joined();
    // Another process listens there, and some time later.
    world.members[0] = None;
    let is_lost = world.run(ms(3000), |world| !world.member(1).mesh.is_linked(rank(0)));
    assert!(is_lost);
    world.run(ms(1500), |_| false);
    world.begin(0, 2);
    let is_back = world.run(ms(5000), |world| {
        (0..3).all(|at| world.member(at).mesh.reached().len() == 3)
            && (1..3).all(|at| world.member(at).mesh.started(rank(0)) == Some(2))
    });
    assert!(is_back, "{:?}", world.member(1).events);
    world.member(2).outbox.push_back((rank(0), b"across".to_vec()));
    let has_come = world.run(ms(500), |world| {
        world.member(0).take();
        !world.member(0).inbox[2].is_empty()
    });
    assert!(has_come);
}

#[test]
fn a_rank_that_is_none_is_refused() {
    let mut world = World::apart(2, &[(0, 1)], "");
    let at = SocketAddr::from(([10, 1, 0, 1], PORT));
    assert!(world.member(1).mesh.connect_at(rank(2), at).is_err());
}
