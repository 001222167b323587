//! The state of a mesh member, except its links.

use std::collections::VecDeque;

use doorbell_core::collective::GroupId;
use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::route::{ANNOUNCEMENT_BYTES, Announcement, Map, RELAY_HEADER_BYTES, RelayHeader, Routes};
use doorbell_core::session::FinalReason;
use doorbell_core::{Deadline, Instant};

use super::config::{MeshConfig, MeshSendError};
use super::event::{MeshCounts, MeshEvent};
use super::frame::{MeshFrameKind, PAIR_HEADER_BYTES, PairHeader};
use super::hold_down::HoldDown;
use super::member::Member;
use super::neighbour::Neighbour;
use super::pool::Pool;
use super::relay::Relay;
use super::unlinked::{Attempts, NotLinked};
use crate::link::{LinkError, LinkId};

/// The state of a mesh member, except its links.
pub(super) struct State {
    pub(super) config: MeshConfig,
    /// When the mesh was made, by the clock of the host.
    pub(super) began: Instant,
    /// Members for which [`MeshEvent::StartedAhead`] was reported.
    pub(super) reported_ahead: Ranks,
    pub(super) map: Map,
    pub(super) routes: Routes,
    /// Whether the map may have changed since the routes were computed.
    pub(super) is_map_new: bool,
    /// Members whose link was lost since the routes were computed, with the frames on it.
    pub(super) lost_links: Ranks,
    /// The members that are reachable within the limit of hops, this one included.
    pub(super) reached: Ranks,
    /// The sequence number of this member's last announcement.
    pub(super) announced: u32,
    /// The neighbours in the last announcement, and those of them without a rail.
    pub(super) said: (Ranks, Ranks),
    /// The hold-down of the links to each member.
    pub(super) hold_downs: Vec<HoldDown>,
    /// The latest announcement of each member.
    pub(super) announcements: Vec<Option<[u8; ANNOUNCEMENT_BYTES]>>,
    pub(super) neighbours: Vec<Neighbour>,
    pub(super) members: Vec<Member>,
    /// Failures of the attempts to link to each member.
    pub(super) attempts: Vec<Attempts>,
    /// Links that ended in this poll, with the member at the other end.
    pub(super) ended: Vec<(Rank, LinkId)>,
    pub(super) relay: Relay,
    pub(super) pool: Pool,
    pub(super) events: VecDeque<MeshEvent>,
    /// The last group that was made of all members.
    pub(super) group: GroupId,
    /// Links that have to be closed.
    pub(super) unwanted: Vec<LinkId>,
    /// Whether this member leaves, and all members have acknowledged its messages.
    pub(super) is_parting: bool,
    /// Whether a member closed its link to this one while `is_parting` was set.
    pub(super) was_left: bool,
    /// The deadline for closing all links; `None` while they are not being closed.
    pub(super) closing: Option<Deadline>,
    pub(super) counts: MeshCounts,
}

impl State {
    pub(super) fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<(), MeshSendError> {
        let config = self.config;
        if to == config.rank || to.number() >= config.ranks {
            return Err(MeshSendError::NoSuchRank(to));
        }
        let bytes = header.len().saturating_add(payload.len());
        if bytes > config.message_bytes_max {
            return Err(MeshSendError::TooLong {
                bytes,
                bytes_max: config.message_bytes_max,
            });
        }
        let member = self.members.get_mut(to.index());
        let unreachable = MeshSendError::Unreachable(to);
        let member = member.filter(|_| self.reached.contains(to)).ok_or(unreachable)?;
        let started = member.started.ok_or(unreachable)?;
        if !member.has_room(&config) {
            return Err(MeshSendError::WouldBlock);
        }
        let pair = PairHeader {
            source_started: config.started,
            destination_started: started,
            sequence: member.next_sequence(),
            grant: member.grant(&config),
        };
        let relay = RelayHeader::new(config.rank, to, config.hops_max, MeshFrameKind::Data as u16);
        member.keep(self.pool.fill(&[&pair.to_bytes(relay), header, payload]));
        self.counts.sent = self.counts.sent.saturating_add(1);
        Ok(())
    }

