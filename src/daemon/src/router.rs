//! The router of a daemon: clients, their jobs and names, and the way of each message and operation between endpoints.
//!
//! It has no socket, thread or clock. `Server` gives it clients and their ends, and `Peers` the frames of other daemons.
//!
//! # Back-pressure
//! No report is dropped. A message that its receiver has no room for stays in its sender's ring, and blocks what is behind it there:
//! so a process that does not read blocks its own senders alone. Between nodes each pair of endpoints has 16 credits. The receiving
//! daemon keeps so many messages for the pair, so that no link is ever blocked by a receiver.
//!
//! # Bounds
//! A turn takes at most [`RouterLimits::turn`] messages of each client, and [`RouterLimits::turn_bytes`]. The order of turns is random: two
//! clients whose messages are for one that has little room have equal parts of it, whoever else sends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::sync::atomic::AtomicU32;

use doorbell::interprocess::{announce_sleep, withdraw_sleep};

use crate::client_state::{Arrived, Client, InFlight, Outcome, PAIR_CREDITS, Reported, Waiting};
use crate::descriptor::{Message, Report, Requested, Submission};
use crate::frame::{Frame, Job, Said};
use crate::layout::EndpointMemory;
use crate::name::{Credentials, EndpointAddress, JobKey, JobNumber, NodeNumber};
use crate::packet::AttachRequest;
use crate::reason::{AttachRefusal, CutReason, GoneReason, UndeliveredReason};

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
pub(crate) use remote::PeerFault;

/// Name of a client. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    index: usize,
    incarnation: u64,
}

/// The most clients that are detached and whose memory waits to be taken. It is unmapped at once for more.
const RETIRED_MAX: usize = 64;

/// Parts of a poll: messages are moved, reports are published, slots are handed back.
const POLL_PARTS: u32 = 3;

impl ClientId {
    #[cfg(test)]
    pub(crate) const fn of(index: usize, incarnation: u64) -> Self {
        Self { index, incarnation }
    }

    /// Its place among the clients.
    pub(crate) const fn index(self) -> usize {
        self.index
    }

    /// A number that no other client of the router has had. It is never 0.
    pub(crate) const fn incarnation(self) -> u64 {
        self.incarnation
    }
}

/// The clients of a user.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    clients: usize,
    /// Bytes of their memory.
    bytes: u64,
    /// Bytes of messages and operations of other nodes that wait for them.
    kept_bytes: u64,
}

/// Outcome of a submission.
enum Step {
    Done,
    /// It is taken; its outcome comes later.
    Later,
    /// It stays where it is.
    Stalled,
    Refused(UndeliveredReason),
}

/// Routes messages between endpoints.
#[derive(Debug)]
pub struct Router {
    node: NodeNumber,
    limits: RouterLimits,
    clients: Vec<Option<Client>>,
    /// By user and number: no user takes the numbers of another.
    jobs: BTreeMap<(u32, JobNumber), Members>,
    users: BTreeMap<u32, Usage>,
    incarnations: u64,
    order: Order,
    /// Clients whose memory is not in the page table yet: the first one's next part is put there in each poll.
    unpopulated: VecDeque<ClientId>,
    payload: Vec<u8>,
    cut: VecDeque<(ClientId, CutReason, Ended)>,
    /// Nodes that there is a way to.
    nodes: BTreeSet<NodeNumber>,
    /// Frames for other nodes, by lane.
    out: BTreeMap<(NodeNumber, u32), Lane>,
    lanes: u32,
    /// Counts of what waits for clients, by pairs.
    kept: Kept,
    /// Clients whose memory is still mapped.
    retired: VecDeque<Retired>,
    /// Whether endpoints that are not there may come back soon.
    is_expecting: bool,
    counts: RouterCounts,
}

