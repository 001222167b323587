//! A run of limits: one host accepts, others connect to it, hold what they have and send, until there is no more of
//! something. Each refusal is expected when it is due, with its reason, and at no other time.
//!
//! `room` and `door` compute from the documentation how much room there is. Most operations begin when nothing is
//! under way, so that their outcome is known.

mod act;
pub(crate) mod case;
mod door;
mod finish;
mod room;

use core::net::IpAddr;
use core::time::Duration;
use std::sync::Arc;

use anyhow::Context as _;
use doorbell::connect::{Acceptances, Connecting, HandshakeLimits, Handshakes};
use doorbell::provider::Instant;
use doorbell::worker::{CloseProgress, SharedReceivesConfig, Submitter, SubmitterConfig};
use doorbell::{
    ChannelConfig, ChannelId, ConnectError, Connection, Event, Lease, Listener, Node, Trust, Worker,
    WorkerConfig,
};
use doorbell_sim::{Fabric, Host};

use crate::by_document::{BUSY, DEADLINE};
use crate::case::{Case, LineCase, Scene, What};
use crate::crowd::case::CrowdCase;
use crate::crowd::door::{Door, Fate, Guest, Standing};
use crate::crowd::room::{Held, Room, holds_too_much};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::audit_counts;
use crate::pattern::Label;
use crate::station::{address, channel_config, of_address, ports};
use crate::stranger::{Stranger, at};
use crate::trace::{Trace, clock_and_notes};

const TCP_PORT: u16 = 4000;

/// Time within which the other side sees an action and has done what follows from it.
const SETTLED_NS: u64 = 5_000_000;

/// Time does not pass in larger steps while somebody closes.
const STEP_NS: u64 = 1_000_000;

/// Time within which everything under way ends.
const QUIET_WITHIN_NS: u64 = 20_000_000_000;

/// How often the host looks at a handshake that waits in line.
const LOOKS_EVERY_NS: u64 = 20_000_000;

/// How long a peer waits for others of its address at most (`HandshakeLimits`: they have their turn).
const IN_LINE_NS: u64 = 250_000_000;

/// Submitters of each host.
const SUBMITTERS: usize = 3;

/// The ways of accepting at a door: a polled listener, or handshakes that advance beside the accepting thread.
enum Entrance {
    Polled(Listener<Host, Host>),
    Aside(Handshakes<Host, Host>, Acceptances<Host>),
}

/// A host and its application.
struct Party {
    // In this order they go.
    leases: Vec<Lease<Host>>,
    submitters: Vec<Submitter<Host>>,
    workers: Vec<Worker<Host>>,
    node: Arc<Node<Host, Host>>,
    host: Host,
}

/// A channel, as both its ends see it.
struct Made {
    line: usize,
    number: u32,
    ends: [Option<ChannelId>; 2],
    /// The ends whose application closes it.
    is_closing: [bool; 2],
    /// The messages that each end sent, by their stream, and how many of them came: each submitter has a stream, of which the
    /// Worker shares the first.
    sent: [[u64; SUBMITTERS]; 2],
    came: [[u64; SUBMITTERS]; 2],
}

/// An attempt to connect.
struct Attempt {
    line: usize,
    number: u32,
    connecting: Connecting<Host, Host>,
}

/// A stream that says no more than it is to.
struct Visitor {
    number: u32,
    host: usize,
    stranger: Stranger,
    /// When it has to be turned away, and why.
    fate: Option<(u64, Fate)>,
    /// It was judged.
    is_done: bool,
}

/// A run under way.
pub(crate) struct CrowdRun<'c> {
    case: &'c Case,
    crowd: &'c CrowdCase,
    fabric: Fabric,
    // Drop order: operations under way go before the objects that they use.
    visitors: Vec<Visitor>,
    attempts: Vec<Attempt>,
    entrance: Option<Entrance>,
    parties: Vec<Party>,
    made: Vec<Made>,
    rooms: Vec<Room>,
    door: Door,
    /// It is not known who is at the door, or has a place, until nobody is.
    is_vague: bool,
    numbers: u32,
    /// The outcomes of attempts, by their number.
    outcomes: Vec<(u32, Result<(), ConnectError>)>,
    /// Why handshakes failed, as the side says that accepts.
    told: Vec<ConnectError>,
    registrations: usize,
    trace: &'c mut Trace,
    pub(crate) messages: u64,
}

clock_and_notes!(CrowdRun);

