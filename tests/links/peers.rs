//! Links whose peer stops, dies, or is another.

use core::net::SocketAddr;
use std::sync::Arc;

use doorbell::connect::HandshakeLimits;
use doorbell::link::{Epoch, FinalReason, LinkError, Links, Sequence, SessionEvent, SessionId};
use doorbell::wire::{Attach, AttachParameters, Refusal, RefusalReason, Resumption};
use doorbell::{ConnectError, Event, Listener, Operation, WorkerConfig};
use doorbell_sim::Fabric;

use crate::fabric::{node, port, small};
use crate::processes::{A, B, Process, Two, config, ms};

#[test]
fn a_process_that_is_stopped_is_stalled_and_goes_on() {
    for stopped in [A, B] {
        let mut two = Two::new(2, "");
        two.connected(2);
        two.sends_every = [Some(ms(1)), Some(ms(1))];
        two.run(ms(50), |_| false);
        // As SIGSTOP does: the device goes on.
        two.process_mut(stopped).is_stopped = true;
        two.run(ms(3050), |_| false);
        two.process_mut(stopped).is_stopped = false;
        two.run(ms(3200), |_| false);
        assert!(two.settle(ms(4000)), "{:?} {:?}", two.counts(A), two.counts(B));
        let other = two.process(1 - stopped);
        let since = |event| other.saw(event).map(|at| at.to_ns() / 1_000_000);
        assert!(
            (140..200).contains(&since(SessionEvent::Stalled).unwrap()),
            "{:?}",
            other.events
        );
        assert!(
            (3050..3060).contains(&since(SessionEvent::Resumed).unwrap()),
            "{:?}",
            other.events
        );
        for at in [A, B] {
            let process = two.process(at);
            let down = |(_, event): &(_, SessionEvent)| matches!(event, SessionEvent::RailDown { .. });
            assert!(!process.events.iter().any(down), "{:?}", process.events);
        }
        assert_eq!(two.counts(1 - stopped).rails_dead, 0);
        two.fabric.audit().unwrap();
    }
}

/// Handshakes that are done elsewhere, and end: no peer comes any more, which is reported.
#[test]
fn a_listener_that_is_closed_is_told() {
    let fabric = Fabric::builder().driven().build();
    let node = Arc::new(node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]));
    let mut own = WorkerConfig::default();
    own.slot_bytes = 4096;
    let mut workers = node.workers(&own).unwrap();
    let mut links = Links::new(&node, &workers, &config()).unwrap();
    assert!(links.closed_to_peers().is_none());
    let address = SocketAddr::from(([10, 0, 0, 1], 7000));
    let listener = Listener::bind(&node, &workers, address, &config().channel).unwrap();
    let (handshakes, acceptances) = listener.aside(&node, &workers, &HandshakeLimits::default());
    links.accept_from(acceptances);
    links.poll(&node, &mut workers, |_, _| {}).unwrap();
    assert!(links.closed_to_peers().is_none());
    drop(handshakes);
    links.poll(&node, &mut workers, |_, _| {}).unwrap();
    let why = links.closed_to_peers();
    assert!(matches!(why, Some(ConnectError::ListenerClosed)), "{why:?}");
}

#[test]
fn a_process_that_is_replaced_ends_the_link_and_each_message() {
    let mut two = Two::new(2, "");
    two.connected(2);
    two.sends_every = [Some(ms(1)), None];
    two.run(ms(50), |_| false);
    two.processes[B] = None;
    two.run(ms(80), |_| false);
    two.processes[B] = Some(Process::on(&two.hosts[B], &config(), true));
    assert!(two.run(ms(3000), |two| two.process(A).over.is_some()));
    let a = two.process(A);
    assert_eq!(a.over, Some(FinalReason::PeerRestarted));
    assert_eq!(a.done + a.unknown, a.sent);
    assert!(a.unknown > 0 && a.done > 0);
    // Another link to the new one begins with nothing of the old.
    let handle = two.process(B).handle.unwrap();
    two.sends_every = [None; 2];
    let mut again = Process::on(&two.hosts[A], &config(), false);
    again.connect(&handle);
    two.processes[A] = Some(again);
    two.sends_every = [Some(ms(1)), None];
    let until = ms(two.fabric.now().to_ns() / 1_000_000 + 500);
    two.run(until, |two| two.process(A).sent >= 50);
    assert!(two.settle(until));
    two.fabric.audit().unwrap();
}

#[test]
fn a_size_there_is_no_memory_for_is_an_error_on_either_side() {
    let mut large = config();
    large.message_bytes_max = usize::MAX / 4;
    let mut two = Two::waiting(1, "");
    let handle = two.process(B).handle.unwrap();
    let mut a = Process::on(&two.hosts[A], &large, false);
    let outcome = a.links.connect(&a.node, &a.workers, &handle);
    assert!(
        matches!(outcome, Err(LinkError::NoMemory { bytes }) if bytes == usize::MAX / 4),
        "{outcome:?}"
    );
    drop(a);
    // One that is connected to refuses, and goes on.
    two.processes[B] = None;
    two.processes[B] = Some(Process::on(&two.hosts[B], &large, true));
    two.begin();
    assert!(two.run(ms(500), |two| two.process(A).over.is_some()));
    let refused = FinalReason::Refused(RefusalReason::NO_ROOM);
    assert_eq!(two.process(A).over, Some(refused));
    two.fabric.audit().unwrap();
}

