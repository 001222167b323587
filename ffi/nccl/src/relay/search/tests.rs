//! Tests of a search with a relay that reaches nothing.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use doorbell::link::{LinkConfig, LinkEvent, Links, SessionEvent};
use doorbell::{Deadline, Node, Trust, Worker, WorkerConfig};

use super::super::frame::tests::handle;
use super::super::frame::{CircuitFrame, End, RELAYS_MAX, Route};
use super::{Found, Search};

/// A host on the fake.
pub(in crate::relay) struct Side {
    pub(in crate::relay) links: Links,
    pub(in crate::relay) workers: Vec<Worker>,
    pub(in crate::relay) node: Arc<Node>,
}

impl Side {
    pub(in crate::relay) fn new() -> Self {
        let path = doorbell_fake::library_path().unwrap();
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&path) }.unwrap();
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        Self { links, workers, node }
    }

    fn poll(&mut self, each: impl FnMut(doorbell::link::LinkId, LinkEvent<'_>)) {
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }
}

/// A host that searches, and a relay that reaches nothing.
struct Hosts {
    here: Side,
    relay: Side,
    /// The relay's address.
    at: SocketAddr,
    /// The numbers of relays in the requests that the relay received.
    requests: Vec<u8>,
    until: Deadline,
}

const LONG: Duration = Duration::from_secs(30);

impl Hosts {
    fn new() -> Self {
        let (here, mut relay) = (Side::new(), Side::new());
        let at = "0.0.0.0:0".parse().unwrap();
        let listening = relay.links.listen(&relay.node, &relay.workers, at).unwrap();
        Self {
            here,
            relay,
            at: ([127, 0, 0, 1], listening.port().get()).into(),
            requests: Vec::new(),
            until: doorbell::within(LONG),
        }
    }

    fn step(&mut self, search: &mut Search) -> Option<Found> {
        assert!(!self.until.has_passed(doorbell::now()), "{search:?}");
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
        thread::yield_now();
        let Side { links, workers, node } = &mut self.here;
        search.poll(links, node, workers)
    }
}

fn by(relays: &[SocketAddr], patience: Duration) -> Search {
    Search::new(handle(), Route::NONE, (relays, RELAYS_MAX), (false, patience))
}

/// A listener that accepts nothing, and its address.
fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    (listener, address)
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
    let silent = [(); 4].map(|()| silent());
    let mut relays: Vec<_> = silent.iter().map(|(_, address)| *address).collect();
    relays.push(hosts.at);
    // The whole search has less time than the silent relays would take one after the other.
    let mut search = by(&relays, LONG.saturating_mul(10));
    while hosts.requests.is_empty() {
        assert!(hosts.step(&mut search).is_none());
    }
    assert_eq!(hosts.requests, [1]);
}

#[test]
fn a_relay_that_failed_is_not_asked_again() {
    let mut hosts = Hosts::new();
    let (failing, address) = silent();
    let mut search = by(&[address, hosts.at], LONG);
    let mut asked = 0;
    while hosts.step(&mut search).is_none() {
        // The connection is closed.
        asked += usize::from(failing.accept().is_ok());
    }
    assert_eq!((hosts.requests, asked), (vec![1, 2], 1));
}
