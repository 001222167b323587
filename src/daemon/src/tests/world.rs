//! A world of nodes and processes, and the oracle of all messages.

use std::collections::{BTreeMap, VecDeque};

use doorbell::provider::Instant;

use super::oracle::{OneSided, Seen};
use super::transfers::Slots;
use crate::endpoint::{Endpoint, EndpointEvent, EndpointRefusal};
use crate::layout::EndpointLayout;
use crate::name::{Credentials, EndpointAddress, JobKey, JobNumber, NodeNumber};
use crate::packet::AttachRequest;
use crate::reason::{AttachRefusal, CutReason, GoneReason, UndeliveredReason};
use crate::router::{ClientId, Router, RouterLimits};

/// A generator of pseudorandom numbers.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.word() >> 33) as usize % limit
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// One process, alive or not.
pub(crate) struct Process {
    pub(crate) id: ClientId,
    pub(crate) job: u64,
    pub(crate) address: EndpointAddress,
    pub(crate) endpoint: Endpoint,
    pub(crate) is_alive: bool,
    pub(crate) is_reading: bool,
    /// Whether the process writes arbitrary words into its rings. Nothing is checked about its messages then.
    pub(crate) is_hostile: bool,
    /// Operations on arenas, and their outcomes.
    pub(crate) one_sided: OneSided,
    pub(crate) transfers: Slots,
    /// The messages by number, each with its receiver and outcome.
    sent: BTreeMap<u64, (EndpointAddress, Outcome)>,
    /// The last number received from each sender, by the index of the sender.
    last: BTreeMap<usize, u64>,
    pub(crate) gone: Vec<(EndpointAddress, GoneReason)>,
    pub(crate) undelivered: Vec<UndeliveredReason>,
    pub(crate) received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    None,
    Received,
    /// Reported as undelivered, for certain.
    Refused,
    /// Reported with an unknown outcome.
    Unknown,
}

pub(crate) struct World {
    pub(crate) routers: Vec<Router>,
    pub(crate) processes: Vec<Process>,
    /// Frames by sender, receiver and lane.
    pub(crate) frames: BTreeMap<(u32, u32, u32), VecDeque<Vec<u8>>>,
    pub(crate) cuts: Vec<(ClientId, u32, CutReason)>,
    pub(crate) frames_max: usize,
    pub(crate) now: Instant,
}

pub(crate) const KEY: JobKey = JobKey([7; 16]);

pub(crate) fn at(node: u32, endpoint: u32) -> EndpointAddress {
    EndpointAddress {
        node: NodeNumber(node),
        endpoint,
    }
}

pub(crate) fn user(uid: u32) -> Credentials {
    Credentials {
        uid,
        gid: 1,
        pid: None,
    }
}

/// Size of each arena of a world.
pub(crate) const ARENA_BYTES: u64 = 1 << 15;

pub(crate) fn request(job: u64, endpoint: u32) -> AttachRequest {
    AttachRequest {
        job: JobNumber(job),
        key: KEY,
        endpoint,
        layout: EndpointLayout::new(4, 64)
            .unwrap()
            .with_arena(ARENA_BYTES)
            .unwrap(),
    }
}

impl World {
    pub(crate) fn new(nodes: u32) -> Self {
        let mut routers: Vec<_> = (0..nodes)
            .map(|node| Router::new(NodeNumber(node), &RouterLimits::default()))
            .collect();
        for (own, router) in routers.iter_mut().enumerate() {
            for node in (0..nodes).filter(|node| *node as usize != own) {
                router.add_node(NodeNumber(node), 4);
            }
        }
        Self {
            routers,
            processes: Vec::new(),
            frames: BTreeMap::new(),
            cuts: Vec::new(),
            frames_max: 4,
            now: Instant::from_ns(1),
        }
    }

