//! A member's view of its mesh: links, ways, and the messages to all others.

use core::fmt;
use core::net::SocketAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::route::{
    ANNOUNCEMENT_BYTES, Announcement, Heard, Map, RELAY_HEADER_BYTES, RelayHeader, Routes,
};
use doorbell_core::session::{FinalReason, SessionEvent};
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use super::config::{MeshConfig, MeshError, MeshSendError};
use super::frame::{Join, Kind, PAIR_HEADER_BYTES, PairHeader};
use super::member::Member;
use super::neighbour::Neighbour;
use super::pool::Pool;
use super::relay::Relay;
use crate::{LinkError, LinkEvent, LinkId, Links, Node, Tcp, Worker};

/// How long a link to a member that does not belong here may take to close.
const TURN_AWAY_WITHIN: core::time::Duration = core::time::Duration::from_millis(100);

/// Something that happened in a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshEvent {
    /// A way leads to this member now.
    Reachable(Rank),
    /// No way leads to this member any more.
    Unreachable(Rank),
    /// This member was started again: what was under way between it and this one is gone.
    Restarted(Rank),
    /// A link is over; to a member, where it was known.
    LinkLost {
        /// Who was there.
        rank: Option<Rank>,
        /// Why.
        reason: FinalReason,
    },
    /// Somebody who is no member was turned away: another mesh, another count of ranks, or a rank that is none or taken.
    TurnedAway,
}

/// What a member counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeshCounts {
    /// Messages taken in to be sent.
    pub sent: u64,
    /// Messages that were given to the application.
    pub received: u64,
    /// Messages that went again.
    pub sent_again: u64,
    /// Messages that came again, or ahead of one that was lost: they go again.
    pub out_of_turn: u64,
    /// Frames passed on for others.
    pub relayed: u64,
    /// Frames dropped: of those who are no members, that went too far, or for which there is no way.
    pub dropped: u64,
}

/// A member of a mesh.
pub struct Mesh<P: Provider = Rdma, N: Network = Tcp> {
    links: Links<P, N>,
    state: State,
}

/// All but the links.
struct State {
    config: MeshConfig,
    map: Map,
    routes: Routes,
    reached: Ranks,
    /// How many announcements this member made.
    announced: u32,
    /// The latest announcement of each.
    announcements: Vec<Option<[u8; ANNOUNCEMENT_BYTES]>>,
    neighbours: Vec<Neighbour>,
    members: Vec<Member>,
    relay: Relay,
    pool: Pool,
    events: Vec<MeshEvent>,
    /// Links to be closed.
    unwanted: Vec<LinkId>,
    counts: MeshCounts,
}

impl<P: Provider, N: Network> Mesh<P, N> {
    /// A member without links, on these Workers: the same are to be given in each call, in the same order.
    ///
    /// # Errors
    /// The configuration makes no sense, or there can be no links.
    pub fn new(node: &Node<P, N>, workers: &[Worker<P>], config: &MeshConfig) -> Result<Self, MeshError> {
        config.check()?;
        let no_rank = MeshError::NoSuchRank {
            rank: config.rank,
            ranks: config.ranks,
        };
        let mut map = Map::new(config.ranks).ok_or(no_rank)?;
        map.hear(&Announcement::new(config.rank, config.started, 0, Ranks::NONE));
        let ranks = usize::from(config.ranks);
        Ok(Self {
            links: Links::new(node, workers, &config.link)?,
            state: State {
                routes: map.routes(config.rank),
                map,
                config: *config,
                reached: Ranks::NONE.with(config.rank),
                announced: 0,
                announcements: vec![None; ranks],
                neighbours: Vec::new(),
                members: (0..ranks).map(|_| Member::default()).collect(),
                relay: Relay::new(config.ranks, config.window),
                pool: Pool::new(config.frame_bytes_max()),
                events: Vec::new(),
                unwanted: Vec::new(),
                counts: MeshCounts::default(),
            },
        })
    }

