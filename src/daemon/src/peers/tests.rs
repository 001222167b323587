//! Attempts to reach a node, and the ends of its links.

use core::time::Duration;
use std::sync::Arc;

use doorbell::connect::Tcp;
use doorbell::link::LinkConfig;
use doorbell::provider::{Clock as _, Instant, Network};
use doorbell::{Deadline, Handle, Node, Notify, Trust, WorkerConfig};
use doorbell_sim::{Fabric, Host};

use super::{Hearing, Lane, Peers, RETRY_AFTER};
use crate::frame::Frame;
use crate::name::NodeNumber;
use crate::router::{Router, RouterLimits};
use crate::tests::world::{World, at};

/// Peers with two links to each node, and the handle of these.
fn peers_on<N: Network>(host: &Host, network: N) -> (Peers<Host, N>, Handle) {
    let trust = Trust::unauthenticated_on_purpose();
    let node = Arc::new(Node::with(host.clone(), network, trust).unwrap());
    let mut own = WorkerConfig::default();
    own.notify = Notify::Every;
    let workers = node.workers(&own).unwrap();
    let mut config = LinkConfig::default();
    config.session.recover_within = Duration::from_millis(200);
    let mut peers = Peers::new(node, workers, &config, 2).unwrap();
    let handle = peers.listen_polled("0.0.0.0:0".parse().unwrap()).unwrap();
    (peers, handle)
}

#[test]
fn a_node_is_tried_for_a_second_and_by_another_handle_from_the_beginning() {
    const MS: u64 = 1_000_000;
    let [host, other] = Fabric::new().hosts().unwrap();
    let (mut peers, _) = peers_on(&host, host.clone());
    let handles = [0, 1].map(|_| peers_on(&other, other.clone()).1);
    let mut router = Router::new(NodeNumber(0), &RouterLimits::default());
    let number = NodeNumber(1);
    peers.add(&mut router, number, handles[0]);
    let after = |ms: u64| Some(Deadline::at(Instant::from_ns(ms * MS)));
    // A link by the second lane ends. Returns whether the node is lost, and whether the lane is free.
    let end = |peers: &mut Peers<Host, Host>, router: &mut Router, ms: u64, is_introduced| {
        let id = peers
            .links
            .connect(&peers.node, &peers.workers, &handles[0])
            .unwrap();
        let lane = Lane { id, is_introduced };
        peers.ways.get_mut(&number).unwrap().lanes[1] = Some(lane);
        let now = Instant::from_ns(ms * MS);
        let mut hearing = Hearing::new(router, &mut peers.ways, &mut peers.accepted, now);
        let lost = hearing.end_lane(id);
        assert!(lost.is_none_or(|lost| lost == number));
        (lost.is_some(), peers.ways[&number].lanes[1].is_none())
    };
    let times = |peers: &Peers<Host, Host>| {
        let way = &peers.ways[&number];
        (way.retry, way.give_up, way.epoch, way.lost)
    };
    assert_eq!(end(&mut peers, &mut router, 1, false), (false, true));
    assert_eq!(times(&peers), (after(101), after(1001), 1, 0));
    assert_eq!(end(&mut peers, &mut router, 1000, false), (false, true));
    assert_eq!(times(&peers), (after(1100), after(1001), 1, 0));
    // The handle that is known changes nothing, and another one is tried at once.
    peers.add(&mut router, number, handles[0]);
    assert_eq!(times(&peers), (after(1100), after(1001), 1, 0));
    peers.add(&mut router, number, handles[1]);
    assert_eq!(times(&peers), (None, None, 1, 0));
    assert_eq!(end(&mut peers, &mut router, 1050, false), (false, true));
    assert_eq!(times(&peers), (after(1150), after(2050), 1, 0));
    assert_eq!(end(&mut peers, &mut router, 2050, false), (true, false));
    let now = Instant::from_ns(2050 * MS);
    Hearing::new(&mut router, &mut peers.ways, &mut peers.accepted, now).forget(number);
    assert_eq!(times(&peers), (after(2150), None, 2, 0));
    // With links that carried something, the node of the handle before is lost.
    assert_eq!(end(&mut peers, &mut router, 2200, true), (true, false));
    peers.add(&mut router, number, handles[0]);
    assert_eq!(times(&peers), (None, None, 3, 1));
    assert_eq!(end(&mut peers, &mut router, 3000, true), (true, false));
}

#[test]
fn a_node_that_was_not_reached_is_left_alone_until_its_time_or_another_handle() {
    let fabric = Fabric::builder().driven().build();
    let [host, other] = fabric.hosts().unwrap();
    let (mut peers, _) = peers_on(&host, host.clone());
    let (dead, handle) = peers_on(&other, other.clone());
    drop(dead);
    let mut world = World::new(2);
    let near = world.attach(0, 1, 0).unwrap();
    world.send(near, at(1, 0), 0);
    world.processes[near].endpoint.flush();
    world.poll(0);
    let router = &mut world.routers[0];
    peers.add(router, NodeNumber(1), handle);
    let ms = Duration::from_millis;
    // A poll begins an attempt at once, or does not; then it comes to nothing.
    let begins = |peers: &mut Peers<Host, Host>, router: &mut Router| {
        peers.poll(router).unwrap();
        peers.links() == 1
    };
    let fails = |peers: &mut Peers<Host, Host>, router: &mut Router| {
        for _ in 0..1000 {
            fabric.run_for(ms(1));
            peers.poll(router).unwrap();
            if peers.links() == 0 {
                return;
            }
        }
        panic!("it is tried for ever");
    };
    assert!(begins(&mut peers, router));
    fails(&mut peers, router);
    fabric.run_for(ms(99));
    assert!(!begins(&mut peers, router));
    fabric.run_for(ms(1));
    assert!(begins(&mut peers, router));
    fails(&mut peers, router);
    let (_next, handle) = peers_on(&other, other.clone());
    peers.add(router, NodeNumber(1), handle);
    assert!(begins(&mut peers, router));
    // With yet another handle, the attempt under way is over.
    let (_third, handle) = peers_on(&other, other.clone());
    peers.add(router, NodeNumber(1), handle);
    assert!(begins(&mut peers, router), "{} links", peers.links());
    assert!(router.has_frames(), "no attempt in vain has ended the message");
}

