//! A member of a mesh: its links and routes, and the messages to all other members.

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

/// Time limit for closing a link that is not wanted any more, for example to a rejected peer.
const TURN_AWAY_WITHIN: core::time::Duration = core::time::Duration::from_millis(100);

/// Interval of polls while members are asked for their handles, links are made, or a Join or an announcement waits for room.
const ASK_EVERY: core::time::Duration = core::time::Duration::from_millis(1);

/// A member of a mesh.
///
/// # Waiting
/// A thread with a dedicated processor busy-polls [`Mesh::poll`]. Other threads call [`Mesh::wait`], which sleeps while there
/// is nothing to do, or [`Mesh::ready_to_sleep`] in an event loop. Receive all messages that have arrived before you wait.
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
    /// Members that are known by their TCP address.
    pub(super) sought: Vec<Discovery<N>>,
    /// Members whose handles are known, and to which links begin after a port scan.
    pub(super) found: Vec<Discovered>,
    /// Whether a frame arrived in the last poll.
    pub(super) came: bool,
}

impl<P: Provider, N: Network> Mesh<P, N> {
    /// Makes a member without links, on these Workers. Pass the same Workers to each call, in the same order.
    ///
    /// # Errors
    /// The configuration is invalid, or [`Links::new`] fails.
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

