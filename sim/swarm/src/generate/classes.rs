//! Classes of service, beside all else that a case of links has.
//!
//! They are drawn from numbers of their own, so that the rest of a case does not depend on them.

use doorbell_sim::Random;

use crate::case::{Case, Operation, What};
use crate::classes::case::{ClassCase, ClassesCase};
use crate::generate::quick::{one_of, pick};
use crate::transfers::case::{AnswerCase, BeginCase, TransfersCase};

/// In how many cases there are any.
const CLASSED_PER_MILLION: u32 = 500_000;

/// In how many cases of channels there are any.
const CHANNELS_PER_MILLION: u32 = 300_000;

/// In how many of those a higher class and a lower one have long transfers at once, and nothing goes wrong.
const CONTESTS_PER_MILLION: u32 = 400_000;

/// Makes the seed of these numbers of the case's.
const OWN_NUMBERS: u64 = 0x636c_6173_7365_7321;

/// Adds them to a case of channels.
pub(crate) fn add_to_channels(case: &mut Case) {
    let random = &mut Random::new(case.seed ^ OWN_NUMBERS);
    if random.happens(CHANNELS_PER_MILLION) {
        case.classes = Some(classes(random, case.lines.len(), &[20_000_000, 200_000_000]));
    }
}

fn classes(random: &mut Random, lines: usize, rates: &[u64]) -> ClassesCase {
    let table = (0..2 + pick(random, 3))
        .map(|_| class(random, rates))
        .collect::<Vec<_>>();
    ClassesCase {
        bytes_ahead_max: one_of(random, &[4096, 20_000, 131_072]),
        without: match random.below(8) {
            0 => random.below(16) as u8,
            _ => 0,
        },
        is_contest: false,
        lines: (0..lines).map(|_| pick(random, table.len()) as u8).collect(),
        table,
    }
}

/// Adds them.
pub(crate) fn add(case: &mut Case) {
    let random = &mut Random::new(case.seed ^ OWN_NUMBERS);
    let is_weighed = case.links.is_some_and(|links| links.is_weighed);
    // Rails are weighed by what may be under way on each.
    if is_weighed || !random.happens(CLASSED_PER_MILLION) {
        return;
    }
    let rates = [3_000_000, 20_000_000, 200_000_000];
    case.classes = Some(classes(random, case.lines.len(), &rates));
    if random.happens(CONTESTS_PER_MILLION) {
        contest(case, random);
    }
}

fn class(random: &mut Random, rates: &[u64]) -> ClassCase {
    ClassCase {
        priority: one_of(random, &[0, 0, 1, 7]),
        weight: one_of(random, &[0, 1, 1, 3, 50]),
        rate: match random.below(3) {
            0 => one_of(random, rates),
            _ => 0,
        },
        burst: one_of(random, &[0, 0, 1, 10_000, 1_000_000]),
    }
}

/// Two links between the same hosts: a long transfer in the lower class, and then one in the higher, or in one of equal priority.
fn contest(case: &mut Case, random: &mut Random) {
    case.plan = String::new();
    case.panics_every = 0;
    let troubles = |what: &What| {
        matches!(
            what,
            What::Stop { .. }
                | What::StopOnceHeard { .. }
                | What::Close { .. }
                | What::Replace
                | What::Cancel { .. }
        )
    };
    case.operations.retain(|operation| !troubles(&operation.what));
    let first = case.lines[0].clone();
    if case.lines.len() < 2 {
        case.lines.push(first.clone());
        case.operations.insert(
            1,
            Operation {
                line: 1,
                end: 0,
                what: What::Connect,
            },
        );
    }
    case.lines[1] = first;
    for line in &mut case.lines {
        (line.send_depth, line.receive_depths, line.repost_batch) = (64, [64; 2], 1);
    }
    for host in &mut case.hosts {
        host.links = None;
        host.transfers = Some(TransfersCase {
            piece_bytes: 4096,
            pieces_ahead: 4,
            transfers_max: 16,
            progress_every: 100_000_000,
            drain_within: 500_000_000,
        });
    }
    if let Some(classes) = &mut case.classes {
        for (number, priority) in [(0, 0), (1, 5)] {
            classes.table[number].priority = priority;
            classes.table[number].rate = 0;
        }
        classes.is_contest = true;
        (classes.lines, classes.without) = (vec![0; case.lines.len()], 0);
        classes.lines[1] = 1;
        classes.bytes_ahead_max = one_of(random, &[4096, 20_000]);
        if random.below(2) == 0 {
            classes.table[1].priority = 0;
            classes.table[1].weight = one_of(random, &[1, 3, 50]);
            classes.bytes_ahead_max = 4096;
        }
    }
    let mut at = case.operations.len();
    for (line, bytes, ns) in [(0, 900_000, 30_000_000), (1, 500_000, 3_000_000)] {
        let begin = BeginCase {
            within_ns: [0; 2],
            gives: true,
            bytes,
            offset: 0,
            priority: 0,
            answer: AnswerCase::Joins { after_ns: 0 },
        };
        for what in [What::Pass { ns }, What::Begin(begin)] {
            case.operations.insert(at, Operation { line, end: 0, what });
            at += 1;
        }
    }
}
