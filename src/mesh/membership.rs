//! A member's view of its mesh: links, ways, and the messages to all others.

use core::fmt;
use core::net::SocketAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::collective::GroupId;
use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::route::{Announcement, Map, Routes};
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use super::config::{MeshConfig, MeshError, MeshSendError};
use super::discovery::{Discovered, Discovery};
use super::event::{MeshCounts, MeshEvent};
use super::hold_down::HoldDown;
use super::member::{Member, MeshMemberCounts};
use super::neighbour::Neighbour;
use super::pool::Pool;
use super::relay::Relay;
use super::state::State;
use super::unlinked::{Attempts, NotLinked};
use crate::connect::node::Node;
use crate::link::{LinkError, LinkEvent, LinkId, Links};
use crate::machine::log::log;
use crate::machine::tcp::Tcp;
use crate::rails::Rails;
use crate::worker::Worker;

/// Time that a link to a peer that does not belong here has to close.
const TURN_AWAY_WITHIN: core::time::Duration = core::time::Duration::from_millis(100);

/// Interval of looks for answers of members that are asked or connected to, and for room to send.
const ASK_EVERY: core::time::Duration = core::time::Duration::from_millis(1);

/// A member of a mesh.
///
/// # Waiting
/// A thread that has a processor of its own calls [`Mesh::poll`] without rest. Another one calls [`Mesh::wait`], which sleeps while there
/// is nothing to do, or asks [`Mesh::ready_to_sleep`] in an event loop of its own. It receives all messages that are there before it waits.
///
/// ```
/// use doorbell::link::WatchedNetwork;
/// use doorbell::mesh::{Mesh, MeshEvent, MeshSendError, Rank};
/// use doorbell::worker::Watched;
/// use doorbell::{Deadline, Node, Wait, Woken, Worker};
///
/// /// Sleeps until a message of a member comes, or until the deadline.
/// fn receive<P: Watched, N: WatchedNetwork>(
///     mesh: &mut Mesh<P, N>,
///     node: &Node<P, N>,
///     workers: &mut [Worker<P>],
///     member: Rank,
///     deadline: Deadline,
///     mut each: impl FnMut(MeshEvent),
/// ) -> Result<Option<Vec<u8>>, Box<dyn core::error::Error>> {
///     loop {
///         match mesh.receive(member, <[u8]>::to_vec) {
///             Ok(Some(message)) => return Ok(Some(message)),
///             Ok(None) | Err(MeshSendError::Unreachable(_)) => {}
///             Err(error) => return Err(error.into()),
///         }
///         if mesh.wait(node, workers, Wait::SPIN_THEN_SLEEP, deadline, &mut each)? == Woken::Deadline {
///             return Ok(None);
///         }
///     }
/// }
/// ```
pub struct Mesh<P: Provider = Rdma, N: Network = Tcp> {
    pub(super) links: Links<P, N>,
    pub(super) state: State,
    /// Members that are found by their address.
    pub(super) sought: Vec<Discovery<N>>,
    /// Members whose handles are known, and to which links are to be begun.
    pub(super) found: Vec<Discovered>,
    /// Whether a frame came in the last poll.
    pub(super) came: bool,
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
        map.hear(&Announcement::new(
            config.rank,
            config.started,
            0,
            Ranks::NONE,
            Ranks::NONE,
        ));
        if config.hops_max < config.hops_needed() {
            log!(
                warn,
                "members may be out of reach: with hops_max messages go through fewer than a line of all has between its ends",
                hops_max = config.hops_max,
                needed = config.hops_needed()
            );
        }
        let ranks = usize::from(config.ranks);
        Ok(Self {
            links: Links::new(node, workers, &config.links())?,
            sought: Vec::new(),
            found: Vec::new(),
            came: false,
            state: State {
                routes: map.routes(config.rank),
                is_map_new: false,
                lost_links: Ranks::NONE,
                map,
                config: *config,
                began: node.network().now(),
                reported_ahead: Ranks::NONE,
                reached: Ranks::NONE.with(config.rank),
                announced: 0,
                said: (Ranks::NONE, Ranks::NONE),
                hold_downs: vec![HoldDown::default(); ranks],
                announcements: vec![None; ranks],
                neighbours: Vec::new(),
                members: (0..ranks).map(|_| Member::default()).collect(),
                attempts: (0..ranks).map(|_| Attempts::default()).collect(),
                ended: Vec::new(),
                relay: Relay::new(config.ranks, config.window),
                pool: Pool::new(config.frame_bytes_max()),
                events: VecDeque::new(),
                group: GroupId::default(),
                unwanted: Vec::new(),
                is_parting: false,
                was_left: false,
                closing: None,
                counts: MeshCounts::default(),
            },
        })
    }

    /// Lets members of higher ranks link to this one. The handle is for them. Their handshakes advance as the mesh is polled, as
    /// in [`Links::listen_polled`]; over TCP, [`Mesh::listen`] has a thread for them.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the port cannot be had.
    pub fn listen_polled(
        &mut self,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Handle, MeshError> {
        Ok(self.links.listen_polled(node, workers, address)?)
    }

    /// Links to a member by its handle, over all rails that reach it. Between two members the one of the higher rank connects.
    /// The call does nothing on the other one, nor if there is a link by this handle. If no rail reaches the member, other
    /// members are to be between, and [`Mesh::not_linked`] gives the reason. On a [`Node::open`] a thread of the Node looks at
    /// our ports, and polling begins the link.
    ///
    /// # Errors
    /// There is no such rank, this member leaves, or no link can be begun. [`Mesh::not_linked`] reports errors that are known
    /// only later.
    pub fn connect(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        rank: Rank,
        handle: &Handle,
    ) -> Result<(), MeshError> {
        if !self.is_to_connect(rank)? {
            return Ok(());
        }
        match self.find(node, workers, (rank, handle), node.network().now()) {
            Err(error @ LinkError::NoRoute(_)) => self.state.note_not_begun(rank, Some(error)),
            outcome => outcome?,
        }
        Ok(())
    }

    /// Whether this one is to connect to a member: of each two the one of the higher rank.
    fn is_to_connect(&self, rank: Rank) -> Result<bool, MeshError> {
        let MeshConfig { rank: own, ranks, .. } = self.state.config;
        match rank.number() < ranks {
            true if self.is_closing() => Err(MeshError::Closing),
            true => Ok(rank < own),
            false => Err(MeshError::NoSuchRank { rank, ranks }),
        }
    }

    /// Links to a member over these rails of ours.
    pub(super) fn link_over(
        &mut self,
        node: &Node<P, N>,
        our_rails: &Rails,
        (rank, handle): (Rank, &Handle),
        now: Instant,
    ) -> Result<(), LinkError> {
        let state = &mut self.state;
        let instance = Some(handle.instance());
        let is_of_rank = |neighbour: &Neighbour| neighbour.rank == Some(rank);
        let mut known = state.neighbours.iter().filter(|neighbour| is_of_rank(neighbour));
        if let Some(neighbour) = known.find(|neighbour| neighbour.instance == instance) {
            // Its rails may be others.
            self.links.reroute_over(our_rails, (neighbour.link, handle), now);
            return Ok(());
        }
        // If it was started again, that is known here before its link says so.
        state.replace(rank, is_of_rank, now);
        let link = self.links.connect_over(node, our_rails, handle)?;
        state
            .neighbours
            .push(Neighbour::new(link, instance, Some(rank), now));
        state.note_not_begun(rank, None);
        Ok(())
    }

    /// Links to a member that listens at a TCP address, of whatever network. The member is asked there for its handle until
    /// there is a link, and again whenever the link is gone: it may have been started again, or be reached by other rails.
    /// Between two members the one of the higher rank connects; on the other one the call does nothing.
    ///
    /// # Errors
    /// There is no such rank, or this member leaves.
    pub fn connect_at(&mut self, rank: Rank, address: SocketAddr) -> Result<(), MeshError> {
        if self.is_to_connect(rank)? {
            self.sought.retain(|sought| !sought.is(rank));
            self.sought.push(Discovery::new(rank, address));
        }
        Ok(())
    }

    /// Has the ports of the Workers' devices looked at again, as [`Links::refresh`] does where a device said that something
    /// changed: members that are linked are notified.
    ///
    /// # Errors
    /// As for [`Links::refresh`].
    pub fn refresh(&mut self, node: &Node<P, N>, workers: &[Worker<P>]) -> Result<(), MeshError> {
        Ok(self.links.refresh(node, workers)?)
    }

    /// Returns the result of [`Mesh::refresh`], once for each look: the new handle, if it changed, for members that are not
    /// linked. `None` while the ports are looked at.
    ///
    /// # Errors
    /// As for [`Links::take_refreshed`].
    pub fn take_refreshed(&mut self) -> Option<Result<Option<Handle>, MeshError>> {
        Some(self.links.take_refreshed()?.map_err(MeshError::Link))
    }

    /// Whether a link leads to a member, over which something goes now.
    #[must_use]
    pub fn is_linked(&self, rank: Rank) -> bool {
        let mut neighbours = self.state.neighbours.iter();
        neighbours.any(|neighbour| neighbour.rank == Some(rank) && self.links.is_connected(neighbour.link))
    }

    /// Reasons why no link leads to a member, from the last attempts of this member to link to it. Empty for a member that is
    /// linked, and for one that is to link to this one and has not tried.
    pub fn not_linked(&self, rank: Rank) -> impl Iterator<Item = NotLinked<'_>> {
        let mut neighbours = self.state.neighbours.iter();
        // The link of an earlier start may still be there, to report why that start is turned away.
        let neighbour =
            neighbours.find(|neighbour| neighbour.rank == Some(rank) && neighbour.outdated.is_none());
        let rails = neighbour.map(|neighbour| self.links.not_connected(neighbour.link));
        let attempts = self.state.attempts.get(rank.index());
        let reasons = attempts.map(|attempts| attempts.reasons(rails.into_iter().flatten()));
        let is_silent = neighbour.is_some_and(|neighbour| neighbour.is_up && !neighbour.was_joined);
        let is_joined = neighbour.is_some_and(|neighbour| neighbour.was_joined);
        let sought = self.sought.iter().filter(move |sought| sought.is(rank));
        let found = sought.filter_map(Discovery::failure);
        let all = found.chain(reasons.into_iter().flatten());
        all.chain(is_silent.then_some(NotLinked::Silent))
            .filter(move |_| !is_joined)
    }

    /// Polls the Workers and goes on with all there is; `each` gets what happened. Never waits.
    ///
    /// # Errors
    /// A Worker cannot be polled, and is of no further use.
    ///
    /// # Panics
    /// If `each` does, and loses nothing by it. The event it had is delivered. The next poll begins where this one
    /// ended.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        mut each: impl FnMut(MeshEvent),
    ) -> Result<(), ProviderError> {
        let now = node.network().now();
        if self.state.closing.is_none() {
            self.seek(node, workers, now);
        }
        self.came = false;
        let Self {
            links, state, came, ..
        } = self;
        let mut take = |id, event: LinkEvent<'_>, state: &mut State| {
            *came |= matches!(event, LinkEvent::Received { .. });
            state.hear(id, event, now);
        };
        links.take_in(workers, now, |id, event| take(id, event, state), |_, _, _| {})?;
        // Between the two halves, so that what is said goes in this poll, what came in it and is passed on included.
        state.let_up(now);
        state.find_ways();
        state.say(links, now);
        state.pass_on(links);
        state.transmit(links, now);
        links.go_on(node, workers, now, |id, event| take(id, event, state));
        for (rank, link) in state.ended.drain(..) {
            if let Some(attempts) = state.attempts.get_mut(rank.index()) {
                attempts.rails = links.take_not_connected(link);
            }
        }
        for link in state.unwanted.drain(..) {
            links.close(link, Deadline::after(now, TURN_AWAY_WITHIN));
        }
        if let Some(deadline) = state.closing {
            // Links that are made only now are closed, too, and nothing is owed to a peer that has not said who it is.
            for neighbour in &state.neighbours {
                let by = if neighbour.was_joined {
                    deadline
                } else {
                    Deadline::at(now)
                };
                links.close(neighbour.link, by);
            }
        }
        while let Some(event) = state.events.pop_front() {
            // Members are expected to go in parting: that is not logged.
            if !state.is_parting {
                log_event(&event);
            }
            each(event);
        }
        Ok(())
    }

    /// Closes all links, each once the messages that it has taken are acknowledged, and by the deadline in any case. A link
    /// without a rail is closed at once if another way leads to its member, which learns of the closing by that way. No new
    /// links are begun.
    pub(super) fn close(&mut self, now: Instant, deadline: Deadline) {
        self.state.closing = Some(deadline);
        // Nothing is waited for on their account.
        self.sought.clear();
        self.found.clear();
        for neighbour in &self.state.neighbours {
            let is_gone_round = |rank| self.state.routes.next(rank).is_some_and(|next| next != rank);
            let is_idle = neighbour.is_without_rail && neighbour.joined().is_some_and(is_gone_round);
            let deadline = if is_idle { Deadline::at(now) } else { deadline };
            self.links.close(neighbour.link, deadline);
        }
    }

    /// Whether its links are being closed, since it leaves ([`Group::leave`](crate::mesh::Group::leave)): members that are not linked any more are not to be connected to.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        self.state.closing.is_some()
    }

    /// Takes a message of two parts to be sent to a member; later polls send it, and again where it is lost on its way.
    ///
    /// # Errors
    /// [`MeshSendError::WouldBlock`] is backpressure; the others say why none goes.
    pub fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<(), MeshSendError> {
        self.state.send(to, header, payload)
    }

    /// Gives the next message of a member to `look`, which has the two parts as one; `None` where there is none.
    ///
    /// # Errors
    /// There is none, and no way leads to the member.
    ///
    /// # Panics
    /// If `look` does. The message is received, and the next call goes on with the one behind it.
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

    /// Returns the reachable members, this one included, within the limit of hops.
    #[must_use]
    pub const fn reached(&self) -> Ranks {
        self.state.reached
    }

    /// Returns the shortest routes, as they are now.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.state.routes
    }

    /// Returns the neighbours of each member, as far as they are known.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.state.map
    }

    /// When a member started, this one or another that was heard of.
    #[must_use]
    pub fn started(&self, rank: Rank) -> Option<u64> {
        self.state.started(rank)
    }

    /// The counts.
    #[must_use]
    pub const fn counts(&self) -> MeshCounts {
        self.state.counts
    }

    /// Counts of the messages between this member and another; zero if there is no such member.
    #[must_use]
    pub fn member_counts(&self, rank: Rank) -> MeshMemberCounts {
        let member = self.state.members.get(rank.index());
        member.map(Member::counts).unwrap_or_default()
    }

    /// The members that share a subnet with this one, each with its link, as far as they said who they are.
    pub fn neighbours(&self) -> impl Iterator<Item = (Rank, LinkId)> {
        let neighbours = self.state.neighbours.iter();
        neighbours.filter_map(|neighbour| Some((neighbour.rank?, neighbour.link)))
    }

    /// Returns the links of this member.
    #[must_use]
    pub const fn links(&self) -> &Links<P, N> {
        &self.links
    }

    /// Returns when to poll again at the latest, if no completion comes before and no peer connects: at once if messages were
    /// sent or received since the last poll that others are to hear of. The time is short while members are asked for their
    /// handles, or links are made, for loops that do not watch the streams of that ([`Mesh::watched`] lists them).
    #[must_use]
    pub fn wake(&self, now: Instant) -> Option<Deadline> {
        let is_asking = self.sought.iter().any(Discovery::is_asking) || self.links.is_connecting();
        let soon = is_asking.then(|| Deadline::after(now, ASK_EVERY));
        self.wake_watched(now).into_iter().chain(soon).min()
    }

    /// When to poll again at the latest, where network traffic ends a sleep, too.
    pub(super) fn wake_watched(&self, now: Instant) -> Option<Deadline> {
        let members = self.state.wake(now).into_iter();
        let links = self.links.wake(now);
        let is_found = |sought: &&Discovery<N>| self.found.iter().any(|found| found.is(sought.rank()));
        let sought = self.sought.iter().filter(|sought| !is_found(sought));
        let sought = sought.map(Discovery::wake);
        let again = self.found.iter().filter_map(Discovered::again);
        // No signal reports that ports were looked at.
        let is_looking = self.found.iter().any(|found| found.again().is_none());
        let is_soon = is_looking || self.state.has_to_say();
        let soon = is_soon.then(|| Deadline::after(now, ASK_EVERY));
        let all = members.chain(links).chain(sought).chain(again);
        all.chain(soon).min()
    }
}