    /// Lets members of higher ranks link to this one. Give them the returned handle. The handshakes advance when the mesh is polled, as
    /// with [`Links::listen_polled`]. Over TCP, [`Mesh::listen`] runs them on a thread instead.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the system refuses to listen at the address.
    pub fn listen_polled(
        &mut self,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Handle, MeshError> {
        Ok(self.links.listen_polled(node, workers, address)?)
    }

    /// Links to a member by its handle, over all rails that reach it. The member of the higher rank connects; on the other
    /// one the call does nothing. If there is a link to the process of this handle, the link uses the rails of this handle from now on.
    /// If no rail reaches the member, messages to it need a relay, and [`Mesh::not_linked`] returns the reason. With a Node of
    /// [`Node::open`] a thread of the Node first scans the local ports, and a later poll begins the link.
    ///
    /// # Errors
    /// There is no such rank, this member leaves, or no link can be begun. [`Mesh::not_linked`] returns errors that occur later.
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

    /// Whether this member has to connect to the member `rank`. The member of the higher rank connects.
    fn is_to_connect(&self, rank: Rank) -> Result<bool, MeshError> {
        let MeshConfig { rank: own, ranks, .. } = self.state.config;
        match rank.number() < ranks {
            true if self.is_closing() => Err(MeshError::Closing),
            true => Ok(rank < own),
            false => Err(MeshError::NoSuchRank { rank, ranks }),
        }
    }

    /// Links to a member over these local rails.
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
            // The handle may list other rails than before.
            self.links.reroute_over(our_rails, (neighbour.link, handle), now);
            return Ok(());
        }
        // Another instance means that the member was restarted. The link to the earlier instance is dropped before its end is reported.
        state.replace(rank, is_of_rank, now);
        let link = self.links.connect_over(node, our_rails, handle)?;
        state
            .neighbours
            .push(Neighbour::new(link, instance, Some(rank), now));
        state.note_not_begun(rank, None);
        Ok(())
    }

    /// Links to a member that listens at a TCP address. Any network that reaches the address will do. The mesh asks the member for its
    /// handle until there is a link, and again when the link is lost, since the member may have restarted or have other rails.
    /// The member of the higher rank connects; on the other one the call does nothing.
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

    /// Scans the ports of the Workers' devices again, as [`Links::refresh`] does. Call it when a device reported a change. Linked members
    /// are notified of changed rails.
    ///
    /// # Errors
    /// As for [`Links::refresh`].
    pub fn refresh(&mut self, node: &Node<P, N>, workers: &[Worker<P>]) -> Result<(), MeshError> {
        Ok(self.links.refresh(node, workers)?)
    }

    /// Returns the result of [`Mesh::refresh`], once for each scan: the new handle if it changed, to be given to members that are not
    /// linked. `None` while the scan is in progress.
    ///
    /// # Errors
    /// As for [`Links::take_refreshed`].
    pub fn take_refreshed(&mut self) -> Option<Result<Option<Handle>, MeshError>> {
        Some(self.links.take_refreshed()?.map_err(MeshError::Link))
    }

    /// Whether there is a link to this member that is connected now.
    #[must_use]
    pub fn is_linked(&self, rank: Rank) -> bool {
        let mut neighbours = self.state.neighbours.iter();
        neighbours.any(|neighbour| neighbour.rank == Some(rank) && self.links.is_connected(neighbour.link))
    }

    /// Returns the reasons why there is no link to a member, from the last attempts. Empty if the member is linked. Also empty if the
    /// other member has to connect, and has not tried.
    pub fn not_linked(&self, rank: Rank) -> impl Iterator<Item = NotLinked<'_>> {
        let mut neighbours = self.state.neighbours.iter();
        // The link to an earlier start may still exist, to tell that process why it is rejected.
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

    /// Polls the Workers and advances the mesh as far as possible; `each` gets the events. Never waits.
    ///
    /// # Errors
    /// A Worker cannot be polled. It is not usable afterwards. Or these are not the Workers of [`Mesh::new`], in their order (errno 22,
    /// `EINVAL`): then nothing was polled.
    ///
    /// # Panics
    /// If `each` panics. Nothing is lost: the event that it got counts as delivered, and the next poll delivers the other events.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        mut each: impl FnMut(MeshEvent),
    ) -> Result<(), ProviderError> {
        self.links.check_workers(workers)?;
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
        // These steps run between the two halves of the links' poll. So everything is sent in this poll, including relayed frames that
        // arrived in this poll.
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
            // Links that come up while this member leaves are closed, too. A link without a Join of the peer is closed at once.
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
            // While this member leaves, members are expected to close their links. These events are not logged.
            if !state.is_parting {
                log_event(&event);
            }
            each(event);
        }
        Ok(())
    }

    /// Closes all links. Each is closed when its messages are acknowledged, and at the deadline in any case. A link without a rail is
    /// closed at once if there is another route to its member. No new links are begun.
    pub(super) fn close(&mut self, now: Instant, deadline: Deadline) {
        self.state.closing = Some(deadline);
        // Without these, the leaving does not wait for links that were not made yet.
        self.sought.clear();
        self.found.clear();
        for neighbour in &self.state.neighbours {
            let is_gone_round = |rank| self.state.routes.next(rank).is_some_and(|next| next != rank);
            let is_idle = neighbour.is_without_rail && neighbour.joined().is_some_and(is_gone_round);
            let deadline = if is_idle { Deadline::at(now) } else { deadline };
            self.links.close(neighbour.link, deadline);
        }
    }

    /// Whether the links of this member are being closed, since it leaves ([`Group::leave`](crate::mesh::Group::leave)). Then do not
    /// connect to members again.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        self.state.closing.is_some()
    }

    /// Accepts a message in two parts for a member. Later polls send it, and retransmit it if it may be lost.
    ///
    /// # Errors
    /// [`MeshSendError::WouldBlock`] is backpressure. Other errors say why the message cannot be sent.
    pub fn send(&mut self, to: Rank, header: &[u8], payload: &[u8]) -> Result<(), MeshSendError> {
        self.state.send(to, header, payload)
    }

    /// Passes the next message of a member to `look`, with both parts joined. Returns `None` if there is no message.
    ///
    /// # Errors
    /// There is no message and no route to the member, or there is no such member.
    ///
    /// # Panics
    /// If `look` panics. The message counts as received, and the next call returns the one after it.
    pub fn receive<R>(
        &mut self,
        from: Rank,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, MeshSendError> {
        self.state.receive(from, look)
    }

    /// Returns the rank of this member.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.state.config.rank
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn ranks(&self) -> u8 {
        self.state.config.ranks
    }

    /// Returns the length of the longest message.
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

    /// Returns the start of this or another member; `None` if it is not known.
    #[must_use]
    pub fn started(&self, rank: Rank) -> Option<u64> {
        self.state.started(rank)
    }

    /// Returns the counts of this member.
    #[must_use]
    pub const fn counts(&self) -> MeshCounts {
        self.state.counts
    }

    /// Returns the counts of the messages between this member and another; zero if there is no such member.
    #[must_use]
    pub fn member_counts(&self, rank: Rank) -> MeshMemberCounts {
        let member = self.state.members.get(rank.index());
        member.map(Member::counts).unwrap_or_default()
    }

    /// Returns the links whose member is known, each with the rank of the member. The rank is known from the beginning if this side
    /// connected, and otherwise from the member's Join.
    pub fn neighbours(&self) -> impl Iterator<Item = (Rank, LinkId)> {
        let neighbours = self.state.neighbours.iter();
        neighbours.filter_map(|neighbour| Some((neighbour.rank?, neighbour.link)))
    }

    /// Returns the links of this member.
    #[must_use]
    pub const fn links(&self) -> &Links<P, N> {
        &self.links
    }

    /// Returns the latest time of the next poll, if no completion comes and no peer connects before. The time is now if the application
    /// sent or received messages since the last poll, so that frames have to be sent. The time is short while members are asked for
    /// their handles or links are made, for loops that do not watch the streams in [`Mesh::watched`].
    #[must_use]
    pub fn wake(&self, now: Instant) -> Option<Deadline> {
        let is_asking = self.sought.iter().any(Discovery::is_asking) || self.links.is_connecting();
        let soon = is_asking.then(|| Deadline::after(now, ASK_EVERY));
        self.wake_watched(now).into_iter().chain(soon).min()
    }

    /// Returns the latest time of the next poll, for callers that also wake when a stream is ready.
    pub(super) fn wake_watched(&self, now: Instant) -> Option<Deadline> {
        let members = self.state.wake(now).into_iter();
        let links = self.links.wake(now);
        let is_found = |sought: &&Discovery<N>| self.found.iter().any(|found| found.is(sought.rank()));
        let sought = self.sought.iter().filter(|sought| !is_found(sought));
        let sought = sought.map(Discovery::wake);
        let again = self.found.iter().filter_map(Discovered::again);
        // No signal reports the end of a port scan.
        let is_looking = self.found.iter().any(|found| found.again().is_none());
        let is_soon = is_looking || self.state.has_to_say();
        let soon = is_soon.then(|| Deadline::after(now, ASK_EVERY));
        let all = members.chain(links).chain(sought).chain(again);
        all.chain(soon).min()
    }
}

impl<P: Provider> Mesh<P, Tcp> {
    /// Lets members of higher ranks link to this one. Give them the returned handle. The handshakes run on a separate thread, as with
    /// [`Links::listen`].
    ///
    /// # Errors
    /// None of the devices has a usable rail, the system refuses to listen at the address, or it gave no thread.
    pub fn listen(
        &mut self,
        node: &Arc<Node<P>>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Handle, MeshError> {
        Ok(self.links.listen(node, workers, address)?)
    }
}

/// Logs an event of the mesh.
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
