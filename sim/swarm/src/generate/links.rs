//! Cases whose lines are links, as several profiles want them.

use doorbell_sim::Random;

use crate::case::{
    Ask, Case, Device, HostCase, HostLinksCase, LineCase, LinksCase, Operation, Order, TimesCase, What,
};
use crate::generate::quick::{any_host, lines, one_of, ordinal, panics_every, pick, receives_refused};
use crate::generate::{classes, late, transfers};
use crate::station::{MOVED, address};

/// A fault that lasts for a moment is over within this time.
const SHORT_NS: u64 = 200_000_000;

/// The cases that a profile wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Nothing of a plan begins later than this, nor lasts longer.
    pub(crate) trouble_ns: u64,
    /// How many plans strike packets and posts at any time, too.
    pub(crate) striking_per_million: u32,
    /// How many of those have posts of receives refused.
    pub(crate) refusing_per_million: u32,
    /// How many of the faults last for a moment: as long as a rail takes to notice.
    pub(crate) short_per_million: u32,
    /// How many plans cut all cables for long, and for moments behind that.
    pub(crate) returning_per_million: u32,
    /// How many hosts make their links otherwise than the others.
    pub(crate) odd_per_million: u32,
    /// Hosts that make their links differently also have times of their own.
    pub(crate) has_times: bool,
    /// How many have WRITEs that come late to a process that stands still.
    pub(crate) late_per_million: u32,
    /// The run checks how many bytes each rail carries.
    pub(crate) is_weighed: bool,
}

impl Shape {
    /// In the quick profile rails are given up after 120 ms, and connected again after 10 ms to a second.
    pub(crate) const QUICK: Self = Self {
        trouble_ns: 400_000_000,
        striking_per_million: 1_000_000,
        refusing_per_million: 150_000,
        short_per_million: 0,
        returning_per_million: 0,
        odd_per_million: 300_000,
        has_times: false,
        late_per_million: 200_000,
        is_weighed: false,
    };
}

/// A case whose lines are links.
pub(crate) fn case(random: &mut Random, shape: &Shape) -> Case {
    let fragment_bytes = one_of(random, &[64, 256, 1000, 2000]);
    let mut hosts: Vec<HostCase> = (0..2 + pick(random, 3)).map(|_| host(random, shape)).collect();
    let is_one_device = random.happens(600_000);
    if is_one_device {
        // So that its ports are numbered alike everywhere.
        hosts.iter_mut().for_each(|host| host.subnets = 3);
    }
    let mut lines = lines(random, &hosts);
    lines.truncate(3);
    for line in &mut lines {
        line.receive_depths = [one_of(random, &[4, 8, 16]); 2];
        line.send_depth = one_of(random, &[8, 16]);
        line.timeout = 10 + random.below(3) as u8;
        line.listening = None;
    }
    // So that rails are not held up for want of receives.
    if shape.is_weighed && random.happens(500_000) {
        for line in &mut lines {
            (line.receive_depths, line.repost_batch) = ([16; 2], 1);
        }
        for own in hosts.iter_mut().filter_map(|host| host.links.as_mut()) {
            (own.receive_depth, own.repost_batch) = (16, 1);
        }
    }
    let may_end = random.happens(400_000);
    let mut case = Case {
        seed: random.draw(),
        device: one_of(random, &Device::ALL),
        latency_ns: 1000 + random.below(50_000),
        bandwidth_mbps: 10_000 << random.below(4),
        links: Some(LinksCase {
            retained: one_of(random, &[8, 16, 64]),
            ahead: one_of(random, &[8, 16, 64]),
            fragment_bytes,
            polls_every_ns: one_of(random, &[5_000, 50_000, 500_000]),
            is_one_device,
            is_weighed: shape.is_weighed,
            places: 0,
        }),
        operations: operations(random, lines.len(), may_end, shape.trouble_ns),
        plan: plan(random, &lines[0], &hosts, is_one_device, shape),
        hosts,
        lines,
        classes: None,
        panics_every: panics_every(random),
        endings: None,
        call_ns: 0,
        handler_ns: 0,
        scene: None,
    };
    transfers::add(&mut case);
    classes::add(&mut case);
    if let Some(links) = case.links.as_mut().filter(|_| !shape.is_weighed) {
        // Few, so that each is used again soon.
        links.places = one_of(random, &[0, 2, 3, 8]);
        if random.happens(shape.late_per_million) {
            late::aim(&mut case, random);
        }
    }
    case
}