impl Router {
    /// A router without clients, for the node with this number.
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
        }
    }

    /// The number of this node.
    #[must_use]
    pub const fn node(&self) -> NodeNumber {
        self.node
    }

    /// Counts since the beginning.
    #[must_use]
    pub const fn counts(&self) -> RouterCounts {
        self.counts
    }

    /// Messages of other nodes that are kept for clients without room.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.kept.total
    }

    /// The clients that are attached, each with its process and its address.
    pub fn clients(&self) -> impl Iterator<Item = (ClientId, Credentials, EndpointAddress)> {
        let named = |(index, client): (usize, &Option<Client>)| {
            let client = client.as_ref()?;
            Some((id_of(index, client), client.who, client.address))
        };
        self.clients.iter().enumerate().filter_map(named)
    }

    /// Says whether endpoints of a daemon before may come back. While they may, what is for an endpoint that is not there waits.
    pub fn set_expecting(&mut self, is_expecting: bool) {
        self.is_expecting = is_expecting;
    }

    /// Looks whether a process may attach, before its memory is mapped.
    ///
    /// # Errors
    /// A limit is reached, the job has another key, or the endpoint's number is taken.
    pub fn admit(&self, who: Credentials, request: &AttachRequest) -> Result<(), AttachRefusal> {
        let clients = self.users.values().map(|user| user.clients);
        if clients.fold(0, usize::saturating_add) >= self.limits.clients_max {
            return Err(AttachRefusal::TooManyClients);
        }
        let user = self.users.get(&who.uid).copied().unwrap_or_default();
        if user.clients >= self.limits.clients_of_user_max {
            return Err(AttachRefusal::TooManyOfUser);
        }
        let bytes = request.layout.bytes();
        if user.bytes.saturating_add(bytes) > self.limits.bytes_of_user_max {
            return Err(AttachRefusal::MemoryOfUser);
        }
        let members = self.jobs.get(&(who.uid, request.job));
        let of_job = members.map_or(0, |members| members.bytes);
        if of_job.saturating_add(bytes) > self.limits.bytes_of_job_max {
            return Err(AttachRefusal::MemoryOfJob);
        }
        let Some(members) = members else {
            return Ok(());
        };
        if members.key != request.key {
            return Err(AttachRefusal::JobKey);
        }
        if members.by_endpoint.contains_key(&request.endpoint) {
            return Err(AttachRefusal::NameTaken);
        }
        Ok(())
    }

    /// Attaches a process, whose memory was adopted with the sizes of its [`EndpointLayout`](crate::layout::EndpointLayout).
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
                    // An eighth more: twice as many would leave half of a large table empty.
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

    /// Frees all that a client had, and reports its end to the endpoints that it exchanged messages with. `None` if it is detached already.
    pub fn detach(&mut self, id: ClientId, reason: GoneReason) -> Option<Ended> {
        let client = self.client(id.index)?;
        if client.incarnation != id.incarnation {
            return None;
        }
        self.remove(id.index, reason)
    }

    /// The next client that was cut off, once each. It is detached already.
    pub fn take_cut(&mut self) -> Option<(ClientId, CutReason, Ended)> {
        self.cut.pop_front()
    }

    /// The memory of a client that is detached, if it is large: dropping it takes long, and another thread can do that.
    pub fn take_retired(&mut self) -> Option<Retired> {
        self.retired.pop_front()
    }

    /// Moves messages, of each client a bounded number. `wake` names the clients that sleep and have something to do. Returns whether
    /// anything was moved: if not, nothing is to be done before a client or a peer does something.
    pub fn poll(&mut self, wake: impl FnMut(ClientId)) -> bool {
        self.poll_parts(wake, POLL_PARTS)
    }

    /// Does the first so many parts of a poll: a daemon may die behind each.
    pub(crate) fn poll_parts(&mut self, wake: impl FnMut(ClientId), parts: u32) -> bool {
        let mut is_moved = parts > 0 && (self.move_all() | self.populate());
        if parts > 1 {
            self.publish();
        }
        if parts > 2 {
            is_moved |= self.hand_back(wake);
        }
        is_moved
    }

    /// Puts some pages of a new client into the page table. The others go on meanwhile. An access that comes first finds the page itself.
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

    /// Moves messages and operations. Clients see nothing of that yet.
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

    /// Hands slots back, once all reports are published: see [`Client::hand_back`].
    fn hand_back(&mut self, mut wake: impl FnMut(ClientId)) -> bool {
        let mut is_moved = false;
        for (index, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let is_told = core::mem::take(&mut client.is_told) | client.hand_back();
            is_moved |= is_told;
            if is_told && client.is_asleep() {
                wake(id_of(index, client));
            }
        }
        is_moved
    }

    /// Gives a turn to a client that is going to be detached. Returns whether there is more: then poll, and call it again. Without room it
    /// moves nothing. Somebody may still write into its ring, so give it a limited time.
    pub fn poll_last(&mut self, id: ClientId) -> bool {
        let is_same = self
            .client(id.index)
            .is_some_and(|client| client.incarnation == id.incarnation);
        is_same && matches!(self.turn(id.index), Ok(true))
    }

    /// Announces to all clients that the daemon sleeps. Poll once more before it does.
    pub fn announce_sleep(&self) {
        self.daemon_flags().for_each(announce_sleep);
    }

    /// The daemon's sleep is over.
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

    /// Outcome of what is for an endpoint of this node that is not there.
    const fn no_endpoint(&self) -> Step {
        if self.is_expecting {
            Step::Stalled
        } else {
            Step::Refused(UndeliveredReason::NoEndpoint)
        }
    }

    /// The client with this endpoint number in a job.
    fn member(&self, job: &Job, endpoint: u32) -> Option<usize> {
        self.jobs
            .get(&(job.user, job.number))?
            .by_endpoint
            .get(&endpoint)
            .copied()
    }

    /// One client's turn: what waits for it, then what it submits.
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
            // A client that does not read its refusals gets no more of them.
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
        // Counted once for all that was taken.
        if bytes > 0 {
            self.counts.taken_bytes = self.counts.taken_bytes.wrapping_add(bytes);
            if let Some(client) = self.client_mut(index) {
                client.sent_bytes = client.sent_bytes.wrapping_add(bytes);
            }
        }
        Ok(self.report_waiting(index, &mut reported)? || is_moved)
    }

    /// Reports what waits for a client as far as there is room, and carries out the operations that wait, until its turn has as many `bytes`
    /// of them as it may.
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
        let mut is_moved = false;
        while *bytes < self.limits.turn_bytes {
            self.pass_stopped(index);
            let Some(client) = self.client_mut(index) else {
                break;
            };
            let (job, to) = (client.job, client.address.endpoint);
            let Some(reported) = client.report_waiting()? else {
                break;
            };
            is_moved = true;
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

    /// Gives a message to a process of this node that its sender has met, and takes it from the sender. `false` if there is more to it.
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

    /// Gives a message to an endpoint of this node.
    fn route_here(&mut self, index: usize, submission: &Message) -> Step {
        let contacts_max = self.limits.contacts_max;
        let Some((job, from)) = self.client(index).map(|client| (client.job, client.address)) else {
            return Step::Stalled;
        };
        // A way that was found before is right as long as the same process is there, and both have met.
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
            // Behind what waits: reports stay in order.
            Ok(true) if receiver.waiting.is_empty() => {}
            Ok(_) => return Step::Stalled,
            Err(reason) => {
                self.cut_off(to, reason);
                return Step::Refused(UndeliveredReason::ReceiverGone);
            }
        }
        if known.is_none() {
            let id = id_of(to, receiver);
            let meets = receiver.meets(from, contacts_max);
            if !meets || !self.meets(index, submission.to) {
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

/// Two clients. `None` if they are one, or one is not there.
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
