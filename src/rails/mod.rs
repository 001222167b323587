//! Rails: ports with an address that peers reach, rules for those that are used ([`RailFilter`]), and pairs of rails of two hosts.

pub(crate) mod filter;
pub(crate) mod scan;

pub use doorbell_core::port::Unusable;
pub use doorbell_core::rail::{
    Candidate, Lane, LocalRail, NotChosen, PairedRails, Pairing, RailPair, RailSource, Verdict, pairs,
};
pub use doorbell_core::wire::{AdvertisedRail, SpeedClass};
pub use filter::{FilterSubject, FilterVerdict, RailFilter, RailFilterError, RuleFault};

use doorbell_core::rail::choose;
use doorbell_core::wire::RAILS_MAX;
use doorbell_core::{Gid, Mtu, PortReport};

use crate::error::{ConnectError, NoRoute};
use crate::machine::log::log;
use crate::rails::scan::Scan;

/// Every rail of the Workers' devices as it is now, those that can be used first.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    /// Usable ones, then the others, whose reasons are for the report alone.
    local: Vec<LocalRail>,
    /// For each usable one, which Worker is on its device.
    workers: Vec<usize>,
    /// For each usable one, its form in a handle or a Hello.
    advertised: Vec<AdvertisedRail>,
    /// Ports of the Workers' devices that could not be looked at, each with its reason.
    failed: Vec<String>,
}

/// The facts of a rail that a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRail {
    pub(crate) worker: usize,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) active_mtu: Mtu,
}

impl Rails {
    /// The rails of ports that were looked at, and of the device of each Worker.
    pub(crate) fn of_scan(scan: &Scan, devices: &[&str], filter: &RailFilter) -> Self {
        let of_them = scan
            .ports
            .iter()
            .filter(|report| devices.contains(&report.device.as_str()));
        let mut found: Vec<_> = of_them.flat_map(|report| rails_of(report, filter)).collect();
        let worker_of = |name: &str| devices.iter().position(|device| *device == name);
        sort_by_preference(&mut found);
        for rail in &found {
            if let Err(reason) = rail.source {
                log!(
                    debug,
                    "rail not used",
                    device = rail.device,
                    port = rail.port,
                    reason = reason
                );
            }
        }
        let mut rails = Self {
            local: found,
            workers: Vec::new(),
            advertised: Vec::new(),
            failed: scan.failed_of(devices),
        };
        for rail in &rails.local {
            let (Some(Ok(advertised)), Some(worker)) = (rail.advertised(), worker_of(rail.device.as_str()))
            else {
                break;
            };
            rails.workers.push(worker);
            rails.advertised.push(advertised);
        }
        rails
    }

    /// The rails that a peer is sent, in order.
    pub(crate) fn advertised(&self) -> &[AdvertisedRail] {
        &self.advertised
    }

    /// The facts of the rail of this index that a queue pair is made with.
    pub(crate) fn get(&self, index: usize) -> Option<NodeRail> {
        let rail = self.local.get(index)?;
        let RailSource { gid, mtu, .. } = rail.source.ok()?;
        Some(NodeRail {
            worker: *self.workers.get(index)?,
            port: rail.port,
            gid_index: gid_index(rail)?,
            gid,
            active_mtu: mtu,
        })
    }

    /// Returns every pair of a rail of ours and one of the peer's that reach each other, each port of ours in one, the best first.
    /// The wire does not show which of the peer's rails share a port. The peer knows, and takes one connection of a link on each port.
    pub(crate) fn pairs(&self, peer: &[AdvertisedRail]) -> Vec<PairedRails> {
        let ours: Vec<_> = Candidate::each(&self.advertised)
            .enumerate()
            .map(|(index, each)| {
                // Both number rails: a port goes by its first one.
                let first = (0..index).find(|before| self.port_of(*before) == self.port_of(index));
                let port = first.and_then(|first| u8::try_from(first).ok());
                Candidate {
                    port: port.unwrap_or(each.port),
                    ..each
                }
            })
            .collect();
        let peers: Vec<_> = Candidate::each(peer).collect();
        let pairing = pairs(&ours, &peers);
        for (rail, verdict) in pairing.local_verdicts() {
            if let Verdict::NotChosen(reason) = verdict {
                log!(info, "rail in no pair", rail = rail, reason = reason);
            }
        }
        pairing.pairs().to_vec()
    }

    /// The rail of this index alone.
    fn only(&self, index: usize) -> Option<Self> {
        Some(Self {
            local: vec![self.local.get(index)?.clone()],
            workers: vec![*self.workers.get(index)?],
            advertised: vec![*self.advertised.get(index)?],
            failed: self.failed.clone(),
        })
    }

