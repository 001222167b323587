//! Classes of links: strict priorities, shares by weight, limits, and marks on the wire, in virtual time.

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{LinkConfig, LinkError, LinkEvent, LinkId, Links, SessionEvent};
use doorbell::link::{TransferEvent, TransferId, TransferOptions};
use doorbell::memory::Region;
use doorbell::provider::{Instant, PlacementConfig};
use doorbell::worker::{Class, Classes};
use doorbell::{Handle, Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host, LinkConfig as Wire, PortConfig};

use crate::fabric::prefix;
use crate::processes::ms;

const LATENCY: Duration = Duration::from_micros(50);
const MBPS: u32 = 10_000;
/// A transfer of a link that is to saturate the port, and how many it has open.
const BULK_BYTES: u64 = 8 << 20;
const BULK_COUNT: usize = 2;

const LOW: u8 = 0;
const LIGHT: u8 = 1;
const HEAVY: u8 = 2;
const HIGH: u8 = 3;

fn classes() -> Classes {
    let mut classes = Classes::default();
    classes.bytes_ahead_max = 120 << 10;
    for (class, priority, weight, traffic_class) in
        [(LIGHT, 0, 1, 0x20), (HEAVY, 0, 3, 0x48), (HIGH, 7, 1, 0xb8)]
    {
        let class = &mut classes.table[usize::from(class)];
        (class.priority, class.weight, class.traffic_class) = (priority, weight, traffic_class);
    }
    classes
}

/// Reports to a process.
#[derive(Default)]
struct Heard {
    accepted: Vec<LinkId>,
    connected: Vec<LinkId>,
    offered: Vec<(LinkId, TransferId)>,
    ended: u64,
    /// When messages came, of each link.
    came: Vec<(LinkId, Instant, Vec<u8>)>,
}

struct Process {
    node: Arc<Node<Host, Host>>,
    workers: Vec<Worker<Host>>,
    links: Links<Host, Host>,
    region: Region<Host>,
    heard: Heard,
    /// Rails may fail.
    may_fail: bool,
}

impl Process {
    fn new(host: &Host, classes: Option<Classes>, config: &LinkConfig) -> Self {
        let node = Node::simulated(host.clone(), Trust::unauthenticated_on_purpose()).unwrap();
        let node = Arc::new(node);
        let mut own = WorkerConfig::default();
        own.classes = classes;
        let workers = node.workers(&own).unwrap();
        let links = Links::new(&node, &workers, config).unwrap();
        let placement = PlacementConfig::DEFAULT;
        let region = node.region(&workers, BULK_BYTES as usize, &placement).unwrap();
        Self {
            node,
            workers,
            links,
            region,
            heard: Heard::default(),
            may_fail: false,
        }
    }

    fn poll(&mut self, now: Instant) {
        let (heard, may_fail) = (&mut self.heard, self.may_fail);
        self.links
            .poll(&self.node, &mut self.workers, |link, event| match event {
                LinkEvent::Accepted => heard.accepted.push(link),
                LinkEvent::Session(SessionEvent::Connected) => heard.connected.push(link),
                LinkEvent::Session(SessionEvent::Final { reason }) => panic!("{link}: {reason}"),
                LinkEvent::Session(SessionEvent::RailDown { .. }) if !may_fail => {
                    panic!("{link}: a rail is down")
                }
                LinkEvent::Received { message } => heard.came.push((link, now, message.to_vec())),
                LinkEvent::Transfer { transfer, event } => match event {
                    TransferEvent::Offered { .. } => heard.offered.push((link, transfer)),
                    TransferEvent::Ended { .. } => heard.ended += 1,
                    _ => {}
                },
                _ => {}
            })
            .unwrap();
        for offer in core::mem::take(&mut self.heard.offered) {
            let options = TransferOptions::default();
            self.links
                .join(&self.node, offer, (&self.region, 0), &options)
                .unwrap();
        }
    }
}

/// A link that always has transfers under way.
struct Bulk {
    link: LinkId,
    open: Vec<TransferId>,
    ended_bytes: u64,
}

struct Lab {
    fabric: Fabric,
    /// The one that sends, and the one that receives.
    a: Process,
    b: Process,
    handle: Handle,
    /// Another that receives.
    c: Option<Process>,
    bulks: Vec<Bulk>,
}

impl Lab {
    fn new(classes: Option<Classes>) -> Self {
        Self::with([classes; 2], &LinkConfig::default())
    }

