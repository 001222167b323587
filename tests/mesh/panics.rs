//! Callbacks of a mesh that panic: each event is delivered once and in order, and so is each message.

use doorbell::mesh::MeshEvent;

use crate::world::{Member, World, ms, rank};

const LINE: [(usize, usize); 3] = [(0, 1), (1, 2), (2, 3)];

/// Messages of each to each, in each of two halves.
const COUNT: u8 = 6;

/// All that a member saw: events, and messages by sender.
type Seen = (Vec<MeshEvent>, Vec<Vec<Vec<u8>>>);

/// Everybody sends everybody messages of these numbers.
fn talk(world: &mut World, numbers: core::ops::Range<u8>) {
    for number in numbers {
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                let said = (rank(to), vec![from as u8, number]);
                world.member(from).outbox.push_back(said);
            }
        }
        world.run(ms(100), |world| {
            world.members.iter_mut().flatten().for_each(Member::take);
            false
        });
    }
}

/// Members in a line, of which one goes between two halves of their messages and is started again. Returns what they saw, and how often
/// callbacks panicked.
fn run(panics_every: Option<usize>) -> (Vec<Seen>, usize) {
    let mut world = World::new(4, &LINE, "");
    (0..4).for_each(|at| world.member(at).panics_every = panics_every);
    world.joined();
    talk(&mut world, 0..COUNT);
    let before = world.members[1].take().unwrap();
    let mut seen = vec![(before.events, before.inbox)];
    let mut panics = before.panics;
    drop((before.mesh, before.workers));
    world.run(ms(1000), |_| false);
    world.start(1, 2);
    world.member(1).panics_every = panics_every;
    world.joined();
    talk(&mut world, COUNT..2 * COUNT);
    for member in world.members.drain(..).flatten() {
        panics += member.panics;
        seen.push((member.events, member.inbox));
    }
    (seen, panics)
}

#[test]
fn a_panic_in_a_callback_loses_no_event_and_no_message() {
    let (expected, none) = run(None);
    assert_eq!(none, 0);
    // Rank 0 lost all others with the member between, and found them again.
    let (events, inbox) = &expected[1];
    for (other, came) in inbox.iter().enumerate().skip(1) {
        let of = |event| events.iter().filter(|seen| **seen == event).count();
        assert!(of(MeshEvent::Reachable(rank(other))) >= 2, "{events:?}");
        assert!(of(MeshEvent::Unreachable(rank(other))) >= 1, "{events:?}");
        let sent: Vec<_> = (0..2 * COUNT).map(|number| vec![other as u8, number]).collect();
        assert_eq!(*came, sent);
    }
    let seen = |(events, inbox): &Seen| events.len() + inbox.iter().map(Vec::len).sum::<usize>();
    let told: usize = expected.iter().map(seen).sum();
    for every in 1..=3 {
        let (seen, panics) = run(Some(every));
        assert_eq!(seen, expected, "every {every}");
        assert!(panics > told / (every + 1), "every {every}: {panics} of {told}");
    }
}
