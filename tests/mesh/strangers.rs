//! A member that may say anything, by the fuzzer's seeds and by made-up bytes.

use doorbell::Deadline;
use doorbell::link::FinalReason;
use doorbell::mesh::{Group, MeshEvent, NotLinked};

use crate::replay::{folder, replay};
use crate::stranger::{Stranger, announcement, check, join, join_as};
use crate::world::{World, config, ms, rank};

#[test]
fn strangers() {
    replay("mesh_stranger", |bytes| {
        let _ = check(bytes);
    });
}

/// The check's stranger does get to be a member, is heard, and is seen through: the fuzzer has all of it to look at.
#[test]
fn a_stranger_comes_to_what_its_seed_says() {
    let of_seed = |name: &str| check(&std::fs::read(folder("mesh_stranger").join(name)).unwrap());
    let honest = of_seed("honest");
    assert!(
        !honest.has_forged && honest.came == 4 && honest.taken == 3,
        "{honest:?}"
    );
    let wrong = of_seed("wrong");
    assert!(
        !wrong.has_forged && wrong.came == 2 && wrong.dropped > 2,
        "{wrong:?}"
    );
    let forged = of_seed("forged");
    assert!(forged.has_forged, "{forged:?}");
    let again = of_seed("again");
    assert!(
        !again.has_forged && again.came == 2 && again.taken > 0,
        "{again:?}"
    );
}

/// The first two members linked, and a stranger with a link to the first.
fn two_and_a_stranger() -> (World, Stranger) {
    two_and_a_stranger_to(0)
}

/// The same, with the stranger's link to this one of them.
fn two_and_a_stranger_to(at: usize) -> (World, Stranger) {
    let mut world = World::of_hosts(3, &[(0, 1), (at, 2)], "");
    world.start(0, 1);
    world.start(1, 1);
    assert!(world.run(ms(500), is_linked));
    let handle = world.member(at).handle;
    let stranger = Stranger::new(&world.hosts[2], &handle);
    (world, stranger)
}

fn is_linked(world: &mut World) -> bool {
    (0..2).all(|at| world.member(at).mesh.reached().contains(rank(1 - at)))
}

fn count(world: &mut World, event: MeshEvent) -> usize {
    let events = &world.member(0).events;
    events.iter().filter(|seen| **seen == event).count()
}

#[test]
fn a_start_of_another_that_is_too_far_ahead_bars_it_from_nothing() {
    let (mut world, mut stranger) = two_and_a_stranger();
    stranger.say(&join(1));
    let now_ns = |world: &World| world.fabric.now().to_ns();
    let ahead_ns = 1_000_000_000;
    let too_far = now_ns(&world) + ahead_ns + 100_000_000;
    for (sequence, started) in [(1, u64::MAX), (1, u64::MAX - 1), (2, too_far)] {
        stranger.say(&announcement(1, sequence, started, 0b001));
    }
    world.run(ms(50), |_| stranger.goes_on());
    assert!(is_linked(&mut world));
    assert_eq!(count(&mut world, MeshEvent::StartedAhead(rank(1))), 1);
    assert_eq!(count(&mut world, MeshEvent::Restarted(rank(1))), 0);
    assert_eq!(world.member(0).mesh.counts().dropped, 3);

    // As far as clocks may differ it is believed, and the member is let in again once that time is over.
    let believed = now_ns(&world) + ahead_ns;
    stranger.say(&announcement(1, 1, believed, 0b001));
    let is_barred = world.run(ms(50), |world| {
        stranger.goes_on();
        !is_linked(world)
    });
    assert!(is_barred);
    assert_eq!(count(&mut world, MeshEvent::Restarted(rank(1))), 1);
    // After a start that is believed, another one that is too far ahead is reported again.
    let too_far = now_ns(&world) + 2 * ahead_ns;
    stranger.say(&announcement(1, 2, too_far, 0b001));
    world.run(ms(50), |_| stranger.goes_on());
    assert_eq!(count(&mut world, MeshEvent::StartedAhead(rank(1))), 2);
    world.members[1] = None;
    world.run(ms(1100), |_| stranger.goes_on());
    let started = now_ns(&world);
    assert!(started > believed);
    world.start(1, started);
    assert!(world.run(ms(2000), |world| {
        stranger.goes_on();
        is_linked(world)
    }));
}

#[test]
fn a_member_whose_own_start_is_too_far_ahead_is_turned_away() {
    let (mut world, mut stranger) = two_and_a_stranger();
    stranger.say(&join(u64::MAX));
    world.run(ms(50), |_| stranger.goes_on());
    assert_eq!(count(&mut world, MeshEvent::StartedAhead(rank(2))), 1);
    assert!(is_linked(&mut world));
    let mesh = &world.member(0).mesh;
    assert!(!mesh.reached().contains(rank(2)));
    let mut reasons = mesh.not_linked(rank(2));
    assert!(reasons.any(|reason| matches!(reason, NotLinked::StartedAhead)));
}

