//! Operations of two hosts, one after the other, on a fabric with or without faults. Bytes choose them, a
//! plain model says which outcomes are right, and the fabric's own oracles must hold all the while.

#[path = "../../../../core/tests/wire/oracle/choices.rs"]
mod choices;
mod model;
mod side;

use core::time::Duration;

use doorbell_core::provider::{Completion as _, PostFlags, QueuePair as _, Window as _};
use doorbell_core::{Psn, QpState};
use doorbell_sim::{Fabric, Plan};

use choices::Choices;
use model::{Deed, Direction, WINDOW_BYTES, Weather, Wish};
use side::{INLINE_BYTES_MAX, PARTS, Side};

const STEPS_MAX: usize = 400;
const NAMES: [&str; 2] = ["a", "b"];

/// Clauses of plans; no queue pair fails by the first [`MILD`] of them.
const CLAUSES: [&str; 20] = [
    "drop 1st packet of a->b",
    "drop 3rd packet of b->a",
    "drop 1st ack of b->a",
    "drop 2nd response of any->any",
    "drop 1st result of any->any",
    "duplicate every 2nd packet of any->any",
    "duplicate every 2nd read of any->any",
    "delay 2nd packet of a->b by 300us",
    "delay every 3rd write of any->any by 9us",
    "fail 2nd post of a with 12",
    "fail every 5th post of b with 11",
    "at 20us pause b for 50us",
    "at 5us slow b by 2us for 1ms",
    "at 10us link a-b down for 300us",
    "reorder every 3rd packet of any->any",
    "drop every 4th packet of any->any",
    "drop every 3rd ack of any->any",
    "corrupt every 5th packet of any->any",
    "at 30us kill b for 1ms",
    "at 1us port a down for 20ms",
];
const MILD: usize = 14;

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Messages that arrived.
    pub(crate) arrived: usize,
    /// Queue pairs that failed.
    pub(crate) failed: usize,
    /// Packets that were lost or could not be read.
    pub(crate) lost: u64,
}

struct World {
    fabric: Fabric,
    sides: [Side; 2],
    /// By the side that asks.
    directions: [Direction; 2],
    /// Only posted requests can fail a queue pair.
    is_calm: bool,
    /// No packet is anything but on its way.
    is_exact: bool,
    /// Nothing was dropped.
    is_whole: bool,
}

/// Panics where what the bytes choose breaks a promise.
pub(crate) fn check(bytes: &[u8]) -> Ended {
    let mut choices = Choices::new(bytes);
    let how = choices.byte();
    let faults: Vec<_> = (0..how & 3).map(|_| choices.below(CLAUSES.len())).collect();
    let clauses: Vec<_> = faults.iter().map(|fault| CLAUSES[*fault]).collect();
    let plan: Plan = clauses.join("; ").parse().unwrap();
    let is_patient = how & 4 == 0;
    // The ends of the packets' numbers, and what lies next to them.
    let psns = [(); 2].map(|()| Psn::from_low_bits(u32::from(choices.byte()).wrapping_sub(8)));
    let fabric = Fabric::builder().seed(how.into()).plan(plan).driven().build();
    let mut sides = [1, 2].map(|number| Side::new(&fabric, NAMES[usize::from(number) - 1], number));
    let names = [sides[0].name(), sides[1].name()];
    let rnr_retry = if is_patient { 7 } else { 2 };
    sides[0].connect(names[1], 2, psns, rnr_retry);
    sides[1].connect(names[0], 1, [psns[1], psns[0]], rnr_retry);
    let mut world = World {
        fabric,
        sides,
        directions: [Direction::new(), Direction::new()],
        is_calm: is_patient && faults.iter().all(|fault| *fault < MILD),
        is_exact: faults.is_empty(),
        is_whole: true,
    };
    for _ in 0..STEPS_MAX {
        if choices.is_over() {
            break;
        }
        world.step(&mut choices);
    }
    world.finish()
}

fn wish(choices: &mut Choices<'_>) -> (Wish, PostFlags) {
    let (what, how) = (choices.byte(), choices.byte());
    let at = choices.below(WINDOW_BYTES / 8) * 8;
    // Up to two packets, and nearly two slots.
    let (mut bytes, fill) = (usize::from(choices.byte()) * 5 / 4, choices.byte());
    let deed = match what % 8 {
        0..=2 => Deed::Send,
        3 | 4 => Deed::Write { at },
        5 => Deed::Read { at },
        6 => Deed::Add { at, add: fill.into() },
        _ => Deed::Swap {
            at,
            compare: u64::from(how >> 4),
            swap: u64::from(fill % 16),
        },
    };
    match deed {
        Deed::Send => {}
        Deed::Write { .. } | Deed::Read { .. } => bytes = bytes.min(WINDOW_BYTES - at),
        Deed::Add { .. } | Deed::Swap { .. } => bytes = 8,
    }
    let brings_back = matches!(deed, Deed::Read { .. } | Deed::Add { .. } | Deed::Swap { .. });
    let mut flags = PostFlags::empty();
    flags.set(PostFlags::SIGNALED, how & 1 == 0);
    flags.set(PostFlags::FENCE, how & 2 != 0);
    flags.set(PostFlags::SOLICITED, how & 4 != 0);
    flags.set(
        PostFlags::INLINE,
        what & 0x10 != 0 && !brings_back && bytes <= INLINE_BYTES_MAX,
    );
    let wish = Wish {
        deed,
        bytes: (0..bytes)
            .map(|place| fill.wrapping_add(place.to_le_bytes()[0]))
            .collect(),
        immediate: (what & 8 != 0 && !brings_back).then_some(u32::from(fill) << 24 | 7),
        is_signaled: flags.contains(PostFlags::SIGNALED),
        // Nothing at all is refused nowhere.
        is_forbidden: what >= 0xf0 && deed != Deed::Send && bytes > 0,
    };
    (wish, flags)
}

