//! A daemon dies at each point of a turn, and the next one starts.

use doorbell::RemoteAccess;

use super::oracle::Kind;
use super::world::{World, at, request};
use crate::endpoint::Endpoint;
use crate::reason::{GoneReason, UndeliveredReason};

#[test]
fn what_was_done_is_known_as_done_wherever_the_daemon_dies() {
    for parts in 0..4 {
        let mut world = World::new(1);
        let (sender, receiver) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
        let grant = world.grant(receiver, at(0, 0), RemoteAccess::ALL).unwrap();
        world.settle();
        for _ in 0..2 {
            world.send(sender, at(0, 1), 3);
        }
        world.settle();
        assert_eq!(world.processes[receiver].received, 2);
        world.send(sender, at(0, 1), 3);
        world.operate(sender, &grant, Kind::Add);
        world.processes[sender].endpoint.flush();
        world.restart(0, parts);
        // A published message is received, whether or not its sender could know that.
        assert_eq!(world.processes[receiver].received, 2 + u64::from(parts > 1));
        assert_eq!(world.processes[sender].one_sided.completed, u64::from(parts > 1));
        // Messages that a dead daemon kept are received by no process.
        world.settle();
        assert_eq!(world.processes[receiver].received, 2 + u64::from(parts > 1));
        world.send(sender, at(0, 1), 3);
        world.operate(sender, &grant, Kind::Add).unwrap();
        world.settle();
        assert_eq!(world.processes[receiver].received, 3 + u64::from(parts > 1));
        assert_eq!(world.processes[sender].undelivered, [UndeliveredReason::NoGrant]);
        let again = world.grant(receiver, at(0, 0), RemoteAccess::ALL).unwrap();
        assert_ne!(again, grant);
        world.settle();
        world.operate(sender, &again, Kind::Add).unwrap();
        world.settle();
        assert_eq!(
            world.processes[sender].one_sided.completed,
            1 + u64::from(parts > 1)
        );
        world.check();
    }
}

#[test]
fn what_was_on_its_way_to_another_node_is_unknown_and_what_arrived_is_done() {
    let mut world = World::new(2);
    let (near, far) = (world.attach(0, 1, 0).unwrap(), world.attach(1, 1, 0).unwrap());
    world.send(near, at(1, 0), 0);
    world.settle();
    world.processes[far].is_reading = false;
    // The ring of the receiver is full, and its daemon holds two more messages.
    for _ in 0..6 {
        world.send(near, at(1, 0), 0);
        world.settle();
    }
    world.restart(0, 3);
    world.processes[far].is_reading = true;
    world.settle();
    assert_eq!(
        world.processes[far].received,
        1 + 4,
        "those that were kept are not delivered later"
    );
    assert_eq!(world.processes[far].gone, [(at(0, 0), GoneReason::NodeLost)]);
    world.send(near, at(1, 0), 0);
    world.settle();
    assert_eq!(world.processes[far].received, 6);
    world.check();
}

#[test]
fn a_report_that_waits_for_room_is_not_taken_for_an_outcome() {
    let mut world = World::new(1);
    let sender = world.attach(0, 1, 0).unwrap();
    world.processes[sender].is_reading = false;
    for _ in 0..8 {
        world.send(sender, at(0, 9), 0);
        world.processes[sender].endpoint.flush();
        world.settle();
    }
    // Four refusals are reported, and four wait in the daemon, which dies. The outcome of the latter is unknown,
    // and they are not delivered.
    world.restart(0, 3);
    assert_eq!(world.processes[sender].undelivered.len(), 4);
    world.settle();
    world.check();
}

#[test]
fn what_is_for_an_endpoint_that_may_come_back_waits_for_it() {
    let mut world = World::new(1);
    let (sender, receiver) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    world.routers[0].set_expecting(true);
    world.kill(receiver, GoneReason::Died);
    world.send(sender, at(0, 1), 0);
    world.settle();
    assert_eq!(world.processes[sender].undelivered, []);
    let back = world.attach(0, 1, 1).unwrap();
    world.settle();
    assert_eq!(world.processes[back].received, 1);
    world.send(sender, at(0, 7), 0);
    world.settle();
    assert_eq!(world.processes[sender].undelivered, []);
    world.routers[0].set_expecting(false);
    world.settle();
    assert_eq!(
        world.processes[sender].undelivered,
        [UndeliveredReason::NoEndpoint]
    );
    world.check();
}

#[test]
fn outcomes_that_a_process_could_find_are_known_behind_the_daemon() {
    let mut world = World::new(2);
    let sender = world.attach(0, 1, 0).unwrap();
    world.attach(0, 1, 1).unwrap();
    world.attach(1, 1, 0).unwrap();
    let unknown_from = |world: &mut World| {
        let mut next = Endpoint::new(request(1, 0).layout).unwrap();
        next.take_over(&mut world.processes[sender].endpoint)
    };
    assert_eq!(unknown_from(&mut world), 0);
    for (known, to) in [(1, at(0, 1)), (2, at(1, 0)), (3, at(0, 9)), (4, at(0, 1))] {
        assert!(world.send(sender, to, 0));
        world.processes[sender].endpoint.flush();
        assert_eq!(unknown_from(&mut world), known - 1);
        world.settle();
        assert_eq!(unknown_from(&mut world), known, "{to}");
    }
    world.check();
}
