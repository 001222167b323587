//! Tests of operations on arenas, one subject at a time: rights, order, room, ends.

use doorbell::RemoteAccess;
use doorbell::interprocess::SharedBytes as _;

use super::oracle::Kind;
use super::world::{ARENA_BYTES, KEY, World, at};
use crate::endpoint::{EndpointEvent, EndpointRefusal};
use crate::frame::{Frame, Job, Said};
use crate::name::{JobNumber, NodeNumber};
use crate::one_sided::{Action, ArenaGrant, ArenaOperation, ArenaRange, Asked};
use crate::reason::{GoneReason, UndeliveredReason};
use crate::router::{LOOKS, Router, RouterLimits};

const KINDS: [Kind; 4] = [Kind::Write, Kind::WriteWithImmediate, Kind::Read, Kind::Add];

/// Creates an owner, and a process on the same node or on another.
fn pair(far: bool) -> (World, usize, usize) {
    let mut world = World::new(2);
    let owner = world.attach(0, 1, 0).unwrap();
    let other = world.attach(u32::from(far), 1, 1).unwrap();
    (world, owner, other)
}

/// Does the same, and grants the owner's memory to the other process.
fn granted(far: bool) -> (World, usize, usize, ArenaGrant) {
    let (mut world, owner, other) = pair(far);
    let to = name(&world, other);
    let grant = world.grant(owner, to, RemoteAccess::ALL).unwrap();
    world.settle();
    (world, owner, other, grant)
}

fn name(world: &World, process: usize) -> crate::name::EndpointAddress {
    world.processes[process].address
}

#[test]
fn each_operation_is_carried_out_once_and_reported_once_here_and_on_another_node() {
    for far in [false, true] {
        let (mut world, owner, other, grant) = granted(far);
        for round in 0..25 {
            for kind in KINDS {
                while world.operate(other, &grant, kind).is_none() {
                    world.settle();
                }
            }
            world.settle();
            let client = &world.processes[other].one_sided;
            assert_eq!(client.completed, 4 * (round + 1));
        }
        assert_eq!(world.processes[owner].one_sided.arrivals, 25);
        world.check();
    }
}

#[test]
fn an_operation_without_its_right_or_outside_of_its_grant_changes_nothing() {
    for far in [false, true] {
        let (mut world, owner, other) = pair(far);
        let stranger = world.attach(0, 1, 2).unwrap();
        let outsider = world.attach(0, 2, 1).unwrap();
        let to = name(&world, other);
        let read = world.grant(owner, to, RemoteAccess::READ).unwrap();
        let all = world.grant(owner, to, RemoteAccess::ALL).unwrap();
        world.settle();
        let mut refused = |process: usize, grant: &ArenaGrant, offset, operation| {
            let client = &mut world.processes[process];
            client.endpoint.request(grant, offset, &operation).unwrap();
            client.endpoint.flush();
            world.routers[0].poll(|_| {});
            world.routers[1].poll(|_| {});
            world.carry(9);
            world.carry(9);
            world.routers[1].poll(|_| {});
            world.routers[0].poll(|_| {});
            let mut ends = Vec::new();
            let read = world.processes[process].endpoint.poll(|event| match event {
                EndpointEvent::Undelivered { reason, .. } => ends.push(reason),
                event => panic!("{event:?}"),
            });
            read.unwrap();
            let [reason] = ends[..] else { panic!("{ends:?}") };
            reason
        };
        let range = ArenaRange { offset: 0, bytes: 24 };
        let (write, add) = (ArenaOperation::Write(range), ArenaOperation::FetchAndAdd(1));
        assert_eq!(refused(other, &read, 0, write), UndeliveredReason::NoRight);
        assert_eq!(refused(other, &read, 0, add), UndeliveredReason::NoRight);
        assert_eq!(refused(other, &all, 9, write), UndeliveredReason::OutOfGrant);
        assert_eq!(
            refused(other, &all, u64::MAX, write),
            UndeliveredReason::OutOfGrant
        );
        assert_eq!(refused(other, &all, 32, add), UndeliveredReason::OutOfGrant);
        assert_eq!(refused(other, &all, 4, add), UndeliveredReason::Unaligned);
        assert_eq!(refused(stranger, &all, 0, write), UndeliveredReason::NoGrant);
        assert_eq!(refused(outsider, &all, 0, write), UndeliveredReason::NoEndpoint);
        let mut wrong = all;
        wrong.place.generation += 1;
        assert_eq!(refused(other, &wrong, 0, write), UndeliveredReason::NoGrant);
        let mut bytes = [0; 64];
        let arena = world.processes[owner].endpoint.arena().unwrap();
        assert!(arena.copy_out(0, &mut bytes));
        assert_eq!(bytes, [0; 64]);
        world.check();
    }
}

