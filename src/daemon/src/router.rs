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
use crate::layout::EndpointMemory;
use crate::name::{Credentials, EndpointAddress, JobKey, JobNumber, NodeNumber};
use crate::packet::AttachRequest;
use crate::reason::{AttachRefusal, CutReason, GoneReason, UndeliveredReason};

mod admission;
mod limits;
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

/// Maximum number of detached clients whose memory waits to be unmapped by another thread. Beyond it the memory is unmapped at once.
const RETIRED_MAX: usize = 64;

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
    /// Jobs by user and number, so that users cannot claim each other's job numbers.
    jobs: BTreeMap<(u32, JobNumber), Members>,
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

    /// Sets whether endpoints of the previous daemon may attach again. Meanwhile a message for an absent endpoint waits in its sender's
    /// ring.
    pub fn set_expecting(&mut self, is_expecting: bool) {
        self.is_expecting = is_expecting;
    }

    /// Attaches a process whose memory was adopted with the [`EndpointLayout`](crate::layout::EndpointLayout) of its request.
    ///
    /// # Errors
    /// As for [`Router::admit`].
    pub fn attach(
        &mut self,
        who: Credentials,
        request: &AttachRequest,
        memory: EndpointMemory,
    ) -> Result<ClientId, AttachRefusal> {
        self.admit(who, request)?;
        self.incarnations = self.incarnations.saturating_add(1);
        let address = EndpointAddress {
            node: self.node,
            endpoint: request.endpoint,
        };
        let job = Job {
            number: request.job,
            key: request.key,
            user: who.uid,
        };
        let client = Client::new(who, job, address, self.incarnations, request.layout, memory);
        let index = match self.clients.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                let count = self.clients.len();
                if count == self.clients.capacity() {
                    // Grows by an eighth: doubling would leave half of a large table empty.
                    self.clients.reserve_exact((count / 8).max(8));
                }
                self.clients.push(None);
                count
            }
        };
        let id = id_of(index, &client);
        self.unpopulated.push_back(id);
        if let Some(place) = self.clients.get_mut(index) {
            *place = Some(client);
        }
        let members = self
            .jobs
            .entry((who.uid, request.job))
            .or_insert_with(|| Members::new(request.key, id.incarnation));
        let bytes = request.layout.bytes();
        members.bytes = members.bytes.saturating_add(bytes);
        members.by_endpoint.insert(request.endpoint, index);
        let user = self.users.entry(who.uid).or_default();
        user.clients = user.clients.saturating_add(1);
        user.bytes = user.bytes.saturating_add(bytes);
        self.counts.attached = self.counts.attached.saturating_add(1);
        Ok(id)
    }

    /// Frees all resources of a client, and reports its end to the endpoints that it exchanged messages with. Returns `None` if it is
    /// already detached.
    pub fn detach(&mut self, id: ClientId, reason: GoneReason) -> Option<Ended> {
        let client = self.client(id.index)?;
        if client.incarnation != id.incarnation {
            return None;
        }
        self.remove(id.index, reason)
    }

    /// Returns the next client that was cut off, once each. It is already detached.
    pub fn take_cut(&mut self) -> Option<(ClientId, CutReason, Ended)> {
        self.cut.pop_front()
    }

    /// Returns a detached client whose memory is large. Dropping it takes long, so another thread should do so.
    pub fn take_retired(&mut self) -> Option<Retired> {
        self.retired.pop_front()
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

    /// Maps some pages of a new client, so that other clients are not delayed. An earlier access faults its page in.
    fn populate(&mut self) -> bool {
        let Some(id) = self.unpopulated.pop_front() else {
            return false;
        };
        let client = self.client_mut(id.index);
        let client = client.filter(|client| client.incarnation == id.incarnation);
        if client.is_some_and(Client::populate) {
            self.unpopulated.push_back(id);
        }
        true
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

    /// Result for a submission to an absent endpoint of this node.
    const fn no_endpoint(&self) -> Step {
        if self.is_expecting {
            Step::Stalled
        } else {
            Step::Refused(UndeliveredReason::NoEndpoint)
        }
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

    /// Copies a message to a process of this node over a cached route, and takes it from the sender. Returns `false` if it has to be routed.
    #[inline]
    fn move_known(&mut self, index: usize, message: &Message) -> bool {
        let known = self
            .client(index)
            .and_then(|client| client.routes.get(message.to.endpoint));
        let Some(route) = known else { return false };
        let Some((sender, receiver)) = both(&mut self.clients, index, route.index()) else {
            return false;
        };
        let is_moved = route.is_to(receiver) && receiver.take_from(sender, message.bytes);
        if is_moved {
            sender.take(true);
            self.counts.local = self.counts.local.saturating_add(1);
        }
        is_moved
    }

    /// Delivers a message to an endpoint of this node.
    fn route_here(&mut self, index: usize, submission: &Message) -> Step {
        let Some((job, from)) = self.client(index).map(|client| (client.job, client.address)) else {
            return Step::Stalled;
        };
        // A cached route is valid as long as the same process is there. Both are already contacts of each other.
        let known = self
            .client(index)
            .and_then(|client| client.routes.get(submission.to.endpoint));
        let known = known.filter(|route| {
            let there = self.client(route.index());
            there.is_some_and(|there| route.is_to(there))
        });
        let member = || self.member(&job, submission.to.endpoint);
        let Some(to) = known.map_or_else(member, |route| Some(route.index())) else {
            return self.no_endpoint();
        };
        let Some(receiver) = self.client_mut(to) else {
            return self.no_endpoint();
        };
        if submission.bytes > receiver.layout.message_bytes() {
            return Step::Refused(UndeliveredReason::TooLong);
        }
        match receiver.has_room() {
            // Waiting entries come first, so that reports stay in order.
            Ok(true) if receiver.waiting.is_empty() => {}
            Ok(_) => return Step::Stalled,
            Err(reason) => {
                self.cut_off(to, reason);
                return Step::Refused(UndeliveredReason::ReceiverGone);
            }
        }
        if known.is_none() {
            let id = id_of(to, receiver);
            if !self.meet(index, (to, submission.to)) {
                return Step::Refused(UndeliveredReason::TooManyPeers);
            }
            if let Some(client) = self.client_mut(index) {
                client.routes.set(submission.to.endpoint, id);
            }
        }
        let mut payload = core::mem::take(&mut self.payload);
        if let Some(sender) = self.client(index) {
            sender.copy_payload(submission.bytes, &mut payload);
        }
        let report = Report::Message {
            from,
            bytes: submission.bytes,
        };
        let reported = self
            .client_mut(to)
            .map(|receiver| receiver.report(&report, &payload));
        self.payload = payload;
        match reported {
            Some(Ok(true)) => {
                self.counts.local = self.counts.local.saturating_add(1);
                Step::Done
            }
            Some(Err(reason)) => {
                self.cut_off(to, reason);
                Step::Refused(UndeliveredReason::ReceiverGone)
            }
            Some(Ok(false)) | None => Step::Stalled,
        }
    }

    /// Whether two clients of this node may exchange messages: `index`, and the client `at` this index and address. If so, each becomes a contact
    /// of the other.
    fn meet(&mut self, index: usize, (at, address): (usize, EndpointAddress)) -> bool {
        let contacts_max = self.limits.contacts_max;
        match both(&mut self.clients, index, at) {
            // No contact of one of them remains if the limit of the other refuses.
            Some((client, other)) => {
                client.may_meet(address, contacts_max)
                    && other.meets(client.address, contacts_max)
                    && client.meets(address, contacts_max)
            }
            None => self.meets(index, address),
        }
    }

    fn meets(&mut self, index: usize, other: EndpointAddress) -> bool {
        let contacts_max = self.limits.contacts_max;
        self.client_mut(index)
            .is_some_and(|client| client.meets(other, contacts_max))
    }

    fn cut_off(&mut self, index: usize, reason: CutReason) {
        let id = self.client(index).map(|client| id_of(index, client));
        if let Some((id, ended)) = id.zip(self.remove(index, GoneReason::CutOff)) {
            self.cut.push_back((id, reason, ended));
        }
    }

    fn remove(&mut self, index: usize, reason: GoneReason) -> Option<Ended> {
        let client = self.clients.get_mut(index).and_then(Option::take)?;
        let is_cut = reason == GoneReason::CutOff;
        self.counts.cut = self.counts.cut.saturating_add(is_cut.into());
        let name = (client.job.user, client.job.number);
        let members = self.jobs.get_mut(&name);
        let is_last = members.is_some_and(|members| members.end(&client));
        if is_last {
            self.jobs.remove(&name);
        }
        let ended = Ended {
            who: client.who,
            job: client.job.number,
            endpoint: client.address.endpoint,
            is_last,
        };
        for arrived in client.arrived() {
            self.kept
                .release(&mut self.users, client.who.uid, (index, arrived));
        }
        if let Some(user) = self.users.get_mut(&client.who.uid) {
            user.clients = user.clients.saturating_sub(1);
            user.bytes = user.bytes.saturating_sub(client.layout.bytes());
            if user.clients == 0 {
                self.users.remove(&client.who.uid);
            }
        }
        let job = client.job;
        for other in self.clients.iter_mut().flatten().filter(|other| other.job == job) {
            other.lose(client.address, reason);
        }
        self.remove_away(&client, reason);
        let retired = Retired::new(client).filter(|_| self.retired.len() < RETIRED_MAX);
        self.retired.extend(retired);
        Some(ended)
    }
}

/// Borrows two clients. Returns `None` if they are the same, or one does not exist.
#[inline]
fn both(clients: &mut [Option<Client>], one: usize, other: usize) -> Option<(&mut Client, &mut Client)> {
    let (low, high) = clients.split_at_mut_checked(one.max(other))?;
    let (low, high) = (
        low.get_mut(one.min(other))?.as_mut()?,
        high.first_mut()?.as_mut()?,
    );
    Some(if one < other { (low, high) } else { (high, low) })
}

const fn id_of(index: usize, client: &Client) -> ClientId {
    ClientId {
        index,
        incarnation: client.incarnation,
    }
}
