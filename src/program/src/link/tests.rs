//! Tests of both ends over the simulated fabric, in virtual time.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{FinalReason, SessionEvent, UnknownReason};
use doorbell::provider::{Instant, IpPrefix};
use doorbell::{Node, Trust, WorkerConfig};
use doorbell_sim::{Fabric, Host, LinkConfig as Wire, PortConfig};

use super::drill::Note;
use super::end::{Amount, End, Part};
use super::reach::Op;
use super::report::{Criteria, Ending, Report};
use super::stream::PeerSettings;

const WISH: PeerSettings = PeerSettings {
    answers: true,
    message_bytes: 10_000,
    per_second: 100,
    op: Op::Send,
};

const JUDGED: Criteria = Criteria {
    ending: Ending::Closed,
    detect_within: None,
    detect_at_least: None,
    outage_within: None,
    is_hanging: false,
    orders: 0,
};

type Side = End<Host, Host>;

/// Creates a client and a listener with two rails between them, under a plan of faults.
fn two(plan: &str, wish: PeerSettings) -> (Fabric, [Side; 2]) {
    let wire = Wire {
        latency_ns: 50_000,
        bandwidth_mbps: None,
    };
    let plan = plan.parse().unwrap();
    let fabric = Fabric::builder().link(wire).plan(plan).driven().build();
    let sides = [("a", 1), ("b", 2)].map(|(name, last)| {
        let ports = [0, 1].map(|rail| {
            let address = IpPrefix::new(IpAddr::V4(Ipv4Addr::new(10, 0, rail, last)), 24).unwrap();
            PortConfig::new(&format!("sim{rail}"), &[address])
        });
        let host = fabric.host(name, ports.into()).unwrap();
        let node = Node::with(host.clone(), host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let part = if name == "a" {
            let amount = Amount::For(Duration::from_secs(1));
            Part::Client { amount, wish }
        } else {
            Part::Listener
        };
        let mut config = doorbell::link::LinkConfig::default();
        config.channel.remote = super::REMOTE;
        config.session.recover_within = Duration::from_secs(2);
        End::new(Arc::new(node), workers, &config, part).unwrap()
    });
    let [mut client, mut listener] = sides;
    let any = SocketAddr::from(([0, 0, 0, 0], 7000));
    let handle = listener
        .links
        .listen_polled(&listener.node, &listener.workers, any)
        .unwrap();
    client.connect(&handle).unwrap();
    (fabric, [client, listener])
}

/// Runs both ends until they finish, or until a time limit. Returns their reports.
fn run(plan: &str, wish: PeerSettings, judged: &Criteria) -> [serde_json::Value; 2] {
    let (fabric, sides) = two(plan, wish);
    go_on(&fabric, sides, judged)
}

fn go_on(fabric: &Fabric, mut sides: [Side; 2], judged: &Criteria) -> [serde_json::Value; 2] {
    let until = Instant::from_ns(0).after(Duration::from_secs(8));
    while fabric.now() < until && !sides.iter().all(End::is_over) {
        let mut next = fabric.now().after(Duration::from_millis(2));
        for side in sides.iter_mut().filter(|side| !side.is_over()) {
            side.turn().unwrap();
            if let Some(wake) = side.links.wake(fabric.now()) {
                next = next.min(wake.instant());
            }
        }
        crate::simulated::advance(fabric, next);
    }
    fabric.audit().unwrap();
    sides.map(|mut side| {
        side.watch.ended(fabric.now());
        let report = Report::of(&side, judged);
        assert!(report.text().contains("the link "), "{}", report.text());
        let mut told = serde_json::to_value(&report).unwrap();
        crate::schema::check(&told, &mut Default::default());
        told["passed"] = report.passed.into();
        told
    })
}

fn number(report: &serde_json::Value, pointer: &str) -> u64 {
    report
        .pointer(pointer)
        .unwrap_or_else(|| panic!("{pointer} in {report}"))
        .as_u64()
        .unwrap()
}

#[test]
fn both_send_and_account_for_all() {
    let [client, listener] = run("", WISH, &JUDGED);
    for report in [&client, &listener] {
        assert_eq!(report["passed"], true, "{report:#}");
        assert!(
            (80..=102).contains(&number(report, "/outgoing/messages")),
            "{report:#}"
        );
        assert_eq!(number(report, "/epochs"), 2);
        assert_eq!(number(report, "/failovers"), 0);
    }
    assert_eq!(client["outgoing"]["messages"], listener["incoming"]["messages"]);
    assert_eq!(client["incoming"]["messages"], listener["outgoing"]["messages"]);
    let one_way = PeerSettings {
        answers: false,
        ..WISH
    };
    let [client, listener] = run("", one_way, &JUDGED);
    assert_eq!(
        (&client["passed"], &listener["passed"]),
        (&true.into(), &true.into())
    );
    assert_eq!(number(&listener, "/outgoing/messages"), 0);
}

#[test]
fn a_listener_whose_address_changes_is_connected_by_the_new_one() {
    let (fabric, mut sides) = two("at 300ms gid b/sim1:1 10.0.1.2 becomes 10.0.1.99", WISH);
    // Handshakes use the state of the listener's ports, which is up to a second old.
    let amount = Amount::For(Duration::from_secs(4));
    sides[0].part = Part::Client { amount, wish: WISH };
    let [client, listener] = go_on(&fabric, sides, &JUDGED);
    for report in [&client, &listener] {
        assert_eq!(report["passed"], true, "{report:#}");
        assert_eq!(number(report, "/reconnects"), 0, "{report:#}");
        assert_eq!(number(report, "/rails/1/ups"), 2, "{report:#}");
        assert_eq!(number(report, "/rails/1/downs"), 1, "{report:#}");
    }
}

#[test]
fn what_is_written_is_there_and_what_is_read_is_right_whatever_fails() {
    let faults = "at 300ms link a/sim0-b/sim0 down for 300ms; at 800ms link a-b down for 200ms";
    for (plan, op) in [
        ("", Op::Write),
        ("", Op::Read),
        (faults, Op::Write),
        (faults, Op::Read),
    ] {
        let wish = PeerSettings {
            answers: false,
            message_bytes: 2000,
            op,
            ..WISH
        };
        let [client, listener] = run(plan, wish, &JUDGED);
        for report in [&client, &listener] {
            assert_eq!(report["passed"], true, "{op:?} {report:#}");
            assert_eq!(
                report["one_sided"]["op"],
                if op == Op::Read { "read" } else { "write" }
            );
            assert_eq!(number(report, "/one_sided/windows"), 2);
            assert_eq!(number(report, "/one_sided/wrong"), 0);
        }
        let taken = number(&client, "/one_sided/requests/taken");
        assert_eq!(number(&client, "/one_sided/requests/done"), taken);
        assert_eq!(number(&listener, "/one_sided/requests/taken"), taken);
        let least = if plan.is_empty() { 80 } else { 30 };
        assert!((least..=102).contains(&taken), "{op:?} {client:#}");
        assert_eq!(number(&client, "/outgoing/messages"), 0);
    }
}

#[test]
fn what_is_not_as_it_was_written_is_found() {
    let wish = PeerSettings {
        answers: false,
        message_bytes: 200,
        op: Op::Write,
        per_second: 0,
    };
    let (fabric, mut sides) = two("", wish);
    let mut has_changed = false;
    while !sides.iter().all(End::is_over) && fabric.now() < Instant::from_ns(0).after(Duration::from_secs(3))
    {
        for side in sides.iter_mut().filter(|side| !side.is_over()) {
            side.turn().unwrap();
        }
        fabric.run_until(fabric.now().after(Duration::from_micros(100)));
        // Shortly before the end, so that it is not overwritten.
        if !has_changed && sides[1].incoming.ended.is_some() {
            has_changed = true;
            sides[1].opened.as_mut().unwrap().spoil(500);
        }
    }
    let report = Report::of(&sides[1], &JUDGED);
    assert!(!report.passed, "{}", report.text());
    let report = serde_json::to_value(report).unwrap();
    assert_eq!(number(&report, "/one_sided/wrong"), 1);
}

#[test]
fn a_rail_that_goes_and_comes_is_told() {
    let plan = "at 300ms link a/sim0-b/sim0 down for 300ms";
    let [client, listener] = run(plan, WISH, &JUDGED);
    for report in [&client, &listener] {
        assert_eq!(report["passed"], true, "{report:#}");
        assert_eq!(
            (number(report, "/failovers"), number(report, "/reconnects")),
            (1, 0)
        );
        assert_eq!(number(report, "/rails/0/downs"), 1);
    }
    assert!(number(&client, "/epochs") >= 3);
}

#[test]
fn a_link_that_is_lost_ends_each_request_and_is_a_failure_where_it_was_not_expected() {
    let plan = "at 300ms link a-b down";
    let [client, listener] = run(plan, WISH, &JUDGED);
    for report in [&client, &listener] {
        assert_eq!(report["passed"], false, "{report:#}");
        let failures = report["failures"].to_string();
        assert!(
            failures.contains("not closed") && failures.contains("unknown"),
            "{failures}"
        );
    }
    let lost = Criteria {
        ending: Ending::Lost,
        ..JUDGED
    };
    let [client, listener] = run(plan, WISH, &lost);
    for report in [&client, &listener] {
        assert_eq!(report["passed"], true, "{report:#}");
        assert_eq!(report["end"], "the peer could not be reached in time");
        assert_eq!(
            number(report, "/requests/done") + number(report, "/requests/unknown"),
            number(report, "/requests/taken")
        );
        assert!(number(report, "/requests/unknown") > 0);
    }
    // Every message that counts as acknowledged has reached the other side.
    for (one, other) in [(&client, &listener), (&listener, &client)] {
        let (done, came) = (number(one, "/requests/done"), number(other, "/incoming/all"));
        assert!(done <= came, "{one:#} {other:#}");
    }
    let [client, _] = run("", WISH, &lost);
    assert_eq!(client["passed"], false);
}

#[test]
fn an_outage_of_longer_than_allowed_is_a_failure() {
    let within = |ms| Criteria {
        outage_within: Some(Duration::from_millis(ms)),
        ending: Ending::Lost,
        ..JUDGED
    };
    // Two seconds to recover, and the time until the rails are known to be dead.
    let plan = "at 300ms link a-b down";
    for report in run(plan, WISH, &within(2300)) {
        assert_eq!(report["passed"], true, "{report:#}");
    }
    for report in run(plan, WISH, &within(2000)) {
        let failures = report["failures"].to_string();
        assert!(failures.contains("2000.0 ms are allowed"), "{failures}");
    }
}

#[test]
fn what_ends_unknown_for_another_reason_than_the_link_is_a_failure() {
    let lost = Criteria {
        ending: Ending::Lost,
        ..JUDGED
    };
    let failures = |spoil: fn(&mut Side)| {
        let (_, [mut client, _]) = two("", WISH);
        client.watch.over = Some(FinalReason::Unreachable);
        client.outgoing.unknown.push(FinalReason::Unreachable);
        client
            .asking
            .unknown
            .push(UnknownReason::Over(FinalReason::Unreachable));
        spoil(&mut client);
        Report::of(&client, &lost).text()
    };
    assert!(!failures(|_| ()).contains("FAILED"));
    let spoils: [fn(&mut Side); 3] = [
        |side| side.outgoing.unknown.push(FinalReason::PeerRestarted),
        |side| side.asking.unknown.push(UnknownReason::NoRail),
        |side| {
            let reason = FinalReason::PeerRestarted;
            side.asking.unknown.push(UnknownReason::Over(reason));
        },
    ];
    for spoil in spoils {
        let text = failures(spoil);
        assert!(
            text.contains("FAILED: 1 requests ended unknown for another"),
            "{text}"
        );
    }
}

#[test]
fn what_has_no_end_or_was_not_done_is_a_failure() {
    let hanging = Criteria {
        is_hanging: true,
        orders: 1,
        detect_within: Some(Duration::from_millis(200)),
        ..JUDGED
    };
    let (_, [client, _]) = two("", WISH);
    let report = serde_json::to_value(Report::of(&client, &hanging)).unwrap();
    let failures = report["failures"].to_string();
    for what in [
        "no progress",
        "all commands",
        "not closed",
        "no rail was declared dead",
    ] {
        assert!(failures.contains(what), "{failures}");
    }
}

#[test]
fn as_many_cuts_have_to_be_found_as_are_asked_for() {
    let (_, [mut client, _]) = two("", WISH);
    for (ms, is_found) in [(10, true), (20, false), (30, true)] {
        let at = Instant::from_ns(ms * 1_000_000);
        let (command, rail) = ("cut".into(), Some(1));
        client.watch.noted(Note::Begun { command, rail, at });
        // The command cuts rail 1. The death of rail 0 is not its effect.
        let rail = u8::from(is_found);
        let now = at.after(Duration::from_millis(5));
        client.watch.saw(SessionEvent::RailDown { rail }, Some(at), now);
    }
    let judge = |detect_within, detect_at_least| {
        let judged = Criteria {
            detect_within,
            detect_at_least,
            ..JUDGED
        };
        Report::of(&client, &judged).text()
    };
    let text = |least| judge(Some(Duration::from_millis(200)), least);
    let (each, too_few) = (
        "the failure of the rail by `cut` was not detected",
        "2 commands made their rail die, and at least 3 have to",
    );
    let says = |text: String| [each, too_few].map(|what| text.contains(what));
    assert_eq!(says(text(None)), [true, false]);
    assert_eq!(says(text(Some(3))), [false, true]);
    assert_eq!(says(text(Some(2))), [false, false]);
    // The number of detections is checked with and without a limit on their time.
    assert_eq!(says(judge(None, Some(3))), [false, true]);
    assert_eq!(says(judge(None, Some(2))), [false, false]);
    assert_eq!(says(judge(None, None)), [false, false]);
}

#[test]
fn the_middle_half_has_neither_begin_nor_end() {
    let (fabric, mut sides) = two("", WISH);
    let amount = Amount::Messages(100);
    sides[0].part = Part::Client { amount, wish: WISH };
    let [client, listener] = go_on(&fabric, sides, &JUDGED);
    let middle = client["outgoing"]["middle_bytes_per_second"].as_f64().unwrap();
    // 100 messages a second, of 10,000 bytes each.
    assert!((0.97e6..1.03e6).contains(&middle), "{client:#}");
    assert_eq!(
        listener["outgoing"]["middle_bytes_per_second"],
        serde_json::Value::Null
    );
}

#[test]
fn a_device_gives_up_before_the_session_and_not_long_before() {
    let default = doorbell::link::LinkConfig::default();
    let of = |ms| super::transport_timeout(Duration::from_millis(ms), default.channel.retry_count);
    assert_eq!(of(120), default.channel.timeout);
    assert_eq!([of(117), of(118), of(235), of(1000), of(1)], [11, 12, 13, 15, 5]);
}
