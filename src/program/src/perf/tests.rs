//! Tests of whole measurements between two threads over the simulated fabric.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use doorbell::provider::{IpPrefix, Mtu, Rkey};
use doorbell::{ChannelConfig, ConnectError, Node, RemoteWindow, Trust, WorkerConfig};
use doorbell_sim::{Fabric, Host, PortConfig};

use super::control::Control;
use super::error::{Corruption, PerfError};
use super::message::{Message, Purpose, Setup, Verdict};
use super::report::Figures;
use super::session::{Findings, Server, drive};
use super::terms::{Target, Terms};
use super::test::{Kind, Op, Plant, Role, Test};
use super::{Metering, Progress, control};

mod clients;

/// A small number, since two polling threads compete for the lock of the fabric.
const MEASURED: u64 = 48;
const WARMUP: u64 = 8;
const ALL: u64 = MEASURED + WARMUP;
const MIDDLE: u64 = ALL / 2;
const LOCALHOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Creates two hosts whose addresses are this machine's loopback, so that a handle names a real TCP
/// port. They live as long as the test program, since threads use them.
fn hosts() -> [&'static Node<Host>; 2] {
    let fabric = Fabric::new();
    [1, 2].map(|last| {
        let address = IpPrefix::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 8).unwrap();
        let port = PortConfig::new("sim0", &[address]);
        let host = fabric.host(&format!("host{last}"), vec![port]).unwrap();
        &*Box::leak(Box::new(
            Node::with_provider(host, Trust::unauthenticated_on_purpose()).unwrap(),
        ))
    })
}

fn terms() -> Terms {
    Terms {
        device: None,
        timeout: Duration::from_secs(10),
        shared_receives: None,
        duration: None,
        metering: Metering::default(),
    }
}

/// Timeouts that are short where a test waits for a failure, and long enough for a client to
/// connect on a busy machine.
fn briefly() -> Terms {
    Terms {
        timeout: Duration::from_secs(3),
        ..terms()
    }
}

/// Creates a client whose control messages the test itself sends.
fn talk_to(near: &Node<Host>, address: SocketAddr) -> Control<Host> {
    let mut workers = near.workers(&control::worker_config()).unwrap();
    let deadline = doorbell::within(Duration::from_secs(5));
    let at = near
        .connect_at(&mut workers, address, &control::channel_config(), deadline)
        .unwrap();
    Control::new(workers, at.worker, at.channel, Duration::from_secs(10))
}

fn at(address: SocketAddr) -> Target {
    Target::Addresses {
        name: address.to_string(),
        addresses: vec![address],
    }
}

fn test(kind: Kind, op: Op, message_bytes: u32) -> Test {
    Test {
        kind,
        op,
        message_bytes: if op.is_atomic() { 8 } else { message_bytes },
        iterations: MEASURED,
        warmup: WARMUP,
        inline_bytes_max: 220,
        batch: if kind == Kind::Bandwidth { 3 } else { 1 },
        depth: 16,
        unsignaled_max: 5,
        buffers: 0,
        traffic_class: 0,
        mtu_max: Mtu::B1024,
        plant: None,
    }
}

/// Returns the findings of both sides, the client's first.
fn measure(tests: &[Test]) -> [Findings; 2] {
    measure_as(tests, &terms(), &terms())
}

/// Measures with different terms for the two sides.
fn measure_as(tests: &[Test], client: &Terms, listener: &Terms) -> [Findings; 2] {
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, listener).unwrap();
    let target = at(server.address());
    thread::scope(|scope| {
        let served = scope.spawn(move || server.serve_one());
        let driven = drive(near, &target, tests, client, |_| Progress::silent());
        [driven, served.join().unwrap()]
    })
}

/// Returns the metrics that are served at this address.
fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    text.to_owned()
}

