//! Messages of peers, over receives that are posted for all of them.

use std::thread;

use doorbell::provider::{ArenaConfig, Window as _};
use doorbell::worker::{RingChannel, RingConfig};
use doorbell::{ChannelState, Event, Operation, RemoteAccess, RemoteAddress, SendErrorKind, WindowConfig};

use super::{Hub, Peer, draws};
use crate::fabric::LONG;

#[test]
fn every_peer_may_send_its_share_at_once() {
    let mut hub = Hub::with(32, 32, &[16, 8, 4, 2, 1, 1]);
    let counts = hub.counts();
    assert_eq!((counts.depth, counts.posted, counts.granted), (32, 32, 32));
    for round in 0..50 {
        let sent: Vec<_> = hub.peers.iter_mut().map(Peer::flood).collect();
        assert_eq!(sent, [16, 8, 4, 2, 1, 1], "round {round}");
        hub.settle();
    }
    for peer in &hub.peers {
        assert_eq!(peer.heard, peer.sent);
    }
    assert_eq!(hub.credits(), 32);
}

#[test]
fn receives_are_posted_for_all_channels_in_one_call() {
    let mut hub = Hub::with(32, 64, &[2; 8]);
    let before = hub.worker().statistics().snapshot();
    for _ in 0..16 {
        for at in 0..8 {
            assert!(hub.peers[at].send());
            hub.poll();
            hub.give_back(1);
        }
    }
    let since = hub.worker().statistics().snapshot().since(&before);
    assert_eq!((since.received, since.rejected, since.orphaned), (128, 0, 0));
    assert_eq!(since.receives_posted % 8, 0, "batches of eight");
    assert!(since.receives_posted >= 120);
}

#[test]
fn memory_that_is_kept_holds_peers_back_and_loses_nothing() {
    for seed in 1..=20 {
        let mut draw = draws(seed);
        let shares: Vec<_> = (0..1 + draw(6)).map(|_| 1 + draw(6) as u32).collect();
        let depth = shares.iter().sum::<u32>() + draw(5) as u32;
        let mut hub = Hub::with(depth, depth + draw(8) as u32, &shares);
        for _ in 0..600 {
            let peer = draw(shares.len());
            match draw(4) {
                0 => hub.give_back(draw(12)),
                1 => hub.poll(),
                _ => {
                    hub.peers[peer].send();
                    hub.check();
                }
            }
        }
        hub.settle();
        for (peer, share) in hub.peers.iter_mut().zip(shares) {
            assert_eq!(peer.heard, peer.sent, "seed {seed}");
            assert!(peer.sent > 20, "seed {seed}: {}", peer.sent);
            assert!((1..=share).contains(&peer.credits()), "seed {seed}");
        }
    }
}

#[test]
fn the_hub_sends_as_any_other() {
    let mut hub = Hub::with(16, 64, &[8, 8]);
    let id = hub.peers[1].at_hub;
    for number in 0..100_u32 {
        let mut lease = hub.worker().lease().unwrap();
        lease.fill(&number.to_be_bytes()).unwrap();
        hub.worker().channel(id).unwrap().send_lease(lease).unwrap();
        let mut heard = None;
        hub.peers[1]
            .worker()
            .poll_tending(|_, event| {
                if let Event::Received { message, .. } = event {
                    heard = Some(message.payload().to_vec());
                }
            })
            .unwrap();
        assert_eq!(heard.as_deref(), Some(&number.to_be_bytes()[..]));
        assert!(hub.peers[1].send(), "announcements go both ways");
        hub.poll();
        hub.give_back(1);
    }
    let channel = hub.worker().channel(id).unwrap();
    assert_eq!(
        (channel.state(), channel.receives_posted()),
        (ChannelState::Open, 8)
    );
}

