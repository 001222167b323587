//! Links to the daemons of other nodes, and the frames over them. A few links to each node are made when they are first needed.
//!
//! A daemon sends over the links that it began, and receives over the links that others began. The first frame on a link identifies the
//! node that began it, and its epoch. If one link to or from a node ends, all of its links are closed, and everything in flight ends. The
//! next links have a new epoch, so that they cannot be confused with the previous ones.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use doorbell::connect::Tcp;
use doorbell::link::{
    HealthState, LinkConfig, LinkDescriptor, LinkError, LinkEvent, LinkId, Links, PushRefusal, SessionEvent,
};
use doorbell::provider::{Clock as _, Instant, Network, Provider, ProviderError};
use doorbell::worker::Watched;
use doorbell::{Deadline, Handle, Node, Rdma, WaitError, Worker};

use crate::frame::{Frame, Said};
use crate::log::log;
use crate::name::NodeNumber;
use crate::quota::Quota;
use crate::router::Router;
use crate::status::{LinkState, LinkStatus, NodeStatus};

/// Maximum number of links to one node.
pub const LANES_MAX: u32 = 16;

/// Pause before the next attempt after the links of a node ended or could not be made.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Time for which attempts to reach a node are repeated before the frames that wait for it are given up. A daemon that restarts soon
/// listens again, under a new handle.
const REACH_WITHIN: Duration = Duration::from_secs(1);

/// Deadline for closing a link that is given up.
const FAREWELL: Duration = Duration::from_millis(100);

/// State of another node.
#[derive(Debug)]
struct Way {
    handle: Handle,
    /// The links to it that this daemon began, by lane.
    lanes: Vec<Option<Lane>>,
    /// Epoch of the links that this daemon began.
    epoch: u64,
    /// Instance and epoch of the links that the node began.
    theirs: Option<(u64, u64)>,
    /// No attempt is made before this time.
    retry: Option<Deadline>,
    /// Set while no link to the node can be made. The first attempt that fails after this time gives the node up.
    give_up: Option<Deadline>,
    /// Number of times that everything in flight with the node ended.
    lost: u64,
    /// Whether the current loss is in the log. Further failed attempts are not logged as new losses.
    is_logged: bool,
    /// Limits the log events of this node.
    quota: Quota,
}

/// Links to the daemons of other nodes.
#[derive(Debug)]
pub struct Peers<P: Provider = Rdma, N: Network = Tcp> {
    node: Arc<Node<P, N>>,
    workers: Vec<Worker<P>>,
    links: Links<P, N>,
    own: NodeNumber,
    /// A random number that distinguishes this daemon from every other one.
    instance: u64,
    lanes: u32,
    ways: BTreeMap<NodeNumber, Way>,
    accepted: Vec<Accepted>,
}

/// A link that this daemon began.
#[derive(Debug)]
struct Lane {
    id: LinkId,
    /// Whether its first frame, which introduces this node, was sent.
    is_introduced: bool,
}

/// A link that another daemon began.
#[derive(Debug)]
struct Accepted {
    id: LinkId,
    /// Its node, after its first frame.
    from: Option<NodeNumber>,
}

impl<P: Provider, N: Network> Peers<P, N> {
    /// Creates the set of links, without any link, and `lanes` links to each node, from 1 to [`LANES_MAX`]. The links are polled: see
    /// [`Peers::listen_polled`].
    ///
    /// # Errors
    /// As for [`Links::new`].
    pub fn new(
        node: Arc<Node<P, N>>,
        workers: Vec<Worker<P>>,
        config: &LinkConfig,
        lanes: u32,
    ) -> Result<Self, LinkError> {
        let links = Links::new(&node, &workers, config)?;
        let mut instance = [0; size_of::<u64>()];
        let drawn = node.network().random(&mut instance);
        drawn.map_err(|error| LinkError::Entropy(error.errno))?;
        Ok(Self {
            node,
            workers,
            links,
            own: NodeNumber(0),
            instance: u64::from_le_bytes(instance),
            lanes: lanes.clamp(1, LANES_MAX),
            ways: BTreeMap::new(),
            accepted: Vec::new(),
        })
    }

    /// Accepts links from the daemons of other nodes, and returns the handle by which they connect.
    ///
    /// # Errors
    /// As for [`Links::listen_polled`].
    pub fn listen_polled(&mut self, address: SocketAddr) -> Result<Handle, LinkError> {
        self.links.listen_polled(&self.node, &self.workers, address)
    }