/// How a host makes links that does so otherwise than the others.
pub(crate) fn own_links(random: &mut Random, has_times: bool) -> HostLinksCase {
    const MS: u64 = 1_000_000;
    let mut of = |choices: &[u64], default: u64| match has_times {
        true => one_of(random, choices),
        false => default,
    };
    let times = TimesCase {
        heartbeat_idle: of(&[20 * MS, 50 * MS, 200 * MS], 50 * MS),
        suspect_after: of(&[20 * MS, 40 * MS], 40 * MS),
        dead_after: of(&[80 * MS, 120 * MS, 300 * MS], 120 * MS),
        attach_within: of(&[200 * MS, 500 * MS], 500 * MS),
        acknowledge_after: of(&[200_000, MS, 5 * MS], MS),
        acknowledge_fragments: of(&[1, 4, 16], 16) as u32,
        fail_back_proofs: of(&[0, 1, 3], 3) as u8,
        fail_back_interval: of(&[5 * MS, 10 * MS, 30 * MS], 10 * MS),
        reconnect_first: of(&[5 * MS, 10 * MS, 50 * MS], 10 * MS),
        reconnect_longest: of(&[100 * MS, 1000 * MS], 1000 * MS),
        recover_within: of(&[3_000 * MS, 6_000 * MS, 10_000 * MS, 30_000 * MS], 10_000 * MS),
    };
    HostLinksCase {
        retained: one_of(random, &[8, 16, 64, 128]),
        ahead: one_of(random, &[2, 4, 16, 64]),
        requests: one_of(random, &[1, 2, 16]),
        send_depth: one_of(random, &[8, 16]),
        receive_depth: one_of(random, &[4, 8, 16]),
        repost_batch: one_of(random, &[1, 2, 4]),
        timeout: 10 + random.below(3) as u8,
        retry_count: 3 + random.below(4) as u8,
        times,
    }
}

fn host(random: &mut Random, shape: &Shape) -> HostCase {
    HostCase {
        subnets: one_of(random, &[1, 3, 3]),
        mtu_bytes: one_of(random, &[256, 1024, 4096]),
        slots: 600,
        slot_bytes: 2048,
        shared_receives: None,
        order: Order::WholeMessage,
        speeds_mbps: [(); 2].map(|()| one_of(random, &[25_000, 100_000, 400_000])),
        links: random
            .happens(shape.odd_per_million)
            .then(|| own_links(random, shape.has_times)),
        transfers: None,
    }
}

fn operations(random: &mut Random, lines: usize, may_end: bool, trouble_ns: u64) -> Vec<Operation> {
    let mut operations: Vec<Operation> = (0..lines)
        .map(|line| Operation {
            line,
            end: 0,
            what: What::Connect,
        })
        .collect();
    let may_stop = random.happens(400_000);
    let has_windows = random.happens(800_000);
    // Early, so that most faults find some of these under way.
    if has_windows && random.happens(600_000) {
        for line in 0..lines {
            let end = pick(random, 2);
            let mut push = |end, what| operations.push(Operation { line, end, what });
            push(0, What::Pass { ns: 10_000_000 });
            push(end, What::Grant { is_read_only: false });
            push(0, What::Pass { ns: 5_000_000 });
            let (window, what, count) = (0, Ask::Write, Ask::ALL.len() as u8);
            push(1 - end, What::Ask { window, what, count });
        }
    }
    for _ in 0..50 + pick(random, 150) {
        let bytes_most = one_of(random, &[64, 1000, 6000]);
        let ns_most = one_of(random, &[100_000, 3_000_000, 30_000_000]);
        let what = match random.below(100) {
            0..45 => What::Pass {
                ns: random.below(ns_most),
            },
            45..48 if has_windows => What::Grant {
                is_read_only: random.happens(150_000),
            },
            48 if has_windows => What::Withdraw,
            49..66 if has_windows => What::Ask {
                window: random.below(8) as u8,
                what: one_of(random, &Ask::ALL),
                count: 1 + random.below(8) as u8,
            },
            45..90 => What::Send {
                count: 1 + random.below(8) as u8,
                bytes: 24 + random.below(bytes_most) as u16,
            },
            90 | 91 => What::Refresh,
            92 | 93 => What::Reroute,
            94 | 95 if may_stop => What::Stop {
                ns: random.below(trouble_ns),
            },
            96 if may_end => What::Close {
                within_ns: random.below(100_000_000),
            },
            97 if may_end => What::Replace,
            98 | 99 => What::Connect,
            _ => What::Poll,
        };
        operations.push(Operation {
            line: pick(random, lines),
            end: pick(random, 2),
            what,
        });
    }
    operations
}

