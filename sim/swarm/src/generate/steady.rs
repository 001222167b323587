//! The steady profile: hundreds of milliseconds of load from both ends of channels and links, so that much is under way for longer
//! than heartbeats, acknowledgements that are put off, and retries take.

use doorbell_sim::Random;

use crate::case::{Case, EndCase, Operation, What};
use crate::generate::links::{self, Shape};
use crate::generate::quick::{self, one_of, pick};

/// How many cases are of links.
const LINKED_PER_MILLION: u32 = 500_000;

/// In how many cases nothing goes wrong.
const UNTROUBLED_PER_MILLION: u32 = 300_000;

/// In how many cases calls take time, and the application with what it is told.
const SLOW_PER_MILLION: u32 = 500_000;

/// In how many of links packets take longer than from one poll to the next.
const FAR_PER_MILLION: u32 = 400_000;

const LINKS: Shape = Shape {
    trouble_ns: 400_000_000,
    striking_per_million: 300_000,
    refusing_per_million: 0,
    short_per_million: 300_000,
    returning_per_million: 0,
    odd_per_million: 600_000,
    has_times: true,
    late_per_million: 0,
    is_weighed: true,
};

/// Draws a case of this profile.
pub(crate) fn case(random: &mut Random) -> Case {
    let is_linked = random.happens(LINKED_PER_MILLION);
    let mut case = match is_linked {
        true => links::case(random, &LINKS),
        false => quick::channels(random),
    };
    if random.happens(UNTROUBLED_PER_MILLION) {
        case.plan = String::new();
    }
    if random.happens(SLOW_PER_MILLION) {
        case.call_ns = one_of(random, &[50, 300, 2_000]);
        case.handler_ns = one_of(random, &[0, 500, 10_000]);
    }
    // So far away that something is always under way.
    let is_far = is_linked && random.happens(FAR_PER_MILLION);
    if is_far {
        case.latency_ns = 200_000 + random.below(800_000);
    }
    let lines = case.lines.len();
    for line in 0..if is_linked { lines } else { 2 } {
        let what = match is_linked {
            true if is_far => load(random, [100_000, 200_000, 400_000], 1_500),
            true => load(random, [200_000, 1_000_000, 5_000_000], 300),
            // All lines have it, one after the other.
            false => load(random, [20_000, 100_000, 500_000], 200),
        };
        let at = pick(random, case.operations.len().div_ceil(2));
        let operation = Operation {
            line: line % lines,
            end: 0,
            what,
        };
        case.operations.insert(lines + at, operation);
    }
    if is_linked {
        let (line, end) = (0, 0);
        let what = What::Pass {
            ns: 100_000_000 + random.below(200_000_000),
        };
        case.operations.push(Operation { line, end, what });
    }
    case
}

/// A load that is sent so many times at most.
fn load(random: &mut Random, every_ns: [u64; 3], times: u64) -> What {
    let every_ns = one_of(random, &every_ns);
    let bytes_most = one_of(random, &[64, 1000, 6000]);
    What::Load {
        ns: every_ns * (times / 3 + random.below(times)),
        every_ns,
        bytes: 24 + random.below(bytes_most) as u16,
    }
}

/// How an end is made that is not as the other.
pub(crate) fn own_end(random: &mut Random, has_rings: bool) -> EndCase {
    EndCase {
        send_depth: one_of(random, &[2, 4, 8, 16, 32]),
        repost_batch: one_of(random, &[1, 2, 4, 16]),
        unsignaled_max: one_of(random, &[0, 0, 1, 3]),
        // An invitation into a ring goes inline.
        inline_bytes_max: one_of(random, if has_rings { &[64, 220] } else { &[0, 64, 220] }),
        inline_alone_bytes_max: one_of(random, &[0, 64]),
        rd_atomic_max: one_of(random, &[1, 2, 4, 16]),
        timeout: 12 + random.below(3) as u8,
        retry_count: 3 + random.below(4) as u8,
    }
}