impl World {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let what = choices.byte();
        let us = usize::from(what >> 7);
        match what & 0x1f {
            0..=7 => {
                let wishes: Vec<_> = (0..=(what >> 5 & 3)).map(|_| wish(choices)).collect();
                self.sides[us].post(&wishes, 2, &mut self.directions[us]);
            }
            // Staged, and never rung.
            8 => {
                let wishes = [wish(choices)];
                self.sides[us].post(&wishes, what >> 5 & 1, &mut self.directions[us]);
            }
            9..=13 => self.sides[us].post_receive(what & 0x20 != 0, &mut self.directions[1 - us]),
            14..=16 => self.poll_sends(us, 0),
            17 | 18 => self.sides[us].take_arrivals(&mut self.directions[1 - us]),
            // A completion is shown to the peer, or nobody.
            19 => self.poll_sends(us, 1 + (what >> 5 & 1)),
            20..=23 => {
                let span = u64::from(choices.byte()) << (what >> 4 & 6);
                self.fabric.run_for(Duration::from_nanos(span * 16));
            }
            24 | 25 => {
                let _ = self.fabric.step();
            }
            26 => self.sides[us].detach(&[choices.byte(); 5]),
            27 => {
                let place = choices.below(8);
                self.sides[us].attach(place, 1 << (choices.byte() & 31));
            }
            28 => self.look(us),
            29 if what & 0x60 == 0x60 => {
                self.is_calm = false;
                if let Some(control) = &mut self.sides[us].control {
                    control.fail().unwrap();
                }
            }
            30 if what & 0x60 == 0x60 => self.drop_part(us, choices.below(PARTS)),
            _ => {}
        }
        self.fabric.audit().unwrap();
    }

    fn weather(&self, us: usize) -> Weather {
        Weather {
            is_calm: self.is_calm,
            is_exact: self.is_exact,
            is_other_good: self.directions[1 - us].is_good(),
        }
    }

    /// Redeems what completed; the first of them not (2), or at the wrong queue (1).
    fn poll_sends(&mut self, us: usize, mut amiss: u8) {
        for completion in self.sides[us].poll_sends() {
            let weather = self.weather(us);
            if amiss > 0 && completion.status().is_success() && self.sides[us].hears_of_sends() {
                self.directions[us].forget();
                if amiss == 1 {
                    self.sides[1 - us].mistake(completion);
                }
                amiss = 0;
            } else {
                self.sides[us].retire(completion, &mut self.directions[us], weather);
            }
        }
    }

    fn look(&mut self, us: usize) {
        let Some(window) = &self.sides[us].window else {
            return;
        };
        let mut memory = [0; WINDOW_BYTES];
        window.copy_out(0, &mut memory).unwrap();
        self.directions[1 - us].look(&memory);
    }

    fn drop_part(&mut self, us: usize, part: usize) {
        (self.is_calm, self.is_whole) = (false, false);
        self.sides[us].drop_part(part);
    }

    /// Trouble ends, everybody receives, and everything that was posted ends.
    fn finish(mut self) -> Ended {
        // With all of it out there would be no memory to receive into.
        self.sides.iter_mut().for_each(Side::attach_all);
        self.fabric.run_for(Duration::from_millis(25));
        for _ in 0..60 {
            for us in 0..2 {
                if self.directions[1 - us].lacks_receives() {
                    self.sides[us].post_receive(true, &mut self.directions[1 - us]);
                }
                self.poll_sends(us, 0);
                self.sides[us].take_arrivals(&mut self.directions[1 - us]);
                self.look(us);
            }
            self.fabric.run_for(Duration::from_millis(1));
        }
        let mut ended = Ended::default();
        for us in 0..2 {
            let direction = &self.directions[us];
            let state = self.sides[us]
                .control
                .as_ref()
                .map(|control| control.state().unwrap());
            let is_dead = direction.has_failed || state == Some(QpState::Error);
            ended.failed += usize::from(is_dead);
            ended.arrived += direction.arrived();
            assert!(
                !direction.is_waiting() || !self.is_whole || !self.sides[us].hears_of_sends(),
                "{direction:?} goes on for ever, its queue pair in {state:?}"
            );
            if self.is_whole && self.sides[1 - us].hears_of_receives() {
                assert!(
                    direction.arrived() >= direction.delivered(),
                    "a message is lost: {direction:?}"
                );
            }
        }
        for side in &mut self.sides {
            side.end();
        }
        let tally = self.fabric.audit().unwrap();
        assert_eq!(
            tally.requests.posted,
            tally.requests.retired + tally.requests.destroyed,
            "requests"
        );
        ended.lost = tally.packets.lost + tally.packets.corrupt;
        ended
    }
}
