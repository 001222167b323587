//! Sending over the links of a mesh: Joins, announcements, relayed frames, and this member's messages and grants.

use doorbell_core::Instant;
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::route::{Announcement, RelayHeader};

use super::event::MeshEvent;
use super::frame::{Join, MeshFrameKind, PairHeader};
use super::state::State;
use crate::link::Links;

impl State {
    /// Computes the routes again if the map changed or a link was lost. Reports members that became reachable or unreachable, and marks
    /// messages that may be lost to be retransmitted.
    pub(super) fn find_ways(&mut self) {
        // Computing the routes takes longer than the rest of an idle poll.
        if !core::mem::take(&mut self.is_map_new) && self.lost_links.is_empty() {
            return;
        }
        let routes = self.map.routes(self.config.rank);
        let before = core::mem::replace(&mut self.routes, routes);
        let is_other = |rank: &Rank| {
            (self.routes.hops(*rank), self.routes.next(*rank)) != (before.hops(*rank), before.next(*rank))
        };
        let all = Ranks::first(self.config.ranks);
        // A lost link may have been replaced already, with the same routes. Frames on it may be lost all the same.
        let other = core::mem::take(&mut self.lost_links);
        let other = all.iter().filter(is_other).fold(other, Ranks::with);
        // A link that was lost further on may leave the next hop and the number of hops unchanged.
        let other = other.or(self.routes.cut_since(&before));
        // With `hops_max` relays, a route has one hop more.
        let hops_max = self.config.hops_max.saturating_add(1);
        let is_near = |rank: &Rank| self.routes.hops(*rank).is_some_and(|hops| hops <= hops_max);
        let reached = all.iter().filter(is_near).fold(Ranks::NONE, Ranks::with);
        for rank in reached.and_not(self.reached).iter() {
            self.events.push_back(MeshEvent::Reachable(rank));
        }
        for rank in self.reached.and_not(reached).iter() {
            self.note_unreachable(rank);
        }
        self.reached = reached;
        // Messages and grants may be lost if the route to their destination changed, or the route to a relay that they may have used.
        // Only these are sent again. Route changes elsewhere lose nothing of this member.
        for rank in all.iter() {
            let through = before.between(rank).with(rank);
            let member = self.members.get_mut(rank.index());
            let Some(member) = member.filter(|_| !through.and(other).is_empty()) else {
                continue;
            };
            self.counts.sent_again = self.counts.sent_again.saturating_add(member.send_again());
            member.grant_again();
        }
    }

    /// Sends the Joins and announcements that have to be sent.
    pub(super) fn say<P: Provider, N: Network>(&mut self, links: &mut Links<P, N>, now: Instant) {
        let config = self.config;
        let join = Join {
            mesh: config.mesh,
            started: config.started,
            ranks: config.ranks,
        };
        let mut new = Ranks::NONE;
        for neighbour in self.neighbours.iter_mut().filter(|neighbour| neighbour.is_up) {
            if !neighbour.has_joined {
                neighbour.has_joined = links.send(neighbour.link, &join.to_bytes(config.rank)).is_ok();
                // The return of a rail is reported behind this, and counts then.
                let there = neighbour.joined().filter(|_| !neighbour.is_without_rail);
                new = there.map_or(new, |rank| new.with(rank));
            }
            if let Some(rank) = neighbour.outdated {
                if !neighbour.has_to_say() || !neighbour.has_joined {
                    continue;
                }
                // The peer gets an announcement about itself, so that it can report the reason. It reads only the start in it.
                let later = self.members.get(rank.index()).and_then(|member| member.started);
                let later = Announcement::new(rank, later.unwrap_or(0), 0, Ranks::NONE, Ranks::NONE);
                let header = RelayHeader::new(config.rank, rank, 0, MeshFrameKind::Announcement as u16);
                let frame = self.pool.fill(&[&header.to_bytes(), &later.to_bytes()]);
                if links.send(neighbour.link, &frame).is_ok() {
                    // The link is being closed: nothing else is sent on it.
                    neighbour.is_up = false;
                    self.unwanted.push(neighbour.link);
                }
                self.pool.give_back(frame);
                continue;
            }
            let Some(to) = neighbour.joined() else { continue };
            let header = RelayHeader::new(config.rank, to, 0, MeshFrameKind::Announcement as u16).to_bytes();
            for rank in neighbour.unreported.iter() {
                let Some(Some(announcement)) = self.announcements.get(rank.index()) else {
                    continue;
                };
                let frame = self.pool.fill(&[&header, announcement]);
                let is_sent = links.send(neighbour.link, &frame).is_ok();
                self.pool.give_back(frame);
                if !is_sent {
                    break;
                }
                neighbour.unreported = neighbour.unreported.without(rank);
                self.counts.announcements = self.counts.announcements.saturating_add(1);
            }
        }
        if !new.is_empty() {
            new.iter().for_each(|rank| self.note_back(rank, now));
            self.announce();
        }
    }

    /// Forwards relayed frames to destinations that a link leads to.
    pub(super) fn pass_on<P: Provider, N: Network>(&mut self, links: &mut Links<P, N>) {
        for rank in self.reached.iter() {
            let Some(link) = self.link_towards(rank) else {
                continue;
            };
            while let Some(frame) = self.relay.next(rank) {
                if links.share(link, frame).is_err() {
                    break;
                }
                self.relay.did_pass_on(rank, &mut self.pool);
                self.counts.relayed = self.counts.relayed.saturating_add(1);
            }
        }
    }

    /// Sends this member's messages and grants.
    pub(super) fn transmit<P: Provider, N: Network>(&mut self, links: &mut Links<P, N>, now: Instant) {
        for rank in self.reached.without(self.config.rank).iter() {
            let Some(link) = self.link_towards(rank) else {
                continue;
            };
            let Some(member) = self.members.get_mut(rank.index()) else {
                continue;
            };
            if member.is_resend_due(now) {
                self.counts.sent_again = self.counts.sent_again.saturating_add(member.send_again());
            }
            member.is_refused = false;
            while let Some((frame, has_grant)) = member.unsent(now, &self.config) {
                if links.share(link, frame).is_err() {
                    member.is_refused = true;
                    break;
                }
                member.did_send(has_grant, now, &self.config);
            }
            // A grant is sent alone only if no message carried it.
            if let (true, Some(started)) = (member.is_grant_due(now, &self.config), member.started) {
                let pair = PairHeader {
                    source_started: self.config.started,
                    destination_started: started,
                    sequence: 0,
                    grant: member.grant(&self.config),
                };
                let header = RelayHeader::new(
                    self.config.rank,
                    rank,
                    self.config.hops_max,
                    MeshFrameKind::Grant as u16,
                );
                if links.send(link, &pair.to_bytes(header)).is_ok() {
                    member.did_grant();
                } else {
                    member.is_refused = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
