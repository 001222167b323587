//! A hostile peer that sends more messages than it was granted receives.

use core::time::Duration;
use std::thread;

use doorbell_core::provider::{CompletionQueue as _, Operation, QueuePair, RemoteAddress, Window};
use doorbell_core::{IpPrefix, QpState, Rkey, WcStatus};
use doorbell_sim::{Fabric, Host, PortConfig};

use crate::connect::listener::Listener;
use crate::connect::node::Node;
use crate::trust::Trust;
use crate::within;
use crate::worker::Worker;
use crate::worker::channel::ChannelId;
use crate::worker::config::{ChannelConfig, SharedReceivesConfig, WorkerConfig};
use crate::worker::event::{ChannelState, Event};
use crate::worker::halves::tests::farewell;
use crate::worker::lease::Lease;
use doorbell_core::provider::ArenaConfig;

const SOON: Duration = Duration::from_secs(10);

fn node(fabric: &Fabric, name: &str, address: &str) -> Node<Host> {
    let prefix = IpPrefix::new(address.parse().unwrap(), 24).unwrap();
    let port = PortConfig::new(name, &[prefix]);
    Node::with_provider(
        fabric.host(name, vec![port]).unwrap(),
        Trust::unauthenticated_on_purpose(),
    )
    .unwrap()
}

/// A Worker with two channels that have shares of four receives, and their peers.
struct Hub {
    worker: Worker<Host>,
    ids: [ChannelId; 2],
    peers: [(Worker<Host>, ChannelId); 2],
    fabric: Fabric,
}

