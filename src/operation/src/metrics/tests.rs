//! Tests of rendered text with a strict parser of the format.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use doorbell::link::{SessionCounts, TransferOutcome, TransferTotals};
use doorbell::memory::{RegistrationStatistics, Uncached};
use doorbell::worker::Statistics;

use super::{LabelError, Labels, MetricFamily, Metrics};
use crate::port_counters::PortCounters;
use doorbell::connect::HandshakeCounts;
use doorbell::mesh::MeshCounts;

/// A series: its name, and its labels in order.
type Key = (String, Vec<(String, String)>);

/// Parses all samples. Panics if Prometheus would refuse the text, or if the text violates its
/// conventions.
fn parse(text: &str) -> BTreeMap<Key, f64> {
    assert!(text.is_empty() || text.ends_with('\n'));
    let mut samples = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut family = (String::new(), String::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(!help.is_empty() && !help.contains('\\'), "{line}");
            let kind = lines
                .next()
                .unwrap()
                .strip_prefix(&format!("# TYPE {name} "))
                .unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(name.starts_with("doorbell_"), "{name}");
            assert!(seen.insert(name.to_owned()), "{name} is there twice");
            let has_samples = lines.peek().is_some_and(|line| !line.starts_with('#'));
            assert!(has_samples, "{name} has no sample");
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        let (name, labels, value) = sample(line);
        let suffix = name
            .strip_prefix(&family.0)
            .unwrap_or_else(|| panic!("{line} is in another family"));
        let suffixes: &[&str] = match family.1.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(suffixes.contains(&suffix), "{line}");
        let names: BTreeSet<_> = labels.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), labels.len(), "{line}: a label twice");
        let before = samples.insert((name, labels), value);
        assert_eq!(before, None, "{line} is there twice");
    }
    samples
}

/// Parses the name, the labels and the value of a line.
fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = line.find(|c| !is_word(c)).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(label.chars().all(is_word) && !label.is_empty(), "{line}");
            let (mut text, mut chars) = (String::new(), value.chars());
            loop {
                match chars.next().unwrap() {
                    '"' => break,
                    '\\' => text.push(match chars.next().unwrap() {
                        'n' => '\n',
                        other @ ('\\' | '"') => other,
                        other => panic!("{line}: \\{other}"),
                    }),
                    other => text.push(other),
                }
            }
            labels.push((label.to_owned(), text));
            rest = chars.as_str();
            if let Some(behind) = rest.strip_prefix('}') {
                rest = behind;
                break;
            }
            rest = rest.strip_prefix(',').unwrap();
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name.to_owned(), labels, value.parse().unwrap())
}

fn key(name: &str, labels: &[(&str, &str)]) -> Key {
    let labels = labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    (name.to_owned(), labels.collect())
}

fn device(name: &str) -> Labels {
    Labels::new(&[("device", name)]).unwrap()
}

#[test]
fn nothing_is_no_text() {
    assert_eq!(Metrics::default().to_string(), "");
}

#[test]
fn every_counter_of_a_worker_is_rendered_as_itself() {
    let statistics = Statistics::default();
    // Each has a different value, in the order of `each`.
    let counters = [
        (&statistics.doorbells, "doorbells"),
        (&statistics.requests, "requests"),
        (&statistics.bytes, "sent_bytes"),
        (&statistics.inline, "inline_requests"),
        (&statistics.announcements, "announcements"),
        (&statistics.would_block, "would_block"),
        (&statistics.refused, "refused_posts"),
        (&statistics.completions, "send_completions"),
        (&statistics.received, "received_messages"),
        (&statistics.received_bytes, "received_bytes"),
        (&statistics.receives_posted, "receives_posted"),
        (&statistics.rejected, "rejected_completions"),
        (&statistics.orphaned, "orphaned_completions"),
    ];
    for (value, (counter, _)) in (101..).zip(counters) {
        counter.add(value);
    }
    let mut count = 0;
    statistics.snapshot().each(|_, value| {
        assert_eq!(value, 101 + count);
        count += 1;
    });
    assert_eq!(
        counters.len() as u64,
        count,
        "a counter is neither here nor rendered"
    );
    let mut metrics = Metrics::default();
    metrics.statistics(&device("mlx5_0"), &statistics.snapshot());
    let samples = parse(&metrics.to_string());
    for (value, (_, name)) in (101..).zip(counters) {
        let name = format!("doorbell_worker_{name}_total");
        assert_eq!(samples[&key(&name, &[("device", "mlx5_0")])], f64::from(value));
    }
}

