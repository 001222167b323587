//! A run of a mesh: members on a host each, polled in turn, and everything they say and are told judged.
//!
//! `case` is the value that it is made from, `pairs` the messages, `views` who is to be reached and by when, `collectives`
//! the groups, `strangers` those who are no members, `parting` the end.

pub(crate) mod case;
mod collectives;
mod cuts;
mod pairs;
mod parting;
mod smaller;
mod strangers;
mod views;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Context as _;
use doorbell::mesh::{
    CollectiveHeader, Group, Mesh, MeshConfig, MeshCounts, MeshEvent, MeshSendError, Ranks,
};
use doorbell::provider::{Instant, IpPrefix};
use doorbell::trust::Key;
use doorbell::{Handle, KeyRing, Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host, PortConfig};

use crate::case::{Case, Scene};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::audit;
use crate::panics::Panics;
use crate::trace::Trace;
use case::{MeshCase, MeshStep, Start, rank};
use pairs::Pairs;
use strangers::Stranger;
use views::Weakness;

const TCP_PORT: u16 = 7000;

/// The time at the beginning, by the clock of the member that is furthest behind.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// Further ahead than any clock or run.
const AN_HOUR_NS: u64 = 3_600_000_000_000;

/// How often a member looks whether there are handles to link by.
const LOOK_NS: u64 = 100_000_000;

/// How long what was said last may be on its way.
const SAID_NS: u64 = 50_000_000;

/// The key of all members, where they have one.
const KEY: u32 = 1;
const SECRET: [u8; 32] = *b"\x6a\x09\xe6\x67\xbb\x67\xae\x85\x3c\x6e\xf3\x72\xa5\x4f\xf5\x3a\
                          \x51\x0e\x52\x7f\x9b\x05\x68\x8c\x1f\x83\xd9\xab\x5b\xe0\xcd\x19";

/// Another secret.
const WRONG_SECRET: [u8; 32] = *b"\xcb\xbb\x9d\x5d\xc1\x05\x9e\xd8\x62\x9a\x29\x2a\x36\x7c\xd5\x07\
                                \x91\x59\x01\x5a\x30\x70\xdd\x17\x15\x2f\xec\xd8\xf7\x0e\x59\x39";

/// The process of a member.
pub(crate) struct Process {
    // In this order they go.
    mesh: Mesh<Host, Host>,
    workers: Vec<Worker<Host>>,
    node: Arc<Node<Host, Host>>,
    handle: Handle,
    started: u64,
    /// To whom ways lead, by what was reported.
    told: Ranks,
    events: Vec<MeshEvent>,
    next_look_ns: u64,
}

/// A host, and the process on it.
struct Seat {
    host: Host,
    process: Option<Process>,
    /// No process is to be there.
    is_gone: bool,
    /// Every start of its processes, the last one behind.
    starts: Vec<u64>,
    stops_until_ns: u64,
    holds_until_ns: u64,
    /// When its process was last another, or gone.
    changed_ns: Option<u64>,
    /// Its counts when all had joined.
    joined: MeshCounts,
    /// The messages that the application still has to send to each, in bytes.
    outboxes: Vec<VecDeque<usize>>,
    group: Option<Group>,
}

/// Events that are expected, and a failure else.
#[derive(Debug, Default)]
struct Expected {
    /// Processes were replaced, or vanished.
    restarts: bool,
    /// Somebody who is no member tries.
    strangers: bool,
    /// These said starts that are not believed.
    starts: Vec<usize>,
    /// Members leave.
    parting: bool,
}

