//! Receipt of frames that come over the links of a mesh.

use doorbell_core::Instant;
use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::route::{Announcement, Heard, RELAY_HEADER_BYTES, RelayHeader};
use doorbell_core::session::{FinalReason, SessionEvent};
use doorbell_core::wire::Field;

use super::event::MeshEvent;
use super::frame::{Join, MeshFrameKind, PairHeader};
use super::neighbour::Neighbour;
use super::state::State;
use super::unlinked::{Attempts, NotLinked};
use crate::link::{LinkEvent, LinkId};

impl State {
    /// Takes in what a link reports.
    pub(super) fn hear(&mut self, link: LinkId, event: LinkEvent<'_>, now: Instant) {
        match event {
            LinkEvent::Accepted => self.neighbours.push(Neighbour::new(link, None, None, now)),
            LinkEvent::Received { message } => self.hear_frame(link, message, now),
            LinkEvent::Session(SessionEvent::Connected) => {
                if let Some(neighbour) = self.neighbour_mut(link) {
                    (neighbour.is_up, neighbour.since) = (true, now);
                }
            }
            LinkEvent::Session(event @ (SessionEvent::Recovering | SessionEvent::Recovered)) => {
                let is_without_rail = event == SessionEvent::Recovering;
                if let Some(neighbour) = self.neighbour_mut(link) {
                    neighbour.is_without_rail = is_without_rail;
                    match neighbour.joined() {
                        Some(rank) if is_without_rail => self.note_lost(rank, now),
                        Some(rank) => self.note_back(rank, now),
                        None => {}
                    }
                    self.announce();
                }
            }
            LinkEvent::Session(SessionEvent::Final { reason }) => {
                let place = self
                    .neighbours
                    .iter()
                    .position(|neighbour| neighbour.link == link);
                if let Some(place) = place {
                    let neighbour = self.neighbours.swap_remove(place);
                    // A member that passed the barrier passed it with this member in it. A member that closes its link before
                    // has reasons of its own.
                    let is_left = reason == FinalReason::PeerClosed && neighbour.joined().is_some();
                    self.was_left |= self.is_parting && is_left;
                    let rank = neighbour.rank;
                    if let Some(rank) = rank {
                        self.note_over(rank, link, reason);
                    }
                    self.events.push_back(MeshEvent::LinkLost { rank, reason });
                    self.lose(&neighbour, now);
                }
            }
            // A mesh grants nothing, asks for nothing, lends nothing and takes no transfers (`MeshConfig::links`).
            LinkEvent::Session(_)
            | LinkEvent::Granted { .. }
            | LinkEvent::Withdrawn { .. }
            | LinkEvent::Fetched { .. }
            | LinkEvent::Ended { .. }
            | LinkEvent::Transfer { .. }
            | LinkEvent::Revoked { .. }
            | LinkEvent::NotRevoked { .. } => {}
        }
    }

    fn hear_frame(&mut self, link: LinkId, frame: &[u8], now: Instant) {
        let neighbour = self.neighbour_mut(link).filter(|neighbour| neighbour.is_heard());
        let Some(neighbour) = neighbour else {
            self.drop_one();
            return;
        };
        let was_joined = neighbour.was_joined;
        let (header, body) = match RelayHeader::parse(frame) {
            Ok(read) => read,
            // As of another mesh: nothing it will say can be read.
            Err(error) if error.field == Field::Version && !was_joined => {
                self.turn_away(link);
                return;
            }
            Err(_) => {
                self.drop_one();
                return;
            }
        };
        match MeshFrameKind::from_wire(header.kind()) {
            Some(MeshFrameKind::Join) => self.hear_join(link, header.source(), body, now),
            Some(MeshFrameKind::Announcement) if was_joined => self.hear_announcement(link, body, now),
            // Links carry more, and what is for another is kept.
            Some(MeshFrameKind::Data | MeshFrameKind::Grant)
                if frame.len() > self.config.frame_bytes_max() =>
            {
                self.drop_one()
            }
            Some(kind @ (MeshFrameKind::Data | MeshFrameKind::Grant)) if was_joined => {
                if header.destination() != self.config.rank {
                    self.keep_for_another(*header, frame);
                } else if kind == MeshFrameKind::Data {
                    self.hear_data(header.source(), frame, body, now);
                } else {
                    self.hear_grant(header.source(), body, now);
                }
            }
            _ => self.drop_one(),
        }
    }