#[test]
fn doorbells_are_a_histogram() {
    let statistics = Statistics::default();
    for requests in [1, 1, 2, 3, 16] {
        statistics.doorbell(requests, 0, 0);
    }
    let mut metrics = Metrics::default();
    metrics.statistics(&Labels::NONE, &statistics.snapshot());
    let samples = parse(&metrics.to_string());
    let name = "doorbell_worker_batch_requests";
    let bucket = |le| samples[&key(&format!("{name}_bucket"), &[("le", le)])];
    assert_eq!(
        ["1", "2", "4", "8", "16", "65536", "+Inf"].map(bucket),
        [2.0, 3.0, 4.0, 4.0, 5.0, 5.0, 5.0]
    );
    assert_eq!(samples[&key(&format!("{name}_sum"), &[])], 23.0);
    assert_eq!(samples[&key(&format!("{name}_count"), &[])], 5.0);
}

#[test]
fn what_has_the_same_labels_adds_up_and_else_is_apart() {
    let statistics = Statistics::default();
    statistics.doorbell(2, 10, 0);
    let mut metrics = Metrics::default();
    for name in ["a", "b", "a"] {
        metrics.statistics(&device(name), &statistics.snapshot());
    }
    let samples = parse(&metrics.to_string());
    let of = |name: &str, device| samples[&key(name, &[("device", device)])];
    assert_eq!(of("doorbell_worker_requests_total", "a"), 4.0);
    assert_eq!(of("doorbell_worker_requests_total", "b"), 2.0);
    assert_eq!(of("doorbell_worker_batch_requests_count", "a"), 2.0);
}

#[test]
fn channels_by_peer_and_state() {
    let peers: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::2".parse().unwrap()];
    let mut metrics = Metrics::default();
    metrics.channel_to(&Labels::NONE, peers[0], true);
    metrics.channel_to(&Labels::NONE, peers[0], true);
    metrics.channel_to(&Labels::NONE, peers[1], false);
    let samples = parse(&metrics.to_string());
    for (peer, state, count) in [
        ("10.0.0.1", "open", 2.0),
        ("10.0.0.1", "failed", 0.0),
        ("fd00::2", "open", 0.0),
        ("fd00::2", "failed", 1.0),
    ] {
        assert_eq!(
            samples[&key("doorbell_channels", &[("peer", peer), ("state", state)])],
            count
        );
    }
}

#[test]
fn handshakes_by_outcome() {
    let mut counts = HandshakeCounts::default();
    (counts.begun, counts.connected, counts.failed) = (10, 6, 3);
    (counts.refused, counts.port_failures) = (2, 1);
    counts.untrusted.wrong_key = 5;
    counts.untrusted.address = 4;
    let mut metrics = Metrics::default();
    metrics.handshakes(&Labels::NONE, &counts);
    let samples = parse(&metrics.to_string());
    for (name, labels, value) in [
        ("doorbell_handshakes_begun_total", None, 10.0),
        ("doorbell_handshakes_total", Some(("outcome", "connected")), 6.0),
        ("doorbell_handshakes_total", Some(("outcome", "failed")), 3.0),
        ("doorbell_handshakes_total", Some(("outcome", "refused")), 2.0),
        ("doorbell_handshake_port_failures_total", None, 1.0),
        (
            "doorbell_handshakes_untrusted_total",
            Some(("reason", "wrong_key")),
            5.0,
        ),
        (
            "doorbell_handshakes_untrusted_total",
            Some(("reason", "address")),
            4.0,
        ),
        (
            "doorbell_handshakes_untrusted_total",
            Some(("reason", "unknown_key")),
            0.0,
        ),
    ] {
        assert_eq!(samples[&key(name, labels.as_slice())], value, "{name} {labels:?}");
    }
}