impl<P: Provider> Mesh<P, Tcp> {
    /// Lets members of higher ranks link to this one. The handle is for them. Handshakes have a thread of their own, as in
    /// [`Links::listen`].
    ///
    /// # Errors
    /// None of the devices has a usable rail, the port cannot be had, or the system gave no thread.
    pub fn listen(
        &mut self,
        node: &Arc<Node<P>>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Handle, MeshError> {
        Ok(self.links.listen(node, workers, address)?)
    }
}

/// Logs what happened in a mesh.
fn log_event(event: &MeshEvent) {
    match event {
        MeshEvent::Reachable(rank) => log!(info, "a way leads to a member", rank = rank),
        MeshEvent::Unreachable(rank) => log!(warn, "no way leads to a member", rank = rank),
        MeshEvent::HeldDown(rank) => log!(
            warn,
            "the link to a member comes and goes, and is gone round until it stays",
            rank = rank
        ),
        MeshEvent::Restarted(rank) => log!(warn, "a member was started again", rank = rank),
        MeshEvent::StartedBefore(rank) => log!(
            warn,
            "a member was turned away: it says that it was started earlier than it was last heard of",
            rank = rank
        ),
        MeshEvent::StartedAhead(rank) => log!(
            warn,
            "the start of a member is said to be further ahead than mesh.start_ahead_max, and is not believed",
            rank = rank
        ),
        MeshEvent::LinkLost {
            rank: Some(rank),
            reason,
        } => log!(warn, "the link to a member is over", rank = rank, reason = reason),
        MeshEvent::LinkLost { rank: None, reason } => {
            log!(warn, "the link to somebody is over", reason = reason);
        }
        MeshEvent::TurnedAway => log!(warn, "somebody who is no member was turned away"),
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
