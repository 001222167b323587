//! Connecting over TCP: rails, agreement, and every way in which a peer, a network or a configuration is bad.

use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use crate::fabric::{LONG, SOON, connect, pair_with, port, small, tcp_node as node, workers};
use doorbell::connect::{Cause, Stage};
use doorbell::provider::{Mtu, PortState};
use doorbell::wire::PrivateData;
use doorbell::{
    ChannelConfig, ConnectError, Handle, Listener, Node, NodeError, Worker, WorkerConfig, within,
};
use doorbell_sim::{Fabric, Host, Link};

/// A stage short enough to wait for in a test.
const STAGE: Duration = Duration::from_millis(200);

/// A stage that no test waits for: a report before its end came at once, however busy the machine is.
const LONG_STAGE: Duration = Duration::from_secs(8);

fn hasty() -> ChannelConfig {
    let mut config = small();
    config.handshake_stage = STAGE;
    config
}

/// The error of connecting to `address` from a fresh host with such a stage, and how long it took.
fn failure_at(address: &str, stage: Duration) -> (ConnectError, Duration) {
    let fabric = Fabric::new();
    let node = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let mut workers = workers(&node);
    let mut config = small();
    config.handshake_stage = stage;
    let began = Instant::now();
    let error = node
        .connect_at(&mut workers, address.parse().unwrap(), &config, within(SOON))
        .unwrap_err();
    (error, began.elapsed())
}

/// Accepts, and nobody comes, in turns so long until so many peers have failed; the error of the last turn.
fn until_failed(
    listener: &mut Listener<Host>,
    node: &Node<Host>,
    workers: &mut [Worker<Host>],
    turn: Duration,
    count: u64,
) -> ConnectError {
    let began = Instant::now();
    loop {
        let error = listener.accept(node, workers, within(turn)).unwrap_err();
        if listener.failed() >= count {
            return error;
        }
        assert!(began.elapsed() < SOON, "{}: {error}", listener.failed());
    }
}

#[test]
fn both_sides_know_what_was_agreed() {
    let fabric = Fabric::new();
    let mut narrow = port("simB", "127.0.0.2/24");
    narrow.active_mtu = Some(Mtu::B1024);
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let b = node(&fabric, "b", vec![narrow]);
    let (mut listening, mut connecting) = (small(), small());
    listening.private_data = PrivateData::new(b"from a").unwrap();
    listening.rd_atomic_max = 4;
    connecting.private_data = PrivateData::new(b"from b").unwrap();
    connecting.receive_depth = 8;
    let (mut a, b) = connect((a, b), listening, connecting);
    let mut b = b.unwrap();
    let (id_a, id_b) = (a.id(), b.id());
    let peer_b = *a.worker().channel(id_a).unwrap().peer();
    let peer_a = *b.worker().channel(id_b).unwrap().peer();
    assert_eq!((peer_a.path_mtu(), peer_b.path_mtu()), (Mtu::B1024, Mtu::B1024));
    assert_eq!(
        (peer_a.private_data(), peer_b.private_data()),
        (&b"from a"[..], &b"from b"[..])
    );
    assert_eq!((peer_a.rd_atomic_max(), peer_b.rd_atomic_max()), (4, 4));
    assert_eq!((peer_a.receive_depth(), peer_b.receive_depth()), (16, 8));
    assert_eq!(peer_a.message_bytes_max(), 8192);
    assert_eq!(peer_a.address().to_string(), "127.0.0.1");
}

#[test]
fn the_rail_that_shares_a_subnet_is_chosen() {
    let fabric = Fabric::new();
    let a = node(
        &fabric,
        "a",
        vec![port("a1", "127.1.0.1/24"), port("a2", "127.0.0.1/24")],
    );
    let b = node(
        &fabric,
        "b",
        vec![port("b1", "127.2.0.2/24"), port("b2", "127.0.0.2/24")],
    );
    let (a, b) = connect((a, b), small(), small());
    let b = b.unwrap();
    assert_eq!(a.workers[a.at.worker].device(), "a2");
    assert_eq!(b.workers[b.at.worker].device(), "b2");
}