    pub(crate) fn attach(&mut self, node: u32, job: u64, endpoint: u32) -> Result<usize, AttachRefusal> {
        let request = request(job, endpoint);
        let mut ours = Endpoint::new(request.layout).unwrap();
        ours.set_name(at(node, endpoint), self.processes.len() as u64);
        let memory = request.layout.adopt(&ours.descriptors())?;
        let id = self.routers[node as usize].attach(user(1), &request, memory)?;
        self.processes.push(Process {
            id,
            job,
            address: at(node, endpoint),
            endpoint: ours,
            is_alive: true,
            is_reading: true,
            is_hostile: false,
            one_sided: OneSided::default(),
            transfers: Slots::default(),
            sent: BTreeMap::new(),
            last: BTreeMap::new(),
            gone: Vec::new(),
            undelivered: Vec::new(),
            received: 0,
        });
        Ok(self.processes.len() - 1)
    }

    pub(crate) fn kill(&mut self, process: usize, reason: GoneReason) {
        let Process { id, address, .. } = self.processes[process];
        self.processes[process].is_alive = false;
        self.routers[address.node.0 as usize].detach(id, reason);
    }

    /// Kills the daemon of a node after this many parts of its next turn, and starts the next daemon, to which all processes attach.
    pub(crate) fn restart(&mut self, node: u32, parts: u32) {
        self.routers[node as usize].poll_parts(|_| {}, parts);
        let others: Vec<_> = (0..self.routers.len() as u32)
            .filter(|other| *other != node)
            .collect();
        let mut next = Router::new(NodeNumber(node), &RouterLimits::default());
        for other in others {
            next.add_node(NodeNumber(other), 4);
            self.routers[other as usize].lose_node(NodeNumber(node));
        }
        self.routers[node as usize] = next;
        self.frames
            .retain(|(from, to, _), _| *from != node && *to != node);
        let of_node: Vec<_> = (0..self.processes.len())
            .filter(|at| self.processes[*at].is_alive && self.processes[*at].address.node.0 == node)
            .collect();
        for process in &of_node {
            self.read(*process);
        }
        for process in of_node {
            let Process { job, address, .. } = self.processes[process];
            let request = request(job, address.endpoint);
            let mut endpoint = Endpoint::new(request.layout).unwrap();
            let memory = request.layout.adopt(&endpoint.descriptors()).unwrap();
            let id = self.routers[node as usize]
                .attach(user(1), &request, memory)
                .unwrap();
            let client = &mut self.processes[process];
            let unknown_from = endpoint.take_over(&mut client.endpoint);
            (client.endpoint, client.id) = (endpoint, id);
            for (_, (_, outcome)) in client.sent.range_mut(unknown_from..) {
                if *outcome == Outcome::None {
                    *outcome = Outcome::Unknown;
                }
            }
            self.restarted(process, unknown_from);
        }
    }

    /// Sends a message that names its sender. Returns whether there was room.
    pub(crate) fn send(&mut self, process: usize, to: EndpointAddress, padding: usize) -> bool {
        let sender = &mut self.processes[process];
        let next = sender.endpoint.submitted();
        let mut message = Vec::new();
        message.extend((process as u64).to_le_bytes());
        message.extend(sender.job.to_le_bytes());
        message.extend(next.to_le_bytes());
        message.extend((0..padding).map(|at| at as u8));
        match sender.endpoint.send(to, &message) {
            Ok(number) => {
                assert_eq!(number, next);
                sender.sent.insert(number, (to, Outcome::None));
                true
            }
            Err(EndpointRefusal::Full) => false,
            Err(refusal) => {
                assert!(sender.is_hostile || !sender.is_alive, "{refusal}");
                false
            }
        }
    }

