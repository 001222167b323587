//! Metrics for Prometheus: the owner of each source collects its counters.
//!
//! Nothing here blocks, or runs on the data path: the counters are maintained anyway.

mod exposition;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod labels;
mod names;
mod own;
pub(crate) mod request;

use core::fmt;
use core::net::IpAddr;

use doorbell::link::{HealthState, SessionCounts, TransferOutcome, TransferTotals};
use doorbell::memory::{RegistrationStatistics, Uncached};
use doorbell::mesh::Rank;
use doorbell::provider::{Network, Provider};
use doorbell::worker::StatisticsSnapshot;

use crate::port_counters::PortCounters;
use doorbell::connect::HandshakeCounts;
use doorbell::link::{LinkId, LinkRailCounts, Links};
use doorbell::mesh::{Mesh, MeshCounts};
use doorbell::trust::Refusals;
use doorbell::{ChannelState, Worker};
use exposition::Families;
pub use labels::{LabelError, Labels};
pub use own::MetricFamily;

/// A snapshot of counters and gauges, as text for Prometheus.
///
/// Values with the same name and labels are added up. So the labels decide whether the Workers of a device are added up. A
/// counter decreases when its sources have gone, which Prometheus treats as a restart. To keep the counts, add sources that end
/// to a permanent `Metrics`, and collect the others into a clone of it. Links keep the counts of links that have ended. They keep
/// the counts of a rail as long as another link has a rail between the same device and address; [`Metrics::mesh`] leaves these out, since
/// it has a label for the member.
///
/// [`Metrics::statistics`] can be collected on any thread, at any time. All others have to be collected on the thread that owns
/// the source.
///
/// ```
/// use doorbell::Statistics;
/// use doorbell_operation::{Labels, Metrics};
///
/// let statistics = Statistics::default(); // `Worker::statistics`
/// statistics.doorbell(3, 192, 0);
/// let mut metrics = Metrics::default();
/// metrics.statistics(&Labels::new(&[("device", "mlx5_0")])?, &statistics.snapshot());
/// assert!(metrics.to_string().contains("doorbell_worker_requests_total{device=\"mlx5_0\"} 3\n"));
/// # Ok::<(), doorbell_operation::LabelError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    families: Families,
}

impl Metrics {
    /// Adds counters of the owner of queues: a Worker, or one of its halves.
    pub fn statistics(&mut self, labels: &Labels, statistics: &StatisticsSnapshot) {
        for (description, value) in names::of_worker(statistics) {
            self.families.add(description, labels, value);
        }
        self.families.add_buckets(
            &names::BATCH_REQUESTS,
            labels,
            &statistics.batches,
            statistics.requests,
        );
    }

    /// Adds counters of a Worker and its channels, as of its last poll.
    pub fn worker<P: Provider>(&mut self, labels: &Labels, worker: &mut Worker<P>) {
        self.statistics(labels, &worker.statistics().snapshot());
        self.families
            .add(&names::NOT_DESTROYED, labels, worker.not_destroyed().into());
        let ids: Vec<_> = worker.channels().collect();
        for channel in ids {
            if let Some(channel) = worker.channel(channel) {
                let is_open = channel.state() == ChannelState::Open;
                self.channel_to(labels, channel.peer().address(), is_open);
                self.families
                    .add(&names::CHANNEL_CREDITS, labels, channel.credits().into());
                self.families
                    .add(&names::CHANNEL_IN_FLIGHT, labels, channel.in_flight().into());
            }
        }
    }

    /// Adds a channel to the peer at this address, open or failed.
    pub fn channel_to(&mut self, labels: &Labels, peer: IpAddr, is_open: bool) {
        let labels = labels.and("peer", &peer.to_string());
        for (name, value) in [("open", is_open), ("failed", !is_open)] {
            self.families
                .add(&names::CHANNELS, &labels.and("state", name), value.into());
        }
    }

    /// Sets the kernel's counters of a port, which include retransmissions. They belong to the port, not to the caller: they
    /// replace earlier values of the port, and are not added up.
    pub fn port_counters(&mut self, port: &PortCounters) {
        let labels = Labels::NONE
            .and("device", &port.device)
            .and("port", &port.port.to_string());
        for (name, value) in &port.counters {
            self.families
                .set(&names::PORT_COUNTER, &labels.and("counter", name), *value);
        }
    }

    /// Adds counters of handshakes: of [`Background`](doorbell::connect::Background) or
    /// [`Handshakes`](doorbell::connect::Handshakes).
    pub fn handshakes(&mut self, labels: &Labels, counts: &HandshakeCounts) {
        self.families.add(&names::HANDSHAKES_BEGUN, labels, counts.begun);
        let outcomes = [
            ("connected", counts.connected),
            ("failed", counts.failed),
            ("refused", counts.refused),
        ];
        for (outcome, count) in outcomes {
            self.families
                .add(&names::HANDSHAKES, &labels.and("outcome", outcome), count);
        }
        self.families
            .add(&names::PORT_FAILURES, labels, counts.port_failures);
        self.refusals(labels, &counts.untrusted);
    }

    /// Adds the peers that a [`Listener`](doorbell::Listener) refused because of their identity or address.
    pub fn refusals(&mut self, labels: &Labels, refusals: &Refusals) {
        let reasons = [
            ("unauthenticated", refusals.unauthenticated),
            ("unknown_key", refusals.unknown_key),
            ("wrong_key", refusals.wrong_key),
            ("address", refusals.address),
        ];
        for (reason, count) in reasons {
            self.families
                .add(&names::UNTRUSTED, &labels.and("reason", reason), count);
        }
    }

