//! Each thing that a hostile client can write into its rings. The daemon cuts off that client with the reason, and no other client.

use core::sync::atomic::Ordering;

use doorbell::interprocess::SharedWords as _;

use super::world::{ARENA_BYTES, World, at};
use crate::name::NodeNumber;
use crate::reason::{CutReason, GoneReason};
use crate::router::PeerFault;

/// Positions of words in the rings. Each ring has 32 words before its 4 slots, and a slot has 8 words.
const SUBMITTED: usize = 0;
const FIRST_SLOT: usize = 32;
const EVENTS_TAKEN: usize = 64 + 16;

fn cut_by(write: impl Fn(&dyn Fn(usize, u64))) -> Option<CutReason> {
    let mut world = World::new(1);
    let (villain, peer) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    let other = world.attach(0, 2, 0).unwrap();
    world.send(villain, at(0, 1), 0);
    world.send(other, at(0, 0), 0);
    world.settle();
    world.processes[villain].is_hostile = true;
    let rings = world.processes[villain].endpoint.rings().clone();
    write(&|word, value| rings.word(word).unwrap().store(value, Ordering::Relaxed));
    world.processes[villain].is_reading = false;
    world.send(peer, at(0, 0), 0);
    world.processes[peer].endpoint.flush();
    world.settle();
    let cut = world.cuts.first().map(|(_, _, reason)| *reason);
    assert_eq!(world.routers[0].counts().cut, cut.is_some().into());
    if cut.is_some() {
        assert_eq!(world.processes[peer].gone, [(at(0, 0), GoneReason::CutOff)]);
        assert_eq!(world.routers[0].clients().count(), 2);
    }
    // The other clients continue.
    assert!(world.send(other, at(0, 0), 0) && world.send(peer, at(0, 1), 0));
    world.settle();
    assert_eq!(world.processes[other].received, 2);
    cut
}

#[test]
fn what_breaks_the_protocol_cuts_off_and_what_is_in_order_does_not() {
    assert_eq!(cut_by(|_| {}), None);
    // One message was sent, so there is room for four more.
    assert_eq!(cut_by(|put| put(SUBMITTED, 6)), Some(CutReason::Index));
    assert_eq!(cut_by(|put| put(SUBMITTED, 0)), Some(CutReason::Index));
    assert_eq!(cut_by(|put| put(SUBMITTED, u64::MAX)), Some(CutReason::Index));
    // The slots after it are zeros.
    assert_eq!(cut_by(|put| put(SUBMITTED, 5)), Some(CutReason::Descriptor));
    let at_second = |put: &dyn Fn(usize, u64), head: u64, last: u64| {
        put(FIRST_SLOT + 8, head);
        put(FIRST_SLOT + 9, 1);
        put(FIRST_SLOT + 15, last);
        put(SUBMITTED, 2);
    };
    assert_eq!(cut_by(|put| at_second(put, 1 << 32 | 64, 0)), None);
    assert_eq!(
        cut_by(|put| at_second(put, 1 << 32 | 65, 0)),
        Some(CutReason::Length)
    );
    assert_eq!(
        cut_by(|put| at_second(put, 1 << 32, 1)),
        Some(CutReason::Descriptor)
    );
    assert_eq!(
        cut_by(|put| at_second(put, 9 << 32, 0)),
        Some(CutReason::Descriptor)
    );
}

#[test]
fn grants_and_operations_that_no_honest_process_asks_for_cut_off() {
    let cut = |words: [u64; 8]| {
        cut_by(|put| {
            for (at, word) in words.into_iter().enumerate() {
                put(FIRST_SLOT + 8 + at, word);
            }
            put(SUBMITTED, 2);
        })
    };
    let arena = ARENA_BYTES;
    let grant = |rights: u64, place, offset, bytes| cut([2 << 32 | rights, 1, 0, place, offset, bytes, 0, 0]);
    assert_eq!(grant(7, 1, 0, arena), None);
    for (rights, place, offset, bytes) in [
        (0, 1, 0, 8),
        (7, 0, 0, 8),
        (7, 1024 << 32 | 1, 0, 8),
        (7, 1, 0, 0),
        (7, 1, 1, arena),
        (7, 1, u64::MAX, 2),
    ] {
        assert_eq!(
            grant(rights, place, offset, bytes),
            Some(CutReason::Grant),
            "{offset}"
        );
    }
    assert_eq!(grant(8, 1, 0, 8), Some(CutReason::Descriptor));
    assert_eq!(cut([3 << 32, 0, 0, 1, 0, 0, 0, 0]), Some(CutReason::Grant));
    assert_eq!(cut([3 << 32, 0, 0, 1 << 40, 0, 0, 0, 0]), Some(CutReason::Grant));
    // A WRITE, a WRITE with an immediate, a READ, and both atomics, with a grant that does not exist.
    for kind in [17, 18, 19] {
        let operation = |bytes: u64, own| cut([kind << 32 | bytes, 1, 5, 1, 0, own, 0, 0]);
        assert_eq!((operation(64, arena - 64), operation(0, arena)), (None, None));
        for (bytes, own) in [(64, arena - 63), (1, u64::MAX), (0, arena + 1)] {
            assert_eq!(
                operation(bytes, own),
                Some(CutReason::Range),
                "{kind} {bytes} {own}"
            );
        }
        assert_eq!(operation((1 << 16) + 1, 0), Some(CutReason::Length));
    }
    for kind in [20, 21] {
        assert_eq!(cut([kind << 32 | 8, 1, 5, 1, u64::MAX, 0, 1, 0]), None);
        assert_eq!(
            cut([kind << 32 | 4, 1, 5, 1, 0, 0, 1, 0]),
            Some(CutReason::Length)
        );
        assert_eq!(
            cut([kind << 32 | 8, 1, 5, 1, 0, 8, 1, 0]),
            Some(CutReason::Descriptor)
        );
    }
}