#[test]
fn links_and_meshes() {
    let mut link = SessionCounts::default();
    link.sent = 7;
    link.rails_dead = 2;
    let mut mesh = MeshCounts::default();
    mesh.relayed = 9;
    let mut metrics = Metrics::default();
    metrics.link(&Labels::NONE, &link, true);
    metrics.link(&Labels::NONE, &link, false);
    metrics.mesh_counts(&Labels::NONE, &mesh);
    let samples = parse(&metrics.to_string());
    for (name, labels, value) in [
        ("doorbell_link_sent_fragments_total", None, 14.0),
        ("doorbell_link_dead_rails_total", None, 4.0),
        ("doorbell_links", Some(("state", "connected")), 1.0),
        ("doorbell_links", Some(("state", "without_rail")), 1.0),
        ("doorbell_mesh_relayed_frames_total", None, 9.0),
        ("doorbell_mesh_dropped_frames_total", None, 0.0),
    ] {
        assert_eq!(samples[&key(name, labels.as_slice())], value, "{name} {labels:?}");
    }
}

#[test]
fn caches_and_transfers() {
    let mut cache = RegistrationStatistics::default();
    (cache.hits, cache.misses, cache.evictions, cache.invalidations) = (5, 4, 3, 2);
    (cache.entries, cache.entries_used, cache.bytes) = (9, 2, 4096);
    let mut transfers = TransferTotals::default();
    (transfers.begun, transfers.offered, transfers.duplicates) = (11, 12, 1);
    (
        transfers.given_bytes,
        transfers.taken_bytes,
        transfers.repeated_bytes,
    ) = (13, 14, 15);
    let mut metrics = Metrics::default();
    for _ in 0..2 {
        metrics.registrations(&Labels::NONE, &cache);
        metrics.transfers(&Labels::NONE, &transfers);
    }
    let samples = parse(&metrics.to_string());
    let mut left: BTreeSet<_> = samples.keys().cloned().collect();
    for (name, labels, value) in [
        ("doorbell_registration_hits_total", None, 10.0),
        ("doorbell_registration_misses_total", None, 8.0),
        ("doorbell_registration_evictions_total", None, 6.0),
        ("doorbell_registration_invalidations_total", None, 4.0),
        ("doorbell_registrations", Some(("state", "used")), 4.0),
        ("doorbell_registrations", Some(("state", "idle")), 14.0),
        ("doorbell_registered_bytes", None, 8192.0),
        ("doorbell_transfers_begun_total", None, 22.0),
        ("doorbell_transfers_offered_total", None, 24.0),
        ("doorbell_transfer_given_bytes_total", None, 26.0),
        ("doorbell_transfer_taken_bytes_total", None, 28.0),
        ("doorbell_transfer_repeated_bytes_total", None, 30.0),
        ("doorbell_transfer_duplicate_pieces_total", None, 2.0),
    ] {
        let key = key(name, labels.as_slice());
        assert_eq!(samples[&key], value, "{name} {labels:?}");
        left.remove(&key);
    }
    // One series for each reason and outcome. The names differ.
    let of = |name: &str| left.iter().filter(|(of, _)| of == name).count();
    assert_eq!(of("doorbell_registration_uncached_total"), Uncached::ALL.len());
    assert_eq!(of("doorbell_transfers_ended_total"), TransferOutcome::ALL.len());
}