/// Returns the value of a series; `None` if it is absent.
fn value(text: &str, series: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

#[test]
fn metrics_are_told_while_traffic_flows_and_stay_behind_it() {
    const OPEN: &str = "doorbell_channels{device=\"sim0\",part=\"test\",peer=\"127.0.0.2\",state=\"open\"}";
    const SENT: &str = "doorbell_worker_requests_total{device=\"sim0\",part=\"test\"}";
    const RECEIVED: &str = "doorbell_worker_received_messages_total{device=\"sim0\",part=\"test\"}";
    let (metering, near_server) = Metering::at(LOCALHOST).unwrap();
    let client = Terms { metering, ..terms() };
    let (metering, far_server) = Metering::at(LOCALHOST).unwrap();
    let listener = Terms { metering, ..terms() };
    let (near, far) = (near_server.address(), far_server.address());
    assert_eq!(value(&scrape(near), SENT), None);
    let tests = [Kind::Bandwidth, Kind::Latency].map(|kind| test(kind, Op::Send, 64));
    let mut runs = 0;
    // The scraper's times are arbitrary, so measurements repeat until a scrape has happened during
    // a test.
    let is_seen = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_seen.load(Ordering::Relaxed) {
                let text = scrape(near);
                let flows = value(&text, SENT).is_some_and(|sent| sent > 0) && value(&text, OPEN) == Some(1);
                is_seen.fetch_or(flows, Ordering::Relaxed);
            }
        });
        while !is_seen.load(Ordering::Relaxed) || runs == 0 {
            let [driven, served] = measure_as(&tests, &client, &listener);
            assert!(driven.failure.is_none(), "{:?}", driven.failure);
            assert!(served.failure.is_none(), "{:?}", served.failure);
            runs += 1;
            // The loop ends in any case.
            is_seen.fetch_or(runs == 200, Ordering::Relaxed);
        }
    });
    assert!(runs < 200, "no scraper saw a test");
    let (near, far) = (scrape(near), scrape(far));
    // A finished test has no open channel, and its counters remain.
    assert_eq!(value(&near, OPEN), None, "{near}");
    let messages = runs * 2 * ALL;
    assert!(value(&near, SENT) >= Some(messages), "{near}");
    assert!(value(&far, RECEIVED) >= Some(messages), "{far}");
    // One connection for control, and one for each test.
    let connected = "doorbell_handshakes_total{outcome=\"connected\"}";
    assert_eq!(value(&near, connected), Some(runs * 3));
    assert_eq!(value(&far, connected), Some(runs * 3));
}

#[test]
fn a_port_for_metrics_that_is_taken_is_an_error() {
    let taken = std::net::TcpListener::bind(LOCALHOST).unwrap();
    let address = taken.local_addr().unwrap();
    let error = Metering::at(address).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("no metrics at {address}: ")),
        "{error}"
    );
}

#[test]
fn a_batch_about_as_long_as_the_peer_has_receives_does_not_stall() {
    let tests = [Op::Send, Op::WriteImm].map(|op| Test {
        batch: 64,
        depth: 64,
        // A round has the same length, and four more receives are posted.
        iterations: 64,
        warmup: 640,
        unsignaled_max: 64,
        ..test(Kind::Bandwidth, op, 64)
    });
    let [driven, served] = measure(&tests);
    assert!(driven.failure.is_none(), "{:?}", driven.failure);
    assert!(served.failure.is_none(), "{:?}", served.failure);
    assert_eq!(driven.rows.len(), tests.len());
}

#[test]
fn every_operation_with_shared_receives() {
    for spare in [0, 16] {
        let shared = Terms {
            shared_receives: Some(spare),
            ..terms()
        };
        let tests = every_test();
        let [driven, served] = measure_as(&tests, &shared, &shared);
        assert!(driven.failure.is_none(), "{:?}", driven.failure);
        assert!(served.failure.is_none(), "{:?}", served.failure);
        assert_eq!(driven.rows.len(), tests.len());
        for (ours, theirs) in driven.rows.iter().zip(&served.rows) {
            assert!(ours.checked_messages + theirs.checked_messages > 0, "{ours:?}");
        }
        // Each side chooses independently.
        let [driven, _] = measure_as(&tests[..1], &shared, &terms());
        assert!(driven.failure.is_none(), "{:?}", driven.failure);
    }
}

fn every_test() -> Vec<Test> {
    let mut tests = Vec::new();
    for kind in [Kind::Latency, Kind::Bandwidth] {
        for op in Op::ALL {
            for bytes in if op.is_atomic() {
                &[8][..]
            } else {
                &[1, 220, 221, 5000]
            } {
                tests.push(test(kind, op, *bytes));
            }
        }
    }
    for bytes in [1, 220, 221, 5000] {
        tests.push(test(Kind::Latency, Op::Ring, bytes));
    }
    for buffers in [3, 4, 1000] {
        tests.push(Test {
            buffers,
            ..test(Kind::Bandwidth, Op::Write, 221)
        });
    }
    tests
}

