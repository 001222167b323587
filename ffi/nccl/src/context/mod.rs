//! A context: a node, its Workers, their links, and the comms on the links. A lock serializes NCCL's calls on a context.
//!
//! Two processes share one link in each direction, whatever the number of comms between them: a link costs memory and queue pairs on each
//! rail, and NCCL opens dozens of comms to each peer. Each frame carries the number of its comm. Only memory registration and closing
//! block.

mod comm;
mod connecting;
mod flushes;
mod late;
mod loans;
mod memories;
mod receiving;
mod relaying;
mod sending;
mod state;

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{
    LinkConfig, LinkError, LinkId, Links, PushRefusal, Sequence, TransferOptions, TransferRefusal,
};
use doorbell::{Handle, Node, Worker};

use crate::abi::NcclResult;
use crate::device::Device;
use crate::failure::Failure;
use crate::frame::Frame;
use crate::handle::INNER_BYTES_MAX;
use crate::lifeline::Lifelines;
use crate::log;
use crate::places::{Key, Places};
use crate::relay::Relays;
use crate::relay::credit::Credit;
use crate::relay::frame::CircuitFrame;
use crate::settings::PluginSettings;
pub(crate) use loans::Loan;
pub(crate) use receiving::Incoming;
pub(crate) use sending::Outgoing;

use flushes::Flushes;

use comm::{Comm, EntryState, Owed, Stage};
use state::{Join, Line, Moving, MovingOf, State};

/// Longest wait for the acknowledgments of the peers when a context is closed.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How long a link is still polled after the process of its peer has ended.
pub(crate) const LEFT_WITHIN: Duration = Duration::from_millis(5);

/// Longest wait for the peer's acknowledgment when a comm is closed.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// Result of an attempt to send a message.
enum Said {
    Taken(Sequence),
    /// There is no room in the send queue, or no rail: try again later.
    Later,
    Over,
}

/// A context. See the module.
#[derive(Debug)]
pub(crate) struct Context {
    links: Links,
    lifelines: Lifelines,
    flushes: Flushes,
    workers: Vec<Worker>,
    node: Arc<Node>,
    /// The handle of the listening socket that all listeners share.
    door: Handle,
    state: State,
    /// Configuration of new links.
    link: LinkConfig,
    /// Whether transfers arrive in memory that is lent to the peer.
    has_loans: bool,
    /// Whether all devices can register dma-bufs, which is needed for GPU memory.
    has_devices_memory: bool,
    /// Number of transfers that registered memory themselves, since the link had no free loan.
    unlent: u64,
    relays: Relays,
    /// Longest wait for the answer of one relay.
    patience: Duration,
    timeout: Duration,
    /// Scratch buffer in which messages are assembled.
    buffer: Box<[u8]>,
    /// Number of polls.
    pub(crate) polls: u64,
    /// Whether messages wait for the next poll.
    is_dirty: bool,
    /// Error of the Worker that cannot be polled any more.
    broken: Option<String>,
}

impl Context {
    /// Opens the devices, and listens for peers.
    pub(crate) fn open(settings: &PluginSettings) -> Result<Self, Failure> {
        let values = &settings.values;
        let mut node = Node::open(settings.trust.clone()).map_err(Failure::system)?;
        node.set_rail_filter(values.rails.clone());
        let node = Arc::new(node);
        let workers = node.workers(&values.worker).map_err(Failure::system)?;
        let mut links = Links::new(&node, &workers, &values.link).map_err(Failure::system)?;
        let door = listen(&mut links, &node, &workers, 0).map_err(Failure::system)?;
        let door = door.shortened(INNER_BYTES_MAX).map_err(Failure::system)?;
        let has_devices_memory = node.imports_dmabuf(&workers).unwrap_or_else(|error| {
            log::warn(format_args!(
                "no memory of GPUs is moved, since a device does not say whether it registers dma-bufs: {error}"
            ));
            false
        });
        let device = Device::look(&node, has_devices_memory && !settings.relays.is_on())?;
        let lifelines = Lifelines::open(values.link.links_max)
            .map_err(|error| Failure::system(format_args!("no TCP port for lifelines: {error}")))?;
        log::info(format_args!(
            "RDMA over {} ({} ports, {} Workers), {}; messages of {} bytes and less are copied, longer ones are transfers",
            device.name.to_string_lossy(),
            device.rails,
            workers.len(),
            if settings.trust.is_authenticated() {
                "peers prove a key"
            } else {
                "peers are not authenticated"
            },
            settings.eager_bytes_max,
        ));
        Ok(Self {
            links,
            lifelines,
            flushes: Flushes::default(),
            workers,
            node,
            door,
            state: State::new(settings.relays.is_on(), settings.eager_bytes_max),
            link: values.link,
            has_loans: settings.has_loans,
            has_devices_memory,
            unlent: 0,
            relays: settings.relays.clone(),
            patience: settings.patience(),
            timeout: values.timeout,
            buffer: vec![0; settings.message_bytes_max].into_boxed_slice(),
            polls: 0,
            is_dirty: false,
            broken: None,
        })
    }

