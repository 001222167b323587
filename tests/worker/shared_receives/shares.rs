//! Receives promised to channels, and granted.

use std::thread;

use doorbell::{ConnectError, Event, Listener, NodeError, WorkerConfig};
use doorbell_sim::Fabric;

use super::{Hub, share, shared};
use crate::fabric::LONG;

#[test]
fn channels_are_admitted_as_far_as_their_shares_fit() {
    let mut hub = Hub::with(16, 16, &[8, 6]);
    let refused = hub.add(3).unwrap_err();
    assert!(
        matches!(refused, ConnectError::NoShare { receives_left: 2, .. }),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .starts_with("the shared receives have 2 left, and the channel needs 3"),
        "{refused}"
    );
    hub.add(2).unwrap();
    assert!(matches!(
        hub.add(1).unwrap_err(),
        ConnectError::NoShare { receives_left: 0, .. }
    ));
    for peer in &mut hub.peers {
        assert!(peer.flood() > 0);
    }
    hub.settle();
    // The share of a closed channel can be given to others, however much of it was used.
    for round in 0..20 {
        let gone = round % hub.peers.len();
        let shares = [8, 6, 2];
        let share = hub.peers[gone].worker().channels().count();
        assert_eq!(share, 1);
        if round % 3 == 0 {
            hub.peers[gone].flood();
        }
        let id = hub.peers[gone].at_hub;
        let left = hub.worker().channel(id).unwrap().receives_posted();
        assert_eq!(hub.close(gone), Ok(()), "round {round}");
        hub.settle();
        let counts = hub.counts();
        assert_eq!((counts.posted, counts.granted), (16, 16 - left), "round {round}");
        let added = hub.add(left).unwrap();
        assert!(shares.contains(&left));
        assert_eq!(hub.peers[added].flood(), left);
        hub.settle();
    }
    assert_eq!(hub.credits(), 16);
}

#[test]
fn a_worker_wants_a_slot_for_each_shared_receive() {
    let fabric = Fabric::new();
    let node = crate::fabric::node(
        &fabric,
        "hub",
        vec![crate::fabric::port("simHub", "127.0.0.1/24")],
    );
    let mut config = WorkerConfig::default();
    config.slots = 15;
    config.shared_receives = Some(shared(16, 0));
    // Two slots are kept for leases.
    for slots in [15, 16] {
        config.slots = slots;
        let left = slots - 2;
        let error = node.workers(&config).unwrap_err();
        assert!(
            matches!(error, NodeError::SharedReceives { depth: 16, slots } if slots == left),
            "{error}"
        );
        let told = format!("16 shared receives, but only {left} slots are left for receives");
        assert!(error.to_string().starts_with(&told), "{error}");
    }
    config.lease_share_percent = 0;
    config.shared_receives = Some(shared(16, 17));
    assert!(node.workers(&config).is_err(), "a limit beyond the depth");
    config.shared_receives = Some(shared(16, 16));
    config.completion_depth = 1;
    assert!(
        node.workers(&config).is_ok(),
        "the queue is as deep as there are receives"
    );
}

/// Has a peer connect to a hub with eight receives left, and fail: it learns what it may send, and then has no memory for what it
/// is to receive.
fn grant_for_nothing(hub: &mut Hub) {
    let peer = hub.host();
    let mut poor = WorkerConfig::default();
    poor.slots = 16;
    let mut theirs = peer.workers(&poor).unwrap();
    let _leased: Vec<_> = core::iter::from_fn(|| theirs[0].lease()).take(12).collect();
    let (channels, granted) = (hub.worker().channels().count(), hub.counts().granted);
    let Hub {
        node,
        workers,
        fabric,
        ..
    } = hub;
    let any = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(node, workers, any, &share(8)).unwrap();
    let address = listener.address();
    let failed = thread::scope(|scope| {
        let connecting = scope.spawn(|| peer.connect_at(&mut theirs, address, &share(8), peer.within(LONG)));
        while listener.failed() == 0 {
            assert!(!matches!(listener.poll_accept(node, workers), Ok(Some(_))));
        }
        connecting.join().unwrap().unwrap_err()
    });
    assert!(matches!(failed, ConnectError::NoMemory), "{failed}");
    assert_eq!(workers[0].channels().count(), channels);
    assert_eq!(fabric.receivers_not_ready(), 0);
    assert_eq!(hub.counts().granted, granted + 8, "what it may have used");
    // The reaper has destroyed the queue pair.
    assert!(hub.node.settle(hub.node.within(LONG)));
    // Nobody gets it before it is seen that none of its messages is left.
    let refused = hub.add(8).unwrap_err();
    assert!(
        matches!(refused, ConnectError::NoShare { receives_left: 0, .. }),
        "{refused}"
    );
}

#[test]
fn a_share_granted_for_nothing_is_given_to_another() {
    let mut hub = Hub::new(8, 0, 16);
    for _ in 0..5 {
        grant_for_nothing(&mut hub);
        hub.poll();
        hub.add(8).unwrap();
        assert_eq!((hub.credits(), hub.counts().granted), (8, 8));
        assert_eq!(hub.peers[0].flood(), 8);
        hub.settle();
        hub.close(0).unwrap();
        assert_eq!(hub.counts().granted, 0);
    }
}

/// No poll finds the completion queue empty. So many messages as there are receives show as well that none is left.
#[test]
fn a_share_granted_for_nothing_is_given_to_another_by_a_worker_that_is_busy() {
    let mut hub = Hub::with(16, 32, &[8]);
    grant_for_nothing(&mut hub);
    let mut received = 0;
    let added = loop {
        assert!(hub.peers[0].send());
        let id = hub.peers[0].at_hub;
        let mut came = 0;
        hub.worker()
            .poll_tending(|turn, event| match event {
                Event::Received { .. } if turn.channel.id() == id => came += 1,
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        assert_eq!(came, 1, "a poll found nothing");
        hub.peers[0].heard += 1;
        received += came;
        match hub.add(8) {
            Err(ConnectError::NoShare { .. }) => assert!(received < 16, "it never comes free"),
            added => break added.unwrap(),
        }
    };
    assert_eq!(received, 16);
    assert_eq!(hub.peers[added].flood(), 8);
    hub.settle();
}