#[test]
fn an_outcome_of_another_length_than_was_asked_for_is_a_fault_and_is_reported() {
    use crate::frame::{Frame, Job, Said};
    use crate::name::JobNumber;
    use crate::one_sided::{ArenaGrant, ArenaOperation, ArenaRange};
    use crate::reason::UndeliveredReason;
    use crate::tests::world::KEY;

    for (count, is_right) in [(8, true), (7, false), (9, false)] {
        let mut world = World::new(2);
        let near = world.attach(0, 1, 0).unwrap();
        let grant = ArenaGrant::from_bytes([0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1]);
        let range = ArenaRange { offset: 0, bytes: 8 };
        let endpoint = &mut world.processes[near].endpoint;
        endpoint.request(&grant, 0, &ArenaOperation::Read(range)).unwrap();
        endpoint.flush();
        world.poll(0);
        let answer = Frame {
            said: Said::Completed,
            job: Job {
                number: JobNumber(1),
                key: KEY,
                user: 1,
            },
            from: 0,
            to: 9,
            incarnation: 1,
            number: 0,
        };
        let mut bytes = answer.bytes().to_vec();
        bytes.extend(vec![1; 8 + count]);
        let taken = world.routers[0].take_frame(NodeNumber(1), &bytes);
        assert_eq!(taken.is_ok(), is_right);
        world.poll(0);
        let mut ends = Vec::new();
        let read = world.processes[near].endpoint.poll(|event| match event {
            crate::endpoint::EndpointEvent::Completed { .. } => ends.push(None),
            crate::endpoint::EndpointEvent::Undelivered { reason, .. } => ends.push(Some(reason)),
            event => panic!("{event:?}"),
        });
        read.unwrap();
        assert_eq!(ends, [(!is_right).then_some(UndeliveredReason::Unknown)]);
        // A further answer without a question changes nothing.
        assert!(world.routers[0].take_frame(NodeNumber(1), &bytes).is_ok());
    }
}

#[test]
fn an_index_of_events_that_jumps_is_found_when_it_is_read() {
    let mut world = World::new(1);
    let (villain, peer) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    world.processes[villain].is_hostile = true;
    world.processes[villain].is_reading = false;
    let rings = world.processes[villain].endpoint.rings().clone();
    rings.word(EVENTS_TAKEN).unwrap().store(5, Ordering::Relaxed);
    for _ in 0..5 {
        while world.send(peer, at(0, 0), 0) {}
        world.settle();
    }
    assert_eq!(world.cuts.len(), 1);
    assert_eq!(world.cuts[0].2, CutReason::Index);
    assert_eq!(world.processes[peer].gone, [(at(0, 0), GoneReason::CutOff)]);
}

#[test]
fn wake_ups_that_are_asked_for_without_end_cost_one_call_a_turn() {
    let mut world = World::new(1);
    let (villain, peer) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    for _ in 0..100 {
        world.processes[villain]
            .endpoint
            .rings()
            .flag(0)
            .unwrap()
            .store(1, Ordering::Relaxed);
        world.send(peer, at(0, 0), 0);
        world.processes[peer].endpoint.flush();
        let mut wakes = 0;
        world.routers[0].poll(|_| wakes += 1);
        assert!(wakes <= 1, "{wakes}");
        world.settle();
    }
}

#[test]
fn a_peer_daemon_that_breaks_the_protocol_is_refused() {
    use crate::frame::{Frame, Job, Said};
    use crate::name::JobNumber;
    use crate::tests::world::KEY;

    let mut world = World::new(2);
    let near = world.attach(0, 1, 0).unwrap();
    world.processes[near].is_reading = false;
    let frame = |number| Frame {
        said: Said::Message,
        job: Job {
            number: JobNumber(1),
            key: KEY,
            user: 1,
        },
        from: 9,
        to: 0,
        incarnation: 1,
        number,
    };
    let router = &mut world.routers[0];
    for number in 0..16 {
        assert_eq!(router.take_frame(NodeNumber(1), &frame(number).bytes()), Ok(()));
    }
    let beyond = router.take_frame(NodeNumber(1), &frame(16).bytes());
    assert_eq!(beyond, Err(PeerFault::Credits));
    assert_eq!(
        router.take_frame(NodeNumber(1), &Frame::hello(1, 1, 1).bytes()),
        Err(PeerFault::Frame)
    );
    assert_eq!(router.take_frame(NodeNumber(1), &[0; 64]), Err(PeerFault::Frame));
    // Answers about messages that were not sent change nothing.
    for said in [Said::Delivered, Said::Gone(GoneReason::Died)] {
        let answer = Frame {
            said,
            from: 0,
            ..frame(u64::MAX)
        };
        assert_eq!(router.take_frame(NodeNumber(1), &answer.bytes()), Ok(()));
    }
}
