//! All links of one thread's Workers.

use core::fmt;
use core::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_core::network::Network;
use doorbell_core::provider::{DomainId, ProtectionDomain as _, Provider, ProviderError};
use doorbell_core::session::{Epoch, HealthState, PushRefusal, Role, Sequence, SessionCounts, SessionId};
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use super::acceptor::PeerAcceptor;
use super::arrivals::Arrivals;
use super::classes::order_of;
use super::config::{LinkConfig, LinkError};
use super::dialing::{Finding, rails_to};
use super::dispatch::Routes;
use super::ended::Ended;
use super::event::{LinkEvent, LinkId};
use super::log::{log_begun, log_late};
use super::placing::PlacedBudget;
use super::rail::LinkRail;
use super::report::FormerCounts;
use super::resting::Resting;
use super::sleeping::{Taken, Waiting};
use super::state::Link;
use super::table::Core;
use crate::connect::acceptances::Acceptances;
use crate::connect::handshakes::HandshakeCounts;
use crate::connect::listener::Listener;
use crate::connect::node::Node;
use crate::error::ConnectError;
use crate::machine::tcp::Tcp;
use crate::rails::Rails;
use crate::worker::event::Event;
use crate::worker::{Turn, Worker};

/// All links of one thread's Workers: ordered streams of messages, each over all rails that reach its peer.
///
/// Polling the links polls the Workers. Only [`Links::wait`] and [`Links::sleep`] block. A message is copied when the link accepts it, since
/// it may have to be retransmitted, and again when it is sent. No memory is allocated for a message, except for the first long ones
/// ([`LinkConfig::placed_bytes`]).
///
/// ```no_run
/// use doorbell::{Node, Trust, WorkerConfig};
/// use doorbell::link::{LinkConfig, LinkEvent, Links, PushRefusal, SessionEvent};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::open(Trust::unauthenticated_on_purpose())?;
/// let mut workers = node.workers(&WorkerConfig::default())?;
/// let mut links = Links::new(&node, &workers, &LinkConfig::default())?;
/// let handle = std::env::args().nth(1).ok_or("which handle?")?.parse()?;
/// let peer = links.connect(&node, &workers, &handle)?;
/// let (mut sent, mut is_done) = (None, false);
/// while !is_done {
///     links.poll(&node, &mut workers, |_, event| match event {
///         LinkEvent::Session(SessionEvent::Done { through }) => is_done = Some(through) >= sent,
///         LinkEvent::Session(SessionEvent::Final { reason }) => {
///             eprintln!("{reason}");
///             is_done = true;
///         }
///         _ => {}
///     })?;
///     if sent.is_none() {
///         sent = match links.send(peer, b"hello") {
///             Ok(last) => Some(last),
///             Err(PushRefusal::Full | PushRefusal::Recovering) => None,
///             Err(refusal) => return Err(refusal.into()),
///         };
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Waiting
/// A thread with a dedicated processor calls [`Links::poll`] continuously. Other threads call [`Links::wait`], which sleeps while there
/// is nothing to do, or [`Links::ready_to_sleep`] in an event loop. To sleep, the Workers need
/// [`WorkerConfig::notify`](crate::WorkerConfig::notify). An idle link wakes its thread only for heartbeats.
///
/// ```
/// use doorbell::link::{LinkEvent, LinkId, Links, WatchedNetwork};
/// use doorbell::worker::Watched;
/// use doorbell::{Deadline, Node, Wait, WaitError, Woken, Worker};
///
/// /// Sleeps until a link has a rail, or until the deadline. Returns whether it has one.
/// fn wait_for_rail<P: Watched, N: WatchedNetwork>(
///     links: &mut Links<P, N>,
///     node: &Node<P, N>,
///     workers: &mut [Worker<P>],
///     link: LinkId,
///     deadline: Deadline,
///     mut each: impl FnMut(LinkId, LinkEvent<'_>),
/// ) -> Result<bool, WaitError> {
///     while !links.is_connected(link) {
///         if links.wait(node, workers, Wait::SPIN_THEN_SLEEP, deadline, &mut each)? == Woken::Deadline {
///             break;
///         }
///     }
///     Ok(links.is_connected(link))
/// }
/// ```
pub struct Links<P: Provider = Rdma, N: Network = Tcp> {
    pub(super) core: Core<P, N>,
    pub(super) acceptor: Option<PeerAcceptor<P, N>>,
    /// A scan of this host's ports for [`Links::refresh`], while it is under way.
    pub(super) refreshing: Option<Finding>,
    /// The result of that scan, until it is reported.
    pub(super) refreshed: Option<Result<(), ConnectError>>,
    /// The new handle of this process, until it is reported.
    unreported: Option<Handle>,
    pub(crate) waiting: Waiting,
}

