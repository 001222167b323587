//! The router of a daemon: clients, their jobs and names, and the routing of messages and operations between endpoints.
//!
//! The router has no socket, thread or clock. `Server` adds and removes clients, and `Peers` passes in the frames of other daemons.
//!
//! # Back-pressure
//! No report is dropped. If a receiver has no room, the message stays in its sender's ring, and blocks later submissions of that sender. So
//! a process that does not read blocks only the processes that send to it. Between nodes, each pair of endpoints has 16 credits. The
//! receiving daemon buffers up to that many messages for the pair, so that a receiver never blocks a link.
//!
//! # Bounds
//! A turn takes at most [`RouterLimits::turn`] submissions of each client, and [`RouterLimits::turn_bytes`]. The order of turns is random.
//! So two clients that send to the same busy receiver get equal shares of its room, regardless of other senders.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::sync::atomic::AtomicU32;

use doorbell::interprocess::{announce_sleep, withdraw_sleep};

use crate::client_state::{Arrived, Client, InFlight, Outcome, PAIR_CREDITS, Reported, Waiting};
use crate::descriptor::{Message, Report, Requested, Submission};
use crate::frame::{Frame, Job, Said};
use crate::job_keys::JobKeys;
use crate::name::{Credentials, EndpointAddress, JobKey, JobNumber, NodeNumber};
use crate::reason::{CutReason, GoneReason, UndeliveredReason};

mod admission;
mod attaching;
mod limits;
mod local;
mod one_sided;
mod order;
mod remote;
mod retired;
mod watching;

pub use limits::{RouterCounts, RouterLimits};
use order::Order;
use remote::{Kept, Lane};
pub use retired::Retired;
pub use watching::Ended;
use watching::Members;

#[cfg(test)]
pub(crate) use remote::{LOOKS, PeerFault};

/// Identifies a client. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    index: usize,
    incarnation: u64,
}

/// Number of steps of a poll: move messages, publish reports, return slots.
const POLL_PARTS: u32 = 3;

impl ClientId {
    #[cfg(test)]
    pub(crate) const fn of(index: usize, incarnation: u64) -> Self {
        Self { index, incarnation }
    }

    /// The index of the client in the router's table.
    pub(crate) const fn index(self) -> usize {
        self.index
    }

    /// The incarnation, which no other client of the router has had. It is never 0.
    pub(crate) const fn incarnation(self) -> u64 {
        self.incarnation
    }
}

/// Resources that the clients of a user occupy.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    clients: usize,
    /// Bytes of their shared memory.
    bytes: u64,
    /// Bytes of waiting messages and operations from other nodes.
    kept_bytes: u64,
}

/// Jobs by user and number, so that users cannot claim each other's job numbers.
type Jobs = BTreeMap<(u32, JobNumber), Members>;

/// Result of routing a submission.
enum Step {
    Done,
    /// The submission is taken; its outcome comes later.
    Later,
    /// The submission stays in the ring.
    Stalled,
    Refused(UndeliveredReason),
}

/// Routes messages between endpoints.
#[derive(Debug)]
pub struct Router {
    node: NodeNumber,
    limits: RouterLimits,
    clients: Vec<Option<Client>>,
    jobs: Jobs,
    users: BTreeMap<u32, Usage>,
    incarnations: u64,
    order: Order,
    /// Clients whose memory is not completely mapped yet. Each poll maps the next part for the first one.
    unpopulated: VecDeque<ClientId>,
    payload: Vec<u8>,
    cut: VecDeque<(ClientId, CutReason, Ended)>,
    /// Known nodes.
    nodes: BTreeSet<NodeNumber>,
    /// Frames for other nodes, by lane.
    out: BTreeMap<(NodeNumber, u32), Lane>,
    lanes: u32,
    /// Counts of messages and operations that wait for clients, by pair.
    kept: Kept,
    /// Detached clients whose memory is still mapped.
    retired: VecDeque<Retired>,
    /// Whether absent endpoints may attach again soon.
    is_expecting: bool,
    counts: RouterCounts,
    /// The keys of jobs, if a file has them.
    job_keys: Option<JobKeys>,
}

impl Router {
    /// Creates a router without clients, for the node with this number.
    #[must_use]
    pub fn new(node: NodeNumber, limits: &RouterLimits) -> Self {
        Self {
            node,
            limits: *limits,
            clients: Vec::new(),
            jobs: BTreeMap::new(),
            users: BTreeMap::new(),
            incarnations: 0,
            order: Order::default(),
            unpopulated: VecDeque::new(),
            payload: Vec::new(),
            cut: VecDeque::new(),
            nodes: BTreeSet::new(),
            out: BTreeMap::new(),
            lanes: 1,
            kept: Kept::default(),
            retired: VecDeque::new(),
            is_expecting: false,
            counts: RouterCounts::default(),
            job_keys: None,
        }
    }

