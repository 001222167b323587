//! Cases whose lines are links, in the quick profile.

use doorbell_sim::Random;

use crate::case::{Ask, Case, Device, HostCase, LineCase, LinksCase, Operation, Order, What};
use crate::generate::quick::{any_host, lines, one_of, ordinal, panics_every, pick};
use crate::station::{MOVED, address};

/// Nothing of a plan of the quick profile begins later than this, nor lasts longer: rails are given up after 120 ms, and
/// connected again after 10 ms to a second.
pub(crate) const TROUBLE_NS: u64 = 400_000_000;

/// A case whose lines are links; nothing of its plan begins later than this, nor lasts longer.
pub(crate) fn case(random: &mut Random, trouble_ns: u64) -> Case {
    let fragment_bytes = one_of(random, &[64, 256, 1000, 2000]);
    let mut hosts: Vec<HostCase> = (0..2 + pick(random, 3)).map(|_| host(random)).collect();
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
    }
    let may_end = random.happens(400_000);
    Case {
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
        }),
        operations: operations(random, lines.len(), may_end, trouble_ns),
        plan: plan(random, &lines[0], &hosts, is_one_device, trouble_ns),
        hosts,
        lines,
        panics_every: panics_every(random),
        endings: None,
    }
}

fn host(random: &mut Random) -> HostCase {
    HostCase {
        subnets: one_of(random, &[1, 3, 3]),
        mtu_bytes: one_of(random, &[256, 1024, 4096]),
        slots: 600,
        slot_bytes: 2048,
        shared_receives: None,
        order: Order::WholeMessage,
        speeds_mbps: [(); 2].map(|()| one_of(random, &[25_000, 100_000, 400_000])),
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
    trouble_ns: u64,
) -> String {
    let mut clauses = Vec::new();
    if random.happens(200_000) {
        return String::new();
    }
    for _ in 0..1 + random.below(5) {
        let (at, lasts) = (random.below(trouble_ns), 1 + random.below(trouble_ns));
        let number = pick(random, hosts.len());
        let subnet = pick(random, 2);
        let any = |random: &mut Random| any_host(random, hosts.len());
        let port = port(subnet, is_one_device);
        let action = match random.below(9) {
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
fn port(subnet: usize, is_one_device: bool) -> String {
    if is_one_device {
        format!("sim0:{}", subnet + 1)
    } else {
        format!("sim{subnet}:1")
    }
}