/// A fifth goes without faults.
fn plan(
    random: &mut Random,
    line: &LineCase,
    hosts: &[HostCase],
    is_one_device: bool,
    shape: &Shape,
) -> String {
    let mut clauses = Vec::new();
    let trouble_ns = shape.trouble_ns;
    if random.happens(200_000) {
        return String::new();
    }
    // Faults of ports and addresses excuse a rail that does not come back. Some cases leave them out.
    let has_ports = shape.short_per_million == 0 || random.happens(500_000);
    for _ in 0..1 + random.below(5) {
        let lasts_ns = match random.happens(shape.short_per_million) {
            true => SHORT_NS,
            false => trouble_ns,
        };
        let (at, lasts) = (random.below(trouble_ns), 1 + random.below(lasts_ns));
        let number = pick(random, hosts.len());
        let subnet = pick(random, 2);
        let any = |random: &mut Random| any_host(random, hosts.len());
        let port = port(subnet, is_one_device);
        let kind = random.below(9);
        let action = match if has_ports { kind } else { kind % 4 } {
            0..3 => format!("link {}/{port}-{}/{port} down", any(random), any(random)),
            3 => format!("link {}-{} down", any(random), any(random)),
            4 | 5 => format!("port h{number}/{port} down"),
            6 => format!("pause {}", any(random)),
            7 => format!("slow {} by {}ns", any(random), random.below(5000)),
            _ if hosts[number].subnets >> subnet & 1 == 0 => continue,
            _ => {
                let [old, new] = [0, MOVED].map(|offset| address(number + offset, subnet as u8));
                format!("gid h{number}/{port} {old} becomes {new}")
            }
        };
        clauses.push(format!("at {at}ns {action} for {lasts}ns"));
    }
    if random.happens(shape.returning_per_million) {
        clauses.extend(returning(random));
    }
    if !random.happens(shape.striking_per_million) {
        return clauses.join("; ");
    }
    if random.happens(800_000) {
        clauses.push(one_sided(random, line, hosts.len(), is_one_device, trouble_ns));
    }
    for _ in 0..random.below(3) {
        let effect = one_of(random, &["drop", "duplicate", "reorder", "corrupt"]);
        let kind = one_of(random, &["packet", "packet", "ack", "send", "write", "stream"]);
        let which = match random.below(3) {
            0 => ordinal(1 + random.below(300)),
            1 => format!("every {}", ordinal(20 + random.below(100))),
            _ => format!("{}%", random.below(4)),
        };
        let [from, to] = [(); 2].map(|()| any_host(random, hosts.len()));
        clauses.push(format!("{effect} {which} {kind} of {from}->{to}"));
    }
    if random.happens(150_000) {
        let number = pick(random, hosts.len());
        let nth = ordinal(1 + random.below(60));
        clauses.push(format!("fail {nth} post of h{number} with 12"));
    }
    if shape.refusing_per_million > 0 && random.happens(shape.refusing_per_million) {
        clauses.push(receives_refused(random, hosts.len()));
    }
    clauses.join("; ")
}

/// Faults that strike one-sided requests under way as their rail fails: atomics of which nothing is heard, and WRITEs that come
/// when their rail was given up, and its other end is still there.
fn one_sided(
    random: &mut Random,
    line: &LineCase,
    hosts: usize,
    is_one_device: bool,
    trouble_ns: u64,
) -> String {
    let port = port(pick(random, 2), is_one_device);
    let from = any_host(random, hosts);
    let how = random.below(10);
    if how < 3 {
        return format!("drop every 1st result of {from}/{port}->any");
    }
    // The ones between go again in time, so that the rail stays up until it is cut, or a post of it fails.
    let nth = ordinal(2 + random.below(2));
    let (given_up_ns, fault) = if how < 7 {
        let (at, lasts) = (random.below(trouble_ns), trouble_ns / 2);
        let tries = u64::from(line.retry_count) + 1;
        (
            tries * (4096 << line.timeout),
            format!("at {at}ns link {from}/{port}-any/{port} down for {lasts}ns"),
        )
    } else {
        let nth = ordinal(20 + random.below(100));
        (0, format!("fail every {nth} unclear-post of {from} with 5"))
    };
    let late_ns = given_up_ns + 1 + random.below(40_000_000);
    format!("delay every {nth} write of any/{port}->any by {late_ns}ns; {fault}")
}

/// The port of a host in a subnet, as plans name it.
pub(super) fn port(subnet: usize, is_one_device: bool) -> String {
    if is_one_device {
        format!("sim0:{}", subnet + 1)
    } else {
        format!("sim{subnet}:1")
    }
}

/// An outage that lasts until back-off is at its longest, and moments behind it in which rails are lost that had come back.
fn returning(random: &mut Random) -> Vec<String> {
    // An attempt that nobody answers takes half a second.
    let lasts = 3_000_000_000 + random.below(6_000_000_000);
    let mut at = 100_000_000 + random.below(400_000_000);
    let mut clauses = vec![format!("at {at}ns link any-any down for {lasts}ns")];
    at += lasts;
    for _ in 0..3 {
        at += 4_000_000_000 + random.below(1_000_000_000);
        let lasts = 30_000_000 + random.below(100_000_000);
        clauses.push(format!("at {at}ns link any-any down for {lasts}ns"));
    }
    clauses
}
