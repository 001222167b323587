//! Classes of channels: what submitters hand in goes by priority, by weight and within limits, in virtual time.

use core::num::NonZeroU64;
use core::time::Duration;

use doorbell::provider::Instant;
use doorbell::worker::{Classes, Submitter, SubmitterConfig};
use doorbell::{
    ChannelConfig, ChannelId, Event, Listener, Node, Operation, PostFlags, Trust, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host, LinkConfig as Wire, PortConfig};

use crate::fabric::prefix;

const LATENCY_NS: u64 = 50_000;
const MBPS: u32 = 10_000;
const BYTES: usize = 4096;

const LIGHT: usize = 0;
const HEAVY: usize = 1;
const HIGH: usize = 2;

struct Lab {
    fabric: Fabric,
    /// The one that sends, and the one that receives.
    workers: [Worker<Host>; 2],
    nodes: [Node<Host, Host>; 2],
    /// The channels of the one that sends, by class.
    ids: Vec<ChannelId>,
    submitters: Vec<Submitter<Host>>,
    /// The messages that came, by the class that each names: when, and how many bytes.
    came: [Vec<(Instant, usize)>; 3],
    /// The marks of the channels that were accepted.
    accepted: Vec<u8>,
}

fn classes() -> Classes {
    let mut classes = Classes::default();
    classes.bytes_ahead_max = 128 << 10;
    for (class, (priority, weight)) in [(0, 1), (0, 3), (7, 1)].into_iter().enumerate() {
        let of = &mut classes.table[class];
        (of.priority, of.weight, of.traffic_class) = (priority, weight, 4 * class as u8);
    }
    classes
}

impl Lab {
    fn new(classes: Option<Classes>) -> Self {
        let wire = Wire {
            latency_ns: LATENCY_NS,
            bandwidth_mbps: Some(MBPS),
        };
        let fabric = Fabric::builder().link(wire).driven().build();
        let nodes = [1, 2].map(|at| {
            let port = PortConfig::new("sim0", &[prefix(&format!("10.0.0.{at}/24"))]);
            let host = fabric.host(&format!("h{at}"), vec![port]).unwrap();
            Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap()
        });
        let mut config = WorkerConfig::default();
        config.classes = classes;
        let [mut a, mut b] = [0, 1].map(|at: usize| nodes[at].workers(&config).unwrap());
        let mut channel = ChannelConfig::default();
        let any = "0.0.0.0:7000".parse().unwrap();
        let mut listener = Listener::bind(&nodes[1], &b, any, &channel).unwrap();
        let (mut ids, mut accepted) = (Vec::new(), Vec::new());
        for class in 0..3 {
            channel.class = class;
            let deadline = nodes[0].within(Duration::from_secs(1));
            let mut connecting = nodes[0]
                .begin_connect(&a, listener.handle(), &channel, deadline)
                .unwrap();
            let (mut from, mut to) = (None, None);
            while from.is_none() || to.is_none() {
                from = from.or(listener.poll_accept(&nodes[1], &mut b).unwrap());
                to = to.or(connecting.poll(&nodes[0], &mut a).transpose().unwrap());
                fabric.run_for(Duration::from_micros(10));
            }
            ids.push(to.unwrap().channel);
            accepted.push(b[0].channel(from.unwrap().channel).unwrap().class());
        }
        let (mut a, b) = (a.remove(0), b.remove(0));
        let mut own = SubmitterConfig::default();
        (own.slots, own.depth) = (512, 512);
        let submitters = (0..3).map(|_| a.submitter(&own).unwrap()).collect();
        Self {
            fabric,
            workers: [a, b],
            nodes,
            ids,
            submitters,
            came: [const { Vec::new() }; 3],
            accepted,
        }
    }

    /// Submits a message of so many bytes in a class; whether there is memory for it.
    fn submit(&mut self, class: usize, bytes: usize) -> bool {
        let submitter = &mut self.submitters[class];
        let Some(mut lease) = submitter.lease() else {
            return false;
        };
        lease.fill(&vec![class as u8; bytes]).unwrap();
        submitter
            .submit(self.ids[class], Operation::Send, lease, PostFlags::empty())
            .is_ok()
    }

    /// Submits all that these classes have memory for.
    fn fill(&mut self, classes: &[usize]) {
        for class in classes {
            while self.submit(*class, BYTES) {}
        }
    }

