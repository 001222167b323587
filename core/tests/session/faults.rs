//! Properties of a session under any fault.

use core::time::Duration;

use doorbell_core::session::{FinalReason, HealthState, SessionEvent};
use doorbell_core::wire::RefusalReason;
use doorbell_core::{Deadline, Instant};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof, proptest};
use proptest::test_runner::Config;

use crate::plain::config;
use crate::world::{Fault, World};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A fault that ends, and when it begins and ends, in microseconds.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Link(usize, u64, u64),
    Pause(usize, u64, u64),
    Break(usize, u64),
}

fn trouble() -> impl Strategy<Value = Trouble> {
    let at = || prop_oneof![0..3000_u64, 0..300_000_u64];
    let long = || prop_oneof![0..2000_u64, 0..400_000_u64];
    prop_oneof![
        (0..3_usize, at(), long()).prop_map(|(rail, at, long)| Trouble::Link(rail, at, long)),
        (0..2_usize, at(), long()).prop_map(|(side, at, long)| Trouble::Pause(side, at, long)),
        (0..3_usize, at()).prop_map(|(rail, at)| Trouble::Break(rail, at)),
    ]
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn troubled(rails: usize, seed: u64, troubles: &[Trouble]) -> World {
    let mut world = World::new(&vec![1000; rails], seed, config());
    for trouble in troubles {
        match *trouble {
            Trouble::Link(rail, at, long) => {
                world.fault_at(us(at), Fault::LinkDown(rail % rails));
                world.fault_at(us(at + long), Fault::LinkUp(rail % rails));
            }
            Trouble::Pause(side, at, long) => {
                world.fault_at(us(at), Fault::Pause(side));
                world.fault_at(us(at + long), Fault::Resume(side));
            }
            Trouble::Break(rail, at) => world.fault_at(us(at), Fault::Break(rail % rails)),
        }
    }
    world
}

proptest! {
    #![proptest_config(Config::with_cases(150))]

    #[test]
    fn each_message_arrives_once_and_in_order_and_ends_done(
        rails in 1..=3_usize,
        seed in any::<u64>(),
        troubles in vec(trouble(), 0..12),
        wanted in [0..300_u64, 0..300_u64],
    ) {
        let mut world = troubled(rails, seed, &troubles);
        world.wanted = wanted;
        let all_done = |world: &World| {
            (0..2).all(|side| world.sides[side].done == wanted[side] && world.sides[1 - side].delivered == wanted[side])
        };
        let is_done = world.run(ms(20_000), all_done);
        let state: Vec<_> = world.sides.iter().map(|side| {
            let states: Vec<_> = (0..3).map(|rail| side.session.rail_state(rail)).collect();
            (side.sent, side.done, side.delivered, side.is_over, states, side.session.counts())
        }).collect();
        assert!(is_done, "{state:?}");
        for side in &world.sides {
            assert!(side.is_over.is_none() && side.unknown == 0);
        }
    }

    #[test]
    fn a_process_that_dies_leaves_nothing_without_an_end(
        rails in 1..=3_usize,
        seed in any::<u64>(),
        troubles in vec(trouble(), 0..6),
        wanted in 1..600_u64,
        dies_us in 0..200_000_u64,
    ) {
        let mut world = troubled(rails, seed, &troubles);
        world.wanted = [wanted, 100];
        world.fault_at(us(dies_us), Fault::Restart);
        world.run(us(dies_us), |_| false);
        let mut world_is_over = world.run(ms(30_000), |world| world.sides[0].is_over.is_some());
        // Everything may have been done before.
        let side = &world.sides[0];
        world_is_over |= side.done == wanted;
        assert!(world_is_over, "{:?} {:?}", side.session.counts(), side.events.last());
        if let Some(reason) = side.is_over {
            assert_eq!(side.done + side.unknown, side.sent);
            let unknown = RefusalReason::UNKNOWN_SESSION;
            let known = [FinalReason::EndedByPeer(unknown), FinalReason::Refused(unknown)];
            assert!(known.contains(&reason), "{reason:?}");
        }
    }
}

#[test]
fn a_dead_rail_is_found_within_200_ms_idle_or_not_and_what_it_had_goes_over_the_other() {
    for (case, wanted) in [(0, 0), (1, 1_000_000), (2, 1_000_000)] {
        let (mut worst, mut sent_again) = (0, 0);
        for at_us in (10_000..70_000).step_by(4_777) {
            let mut world = World::new(&[1000, 1000], at_us, config());
            world.wanted = [wanted, wanted / 2];
            world.run(us(at_us), |_| false);
            let failing = usize::from(case == 2);
            world.fault_at(us(at_us), Fault::LinkDown(failing));
            let down = SessionEvent::RailDown { rail: failing as u8 };
            let found = world.run(us(at_us) + ms(1000), |world| {
                world.sides.iter().all(|side| side.events.contains(&down))
            });
            assert!(found);
            worst = worst.max(world.now_ns / 1000 - at_us);
            let before = world.sides[1].delivered;
            world.run(us(at_us) + ms(1300), |_| false);
            assert!(wanted == 0 || world.sides[1].delivered > before + 100);
            assert!(world.sides.iter().all(|side| side.session.is_connected()));
            sent_again += world.sides[0].session.counts().sent_again;
        }
        assert!(worst <= 200_000, "case {case}: {worst} us");
        assert_eq!(sent_again > 0, wanted > 0, "case {case}");
    }
}

#[test]
fn a_rail_that_comes_back_proves_itself_and_is_used_again() {
    let mut world = World::new(&[2000, 1000], 3, config());
    world.wanted = [1_000_000, 0];
    world.fault_at(ms(20), Fault::LinkDown(0));
    world.fault_at(ms(1020), Fault::LinkUp(0));
    world.run(ms(1000), |_| false);
    assert_eq!(world.sides[0].session.rail_state(0), HealthState::Down);
    let was_failing_back = |world: &World| world.sides[0].session.rail_state(0) == HealthState::FailingBack;
    assert!(world.run(ms(3000), was_failing_back));
    let began = world.now_ns;
    assert!(world.run(ms(3000), |world| world.sides[0].session.rail_state(0)
        == HealthState::Up));
    let took = world.now_ns - began;
    assert!((20_000_000..60_000_000).contains(&took), "{took}");
    let up = |event: &&SessionEvent| matches!(event, SessionEvent::RailUp { rail: 0 });
    assert_eq!(world.sides[0].events.iter().filter(up).count(), 2);
}

#[test]
fn a_link_that_stays_down_ends_the_session_on_both_sides_when_it_may() {
    let mut world = World::new(&[1000], 3, config());
    world.wanted = [1_000_000, 1_000_000];
    world.fault_at(ms(20), Fault::LinkDown(0));
    assert!(world.run(ms(20_000), |world| {
        world.sides.iter().all(|side| side.is_over.is_some())
    }));
    for side in &world.sides {
        assert_eq!(side.is_over, Some(FinalReason::Unreachable));
        assert_eq!(side.done + side.unknown, side.sent);
        assert!(side.unknown > 0);
        assert!(side.events.contains(&SessionEvent::Recovering));
    }
    assert!(
        (10_100_000_000..10_300_000_000).contains(&world.now_ns),
        "{}",
        world.now_ns
    );
}

#[test]
fn while_it_recovers_nothing_is_taken_in_and_what_was_is_kept() {
    let mut world = World::new(&[1000], 3, config());
    world.wanted = [1_000_000, 0];
    world.fault_at(ms(20), Fault::LinkDown(0));
    world.run(ms(300), |_| false);
    let kept = world.sides[0].session.unacknowledged();
    assert!(kept > 0);
    assert_eq!(
        world.sides[0].send(),
        Err(doorbell_core::session::PushRefusal::Recovering)
    );
    world.fault_at(ms(320), Fault::LinkUp(0));
    let done = world.sides[0].done;
    assert!(world.run(ms(2000), |world| world.sides[0].done > done + 500));
    assert!(world.sides[0].events.contains(&SessionEvent::Recovered));
}

#[test]
fn a_farewell_that_is_lost_with_its_rail_is_said_over_the_other() {
    let mut world = World::new(&[1000, 1000], 3, config());
    world.wanted = [10, 0];
    assert!(world.run(ms(100), |world| world.sides[0].done == 10));
    let now = Instant::from_ns(world.now_ns);
    world.fault_at(Duration::from_nanos(world.now_ns), Fault::LinkDown(0));
    world.run(Duration::from_nanos(world.now_ns), |_| false);
    world.sides[0].session.close(Deadline::after(now, ms(1000)));
    let until = Duration::from_nanos(world.now_ns) + ms(300);
    assert!(world.run(until, |world| {
        world.sides.iter().all(|side| side.is_over.is_some())
    }));
    let ends = [FinalReason::Closed, FinalReason::PeerClosed];
    assert_eq!([0, 1].map(|side: usize| world.sides[side].is_over.unwrap()), ends);
}