    /// Makes progress on all links.
    pub(crate) fn poll(&mut self) -> Result<(), Failure> {
        self.check_works()?;
        if self.state.is_owing {
            self.pay();
        }
        if !self.state.parts.is_empty() {
            self.pay_parts();
        }
        self.is_dirty = false;
        self.polls = self.polls.wrapping_add(1);
        let Self {
            links,
            workers,
            node,
            state,
            ..
        } = self;
        let polled = links.poll(node, workers, |link, event| state.hear(link, event));
        if let Err(error) = polled {
            let why = format!("a device's queues cannot be polled any more: {error}");
            self.break_down(&why);
            return Err(Failure::system(why));
        }
        self.answer_offers();
        self.go_on_ending();
        self.follow_lifelines();
        self.shut_broken();
        if !self.state.seeks.is_empty() {
            self.seek();
        }
        Ok(())
    }

    /// Watches the processes of peers, and ends the links of processes that have ended.
    fn follow_lifelines(&mut self) {
        let mut lines = core::mem::take(&mut self.state.lines);
        for (link, line) in lines.drain(..) {
            match line {
                Line::Watch(port) => {
                    let addresses = self.links.rails(link).map(|rail| rail.peer);
                    if let Err(error) = self.lifelines.watch(link, addresses, port) {
                        log::warn(format_args!(
                            "link {link}: the end of the peer's process will be noticed late, since the system gave no thread: {error}"
                        ));
                    }
                }
                Line::Ask => self.lifelines.ask(link),
                Line::Forget => self.lifelines.forget(link),
            }
        }
        self.state.lines = lines;
        if !self.state.leaving.is_empty() {
            let now = doorbell::now();
            let State { leaving, broken, .. } = &mut self.state;
            leaving.retain(|(link, until)| {
                let is_due = until.has_passed(now);
                if is_due {
                    log::warn(format_args!("link {link}: the peer's process has ended"));
                    broken.push(*link);
                }
                !is_due
            });
        }
        for link in self.lifelines.take_gone() {
            // Messages from before the end may still be in flight. The link is polled at least once more, however slow this thread is.
            let until = self.node.within(LEFT_WITHIN);
            if self.state.peer_mut(link).is_some() {
                self.state.leaving.push((link, until));
            }
        }
    }

    /// Fails everything that waits, since nothing can complete any more. Destroys all queue pairs, so that no peer can access NCCL's
    /// memory.
    fn break_down(&mut self, why: &str) {
        self.broken = Some(why.to_owned());
        self.end_all(NcclResult::SYSTEM_ERROR);
        for (_, memory) in self.state.memories.iter_mut() {
            memory.loans.clear();
        }
        (self.state.left, self.state.ending) = (Vec::new(), Vec::new());
        self.flushes = Flushes::default();
        // `Links::new` fails if devices cannot be listed, or without entropy. Memory is then released when the context is closed.
        if let Ok(none) = Links::new(&self.node, &self.workers, &self.link) {
            self.links = none;
        }
        self.workers = Vec::new();
    }

    /// Returns the error of a context that can no longer be used.
    fn check_works(&self) -> Result<(), Failure> {
        self.broken
            .as_ref()
            .map_or(Ok(()), |why| Err(Failure::system(why)))
    }

    /// Fails all requests and comms.
    fn end_all(&mut self, code: NcclResult) {
        for (_, comm) in self.state.comms.iter_mut() {
            comm.fail_waiting(code);
            comm.stage = Stage::Failed(code);
        }
        let moving = core::mem::take(&mut self.state.moving);
        for moving in moving {
            self.end_moving(&moving, code);
        }
        for part in core::mem::take(&mut self.state.parts) {
            self.state.end_part(&part, comm::SendState::Failed(code));
        }
    }

    fn end_moving(&mut self, moving: &Moving, code: NcclResult) {
        match moving.of {
            MovingOf::Receive { target, .. } => self.state.set_entry(target, EntryState::Failed(code)),
            MovingOf::Send { slot, serial, .. } => {
                let comm = self.state.comms.get_mut(moving.comm);
                if let Some(comm::Side::Send(sends)) = comm.map(|comm| &mut comm.side) {
                    if let Some(request) = sends.request(slot, serial) {
                        request.state = comm::SendState::Failed(code);
                    }
                }
            }
        }
    }

