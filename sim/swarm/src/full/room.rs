//! The room of a host for links, computed from its configuration and from the links that the run knows of.
//!
//! Source: the documentation of `LinkConfig` and `WorkerConfig`.

use core::net::IpAddr;

use anyhow::Context as _;
use doorbell::ConnectError;

use super::case::LinkRoomCase;
use crate::case::Case;
use crate::station::link_config;

/// The reason for which a link does not come in, the first that is looked at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lack {
    Links,
    OfAddress,
    /// A channel, or memory for its receives.
    OfWorker,
}

/// The places that are held: links by the hosts that began them.
#[derive(Clone, Debug)]
pub(super) struct Count {
    pub(super) held: Vec<usize>,
    /// Links that are not in: each may have a handshake that holds a place.
    pub(super) waiting: Vec<usize>,
    /// Links that are over, whose handshake may hold one.
    pub(super) ghosts: Vec<usize>,
    /// Links that are in, and it is not known which of those that wait they are.
    pub(super) strangers: usize,
    /// Channels of the Worker, those among them that are being closed.
    pub(super) channels: usize,
    /// No message is under way, and no slot is leased.
    pub(super) is_quiet: bool,
}

/// The room of the host that accepts.
pub(super) struct Room {
    case: LinkRoomCase,
    slots: usize,
    kept: usize,
    /// Receives of each channel.
    receives: usize,
    /// Rails of a link, by the host that begins it: each takes a channel, once there is one.
    rails: Vec<usize>,
}

impl Room {
    pub(super) fn of(case: &LinkRoomCase, of: &Case) -> anyhow::Result<Self> {
        let host = of.hosts.first().context("there is no host")?;
        Ok(Self {
            case: *case,
            slots: host.slots as usize,
            // At least one slot, unless the share is none.
            kept: (host.slots * case.lease_share_percent).div_ceil(100) as usize,
            receives: link_config(of, 0)?.channel.receive_depth as usize,
            rails: of
                .hosts
                .iter()
                .map(|from| (from.subnets & host.subnets).count_ones() as usize)
                .collect(),
        })
    }

    /// How many rails the links of these hosts have.
    pub(super) fn rails(&self, list: &[usize]) -> usize {
        list.iter().map(|from| self.rails[*from]).sum()
    }

    /// Whether some link has more than one.
    pub(super) fn has_rails(&self) -> bool {
        self.rails.iter().any(|rails| *rails > 1)
    }

    /// Whether links of these hosts may be there. A host has an address on each of its rails.
    pub(super) fn holds(&self, held: &[usize]) -> bool {
        let of = |from: usize| held.iter().filter(|of| **of == from).count();
        held.len() <= self.case.links_max as usize
            && held
                .iter()
                .all(|from| of(*from) <= self.case.links_per_address as usize * self.rails[*from])
    }

    /// The first thing of which one more link of a host lacks room, beside so many links, so many of its own, and so many channels.
    fn lacks_of(&self, links: usize, own: usize, channels: usize) -> Option<Lack> {
        if links >= self.case.links_max as usize {
            Some(Lack::Links)
        } else if own >= self.case.links_per_address as usize {
            Some(Lack::OfAddress)
        } else if channels >= self.case.channels_max as usize
            || (channels + 1) * self.receives > self.slots - self.kept
        {
            Some(Lack::OfWorker)
        } else {
            None
        }
    }

    /// The first thing of which one more link of a host may lack room, whatever the handshakes of others that are over hold. Others that
    /// wait are left out.
    pub(super) fn lacks(&self, count: &Count, from: usize) -> Option<Lack> {
        let of = |list: &[usize]| list.iter().filter(|of| **of == from).count();
        let most = self.rails.iter().fold(1, |most, rails| *rails.max(&most));
        let beside = self.rails(&count.ghosts) + count.strangers * most;
        self.lacks_of(
            count.held.len() + beside,
            of(&count.held) + beside,
            count.channels.max(self.rails(&count.held)) + beside,
        )
    }