impl<P: Provider, N: Network> Links<P, N> {
    /// Makes an object without links for these Workers. Each later call needs the same Workers, in the same order. The call scans the ports
    /// on this thread, which takes milliseconds.
    ///
    /// # Errors
    /// The configuration of the channels is not usable for rails, a Worker's slots are too small for the longest frame, the Workers have
    /// different classes, the ports cannot be scanned, or there is no entropy.
    pub fn new(node: &Node<P, N>, workers: &[Worker<P>], config: &LinkConfig) -> Result<Self, LinkError> {
        config.check_channel()?;
        config.channel.check().map_err(ConnectError::from)?;
        config.check_limits().map_err(ConnectError::from)?;
        let frame_bytes = config.frame_bytes();
        let small = workers
            .iter()
            .map(Worker::slot_bytes)
            .find(|bytes| usize::try_from(*bytes).is_ok_and(|bytes| bytes < frame_bytes));
        if let Some(slot_bytes) = small {
            return Err(LinkError::SlotsTooSmall {
                slot_bytes,
                frame_bytes,
            });
        }
        let rails = node.worker_rails(workers)?;
        let mut config = *config;
        let order = order_of(workers, node.network.now())?;
        if let Some((classes, _)) = &order {
            // A piece is posted as a whole, so a message of a higher class waits for it.
            let most = classes.piece_bytes_max();
            config.transfers.piece_bytes = config.transfers.piece_bytes().min(most);
        }
        let mut core = Core {
            config,
            order: order.map(|(_, order)| order),
            routes: Routes::default(),
            devices: workers.iter().map(|worker| worker.device().to_owned()).collect(),
            speeds_mbps: (0..workers.len())
                .map(|worker| rails.speed_mbps_of(worker))
                .collect(),
            domains: workers.iter().map(|worker| worker.domain.id()).collect(),
            entries: Vec::new(),
            resting: Resting::default(),
            gone: FormerCounts::default(),
            closing: Vec::new(),
            arrivals: Arrivals::default(),
            ended: Ended::new(config.links_max),
            chance: 0,
            moved: None,
            parting: Vec::new(),
            budget: PlacedBudget::new(config.placed_bytes_all),
            taken: Taken::default(),
        };
        core.chance = drawn(node)?;
        Ok(Self {
            core,
            acceptor: None,
            refreshing: None,
            refreshed: None,
            unreported: None,
            waiting: Waiting::default(),
        })
    }