    /// The one rail of a port of ours that reaches this one of the peer's.
    ///
    /// # Errors
    /// None does: why not, for each of ours.
    pub(crate) fn of_port(
        &self,
        device: &str,
        port: u8,
        peer: &AdvertisedRail,
    ) -> Result<Self, ConnectError> {
        let peer = core::slice::from_ref(peer);
        let ours = (0..self.advertised.len())
            .filter(|index| self.port_of(*index) == Some((device, port)))
            .filter_map(|index| self.only(index))
            .find(|rails| rails.route(peer).is_ok());
        match ours {
            Some(rails) => Ok(rails),
            None => {
                self.route(peer)?;
                Err(ConnectError::Unreachable(
                    "a rail reaches the peer, and no port has it",
                ))
            }
        }
    }

    /// The device and port of the rail of this index, which stay where its address does not.
    pub(crate) fn port_of(&self, index: usize) -> Option<(&str, u8)> {
        let rail = self.local.get(index)?;
        Some((rail.device.as_str(), rail.port))
    }

    /// The speed of the fastest rail of a Worker.
    pub(crate) fn speed_mbps_of(&self, worker: usize) -> u32 {
        let of_it = self.workers.iter().zip(&self.local);
        let speeds = of_it
            .filter(|(of, _)| **of == worker)
            .map(|(_, rail)| rail.speed_mbps);
        speeds.max().unwrap_or(0)
    }

    /// The best pair of a rail of ours and one of the peer's.
    ///
    /// # Errors
    /// None reaches: each of ours with its reason.
    pub(crate) fn route(&self, peer: &[AdvertisedRail]) -> Result<RailPair, NoRoute> {
        let choice = choose(&self.local, peer);
        choice
            .pair()
            .filter(|pair| self.get(pair.local).is_some())
            .ok_or_else(|| NoRoute {
                ours: choice
                    .local_verdicts()
                    .filter_map(|(rail, verdict)| match verdict {
                        Verdict::NotChosen(reason) => Some((describe(rail), reason)),
                        Verdict::Chosen(_) => None,
                    })
                    .collect(),
                failed: self.failed.clone(),
                peers: addresses(peer),
                gone: None,
            })
    }
}

/// Returns the addresses of rails, for a report.
pub(crate) fn addresses(rails: &[AdvertisedRail]) -> Vec<String> {
    rails.iter().map(|rail| rail.address().to_string()).collect()
}

/// The rails of a port, and for those that are not used, why.
pub fn rails_of(report: &PortReport, filter: &RailFilter) -> impl Iterator<Item = LocalRail> {
    LocalRail::of_port(report).map(move |mut rail| {
        let usable = rail.source.and_then(|source| {
            if gid_index(&rail).is_none() {
                return Err(Unusable::GidIndexTooLarge(source.gid_index));
            }
            match rail.advertised() {
                Some(Err(reason)) => Err(Unusable::NotAdvertisable(reason)),
                _ => Ok(source),
            }
        });
        rail.source = filtered(report, &rail, usable, filter);
        rail
    })
}

/// The filter's verdict on a rail, or on a port that has none.
fn filtered(
    report: &PortReport,
    rail: &LocalRail,
    usable: Result<RailSource, Unusable>,
    filter: &RailFilter,
) -> Result<RailSource, Unusable> {
    let source = rail.source.ok();
    let entry = source.and_then(|source| report.gids.iter().find(|entry| entry.index == source.gid_index));
    let address = source.map(|source| source.address);
    let subject = FilterSubject {
        device: &report.device,
        port: report.port,
        netdev: entry.and_then(|entry| entry.interface.as_deref()),
        address: address.map(|address| address.address()),
    };
    match (filter.verdict(&subject), usable) {
        (FilterVerdict::Used, usable) => usable,
        (FilterVerdict::Denied(rule), _) => Err(Unusable::LeftOut {
            rule: Some(rule),
            address,
        }),
        // A rule might name it, if it had an address: then that it has none is the reason.
        (FilterVerdict::NotNamed, Err(reason)) if filter.asks_beyond_devices() => Err(reason),
        (FilterVerdict::NotNamed, _) => Err(Unusable::LeftOut { rule: None, address }),
    }
}

/// Brings rails into the order they are used in: fast lanes, management lanes, and those that cannot be used; as
/// they were found within each. Rails beyond those that a peer may be sent cannot be used.
pub fn sort_by_preference(rails: &mut [LocalRail]) {
    let speed = |rail: &LocalRail| SpeedClass::from_mbps(rail.speed_mbps);
    let usable = rails.iter().filter(|rail| rail.source.is_ok());
    let fastest = usable.map(speed).max().unwrap_or_default();
    rails.sort_by_key(|rail| {
        let lane = rail.source.is_ok().then(|| Lane::of(speed(rail), fastest));
        core::cmp::Reverse(lane)
    });
    for rail in rails.iter_mut().skip(RAILS_MAX) {
        rail.source = rail.source.and(Err(Unusable::BeyondRailsMax));
    }
}

fn gid_index(rail: &LocalRail) -> Option<u8> {
    u8::try_from(rail.source.ok()?.gid_index).ok()
}

fn describe(rail: &LocalRail) -> String {
    match rail.source {
        Ok(source) => format!("{} port {} ({})", rail.device, rail.port, source.address),
        Err(_) => format!("{} port {}", rail.device, rail.port),
    }
}
