//! The library over links that lose, double, swap, delay and change packets: nothing of it is
//! to be seen above but the time it takes.

use std::time::Instant;

use crate::fabric::{End, SOON, connect, node, nodes, port, small, workers};
use doorbell::{Event, Listener, SendErrorKind};
use doorbell_sim::Fabric;

const MESSAGES: u32 = 400;

/// Content of the message of this number.
fn text(number: u32) -> Vec<u8> {
    let bytes = (number as usize * 97) % 6000;
    let tail = (0..bytes).map(|at| (at as u8).wrapping_mul(7).wrapping_add(number as u8));
    number.to_le_bytes().into_iter().chain(tail).collect()
}

/// Sends as many of the messages as go now; says the number of the next.
fn send(end: &mut End, next: u32) -> u32 {
    for number in next..MESSAGES {
        let id = end.id();
        let Some(mut lease) = end.worker().lease() else {
            return number;
        };
        lease.fill(&text(number)).unwrap();
        match end.worker().channel(id).unwrap().send_lease(lease) {
            Ok(_) => (),
            Err(error) if error.kind == SendErrorKind::WouldBlock => return number,
            Err(error) => panic!("{}", error.kind),
        }
    }
    MESSAGES
}

/// Takes what came, in order; says the number of the next.
fn receive(end: &mut End, next: u32) -> u32 {
    let mut next = next;
    let worker = &mut end.workers[end.at.worker];
    let each = |_: doorbell::Turn<'_, _>, event: Event<'_, _>| match event {
        Event::Received { message, .. } => {
            assert_eq!(message.payload(), text(next));
            next += 1;
        }
        Event::Done { .. } => (),
        other => panic!("{other:?}"),
    };
    worker.poll_tending(each).unwrap();
    next
}

#[test]
fn connections_are_made_whatever_befalls_the_streams_they_are_made_over() {
    let mut slowed = 0;
    let mut plans: Vec<String> = (0..10)
        .map(|seed| {
            format!(
                "seed {seed}; drop 4% stream of any->any; duplicate 20% stream of any->any; \
                 reorder 4% stream of any->any; corrupt 1% stream of any->any; delay 5% stream of any->any by 30ms"
            )
        })
        .collect();
    for effect in ["drop", "duplicate", "reorder", "corrupt", "delay"] {
        let by = if effect == "delay" { " by 300ms" } else { "" };
        for nth in 1..=12 {
            plans.extend(["a->b", "b->a"].map(|way| format!("{effect} {nth}th stream of {way}{by}")));
        }
    }
    for plan in &plans {
        let fabric = Fabric::builder().plan(plan.parse().unwrap()).driven().build();
        make_connection(&fabric, plan);
        slowed += u32::from(fabric.now().to_ns() > 100_000_000);
    }
    assert!(slowed > 20, "{slowed} of {} plans", plans.len());
}

/// Connects two hosts, in as much time as that takes.
fn make_connection(fabric: &Fabric, plan: &str) {
    let a = node(fabric, "a", vec![port("simA", "10.0.0.1/24")]);
    let b = node(fabric, "b", vec![port("simB", "10.0.0.2/24")]);
    let mut config = small();
    config.handshake_stage = SOON;
    let (mut at_a, mut at_b) = (workers(&a), workers(&b));
    let any_port = "[::]:0".parse().unwrap();
    let mut listener = Listener::bind(&a, &at_a, any_port, &config).unwrap();
    let mut connecting = b
        .begin_connect(&at_b, listener.handle(), &config, b.within(6 * SOON))
        .unwrap();
    let (mut accepted, mut connected) = (None, None);
    while accepted.is_none() || connected.is_none() {
        if connected.is_none() {
            connected = connecting.poll(&b, &mut at_b);
        }
        if accepted.is_none() {
            accepted = listener.poll_accept(&a, &mut at_a).transpose();
        }
        assert!(
            fabric.step() || (accepted.is_some() && connected.is_some()),
            "{plan}: {accepted:?} {connected:?}"
        );
    }
    let is_there = matches!((&accepted, &connected), (Some(Ok(_)), Some(Ok(_))));
    assert!(is_there, "{plan}: {accepted:?} {connected:?}");
    fabric.audit().unwrap();
}

#[test]
fn messages_arrive_once_and_in_order_over_bad_links() {
    for plan in [
        "seed 1; drop 5% packet of any->any",
        "seed 2; duplicate 30% packet of any->any; reorder 20% packet of any->any",
        "seed 3; corrupt 3% packet of any->any; delay 5% packet of any->any by 3ms; drop 2% ack of any->any",
    ] {
        let fabric = Fabric::builder().plan(plan.parse().unwrap()).build();
        let [a, b] = nodes(&fabric);
        let (mut a, b) = connect((a, b), small(), small());
        let mut b = b.unwrap();
        let begin = Instant::now();
        let (mut sent, mut received) = ([0; 2], [0; 2]);
        while received != [MESSAGES; 2] {
            for (side, end) in [&mut a, &mut b].into_iter().enumerate() {
                sent[side] = send(end, sent[side]);
                received[side] = receive(end, received[side]);
            }
            assert!(
                begin.elapsed() < 6 * SOON,
                "{plan}: {sent:?} sent, {received:?} received"
            );
        }
        assert_eq!(fabric.receivers_not_ready(), 0, "{plan}");
        let tally = fabric.audit().unwrap();
        let harmed = tally.packets.lost + tally.packets.corrupt > 0 || plan.contains("duplicate");
        assert!(harmed, "{plan}");
    }
}