    fn poll(&mut self) {
        let now = self.fabric.now();
        let came = &mut self.came;
        for worker in &mut self.workers {
            worker
                .poll(|_, event| {
                    if let Event::Received { message, .. } = event {
                        let bytes = message.payload();
                        came[usize::from(bytes[0])].push((now, bytes.len()));
                    }
                })
                .unwrap();
        }
    }

    /// Lets time pass while all these classes have something to send.
    fn run(&mut self, span: Duration, busy: &[usize]) {
        let until = self.fabric.now().after(span);
        while self.fabric.now() < until {
            self.fill(busy);
            self.poll();
            // Polls often, whatever happens.
            let next = self.fabric.now().after(Duration::from_micros(5)).min(until);
            match self.fabric.next_at() {
                Some(at) if at <= next => assert!(self.fabric.step()),
                _ => self.fabric.run_until(next),
            }
        }
    }

    fn bytes(&self, class: usize) -> usize {
        self.came[class].iter().map(|(_, bytes)| bytes).sum()
    }

    /// The 99th percentile of the time that short messages of the high class take, while others are busy.
    fn p99_ns(&mut self, busy: &[usize]) -> u64 {
        let count = 200;
        let mut took = Vec::new();
        for number in 0..count {
            self.run(Duration::from_nanos(40_000 + number * 7_919 % 30_000), busy);
            let sent = self.fabric.now();
            let before = self.came[HIGH].len();
            assert!(self.submit(HIGH, 64));
            while self.came[HIGH].len() == before {
                self.run(Duration::from_micros(1), busy);
            }
            took.push(self.came[HIGH][before].0.to_ns() - sent.to_ns());
        }
        took.sort_unstable();
        took[took.len() * 99 / 100]
    }
}

fn is_within(value: usize, of: usize, percent: usize) -> bool {
    value.abs_diff(of) <= of * percent / 100
}

/// The bytes that the port carries in this time.
fn carried(span: Duration) -> usize {
    span.as_micros() as usize * MBPS as usize / 8
}

#[test]
fn a_high_class_is_at_most_twice_as_slow_under_saturating_low_ones() {
    let idle_ns = Lab::new(Some(classes())).p99_ns(&[]);
    let mut lab = Lab::new(Some(classes()));
    lab.run(Duration::from_millis(2), &[LIGHT, HEAVY]);
    let (before, began) = (lab.bytes(LIGHT) + lab.bytes(HEAVY), lab.fabric.now());
    let loaded_ns = lab.p99_ns(&[LIGHT, HEAVY]);
    let bytes = lab.bytes(LIGHT) + lab.bytes(HEAVY) - before;
    let span = Duration::from_nanos(lab.fabric.now().to_ns() - began.to_ns());
    let plain_ns = {
        let mut plain = Lab::new(None);
        plain.run(Duration::from_millis(2), &[LIGHT, HEAVY]);
        plain.p99_ns(&[LIGHT, HEAVY])
    };
    println!(
        "idle {idle_ns} ns, loaded {loaded_ns} ns, without classes {plain_ns} ns, {bytes} of {}",
        carried(span)
    );
    assert!(loaded_ns <= 2 * idle_ns, "{loaded_ns} {idle_ns}");
    assert!(bytes > carried(span) * 85 / 100);
    assert!(plain_ns > 3 * idle_ns, "{plain_ns} {idle_ns}");
}

#[test]
fn equals_share_by_weight_and_are_accepted_in_their_class() {
    let mut lab = Lab::new(Some(classes()));
    assert_eq!(lab.accepted, [0, 1, 2]);
    lab.run(Duration::from_millis(30), &[LIGHT, HEAVY]);
    let (light, heavy) = (lab.bytes(LIGHT), lab.bytes(HEAVY));
    println!("{light} {heavy} of {}", carried(Duration::from_millis(30)));
    assert!(is_within(heavy, 3 * light, 10), "{light} {heavy}");
    assert!(light + heavy > carried(Duration::from_millis(30)) * 85 / 100);
    let counts = lab.workers[0].class_counts(HEAVY as u8).unwrap();
    assert!(counts.bytes as usize >= heavy, "{counts:?} {heavy}");
    assert_eq!(
        lab.nodes[0].workers(&WorkerConfig::default()).unwrap()[0].class_counts(0),
        None
    );
}

/// One doorbell posts all of them.
#[test]
fn each_request_of_a_class_is_counted() {
    let mut lab = Lab::new(Some(classes()));
    for _ in 0..10 {
        assert!(lab.submit(LIGHT, 8));
    }
    lab.poll();
    let counts = lab.workers[0].class_counts(LIGHT as u8).unwrap();
    assert_eq!((counts.requests, counts.bytes), (10, 80));
}

