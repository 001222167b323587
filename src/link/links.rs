//! All links of one thread's Workers.

use core::fmt;
use core::net::SocketAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::session::{
    Action, HealthState, PushRefusal, Role, Sequence, SessionCounts, SessionEvent, SessionId,
};
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use super::config::{LinkConfig, LinkError};
use super::dialing::rails_to;
use super::dispatch::{Routes, Whose};
use super::rail::At;
use super::state::{Link, Posted};
use crate::error::ConnectError;
use crate::rails::Rails;
use crate::{Event, HANDSHAKES_MAX, Listener, Node, Tcp, Turn, Worker};

/// Names a link. It names nothing once the link's end was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    index: u32,
    /// Tells links apart that had the same place one after the other.
    generation: u32,
}

/// Something that happened on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent<'m> {
    /// A peer began it.
    Accepted,
    /// A message came: once, and in order.
    Received {
        /// The message.
        message: &'m [u8],
    },
    /// What its session tells: messages that are done, rails, how it is, and its end.
    Session(SessionEvent),
}

/// All links of one thread's Workers: ordered streams of messages, each over all rails that reach its peer.
///
/// It polls the Workers; nothing here waits. A message is copied when it is taken in, since it may have to go
/// again, and when it is sent. Nothing is allocated for it.
///
/// ```no_run
/// use doorbell::vocabulary::session::{PushRefusal, SessionEvent};
/// use doorbell::{LinkConfig, LinkEvent, Links, Node, Trust, WorkerConfig};
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
pub struct Links<P: Provider = Rdma, N: Network = Tcp> {
    core: Core<P, N>,
    listener: Option<Listener<P, N>>,
}

/// What polling the Workers needs of it.
pub(super) struct Core<P: Provider, N: Network> {
    pub(super) config: LinkConfig,
    pub(super) routes: Routes,
    /// The speed of each Worker's fastest rail.
    pub(super) speeds_mbps: Vec<u32>,
    places: Vec<Place<P, N>>,
    /// Channels to be closed, and by when.
    closing: Vec<(At, Deadline)>,
    chance: u64,
}

struct Place<P: Provider, N: Network> {
    generation: u32,
    link: Option<Link<P, N>>,
}

impl<P: Provider, N: Network> Links<P, N> {
    /// No link yet, on these Workers: the same are to be given in each call, in the same order.
    ///
    /// # Errors
    /// A Worker's slots are too small for a fragment, the rails cannot be looked at, or there is no chance.
    pub fn new(node: &Node<P, N>, workers: &[Worker<P>], config: &LinkConfig) -> Result<Self, LinkError> {
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
        let rails = Rails::scan(node, workers)?;
        let mut core = Core {
            config: *config,
            routes: Routes::default(),
            speeds_mbps: (0..workers.len())
                .map(|worker| rails.speed_mbps_of(worker))
                .collect(),
            places: Vec::new(),
            closing: Vec::new(),
            chance: 0,
        };
        core.chance = drawn(node)?;
        Ok(Self { core, listener: None })
    }

    /// Lets peers begin links, at this address.
    ///
    /// # Errors
    /// None of the devices has a usable rail, or the port cannot be had.
    pub fn listen(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        address: SocketAddr,
    ) -> Result<&Handle, LinkError> {
        let listener = Listener::bind(node, workers, address, &self.core.config.channel)?;
        Ok(self.listener.insert(listener).handle())
    }

    /// Begins a link to the process that handed out a handle, over every pair of rails by which it is reached. Its events say
    /// when it is there.
    ///
    /// # Errors
    /// No rail reaches it: each with its reason. Or there are too many links.
    pub fn connect(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        handle: &Handle,
    ) -> Result<LinkId, LinkError> {
        let rails = rails_to(node, workers, handle).map_err(|error| match error {
            ConnectError::NoRoute(report) => LinkError::NoRoute(report),
            error => LinkError::Connect(error),
        })?;
        let session = SessionId::new(drawn(node)?).ok_or(LinkError::Entropy(0))?;
        let now = node.network.now();
        let mut link = Link::new(&self.core.config, Role::Initiator, session, now);
        link.handle = Some(*handle);
        for (between, speed_mbps) in rails {
            let Some(rail) = link.session.add_rail(speed_mbps, now) else {
                break;
            };
            if let Some(rail) = link.rail_mut(rail) {
                rail.between = Some(between);
            }
        }
        self.core.add(link).ok_or(LinkError::TooManyLinks)
    }

