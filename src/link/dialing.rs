//! Connecting the rails of a link, each between a port of this host and a rail of the peer. The ports are scanned to find the pairs.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::task::Waker;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_core::handshake::{Cause, HandshakeError};
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::{Epoch, FinalReason};
use doorbell_core::wire::{AdvertisedRail, Handle, RejectReason, Resumption};
use doorbell_core::{Deadline, Instant};

use super::config::LinkConfig;
use super::moment::Moment;
use super::rail::{At, Between, LinkRail, NotConnected};
use super::state::Link;
use crate::connect::connecting::Connecting;
use crate::connect::connecting::{Destination, TimeLimit};
use crate::connect::node::{Connection, Node};
use crate::connect::port_scan::{PendingScan, SCANNED_WITHIN};
use crate::error::ConnectError;
use crate::machine::log::log;
use crate::machine::signal::Signal;
use crate::rails::Rails;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;

/// A search for pairs of rails: a scan of this host's ports, and the peer's rails to pair them with.
pub(super) struct Finding {
    scan: ScanState,
    /// The peer's rails.
    peers: Vec<AdvertisedRail>,
    /// Whether something changed since the scan began. The scan may have missed the change, so another one follows.
    is_again: bool,
    /// Number of consecutive scans that failed.
    failed: u32,
}

enum ScanState {
    Pending {
        pending: PendingScan,
        /// Raised once the scan is done, if another thread scans.
        signal: Option<Arc<Signal>>,
    },
    /// The last scan failed; the next one begins at this time.
    RetryAt(Deadline),
}

impl ScanState {
    fn begin<P: Provider, N: Network>(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        now: Instant,
    ) -> Result<Self, ConnectError> {
        let signal = node.makers().signal().map_err(ConnectError::Tcp)?;
        let until = Deadline::after(now, SCANNED_WITHIN);
        let pending = PendingScan::begin(node, workers, signal.clone().map(Waker::from), until)?;
        Ok(Self::Pending { pending, signal })
    }
}

impl Finding {
    /// Begins a scan of this host's ports, for these rails of a peer.
    ///
    /// # Errors
    /// A Worker belongs to another Node, or the system gave no descriptor.
    pub(super) fn begin<P: Provider, N: Network>(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        peers: Vec<AdvertisedRail>,
        now: Instant,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            scan: ScanState::begin(node, workers, now)?,
            peers,
            is_again: false,
            failed: 0,
        })
    }

    /// Makes another scan follow the present one, for these rails. The result of the present scan is used, too. If it were discarded,
    /// changes at intervals shorter than a scan would never take effect.
    pub(super) fn follow(&mut self, peers: Vec<AdvertisedRail>) {
        self.peers = peers;
        self.is_again = true;
    }

    /// Whether another scan is to follow.
    pub(super) const fn is_again(&self) -> bool {
        self.is_again
    }

    /// Returns the rails of this host once the scan is done.
    pub(super) fn take<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
    ) -> Option<Result<Rails, ConnectError>> {
        let ScanState::Pending { pending, signal } = &self.scan else {
            return None;
        };
        if let Some(signal) = signal {
            signal.take();
        }
        pending.take(node, workers)
    }

    /// Descriptor that becomes readable once the scan is done; `None` if no other thread scans.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.scan {
            ScanState::Pending { signal, .. } => Some(signal.as_ref()?.descriptor()),
            ScanState::RetryAt(_) => None,
        }
    }

    /// When to poll again at the latest.
    pub(super) const fn deadline(&self) -> Deadline {
        match &self.scan {
            ScanState::Pending { pending, .. } => pending.deadline(),
            ScanState::RetryAt(at) => *at,
        }
    }

    /// Whether a scan has begun, and its result was not taken.
    pub(super) const fn is_on(&self) -> bool {
        matches!(self.scan, ScanState::Pending { .. })
    }
}

