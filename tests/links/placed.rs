//! Long messages that are written into memory which their receiver lent: in order with all others, each once, whatever rails fail.

use core::time::Duration;

use doorbell::link::{FinalReason, LinkConfig, LinkRailCounts, PushRefusal, SessionEvent};

use crate::anything::{Chance, plan, seeds};
use crate::processes::{A, B, Process, Two, config, ms, ports};

/// The default threshold.
pub(crate) const LONG: usize = 16 << 10;

/// Two processes with a link over so many rails, both configured so.
pub(crate) fn two_with(config: &LinkConfig, rails: usize, plan: &str) -> Two {
    two_at(None, config, rails, plan)
}

/// The same, by rails of so many megabits a second.
fn two_at(mbps: Option<u32>, config: &LinkConfig, rails: usize, plan: &str) -> Two {
    let mut two = Two::apart([A, B].map(|at| ports(at, rails, 10_000)), plan, mbps);
    for at in [A, B] {
        two.processes[at] = None;
        two.processes[at] = Some(Process::on(&two.hosts[at], config, at == B));
    }
    two.begin();
    two.connected(u8::try_from(rails).unwrap());
    two
}

/// A configuration with memory for so many places of 64 KiB.
pub(crate) fn with_places(places: usize) -> LinkConfig {
    let mut config = config();
    config.message_bytes_max = 1 << 20;
    (config.retained, config.ahead) = (1024, 1024);
    config.placed_bytes = places << 16;
    config
}

pub(crate) fn later(two: &Two, ms: u64) -> Duration {
    Duration::from_nanos(two.fabric.now().to_ns() + ms * 1_000_000)
}

/// Sends a message of so many bytes, and waits until all are done.
pub(crate) fn send_and_settle(two: &mut Two, at: usize, bytes: usize) {
    two.process_mut(at).message_bytes = bytes;
    two.process_mut(at).send().unwrap();
    let until = later(two, 1000);
    assert!(two.settle(until), "{:?} {:?}", two.counts(A), two.counts(B));
}

/// Has each side lend the other memory.
pub(crate) fn lent(two: &mut Two) {
    for at in [A, B] {
        send_and_settle(two, at, LONG + 1);
    }
    let until = later(two, 5);
    two.run(until, |_| false);
    assert_eq!((two.counts(A).placed, two.counts(B).placed), (0, 0));
}

#[test]
fn those_behind_the_first_are_written_and_shorter_ones_never() {
    for rails in [1, 2, 3] {
        let mut two = two_with(&with_places(32), rails, "");
        let before = two.fabric.registrations();
        send_and_settle(&mut two, A, LONG);
        let until = later(&two, 5);
        two.run(until, |_| false);
        assert_eq!(two.fabric.registrations(), before, "nobody needs memory");
        lent(&mut two);
        for (bytes, least) in [(LONG + 1, 1), (1 << 16, 1), ((1 << 16) + 1, 2), (1 << 20, 16)] {
            for at in [A, B] {
                let (placed, sent) = (two.counts(at).placed, two.counts(at).sent);
                send_and_settle(&mut two, at, bytes);
                let placed = two.counts(at).placed - placed;
                assert_eq!(two.counts(at).sent - sent, placed, "{bytes}: no other fragment");
                let shares = (rails as u64).min(bytes as u64 >> 14);
                assert!(
                    placed >= shares.max(least) && placed <= shares.max(least) + 1,
                    "{bytes}: {placed}"
                );
                send_and_settle(&mut two, at, LONG);
                assert_eq!(two.counts(at).duplicates, 0);
            }
        }
        two.fabric.audit().unwrap();
    }
}