    /// Takes a message to be sent; the next poll sends it. [`SessionEvent::Done`] or [`SessionEvent::Unknown`] names it by
    /// what is returned.
    ///
    /// # Errors
    /// [`PushRefusal::Full`] and [`PushRefusal::Recovering`] are back-pressure: poll, and try again.
    pub fn send(&mut self, id: LinkId, message: &[u8]) -> Result<Sequence, PushRefusal> {
        let link = self.core.link_mut(id).ok_or(PushRefusal::Closing)?;
        link.push(message)
    }

    /// Closes a link once everything is acknowledged, and by the deadline in any case.
    pub fn close(&mut self, id: LinkId, deadline: Deadline) {
        if let Some(link) = self.core.link_mut(id) {
            link.session.close(deadline);
        }
    }

    /// Polls the Workers and moves every link as far as it can; `each` gets every event with its link. Never waits.
    ///
    /// # Errors
    /// A Worker cannot be polled, and is of no further use.
    pub fn poll(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        each: impl FnMut(LinkId, LinkEvent<'_>),
    ) -> Result<(), ProviderError> {
        self.poll_beside(node, workers, each, |_, _, _| {})
    }

    /// The same; `other` gets the events of channels that are no link's, each with the index of its Worker.
    ///
    /// # Errors
    /// As for [`Links::poll`].
    pub fn poll_beside(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
        mut other: impl FnMut(usize, Turn<'_, P>, Event<P>),
    ) -> Result<(), ProviderError> {
        let now = node.network.now();
        self.accept(node, workers, now);
        let core = &mut self.core;
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.poll(|turn, event| {
                if let Some((turn, event)) = core.dispatch(index, turn, event, now, &mut each) {
                    other(index, turn, event);
                }
            })?;
        }
        core.advance(node, workers, now, &mut each);
        core.close_channels(workers, now);
        Ok(())
    }

    /// When to poll again at the latest, if no completion and nothing on the network comes before; `None` where there is
    /// nothing to be done.
    pub fn wake(&self, now: Instant) -> Option<Deadline> {
        let sessions = self.core.links().filter_map(|(_, link)| link.session.wake(now));
        let connecting = self
            .core
            .links()
            .flat_map(|(_, link)| &link.rails)
            .filter_map(|rail| Some(rail.connecting.as_ref()?.deadline()));
        let listener = self.listener.as_ref().and_then(Listener::deadline);
        let unclaimed = self.core.routes.unclaimed().map(|(_, until)| until);
        sessions.chain(connecting).chain(listener).chain(unclaimed).min()
    }

    /// The links there are.
    pub fn ids(&self) -> impl Iterator<Item = LinkId> {
        self.core.links().map(|(id, _)| id)
    }

    /// How a rail of a link is.
    #[must_use]
    pub fn rail_state(&self, id: LinkId, rail: u8) -> HealthState {
        let link = self.core.link(id);
        link.map_or(HealthState::Down, |link| link.session.rail_state(rail))
    }

    /// Whether a link has a rail.
    #[must_use]
    pub fn is_connected(&self, id: LinkId) -> bool {
        self.core.link(id).is_some_and(|link| link.session.is_connected())
    }

    /// What a link counted; nothing where there is none.
    #[must_use]
    pub fn counts(&self, id: LinkId) -> SessionCounts {
        let link = self.core.link(id);
        link.map_or_else(SessionCounts::default, |link| link.session.counts())
    }

    /// Takes what peers connect.
    fn accept(&mut self, node: &Node<P, N>, workers: &mut [Worker<P>], now: Instant) {
        let Some(listener) = &mut self.listener else {
            return;
        };
        // A port that fails does so each time: no more than there can be outcomes.
        for _ in 0..HANDSHAKES_MAX {
            match listener.poll_accept(node, workers) {
                Ok(Some(connection)) => {
                    let at = At {
                        worker: connection.worker,
                        channel: connection.channel,
                    };
                    let until = Deadline::after(now, self.core.config.session.attach_within);
                    self.core.routes.set(at, Whose::Unclaimed(until));
                }
                Ok(None) => break,
                // A handshake that failed is its peer's to do again.
                Err(_) => {}
            }
        }
    }
}

impl<P: Provider, N: Network> Core<P, N> {
    pub(super) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link<P, N>> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        place.link.as_mut()
    }

