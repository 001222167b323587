//! The quick profile: few messages at a time, and faults of milliseconds.

use doorbell_sim::Random;

use crate::case::{Case, Device, EndingsCase, HostCase, LineCase, Operation, Order, RingCase, What};
use crate::generate::classes;
use crate::generate::links::{self, Shape};
use crate::generate::steady::own_end;
use crate::station::{MOVED, address};

/// How many cases are of links.
const LINKED_PER_MILLION: u32 = 110_000;

/// In how many cases the callback of the application panics.
const PANICKING_PER_MILLION: u32 = 250_000;

/// In how many cases an end closes its channel only once it is reported that the peer is gone.
const REPORTED_PER_MILLION: u32 = 500_000;

/// In how many of those all cables are cut in the end, and in how many probes have a timeout.
const CUT_PER_MILLION: u32 = 120_000;
const IMPATIENT_PER_MILLION: u32 = 500_000;

/// In how many of those Workers are dropped.
const DROPPING_PER_MILLION: u32 = 400_000;

/// How many lines have an end that is made otherwise than the other.
const ODD_PER_MILLION: u32 = 300_000;

/// Nothing of a plan begins later than this, nor lasts longer.
const TROUBLE_NS: u64 = 20_000_000;

/// The part that is left to chance.
pub(crate) fn case(random: &mut Random) -> Case {
    if random.happens(LINKED_PER_MILLION) {
        return links::case(random, &Shape::QUICK);
    }
    channels(random)
}

/// A case whose lines are channels.
pub(crate) fn channels(random: &mut Random) -> Case {
    let mut hosts: Vec<HostCase> = (0..2 + pick(random, 7)).map(|_| host(random)).collect();
    let lines: Vec<LineCase> = lines(random, &hosts);
    // Two hosts that are to be connected need a subnet that both are in.
    for LineCase {
        hosts: [from, to], ..
    } in &lines
    {
        if hosts[*from].subnets & hosts[*to].subnets == 0 {
            hosts[*to].subnets = 3;
        }
    }
    let operations = operations(random, &lines);
    let device = one_of(random, &Device::ALL);
    let mut case = Case {
        seed: random.draw(),
        device,
        latency_ns: 100 + random.below(5000),
        bandwidth_mbps: 10_000 << random.below(4),
        plan: plan(random, &hosts, device),
        hosts,
        lines,
        operations,
        links: None,
        classes: None,
        panics_every: panics_every(random),
        endings: endings(random),
        call_ns: 0,
        handler_ns: 0,
        scene: None,
    };
    if case.endings.is_some() && random.happens(DROPPING_PER_MILLION) {
        for _ in 0..1 + pick(random, 3) {
            let operation = Operation {
                line: pick(random, case.lines.len()),
                end: pick(random, 2),
                what: What::DropWorker,
            };
            case.operations
                .insert(pick(random, case.operations.len()), operation);
        }
    }
    classes::add_to_channels(&mut case);
    case
}

fn endings(random: &mut Random) -> Option<EndingsCase> {
    random.happens(REPORTED_PER_MILLION).then(|| {
        let is_cut = random.happens(CUT_PER_MILLION);
        let after_ns: &[u64] = match is_cut {
            true => &[2_000_000, 50_000_000],
            false => &[2_000_000, 50_000_000, 1_000_000_000],
        };
        EndingsCase {
            probe_after_ns: one_of(random, after_ns),
            is_left_to_worker: random.happens(500_000),
            probe_timeouts_ms: probe_timeouts_ms(random),
            is_cut,
        }
    })
}

/// How long either end of a line waits for the answer to a probe: longer than an answer takes that meets no fault, and often unlike.
pub(crate) fn probe_timeouts_ms(random: &mut Random) -> [u32; 2] {
    match random.happens(IMPATIENT_PER_MILLION) {
        true => [(); 2].map(|()| one_of(random, &[0, 5, 20, 100])),
        false => [0; 2],
    }
}

/// How often the callback panics, where it does.
pub(crate) fn panics_every(random: &mut Random) -> u32 {
    match random.happens(PANICKING_PER_MILLION) {
        true => one_of(random, &[1, 2, 3, 5, 9]),
        false => 0,
    }
}

/// An index below this one.
pub(crate) fn pick(random: &mut Random, end: usize) -> usize {
    random.below(end as u64) as usize
}

pub(crate) fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[pick(random, choices.len())]
}

/// A time that passes: below one of these.
pub(crate) fn pass(random: &mut Random, ns_most: &[u64]) -> What {
    let ns_most = one_of(random, ns_most);
    What::Pass {
        ns: random.below(ns_most),
    }
}

