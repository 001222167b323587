//! Links under random plans of faults, a seed each: under any faults each message comes once and in order, and as
//! faults stop, all of them.

use core::time::Duration;

use doorbell::link::SessionEvent;

use crate::processes::{A, B, Two, ms};

/// As many seeds as are quick; `DOORBELL_SEEDS=FROM..TO` has it try others.
pub(crate) fn seeds() -> core::ops::Range<u64> {
    let asked = std::env::var("DOORBELL_SEEDS").ok();
    asked.map_or(0..6, |asked| {
        let (from, to) = asked.split_once("..").unwrap();
        from.parse().unwrap()..to.parse().unwrap()
    })
}

/// Small, and good enough: each number follows from the one before.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Maps a rail to its port: device and number.
type Port = fn(u64) -> String;

/// Faults from this moment on.
pub(crate) fn plan(chance: &mut Chance, rails: u64, port: Port, from_us: u64) -> String {
    let mut clauses = vec![format!("seed {}", chance.below(1 << 30))];
    for _ in 0..chance.below(6) {
        let (rail, at, long) = (chance.below(rails), chance.below(500), chance.below(400));
        let at = format!("at {}us", from_us + 1000 * at + chance.below(1000));
        clauses.push(match chance.below(5) {
            0 | 1 => {
                let port = port(rail);
                format!("{at} link a/{port}-b/{port} down for {}ms", 1 + long)
            }
            2 => format!("{at} link a-b down for {}ms", 1 + long),
            3 => format!(
                "{at} pause {} for {}ms",
                ["a", "b"][chance.below(2) as usize],
                1 + long / 2
            ),
            _ => format!("{at} port b/{} down for {}ms", port(rail), 1 + long),
        });
    }
    for _ in 0..chance.below(3) {
        let (from, to) = [("a", "b"), ("b", "a")][chance.below(2) as usize];
        let effect = ["drop", "duplicate", "reorder"][chance.below(3) as usize];
        clauses.push(format!(
            "{effect} {}% packet of {from}->{to}",
            1 + chance.below(3)
        ));
    }
    clauses.join("; ")
}

#[test]
fn each_message_comes_once_and_in_order_under_random_plans() {
    for seed in seeds() {
        let mut chance = Chance(seed);
        let rails = 1 + chance.below(3);
        let plan = plan(&mut chance, rails, |rail| format!("sim{rail}:1"), 5_000);
        let mut two = Two::new(rails as usize, &plan);
        for at in [A, B] {
            two.process_mut(at).message_bytes = [16, 1000, 9000, 30_000][chance.below(4) as usize];
        }
        two.sends_every = [Some(ms(2)), Some(ms(2))];
        // A process that stands still, too, with a device that does not.
        let (stopped, at, long) = (
            chance.below(2) as usize,
            10 + chance.below(500),
            chance.below(600),
        );
        two.run(ms(at), |_| false);
        two.process_mut(stopped).is_stopped = true;
        two.run(ms(at + long), |_| false);
        two.process_mut(stopped).is_stopped = false;
        two.run(ms(1200), |_| false);
        let is_settled = two.settle(Duration::from_secs(15));
        let shown = |at: usize| {
            let process = two.process(at);
            let last: Vec<_> = process.events.iter().rev().take(4).collect();
            format!("{} {} {} {last:?}", process.sent, process.done, process.delivered)
        };
        assert!(is_settled, "seed {seed}: {plan}\n{}\n{}", shown(A), shown(B));
        for at in [A, B] {
            let process = two.process(at);
            assert!(
                process.sent > 100 && process.unknown == 0 && process.over.is_none(),
                "seed {seed}"
            );
            assert!(process.saw(SessionEvent::Connected).is_some());
        }
        two.fabric
            .audit()
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}