    fn with([a, b]: [Option<Classes>; 2], config: &LinkConfig) -> Self {
        let wire = Wire {
            latency_ns: LATENCY.as_nanos() as u64,
            bandwidth_mbps: Some(MBPS),
        };
        let fabric = Fabric::builder().link(wire).driven().build();
        let host = |name: &str, at: u8| {
            let port = PortConfig::new("sim0", &[prefix(&format!("10.0.0.{at}/24"))]);
            fabric.host(name, vec![port]).unwrap()
        };
        let a = Process::new(&host("a", 1), a, config);
        let mut b = Process::new(&host("b", 2), b, config);
        let any = "0.0.0.0:7000".parse().unwrap();
        let handle = b.links.listen_polled(&b.node, &b.workers, any).unwrap();
        Self {
            fabric,
            a,
            b,
            handle,
            c: None,
            bulks: Vec::new(),
        }
    }

    /// A connected link of a class.
    fn link(&mut self, class: u8) -> LinkId {
        let Self { a, handle, .. } = self;
        let link = a.links.connect_in(class, &a.node, &a.workers, handle).unwrap();
        let until = self.fabric.now().after(ms(100));
        while !self.a.heard.connected.contains(&link) {
            assert!(self.fabric.now() < until);
            self.step(until);
        }
        link
    }

    /// A link of a class that saturates the port.
    fn bulk(&mut self, class: u8) -> LinkId {
        let link = self.link(class);
        self.bulks.push(Bulk {
            link,
            open: Vec::new(),
            ended_bytes: 0,
        });
        link
    }

