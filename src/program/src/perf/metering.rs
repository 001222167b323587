//! Metrics of a running measurement.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell::connect::HandshakeCounts;
use doorbell::provider::Provider;
use doorbell::{ConnectError, Connection, Statistics, Worker};
use doorbell_operation::{Labels, Metrics, MetricsServer};

use super::error::PerfError;
use crate::port_counts::add_ports;

/// The metrics of both sides of a measurement; `None` if no metrics are served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metering(Option<Arc<Mutex<Board>>>);

/// The purpose of a Worker in the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It carries control messages.
    Control,
    /// It is measured.
    Test,
}

#[derive(Debug, Default)]
struct Board {
    /// Counts of Workers that do not exist any more.
    past: Metrics,
    workers: Vec<(Labels, Arc<Statistics>)>,
    /// The devices of all Workers so far.
    devices: BTreeSet<String>,
    channels: Vec<(Labels, IpAddr)>,
    handshakes: HandshakeCounts,
}

/// A channel that the metrics show until this value is dropped.
pub(super) struct MeteredChannel {
    metering: Metering,
    channel: (Labels, IpAddr),
}

impl Metering {
    /// Serves metrics at this address, until the returned server is dropped.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn at(address: SocketAddr) -> Result<(Self, MetricsServer), PerfError> {
        let metering = Self(Some(Arc::default()));
        let told = metering.clone();
        let server = MetricsServer::start(address, move || told.text());
        let server = server.map_err(|error| PerfError::Metrics { address, error })?;
        Ok((metering, server))
    }

    /// Adds the counts of a Worker permanently.
    pub(super) fn worker<P: Provider>(&self, part: Part, worker: &Worker<P>) {
        self.counters(worker.device(), part, worker.statistics());
    }

    fn counters(&self, device: &str, part: Part, statistics: &Arc<Statistics>) {
        self.note(|board| {
            board.settle();
            board.devices.insert(device.to_owned());
            board.workers.push((labels(device, part), Arc::clone(statistics)));
        });
    }

    /// Adds a new connection.
    ///
    /// # Errors
    /// The channel does not exist any more.
    pub(super) fn connection<P: Provider>(
        &self,
        part: Part,
        worker: &mut Worker<P>,
        connection: Connection,
    ) -> Result<MeteredChannel, PerfError> {
        let device = worker.device().to_owned();
        let channel = worker.channel(connection.channel);
        let channel = channel.ok_or(PerfError::Connect(ConnectError::Unreachable(
            "a connected channel is gone",
        )))?;
        Ok(self.channel(&device, part, channel.peer().address()))
    }

    fn channel(&self, device: &str, part: Part, peer: IpAddr) -> MeteredChannel {
        let channel = (labels(device, part), peer);
        self.note(|board| {
            board.channels.push(channel.clone());
            board.handshakes.connected = board.handshakes.connected.saturating_add(1);
        });
        MeteredChannel {
            metering: self.clone(),
            channel,
        }
    }

    /// Counts a failed handshake.
    pub(super) fn handshake_failed(&self) {
        self.note(|board| board.handshakes.failed = board.handshakes.failed.saturating_add(1));
    }

    /// Renders the current metrics.
    fn text(&self) -> String {
        let (mut metrics, mut devices) = Default::default();
        self.note(|board| (metrics, devices) = (board.metrics(), board.devices.clone()));
        // Files are read after the lock is released.
        add_ports(&mut metrics, &devices);
        metrics.to_string()
    }

    fn note(&self, note: impl FnOnce(&mut Board)) {
        if let Self(Some(board)) = self {
            let mut board: MutexGuard<'_, Board> = board.lock().unwrap_or_else(PoisonError::into_inner);
            note(&mut board);
        }
    }
}

impl Board {
    /// Adds the counts of Workers that do not exist any more to `past`, and removes the Workers.
    fn settle(&mut self) {
        let past = &mut self.past;
        self.workers.retain_mut(|(labels, statistics)| {
            let is_gone = Arc::get_mut(statistics).is_some();
            if is_gone {
                past.statistics(labels, &statistics.snapshot());
            }
            !is_gone
        });
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = self.past.clone();
        for (labels, statistics) in &self.workers {
            metrics.statistics(labels, &statistics.snapshot());
        }
        for (labels, peer) in &self.channels {
            metrics.channel_to(labels, *peer, true);
        }
        metrics.handshakes(&Labels::NONE, &self.handshakes);
        metrics
    }
}

fn labels(device: &str, part: Part) -> Labels {
    let part = match part {
        Part::Control => "control",
        Part::Test => "test",
    };
    // Both are valid names of labels, and not reserved.
    Labels::new(&[("device", device), ("part", part)]).unwrap_or(Labels::NONE)
}

impl Drop for MeteredChannel {
    fn drop(&mut self) {
        self.metering.note(|board| {
            let shown = board.channels.iter().position(|shown| *shown == self.channel);
            if let Some(shown) = shown {
                board.channels.swap_remove(shown);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Board, Metering, Part, labels};
    use core::net::{IpAddr, Ipv4Addr};
    use doorbell::Statistics;
    use std::sync::Arc;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn what_workers_counted_that_are_gone_stays_and_they_do_not() {
        let mut board = Board::default();
        for _ in 0..3 {
            let statistics = Arc::new(Statistics::default());
            statistics.doorbell(1, 8, 0);
            board.workers.push((labels("sim0", Part::Test), statistics));
            board.settle();
            assert!(board.workers.is_empty());
        }
        let text = board.metrics().to_string();
        let line = "doorbell_worker_requests_total{device=\"sim0\",part=\"test\"} 3\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_channel_is_shown_until_it_goes() {
        let metering = Metering(Some(Arc::default()));
        let open = "doorbell_channels{device=\"a\",part=\"test\",peer=\"127.0.0.1\",state=\"open\"}";
        let shown = [(); 2].map(|()| metering.channel("a", Part::Test, PEER));
        assert!(metering.text().contains(&format!("{open} 2\n")));
        drop(shown);
        assert!(!metering.text().contains(open));
        assert!(
            metering
                .text()
                .contains("doorbell_handshakes_total{outcome=\"connected\"} 2\n")
        );
    }

    #[test]
    fn nobody_asks_and_nothing_is_noted() {
        let metering = Metering::default();
        let statistics = Arc::new(Statistics::default());
        metering.counters("a", Part::Control, &statistics);
        drop(metering.channel("a", Part::Test, PEER));
        assert_eq!(Arc::strong_count(&statistics), 1);
        assert!(metering.text().is_empty());
    }
}
