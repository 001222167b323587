//! Shared receive queues: many queue pairs on one, their failures, and every order of their ends.

use core::any::Any;
use std::thread;
use std::time::Instant;

use doorbell_core::provider::{
    Arena as _, Arrival, ArrivalKind, AsyncEvent, Completion as _, CompletionQueue as _, Context as _,
    LentCompletion as _, Operation, PostFlags, ProtectionDomain as _, PushError, QueuePair as _,
    QueuePairConfig, QueuePairParts, ReceiveBatch as _, ReceiveQueue as _, SendBatch as _, SendQueue as _,
    SharedQueuePairParts, SharedReceiveQueue as _, SharedReceiveQueueConfig, Slot as _,
};
use doorbell_core::{QpState, WorkKind};
use doorbell_ffi::{Arena, Completion, CompletionQueue, Rdma, SharedReceiveQueue, leaks};

use super::bench::{Bench, End, PATIENCE, bench, config, poll, poll_success, slot_with};
use super::lifetimes::{Numbers, nothing_refused};

const DEPTH: u32 = 12;
/// Source: `errno(3)`, Linux numbers.
const EINVAL: i32 = 22;
const EEXIST: i32 = 17;

const fn on_shared(channel: u32) -> QueuePairConfig {
    QueuePairConfig {
        receive_depth: 0,
        scatter_max: 0,
        ..config(channel)
    }
}

/// The end of a connection that takes its receives from the shared queue.
struct Spoke {
    parts: SharedQueuePairParts<Rdma>,
    sends: CompletionQueue,
}

/// A shared receive queue, connections that end on it, and the other ends of these.
struct Hub {
    queue: SharedReceiveQueue,
    receives: CompletionQueue,
    spokes: Vec<Spoke>,
    peers: Vec<End>,
    arena: Arena,
}

impl Hub {
    fn new(bench: &Bench, connections: u32) -> Self {
        let receives = bench.queue();
        let config = SharedReceiveQueueConfig {
            depth: DEPTH,
            scatter_max: 2,
        };
        let queue = bench
            .domain
            .shared_receive_queue(&receives, &config)
            .expect("a shared receive queue");
        let mut hub = Self {
            queue,
            receives,
            spokes: Vec::new(),
            peers: Vec::new(),
            arena: bench.arena(64, 64),
        };
        for channel in 0..connections {
            hub.add(bench, channel);
        }
        hub
    }

    fn add(&mut self, bench: &Bench, channel: u32) {
        let sends = bench.queue();
        let mut parts = bench
            .domain
            .queue_pair_on(&self.queue, &sends, &on_shared(channel))
            .expect("a queue pair on it");
        let mut peer = bench.end(&config(channel));
        bench.connect_controls(&mut parts.control, &mut peer.parts.control);
        self.spokes.push(Spoke { parts, sends });
        self.peers.push(peer);
    }

    fn post_receives(&mut self, count: u32) {
        let mut batch = self.queue.stage();
        for _ in 0..count {
            batch
                .push([self.arena.lease().expect("a free slot")])
                .expect("room");
        }
        assert_eq!(batch.ring(), Ok(count));
    }

    /// Sends from a peer, and waits until that is acknowledged.
    fn send(&mut self, peer: usize, bytes: &[u8]) {
        let slot = slot_with(&mut self.arena, bytes);
        let arena = &mut self.arena;
        let peer = &mut self.peers[peer];
        let mut batch = peer.parts.send.stage();
        batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
        assert_eq!(batch.ring(), Ok(1));
        let completion = poll_success(&mut peer.sends);
        peer.parts
            .send
            .retire(completion.lend(), |_, slot| arena.release(slot))
            .unwrap();
    }

    fn take(&mut self, completion: Completion) -> (Arrival, Vec<u8>) {
        let mut bytes = Vec::new();
        let arena = &mut self.arena;
        let arrival = self.queue.retire(completion.lend(), |_, slot| {
            bytes.extend_from_slice(slot.payload());
            arena.release(slot);
        });
        (arrival.expect("one of ours"), bytes)
    }

