//! The mesh profile: members that share subnets with some others, what they say and do together, and who comes and goes.

use doorbell_sim::Random;

use crate::case::{Case, Device, Scene};
use crate::generate::quick::{one_of, ordinal, pick};
use crate::mesh::case::{
    CollectiveCase, CollectiveKind, CollectiveTrouble, MemberCase, MeshCase, MeshStep, Start, Strange,
};

const MS: u64 = 1_000_000;

/// How many meshes have two ways of one length behind a stem.
const DIAMONDS_PER_MILLION: u32 = 200_000;

/// Nothing of a plan begins later than this.
const TROUBLE_NS: u64 = 400 * MS;

/// A case of random members, subnets, steps and faults.
pub(crate) fn case(random: &mut Random) -> Case {
    let is_diamond = random.happens(DIAMONDS_PER_MILLION);
    let (members, subnets) = subnets(random, is_diamond);
    let is_troubled = random.happens(if is_diamond { 200_000 } else { 450_000 });
    // Behind a stem what counts is how soon messages go another way while the link still recovers.
    let recovers_ms: &[u64] = if is_diamond {
        &[3000, 10_000]
    } else {
        &[300, 1000, 3000, 10_000]
    };
    let recover_within_ns = one_of(random, recovers_ms) * MS;
    let fragment_bytes = one_of(random, &[256, 1000, 2048]);
    let mut mesh = MeshCase {
        members: (0..members).map(|_| member(random)).collect(),
        subnets,
        window: one_of(random, &[1, 2, 3, 4, 8, 16]),
        // Behind the header of a collective there is mostly no room for whole elements alone.
        message_bytes_max: one_of(random, &[200, 203, 1001, 4003]),
        fragment_bytes,
        hops_max: if random.happens(150_000) { 1 } else { 62 },
        recover_within_ns,
        start_ahead_max_ns: one_of(random, &[1000, 5000]) * MS,
        backoff_ns: one_of(random, &[50, 200, 1000]) * MS,
        per_address: 8,
        has_keys: random.happens(400_000),
        polls_every_ns: one_of(random, &[10_000, 50_000, 200_000]),
        steps: Vec::new(),
    };
    let ahead = mesh.start_ahead_max_ns;
    // So that nothing has to go again where nothing is wrong.
    let is_swift = random.happens(700_000);
    for member in &mut mesh.members {
        member.clock_ahead_ns = random.below(ahead * 3 / 4);
        if is_swift {
            member.resend_after_ns = member.resend_after_ns.max(200 * MS);
            (member.retained, member.ahead) = (member.retained.max(32), member.ahead.max(32));
        }
    }
    // Longer than a lost link takes to be noticed.
    if is_diamond && random.happens(800_000) {
        for member in &mut mesh.members {
            member.resend_after_ns = 500 * MS;
        }
    }
    mesh.steps = steps(random, &mesh, is_troubled);
    if is_diamond && !is_troubled {
        let cuts: Vec<_> = (0..2).filter_map(|_| cut(random, &mesh)).collect();
        mesh.steps.splice(0..0, cuts);
    }
    let plan = if is_troubled {
        plan(random, &mesh)
    } else {
        String::new()
    };
    Case {
        seed: random.draw(),
        device: one_of(random, &Device::ALL),
        latency_ns: 1000 + random.below(30_000),
        bandwidth_mbps: 10_000 << random.below(4),
        hosts: Vec::new(),
        lines: Vec::new(),
        operations: Vec::new(),
        plan,
        links: None,
        classes: None,
        panics_every: 0,
        endings: None,
        call_ns: 0,
        handler_ns: 0,
        scene: Some(Scene::Mesh(mesh)),
    }
}

/// How many members, and which of them are in each subnet.
fn subnets(random: &mut Random, is_diamond: bool) -> (usize, Vec<u8>) {
    let members = 3 + pick(random, 6).min(pick(random, 6));
    let pair = |one: usize, other: usize| 1 << one | 1 << other;
    if is_diamond {
        let members = members.max(6);
        let subnets = diamond(random, members);
        return (members, renamed(random, members, subnets));
    }
    let mut subnets: Vec<u8> = match random.below(7) {
        // A line, in any order of ranks.
        0 => (1..members).map(|at| pair(at - 1, at)).collect(),
        // A ring.
        1 => (0..members).map(|at| pair(at, (at + 1) % members)).collect(),
        // One between all others.
        2 => (1..members).map(|at| pair(0, at)).collect(),
        // All in one.
        3 => vec![((1_u16 << members) - 1) as u8],
        // Two halves, and one or two who are in both.
        4 => {
            let between = 1 + pick(random, 2);
            let half = (members / 2).max(between);
            let (low, all) = ((1_u16 << half) - 1, (1_u16 << members) - 1);
            vec![low as u8, (all & !(low >> between)) as u8]
        }
        // A tree, each below one of those before.
        5 => (1..members).map(|at| pair(pick(random, at), at)).collect(),
        // A ring with a cable across.
        _ => {
            let mut ring: Vec<u8> = (0..members).map(|at| pair(at, (at + 1) % members)).collect();
            ring.push(pair(0, members / 2));
            ring
        }
    };
    // Some pairs have a second rail.
    if random.happens(300_000) {
        let again = subnets[pick(random, subnets.len())];
        subnets.push(again);
    }
    (members, renamed(random, members, subnets))
}

