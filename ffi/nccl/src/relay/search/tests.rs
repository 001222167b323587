//! Tests of a search over relays that reach nothing, in virtual time.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{LinkConfig, LinkEvent, LinkId, Links, SessionEvent};
use doorbell::provider::{Instant, IpPrefix, Network as _};
use doorbell::{Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Acceptor, Fabric, Host, PortConfig};

use super::super::frame::tests::handle;
use super::super::frame::{CircuitFrame, End, RELAYS_MAX, Route};
use super::{ASKED_ALONE, Found, Search};

/// A simulated host.
struct Side {
    links: Links<Host, Host>,
    workers: Vec<Worker<Host>>,
    node: Arc<Node<Host, Host>>,
}

impl Side {
    fn new(fabric: &Fabric, name: &str, address: [u8; 4]) -> Self {
        let prefix = IpPrefix::new(address.into(), 24).unwrap();
        let host = fabric.host(name, vec![PortConfig::new(name, &[prefix])]).unwrap();
        let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        Self { links, workers, node }
    }

    fn poll(&mut self, each: impl FnMut(LinkId, LinkEvent<'_>)) {
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }
}

/// A host that searches, and a relay that reaches nothing.
struct Hosts {
    fabric: Fabric,
    here: Side,
    relay: Side,
    /// The relay's address.
    at: SocketAddr,
    /// The numbers of relays in the requests that the relay received.
    requests: Vec<u8>,
    /// The addresses that were asked for a handle, with the time of each.
    asked: Vec<(SocketAddr, Duration)>,
}

/// The address of the relay.
const RELAY: [u8; 4] = [10, 0, 0, 1];

/// The time between two polls.
const STEP: Duration = Duration::from_millis(1);

/// More than a search takes.
const LONG: Duration = Duration::from_secs(30);

impl Hosts {
    fn new() -> Self {
        let fabric = Fabric::builder().driven().build();
        let here = Side::new(&fabric, "here", [10, 0, 0, 2]);
        let mut relay = Side::new(&fabric, "relay", RELAY);
        let at = (RELAY, 0).into();
        let listening = relay
            .links
            .listen_polled(&relay.node, &relay.workers, at)
            .unwrap();
        Self {
            fabric,
            here,
            relay,
            at: (RELAY, listening.port().get()).into(),
            requests: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// A port of the relay's host at which nobody accepts, and its address.
    fn silent(&self) -> (Acceptor, SocketAddr) {
        let host = self.relay.node.network();
        let acceptor = host.listen((RELAY, 0).into()).unwrap();
        let address = doorbell::provider::Acceptor::address(&acceptor);
        (acceptor, address)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.fabric.now().to_ns())
    }

    fn step(&mut self, search: &mut Search<Host>) -> Option<Found> {
        assert!(
            self.fabric.now() < Instant::from_ns(0).after(4 * LONG),
            "{search:?}"
        );
        self.here.poll(|link, event| match event {
            LinkEvent::Received { message } => search.hear_frame(link, CircuitFrame::parse(message).unwrap()),
            LinkEvent::Session(SessionEvent::Final { reason }) => search.hear_over(link, &reason),
            _ => {}
        });
        let mut ends = Vec::new();
        self.relay.poll(|link, event| {
            if let LinkEvent::Received { message } = event {
                let Some(CircuitFrame::Request { relays, .. }) = CircuitFrame::parse(message) else {
                    return;
                };
                self.requests.push(relays);
                ends.push(link);
            }
        });
        for link in ends {
            let end = CircuitFrame::End { end: End::NO_ROUTE };
            self.relay.links.send(link, &end.to_vec()).unwrap();
        }
        let Side { links, workers, node } = &mut self.here;
        let found = search.poll(links, node, workers);
        let now = self.elapsed();
        for (address, _) in &search.relays {
            if !self.asked.iter().any(|(asked, _)| asked == address) {
                self.asked.push((*address, now));
            }
        }
        self.fabric.run_for(STEP);
        found
    }
}

fn by(relays: &[SocketAddr], patience: Duration) -> Search<Host> {
    Search::new(handle(), Route::NONE, (relays, RELAYS_MAX), (false, patience))
}

#[test]
fn a_relay_is_asked_for_its_handle_once_however_many_relays_are_behind_it() {
    let mut hosts = Hosts::new();
    let mut search = by(&[hosts.at], LONG);
    let found = loop {
        if let Some(found) = hosts.step(&mut search) {
            break found;
        }
    };
    assert!(
        matches!(
            found,
            Found::None {
                end: End::NO_ROUTE,
                ..
            }
        ),
        "{found:?}"
    );
    let asked: Vec<_> = search.relays.iter().map(|(of, _)| *of).collect();
    assert_eq!((hosts.requests, asked), (vec![1, 2], vec![hosts.at]));
}

#[test]
fn silent_relays_do_not_use_up_the_time_of_one_that_answers() {
    let mut hosts = Hosts::new();
    let silent = [(); 4].map(|()| hosts.silent());
    let mut relays: Vec<_> = silent.iter().map(|(_, address)| *address).collect();
    relays.push(hosts.at);
    let mut search = by(&relays, LONG);
    while hosts.requests.is_empty() {
        assert!(hosts.step(&mut search).is_none());
    }
    assert_eq!(hosts.requests, [1]);
    // In the order of the list, each after its predecessor had its time alone.
    let alone = |number: u32| number * ASKED_ALONE;
    let asked: Vec<_> = relays.iter().copied().zip((0..).map(alone)).collect();
    assert_eq!(hosts.asked, asked);
}

#[test]
fn the_next_relay_is_asked_at_once_after_one_failed_and_a_silent_one_delays_the_longer_routes() {
    let mut hosts = Hosts::new();
    let ((failing, failed), (_silent, silent)) = (hosts.silent(), hosts.silent());
    let mut search = by(&[failed, silent, hosts.at], LONG);
    let mut requests = Vec::new();
    while hosts.step(&mut search).is_none() {
        let _ = hosts.relay.node.network().accept(&failing);
        if requests.len() < hosts.requests.len() {
            requests.push(hosts.elapsed());
        }
    }
    let order: Vec<_> = hosts.asked.iter().map(|(address, _)| *address).collect();
    assert_eq!(order, [failed, silent, hosts.at]);
    let [_, second, third] = [0, 1, 2].map(|at| hosts.asked[at].1);
    assert!(second < ASKED_ALONE / 4, "{second:?}");
    assert_eq!(third, second + ASKED_ALONE);
    // A route over two relays waits until the patience with the silent one is used up.
    assert_eq!(hosts.requests, [1, 2]);
    assert!(requests[0] < third + ASKED_ALONE, "{requests:?}");
    assert!(
        (LONG..LONG + ASKED_ALONE).contains(&(requests[1] - second)),
        "{requests:?}"
    );
}

#[test]
fn a_relay_that_failed_is_not_asked_again() {
    let mut hosts = Hosts::new();
    let (failing, address) = hosts.silent();
    let mut search = by(&[address, hosts.at], LONG);
    let mut asked = 0;
    while hosts.step(&mut search).is_none() {
        // The connection is closed.
        let stream = hosts.relay.node.network().accept(&failing).unwrap();
        asked += usize::from(stream.is_some());
    }
    assert_eq!((hosts.requests, asked), (vec![1, 2], 1));
}
