//! Peers that come as far as they are let, and stop there: what they hold is not all there is, and nobody else waits for them.

use core::net::IpAddr;
use core::time::Duration;

use doorbell::connect::HandshakeLimits;
use doorbell::provider::Network as _;
use doorbell::wire::RejectReason;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{ConnectError, Connection, Listener, Node, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host, LinkConfig, Stream};

use crate::fabric::{node, port};
use crate::handshakes::hub::{Guest, Hub, LATENCY, STAGE, at, config, is_undisturbed};
use crate::stranger::{Dripping, Heard, Stranger};

/// Latencies until each side, looking once in each, has all that was sent to it.
const ROUNDS: u32 = 16;

/// How long a peer waits for its turn before it is refused.
const IN_LINE: Duration = Duration::from_millis(250);

/// Peers of one address, each with what it heard last.
struct Crowd(Vec<(Stream, Stranger, Heard)>);

impl Crowd {
    /// So many from a host of this number, each of which connects at once.
    fn new(fabric: &Fabric, host: u8, count: u32) -> Self {
        let (name, address) = (format!("c{host}"), format!("10.1.0.{host}/8"));
        let host_of_it = fabric.host(&name, vec![port(&name, &address)]).unwrap();
        let address = IpAddr::from([10, 1, 0, host]);
        let one = |number| {
            let stranger = Stranger::new(address, 1000 * u32::from(host) + number);
            (host_of_it.connect(at()).unwrap(), stranger, Heard::Nothing)
        };
        Self((0..count).map(one).collect())
    }

    fn poll(&mut self) {
        for (stream, stranger, heard) in &mut self.0 {
            if let Heard::Nothing | Heard::Welcome = heard {
                *heard = stranger.connect(stream);
            }
        }
    }

    /// How many wait for their turn.
    fn waiting(&self) -> usize {
        let heard = self.0.iter().map(|(.., heard)| heard);
        heard
            .filter(|heard| matches!(heard, Heard::Nothing | Heard::Welcome))
            .count()
    }

    /// How many were accepted, and how many rejected as busy with a time to come again.
    fn told(&self) -> (usize, usize) {
        let mut told = (0, 0);
        for (.., heard) in &self.0 {
            match heard {
                Heard::Accept => told.0 += 1,
                Heard::Refused(reject) => {
                    assert_eq!(reject.reason, RejectReason::BUSY);
                    assert!(reject.detail > 0, "{reject}");
                    told.1 += 1;
                }
                heard => panic!("{heard:?}"),
            }
        }
        told
    }

    /// Goes on beside the hub until so many wait for their turn, and then until each has heard.
    fn settle(&mut self, hub: &mut Hub, waiting: usize) {
        self.settle_with(waiting, |span| hub.run(span));
    }

    fn settle_with(&mut self, waiting: usize, mut run: impl FnMut(Duration)) {
        for rest in [Duration::ZERO, IN_LINE] {
            run(rest);
            for _ in 0..ROUNDS {
                run(LATENCY);
                self.poll();
            }
            assert_eq!(self.waiting(), if rest.is_zero() { waiting } else { 0 });
        }
    }
}

/// A Worker with room for so many channels, whichever room it is that ends.
fn with_room_for(channels: u32) -> [WorkerConfig; 4] {
    let [mut memory, mut shared, mut places, mut completions] = [WorkerConfig::default(); 4];
    (memory.slots, memory.lease_share_percent) = (20 * channels, 20);
    let mut receives = SharedReceivesConfig::default();
    receives.depth = 16 * channels;
    shared.shared_receives = Some(receives);
    places.channels_max = channels;
    // Only completions of sends are scarce: each channel has one more, to announce receives.
    completions.completion_depth = 17 * channels;
    completions.shared_receives = Some(SharedReceivesConfig::default());
    [memory, shared, places, completions]
}

