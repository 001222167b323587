//! The long profile: links under outages of seconds to three minutes. Back-off reaches its longest wait, and recovery its deadline.

use doorbell_sim::Random;

use crate::case::{Case, Operation, What};
use crate::generate::links::{self, Shape, own_links};
use crate::generate::quick::{one_of, pick};

/// Nothing of a plan begins later than one of these, nor lasts longer.
const TROUBLES_NS: [u64; 5] = [
    2_000_000_000,
    8_000_000_000,
    20_000_000_000,
    60_000_000_000,
    MINUTES_NS,
];
const MINUTES_NS: u64 = 180_000_000_000;

/// The part that is left to chance.
pub(crate) fn case(random: &mut Random) -> Case {
    let trouble_ns = one_of(random, &TROUBLES_NS);
    let shape = Shape {
        trouble_ns,
        striking_per_million: 250_000,
        refusing_per_million: 0,
        short_per_million: 500_000,
        returning_per_million: 400_000,
        odd_per_million: 600_000,
        has_times: true,
        late_per_million: 0,
        is_weighed: true,
    };
    let mut case = links::case(random, &shape);
    if trouble_ns == MINUTES_NS {
        patient(&mut case, random);
    }
    // So that what is done finds some of the outages.
    for _ in 0..1 + pick(random, 4) {
        let operation = Operation {
            line: 0,
            end: 0,
            what: What::Pass {
                ns: random.below(trouble_ns / 2),
            },
        };
        case.operations
            .insert(pick(random, case.operations.len()), operation);
    }
    case
}

/// Has links outlive outages of minutes, or end in the midst of them. Heartbeats and attempts are few, as there is so much time.
fn patient(case: &mut Case, random: &mut Random) {
    for host in &mut case.hosts {
        let own = host.links.get_or_insert(own_links(random, true));
        own.times.heartbeat_idle = 1_000_000_000;
        own.times.reconnect_longest = one_of(random, &[1_000_000_000, 10_000_000_000]);
        own.times.recover_within = one_of(random, &[60_000_000_000, 400_000_000_000]);
    }
}
