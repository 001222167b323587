//! Metrics of what runs on the simulated fabric.

use crate::fabric::{End, pair};
use doorbell::Event;
use doorbell_operation::{Labels, Metrics, PortCounters};

/// The value of a series; nothing where it is not there.
fn value(metrics: &Metrics, series: &str) -> Option<u64> {
    let text = metrics.to_string();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

fn of(end: &mut End) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.worker(&Labels::new(&[("host", "here")]).unwrap(), end.worker());
    metrics
}

#[test]
fn a_worker_and_its_channels() {
    let (mut a, mut b) = pair();
    let (lease, id) = (a.lease(b"seven b"), a.id());
    a.worker().channel(id).unwrap().send_lease(lease).unwrap();
    let in_flight = "doorbell_channel_in_flight_requests{host=\"here\"}";
    assert_eq!(value(&of(&mut a), in_flight), Some(1));
    b.until(|event| matches!(event, Event::Received { .. }).then_some(()));
    a.until(|event| matches!(event, Event::Done { .. }).then_some(()));
    let (sent, got) = (of(&mut a), of(&mut b));
    assert_eq!(value(&sent, in_flight), Some(0));
    for (metrics, series, expected) in [
        (&sent, "doorbell_worker_sent_bytes_total{host=\"here\"}", 7),
        (&got, "doorbell_worker_received_messages_total{host=\"here\"}", 1),
        (&got, "doorbell_worker_received_bytes_total{host=\"here\"}", 7),
        (
            &sent,
            "doorbell_channels{host=\"here\",peer=\"127.0.0.2\",state=\"open\"}",
            1,
        ),
        (
            &sent,
            "doorbell_channels{host=\"here\",peer=\"127.0.0.2\",state=\"failed\"}",
            0,
        ),
        (
            &got,
            "doorbell_channels{host=\"here\",peer=\"127.0.0.1\",state=\"open\"}",
            1,
        ),
    ] {
        assert_eq!(value(metrics, series), Some(expected), "{series}\n{metrics}");
    }
    let credits = u64::from(a.worker().channel(id).unwrap().credits());
    assert_eq!(
        value(&sent, "doorbell_channel_credits{host=\"here\"}"),
        Some(credits)
    );
}

#[test]
fn a_channel_that_failed_is_one() {
    let (mut a, b) = pair();
    drop(b);
    let (lease, id) = (a.lease(b"?"), a.id());
    a.worker().channel(id).unwrap().send_lease(lease).unwrap();
    a.until(|event| matches!(event, Event::Failed { .. }).then_some(()));
    let metrics = of(&mut a);
    let state = |state| format!("doorbell_channels{{host=\"here\",peer=\"127.0.0.2\",state=\"{state}\"}}");
    assert_eq!(value(&metrics, &state("open")), Some(0), "{metrics}");
    assert_eq!(value(&metrics, &state("failed")), Some(1), "{metrics}");
}

#[test]
fn of_a_simulated_port_the_kernel_counts_nothing_and_nothing_is_said() {
    let (mut a, _b) = pair();
    let device = a.worker().device().to_owned();
    let mut metrics = of(&mut a);
    assert_eq!(PortCounters::of_device(&device), []);
    for port in PortCounters::of_device(&device) {
        metrics.port_counters(&port);
    }
    assert!(!metrics.to_string().contains("hw_counter"), "{metrics}");
}