#[test]
fn every_operation_is_measured_and_checked_to_the_last_message() {
    let tests = every_test();
    let [driven, served] = measure(&tests);
    assert!(driven.failure.is_none(), "{:?}", driven.failure);
    assert!(served.failure.is_none(), "{:?}", served.failure);
    assert_eq!(driven.rows.len(), tests.len());
    assert_eq!(served.rows.len(), tests.len());
    let between = driven.between.unwrap();
    assert_eq!((&*between.device, &*between.peer), ("sim0", "127.0.0.2"));
    for ((test, row), far) in tests.iter().zip(&driven.rows).zip(&served.rows) {
        // Words of bandwidth tests of atomics are checked once more at the end of each round.
        let checked_here = row.checked_messages;
        let checked_there = far.checked_messages;
        assert_eq!(row.checked_messages_by_peer, Some(checked_there));
        assert_eq!(far.checked_messages_by_peer, Some(checked_here));
        match (test.kind, test.op) {
            (_, Op::Read | Op::FetchAdd | Op::CompareSwap) => assert_eq!(checked_here, ALL),
            (Kind::Latency, _) => assert_eq!((checked_here, checked_there), (ALL, ALL)),
            (Kind::Bandwidth, _) if test.buffers > 0 => {
                // Each is checked in one round, in which as many messages can be checked as there
                // are buffers.
                let left = |messages: u64| messages.min(test.buffers.into());
                assert_eq!((checked_here, checked_there), (0, left(WARMUP) + left(MEASURED)));
            }
            (Kind::Bandwidth, _) => assert_eq!((checked_here, checked_there), (0, ALL)),
        }
        let carries_inline = test.message_bytes <= 220 && !test.op.fetches();
        assert_eq!(row.inline, carries_inline);
        match row.figures.unwrap() {
            Figures::Latency(latency) => {
                assert_eq!(test.kind, Kind::Latency);
                assert_eq!(latency.count, MEASURED);
                assert_eq!(latency.is_one_way, !test.op.fetches());
                assert_eq!(latency.late, 0);
                let order = [
                    latency.min_ns,
                    latency.p50_ns,
                    latency.p99_ns,
                    latency.p99_9_ns,
                    latency.max_ns,
                ];
                assert!(order.is_sorted() && latency.min_ns > 0.0, "{order:?}");
                assert!(latency.mean_ns >= latency.min_ns && latency.mean_ns <= latency.max_ns);
            }
            Figures::Bandwidth(bandwidth) => {
                assert_eq!(test.kind, Kind::Bandwidth);
                assert_eq!(bandwidth.messages, MEASURED);
                assert_eq!(bandwidth.bytes, MEASURED * u64::from(test.message_bytes));
                if test.op.takes_receives() {
                    // Less than a batch is posted when the peer announces receives slowly.
                    assert!((MEASURED / 3..=MEASURED).contains(&bandwidth.doorbells));
                } else {
                    assert_eq!(bandwidth.doorbells, MEASURED / 3);
                }
                assert!(bandwidth.bytes_per_second > 0.0);
            }
        }
    }
}

/// Runs a test in which `plant` flips one bit. Both sides must fail: the side that receives the bit
/// detects it, and the other side gets its report.
fn corrupted(kind: Kind, op: Op, bytes: u32, plant: Plant) -> [Corruption; 2] {
    planted(Test {
        plant: Some(plant),
        ..test(kind, op, bytes)
    })
}

fn planted(test: Test) -> [Corruption; 2] {
    measure(&[test]).map(|findings| match findings.failure {
        Some(PerfError::Corrupted(corruption)) => corruption,
        other => panic!("{test:?}: {other:?}"),
    })
}

#[test]
fn one_flipped_bit_in_buffers_fails_both_sides() {
    let [driven, served] = planted(Test {
        plant: Some(Plant::Client),
        buffers: 3,
        ..test(Kind::Bandwidth, Op::Write, 5000)
    });
    assert_eq!((driven.seen_here, served.seen_here), (false, true));
    // All buffers of the timed round are corrupt. Each is detected in the last place to which it
    // was written.
    assert_eq!((driven.messages, driven.first.sequence), (3, WARMUP));
}