#[test]
fn nothing_is_written_by_a_grant_after_the_report_of_its_end() {
    for far in [false, true] {
        for polls in 0..6 {
            let (mut world, owner, other, grant) = granted(far);
            for kind in [Kind::Write, Kind::Add, Kind::WriteWithImmediate] {
                world.operate(other, &grant, kind).unwrap();
            }
            world.processes[other].endpoint.flush();
            for _ in 0..polls {
                world.poll(usize::from(far));
                world.carry(1);
            }
            assert!(world.revoke(owner, &grant));
            world.settle();
            assert_eq!(world.processes[owner].one_sided.revoked, 1);
            assert!(!world.revoke(owner, &grant), "once");
            world.operate(other, &grant, Kind::Write).unwrap();
            world.settle();
            assert!(
                world.processes[other]
                    .undelivered
                    .contains(&UndeliveredReason::NoGrant)
            );
            world.check();
        }
    }
}

#[test]
fn an_arrival_without_room_waits_and_writes_nothing_before() {
    for far in [false, true] {
        let (mut world, owner, other, grant) = granted(far);
        world.processes[owner].is_reading = false;
        for _ in 0..30 {
            world.operate(other, &grant, Kind::WriteWithImmediate);
            world.settle();
        }
        let done = world.processes[other].one_sided.completed;
        assert_eq!(done, 4, "as many as the owner's ring takes");
        let word = |world: &World| {
            let mut word = [0; 8];
            let arena = world.processes[owner].endpoint.arena().unwrap();
            assert!(arena.copy_out(8, &mut word));
            u64::from_le_bytes(word) & 0xffff
        };
        assert_eq!(word(&world), 3);
        // A third process that writes without a number does not wait.
        let third = world.attach(1, 1, 5).unwrap();
        world.processes[owner].is_reading = true;
        world.settle();
        let second = world.grant(owner, at(1, 5), RemoteAccess::ALL).unwrap();
        world.settle();
        world.processes[owner].is_reading = false;
        for _ in 0..30 {
            world.operate(other, &grant, Kind::WriteWithImmediate);
            world.settle();
        }
        for kind in [Kind::Write, Kind::Read, Kind::Add] {
            world.operate(third, &second, kind).unwrap();
        }
        world.settle();
        assert_eq!(world.processes[third].one_sided.completed, 3);
        world.processes[owner].is_reading = true;
        world.settle();
        let (arrivals, completed) = (
            world.processes[owner].one_sided.arrivals,
            world.processes[other].one_sided.completed,
        );
        assert_eq!(arrivals, completed);
        assert!(completed >= 12, "{completed}");
        world.check();
    }
}

#[test]
fn an_operation_is_carried_out_after_the_messages_that_its_process_sent_before() {
    for far in [false, true] {
        let (mut world, owner, other, grant) = granted(far);
        world.processes[owner].is_reading = false;
        // The owner's ring is full, and one message waits.
        for _ in 0..5 {
            world.send(other, at(0, 0), 0);
            world.settle();
        }
        world.operate(other, &grant, Kind::Add).unwrap();
        world.settle();
        assert_eq!(world.processes[other].one_sided.completed, 0);
        world.processes[owner].is_reading = true;
        world.settle();
        assert_eq!(world.processes[other].one_sided.completed, 1);
        world.check();
    }
}

#[test]
fn a_process_that_does_not_read_gets_no_more_operations_than_its_ring_has_room_for() {
    for far in [false, true] {
        let (mut world, _, other, grant) = granted(far);
        world.processes[other].is_reading = false;
        for _ in 0..30 {
            world.operate(other, &grant, Kind::Add);
            world.processes[other].endpoint.flush();
            world.settle();
        }
        // Four are reported, four wait, and the rest stay in its ring.
        let counts = world.routers[0].counts().operations;
        assert_eq!(counts, 8);
        world.processes[other].is_reading = true;
        world.settle();
        assert!(world.processes[other].one_sided.completed >= 12);
        world.check();
    }
}