    /// Listens at this address for peers that begin links. Polling the links advances the handshakes, concurrently. Over TCP,
    /// [`Links::listen`] runs them on a separate thread.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the port is not available.
    pub fn listen_polled(
        &mut self,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Handle, LinkError> {
        let listener = self.bind(node, workers, address)?;
        let handle = *listener.handle();
        let limits = self.core.config.handshakes;
        self.acceptor = Some(PeerAcceptor::here(listener.aside(node, workers, &limits)));
        Ok(handle)
    }

    /// Accepts peers whose handshakes run elsewhere: in a [`Listener`] that was bound with the [`LinkConfig::channel`] of these links, and
    /// with these Workers. [`Links::handle`] and [`Links::refresh`] use the listener's address.
    pub fn accept_from(&mut self, acceptances: Vec<Acceptances<P>>) {
        self.acceptor = Some(PeerAcceptor::elsewhere(acceptances));
    }

    fn bind(
        &self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Listener<P, N>, LinkError> {
        Ok(Listener::bind(node, workers, address, &self.core.config.channel)?)
    }

    /// Begins another scan of the ports of the Workers' devices. Call it after a device reported a change of a port or an address
    /// (`PortActive`, `PortError`, `GidChange` of [`AsyncEvent`](crate::provider::AsyncEvent)). Links that were begun here add the new rails
    /// that reach one of the peer's. The new addresses of this process are announced over a connected rail to peers that began a link, and
    /// these connect to them. On a [`Node::open`] a thread of the Node scans, and polling applies the result, which
    /// [`Links::take_refreshed`] returns.
    ///
    /// # Errors
    /// A Worker belongs to another Node, or the system gave no descriptor.
    pub fn refresh(&mut self, node: &Node<P, N>, workers: &[Worker<P>]) -> Result<(), LinkError> {
        let now = node.network.now();
        match &mut self.refreshing {
            Some(refreshing) => refreshing.follow(Vec::new()),
            None => self.refreshing = Some(Finding::begin(node, workers, Vec::new(), now)?),
        }
        self.go_on_refreshing(node, workers, now);
        Ok(())
    }

    /// Returns the result of [`Links::refresh`], once for each scan: the new handle if it changed, for processes that have no link to this
    /// one. `None` while the scan is under way. If [`Links::refresh`] was called again meanwhile, another scan follows.
    ///
    /// # Errors
    /// The devices could not be listed.
    pub fn take_refreshed(&mut self) -> Option<Result<Option<Handle>, LinkError>> {
        let refreshed = self.refreshed.take()?;
        let handle = refreshed.map(|()| self.unreported.take());
        Some(handle.map_err(LinkError::Connect))
    }

    /// Applies the result of a scan that is done.
    fn go_on_refreshing(&mut self, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) {
        let refreshing = self.refreshing.as_ref();
        let Some(scanned) = refreshing.and_then(|finding| finding.take(node, workers)) else {
            return;
        };
        let is_again = self.refreshing.take().is_some_and(|finding| finding.is_again());
        let is_late = matches!(scanned, Err(ConnectError::PortsTimedOut));
        if is_late {
            log_late();
        }
        // If the scan was late, or something changed during it, another one follows.
        let begun = match is_late || is_again {
            true => Finding::begin(node, workers, Vec::new(), now).map(|next| self.refreshing = Some(next)),
            false => Ok(()),
        };
        if is_late && begun.is_ok() {
            return;
        }
        let seen = scanned.map(|rails| {
            self.unreported = self.go_by(node, &rails, now).or(self.unreported);
        });
        self.refreshed = Some(seen.and(begun));
    }

    /// Applies these rails of this host to all links. Returns the handle if it changed.
    fn go_by(&mut self, node: &Node<P, N>, rails: &Rails, now: Instant) -> Option<Handle> {
        for (worker, speed_mbps) in self.core.speeds_mbps.iter_mut().enumerate() {
            *speed_mbps = rails.speed_mbps_of(worker);
        }
        let handle = self
            .acceptor
            .as_mut()
            .and_then(|acceptor| acceptor.refresh(rails.advertised(), node.instance()));
        if let Some(handle) = handle {
            let before = self.core.moved.map_or(Sequence(0), |(_, number)| number);
            self.core.moved = Some((handle, before.plus(1)));
        }
        for link in self.core.links_mut() {
            if let Some(handle) = link.handle {
                let listed: Vec<_> = handle.rails().iter().collect();
                link.go_by_rails(rails, &listed, now);
                link.ask_for_rails();
            }
        }
        handle
    }

    /// Adopts another handle as [`Links::reroute`] does, with rails of this host from a finished scan.
    pub(crate) fn reroute_over(&mut self, our_rails: &Rails, (id, handle): (LinkId, &Handle), now: Instant) {
        if let Some(link) = self.core.link_mut(id) {
            link.reroute_over(our_rails, handle, now);
        }
    }

    /// Adopts a new handle of the process that a link leads to, whose rails have changed. Existing connections stay, and later ones use
    /// the new handle. A peer with a connected rail announces its new handle itself. Returns whether the handle is of that process.
    pub fn reroute(&mut self, node: &Node<P, N>, workers: &[Worker<P>], id: LinkId, handle: &Handle) -> bool {
        let link = self.core.link_mut(id);
        link.is_some_and(|link| link.reroute(node, workers, handle, node.network.now()))
    }

    /// Draws a random number that need not be secret, and differs between processes.
    pub(crate) fn draw(&mut self) -> u64 {
        self.core.draw()
    }

    /// Returns the handle for peers; `None` if no peers are accepted.
    pub fn handle(&self) -> Option<&Handle> {
        self.acceptor.as_ref()?.handle()
    }

    /// Returns the counts of the peers' handshakes so far.
    pub fn handshakes(&self) -> HandshakeCounts {
        let acceptor = self.acceptor.as_ref();
        acceptor.map_or_else(HandshakeCounts::default, PeerAcceptor::counts)
    }

    /// Returns the reason of a peer's last failed handshake, or of the port's last failure, once.
    #[must_use]
    pub fn take_handshake_failure(&self) -> Option<ConnectError> {
        self.acceptor.as_ref()?.take_failure()
    }

    /// Returns why a listener accepts no peer any more. [`ConnectError::ListenerClosed`]: the handshakes ran elsewhere and ended, or
    /// their thread is gone. [`ConnectError::OtherWorkers`]: a poll was given other Workers than the handshakes were made for. Existing links
    /// continue.
    #[must_use]
    pub fn closed_to_peers(&self) -> Option<&ConnectError> {
        self.acceptor.as_ref()?.closed()
    }

    /// Begins a link to the process that issued a handle, over every pair of rails that reaches it. If the handle has no room for all
    /// rails of the process, the process is asked for the others. Events report when the link is up. On a [`Node::open`] a thread of the
    /// Node scans the ports. If the scan finds that no rail reaches the process, the link ends as
    /// [`FinalReason::Unreachable`](doorbell_core::session::FinalReason), and [`Links::not_connected`] returns the reason.
    ///
    /// # Errors
    /// The limit on links is reached, or there is no memory for another. On a Node without threads, the call also fails if no rail reaches
    /// the process, with the reason for each.
    pub fn connect(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        handle: &Handle,
    ) -> Result<LinkId, LinkError> {
        let listed = handle.rails().iter().collect();
        let finding = Finding::begin(node, workers, listed, node.network.now())?;
        // If a thread scans, polling applies the result, even if it is available now.
        let scanned = match finding.descriptor() {
            None => finding.take(node, workers),
            Some(_) => None,
        };
        if let Some(rails) = scanned {
            return self.connect_over(node, &rails?, handle);
        }
        let mut link = self.begin(node, handle)?;
        link.finding = Some(finding);
        self.put(link)
    }

    /// Begins a link with rails of this host from a finished scan.
    pub(crate) fn connect_over(
        &mut self,
        node: &Node<P, N>,
        our_rails: &Rails,
        handle: &Handle,
    ) -> Result<LinkId, LinkError> {
        let listed: Vec<_> = handle.rails().iter().collect();
        let mut unreached = None;
        let rails = match rails_to(our_rails, &listed) {
            // The process may have further rails that reach this host, which it lists when it is asked.
            Err(why @ ConnectError::NoRoute(_)) if handle.has_more() => {
                unreached = Some(why);
                Vec::new()
            }
            Err(ConnectError::NoRoute(report)) => return Err(LinkError::NoRoute(*report)),
            found => found.map_err(LinkError::Connect)?,
        };
        let mut link = self.begin(node, handle)?;
        link.go_by(&rails, node.network.now());
        if let Some(why) = unreached {
            link.note_unreached(why);
        }
        self.put(link)
    }

    /// Makes a link to the process that issued a handle, without a rail.
    fn begin(&self, node: &Node<P, N>, handle: &Handle) -> Result<Link<P, N>, LinkError> {
        let session = SessionId::new(drawn(node)?).ok_or(LinkError::Entropy(0))?;
        let mut link = Link::new(&self.core.config, Role::Initiator, session, node.network.now())?;
        link.handle = Some(*handle);
        link.ask_for_rails();
        Ok(link)
    }

    fn put(&mut self, link: Link<P, N>) -> Result<LinkId, LinkError> {
        let links_max = self.core.config.links_max;
        let id = self.core.add(link).ok_or(LinkError::TooManyLinks { links_max })?;
        log_begun(id);
        Ok(id)
    }

    /// Copies a message into the link; the next poll sends it. [`SessionEvent::Done`](crate::link::SessionEvent::Done) or
    /// [`SessionEvent::Unknown`](crate::link::SessionEvent::Unknown) identifies the message by the returned number.
    ///
    /// # Errors
    /// [`PushRefusal::Full`] and [`PushRefusal::Recovering`] are backpressure: poll, and try again. [`PushRefusal::Over`] has the
    /// reason of a link's end, also after the event of that end. Once another link has ended at the same index, the error is
    /// [`PushRefusal::Closing`], as for a link that never existed.
    pub fn send(&mut self, id: LinkId, message: &[u8]) -> Result<Sequence, PushRefusal> {
        let pushed = self.core.link_to_send(id)?.push(message);
        self.waiting
            .note_refused(matches!(pushed, Err(PushRefusal::Full)));
        pushed
    }

    /// Sends a message as [`Links::send`] does, and shares its bytes instead of a copy until the peer has acknowledged it.
    pub(crate) fn share(&mut self, id: LinkId, message: &Arc<Vec<u8>>) -> Result<Sequence, PushRefusal> {
        let pushed = self.core.link_to_send(id)?.push_shared(message);
        self.waiting
            .note_refused(matches!(pushed, Err(PushRefusal::Full)));
        pushed
    }

    /// Sends a message of this length as [`Links::send`] does, without a buffer of the caller. Returns the memory in which the link keeps the
    /// message: write it there. The message is accepted when this returns, and the next poll sends the memory's contents. Bytes that the
    /// caller does not write are those of earlier messages to this peer.
    ///
    /// # Errors
    /// As for [`Links::send`]. [`PushRefusal::TooLong`] has the limit of this call: the message has to fit into one fragment
    /// ([`SessionConfig::fragment_bytes`](crate::link::SessionConfig::fragment_bytes)), and may not be longer than
    /// [`LinkConfig::place_messages_over`]. [`Links::send`] accepts longer messages.
    #[inline(always)]
    pub fn send_in_place(&mut self, id: LinkId, bytes: usize) -> Result<(Sequence, &mut [u8]), PushRefusal> {
        let pushed = self.core.link_to_send(id)?.push_whole(bytes);
        if matches!(pushed, Err(PushRefusal::Full)) {
            self.waiting.note_refused(true);
        }
        pushed
    }

    /// Closes a link once all messages are acknowledged and all one-sided requests and transfers have ended, or at the deadline. Messages and
    /// requests that are open at the deadline end as unknown. The link accepts nothing more. Transfers that the peer offered and this side
    /// has not joined are declined ([`EndReason::REFUSED`](crate::link::EndReason)). A transfer that this side offered and the peer has not joined
    /// delays the end: cancel it. If the call is repeated, the earliest deadline counts.
    pub fn close(&mut self, id: LinkId, deadline: Deadline) {
        if let Some(link) = self.core.link_mut(id) {
            link.session.close(deadline);
        }
    }

    /// Polls the Workers and advances every link; `each` gets every event with its link. The call never waits for a peer. On a
    /// [`Node::open`] it does not wait for the device either while a rail is being connected from here.
    ///
    /// # Errors
    /// A Worker cannot be polled, and is of no further use. Or these are not the Workers of [`Links::new`], in their order (errno 22,
    /// `EINVAL`): then nothing was polled.
    ///
    /// # Panics
    /// Panics if a callback does. No event is lost: the callback has had its event, and later polls report the others, in order. Poll again
    /// before sleeping.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        each: impl FnMut(LinkId, LinkEvent<'_>),
    ) -> Result<(), ProviderError> {
        self.poll_beside(node, workers, each, |_, _, _| {})
    }

    /// Polls as [`Links::poll`] does; `other` gets the events of channels that belong to no link, each with the index of its
    /// Worker.
    ///
    /// # Errors
    /// As for [`Links::poll`].
    pub fn poll_beside(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
        other: impl FnMut(usize, Turn<'_, P>, Event<'_, P>),
    ) -> Result<(), ProviderError> {
        self.check_workers(workers)?;
        let now = node.network.now();
        self.take_in(workers, now, &mut each, other)?;
        self.go_on(node, workers, now, each);
        Ok(())
    }

    /// Checks that these are the Workers of [`Links::new`], in their order.
    #[inline]
    pub(crate) fn check_workers(&self, workers: &[Worker<P>]) -> Result<(), ProviderError> {
        let domains = &self.core.domains;
        let mut pairs = workers.iter().zip(domains);
        let is_same = |(worker, domain): (&Worker<P>, &DomainId)| worker.domain.id() == *domain;
        if workers.len() != domains.len() || !pairs.all(is_same) {
            return Err(OTHER_WORKERS);
        }
        Ok(())
    }

    /// The first half of a poll: handles new connections and completions.
    pub(crate) fn take_in(
        &mut self,
        workers: &mut [Worker<P>],
        now: Instant,
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
        mut other: impl FnMut(usize, Turn<'_, P>, Event<'_, P>),
    ) -> Result<(), ProviderError> {
        let Self { core, acceptor, .. } = self;
        core.taken = Taken::default();
        if let Some(acceptor) = acceptor {
            acceptor.poll(workers, core, now);
        }
        for (index, worker) in workers.iter_mut().enumerate() {
            // All completions are taken: the health of a rail depends on them, and one that is left in a queue would count as missing.
            let (count, is_behind) = worker.poll_through(|turn, event| {
                if let Some((turn, event)) = core.dispatch(index, turn, event, now, &mut each) {
                    other(index, turn, event);
                }
            })?;
            core.taken.note(count, is_behind);
        }
        Ok(())
    }

    /// The second half: advances every link, and sends messages that were accepted since the first half, too.
    pub(crate) fn go_on(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        now: Instant,
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
    ) {
        self.go_on_refreshing(node, workers, now);
        // Channels that were given up are shut before an event reports their failure.
        self.core.close_channels(workers, now);
        if self.core.advance(node, workers, now, &mut each) {
            self.core.close_channels(workers, now);
        }
    }

    /// When to poll again at the latest, if no completion arrives and nothing happens on the network before; `None` if there is
    /// nothing to do. The result is valid after a poll: poll again after a call that gives a link something to do, such as [`Links::send`]
    /// or [`Links::cancel`].
    pub fn wake(&self, now: Instant) -> Option<Deadline> {
        let sessions = self.core.links().filter_map(|(_, link)| link.wake(now));
        let connecting = self
            .core
            .links()
            .flat_map(|(_, link)| &link.rails)
            .filter_map(LinkRail::connecting_until);
        let links = || self.core.links().map(|(_, link)| link);
        let questions = links().filter(|link| link.finding.is_none());
        let questions = questions.filter_map(|link| link.question.wake());
        let finding = links().filter_map(|link| link.finding.as_ref());
        let finding = finding.chain(&self.refreshing).map(Finding::deadline);
        let acceptor = self.acceptor.as_ref().and_then(PeerAcceptor::deadline);
        let unclaimed = self.core.routes.unclaimed().map(|(_, until)| until);
        let all = sessions.chain(connecting).chain(questions).chain(finding);
        let parting = self.core.parting.iter().map(|(until, _)| *until);
        all.chain(acceptor).chain(unclaimed).chain(parting).min()
    }

    /// Descriptors that this process's own threads make readable, to be watched for input: a part of [`Links::watched`], which has all. If
    /// handshakes have a thread, a peer that is to be accepted makes one readable. So does a thread that has scanned the ports for a link,
    /// or made a queue pair for a rail that connects from here. The set changes with each poll.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let links = || self.core.links().map(|(_, link)| link);
        let rails = links().flat_map(|link| &link.rails);
        let making = rails.filter_map(|rail| Some(rail.connecting.as_ref()?.making()?.descriptor()));
        let finding = links().filter_map(|link| link.finding.as_ref());
        let finding = finding.chain(&self.refreshing).filter_map(Finding::descriptor);
        let acceptor = self.acceptor.iter().flat_map(PeerAcceptor::descriptors);
        acceptor.chain(making).chain(finding)
    }

