//! Links whose rails fail.

use std::collections::BTreeSet;

use doorbell::link::{FinalReason, HealthState, PushRefusal, RequestRefusal, SessionEvent};

use crate::processes::{A, B, Two, ms};

#[test]
fn what_a_failing_rail_had_goes_over_the_other_once_and_in_order() {
    for rail in [0, 1] {
        for at_us in [20_030, 20_075, 20_500] {
            for bytes in [64, 20_000] {
                let plan = format!("at {at_us}us link a/sim{rail}-b/sim{rail} down");
                let mut two = Two::new(2, &plan);
                two.connected(2);
                for at in [A, B] {
                    two.process_mut(at).message_bytes = bytes;
                }
                two.sends_every = [Some(ms(1)), Some(ms(1))];
                two.run(ms(300), |_| false);
                let down = SessionEvent::RailDown { rail };
                for at in [A, B] {
                    let process = two.process(at);
                    let seen = process.saw(down).unwrap();
                    assert!(seen.to_ns() < at_us * 1000 + 200_000_000, "{plan}: {seen:?}");
                    assert_eq!(process.saw(SessionEvent::Recovering), None);
                }
                assert!(
                    two.settle(ms(500)),
                    "{plan} {:?} {:?}",
                    two.counts(A),
                    two.counts(B)
                );
                two.fabric.audit().unwrap();
            }
        }
    }
}

#[test]
fn a_dead_rail_is_found_within_200_ms_whatever_it_does() {
    let mut worst_ns = 0;
    for at_us in (30_000..90_000).step_by(7_919) {
        for (every, bytes) in [(None, 0), (Some(ms(1)), 64), (Some(ms(3)), 20_000)] {
            let mut two = Two::new(2, &format!("at {at_us}us link a/sim0-b/sim0 down"));
            two.connected(2);
            two.process_mut(A).message_bytes = bytes;
            two.sends_every = [every, None];
            two.run(ms(500), |two| {
                let down = |at: usize| two.process(at).saw(SessionEvent::RailDown { rail: 0 }).is_some();
                down(A) && down(B)
            });
            let took_ns = two.fabric.now().to_ns() - at_us * 1000;
            worst_ns = worst_ns.max(took_ns);
        }
    }
    assert!(worst_ns <= 200_000_000, "{worst_ns}");
    assert!(worst_ns >= 100_000_000, "{worst_ns}");
}

#[test]
fn a_rail_that_comes_back_is_used_again() {
    let mut two = Two::new(2, "at 50ms link a/sim0-b/sim0 down for 1s");
    two.connected(2);
    two.process_mut(A).message_bytes = 20_000;
    two.sends_every = [Some(ms(2)), None];
    two.run(ms(1000), |_| false);
    let link = two.process(A).link.unwrap();
    assert_eq!(two.process(A).links.rail_state(link, 0), HealthState::Down);
    assert!(two.run(ms(4000), |two| two.process(A).links.rail_state(link, 0)
        == HealthState::Up));
    let ups = |two: &Two, at: usize| {
        let up = |(_, event): &&(_, SessionEvent)| *event == SessionEvent::RailUp { rail: 0 };
        two.process(at).events.iter().filter(up).count()
    };
    assert!(two.run(ms(4200), |two| ups(two, A) == 2 && ups(two, B) == 2));
    // It carries what it did before: with one rail, nothing comes early.
    let before = two.counts(B).early;
    two.run(ms(4400), |_| false);
    assert!(two.counts(B).early > before);
    assert!(two.settle(ms(5000)));
    two.fabric.audit().unwrap();
}

#[test]
fn without_any_rail_it_recovers_and_nothing_is_lost() {
    let mut two = Two::new(2, "at 50ms link a-b down for 1s");
    two.connected(2);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(500), |_| false);
    assert_eq!(two.process_mut(A).send(), Err(PushRefusal::Recovering));
    let sent = two.process(A).sent;
    assert!(two.run(ms(5000), |two| two.process(A).sent > sent + 100));
    assert!(two.settle(ms(6000)), "{:?} {:?}", two.counts(A), two.counts(B));
    for at in [A, B] {
        let process = two.process(at);
        let lost = process.saw(SessionEvent::Recovering).unwrap();
        let found = process.saw(SessionEvent::Recovered).unwrap();
        assert!(lost.to_ns() < 250_000_000, "{lost:?}");
        assert!(
            (1_050_000_000..2_600_000_000).contains(&found.to_ns()),
            "{found:?}"
        );
    }
    two.fabric.audit().unwrap();
}

