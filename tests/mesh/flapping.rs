//! A cable that comes and goes: its cost to members that have nothing to do with it.

use core::fmt::Write as _;
use core::time::Duration;

use doorbell::link::LinkConfig;
use doorbell::mesh::{MeshEvent, Rank};

use crate::world::{World, config, ms, rank};

const RING: [(usize, usize); 4] = [(0, 1), (1, 2), (2, 3), (3, 0)];
const FLAPS: u64 = 8;
const EVERY_MS: u64 = 1500;

/// A ring in which one cable is down for 400 ms, again and again, from 100 ms on; links have the time to recover that they have by default.
fn flapping(hold_down: Duration) -> World {
    let plan = (0..FLAPS).fold(String::new(), |mut plan, flap| {
        let at = 100 + flap * EVERY_MS;
        writeln!(plan, "at {at}ms link h1/sim1-h2/sim1 down for 400ms").unwrap();
        plan
    });
    let mut world = World::made(4, &RING, &plan, |at| {
        let mut config = config(at, 4, 1);
        config.link.session.recover_within = LinkConfig::default().session.recover_within;
        config.hold_down = hold_down;
        config
    });
    world.joined();
    world.run(ms(50), |_| false);
    world
}

fn announcements(world: &mut World) -> u64 {
    (0..4)
        .map(|at| world.member(at).mesh.counts().announcements)
        .sum()
}

/// Lets the cable flap while rank 1 sends rank 2 a message now and then; what was announced, how often rank 1's way changed, and how often the
/// link lost its rails.
fn flap(world: &mut World) -> (u64, usize, u64) {
    let before = announcements(world);
    let (mut changes, mut hops, mut sent) = (0, Some(1), 0_u64);
    let until = world.fabric.now().after(ms(100 + FLAPS * EVERY_MS));
    while world.fabric.now() < until {
        let (header, number) = (sent.to_be_bytes(), sent);
        if world.member(1).mesh.send(rank(2), &header, &[]).is_ok() {
            sent = number + 1;
        }
        world.run(ms(20), |_| false);
        world.member(2).take();
        let now = world.member(1).mesh.routes().hops(rank(2));
        changes += usize::from(now != hops);
        hops = now;
    }
    let all = world.run(ms(3000), |world| {
        world.member(2).take();
        world.member(2).inbox[1].len() as u64 == sent
    });
    assert!(all && sent > 200, "{sent}");
    let came = world.member(2).inbox[1].iter().zip(0_u64..);
    came.for_each(|(came, number)| assert_eq!(*came, number.to_be_bytes()));
    let links = world.member(1).mesh.links();
    let lost = links.ids().map(|id| links.counts(id).recoveries).sum();
    (announcements(world) - before, changes, lost)
}

/// Each time both ends announce that nothing goes over it, and that something does again. Eight frames carry one announcement to all members.
#[test]
fn a_cable_that_flaps_is_held_down_and_is_announced_twice_and_not_each_time() {
    let hold_down = config(0, 4, 1).hold_down;
    let mut world = flapping(hold_down);
    let (held, changes, lost) = flap(&mut world);
    assert!(lost >= FLAPS - 1, "{lost}");
    // Down, up and down at once, of both ends; then nothing before it has stayed.
    assert!((1..=3 * 2 * 8).contains(&held), "{held}");
    assert_eq!(changes, 3, "gone round, back, and gone round");
    for at in 0..4 {
        let told = &world.member(at).events;
        let is_held = |event: &&MeshEvent| matches!(event, MeshEvent::HeldDown(_));
        let held: Vec<Rank> = told.iter().filter(is_held).map(of).collect();
        match at {
            1 => assert!(held.len() as u64 >= FLAPS / 2 && held.iter().all(|other| *other == rank(2))),
            2 => assert!(held.len() as u64 >= FLAPS / 2 && held.iter().all(|other| *other == rank(1))),
            _ => assert_eq!(held, []),
        }
        assert!(
            told.iter()
                .all(|event| !matches!(event, MeshEvent::Unreachable(_)))
        );
    }
    // It stays: it is the way again, once.
    let before = announcements(&mut world);
    let is_back = world.run(hold_down + ms(1500), |world| {
        world.member(1).mesh.routes().hops(rank(2)) == Some(1)
    });
    assert!(is_back);
    world.run(hold_down * 3, |_| false);
    assert!(announcements(&mut world) - before <= 2 * 8);

    let mut storm = flapping(ms(1));
    let (without, changes, lost) = flap(&mut storm);
    assert!(
        lost >= FLAPS - 1 && changes as u64 >= 2 * (FLAPS - 1),
        "{lost} {changes}"
    );
    assert!(without > 2 * held, "{held} {without}");
}

fn of(event: &MeshEvent) -> Rank {
    match event {
        MeshEvent::HeldDown(rank) => *rank,
        other => panic!("{other:?}"),
    }
}

/// Messages that have nothing to do with a broken cable are not retransmitted. In a ring with two more members at one of its corners, those
/// two keep what they sent to that corner, though their routes to others change.
#[test]
fn what_did_not_go_over_a_broken_cable_does_not_go_again() {
    // 4 and 5 hang on 0; the ring is 0 to 3.
    let cables = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (4, 5)];
    let mut world = World::made(6, &cables, "at 100ms link h0/sim0-h1/sim0 down", |at| {
        let mut config = config(at, 6, 1);
        config.link.session.recover_within = LinkConfig::default().session.recover_within;
        // Messages stay unacknowledged for longer than it takes to find the break.
        config.window = 16;
        config.acknowledge_after = ms(110);
        config
    });
    world.joined();
    for number in 0..25_u8 {
        for (from, to) in [(5, 0), (5, 1), (0, 1)] {
            let sent = world.member(from).mesh.send(rank(to), &[number], &[]);
            sent.unwrap();
        }
        world.run(ms(20), |_| false);
        world
            .members
            .iter_mut()
            .flatten()
            .for_each(|member| member.take());
    }
    assert_eq!(world.member(5).mesh.routes().hops(rank(1)), Some(5));
    let again = |world: &mut World, from, to| world.member(from).mesh.member_counts(rank(to)).sent_again;
    assert!(again(&mut world, 0, 1) > 0 && again(&mut world, 5, 1) > 0);
    assert_eq!(again(&mut world, 5, 0), 0);
}
