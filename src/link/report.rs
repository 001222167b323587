//! Reports of the rails of a link, and the counts of links that are over.

use core::net::IpAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::{HealthState, SessionCounts};

use super::dialing::Finding;
use super::event::LinkId;
use super::links::Links;
use super::placing::PlacedMemory;
use super::rail::{Leads, LinkRailCounts, NotConnected};
use super::state::Link;
use super::transfers::TransferTotals;

/// A rail of a link: its two ends, its state, and its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRailReport<'l> {
    /// The rail's number, the same on both sides.
    pub rail: u8,
    /// Our device.
    pub device: &'l str,
    /// The address of the peer's rail.
    pub peer: IpAddr,
    /// State of the rail.
    pub state: HealthState,
    /// Counts over all channels it had.
    pub counts: LinkRailCounts,
}

/// Counts of links that are over, so that totals do not fall when a link ends.
#[derive(Debug, Default)]
pub(super) struct Gone {
    counts: SessionCounts,
    pub(super) transfers: TransferTotals,
    rails: Vec<(Leads, LinkRailCounts)>,
}

impl Gone {
    pub(super) fn add<P: Provider, N: Network>(&mut self, link: &Link<P, N>) {
        self.counts = self.counts.plus(link.session.counts());
        self.transfers = self.transfers.plus(link.transfers.totals());
        for rail in &link.rails {
            let Some(leads) = rail.leads else {
                continue;
            };
            match self.rails.iter_mut().find(|(known, _)| *known == leads) {
                Some((_, counts)) => *counts = counts.plus(rail.counts),
                None => self.rails.push((leads, rail.counts)),
            }
        }
    }

    /// Forgets the rails that no link has a like of: nothing is reported of these any more.
    pub(super) fn keep(&mut self, mut is_reported: impl FnMut(&Leads) -> bool) {
        self.rails.retain(|(leads, _)| is_reported(leads));
    }
}

impl<P: Provider, N: Network> Links<P, N> {
    /// Counts of links that are over.
    pub const fn counts_gone(&self) -> SessionCounts {
        self.core.gone.counts
    }

    /// Counts of ended links' rails between a device of ours and an address, as long as another link has a rail there.
    pub fn rails_gone(&self) -> impl Iterator<Item = (&str, IpAddr, LinkRailCounts)> {
        let core = &self.core;
        core.gone.rails.iter().filter_map(|(leads, counts)| {
            let device = core.devices.get(leads.worker)?;
            Some((device.as_str(), leads.peer, *counts))
        })
    }

    /// The memory for long messages that there is, and why there is none where a device refused it.
    pub fn placed_memory(&self) -> PlacedMemory {
        let short = self.core.links().filter(|(_, link)| link.placing.is_short());
        self.core.budget.report(short.count())
    }

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

    /// Reasons why a link has no rail, or lacks some, each from the last attempt. They are kept for a link that is over, until
    /// another link ends at its place.
    pub fn not_connected(&self, id: LinkId) -> impl Iterator<Item = &NotConnected> {
        let link = self.core.link(id).into_iter();
        let before = self.core.before(id).unwrap_or_default();
        link.flat_map(Link::not_connected).chain(before)
    }

    /// Takes those reasons of a link that is over; once.
    pub(crate) fn take_not_connected(&mut self, id: LinkId) -> Vec<NotConnected> {
        self.core.take_before(id)
    }

    /// Whether a rail of any link is being connected or looked for, or a peer asked for its rails.
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