#[test]
fn they_keep_their_order_with_short_ones_both_ways() {
    for (rails, plan, least) in [
        (1, "", 20),
        (3, "", 20),
        (2, "reorder 10% packet of any->any; seed 5", 5),
        (3, "drop every 300th packet of any->any; seed 6", 5),
    ] {
        let mut two = two_with(&with_places(8), rails, plan);
        lent(&mut two);
        let mut chance = Chance(rails as u64);
        let mut refused = 0;
        for _ in 0..60 {
            for at in [A, B] {
                let bytes = [1, 60, 3000, LONG, LONG + 1, 60_000, 150_000, 600_000];
                two.process_mut(at).message_bytes = bytes[chance.below(8) as usize];
                match two.process_mut(at).send() {
                    Ok(()) => {}
                    Err(PushRefusal::Full | PushRefusal::Recovering) => refused += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            let until = later(&two, chance.below(2));
            two.run(until, |_| false);
        }
        let until = later(&two, 5000);
        assert!(two.settle(until), "{plan}");
        for at in [A, B] {
            let placed = two.counts(at).placed;
            assert!(
                placed > least && two.process(at).sent > 10,
                "{plan}: {:?}",
                two.counts(at)
            );
        }
        assert!(refused > 0, "{plan}");
        let lost = [A, B].map(|at| two.counts(at).sent_again);
        assert!(
            lost == [0; 2] || !plan.is_empty(),
            "no rail is lost for nothing: {lost:?}"
        );
        two.fabric.audit().unwrap();
    }
}

/// Messages of all lengths under random faults: the bytes of each are looked at as it comes.
#[test]
fn each_comes_once_and_in_order_under_random_plans() {
    let mut again = 0;
    for seed in seeds() {
        let mut chance = Chance(seed);
        let rails = 1 + chance.below(3);
        let plan = plan(&mut chance, rails, |rail| format!("sim{rail}:1"), 30_000);
        // Few places, so that each is used again soon.
        let mut two = two_with(&with_places(2 + chance.below(6) as usize), rails as usize, &plan);
        lent(&mut two);
        let until = later(&two, 200);
        while Duration::from_nanos(two.fabric.now().to_ns()) < until {
            for at in [A, B] {
                two.process_mut(at).message_bytes = [64, 20_000, 100_000, 250_000][chance.below(4) as usize];
                let _ = two.process_mut(at).send();
            }
            let until = Duration::from_nanos(two.fabric.now().to_ns() + chance.below(2_000_000));
            two.run(until, |_| false);
        }
        let until = later(&two, 15_000);
        assert!(two.settle(until), "seed {seed}: {plan}");
        for at in [A, B] {
            let process = two.process(at);
            assert!(
                process.unknown == 0 && process.over.is_none(),
                "seed {seed}: {plan}"
            );
            assert!(two.counts(at).placed > 10, "seed {seed}: {:?}", two.counts(at));
            again += two.counts(at).sent_again;
        }
        two.fabric
            .audit()
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
    let count = seeds().end - seeds().start;
    assert!(again > 0 || count < 6);
}

#[test]
fn one_that_does_not_poll_costs_no_more_than_the_memory_it_lent() {
    let mut two = two_with(&with_places(4), 2, "");
    lent(&mut two);
    two.process_mut(B).is_stopped = true;
    two.process_mut(A).message_bytes = 100_000;
    let before = two.process(A).sent;
    for _ in 0..50 {
        let sent = two.process_mut(A).send();
        assert!(matches!(sent, Ok(()) | Err(PushRefusal::Full)), "{sent:?}");
        let until = later(&two, 1);
        two.run(until, |_| false);
    }
    assert_eq!(two.process(A).sent, before + 2, "two places each");
    // A message that needs more places than there are goes in fragments of slots, and a short one goes at any time.
    let placed = two.counts(A).placed;
    for bytes in [400_000, 64] {
        two.process_mut(A).message_bytes = bytes;
        two.process_mut(A).send().unwrap();
    }
    let until = later(&two, 200);
    two.run(until, |_| false);
    assert_eq!(two.counts(A).placed, placed);
    assert!(two.process(A).saw(SessionEvent::Stalled).is_some());
    two.process_mut(B).is_stopped = false;
    let until = later(&two, 1000);
    assert!(two.settle(until));
    send_and_settle(&mut two, A, 100_000);
    assert_eq!(two.counts(A).placed, placed + 2);
    two.fabric.audit().unwrap();
}

/// The receiver stands still with a fragment of either rail, and one rail is lost: its fragment comes once more.
#[test]
fn fragments_that_their_receiver_has_are_not_taken_again() {
    let mut two = two_with(
        &with_places(4),
        2,
        "at 100ms link a/sim0:1-b/sim0:1 down for 300ms",
    );
    lent(&mut two);
    assert!(two.fabric.now().to_ns() < 95_000_000);
    two.run(ms(99), |_| false);
    two.process_mut(B).is_stopped = true;
    two.process_mut(A).message_bytes = 100_000;
    two.process_mut(A).send().unwrap();
    two.run(ms(1000), |two| two.counts(A).sent_again > 0);
    // Each time counts.
    assert_eq!((two.counts(A).placed, two.counts(A).sent_again), (3, 1));
    two.process_mut(B).is_stopped = false;
    let until = later(&two, 1000);
    assert!(two.settle(until));
    assert_eq!((two.counts(B).duplicates, two.process(B).unknown), (1, 0));
    send_and_settle(&mut two, A, 100_000);
    two.fabric.audit().unwrap();
}

#[test]
fn a_side_without_memory_for_them_sends_and_takes_them_in_fragments_of_slots() {
    for (ours, theirs) in [(0, 8), (8, 0)] {
        let mut two = Two::waiting(2, "");
        for (at, places) in [(A, ours), (B, theirs)] {
            two.processes[at] = None;
            two.processes[at] = Some(Process::on(&two.hosts[at], &with_places(places), at == B));
        }
        two.begin();
        two.connected(2);
        lent(&mut two);
        for at in [A, B] {
            send_and_settle(&mut two, at, 500_000);
        }
        assert_eq!((two.counts(A).placed, two.counts(B).placed), (0, 0));
        two.fabric.audit().unwrap();
    }
}

#[test]
fn closing_waits_for_those_that_are_under_way() {
    for us in [0, 20, 60, 130] {
        let mut two = two_with(&with_places(32), 2, "");
        lent(&mut two);
        two.process_mut(A).message_bytes = 1 << 20;
        two.process_mut(A).send().unwrap();
        let until = Duration::from_nanos(two.fabric.now().to_ns() + us * 1000);
        two.run(until, |_| false);
        let (deadline, sent) = (two.deadline(ms(500)), two.process(A).sent);
        let a = two.process_mut(A);
        a.links.close(a.link.unwrap(), deadline);
        let until = later(&two, 400);
        assert!(two.run(until, |two| {
            [A, B].iter().all(|at| two.process(*at).over.is_some())
        }));
        let (a, b) = (two.process(A), two.process(B));
        // It is the last event, after all that was sent.
        assert_eq!(
            (a.over, b.over),
            (Some(FinalReason::Closed), Some(FinalReason::PeerClosed))
        );
        assert_eq!((a.done, a.unknown, b.delivered), (sent, 0, sent));
        let until = later(&two, 500);
        two.run(until, |_| false);
        two.fabric.audit().unwrap();
    }
}

#[test]
fn bytes_that_are_written_are_counted_once_on_each_side() {
    let mut two = two_with(&with_places(8), 2, "");
    lent(&mut two);
    let counted = |two: &Two| {
        [A, B].map(|at| {
            let process = two.process(at);
            let rails = process.links.rails(process.link.unwrap());
            let counts: Vec<_> = rails.map(|rail| rail.counts).collect();
            let sum = |of: fn(&LinkRailCounts) -> u64| counts.iter().map(of).sum::<u64>();
            (
                sum(|counts| counts.sent_bytes),
                sum(|counts| counts.received_bytes),
            )
        })
    };
    let before = counted(&two);
    send_and_settle(&mut two, A, 200_000);
    assert_eq!(two.counts(A).placed, 4);
    let after = counted(&two);
    // Frames and acknowledgements are some hundred bytes.
    let sent = after[A].0 - before[A].0;
    let received = after[B].1 - before[B].1;
    assert!((200_000..201_000).contains(&sent), "{sent}");
    assert!((200_000..201_000).contains(&received), "{received}");
}

#[test]
fn memory_is_given_back_after_the_end() {
    let mut two = two_with(&with_places(4), 2, "");
    let before = two.fabric.registrations();
    lent(&mut two);
    // Each side lends some, and has some to send from, by two devices.
    assert_eq!(two.fabric.registrations(), before + 2 * (2 + 2));
    two.process_mut(A).message_bytes = 200_000;
    two.process_mut(A).send().unwrap();
    let deadline = two.deadline(ms(0));
    let a = two.process_mut(A);
    a.links.close(a.link.unwrap(), deadline);
    let until = later(&two, 2000);
    two.run(until, |two| two.fabric.registrations() == before);
    assert_eq!(two.fabric.registrations(), before);
    two.fabric.audit().unwrap();
}

#[test]
fn a_callback_that_panics_loses_none() {
    for every in 1..=3 {
        let mut two = two_with(&with_places(8), 3, "drop every 30th packet of any->any; seed 3");
        lent(&mut two);
        for at in [A, B] {
            two.process_mut(at).message_bytes = 90_000;
            two.process_mut(at).panics_every = Some(every);
        }
        two.sends_every = [Some(ms(1)); 2];
        let until = later(&two, 60);
        two.run(until, |_| false);
        let until = later(&two, 5000);
        assert!(two.settle(until), "{every}");
        for at in [A, B] {
            let (placed, panics) = (two.counts(at).placed, two.process(at).panics);
            assert!(placed > 20 && panics > 5, "{every}: {placed} {panics}");
        }
        two.fabric.audit().unwrap();
    }
}

#[test]
fn a_slow_rail_that_carries_them_is_not_taken_for_dead() {
    let mut two = two_at(Some(10), &with_places(4), 1, "");
    lent(&mut two);
    send_and_settle(&mut two, A, 120_000);
    let counts = two.counts(A);
    assert_eq!((counts.placed, counts.sent_again, counts.rails_dead), (2, 0, 0));
    two.fabric.audit().unwrap();
}

/// The receiver has a fragment by its first rail and stands still, and a WRITE of the second one comes that was given up. Each message is
/// looked at.
#[test]
fn a_place_is_not_used_again_before_a_late_write_that_was_given_up() {
    let mut two = two_with(&with_places(2), 2, "");
    lent(&mut two);
    let late = "delay 100% write of a/sim1->b by 250ms";
    two.fabric.follow(&late.parse().unwrap());
    let delivered = two.process(B).delivered;
    two.process_mut(A).message_bytes = 40_000;
    two.process_mut(A).send().unwrap();
    let (until, comes) = (later(&two, 240), later(&two, 260));
    assert!(two.run(until, |two| two.process(B).delivered > delivered));
    // It has the fragment by the other rail, and has not heard that this one is fenced.
    two.process_mut(B).is_stopped = true;
    assert_eq!((two.counts(A).placed, two.counts(A).sent_again), (3, 1));
    let until = later(&two, 2);
    two.run(until, |_| false);
    two.process_mut(A).message_bytes = LONG + 1;
    for _ in 0..2 {
        let sent = two.process_mut(A).send();
        assert!(matches!(sent, Ok(()) | Err(PushRefusal::Full)), "{sent:?}");
    }
    two.run(comes, |_| false);
    assert!(two.counts(A).placed > 3);
    two.process_mut(B).is_stopped = false;
    let until = later(&two, 1000);
    assert!(two.settle(until));
    two.fabric.audit().unwrap();
}