    fn link(&self, id: LinkId) -> Option<&Link<P, N>> {
        let place = self.places.get(id.index as usize)?;
        place.link.as_ref().filter(|_| place.generation == id.generation)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = (LinkId, &Link<P, N>)> {
        (0_u32..).zip(&self.places).filter_map(|(index, place)| {
            let generation = place.generation;
            Some((LinkId { index, generation }, place.link.as_ref()?))
        })
    }

    /// Puts a link in; `None` where there are as many as may be.
    pub(super) fn add(&mut self, link: Link<P, N>) -> Option<LinkId> {
        let free = self.places.iter().position(|place| place.link.is_none());
        let at = free.unwrap_or(self.places.len());
        let index = u32::try_from(at)
            .ok()
            .filter(|index| *index < self.config.links_max)?;
        if free.is_none() {
            self.places.push(Place {
                generation: 0,
                link: None,
            });
        }
        let place = self.places.get_mut(at)?;
        place.link = Some(link);
        let generation = place.generation;
        Some(LinkId { index, generation })
    }

    /// Takes a link out, and closes what it has.
    pub(super) fn remove(&mut self, id: LinkId, now: Instant) {
        let Some(mut link) = self.places.get_mut(id.index as usize).and_then(|place| {
            place.generation = place.generation.wrapping_add(1);
            place.link.take()
        }) else {
            return;
        };
        for rail in &mut link.rails {
            if let Some(at) = rail.detach() {
                self.give_up(at, Deadline::at(now));
            }
        }
    }

    /// Has a channel closed at the end of the poll.
    pub(super) fn give_up(&mut self, at: At, by: Deadline) {
        self.routes.remove(at);
        self.closing.push((at, by));
    }

    /// Whether a channel is to be closed at the end of the poll.
    pub(super) fn is_closing(&self, at: At) -> bool {
        self.closing.iter().any(|(closing, _)| *closing == at)
    }

    /// Chance that need not be secret.
    pub(super) fn draw(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance
    }

    /// Moves every link as far as it can, and tells what there is to tell.
    fn advance(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) {
        for index in 0..self.places.len() {
            let random = self.draw();
            let Self {
                places,
                routes,
                closing,
                config,
                ..
            } = self;
            let Some((generation, link)) = places
                .get_mut(index)
                .and_then(|place| Some((place.generation, place.link.as_mut()?)))
            else {
                continue;
            };
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let id = LinkId { index, generation };
            link.poll_connecting(node, workers, (now, random), config.frame_bytes(), |rail, at| {
                routes.set(at, Whose::Rail(id, rail));
            });
            link.session.begin_turn();
            while let Some(action) = link.session.poll_action(now, random) {
                act(link, &action, node, workers, config, (now, random), |at| {
                    routes.remove(at);
                    closing.push((at, Deadline::at(now)));
                });
            }
            let mut is_over = false;
            while let Some(event) = link.session.poll_event() {
                is_over |= matches!(event, SessionEvent::Final { .. });
                each(id, LinkEvent::Session(event));
            }
            if is_over {
                self.remove(id, now);
            }
        }
    }

    /// Closes what is to be closed, channels nobody has claimed in time among it.
    fn close_channels(&mut self, workers: &mut [Worker<P>], now: Instant) {
        loop {
            let late = self.routes.unclaimed().find(|(_, until)| until.has_passed(now));
            let Some((at, _)) = late else {
                break;
            };
            self.give_up(at, Deadline::at(now));
        }
        for (at, by) in self.closing.drain(..) {
            if let Some(worker) = workers.get_mut(at.worker) {
                // One that is gone needs no closing.
                let _ = worker.begin_close(at.channel, by);
            }
        }
    }
}

/// Does what a session asks for.
fn act<P: Provider, N: Network>(
    link: &mut Link<P, N>,
    action: &Action,
    node: &Node<P, N>,
    workers: &mut [Worker<P>],
    config: &LinkConfig,
    (now, random): (Instant, u64),
    mut close: impl FnMut(At),
) {
    let rail = match *action {
        Action::Connect { rail, epoch } => {
            match link.dial(rail, epoch, node, workers, config) {
                Ok(connecting) => {
                    if let Some(rail) = link.rail_mut(rail) {
                        rail.connecting = Some(connecting);
                    }
                }
                Err(_) => link.session.connect_failed(rail, false, now, random),
            }
            return;
        }
        Action::Shut { rail } => {
            if let Some(at) = link.rail_mut(rail).and_then(super::rail::LinkRail::detach) {
                close(at);
            }
            return;
        }
        Action::Attach { rail, .. }
        | Action::Transmit { rail, .. }
        | Action::Acknowledge { rail, .. }
        | Action::Probe { rail }
        | Action::Farewell { rail, .. } => rail,
        _ => return,
    };
    match link.post(action, workers) {
        Posted::Done(ticket) => {
            if let Some(rail) = link.rail_mut(rail) {
                rail.posted(ticket, action.backlog_bytes());
            }
            link.session.did(action, now);
        }
        Posted::Blocked => link.session.blocked(rail),
        Posted::Failed => {
            if let Some(at) = link.rail_mut(rail).and_then(super::rail::LinkRail::detach) {
                close(at);
            }
            link.session.failed(rail, now, random);
        }
    }
}

/// A random number that is not zero, as nearly all are.
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
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}