#[test]
fn a_write_with_a_word_uses_a_shared_receive() {
    let mut hub = Hub::with(8, 16, &[4, 4]);
    let window = hub
        .worker()
        .window(&WindowConfig::new(64, RemoteAccess::ALL))
        .unwrap();
    let at = RemoteAddress::within(&window.remote(), 0, 4).unwrap();
    for round in 0..20_u32 {
        let peer = &mut hub.peers[1];
        let id = peer.id;
        peer.worker().poll_tending(|_, _| {}).unwrap();
        for word in 0..4 {
            let channel = peer.worker().channel(id).unwrap();
            channel
                .post_inline(Operation::WriteWithImmediate(at, word), &round.to_be_bytes())
                .unwrap();
        }
        let channel = peer.worker().channel(id).unwrap();
        let more = channel.post_inline(Operation::WriteWithImmediate(at, 9), b"more");
        assert_eq!(more, Err(SendErrorKind::WouldBlock));
        let mut words = Vec::new();
        while words.len() < 4 {
            hub.worker()
                .poll_tending(|_, event| match event {
                    Event::Written {
                        payload_bytes: 4,
                        immediate,
                    } => words.push(immediate),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        assert_eq!(words, [0, 1, 2, 3]);
    }
    assert_eq!(hub.not_ready(), 0);
}

#[test]
fn rings_beside_shared_receives() {
    let mut hub = Hub::with(12, 32, &[8, 4]);
    let (at_hub, id) = (hub.peers[0].at_hub, hub.peers[0].id);
    let mut config = RingConfig::default();
    config.cells = 16;
    let Hub { workers, peers, .. } = &mut hub;
    let long = workers[0].within(LONG);
    let (mut ours, mut theirs) = thread::scope(|scope| {
        let opening =
            scope.spawn(|| RingChannel::open(&mut workers[0], at_hub, &config, long, |_, _| {}).unwrap());
        let theirs = RingChannel::open(peers[0].worker(), id, &config, long, |_, _| {}).unwrap();
        (opening.join().unwrap(), theirs)
    });
    for number in 0..200_u32 {
        let peer = &mut hub.peers[0];
        peer.worker()
            .poll_tending(|_, event| {
                if let Event::Written { immediate, .. } = event {
                    theirs.note_written(immediate)
                }
            })
            .unwrap();
        let channel = peer.worker().channel(id).unwrap();
        theirs.send_inline(channel, &number.to_be_bytes()).unwrap();
        let mut into = [0; 16];
        hub.worker()
            .poll_tending(|_, event| match event {
                Event::Written { immediate, .. } => ours.note_written(immediate),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        let channel = hub.worker().channel(at_hub).unwrap();
        assert_eq!(ours.receive(channel, &mut into), Ok(Some(4)));
        assert_eq!(into[..4], number.to_be_bytes());
        // Messages of the other channel, in between.
        assert!(hub.peers[1].send());
        let Hub { workers, held, .. } = &mut hub;
        workers[0]
            .poll_tending(|_, event| match event {
                Event::Received { message, .. } => held.push(message.keep()),
                Event::Written { immediate, .. } => ours.note_written(immediate),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        hub.give_back(1);
    }
    assert_eq!(hub.not_ready(), 0);
}

#[test]
fn taken_apart_the_half_that_receives_has_them() {
    let mut hub = Hub::new(12, 6, 32);
    for _ in 0..3 {
        hub.add(4).unwrap();
    }
    let Hub {
        fabric,
        mut workers,
        mut peers,
        node,
        ..
    } = hub;
    let (mut sending, mut receiving) = workers.remove(0).split(&ArenaConfig::new(16, 256)).unwrap();
    let ids: Vec<_> = peers.iter().map(|peer| peer.at_hub).collect();
    let stop = core::sync::atomic::AtomicBool::new(false);
    let is_over = || stop.load(core::sync::atomic::Ordering::Acquire);
    thread::scope(|scope| {
        // One thread announces, and another one receives.
        scope.spawn(|| {
            while !is_over() {
                sending.poll(|_, event| panic!("{event:?}")).unwrap();
                thread::yield_now();
            }
        });
        let receiver = scope.spawn(|| {
            let mut heard = [0_u32; 3];
            while heard != [300; 3] {
                receiving
                    .poll(|turn, event| match event {
                        Event::Received { message, .. } => {
                            let id = turn.channel.id();
                            let at = ids.iter().position(|known| *known == id).unwrap();
                            assert_eq!(message.payload(), heard[at].to_be_bytes());
                            heard[at] += 1;
                        }
                        other => panic!("{other:?}"),
                    })
                    .unwrap();
                thread::yield_now();
            }
        });
        while !receiver.is_finished() {
            for peer in peers.iter_mut().filter(|peer| peer.sent < 300) {
                peer.send();
            }
            thread::yield_now();
        }
        receiver.join().unwrap();
        stop.store(true, core::sync::atomic::Ordering::Release);
    });
    assert_eq!(fabric.receivers_not_ready(), 0);
    while receiving.next_event().unwrap().is_some() {}
    let mut worker = sending.join(receiving).unwrap();
    let counts = worker.shared_receives().unwrap();
    assert_eq!(counts.granted, counts.posted, "{counts:?}");
    for id in ids {
        worker.close(id, worker.within(LONG), |_, _| {}).unwrap();
    }
    assert_eq!(worker.shared_receives().unwrap().granted, 0);
    drop(worker);
    assert!(node.settle(node.within(LONG)));
}