    pub(super) fn receive<R>(
        &mut self,
        from: Rank,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, MeshSendError> {
        let Self {
            members,
            pool,
            config,
            counts,
            reached,
            ..
        } = self;
        let member = members.get_mut(from.index()).filter(|_| from != config.rank);
        let member = member.ok_or(MeshSendError::NoSuchRank(from))?;
        let Some(frame) = member.take(config) else {
            return if reached.contains(from) {
                Ok(None)
            } else {
                Err(MeshSendError::Unreachable(from))
            };
        };
        counts.received = counts.received.saturating_add(1);
        let frame = scopeguard::guard(frame, |frame| pool.give_back(frame));
        Ok(Some(look(message_of(&frame))))
    }

    /// Returns the next message from a member, without receiving it.
    pub(super) fn next_from(&self, from: Rank) -> Option<&[u8]> {
        Some(message_of(self.members.get(from.index())?.next()?))
    }

    /// Returns the start of this or another member; `None` if it is not known.
    pub(super) fn started(&self, rank: Rank) -> Option<u64> {
        if rank == self.config.rank {
            return Some(self.config.started);
        }
        self.members.get(rank.index())?.started
    }

    /// Whether a start is further ahead of the time here than the configuration allows.
    pub(super) fn is_ahead(&self, started: u64, now: Instant) -> bool {
        let passed_ns = now.to_ns().saturating_sub(self.began.to_ns());
        let ahead = u64::try_from(self.config.start_ahead_max.as_nanos()).unwrap_or(u64::MAX);
        let here = self.config.started.saturating_add(passed_ns);
        started > here.saturating_add(ahead)
    }

    /// Records that the announced start of a member is too far ahead, and reports it once.
    pub(super) fn note_ahead(&mut self, rank: Rank) {
        let Some(attempts) = self.attempts.get_mut(rank.index()) else {
            return;
        };
        attempts.start = Some(NotLinked::StartedAhead);
        if !self.reported_ahead.contains(rank) {
            self.reported_ahead = self.reported_ahead.with(rank);
            self.events.push_back(MeshEvent::StartedAhead(rank));
        }
    }

    /// Records why no link to a member could be begun. `None` records that one was begun.
    pub(super) fn note_not_begun(&mut self, rank: Rank, why: Option<LinkError>) {
        if let Some(attempts) = self.attempts.get_mut(rank.index()) {
            attempts.not_begun = why;
        }
    }

    /// Records that a link to a member has ended, and why.
    pub(super) fn note_over(&mut self, rank: Rank, link: LinkId, reason: FinalReason) {
        if let Some(attempts) = self.attempts.get_mut(rank.index()) {
            attempts.over = Some(reason);
            self.ended.push((rank, link));
        }
    }

    /// Records that the link to a member can carry frames again, or for the first time.
    pub(super) fn note_back(&mut self, rank: Rank, now: Instant) {
        let hold_down = self.config.hold_down;
        let held = self.hold_downs.get_mut(rank.index());
        if held.is_some_and(|held| held.is_back(now, hold_down)) {
            self.events.push_back(MeshEvent::HeldDown(rank));
        }
    }

    /// Records that the link to a member can no longer carry frames.
    pub(super) fn note_lost(&mut self, rank: Rank, now: Instant) {
        let hold_down = self.config.hold_down;
        if let Some(held) = self.hold_downs.get_mut(rank.index()) {
            held.lost(now, hold_down);
        }
    }

    /// Reports that there is no route to a member any more, and drops the frames that are relayed to it.
    pub(super) fn note_unreachable(&mut self, rank: Rank) {
        self.reached = self.reached.without(rank);
        self.events.push_back(MeshEvent::Unreachable(rank));
        let dropped = self.relay.drop_for(rank, &mut self.pool);
        self.counts.dropped = self.counts.dropped.saturating_add(dropped);
    }

    /// Records that a link to a neighbour has ended. Frames that it had accepted may be lost.
    pub(super) fn lose(&mut self, neighbour: &Neighbour, now: Instant) {
        if let Some(rank) = neighbour.joined() {
            self.lost_links = self.lost_links.with(rank);
            self.note_lost(rank, now);
        }
        self.announce();
    }

    /// Drops links to an earlier start of a member: another link or a later handle leads to its current start.
    pub(super) fn replace(&mut self, rank: Rank, is_replaced: impl Fn(&Neighbour) -> bool, now: Instant) {
        while let Some(place) = self.neighbours.iter().position(&is_replaced) {
            let before = self.neighbours.swap_remove(place);
            self.unwanted.push(before.link);
            let (rank, reason) = (Some(rank), FinalReason::PeerRestarted);
            self.events.push_back(MeshEvent::LinkLost { rank, reason });
            self.lose(&before, now);
        }
    }

    /// Ends hold-downs whose time is over, and rejects peers whose Join did not arrive in time.
    pub(super) fn let_up(&mut self, now: Instant) {
        loop {
            let late = self.silent().find(|(_, until)| until.has_passed(now));
            let Some((link, _)) = late else { break };
            self.turn_away(link);
        }
        let held = self.hold_downs.iter_mut();
        if held.filter_map(|held| held.is_over(now).then_some(())).count() > 0 {
            self.announce();
        }
    }

    /// Returns the links on which no Join has arrived, each with the deadline for the Join.
    fn silent(&self) -> impl Iterator<Item = (LinkId, Deadline)> {
        let within = self.config.link.session.recover_within;
        let neighbours = self.neighbours.iter();
        neighbours.filter_map(move |neighbour| Some((neighbour.link, neighbour.silent_until(within)?)))
    }

    /// Announces the neighbours of this member, if they changed.
    pub(super) fn announce(&mut self) {
        let own = self.config.rank;
        let (mut neighbours, mut without_rail) = (Ranks::NONE, Ranks::NONE);
        for neighbour in &self.neighbours {
            let Some(rank) = neighbour.joined() else { continue };
            neighbours = neighbours.with(rank);
            let held = self.hold_downs.get(rank.index());
            if neighbour.is_without_rail || held.is_some_and(HoldDown::is_held) {
                without_rail = without_rail.with(rank);
            }
        }
        if self.said == (neighbours, without_rail) {
            return;
        }
        self.said = (neighbours, without_rail);
        self.announced = self.announced.wrapping_add(1);
        let announcement =
            Announcement::new(own, self.config.started, self.announced, neighbours, without_rail);
        self.map.hear(&announcement);
        self.is_map_new = true;
        if let Some(latest) = self.announcements.get_mut(own.index()) {
            *latest = Some(announcement.to_bytes());
        }
        for neighbour in &mut self.neighbours {
            neighbour.unreported = neighbour.unreported.with(own);
        }
    }

    /// Returns the members that have announced their neighbours.
    pub(super) fn known(&self) -> Ranks {
        let known = (0..self.config.ranks).filter_map(Rank::new);
        known
            .filter(|rank| self.announcements.get(rank.index()).is_some_and(Option::is_some))
            .fold(Ranks::NONE, Ranks::with)
    }

    /// Whether routes have to be computed, or a Join or an announcement has to be sent.
    pub(super) fn has_to_say(&self) -> bool {
        let is_new = self.is_map_new || !self.lost_links.is_empty();
        is_new || self.neighbours.iter().any(Neighbour::has_to_say)
    }

    /// Returns the latest time of the next poll: for the messages of members that a link leads to, for links that are held down, and for
    /// links on which no Join has arrived.
    pub(super) fn wake(&self, now: Instant) -> Option<Deadline> {
        let others = self.reached.without(self.config.rank);
        let led_to = others.iter().filter(|rank| self.link_towards(*rank).is_some());
        let members = led_to.filter_map(|rank| self.members.get(rank.index()));
        let held = self.hold_downs.iter().filter_map(HoldDown::until);
        let silent = self.silent().map(|(_, until)| until);
        let members = members.filter_map(|member| member.wake(now));
        members.chain(held).chain(silent).min()
    }

    /// Returns the link to the next hop towards a member.
    pub(super) fn link_towards(&self, rank: Rank) -> Option<LinkId> {
        let next = self.routes.next(rank)?;
        let mut joined = self
            .neighbours
            .iter()
            .filter(|neighbour| neighbour.joined() == Some(next));
        Some(joined.next()?.link)
    }

    pub(super) fn neighbour_mut(&mut self, link: LinkId) -> Option<&mut Neighbour> {
        self.neighbours
            .iter_mut()
            .find(|neighbour| neighbour.link == link)
    }

    pub(super) fn drop_one(&mut self) {
        self.counts.dropped = self.counts.dropped.saturating_add(1);
    }
}

/// Returns the message in a data frame, which follows the headers.
fn message_of(frame: &[u8]) -> &[u8] {
    let begin = RELAY_HEADER_BYTES.saturating_add(PAIR_HEADER_BYTES);
    frame.get(begin..).unwrap_or_default()
}