    /// Lets members of higher ranks link to this one. The handle is for them.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the port cannot be had.
    pub fn listen(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<&Handle, MeshError> {
        Ok(self.links.listen(node, workers, address)?)
    }

    /// Links to a member by its handle, over all rails that reach it. Of each two the one of the higher rank does; the other
    /// one need do nothing, and nothing happens where it does, nor where there is a link by this handle. Says whether a rail reaches it: where none does, others are to
    /// be between.
    ///
    /// # Errors
    /// There is no such rank, or no link can be begun.
    pub fn connect(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        rank: Rank,
        handle: &Handle,
    ) -> Result<bool, MeshError> {
        let state = &mut self.state;
        if rank.number() >= state.config.ranks {
            return Err(MeshError::NoSuchRank {
                rank,
                ranks: state.config.ranks,
            });
        }
        if rank >= state.config.rank {
            return Ok(true);
        }
        let instance = Some(handle.instance());
        if let Some(place) = state
            .neighbours
            .iter()
            .position(|neighbour| neighbour.rank == Some(rank))
        {
            if state
                .neighbours
                .get(place)
                .is_some_and(|neighbour| neighbour.instance == instance)
            {
                return Ok(true);
            }
            // It was started again, which is known here before its link says so.
            state.unwanted.push(state.neighbours.swap_remove(place).link);
            state.announce();
        }
        match self.links.connect(node, workers, handle) {
            Ok(link) => {
                state.neighbours.push(Neighbour::new(link, instance, Some(rank)));
                Ok(true)
            }
            Err(LinkError::NoRoute(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Polls the Workers and goes on with all there is; `each` gets what happened. Never waits.
    ///
    /// # Errors
    /// A Worker cannot be polled, and is of no further use.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        each: impl FnMut(MeshEvent),
    ) -> Result<(), ProviderError> {
        let Self { links, state } = self;
        let now = node.network().now();
        links.poll(node, workers, |id, event| state.hear(id, event, now))?;
        for link in state.unwanted.drain(..) {
            links.close(link, Deadline::after(now, TURN_AWAY_WITHIN));
        }
        state.find_ways();
        state.say(links);
        state.pass_on(links);
        state.transmit(links, now);
        state.events.drain(..).for_each(each);
        Ok(())
    }

    /// Takes a message of two parts to be sent to a member; later polls send it, and again where it is lost on its way.
    ///
    /// # Errors
    /// [`MeshSendError::WouldBlock`] is back-pressure; the others say why none goes.
    pub fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<(), MeshSendError> {
        self.state.send(to, header, payload)
    }

    /// Gives the next message of a member to `look`, which has the two parts as one; `None` where there is none.
    ///
    /// # Errors
    /// There is none, and no way leads to the member.
    pub fn receive<R>(
        &mut self,
        from: Rank,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, MeshSendError> {
        self.state.receive(from, look)
    }

    /// This member.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.state.config.rank
    }

    /// How many members there are.
    #[must_use]
    pub const fn ranks(&self) -> u8 {
        self.state.config.ranks
    }

    /// The longest message.
    #[must_use]
    pub const fn message_bytes_max(&self) -> usize {
        self.state.config.message_bytes_max
    }

    /// To whom a way leads, this member included.
    #[must_use]
    pub const fn reached(&self) -> Ranks {
        self.state.reached
    }

    /// The shortest ways, as they are now.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.state.routes
    }

    /// Who is whose neighbour, as far as is known.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.state.map
    }

    /// When a member started that was heard of.
    #[must_use]
    pub fn started(&self, rank: Rank) -> Option<u64> {
        self.state.members.get(rank.index())?.started
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> MeshCounts {
        self.state.counts
    }

    /// Its links.
    #[must_use]
    pub const fn links(&self) -> &Links<P, N> {
        &self.links
    }

    /// When to poll again at the latest, if nothing comes before.
    #[must_use]
    pub fn wake(&self, now: Instant) -> Option<Deadline> {
        let resend = self.state.members.iter().filter_map(Member::resend_at).min();
        let links = self.links.wake(now);
        resend.into_iter().chain(links).min()
    }
}

impl State {
    /// Takes in what a link tells.
    fn hear(&mut self, link: LinkId, event: LinkEvent<'_>, now: Instant) {
        match event {
            LinkEvent::Accepted => self.neighbours.push(Neighbour::new(link, None, None)),
            LinkEvent::Received { message } => self.hear_frame(link, message, now),
            LinkEvent::Session(SessionEvent::Connected) => {
                if let Some(neighbour) = self.neighbour_mut(link) {
                    neighbour.is_up = true;
                }
            }
            LinkEvent::Session(SessionEvent::Final { reason }) => {
                let place = self
                    .neighbours
                    .iter()
                    .position(|neighbour| neighbour.link == link);
                if let Some(place) = place {
                    let rank = self.neighbours.swap_remove(place).rank;
                    self.events.push(MeshEvent::LinkLost { rank, reason });
                    self.announce();
                }
            }
            LinkEvent::Session(_) => {}
        }
    }

    fn hear_frame(&mut self, link: LinkId, frame: &[u8], now: Instant) {
        let Ok((header, body)) = RelayHeader::parse(frame) else {
            self.drop_one();
            return;
        };
        let was_joined = self
            .neighbour_mut(link)
            .is_some_and(|neighbour| neighbour.was_joined);
        match Kind::from_wire(header.kind()) {
            Some(Kind::Join) => self.hear_join(link, header.source(), body),
            Some(Kind::Announcement) if was_joined => self.hear_announcement(link, body),
            Some(kind @ (Kind::Data | Kind::Grant)) if was_joined => {
                if header.destination() != self.config.rank {
                    self.keep_for_another(*header, frame);
                } else if kind == Kind::Data {
                    self.hear_data(header.source(), frame, body);
                } else {
                    self.hear_grant(header.source(), body, now);
                }
            }
            _ => self.drop_one(),
        }
    }

    fn hear_join(&mut self, link: LinkId, rank: Rank, body: &[u8]) {
        let config = self.config;
        let join = Join::parse(body).filter(|join| {
            let is_ours = join.mesh == config.mesh && join.ranks == config.ranks;
            is_ours && rank.number() < config.ranks && rank != config.rank
        });
        // A link of a start before is over, though that is not known yet.
        let is_later = |join: &Join| {
            self.members.get(rank.index()).and_then(|member| member.started) < Some(join.started)
        };
        let other = |other: &Neighbour| other.link != link && other.rank == Some(rank) && other.was_joined;
        let mut is_taken = self.neighbours.iter().any(other);
        if is_taken && join.as_ref().is_some_and(is_later) {
            let before = self.neighbours.iter().filter(|before| other(before));
            self.unwanted.extend(before.map(|before| before.link));
            self.neighbours.retain(|before| !other(before));
            is_taken = false;
        }
        let all = self.known();
        let neighbour = self
            .neighbours
            .iter_mut()
            .find(|neighbour| neighbour.link == link);
        let Some(neighbour) = neighbour else { return };
        let is_who = neighbour.rank.is_none_or(|expected| expected == rank);
        let Some(join) = join.filter(|_| is_who && !is_taken && !neighbour.was_joined) else {
            self.unwanted.push(link);
            self.events.push(MeshEvent::TurnedAway);
            return;
        };
        (neighbour.rank, neighbour.was_joined) = (Some(rank), true);
        neighbour.untold = all;
        self.meet(rank, join.started);
        self.announce();
    }

    fn hear_announcement(&mut self, link: LinkId, body: &[u8]) {
        let Ok(announcement) = Announcement::parse(body) else {
            self.drop_one();
            return;
        };
        let rank = announcement.rank();
        // What others say of this one it knows better.
        if rank == self.config.rank || self.map.hear(announcement) != Heard::News {
            return;
        }
        if let Some(latest) = self.announcements.get_mut(rank.index()) {
            *latest = Some(announcement.to_bytes());
        }
        let others = self
            .neighbours
            .iter_mut()
            .filter(|neighbour| neighbour.link != link);
        others.for_each(|neighbour| neighbour.untold = neighbour.untold.with(rank));
        self.meet(rank, announcement.started());
    }

    /// A member was heard of that started then.
    fn meet(&mut self, rank: Rank, started: u64) {
        let Self {
            members,
            pool,
            events,
            config,
            ..
        } = self;
        let Some(member) = members.get_mut(rank.index()) else {
            return;
        };
        match member.started {
            Some(before) if before >= started => {}
            before => {
                if before.is_some() {
                    events.push(MeshEvent::Restarted(rank));
                }
                member.begin(started, config.window, pool);
            }
        }
    }

    fn hear_data(&mut self, source: Rank, frame: &[u8], body: &[u8]) {
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
            counts.dropped = counts.dropped.saturating_add(1);
            return;
        };
        let is_of_now =
            member.started == Some(pair.source_started) && pair.destination_started == config.started;
        let is_short = body.len() <= PAIR_HEADER_BYTES.saturating_add(config.message_bytes_max);
        if !is_of_now || !is_short {
            counts.dropped = counts.dropped.saturating_add(1);
        } else if !member.hear(pair.sequence, config, || pool.fill(&[frame])) {
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
        let pair = PairHeader::parse(body).map(|(pair, _)| pair);
        if let (Some(pair), Some(member)) = (pair, members.get_mut(source.index())) {
            let is_of_now = member.started == Some(pair.source_started);
            if is_of_now && pair.destination_started == config.started {
                member.hear_grant(&pair, now, config, pool);
            }
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

    /// Says anew who the neighbours are, if that has changed.
    fn announce(&mut self) {
        let own = self.config.rank;
        let neighbours = self
            .neighbours
            .iter()
            .filter_map(Neighbour::joined)
            .fold(Ranks::NONE, Ranks::with);
        self.announced = self.announced.wrapping_add(1);
        let announcement = Announcement::new(own, self.config.started, self.announced, neighbours);
        self.map.hear(&announcement);
        if let Some(latest) = self.announcements.get_mut(own.index()) {
            *latest = Some(announcement.to_bytes());
        }
        for neighbour in &mut self.neighbours {
            neighbour.untold = neighbour.untold.with(own);
        }
    }

    /// Of whom there is something to tell.
    fn known(&self) -> Ranks {
        let known = (0..self.config.ranks).filter_map(Rank::new);
        known
            .filter(|rank| self.announcements.get(rank.index()).is_some_and(Option::is_some))
            .fold(Ranks::NONE, Ranks::with)
    }

    /// The ways as they are now, and what follows where they changed.
    fn find_ways(&mut self) {
        let routes = self.map.routes(self.config.rank);
        if routes == self.routes {
            return;
        }
        self.routes = routes;
        let reached = self.routes.reached();
        for rank in reached.and_not(self.reached).iter() {
            self.events.push(MeshEvent::Reachable(rank));
        }
        for rank in self.reached.and_not(reached).iter() {
            self.events.push(MeshEvent::Unreachable(rank));
            let dropped = self.relay.drop_for(rank, &mut self.pool);
            self.counts.dropped = self.counts.dropped.saturating_add(dropped);
        }
        self.reached = reached;
        // What went another way may be lost, and what was said of it.
        for member in &mut self.members {
            let again = u64::try_from(member.send_again()).unwrap_or(u64::MAX);
            self.counts.sent_again = self.counts.sent_again.saturating_add(again);
            member.owes_grant |= member.started.is_some();
        }
    }

    /// Says who this is and who is whose neighbour, where that is to be said.
    fn say<P: Provider, N: Network>(&mut self, links: &mut Links<P, N>) {
        let config = self.config;
        let join = Join {
            mesh: config.mesh,
            started: config.started,
            ranks: config.ranks,
        };
        let mut is_new = false;
        for neighbour in self.neighbours.iter_mut().filter(|neighbour| neighbour.is_up) {
            if !neighbour.has_joined {
                neighbour.has_joined = links.send(neighbour.link, &join.to_bytes(config.rank)).is_ok();
                is_new |= neighbour.joined().is_some();
            }
            let Some(to) = neighbour.joined() else { continue };
            let header = RelayHeader::new(config.rank, to, 0, Kind::Announcement as u16).to_bytes();
            for rank in neighbour.untold.iter() {
                let Some(Some(announcement)) = self.announcements.get(rank.index()) else {
                    continue;
                };
                let frame = self.pool.fill(&[&header, announcement]);
                let is_told = links.send(neighbour.link, &frame).is_ok();
                self.pool.give_back(frame);
                if !is_told {
                    break;
                }
                neighbour.untold = neighbour.untold.without(rank);
            }
        }
        if is_new {
            self.announce();
        }
    }

    /// Passes on what waits for a way.
    fn pass_on<P: Provider, N: Network>(&mut self, links: &mut Links<P, N>) {
        for rank in self.reached.iter() {
            let Some(link) = self.link_towards(rank) else {
                continue;
            };
            while let Some(frame) = self.relay.next(rank) {
                if links.send(link, frame).is_err() {
                    break;
                }
                self.relay.did_pass_on(rank, &mut self.pool);
                self.counts.relayed = self.counts.relayed.saturating_add(1);
            }
        }
    }

    /// Sends what this member has for others: how far it got, and messages.
    fn transmit<P: Provider, N: Network>(&mut self, links: &mut Links<P, N>, now: Instant) {
        for rank in self.reached.without(self.config.rank).iter() {
            let Some(link) = self.link_towards(rank) else {
                continue;
            };
            let Some(member) = self.members.get_mut(rank.index()) else {
                continue;
            };
            if member.resend_at().is_some_and(|at| at.has_passed(now)) {
                let again = u64::try_from(member.send_again()).unwrap_or(u64::MAX);
                self.counts.sent_again = self.counts.sent_again.saturating_add(again);
            }
            if let (true, Some(started)) = (member.owes_grant, member.started) {
                let (sequence, room) = member.grant(&self.config);
                let pair = PairHeader {
                    source_started: self.config.started,
                    destination_started: started,
                    sequence,
                    room,
                };
                let header =
                    RelayHeader::new(self.config.rank, rank, self.config.hops_max, Kind::Grant as u16);
                if links.send(link, &pair.to_bytes(header)).is_ok() {
                    member.did_grant();
                }
            }
            while let Some(frame) = member.unsent() {
                if links.send(link, frame).is_err() {
                    break;
                }
                member.did_send(now, &self.config);
            }
        }
    }

    fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<(), MeshSendError> {
        let config = self.config;
        if to == config.rank || to.number() >= config.ranks {
            return Err(MeshSendError::NoSuchRank(to));
        }
        if header.len().saturating_add(payload.len()) > config.message_bytes_max {
            return Err(MeshSendError::TooLong);
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
            room: 0,
        };
        let relay = RelayHeader::new(config.rank, to, config.hops_max, Kind::Data as u16);
        member.keep(self.pool.fill(&[&pair.to_bytes(relay), header, payload]));
        self.counts.sent = self.counts.sent.saturating_add(1);
        Ok(())
    }

    fn receive<R>(&mut self, from: Rank, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, MeshSendError> {
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
        let begin = RELAY_HEADER_BYTES.saturating_add(PAIR_HEADER_BYTES);
        let seen = look(frame.get(begin..).unwrap_or_default());
        pool.give_back(frame);
        counts.received = counts.received.saturating_add(1);
        Ok(Some(seen))
    }

    /// The link that leads nearer to a member.
    fn link_towards(&self, rank: Rank) -> Option<LinkId> {
        let next = self.routes.next(rank)?;
        let mut joined = self
            .neighbours
            .iter()
            .filter(|neighbour| neighbour.joined() == Some(next));
        Some(joined.next()?.link)
    }

    fn neighbour_mut(&mut self, link: LinkId) -> Option<&mut Neighbour> {
        self.neighbours
            .iter_mut()
            .find(|neighbour| neighbour.link == link)
    }

    fn drop_one(&mut self) {
        self.counts.dropped = self.counts.dropped.saturating_add(1);
    }
}

impl<P: Provider, N: Network> fmt::Debug for Mesh<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh")
            .field("rank", &self.state.config.rank)
            .field("ranks", &self.state.config.ranks)
            .field("reached", &self.state.reached)
            .finish_non_exhaustive()
    }
}
