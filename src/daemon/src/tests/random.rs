//! All operations at once, chosen by a seed.

use std::collections::BTreeMap;

use doorbell::RemoteAccess;
use doorbell::interprocess::SharedWords as _;
use doorbell::provider::Instant;

use super::oracle::Kind;
use super::world::{Chance, World, at};
use crate::endpoint::ArenaTransferEnd;
use crate::reason::GoneReason;

const NODES: u32 = 3;

/// Runs a seed, and returns the ends of transfers.
fn run(seed: u64) -> Vec<ArenaTransferEnd> {
    let mut chance = Chance::new(seed);
    let mut world = World::new(NODES);
    let (has_villain, has_ends) = (seed % 3 == 0, seed % 2 == 0);
    let has_restarts = seed % 3 == 1;
    for node in 0..NODES {
        for endpoint in 0..2 {
            world.attach(node, 1, endpoint).unwrap();
            world.attach(node, 2, endpoint).unwrap();
        }
    }
    if has_villain {
        let villain = chance.below(world.processes.len());
        world.processes[villain].is_hostile = true;
    }
    for _ in 0..900 {
        let process = chance.below(world.processes.len());
        let node = chance.below(NODES as usize);
        match chance.below(28) {
            0..=5 => {
                let to = at(chance.below(NODES as usize) as u32, chance.below(3) as u32);
                if world.processes[process].is_alive {
                    world.send(process, to, chance.below(41));
                    if chance.one_in(2) {
                        world.processes[process].endpoint.flush();
                    }
                }
            }
            6..=9 => drop(world.poll(node)),
            10 | 11 => drop(world.carry(chance.below(3))),
            12 | 13 if world.processes[process].is_alive && world.processes[process].is_reading => {
                world.read(process);
            }
            14 if chance.one_in(4) => {
                let reader = &mut world.processes[process];
                reader.is_reading = !reader.is_reading;
            }
            15 if has_ends && chance.one_in(6) && world.processes[process].is_alive => {
                world.kill(process, GoneReason::Died);
                let (job, address) = (world.processes[process].job, world.processes[process].address);
                if chance.one_in(2) {
                    world.attach(address.node.0, job, address.endpoint).unwrap();
                }
            }
            16 | 17 => {
                let to = at(chance.below(NODES as usize) as u32, chance.below(2) as u32);
                let [write, read, atomic] = core::array::from_fn(|_| !chance.one_in(3));
                if world.processes[process].is_alive && (write || read || atomic) {
                    world.grant(process, to, RemoteAccess { write, read, atomic });
                }
            }
            18 if chance.one_in(2) && world.processes[process].is_alive => {
                let given = &world.processes[process].one_sided.given;
                if !given.is_empty() {
                    let grant = given[chance.below(given.len())].grant;
                    world.revoke(process, &grant);
                }
            }
            19..=23 => {
                // A grant of any process, for any process, of any job.
                let owner = chance.below(world.processes.len());
                let given = &world.processes[owner].one_sided.given;
                if !given.is_empty() && world.processes[process].is_alive {
                    let given = &given[chance.below(given.len())];
                    let (grant, to) = (given.grant, given.to);
                    let meant = |other: &crate::tests::world::Process| other.address == to && other.is_alive;
                    let named = world.processes.iter().position(meant);
                    let asks = named.filter(|_| !chance.one_in(4)).unwrap_or(process);
                    let kinds = [Kind::Write, Kind::WriteWithImmediate, Kind::Read, Kind::Add];
                    world.operate(asks, &grant, kinds[chance.below(4)]);
                    world.processes[asks].endpoint.flush();
                }
            }
            24 => world.offer_something(process, &mut chance),
            25 | 26 => world.take_something(process, &mut chance),
            27 if chance.one_in(3) => world.cancel_something(process, &mut chance),
            _ => {}
        }
        world.now = Instant::from_ns(world.now.to_ns() + 1);
        if has_restarts && chance.one_in(60) {
            world.restart(node as u32, chance.below(4) as u32);
        }
        if has_villain && chance.one_in(8) {
            let hostile: Vec<_> = world
                .processes
                .iter()
                .filter(|process| process.is_hostile)
                .collect();
            for villain in hostile {
                let word = chance.below(140);
                let value = match chance.below(5) {
                    0 => chance.word(),
                    4 => (16 + chance.below(6) as u64) << 32 | chance.below(40) as u64,
                    1 => 1 << 32 | chance.below(70) as u64,
                    2 => chance.below(10) as u64,
                    _ => u64::MAX,
                };
                if let Some(word) = villain.endpoint.rings().word(word) {
                    word.store(value, core::sync::atomic::Ordering::Relaxed);
                }
            }
        }
    }
    for process in &mut world.processes {
        process.is_reading = true;
    }
    world.settle();
    // Transfers that no process took, or whose other process is gone, end at their deadlines.
    world.now = Instant::from_ns(1 << 40);
    world.settle();
    world.check();
    let ends = world.processes.iter().flat_map(|process| &process.transfers.ends);
    ends.map(|(_, end, _)| *end).collect()
}

#[test]
fn each_message_comes_once_in_order_and_to_its_endpoint_alone_or_is_reported() {
    let seeds = match std::env::var("DOORBELL_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..300,
    };
    let is_all = seeds.start == 0;
    let mut ends = Vec::new();
    for seed in seeds {
        println!("DOORBELL_SEED={seed}");
        ends.extend(run(seed));
    }
    let mut names: BTreeMap<_, u32> = BTreeMap::new();
    for end in ends {
        *names.entry(format!("{end:?}")).or_default() += 1;
    }
    println!("{names:?}");
    let is_often = |end: ArenaTransferEnd| names.get(&format!("{end:?}")).is_some_and(|count| *count > 20);
    for end in [
        ArenaTransferEnd::Done,
        ArenaTransferEnd::Cancelled,
        ArenaTransferEnd::Deadline,
        ArenaTransferEnd::ByPeer,
        ArenaTransferEnd::Gone(GoneReason::Died),
        ArenaTransferEnd::DaemonEnded,
    ] {
        assert!(is_often(end) || !is_all, "{end:?} is too rare: {names:?}");
    }
}