    /// Joins the offered transfers that match a receive, and declines the others.
    fn answer_offers(&mut self) {
        while let Some(join) = self.state.joins.pop() {
            self.join(&join);
        }
        while let Some((link, transfer)) = self.state.declines.pop() {
            let _ = self.links.cancel(&self.node, (link, transfer));
            self.is_dirty = true;
        }
    }

    fn join(&mut self, join: &Join) {
        let Join {
            link,
            transfer,
            target,
            bytes,
        } = *join;
        self.is_dirty = true;
        let place = self.state.place_of(target);
        let loan = place.and_then(|(key, _)| self.loan(link, key));
        let memory = place.and_then(|(key, offset)| Some((key, offset, self.state.memories.get(key)?)));
        let Some((memory, offset, of)) = memory else {
            let _ = self.links.cancel(&self.node, (link, transfer));
            self.state
                .set_entry(target, EntryState::Failed(NcclResult::INVALID_USAGE));
            return;
        };
        let mut options = TransferOptions::default();
        options.loan = loan;
        match self
            .links
            .join(&self.node, (link, transfer), (&of.region, offset), &options)
        {
            Ok(()) => self.state.moving.push(Moving {
                link,
                transfer,
                comm: target.to,
                memory,
                of: MovingOf::Receive { target, bytes },
                is_lent: loan.is_some(),
            }),
            Err(refusal) => {
                log::warn(format_args!("a receive of {bytes} bytes failed: {refusal}"));
                let code = match refusal {
                    TransferRefusal::NotOpen | TransferRefusal::Over(_) | TransferRefusal::Closing => {
                        NcclResult::REMOTE_ERROR
                    }
                    _ => NcclResult::SYSTEM_ERROR,
                };
                self.state.set_entry(target, EntryState::Failed(code));
                let _ = self.links.cancel(&self.node, (link, transfer));
            }
        }
    }

    /// Closes links whose peers violated the protocol.
    fn shut_broken(&mut self) {
        while let Some(link) = self.state.broken.pop() {
            self.shut(link);
        }
    }

    /// Closes a link immediately, since its peer failed or violated the protocol.
    fn shut(&mut self, link: LinkId) {
        for (_, comm) in self.state.comms.iter_mut().filter(|(_, comm)| comm.link == link) {
            comm.fail_waiting(NcclResult::REMOTE_ERROR);
            if comm.stage != Stage::Closing {
                comm.stage = Stage::Failed(NcclResult::REMOTE_ERROR);
            }
        }
        self.links.close(link, self.node.within(Duration::ZERO));
        self.is_dirty = true;
    }

    /// Sends the control messages that are owed to peers, as far as there is room.
    fn pay(&mut self) {
        self.state.is_owing = false;
        let hello = Frame::Hello {
            port: self.lifelines.port(),
        };
        let Self {
            links,
            buffer,
            state,
            is_dirty,
            ..
        } = self;
        let mut is_full = false;
        for peer in state.peers.iter_mut().filter(|peer| peer.owes_hello) {
            let length = hello.write(buffer);
            // The other end of the link handles this message, even if it is a relay.
            match said(links.send(peer.id, buffer.get(..length).unwrap_or_default())) {
                Said::Taken(_) => (peer.owes_hello, *is_dirty) = (false, true),
                Said::Later => is_full = true,
                Said::Over => peer.owes_hello = false,
            }
        }
        for (link, credit) in &mut state.circuits {
            let Some(bytes) = credit.owes() else { continue };
            let length = CircuitFrame::Credit { bytes }.write(buffer);
            match said(links.send(*link, buffer.get(..length).unwrap_or_default())) {
                Said::Taken(_) => {
                    credit.paid(bytes);
                    *is_dirty = true;
                }
                Said::Later => is_full = true,
                Said::Over => {}
            }
        }
        state.cuts.retain(|(link, target)| {
            let said = say(
                links,
                &mut state.circuits,
                buffer,
                *link,
                &Frame::Cut { target: *target },
            );
            is_full |= matches!(said, Said::Later);
            matches!(said, Said::Later)
        });
        state.fences.retain(|(link, to)| {
            let said = say(
                links,
                &mut state.circuits,
                buffer,
                *link,
                &Frame::Passed { to: *to },
            );
            is_full |= matches!(said, Said::Later);
            matches!(said, Said::Later)
        });
        let mut closed = Vec::new();
        for (key, comm) in state.comms.iter_mut() {
            let frame = match (comm.owes, comm.peer) {
                (Some(Owed::Open(listener)), _) => Frame::Open {
                    listener,
                    number: key,
                },
                (Some(Owed::Opened), Some(to)) => Frame::Opened { to, number: key },
                (Some(Owed::Close), Some(to)) => Frame::Close {
                    to,
                    is_given_up: comm.is_attempt,
                },
                _ => continue,
            };
            match say(links, &mut state.circuits, buffer, comm.link, &frame) {
                Said::Taken(_) => {
                    *is_dirty = true;
                    if comm.owes == Some(Owed::Close) {
                        closed.push(key);
                    }
                    comm.owes = None;
                }
                Said::Later => state.is_owing = true,
                // The event of the link's end does the rest.
                Said::Over => {}
            }
        }
        for key in closed {
            state.comms.remove(key);
        }
        state.refusals.retain(|(link, (to, reason))| {
            let frame = Frame::Refused {
                to: *to,
                reason: *reason,
            };
            let said = say(links, &mut state.circuits, buffer, *link, &frame);
            is_full |= matches!(said, Said::Later);
            matches!(said, Said::Later)
        });
        state.is_owing |= is_full;
    }