#[test]
fn a_grant_is_for_the_first_process_of_its_name_that_uses_it() {
    for far in [false, true] {
        let (mut world, owner, other) = pair(far);
        let to = name(&world, other);
        let (used, unused) = (
            world.grant(owner, to, RemoteAccess::ALL).unwrap(),
            world.grant(owner, to, RemoteAccess::ALL).unwrap(),
        );
        world.settle();
        world.operate(other, &used, Kind::Write).unwrap();
        world.settle();
        world.kill(other, GoneReason::Died);
        world.settle();
        assert_eq!(world.processes[owner].gone, [(to, GoneReason::Died)]);
        let next = world.attach(to.node.0, 1, to.endpoint).unwrap();
        world.operate(next, &used, Kind::Write).unwrap();
        world.operate(next, &unused, Kind::Write).unwrap();
        world.settle();
        assert_eq!(world.processes[next].undelivered, [UndeliveredReason::NoGrant]);
        assert_eq!(world.processes[next].one_sided.completed, 1);
        world.check();
    }
}

#[test]
fn operations_of_a_lost_node_are_unknown_and_its_grants_end() {
    let (mut world, _, other, grant) = granted(true);
    world.operate(other, &grant, Kind::Add).unwrap();
    world.settle();
    world.operate(other, &grant, Kind::Add).unwrap();
    world.processes[other].endpoint.flush();
    world.poll(1);
    for (own, lost) in [(0, 1), (1, 0)] {
        world.routers[own].lose_node(NodeNumber(lost));
    }
    world.frames.clear();
    world.settle();
    assert_eq!(world.processes[other].undelivered, [UndeliveredReason::Unknown]);
    world.operate(other, &grant, Kind::Add).unwrap();
    world.settle();
    assert_eq!(
        world.processes[other].undelivered,
        [UndeliveredReason::Unknown, UndeliveredReason::NoGrant]
    );
    world.check();
}

#[test]
fn a_swap_replaces_the_word_that_it_names_alone() {
    for far in [false, true] {
        let (mut world, owner, other, grant) = granted(far);
        let arena = |world: &World| {
            let arena = world.processes[owner].endpoint.arena().unwrap();
            arena.word(0).unwrap().load(core::sync::atomic::Ordering::Relaxed)
        };
        for (compare, swap, fetched, there) in [(0, 7, 0, 7), (0, 9, 7, 7), (7, 9, 7, 9)] {
            let swap = ArenaOperation::CompareAndSwap { compare, swap };
            let endpoint = &mut world.processes[other].endpoint;
            endpoint.request(&grant, 0, &swap).unwrap();
            endpoint.flush();
            for _ in 0..4 {
                world.poll(0);
                world.poll(1);
                world.carry(9);
            }
            let mut values = Vec::new();
            let read = world.processes[other].endpoint.poll(|event| match event {
                EndpointEvent::Completed { value, .. } => values.push(value),
                event => panic!("{event:?}"),
            });
            read.unwrap();
            assert_eq!((values, arena(&world)), (vec![fetched], there));
        }
    }
}

#[test]
fn a_client_is_refused_what_the_daemon_would_cut_it_off_for() {
    let (mut world, owner, _) = pair(false);
    let endpoint = &mut world.processes[owner].endpoint;
    let range = |offset, bytes| ArenaRange { offset, bytes };
    let out = Some(EndpointRefusal::OutOfArena {
        arena_bytes: ARENA_BYTES,
    });
    let end = ARENA_BYTES as usize;
    for (offset, bytes) in [(0, 0), (end, 1), (0, end + 1), (usize::MAX, 2)] {
        let grant = endpoint.grant(at(0, 1), range(offset, bytes), RemoteAccess::ALL);
        assert_eq!(grant.err(), out, "{offset} {bytes}");
    }
    let none = endpoint.grant(at(0, 1), range(0, 8), RemoteAccess::NONE);
    assert_eq!(none.err(), Some(EndpointRefusal::NoGrant));
    let grant = endpoint.grant(at(0, 1), range(0, 8), RemoteAccess::ALL).unwrap();
    let beyond = ArenaOperation::Read(range(end, 1));
    assert_eq!(endpoint.request(&grant, 0, &beyond).err(), out);
    let mut wrong = grant;
    wrong.owner = at(0, 1);
    assert_eq!(endpoint.revoke(&wrong), Err(EndpointRefusal::NoGrant));
    assert_eq!(endpoint.revoke(&grant), Ok(()));
    endpoint.flush();
    world.poll(0);
    let mut ended = 0;
    let read = world.processes[owner].endpoint.poll(|event| match event {
        EndpointEvent::Revoked { grant: which } => ended += u32::from(which == grant),
        event => panic!("{event:?}"),
    });
    read.unwrap();
    assert_eq!((ended, world.cuts.len()), (1, 0));
}

