//! Random work under random plans: nothing is lost, doubled, reordered or mixed up, and at
//! the end everything that was posted completed, or its queue pair died and flushed it.
//!
//! `SIM_SEEDS=1000..2000 cargo test -p doorbell-sim --test chaos` runs other seeds.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use core::time::Duration;

use doorbell_core::provider::{
    AddressVector, Arena, ArenaConfig, ArrivalKind, Completion, CompletionQueue, CompletionQueueConfig,
    Context, LentCompletion as _, Operation, PostFlags, ProtectionDomain, Provider, QueuePair,
    QueuePairConfig, QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, RemoteAccess,
    RemoteAddress, SendBatch, SendQueue, Slot, Window, WindowConfig,
};
use doorbell_core::{Gid, IpPrefix, Mtu, Psn, QpState, Ticket, WcStatus};
use doorbell_sim::plan::{Action, Name};
use doorbell_sim::{Fabric, Host, LinkConfig, Plan, PortConfig, Quirks, Random};

const HOSTS: usize = 3;
const SLOTS: u32 = 96;
const SLOT_BYTES: usize = 700;
const DEPTH: u32 = 8;
/// Each queue pair's part of its peer's window: a counter, then room for data.
const PART_BYTES: usize = 2048;
/// Nothing of a plan begins later than this.
const TROUBLE_NS: u64 = 3_000_000;

/// One end of a connection.
struct Half {
    parts: QueuePairParts<Host>,
    /// The peer's window.
    remote: RemoteAddress,
    /// Posted requests, with the rule to judge each by.
    posted: Vec<(Ticket, Operation)>,
    /// How many of them ended.
    ended: usize,
    sent: u64,
    received: u64,
    counted: u64,
    is_dead: bool,
    /// A completion queue overran: what was in it nobody will ever know.
    has_lost_queue: bool,
}

struct Station {
    arena: <Host as Provider>::Arena,
    window: <Host as Provider>::Window,
    sends: <Host as Provider>::CompletionQueue,
    receives: <Host as Provider>::CompletionQueue,
    /// By channel.
    halves: Vec<Option<Half>>,
}

fn gid(host: usize) -> Gid {
    Gid::from_ip([10, 0, 0, host as u8 + 1].into())
}

/// Makes a message that begins with its number; the rest follows from the number.
fn message(number: u64, bytes: usize) -> Vec<u8> {
    let tail = (0..bytes).map(|place| (place as u8).wrapping_mul(31).wrapping_add(number as u8));
    number
        .to_le_bytes()
        .into_iter()
        .chain(tail)
        .take(bytes.max(8))
        .collect()
}

fn plan(random: &mut Random, quirks: &Quirks) -> Plan {
    let mut text = String::new();
    let host = |random: &mut Random| ["h0", "h1", "h2", "any"][random.below(4) as usize];
    for _ in 0..random.below(4) {
        let effect = ["drop", "duplicate", "reorder", "corrupt", "delay"][random.below(5) as usize];
        let kind = [
            "packet", "packet", "ack", "send", "write", "read", "response", "result", "nak", "rnr",
        ][random.below(10) as usize];
        let which = match random.below(3) {
            0 => format!("{}th", 1 + random.below(20)),
            1 => format!("every {}th", 2 + random.below(20)),
            _ => format!("{}%", random.below(15)),
        };
        let by = if effect == "delay" {
            format!(" by {}us", 1 + random.below(300))
        } else {
            String::new()
        };
        text += &format!(
            "{effect} {which} {kind} of {}->{}{by}; ",
            host(random),
            host(random)
        );
    }
    for _ in 0..random.below(3) {
        let (at, lasts) = (random.below(TROUBLE_NS), 1 + random.below(TROUBLE_NS));
        // A completion that is lost for good can end nothing.
        let kinds = if quirks.overrun_queues_work_on { 5 } else { 6 };
        let action = match random.below(kinds) {
            0 => format!("link {}-{} down", host(random), host(random)),
            1 => format!("port {} down", host(random)),
            2 => format!("pause {}", host(random)),
            3 => format!("slow {} by {}ns", host(random), random.below(5000)),
            4 => format!("kill h{}", random.below(3)),
            _ => format!("overrun h{}", random.below(3)),
        };
        text += &format!("at {at}ns {action}");
        text += &if action.starts_with("overrun") {
            "; ".to_owned()
        } else {
            format!(" for {lasts}ns; ")
        };
    }
    text.parse().unwrap()
}