    /// Handles all events of a process.
    pub(crate) fn read(&mut self, process: usize) {
        let (mut events, mut of_arenas) = (Vec::new(), Vec::new());
        let now = self.now;
        let reader = &mut self.processes[process];
        let read = reader.endpoint.poll(|event| match event {
            EndpointEvent::Received { from, message } => events.push(Ok((from, message.to_vec()))),
            EndpointEvent::Undelivered { to, number, reason } => events.push(Err((to, number, reason))),
            EndpointEvent::Gone { who, reason } => {
                reader.gone.push((who, reason));
            }
            EndpointEvent::Completed { to, number, value } => {
                of_arenas.push(Seen::Completed(to, number, value))
            }
            EndpointEvent::Written {
                from,
                grant,
                offset,
                bytes,
                immediate,
            } => of_arenas.push(Seen::Written(from, grant, offset, bytes, immediate)),
            EndpointEvent::Revoked { grant } => of_arenas.push(Seen::Revoked(grant)),
            EndpointEvent::Restarted { .. } | EndpointEvent::TransferEnded { .. } => {
                unreachable!("no daemon reports it")
            }
        });
        assert!(read.is_ok() || reader.is_hostile, "{read:?}");
        let mut ends = Vec::new();
        let advanced = reader.endpoint.advance(now, |event| match event {
            EndpointEvent::TransferEnded { transfer, end, bytes } => ends.push((transfer, end, bytes)),
            event => panic!("{event:?}"),
        });
        assert!(advanced.is_ok() || reader.is_hostile, "{advanced:?}");
        for (transfer, end, bytes) in ends {
            self.transfer_ended(process, transfer, end, bytes);
        }
        for seen in of_arenas {
            self.seen(process, seen);
        }
        for event in events {
            match event {
                Ok((from, message)) => self.received(process, from, &message),
                Err((to, number, reason)) => self.undelivered(process, to, number, reason),
            }
        }
    }

