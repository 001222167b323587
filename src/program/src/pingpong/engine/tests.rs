//! Tests of whole ping-pongs between two threads over the simulated fabric.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::thread;

use doorbell::provider::{Arena, Gid, GidKind, IpPrefix, Mtu, Provider, Psn, Slot};
use doorbell_sim::{Fabric, Host, PortConfig};

use super::{Engine, EngineError, Plan, Role, fill};
use crate::pingpong::source::{GidReason, Source};
use crate::pingpong::wire::Destination;

const PLAN: Plan = Plan {
    message_bytes: 4096,
    iterations: 40,
    receive_depth: 8,
    mtu: Mtu::B1024,
    service_level: 0,
    page_bytes: None,
    events: false,
    stall: Duration::from_secs(20),
};

const SOON: Duration = Duration::from_millis(200);

fn engine(fabric: &Fabric, last: u8, plan: Plan) -> (Engine<Host>, Destination) {
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let port = PortConfig::new("sim0", &[IpPrefix::new(ip, 24).unwrap()]);
    let host = fabric.host(&format!("host{last}"), vec![port]).unwrap();
    let mut gid_index = None;
    host.scan(
        &mut |report| {
            let entry = report.usable_gids().find(|entry| entry.gid == Gid::from_ip(ip));
            gid_index = entry.map(|entry| u8::try_from(entry.index).unwrap());
        },
        &mut |_, _| {},
    )
    .unwrap();
    let source = Source {
        device: "sim0".into(),
        port: 1,
        gid_index: gid_index.unwrap(),
        gid: Gid::from_ip(ip),
        kind: GidKind::RoceV2Ipv4,
        why: GidReason::Named,
    };
    let psn = Psn::from_low_bits(u32::from(last));
    let engine = Engine::new(&host.open("sim0").unwrap(), source, psn, plan).unwrap();
    let local = Destination {
        lid: 0,
        qpn: engine.qpn(),
        psn,
        gid: Gid::from_ip(ip),
    };
    (engine, local)
}

fn connected(server: Plan, client: Plan) -> [Engine<Host>; 2] {
    let fabric = Fabric::new();
    let (mut server, server_at) = engine(&fabric, 1, server);
    let (mut client, client_at) = engine(&fabric, 2, client);
    server.connect(&client_at).unwrap();
    client.connect(&server_at).unwrap();
    [server, client]
}

type Outcome = Result<Duration, EngineError>;

fn play(server: Plan, client: Plan) -> [Outcome; 2] {
    let [mut server, mut client] = connected(server, client);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(Role::Server));
        let client = client.run(Role::Client);
        [serving.join().unwrap(), client]
    })
}

#[test]
fn messages_of_any_size_go_round_with_any_depth() {
    for (message_bytes, receive_depth) in [(1, 1), (64, 2), (4096, 8), (10_000, 500)] {
        for page_bytes in [None, Some(4096)] {
            let plan = Plan {
                message_bytes,
                receive_depth,
                page_bytes,
                // Two polling sides are slow on few processors.
                events: receive_depth > 1,
                ..PLAN
            };
            let [server, client] = play(plan, plan);
            server.unwrap();
            client.unwrap();
        }
    }
}

#[test]
fn whoever_sleeps_is_woken_by_every_message() {
    let awake = PLAN;
    let asleep = Plan { events: true, ..PLAN };
    let longer = Plan {
        iterations: 300,
        ..asleep
    };
    for (server, client) in [(longer, longer), (asleep, awake), (awake, asleep)] {
        for outcome in play(server, client) {
            // A message that did not wake its receiver would stall.
            outcome.unwrap();
        }
    }
}

#[test]
fn one_message_is_a_ping_pong() {
    let plan = Plan {
        iterations: 1,
        ..PLAN
    };
    let [server, client] = play(plan, plan);
    server.unwrap();
    client.unwrap();
}

#[test]
fn a_message_of_another_length_is_told() {
    let client = Plan {
        message_bytes: 4095,
        stall: SOON,
        ..PLAN
    };
    let [server, _] = play(PLAN, client);
    assert!(
        matches!(
            server,
            Err(EngineError::Length {
                number: 1,
                got: 4095,
                expected: 4096
            })
        ),
        "{server:?}"
    );
    let client = Plan {
        message_bytes: 8192,
        ..client
    };
    let [server, client] = play(Plan { stall: SOON, ..PLAN }, client);
    assert!(server.is_err());
    let text = client.unwrap_err().to_string();
    assert!(text.contains("do both sides have the same --size"), "{text}");
}

#[test]
fn pages_that_the_peer_did_not_mark_fail_the_check() {
    let server = Plan {
        page_bytes: Some(4096),
        ..PLAN
    };
    let [server, client] = play(server, PLAN);
    assert!(
        matches!(
            server,
            Err(EngineError::Content {
                offset: 0,
                got: 0x7b,
                expected: 0
            })
        ),
        "{server:?}"
    );
    client.unwrap();
}

#[test]
fn one_damaged_byte_anywhere_fails_the_check() {
    let [_, mut client] = connected(PLAN, PLAN);
    for offset in [0, 1, 2048, 4095] {
        let mut last = client.wire.arena.lease().unwrap();
        fill(&mut last, &PLAN);
        client.wire.held = Some(last);
        client.wire.check(Role::Client).unwrap();
        if let Some(last) = &mut client.wire.held {
            last.buffer_mut()[offset] ^= 1;
        }
        let error = client.wire.check(Role::Client).unwrap_err();
        assert!(
            matches!(error, EngineError::Content { offset: found, got: 0x7a, expected: 0x7b } if found == offset),
            "{error}"
        );
    }
}

#[test]
fn a_peer_that_stops_is_given_up() {
    let [server, mut client] = connected(PLAN, Plan { stall: SOON, ..PLAN });
    let error = client.run(Role::Client).unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::Stalled {
                sent: 1,
                received: 0,
                ..
            }
        ),
        "{error}"
    );
    drop(server);
}

#[test]
fn a_peer_with_fewer_iterations_is_told() {
    let server = Plan {
        iterations: 10,
        ..PLAN
    };
    let [server, client] = play(server, Plan { stall: SOON, ..PLAN });
    server.unwrap();
    let text = client.unwrap_err().to_string();
    assert!(text.contains("as many --iters"), "{text}");
}

#[test]
fn what_is_exchanged_is_counted() {
    let [mut server, mut client] = connected(PLAN, PLAN);
    let counted = [server.statistics(), client.statistics()].map(std::sync::Arc::clone);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(Role::Server).unwrap());
        client.run(Role::Client).unwrap();
        serving.join().unwrap();
    });
    for statistics in counted {
        let counted = statistics.snapshot();
        assert_eq!([counted.requests, counted.completions, counted.received], [40; 3]);
        assert_eq!([counted.bytes, counted.received_bytes], [40 * 4096; 2]);
        assert!(counted.receives_posted >= 40);
    }
}