#[test]
fn who_stops_after_connect_holds_half_of_what_there_is_room_for_and_nobody_else_waits() {
    for own in with_room_for(8) {
        let mut hub = Hub::on(&HandshakeLimits::default(), &own);
        let mut crowd = Crowd::new(&hub.fabric, 66, 20);
        crowd.settle(&mut hub, 16);
        assert_eq!(crowd.told(), (4, 16), "{own:?}");
        let why = hub.handshakes.as_ref().unwrap().take_failure();
        let from = IpAddr::from([10, 1, 0, 66]);
        assert!(
            matches!(why, Some(ConnectError::TooManyUnfinishedFrom { address, unfinished: 4, room: 4 }) if address == from),
            "{why:?}"
        );
        // Another of its kind has half of the rest.
        let mut second = Crowd::new(&hub.fabric, 67, 20);
        second.settle(&mut hub, 18);
        assert_eq!(second.told(), (2, 18), "{own:?}");
        let mut guests = Vec::new();
        for number in 1..=2 {
            let mut guest = Guest::new(&hub, number);
            let (outcome, took) = hub.connect(&mut guest);
            outcome.unwrap();
            assert!(is_undisturbed(took), "{took:?} {own:?}");
            guests.push(guest);
        }
        // They have their time, and no more.
        hub.run(STAGE);
        assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), 0);
        for number in 3..=8 {
            let mut guest = Guest::new(&hub, number);
            // A share that was given up is free again once a peer asked for one and the queue was seen empty.
            let outcome = hub.connect(&mut guest).0;
            let outcome = if own.shared_receives.is_some() && number == 3 {
                outcome.or_else(|_| hub.connect(&mut guest).0)
            } else {
                outcome
            };
            outcome.unwrap();
            guests.push(guest);
        }
        drop((crowd, second));
        hub.end(guests);
    }
}

#[test]
fn who_stops_after_connect_holds_half_of_the_places_to_be_accepted() {
    let [own, ..] = with_room_for(256);
    let mut hub = Hub::on(&HandshakeLimits::default(), &own);
    let mut crowd = Crowd::new(&hub.fabric, 66, 64);
    crowd.settle(&mut hub, 32);
    assert_eq!(crowd.told(), (32, 32));
    let mut second = Crowd::new(&hub.fabric, 67, 64);
    second.settle(&mut hub, 48);
    assert_eq!(second.told(), (16, 48));
    let mut guest = Guest::new(&hub, 1);
    let (outcome, took) = hub.connect(&mut guest);
    outcome.unwrap();
    assert!(is_undisturbed(took), "{took:?}");
    drop((crowd, second));
    hub.end(vec![guest]);
}

#[test]
fn who_waits_for_its_turn_makes_room_for_others() {
    let [own, ..] = with_room_for(256);
    let mut hub = Hub::on(&HandshakeLimits::default(), &own);
    let mut crowds = [66, 67, 68, 69].map(|host| Crowd::new(&hub.fabric, host, 64));
    for _ in 0..ROUNDS {
        hub.run(LATENCY);
        crowds.iter_mut().for_each(Crowd::poll);
    }
    assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), 256);
    let mut guest = Guest::new(&hub, 1);
    let (outcome, took) = hub.connect(&mut guest);
    outcome.unwrap();
    assert!(is_undisturbed(took), "{took:?}");
    drop(crowds);
    hub.end(vec![guest]);
}

#[test]
fn who_connects_all_at_once_may_have_all_when_its_turn_has_come() {
    for own in with_room_for(8) {
        let mut limits = HandshakeLimits::default();
        limits.unaccepted = 8;
        let mut hub = Hub::on(&limits, &own);
        let mut guest = Guest::new(&hub, 1);
        let mut again = WorkerConfig::default();
        again.slots = 256;
        guest.workers = guest.node.workers(&again).unwrap();
        let began = hub.fabric.now();
        let mut connecting: Vec<_> = (0..8).map(|_| guest.begin(&hub)).collect();
        while !connecting.is_empty() {
            hub.run(LATENCY / 4);
            connecting.retain_mut(|one| match guest.poll(one) {
                Some(outcome) => outcome.is_err_and(|error| panic!("{error} {own:?}")),
                None => true,
            });
        }
        // Half of what is left, and so on: a look or two for each.
        let took = Duration::from_nanos(hub.fabric.now().to_ns() - began.to_ns());
        assert!(took < IN_LINE / 2, "{took:?} {own:?}");
        hub.run(LATENCY);
        assert_eq!(hub.accepted.len(), 8);
        hub.end(vec![guest]);
    }
}

#[test]
fn who_connects_again_and_again_may_have_all() {
    for own in with_room_for(8) {
        let mut hub = Hub::on(&HandshakeLimits::default(), &own);
        let mut guest = Guest::new(&hub, 1);
        let mut again = WorkerConfig::default();
        again.slots = 256;
        guest.workers = guest.node.workers(&again).unwrap();
        for number in 0..8 {
            let (outcome, took) = hub.connect(&mut guest);
            assert!(
                outcome.is_ok() && is_undisturbed(took),
                "{number}: {outcome:?} {own:?}"
            );
        }
        hub.run(LATENCY);
        assert_eq!(hub.accepted.len(), 8);
        hub.end(vec![guest]);
    }
}