    /// Returns the ids of all links.
    pub fn ids(&self) -> impl Iterator<Item = LinkId> {
        self.core.links().map(|(id, _)| id)
    }

    /// Returns the state of a rail of a link.
    #[must_use]
    pub fn rail_state(&self, id: LinkId, rail: u8) -> HealthState {
        let link = self.core.link(id);
        link.map_or(HealthState::Down, |link| link.session.rail_state(rail))
    }

    /// Returns the epoch of a rail's connection, or of its last one. Each new connection of any rail of the link has a higher epoch.
    #[must_use]
    pub fn rail_epoch(&self, id: LinkId, rail: u8) -> Epoch {
        let link = self.core.link(id);
        link.map_or(Epoch::NONE, |link| link.session.rail_epoch(rail))
    }

    /// Returns when a frame last arrived on a rail of a link, or a request on it last completed. The time is kept when the rail fails.
    #[must_use]
    pub fn rail_heard_at(&self, id: LinkId, rail: u8) -> Option<Instant> {
        self.core.link(id)?.session.rail_heard_at(rail)
    }

    /// Returns whether a link has a connected rail.
    #[must_use]
    pub fn is_connected(&self, id: LinkId) -> bool {
        self.core.link(id).is_some_and(|link| link.session.is_connected())
    }

