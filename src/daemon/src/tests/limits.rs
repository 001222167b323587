//! Tests of backpressure, ends and limits, one at a time.

use super::world::{KEY, World, at, request, user};
use crate::client_state::Arrived;
use crate::endpoint::{Endpoint, EndpointEvent};
use crate::job_keys::JobKeys;
use crate::layout::EndpointLayout;
use crate::name::{JobKey, NodeNumber};
use crate::reason::{AttachRefusal, GoneReason, UndeliveredReason};
use crate::router::{Router, RouterLimits};

/// Sends until nothing more is accepted, and returns the number of accepted messages.
fn fill(world: &mut World, from: usize, to: crate::name::EndpointAddress) -> usize {
    let mut sent = 0;
    for _ in 0..200 {
        while world.send(from, to, 0) {
            sent += 1;
        }
        world.processes[from].endpoint.flush();
        world.settle();
    }
    sent
}

#[test]
fn a_slow_receiver_blocks_its_own_senders_alone() {
    let mut world = World::new(2);
    let (here, slow) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    let (away, other) = (world.attach(1, 1, 0).unwrap(), world.attach(1, 1, 1).unwrap());
    world.processes[slow].is_reading = false;
    // The ring of the receiver, and the ring of the sender. Between nodes, the credits of the pair
    // are added.
    assert_eq!(fill(&mut world, here, at(0, 1)), 4 + 4);
    assert_eq!(fill(&mut world, away, at(0, 1)), 16 + 4);
    for _ in 0..50 {
        assert!(world.send(other, at(0, 2), 0));
        world.processes[other].endpoint.flush();
        world.settle();
    }
    assert_eq!(
        world.processes[other].undelivered,
        [UndeliveredReason::NoEndpoint; 50]
    );
    let fast = world.attach(0, 1, 3).unwrap();
    assert_eq!(
        fill(&mut world, other, at(0, 3)),
        world.processes[fast].received as usize
    );
    assert!(world.processes[fast].received > 200);
    world.processes[slow].is_reading = true;
    world.settle();
    assert_eq!(world.processes[slow].received, 8 + 20);
    world.check();
}

#[test]
fn senders_of_one_receiver_have_equal_parts_of_its_room_whoever_else_sends() {
    let mut world = World::new(1);
    for number in 0..16 {
        world.attach(0, 1, number).unwrap();
    }
    for _ in 0..500 {
        for (from, to) in [(2, 2), (3, 3), (5, 0), (6, 0)] {
            while world.send(from, at(0, to), 0) {}
            world.processes[from].endpoint.flush();
        }
        world.poll(0);
        [0, 2, 3].into_iter().for_each(|process| world.read(process));
    }
    let [one, other] = [5, 6].map(|sender| world.processes[sender].endpoint.submitted());
    assert!(one + other > 1500, "{one} {other}");
    assert!(one < 2 * other && other < 2 * one, "{one} {other}");
}

#[test]
fn messages_of_other_nodes_that_wait_are_bounded_by_the_bytes_of_their_user_and_of_their_job() {
    for (of_user, of_job) in [(4096, 1 << 20), (1 << 20, 4096)] {
        are_bounded(&RouterLimits {
            kept_bytes_of_user_max: of_user,
            kept_bytes_of_job_max: of_job,
            ..RouterLimits::default()
        });
    }
}

fn are_bounded(limits: &RouterLimits) {
    let mut world = World::new(2);
    world.routers[0] = Router::new(NodeNumber(0), limits);
    world.routers[0].add_node(NodeNumber(1), 4);
    let (slow, fast) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    let senders: Vec<_> = (0..8).map(|number| world.attach(1, 1, number).unwrap()).collect();
    for _ in 0..2 {
        world.processes[slow].is_reading = false;
        for sender in &senders {
            for _ in 0..30 {
                // The first sender reaches the limit of the pair's credits first.
                let _ = world.send(*sender, at(0, 0), 0);
                world.settle();
            }
        }
        world.settle();
        let kept = world.routers[0].kept();
        assert!((8..4096 / 24).contains(&kept), "{kept}");
        let refused = senders
            .iter()
            .flat_map(|sender| &world.processes[*sender].undelivered);
        assert!(refused.clone().count() > 0);
        assert!(
            refused
                .into_iter()
                .all(|reason| *reason == UndeliveredReason::ReceiverFull)
        );
        senders
            .iter()
            .for_each(|sender| world.processes[*sender].undelivered.clear());
        // All room is free again once everything is read.
        world.processes[slow].is_reading = true;
        world.settle();
        assert_eq!(world.routers[0].kept(), 0);
        for sender in &senders {
            assert!(world.send(*sender, at(0, 1), 0));
            world.settle();
        }
    }
    assert_eq!(world.processes[fast].received, 16);
    world.check();
}