#[test]
fn who_is_connected_and_waits_to_be_accepted_is_finished() {
    for own in with_room_for(2) {
        let mut limits = HandshakeLimits::default();
        limits.unaccepted = 2;
        let mut hub = Hub::on(&limits, &own);
        hub.accepts = false;
        let mut guest = Guest::new(&hub, 1);
        for number in 1..=2 {
            let mut connecting = guest.begin(&hub);
            let mut wait = |hub: &mut Hub| {
                let mut outcome = None;
                for _ in 0..ROUNDS {
                    hub.run(LATENCY);
                    outcome = outcome.or_else(|| guest.poll(&mut connecting));
                }
                outcome
            };
            assert!(wait(&mut hub).is_none());
            // The Worker's thread gives a place before it accepts the earlier peer.
            let acceptances = hub.acceptances.as_mut().unwrap();
            let before = acceptances.poll_accept(&mut hub.worker).unwrap();
            assert_eq!(before.is_some(), number == 2);
            hub.accepted.extend(before);
            let outcome = wait(&mut hub);
            assert!(matches!(outcome, Some(Ok(_))), "{number}: {outcome:?} {own:?}");
        }
        hub.accepts = true;
        hub.run(LATENCY);
        assert_eq!(hub.accepted.len(), 2);
        hub.end(vec![guest]);
    }
}

#[test]
fn a_hello_byte_by_byte_is_taken_and_nobody_waits_for_it() {
    let mut hub = Hub::new(&HandshakeLimits::default());
    let host = hub.guest(66);
    let of = host.network().connect(at()).unwrap();
    let mut stream = Dripping { of, has_room: false };
    let mut stranger = Stranger::new([10, 1, 0, 66].into(), 0);
    let mut guest = Guest::new(&hub, 1);
    let mut bytes = 0;
    let heard = loop {
        let heard = stranger.greet(&mut stream);
        if heard != Heard::Nothing {
            break heard;
        }
        hub.run(LATENCY);
        stream.has_room = true;
        bytes += 1;
        if bytes % 20 == 0 {
            let (outcome, took) = hub.connect(&mut guest);
            outcome.unwrap();
            assert!(is_undisturbed(took), "{took:?}");
        }
    };
    assert_eq!((heard, hub.accepted.len()), (Heard::Welcome, 3));
    let length = Stranger::new([10, 1, 0, 66].into(), 0).hello().len();
    assert!(bytes > length, "{bytes}");
    drop((stream, host));
    hub.end(vec![guest]);
}

/// A host that accepts by polling its listener, on the thread that polls all else.
struct InPlace {
    fabric: Fabric,
    node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    listener: Listener<Host, Host>,
    refused: Vec<ConnectError>,
}

impl InPlace {
    fn on(own: &WorkerConfig) -> Self {
        let link = LinkConfig {
            latency_ns: LATENCY.as_nanos() as u64,
            bandwidth_mbps: None,
        };
        let fabric = Fabric::builder().link(link).driven().build();
        let node = node(&fabric, "hub", vec![port("hub", "10.0.0.1/8")]);
        let workers = node.workers(own).unwrap();
        let listener = Listener::bind(&node, &workers, at(), &config()).unwrap();
        Self {
            fabric,
            node,
            workers,
            listener,
            refused: Vec::new(),
        }
    }

