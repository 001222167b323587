//! Links that are more than there is room for: places of one to three, at the host that accepts, of an address, on its Worker, and in its
//! memory, or at the hosts that connect. Links of some cases have two rails, of which one fails for a while.

use doorbell_sim::Random;

use crate::case::{
    Case, Device, HostCase, HostLinksCase, LineCase, LinksCase, Operation, Order, Scene, What,
};
use crate::full::case::{FullAct, FullCase, LinkRoomCase};
use crate::generate::links::{own_links, port};
use crate::generate::quick::{acts, one_of, pass, pick};

/// As many as no case reaches.
const MANY: u32 = 64;

/// In how many cases links have two rails, each with a channel of its own, and in how many of those one is cut for a while.
const RAILS_PER_MILLION: u32 = 400_000;
const CUT_PER_MILLION: u32 = 500_000;

/// Draws a case.
pub(super) fn case(random: &mut Random) -> Case {
    let clients = 1 + pick(random, 3);
    let receive_depth = one_of(random, &[4, 8]);
    let lines: Vec<LineCase> = (0..clients + pick(random, 3))
        .map(|line| line_of(1 + line % clients, receive_depth))
        .collect();
    let mut hosts: Vec<HostCase> = (0..=clients).map(|_| host(random, receive_depth)).collect();
    let mut rooms: Vec<LinkRoomCase> = hosts
        .iter()
        .map(|_| LinkRoomCase {
            links_max: MANY,
            links_per_address: MANY,
            channels_max: MANY,
            lease_share_percent: one_of(random, &[12, 50]),
        })
        .collect();
    for _ in 0..1 + pick(random, 2) {
        let few = 1 + random.below(3) as u32;
        match random.below(5) {
            0 => rooms[0].links_max = few,
            1 => rooms[0].links_per_address = few,
            2 => rooms[0].channels_max = few,
            3 => {
                let percent = 100 - rooms[0].lease_share_percent;
                hosts[0].slots = (few * receive_depth * 100).div_ceil(percent) + random.below(4) as u32 + 1;
            }
            _ => rooms[1 + pick(random, clients)].links_max = few,
        }
    }
    let has_rails = random.happens(RAILS_PER_MILLION);
    if has_rails {
        for (number, host) in hosts.iter_mut().enumerate() {
            host.subnets = if number == 0 {
                3
            } else {
                one_of(random, &[1, 3, 3])
            };
        }
    }
    let plan = match has_rails && random.happens(CUT_PER_MILLION) {
        true => cut(random),
        false => String::new(),
    };
    Case {
        seed: random.draw(),
        device: one_of(random, &Device::ALL),
        latency_ns: 1000 + random.below(50_000),
        bandwidth_mbps: 10_000 << random.below(4),
        operations: operations(random, lines.len()),
        hosts,
        lines,
        plan,
        links: Some(LinksCase {
            retained: 16,
            ahead: 16,
            fragment_bytes: one_of(random, &[64, 1000]),
            polls_every_ns: one_of(random, &[50_000, 500_000]),
            is_one_device: has_rails,
            is_weighed: false,
            places: 0,
        }),
        classes: None,
        panics_every: 0,
        endings: None,
        call_ns: 0,
        handler_ns: 0,
        scene: Some(Scene::Full(FullCase { rooms })),
    }
}

/// The cables of the second subnet are cut for a while. Each link keeps the rail in the first one.
fn cut(random: &mut Random) -> String {
    let (at, lasts) = (random.below(3_000_000_000), 1 + random.below(3_000_000_000));
    let port = port(1, true);
    format!("at {at}ns link any/{port}-any/{port} down for {lasts}ns")
}

fn line_of(from: usize, receive_depth: u32) -> LineCase {
    LineCase {
        hosts: [from, 0],
        rings: None,
        listening: None,
        send_depth: 8,
        receive_depths: [receive_depth; 2],
        repost_batch: 1,
        unsignaled_max: 0,
        inline_bytes_max: 64,
        inline_alone_bytes_max: 0,
        cell_bytes: 0,
        rd_atomic_max: 1,
        timeout: 12,
        retry_count: 6,
        is_probed_late: false,
    }
}

fn host(random: &mut Random, receive_depth: u32) -> HostCase {
    HostCase {
        subnets: 1,
        mtu_bytes: 1024,
        slots: 600,
        slot_bytes: 2048,
        shared_receives: None,
        order: Order::WholeMessage,
        speeds_mbps: [100_000; 2],
        links: Some(HostLinksCase {
            retained: one_of(random, &[1, 2, 3, 16]),
            receive_depth,
            repost_batch: 1,
            timeout: 12,
            retry_count: 6,
            send_depth: 8,
            ..own_links(random, true)
        }),
        transfers: None,
    }
}

fn operations(random: &mut Random, lines: usize) -> Vec<Operation> {
    let act = |random: &mut Random| match random.below(100) {
        0..50 => What::Full(FullAct::Connect),
        50..64 => What::Full(FullAct::Close {
            nth: random.below(4) as u8,
        }),
        64..74 => What::Full(FullAct::Flood {
            nth: random.below(4) as u8,
            bytes: 16 + random.below(1000) as u16,
        }),
        _ => pass(
            random,
            &[2_000_000, 20_000_000, 200_000_000, 1_000_000_000, 10_000_000_000],
        ),
    };
    let count = 10 + pick(random, 25);
    acts(random, (lines, count), act)
}