#[test]
fn a_message_that_is_refused_for_its_bytes_takes_no_place_of_a_contact() {
    let mut world = World::new(2);
    let limits = RouterLimits {
        contacts_max: 1,
        kept_bytes_of_user_max: size_of::<Arrived>() as u64 + 32,
        ..RouterLimits::default()
    };
    world.routers[0] = Router::new(NodeNumber(0), &limits);
    world.routers[0].add_node(NodeNumber(1), 4);
    let receiver = world.attach(0, 1, 0).unwrap();
    let [long, short] = [0, 1].map(|number| world.attach(1, 1, number).unwrap());
    assert!(world.send(long, at(0, 0), 40));
    world.settle();
    assert_eq!(
        world.processes[long].undelivered,
        [UndeliveredReason::ReceiverFull]
    );
    assert!(world.send(short, at(0, 0), 0));
    world.settle();
    assert_eq!(world.processes[short].undelivered, []);
    assert_eq!(world.processes[receiver].received, 1);
    // The place is taken now.
    assert!(world.send(long, at(0, 0), 0));
    world.settle();
    assert_eq!(
        world.processes[long].undelivered.last(),
        Some(&UndeliveredReason::TooManyPeers)
    );
    world.check();
}

#[test]
fn an_end_is_reported_with_its_reason_to_the_endpoints_that_met_it_alone() {
    for reason in [GoneReason::Died, GoneReason::Detached] {
        let mut world = World::new(2);
        let dying = world.attach(0, 1, 0).unwrap();
        let near = world.attach(0, 1, 1).unwrap();
        let far = world.attach(1, 1, 0).unwrap();
        let strangers = [world.attach(0, 1, 2).unwrap(), world.attach(1, 2, 0).unwrap()];
        world.send(near, at(0, 0), 0);
        world.send(dying, at(1, 0), 0);
        world.settle();
        world.processes[near].is_reading = false;
        for _ in 0..4 {
            world.send(dying, at(0, 1), 0);
        }
        world.settle();
        world.kill(dying, reason);
        assert_eq!(world.routers[0].counts().cut, 0, "no client was");
        world.settle();
        assert_eq!(world.processes[near].gone, []);
        world.processes[near].is_reading = true;
        world.settle();
        assert_eq!(
            world.processes[near].received, 4,
            "its last messages come before its end"
        );
        assert_eq!(world.processes[near].gone, [(at(0, 0), reason)]);
        assert_eq!(world.processes[far].gone, [(at(0, 0), reason)]);
        for stranger in strangers {
            assert_eq!(world.processes[stranger].gone, []);
        }
        // The name is free, and another process takes it.
        let next = world.attach(0, 1, 0).unwrap();
        world.send(near, at(0, 0), 0);
        world.settle();
        assert_eq!(world.processes[next].received, 1);
        world.check();
    }
}

#[test]
fn a_lost_node_ends_what_was_under_way_as_unknown() {
    let mut world = World::new(2);
    let (near, far) = (world.attach(0, 1, 0).unwrap(), world.attach(1, 1, 0).unwrap());
    world.send(near, at(1, 0), 0);
    world.settle();
    world.processes[far].is_reading = false;
    // The ring of the receiver, the credits of the pair, and the ring of the sender.
    assert_eq!(fill(&mut world, near, at(1, 0)), 4 + 16 + 4);
    for (own, lost) in [(0, 1), (1, 0)] {
        world.routers[own].lose_node(NodeNumber(lost));
    }
    world.frames.clear();
    // The pair has new credits. Lost messages hold none of them. Four messages wait in the ring of
    // the sender.
    assert_eq!(fill(&mut world, near, at(1, 0)), 16);
    world.processes[far].is_reading = true;
    world.settle();
    assert_eq!(world.processes[near].gone, [(at(1, 0), GoneReason::NodeLost)]);
    let unknown = world.processes[near].undelivered.len();
    assert_eq!(unknown, 16, "those that the receiver's daemon kept");
    // With new credits, everything continues.
    let received = world.processes[far].received;
    assert!(fill(&mut world, near, at(1, 0)) > 100);
    assert!(world.processes[far].received > received + 100);
}

