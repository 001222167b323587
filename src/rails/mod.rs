//! Rails: ports with an address that peers can reach, rules that select rails ([`RailFilter`]), and pairs of rails of two hosts.

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

/// Every rail of the Workers' devices as of a scan, usable ones first.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    /// The usable rails, and then the others, whose reasons are only reported.
    local: Vec<LocalRail>,
    /// For each usable rail, the index of the Worker on its device.
    workers: Vec<usize>,
    /// For each usable rail, its form in a handle or a Hello.
    advertised: Vec<AdvertisedRail>,
    /// Devices and ports of the Workers that could not be queried, each with its reason.
    failed: Vec<String>,
}

/// The attributes of a rail with which a queue pair is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRail {
    pub(crate) worker: usize,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) active_mtu: Mtu,
}

impl Rails {
    /// Makes the rails of a scan for the Workers' devices.
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

    /// The rails to send to a peer, in order of preference.
    pub(crate) fn advertised(&self) -> &[AdvertisedRail] {
        &self.advertised
    }

    /// Returns the attributes of the rail at this index with which a queue pair is made.
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

    /// Returns the pairs of a rail of this host and one of the peer's that reach each other, the best first, with each port of this host in
    /// at most one pair. The wire format does not say which of the peer's rails share a port. The peer knows, and accepts one connection of
    /// a link on each port.
    pub(crate) fn pairs(&self, peer: &[AdvertisedRail]) -> Vec<PairedRails> {
        let ours: Vec<_> = Candidate::each(&self.advertised)
            .enumerate()
            .map(|(index, each)| {
                // A candidate's port is a number. Here it is the index of the port's first rail, so that rails of a port have the same.
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

    /// Returns only the rail at this index.
    fn only(&self, index: usize) -> Option<Self> {
        Some(Self {
            local: vec![self.local.get(index)?.clone()],
            workers: vec![*self.workers.get(index)?],
            advertised: vec![*self.advertised.get(index)?],
            failed: self.failed.clone(),
        })
    }

    /// Returns only the first rail of a port of this host that reaches this rail of the peer.
    ///
    /// # Errors
    /// No rail of this host reaches it, with the reason for each; or only rails of other ports do.
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
                Err(NoRoute {
                    ours: Vec::new(),
                    failed: vec![format!(
                        "{device} port {port}: none of its usable rails reaches it now"
                    )],
                    peers: addresses(peer),
                    gone: None,
                }
                .into())
            }
        }
    }

    /// Returns the device and the port of the rail at this index, which identify it even if its address changes.
    pub(crate) fn port_of(&self, index: usize) -> Option<(&str, u8)> {
        let rail = self.local.get(index)?;
        Some((rail.device.as_str(), rail.port))
    }

    /// Returns the speed of the fastest rail of a Worker, or 0.
    pub(crate) fn speed_mbps_of(&self, worker: usize) -> u32 {
        let of_it = self.workers.iter().zip(&self.local);
        let speeds = of_it
            .filter(|(of, _)| **of == worker)
            .map(|(_, rail)| rail.speed_mbps);
        speeds.max().unwrap_or(0)
    }

    /// Returns the best pair of a rail of this host and one of the peer's.
    ///
    /// # Errors
    /// No rail of this host reaches one of the peer's, with the reason for each.
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

/// Returns the rails of a port; each unused one has the reason.
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

/// Applies the filter to a rail, or to a port that has no rail.
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
        // A rule might name the port if it had a rail, so the reason is that it has none.
        (FilterVerdict::NotNamed, Err(reason)) if filter.asks_beyond_devices() => Err(reason),
        (FilterVerdict::NotNamed, _) => Err(Unusable::LeftOut { rule: None, address }),
    }
}

/// Sorts rails by preference: fast lanes, management lanes, and unusable rails, each in the order in which they were found. Marks the
/// rails beyond [`RAILS_MAX`] as unusable.
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