#[test]
fn one_flipped_bit_in_any_operation_fails_both_sides() {
    for kind in [Kind::Latency, Kind::Bandwidth] {
        for op in Op::ALL {
            for bytes in if op.is_atomic() { &[8][..] } else { &[64, 5000] } {
                let [driven, served] = corrupted(kind, op, *bytes, Plant::Client);
                // Words fetched by atomics, and bytes fetched by READs, arrive at the client.
                assert_eq!(driven.seen_here, op.fetches(), "{kind:?} {op}");
                // A wrong operand can only be detected in the word that the next atomic fetches.
                let sequence = if op.is_atomic() { MIDDLE + 1 } else { MIDDLE };
                assert_eq!(driven.first.sequence, sequence, "{kind:?} {op}");
                if op.is_atomic() {
                    // The listener checks the word at the end of a round.
                    assert!(served.seen_here, "{kind:?} {op}");
                    assert_eq!((driven.messages, served.messages), (1, 1));
                } else {
                    assert_eq!(driven.first, served.first);
                    assert_eq!(driven.messages, 1);
                    assert_eq!(driven.first.offset, u64::from((bytes - 1) / 2));
                    assert_eq!(driven.first.expected ^ driven.first.got, 1);
                }
            }
        }
    }
}

#[test]
fn one_flipped_bit_in_a_ring_fails_both_sides() {
    for bytes in [64, 5000] {
        let [driven, served] = corrupted(Kind::Latency, Op::Ring, bytes, Plant::Client);
        assert_eq!((driven.seen_here, served.seen_here), (false, true));
        assert_eq!((driven.messages, driven.first.sequence), (1, MIDDLE));
        assert_eq!(driven.first.offset, u64::from((bytes - 1) / 2));
    }
}

#[test]
fn a_listener_refuses_the_bandwidth_of_a_ring() {
    let test = test(Kind::Bandwidth, Op::Ring, 64);
    let [driven, _] = measure(&[test]);
    let Some(PerfError::RefusedByListener(reason)) = driven.failure else {
        panic!("{:?}", driven.failure);
    };
    assert!(reason.contains("operation"), "{reason}");
}

#[test]
fn one_flipped_bit_in_an_answer_fails_both_sides() {
    for op in [Op::Send, Op::Write, Op::WriteImm, Op::Ring] {
        let [driven, served] = corrupted(Kind::Latency, op, 64, Plant::Listener);
        assert_eq!((driven.seen_here, served.seen_here), (true, false));
        assert_eq!((driven.messages, driven.first.sequence), (1, MIDDLE));
    }
    for op in [Op::FetchAdd, Op::CompareSwap] {
        let [driven, _] = corrupted(Kind::Latency, op, 8, Plant::Listener);
        assert_eq!((driven.seen_here, driven.first.sequence), (true, 0));
    }
}

#[test]
fn where_one_side_sends_it_is_the_one_that_corrupts() {
    for (op, by_client) in [(Op::Send, true), (Op::Write, true), (Op::Read, false)] {
        for plant in [Plant::Client, Plant::Listener] {
            let [driven, _] = corrupted(Kind::Bandwidth, op, 64, plant);
            assert_eq!(driven.seen_here, !by_client);
        }
    }
}

#[test]
fn a_test_beyond_its_bounds_is_refused_before_anyone_is_asked() {
    let mut wild = test(Kind::Bandwidth, Op::Send, 64);
    wild.batch = 17;
    let [near, _] = hosts();
    let driven = drive(near, &at(LOCALHOST), &[wild], &terms(), |_| Progress::silent());
    assert!(matches!(driven.failure, Some(PerfError::OutOfRange(unfit)) if unfit.what == "the batch"));
}