#[test]
fn names_keys_users_and_numbers_of_clients_are_held_to_their_limits() {
    let limits = RouterLimits {
        clients_max: 5,
        clients_of_user_max: 3,
        clients_of_job_max: 2,
        ..RouterLimits::default()
    };
    let mut router = Router::new(NodeNumber(0), &limits);
    let memory = |layout: EndpointLayout| {
        let ours = Endpoint::new(layout).unwrap();
        layout.adopt(&ours.descriptors()).unwrap()
    };
    let mut attach = |uid, job, key, endpoint| {
        let mut request = request(job, endpoint);
        request.key = key;
        router.attach(user(uid), &request, memory(request.layout))
    };
    assert!(attach(1, 1, KEY, 0).is_ok());
    assert_eq!(attach(1, 1, KEY, 0), Err(AttachRefusal::NameTaken));
    assert_eq!(attach(1, 1, JobKey([8; 16]), 1), Err(AttachRefusal::JobKey));
    assert!(attach(1, 1, KEY, 1).is_ok());
    assert_eq!(attach(1, 1, KEY, 2), Err(AttachRefusal::TooManyOfJob));
    assert_eq!(attach(1, 1, JobKey([8; 16]), 2), Err(AttachRefusal::JobKey));
    // Another job of the user has its share.
    assert!(attach(1, 2, JobKey([8; 16]), 0).is_ok());
    assert_eq!(attach(1, 3, KEY, 0), Err(AttachRefusal::TooManyOfUser));
    // The same job number of another user is another job.
    for endpoint in 0..2 {
        assert!(attach(2, 1, JobKey([9; 16]), endpoint).is_ok());
    }
    assert_eq!(attach(3, 4, KEY, 0), Err(AttachRefusal::TooManyClients));
}

#[test]
fn a_file_of_keys_decides_about_each_process_that_comes_and_about_none_that_is_there() {
    let keys = |text: &str| JobKeys::from_text(text).unwrap();
    let [old, new] = ["07", "08"].map(|byte| byte.repeat(16));
    let new_key = JobKey([8; 16]);
    let mut router = Router::new(NodeNumber(0), &RouterLimits::default());
    let attach = |router: &mut Router, uid, job, key, endpoint| {
        let mut request = request(job, endpoint);
        request.key = key;
        let ours = Endpoint::new(request.layout).unwrap();
        let memory = request.layout.adopt(&ours.descriptors()).unwrap();
        router.attach(user(uid), &request, memory)
    };
    router.set_job_keys(keys(&format!("1:{old} 1")));
    let first = attach(&mut router, 1, 1, KEY, 0).unwrap();
    for (uid, job, key, refusal) in [
        (1, 1, new_key, AttachRefusal::JobKey),
        (1, 2, KEY, AttachRefusal::UnlistedJob),
        (2, 1, KEY, AttachRefusal::UserOfJob),
    ] {
        assert_eq!(attach(&mut router, uid, job, key, 0), Err(refusal));
    }
    // The job gets another key, which does not meet the old one.
    router.set_job_keys(keys(&format!("1:{new}")));
    for key in [KEY, new_key] {
        assert_eq!(attach(&mut router, 1, 1, key, 1), Err(AttachRefusal::JobKey));
    }
    assert!(router.detach(first, GoneReason::Detached).is_some());
    attach(&mut router, 1, 1, new_key, 1).unwrap();
    // The job is removed.
    router.set_job_keys(keys(""));
    let late = attach(&mut router, 1, 1, new_key, 2);
    assert_eq!(
        (late, router.clients().count()),
        (Err(AttachRefusal::UnlistedJob), 1)
    );
}

