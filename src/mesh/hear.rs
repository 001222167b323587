//! Processing of events and frames from the links of a mesh.

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
    /// Processes an event of a link.
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
                    // While this member leaves, a member that closes its link has passed the barrier, and so all members have entered
                    // it. A link that is closed at another time proves nothing, nor does one to a peer that knows a later start of
                    // this member.
                    let attempts = neighbour.rank.and_then(|rank| self.attempts.get(rank.index()));
                    let is_later = |of: &Attempts| matches!(of.start, Some(NotLinked::StartedLater));
                    let is_left = reason == FinalReason::PeerClosed
                        && neighbour.joined().is_some()
                        && !attempts.is_some_and(is_later);
                    self.was_left |= self.is_parting && is_left;
                    let rank = neighbour.rank;
                    if let Some(rank) = rank {
                        self.note_over(rank, link, reason);
                    }
                    self.events.push_back(MeshEvent::LinkLost { rank, reason });
                    self.lose(&neighbour, now);
                }
            }
            // A mesh uses no grants, one-sided requests, loans or transfers (`MeshConfig::links`).
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
            // Another version of the format: no frame of this peer can be read.
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
            // Links may carry longer frames, but the memory for relayed frames is bounded by this length.
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
        // If the start is later than the known one, the link of the earlier start is dead, although its end was not reported yet.
        let known = self.started(rank);
        let is_later = join.as_ref().is_some_and(|join| known < Some(join.started));
        let is_earlier = join.as_ref().is_some_and(|join| Some(join.started) < known);
        let other = |other: &Neighbour| other.link != link && other.rank == Some(rank) && other.was_joined;
        let is_taken = self.neighbours.iter().any(other);
        let Some(neighbour) = self.neighbour_mut(link) else {
            return;
        };
        // The member of the higher rank connects, so the peer of an accepted link must have a higher rank.
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

    /// Closes the link to a peer that is not a member, and reports it.
    pub(super) fn turn_away(&mut self, link: LinkId) {
        self.part_from(link);
        self.events.push_back(MeshEvent::TurnedAway);
    }

    /// Closes a link, and ignores further frames on it.
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
        // An announcement about this member itself is ignored, except that it may show that a later start of this rank is known.
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

    /// Rejects the peer of a link to an earlier start of a member, since a later start is known now. The link belongs to the earlier
    /// process, or to a process whose clock was set back.
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

    /// Records the conflict of starts that is the reason why there is no link to a member.
    fn note_start(&mut self, rank: Option<Rank>, why: NotLinked<'static>) {
        if let Some(attempts) = rank.and_then(|rank| self.attempts.get_mut(rank.index())) {
            attempts.start = Some(why);
        }
    }

    /// Records the start of a member. If it is later than the known one, messages and announcements of the earlier start are dropped.
    fn meet(&mut self, rank: Rank, started: u64) {
        // The known routes lead to the earlier start.
        if self.reached.contains(rank) && self.started(rank).is_some_and(|before| before < started) {
            self.note_unreachable(rank);
        }
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
                    // Announcements of the earlier start are void, here and at members that get them from this one.
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
        // A grant of another start is not an error of its sender, so it is ignored and not counted as dropped.
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
