//! Reports about the rails of a link, and the counts of links that are over.

use core::net::IpAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::{HealthState, SessionCounts};

use super::dialing::Finding;
use super::event::LinkId;
use super::links::Links;
use super::placing::PlacedMemory;
use super::rail::{LinkRailCounts, NotConnected, RailPath};
use super::state::Link;
use super::transfers::TransferTotals;

/// A rail of a link: its two ends, its state, and its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRailReport<'l> {
    /// The rail's number, the same on both sides.
    pub rail: u8,
    /// The device of this host.
    pub device: &'l str,
    /// The address of the peer's rail.
    pub peer: IpAddr,
    /// State of the rail.
    pub state: HealthState,
    /// Counts over all of its channels.
    pub counts: LinkRailCounts,
}

/// Counts of links that are over, and of rails whose places other ports have, so that totals do not decrease.
#[derive(Debug, Default)]
pub(super) struct FormerCounts {
    counts: SessionCounts,
    pub(super) transfers: TransferTotals,
    rails: Vec<(RailPath, LinkRailCounts)>,
}

impl FormerCounts {
    pub(super) fn add<P: Provider, N: Network>(&mut self, link: &Link<P, N>) {
        self.counts = self.counts.plus(link.session.counts());
        self.transfers = self.transfers.plus(link.transfers.totals());
        let rails = link.rails.iter();
        self.add_rails(rails.filter_map(|rail| Some((rail.leads?, rail.counts))));
    }

    /// Adds the counts of rails by their ends.
    pub(super) fn add_rails(&mut self, rails: impl Iterator<Item = (RailPath, LinkRailCounts)>) {
        for (leads, more) in rails {
            match self.rails.iter_mut().find(|(known, _)| *known == leads) {
                Some((_, counts)) => *counts = counts.plus(more),
                None => self.rails.push((leads, more)),
            }
        }
    }

    /// Removes the counts of rails between a Worker and an address that no link has a rail between: they are not reported.
    pub(super) fn keep(&mut self, mut is_reported: impl FnMut(&RailPath) -> bool) {
        self.rails.retain(|(leads, _)| is_reported(leads));
    }
}

impl<P: Provider, N: Network> Links<P, N> {
    /// Counts of links that are over.
    pub const fn counts_gone(&self) -> SessionCounts {
        self.core.gone.counts
    }

    /// Counts of the rails of ended links, and of rails whose port is gone and whose place another port has. They are kept for each device of
    /// this host and address of a peer between which a link has a rail.
    pub fn rails_gone(&self) -> impl Iterator<Item = (&str, IpAddr, LinkRailCounts)> {
        let core = &self.core;
        core.gone.rails.iter().filter_map(|(leads, counts)| {
            let device = core.devices.get(leads.worker)?;
            Some((device.as_str(), leads.peer, *counts))
        })
    }

    /// Returns the amount of memory for long messages, and why a device refused it, if one did.
    pub fn placed_memory(&self) -> PlacedMemory {
        let short = self.core.links().filter(|(_, link)| link.placing.is_short());
        self.core.budget.report(short.count())
    }

    /// The rails of a link that are or were connected; none if there is no such link.
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

    /// Reasons why a link has no rail, or why some are not connected, each from the last attempt. The reasons of a link that is over are kept
    /// until another link ends at the same index.
    pub fn not_connected(&self, id: LinkId) -> impl Iterator<Item = &NotConnected> {
        let link = self.core.link(id).into_iter();
        let before = self.core.before(id).unwrap_or_default();
        link.flat_map(Link::not_connected).chain(before)
    }

    /// Takes those reasons of a link that is over. A second call returns none.
    pub(crate) fn take_not_connected(&mut self, id: LinkId) -> Vec<NotConnected> {
        self.core.take_before(id)
    }

    /// Whether a rail of any link is being connected or searched for, or a peer is being asked for its rails.
    pub(crate) fn is_connecting(&self) -> bool {
        let mut links = self.core.links().map(|(_, link)| link);
        links.any(|link| {
            let mut rails = link.rails.iter();
            link.question.is_asked()
                || link.finding.as_ref().is_some_and(Finding::is_on)
                || rails.any(|rail| rail.connecting_until().is_some())
        })
    }
}