impl Station {
    fn new(fabric: &Fabric, host: usize) -> Self {
        let prefix = IpPrefix::new(gid(host).to_ip(), 24).unwrap();
        let port = PortConfig::new("sim0", &[prefix]);
        let provider = fabric.host(&format!("h{host}"), vec![port]).unwrap();
        let context = provider.open("sim0").unwrap();
        let domain = context.protection_domain().unwrap();
        let queue = CompletionQueueConfig {
            depth: 64,
            notify: false,
        };
        let sends = context.completion_queue(&queue).unwrap();
        let receives = context.completion_queue(&queue).unwrap();
        let arena = domain.arena(&ArenaConfig::new(SLOTS, SLOT_BYTES as u32)).unwrap();
        let window = domain
            .window(&WindowConfig::new(PART_BYTES * HOSTS, RemoteAccess::ALL))
            .unwrap();
        let halves = (0..HOSTS).map(|peer| {
            let config = QueuePairConfig {
                channel: peer as u32,
                send_depth: DEPTH,
                receive_depth: DEPTH,
                gather_max: 2,
                scatter_max: 2,
                inline_bytes_max: 64,
            };
            let parts = domain.queue_pair(&sends, &receives, &config).unwrap();
            (peer != host).then_some(Half {
                parts,
                remote: RemoteAddress::new(0, doorbell_core::Rkey(0)),
                posted: Vec::new(),
                ended: 0,
                sent: 0,
                received: 0,
                counted: 0,
                is_dead: false,
                has_lost_queue: false,
            })
        });
        let halves = halves.collect();
        Self {
            arena,
            window,
            sends,
            receives,
            halves,
        }
    }

    /// Leases a slot with these bytes, while more are left than receives may need.
    fn slot(&mut self, bytes: &[u8]) -> Option<<Host as Provider>::Slot> {
        let mut slot = self.arena.lease()?;
        slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
        slot.set_len_bytes(bytes.len());
        Some(slot)
    }

    fn post_receive(&mut self, peer: usize) {
        let (Some(first), Some(second)) = (self.arena.lease(), self.arena.lease()) else {
            return;
        };
        let half = self.halves[peer].as_mut().unwrap();
        let mut batch = half.parts.receive.stage();
        // Without room, the slots go home.
        if batch.push([first, second]).is_ok() {
            batch.ring().unwrap();
        }
    }

    fn post(&mut self, peer: usize, random: &mut Random) {
        let half = self.halves[peer].as_ref().unwrap();
        let remote = half.remote;
        let data = RemoteAddress::new(remote.address() + 8, remote.rkey());
        let bytes = 8 + random.below(2 * SLOT_BYTES as u64 - 8) as usize;
        let number = half.sent;
        let operation = match random.below(8) {
            0 | 1 => Operation::Send,
            2 => Operation::SendWithImmediate(number as u32),
            3 => Operation::Write(data),
            4 => Operation::WriteWithImmediate(data, number as u32),
            5 => Operation::Read(data),
            _ => Operation::FetchAndAdd { remote, add: 1 },
        };
        let takes = operation.takes_receive();
        let text = message(number, bytes);
        let mut flags = PostFlags::SIGNALED;
        if random.happens(200_000) {
            flags |= PostFlags::FENCE;
        }
        let (first, second) = text.split_at(text.len().min(SLOT_BYTES));
        let Some(first) = self.slot(if operation.is_atomic() { b"" } else { first }) else {
            return;
        };
        let second = self.slot(second);
        let half = self.halves[peer].as_mut().unwrap();
        let mut batch = half.parts.send.stage();
        let pushed = match second.filter(|_| !operation.is_atomic() && bytes > SLOT_BYTES) {
            Some(second) => batch.push(operation, [first, second], flags).ok(),
            // A message that is cut shows by its number of bytes.
            None => batch.push(operation, [first], flags).ok(),
        };
        if let Some(ticket) = pushed {
            batch.ring().unwrap();
            half.posted.push((ticket, operation));
            half.sent += u64::from(takes);
        }
    }

