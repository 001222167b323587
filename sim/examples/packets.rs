//! How many packets a second are simulated: eight hosts, each sending messages of 64 bytes to
//! every other, over links that lose one packet in a hundred. Every oracle is on.
//!
//! `cargo run --release -p doorbell-sim --example packets [SECONDS]`
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_precision_loss,
    reason = "a benchmark"
)]

use core::time::Duration;
use std::time::Instant;

use doorbell_core::provider::{
    AddressVector, Arena, ArenaConfig, Completion, CompletionQueue, CompletionQueueConfig, Context,
    Operation, PostFlags, ProtectionDomain, Provider, QueuePair, QueuePairConfig, QueuePairParts,
    ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, RemoteAccess, SendBatch, SendQueue, Slot,
};
use doorbell_core::{Gid, IpPrefix, Mtu, Psn, Qpn};
use doorbell_sim::{Fabric, Host, PortConfig};

const HOSTS: u8 = 8;
const DEPTH: u32 = 32;
const BATCH: u32 = 8;
const MESSAGE_BYTES: usize = 64;

/// All that one host has.
struct Station {
    arena: <Host as Provider>::Arena,
    sends: <Host as Provider>::CompletionQueue,
    receives: <Host as Provider>::CompletionQueue,
    /// By channel: the number of the peer.
    queue_pairs: Vec<Option<QueuePairParts<Host>>>,
    done: u64,
    failed: u64,
}

fn gid(host: u8) -> Gid {
    Gid::from_ip([10, 0, 0, host + 1].into())
}

impl Station {
    fn new(fabric: &Fabric, host: u8) -> Self {
        let prefix = IpPrefix::new(gid(host).to_ip(), 24).unwrap();
        let provider = fabric
            .host(&format!("host{host}"), vec![PortConfig::new("sim0", &[prefix])])
            .unwrap();
        let domain = provider.open("sim0").unwrap();
        let context = domain;
        let domain = context.protection_domain().unwrap();
        let queue = CompletionQueueConfig {
            depth: 4 * DEPTH * u32::from(HOSTS),
            notify: false,
        };
        let sends = context.completion_queue(&queue).unwrap();
        let receives = context.completion_queue(&queue).unwrap();
        let slots = 4 * DEPTH * u32::from(HOSTS);
        let bytes = u32::try_from(MESSAGE_BYTES).unwrap();
        let arena = domain.arena(&ArenaConfig::new(slots, bytes)).unwrap();
        let queue_pairs = (0..HOSTS)
            .map(|peer| {
                let config = QueuePairConfig {
                    channel: u32::from(peer),
                    send_depth: DEPTH,
                    receive_depth: 2 * DEPTH,
                    gather_max: 1,
                    scatter_max: 1,
                    inline_bytes_max: 0,
                };
                (peer != host).then(|| domain.queue_pair(&sends, &receives, &config).unwrap())
            })
            .collect();
        Self {
            arena,
            sends,
            receives,
            queue_pairs,
            done: 0,
            failed: 0,
        }
    }

    fn qpn(&self, peer: u8) -> Qpn {
        self.queue_pairs[usize::from(peer)]
            .as_ref()
            .unwrap()
            .control
            .qpn()
    }