#[test]
fn a_node_that_is_reached_at_last_is_tried_for_a_whole_second_the_next_time() {
    let plan = "at 1us link host1-host2 down for 500ms".parse().unwrap();
    let fabric = Fabric::builder().plan(plan).driven().build();
    let hosts: [Host; 2] = fabric.hosts().unwrap();
    fabric.run_for(Duration::from_millis(1));
    let [(mut near, ours), (mut far, handle)] = hosts.map(|host| peers_on(&host, host.clone()));
    let mut world = World::new(2);
    let sender = world.attach(0, 1, 0).unwrap();
    world.send(sender, at(1, 0), 0);
    world.processes[sender].endpoint.flush();
    world.poll(0);
    near.add(&mut world.routers[0], NodeNumber(1), handle);
    far.add(&mut world.routers[1], NodeNumber(0), ours);
    let mut was_in_vain = false;
    for _ in 0..2000 {
        near.poll(&mut world.routers[0]).unwrap();
        far.poll(&mut world.routers[1]).unwrap();
        was_in_vain |= near.ways[&NodeNumber(1)].give_up.is_some();
        if !world.routers[0].has_frames() {
            break;
        }
        fabric.run_for(Duration::from_millis(1));
    }
    assert!(was_in_vain && !world.routers[0].has_frames());
    assert_eq!(near.ways[&NodeNumber(1)].give_up, None);
    // From here on no poll says that anything moved, but for those that send a frame or take one.
    let mut poll = |world: &mut World| {
        let is_moved = near.poll(&mut world.routers[0]).unwrap();
        far.poll(&mut world.routers[1]).unwrap();
        fabric.run_for(Duration::from_millis(1));
        is_moved
    };
    let mut quiet = 0;
    while quiet < 5 {
        quiet = if poll(&mut world) { 0 } else { quiet + 1 };
    }
    world.send(sender, at(1, 0), 0);
    world.processes[sender].endpoint.flush();
    world.poll(0);
    assert!(poll(&mut world));
}

#[test]
fn a_sleep_is_short_only_while_frames_wait_for_a_node_that_is_left_alone() {
    let [host] = Fabric::new().hosts().unwrap();
    let (mut peers, _) = peers_on(&host, Tcp);
    let mut world = World::new(2);
    let near = world.attach(0, 1, 0).unwrap();
    let mut sleeps = |router: &mut Router| {
        let begun = peers.node.network().now();
        let until = (0..100).find_map(|_| peers.ready_to_sleep(router).unwrap());
        let least = Deadline::after(begun, RETRY_AFTER);
        let most = Deadline::after(peers.node.network().now(), RETRY_AFTER);
        (until.unwrap(), least, most)
    };
    let (until, _, most) = sleeps(&mut world.routers[0]);
    assert!(until > most, "{until:?}");
    world.send(near, at(1, 0), 0);
    world.processes[near].endpoint.flush();
    world.poll(0);
    let (until, least, most) = sleeps(&mut world.routers[0]);
    assert!(least <= until && until <= most, "{least:?} {until:?} {most:?}");
}

#[test]
fn an_end_begins_another_epoch_and_a_first_frame_of_another_epoch_is_an_end() {
    let [host] = Fabric::new().hosts().unwrap();
    let (mut peers, handle) = peers_on(&host, host.clone());
    let mut router = Router::new(NodeNumber(0), &RouterLimits::default());
    peers.add(&mut router, NodeNumber(1), handle);
    let link = peers.links.connect(&peers.node, &peers.workers, &handle).unwrap();
    let now = doorbell::provider::Instant::from_ns(1);
    let mut hear = |instance, epoch| {
        let mut hearing = Hearing::new(&mut router, &mut peers.ways, &mut peers.accepted, now);
        hearing.introduce(link, &Frame::hello(1, instance, epoch).bytes());
        let given_up = hearing.given_up.len();
        let way = &peers.ways[&NodeNumber(1)];
        (given_up, way.epoch, way.lost)
    };
    assert_eq!(hear(5, 1), (0, 1, 0), "the first");
    assert_eq!(hear(5, 1), (0, 1, 0), "another link of the same");
    assert_eq!(hear(5, 2), (2, 2, 1), "both are given up");
    assert_eq!(hear(6, 2), (1, 3, 2));
    // It ends, and what waits for it ends by attempts in vain, in which nothing is lost.
    let mut hearing = Hearing::new(&mut router, &mut peers.ways, &mut peers.accepted, now);
    for lost in [3, 3] {
        hearing.forget(NodeNumber(1));
        assert_eq!(hearing.ways[&NodeNumber(1)].lost, lost);
    }
    let mut logged = |second: u64| {
        let time = doorbell::provider::Instant::from_ns(second * 1_000_000_000);
        let way = hearing.ways.get_mut(&NodeNumber(1)).unwrap();
        (0..100).filter(|_| way.quota.allows_next(1, time)).count()
    };
    assert_eq!([logged(10), logged(10), logged(11)], [8, 0, 8]);
    let mut hearing = Hearing::new(&mut router, &mut peers.ways, &mut peers.accepted, now);
    hearing.introduce(link, &Frame::hello(2, 1, 1).bytes());
    assert_eq!(hearing.given_up, [link], "a node that nobody knows");
}