    /// Says how many were accepted.
    fn poll(&mut self) -> usize {
        let mut accepted = 0;
        loop {
            match self.listener.poll_accept(&self.node, &mut self.workers) {
                Ok(None) => return accepted,
                Ok(Some(_)) => accepted += 1,
                Err(error) => self.refused.push(error),
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.fabric.now().after(span);
        loop {
            self.poll();
            if self.fabric.now() >= until {
                return;
            }
            self.fabric.run_for(LATENCY);
        }
    }

    /// A host with memory for many connections.
    fn guest(&self) -> (Node<Host, Host>, Vec<Worker<Host>>) {
        let guest = node(&self.fabric, "c1", vec![port("c1", "10.1.0.1/8")]);
        let workers = guest.workers(&WorkerConfig::default()).unwrap();
        (guest, workers)
    }

    /// Connects one, and says how long that took.
    fn connect(
        &mut self,
        guest: &Node<Host, Host>,
        workers: &mut [Worker<Host>],
    ) -> (Result<Connection, ConnectError>, Duration) {
        let (began, deadline) = (self.fabric.now(), guest.within(STAGE));
        let handle = self.listener.handle();
        let mut connecting = guest.begin_connect(workers, handle, &config(), deadline).unwrap();
        loop {
            self.poll();
            if let Some(outcome) = connecting.poll(guest, workers) {
                let took = Duration::from_nanos(self.fabric.now().to_ns() - began.to_ns());
                return (outcome, took);
            }
            self.fabric.run_for(LATENCY / 64);
        }
    }
}

/// Slots that are kept for leases are not taken from the handshakes again once they are leased.
#[test]
fn leases_that_are_out_take_nothing_from_unfinished_handshakes() {
    let [memory, ..] = with_room_for(8);
    // None, all that are kept, and as many more as one channel needs.
    for (leases, yes) in [(0, 4), (32, 4), (48, 3)] {
        let mut hub = InPlace::on(&memory);
        let leased: Vec<_> = (0..leases).map(|_| hub.workers[0].lease().unwrap()).collect();
        let mut crowd = Crowd::new(&hub.fabric, 66, 20);
        crowd.settle_with(20 - yes, |span| hub.run(span));
        assert_eq!(crowd.told(), (yes, 20 - yes), "{leases} leases");
        drop(leased);
    }
}

#[test]
fn in_place_who_stops_after_connect_holds_half_and_nobody_else_waits() {
    for own in with_room_for(8) {
        let mut hub = InPlace::on(&own);
        let _crowds = [(66, 4), (67, 2)].map(|(host, yes)| {
            let mut crowd = Crowd::new(&hub.fabric, host, 20);
            crowd.settle_with(20 - yes, |span| hub.run(span));
            assert_eq!(crowd.told(), (yes, 20 - yes), "{own:?}");
            crowd
        });
        let of_it = |error: &ConnectError| {
            matches!(error, ConnectError::TooManyUnfinishedFrom { unfinished: 1.., .. })
        };
        assert!(
            hub.refused.len() == 34 && hub.refused.iter().all(of_it),
            "{:?}",
            hub.refused
        );
        let (guest, mut workers) = hub.guest();
        let (outcome, took) = hub.connect(&guest, &mut workers);
        outcome.unwrap();
        assert!(is_undisturbed(took), "{took:?} {own:?}");
    }
}

#[test]
fn in_place_who_waits_for_its_turn_keeps_nobody_out() {
    let [own, ..] = with_room_for(8);
    let mut hub = InPlace::on(&own);
    let mut crowd = Crowd::new(&hub.fabric, 66, 100);
    for _ in 0..ROUNDS {
        hub.run(LATENCY);
        crowd.poll();
    }
    assert!(crowd.waiting() > 0);
    let (guest, mut workers) = hub.guest();
    let (outcome, took) = hub.connect(&guest, &mut workers);
    outcome.unwrap();
    assert!(is_undisturbed(took), "{took:?}");
}

#[test]
fn in_place_who_connects_all_at_once_may_have_all_when_its_turn_has_come() {
    for own in with_room_for(8) {
        let mut hub = InPlace::on(&own);
        let (guest, mut workers) = hub.guest();
        let deadline = guest.within(STAGE);
        let handle = *hub.listener.handle();
        let begin = || {
            guest
                .begin_connect(&workers, &handle, &config(), deadline)
                .unwrap()
        };
        let mut connecting: Vec<_> = (0..8).map(|_| begin()).collect();
        let until = hub.fabric.now().after(IN_LINE / 2);
        while !connecting.is_empty() {
            hub.run(LATENCY);
            connecting.retain_mut(|one| match one.poll(&guest, &mut workers) {
                Some(outcome) => outcome.is_err_and(|error| panic!("{error} {own:?}")),
                None => true,
            });
            assert!(hub.fabric.now() < until, "{own:?}");
        }
        assert!(hub.refused.is_empty(), "{:?}", hub.refused);
    }
}

#[test]
fn in_place_who_connects_again_and_again_may_have_all() {
    for own in with_room_for(8) {
        let mut hub = InPlace::on(&own);
        let (guest, mut workers) = hub.guest();
        for number in 0..8 {
            let (outcome, took) = hub.connect(&guest, &mut workers);
            assert!(
                outcome.is_ok() && is_undisturbed(took),
                "{number}: {outcome:?} {own:?}"
            );
        }
        assert!(hub.refused.is_empty(), "{:?}", hub.refused);
    }
}