/// The member of the higher rank has connected, so nobody else can be the other one, whatever start it says.
#[test]
fn a_join_that_is_turned_away_ends_no_other_link() {
    let (mut world, mut stranger) = two_and_a_stranger_to(1);
    let link_of = |world: &mut World| {
        let mut neighbours = world.member(1).mesh.neighbours();
        neighbours
            .find(|(other, _)| *other == rank(0))
            .map(|(_, link)| link)
    };
    let before = link_of(&mut world);
    assert!(before.is_some());
    world.member(1).events.clear();
    stranger.say(&join_as(0, 2));
    world.run(ms(50), |_| stranger.goes_on());
    assert_eq!(link_of(&mut world), before);
    assert!(is_linked(&mut world));
    assert!(world.member(1).mesh.is_linked(rank(0)));
    let (rank, reason) = (None, FinalReason::Closed);
    let lost = MeshEvent::LinkLost { rank, reason };
    assert_eq!(world.member(1).events, [MeshEvent::TurnedAway, lost]);
}

/// A member has its own rank, and gets no other by a second Join.
#[test]
fn a_member_that_joins_as_another_ends_no_other_link() {
    let (mut world, mut stranger) = two_and_a_stranger();
    stranger.say(&join(1));
    world.run(ms(50), |_| stranger.goes_on());
    world.member(0).events.clear();
    stranger.say(&join_as(1, 2));
    world.run(ms(50), |_| stranger.goes_on());
    assert!(is_linked(&mut world));
    assert_eq!(count(&mut world, MeshEvent::TurnedAway), 1);
    assert_eq!(count(&mut world, MeshEvent::Restarted(rank(1))), 0);
}

/// A member that was started again is let in before the end of its link is known, which is reported.
#[test]
fn a_link_that_a_later_start_replaces_is_reported_as_lost() {
    let (mut world, mut stranger) = two_and_a_stranger();
    stranger.say(&join_as(1, 2));
    world.run(ms(50), |_| stranger.goes_on());
    let (rank, reason) = (Some(rank(1)), FinalReason::PeerRestarted);
    assert_eq!(count(&mut world, MeshEvent::LinkLost { rank, reason }), 1);
}

/// So it is where the member that connects learns of the later start by its handle.
#[test]
fn a_link_that_a_later_handle_replaces_is_reported_as_lost() {
    let mut world = World::new(2, &[(0, 1)], "");
    world.joined();
    world.member(1).events.clear();
    world.members[0] = None;
    world.start(0, 2);
    world.joined();
    let lost = |event: &&MeshEvent| matches!(event, MeshEvent::LinkLost { .. });
    let lost: Vec<_> = world.member(1).events.iter().filter(lost).copied().collect();
    let (rank, reason) = (Some(rank(0)), FinalReason::PeerRestarted);
    assert_eq!(lost, [MeshEvent::LinkLost { rank, reason }]);
}

/// However much it says, its link is closed once and reported once.
#[test]
fn a_stranger_is_turned_away_once() {
    let (mut world, mut stranger) = two_and_a_stranger();
    for _ in 0..8 {
        stranger.say(&join_as(3, 1));
    }
    world.run(ms(50), |_| stranger.goes_on());
    assert_eq!(count(&mut world, MeshEvent::TurnedAway), 1);
    assert_eq!(world.member(0).mesh.counts().dropped, 7);
    assert!(is_linked(&mut world));
}

/// A link costs memory and a place of `links_max`, so its peer has as long as a link without a rail.
#[test]
fn a_peer_that_does_not_say_who_it_is_is_turned_away() {
    let (mut world, mut stranger) = two_and_a_stranger();
    let mut until = |world: &mut World, span, is_linked| {
        world.run(span, |_| stranger.goes_on() || stranger.is_linked() == is_linked)
    };
    assert!(until(&mut world, ms(50), true));
    assert!(!until(&mut world, ms(290), false));
    assert_eq!(count(&mut world, MeshEvent::TurnedAway), 0);
    assert!(until(&mut world, ms(60), false));
    assert_eq!(count(&mut world, MeshEvent::TurnedAway), 1);
    world.run(ms(20), |_| stranger.goes_on());
    let (rank, reason) = (None, FinalReason::Closed);
    assert_eq!(count(&mut world, MeshEvent::LinkLost { rank, reason }), 1);
    assert!(is_linked(&mut world));
}

/// A member that is stopped acknowledges nothing.
#[test]
fn no_member_waits_for_a_stranger_before_it_leaves() {
    let mut world = World::of_hosts(3, &[(0, 1), (0, 2)], "");
    (0..2).for_each(|at| world.begin_with(at, &config(at, 2, 1)));
    world.link(1);
    let handle = world.member(0).handle;
    let mut stranger = Stranger::new(&world.hosts[2], &handle);
    assert!(world.run(ms(500), |world| {
        stranger.goes_on() || is_linked(world) && stranger.is_linked()
    }));
    let deadline = Deadline::after(world.fabric.now(), ms(10_000));
    let leave = |at| Group::new(&mut world.member(at).mesh).unwrap().leave(deadline);
    let mut leaving = [0, 1].map(leave);
    let mut is_gone = [false; 2];
    assert!(world.run(ms(20), |world| {
        for at in 0..2 {
            let member = world.member(at);
            is_gone[at] = is_gone[at] || leaving[at].poll(&member.node, &mut member.mesh).unwrap();
        }
        is_gone == [true; 2]
    }));
}
