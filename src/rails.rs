//! The rails of a set of Workers: what they can be reached on, and which reaches a peer.

use core::fmt;

use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::rail::{LocalRail, NotChosen, RailPair, RailSource, Verdict, choose};
use doorbell_core::wire::{AdvertisedRail, RAILS_MAX};
use doorbell_core::{Gid, Mtu};

use crate::Worker;

/// Every rail of the Workers' devices as it is now, those that can be used first.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    /// Usable ones, then the others, whose reasons are for the report alone.
    local: Vec<LocalRail>,
    /// For each usable one, which Worker is on its device.
    workers: Vec<usize>,
    /// For each usable one, what a peer is told.
    advertised: Vec<AdvertisedRail>,
}

/// What a queue pair on a rail is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRail {
    pub(crate) worker: usize,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) active_mtu: Mtu,
}

/// No rail of ours reaches one of the peer's: each with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoRoute {
    /// Our rails, as device, port and address where it has one.
    pub ours: Vec<(String, NotChosen)>,
    /// The addresses the peer advertises.
    pub peers: Vec<String>,
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no rail reaches the peer, which is at {}",
            self.peers.join(", ")
        )?;
        for (rail, reason) in &self.ours {
            write!(f, "; {rail}: {reason}")?;
        }
        Ok(())
    }
}

impl core::error::Error for NoRoute {}

impl Rails {
    /// Looks at the ports of the Workers' devices now.
    pub(crate) fn scan<P: Provider>(provider: &P, workers: &[Worker<P>]) -> Result<Self, ProviderError> {
        let mut rails = Self {
            local: Vec::new(),
            workers: Vec::new(),
            advertised: Vec::new(),
        };
        let mut others = Vec::new();
        provider.scan(
            &mut |report| {
                let worker = workers
                    .iter()
                    .position(|worker| worker.device() == report.device.as_str());
                let Some(worker) = worker else { return };
                for rail in LocalRail::of_port(report) {
                    match rail.advertised() {
                        // A queue pair names its GID by eight bits, a peer its rail by a bounded list.
                        Some(Ok(advertised))
                            if rails.local.len() < RAILS_MAX && gid_index(&rail).is_some() =>
                        {
                            rails.local.push(rail);
                            rails.workers.push(worker);
                            rails.advertised.push(advertised);
                        }
                        _ => others.push(rail),
                    }
                }
            },
            &mut |_, _| {},
        )?;
        rails.local.append(&mut others);
        Ok(rails)
    }

    /// What a peer is told, in order.
    pub(crate) fn advertised(&self) -> &[AdvertisedRail] {
        &self.advertised
    }

    /// What a queue pair on the rail of this index is made with.
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
                peers: peer.iter().map(|rail| rail.address().to_string()).collect(),
            })
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