/// Returns the pairs of rails that a link may use, and the speed of each.
pub(super) fn rails_to(rails: &Rails, peers: &[AdvertisedRail]) -> Result<Vec<(Between, u32)>, ConnectError> {
    let found: Vec<_> = rails
        .pairs(peers)
        .iter()
        .filter_map(|paired| {
            let (device, port) = rails.port_of(paired.pair.local)?;
            let between = Between {
                device: device.into(),
                port,
                peer: *peers.get(paired.pair.peer)?,
            };
            let speed_mbps = u32::try_from(paired.speed.to_mbps()).unwrap_or(u32::MAX);
            log!(
                info,
                "rail chosen",
                device = between.device,
                port = port,
                peers = between.peer,
                mbps = speed_mbps
            );
            Some((between, speed_mbps))
        })
        .collect();
    if found.is_empty() {
        // The error has the reason for each rail.
        if let Err(reason) = rails.route(peers) {
            log!(warn, "no rail reaches the peer", reason = reason);
            return Err(reason.into());
        }
        return Err(ConnectError::Unreachable(
            "rails reach the peer, and none was found",
        ));
    }
    Ok(found)
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Adopts a new handle of the same process, whose rails have changed. Returns whether the handle is of that process.
    pub(super) fn reroute(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        handle: &Handle,
        now: Instant,
    ) -> bool {
        let is_same = self.takes_handle(handle);
        if is_same {
            self.find_rails(node, workers, handle.rails().iter().collect(), now);
            self.ask_for_rails();
        }
        is_same
    }

    /// Adopts a new handle of the same process, with rails of this host from a finished scan.
    pub(super) fn reroute_over(&mut self, our_rails: &Rails, handle: &Handle, now: Instant) {
        if self.takes_handle(handle) {
            // The scan under way is for the rails of the previous handle.
            self.finding = None;
            let listed: Vec<_> = handle.rails().iter().collect();
            self.go_by_rails(our_rails, &listed, now);
            self.ask_for_rails();
        }
    }

    /// Replaces the peer's handle with this one if it is of the same process. Returns whether it is.
    fn takes_handle(&mut self, handle: &Handle) -> bool {
        let known = self
            .handle
            .as_mut()
            .filter(|known| known.instance() == handle.instance());
        known.map(|known| *known = *handle).is_some()
    }

    /// Begins a scan to use these rails of the peer. If one is under way, another follows it.
    pub(super) fn find_rails(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        peers: Vec<AdvertisedRail>,
        now: Instant,
    ) {
        match &mut self.finding {
            Some(finding) if finding.is_on() => finding.follow(peers),
            _ => self.scan(node, workers, (peers, 0), now),
        }
        self.take_found(node, workers, now);
    }

    /// Begins a scan for these rails of the peer, after `failed` consecutive failed scans.
    fn scan(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        (peers, failed): (Vec<AdvertisedRail>, u32),
        now: Instant,
    ) {
        match ScanState::begin(node, workers, now) {
            Ok(scan) => {
                self.finding = Some(Finding {
                    scan,
                    peers,
                    is_again: false,
                    failed,
                });
            }
            Err(why) => self.scan_later((peers, failed), why, now),
        }
    }

    /// Schedules another scan, since this one failed. The failure says nothing about the peer. The search is kept, since the peer
    /// announces a new address only once.
    fn scan_later(&mut self, (peers, failed): (Vec<AdvertisedRail>, u32), why: ConnectError, now: Instant) {
        log!(
            warn,
            "our ports are not looked at: once more, later",
            reason = why
        );
        self.note_unreached(why);
        let failed = failed.saturating_add(1);
        let chance = now.to_ns() ^ self.session.id().to_u64();
        self.finding = Some(Finding {
            scan: ScanState::RetryAt(Deadline::after(now, self.backoff.wait(failed, chance))),
            peers,
            is_again: false,
            failed,
        });
    }

    /// Uses the result of a scan that is done, and begins one that is due. Returns whether no search is left.
    pub(super) fn take_found(&mut self, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) -> bool {
        let due = self
            .finding
            .take_if(|finding| !finding.is_on() && finding.deadline().has_passed(now));
        if let Some(Finding { peers, failed, .. }) = due {
            self.scan(node, workers, (peers, failed), now);
        }
        let finding = self.finding.as_ref();
        let Some(scanned) = finding.and_then(|finding| finding.take(node, workers)) else {
            return self.finding.is_none();
        };
        let Some(Finding {
            peers,
            is_again,
            failed,
            ..
        }) = self.finding.take()
        else {
            return true;
        };
        match scanned.map(|rails| rails_to(&rails, &peers)) {
            Ok(Ok(found)) => self.go_by(&found, now),
            // The scan that follows may find a rail.
            Ok(Err(reason)) if is_again => self.note_unreached(reason),
            // No rail reaches the peer now. The link keeps its present rails.
            Ok(Err(reason)) => self.not_found(reason),
            Err(reason) => {
                self.scan_later((peers, failed), reason, now);
                return false;
            }
        }
        if is_again {
            self.scan(node, workers, (peers, 0), now);
        }
        self.finding.is_none()
    }

    /// Notes that no rail was found. If the link has no rail, and the peer has no further rails to ask for, the link is over.
    fn not_found(&mut self, why: ConnectError) {
        log!(warn, "rails stay as they are", reason = why);
        self.note_unreached(why);
        let has_said_all = !self.handle.as_ref().is_some_and(Handle::has_more);
        if self.unreached.is_some() && has_said_all {
            self.session.fail(FinalReason::Unreachable);
        }
    }

    /// Notes why the link has no rail, unless it has one.
    pub(super) fn note_unreached(&mut self, why: ConnectError) {
        if self.rails.iter().all(|rail| rail.between.is_none()) {
            self.unreached = Some(NotConnected { between: None, why });
        }
    }

    /// Uses the rails of this host that reach one of these rails of the peer.
    pub(super) fn go_by_rails(&mut self, our_rails: &Rails, peers: &[AdvertisedRail], now: Instant) {
        match rails_to(our_rails, peers) {
            Ok(found) => self.go_by(&found, now),
            // A scan under way may be newer than these rails, and may still find one.
            Err(_) if self.finding.is_some() => {}
            Err(reason) => self.not_found(reason),
        }
    }

    /// Uses these pairs: a port that has a rail gets the new address of the peer, and another port gets a new rail. If all rails are used,
    /// it gets one whose port is gone and that has no connection.
    pub(super) fn go_by(&mut self, found: &[(Between, u32)], now: Instant) {
        if !found.is_empty() {
            self.unreached = None;
        }
        for (between, speed_mbps) in found {
            let mut known = (0_u8..).zip(&mut self.rails);
            if let Some((index, rail)) = known.find(|(_, rail)| rail.is_of_port(between)) {
                if rail.goes_to(between.clone()) {
                    self.session.readdressed(index);
                }
                continue;
            }
            let added = self.session.add_rail(*speed_mbps, now).or_else(|| {
                self.remove_gone(found);
                self.session.add_rail(*speed_mbps, now)
            });
            if let Some(rail) = added.and_then(|rail| self.rail_mut(rail)) {
                rail.between = Some(between.clone());
            }
        }
    }

    /// Removes a rail that has no connection and whose port is in none of these pairs.
    fn remove_gone(&mut self, found: &[(Between, u32)]) {
        let Self { rails, session, .. } = self;
        let mut rails = (0_u8..).zip(rails);
        let gone = rails.find(|(index, rail)| {
            let is_gone = !found.iter().any(|(between, _)| rail.is_of_port(between));
            is_gone && session.remove_rail(*index)
        });
        if let Some((index, rail)) = gone {
            self.vacated.extend(rail.vacate());
            self.transfers.vacated(index);
        }
    }

    /// Begins to connect a rail, from an address that its port has now.
    pub(super) fn dial(
        &self,
        rail: u8,
        epoch: Epoch,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        config: &LinkConfig,
    ) -> Result<Connecting<P, N>, ConnectError> {
        let between = self
            .rails
            .get(usize::from(rail))
            .and_then(|rail| rail.between.as_ref());
        let (Some(between), Some(handle)) = (between, &self.handle) else {
            return Err(ConnectError::Unreachable(
                "a rail is to be connected whose peer is not known",
            ));
        };
        let time_limit = TimeLimit::OnceScanned(config.session.attach_within);
        // The peer compares the first frame on the connection with this, which the handshake authenticates.
        let channel = ChannelConfig {
            session: Some(Resumption {
                session: self.session.id(),
                epoch: epoch.to_u32(),
                next_sequence: self.session.expected().0,
            }),
            class: self.in_class.class(),
            ..config.channel
        };
        let destination = Destination::Rail {
            handle: *handle,
            device: between.device.clone(),
            port: between.port,
            peer: between.peer,
        };
        node.begin(workers, destination, &channel, time_limit)
    }

    /// Advances the rails that are being connected; `made` gets each new channel. If a process rejects the handle as stale, it has `within`
    /// to identify itself.
    pub(super) fn poll_connecting(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        Moment { now, random }: Moment,
        (frame_bytes, within): (usize, Duration),
        mut made: impl FnMut(u8, At),
    ) {
        let mut has_failed = false;
        for (index, rail) in (0..self.session.rails_end()).zip(&mut self.rails) {
            if self.session.over().is_some() {
                (rail.connecting, rail.asking) = (None, None);
            }
            let outcome = rail
                .connecting
                .as_mut()
                .and_then(|connecting| connecting.poll(node, workers));
            let failed = match (outcome, &self.handle) {
                (Some(Ok(Connection { worker, channel })), _) => {
                    rail.connecting = None;
                    let at = At { worker, channel };
                    let peer = rail
                        .between
                        .as_ref()
                        .map(|between| between.peer.address().address());
                    rail.attach(at, peer.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
                    self.session.connected(index, now);
                    made(index, at);
                    if let Some(version) = version_of(workers, at) {
                        self.transfers.met(version, now);
                    }
                    if !takes(workers, at, frame_bytes) {
                        self.session.fail(FinalReason::Unsuitable);
                    }
                    continue;
                }
                (Some(Err(error)), Some(handle)) => {
                    rail.connecting = None;
                    rail.ask_who_is_there(node, error, handle, Deadline::after(now, within))
                }
                (None, Some(handle)) => rail.hear_who_is_there(node, handle),
                (_, None) => None,
            };
            if let Some((error, is_another)) = failed {
                // The attempt was to the rail's old address, so it says nothing about the new one.
                let was_readdressed = core::mem::take(&mut rail.is_readdressed);
                let is_another = is_another && !was_readdressed;
                self.session.connect_failed(index, is_another, now, random);
                rail.note_failure(error);
                has_failed = true;
            }
        }
        if has_failed {
            // If the handle has no room for all rails, a change of the others is never announced. So the peer is asked for them.
            self.ask_for_rails();
        }
    }
}

impl<P: Provider, N: Network> LinkRail<P, N> {
    /// Returns the failure of an attempt to connect, and whether another process has authenticated itself at the address. A
    /// [`RejectReason::STALE_HANDLE`] is not authenticated, so the process that sent it is asked for its handle. `None` until it has
    /// answered.
    fn ask_who_is_there(
        &mut self,
        node: &Node<P, N>,
        why: ConnectError,
        handle: &Handle,
        by: Deadline,
    ) -> Option<(ConnectError, bool)> {
        let ConnectError::Handshake(HandshakeError { cause, .. }) = &why else {
            return Some((why, false));
        };
        let is_said = match cause {
            Cause::StaleHandle { .. } => return Some((why, true)),
            Cause::RejectedByPeer(reject) => reject.reason == RejectReason::STALE_HANDLE,
            _ => false,
        };
        let between = self.between.as_ref().filter(|_| is_said);
        let to =
            between.map(|between| SocketAddr::new(between.peer.address().address(), handle.port().get()));
        let Some(asking) = to.and_then(|to| node.begin_ask(to, by).ok()) else {
            return Some((why, false));
        };
        self.asking = Some((asking, why));
        None
    }

    /// Returns the same once the process has identified itself, or its time is over.
    fn hear_who_is_there(&mut self, node: &Node<P, N>, handle: &Handle) -> Option<(ConnectError, bool)> {
        let answer = self.asking.as_mut()?.0.poll(node)?;
        let (_, why) = self.asking.take()?;
        let is_another = answer.is_ok_and(|found| found.instance() != handle.instance());
        Some((why, is_another))
    }
}

/// The version of the wire format that both sides use on a connection, if the connection exists.
fn version_of<P: Provider>(workers: &mut [Worker<P>], at: At) -> Option<u8> {
    let channel = workers.get_mut(at.worker)?.channel(at.channel)?;
    Some(channel.peer().wire_version())
}

/// Whether the receives of a channel's peer hold frames of this length.
pub(super) fn takes<P: Provider>(workers: &mut [Worker<P>], at: At, frame_bytes: usize) -> bool {
    workers
        .get_mut(at.worker)
        .and_then(|worker| worker.channel(at.channel))
        .is_some_and(|channel| {
            usize::try_from(channel.peer().message_bytes_max()).is_ok_and(|bytes| bytes >= frame_bytes)
        })
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use doorbell_core::session::{Action, FinalReason, Role, SessionId};
    use doorbell_core::wire::{AdvertisedRail, SpeedClass};
    use doorbell_core::{Gid, Instant, IpPrefix};
    use doorbell_sim::{Fabric, Host, PortConfig};

    use super::super::config::LinkConfig;
    use super::super::rail::{At, Between, LinkRailCounts, RailPath};
    use super::super::state::Link;
    use super::Finding;
    use crate::connect::node::Node;
    use crate::error::ConnectError;
    use crate::trust::Trust;
    use crate::worker::Worker;
    use crate::worker::channel::ChannelId;
    use crate::worker::config::WorkerConfig;

    fn prefix(last: u8) -> IpPrefix {
        IpPrefix::new([10, 0, 0, last].into(), 24).unwrap()
    }

    /// A node on a host of this address, with its Workers.
    fn node(fabric: &Fabric, last: u8) -> (Node<Host, Host>, Vec<Worker<Host>>) {
        let ports = vec![PortConfig::new("sim0", &[prefix(last)])];
        let host = fabric.host(&format!("h{last}"), ports).unwrap();
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        (node, workers)
    }

    #[test]
    fn ports_that_cannot_be_looked_at_are_looked_at_again_less_and_less_often() {
        let fabric = Fabric::builder().driven().build();
        let (node, workers) = node(&fabric, 1);
        // A scan for Workers of another node fails.
        let (_other, others) = self::node(&fabric, 2);
        let config = LinkConfig::default();
        let mut now = Instant::from_ns(0);
        let id = SessionId::new(7).unwrap();
        let mut link: Link<Host, Host> = Link::new(&config, Role::Initiator, id, now).unwrap();
        let gid = Gid::from_ip([10, 0, 0, 9].into());
        let peer = AdvertisedRail::new(prefix(9), gid, SpeedClass(7)).unwrap();
        let backoff = config.session.backoff;
        for _ in 0..2 {
            let mut most = backoff.first;
            link.find_rails(&node, &others, vec![peer], now);
            for _ in 0..12 {
                let again = link.finding.as_ref().unwrap().deadline().instant();
                let wait = Duration::from_nanos(again.to_ns() - now.to_ns());
                assert!((most / 2..=most).contains(&wait), "{wait:?} of {most:?}");
                // Nothing happens before.
                let early = Instant::from_ns(again.to_ns() - 1);
                assert!(!link.take_found(&node, &workers, early));
                (now, most) = (again, (most * 2).min(backoff.longest));
                link.take_found(&node, &others, now);
            }
            assert_eq!(most, backoff.longest);
            now = link.finding.as_ref().unwrap().deadline().instant();
            // Then a scan finds the rail, and the next failure counts as the first.
            assert!(link.take_found(&node, &workers, now));
            let between = link.rails[0].between.as_ref().unwrap();
            assert_eq!((&*between.device, between.peer), ("sim0", peer));
            assert!(link.unreached.is_none());
        }
    }

    #[test]
    fn a_link_without_a_rail_goes_on_while_another_scan_follows() {
        let fabric = Fabric::builder().driven().build();
        let (node, workers) = node(&fabric, 1);
        let (config, now) = (LinkConfig::default(), Instant::from_ns(0));
        let id = SessionId::new(7).unwrap();
        let mut link: Link<Host, Host> = Link::new(&config, Role::Initiator, id, now).unwrap();
        let far = IpPrefix::new([10, 9, 9, 9].into(), 24).unwrap();
        let far = AdvertisedRail::new(far, Gid::from_ip(far.address()), SpeedClass(7)).unwrap();
        let finding = link
            .finding
            .insert(Finding::begin(&node, &workers, Vec::new(), now).unwrap());
        finding.follow(vec![far]);
        assert!(!link.take_found(&node, &workers, now));
        assert!(link.unreached.is_some() && link.session.over().is_none());
        assert!(link.take_found(&node, &workers, now));
        assert_eq!(link.session.over(), Some(FinalReason::Unreachable));
    }

    #[test]
    fn a_new_port_gets_the_place_of_one_that_is_gone() {
        let (config, now) = (LinkConfig::default(), Instant::from_ns(0));
        let id = SessionId::new(7).unwrap();
        let mut link: Link<Host, Host> = Link::new(&config, Role::Initiator, id, now).unwrap();
        let found = |ports: &[u8]| {
            let pair = |port: &u8| {
                let gid = Gid::from_ip([10, 0, *port, 9].into());
                let prefix = IpPrefix::new([10, 0, *port, 9].into(), 24).unwrap();
                let between = Between {
                    device: format!("sim{port}"),
                    port: 1,
                    peer: AdvertisedRail::new(prefix, gid, SpeedClass(7)).unwrap(),
                };
                (between, 10_000)
            };
            ports.iter().map(pair).collect::<Vec<_>>()
        };
        let devices = |link: &Link<Host, Host>| {
            let devices = link
                .rails
                .iter()
                .map(|rail| &rail.between.as_ref().unwrap().device);
            devices
                .map(|device| device.trim_start_matches("sim").parse::<u8>().unwrap())
                .collect::<Vec<_>>()
        };
        // With all ports present, the ninth gets no rail.
        link.go_by(&found(&[0, 1, 2, 3, 4, 5, 6, 7, 8]), now);
        assert_eq!(devices(&link), [0, 1, 2, 3, 4, 5, 6, 7]);
        let (worker, peer) = (5, [10, 0, 3, 9].into());
        let channel = ChannelId {
            index: 7,
            generation: 1,
        };
        link.rails[3].note_failure(ConnectError::ListenerClosed);
        link.rails[3].attach(At { worker, channel }, peer);
        assert!(link.rails[3].not_connected.is_none(), "it is connected");
        link.rails[3].did_send(100);
        link.rails[3].lose();
        let counts = link.rails[3].counts;
        assert_eq!((counts.connections, counts.failures, counts.sent), (1, 1, 1));
        link.go_by(&found(&[0, 1, 2, 4, 5, 6, 7, 8]), now);
        assert_eq!(devices(&link), [0, 1, 2, 8, 4, 5, 6, 7]);
        // The new port begins without the counts of the old one, which are reported with those of ended links.
        let rail = &link.rails[3];
        assert_eq!((rail.leads, rail.counts), (None, LinkRailCounts::default()));
        assert_eq!(link.vacated, [(RailPath { worker, peer }, counts)]);
        // A rail that has a connection keeps its place, and an attempt to connect one does not.
        let mut begun = Vec::new();
        while let Some(Action::Connect { rail, epoch }) = link.session.poll_action(now, 0) {
            begun.push((rail, epoch));
        }
        assert_eq!(begun.len(), 8);
        link.session.connected(0, now);
        link.go_by(&found(&[10, 11]), now);
        assert_eq!(devices(&link), [0, 10, 11, 8, 4, 5, 6, 7]);
        // The new rail is connected by a later epoch.
        link.session.blocked(0);
        let again = link.session.poll_action(now, 0);
        let is_later = |epoch| epoch > begun[7].1;
        assert!(
            matches!(again, Some(Action::Connect { rail: 1, epoch }) if is_later(epoch)),
            "{again:?}"
        );
    }
}