    fn rejects(&mut self, completion: Completion) {
        let (in_flight, rejected) = (self.queue.in_flight(), self.queue.rejected());
        assert!(self.queue.retire(completion.lend(), |_, _| ()).is_err());
        assert_eq!(
            (self.queue.in_flight(), self.queue.rejected()),
            (in_flight, rejected + 1)
        );
    }
}

/// Waits for an event about a shared receive queue.
fn limit_event(bench: &Bench) -> AsyncEvent {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match bench.context.next_event().unwrap() {
            Some(event @ AsyncEvent::SharedReceiveLimit(_)) => return event,
            Some(event) => eprintln!("{event:?}"),
            None => assert!(Instant::now() < deadline, "no event came"),
        }
    }
}

/// Asserts that no such event waits.
fn no_limit_event(bench: &Bench) {
    while let Some(event) = bench.context.next_event().unwrap() {
        assert!(!matches!(event, AsyncEvent::SharedReceiveLimit(_)), "{event:?}");
    }
}

#[test]
fn many_queue_pairs_take_from_one_queue() {
    let Some(bench) = bench("many_queue_pairs_take_from_one_queue") else {
        return;
    };
    let mut hub = Hub::new(&bench, 3);
    let mut numbers = Numbers(7);
    for round in 0..30_u8 {
        hub.post_receives(6);
        let mut expected = Vec::new();
        for message in 0..6_u8 {
            let from = numbers.below(3);
            hub.send(from, &[round, message]);
            expected.push(hub.spokes[from].parts.control.qpn());
        }
        let mut completions: Vec<_> = poll(&mut hub.receives, 6)
            .into_iter()
            .zip(expected)
            .zip(0_u8..)
            .collect();
        while !completions.is_empty() {
            let ((completion, qpn), message) = completions.swap_remove(numbers.below(completions.len()));
            assert_eq!(completion.work_id().kind(), Some(WorkKind::SharedReceive));
            assert_eq!(completion.work_id().channel(), hub.queue.number());
            assert_eq!(completion.qpn(), qpn);
            let (arrival, bytes) = hub.take(completion);
            assert_eq!((arrival.kind, arrival.payload_bytes), (ArrivalKind::Send, 2));
            assert_eq!(bytes, [round, message]);
        }
        assert_eq!((hub.queue.in_flight(), hub.arena.free_slots()), (0, 64));
    }
    assert_eq!(hub.queue.rejected(), 0);
}