/// So many acts, each of any line and end.
pub(crate) fn acts(
    random: &mut Random,
    (lines, count): (usize, usize),
    act: impl Fn(&mut Random) -> What,
) -> Vec<Operation> {
    let operations = (0..count).map(|_| Operation {
        line: pick(random, lines),
        end: pick(random, 2),
        what: act(random),
    });
    operations.collect()
}

fn host(random: &mut Random) -> HostCase {
    HostCase {
        subnets: one_of(random, &[1, 2, 3, 3]),
        mtu_bytes: one_of(random, &[256, 512, 1024, 2048, 4096]),
        slots: one_of(random, &[64, 128, 400]),
        slot_bytes: one_of(random, &[256, 1024, 2048]),
        shared_receives: random.happens(300_000).then_some(48),
        order: one_of(random, &Order::ALL),
        speeds_mbps: [(); 2].map(|()| one_of(random, &[25_000, 100_000, 400_000])),
        links: None,
        transfers: None,
    }
}

pub(crate) fn lines(random: &mut Random, hosts: &[HostCase]) -> Vec<LineCase> {
    let mut lines: Vec<LineCase> = Vec::new();
    for _ in 0..1 + pick(random, (2 * hosts.len()).min(8)) {
        let from = pick(random, hosts.len());
        let to = (from + 1 + pick(random, hosts.len() - 1)) % hosts.len();
        let rings = random.happens(300_000).then(|| [(); 2].map(|()| ring(random)));
        lines.push(LineCase {
            hosts: [from, to],
            rings,
            listening: random
                .happens(ODD_PER_MILLION)
                .then(|| own_end(random, rings.is_some())),
            send_depth: one_of(random, &[2, 4, 8, 16, 32]),
            receive_depths: [0; 2].map(|_| one_of(random, &[1, 2, 4, 8, 16])),
            repost_batch: one_of(random, &[1, 2, 4, 16]),
            unsignaled_max: one_of(random, &[0, 0, 1, 3]),
            // An invitation into a ring goes inline.
            inline_bytes_max: one_of(
                random,
                if rings.is_some() {
                    &[64, 220]
                } else {
                    &[0, 64, 220]
                },
            ),
            inline_alone_bytes_max: one_of(random, &[0, 64]),
            cell_bytes: one_of(random, &[0, 64, 256]),
            rd_atomic_max: one_of(random, &[1, 2, 4, 16]),
            timeout: 12 + random.below(3) as u8,
            retry_count: 3 + random.below(4) as u8,
            is_probed_late: random.happens(250_000),
        });
    }
    lines
}

fn ring(random: &mut Random) -> RingCase {
    RingCase {
        cells: one_of(random, &[2, 4, 8, 16]),
        cell_bytes: one_of(random, &[64, 128, 192, 512]),
    }
}

fn operations(random: &mut Random, lines: &[LineCase]) -> Vec<Operation> {
    let mut operations = Vec::new();
    let mut push = |line, end, what| operations.push(Operation { line, end, what });
    for (line, _) in lines.iter().enumerate() {
        push(line, 0, What::Connect);
    }
    let may_close = random.happens(600_000);
    let may_split = random.happens(300_000);
    for _ in 0..100 + pick(random, 900) {
        let (line, end) = (pick(random, lines.len()), pick(random, 2));
        let bytes_most = one_of(random, &[64, 500, 3000]);
        let bytes = 24 + random.below(bytes_most) as u16;
        let ns_most = one_of(random, &[2_000, 20_000, 200_000]);
        let may_ring = lines[line].rings.is_some();
        let what = match random.below(100) {
            0..22 => What::Pass {
                ns: random.below(ns_most),
            },
            22..52 => What::Poll,
            52..66 if may_ring && random.happens(600_000) => What::Ring {
                count: 1 + random.below(8) as u8,
                bytes,
                is_copied: random.happens(500_000),
            },
            52..66 => What::Send {
                count: 1 + random.below(8) as u8,
                bytes,
            },
            66..70 => What::SendInline { bytes: bytes % 200 },
            70..73 => What::Gather { bytes },
            73 => What::Abandon { bytes },
            74..78 => What::Submit { bytes },
            78..82 => What::Write {
                bytes,
                is_told: random.happens(500_000),
            },
            82..86 => What::Read {
                bytes,
                is_fenced: random.happens(200_000),
            },
            86..89 => What::Add {
                by: random.below(1000) as u32,
            },
            89..91 => What::Swap {
                is_right: random.happens(700_000),
                to: random.draw() as u32,
            },
            91..93 => What::Hold {
                count: 1 + random.below(40) as u8,
            },
            93 => What::LetGo,
            95 if may_close => What::Close {
                within_ns: random.below(1_000_000),
            },
            96 if may_close && random.happens(300_000) => What::Shut,
            97 if may_split => What::Split,
            98 | 99 => What::Connect,
            94 => What::Datagram {
                count: 1 + random.below(6) as u8,
                bytes,
            },
            _ => What::Poll,
        };
        push(line, end, what);
    }
    operations
}