    /// Adds the counters of a registration cache:
    /// [`RegistrationCache::statistics`](doorbell::memory::RegistrationCache::statistics).
    pub fn registrations(&mut self, labels: &Labels, statistics: &RegistrationStatistics) {
        for (description, value) in names::of_registrations(statistics) {
            self.families.add(description, labels, value);
        }
        for reason in Uncached::ALL {
            let count = statistics.uncached(reason);
            let labels = labels.and("reason", reason.name());
            self.families.add(&names::UNCACHED, &labels, count);
        }
        for (state, count) in [
            ("used", statistics.entries_used),
            ("idle", statistics.entries.saturating_sub(statistics.entries_used)),
        ] {
            let labels = labels.and("state", state);
            self.families.add(&names::REGISTRATIONS, &labels, count.into());
        }
        self.families
            .add(&names::REGISTERED_BYTES, labels, statistics.bytes);
    }

    /// Adds the transfers of links: [`Links::transfer_totals`]. [`Metrics::links`] includes them.
    pub fn transfers(&mut self, labels: &Labels, totals: &TransferTotals) {
        for (description, value) in names::of_transfers(totals) {
            self.families.add(description, labels, value);
        }
        for outcome in TransferOutcome::ALL {
            let labels = labels.and("outcome", outcome.name());
            self.families
                .add(&names::TRANSFERS_ENDED, &labels, totals.ended(outcome));
        }
    }

    /// Adds the sums over all links, including their transfers, and the rails of each link.
    pub fn links<P: Provider, N: Network>(&mut self, labels: &Labels, links: &Links<P, N>) {
        self.links_together(labels, links);
        for id in links.ids() {
            self.link_rails(labels, links, id);
        }
        for (device, peer, counts) in links.rails_gone() {
            self.link_rail_counts(&of_rail(labels, device, peer), &counts);
        }
    }

    fn link_rail_counts(&mut self, labels: &Labels, counts: &LinkRailCounts) {
        for (description, value) in names::of_link_rail(counts) {
            self.families.add(description, labels, value);
        }
    }

    fn link_rails<P: Provider, N: Network>(&mut self, labels: &Labels, links: &Links<P, N>, id: LinkId) {
        for report in links.rails(id) {
            let labels = of_rail(labels, report.device, report.peer);
            let states = [
                ("up", HealthState::Up),
                ("suspect", HealthState::Suspect),
                ("down", HealthState::Down),
                ("failing_back", HealthState::FailingBack),
            ];
            for (name, state) in states {
                let is_so = (report.state == state).into();
                self.families
                    .add(&names::LINK_RAILS, &labels.and("state", name), is_so);
            }
            self.link_rail_counts(&labels, &report.counts);
        }
    }

    fn links_together<P: Provider, N: Network>(&mut self, labels: &Labels, links: &Links<P, N>) {
        for (state, value) in [("connected", 0), ("without_rail", 0)] {
            self.families
                .add(&names::LINKS, &labels.and("state", state), value);
        }
        for id in links.ids() {
            self.link(labels, &links.counts(id), links.is_connected(id));
        }
        self.link_counts(labels, &links.counts_gone());
        self.transfers(labels, &links.transfer_totals());
    }

    /// Adds one link, by [`Links::counts`] and [`Links::is_connected`].
    pub fn link(&mut self, labels: &Labels, counts: &SessionCounts, is_connected: bool) {
        for (name, value) in [("connected", is_connected), ("without_rail", !is_connected)] {
            self.families
                .add(&names::LINKS, &labels.and("state", name), value.into());
        }
        self.link_counts(labels, counts);
    }

    fn link_counts(&mut self, labels: &Labels, counts: &SessionCounts) {
        for (description, value) in names::of_link(counts) {
            self.families.add(description, labels, value);
        }
    }

    /// Adds a member of a mesh, with its links and the other members.
    pub fn mesh<P: Provider, N: Network>(&mut self, labels: &Labels, mesh: &Mesh<P, N>) {
        self.mesh_counts(labels, &mesh.counts());
        self.families
            .add(&names::MESH_REACHED, labels, mesh.reached().len().into());
        self.families
            .add(&names::MESH_MEMBERS, labels, mesh.ranks().into());
        let ways = mesh.ways();
        let all = (0..mesh.ranks()).filter_map(Rank::new);
        for rank in all.filter(|rank| *rank != mesh.rank()) {
            let labels = labels.and("member", &rank.to_string());
            let counts = mesh.member_counts(rank);
            for (description, value) in names::of_mesh_member(&counts) {
                self.families.add(description, &labels, value);
            }
            self.families.add(&names::MESH_WAITING, &labels, counts.waiting);
            let by = ways
                .get(&rank)
                .map_or_else(String::new, |by| one_after_another(by));
            let by = labels.and("by", &by);
            let hops = mesh.routes().hops(rank).unwrap_or_default();
            self.families.add(&names::MESH_ROUTE, &by, hops.into());
        }
        for (rank, link) in mesh.neighbours() {
            self.link_rails(&labels.and("member", &rank.to_string()), mesh.links(), link);
        }
        self.links_together(labels, mesh.links());
    }

    fn mesh_counts(&mut self, labels: &Labels, counts: &MeshCounts) {
        for (description, value) in names::of_mesh(counts) {
            self.families.add(description, labels, value);
        }
    }
}

/// The ranks of the relaying members, in order.
fn one_after_another(by: &[Rank]) -> String {
    let by: Vec<_> = by.iter().map(Rank::to_string).collect();
    by.join(", ")
}

/// Labels of a rail of a link.
fn of_rail(labels: &Labels, device: &str, peer: IpAddr) -> Labels {
    labels.and("rail", device).and("peer", &peer.to_string())
}

/// Renders the text, in format 0.0.4.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.families, f)
    }
}

#[cfg(test)]
mod tests;