    /// Returns the counts of a link; zero if there is no such link.
    #[must_use]
    pub fn counts(&self, id: LinkId) -> SessionCounts {
        let link = self.core.link(id);
        link.map_or_else(SessionCounts::default, |link| link.session.counts())
    }
}

impl<P: Provider> Links<P, Tcp> {
    /// Listens at this address for peers that begin links. A separate thread runs their handshakes, so a silent, slow or hostile peer
    /// delays neither the others nor this thread.
    ///
    /// # Errors
    /// None of the devices has a usable rail, the port is not available, or the system gave no thread.
    pub fn listen(
        &mut self,
        node: &Arc<Node<P>>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<Handle, LinkError> {
        let listener = self.bind(node, workers, address)?;
        let handle = *listener.handle();
        let limits = self.core.config.handshakes;
        self.acceptor = Some(PeerAcceptor::beside(listener.background(node, workers, &limits)?));
        Ok(handle)
    }
}

/// The error of a poll with other Workers than those of [`Links::new`].
const OTHER_WORKERS: ProviderError = ProviderError {
    call: "a poll with other Workers than the links were made with, or in another order,",
    // EINVAL.
    errno: 22,
};

/// Draws a random number that is not zero.
fn drawn<P: Provider, N: Network>(node: &Node<P, N>) -> Result<u64, LinkError> {
    let mut bytes = [0; size_of::<u64>()];
    match node.network.random(&mut bytes) {
        Ok(()) => Ok(u64::from_le_bytes(bytes).max(1)),
        Err(error) => Err(LinkError::Entropy(error.errno)),
    }
}

impl<P: Provider, N: Network> fmt::Debug for Links<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("links", &self.core.links().count())
            .field("acceptor", &self.acceptor)
            .finish_non_exhaustive()
    }
}