    /// Whether a peer may be refused for this reason, by a poll that began and ended with these places held.
    pub(super) fn is_due(
        &self,
        error: &ConnectError,
        [before, after]: [&Count; 2],
        host_of: impl Fn(IpAddr) -> usize,
    ) -> bool {
        let of = |list: &[usize], from: usize| list.iter().filter(|of| **of == from).count();
        // One of those that wait is the one that is refused, or another rail of a link that is in.
        let asking = |count: &Count| self.rails(&count.waiting) + self.rails(&count.ghosts);
        let others = |count: &Count| asking(count).saturating_sub(1);
        let most = |of: &dyn Fn(&Count) -> usize| of(before).max(of(after));
        let least = |of: &dyn Fn(&Count) -> usize| of(before).min(of(after));
        let links = |count: &Count| count.held.len();
        let all_links = |count: &Count| count.held.len() + others(count);
        let all_channels = |count: &Count| {
            let missing = self.rails(&count.held).saturating_sub(count.channels);
            count.channels + (missing + asking(count)).saturating_sub(1)
        };
        // No reason is given where an earlier one holds for sure.
        let are_links_full = least(&links) >= self.case.links_max as usize;
        // A rail of a link that is in needs no place among the links.
        let no_more_come = are_links_full && !self.has_rails();
        match error {
            ConnectError::TooManyLinks { links_max } => {
                *links_max == self.case.links_max
                    && self.lacks_of(most(&all_links), 0, 0) == Some(Lack::Links)
            }
            ConnectError::TooManyLinksFrom {
                address,
                links_per_address,
            } => {
                let from = host_of(*address);
                let own = |count: &Count| {
                    let asking = of(&count.waiting, from) + of(&count.ghosts, from);
                    of(&count.held, from) + (asking * self.rails[from]).saturating_sub(1)
                };
                *links_per_address == self.case.links_per_address
                    && !are_links_full
                    && self.lacks_of(0, most(&own), 0) == Some(Lack::OfAddress)
            }
            ConnectError::TooManyChannels { .. } | ConnectError::NoSlots { .. } => {
                !no_more_come && self.lacks_of(0, 0, most(&all_channels)) == Some(Lack::OfWorker)
            }
            ConnectError::NoMemory => !(no_more_come || before.is_quiet && after.is_quiet),
            ConnectError::TooManyUnfinishedFrom { address, .. } => {
                let from = host_of(*address);
                let own = |count: &Count| {
                    let asking = of(&count.waiting, from) + of(&count.ghosts, from);
                    (asking + of(&count.held, from)) * self.rails[from] - of(&count.held, from)
                };
                !no_more_come && most(&own) > 1
            }
            // One that is over hung up in the midst of its handshake.
            ConnectError::Handshake(_) => most(&|count| count.ghosts.len()) > 0,
            _ => false,
        }
    }

    /// Whether a peer may be refused for this reason while a rail is cut, and no other links than these hold places. It is not known which of
    /// them do, nor how many channels wait to be closed. Each link has one place among the links, the one that is refused included.
    pub(super) fn may_be_due(
        &self,
        error: &ConnectError,
        links: &[usize],
        host_of: impl Fn(IpAddr) -> usize,
    ) -> bool {
        let of = |from: usize| links.iter().filter(|of| **of == from).count();
        match error {
            ConnectError::TooManyLinks { links_max } => {
                *links_max == self.case.links_max && links.len() > *links_max as usize
            }
            ConnectError::TooManyLinksFrom {
                address,
                links_per_address,
            } => {
                *links_per_address == self.case.links_per_address
                    && of(host_of(*address)) > *links_per_address as usize
            }
            ConnectError::TooManyUnfinishedFrom { address, .. } => {
                let from = host_of(*address);
                from < self.rails.len() && of(from) * self.rails[from] > 1
            }
            ConnectError::TooManyChannels { channels_max } => *channels_max == self.case.channels_max,
            ConnectError::NoSlots { .. } | ConnectError::NoMemory | ConnectError::Handshake(_) => true,
            _ => false,
        }
    }
}
