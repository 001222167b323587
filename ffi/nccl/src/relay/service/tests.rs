//! Tests of a relay's state and thread.

use core::num::NonZeroU16;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use doorbell::link::{LinkConfig, LinkEvent, Links};
use doorbell::{Node, Trust, WorkerConfig};

use super::super::frame::Route;
use super::super::frame::tests::handle;
use super::super::search::{Found, Search};
use super::{State, keep_running};
use crate::frame::Frame;
use crate::places::Key;

#[test]
fn a_peer_that_is_searched_for_has_one_lifeline() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    let mut links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
    let patience = Duration::from_secs(3600);
    let mut search = Search::new(handle(), Route::NONE, (&[], 0), (true, patience));
    assert!(search.poll(&mut links, &node, &workers).is_none());
    let link = search.link().unwrap();
    let mut state = State::new(4, NonZeroU16::MAX);
    state.searches.push((Key(1), search));
    let hello = Frame::Hello {
        port: NonZeroU16::MIN,
    };
    let until = node.within(patience);
    for _ in 0..3 {
        let message = &hello.to_vec()[..];
        state.hear(link, LinkEvent::Received { message }, (until, until));
    }
    assert_eq!(state.watches, [(link, NonZeroU16::MIN)]);
    // The second one violates the protocol.
    let found = state.searches[0].1.poll(&mut links, &node, &workers);
    assert!(matches!(found, Some(Found::None { .. })), "{found:?}");
}

#[test]
fn a_relay_that_panics_runs_again_unless_it_is_stopped() {
    for is_stopped in [false, true] {
        let (stop, mut runs) = (AtomicBool::new(false), 0);
        // The pause before the next run ends at once.
        thread::current().unpark();
        keep_running(&stop, || {
            runs += 1;
            stop.store(is_stopped, Ordering::Relaxed);
            assert_ne!(runs, 1, "the first run panics");
        });
        assert_eq!(runs, if is_stopped { 1 } else { 2 });
    }
}