#[test]
fn a_process_that_connected_and_dies_ends_the_link_of_its_peer() {
    let mut two = Two::new(2, "");
    two.connected(2);
    two.sends_every = [None, Some(ms(1))];
    two.run(ms(50), |_| false);
    two.processes[A] = None;
    assert!(two.run(ms(12_000), |two| two.process(B).over.is_some()));
    let b = two.process(B);
    assert_eq!(b.over, Some(FinalReason::Unreachable));
    assert_eq!(b.done + b.unknown, b.sent);
    let lost = b.saw(SessionEvent::Recovering).unwrap();
    assert!(lost.to_ns() < 250_000_000, "{lost:?}");
    two.fabric.audit().unwrap();
}

/// Connects to a side that listens for links, with these bytes as the first message. Returns the answer, and the time at
/// which the connection is let go.
fn first_says(two: &mut Two, bytes: &[u8], session: Option<Resumption>) -> (Vec<u8>, Option<u64>) {
    let handle = two.process(B).handle.unwrap();
    let mut process = Process::on(&two.hosts[A], &config(), false);
    let mut channel = small();
    (channel.timeout, channel.session) = (12, session);
    let Process { node, workers, .. } = &mut process;
    let deadline = two.deadline(ms(1000));
    let mut connecting = node.begin_connect(workers, &handle, &channel, deadline).unwrap();
    let mut at = None;
    let soon = ms(two.fabric.now().to_ns() / 1_000_000 + 1000);
    two.run(soon, |_| {
        at = connecting.poll(node, workers).map(Result::unwrap);
        at.is_some()
    });
    let at = at.unwrap();
    let began = two.fabric.now().to_ns();
    let there = workers[at.worker].channel(at.channel).unwrap();
    if !bytes.is_empty() {
        there.post_inline(Operation::Send, bytes).unwrap();
        // It goes on until it is shut, and nothing of that is the application's.
        for _ in 0..10 {
            let _ = there.post_inline(Operation::Send, b"and more");
        }
    }
    let (mut answer, mut gone) = (Vec::new(), None);
    two.run(soon + ms(2000), |two| {
        let polled = workers[at.worker].poll_tending(|_, event| match event {
            Event::Received { message, .. } => {
                answer = message.payload().to_vec();
            }
            Event::Failed { .. } | Event::ChannelFailed { .. } | Event::PeerClosed { .. } => {
                gone = gone.or(Some(two.fabric.now().to_ns()));
            }
            _ => {}
        });
        polled.unwrap();
        // A probe shows whether the peer is there.
        if let Some(channel) = workers[at.worker].channel(at.channel) {
            if channel.in_flight() == 0 && gone.is_none() {
                let _ = channel.post_inline(Operation::Send, b"?");
            }
        }
        gone.is_some()
    });
    (answer, gone.map(|gone| (gone - began) / 1_000_000))
}

#[test]
fn a_connection_that_is_no_rail_is_let_go() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let session = SessionId::new(99).unwrap();
    let mut said = AttachParameters {
        session,
        epoch: Epoch::from_wire(7),
        rail: 0,
        begins: true,
        oldest: Sequence(0),
        expected: Sequence(0),
        window: 8,
    };
    let proven = Resumption {
        session,
        epoch: 7,
        next_sequence: 0,
    };
    let refused = |reason| Refusal::new(said.epoch, reason).to_bytes().to_vec();
    let (contradiction, unknown) = (
        refused(RefusalReason::CONTRADICTION),
        refused(RefusalReason::UNKNOWN_SESSION),
    );
    // It is not what the handshake said, or the handshake said nothing.
    let mut other = proven;
    other.epoch = 6;
    for handshake in [None, Some(other)] {
        let (answer, gone) = first_says(&mut two, &Attach::new(&said).to_bytes(), handshake);
        assert_eq!(answer, contradiction);
        assert!(gone.is_some());
    }
    // It carries on what is not there.
    said.begins = false;
    let (answer, gone) = first_says(&mut two, &Attach::new(&said).to_bytes(), Some(proven));
    assert_eq!(answer, unknown);
    assert!(gone.is_some());
    // It says what is no frame.
    let (answer, gone) = first_says(&mut two, b"hello?", Some(proven));
    assert!(answer.is_empty() && gone.is_some());
    // Nothing of this is anything to the link that stands.
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    let now = two.fabric.now().to_ns() / 1_000_000;
    two.run(ms(now + 50), |_| false);
    assert!(two.settle(ms(now + 200)));
    assert_eq!(two.process(B).links.ids().count(), 1);
    assert_eq!(two.counts(A).rails_dead, 0);
}

#[test]
fn nobody_waits_long_for_what_a_connection_is_for() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let handle = two.process(B).handle.unwrap();
    let mut silent = Process::on(&two.hosts[A], &config(), false);
    let Process { node, workers, .. } = &mut silent;
    let deadline = two.deadline(ms(1000));
    let mut connecting = node.begin_connect(workers, &handle, &small(), deadline).unwrap();
    two.run(ms(100), |_| connecting.poll(node, workers).is_some());
    let channels = |two: &Two| two.process(B).workers[0].channels().count();
    assert_eq!(channels(&two), 2);
    two.run(ms(400), |_| false);
    assert_eq!(channels(&two), 2);
    two.run(ms(600), |_| false);
    assert_eq!(channels(&two), 1);
}