#[test]
fn a_new_submitter_leaves_the_limit_of_what_is_under_way() {
    let mut table = classes();
    table.bytes_ahead_max = 2 * BYTES as u32;
    let mut lab = Lab::new(Some(table));
    lab.fill(&[LIGHT]);
    for _ in 0..2 {
        lab.poll();
        let channel = lab.workers[0].channel(lab.ids[LIGHT]).unwrap();
        assert_eq!(channel.in_flight(), 2);
        let another = lab.workers[0].submitter(&SubmitterConfig::default()).unwrap();
        lab.submitters.push(another);
    }
}

/// A channel posts in many turns of one poll, and is looked at once in the next.
#[test]
fn a_channel_that_took_many_turns_counts_once_in_what_is_under_way() {
    let mut lab = Lab::new(Some(classes()));
    let most = (128 << 10) / BYTES as u32;
    lab.fill(&[LIGHT]);
    for _ in 0..100 {
        lab.poll();
        let channel = lab.workers[0].channel(lab.ids[LIGHT]).unwrap();
        assert_eq!(channel.in_flight(), most);
        lab.fill(&[LIGHT]);
        assert!(lab.fabric.step());
    }
}

#[test]
fn a_limit_holds_over_a_second_and_leaves_the_rest() {
    const RATE: usize = 10_000_000;
    let mut table = classes();
    table.table[HEAVY].bytes_per_second_max = NonZeroU64::new(RATE as u64);
    table.table[HEAVY].burst_bytes = 8192;
    let mut lab = Lab::new(Some(table));
    lab.run(Duration::from_secs(1), &[HEAVY]);
    assert!(is_within(lab.bytes(HEAVY), RATE, 5), "{}", lab.bytes(HEAVY));
    // No span has more than its rate, the burst, and a request.
    let came = &lab.came[HEAVY];
    for (at, (from, _)) in came.iter().enumerate().step_by(37) {
        let mut bytes = 0;
        for (until, more) in &came[at..] {
            bytes += more;
            let span_ns = until.to_ns() - from.to_ns();
            let most = RATE as u64 * span_ns / 1_000_000_000 + 8192 + 2 * BYTES as u64;
            assert!(bytes as u64 <= most, "{bytes} {most}");
        }
    }
    lab.run(Duration::from_millis(20), &[HEAVY, LIGHT]);
    assert!(
        lab.bytes(LIGHT) > carried(Duration::from_millis(20)) * 80 / 100,
        "{}",
        lab.bytes(LIGHT)
    );
}

/// Bytes that its channel had under way count no more.
#[test]
fn a_lower_class_goes_on_once_a_channel_of_a_higher_one_has_failed() {
    let mut lab = Lab::new(Some(classes()));
    lab.fill(&[HIGH]);
    lab.poll();
    lab.workers[0].channel(lab.ids[HIGH]).unwrap().shut().unwrap();
    lab.run(Duration::from_millis(1), &[]);
    for _ in 0..10 {
        assert!(lab.submit(LIGHT, BYTES));
    }
    lab.run(Duration::from_millis(1), &[]);
    assert_eq!(lab.came[LIGHT].len(), 10);
}

#[test]
fn a_lower_class_goes_on_once_a_higher_one_is_done() {
    let mut table = classes();
    // One request at a time.
    table.bytes_ahead_max = 1;
    let mut lab = Lab::new(Some(table));
    for _ in 0..10 {
        assert!(lab.submit(LIGHT, 8) && lab.submit(HIGH, 8));
    }
    while lab.came[LIGHT].len() < 10 {
        lab.run(Duration::from_micros(1), &[]);
    }
    // The first of each is posted in one poll, and the others of the high one go before those of the low one.
    let (last_high, second_low) = (lab.came[HIGH][9].0, lab.came[LIGHT][1].0);
    assert!(last_high < second_low, "{last_high:?} {second_low:?}");
    // The channel of what waits fails, and all of it comes back.
    lab.fill(&[LIGHT]);
    lab.poll();
    lab.workers[0].channel(lab.ids[LIGHT]).unwrap().shut().unwrap();
    lab.run(Duration::from_millis(1), &[]);
    let mut failed = 0;
    while lab.submitters[LIGHT].failure().is_some() {
        failed += 1;
    }
    assert!((500..=512).contains(&failed), "{failed}");
}
