//! The crowded profile: limits of one to three, and as much as reaches them.

use doorbell_sim::Random;

use crate::case::{Case, Device, HostCase, LineCase, Operation, Order, Scene, What};
use crate::crowd::case::{CrowdAct, CrowdCase, RoomCase, Says};
use crate::generate::quick::{acts, one_of, pass, pick};

/// Draws a case of this profile.
pub(crate) fn case(random: &mut Random) -> Case {
    let (send_depth, receive_depth) = (one_of(random, &[1, 2, 4, 7]), one_of(random, &[1, 2, 3, 8]));
    let clients = 1 + pick(random, 3);
    let lines: Vec<LineCase> = (0..clients + pick(random, 2))
        .map(|line| line_of(random, 1 + line % clients, send_depth, receive_depth))
        .collect();
    let rooms: Vec<RoomCase> = (0..=clients)
        .map(|_| room(random, send_depth, receive_depth))
        .collect();
    let hosts: Vec<HostCase> = rooms.iter().map(|_| host(random, receive_depth)).collect();
    Case {
        seed: random.draw(),
        device: one_of(random, &Device::ALL),
        latency_ns: 100 + random.below(20_000),
        bandwidth_mbps: 10_000 << random.below(4),
        operations: operations(random, lines.len()),
        hosts,
        lines,
        plan: String::new(),
        links: None,
        classes: None,
        panics_every: 0,
        endings: None,
        call_ns: 0,
        handler_ns: 0,
        scene: Some(Scene::Crowd(CrowdCase {
            is_aside: random.happens(500_000),
            under_way: one_of(random, &[1, 2, 3, 3, 64]),
            per_address: one_of(random, &[1, 2, 3, 64]),
            unaccepted: one_of(random, &[1, 2, 3, 5, 64]),
            crowded_stage_ns: one_of(random, &[100_000_000, 300_000_000, 1_000_000_000]),
            stage_ns: one_of(random, &[600_000_000, 1_000_000_000, 1_500_000_000]),
            rooms,
            submitters: [one_of(random, &[1, 3, 8]), one_of(random, &[1, 2, 3, 4])],
            submissions_per_poll: one_of(random, &[1, 2, 3, 64]),
        })),
    }
}

fn line_of(random: &mut Random, from: usize, send_depth: u32, receive_depth: u32) -> LineCase {
    LineCase {
        hosts: [from, 0],
        rings: None,
        listening: None,
        send_depth,
        receive_depths: [one_of(random, &[1, 2, 3, 8]), receive_depth],
        repost_batch: 1,
        unsignaled_max: 0,
        inline_bytes_max: one_of(random, &[0, 64, 220]),
        inline_alone_bytes_max: 0,
        cell_bytes: 0,
        rd_atomic_max: 1,
        timeout: 12,
        retry_count: 6,
        is_probed_late: false,
    }
}

/// Mostly one thing is scarce, so that its reason is the only one.
fn room(random: &mut Random, send_depth: u32, receive_depth: u32) -> RoomCase {
    let mut room = RoomCase {
        completion_depth: 512,
        channels_max: 64,
        channels_per_address: u32::MAX,
        lease_share_percent: one_of(random, &[0, 1, 12, 50]),
    };
    for _ in 0..1 + pick(random, 2) {
        let few = 1 + random.below(3) as u32;
        match random.below(4) {
            0 => room.channels_max = few,
            1 => room.channels_per_address = few,
            2 => {
                let each = (send_depth + 1).max(receive_depth);
                room.completion_depth = few * each + random.below(3) as u32;
            }
            _ => {}
        }
    }
    room
}

fn host(random: &mut Random, receive_depth: u32) -> HostCase {
    let few = 1 + random.below(3) as u32;
    let shared_receives = random
        .happens(250_000)
        .then_some(few * receive_depth + random.below(3) as u32);
    let slots = match random.below(2) {
        0 => 2 * (few * receive_depth + random.below(4) as u32) + 8,
        _ => 200,
    };
    HostCase {
        subnets: 1,
        mtu_bytes: 1024,
        slots: slots + 2 * shared_receives.unwrap_or(0),
        slot_bytes: 256,
        shared_receives,
        order: Order::WholeMessage,
        speeds_mbps: [100_000; 2],
        links: None,
        transfers: None,
    }
}

fn operations(random: &mut Random, lines: usize) -> Vec<Operation> {
    let has_strangers = random.happens(600_000);
    let act = |random: &mut Random| match random.below(100) {
        0..30 => What::Crowd(CrowdAct::Connect),
        30..36 => What::Crowd(CrowdAct::Burst {
            lines: random.below(255) as u8,
        }),
        36..50 => What::Crowd(CrowdAct::Close {
            nth: random.below(4) as u8,
        }),
        50..66 if has_strangers => What::Crowd(CrowdAct::Knock {
            says: one_of(
                random,
                &[Says::Nothing, Says::Hello, Says::Connect, Says::Connect],
            ),
        }),
        66..70 if has_strangers => What::Crowd(CrowdAct::HangUp),
        70..76 => What::Crowd(CrowdAct::Lease {
            count: 1 + random.below(30) as u8,
        }),
        76..79 => What::Crowd(CrowdAct::Release),
        79..88 => What::Crowd(CrowdAct::Flood {
            nth: random.below(4) as u8,
        }),
        88..91 => What::Crowd(CrowdAct::SubmitFlood {
            nth: random.below(4) as u8,
        }),
        91..93 => What::Crowd(CrowdAct::Contend {
            nth: random.below(4) as u8,
        }),
        _ => pass(random, &[50_000_000, 700_000_000]),
    };
    let count = 15 + pick(random, 40);
    acts(random, (lines, count), act)
}