    /// Sets the handle by which a node is reached. Its links are made when the first message for it is sent. A different handle than before
    /// means a different daemon. Then all links of the node are closed if this daemon has begun one and sent on it; otherwise only attempts
    /// are dropped, and links that the other daemon began stay.
    pub fn add(&mut self, router: &mut Router, number: NodeNumber, handle: Handle) {
        self.own = router.node();
        router.add_node(number, self.lanes);
        if let Some(way) = self.ways.get_mut(&number) {
            if core::mem::replace(&mut way.handle, handle) == handle {
                return;
            }
            let now = self.node.network().now();
            let given_up = if way.lanes.iter().flatten().any(|lane| lane.is_introduced) {
                forget(router, (&mut self.ways, &mut self.accepted), number, now)
            } else {
                // The end of the previous daemon was noticed already, or nothing was sent to it: only attempts are dropped.
                let attempts = way.lanes.iter_mut().filter_map(Option::take);
                attempts.map(|lane| lane.id).collect()
            };
            if let Some(way) = self.ways.get_mut(&number) {
                (way.retry, way.give_up) = (None, None);
            }
            self.close(given_up);
            return;
        }
        let lanes = (0..self.lanes).map(|_| None).collect();
        let way = Way {
            handle,
            lanes,
            epoch: 1,
            theirs: None,
            retry: None,
            give_up: None,
            lost: 0,
            is_logged: false,
            quota: Quota::default(),
        };
        self.ways.insert(number, way);
    }

    /// Number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.ids().count()
    }

    /// The links, and the Workers that carry them, for monitoring.
    pub fn watch(&mut self) -> (&Links<P, N>, &mut [Worker<P>]) {
        (&self.links, &mut self.workers)
    }

    /// The known nodes, each with its links. The router adds the frames that wait for them.
    pub(crate) fn nodes(&self) -> Vec<NodeStatus> {
        let mut accepted = BTreeMap::<_, Vec<_>>::new();
        for link in &self.accepted {
            accepted.entry(link.from).or_default().push(link.id);
        }
        let node = |(number, way): (&NodeNumber, &Way)| {
            let begun = way.lanes.iter().flatten().map(|lane| (lane.id, true));
            let accepted = accepted.get(&Some(*number)).into_iter().flatten();
            let links = begun.chain(accepted.map(|id| (*id, false)));
            NodeStatus {
                node: *number,
                lost: way.lost,
                waiting_frames: 0,
                waiting_bytes: 0,
                links: links
                    .map(|(id, is_begun_here)| self.link(id, is_begun_here))
                    .collect(),
            }
        };
        self.ways.iter().map(node).collect()
    }

    fn link(&self, id: LinkId, is_begun_here: bool) -> LinkStatus {
        let rails = || self.links.rails(id);
        let is_up = |state| state == HealthState::Up;
        let mut status = LinkStatus {
            is_begun_here,
            state: LinkState::of_rails(self.links.is_connected(id), rails().map(|rail| rail.state)),
            rails: 0,
            rails_up: 0,
            sent_bytes: 0,
            received_bytes: 0,
        };
        for rail in rails() {
            status.rails = status.rails.saturating_add(1);
            status.rails_up = status.rails_up.saturating_add(is_up(rail.state).into());
            status.sent_bytes = status.sent_bytes.wrapping_add(rail.counts.sent_bytes);
            status.received_bytes = status.received_bytes.wrapping_add(rail.counts.received_bytes);
        }
        status
    }

    /// Polls the links: receives and sends frames. Returns whether anything moved.
    ///
    /// # Errors
    /// A Worker cannot be polled, and cannot be used any more.
    pub fn poll(&mut self, router: &mut Router) -> Result<bool, ProviderError> {
        let mut hearing = Hearing::new(
            router,
            &mut self.ways,
            &mut self.accepted,
            self.node.network().now(),
        );
        let polled = self
            .links
            .poll(&self.node, &mut self.workers, |id, event| hearing.hear(id, event));
        let Hearing {
            given_up, is_moved, ..
        } = hearing;
        self.close(given_up);
        polled?;
        Ok(self.send(router) || is_moved)
    }

    fn close(&mut self, given_up: Vec<LinkId>) {
        let farewell = self.node.within(FAREWELL);
        for id in given_up {
            self.links.close(id, farewell);
        }
    }

    /// Sends the frames that wait, and makes links if there are none.
    fn send(&mut self, router: &mut Router) -> bool {
        let mut lost = Vec::new();
        let Self {
            node,
            workers,
            links,
            own,
            instance,
            ways,
            ..
        } = self;
        let now = node.network().now();
        let is_moved = router.send_frames(|number, lane, frame| {
            let Some(way) = ways.get_mut(&number) else {
                return false;
            };
            if way.retry.is_some_and(|retry| !retry.has_passed(now)) || lost.contains(&number) {
                return false;
            }
            let handle = way.handle;
            let Some(place) = usize::try_from(lane)
                .ok()
                .and_then(|lane| way.lanes.get_mut(lane))
            else {
                return false;
            };
            if place.is_none() {
                let begun = links.connect(node, workers, &handle);
                *place = begun.ok().map(|id| Lane {
                    id,
                    is_introduced: false,
                });
            }
            let Some(lane) = place else {
                lost.push(number);
                return false;
            };
            let hello = Frame::hello(own.0, *instance, way.epoch).bytes();
            let mut send = |frame| match links.send(lane.id, frame) {
                Ok(_) => true,
                // Also while the link connects.
                Err(PushRefusal::Full | PushRefusal::Recovering) => false,
                Err(_) => {
                    lost.push(number);
                    false
                }
            };
            if !lane.is_introduced && send(&hello) {
                (lane.is_introduced, way.give_up, way.is_logged) = (true, None, false);
                if way.quota.allows_next(number.0, now) {
                    log!(info, "link to a node", node = number.0, epoch = way.epoch);
                }
            }
            lane.is_introduced && send(frame)
        });
        for number in lost {
            let given_up = forget(router, (&mut self.ways, &mut self.accepted), number, now);
            self.close(given_up);
        }
        is_moved
    }
}