#[test]
fn without_a_common_subnet_each_rail_says_why() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("a1", "127.0.0.1/24")]);
    let b = node(
        &fabric,
        "b",
        vec![port("b1", "127.7.0.2/24"), port("b2", "127.8.0.2/24")],
    );
    let server = workers(&a);
    let listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let mut client = workers(&b);
    let error = b
        .connect(&mut client, listener.handle(), &small(), within(SOON))
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ConnectError::NoRoute(_)), "{text}");
    for part in [
        "127.0.0.1/24",
        "b1 port 1 (127.7.0.2/24)",
        "b2 port 1 (127.8.0.2/24)",
        "in its subnet",
    ] {
        assert!(text.contains(part), "{part} in: {text}");
    }
}

#[test]
fn nobody_there_is_told_at_once() {
    // Nobody is given this port by chance.
    let (error, took) = failure_at("127.0.0.1:1", LONG_STAGE);
    let told = error.to_string();
    assert_eq!(told.matches("handshake failed").count(), 1, "{told}");
    assert!(told.contains("connection refused"), "{told}");
    let ConnectError::Handshake(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.cause, Cause::Stream(111));
    assert!(took < LONG_STAGE, "{took:?}");
}

#[test]
fn a_silent_listener_costs_one_stage() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (error, took) = failure_at(&silent.local_addr().unwrap().to_string(), STAGE);
    let ConnectError::Handshake(error) = error else {
        panic!("{error}")
    };
    assert_eq!((error.stage, error.cause), (Stage::Welcome, Cause::StageTimedOut));
    assert!((STAGE..LONG_STAGE).contains(&took), "{took:?}");
}

#[test]
fn a_listener_that_speaks_something_else_is_told_apart() {
    for (says, closes) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n padding padding padding"[..],
            false,
        ),
        (b"", true),
    ] {
        let strange = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = strange.local_addr().unwrap();
        let speaking = thread::spawn(move || {
            let (mut stream, _) = strange.accept().unwrap();
            stream.write_all(says).unwrap();
            let mut rest = Vec::new();
            if !closes {
                let _ = stream.read_to_end(&mut rest);
            }
        });
        let (error, took) = failure_at(&address.to_string(), LONG_STAGE);
        speaking.join().unwrap();
        let ConnectError::Handshake(error) = error else {
            panic!("{error}")
        };
        match error.cause {
            Cause::Wire(_) => assert!(!closes),
            Cause::PeerClosed => assert!(closes),
            other => panic!("{other}"),
        }
        assert!(took < LONG_STAGE, "{took:?}");
    }
}

#[test]
fn hostile_clients_do_not_hold_up_an_honest_one() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let b = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let mut server = workers(&a);
    let mut config = small();
    // Longer than the deadline of the accept: waiting for one silent stream would miss it.
    config.handshake_stage = 6 * SOON;
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &config).unwrap();
    let address = listener.address();
    let mut hostile: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (index, stream) in hostile.iter_mut().enumerate() {
        match index % 4 {
            // Silent; garbage; the beginning of a frame; a frame that announces too much.
            0 => {}
            1 => stream.write_all(&[0xff; 4096]).unwrap(),
            2 => stream.write_all(b"DBLF\x01\x01").unwrap(),
            _ => stream
                .write_all(b"DBLF\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff")
                .unwrap(),
        }
    }
    let handle: Handle = *listener.handle();
    let honest = thread::spawn(move || {
        let mut client = workers(&b);
        b.connect(&mut client, &handle, &small(), within(SOON))
            .map(|_| ())
            .map_err(|error| error.to_string())
    });
    listener.accept(&a, &mut server, within(SOON)).unwrap();
    assert_eq!(honest.join().unwrap(), Ok(()));
    // The honest one may have been through before what the others said was read.
    until_failed(&mut listener, &a, &mut server, STAGE, 5);
}