    fn connect(&mut self, peer: u8, destination_qpn: Qpn) {
        let parts = self.queue_pairs[usize::from(peer)].as_mut().unwrap();
        parts.control.initialize(1, RemoteAccess::ALL).unwrap();
        let attributes = ReadyToReceive {
            address: AddressVector {
                destination: gid(peer),
                source_gid_index: 0,
                port: 1,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                service_level: 0,
            },
            path_mtu: Mtu::B4096,
            destination_qpn,
            receive_psn: Psn::from_low_bits(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
        };
        parts.control.ready_to_receive(&attributes).unwrap();
        let attributes = ReadyToSend {
            send_psn: Psn::from_low_bits(0),
            max_rd_atomic: 1,
            timeout: 4,
            retry_count: 7,
            rnr_retry: 7,
        };
        parts.control.ready_to_send(&attributes).unwrap();
        self.post_receives(usize::from(peer), 2 * DEPTH);
    }

    fn post_receives(&mut self, peer: usize, count: u32) {
        let parts = self.queue_pairs[peer].as_mut().unwrap();
        let mut batch = parts.receive.stage();
        for _ in 0..count {
            batch.push([self.arena.lease().unwrap()]).unwrap();
        }
        batch.ring().unwrap();
    }

    /// Takes what completed, and posts more in its place.
    fn turn(&mut self) {
        let Self {
            arena,
            sends,
            receives,
            queue_pairs,
            done,
            failed,
        } = self;
        let mut owed = [0_u32; HOSTS as usize];
        let each = |completion: <Host as Provider>::Completion| {
            let peer = completion.work_id().channel() as usize;
            let parts = queue_pairs[peer].as_mut().unwrap();
            let retired = parts.receive.retire(completion, |_, slot| arena.release(slot));
            owed[peer] += u32::from(retired.is_ok());
        };
        let mut each = each;
        while receives.poll(&mut each).unwrap() > 0 {}
        let each = |completion: <Host as Provider>::Completion| {
            let peer = completion.work_id().channel() as usize;
            let parts = queue_pairs[peer].as_mut().unwrap();
            let retired = parts
                .send
                .retire(completion, |_, slot| arena.release(slot))
                .unwrap();
            *done += retired.count();
            *failed += u64::from(!retired.status.is_success());
        };
        let mut each = each;
        while sends.poll(&mut each).unwrap() > 0 {}
        for (peer, parts) in queue_pairs.iter_mut().enumerate() {
            let Some(parts) = parts else { continue };
            if owed[peer] > 0 {
                let mut batch = parts.receive.stage();
                for _ in 0..owed[peer] {
                    batch.push([arena.lease().unwrap()]).unwrap();
                }
                batch.ring().unwrap();
            }
            if parts.send.room() >= BATCH {
                let mut batch = parts.send.stage();
                for number in 0..BATCH {
                    let mut slot = arena.lease().unwrap();
                    slot.set_len_bytes(MESSAGE_BYTES);
                    let flags = if number + 1 == BATCH {
                        PostFlags::SIGNALED
                    } else {
                        PostFlags::empty()
                    };
                    batch.push(Operation::Send, [slot], flags).unwrap();
                }
                batch.ring().unwrap();
            }
        }
    }
}

/// For how long this thread had a core, in nanoseconds; zero where nobody says it.
fn busy_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or_default()
}

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(5);
    let plan = "seed 1; drop 1% packet of any->any".parse().unwrap();
    let fabric = Fabric::builder().plan(plan).driven().build();
    let mut stations: Vec<_> = (0..HOSTS).map(|host| Station::new(&fabric, host)).collect();
    for host in 0..HOSTS {
        for peer in (0..HOSTS).filter(|peer| *peer != host) {
            let qpn = stations[usize::from(peer)].qpn(host);
            stations[usize::from(host)].connect(peer, qpn);
        }
    }
    let begin = Instant::now();
    let busy = busy_ns();
    while begin.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..100 {
            stations.iter_mut().for_each(Station::turn);
            fabric.run_for(Duration::from_micros(2));
        }
    }
    // What the machine did for others meanwhile does not count.
    let busy = busy_ns().saturating_sub(busy);
    let passed = if busy > 0 {
        busy as f64 / 1e9
    } else {
        begin.elapsed().as_secs_f64()
    };
    let tally = fabric.audit().unwrap();
    let messages: u64 = stations.iter().map(|station| station.done).sum();
    let failed: u64 = stations.iter().map(|station| station.failed).sum();
    println!(
        "{:.2} M packets/s and {:.2} M messages/s on one core: {} packets ({} lost) and {messages} messages \
         ({failed} failed) in {passed:.1} s of the core, {:.3} s of virtual time",
        tally.packets.sent as f64 / passed / 1e6,
        messages as f64 / passed / 1e6,
        tally.packets.sent,
        tally.packets.lost,
        fabric.now().to_ns() as f64 / 1e9,
    );
}
