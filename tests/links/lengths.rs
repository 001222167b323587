//! Times of long messages, by fragments of slots, by fragments that are written, and by a transfer for each, over two rails of 100 Gb/s: the figures of `docs/performance.md`.

use std::sync::Arc;

use doorbell::link::{
    LinkConfig, LinkEvent, LinkId, Links, SessionEvent, TransferEnd, TransferEvent, TransferOptions,
};
use doorbell::memory::Region;
use doorbell::provider::{Clock as _, PlacementConfig};
use doorbell::{Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host, LinkConfig as Wire};

use crate::processes::{A, B, ports};

const LATENCY_NS: u64 = 2000;
const MBPS: u32 = 100_000;
const LONGEST: usize = 1 << 20;
/// Messages of a stream.
const COUNT: u64 = 8;

#[derive(Clone, Copy, Debug)]
enum Way {
    Fragments,
    /// Written into memory that the receiver lent.
    Placed,
    /// With pieces of so many bytes.
    Transfers(u32),
}

struct Side {
    node: Arc<Node<Host, Host>>,
    workers: Vec<Worker<Host>>,
    links: Links<Host, Host>,
    region: Region<Host>,
    link: Option<LinkId>,
    rails: u8,
    done: u64,
}

impl Side {
    fn new(host: Host, config: &LinkConfig) -> Self {
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let node = Arc::new(node);
        let mut own = WorkerConfig::default();
        own.slots = 2048;
        let workers = node.workers(&own).unwrap();
        let links = Links::new(&node, &workers, config).unwrap();
        let region = node.region(&workers, LONGEST, &PlacementConfig::DEFAULT).unwrap();
        Self {
            node,
            workers,
            links,
            region,
            link: None,
            rails: 0,
            done: 0,
        }
    }

    fn poll(&mut self) {
        let Self {
            node,
            workers,
            links,
            region,
            link,
            rails,
            done,
        } = self;
        let mut offered = Vec::new();
        links
            .poll(node, workers, |id, event| match event {
                LinkEvent::Accepted => *link = Some(id),
                LinkEvent::Received { .. } => *done += 1,
                LinkEvent::Session(SessionEvent::RailUp { .. }) => *rails += 1,
                LinkEvent::Transfer { transfer, event } => match event {
                    TransferEvent::Offered { .. } => offered.push((id, transfer)),
                    TransferEvent::Ended { end, .. } => {
                        assert_eq!(end, TransferEnd::Done);
                        *done += 1;
                    }
                    _ => {}
                },
                _ => {}
            })
            .unwrap();
        for offered in offered {
            let options = TransferOptions::default();
            links.join(node, offered, (region, 0), &options).unwrap();
        }
    }
}

/// Polls both sides whenever something happens, until it is done.
fn run(fabric: &Fabric, sides: &mut [Side; 2], mut is_done: impl FnMut(&mut [Side; 2]) -> bool) {
    let until = fabric.now().to_ns() + 1_000_000_000;
    while !is_done(sides) {
        sides.iter_mut().for_each(Side::poll);
        let now = fabric.now();
        assert!(now.to_ns() < until, "it takes for ever");
        let wakes = sides.iter().filter_map(|side| side.links.wake(now));
        let next = wakes.map(|wake| wake.instant()).chain(fabric.next_at()).min();
        match (next, fabric.next_at()) {
            (Some(next), Some(at)) if at <= next => assert!(fabric.step()),
            (Some(next), _) => fabric.run_until(next),
            (None, _) => panic!("nothing is to be done"),
        }
    }
}

/// Nanoseconds until so many messages of this length have come.
fn time_ns(way: Way, bytes: usize, count: u64) -> u64 {
    let wire = Wire {
        latency_ns: LATENCY_NS,
        bandwidth_mbps: Some(MBPS),
    };
    let fabric = Fabric::builder().link(wire).driven().build();
    let hosts = [("a", A), ("b", B)].map(|(name, at)| fabric.host(name, ports(at, 2, MBPS)).unwrap());
    let mut config = LinkConfig::default();
    match way {
        Way::Fragments => config.placed_bytes = 0,
        Way::Placed => {}
        Way::Transfers(piece_bytes) => config.transfers.piece_bytes = piece_bytes,
    }
    let mut sides = hosts.map(|host| Side::new(host, &config));
    let [_, b] = &mut sides;
    let handle = b
        .links
        .listen_polled(&b.node, &b.workers, "0.0.0.0:7000".parse().unwrap())
        .unwrap();
    let a = &mut sides[A];
    a.link = Some(a.links.connect(&a.node, &a.workers, &handle).unwrap());
    run(&fabric, &mut sides, |sides| {
        sides.iter().all(|side| side.rails == 2)
    });
    let is_placed = matches!(way, Way::Placed);
    let link = sides[A].link.unwrap();
    if is_placed {
        // The first one came in fragments, and has memory lent.
        sides[A].links.send(link, &[7; LONGEST]).unwrap();
        run(&fabric, &mut sides, |sides| sides[B].done == 1);
        let until = fabric.now().to_ns() + 100_000;
        run(&fabric, &mut sides, |sides| {
            sides[A].node.network().now().to_ns() >= until
        });
        sides[B].done = 0;
    }
    let begun = fabric.now();
    let message = vec![7; bytes];
    let mut sent = 0;
    run(&fabric, &mut sides, |sides| {
        let a = &mut sides[A];
        while sent < count {
            let link = a.link.unwrap();
            match way {
                Way::Fragments | Way::Placed if a.links.send(link, &message).is_err() => break,
                Way::Fragments | Way::Placed => {}
                Way::Transfers(_) => {
                    let part = (&a.region, 0, bytes as u64);
                    a.links
                        .offer(&a.node, link, part, &TransferOptions::default())
                        .unwrap();
                }
            }
            sent += 1;
        }
        sides[B].done == count
    });
    assert_eq!(sides[A].links.counts(link).placed > 0, is_placed);
    fabric.audit().unwrap();
    fabric.now().to_ns() - begun.to_ns()
}

#[test]
fn messages_are_sooner_than_a_transfer_for_each() {
    for bytes in [17, 32, 64, 256, 1024].map(|kib: usize| kib << 10) {
        let ways = [
            Way::Fragments,
            Way::Placed,
            Way::Transfers(256 << 10),
            Way::Transfers(64 << 10),
        ];
        let [fragments, placed, transfers, small] = ways.map(|way| {
            let times = (time_ns(way, bytes, 1), time_ns(way, bytes, COUNT) / COUNT);
            println!(
                "{bytes} {way:?}: {} ns alone, {} ns each of {COUNT}",
                times.0, times.1
            );
            times
        });
        // One way there, and the bytes over both rails.
        let least = LATENCY_NS + bytes as u64 * 8 * 1000 / (2 * u64::from(MBPS));
        assert!(
            fragments.0 >= least && fragments.0 < 2 * least + 10_000,
            "{bytes}: {fragments:?}"
        );
        assert!(
            placed.0 >= least && placed.0 < 2 * least + 10_000,
            "{bytes}: {placed:?}"
        );
        assert!(transfers.0 > fragments.0 && small.0 > fragments.0, "{bytes}");
    }
}