    fn hear_join(&mut self, link: LinkId, rank: Rank, body: &[u8], now: Instant) {
        let config = self.config;
        let join = Join::parse(body).filter(|join| {
            let is_ours = join.mesh == config.mesh && join.ranks == config.ranks;
            is_ours && rank.number() < config.ranks && rank != config.rank
        });
        if join.as_ref().is_some_and(|join| self.is_ahead(join.started, now)) {
            self.part_from(link);
            self.note_ahead(rank);
            return;
        }
        // A link of a start before is over, though that is not known yet.
        let known = self.started(rank);
        let is_later = join.as_ref().is_some_and(|join| known < Some(join.started));
        let is_earlier = join.as_ref().is_some_and(|join| Some(join.started) < known);
        let other = |other: &Neighbour| other.link != link && other.rank == Some(rank) && other.was_joined;
        let is_taken = self.neighbours.iter().any(other);
        let Some(neighbour) = self.neighbour_mut(link) else {
            return;
        };
        // The member of the higher rank connects.
        let is_who = neighbour
            .rank
            .map_or(rank > config.rank, |expected| expected == rank);
        let is_allowed = is_who && !neighbour.was_joined;
        let Some(join) = join.filter(|_| is_allowed && (!is_taken || is_later)) else {
            self.turn_away(link);
            return;
        };
        if is_taken {
            self.replace(rank, other, now);
        }
        let all = self.known();
        let Some(neighbour) = self.neighbour_mut(link) else {
            return;
        };
        if is_earlier {
            neighbour.turn_away_as(rank, now);
            self.note_start(Some(rank), NotLinked::StartedBefore);
            self.events.push_back(MeshEvent::StartedBefore(rank));
            return;
        }
        (neighbour.rank, neighbour.was_joined) = (Some(rank), true);
        neighbour.started = join.started;
        neighbour.unreported = all;
        let is_there = neighbour.joined().is_some() && !neighbour.is_without_rail;
        if let Some(attempts) = self.attempts.get_mut(rank.index()) {
            *attempts = Attempts::default();
        }
        self.meet(rank, join.started);
        if is_there {
            self.note_back(rank, now);
        }
        self.announce();
    }

    /// Ends the link to somebody who is no member.
    pub(super) fn turn_away(&mut self, link: LinkId) {
        self.part_from(link);
        self.events.push_back(MeshEvent::TurnedAway);
    }

    /// Ends a link, and hears nothing more on it.
    fn part_from(&mut self, link: LinkId) {
        if let Some(neighbour) = self.neighbour_mut(link) {
            neighbour.is_turned_away = true;
        }
        self.unwanted.push(link);
    }

    fn hear_announcement(&mut self, link: LinkId, body: &[u8], now: Instant) {
        let Ok(announcement) = Announcement::parse(body) else {
            self.drop_one();
            return;
        };
        let rank = announcement.rank();
        // This member knows its own neighbours better than any other; only the news of a later start of it counts.
        if rank == self.config.rank && announcement.started() > self.config.started {
            let other = self.neighbour_mut(link).and_then(|neighbour| neighbour.rank);
            self.note_start(other, NotLinked::StartedLater);
        }
        if rank == self.config.rank {
            return;
        }
        if self.is_ahead(announcement.started(), now) {
            self.drop_one();
            self.note_ahead(rank);
            return;
        }
        if self.map.hear(announcement) != Heard::News {
            return;
        }
        self.is_map_new = true;
        if let Some(latest) = self.announcements.get_mut(rank.index()) {
            *latest = Some(announcement.to_bytes());
        }
        let others = self
            .neighbours
            .iter_mut()
            .filter(|neighbour| neighbour.link != link);
        others.for_each(|neighbour| neighbour.unreported = neighbour.unreported.with(rank));
        self.meet(rank, announcement.started());
        self.turn_away_earlier(rank, announcement.started(), now);
    }

