//! The rails of a link, as they are told of.

use core::net::IpAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::HealthState;

use super::links::{LinkId, Links};
use super::rail::LinkRailCounts;

/// A rail of a link: where it leads, how it is, and what was counted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRailReport<'l> {
    /// Its number, the same on both sides.
    pub rail: u8,
    /// Our device.
    pub device: &'l str,
    /// The address of the peer's rail.
    pub peer: IpAddr,
    /// How it is.
    pub state: HealthState,
    /// What was counted, over all channels it had.
    pub counts: LinkRailCounts,
}

impl<P: Provider, N: Network> Links<P, N> {
    /// The rails of a link that are connected, or ever were; none where there is no such link.
    pub fn rails(&self, id: LinkId) -> impl Iterator<Item = LinkRailReport<'_>> {
        let core = &self.core;
        let link = core.link(id);
        let rails = link.into_iter().flat_map(|link| (0_u8..).zip(&link.rails));
        rails.filter_map(move |(number, rail)| {
            let leads = rail.leads?;
            Some(LinkRailReport {
                rail: number,
                device: core.devices.get(leads.worker)?,
                peer: leads.peer,
                state: self.rail_state(id, number),
                counts: rail.counts,
            })
        })
    }
}