impl<'c> CrowdRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let Some(Scene::Crowd(crowd)) = &case.scene else {
            anyhow::bail!("no case of limits");
        };
        let parties = (0..case.hosts.len())
            .map(|number| Party::new(case, crowd, fabric, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let entrance = entrance(case, crowd, &parties[0])?;
        let rooms = crowd.rooms.iter().zip(&case.hosts);
        Ok(Self {
            case,
            crowd,
            fabric: fabric.clone(),
            visitors: Vec::new(),
            attempts: Vec::new(),
            entrance: Some(entrance),
            parties,
            made: Vec::new(),
            rooms: rooms.map(|(room, host)| Room::new(*room, host)).collect(),
            door: Door::new(crowd),
            is_vague: false,
            numbers: 0,
            outcomes: Vec::new(),
            told: Vec::new(),
            registrations: fabric.registrations(),
            trace,
            messages: 0,
        })
    }

    /// Tries every operation, and ends the run.
    pub(crate) fn run(&mut self) -> Verdict {
        for operation in &self.case.operations {
            match operation.what {
                What::Pass { ns } => self.pass(ns)?,
                What::Crowd(act) => self.act(operation.line, operation.end, act)?,
                _ => {}
            }
            audit_counts(&self.fabric)?;
        }
        self.finish()
    }

    fn line(&self, line: usize) -> &'c LineCase {
        &self.case.lines[line]
    }

    fn host_of(&self, line: usize, end: usize) -> usize {
        self.line(line).hosts[end]
    }

    /// Lets time pass while all poll.
    fn pass(&mut self, span_ns: u64) -> Verdict {
        let until_ns = self.now_ns().saturating_add(span_ns);
        while self.now_ns() < until_ns {
            self.step(until_ns)?;
        }
        self.poll()
    }

    /// All poll, and time passes until something happens or is due, not beyond this.
    fn step(&mut self, until_ns: u64) -> Verdict {
        self.poll()?;
        let now_ns = self.now_ns();
        let mut next_ns = until_ns;
        let attempts = self.attempts.iter().map(|attempt| attempt.connecting.deadline());
        let entrance = self.entrance.as_ref().and_then(|entrance| match entrance {
            Entrance::Polled(listener) => listener.deadline(),
            Entrance::Aside(handshakes, _) => handshakes.deadline(),
        });
        for deadline in attempts.chain(entrance) {
            next_ns = next_ns.min(deadline.instant().to_ns());
        }
        if let Some(at) = self.fabric.next_at() {
            next_ns = next_ns.min(at.to_ns());
        }
        if self.made.iter().any(Made::is_ending) {
            next_ns = next_ns.min(now_ns + STEP_NS);
        }
        self.fabric.run_until(Instant::from_ns(
            next_ns.max(now_ns + 1).min(until_ns.max(now_ns + 1)),
        ));
        Ok(())
    }

    fn poll(&mut self) -> Verdict {
        for host in 0..self.parties.len() {
            self.poll_worker(host)?;
        }
        self.poll_entrance()?;
        for index in (0..self.attempts.len()).rev() {
            let Attempt {
                line,
                number,
                connecting,
            } = &mut self.attempts[index];
            let (line, number) = (*line, *number);
            let host = self.case.lines[line].hosts[0];
            let Party { node, workers, .. } = &mut self.parties[host];
            if let Some(outcome) = connecting.poll(node, workers) {
                self.attempts.remove(index);
                self.door.leave(number);
                let outcome = outcome.map(|made| self.admit(line, number, 0, made.channel));
                self.note(
                    host,
                    format_args!("attempt {number}: {:?}", outcome.as_ref().err()),
                );
                self.outcomes.push((number, outcome));
            }
        }
        self.poll_visitors()?;
        self.tend_closings()
    }

    fn poll_worker(&mut self, host: usize) -> Verdict {
        let mut told = Vec::new();
        let polled = self.parties[host].workers[0]
            .poll_tending(|turn, event| told.push((turn.channel.id(), event.keep())));
        polled.map_err(|error| failure("poll", error.to_string()))?;
        for (id, event) in told {
            self.hear(host, id, event)?;
        }
        let mut submitters = self.parties[host].submitters.iter_mut();
        match submitters.find_map(Submitter::failure) {
            Some(failed) => Err(failure(
                "excuse",
                format!("a submission failed: {}", failed.error),
            )),
            None => Ok(()),
        }
    }

    fn hear(&mut self, host: usize, id: ChannelId, event: Event<'_, Host>) -> Verdict {
        let lines = &self.case.lines;
        let find = |made: &Made| {
            (0..2).find(|end| lines[made.line].hosts[*end] == host && made.ends[*end] == Some(id))
        };
        let Some((made, end)) = self
            .made
            .iter_mut()
            .find_map(|made| Some((find(made)?, made)))
            .map(|(end, made)| (made, end))
        else {
            return Err(failure("owner", format!("{event:?} of a channel nobody knows")));
        };
        match event {
            Event::Received { message, .. } => {
                let found = Label::of(message.payload());
                let stream = found.map_or(0, |found| usize::from(found.stream) % SUBMITTERS);
                let due = Label {
                    connection: made.number,
                    end: (1 - end) as u8,
                    stream: stream as u8,
                    number: made.came[1 - end][stream],
                };
                made.came[1 - end][stream] += 1;
                self.messages += 1;
                let is_due = found == Some(due) && message.payload() == due.bytes(message.payload().len());
                self.parties[host].workers[0].release(message.keep());
                ensure(is_due, "order", || {
                    format!("{found:?} came where {due:?} was due")
                })
            }
            Event::Done { .. } => Ok(()),
            Event::PeerClosed { all_arrived } => {
                let is_right = all_arrived && made.is_closing[1 - end];
                made.is_closing[end] = true;
                ensure(is_right, "farewell", || {
                    format!("h{host} is told of a farewell, all arrived {all_arrived}")
                })
            }
            other => Err(failure(
                "event",
                format!("{other:?} of h{host}, and nothing was wrong"),
            )),
        }
    }

    fn poll_entrance(&mut self) -> Verdict {
        let Party { node, workers, .. } = &mut self.parties[0];
        let (mut accepted, mut told) = (Vec::new(), Vec::new());
        match &mut self.entrance {
            None => {}
            Some(Entrance::Polled(listener)) => loop {
                match listener.poll_accept(node, workers) {
                    Ok(Some(Connection { channel, .. })) => accepted.push(channel),
                    Ok(None) => break,
                    Err(error) => told.push(error),
                }
            },
            Some(Entrance::Aside(handshakes, acceptances)) => {
                // Several rounds finish a granted handshake at once, as threads that wake each other do.
                for _ in 0..4 {
                    handshakes.poll();
                    loop {
                        match acceptances.poll_accept(&mut workers[0]) {
                            Ok(Some(channel)) => accepted.push(channel),
                            Ok(None) => break,
                            Err(error) => told.push(error),
                        }
                    }
                    told.extend(handshakes.take_failure());
                }
            }
        }
        for error in told {
            self.note(0, format_args!("a handshake failed: {error}"));
            self.told.push(error);
        }
        for channel in accepted {
            let worker = &mut self.parties[0].workers[0];
            let number = worker.channel(channel).and_then(|channel| {
                let bytes = channel.peer().private_data();
                Some(u32::from_le_bytes(*bytes.first_chunk()?))
            });
            let known = self.attempts.iter().map(|attempt| (attempt.line, attempt.number));
            let known = known.chain(self.made.iter().map(|made| (made.line, made.number)));
            let found = known.clone().find(|(_, known)| Some(*known) == number);
            let (line, number) = found.ok_or_else(|| failure("owner", format!("{number:?} is accepted")))?;
            self.admit(line, number, 1, channel);
        }
        Ok(())
    }

    /// An end is there.
    fn admit(&mut self, line: usize, number: u32, end: usize, id: ChannelId) {
        let host = self.host_of(line, end);
        self.note(
            host,
            format_args!("line {line}: end {end} of {number} is connected"),
        );
        let at = self.made.iter().position(|made| made.number == number);
        let at = at.unwrap_or_else(|| {
            self.made.push(Made {
                line,
                number,
                ends: [None; 2],
                is_closing: [false; 2],
                sent: [[0; SUBMITTERS]; 2],
                came: [[0; SUBMITTERS]; 2],
            });
            self.made.len() - 1
        });
        self.made[at].ends[end] = Some(id);
        let from = (end == 1).then_some(self.host_of(line, 0));
        let held = Held::of(self.line(line), end, number, from);
        self.rooms[host].held.push(held);
    }

    /// Forgets the ends that are gone.
    fn tend_closings(&mut self) -> Verdict {
        for made in &mut self.made {
            for end in 0..2 {
                let Some(id) = made.ends[end].filter(|_| made.is_closing[end]) else {
                    continue;
                };
                let host = self.case.lines[made.line].hosts[end];
                let worker = &mut self.parties[host].workers[0];
                match worker.close_progress(id) {
                    CloseProgress::Closed(Ok(())) => {
                        made.ends[end] = None;
                        let number = made.number;
                        self.rooms[host].held.retain(|held| held.number != number);
                    }
                    CloseProgress::Closed(Err(error)) => {
                        return Err(failure("close", error.to_string()));
                    }
                    _ => {}
                }
            }
        }
        self.made.retain(|made| made.ends.iter().any(Option::is_some));
        Ok(())
    }

    /// Moves the strangers, and judges those who have to go.
    fn poll_visitors(&mut self) -> Verdict {
        let now_ns = self.now_ns();
        while let Some((guest, fate)) = self.door.due(now_ns) {
            self.send_away(guest.number, now_ns, fate);
        }
        let slack_ns = SETTLED_NS + 8 * self.case.latency_ns;
        for visitor in &mut self.visitors {
            visitor
                .stranger
                .poll()
                .map_err(|detail| failure("document", detail))?;
            if visitor.is_done || self.is_vague {
                continue;
            }
            let due = |(at_ns, fate): (u64, Fate)| format!("it has to be at {at_ns} ns: {fate:?}");
            let due = || visitor.fate.map_or_else(|| "it is not to be".into(), due);
            match (visitor.stranger.rejected(), visitor.fate) {
                (Some((reason, detail)), Some((at_ns, fate))) => {
                    let is_reason = match fate {
                        // Between 50 ms and 5 s, so that it does not come back at once, nor never.
                        Fate::Busy => reason == BUSY && (50..=5_000).contains(&detail),
                        Fate::Late => reason == DEADLINE,
                    };
                    ensure(is_reason, "reason", || {
                        format!(
                            "stranger {} is refused for {reason} ({detail}), {}",
                            visitor.number,
                            due()
                        )
                    })?;
                    ensure(now_ns + slack_ns >= at_ns, "refused", || {
                        format!("stranger {} is refused early, {}", visitor.number, due())
                    })?;
                    visitor.is_done = true;
                }
                (Some((reason, _)), None) => {
                    // A stranger that is nearly due may be rejected at any moment.
                    let is_near = self.door.next_ns() <= now_ns + slack_ns;
                    ensure(is_near, "refused", || {
                        format!(
                            "stranger {} is refused for {reason}, and {}",
                            visitor.number,
                            due()
                        )
                    })?;
                }
                (None, Some((at_ns, _))) => {
                    ensure(now_ns <= at_ns + slack_ns + LOOKS_EVERY_NS, "late", || {
                        format!("stranger {} was not refused, and {}", visitor.number, due())
                    })?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// A guest has to go.
    fn send_away(&mut self, number: u32, at_ns: u64, fate: Fate) {
        let guest = self.door.guests.iter().find(|guest| guest.number == number);
        // With two reasons at the same time, the host may report either.
        let is_late = guest.is_some_and(|guest| guest.stage_ends_ns <= at_ns + 2 * SETTLED_NS);
        self.is_vague |= fate == Fate::Busy && is_late;
        self.door.leave(number);
        // A guest that waits in line may get the place that is now free.
        let waits = |guest: &Guest| matches!(guest.standing, Standing::InLine { .. });
        self.is_vague |= self.door.guests.iter().any(waits);
        self.rooms[0].held.retain(|held| held.number != number);
        self.note(0, format_args!("stranger {number} has to go: {fate:?}"));
        if let Some(visitor) = self.visitors.iter_mut().find(|visitor| visitor.number == number) {
            visitor.fate = Some((at_ns, fate));
        }
    }

    /// Goes on until nothing is under way but strangers.
    fn settle(&mut self) -> Verdict {
        let until_ns = self.now_ns() + QUIET_WITHIN_NS;
        while !self.is_quiet() {
            let now_ns = self.now_ns();
            ensure(now_ns < until_ns, "liveness", || self.describe())?;
            self.step(now_ns + 10 * STEP_NS)?;
        }
        // Announcements and the rest of a closing need no operation, but some time.
        self.pass(SETTLED_NS / 2)
    }

    /// All strangers go, so that it is known again who has what.
    fn clear_out(&mut self) -> Verdict {
        self.visitors.clear();
        self.is_vague = true;
        self.pass(2 * SETTLED_NS)?;
        self.door.guests.clear();
        self.rooms[0].held.retain(|held| !held.is_unfinished);
        self.is_vague = false;
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        let is_whole = |made: &Made| !made.is_ending() && made.sent == made.came;
        self.attempts.is_empty() && self.made.iter().all(is_whole)
    }

    fn describe(&self) -> String {
        let made = self.made.iter().map(|made| {
            let Made {
                number,
                ends,
                is_closing,
                sent,
                came,
                ..
            } = made;
            format!("{number}: {ends:?}, closing {is_closing:?}, sent {sent:?}, came {came:?}")
        });
        format!(
            "{} attempts, channels {:?}",
            self.attempts.len(),
            made.collect::<Vec<_>>()
        )
    }

    fn begin(&mut self, line: usize) -> Verdict<u32> {
        self.numbers += 1;
        let number = self.numbers;
        let config = crowd_config(self.case, self.crowd, line, 0, number);
        let config = config.map_err(|error| failure("set-up", error.to_string()))?;
        let Party { node, workers, .. } = &self.parties[self.host_of(line, 0)];
        let to = at(address(0, 0), TCP_PORT);
        let deadline = node.within(Duration::from_secs(4));
        let connecting = node.begin_connect_at(workers, to, &config, deadline);
        let connecting = connecting.map_err(|error| failure("connect", error.to_string()))?;
        self.attempts.push(Attempt {
            line,
            number,
            connecting,
        });
        Ok(number)
    }

    /// Returns the reasons to refuse a stranger's Connect now; none if it gets a place.
    fn ask(&self, host: usize, held: Held) -> Vec<room::Refusal> {
        let room = &self.rooms[0];
        let seated = room.held.iter().filter(|held| held.is_unfinished);
        let of_it = seated.clone().filter(|held| held.from == Some(host)).count() as u32;
        let free = self.crowd.unaccepted.saturating_sub(seated.count() as u32);
        if free == 0 {
            return vec![room::Refusal::Unaccepted];
        }
        if holds_too_much(of_it, free) {
            return vec![room::Refusal::Unfinished(host)];
        }
        room.refusals(held)
    }
}

impl Made {
    fn is_ending(&self) -> bool {
        self.is_closing.contains(&true) || self.ends.contains(&None)
    }
}

impl Party {
    fn new(case: &Case, crowd: &CrowdCase, fabric: &Fabric, number: usize) -> anyhow::Result<Self> {
        let host = fabric.host(&format!("h{number}"), ports(case, number)?)?;
        let node = Arc::new(Node::simulated(
            host.clone(),
            Trust::unauthenticated_on_purpose(),
        )?);
        let (room, of) = (&crowd.rooms[number], &case.hosts[number]);
        let mut config = WorkerConfig::default();
        (config.slots, config.slot_bytes) = (of.slots, of.slot_bytes);
        config.completion_depth = room.completion_depth;
        config.channels_max = room.channels_max;
        config.channels_per_address = room.channels_per_address;
        config.lease_share_percent = room.lease_share_percent;
        config.submissions_per_poll = crowd.submissions_per_poll;
        config.shared_receives = of.shared_receives.map(|depth| {
            let mut shared = SharedReceivesConfig::default();
            (shared.depth, shared.repost_batch) = (depth, 1);
            shared
        });
        let mut workers = node.workers(&config)?;
        anyhow::ensure!(workers.len() == 1, "a host of limits has one device");
        let mut submitting = SubmitterConfig::default();
        submitting.slot_bytes = of.slot_bytes;
        [submitting.slots, submitting.depth] = crowd.submitters;
        let submitters = (0..SUBMITTERS)
            .map(|_| workers[0].submitter(&submitting))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            leases: Vec::new(),
            submitters,
            workers,
            node,
            host,
        })
    }
}

fn entrance(case: &Case, crowd: &CrowdCase, party: &Party) -> anyhow::Result<Entrance> {
    let Party { node, workers, .. } = party;
    let mut limits = HandshakeLimits::default();
    (limits.under_way, limits.per_address) = (crowd.under_way, crowd.per_address);
    limits.unaccepted = crowd.unaccepted;
    limits.crowded_stage = Duration::from_nanos(crowd.crowded_stage_ns);
    let config = crowd_config(case, crowd, 0, 1, 0)?;
    let to = at(address(0, 0), TCP_PORT);
    let listener = Listener::bind_with_limits(node, workers, to, &config, &limits)?;
    if !crowd.is_aside {
        return Ok(Entrance::Polled(listener));
    }
    let (handshakes, mut acceptances) = listener.aside(node, workers, &limits);
    let acceptances = acceptances.pop().context("no Worker accepts")?;
    Ok(Entrance::Aside(handshakes, acceptances))
}

/// How one end of a line is made; all lines end at one listener, and have there what the first says.
fn crowd_config(
    case: &Case,
    crowd: &CrowdCase,
    line: usize,
    end: usize,
    number: u32,
) -> anyhow::Result<ChannelConfig> {
    let mut config = channel_config(&case.lines[line], None, end, number)?;
    config.probe_after = None;
    if end == 1 {
        config.handshake_stage = Duration::from_nanos(crowd.stage_ns);
    }
    Ok(config)
}

/// Whose an address is.
fn host_at(address: IpAddr) -> Option<usize> {
    of_address(address).map(|(host, _)| host)
}
