//! Transfers, beside all else that a case of links has.
//!
//! They are drawn from numbers of their own, so that the rest of a case does not depend on them.

use doorbell_sim::Random;

use crate::case::{Case, Operation, What};
use crate::generate::links::port;
use crate::generate::quick::{any_host, one_of, pick};
use crate::transfers::case::{AnswerCase, BeginCase, TransfersCase};

/// In how many cases there are any.
const MOVING_PER_MILLION: u32 = 700_000;

/// In how many of those there are only small ones, of a piece or few.
const SMALL_PER_MILLION: u32 = 600_000;

/// How many hosts have transfers otherwise than by default.
const OWN_PER_MILLION: u32 = 700_000;

/// In how many of those windows of 512 pieces fill.
const WIDE_PER_MILLION: u32 = 100_000;

/// In how many of those that are not small cables are so slow that a transfer takes some milliseconds.
const SLOW_PER_MILLION: u32 = 500_000;

/// In how many of those that have faults some strike as a transfer begins.
const AIMED_PER_MILLION: u32 = 700_000;

/// Bytes of a transfer that is wider than a window of the smallest pieces.
const WIDE_BYTES: u64 = 513 * 4096;

/// Makes the seed of these numbers of the case's.
const OWN_NUMBERS: u64 = 0x7472_616e_7366_6572;

/// Adds them.
pub(crate) fn add(case: &mut Case) {
    let random = &mut Random::new(case.seed ^ OWN_NUMBERS);
    if !random.happens(MOVING_PER_MILLION) {
        return;
    }
    let is_small = random.happens(SMALL_PER_MILLION);
    let is_wide = random.happens(WIDE_PER_MILLION);
    for host in &mut case.hosts {
        host.transfers = random.happens(OWN_PER_MILLION).then(|| own(random));
        if is_wide {
            host.transfers = Some(TransfersCase {
                piece_bytes: 4096,
                ..own(random)
            });
        }
    }
    let may_cancel = random.happens(500_000);
    let has_limits = random.happens(300_000);
    let lines = case.lines.len();
    let mut at = lines;
    for _ in 0..1 + pick(random, if is_wide { 3 } else { 6 }) {
        let line = pick(random, lines);
        at = at.max(lines) + pick(random, 1 + case.operations.len().saturating_sub(at) / 3);
        // Several at once, of the same end or of both.
        for _ in 0..one_of(random, &[1, 1, 2, 4]) {
            let most = match is_small {
                true => one_of(random, &[16, 5_000, 40_000]),
                false => one_of(random, &[100, 20_000, 300_000, 900_000]),
            };
            let bytes = match is_wide && random.happens(500_000) {
                true => WIDE_BYTES + random.below(1 << 20),
                false => 1 + random.below(most),
            };
            let operation = Operation {
                line,
                end: pick(random, 2),
                what: What::Begin(begin(random, bytes, has_limits)),
            };
            case.operations.insert(at.min(case.operations.len()), operation);
        }
    }
    if !is_small && random.happens(SLOW_PER_MILLION) {
        case.bandwidth_mbps = one_of(random, &[1000, 2000, 4000]);
    }
    if !case.plan.is_empty() && random.happens(AIMED_PER_MILLION) {
        aim(case, random);
    }
    if may_cancel {
        for _ in 0..1 + pick(random, 4) {
            let operation = Operation {
                line: pick(random, lines),
                end: pick(random, 2),
                what: What::Cancel {
                    which: random.below(4) as u8,
                },
            };
            let at = lines + pick(random, case.operations.len() - lines);
            case.operations.insert(at, operation);
        }
    }
}

/// Faults that strike soon after a transfer begins: a rail is cut, or a host stands still.
fn aim(case: &mut Case, random: &mut Random) {
    let mut now_ns = 0;
    let mut begun_ns = Vec::new();
    for operation in &case.operations {
        match operation.what {
            What::Pass { ns } => now_ns += ns,
            What::Begin(_) => begun_ns.push(now_ns),
            _ => {}
        }
    }
    let is_one_device = case.links.is_some_and(|links| links.is_one_device);
    for _ in 0..1 + pick(random, 2) {
        let most_ns = one_of(random, &[300_000, 3_000_000]);
        let at = one_of(random, &begun_ns) + random.below(most_ns);
        let longest_ns = one_of(random, &[10_000_000, 400_000_000]);
        let lasts = 1 + random.below(longest_ns);
        let port = port(pick(random, 2), is_one_device);
        let action = match random.below(6) {
            0 => format!("pause {}", any_host(random, case.hosts.len())),
            _ => format!("link any/{port}-any/{port} down"),
        };
        case.plan = format!("{}; at {at}ns {action} for {lasts}ns", case.plan);
    }
}

fn begin(random: &mut Random, bytes: u64, has_limits: bool) -> BeginCase {
    let after_ns = one_of(random, &[0, 0, 0, 100_000, 5_000_000, 60_000_000]);
    let mut within_ns = || match has_limits && random.happens(400_000) {
        true => one_of(random, &[1, 300_000, 5_000_000, 50_000_000, 400_000_000]),
        false => 0,
    };
    BeginCase {
        within_ns: [within_ns(), within_ns()],
        gives: random.happens(500_000),
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        offset: one_of(random, &[0, 1, 64, 1000]),
        priority: one_of(random, &[0, 0, 0, 1, 7]),
        answer: match random.below(20) {
            0 => AnswerCase::Never,
            1 => AnswerCase::Declines { after_ns },
            _ => AnswerCase::Joins { after_ns },
        },
    }
}

fn own(random: &mut Random) -> TransfersCase {
    TransfersCase {
        piece_bytes: one_of(random, &[4096, 4096, 8192, 65_536, 1 << 18]),
        pieces_ahead: one_of(random, &[1, 2, 4, 9]),
        transfers_max: one_of(random, &[1, 2, 3, 16]),
        progress_every: one_of(random, &[0, 100_000, 100_000_000]),
        drain_within: one_of(random, &[1_000_000, 50_000_000, 500_000_000]),
    }
}
