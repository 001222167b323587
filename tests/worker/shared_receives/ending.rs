//! Channels that fail, are closed or dropped.

use doorbell::provider::Rkey;
use doorbell::worker::CloseProgress;
use doorbell::{ChannelState, Event, Operation, RemoteAddress};

use super::Hub;
use crate::fabric::LONG;

#[test]
fn what_fails_disturbs_no_other() {
    let mut hub = Hub::with(16, 32, &[4, 4, 4, 4]);
    for round in 0..10 {
        // Messages that came before are delivered; then one end goes, in each of three ways.
        let sent = hub.peers[0].flood();
        assert_eq!(sent, 4);
        let id = hub.peers[0].at_hub;
        match round % 3 {
            0 => hub.worker().channel(id).unwrap().shut().unwrap(),
            1 => {
                let theirs = hub.peers[0].id;
                hub.peers[0].worker().channel(theirs).unwrap().shut().unwrap();
            }
            _ => {
                // A WRITE of the hub to memory that its peer lends to nobody.
                hub.poll();
                hub.give_back(usize::MAX);
                hub.poll();
                let channel = hub.worker().channel(id).unwrap();
                let nowhere = RemoteAddress::new(0, Rkey(0));
                channel
                    .post_inline(Operation::Write(nowhere), b"refused")
                    .unwrap();
            }
        }
        let (mut heard, mut failed) = (0, 0);
        for _ in 0..10 {
            hub.workers[0]
                .poll_tending(|turn, event| match event {
                    Event::Received { .. } => {
                        assert_eq!(turn.channel.id(), id);
                        heard += 1;
                    }
                    Event::ChannelFailed { .. } => {
                        assert_eq!(turn.channel.id(), id);
                        failed += 1;
                    }
                    Event::Failed { .. } | Event::Done { .. } => assert_eq!(turn.channel.id(), id),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        if round % 3 == 2 {
            assert_eq!((heard, failed), (0, 1));
            let state = hub.worker().channel(id).unwrap().state();
            assert!(matches!(state, ChannelState::Failed { .. }), "{state:?}");
        } else {
            // Another request in flight reports it, or there was none.
            assert!(heard == 4 && failed <= 1, "{heard} {failed}");
        }
        // The others have all they had.
        for peer in &mut hub.peers[1..] {
            assert_eq!(peer.flood(), 4, "round {round}");
        }
        let held = hub.peers.remove(0);
        hub.settle();
        let long = hub.worker().within(LONG);
        assert_eq!(hub.worker().close(id, long, |_, _| {}), Ok(()));
        drop(held);
        hub.settle();
        assert_eq!(hub.counts().posted, 16, "nothing was lost");
        hub.add(4).unwrap();
        assert_eq!(hub.credits(), 16);
    }
}

#[test]
fn what_came_before_a_closing_is_told_and_what_comes_after_is_taken() {
    let mut hub = Hub::with(64, 64, &[60, 4]);
    let id = hub.peers[0].at_hub;
    // More than one poll takes.
    assert_eq!(hub.peers[0].flood(), 60);
    let long = hub.worker().within(LONG);
    hub.worker().begin_close(id, long).unwrap();
    let mut heard = 0;
    while hub.worker().close_progress(id) == CloseProgress::UnderWay {
        hub.worker()
            .poll_tending(|_, event| match event {
                Event::Received { .. } => {
                    heard += 1;
                }
                // An announcement that was under way.
                Event::Failed { .. } | Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert_eq!(hub.worker().close_progress(id), CloseProgress::Closed(Ok(())));
    assert_eq!(heard, 60);
    hub.peers.remove(0);
    hub.settle();
    assert_eq!((hub.counts().posted, hub.counts().granted), (64, 4));
}

#[test]
fn dropped_in_any_order_with_messages_under_way() {
    for order in 0..6 {
        let mut hub = Hub::with(8, 16, &[4, 4]);
        for peer in &mut hub.peers {
            peer.flood();
        }
        if order % 2 == 0 {
            hub.poll();
        }
        let Hub {
            workers,
            peers,
            held,
            node,
            listener,
            fabric,
            ..
        } = hub;
        match order / 2 {
            0 => {
                drop(workers);
                drop(held);
                drop(peers);
            }
            1 => {
                drop(peers);
                drop(workers);
                drop(held);
            }
            _ => {
                drop(held);
                drop(peers);
                drop(workers);
            }
        }
        drop(listener);
        assert!(node.settle(node.within(LONG)));
        drop(fabric);
    }
}
