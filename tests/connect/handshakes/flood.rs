//! Streams that say Hello by the id of a key, and prove nothing: they hold no place that a peer with the key wants, of
//! whichever address either is.

use core::net::IpAddr;
use core::time::Duration;

use doorbell::connect::HandshakeLimits;
use doorbell::provider::{Instant, Io as _, IoError, Network as _};
use doorbell::{KeyRing, Trust, WorkerConfig};
use doorbell_sim::Stream;

use crate::fabric::{hello, is_rejected, key};
use crate::handshakes::hub::{Guest, Hub, LATENCY, SLOTS, at, is_undisturbed};

const STREAMS: usize = 256;

/// The id of the hub's key, which the flood names.
const KEY: u32 = 7;

/// How soon a stream that was turned away comes again: ten streams of the flood for each latency.
const AGAIN: Duration = Duration::from_millis(20);

fn hub() -> Hub {
    let mut own = WorkerConfig::default();
    own.slots = SLOTS;
    let trust = Trust::keys(KeyRing::new(key(KEY, "hub")));
    Hub::trusting(&HandshakeLimits::default(), &own, trust)
}

/// One stream of a flood.
struct Water {
    /// The index of its host.
    host: usize,
    stream: Option<Stream>,
    has_said: bool,
    heard: Vec<u8>,
    /// When it comes, where it is not there.
    comes_at: Instant,
}

impl Water {
    /// Whether it was turned away.
    fn is_refused(&mut self) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(bytes) if bytes > 0 => self.heard.extend_from_slice(&buffer[..bytes]),
            Err(IoError::WouldBlock) => return false,
            _ => return true,
        }
        is_rejected(&self.heard)
    }
}

/// Streams from these hosts, as many of each, that come again and again.
struct Flood<'h> {
    hosts: Vec<(&'h Guest, Vec<u8>)>,
    water: Vec<Water>,
    refused: usize,
}

impl<'h> Flood<'h> {
    fn new(hub: &Hub, hosts: &'h [(Guest, IpAddr)]) -> Self {
        let water = |index: usize| Water {
            host: index % hosts.len(),
            stream: None,
            has_said: false,
            heard: Vec::new(),
            // Not all at once.
            comes_at: hub.fabric.now().after(index as u32 * AGAIN / STREAMS as u32),
        };
        Self {
            hosts: hosts
                .iter()
                .map(|(guest, address)| (guest, hello(*address, KEY)))
                .collect(),
            water: (0..STREAMS).map(water).collect(),
            refused: 0,
        }
    }

    fn poll(&mut self, now: Instant) {
        for water in &mut self.water {
            if water.is_refused() {
                self.refused += 1;
                (water.stream, water.comes_at) = (None, now.after(AGAIN));
                water.heard.clear();
            }
            if water.stream.is_none() && now >= water.comes_at {
                let (guest, _) = &self.hosts[water.host];
                let stream = guest.node.network().connect(at()).unwrap();
                (water.stream, water.has_said) = (Some(stream), false);
            }
            let (_, hello) = &self.hosts[water.host];
            if let Some(stream) = water.stream.as_mut().filter(|_| !water.has_said) {
                water.has_said = stream.write(hello).is_ok();
            }
        }
    }

    fn run(&mut self, hub: &mut Hub, span: Duration) {
        let until = hub.fabric.now().after(span);
        while hub.fabric.now() < until {
            self.poll(hub.fabric.now());
            hub.run(LATENCY / 4);
        }
    }

    /// Connects beside the flood, and says how long that took.
    fn connect(&mut self, hub: &mut Hub, guest: &Node, workers: &mut Workers) -> Duration {
        let began = hub.fabric.now();
        let deadline = guest.within(crate::handshakes::hub::WHOLE);
        let handle = *hub.handshakes.as_ref().unwrap().handle();
        let mut connecting = guest
            .begin_connect(workers, &handle, &crate::handshakes::hub::config(), deadline)
            .unwrap();
        loop {
            self.poll(hub.fabric.now());
            hub.poll();
            if let Some(outcome) = connecting.poll(guest, workers) {
                outcome.unwrap();
                return Duration::from_nanos(hub.fabric.now().to_ns() - began.to_ns());
            }
            hub.step(hub.fabric.now().after(LATENCY / 4));
        }
    }
}

type Node = doorbell::Node<doorbell_sim::Host, doorbell_sim::Host>;
type Workers = Vec<doorbell::Worker<doorbell_sim::Host>>;

#[test]
fn a_flood_of_hellos_keeps_nobody_out_who_has_the_key() {
    for addresses in [1, 4, 16] {
        let mut hub = hub();
        let hosts: Vec<_> = (0..addresses)
            .map(|number| {
                let number = 100 + number;
                (Guest::new(&hub, number), IpAddr::from([10, 1, 0, number]))
            })
            .collect();
        let mut flood = Flood::new(&hub, &hosts);
        flood.run(&mut hub, 3 * AGAIN);
        let places = STREAMS.min(usize::from(addresses) * 64);
        assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), places);
        assert!(flood.refused > 0 || places == STREAMS);
        let mut took = Vec::new();
        let guests: Vec<_> = (1..=4)
            .map(|number| {
                let mut guest = Guest::new(&hub, number);
                took.push(flood.connect(&mut hub, &guest.node, &mut guest.workers));
                guest
            })
            .collect();
        // Honest peers of an address of the flood's, too.
        let (own, _) = &hosts[0];
        for _ in 0..4 {
            let mut config = WorkerConfig::default();
            config.slots = 64;
            let mut workers = own.node.workers(&config).unwrap();
            took.push(flood.connect(&mut hub, &own.node, &mut workers));
            flood.run(&mut hub, LATENCY);
        }
        let twice = 16 * LATENCY;
        assert!(took.iter().all(|took| *took < twice), "{addresses}: {took:?}");
        assert_eq!(hub.counts().connected, 8);
        drop(flood);
        hub.run(2 * AGAIN);
        drop(hosts);
        hub.end(guests);
    }
}

#[test]
fn a_hello_keeps_a_place_beyond_half_of_them_for_a_second() {
    // The oldest go, until no more than half are taken.
    for (streams, left) in [(32, 32), (40, 32)] {
        let mut hub = hub();
        let host = Guest::new(&hub, 100);
        let hello = hello([10, 1, 0, 100].into(), KEY);
        let mut said: Vec<_> = (0..streams)
            .map(|_| host.node.network().connect(at()).unwrap())
            .collect();
        hub.run(4 * LATENCY);
        for stream in &mut said {
            assert_eq!(stream.write(&hello), Ok(hello.len()));
        }
        hub.run(HandshakeLimits::default().crowded_stage - 8 * LATENCY);
        assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), streams);
        let mut guest = Guest::new(&hub, 1);
        let (outcome, took) = hub.connect(&mut guest);
        outcome.unwrap();
        assert!(is_undisturbed(took), "{took:?}");
        hub.run(4 * LATENCY);
        assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), left, "{streams}");
        drop((said, host));
        hub.end(vec![guest]);
    }
}