impl<P: Watched> Peers<P, Tcp> {
    /// Accepts links from the daemons of other nodes, with a thread for the handshakes, and returns the handle by which they connect.
    ///
    /// # Errors
    /// As for [`Links::listen`].
    pub fn listen(&mut self, address: SocketAddr) -> Result<Handle, LinkError> {
        self.links.listen(&self.node, &self.workers, address)
    }

    /// Prepares for sleep, as [`Links::ready_to_sleep`] does. Returns the time to sleep until, or `None` if something happened.
    ///
    /// # Errors
    /// As for [`Links::ready_to_sleep`].
    pub fn ready_to_sleep(&mut self, router: &mut Router) -> Result<Option<Deadline>, WaitError> {
        let retry = self.node.within(RETRY_AFTER);
        let now = self.node.network().now();
        let mut hearing = Hearing::new(router, &mut self.ways, &mut self.accepted, now);
        let (node, workers) = (&self.node, &mut self.workers);
        let ready = self
            .links
            .ready_to_sleep(node, workers, |id, event| hearing.hear(id, event));
        let given_up = hearing.given_up;
        self.close(given_up);
        // Frames may wait for a node whose next attempt is later.
        Ok(ready?.map(|until| {
            if router.has_frames() {
                until.min(retry)
            } else {
                until
            }
        }))
    }

    /// The descriptors that have to wake a sleeping daemon.
    ///
    /// # Errors
    /// As for [`Links::watched`].
    pub fn watched(&self) -> Result<impl Iterator<Item = LinkDescriptor<'_>>, WaitError> {
        self.links.watched(&self.workers)
    }
}

/// Handles events of links, and updates the state of the nodes.
struct Hearing<'p> {
    router: &'p mut Router,
    ways: &'p mut BTreeMap<NodeNumber, Way>,
    accepted: &'p mut Vec<Accepted>,
    now: Instant,
    /// Links to close after the poll, since they are borrowed now.
    given_up: Vec<LinkId>,
    is_moved: bool,
}

impl<'p> Hearing<'p> {
    const fn new(
        router: &'p mut Router,
        ways: &'p mut BTreeMap<NodeNumber, Way>,
        accepted: &'p mut Vec<Accepted>,
        now: Instant,
    ) -> Self {
        Self {
            router,
            ways,
            accepted,
            now,
            given_up: Vec::new(),
            is_moved: false,
        }
    }