    /// The number of this node.
    #[must_use]
    pub const fn node(&self) -> NodeNumber {
        self.node
    }

    /// Counts since the router was created.
    #[must_use]
    pub const fn counts(&self) -> RouterCounts {
        self.counts
    }

    /// Number of messages and operations from other nodes that wait for room at their receivers.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.kept.total
    }

    /// Attached clients, each with its process and its address.
    pub fn clients(&self) -> impl Iterator<Item = (ClientId, Credentials, EndpointAddress)> {
        let named = |(index, client): (usize, &Option<Client>)| {
            let client = client.as_ref()?;
            Some((id_of(index, client), client.who, client.address))
        };
        self.clients.iter().enumerate().filter_map(named)
    }

    /// The job of an attached client.
    pub(crate) fn job_of(&self, id: ClientId) -> Option<JobNumber> {
        let client = self.client(id.index)?;
        (client.incarnation == id.incarnation).then_some(client.job.number)
    }

    /// Sets whether endpoints of the previous daemon may attach again. Meanwhile a message for an absent endpoint waits in its sender's
    /// ring.
    pub fn set_expecting(&mut self, is_expecting: bool) {
        self.is_expecting = is_expecting;
    }

    /// Moves messages, a bounded number for each client. Calls `wake` with each client that sleeps and has something to do. Returns whether
    /// anything was moved. If not, there is nothing to do until a client or a peer acts.
    pub fn poll(&mut self, wake: impl FnMut(ClientId)) -> bool {
        self.poll_parts(wake, POLL_PARTS)
    }

    /// Does only the first steps of a poll. Tests use it for a daemon that dies after any step.
    pub(crate) fn poll_parts(&mut self, wake: impl FnMut(ClientId), parts: u32) -> bool {
        let is_moved = parts > 0 && (self.move_all() | self.populate());
        if parts > 1 {
            self.publish();
        }
        if parts > 2 {
            self.hand_back(wake);
        }
        is_moved
    }

    /// Moves messages and operations. Nothing is visible to clients yet.
    fn move_all(&mut self) -> bool {
        let mut is_moved = false;
        for index in self.order.next(self.clients.len()) {
            match self.turn(index) {
                Ok(moved) => is_moved |= moved,
                Err(reason) => {
                    self.cut_off(index, reason);
                    is_moved = true;
                }
            }
        }
        is_moved
    }

    /// Publishes the reports of all clients.
    fn publish(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            client.is_told |= client.publish();
        }
    }

    /// Returns slots, after all reports are published: see [`Client::hand_back`].
    fn hand_back(&mut self, mut wake: impl FnMut(ClientId)) {
        for (index, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let is_told = core::mem::take(&mut client.is_told) | client.hand_back();
            if is_told && client.is_asleep() {
                wake(id_of(index, client));
            }
        }
    }

    /// Gives a turn to a client that is going to be detached. Returns whether there may be more: then poll, and call it again. If its
    /// receiver has no room, nothing moves. Another process may still write into its ring, so the caller has to set a time limit.
    pub fn poll_last(&mut self, id: ClientId) -> bool {
        let is_same = self
            .client(id.index)
            .is_some_and(|client| client.incarnation == id.incarnation);
        is_same && matches!(self.turn(id.index), Ok(true))
    }

    /// Announces to all clients that the daemon sleeps. The caller has to poll once more before it sleeps.
    pub fn announce_sleep(&self) {
        self.daemon_flags().for_each(announce_sleep);
    }

    /// Withdraws the announcement of a sleep.
    pub fn withdraw_sleep(&self) {
        self.daemon_flags().for_each(withdraw_sleep);
    }

    fn daemon_flags(&self) -> impl Iterator<Item = &AtomicU32> {
        self.clients.iter().flatten().filter_map(Client::daemon_flag)
    }

    fn client(&self, index: usize) -> Option<&Client> {
        self.clients.get(index)?.as_ref()
    }

    fn client_mut(&mut self, index: usize) -> Option<&mut Client> {
        self.clients.get_mut(index)?.as_mut()
    }

    /// The index of the client with this endpoint number in a job.
    fn member(&self, job: &Job, endpoint: u32) -> Option<usize> {
        self.jobs
            .get(&(job.user, job.number))?
            .by_endpoint
            .get(&endpoint)
            .copied()
    }

    /// One turn of a client: first the entries that wait for it, then its submissions.
    #[inline]
    fn turn(&mut self, index: usize) -> Result<bool, CutReason> {
        let (mut bytes, mut reported) = (0_u64, 0);
        let mut is_moved = self.report_waiting(index, &mut reported)?;
        for _ in 0..self.limits.turn {
            if bytes >= self.limits.turn_bytes {
                break;
            }
            let Some(client) = self.client_mut(index) else {
                break;
            };
            // A client that does not read its reports gets no more of them.
            if client.owes_much() {
                break;
            }
            let Some(submission) = client.peek()? else { break };
            let before = bytes;
            if let Submission::Message(message) = &submission {
                bytes = bytes.saturating_add(message.bytes.into());
                if message.to.node == self.node && self.move_known(index, message) {
                    is_moved = true;
                    continue;
                }
            }
            let Some(client) = self.client_mut(index) else {
                break;
            };
            let (step, to, number) = match submission {
                Submission::Message(message) => {
                    let step = if message.to.node == self.node {
                        self.route_here(index, &message)
                    } else {
                        self.route_away(index, &message)
                    };
                    (step, message.to, message.number)
                }
                Submission::Operation(requested) => {
                    bytes = bytes.saturating_add(requested.asked.bytes.into());
                    let step = if requested.to.node == self.node {
                        self.operate_here(index, &requested)
                    } else {
                        self.operate_away(index, &requested)
                    };
                    (step, requested.to, requested.number)
                }
                Submission::Grant(place, granted) => {
                    client.grants.grant(client.layout.arena_bytes(), place, granted)?;
                    (Step::Done, granted.to, 0)
                }
                Submission::Revoke(place) => {
                    client.grants.revoke(place)?;
                    client.owe(Report::Revoked(place), Some(client.position()));
                    (Step::Later, client.address, 0)
                }
            };
            let Some(client) = self.client_mut(index) else {
                break;
            };
            match step {
                Step::Stalled => {
                    bytes = before;
                    break;
                }
                Step::Done | Step::Later => {}
                Step::Refused(reason) => {
                    let position = client.position();
                    client.owe(Report::Undelivered { to, number, reason }, Some(position));
                    self.counts.undelivered = self.counts.undelivered.saturating_add(1);
                }
            }
            if let Some(client) = self.client_mut(index) {
                client.take(matches!(step, Step::Done));
            }
            is_moved = true;
        }
        // The bytes of the whole turn are added at once.
        if bytes > 0 {
            self.counts.taken_bytes = self.counts.taken_bytes.wrapping_add(bytes);
            if let Some(client) = self.client_mut(index) {
                client.sent_bytes = client.sent_bytes.wrapping_add(bytes);
            }
        }
        Ok(self.report_waiting(index, &mut reported)? || is_moved)
    }

    /// Reports waiting entries as far as there is room, and executes waiting operations, until the turn's limit of `bytes` is reached.
    #[inline]
    fn report_waiting(&mut self, index: usize, bytes: &mut u64) -> Result<bool, CutReason> {
        let has_any = self.client(index).is_some_and(Client::has_waiting);
        if has_any {
            self.report_all(index, bytes)
        } else {
            Ok(false)
        }
    }

    fn report_all(&mut self, index: usize, bytes: &mut u64) -> Result<bool, CutReason> {
        let (mut is_moved, mut resumed) = (false, Some(0));
        while *bytes < self.limits.turn_bytes {
            resumed = self.pass_stopped(index, resumed);
            let Some(client) = self.client_mut(index) else {
                break;
            };
            let (job, to) = (client.job, client.address.endpoint);
            let Some(reported) = client.report_waiting()? else {
                break;
            };
            is_moved = true;
            resumed = resumed.map(|resumed: usize| resumed.saturating_sub(1));
            match reported {
                Reported::Report => {}
                Reported::Message(arrived) => {
                    *bytes = bytes.saturating_add(arrived.bytes);
                    self.release(index, &arrived);
                    self.counts.received = self.counts.received.saturating_add(1);
                    self.answer(job, (&arrived, to), Said::Delivered, &[]);
                }
                Reported::Operation(arrived, outcome) => {
                    *bytes = bytes.saturating_add(arrived.bytes.max(arrived.fetched().into()));
                    self.release(index, &arrived);
                    self.answer_operation(job, (&arrived, to), outcome);
                }
            }
        }
        Ok(is_moved)
    }
}

const fn id_of(index: usize, client: &Client) -> ClientId {
    ClientId {
        index,
        incarnation: client.incarnation,
    }
}