    fn received(&mut self, receiver: usize, from: EndpointAddress, message: &[u8]) {
        if self.processes[receiver].is_hostile {
            return;
        }
        self.processes[receiver].received += 1;
        let (job, to) = (self.processes[receiver].job, self.processes[receiver].address);
        let senders = || {
            self.processes
                .iter()
                .filter(|sender| sender.address == from && sender.job == job)
        };
        assert!(senders().count() > 0, "a message of nobody in this job");
        if senders().any(|sender| sender.is_hostile) {
            return;
        }
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let (sender, number) = (word(0) as usize, word(16));
        assert_eq!(word(8), job, "a message of another job");
        assert!(
            message[24..]
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == at as u8),
            "torn"
        );
        assert_eq!(
            self.processes[sender].address, from,
            "a message under another name"
        );
        let last = self.processes[receiver].last.insert(sender, number);
        assert!(last < Some(number), "{number} of {sender} after {last:?}");
        let (meant, outcome) = self.processes[sender].sent.get_mut(&number).unwrap();
        assert_eq!(*meant, to, "a message for somebody else");
        assert!(
            matches!(outcome, Outcome::None | Outcome::Unknown),
            "{outcome:?}, then received"
        );
        *outcome = Outcome::Received;
    }

    fn undelivered(&mut self, process: usize, to: EndpointAddress, number: u64, reason: UndeliveredReason) {
        let sender = &mut self.processes[process];
        sender.undelivered.push(reason);
        if sender.is_hostile || sender.one_sided.refused(to, number, reason) {
            return;
        }
        let (meant, outcome) = sender.sent.get_mut(&number).unwrap();
        assert_eq!(*meant, to);
        let is_unknown = reason == UndeliveredReason::Unknown;
        match outcome {
            Outcome::None if is_unknown => *outcome = Outcome::Unknown,
            Outcome::None => *outcome = Outcome::Refused,
            Outcome::Received if is_unknown => {}
            _ => panic!("{outcome:?}, then {reason}"),
        }
    }

    /// Moves frames between the routers, up to this many of each lane.
    pub(crate) fn carry(&mut self, most: usize) -> bool {
        let mut is_moved = false;
        for (own, router) in self.routers.iter_mut().enumerate() {
            is_moved |= router.send_frames(|node, lane, frame| {
                let lane = self.frames.entry((own as u32, node.0, lane)).or_default();
                let has_room = lane.len() < self.frames_max;
                if has_room {
                    lane.push_back(frame.to_vec());
                }
                has_room
            });
        }
        for ((from, to, _), frames) in &mut self.frames {
            for _ in 0..most {
                let Some(frame) = frames.pop_front() else { break };
                self.routers[*to as usize]
                    .take_frame(NodeNumber(*from), &frame)
                    .unwrap();
                is_moved = true;
            }
        }
        is_moved
    }

    /// Polls a router, and records the clients that it cut off.
    pub(crate) fn poll(&mut self, node: usize) -> bool {
        let router = &mut self.routers[node];
        let is_moved = router.poll(|_| {});
        while let Some((id, reason, _)) = router.take_cut() {
            self.cuts.push((id, node as u32, reason));
            let cut = |process: &&mut Process| process.id == id && process.address.node.0 == node as u32;
            let process = self.processes.iter_mut().find(cut).unwrap();
            assert!(process.is_hostile, "an honest process is cut off: {reason}");
            process.is_alive = false;
        }
        is_moved
    }

    /// Polls until everything is at rest. Fails if something never comes to rest. At rest, nothing that could move may wait.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut is_moved = false;
            for process in 0..self.processes.len() {
                let Process {
                    is_alive, is_reading, ..
                } = self.processes[process];
                if is_alive && is_reading {
                    self.read(process);
                }
            }
            for node in 0..self.routers.len() {
                is_moved |= self.poll(node);
            }
            is_moved |= self.carry(usize::MAX);
            if !is_moved {
                return;
            }
        }
        panic!("something moves for ever");
    }

    /// Returns the number of the first submission that a hostile process blocks. A process that corrupted its ring, and does not read
    /// any more, blocks its senders.
    pub(super) fn blocked_at(&self, index: usize) -> u64 {
        let process = &self.processes[index];
        let is_hostile = |to: EndpointAddress| {
            let named = |other: &&Process| other.address == to && other.job == process.job;
            let mut named = self.processes.iter().filter(named);
            named.any(|other| other.is_hostile && other.is_alive)
        };
        let messages = process.sent.iter();
        let mut blocked = messages.filter(|(_, (to, outcome))| *outcome == Outcome::None && is_hostile(*to));
        let of_messages = blocked.next().map_or(u64::MAX, |(number, _)| *number);
        let open = process.one_sided.open().chain(process.endpoint.open_parts());
        let of_operations = open.filter(|(_, owner)| is_hostile(*owner)).min();
        of_operations.map_or(of_messages, |(number, _)| number.min(of_messages))
    }

    /// Checks that each message has an outcome, when everything is at rest and all have read.
    pub(crate) fn check(&self) {
        for router in &self.routers {
            assert_eq!(router.dropped(), 0, "lost without an outcome");
            assert_eq!(router.kept(), router.kept_in_queues(), "another count");
        }
        for (index, process) in self.processes.iter().enumerate() {
            // Messages of a name that a hostile process ever had are not recorded.
            let has_name = |other: &Process| other.address == process.address && other.job == process.job;
            let is_hostile = self
                .processes
                .iter()
                .any(|other| other.is_hostile && has_name(other));
            if is_hostile || !process.is_alive {
                continue;
            }
            let blocked = self.blocked_at(index);
            for (number, (to, outcome)) in &process.sent {
                let of_name = self
                    .processes
                    .iter()
                    .filter(|other| other.address == *to && other.job == process.job);
                if *number >= blocked {
                    break;
                }
                // A message may remain unread in the ring of a process that ended. Its sender is told of that end.
                let is_excused = of_name.clone().any(|other| !other.is_alive || other.is_hostile);
                assert!(
                    *outcome != Outcome::None || is_excused,
                    "message {number} of {index} to {to} has no outcome"
                );
            }
        }
        self.check_arenas();
        self.check_transfers();
        for router in &self.routers {
            let is_spoiled = self
                .processes
                .iter()
                .any(|process| process.is_hostile && process.is_alive);
            assert!(router.kept() == 0 || is_spoiled, "memory is kept");
            for client in router.clients() {
                let is_known = |process: &Process| process.id == client.0 && process.address == client.2;
                assert!(
                    self.processes
                        .iter()
                        .any(|process| is_known(process) && process.is_alive)
                );
            }
        }
    }
}
