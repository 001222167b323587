//! State of a member, all but its links; and the questions that it answers.

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

/// All but the links.
pub(super) struct State {
    pub(super) config: MeshConfig,
    /// When it was made, by the clock that it is polled by.
    pub(super) began: Instant,
    /// Members of which it was reported that their start is said to be too far ahead.
    pub(super) reported_ahead: Ranks,
    pub(super) map: Map,
    pub(super) routes: Routes,
    /// Whether the map may have changed since ways were looked for.
    pub(super) is_map_new: bool,
    /// To whom a link was lost since then, and with it what it had taken.
    pub(super) lost_links: Ranks,
    pub(super) reached: Ranks,
    /// How many announcements this member made.
    pub(super) announced: u32,
    /// The neighbours in the last announcement, and the neighbours without a rail in it.
    pub(super) said: (Ranks, Ranks),
    /// How steady the links to each are.
    pub(super) hold_downs: Vec<HoldDown>,
    /// The latest announcement of each.
    pub(super) announcements: Vec<Option<[u8; ANNOUNCEMENT_BYTES]>>,
    pub(super) neighbours: Vec<Neighbour>,
    pub(super) members: Vec<Member>,
    /// Failures of the attempts to link to each.
    pub(super) attempts: Vec<Attempts>,
    /// Links that ended in this poll, and to whom.
    pub(super) ended: Vec<(Rank, LinkId)>,
    pub(super) relay: Relay,
    pub(super) pool: Pool,
    pub(super) events: VecDeque<MeshEvent>,
    /// The last group that was made of all members.
    pub(super) group: GroupId,
    /// Links to be closed.
    pub(super) unwanted: Vec<LinkId>,
    /// Whether all have what this member said, and it says no more.
    pub(super) is_parting: bool,
    /// Whether a member closed its link to this one while it was parting.
    pub(super) was_left: bool,
    /// By when all links are to be closed, where they are to be.
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

    /// The message of a member that is received next.
    pub(super) fn next_from(&self, from: Rank) -> Option<&[u8]> {
        Some(message_of(self.members.get(from.index())?.next()?))
    }

    /// When a member started, this one or another that was heard of.
    pub(super) fn started(&self, rank: Rank) -> Option<u64> {
        if rank == self.config.rank {
            return Some(self.config.started);
        }
        self.members.get(rank.index())?.started
    }

    /// Whether a start is further ahead of the time here than clocks may differ.
    pub(super) fn is_ahead(&self, started: u64, now: Instant) -> bool {
        let passed_ns = now.to_ns().saturating_sub(self.began.to_ns());
        let ahead = u64::try_from(self.config.start_ahead_max.as_nanos()).unwrap_or(u64::MAX);
        let here = self.config.started.saturating_add(passed_ns);
        started > here.saturating_add(ahead)
    }

    /// Notes that the start of a member is said to be too far ahead, and reports it once.
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

    /// Notes why no link was begun to a member, or that one was.
    pub(super) fn note_not_begun(&mut self, rank: Rank, why: Option<LinkError>) {
        if let Some(attempts) = self.attempts.get_mut(rank.index()) {
            attempts.not_begun = why;
        }
    }

    /// Notes that a link to a member is over, and why.
    pub(super) fn note_over(&mut self, rank: Rank, link: LinkId, reason: FinalReason) {
        if let Some(attempts) = self.attempts.get_mut(rank.index()) {
            attempts.over = Some(reason);
            self.ended.push((rank, link));
        }
    }

    /// Notes that something goes over the link to a member again, or for the first time.
    pub(super) fn note_back(&mut self, rank: Rank, now: Instant) {
        let hold_down = self.config.hold_down;
        let held = self.hold_downs.get_mut(rank.index());
        if held.is_some_and(|held| held.is_back(now, hold_down)) {
            self.events.push_back(MeshEvent::HeldDown(rank));
        }
    }

    /// Notes that nothing goes over the link to a member any more.
    pub(super) fn note_lost(&mut self, rank: Rank, now: Instant) {
        let hold_down = self.config.hold_down;
        if let Some(held) = self.hold_downs.get_mut(rank.index()) {
            held.lost(now, hold_down);
        }
    }

    /// A link to a neighbour is over, and with it what it had taken.
    pub(super) fn lose(&mut self, neighbour: &Neighbour, now: Instant) {
        if let Some(rank) = neighbour.joined() {
            self.lost_links = self.lost_links.with(rank);
            self.note_lost(rank, now);
        }
        self.announce();
    }

    /// Lets go of links to a member that was started again: another link leads to it, or a later handle.
    pub(super) fn replace(&mut self, rank: Rank, is_replaced: impl Fn(&Neighbour) -> bool, now: Instant) {
        while let Some(place) = self.neighbours.iter().position(&is_replaced) {
            let before = self.neighbours.swap_remove(place);
            self.unwanted.push(before.link);
            let (rank, reason) = (Some(rank), FinalReason::PeerRestarted);
            self.events.push_back(MeshEvent::LinkLost { rank, reason });
            self.lose(&before, now);
        }
    }

    /// Has links that were held down for long enough as ways again, and turns away peers that have not said in time who they are.
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

    /// The links on which nobody has said yet who it is, and by when that is to be said.
    fn silent(&self) -> impl Iterator<Item = (LinkId, Deadline)> {
        let within = self.config.link.session.recover_within;
        let neighbours = self.neighbours.iter();
        neighbours.filter_map(move |neighbour| Some((neighbour.link, neighbour.silent_until(within)?)))
    }

    /// Says anew who the neighbours are, where that has changed.
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

    /// Members that have announced their neighbours.
    pub(super) fn known(&self) -> Ranks {
        let known = (0..self.config.ranks).filter_map(Rank::new);
        known
            .filter(|rank| self.announcements.get(rank.index()).is_some_and(Option::is_some))
            .fold(Ranks::NONE, Ranks::with)
    }

    /// Whether something is still to be said of who this is, or who is whose neighbour.
    pub(super) fn has_to_say(&self) -> bool {
        let is_new = self.is_map_new || !self.lost_links.is_empty();
        is_new || self.neighbours.iter().any(Neighbour::has_to_say)
    }

    /// When to poll again at the latest: for the members that a link leads to, for links that are held down, and for those on
    /// which nobody has said who it is.
    pub(super) fn wake(&self, now: Instant) -> Option<Deadline> {
        let others = self.reached.without(self.config.rank);
        let led_to = others.iter().filter(|rank| self.link_towards(*rank).is_some());
        let members = led_to.filter_map(|rank| self.members.get(rank.index()));
        let held = self.hold_downs.iter().filter_map(HoldDown::until);
        let silent = self.silent().map(|(_, until)| until);
        let members = members.filter_map(|member| member.wake(now));
        members.chain(held).chain(silent).min()
    }

    /// The link that leads nearer to a member.
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

/// The message in a frame of data, behind the headers.
fn message_of(frame: &[u8]) -> &[u8] {
    let begin = RELAY_HEADER_BYTES.saturating_add(PAIR_HEADER_BYTES);
    frame.get(begin..).unwrap_or_default()
}