#[test]
fn a_listener_refuses_what_is_beyond_its_bounds() {
    let mut wild = test(Kind::Bandwidth, Op::Send, 64);
    wild.message_bytes = u32::MAX;
    let setup = Message::Setup(Setup {
        token: 1,
        test: wild,
        window: RemoteWindow::new(0, 0, Rkey(0)),
    });
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, &terms()).unwrap();
    let address = server.address();
    let served = thread::spawn(move || server.serve_one());
    let mut control = talk_to(near, address);
    control.send(&setup).unwrap();
    let Ok(Message::Refused(reason)) = control.receive() else {
        panic!("not refused");
    };
    assert!(reason.contains("the message size is 4294967295"), "{reason}");
    let failure = served.join().unwrap().failure;
    assert!(matches!(failure, Some(PerfError::Message(_))), "{failure:?}");
}

#[test]
fn a_client_that_asks_and_does_not_come_is_given_up() {
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, &briefly()).unwrap();
    let address = server.address();
    let served = thread::spawn(move || server.serve_one());
    let mut control = talk_to(near, address);
    control
        .send(&Message::Setup(Setup {
            token: 1,
            test: test(Kind::Latency, Op::Send, 64),
            window: RemoteWindow::new(0, 0, Rkey(0)),
        }))
        .unwrap();
    assert!(matches!(control.receive(), Ok(Message::Ready(_))));
    // The client is also told the reason.
    let told = control.receive();
    assert!(
        matches!(told, Ok(Message::Verdict(Verdict { gave_up: Some(_), .. }))),
        "{told:?}"
    );
    let failure = served.join().unwrap().failure;
    assert!(matches!(failure, Some(PerfError::Stalled { .. })), "{failure:?}");
}

#[test]
fn a_window_that_is_too_small_is_an_error_and_no_write_beyond_it() {
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, &briefly()).unwrap();
    let address = server.address();
    let served = thread::spawn(move || server.serve_one());
    let mut control = talk_to(near, address);
    let test = test(Kind::Latency, Op::WriteImm, 64);
    control
        .send(&Message::Setup(Setup {
            token: 1,
            test,
            window: RemoteWindow::new(0x1000, 63, Rkey(7)),
        }))
        .unwrap();
    assert!(matches!(control.receive(), Ok(Message::Ready(_))));
    let mut config = test.channel_config(Role::Client);
    config.private_data = control::private_data(Purpose::UnderTest(1));
    let mut workers = [near.worker("sim0", &test.worker_config(Role::Client)).unwrap()];
    let deadline = doorbell::within(Duration::from_secs(5));
    near.connect_at(&mut workers, address, &config, deadline).unwrap();
    let told = control.receive();
    assert!(
        matches!(&told, Ok(Message::Verdict(Verdict { gave_up: Some(why), .. })) if why.contains("window")),
        "{told:?}"
    );
    let failure = served.join().unwrap().failure;
    assert!(matches!(failure, Some(PerfError::Message(_))), "{failure:?}");
}

#[test]
fn nobody_listening_is_an_error_after_the_time_that_was_given() {
    let [near, _] = hosts();
    // The system does not choose this port for another process.
    let unused = ([127, 0, 0, 1], 1).into();
    let terms = Terms {
        timeout: Duration::from_secs(1),
        ..terms()
    };
    let begun = std::time::Instant::now();
    let findings = drive(near, &at(unused), &[], &terms, |_| Progress::silent());
    assert!(matches!(findings.failure, Some(PerfError::NobodyListens { .. })));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_port_that_takes_connections_and_says_nothing_is_given_up() {
    let [near, _] = hosts();
    let silent = std::net::TcpListener::bind(LOCALHOST).unwrap();
    let begun = std::time::Instant::now();
    let target = at(silent.local_addr().unwrap());
    let terms = Terms {
        timeout: Duration::from_millis(500),
        ..terms()
    };
    let findings = drive(near, &target, &[], &terms, |_| Progress::silent());
    assert!(matches!(
        findings.failure,
        Some(PerfError::Connect(ConnectError::Handshake(_)))
    ));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_listener_is_waited_for_that_comes_late() {
    let [near, far] = hosts();
    let free = std::net::TcpListener::bind(LOCALHOST)
        .unwrap()
        .local_addr()
        .unwrap();
    let served = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        Server::bind(far, free, &terms()).unwrap().serve_one()
    });
    let tests = [test(Kind::Latency, Op::Send, 64)];
    let driven = drive(near, &at(free), &tests, &terms(), |_| Progress::silent());
    assert!(driven.failure.is_none(), "{:?}", driven.failure);
    assert!(served.join().unwrap().failure.is_none());
}