#[test]
fn a_shared_receive_scatters() {
    let Some(bench) = bench("a_shared_receive_scatters") else {
        return;
    };
    let mut hub = Hub::new(&bench, 1);
    let slots = [hub.arena.lease().unwrap(), hub.arena.lease().unwrap()];
    let mut batch = hub.queue.stage();
    batch.push(slots).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let mut long = bench.arena(1, 128);
    let slot = slot_with(&mut long, &[9; 100]);
    let peer = &mut hub.peers[0];
    let mut batch = peer.parts.send.stage();
    batch
        .push(Operation::SendWithImmediate(5), [slot], PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    poll_success(&mut peer.sends);
    let completion = poll_success(&mut hub.receives);
    let mut lengths = Vec::new();
    let arrival = hub
        .queue
        .retire(completion.lend(), |_, slot| lengths.push(slot.payload().to_vec()))
        .unwrap();
    assert_eq!((arrival.payload_bytes, arrival.immediate), (100, Some(5)));
    assert_eq!(lengths, [vec![9; 64], vec![9; 36]]);
}

#[test]
fn the_limit_is_reported_for_the_queue_that_is_meant() {
    let Some(bench) = bench("the_limit_is_reported_for_the_queue_that_is_meant") else {
        return;
    };
    let mut hub = Hub::new(&bench, 2);
    let expected = AsyncEvent::SharedReceiveLimit(hub.queue.id());
    hub.post_receives(5);
    hub.queue.set_limit(3).unwrap();
    hub.send(0, b"four are left");
    hub.send(1, b"three are left");
    no_limit_event(&bench);
    hub.send(0, b"two are left");
    assert_eq!(limit_event(&bench), expected);
    hub.send(1, b"one is left");
    no_limit_event(&bench);
    // On again, for another queue than the one that is not meant.
    let other = Hub::new(&bench, 0);
    assert_ne!(other.queue.id(), hub.queue.id());
    hub.post_receives(2);
    hub.queue.set_limit(2).unwrap();
    hub.send(0, b"two are left");
    hub.send(0, b"one is left");
    assert_eq!(limit_event(&bench), expected);
    assert_eq!(hub.queue.set_limit(DEPTH + 1).unwrap_err().errno, EINVAL);
    hub.queue.set_limit(0).unwrap();
    for completion in poll(&mut hub.receives, 6) {
        assert!(hub.take(completion).0.status.is_success());
    }
}

#[test]
fn queue_pairs_that_fail_and_go_take_nothing_shared_with_them() {
    let Some(bench) = bench("queue_pairs_that_fail_and_go_take_nothing_shared_with_them") else {
        return;
    };
    let mut hub = Hub::new(&bench, 2);
    hub.post_receives(4);
    hub.send(0, b"before");
    hub.spokes[0].parts.control.fail().unwrap();
    assert_eq!(hub.spokes[0].parts.control.state(), Ok(QpState::Error));
    hub.send(1, b"after");
    let payloads: Vec<_> = poll(&mut hub.receives, 2)
        .into_iter()
        .map(|completion| hub.take(completion).1)
        .collect();
    assert_eq!(payloads, [&b"before"[..], b"after"]);
    // Nor does one that is destroyed.
    drop(hub.spokes.remove(0));
    drop(hub.peers.remove(0));
    thread::sleep(core::time::Duration::from_millis(50));
    assert_eq!(hub.receives.poll(|completion| panic!("{completion:?}")), Ok(0));
    assert_eq!(hub.queue.in_flight(), 2);
    hub.add(&bench, 5);
    for peer in [0, 1] {
        hub.send(peer, b"still");
        let completion = poll_success(&mut hub.receives);
        assert_eq!(hub.take(completion).1, b"still");
    }
    assert_eq!(hub.queue.in_flight(), 0);
}

#[test]
fn what_is_not_of_the_queue_is_rejected_and_counted() {
    let Some(bench) = bench("what_is_not_of_the_queue_is_rejected_and_counted") else {
        return;
    };
    let mut hub = Hub::new(&bench, 2);
    let mut other = Hub::new(&bench, 1);
    hub.post_receives(4);
    other.post_receives(4);
    hub.send(0, b"polled and kept");
    other.send(0, b"of another completion queue");
    let kept = poll_success(&mut hub.receives);
    let foreign = poll_success(&mut other.receives);
    assert_eq!(kept.work_id(), foreign.work_id());
    hub.rejects(foreign);
    hub.send(1, b"left unpolled");
    // Another shared queue in its place, on the same completion queue.
    hub.spokes.clear();
    hub.peers.clear();
    let config = SharedReceiveQueueConfig {
        depth: DEPTH,
        scatter_max: 1,
    };
    hub.queue = bench.domain.shared_receive_queue(&hub.receives, &config).unwrap();
    assert_eq!(hub.arena.free_slots(), 64);
    hub.post_receives(DEPTH);
    hub.rejects(kept);
    let mut stale = Vec::new();
    hub.receives
        .poll(|completion| stale.push(completion.keep()))
        .unwrap();
    eprintln!("{} stale completions were polled and rejected", stale.len());
    for completion in stale {
        hub.rejects(completion);
    }
    // And one of ours at the receive half of a peer.
    hub.add(&bench, 9);
    hub.send(0, b"ours");
    let ours = poll_success(&mut hub.receives);
    assert!(hub.peers[0].parts.receive.retire(ours.lend(), |_, _| ()).is_err());
    assert_eq!(hub.peers[0].parts.receive.rejected(), 1);
    assert_eq!(hub.queue.in_flight(), DEPTH);
}

#[test]
fn a_full_shared_queue_hands_slots_back() {
    let Some(bench) = bench("a_full_shared_queue_hands_slots_back") else {
        return;
    };
    let mut hub = Hub::new(&bench, 1);
    let slots = [(); 3].map(|()| hub.arena.lease().unwrap());
    let refused = hub.queue.stage().push(slots).unwrap_err();
    assert!(matches!(
        refused.reason,
        PushError::TooManySegments { segments: 3, .. }
    ));
    drop(refused);
    // Forgotten, a batch is unstaged by the next.
    let mut batch = hub.queue.stage();
    batch.push([hub.arena.lease().unwrap()]).unwrap();
    core::mem::forget(batch);
    hub.post_receives(DEPTH);
    assert_eq!((hub.queue.room(), hub.arena.free_slots()), (0, 64 - DEPTH));
    let refused = hub.queue.stage().push([hub.arena.lease().unwrap()]).unwrap_err();
    assert_eq!(refused.reason, PushError::Full);
    // As many as there are can be taken.
    for message in 0..DEPTH {
        hub.send(0, &message.to_ne_bytes());
        let completion = poll_success(&mut hub.receives);
        assert_eq!(hub.take(completion).1, message.to_ne_bytes());
    }
}

#[test]
fn shared_slots_come_home_when_the_last_queue_pair_is_gone() {
    let Some(bench) = bench("shared_slots_come_home_when_the_last_queue_pair_is_gone") else {
        return;
    };
    let before = leaks();
    let mut hub = Hub::new(&bench, 2);
    hub.post_receives(5);
    let Hub {
        queue,
        receives,
        mut spokes,
        peers,
        mut arena,
    } = hub;
    drop((queue, receives, peers));
    // The queue pairs may still take from it.
    assert_eq!(arena.free_slots(), 59);
    let SharedQueuePairParts { control, send } = spokes.pop().unwrap().parts;
    drop((control, spokes));
    assert_eq!(arena.free_slots(), 59);
    drop(send);
    assert_eq!(arena.free_slots(), 64);
    drop(arena);
    assert_eq!(leaks(), before);
}

#[test]
fn shared_queues_end_in_any_order() {
    let Some(_) = bench("shared_queues_end_in_any_order") else {
        return;
    };
    let mut numbers = Numbers(4);
    for round in 0..40 {
        let bench = bench("shared_queues_end_in_any_order").unwrap();
        let mut hub = Hub::new(&bench, 2);
        hub.post_receives(5);
        // Under way while everything ends.
        for peer in &mut hub.peers {
            let mut batch = peer.parts.send.stage();
            for _ in 0..2 {
                let slot = slot_with(&mut hub.arena, b"under way");
                batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
            }
            assert_eq!(batch.ring(), Ok(2));
        }
        let completions = if round % 2 == 0 {
            poll(&mut hub.receives, 4)
        } else {
            Vec::new()
        };
        let Bench {
            rdma,
            context,
            domain,
            port,
            alone,
        } = bench;
        let mut things: Vec<Box<dyn Any>> = vec![
            Box::new((rdma, port)),
            Box::new(context),
            Box::new(domain),
            Box::new(hub.arena),
            Box::new(hub.queue),
            Box::new(hub.receives),
            Box::new(completions),
        ];
        for Spoke { parts, sends } in hub.spokes {
            things.push(Box::new(parts.control));
            things.push(Box::new(parts.send));
            things.push(Box::new(sends));
        }
        for End {
            parts:
                QueuePairParts {
                    control,
                    send,
                    receive,
                },
            sends,
            receives,
        } in hub.peers
        {
            things.push(Box::new((control, receive)));
            things.push(Box::new(send));
            things.push(Box::new((sends, receives)));
        }
        while !things.is_empty() {
            drop(things.swap_remove(numbers.below(things.len())));
        }
        drop(alone);
    }
    nothing_refused();
}

#[test]
fn peers_on_threads_of_their_own_fill_one_queue() {
    let Some(bench) = bench("peers_on_threads_of_their_own_fill_one_queue") else {
        return;
    };
    const EACH: u32 = 100;
    let mut hub = Hub::new(&bench, 3);
    hub.post_receives(DEPTH);
    let arenas: Vec<_> = (0..3).map(|_| bench.arena(8, 64)).collect();
    let sending: Vec<_> = hub
        .peers
        .drain(..)
        .zip(arenas)
        .map(|(mut peer, mut arena)| {
            thread::spawn(move || {
                for message in 0..EACH {
                    let slot = slot_with(&mut arena, &message.to_ne_bytes());
                    let mut batch = peer.parts.send.stage();
                    batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
                    assert_eq!(batch.ring(), Ok(1));
                    let completion = poll_success(&mut peer.sends);
                    peer.parts
                        .send
                        .retire(completion.lend(), |_, slot| arena.release(slot))
                        .unwrap();
                }
                peer
            })
        })
        .collect();
    let mut next = [0_u32; 3];
    let deadline = Instant::now() + PATIENCE;
    while next.iter().sum::<u32>() < 3 * EACH {
        let mut polled = Vec::new();
        hub.receives
            .poll(|completion| polled.push(completion.keep()))
            .unwrap();
        // The latest first, so that they are redeemed in another order than they came.
        let came: Vec<_> = polled
            .into_iter()
            .rev()
            .map(|completion| (completion.qpn(), hub.take(completion)))
            .collect();
        for (qpn, (arrival, bytes)) in came.into_iter().rev() {
            assert!(arrival.status.is_success());
            let mut spokes = hub.spokes.iter();
            let from = spokes.position(|spoke| spoke.parts.control.qpn() == qpn).unwrap();
            assert_eq!(bytes, next[from].to_ne_bytes());
            next[from] += 1;
            hub.post_receives(1);
        }
        assert!(Instant::now() < deadline, "{next:?} of {EACH} each came");
    }
    for thread in sending {
        thread.join().unwrap();
    }
    assert_eq!((hub.queue.in_flight(), hub.queue.rejected()), (DEPTH, 0));
}

#[test]
fn what_cannot_share_is_refused_with_its_errno() {
    let Some(bench) = bench("what_cannot_share_is_refused_with_its_errno") else {
        return;
    };
    let hub = Hub::new(&bench, 1);
    let sends = bench.queue();
    let limits = bench.context.limits();
    assert!(limits.shared_receive_depth_max >= DEPTH && limits.shared_segments_max >= 1);
    let mut wrong = vec![(0, 1), (65_537, 1), (8, 5)];
    if limits.shared_receive_depth_max < 65_536 {
        wrong.push((limits.shared_receive_depth_max + 1, 1));
    }
    for (depth, scatter_max) in wrong {
        let config = SharedReceiveQueueConfig { depth, scatter_max };
        let made = bench.domain.shared_receive_queue(&hub.receives, &config);
        assert!(made.is_err(), "{depth} receives of {scatter_max}");
    }
    let receives = QueuePairConfig {
        receive_depth: 4,
        ..on_shared(7)
    };
    let scatters = QueuePairConfig {
        scatter_max: 1,
        ..on_shared(7)
    };
    for config in [receives, scatters] {
        let made = bench.domain.queue_pair_on(&hub.queue, &sends, &config);
        assert_eq!(made.unwrap_err().errno, EINVAL);
    }
    let other = bench.context.protection_domain().unwrap();
    let made = other.queue_pair_on(&hub.queue, &sends, &on_shared(7));
    assert_eq!(made.unwrap_err().errno, EINVAL);
    let parts = bench
        .domain
        .queue_pair_on(&hub.queue, &sends, &on_shared(7))
        .unwrap();
    let granted = parts.control.limits();
    assert_eq!((granted.receive_depth, granted.scatter_max), (0, 0));
    let made = bench.domain.queue_pair_on(&hub.queue, &sends, &on_shared(7));
    assert_eq!(made.unwrap_err().errno, EEXIST, "the channel is taken");
}