#[test]
fn nobody_coming_is_told_at_the_deadline_with_why_the_last_failed() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let mut server = workers(&a);
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &hasty()).unwrap();
    let error = listener.accept(&a, &mut server, within(STAGE)).unwrap_err();
    assert!(
        matches!(error, ConnectError::TimedOut { last_failure: None }),
        "{error}"
    );
    let silent = TcpStream::connect(listener.address()).unwrap();
    let began = Instant::now();
    let last = loop {
        assert!(began.elapsed() < SOON);
        match listener.accept(&a, &mut server, within(STAGE * 3)).unwrap_err() {
            ConnectError::TimedOut {
                last_failure: Some(last),
            } => break last,
            ConnectError::TimedOut { last_failure: None } => {}
            other => panic!("{other}"),
        }
    };
    drop(silent);
    assert!(last.to_string().contains("Hello"), "{last}");
}

#[test]
fn peers_that_fail_one_after_the_other_do_not_hold_off_the_deadline() {
    const PEERS: u64 = 8;
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let mut server = workers(&a);
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &hasty()).unwrap();
    let _rude: Vec<_> = (0..PEERS)
        .map(|_| {
            let mut stream = TcpStream::connect(listener.address()).unwrap();
            stream.write_all(&[b'x'; 64]).unwrap();
            stream
        })
        .collect();
    let error = until_failed(&mut listener, &a, &mut server, Duration::ZERO, 1);
    assert!(
        matches!(
            error,
            ConnectError::TimedOut {
                last_failure: Some(_)
            }
        ),
        "{error}"
    );
    // The deadline holds, however many of them were looked at by then.
    assert!((1..=PEERS).contains(&listener.failed()));
    let error = until_failed(&mut listener, &a, &mut server, STAGE, PEERS);
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert_eq!(listener.failed(), PEERS);
}

#[test]
fn a_handle_of_a_listener_that_is_gone_is_recognised() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let b = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let server = workers(&a);
    let before = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let (old, address) = (*before.handle(), before.address());
    drop(before);
    let restarted = Node::with_provider(a.provider().clone(), a.trust()).unwrap();
    let mut server = workers(&restarted);
    let mut listener = Listener::bind(&restarted, &server, address, &small()).unwrap();
    let accepting = thread::spawn(move || {
        until_failed(&mut listener, &restarted, &mut server, STAGE, 1);
    });
    let mut client = workers(&b);
    let error = b.connect(&mut client, &old, &small(), within(SOON)).unwrap_err();
    assert!(error.to_string().contains("listener"), "{error}");
    accepting.join().unwrap();
}

#[test]
fn unusable_ports_say_why() {
    let fabric = Fabric::new();
    let mut down = port("down", "127.0.0.1/24");
    down.state = PortState::DOWN;
    let mut old = port("old", "127.0.1.1/24");
    old.link = Link::RoceV1;
    let mut other = port("other", "127.0.2.1/24");
    other.link = Link::Infiniband;
    let node = node(&fabric, "a", vec![down, old, other]);
    let error = node.workers(&WorkerConfig::default()).unwrap_err().to_string();
    for part in [
        "down port 1: the port is DOWN, not ACTIVE",
        "old port 1: the GID table has no RoCEv2 entry",
        "other port 1: the port's link layer is not Ethernet (RoCE)",
    ] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}

#[test]
fn no_device_and_a_wrong_name_are_told() {
    let fabric = Fabric::new();
    let none = node(&fabric, "none", vec![]);
    assert!(matches!(
        none.workers(&WorkerConfig::default()),
        Err(NodeError::NothingUsable(_))
    ));
    let error = none.worker("mlx5_9", &WorkerConfig::default()).unwrap_err();
    assert_eq!(error.to_string(), "no RDMA device mlx5_9: there are none");
    let one = node(&fabric, "one", vec![port("simA", "127.0.0.1/24")]);
    let error = one.worker("simB", &WorkerConfig::default()).unwrap_err();
    assert_eq!(error.to_string(), "no RDMA device simB: there are simA");
}