#[test]
fn the_memory_of_a_process_that_ends_is_free_for_its_user_and_its_job() {
    let bytes = request(1, 0).layout.bytes();
    for (of_user, of_job, refusal) in [
        (2, 9, AttachRefusal::MemoryOfUser),
        (9, 2, AttachRefusal::MemoryOfJob),
    ] {
        let limits = RouterLimits {
            bytes_of_user_max: of_user * bytes,
            bytes_of_job_max: of_job * bytes,
            ..RouterLimits::default()
        };
        let mut router = Router::new(NodeNumber(0), &limits);
        let attach = |router: &mut Router, endpoint| {
            let request = request(1, endpoint);
            let ours = Endpoint::new(request.layout).unwrap();
            let memory = request.layout.adopt(&ours.descriptors()).unwrap();
            router.attach(user(1), &request, memory)
        };
        let first = attach(&mut router, 0).unwrap();
        attach(&mut router, 1).unwrap();
        assert_eq!(attach(&mut router, 2), Err(refusal));
        assert!(router.detach(first, GoneReason::Detached).is_some());
        assert!(attach(&mut router, 2).is_ok());
        assert_eq!(attach(&mut router, 3), Err(refusal));
    }
}

#[test]
fn the_memory_of_another_size_is_refused() {
    let layout = EndpointLayout::new(4, 64).unwrap();
    let other = EndpointLayout::new(4, 128).unwrap();
    let arena = layout.with_arena(4096).unwrap();
    let new = |layout: EndpointLayout| Endpoint::new(layout).unwrap();
    let adopt = |layout: EndpointLayout, of: Endpoint| layout.adopt(&of.descriptors()).unwrap_err();
    let (turned, none) = (new(layout), &[]);
    let mut descriptors = turned.descriptors();
    descriptors.reverse();
    assert_eq!(layout.adopt(&descriptors).unwrap_err(), AttachRefusal::Rings);
    assert_eq!(adopt(other, new(layout)), AttachRefusal::Cells);
    assert_eq!(
        adopt(layout.with_arena(8192).unwrap(), new(arena)),
        AttachRefusal::Arena
    );
    for (layout, of) in [(layout, new(arena)), (arena, new(layout))] {
        assert_eq!(adopt(layout, of), AttachRefusal::Descriptors);
    }
    assert_eq!(layout.adopt(none).unwrap_err(), AttachRefusal::Descriptors);
    assert!(arena.adopt(&new(arena).descriptors()).is_ok());
}

#[test]
fn a_job_of_the_same_number_and_another_key_on_another_node_is_another_job() {
    let mut world = World::new(2);
    let near = world.attach(0, 1, 0).unwrap();
    let mut other = request(1, 0);
    other.key = JobKey([9; 16]);
    let ours = Endpoint::new(other.layout).unwrap();
    let memory = other.layout.adopt(&ours.descriptors()).unwrap();
    world.routers[1].attach(user(1), &other, memory).unwrap();
    world.send(near, at(1, 0), 0);
    world.processes[near].endpoint.flush();
    world.settle();
    assert_eq!(world.processes[near].undelivered, [UndeliveredReason::NoEndpoint]);
    assert_eq!(world.routers[1].counts().received, 0);
}

#[test]
fn an_end_is_reported_before_the_messages_of_the_next_process_of_that_name() {
    for polls in 0..4 {
        let mut world = World::new(1);
        let reader = world.attach(0, 1, 0).unwrap();
        let dying = world.attach(0, 1, 1).unwrap();
        world.processes[reader].is_reading = false;
        fill(&mut world, dying, at(0, 0));
        world.kill(dying, GoneReason::Died);
        let next = world.attach(0, 1, 1).unwrap();
        fill(&mut world, next, at(0, 0));
        for _ in 0..polls {
            world.poll(0);
        }
        let (mut seen, mut ends) = (0, Vec::new());
        for _ in 0..10 {
            let read = world.processes[reader].endpoint.poll(|event| match event {
                EndpointEvent::Received { .. } => seen += 1,
                EndpointEvent::Gone { .. } => ends.push(seen),
                _ => {}
            });
            read.unwrap();
            world.poll(0);
        }
        assert_eq!(ends, [4], "behind the four messages of the first process alone");
        assert_eq!(seen, 4 + 4);
    }
}

