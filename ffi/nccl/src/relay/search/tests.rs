//! Tests of a search with a relay that reaches nothing.

use core::time::Duration;
use std::sync::Arc;
use std::thread;

use doorbell::link::{LinkConfig, LinkEvent, Links, SessionEvent};
use doorbell::{Node, Trust, Worker, WorkerConfig};

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

#[test]
fn a_relay_is_asked_for_its_handle_once_however_many_relays_are_behind_it() {
    let (mut here, mut relay) = (Side::new(), Side::new());
    let at = "0.0.0.0:0".parse().unwrap();
    let listening = relay.links.listen(&relay.node, &relay.workers, at).unwrap();
    let at = ([127, 0, 0, 1], listening.port().get()).into();
    let patience = Duration::from_secs(30);
    let mut search = Search::new(handle(), Route::NONE, (&[at], RELAYS_MAX), (false, patience));
    let mut requests = Vec::new();
    let until = doorbell::within(patience);
    let found = loop {
        here.poll(|link, event| match event {
            LinkEvent::Received { message } => search.hear_frame(link, CircuitFrame::parse(message).unwrap()),
            LinkEvent::Session(SessionEvent::Final { reason }) => search.hear_over(link, &reason),
            _ => {}
        });
        let mut ends = Vec::new();
        relay.poll(|link, event| {
            if let LinkEvent::Received { message } = event {
                let Some(CircuitFrame::Request { relays, .. }) = CircuitFrame::parse(message) else {
                    return;
                };
                requests.push(relays);
                ends.push(link);
            }
        });
        for link in ends {
            let end = CircuitFrame::End { end: End::NO_ROUTE };
            relay.links.send(link, &end.to_vec()).unwrap();
        }
        if let Some(found) = search.poll(&mut here.links, &here.node, &here.workers) {
            break found;
        }
        assert!(!until.has_passed(doorbell::now()));
        thread::yield_now();
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
    let asked: Vec<_> = search.handles.iter().map(|(of, _)| *of).collect();
    assert_eq!((requests, asked), (vec![1, 2], vec![at]));
}
