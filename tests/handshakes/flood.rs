//! Streams that say Hello by the id of a key, and prove nothing: they hold no place that a peer with the key wants, of
//! whichever address either is.

use core::net::IpAddr;
use core::time::Duration;

use doorbell::vocabulary::handshake::{Initiator, InitiatorConfig, Io, IoError, Timing};
use doorbell::vocabulary::network::Network as _;
use doorbell::vocabulary::wire::{AdvertisedRail, Nonce, SpeedClass, VersionRange};
use doorbell::vocabulary::{Gid, Instant, IpPrefix};
use doorbell::{HandshakeLimits, InstanceId, Key, KeyRing, Trust, WorkerConfig};
use doorbell_sim::Stream;

use crate::hub::{Guest, Hub, LATENCY, SLOTS, at, is_undisturbed};

const STREAMS: usize = 256;

/// How soon a stream that was turned away comes again: ten streams of the flood for each latency.
const AGAIN: Duration = Duration::from_millis(20);

/// A Reject's kind, and where it stands.
const REJECT: u8 = 6;
const HEADER_BYTES: usize = 10;

fn trust(secret: u8) -> Trust {
    let secret: Vec<u8> = (0..32).map(|byte| byte ^ secret).collect();
    Trust::keys(KeyRing::new(Key::new(7, &secret).unwrap()))
}

fn hub() -> Hub {
    let mut own = WorkerConfig::default();
    own.slots = SLOTS;
    Hub::trusting(&HandshakeLimits::default(), &own, trust(1))
}

/// A Hello that names a key, of a peer that does not have it.
fn hello(address: IpAddr) -> Vec<u8> {
    let prefix = IpPrefix::new(address, 8).unwrap();
    let gid = Gid::from_ip(address);
    let rail = AdvertisedRail::new(prefix, gid, SpeedClass::from_mbps(100_000)).unwrap();
    let config = InitiatorConfig {
        instance: InstanceId::new(7).unwrap(),
        listener: None,
        nonce: Nonce([7; 16]),
        timing: Timing::default(),
        versions: VersionRange::OURS,
    };
    let start = Instant::from_ns(0);
    let mut said = Said(Vec::new());
    Initiator::with(config, &trust(2), &[rail], start)
        .unwrap()
        .poll(start, &mut said);
    said.0
}

struct Said(Vec<u8>);

impl Io for Said {
    fn read(&mut self, _: &mut [u8]) -> Result<usize, IoError> {
        Err(IoError::WouldBlock)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
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
        let mut frames = self.heard.as_slice();
        while let Some(header) = frames.get(..HEADER_BYTES) {
            if header[5] == REJECT {
                return true;
            }
            let body = usize::from(u16::from_be_bytes([header[8], header[9]]));
            frames = frames.get(HEADER_BYTES + body..).unwrap_or_default();
        }
        false
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
                .map(|(guest, address)| (guest, hello(*address)))
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
        let deadline = guest.within(crate::hub::WHOLE);
        let handle = *hub.handshakes.as_ref().unwrap().handle();
        let mut connecting = guest
            .begin_connect(workers, &handle, &crate::hub::config(), deadline)
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
        // Of an address of the flood's, too.
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
        let hello = hello([10, 1, 0, 100].into());
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