#[test]
fn an_answer_to_a_process_that_is_gone_is_none_for_the_next_of_its_name() {
    let mut world = World::new(2);
    let first = world.attach(0, 1, 0).unwrap();
    let far = world.attach(1, 1, 0).unwrap();
    world.send(first, at(1, 0), 0);
    world.processes[first].endpoint.flush();
    world.poll(0);
    world.carry(1);
    world.kill(first, GoneReason::Died);
    let next = world.attach(0, 1, 0).unwrap();
    world.send(next, at(1, 0), 0);
    world.processes[next].endpoint.flush();
    world.poll(0);
    // The answer to the first message arrives. The second message and its answer never do.
    world.poll(1);
    let back: Vec<_> = world
        .frames
        .keys()
        .filter(|(from, _, _)| *from == 0)
        .copied()
        .collect();
    world.routers[0].send_frames(|_, _, _| true);
    back.iter().for_each(|lane| drop(world.frames.remove(lane)));
    world.carry(9);
    world.routers[0].lose_node(NodeNumber(1));
    world.settle();
    assert_eq!(world.processes[far].received, 1);
    assert_eq!(world.processes[next].undelivered, [UndeliveredReason::Unknown]);
}

#[test]
fn a_refused_sender_is_no_contact_of_its_receiver() {
    let mut world = World::new(1);
    let limits = RouterLimits {
        contacts_max: 1,
        ..RouterLimits::default()
    };
    world.routers[0] = Router::new(NodeNumber(0), &limits);
    let [busy, friend, receiver, other] = [0, 1, 2, 3].map(|endpoint| world.attach(0, 1, endpoint).unwrap());
    for (from, to) in [(busy, 1), (busy, 2), (other, 2)] {
        assert!(world.send(from, at(0, to), 0));
        world.settle();
    }
    let received = [friend, receiver].map(|process| world.processes[process].received);
    assert_eq!(received, [1, 1]);
    let undelivered = &world.processes[busy].undelivered;
    assert_eq!(undelivered.len(), 1, "{undelivered:?}");
}

#[test]
fn frames_that_wait_for_a_lane_are_bounded_and_all_of_them_go_once_it_takes_some() {
    const PAIRS: u32 = 24;
    let mut world = World::new(2);
    world.routers[0].add_node(NodeNumber(1), 1);
    let senders: Vec<_> = (0..PAIRS)
        .map(|number| world.attach(0, 1, number).unwrap())
        .collect();
    let receivers: Vec<_> = (0..PAIRS)
        .map(|number| world.attach(1, 1, number).unwrap())
        .collect();
    let mut sent = 0;
    for _ in 0..30 {
        for sender in &senders {
            let to = world.processes[*sender].address.endpoint;
            while world.send(*sender, at(1, to), 0) {
                sent += 1;
            }
            world.processes[*sender].endpoint.flush();
        }
        world.poll(0);
    }
    // The credits of all pairs are more than a lane takes; the rest waits in the rings of the senders.
    assert_eq!(
        (world.routers[0].counts().sent, sent),
        (256, 256 + 4 * u64::from(PAIRS))
    );
    assert!(world.routers[0].has_frames());
    // Nobody takes a frame, and then somebody takes one: its place is free for another.
    assert!(!world.routers[0].send_frames(|_, _, _| false));
    let mut is_taken = false;
    assert!(world.routers[0].send_frames(|_, _, frame| {
        let takes = !core::mem::replace(&mut is_taken, true);
        if takes {
            world
                .frames
                .entry((0, 1, 0))
                .or_default()
                .push_back(frame.to_vec());
        }
        takes
    }));
    world.poll(0);
    assert_eq!(world.routers[0].counts().sent, 257);
    world.settle();
    assert!(!world.routers[0].has_frames());
    let received = receivers
        .iter()
        .map(|receiver| world.processes[*receiver].received);
    assert_eq!(received.sum::<u64>(), sent);
    world.check();
}