/// Creates a frame from an endpoint of another node to the first endpoint here.
fn frame(said: Said, from: u32, number: u64) -> Frame {
    Frame {
        said,
        job: Job {
            number: JobNumber(1),
            key: KEY,
            user: 1,
        },
        from,
        to: 0,
        incarnation: 1,
        number,
    }
}

/// Lets this number of endpoints of another node read the whole arena of a process here.
fn lent(readers: u32) -> (World, usize, Vec<ArenaGrant>) {
    lent_in(World::new(2), readers)
}

fn lent_in(mut world: World, readers: u32) -> (World, usize, Vec<ArenaGrant>) {
    let owner = world.attach(0, 1, 0).unwrap();
    let grant = |reader| {
        let range = ArenaRange {
            offset: 0,
            bytes: ARENA_BYTES as usize,
        };
        let endpoint = &mut world.processes[owner].endpoint;
        let grant = endpoint.grant(at(1, reader), range, RemoteAccess::READ);
        endpoint.flush();
        world.settle();
        grant.unwrap()
    };
    let grants = (0..readers).map(grant).collect();
    (world, owner, grants)
}

/// Requests everything that is granted to an endpoint of another node.
fn ask(world: &mut World, grant: &ArenaGrant, from: (u32, u64)) {
    ask_as(world, grant, from, 1);
}

fn ask_as(world: &mut World, grant: &ArenaGrant, (from, number): (u32, u64), incarnation: u64) {
    let read = Asked {
        action: Action::Read,
        place: grant.place,
        offset: 0,
        bytes: ARENA_BYTES as u32,
    };
    let frame = Frame {
        incarnation,
        ..frame(Said::Operation, from, number)
    };
    let bytes = [&frame.bytes()[..], &read.to_bytes()].concat();
    world.routers[0].take_frame(NodeNumber(1), &bytes).unwrap();
}

/// Messages behind a READ that waits for its link arrive after it, in order, however slowly they are read.
#[test]
fn messages_behind_a_read_that_waits_for_its_link_stay_in_order() {
    const LAST: u32 = 64;
    let (mut world, owner, grants) = lent(LAST + 1);
    for (reader, grant) in (0..LAST).zip(&grants) {
        (1..=16).for_each(|number| ask(&mut world, grant, (reader, number)));
    }
    while world.poll(0) {}
    ask(&mut world, &grants[LAST as usize], (LAST, 1));
    for number in 2..=14 {
        let bytes = [&frame(Said::Message, LAST, number).bytes()[..], &[number as u8]].concat();
        world.routers[0].take_frame(NodeNumber(1), &bytes).unwrap();
    }
    while world.poll(0) {}
    let mut came = Vec::new();
    let mut read = |world: &mut World| {
        let heard = world.processes[owner].endpoint.poll(|event| {
            if let EndpointEvent::Received { message, .. } = event {
                came.extend_from_slice(message);
            }
        });
        heard.unwrap();
        came.len()
    };
    assert_eq!(read(&mut world), 0, "they are behind the READ");
    while read(&mut world) < 13 {
        // The ring of its owner is full in between, and is looked at more than once.
        for _ in 0..20 {
            world.routers[0].send_frames(|_, _, _| true);
            world.poll(0);
        }
    }
    assert!(came.iter().copied().eq(2..=14), "{came:?}");
}