    /// Takes what completed, and judges it.
    fn poll(&mut self) {
        let Self {
            sends,
            receives,
            halves,
            arena,
            ..
        } = self;
        let mut completions = Vec::new();
        if sends
            .poll(|completion| completions.push(completion.keep()))
            .is_err()
        {
            halves.iter_mut().flatten().for_each(Half::lose_queue);
        }
        for completion in completions {
            let half = halves[completion.work_id().channel() as usize].as_mut().unwrap();
            half.take_end(completion, arena);
        }
        let mut completions = Vec::new();
        if receives
            .poll(|completion| completions.push(completion.keep()))
            .is_err()
        {
            halves.iter_mut().flatten().for_each(Half::lose_queue);
        }
        for completion in completions {
            let half = halves[completion.work_id().channel() as usize].as_mut().unwrap();
            half.take_arrival(completion, arena);
        }
    }
}

impl Half {
    fn lose_queue(&mut self) {
        self.is_dead = true;
        self.has_lost_queue = true;
    }

    fn take_end(
        &mut self,
        completion: <Host as Provider>::Completion,
        arena: &mut <Host as Provider>::Arena,
    ) {
        let mut bytes = Vec::new();
        let retired = self.parts.send.retire(completion.lend(), |_, slot| {
            bytes.extend_from_slice(slot.payload());
            arena.release(slot);
        });
        let retired = retired.unwrap();
        // Each is signaled, so each ends by its own completion, in order.
        let (ticket, operation) = self.posted[self.ended];
        assert_eq!((retired.first, retired.last), (ticket, ticket));
        self.ended += 1;
        if !retired.status.is_success() {
            let is_cause = retired.status != WcStatus::WR_FLUSH_ERR;
            assert!(
                !(is_cause && self.is_dead),
                "a second cause: {:?}",
                retired.status
            );
            self.is_dead = true;
            return;
        }
        assert!(!self.is_dead, "a success behind a failure");
        if operation.is_atomic() {
            // Nobody else counts there.
            assert_eq!(bytes, self.counted.to_ne_bytes(), "each count once");
            self.counted += 1;
        }
    }

    fn take_arrival(
        &mut self,
        completion: <Host as Provider>::Completion,
        arena: &mut <Host as Provider>::Arena,
    ) {
        let mut bytes = Vec::new();
        let arrival = self.parts.receive.retire(completion.lend(), |_, slot| {
            bytes.extend_from_slice(slot.payload());
            arena.release(slot);
        });
        let arrival = arrival.unwrap();
        if !arrival.status.is_success() {
            return;
        }
        let number = self.received;
        self.received += 1;
        if let Some(immediate) = arrival.immediate {
            assert_eq!(immediate, number as u32, "in order, none left out, none twice");
        }
        if arrival.kind == ArrivalKind::Send {
            assert_eq!(bytes.len(), arrival.payload_bytes as usize);
            assert_eq!(
                bytes,
                message(number, bytes.len()),
                "the bytes of message {number}"
            );
        }
    }
}

fn connect(stations: &mut [Station], random: &mut Random) {
    for host in 0..HOSTS {
        for peer in 0..host {
            let mtu = [Mtu::B256, Mtu::B512, Mtu::B1024][random.below(3) as usize];
            let psns = [0; 2].map(|_| Psn::from_low_bits(random.draw() as u32));
            let ends = [(host, peer, psns), (peer, host, [psns[1], psns[0]])];
            for (ours, theirs, [send_psn, receive_psn]) in ends {
                let half = stations[theirs].halves[ours].as_ref().unwrap();
                let destination_qpn = half.parts.control.qpn();
                let remote = stations[theirs].window.remote();
                let depth = 1 + random.below(4) as u8;
                let half = stations[ours].halves[theirs].as_mut().unwrap();
                half.remote = RemoteAddress::new(
                    remote.address_of((ours * PART_BYTES) as u64, 0).unwrap(),
                    remote.rkey(),
                );
                let control = &mut half.parts.control;
                control.initialize(1, RemoteAccess::ALL).unwrap();
                let attributes = ReadyToReceive {
                    address: AddressVector {
                        destination: gid(theirs),
                        source_gid_index: 0,
                        port: 1,
                        hop_limit: 64,
                        traffic_class: 0,
                        flow_label: 0,
                        service_level: 0,
                    },
                    path_mtu: mtu,
                    destination_qpn,
                    receive_psn,
                    max_dest_rd_atomic: 4,
                    min_rnr_timer: 1 + random.below(8) as u8,
                };
                control.ready_to_receive(&attributes).unwrap();
                let attributes = ReadyToSend {
                    send_psn,
                    max_rd_atomic: depth,
                    timeout: 1 + random.below(8) as u8,
                    retry_count: random.below(8) as u8,
                    rnr_retry: random.below(8) as u8,
                };
                control.ready_to_send(&attributes).unwrap();
            }
        }
    }
}