#[test]
fn a_channel_is_admitted_only_with_room_for_its_completions() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "127.0.0.1/24")]);
    let b = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let mut server = workers(&a);
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    let accepting = thread::spawn(move || {
        until_failed(&mut listener, &a, &mut server, STAGE, 1);
    });
    let mut client = workers(&b);
    let mut greedy = small();
    greedy.send_depth = (1 << 16) - 1;
    let error = b
        .connect(&mut client, &handle, &greedy, within(SOON))
        .unwrap_err();
    assert!(matches!(error, ConnectError::NoRoom { .. }), "{error}");
    accepting.join().unwrap();
}

#[test]
fn many_channels_live_on_one_worker() {
    let (mut a, b) = pair_with(small(), small());
    let End {
        node, mut workers, ..
    } = b;
    let mut listener = Listener::bind(&a.node, &a.workers, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    let connecting = thread::spawn(move || {
        for _ in 0..2 {
            node.connect(&mut workers, &handle, &small(), node.within(LONG))
                .unwrap();
        }
        let ids: Vec<_> = workers[0].channels().collect();
        (workers, ids)
    });
    for _ in 0..2 {
        let long = a.node.within(LONG);
        listener.accept(&a.node, &mut a.workers, long).unwrap();
    }
    let (_workers, ids) = connecting.join().unwrap();
    assert_eq!(ids.len(), 3);
    assert_eq!(a.worker().channels().count(), 3);
}

#[test]
fn bound_to_one_address_the_handle_leads_there_alone() {
    let fabric = Fabric::new();
    let a = node(
        &fabric,
        "a",
        vec![
            port("a1", "127.0.0.1/24"),
            port("a2", "127.1.0.1/24"),
            port("a3", "fd00::1/64"),
        ],
    );
    let server = workers(&a);
    let rails = |address: &str| {
        let listener = Listener::bind(&a, &server, address.parse().unwrap(), &small()).unwrap();
        let rails = listener.handle().rails();
        rails
            .iter()
            .map(|rail| rail.address().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(rails("127.1.0.1:0"), ["127.1.0.1/24"]);
    assert_eq!(rails("0.0.0.0:0"), ["127.0.0.1/24", "127.1.0.1/24"]);
}

#[test]
fn workers_in_another_order_are_refused_and_not_mixed_up() {
    let fabric = Fabric::new();
    let a = node(
        &fabric,
        "a",
        vec![port("a1", "127.0.0.1/24"), port("a2", "127.1.0.1/24")],
    );
    let b = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    let mut server = workers(&a);
    let mut listener = Listener::bind(&a, &server, "0.0.0.0:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    let connecting = thread::spawn(move || {
        let mut client = workers(&b);
        b.connect(&mut client, &handle, &small(), within(SOON))
            .map(|_| ())
            .map_err(|error| error.to_string())
    });
    let began = Instant::now();
    // Swapped at every poll, so that some step of the handshake sees the wrong one.
    let outcome = loop {
        assert!(began.elapsed() < SOON);
        match listener.poll_accept(&a, &mut server) {
            Ok(None) => server.reverse(),
            other => break other,
        }
        thread::yield_now();
    };
    let _ = connecting.join();
    match outcome {
        // Whether a step met the wrong order is up to the timing; mixed up it never is.
        Ok(connection) => {
            let at = connection.unwrap();
            assert!(server[at.worker].channel(at.channel).is_some());
        }
        Err(error) => assert!(
            matches!(
                error,
                ConnectError::OtherWorkers | ConnectError::Handshake(_) | ConnectError::Provider(_)
            ),
            "{error}"
        ),
    }
}

use crate::fabric::End;