#[test]
fn the_bytes_of_reads_wait_in_the_arena_while_their_link_takes_none() {
    let readers = 64;
    let (mut world, owner, grants) = lent(readers);
    let mut asked = 0;
    for (reader, grant) in (0..readers).zip(&grants) {
        for _ in 0..16 {
            asked += 1;
            ask(&mut world, grant, (reader, asked));
        }
    }
    while world.poll(0) {}
    // All lanes are full. READs wait for them, and nothing else waits for these READs.
    let other = world.attach(0, 1, 1).unwrap();
    let sender = &mut world.processes[other].endpoint;
    sender.send(at(0, 0), b"no READ").unwrap();
    sender.flush();
    let message = [&frame(Said::Message, readers, 1).bytes()[..], b"no READ"].concat();
    world.routers[0].take_frame(NodeNumber(1), &message).unwrap();
    while world.poll(0) {}
    let mut received = 0;
    let heard = world.processes[owner].endpoint.poll(|event| {
        received += u32::from(matches!(event, EndpointEvent::Received { .. }));
    });
    heard.unwrap();
    assert_eq!(received, 2);
    let mut answers = 0;
    while answers < asked {
        // Four lanes of 4 MiB, each with one frame that exceeds the limit.
        let waiting = world.routers[0].frame_bytes();
        assert!(
            waiting <= 4 * ((4 << 20) + (ARENA_BYTES as usize + 256)),
            "{waiting}"
        );
        let mut most = 4;
        world.routers[0].send_frames(|_, _, frame| {
            let is_taken = most > 0;
            most -= u32::from(is_taken);
            let (frame, payload) = Frame::parse(frame).unwrap();
            let bytes = match frame.said {
                Said::Delivered => 0,
                _ => 8 + ARENA_BYTES as usize,
            };
            assert_eq!(payload.len(), bytes, "{frame:?}");
            answers += u64::from(is_taken && frame.said == Said::Completed);
            is_taken
        });
        world.poll(0);
    }
    assert_eq!(world.routers[0].frame_bytes(), 0);
}

/// Each incarnation has credits of its own, and a node may name any number of them.
#[test]
fn reads_that_wait_for_a_process_are_bounded_whatever_incarnations_their_node_names() {
    let mut world = World::new(2);
    let limits = RouterLimits {
        contacts_max: 4,
        ..RouterLimits::default()
    };
    world.routers[0] = Router::new(NodeNumber(0), &limits);
    world.routers[0].add_node(NodeNumber(1), 4);
    let (mut world, _, grants) = lent_in(world, 1);
    for incarnation in 1..=40 {
        for number in 1..=16 {
            ask_as(&mut world, &grants[0], (0, number), incarnation);
        }
        while world.poll(0) {}
    }
    assert_eq!(world.routers[0].kept(), 4 * 16);
    let status = world.routers[0].status(None, |_| 0, Vec::new());
    assert_eq!(status.endpoints[0].waiting, 4 * 16);
}

/// A turn looks at lanes as often as there are lanes, however many READs wait for them.
#[test]
fn many_stopped_reads_cost_a_turn_no_more_than_few() {
    let looks = |readers: u32| {
        let (mut world, _, grants) = lent(readers);
        for (reader, grant) in (0..readers).zip(&grants) {
            (1..=16).for_each(|number| ask(&mut world, grant, (reader, number)));
        }
        while world.poll(0) {}
        let before = LOOKS.get();
        // No lane takes a frame, and then each takes one.
        world.poll(0);
        let mut taken = Vec::new();
        world.routers[0].send_frames(|_, lane, _| {
            let is_first = !taken.contains(&lane);
            taken.push(lane);
            is_first
        });
        world.poll(0);
        (world.routers[0].kept(), LOOKS.get() - before)
    };
    let [(few, few_looks), (many, many_looks)] = [80, 640].map(looks);
    assert!(many > few + 8000, "{few} and {many} wait");
    assert!(
        many_looks <= few_looks + 8 && few_looks < 100,
        "{few_looks} and {many_looks}"
    );
}

/// Each lane has room for one response, and the next pair follows once the requests of the one before are answered or stopped again.
#[test]
fn a_turn_resumes_a_pair_of_each_lane_that_has_room() {
    let (mut world, _, grants) = lent(80);
    for (reader, grant) in (0..80).zip(&grants) {
        (1..=16).for_each(|number| ask(&mut world, grant, (reader, number)));
    }
    while world.poll(0) {}
    for _ in 0..8 {
        let mut taken = Vec::new();
        world.routers[0].send_frames(|_, lane, _| {
            let is_first = !taken.contains(&lane);
            taken.push(lane);
            is_first
        });
        let before = world.routers[0].kept();
        world.poll(0);
        assert_eq!(world.routers[0].kept(), before - 4);
    }
}