/// A third goes without faults, a third with few, and the rest with any.
fn plan(random: &mut Random, hosts: &[HostCase], device: Device) -> String {
    let mut clauses = Vec::new();
    let severity = random.below(3);
    if severity == 0 {
        return String::new();
    }
    let host = |random: &mut Random| any_host(random, hosts.len());
    for _ in 0..1 + random.below(3) {
        let effect = one_of(random, &["drop", "duplicate", "reorder", "corrupt", "delay"]);
        let kinds = [
            "packet", "packet", "packet", "ack", "send", "write", "read", "response", "atomic", "result",
            "stream", "datagram",
        ];
        let kind = one_of(random, &kinds);
        let which = match random.below(if severity == 1 { 1 } else { 3 }) {
            0 => ordinal(1 + random.below(60)),
            1 => format!("every {}", ordinal(3 + random.below(40))),
            _ => format!("{}%", random.below(12)),
        };
        let by = match effect {
            "delay" => format!(" by {}us", 1 + random.below(300)),
            _ => String::new(),
        };
        clauses.push(format!(
            "{effect} {which} {kind} of {}->{}{by}",
            host(random),
            host(random)
        ));
    }
    // Clocks excuse no channel, so they jump where little else goes wrong, too.
    if random.happens(250_000) {
        let (at, ahead) = (random.below(TROUBLE_NS), random.below(10_000));
        clauses.push(format!("at {at}ns clock {} ahead {ahead}ms", host(random)));
    }
    // So do devices that refuse receives.
    if random.happens(200_000) {
        clauses.push(receives_refused(random, hosts.len()));
    }
    if severity == 2 {
        for _ in 0..random.below(3) {
            clauses.extend(trouble(random, hosts, device));
        }
    }
    clauses.join("; ")
}

/// A device takes a part of some posts of receives.
pub(crate) fn receives_refused(random: &mut Random, hosts: usize) -> String {
    let host = any_host(random, hosts);
    let which = match random.below(3) {
        0 => ordinal(1 + random.below(30)),
        // Not each second: no host with two Workers whose channels share receives could be made.
        1 => format!("every {}", ordinal(3 + random.below(4))),
        _ => format!("{}%", 5 + random.below(60)),
    };
    format!("fail {which} receive-post of {host} with 12")
}

/// One host, or all, as plans say it.
pub(crate) fn any_host(random: &mut Random, hosts: usize) -> String {
    match pick(random, hosts + 1) {
        0 => "any".to_owned(),
        number => format!("h{}", number - 1),
    }
}

/// Something that goes wrong for a while, or with a post.
fn trouble(random: &mut Random, hosts: &[HostCase], device: Device) -> Option<String> {
    let (at, lasts) = (random.below(TROUBLE_NS), 1 + random.below(TROUBLE_NS));
    let number = pick(random, hosts.len());
    let any = |random: &mut Random| any_host(random, hosts.len());
    let action = match random.below(9) {
        0 => format!("link {}-{} down", any(random), any(random)),
        1 => format!("port {} down", any(random)),
        2 => format!("pause {}", any(random)),
        3 => format!("slow {} by {}ns", any(random), random.below(5000)),
        // If late requests vanish, a channel whose host was killed while it was made never hears of that.
        4 if !device.quirks().late_requests_vanish => format!("kill h{number}"),
        4 => return None,
        5 => return Some(format!("at {at}ns overrun h{number}")),
        6 | 7 => {
            let subnets = hosts[number].subnets;
            let port = if subnets == 3 {
                pick(random, 2) as u8
            } else {
                subnets >> 1
            };
            let [old, new] = [0, MOVED].map(|offset| address(number + offset, port));
            let change = format!("gid h{number}/sim{port} {old} becomes {new}");
            // Half of them stay.
            if random.happens(500_000) {
                return Some(format!("at {at}ns {change}"));
            }
            change
        }
        _ => {
            let which = if random.happens(500_000) {
                ordinal(1 + random.below(50))
            } else {
                format!("every {}", ordinal(2 + random.below(10)))
            };
            return Some(format!("fail {which} post of h{number} with 12"));
        }
    };
    Some(format!("at {at}ns {action} for {lasts}ns"))
}

/// As plans count.
pub(crate) fn ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (1, tens) if tens != 11 => "st",
        (2, tens) if tens != 12 => "nd",
        (3, tens) if tens != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}