/// A stem, behind it two or more ways of one length, and a stem where they meet again: members of both stems begin alike by each way, and
/// end alike. Each way of some meshes has two members.
fn diamond(random: &mut Random, members: usize) -> Vec<u8> {
    let pair = |one: usize, other: usize| 1 << one | 1 << other;
    let (mut first, mut last, mut middle) = (2, 2, 2);
    for _ in first + middle + last..members {
        let part = one_of(random, &[0, 1, 2, 2]);
        *[&mut first, &mut last, &mut middle][part] += 1;
    }
    let (fork, join) = (first - 1, first + middle);
    let mut subnets: Vec<u8> = (1..=fork).map(|at| pair(at - 1, at)).collect();
    subnets.extend((join + 1..join + last).map(|at| pair(at - 1, at)));
    if middle == 4 && random.happens(500_000) {
        for way in [first, first + 2] {
            subnets.extend([pair(fork, way), pair(way, way + 1), pair(way + 1, join)]);
        }
        return subnets;
    }
    for way in first..join {
        subnets.extend([pair(fork, way), pair(way, join)]);
    }
    subnets
}

/// Ranks are given out anew, so that members between others are of any rank.
fn renamed(random: &mut Random, members: usize, mut subnets: Vec<u8>) -> Vec<u8> {
    let mut order: Vec<usize> = (0..members).collect();
    for at in (1..members).rev() {
        order.swap(at, pick(random, at + 1));
    }
    for subnet in &mut subnets {
        let before = *subnet;
        let moved = (0..members).filter(|at| before >> at & 1 == 1);
        *subnet = moved.fold(0, |bits, at| bits | 1 << order[at]);
    }
    subnets
}

fn member(random: &mut Random) -> MemberCase {
    let resend_after_ns = one_of(random, &[100, 200, 500]) * MS;
    MemberCase {
        depth: one_of(random, &[8, 16, 32]),
        retained: one_of(random, &[16, 32, 64]),
        ahead: one_of(random, &[16, 32, 64]),
        resend_after_ns,
        acknowledge_after_ns: one_of(random, &[1, 5, 10, 20]) * MS,
        hold_down_ns: one_of(random, &[50, 500, 2000]) * MS,
        clock_ahead_ns: 0,
        is_seeking: random.happens(400_000),
        takes: one_of(random, &[1, 2, 100]),
    }
}

fn steps(random: &mut Random, mesh: &MeshCase, is_troubled: bool) -> Vec<MeshStep> {
    let mut steps = Vec::new();
    let may_restart = random.happens(500_000);
    let bytes_most = u64::from(mesh.message_bytes_max) - 16;
    let has_keys = mesh.has_keys;
    // Before anything else is in its way.
    if !is_troubled && random.happens(400_000) {
        steps.extend(cut(random, mesh));
    }
    for _ in 0..3 + pick(random, 10) {
        let any = |random: &mut Random| pick(random, mesh.ranks()) as u8;
        let most = one_of(random, &[60, 60, bytes_most]);
        let bytes = 16 + random.below(most) as u16;
        let (from, to) = (any(random), any(random));
        let step = match random.below(100) {
            0..10 => MeshStep::Pass {
                ns: span(random, &[1, 30, 300]),
            },
            10..30 if from != to => MeshStep::Send {
                from,
                to,
                count: 1 + random.below(60) as u16,
                bytes,
            },
            30..45 => MeshStep::Everyone {
                count: 1 + random.below(12) as u16,
                bytes,
            },
            45..52 => MeshStep::Stop {
                member: from,
                ns: span(random, &[10, 300, 1500]),
            },
            52..57 => MeshStep::Hold {
                member: from,
                ns: span(random, &[10, 300]),
            },
            57..60 if may_restart => MeshStep::Crash {
                member: from,
                is_awaited: random.happens(600_000),
            },
            60..67 if may_restart => MeshStep::Restart {
                member: from,
                start: match random.below(5) {
                    0 => Start::Before,
                    1 => Start::Ahead,
                    _ => Start::Now,
                },
            },
            67..82 => MeshStep::Collective(collective(random, mesh, may_restart && !is_troubled)),
            82..90 if !is_troubled => match cut(random, mesh) {
                Some(cut) => cut,
                None => continue,
            },
            90..94 => MeshStep::Stranger {
                target: from,
                what: match random.below(if has_keys { 6 } else { 2 }) {
                    0 if random.happens(500_000) => Strange::OtherMesh,
                    0 => Strange::OtherCount,
                    1 => Strange::Taken { rank: to },
                    2 | 3 => Strange::WrongKey,
                    4 => Strange::UnknownKey,
                    _ => Strange::NoKey,
                },
            },
            94..96 => MeshStep::Flood {
                target: from,
                streams: 1 + random.below(3 * u64::from(mesh.per_address)) as u8,
            },
            96..99 => MeshStep::Flow { to, ns: 100 * MS },
            _ => continue,
        };
        steps.push(step);
    }
    steps
}