#[test]
fn a_link_that_cannot_recover_ends_and_so_does_each_message() {
    let mut two = Two::new(1, "at 50ms link a-b down");
    two.connected(1);
    let links = [A, B].map(|at| two.process(at).link.unwrap());
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    assert!(two.run(ms(12_000), |two| {
        two.processes
            .iter()
            .flatten()
            .all(|process| process.over.is_some())
    }));
    for at in [A, B] {
        let process = two.process(at);
        assert_eq!(process.over, Some(FinalReason::Unreachable));
        assert_eq!(process.done + process.unknown, process.sent);
        assert!(process.unknown > 0);
        let over = FinalReason::Unreachable;
        assert_eq!(
            two.process_mut(at).refusals(links[at]),
            (PushRefusal::Over(over), RequestRefusal::Over(over))
        );
    }
    // Messages done at one side have arrived at the other.
    for (one, other) in [(A, B), (B, A)] {
        let (done, delivered) = (two.process(one).done, two.process(other).delivered);
        assert!(done > 0 && done <= delivered, "{done} {delivered}");
    }
    two.run(ms(13_000), |two| two.fabric.queue_pairs() == 0);
    assert_eq!(two.fabric.queue_pairs(), 0);
    two.fabric.audit().unwrap();
}

/// Sides that lose their peers do not all connect again at one moment. Each is in a world of its own; the worlds differ by
/// their seeds alone.
#[test]
fn no_two_try_again_at_the_same_times() {
    let tried = [1, 2].map(|seed| {
        let mut two = Two::waiting(1, &format!("seed {seed}"));
        let handle = two.process(B).handle.unwrap();
        two.processes[B] = None;
        two.process_mut(A).connect(&handle);
        let mut tried = BTreeSet::new();
        two.run(ms(300), |two| {
            let process = two.process(A);
            let mut failures = process.links.not_connected(process.link.unwrap());
            // Since the first time, which is that of both.
            if failures.next().is_some() {
                tried.extend(
                    process
                        .links
                        .wake(two.fabric.now())
                        .map(|wake| wake.instant().to_ns()),
                );
            }
            false
        });
        tried
    });
    assert!(tried.iter().all(|tried| tried.len() > 3), "{tried:?}");
    assert!(tried[0].is_disjoint(&tried[1]), "{tried:?}");
}

/// The same of those that lost a rail.
#[test]
fn a_rail_that_is_lost_is_connected_again_after_a_wait_by_chance() {
    let tried = [1, 2].map(|seed| {
        let mut two = Two::new(1, &format!("seed {seed}; at 50ms link a-b down"));
        two.connected(1);
        let down = SessionEvent::RailDown { rail: 0 };
        assert!(two.run(ms(300), |two| two.process(A).saw(down).is_some()));
        let now = two.fabric.now();
        (now, two.process(A).links.wake(now))
    });
    let [(first, one), (second, other)] = tried;
    assert_eq!(first, second);
    assert_ne!(one, other);
}

#[test]
fn a_port_whose_address_changes_is_connected_by_the_new_one() {
    let mut two = Two::new(2, "at 50ms gid a/sim0:1 10.0.0.1 becomes 10.0.0.77");
    two.connected(2);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    let again = |two: &Two| {
        let up = |(_, event): &&(_, SessionEvent)| *event == SessionEvent::RailUp { rail: 0 };
        two.process(A).events.iter().filter(up).count() == 2
    };
    assert!(two.run(ms(5000), again), "{:?}", two.process(A).events);
    assert!(two.settle(ms(6000)));
    assert_eq!(two.process(A).saw(SessionEvent::Recovering), None);
    two.fabric.audit().unwrap();
}