    /// Closes all links when their peers have acknowledged all messages, at the latest at a deadline.
    pub(crate) fn close(mut self) {
        if self.unlent > 0 {
            log::info(format_args!(
                "{} transfers registered memory for themselves, since their links had no loan left",
                self.unlent
            ));
        }
        if self.state.is_owing {
            self.pay();
        }
        let deadline = self.node.within(CLOSE_WITHIN);
        let ids: Vec<LinkId> = self.links.ids().collect();
        for moving in core::mem::take(&mut self.state.moving) {
            let _ = self.links.cancel(&self.node, (moving.link, moving.transfer));
        }
        for id in ids {
            self.links.close(id, deadline);
        }
        while self.links.ids().next().is_some() && !deadline.has_passed(doorbell::now()) {
            if self.poll().is_err() {
                break;
            }
        }
        let Self {
            links,
            flushes,
            workers,
            node,
            state,
            ..
        } = self;
        drop((links, flushes, state));
        drop(workers);
        if !node.settle(node.within(CLOSE_WITHIN)) {
            log::warn("a device has not destroyed all objects of a context in time");
        }
    }

    /// Finds a comm that is not closed.
    fn comm(&mut self, key: Key) -> Result<&mut Comm, Failure> {
        let comm = self.state.comms.get_mut(key);
        let comm = comm.filter(|comm| comm.stage != Stage::Closing);
        comm.ok_or_else(no_comm)
    }

    fn say(&mut self, link: LinkId, frame: &Frame<'_>) -> Said {
        say(
            &mut self.links,
            &mut self.state.circuits,
            &mut self.buffer,
            link,
            frame,
        )
    }
}

/// Finds a comm on which requests may be posted.
#[inline]
fn usable(comms: &mut Places<Comm>, key: Key) -> Result<&mut Comm, Failure> {
    let comm = comms.get_mut(key).ok_or_else(no_comm)?;
    match comm.stage {
        Stage::Opening { .. } | Stage::Open => Ok(comm),
        Stage::Failed(code) => Err(Failure::logged(code)),
        Stage::Closing => Err(no_comm()),
    }
}

#[cold]
fn no_comm() -> Failure {
    Failure::argument("there is no such comm: it was closed, or never opened")
}

fn say(
    links: &mut Links,
    circuits: &mut [(LinkId, Credit)],
    buffer: &mut [u8],
    link: LinkId,
    frame: &Frame<'_>,
) -> Said {
    let length = frame.write(buffer);
    push(links, circuits, link, buffer.get(..length).unwrap_or_default())
}

/// Sends a message over a link if a relay on the way has room for it. All messages between the two ends are sent by this function.
fn push(links: &mut Links, circuits: &mut [(LinkId, Credit)], link: LinkId, message: &[u8]) -> Said {
    let mut circuits = circuits.iter_mut();
    let mut credit = circuits.find(|(of, _)| *of == link).map(|(_, credit)| credit);
    if credit
        .as_ref()
        .is_some_and(|credit| !credit.may_send(message.len()))
    {
        return Said::Later;
    }
    let said = said(links.send(link, message));
    if let (Said::Taken(_), Some(credit)) = (&said, &mut credit) {
        credit.did_send(message.len());
    }
    said
}

fn said(sent: Result<Sequence, PushRefusal>) -> Said {
    match sent {
        Ok(sequence) => Said::Taken(sequence),
        Err(PushRefusal::Full | PushRefusal::Recovering) => Said::Later,
        Err(_) => Said::Over,
    }
}

/// Listens on all addresses of both families, or only of IPv4 if the host has no IPv6. With port 0, the system chooses the port.
pub(crate) fn listen(
    links: &mut Links,
    node: &Arc<Node>,
    workers: &[Worker],
    port: u16,
) -> Result<Handle, LinkError> {
    let both = SocketAddr::from((core::net::Ipv6Addr::UNSPECIFIED, port));
    let ipv4 = SocketAddr::from((core::net::Ipv4Addr::UNSPECIFIED, port));
    links
        .listen(node, workers, both)
        .or_else(|_| links.listen(node, workers, ipv4))
}
