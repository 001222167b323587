//! Tests of a relay's state and thread.

use core::num::NonZeroU16;
use core::time::Duration;

use doorbell::link::LinkEvent;

use super::super::frame::Route;
use super::super::frame::tests::handle;
use super::super::search::tests::Side;
use super::super::search::{Found, Search};
use super::State;
use crate::frame::Frame;
use crate::places::Key;

#[test]
fn a_peer_that_is_searched_for_has_one_lifeline() {
    let Side {
        mut links,
        workers,
        node,
    } = Side::new();
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
