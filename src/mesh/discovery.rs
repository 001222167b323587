//! Members that are known by their TCP address. They are asked for their handles until there is a link, and again when it is lost.

use core::net::SocketAddr;
use core::time::Duration;

use doorbell_core::network::{Network, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::rank::Rank;
use doorbell_core::session::Backoff;
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};

use super::membership::Mesh;
use super::unlinked::NotLinked;
use crate::connect::asking::Asking;
use crate::connect::node::Node;
use crate::connect::port_scan::{PendingScan, SCANNED_WITHIN};
use crate::error::ConnectError;
use crate::link::LinkError;
use crate::machine::log::log;
use crate::worker::Worker;

/// The time limit of a query for a handle. Also the time that a link has to come up before the member is asked again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// A member that is asked for its handle.
pub(super) struct Discovery<N: Network> {
    rank: Rank,
    address: SocketAddr,
    asking: Option<Asking<N>>,
    /// The earliest time of the next query.
    next: Deadline,
    attempts_failed: u32,
    /// Why the last query failed; `None` after a query that succeeded.
    failure: Option<ConnectError>,
}

/// A member whose handle is known, and to which a link begins after a scan of the local ports.
pub(super) struct Discovered {
    rank: Rank,
    handle: Handle,
    scan: ScanState,
}

enum ScanState {
    Pending(PendingScan),
    /// The scan or the link failed, and is tried again at this time. The caller gives a handle only once.
    RetryAt(Deadline),
}

impl Discovered {
    pub(super) const fn is(&self, rank: Rank) -> bool {
        self.rank.number() == rank.number()
    }

    /// Returns when the local ports are scanned again; `None` while a scan is in progress.
    pub(super) const fn again(&self) -> Option<Deadline> {
        match self.scan {
            ScanState::Pending(_) => None,
            ScanState::RetryAt(at) => Some(at),
        }
    }
}

impl<N: Network> Discovery<N> {
    pub(super) const fn new(rank: Rank, address: SocketAddr) -> Self {
        Self {
            rank,
            address,
            asking: None,
            next: Deadline::at(Instant::from_ns(0)),
            attempts_failed: 0,
            failure: None,
        }
    }

    pub(super) const fn is(&self, rank: Rank) -> bool {
        self.rank.number() == rank.number()
    }

    pub(super) const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the latest time of the next poll.
    pub(super) fn wake(&self) -> Deadline {
        let asking = self.asking.as_ref().map(Asking::deadline);
        asking.unwrap_or(self.next)
    }

    pub(super) const fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Returns the stream of the query in progress.
    pub(super) fn waited(&self) -> Option<Waited<'_, N::Stream>> {
        self.asking.as_ref().map(Asking::waited)
    }

    /// Returns why the last query failed.
    pub(super) fn failure(&self) -> Option<NotLinked<'_>> {
        let (address, why) = (self.address, self.failure.as_ref()?);
        Some(NotLinked::NotFound { address, why })
    }

    fn failed(&mut self, why: ConnectError, backoff: &Backoff, now: Instant, chance: u64) {
        log!(
            warn,
            "a member was not found",
            rank = self.rank,
            at = self.address,
            reason = why
        );
        self.failure = Some(why);
        self.asking = None;
        self.attempts_failed = self.attempts_failed.saturating_add(1);
        self.next = Deadline::after(now, backoff.wait(self.attempts_failed, chance));
    }
}

impl<P: Provider, N: Network> Mesh<P, N> {
    /// Asks members without a link for their handles, and links to members that answered.
    pub(super) fn seek(&mut self, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) {
        self.link_to_found(node, workers, now);
        let backoff = self.state.config.link.session.backoff;
        for index in 0..self.sought.len() {
            let Some(rank) = self.sought.get(index).map(|sought| sought.rank) else {
                break;
            };
            if self.found.iter().any(|found| found.rank == rank) {
                continue;
            }
            let is_linked = self.is_linked(rank);
            let Some(sought) = self.sought.get_mut(index) else {
                break;
            };
            if is_linked {
                (sought.asking, sought.attempts_failed, sought.failure) = (None, 0, None);
                sought.next = Deadline::after(now, backoff.longest);
                continue;
            }
            let Some(asking) = &mut sought.asking else {
                if sought.next.has_passed(now) {
                    match node.begin_ask(sought.address, Deadline::after(now, ANSWERED_WITHIN)) {
                        Ok(asking) => sought.asking = Some(asking),
                        Err(error) => sought.failed(error, &backoff, now, self.links.draw()),
                    }
                }
                continue;
            };
            match asking.poll(node) {
                None => {}
                Some(Err(error)) => sought.failed(error, &backoff, now, self.links.draw()),
                Some(Ok(handle)) => {
                    (sought.asking, sought.failure) = (None, None);
                    sought.next = Deadline::after(now, ANSWERED_WITHIN);
                    // If no rail reaches the member, its messages need a relay. The member is asked again, since its rails may change.
                    if let Err(error) = self.find(node, workers, (rank, &handle), now) {
                        self.state.note_not_begun(rank, Some(error));
                    }
                }
            }
        }
    }

