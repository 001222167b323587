//! Metrics of a ping-pong, over HTTP.

use core::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use doorbell::Statistics;
use doorbell_operation::{Labels, Metrics, MetricsServer};

use super::source::Source;
use crate::port_counts::add_ports;
use crate::report::Failure;

/// The device, the labels of its port, its counters, and the peer's address.
type Noted = (String, Labels, Arc<Statistics>, IpAddr);

/// Serves metrics until it is dropped.
pub(super) struct Metering {
    noted: Arc<OnceLock<Noted>>,
    _server: MetricsServer,
}

impl Metering {
    /// Serves metrics at this address, and prints the address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(super) fn start(at: SocketAddr) -> Result<Self, Failure> {
        let noted = Arc::<OnceLock<Noted>>::default();
        let rendered = Arc::clone(&noted);
        let server = MetricsServer::start(at, move || text(rendered.get()))
            .map_err(|error| format!("metrics at {at}: {error}"))?;
        eprintln!("metrics at http://{}/metrics", server.address());
        Ok(Self {
            noted,
            _server: server,
        })
    }

    /// Sets the source of the metrics. Only the first call has an effect.
    pub(super) fn note(&self, source: &Source, statistics: &Arc<Statistics>, peer: IpAddr) {
        let port = source.port.to_string();
        let labels = Labels::new(&[("device", &source.device), ("port", &port)]).unwrap_or(Labels::NONE);
        let _ = self
            .noted
            .set((source.device.clone(), labels, Arc::clone(statistics), peer));
    }
}

fn text(noted: Option<&Noted>) -> String {
    let mut metrics = Metrics::default();
    if let Some((device, labels, statistics, peer)) = noted {
        metrics.statistics(labels, &statistics.snapshot());
        metrics.channel_to(labels, *peer, true);
        add_ports(&mut metrics, [device]);
    }
    metrics.to_string()
}

#[cfg(test)]
mod tests {
    use super::{Arc, Labels, Statistics, text};

    #[test]
    fn the_rail_and_the_peer_are_told() {
        assert_eq!(text(None), "");
        let statistics = Arc::new(Statistics::default());
        statistics.doorbell(1, 64, 1);
        let labels = Labels::new(&[("device", "sim0"), ("port", "1")]).unwrap();
        let text = text(Some(&(
            "sim0".into(),
            labels,
            statistics,
            "10.0.0.2".parse().unwrap(),
        )));
        for line in [
            "doorbell_worker_sent_bytes_total{device=\"sim0\",port=\"1\"} 64",
            "doorbell_channels{device=\"sim0\",port=\"1\",peer=\"10.0.0.2\",state=\"open\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{text}");
        }
    }
}
