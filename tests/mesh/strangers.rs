//! A member that may say anything, by the fuzzer's seeds and by made-up bytes.

use doorbell::mesh::{MeshEvent, NotLinked};

use crate::replay::{folder, replay};
use crate::stranger::{Stranger, announcement, check, join};
use crate::world::{World, ms, rank};

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
    let mut world = World::of_hosts(3, &[(0, 1), (0, 2)], "");
    world.start(0, 1);
    world.start(1, 1);
    assert!(world.run(ms(500), is_linked));
    let handle = world.member(0).handle;
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