/// A cable between two members of a subnet, where it has two, is cut for a while.
fn cut(random: &mut Random, mesh: &MeshCase) -> Option<MeshStep> {
    let subnet = one_of(random, &mesh.subnets);
    let mut inside: Vec<u8> = (0..8).filter(|at| subnet >> at & 1 == 1).collect();
    let one = inside.swap_remove(pick(random, inside.len()));
    if inside.is_empty() {
        return None;
    }
    Some(MeshStep::Cut {
        one,
        other: one_of(random, &inside),
        ns: 210 * MS + span(random, &[200]),
        is_again: random.happens(400_000),
    })
}

/// A span of up to one of these milliseconds.
fn span(random: &mut Random, most_ms: &[u64]) -> u64 {
    let most_ms = one_of(random, most_ms);
    random.below(most_ms * MS)
}

fn collective(random: &mut Random, mesh: &MeshCase, may_restart: bool) -> CollectiveCase {
    let any = |random: &mut Random| pick(random, mesh.ranks()) as u8;
    let what = match random.below(6) {
        0 => CollectiveKind::Barrier,
        1 => CollectiveKind::Broadcast { root: any(random) },
        2 => CollectiveKind::AllGather,
        3 => CollectiveKind::ReduceScatter,
        4 => CollectiveKind::AllReduce,
        _ => CollectiveKind::AllToAll,
    };
    let after_ns = span(random, &[1, 20]);
    let member = any(random);
    let elements_most = one_of(random, &[2, 10, 400, 3000]);
    let trouble = match random.below(10) {
        0 | 1 if may_restart => CollectiveTrouble::Restart { member, after_ns },
        2 => CollectiveTrouble::Alone { member, after_ns },
        3 if what != CollectiveKind::Barrier => CollectiveTrouble::Longer { member },
        _ => CollectiveTrouble::None,
    };
    CollectiveCase {
        what,
        elements: random.below(elements_most) as u32,
        element_bytes: one_of(random, &[1, 2, 3, 4, 8, 12]),
        late: any(random),
        lag_ns: span(random, &[1, 30]),
        trouble,
    }
}

/// A plan of faults of cables, ports and packets.
fn plan(random: &mut Random, mesh: &MeshCase) -> String {
    let mut clauses = Vec::new();
    let lasts_most = one_of(random, &[30, 200, 600, 2500]) * MS;
    for _ in 0..1 + random.below(4) {
        let subnet = pick(random, mesh.subnets.len());
        let inside: Vec<usize> = (0..mesh.ranks())
            .filter(|at| mesh.subnets[subnet] >> at & 1 == 1)
            .collect();
        let (one, other) = (one_of(random, &inside), one_of(random, &inside));
        let (at, lasts) = (random.below(TROUBLE_NS), 1 + random.below(lasts_most));
        let action = match random.below(8) {
            0..5 if one != other => format!("link h{one}/sim{subnet}-h{other}/sim{subnet} down"),
            5 | 6 => format!("port h{one}/sim{subnet}:1 down"),
            _ => format!("pause h{one}"),
        };
        // A loose contact.
        let flaps = one_of(random, &[1, 1, 1, 4]);
        for flap in 0..flaps {
            let at = at + flap * (lasts + 100 * MS);
            clauses.push(format!("at {at}ns {action} for {lasts}ns"));
        }
    }
    if random.happens(400_000) {
        let effect = one_of(random, &["drop", "duplicate", "reorder", "corrupt"]);
        let nth = ordinal(40 + random.below(200));
        clauses.push(format!("{effect} every {nth} packet of any->any"));
    }
    clauses.join("; ")
}
