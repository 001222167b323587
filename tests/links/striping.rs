//! Links where nothing fails.

use doorbell::WorkerConfig;
use doorbell::link::{FinalReason, LinkConfig, LinkError, Links, SessionEvent};

use crate::processes::{A, B, LATENCY, Process, Two, config, ms};

#[test]
fn short_and_long_messages_arrive_in_order_over_one_rail_and_over_several() {
    for rails in [1, 2, 3] {
        for bytes in [8, 2048, 2049, 20_000, 99_999] {
            let mut two = Two::new(rails, "");
            two.connected(rails as u8);
            for at in [A, B] {
                two.process_mut(at).message_bytes = bytes;
            }
            two.sends_every = [Some(ms(1)); 2];
            two.run(ms(60), |two| two.process(B).sent >= 20);
            assert!(two.settle(ms(200)), "{rails} {bytes}");
            let counts = two.counts(B);
            assert_eq!((counts.duplicates, counts.sent_again), (0, 0));
            two.fabric.audit().unwrap();
        }
    }
}

#[test]
fn a_long_message_takes_all_rails() {
    // How long it takes for 240 messages of 16 KiB to be done, where each rail carries 1 Gb/s.
    let took = |rails: usize| {
        let mut two = Two::with(rails, "", Some(1000));
        two.connected(rails as u8);
        two.process_mut(A).message_bytes = 16 << 10;
        let began = two.fabric.now();
        let is_done = loop {
            while two.process(A).sent < 240 && two.process_mut(A).send().is_ok() {}
            let (sent, done) = (two.process(A).sent, two.process(A).done);
            if done == 240 {
                break true;
            }
            if !two.run(ms(1000), |two| {
                two.process(A).done > done || sent == 240 && two.process(A).done == 240
            }) {
                break false;
            }
        };
        assert!(is_done, "{rails}");
        two.fabric.now().to_ns() - began.to_ns()
    };
    let [one, two, three] = [1, 2, 3].map(took);
    assert!(one * 100 >= two * 190, "{one} {two}");
    assert!(one * 100 >= three * 270, "{one} {three}");
}

#[test]
fn closing_is_told_and_leaves_nothing() {
    let mut two = Two::new(2, "");
    two.connected(2);
    two.sends_every = [Some(ms(1)), None];
    two.run(ms(30), |_| false);
    two.sends_every = [None; 2];
    let deadline = two.deadline(ms(100));
    let link = two.process(A).link.unwrap();
    two.process_mut(A).links.close(link, deadline);
    assert!(two.run(ms(60), |two| {
        two.processes
            .iter()
            .flatten()
            .all(|process| process.over.is_some())
    }));
    assert_eq!(
        [A, B].map(|at| two.process(at).over.unwrap()),
        [FinalReason::Closed, FinalReason::PeerClosed]
    );
    let (a, b) = (two.process(A), two.process(B));
    assert_eq!((a.done, a.unknown, b.delivered), (a.sent, 0, a.sent));
    two.run(ms(2000), |two| two.fabric.queue_pairs() == 0);
    assert_eq!(two.fabric.queue_pairs(), 0);
    for process in two.processes.iter().flatten() {
        assert_eq!(process.links.ids().count(), 0);
    }
    two.fabric.audit().unwrap();
}

#[test]
fn a_link_begins_in_a_few_round_trips_and_idles_on_heartbeats_alone() {
    let mut two = Two::new(2, "");
    two.run(ms(10), |two| {
        two.process(A).saw(SessionEvent::Connected).is_some()
    });
    let trips = two.fabric.now().to_ns() / (2 * LATENCY.as_nanos() as u64);
    assert!((4..=7).contains(&trips), "{trips}");
    two.connected(2);
    two.run(ms(2000), |_| false);
    let counts = two.counts(A);
    assert_eq!(
        (counts.sent, counts.acknowledgements, counts.rails_dead),
        (0, 0, 0)
    );
    assert!((60..=82).contains(&counts.probes), "{counts:?}");
    assert!(
        two.process(B)
            .events
            .iter()
            .all(|(at, _)| at.to_ns() < 100_000_000)
    );
}

#[test]
fn what_is_default_goes_together() {
    let fabric = doorbell_sim::Fabric::new();
    let node = crate::fabric::node(&fabric, "a", vec![crate::fabric::port("sim0", "10.0.0.1/24")]);
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    let config = LinkConfig::default();
    assert!(Links::new(&node, &workers, &config).is_ok());
    let fragments = config
        .message_bytes_max
        .div_ceil(config.session.fragment_bytes as usize);
    assert!(fragments <= config.retained as usize && config.retained <= config.ahead);
}

#[test]
fn what_cannot_be_is_told() {
    let two = Two::new(1, "");
    let a = two.process(A);
    let mut long = config();
    long.session.fragment_bytes = 4096;
    let error = Links::new(&a.node, &a.workers, &long).unwrap_err();
    assert!(
        matches!(
            error,
            LinkError::SlotsTooSmall {
                slot_bytes: 4096,
                frame_bytes: 4120
            }
        ),
        "{error}"
    );
    let elsewhere = two
        .fabric
        .host("c", vec![crate::fabric::port("sim9", "10.9.0.1/24")])
        .unwrap();
    let mut c = Process::on(&elsewhere, &config(), false);
    let handle = two.process(B).handle.unwrap();
    let error = c.links.connect(&c.node, &c.workers, &handle).unwrap_err();
    assert!(matches!(error, LinkError::NoRoute(_)), "{error}");
    let mut few = config();
    few.links_max = 0;
    let mut none = Links::new(&a.node, &a.workers, &few).unwrap();
    let error = none.connect(&a.node, &a.workers, &handle).unwrap_err();
    assert!(matches!(error, LinkError::TooManyLinks { .. }), "{error}");
}
