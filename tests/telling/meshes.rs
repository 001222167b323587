//! Events about meshes: members that go, come back or flap, and peers that are no members.

use core::net::SocketAddr;

use doorbell::link::Links;
use doorbell::mesh::MeshEvent;
use doorbell::{Deadline, Node, Trust, WorkerConfig};
use tracing_subscriber::filter::LevelFilter;

use crate::world::{PORT, World, config, ms, rank};
use crate::{Log, assert_told};

#[test]
fn a_member_that_was_started_again_is_told_and_so_is_one_of_before() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut world = World::new(2, &[(0, 1)], "");
        world.joined();
        for (started, is_told) in [
            (2, MeshEvent::Restarted(rank(1))),
            (1, MeshEvent::StartedBefore(rank(1))),
            (u64::MAX, MeshEvent::StartedAhead(rank(1))),
        ] {
            world.members[1] = None;
            world.run(ms(2000), |_| false);
            world.start(1, started);
            assert!(
                world.run(ms(20_000), |world| world.member(0).events.contains(&is_told)),
                "{is_told:?}"
            );
        }
    });
    assert_told(
        &log,
        &[
            "WARN doorbell: the link to a member is over .. rank=1 .. reason=",
            "WARN doorbell: a member was started again .. rank=1",
            "WARN doorbell: a member was turned away: it says that it was started earlier than it was last heard of .. rank=1",
            "WARN doorbell: the start of a member is said to be further ahead than mesh.start_ahead_max, and is not believed .. rank=1",
        ],
    );
}

#[test]
fn a_cable_that_comes_and_goes_is_told_with_who_is_behind_it() {
    let log = Log::of(LevelFilter::WARN, || {
        let plan = "at 100ms link h0/sim0-h1/sim0 down for 400ms; at 1600ms link h0/sim0-h1/sim0 down for 400ms; at 3100ms link h0/sim0-h1/sim0 down for 400ms";
        let mut world = World::made(3, &[(0, 1), (1, 2), (2, 0)], plan, |at| {
            let mut config = config(at, 3, 1);
            config.link.session.recover_within = ms(5000);
            config
        });
        world.joined();
        world.run(ms(5000), |_| false);
    });
    assert_told(
        &log,
        &["WARN doorbell: the link to a member comes and goes, and is gone round until it stays .. rank=1"],
    );
}

#[test]
fn a_member_that_is_not_where_it_is_asked_is_told_with_the_address() {
    let log = Log::of(LevelFilter::WARN, || {
        let mut world = World::apart(2, &[(0, 1)], "");
        let nobody = SocketAddr::from(([10, 1, 0, 1], PORT + 1));
        world.member(1).mesh.connect_at(rank(0), nobody).unwrap();
        world.run(ms(3000), |_| false);
    });
    assert_told(
        &log,
        &["WARN doorbell: a member was not found .. rank=0 .. at=10.1.0.1:7001 .. reason="],
    );
}

#[test]
fn who_is_no_member_is_told_and_so_is_who_never_says_who_it_is() {
    let log = Log::of(LevelFilter::WARN, || {
        let mut world = World::new(2, &[(0, 1)], "");
        world.joined();
        let mut other = config(1, 2, 9);
        other.mesh = 77;
        let handle = world.member(0).handle;
        world.restart_as(1, &other, &handle);
        let is_turned_away = |world: &mut World| world.member(0).events.contains(&MeshEvent::TurnedAway);
        assert!(world.run(ms(20_000), is_turned_away));
    });
    assert_told(
        &log,
        &["WARN doorbell: somebody who is no member was turned away"],
    );

    let log = Log::of(LevelFilter::WARN, || {
        let mut world = World::of_hosts(2, &[(0, 1)], "");
        world.begin(0, 1);
        let host = world.hosts[1].clone();
        let node = Node::with(host.clone(), host, Trust::unauthenticated_on_purpose()).unwrap();
        let mut own = WorkerConfig::default();
        (own.slots, own.slot_bytes) = (128, 4096);
        let mut workers = node.workers(&own).unwrap();
        let mut links = Links::new(&node, &workers, &config(1, 2, 1).link).unwrap();
        let handle = world.member(0).handle;
        let link = links.connect(&node, &workers, &handle).unwrap();
        let poll = |links: &mut Links<_, _>, workers: &mut _| links.poll(&node, workers, |_, _| {}).unwrap();
        world.run(ms(50), |_| {
            poll(&mut links, &mut workers);
            false
        });
        links.close(link, Deadline::after(world.fabric.now(), ms(100)));
        world.run(ms(1000), |_| {
            poll(&mut links, &mut workers);
            false
        });
    });
    assert_told(&log, &["WARN doorbell: the link to somebody is over .. reason="]);
}