/// A run under way.
pub(crate) struct MeshRun<'c> {
    case: &'c Case,
    mesh: &'c MeshCase,
    fabric: Fabric,
    strangers: Vec<Stranger>,
    seats: Vec<Seat>,
    pairs: Pairs,
    expected: Expected,
    weakness: Weakness,
    trace: &'c mut Trace,
    panics: Panics,
    /// Hosts of strangers so far.
    strange_hosts: usize,
    /// Whether members did a collective, of which something may be left over.
    has_collectives: bool,
    /// Whether what is sent goes at once, once and in order: nothing is in its way.
    is_pristine: bool,
    /// These two are cut from each other.
    is_cut: Option<(usize, usize)>,
    /// Whether a link led from one to another since both started, by members.
    have_met: Vec<Vec<bool>>,
    /// Starts too far ahead, by member.
    aheads: Vec<usize>,
    /// A collective is under way, which takes what comes.
    is_collecting: bool,
    pub(crate) messages: u64,
}

impl<'c> MeshRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let Some(Scene::Mesh(mesh)) = &case.scene else {
            anyhow::bail!("it is not about a mesh");
        };
        anyhow::ensure!((2..=8).contains(&mesh.ranks()), "a mesh of {}", mesh.ranks());
        anyhow::ensure!(
            (0..mesh.ranks()).all(|at| mesh.subnets_of(at).next().is_some()),
            "a member is in no subnet"
        );
        let seat = |at: usize| {
            let ports = mesh.subnets_of(at).map(|subnet| port(subnet, at + 1));
            let ports: anyhow::Result<Vec<_>> = ports.collect();
            Ok(Seat {
                host: fabric.host(&format!("h{at}"), ports?)?,
                process: None,
                is_gone: false,
                starts: Vec::new(),
                stops_until_ns: 0,
                holds_until_ns: 0,
                changed_ns: None,
                joined: MeshCounts::default(),
                outboxes: vec![VecDeque::new(); mesh.ranks()],
                group: None,
            })
        };
        let seats = (0..mesh.ranks()).map(seat).collect::<anyhow::Result<_>>()?;
        Ok(Self {
            weakness: Weakness::of(case, mesh)?,
            case,
            mesh,
            fabric: fabric.clone(),
            strangers: Vec::new(),
            seats,
            pairs: Pairs::default(),
            expected: Expected::default(),
            trace,
            panics: Panics::every(case.panics_every),
            strange_hosts: 0,
            has_collectives: false,
            is_pristine: case.plan.is_empty(),
            is_cut: None,
            have_met: vec![vec![false; mesh.ranks()]; mesh.ranks()],
            aheads: vec![0; mesh.ranks()],
            is_collecting: false,
            messages: 0,
        })
    }

    /// Tries every step, and looks at what is in the end.
    pub(crate) fn run(&mut self) -> Verdict {
        for at in 0..self.mesh.ranks() {
            self.start(at, Start::Now)?;
        }
        if self.is_untroubled() {
            self.join()?;
            // Frames that were sent on the way there have come.
            self.pass(SAID_NS)?;
            for seat in &mut self.seats {
                seat.joined = seat
                    .process
                    .as_ref()
                    .map(|process| process.mesh.counts())
                    .unwrap_or_default();
            }
        }
        for step in &self.mesh.steps {
            self.step(*step)?;
            audit(&self.fabric)?;
        }
        self.part()
    }

    /// Whether nothing goes wrong with hosts, cables and packets.
    fn is_untroubled(&self) -> bool {
        self.case.plan.is_empty()
    }

    fn now_ns(&self) -> u64 {
        self.fabric.now().to_ns()
    }

    fn note(&mut self, at: usize, what: fmt::Arguments<'_>) {
        let now_ns = self.now_ns();
        self.trace.note(now_ns, at, what);
    }

    fn is_there(&self) -> Vec<bool> {
        self.seats.iter().map(|seat| !seat.is_gone).collect()
    }

    fn step(&mut self, step: MeshStep) -> Verdict {
        let ranks = self.mesh.ranks();
        let is_member = |member: u8| usize::from(member) < ranks;
        match step {
            MeshStep::Pass { ns } => self.pass(ns),
            MeshStep::Send {
                from,
                to,
                count,
                bytes,
            } => {
                if from != to && is_member(from) && is_member(to) {
                    self.put_out(from.into(), to.into(), count, bytes);
                }
                Ok(())
            }
            MeshStep::Everyone { count, bytes } => {
                for from in 0..ranks {
                    for to in (0..ranks).filter(|to| *to != from) {
                        self.put_out(from, to, count, bytes);
                    }
                }
                Ok(())
            }
            MeshStep::Stop { member, ns } if is_member(member) => {
                self.note(member.into(), format_args!("stands still for {ns} ns"));
                self.is_pristine = false;
                self.weakness.stops(member.into(), ns);
                self.seats[usize::from(member)].stops_until_ns = self.now_ns() + ns;
                Ok(())
            }
            MeshStep::Hold { member, ns } if is_member(member) => {
                self.is_pristine = false;
                self.seats[usize::from(member)].holds_until_ns = self.now_ns() + ns;
                Ok(())
            }
            MeshStep::Crash { member, is_awaited } if is_member(member) => {
                self.crash(member.into(), is_awaited)
            }
            MeshStep::Restart { member, start } if is_member(member) => self.restart(member.into(), start),
            MeshStep::Collective(what) => self.collective(what),
            MeshStep::Stranger { target, what } if is_member(target) => self.stranger(target.into(), what),
            MeshStep::Flood { target, streams } if is_member(target) => {
                self.flood(target.into(), streams.into())
            }
            MeshStep::Cut {
                one,
                other,
                ns,
                is_again,
            } => self.cut(one.into(), other.into(), ns, is_again),
            MeshStep::Flow { to, ns } if is_member(to) => self.flow(to.into(), ns),
            _ => Ok(()),
        }
    }

    /// The application of one has so many more messages for another.
    fn put_out(&mut self, from: usize, to: usize, count: u16, bytes: u16) {
        let most = self.mesh.message_bytes_max as usize;
        let outbox = &mut self.seats[from].outboxes[to];
        outbox.extend((0..usize::from(count)).map(|number| (usize::from(bytes) + number % 7).min(most)));
    }

    /// A process begins on a host.
    fn start(&mut self, at: usize, start: Start) -> Verdict {
        let now_ns = EPOCH_NS + self.now_ns() + self.mesh.members[at].clock_ahead_ns;
        let before = self.seats[at].starts.last().copied();
        let started = match start {
            Start::Now => before.map_or(now_ns, |before| now_ns.max(before + 1)),
            Start::Before => before.map_or(now_ns, |before| before - 1),
            Start::Ahead => {
                self.aheads[at] += 1;
                EPOCH_NS + self.now_ns() + self.mesh.start_ahead_max_ns + AN_HOUR_NS
            }
        };
        let config = self.mesh.config(at, started);
        let rails = self.mesh.subnets_of(at).count();
        let made = self
            .trust()
            .and_then(|trust| Process::new(&self.seats[at].host, &config, trust, rails));
        match made {
            Ok(process) => {
                if start == Start::Now {
                    self.seats[at].starts.push(started);
                }
                self.seats[at].process = Some(process);
                self.note(at, format_args!("starts at {started}"));
            }
            // Its ports are down: it tries again.
            Err(error) => ensure(!self.is_untroubled(), "set-up", || format!("{error:#}"))?,
        }
        self.seats[at].is_gone = false;
        self.seats.iter_mut().for_each(|seat| {
            if let Some(process) = &mut seat.process {
                process.next_look_ns = 0;
            }
        });
        self.seek(at)
    }

    fn trust(&self) -> anyhow::Result<Trust> {
        trust(self.mesh.has_keys.then_some((KEY, SECRET)))
    }

    /// A member that seeks others asks at their addresses; all others link by handles that they look for.
    fn seek(&mut self, at: usize) -> Verdict {
        let mesh = self.mesh;
        if !mesh.members[at].is_seeking {
            return Ok(());
        }
        let Some(process) = &mut self.seats[at].process else {
            return Ok(());
        };
        for other in 0..mesh.ranks() {
            let both = mesh
                .subnets_of(at)
                .find(|subnet| mesh.subnets[*subnet] >> other & 1 == 1);
            let Some(subnet) = both.filter(|_| other != at) else {
                continue;
            };
            let address = SocketAddr::new(address(subnet, other + 1), TCP_PORT);
            let asked = process.mesh.connect_at(rank(other), address);
            asked.map_err(|error| failure("connect", error.to_string()))?;
        }
        Ok(())
    }

    /// Links to those of lower ranks by their handles, where no link leads to them.
    fn look(&mut self, at: usize) -> Verdict {
        let now_ns = self.now_ns();
        let is_untroubled = self.is_untroubled();
        let handles: Vec<_> = self.seats[..at]
            .iter()
            .map(|seat| Some(seat.process.as_ref()?.handle))
            .collect();
        let mesh = self.mesh;
        let Some(process) = &mut self.seats[at].process else {
            return Ok(());
        };
        if process.next_look_ns > now_ns || process.mesh.is_closing() {
            return Ok(());
        }
        process.next_look_ns = now_ns + LOOK_NS;
        for (other, handle) in handles.iter().enumerate() {
            let is_sought = mesh.members[at].is_seeking && mesh.shares(at, other);
            let (Some(handle), false) = (handle, is_sought || process.mesh.is_linked(rank(other))) else {
                continue;
            };
            let Process {
                mesh, node, workers, ..
            } = process;
            let linked = mesh.connect(node, workers, rank(other), handle);
            ensure(linked.is_ok() || !is_untroubled, "connect", || {
                format!("{linked:?}")
            })?;
        }
        Ok(())
    }

    /// Lets time pass, while members poll.
    fn pass(&mut self, span_ns: u64) -> Verdict {
        self.pass_until(span_ns, |_| Ok(false)).map(drop)
    }

    /// Lets time pass until `is_done` is true, and returns whether it was in time.
    fn pass_until(
        &mut self,
        span_ns: u64,
        mut is_done: impl FnMut(&mut Self) -> Verdict<bool>,
    ) -> Verdict<bool> {
        let until_ns = self.now_ns().saturating_add(span_ns);
        loop {
            self.poll_all()?;
            if is_done(self)? {
                return Ok(true);
            }
            if self.now_ns() >= until_ns {
                return Ok(false);
            }
            self.let_time_pass(until_ns);
        }
    }

    fn poll_all(&mut self) -> Verdict {
        (0..self.seats.len()).try_for_each(|at| self.poll(at))?;
        let Self { strangers, .. } = self;
        strangers.iter_mut().for_each(Stranger::poll);
        Ok(())
    }

    /// Time passes until something happens, or a member wants to be polled.
    fn let_time_pass(&self, until_ns: u64) {
        let now_ns = self.now_ns();
        let wakes = (0..self.seats.len()).map(|at| self.wakes_at(at));
        let strange = self
            .strangers
            .iter()
            .map(|stranger| stranger.wakes_at(self.fabric.now()));
        let happens = self.fabric.next_at().map(Instant::to_ns);
        let next = wakes.chain(strange).chain(happens).min().unwrap_or(until_ns);
        let next = next.max(now_ns + self.mesh.polls_every_ns).min(until_ns);
        self.fabric.run_until(Instant::from_ns(next.max(now_ns + 1)));
    }

    fn wakes_at(&self, at: usize) -> u64 {
        let seat = &self.seats[at];
        let Some(process) = &seat.process else {
            return u64::MAX;
        };
        let now = self.fabric.now();
        if seat.stops_until_ns > now.to_ns() {
            return seat.stops_until_ns;
        }
        let wake = process
            .mesh
            .wake(now)
            .map_or(u64::MAX, |wake| wake.instant().to_ns());
        let holds_ns = Some(seat.holds_until_ns).filter(|until_ns| *until_ns > now.to_ns());
        let is_linked = |other: &usize| process.mesh.is_linked(rank(*other)) || !self.mesh.shares(at, *other);
        let looks_ns = Some(process.next_look_ns).filter(|_| !(0..at).all(|other| is_linked(&other)));
        wake.min(holds_ns.unwrap_or(u64::MAX))
            .min(looks_ns.unwrap_or(u64::MAX))
    }

    fn poll(&mut self, at: usize) -> Verdict {
        let now_ns = self.now_ns();
        let seat = &mut self.seats[at];
        if seat.stops_until_ns > now_ns || seat.is_gone {
            return Ok(());
        }
        if seat.process.is_none() {
            self.start(at, Start::Now)?;
        }
        let Self { seats, panics, .. } = self;
        let Some(process) = &mut seats[at].process else {
            return Ok(());
        };
        let Process {
            mesh, workers, node, ..
        } = process;
        let mut events = Vec::new();
        let polled = panics.through(|panics| {
            mesh.poll(node, workers, |event| {
                events.push(event);
                panics.event();
            })
        });
        polled.map_err(|error| failure("poll", error.to_string()))?;
        for (other, has_met) in self.have_met[at].iter_mut().enumerate() {
            *has_met |= process.mesh.is_linked(rank(other));
        }
        for event in events {
            self.hear(at, event)?;
        }
        let Some(process) = &self.seats[at].process else {
            return Ok(());
        };
        ensure(
            process.told.with(rank(at)) == process.mesh.reached(),
            "told",
            || {
                format!(
                    "rank {at} reaches {:?}, and was told of {:?}",
                    process.mesh.reached(),
                    process.told
                )
            },
        )?;
        self.look(at)?;
        if self.seats[at].holds_until_ns <= now_ns && !self.is_collecting {
            self.take(at)?;
        }
        self.send(at)
    }

    /// The application takes what has come.
    fn take(&mut self, at: usize) -> Verdict {
        let most = self.mesh.members[at].takes;
        for from in (0..self.mesh.ranks()).filter(|from| *from != at) {
            for _ in 0..most {
                let Some(process) = &mut self.seats[at].process else {
                    return Ok(());
                };
                let is_reached = process.mesh.reached().contains(rank(from));
                let received = process.mesh.receive(rank(from), <[u8]>::to_vec);
                let bytes = match received {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => {
                        ensure(is_reached, "reason", || {
                            format!("nothing of {from}, to whom no way leads")
                        })?;
                        break;
                    }
                    Err(error) => {
                        let is_right = error == MeshSendError::Unreachable(rank(from)) && !is_reached;
                        ensure(is_right, "reason", || format!("rank {at} of {from}: {error:?}"))?;
                        break;
                    }
                };
                let to = (at, process.started);
                // Messages left over of a collective that came to nothing are for nobody.
                if self.has_collectives && bytes[0] == 2 && CollectiveHeader::parse(&bytes).is_ok() {
                    continue;
                }
                self.messages += 1;
                self.pairs.take(from, to, &bytes)?;
            }
        }
        Ok(())
    }

    /// The application sends what it has, as far as it goes.
    fn send(&mut self, at: usize) -> Verdict {
        let Self {
            seats, pairs, mesh, ..
        } = self;
        let Seat {
            process, outboxes, ..
        } = &mut seats[at];
        let Some(process) = process else { return Ok(()) };
        for to in (0..mesh.ranks()).filter(|to| *to != at) {
            while let Some(bytes) = outboxes[to].front().copied() {
                let is_reached = process.mesh.reached().contains(rank(to));
                let started = process.mesh.started(rank(to)).unwrap_or(0);
                let ends = ((at, process.started), (to, started));
                let message = pairs.next(ends, bytes.max(crate::pattern::HEADER_BYTES));
                let (header, payload) = message.split_at(message.len() / 3);
                let waiting = process.mesh.member_counts(rank(to)).waiting;
                match process.mesh.send(rank(to), header, payload) {
                    Ok(()) => {
                        ensure(is_reached && waiting < u64::from(mesh.window), "reason", || {
                            format!("rank {at} sends {to}, with {waiting} waiting")
                        })?;
                        pairs.did_send(ends, message.len(), mesh.window)?;
                        outboxes[to].pop_front();
                    }
                    Err(error) => {
                        let is_right = match error {
                            MeshSendError::WouldBlock => is_reached && waiting > 0,
                            MeshSendError::Unreachable(whom) => !is_reached && whom == rank(to),
                            _ => false,
                        };
                        ensure(is_right, "reason", || {
                            format!("rank {at} to {to}, with {waiting} waiting: {error:?}")
                        })?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Nothing that was sent is still to be taken, between processes that are there.
    fn is_delivered(&self) -> bool {
        self.undelivered().is_none()
    }

    fn undelivered(&self) -> Option<String> {
        self.undelivered_of(|_, _| true)
    }

    /// Describes something that was sent and not taken yet, between pairs of members for which `is_meant` is true.
    fn undelivered_of(&self, is_meant: impl Fn(usize, usize) -> bool) -> Option<String> {
        let is_there = |(at, started): (usize, u64)| {
            let process = self.seats[at].process.as_ref();
            process.is_some_and(|process| process.started == started)
        };
        let is_awaited = |from: (usize, u64), to: (usize, u64)| {
            is_meant(from.0, to.0) && is_there(from) && is_there(to) && self.is_reachable(from.0, to.0)
        };
        if let Some(pair) = self.pairs.waiting(is_awaited) {
            return Some(format!("{} of {} of {:?} came", pair.taken, pair.sent, pair.ends));
        }
        let seats = self
            .seats
            .iter()
            .enumerate()
            .filter(|(_, seat)| seat.process.is_some());
        for (at, seat) in seats {
            for (to, outbox) in seat.outboxes.iter().enumerate() {
                let is_there = self.seats[to].process.is_some();
                let can = is_meant(at, to) && is_there && self.is_reachable(at, to);
                if can && !outbox.is_empty() {
                    return Some(format!("{} of {at} for {to} are not sent", outbox.len()));
                }
            }
        }
        None
    }
}

impl Process {
    fn new(host: &Host, config: &MeshConfig, trust: Trust, rails: usize) -> anyhow::Result<Self> {
        let node = Arc::new(Node::with(host.clone(), host.clone(), trust)?);
        let mut own = WorkerConfig::default();
        own.slots = 9 * (config.link.channel.send_depth + config.link.channel.receive_depth);
        own.slot_bytes = 4096;
        let workers = node.workers(&own)?;
        let mut mesh = Mesh::new(&node, &workers, config)?;
        let any = SocketAddr::from(([0, 0, 0, 0], TCP_PORT));
        let handle = mesh.listen_polled(&node, &workers, any)?;
        // A device whose port is down has no Worker, and no rail in the handle.
        anyhow::ensure!(handle.rails().iter().count() == rails, "a rail is missing");
        Ok(Self {
            mesh,
            workers,
            node,
            handle,
            started: config.started,
            told: Ranks::NONE,
            events: Vec::new(),
            next_look_ns: 0,
        })
    }

    fn deadline(&self, within_ns: u64) -> doorbell::Deadline {
        self.node.within(Duration::from_nanos(within_ns))
    }
}

/// The address of a host in a subnet.
fn address(subnet: usize, number: usize) -> IpAddr {
    IpAddr::from([10, 1, subnet as u8, number as u8])
}

/// Its port there.
fn port(subnet: usize, number: usize) -> anyhow::Result<PortConfig> {
    let prefix = IpPrefix::new(address(subnet, number), 24).context("no prefix")?;
    Ok(PortConfig::new(&format!("sim{subnet}"), &[prefix]))
}

fn trust(key: Option<(u32, [u8; 32])>) -> anyhow::Result<Trust> {
    let Some((id, secret)) = key else {
        return Ok(Trust::unauthenticated_on_purpose());
    };
    Ok(Trust::keys(KeyRing::new(Key::new(id, &secret)?)))
}