#[test]
fn counters_of_a_port_are_its_own_and_are_not_added_up() {
    let port = |device: &str, port, value| PortCounters {
        device: device.into(),
        port,
        counters: vec![("rcvd_rnr_err".into(), value), ("a\"\n\\".into(), 1)],
    };
    let mut metrics = Metrics::default();
    for port in [
        port("rxe0", 1, 3),
        port("rxe0", 2, 4),
        port("rxe\"1", 1, 5),
        port("rxe0", 1, 6),
    ] {
        metrics.port_counters(&port);
    }
    let samples = parse(&metrics.to_string());
    assert_eq!(samples.len(), 6);
    for (device, port, counter, value) in [
        ("rxe0", "1", "rcvd_rnr_err", 6.0),
        ("rxe0", "2", "rcvd_rnr_err", 4.0),
        ("rxe\"1", "1", "rcvd_rnr_err", 5.0),
        ("rxe0", "1", "a\"\n\\", 1.0),
    ] {
        let labels = [("device", device), ("port", port), ("counter", counter)];
        assert_eq!(
            samples[&key("doorbell_port_hw_counter_total", &labels)],
            value,
            "{labels:?}"
        );
    }
}

#[test]
fn a_value_of_a_label_may_be_anything() {
    for value in ["", "\\", "\"", "\n", "a\\nb\"} 1\nc", "Gerät", "a,b=\"c\""] {
        let mut metrics = Metrics::default();
        metrics.statistics(&device(value), &Statistics::default().snapshot());
        let samples = parse(&metrics.to_string());
        let wanted = key("doorbell_worker_requests_total", &[("device", value)]);
        assert!(samples.contains_key(&wanted), "{value:?}");
    }
}

#[test]
fn a_name_of_a_label_may_not() {
    for name in ["", "1a", "a-b", "ä", "a b", "__name__", "a\"", "a="] {
        assert_eq!(Labels::new(&[(name, "")]), Err(LabelError::NotAName), "{name}");
    }
    for name in ["le", "peer", "state", "outcome", "reason", "rail", "member", "by"] {
        assert_eq!(Labels::new(&[(name, "")]), Err(LabelError::Reserved), "{name}");
    }
    let twice = [("a", "1"), ("b", "2"), ("a", "3")];
    assert_eq!(Labels::new(&twice), Err(LabelError::Twice));
    assert!(Labels::new(&[("a", ""), ("_b", ""), ("C9", "")]).is_ok());
}

#[test]
fn families_of_the_callers_own_stand_beside_ours() {
    static CHEERS: MetricFamily<2> =
        MetricFamily::counter("doorbell_cheers_total", "Cheers.", &["reason", "by"]);
    static GUESTS: MetricFamily<0> = MetricFamily::gauge("doorbell_guests", "Guests.", &[]);
    let mut metrics = Metrics::default();
    metrics.statistics(&device("a"), &Statistics::default().snapshot());
    metrics.own(&CHEERS, ["a \"toast\"", "all"], 2);
    metrics.own(&CHEERS, ["a \"toast\"", "all"], 3);
    metrics.own(&GUESTS, [], 7);
    let samples = parse(&metrics.to_string());
    assert_eq!(
        samples[&key(
            "doorbell_cheers_total",
            &[("reason", "a \"toast\""), ("by", "all")]
        )],
        5.0
    );
    assert_eq!(samples[&key("doorbell_guests", &[])], 7.0);
    for (name, label) in [
        ("", "a"),
        ("1_total", "a"),
        ("a b_total", "a"),
        ("a_total", "a-b"),
        ("a", "a"),
    ] {
        let labels: &'static [&'static str; 1] = Box::leak(Box::new([label]));
        let made = std::panic::catch_unwind(|| MetricFamily::counter(name, "Wrong.", labels));
        assert!(made.is_err(), "{name} {label}");
    }
}