impl Hub {
    fn new() -> Self {
        let fabric = Fabric::new();
        let hub = node(&fabric, "hub", "127.0.0.1");
        let mut config = WorkerConfig {
            slots: 8,
            lease_share_percent: 0,
            ..WorkerConfig::default()
        };
        config.shared_receives = Some(SharedReceivesConfig {
            depth: 8,
            repost_batch: 1,
            limit: 0,
        });
        let mut workers = hub.workers(&config).unwrap();
        let share = ChannelConfig {
            receive_depth: 4,
            // A failed channel stays, so that the tests can inspect it.
            close_when_lost: false,
            ..ChannelConfig::default()
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let mut listener = Listener::bind(&hub, &workers, any, &share).unwrap();
        let address = listener.address();
        let mut connected = ["127.0.0.2", "127.0.0.3"].map(|own| {
            let peer = node(&fabric, own, own);
            let mut theirs = peer.workers(&WorkerConfig::default()).unwrap();
            let (here, there) = thread::scope(|scope| {
                let connecting = scope.spawn(|| {
                    let at = peer.connect_at(&mut theirs, address, &share, within(SOON));
                    at.unwrap().channel
                });
                let here = listener.accept(&hub, &mut workers, within(SOON)).unwrap();
                (here.channel, connecting.join().unwrap())
            });
            (here, Some((theirs.remove(0), there)))
        });
        Self {
            worker: workers.remove(0),
            ids: connected.each_ref().map(|(here, _)| *here),
            peers: connected.each_mut().map(|(_, peer)| peer.take().unwrap()),
            fabric,
        }
    }

    /// Sends from a peer until a send is refused. Returns how many messages were sent.
    fn flood(&mut self, peer: usize) -> u32 {
        let (worker, id) = &mut self.peers[peer];
        worker.poll_tending(|_, _| {}).unwrap();
        let mut sent = 0;
        while worker
            .channel(*id)
            .unwrap()
            .post_inline(Operation::Send, &[])
            .is_ok()
        {
            sent += 1;
        }
        sent
    }

    /// Announces to a peer this count of receives since the connection was made, whether they are posted or not.
    fn lie(&mut self, peer: usize, receives: u32) {
        let (worker, _) = &self.peers[peer];
        let word = RemoteAddress::within(&worker.credit_words.remote(), 0, 8).unwrap();
        let reported = [receives.to_be_bytes(), (!receives).to_be_bytes()].concat();
        let channel = self.worker.channel(self.ids[peer]).unwrap();
        channel.post_inline(Operation::Write(word), &reported).unwrap();
    }

    /// Writes the farewell of a peer that has sent nothing, as if it had sent so many messages.
    fn leave(&mut self, peer: usize, messages: u32) {
        let id = self.ids[peer];
        let word = RemoteAddress::within(&self.worker.credit_words.remote(), 8 * id.index() as u64, 8);
        let start = self.worker.channel(id).unwrap().receive.receiver.received();
        let (worker, there) = &mut self.peers[peer];
        let channel = worker.channel(*there).unwrap();
        let left = channel.post_inline(Operation::Write(word.unwrap()), &farewell(messages, start));
        left.unwrap();
    }

    /// Polls the hub, and returns its events with their channels. Messages go to `kept`.
    fn polled(&mut self, kept: &mut Vec<Lease<Host>>) -> Vec<(ChannelId, &'static str)> {
        let mut reported = Vec::new();
        for _ in 0..4 {
            self.worker
                .poll_tending(|turn, event| {
                    let id = turn.channel.id();
                    match event {
                        Event::Received { message, .. } => {
                            kept.push(message.keep());
                            reported.push((id, "message"));
                        }
                        Event::Overdrawn => reported.push((id, "overdrawn")),
                        Event::ChannelFailed { cause } => {
                            assert_eq!(cause.status, WcStatus::GENERAL_ERR, "the Worker's own");
                            reported.push((id, "failed"));
                        }
                        Event::Done { .. } => {}
                        other => panic!("{other:?}"),
                    }
                })
                .unwrap();
        }
        reported
    }
}

#[test]
fn a_peer_that_takes_what_is_anothers_is_failed_and_the_other_goes_on() {
    let mut hub = Hub::new();
    let [first, second] = hub.ids;
    let mut kept = Vec::new();
    assert_eq!(hub.flood(0), 4);
    assert_eq!(hub.polled(&mut kept), [(first, "message"); 4]);
    // The hub keeps all messages of the first peer, so that peer has no receive left, and uses those of the second.
    hub.lie(0, 7);
    assert_eq!(hub.flood(0), 3);
    assert_eq!(
        hub.polled(&mut kept),
        [(first, "overdrawn"), (first, "failed")],
        "each once, and no message of it"
    );
    assert_eq!(kept.len(), 4);
    assert_eq!(hub.worker.statistics().rejected.value(), 2);
    let state = hub.worker.channel(first).unwrap().state();
    assert!(
        matches!(state, ChannelState::Failed { cause } if cause.status == WcStatus::GENERAL_ERR),
        "{state:?}"
    );
    let control = &hub.worker.channel(first).unwrap().send.control;
    assert_eq!(control.state(), Ok(QpState::Error), "really");
    // The receives that the failed channel used are posted again for the other one.
    let counts = hub.worker.shared_receives().unwrap();
    assert_eq!((counts.posted, counts.granted), (4, 4));
    for _ in 0..3 {
        assert_eq!(hub.flood(1), 4);
        assert_eq!(hub.polled(&mut kept), [(second, "message"); 4]);
        kept.clear();
        assert_eq!(hub.polled(&mut kept), []);
    }
    assert_eq!(hub.fabric.receivers_not_ready(), 0);
    assert_eq!(hub.worker.close(first, within(SOON), |_, _| {}), Ok(()));
    assert_eq!(hub.polled(&mut kept), []);
    let counts = hub.worker.shared_receives().unwrap();
    assert_eq!((counts.posted, counts.granted), (8, 4));
}

#[test]
fn of_a_worker_taken_apart_the_half_that_sends_fails_it() {
    for (is_joined_first, has_farewell) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut hub = Hub::new();
        let first = hub.ids[0];
        if has_farewell {
            hub.leave(0, 4);
        }
        let mut kept = Vec::new();
        assert_eq!(hub.flood(0), 4);
        assert_eq!(hub.polled(&mut kept), [(first, "message"); 4]);
        hub.lie(0, 7);
        assert_eq!(hub.flood(0), 3);
        let Hub { worker, fabric, .. } = hub;
        let (mut sending, mut receiving) = worker.split(&ArenaConfig::new(4, 64)).unwrap();
        let mut overdrawn = 0;
        for _ in 0..4 {
            receiving
                .poll(|_, event| match event {
                    Event::Overdrawn => overdrawn += 1,
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        assert_eq!(overdrawn, 1);
        let state = |half: &crate::worker::half::SendHalf<Host>| half.control.state();
        assert_eq!(state(sending.channel(first).unwrap()), Ok(QpState::ReadyToSend));
        let mut worker = if is_joined_first {
            sending.join(receiving).unwrap()
        } else {
            sending.poll(|_, _| {}).unwrap();
            assert_eq!(state(sending.channel(first).unwrap()), Ok(QpState::Error));
            // The note is taken once, so a second poll changes nothing.
            sending.poll(|_, _| {}).unwrap();
            sending.join(receiving).unwrap()
        };
        assert_eq!(state(&worker.channel(first).unwrap().send), Ok(QpState::Error));
        assert_eq!(worker.close(first, within(SOON), |_, _| {}), Ok(()));
        assert_eq!(fabric.receivers_not_ready(), 0);
    }
}

/// No poll finds the completion queue empty, and the lost messages never come.
#[test]
fn the_end_of_a_channel_with_lost_messages_is_reported_by_a_worker_that_is_busy() {
    let mut hub = Hub::new();
    let [first, second] = hub.ids;
    hub.leave(0, 5);
    let refused = Operation::Write(RemoteAddress::new(0, Rkey(0)));
    hub.worker
        .channel(first)
        .unwrap()
        .post_inline(refused, b"x")
        .unwrap();
    let (mut received, mut ends) = (0, Vec::new());
    while ends.is_empty() {
        assert!(received < 20_000, "the end is never reported");
        assert!(hub.flood(1) > 0);
        hub.fabric.run_for(Duration::from_micros(100));
        let before = received;
        hub.worker
            .poll_tending(|turn, event| match event {
                Event::Received { .. } if turn.channel.id() == second => received += 1,
                Event::PeerClosed { all_arrived } if turn.channel.id() == first => ends.push(all_arrived),
                Event::Done { .. } | Event::Failed { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        assert!(received > before, "a poll found nothing");
    }
    assert_eq!(ends, [false]);
    // One round of completions is not enough, since the channel was lost within it.
    let depth = hub.worker.receives.completions.depth();
    assert!(received > depth && received < 3 * depth, "{received} of {depth}");
}