    /// Scans the local ports, and then links to a member by its handle. On a Node without threads both happen in this call.
    pub(super) fn find(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        (rank, handle): (Rank, &Handle),
        now: Instant,
    ) -> Result<(), LinkError> {
        let until = Deadline::after(now, SCANNED_WITHIN);
        // Without a waker: `Mesh::wake` makes callers poll again soon.
        let pending = PendingScan::begin(node, workers, None, until)?;
        // A later handle replaces an earlier one.
        self.found.retain(|found| found.rank != rank);
        match pending.take(node, workers) {
            Some(rails) => self.link_over(node, &rails?, (rank, handle), now),
            None => {
                let handle = *handle;
                let scan = ScanState::Pending(pending);
                self.found.push(Discovered { rank, handle, scan });
                Ok(())
            }
        }
    }

    /// Links to members for which the scan has ended, and repeats failed scans when their time has come.
    fn link_to_found(&mut self, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) {
        let scanned = |found: &Discovered| match &found.scan {
            ScanState::Pending(pending) => pending.take(node, workers).map(Some),
            ScanState::RetryAt(at) => at.has_passed(now).then_some(None),
        };
        while let Some((at, scanned)) = self
            .found
            .iter()
            .enumerate()
            .find_map(|(at, found)| Some((at, scanned(found)?)))
        {
            let Discovered { rank, handle, .. } = self.found.swap_remove(at);
            let outcome = match scanned {
                None => self.find(node, workers, (rank, &handle), now),
                Some(Ok(rails)) => self.link_over(node, &rails, (rank, &handle), now),
                Some(Err(error)) => Err(error.into()),
            };
            // The link has its time from now on, since the scan did not depend on the member.
            if let Some(sought) = self.sought.iter_mut().find(|sought| sought.is(rank)) {
                sought.next = Deadline::after(now, ANSWERED_WITHIN);
            }
            if let Err(error) = outcome {
                // Without a route, this handle will not lead to a link. All other errors are of this process, and may be temporary.
                if !matches!(error, LinkError::NoRoute(_)) {
                    let scan = ScanState::RetryAt(Deadline::after(now, ANSWERED_WITHIN));
                    self.found.push(Discovered { rank, handle, scan });
                }
                self.state.note_not_begun(rank, Some(error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU16;
    use core::time::Duration;

    use doorbell_core::rank::Rank;
    use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, SpeedClass};
    use doorbell_core::{Clock as _, Deadline, Gid, IpPrefix};
    use doorbell_sim::{Fabric, PortConfig};

    use super::{Discovered, Mesh, ScanState};
    use crate::connect::node::Node;
    use crate::mesh::MeshConfig;
    use crate::trust::Trust;
    use crate::worker::config::WorkerConfig;

    #[test]
    fn a_mesh_wakes_for_the_next_scan_of_ports_that_could_not_be_scanned() {
        let prefix = IpPrefix::new([10, 0, 0, 1].into(), 24).unwrap();
        let ports = vec![PortConfig::new("sim0", &[prefix])];
        let host = Fabric::new().host("a", ports).unwrap();
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let [other, own] = [0, 1].map(|rank| Rank::new(rank).unwrap());
        let mut mesh = Mesh::new(&node, &workers, &MeshConfig::new(own, 2, 1)).unwrap();
        let now = node.network().now();
        let at = Deadline::after(now, Duration::from_millis(7));
        assert!(mesh.wake_watched(now).is_none_or(|wake| wake > at));
        let mut handle = Handle::builder(NonZeroU16::MAX, InstanceId::new(9).unwrap());
        let gid = Gid::from_ip(prefix.address());
        let fit = handle.push(&AdvertisedRail::new(prefix, gid, SpeedClass(7)).unwrap());
        assert_eq!(fit, Fit::Included);
        mesh.found.push(Discovered {
            rank: other,
            handle: handle.finish().unwrap(),
            scan: ScanState::RetryAt(at),
        });
        assert_eq!(mesh.wake_watched(now), Some(at));
    }
}