    /// Turns away who is linked as a member that started later, as is heard now: that link is one of before, or of somebody whose clock
    /// was set back.
    fn turn_away_earlier(&mut self, rank: Rank, started: u64, now: Instant) {
        let is_earlier =
            |other: &&mut Neighbour| other.rank == Some(rank) && other.was_joined && other.started < started;
        let Some(neighbour) = self.neighbours.iter_mut().find(is_earlier) else {
            return;
        };
        neighbour.turn_away_as(rank, now);
        self.note_start(Some(rank), NotLinked::StartedBefore);
        self.lost_links = self.lost_links.with(rank);
        self.note_lost(rank, now);
        self.announce();
    }

    /// Notes which of the starts of a member and this one is why there is no link.
    fn note_start(&mut self, rank: Option<Rank>, why: NotLinked<'static>) {
        if let Some(attempts) = rank.and_then(|rank| self.attempts.get_mut(rank.index())) {
            attempts.start = Some(why);
        }
    }

    /// A member was heard of that started then.
    fn meet(&mut self, rank: Rank, started: u64) {
        let Self {
            members,
            pool,
            events,
            config,
            reported_ahead,
            map,
            is_map_new,
            announcements,
            ..
        } = self;
        let Some(member) = members.get_mut(rank.index()) else {
            return;
        };
        match member.started {
            Some(before) if before >= started => {}
            before => {
                if before.is_some() {
                    events.push_back(MeshEvent::Restarted(rank));
                    // Nothing that it said before it was started again leads anywhere, here or where it is passed on.
                    let nothing = Announcement::new(rank, started, 0, Ranks::NONE, Ranks::NONE);
                    let latest = announcements.get_mut(rank.index());
                    if let (Heard::News, Some(latest)) = (map.hear(&nothing), latest) {
                        *latest = Some(nothing.to_bytes());
                    }
                    *is_map_new = true;
                }
                *reported_ahead = reported_ahead.without(rank);
                member.begin(started, config.window, pool);
            }
        }
    }

    fn hear_data(&mut self, source: Rank, frame: &[u8], body: &[u8], now: Instant) {
        let Self {
            members,
            pool,
            counts,
            config,
            ..
        } = self;
        let pair = PairHeader::parse(body).map(|(pair, _)| pair);
        let member = members.get_mut(source.index());
        let (Some(pair), Some(member)) = (pair, member) else {
            self.drop_one();
            return;
        };
        if !member.is_of_now(&pair, config) || !member.hear_grant(pair.grant, now, config, pool) {
            self.drop_one();
            return;
        }
        if !member.hear(pair.sequence, config, || pool.fill(&[frame])) {
            counts.out_of_turn = counts.out_of_turn.saturating_add(1);
        }
    }

    fn hear_grant(&mut self, source: Rank, body: &[u8], now: Instant) {
        let Self {
            members,
            pool,
            config,
            ..
        } = self;
        let member = members.get_mut(source.index());
        let (Some(pair), Some(member)) = (PairHeader::parse_grant(body), member) else {
            self.drop_one();
            return;
        };
        // A grant of another start is no fault of its sender.
        if member.is_of_now(&pair, config) && !member.hear_grant(pair.grant, now, config, pool) {
            self.drop_one();
        }
    }

    fn keep_for_another(&mut self, header: RelayHeader, frame: &[u8]) {
        let Self {
            relay, pool, routes, ..
        } = self;
        let (from, to) = (header.source(), header.destination());
        let rest = frame.get(RELAY_HEADER_BYTES..).unwrap_or_default();
        let is_kept = header
            .passed_on()
            .filter(|_| routes.next(to).is_some())
            .is_some_and(|header| relay.keep(from, to, || pool.fill(&[&header.to_bytes(), rest])));
        if !is_kept {
            self.drop_one();
        }
    }
}
