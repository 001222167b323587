//! Cases of hosts that ask and answer: a part of the sleepy profile.

use doorbell_sim::Random;

use crate::case::{
    Case, Device, HostCase, HostLinksCase, LineCase, LinksCase, Operation, Order, Scene, What,
};
use crate::generate::links::own_links;
use crate::generate::quick::{one_of, ordinal, panics_every, pass, pick};
use crate::requests::case::{Question, RequestAct, RequestsCase};

/// In how many cases something goes wrong.
const TROUBLED_PER_MILLION: u32 = 400_000;

/// In how many cases calls take time, and the application with what it is told.
const SLOW_PER_MILLION: u32 = 300_000;

/// How many cases are of links.
const LINKED_PER_MILLION: u32 = 250_000;

/// The part that is left to chance.
pub(crate) fn case(random: &mut Random) -> Case {
    let hosts = 2 + pick(random, 2);
    let lines: Vec<LineCase> = (0..1 + pick(random, 3)).map(|_| line(random, hosts)).collect();
    let slot_bytes = one_of(random, &[256, 1024]);
    let kept_max = one_of(random, &[4, 32]);
    let is_small = random.happens(500_000);
    let is_slow = random.happens(SLOW_PER_MILLION);
    let is_linked = random.happens(LINKED_PER_MILLION);
    let device = one_of(random, &[Device::Iba, Device::Rxe612, Device::Rxe7, Device::Mlx5]);
    Case {
        seed: random.draw(),
        device,
        latency_ns: 100 + random.below(20_000),
        bandwidth_mbps: 10_000 << random.below(4),
        operations: operations(random, lines.len()),
        hosts: (0..hosts)
            .map(|_| HostCase {
                subnets: 1,
                mtu_bytes: one_of(random, &[256, 1024, 4096]),
                slots: one_of(random, &[200, 400]),
                slot_bytes,
                shared_receives: None,
                order: Order::WholeMessage,
                speeds_mbps: [100_000; 2],
                links: is_linked.then(|| links_of(random)),
                transfers: None,
            })
            .collect(),
        plan: match random.happens(TROUBLED_PER_MILLION) {
            true => plan(random, hosts, device, is_linked),
            false => String::new(),
        },
        links: is_linked.then(|| LinksCase {
            retained: 16,
            ahead: 16,
            fragment_bytes: slot_bytes - 24,
            polls_every_ns: 0,
            is_one_device: false,
            is_weighed: false,
            places: 0,
        }),
        classes: None,
        panics_every: panics_every(random),
        endings: None,
        call_ns: if is_slow { one_of(random, &[50, 300]) } else { 0 },
        handler_ns: if is_slow {
            one_of(random, &[500, 10_000])
        } else {
            0
        },
        scene: Some(Scene::Requests(RequestsCase {
            places: lines
                .iter()
                .map(|_| {
                    [(); 2].map(|()| match is_small {
                        true => 1 + random.below(3) as u32,
                        false => one_of(random, &[1, 8, 64]),
                    })
                })
                .collect(),
            body_bytes_max: one_of(random, &[64, slot_bytes - 16, 2000]),
            kept_max,
            probe_after_ns: one_of(random, &[20_000_000, 200_000_000]),
        })),
        lines,
    }
}

/// A link recovers for no longer than the end of a run waits.
fn links_of(random: &mut Random) -> HostLinksCase {
    let mut links = own_links(random, true);
    links.times.recover_within = one_of(random, &[1_000_000_000, 3_000_000_000]);
    links
}

fn line(random: &mut Random, hosts: usize) -> LineCase {
    let from = pick(random, hosts);
    LineCase {
        hosts: [from, (from + 1 + pick(random, hosts - 1)) % hosts],
        rings: None,
        listening: None,
        send_depth: one_of(random, &[2, 4, 16]),
        receive_depths: [(); 2].map(|()| one_of(random, &[1, 2, 4, 16])),
        repost_batch: one_of(random, &[1, 2, 4]),
        unsignaled_max: one_of(random, &[0, 0, 1, 3]),
        inline_bytes_max: one_of(random, &[0, 64, 220]),
        inline_alone_bytes_max: one_of(random, &[0, 64]),
        cell_bytes: 0,
        rd_atomic_max: 1,
        timeout: 12 + random.below(2) as u8,
        retry_count: 3 + random.below(4) as u8,
        is_probed_late: false,
    }
}

fn plan(random: &mut Random, hosts: usize, device: Device, is_linked: bool) -> String {
    let (at, number) = (1_000_000 + random.below(50_000_000), pick(random, hosts));
    match random.below(4) {
        0 => format!("at {at}ns port h{number} down for {}ms", 1 + random.below(300)),
        // If late requests vanish, a channel whose host was killed while it was made never hears of that.
        1 if !device.quirks().late_requests_vanish && !is_linked => {
            format!("at {at}ns kill h{number} for {}ms", 1 + random.below(100))
        }
        2 => format!("drop every {} packet of any->any", ordinal(5 + random.below(60))),
        _ => format!(
            "delay every {} packet of any->any by {}us",
            ordinal(2 + random.below(9)),
            1 + random.below(300)
        ),
    }
}

fn question(random: &mut Random) -> Question {
    let bytes_most = one_of(random, &[1, 40, 300, 1100]);
    let answer_most = one_of(random, &[1, 40, 300, 1100]);
    let within_most_ns = one_of(random, &[20_000, 300_000, 10_000_000, 1_000_000_000]);
    let handled_most_ns = one_of(random, &[1, 1, 20_000, 300_000, 10_000_000]);
    Question {
        bytes: random.below(bytes_most) as u16,
        within_ns: 1 + random.below(within_most_ns),
        handled_ns: random.below(handled_most_ns),
        answer: (!random.happens(100_000)).then(|| random.below(answer_most) as u16),
    }
}

fn operations(random: &mut Random, lines: usize) -> Vec<Operation> {
    let may_close = random.happens(500_000);
    let is_strange = random.happens(500_000);
    let act = |random: &mut Random| match random.below(100) {
        0..40 => {
            let count_most = one_of(random, &[1, 4, 40]);
            What::Request(RequestAct::Ask {
                count: 1 + random.below(count_most) as u8,
                question: question(random),
            })
        }
        40..48 => What::Request(RequestAct::Cancel {
            nth: random.below(8) as u8,
        }),
        48 => What::Request(RequestAct::GiveUp),
        49..52 if is_strange => What::Request(RequestAct::Again),
        52..54 if is_strange => What::Request(RequestAct::Unasked {
            how: random.below(3) as u8,
        }),
        54..56 if is_strange => What::Request(RequestAct::Plain {
            bytes: random.below(60) as u16,
        }),
        56 if may_close => What::Request(RequestAct::Close {
            within_ns: random.below(2_000_000),
        }),
        57 if may_close => What::Request(RequestAct::Leave),
        58..62 => What::Request(RequestAct::Connect),
        _ => pass(random, &[2_000, 50_000, 1_000_000, 20_000_000]),
    };
    let operations = (0..40 + pick(random, 120)).map(|_| Operation {
        line: pick(random, lines),
        end: pick(random, 2),
        what: act(random),
    });
    operations.collect()
}