#[test]
fn no_client_is_an_error_after_the_time_that_was_given() {
    let [_, far] = hosts();
    let terms = Terms {
        timeout: Duration::from_millis(200),
        ..terms()
    };
    let findings = Server::bind(far, LOCALHOST, &terms).unwrap().serve_one();
    assert!(findings.timed_out(), "{:?}", findings.failure);
}

#[test]
fn a_client_that_says_nothing_is_given_up() {
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, &briefly()).unwrap();
    let address = server.address();
    let served = thread::spawn(move || server.serve_one());
    let _silent = talk_to(near, address);
    let failure = served.join().unwrap().failure;
    assert!(matches!(failure, Some(PerfError::Stalled { .. })), "{failure:?}");
}

#[test]
fn a_program_that_is_not_this_one_is_turned_away_and_the_next_is_served() {
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, &terms()).unwrap();
    let address = server.address();
    let served = thread::spawn(move || server.serve_one());
    let mut workers = near.workers(&WorkerConfig::default()).unwrap();
    let deadline = doorbell::within(Duration::from_secs(5));
    near.connect_at(&mut workers, address, &ChannelConfig::default(), deadline)
        .unwrap();
    let tests = [test(Kind::Latency, Op::Send, 64)];
    let driven = drive(near, &at(address), &tests, &terms(), |_| Progress::silent());
    assert!(driven.failure.is_none(), "{:?}", driven.failure);
    assert!(served.join().unwrap().failure.is_none());
}

#[test]
fn the_names_of_devices_are_checked() {
    let [near, _] = hosts();
    let terms = Terms {
        device: Some("mlx9_9".into()),
        ..terms()
    };
    let findings = drive(near, &at(LOCALHOST), &[], &terms, |_| Progress::silent());
    let text = findings.failure.unwrap().to_string();
    assert!(text.contains("mlx9_9") && text.contains("sim0"), "{text}");
}

#[test]
fn a_listener_serves_one_client_after_the_other() {
    let [near, far] = hosts();
    let anywhere = (Ipv4Addr::UNSPECIFIED, 0).into();
    let mut server = Server::bind(far, anywhere, &terms()).unwrap();
    let target = at((Ipv4Addr::LOCALHOST, server.address().port()).into());
    let handle = Target::Handle(*server.handle());
    let served = thread::spawn(move || [server.serve_one(), server.serve_one()]);
    let tests = [test(Kind::Bandwidth, Op::Write, 64)];
    for target in [&target, &handle] {
        let driven = drive(near, target, &tests, &terms(), |_| Progress::silent());
        assert!(driven.failure.is_none(), "{:?}", driven.failure);
    }
    for findings in served.join().unwrap() {
        assert!(findings.failure.is_none(), "{:?}", findings.failure);
    }
}

#[test]
fn the_report_says_everything() {
    let tests = [
        test(Kind::Latency, Op::Read, 64),
        test(Kind::Bandwidth, Op::Send, 4096),
    ];
    let [driven, _] = measure(&tests);
    let report = super::Report {
        simulated: false,
        kind: Kind::Latency,
        role: Role::Client,
        between: driven.between,
        shared_receives: None,
        tests: driven.rows,
        error: None,
    };
    let text = report.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[0].contains("sim0 to 127.0.0.2, path MTU 1024"), "{text}");
    for (header, row) in [(1, 2), (3, 4)] {
        // Columns are aligned: the last one ends where its header does, except for remarks.
        let columns = |line: &str| line.split_whitespace().count();
        assert!(columns(lines[row]) >= columns(lines[header]) - 1, "{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    for field in [
        "/tests/0/latency/p50_ns",
        "/tests/0/op",
        "/tests/0/message_bytes",
        "/tests/0/checked_messages",
        "/tests/1/bandwidth/bytes_per_second",
        "/tests/1/bandwidth/doorbells",
        "/tests/1/depth",
        "/tests/1/inline",
        "/device",
        "/peer",
        "/path_mtu_bytes",
        "/simulated",
    ] {
        assert!(json.pointer(field).is_some(), "{field} in {json}");
    }
    assert_eq!(json.pointer("/path_mtu_bytes").unwrap(), 1024);
}