/// Runs one seed.
fn run(seed: u64, quirks: Quirks) {
    let mut random = Random::new(seed);
    let plan = plan(&mut random, &quirks);
    let link = LinkConfig {
        latency_ns: 100 + random.below(3000),
        bandwidth_mbps: Some(1000 + random.below(100_000) as u32),
    };
    let builder = Fabric::builder().seed(random.draw()).link(link).quirks(quirks);
    let fabric = builder.plan(plan).driven().build();
    let mut stations: Vec<_> = (0..HOSTS).map(|host| Station::new(&fabric, host)).collect();
    connect(&mut stations, &mut random);
    for _ in 0..300 {
        let host = random.below(HOSTS as u64) as usize;
        let peer = (host + 1 + random.below(HOSTS as u64 - 1) as usize) % HOSTS;
        match random.below(20) {
            0..8 => stations[host].post(peer, &mut random),
            8..13 => stations[host].post_receive(peer),
            13..15 => stations[host].poll(),
            _ => fabric.run_for(Duration::from_nanos(random.below(20_000))),
        }
        fabric.audit().unwrap();
    }
    if random.happens(200_000) {
        let half = stations[0].halves[1].as_mut().unwrap();
        half.parts.control.fail().unwrap();
    }
    // Trouble ends, and everybody receives.
    fabric.run_for(Duration::from_nanos(3 * TROUBLE_NS));
    fabric.perform(&Action::Calm).unwrap();
    for host in 0..HOSTS {
        let name = Name::new(&format!("h{host}")).unwrap();
        fabric.perform(&Action::Pause(name.clone(), false)).unwrap();
        fabric.perform(&Action::Slow(name, 0)).unwrap();
    }
    let is_done = |stations: &[Station]| {
        let mut halves = stations
            .iter()
            .flat_map(|station| station.halves.iter().flatten());
        halves.all(|half| half.ended == half.posted.len() || half.is_dead)
    };
    for _ in 0..400 {
        for station in &mut stations {
            for peer in 0..HOSTS {
                if station.halves[peer].is_some() {
                    station.post_receive(peer);
                }
            }
            (0..4).for_each(|_| station.poll());
        }
        if is_done(&stations) {
            break;
        }
        fabric.run_for(Duration::from_millis(1));
    }
    for station in &stations {
        for half in station.halves.iter().flatten() {
            let state = half.parts.control.state().unwrap();
            let all = half.ended == half.posted.len() || half.has_lost_queue;
            assert!(
                all || state == QpState::Error,
                "{} of {} ended",
                half.ended,
                half.posted.len()
            );
        }
    }
    fabric.audit().unwrap();
    for station in &mut stations {
        station.halves.clear();
        let home: Vec<_> = core::iter::from_fn(|| station.arena.lease()).collect();
        assert_eq!(home.len(), SLOTS as usize, "slots");
    }
    fabric.audit().unwrap();
}

/// The seeds to run.
fn seeds() -> core::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else {
        return 0..250;
    };
    let (first, end) = text.split_once("..").expect("SIM_SEEDS=FIRST..END");
    first.parse().unwrap()..end.parse().unwrap()
}

/// Says which seed fails.
fn run_all(quirks: Quirks) {
    for seed in seeds() {
        if std::env::var_os("SIM_SHOW").is_some() {
            eprintln!("seed {seed}");
        }
        let outcome = std::panic::catch_unwind(|| run(seed, quirks));
        if outcome.is_err() {
            let plan = plan(&mut Random::new(seed), &quirks);
            panic!("seed {seed} fails, with the plan: {plan}");
        }
    }
}

#[test]
fn whatever_goes_wrong_everything_ends_and_nothing_is_mixed_up() {
    run_all(Quirks::IBA);
}

#[test]
fn on_software_devices_too() {
    run_all(Quirks {
        // Else seven retries never end.
        seven_retries_are_endless: false,
        // Else each wait is longer than the whole run.
        timer_step_ns: 20_000,
        ..Quirks::RXE_6_1
    });
}
