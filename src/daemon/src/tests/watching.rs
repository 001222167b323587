//! Tests of the status of a router.

use super::world::{World, at, request, user};
use crate::endpoint::Endpoint;
use crate::name::JobNumber;
use crate::reason::GoneReason;
use crate::router::{ClientId, RouterCounts};
use crate::status::{DaemonStatus, JobStatus, Traffic};

/// Returns the status of the first node, for one user or for all.
fn status(world: &World, of_user: Option<u32>) -> DaemonStatus {
    let nodes = crate::status::tests::status().nodes;
    let nodes = nodes.into_iter().map(|mut node| {
        (node.waiting_frames, node.waiting_bytes) = (0, 0);
        node
    });
    world.routers[0].status(of_user, |id: ClientId| id.incarnation() * 10, nodes.collect())
}

/// Attaches a process of another user to the first node.
fn attach_of(world: &mut World, uid: u32, job: u64, endpoint: u32) -> Endpoint {
    let request = request(job, endpoint);
    let ours = Endpoint::new(request.layout).unwrap();
    let memory = request.layout.adopt(&ours.descriptors()).unwrap();
    world.routers[0].attach(user(uid), &request, memory).unwrap();
    ours
}

#[test]
fn endpoints_have_what_they_exchanged_and_what_waits() {
    let mut world = World::new(2);
    let (here, slow) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    let away = world.attach(1, 1, 0).unwrap();
    for _ in 0..3 {
        assert!(world.send(here, at(0, 1), 0));
        world.processes[here].endpoint.flush();
        world.settle();
    }
    let before = status(&world, None);
    assert!(before.sees_all && before.processes == 2 && before.left_out == 0);
    assert!(before.nodes[0].links[0].sent_bytes > 0);
    let [sender, receiver] = &before.endpoints[..] else {
        panic!("{before:?}");
    };
    assert_eq!((sender.endpoint, sender.uid, sender.job), (0, 1, JobNumber(1)));
    assert_eq!((sender.incarnation, sender.attached_s), (1, 10));
    let bytes = sender.traffic.sent_bytes;
    assert!(bytes >= 3 * 24, "{bytes}");
    let sent = Traffic {
        submitted: 3,
        sent_bytes: bytes,
        ..Traffic::NONE
    };
    let received = Traffic {
        reported: 3,
        received_bytes: bytes,
        ..Traffic::NONE
    };
    assert_eq!((&sender.traffic, &receiver.traffic), (&sent, &received));
    assert_eq!(before.counts.taken_bytes, bytes);

    // The receiver's ring has four slots, and so has the sender's. The fifth message waits there, and is
    // not counted yet.
    world.processes[slow].is_reading = false;
    let mut taken = 0;
    while world.send(here, at(0, 1), 0) {
        world.processes[here].endpoint.flush();
        taken += 1;
        world.settle();
    }
    assert_eq!(taken, 8);
    let full = status(&world, None);
    assert_eq!((full.endpoints[0].queued, full.endpoints[0].in_flight), (4, 0));
    assert_eq!(full.endpoints[0].traffic.submitted, 3 + 4);
    assert_eq!(
        full.endpoints[0].traffic.sent_bytes,
        bytes / 3 * 7,
        "a message that waits is not taken"
    );
    // As many messages of another node as a pair has credits wait here, and count as in flight there.
    let mut taken = 0;
    while world.send(away, at(0, 1), 0) {
        world.processes[away].endpoint.flush();
        taken += 1;
        world.settle();
    }
    assert_eq!(taken, 16 + 4);
    let full = status(&world, None);
    assert_eq!((full.endpoints[1].waiting, full.kept, full.dropped), (16, 16, 0));
    assert_eq!((full.counts.arrived, full.counts.answered), (16, 0));
    let there = world.routers[1].status(None, |_| 0, Vec::new());
    assert_eq!((there.endpoints[0].in_flight, there.endpoints[0].queued), (16, 4));
    world.processes[slow].is_reading = true;
    world.settle();
    let end = status(&world, None);
    assert_eq!((end.kept, end.dropped, end.counts.answered), (0, 0, 20));
    assert_eq!((end.endpoints[0].queued, end.endpoints[1].waiting), (0, 0));
    // The node ends while some of its messages are here. They have an outcome there.
    world.processes[slow].is_reading = false;
    while world.send(away, at(0, 1), 0) {
        world.processes[away].endpoint.flush();
        world.settle();
    }
    world.routers[0].lose_node(crate::name::NodeNumber(1));
    let lost = status(&world, None);
    assert_eq!((lost.kept, lost.dropped), (0, 0));
}

#[test]
fn a_user_sees_its_own_endpoints_and_a_job_keeps_what_its_ended_processes_exchanged() {
    let mut world = World::new(1);
    let (here, _) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    // The same job number of other users. In the order of users, one comes before and one after.
    let _others = [attach_of(&mut world, 0, 1, 0), attach_of(&mut world, 2, 1, 7)];
    assert!(world.send(here, at(0, 1), 0));
    world.processes[here].endpoint.flush();
    world.settle();
    for uid in [0, 1, 2, 3] {
        let status = status(&world, Some(uid));
        assert!(!status.sees_all);
        assert_eq!(status.processes, 4, "how many there are is no secret");
        let attached_alone = RouterCounts {
            attached: 4,
            ..RouterCounts::default()
        };
        assert_eq!(status.counts, attached_alone, "traffic of all is one");
        let node = &status.nodes[0];
        let link = &node.links[0];
        assert_eq!((link.sent_bytes, link.received_bytes), (0, 0));
        assert_eq!((link.rails, node.waiting_bytes), (4, 0));
        let count = [1, 2, 1, 0][uid as usize];
        assert_eq!(status.endpoints.len(), count);
        assert_eq!(status.jobs.len(), count.min(1));
        assert!(status.endpoints.iter().all(|endpoint| endpoint.uid == uid));
        assert!(status.jobs.iter().all(|job| job.uid == uid));
    }
    let of_job = |world: &World| -> JobStatus { status(world, Some(1)).jobs.remove(0) };
    let before = of_job(&world);
    assert_eq!(
        (
            before.processes,
            before.traffic.submitted,
            before.traffic.reported
        ),
        (2, 1, 1)
    );
    assert_eq!(before.memory_bytes, 2 * request(1, 0).layout.bytes());
    let id = world.processes[here].id;
    let ended = world.routers[0].detach(id, GoneReason::Detached).unwrap();
    assert_eq!(
        (ended.who.uid, ended.job, ended.endpoint, ended.is_last),
        (1, JobNumber(1), 0, false)
    );
    assert_eq!(world.routers[0].detach(id, GoneReason::Detached), None);
    let after = of_job(&world);
    assert_eq!((after.processes, after.traffic.submitted), (1, 1), "{after:?}");
    assert_eq!(after.age, before.age);
    let last = world.processes[1].id;
    assert!(world.routers[0].detach(last, GoneReason::Died).unwrap().is_last);
    assert_eq!(status(&world, Some(1)).jobs, []);
}