    fn hear(&mut self, id: LinkId, event: LinkEvent<'_>) {
        let at = self.accepted.iter().position(|link| link.id == id);
        let from = at.and_then(|at| self.accepted.get(at)).and_then(|link| link.from);
        self.is_moved = true;
        match event {
            LinkEvent::Accepted => self.accepted.push(Accepted { id, from: None }),
            LinkEvent::Received { message } => match (at, from) {
                (Some(at), None) => {
                    self.accepted.swap_remove(at);
                    self.introduce(id, message);
                }
                (_, Some(from)) if self.router.take_frame(from, message).is_err() => self.forget(from),
                // A message of a link that was given up.
                _ => {}
            },
            LinkEvent::Session(SessionEvent::Final { .. }) => {
                self.accepted.retain(|link| link.id != id);
                if let Some(number) = from.or_else(|| self.end_lane(id)) {
                    self.forget(number);
                }
            }
            _ => {}
        }
    }

    /// Ends a link that this daemon began. Returns its node if it is lost: a frame was sent over the link, or attempts failed for too long.
    fn end_lane(&mut self, id: LinkId) -> Option<NodeNumber> {
        let is_it = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.id == id);
        let mut ways = self.ways.iter_mut();
        let (number, way) = ways.find(|(_, way)| way.lanes.iter().any(is_it))?;
        let give_up = way
            .give_up
            .get_or_insert(Deadline::after(self.now, REACH_WITHIN))
            .has_passed(self.now);
        let lane = way.lanes.iter_mut().find(|lane| is_it(lane))?;
        if give_up || lane.as_ref().is_some_and(|lane| lane.is_introduced) {
            return Some(*number);
        }
        *lane = None;
        way.retry = Some(Deadline::after(self.now, RETRY_AFTER));
        None
    }

    /// Handles the first frame of a link.
    fn introduce(&mut self, id: LinkId, message: &[u8]) {
        let Some((number, theirs)) = said_hello(message, self.ways) else {
            self.given_up.push(id);
            return;
        };
        let before = self.ways.get(&number).and_then(|way| way.theirs);
        if before.is_some_and(|before| before != theirs) {
            self.forget(number);
        }
        if let Some(way) = self.ways.get_mut(&number) {
            (way.theirs, way.is_logged) = (Some(theirs), false);
            if way.quota.allows_next(number.0, self.now) {
                log!(info, "link of a node", node = number.0, instance = theirs.0);
            }
        }
        self.accepted.push(Accepted {
            id,
            from: Some(number),
        });
    }

    fn forget(&mut self, number: NodeNumber) {
        let given_up = forget(self.router, (self.ways, self.accepted), number, self.now);
        self.given_up.extend(given_up);
    }
}

/// Ends everything in flight with a node, and returns the links to close.
fn forget(
    router: &mut Router,
    (ways, accepted): (&mut BTreeMap<NodeNumber, Way>, &mut Vec<Accepted>),
    number: NodeNumber,
    now: Instant,
) -> Vec<LinkId> {
    router.lose_node(number);
    let mut given_up = Vec::new();
    if let Some(way) = ways.get_mut(&number) {
        // If a node was never linked, only attempts end: this is not counted as a loss.
        let is_begun = way.lanes.iter().flatten().any(|lane| lane.is_introduced);
        let is_linked = way.theirs.is_some() || is_begun;
        given_up.extend(way.lanes.iter_mut().filter_map(Option::take).map(|lane| lane.id));
        way.epoch = way.epoch.saturating_add(1);
        way.lost = way.lost.saturating_add(is_linked.into());
        if !core::mem::replace(&mut way.is_logged, true) && way.quota.allows_next(number.0, now) {
            log!(warn, "node lost", node = number.0, links = given_up.len());
        }
        (way.retry, way.theirs) = (Some(Deadline::after(now, RETRY_AFTER)), None);
        way.give_up = None;
    }
    accepted.retain(|link| {
        let is_of_node = link.from == Some(number);
        given_up.extend(is_of_node.then_some(link.id));
        !is_of_node
    });
    given_up
}

/// Parses the first frame of a link: a known node, and the instance and epoch of its links.
fn said_hello(message: &[u8], ways: &BTreeMap<NodeNumber, Way>) -> Option<(NodeNumber, (u64, u64))> {
    let (frame, _) = Frame::parse(message).ok()?;
    let number = NodeNumber(frame.from);
    (frame.said == Said::Hello && ways.contains_key(&number))
        .then_some((number, (frame.incarnation, frame.number)))
}

#[cfg(test)]
mod tests;
