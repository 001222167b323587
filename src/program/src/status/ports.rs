//! The kernel's counters at the ports of a node, and the rates of those that count retries.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use serde::Serialize;

use super::numbers::{counts, number};
use super::scrape::{Labels, Sample, plain};
use super::table::rate;

/// The metric of all counters.
const SERIES: &str = "doorbell_port_hw_counter_total";

/// Counters of retransmissions, of their causes, and of requests that were given up after too many: for Soft-RoCE and
/// mlx5.
///
/// Source: Linux, drivers/infiniband/sw/rxe/rxe_hw_counters.c and drivers/infiniband/hw/mlx5/counters.c.
const RETRIES: &[&str] = &[
    "completer_retry_err",
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "out_of_seq_request",
    "out_of_sequence",
    "packet_seq_err",
    "rcvd_rnr_err",
    "rcvd_seq_err",
    "req_rnr_retries_exceeded",
    "req_transport_retries_exceeded",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "send_rnr_err",
];

/// A port with its counters.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    device: String,
    #[serde(serialize_with = "number")]
    port: String,
    #[serde(serialize_with = "counts")]
    counters: BTreeMap<String, f64>,
    /// The rates of the nonzero counters that count retries.
    retries_per_second: BTreeMap<String, Option<f64>>,
}

impl Port {
    /// Returns all ports in the sample, by device. `grew` returns the rate of a series of [`SERIES`].
    pub(super) fn all(now: &Sample, grew: impl Fn(&str, &Labels) -> Option<f64>) -> Vec<Self> {
        let mut ports = BTreeMap::<_, Self>::new();
        for (labels, value) in now.all(SERIES) {
            let of = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let (device, number, counter) = (of("device"), of("port"), of("counter"));
            let place = (device.clone(), number.parse::<u32>().unwrap_or(u32::MAX));
            let port = ports.entry(place).or_insert_with(|| Self {
                device,
                port: number,
                counters: BTreeMap::new(),
                retries_per_second: BTreeMap::new(),
            });
            if RETRIES.contains(&counter.as_str()) && value > 0.0 {
                port.retries_per_second
                    .insert(counter.clone(), grew(SERIES, labels));
            }
            port.counters.insert(counter, value);
        }
        ports.into_values().collect()
    }

    /// Writes one line with the retries, if there were any.
    pub(super) fn write(&self, text: &mut String) {
        let retries = self.retries_per_second.iter().map(|(counter, per_s)| {
            let count = self.counters.get(counter).copied().unwrap_or_default();
            format!("{counter} {count} ({}/s)", rate(*per_s))
        });
        let retries: Vec<_> = retries.collect();
        if !retries.is_empty() {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "retries at {} port {}: {}",
                plain(&self.device),
                plain(&self.port),
                retries.join(", ")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::time::Instant;

    use super::{Labels, Port, Sample};

    fn ports(text: &str) -> Vec<Port> {
        let sample = Sample::read(text, Instant::now() + Duration::from_secs(1)).unwrap();
        let grew = |_: &str, labels: &Labels| (labels["counter"] == "rcvd_rnr_err").then_some(2.0);
        Port::all(&sample, grew)
    }

    fn text(ports: &[Port]) -> String {
        let mut text = String::new();
        for port in ports {
            port.write(&mut text);
        }
        text
    }

    #[test]
    fn what_went_again_stands_in_one_line_of_its_port() {
        let of = |place: &str, counter: &str, value: u32| {
            format!("doorbell_port_hw_counter_total{{{place},counter=\"{counter}\"}} {value}\n")
        };
        let [first, second, tenth] = ["1", "2", "10"].map(|port| format!("device=\"rxe0\",port=\"{port}\""));
        let told = [
            of(&tenth, "duplicate_request", 1),
            of(&first, "sent_pkts", 12),
            of(&first, "rcvd_rnr_err", 7),
            of(&first, "duplicate_request", 3),
            of(&first, "send_rnr_err", 0),
            of(&second, "sent_pkts", 5),
            of(&second, "rcvd_rnr_err", 0),
        ];
        let ports = ports(&told.concat());
        assert_eq!(
            text(&ports),
            "retries at rxe0 port 1: duplicate_request 3 (-/s), rcvd_rnr_err 7 (2/s)\n\
             retries at rxe0 port 10: duplicate_request 1 (-/s)\n"
        );
        let json = serde_json::to_value(&ports).unwrap();
        crate::schema::check(&json, &mut Default::default());
        assert_eq!(json[0]["counters"]["sent_pkts"], 12);
        assert_eq!(json[0]["retries_per_second"]["rcvd_rnr_err"], 2.0);
        assert_eq!((&json[1]["port"], &json[2]["port"]), (&2.into(), &10.into()));
        assert_eq!(json[1]["retries_per_second"], serde_json::json!({}));
    }

    #[test]
    fn what_another_tells_is_no_way_to_the_terminal() {
        let told = "doorbell_port_hw_counter_total{device=\"\u{1b}[2J\",counter=\"rcvd_rnr_err\"} 1\n\
                    doorbell_port_hw_counter_total 3\n\
                    doorbell_port_hw_counter_total{device=\"a\",counter=\"\u{1b}[2J\"} 1\n";
        let told = text(&ports(told));
        assert_eq!(told, "retries at \u{fffd}[2J port : rcvd_rnr_err 1 (2/s)\n");
    }
}
