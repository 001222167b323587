//! How many packets a second are simulated on the bare traits: eight hosts, each sending messages of 64 bytes to every other,
//! over links that lose one packet in a hundred. Every oracle of the fabric is on, and none of the swarm's.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement: where something fails, it panics"
)]

use core::time::Duration;

use doorbell::provider::{
    AddressVector, Arena, ArenaConfig, CompletionQueue, CompletionQueueConfig, Context as _, Gid, IpPrefix,
    Lent, LentCompletion as _, Mtu, ProtectionDomain, Provider, Psn, Qpn, QueuePair, QueuePairConfig,
    QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, SendBatch, SendQueue, Slot,
};
use doorbell::{Operation, PostFlags, RemoteAccess};
use doorbell_sim::{Fabric, Host, PortConfig};
use serde::Serialize;

use crate::swarm::cpu_ns;

const HOSTS: u8 = 8;
const DEPTH: u32 = 32;
const BATCH: u32 = 8;
const MESSAGE_BYTES: usize = 64;

/// The properties that the fabric checks during the run, and once more at its end (`Fabric::audit`).
const ORACLES: [&str; 5] = [
    "bytes of requests stay as they were sealed when posted",
    "bytes of receives stay as they were sealed when they ended",
    "requests are conserved",
    "receives are conserved",
    "packets are conserved",
];

/// The measured rates.
#[derive(Debug, Serialize)]
pub(crate) struct Bare {
    pub(crate) packets_per_second_per_core: f64,
    messages_per_second_per_core: f64,
    /// For how long a core computed.
    seconds: f64,
    plan: &'static str,
    oracles: [&'static str; 5],
}

/// The faults during the measurement.
const PLAN: &str = "seed 1; drop 1% packet of any->any";

/// Simulates for so long, of the time that a core computes.
pub(crate) fn measure(span: Duration) -> Bare {
    let fabric = Fabric::builder().plan(PLAN.parse().unwrap()).driven().build();
    let mut stations: Vec<_> = (0..HOSTS).map(|host| Station::new(&fabric, host)).collect();
    for host in 0..HOSTS {
        for peer in (0..HOSTS).filter(|peer| *peer != host) {
            let qpn = stations[usize::from(peer)].qpn(host);
            stations[usize::from(host)].connect(peer, qpn);
        }
    }
    let began_ns = cpu_ns();
    let passed = || Duration::from_nanos(cpu_ns().saturating_sub(began_ns));
    while passed() < span {
        for _ in 0..100 {
            stations.iter_mut().for_each(Station::turn);
            fabric.run_for(Duration::from_micros(2));
        }
    }
    let seconds = passed().as_secs_f64();
    let tally = fabric.audit().unwrap();
    let done: u64 = stations.iter().map(|station| station.done).sum();
    Bare {
        packets_per_second_per_core: tally.packets.sent as f64 / seconds,
        messages_per_second_per_core: done as f64 / seconds,
        seconds,
        plan: PLAN,
        oracles: ORACLES,
    }
}

/// All that one host has.
struct Station {
    arena: <Host as Provider>::Arena,
    sends: <Host as Provider>::CompletionQueue,
    receives: <Host as Provider>::CompletionQueue,
    /// By channel: the number of the peer.
    queue_pairs: Vec<Option<QueuePairParts<Host>>>,
    done: u64,
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
        let context = provider.open("sim0").unwrap();
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
        } = self;
        let mut owed = [0_u32; HOSTS as usize];
        let each = |completion: Lent<'_, <Host as Provider>::Completion>| {
            let peer = completion.work_id().channel() as usize;
            let parts = queue_pairs[peer].as_mut().unwrap();
            let retired = parts.receive.retire(completion, |_, slot| arena.release(slot));
            owed[peer] += u32::from(retired.is_ok());
        };
        let mut each = each;
        while receives.poll(&mut each).unwrap() > 0 {}
        let each = |completion: Lent<'_, <Host as Provider>::Completion>| {
            let peer = completion.work_id().channel() as usize;
            let parts = queue_pairs[peer].as_mut().unwrap();
            let retired = parts
                .send
                .retire(completion, |_, slot| arena.release(slot))
                .unwrap();
            assert!(retired.status.is_success(), "{}", retired.status);
            *done += retired.count();
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