    /// Polls both, and lets time pass until something happens, or until then.
    fn step(&mut self, until: Instant) {
        let now = self.fabric.now();
        for bulk in &mut self.bulks {
            let Process {
                links, node, region, ..
            } = &mut self.a;
            let before = bulk.open.len();
            bulk.open
                .retain(|id| links.transfer_counts(bulk.link, *id).is_some());
            bulk.ended_bytes += BULK_BYTES * (before - bulk.open.len()) as u64;
            while bulk.open.len() < BULK_COUNT {
                let options = TransferOptions::default();
                let given = (&*region, 0, BULK_BYTES);
                bulk.open
                    .push(links.offer(node, bulk.link, given, &options).unwrap());
            }
        }
        let mut next = until;
        for process in [&mut self.a, &mut self.b].into_iter().chain(&mut self.c) {
            process.poll(now);
            if let Some(wake) = process.links.wake(now) {
                assert!(wake.instant() > now, "it wakes for nothing");
                next = next.min(wake.instant());
            }
        }
        match self.fabric.next_at() {
            Some(at) if at <= next => assert!(self.fabric.step()),
            _ => self.fabric.run_until(next),
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.fabric.now().after(span);
        while self.fabric.now() < until {
            self.step(until);
        }
    }

    /// The bytes that each link's transfers have brought.
    fn landed(&self) -> Vec<u64> {
        let landed = self.bulks.iter().map(|bulk| {
            let open = bulk.open.iter();
            let open = open.filter_map(|id| self.a.links.transfer_counts(bulk.link, *id));
            bulk.ended_bytes + open.map(|counts| counts.landed_bytes).sum::<u64>()
        });
        landed.collect()
    }

    /// The bytes that come within this time.
    fn landed_within(&mut self, span: Duration) -> Vec<u64> {
        let before = self.landed();
        self.run(span);
        let after = self.landed();
        after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect()
    }

    /// Sends so many short messages one after the other, with a pause of changing length. The 99th percentile of the time until the
    /// peer has one, in nanoseconds.
    fn p99_ns(&mut self, link: LinkId, count: usize) -> u64 {
        self.b.heard.came.clear();
        let mut sent = Vec::new();
        for number in 0..count {
            let pause = Duration::from_nanos(90_000 + (number as u64 * 7_919) % 60_000);
            self.run(pause);
            sent.push(self.fabric.now());
            let message = [number as u8; 64];
            self.a.links.send(link, &message).unwrap();
        }
        self.run(ms(20));
        let came = &self.b.heard.came;
        assert_eq!(came.len(), count);
        let mut took: Vec<_> = came
            .iter()
            .zip(&sent)
            .map(|((_, came, _), sent)| came.to_ns() - sent.to_ns())
            .collect();
        took.sort_unstable();
        took[count * 99 / 100]
    }
}

fn is_within(value: u64, of: u64, percent: u64) -> bool {
    value.abs_diff(of) <= of * percent / 100
}

/// The bytes that the port carries in this time, in packets of 4 KiB.
fn carried(span: Duration) -> u64 {
    span.as_micros() as u64 * u64::from(MBPS) / 8
}

#[test]
fn a_high_class_is_at_most_twice_as_slow_under_a_saturating_low_one() {
    let mut idle = Lab::new(Some(classes()));
    let link = idle.link(HIGH);
    let idle_ns = idle.p99_ns(link, 300);

    let mut loaded = Lab::new(Some(classes()));
    let link = loaded.link(HIGH);
    loaded.bulk(LIGHT);
    loaded.bulk(HEAVY);
    loaded.run(ms(5));
    let before = (loaded.landed(), loaded.fabric.now());
    let loaded_ns = loaded.p99_ns(link, 300);
    let span = Duration::from_nanos(loaded.fabric.now().to_ns() - before.1.to_ns());
    let landed: u64 = loaded
        .landed()
        .iter()
        .zip(before.0)
        .map(|(after, before)| after - before)
        .sum();
    println!(
        "idle {idle_ns} ns, loaded {loaded_ns} ns, {landed} of {} bytes",
        carried(span)
    );
    assert!(loaded_ns <= 2 * idle_ns, "{loaded_ns} {idle_ns}");
    // The port is busy, all the same.
    assert!(landed > carried(span) * 85 / 100, "{landed} {}", carried(span));

    // Without classes the same message waits for what all links have under way.
    let mut plain = Lab::new(None);
    let link = plain.link(HIGH);
    plain.bulk(LIGHT);
    plain.bulk(HEAVY);
    plain.run(ms(5));
    let plain_ns = plain.p99_ns(link, 100);
    println!("without classes {plain_ns} ns");
    assert!(plain_ns > 4 * idle_ns, "{plain_ns} {idle_ns}");
}

#[test]
fn equals_share_a_port_by_weight() {
    let mut lab = Lab::new(Some(classes()));
    lab.bulk(LIGHT);
    lab.bulk(HEAVY);
    lab.bulk(HEAVY);
    lab.run(ms(5));
    let landed = lab.landed_within(ms(50));
    let all = landed.iter().sum::<u64>();
    println!("{landed:?} of {}", carried(ms(50)));
    assert!(all > carried(ms(50)) * 85 / 100);
    assert!(is_within(landed[0], all / 4, 10), "{landed:?}");
    for heavy in &landed[1..] {
        assert!(is_within(*heavy, all * 3 / 8, 10), "{landed:?}");
    }
    let counts = lab.a.links.class_counts(HEAVY).unwrap();
    assert!(
        counts.bytes >= landed[1] + landed[2] && counts.requests > 0,
        "{counts:?}"
    );
}

#[test]
fn a_higher_priority_leaves_only_what_it_does_not_use() {
    let mut lab = Lab::new(Some(classes()));
    let low = lab.bulk(LIGHT);
    lab.bulk(HIGH);
    lab.run(ms(5));
    let landed = lab.landed_within(ms(30));
    // Pieces of the low one go where the high one waits for its peer.
    assert!(landed[0] < landed[1] / 50, "{landed:?}");
    // It goes on once the other is done.
    let high = lab.bulks.pop().unwrap();
    for id in high.open {
        lab.a.links.cancel(&lab.a.node, (high.link, id)).unwrap();
    }
    lab.run(ms(5));
    let landed = lab.landed_within(ms(30));
    assert!(landed[0] > carried(ms(30)) * 80 / 100, "{landed:?}");
    assert_eq!(lab.a.links.class(low), Some(LIGHT));
    assert!(lab.a.links.set_class(low, LOW));
}

#[test]
fn limits_of_a_class_and_of_a_link_hold_over_a_second() {
    const RATE: u64 = 20_000_000;
    let mut table = classes();
    table.table[usize::from(LIGHT)].bytes_per_second_max = NonZeroU64::new(RATE);
    let mut lab = Lab::new(Some(table));
    // Two links of one class have its limit together.
    lab.bulk(LIGHT);
    lab.bulk(LIGHT);
    let own = lab.bulk(HEAVY);
    let Process { links, node, .. } = &mut lab.a;
    assert!(links.set_limit(node, own, NonZeroU64::new(RATE / 4)));
    lab.run(ms(50));
    let landed = lab.landed_within(Duration::from_secs(1));
    println!("{landed:?}");
    assert!(is_within(landed[0] + landed[1], RATE, 5), "{landed:?}");
    assert!(is_within(landed[0], RATE / 2, 10), "{landed:?}");
    assert!(is_within(landed[2], RATE / 4, 5), "{landed:?}");
}

#[test]
fn messages_of_equals_share_by_weight_and_a_high_one_goes_first() {
    let mut table = classes();
    table.bytes_ahead_max = 64 << 10;
    let mut lab = Lab::new(Some(table));
    let [light, heavy, high] = [LIGHT, HEAVY, HIGH].map(|class| lab.link(class));
    let message = vec![7; 60_000];
    let fill = |lab: &mut Lab| {
        for link in [light, heavy] {
            while lab.a.links.send(link, &message).is_ok() {}
        }
    };
    fill(&mut lab);
    lab.run(ms(1));
    let mut took = Vec::new();
    for _ in 0..200 {
        fill(&mut lab);
        lab.run(Duration::from_micros(100));
        let sent = lab.fabric.now();
        let mark = lab.b.heard.came.len();
        lab.a.links.send(high, &[1; 64]).unwrap();
        lab.run(Duration::from_micros(400));
        let came = lab.b.heard.came[mark..]
            .iter()
            .find(|(_, _, bytes)| bytes.len() == 64);
        took.push(came.unwrap().1.to_ns() - sent.to_ns());
    }
    let bytes = |class: u8| lab.a.links.class_counts(class).unwrap().bytes;
    let (light, heavy) = (bytes(LIGHT), bytes(HEAVY));
    println!("light {light}, heavy {heavy}, slowest {:?} ns", took.iter().max());
    assert!(is_within(heavy, 3 * light, 10), "{light} {heavy}");
    assert!(
        took.iter().all(|ns| *ns < 2 * LATENCY.as_nanos() as u64),
        "{took:?}"
    );
}

#[test]
fn a_peer_that_is_gone_holds_up_others_for_no_longer_than_its_rail_is_trusted() {
    let mut lab = Lab::new(Some(classes()));
    let to_b = lab.handle;
    let port = PortConfig::new("sim0", &[prefix("10.0.0.3/24")]);
    let host = lab.fabric.host("c", vec![port]).unwrap();
    let mut c = Process::new(&host, Some(classes()), &LinkConfig::default());
    let any = "0.0.0.0:7000".parse().unwrap();
    lab.handle = c.links.listen_polled(&c.node, &c.workers, any).unwrap();
    lab.c = Some(c);
    lab.bulk(LIGHT);
    lab.handle = to_b;
    lab.bulk(LIGHT);
    lab.run(ms(5));
    let cut = format!("at {}ns link a-c down", lab.fabric.now().to_ns());
    lab.fabric.follow(&cut.parse().unwrap());
    for process in [&mut lab.a, &mut lab.b].into_iter().chain(&mut lab.c) {
        process.may_fail = true;
    }
    // Its bytes may fill the port until it is suspect, after 40 ms.
    lab.run(ms(42));
    let landed = lab.landed_within(ms(20));
    assert!(landed[1] > carried(ms(20)) * 80 / 100, "{landed:?}");
}

/// The traffic class of an Ethernet frame with IPv4, and the last byte of its source.
fn marks(frame: &[u8]) -> Option<(u8, u8)> {
    let packet = frame.get(14..).filter(|_| frame[12..14] == [8, 0])?;
    Some((packet[1], packet[15]))
}

#[test]
fn a_class_is_seen_on_the_wire_from_both_sides() {
    let mut lab = Lab::new(Some(classes()));
    lab.fabric.capture(100_000);
    let high = lab.link(HIGH);
    let light = lab.link(LIGHT);
    let plain = lab.link(LOW);
    // The peer accepts each in the class with the same marks.
    let accepted: Vec<_> = lab
        .b
        .heard
        .accepted
        .iter()
        .map(|link| lab.b.links.class(*link))
        .collect();
    assert_eq!(accepted, [Some(HIGH), Some(LIGHT), Some(LOW)]);
    for link in [high, light, plain] {
        lab.a.links.send(link, b"there").unwrap();
    }
    for link in lab.b.heard.accepted.clone() {
        lab.b.links.send(link, b"and back").unwrap();
    }
    lab.run(ms(10));
    let frames = lab.fabric.take_captured();
    for from in [1, 2] {
        let mut seen: Vec<_> = frames
            .iter()
            .filter_map(|frame| marks(&frame.bytes))
            .filter(|(_, source)| *source == from)
            .map(|(class, _)| class)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 0x20, 0xb8], "from {from}");
    }
}

#[test]
fn all_workers_of_links_have_the_same_classes() {
    let fabric = Fabric::new();
    let ports =
        [1, 2].map(|rail| PortConfig::new(&format!("sim{rail}"), &[prefix(&format!("10.0.{rail}.1/24"))]));
    let host = fabric.host("a", ports.to_vec()).unwrap();
    let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
    let mut config = WorkerConfig::default();
    config.classes = Some(Classes::default());
    let mut workers = node.workers(&config).unwrap();
    assert_eq!(workers.len(), 2);
    assert!(Links::new(&node, &workers, &LinkConfig::default()).is_ok());
    let mut other = Class::default();
    other.weight = 2;
    config.classes.as_mut().unwrap().table[5] = other;
    workers.truncate(1);
    workers.push(node.workers(&config).unwrap().remove(1));
    let refused = Links::new(&node, &workers, &LinkConfig::default());
    assert!(matches!(refused, Err(LinkError::OtherClasses)));
}
