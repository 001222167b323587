//! A run with a host that lies by script, or that speaks by the document, beside honest ones: these are served within their
//! bounds, nothing panics, nothing is left, and each refusal has its reason.

pub(crate) mod case;
mod converse;
mod lies;
mod other;

use core::time::Duration;
use std::sync::Arc;

use doorbell::connect::Connecting;
use doorbell::provider::Instant;
use doorbell::worker::CloseProgress;
use doorbell::{
    ChannelConfig, ChannelId, ChannelState, Event, Listener, Node, Operation, PostFlags, SendErrorKind,
    Trust, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host};

use crate::by_document::{self, ACCEPT, CONNECT, FARE, HELLO, READY, WELCOME};
use crate::case::{Case, Scene, What};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::{audit, free_slots};
use crate::hostile::case::{HostileAct, HostileCase};
use crate::hostile::lies::{LIES, NOISE};
use crate::hostile::other::{Came, Other};
use crate::pattern::Label;
use crate::station::{address, channel_config, ports};
use crate::stranger::{Stranger, at};
use crate::trace::{Trace, clock_and_notes};

const TCP_PORT: u16 = 4000;

/// A stream gets its answer within this time.
const ANSWERED_NS: u64 = 10_000_000;

/// The wait before a message that found no room is tried again.
const POLLED_NS: u64 = 10_000;

/// Honest hosts are served within this.
const SERVED_NS: u64 = 100_000_000;

/// A farewell for which there is no receive waits so long (`Worker::begin_close`), and a closing flushes half a second.
const LEFT_NS: u64 = 700_000_000;

/// Everything that a stranger began is over by then.
const ALL_OVER_NS: u64 = 8_000_000_000;

struct Party {
    workers: Vec<Worker<Host>>,
    node: Arc<Node<Host, Host>>,
}

/// A channel between the host that accepts and an honest one, or the one that speaks by the document.
#[derive(Default)]
struct Line {
    ends: [Option<ChannelId>; 2],
    sent: [u64; 2],
    came: [u64; 2],
    /// WRITEs with immediate that an end was notified of, as bytes and word. The farewell follows.
    told: Vec<(u32, u32)>,
    farewell: Option<bool>,
    is_closing: bool,
    is_gone: bool,
}

/// A run under way.
pub(crate) struct HostileRun<'c> {
    case: &'c Case,
    hostile: HostileCase,
    fabric: Fabric,
    strangers: Vec<Stranger>,
    listener: Listener<Host, Host>,
    parties: Vec<Party>,
    liar: Host,
    /// One for each line of the case.
    lines: Vec<Line>,
    attempt: Option<(usize, Connecting<Host, Host>)>,
    other: Option<(Stranger, Other, Line)>,
    /// The bytes of earlier streams, to be sent again.
    recorded: Vec<Vec<u8>>,
    numbers: u32,
    trace: &'c mut Trace,
    pub(crate) messages: u64,
}

clock_and_notes!(HostileRun);

impl<'c> HostileRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let Some(Scene::Hostile(hostile)) = case.scene else {
            anyhow::bail!("no case with a host that lies");
        };
        let honest = case.hosts.len() - 1;
        let parties = (0..honest)
            .map(|number| Party::new(case, fabric, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let liar = fabric.host(&format!("h{honest}"), ports(case, honest)?)?;
        let Party { node, workers, .. } = &parties[0];
        let config = config(case, &hostile, 0, 1)?;
        let listener = Listener::bind(node, workers, at(address(0, 0), TCP_PORT), &config)?;
        Ok(Self {
            case,
            hostile,
            fabric: fabric.clone(),
            strangers: Vec::new(),
            listener,
            parties,
            liar,
            lines: case.lines.iter().map(|_| Line::default()).collect(),
            attempt: None,
            other: None,
            recorded: Vec::new(),
            numbers: 0,
            trace,
            messages: 0,
        })
    }

    pub(crate) fn run(&mut self) -> Verdict {
        for operation in &self.case.operations {
            match operation.what {
                What::Pass { ns } => self.pass(ns)?,
                What::Hostile(act) => self.act(operation.line, act)?,
                _ => {}
            }
            audit(&self.fabric)?;
        }
        self.finish()
    }

    fn pass(&mut self, span_ns: u64) -> Verdict {
        let until_ns = self.now_ns().saturating_add(span_ns);
        self.until(span_ns.saturating_add(1), |run| run.now_ns() >= until_ns)
            .map(drop)
    }

    /// Polls until this holds; says whether it did in time.
    fn until(&mut self, within_ns: u64, holds: impl Fn(&Self) -> bool) -> Verdict<bool> {
        let until_ns = self.now_ns().saturating_add(within_ns);
        loop {
            self.poll()?;
            if holds(self) {
                return Ok(true);
            }
            let now_ns = self.now_ns();
            if now_ns >= until_ns {
                return Ok(false);
            }
            let mut next_ns = until_ns.min(now_ns + 1_000_000);
            let deadline = self.listener.deadline().map(|deadline| deadline.instant());
            for at in deadline.into_iter().chain(self.fabric.next_at()) {
                next_ns = next_ns.min(at.to_ns());
            }
            self.fabric.run_until(Instant::from_ns(next_ns.max(now_ns + 1)));
        }
    }

    fn poll(&mut self) -> Verdict {
        for host in 0..self.parties.len() {
            let mut told = Vec::new();
            let polled = self.parties[host].workers[0]
                .poll_tending(|turn, event| told.push((turn.channel.id(), event.keep())));
            polled.map_err(|error| failure("poll", error.to_string()))?;
            for (id, event) in told {
                self.hear(host, id, event)?;
            }
        }
        self.accept()?;
        if let Some((line, mut attempt)) = self.attempt.take() {
            let host = self.case.lines[line].hosts[0];
            let Party { node, workers, .. } = &mut self.parties[host];
            match attempt.poll(node, workers) {
                None => self.attempt = Some((line, attempt)),
                Some(Ok(made)) => self.lines[line].ends[0] = Some(made.channel),
                Some(Err(error)) => return Err(failure("served", format!("line {line}: {error}"))),
            }
        }
        for stranger in &mut self.strangers {
            stranger.poll().map_err(|detail| failure("document", detail))?;
        }
        self.poll_other()?;
        self.tend_closings();
        Ok(())
    }

    fn accept(&mut self) -> Verdict {
        loop {
            let Party { node, workers, .. } = &mut self.parties[0];
            match self.listener.poll_accept(node, workers) {
                Ok(None) => return Ok(()),
                // Each is told to the stranger that it is of, and judged there.
                Err(error) => self.note(0, format_args!("a handshake failed: {error}")),
                Ok(Some(made)) => {
                    let channel = self.parties[0].workers[0].channel(made.channel);
                    let number = channel.and_then(|channel| {
                        let bytes = channel.peer().private_data();
                        Some(u32::from_le_bytes(*bytes.first_chunk()?))
                    });
                    match (number, &mut self.other) {
                        (Some(line), _) => {
                            let line = self.lines.get_mut(line as usize);
                            let line = line.ok_or_else(|| failure("owner", "a line that is not there"))?;
                            line.ends[1] = Some(made.channel);
                        }
                        (None, Some((_, _, line))) => line.ends[1] = Some(made.channel),
                        (None, None) => return Err(failure("owner", "a channel of nobody is accepted")),
                    }
                }
            }
        }
    }

    fn hear(&mut self, host: usize, id: ChannelId, event: Event<'_, Host>) -> Verdict {
        let lines = &self.case.lines;
        let at_honest = (0..self.lines.len()).find_map(|line| {
            let is_it =
                |end: &usize| lines[line].hosts[*end] == host && self.lines[line].ends[*end] == Some(id);
            Some((line, (0..2).find(is_it)?))
        });
        let is_other = host == 0
            && self
                .other
                .as_ref()
                .is_some_and(|(_, _, line)| line.ends[1] == Some(id));
        let (number, line, end) = match (at_honest, &mut self.other) {
            (Some((number, end)), _) => (number as u32, &mut self.lines[number], end),
            (None, Some((_, _, line))) if is_other => (u32::MAX, line, 1),
            // A stranger that was not known when its channel came, and is gone.
            _ if host == 0 => return Ok(()),
            _ => {
                return Err(failure(
                    "owner",
                    format!("{event:?} on h{host} of a channel nobody knows"),
                ));
            }
        };
        match event {
            Event::Received { message, .. } => {
                let found = Label::of(message.payload());
                let due = label(number, 1 - end, line.came[1 - end]);
                line.came[1 - end] += 1;
                self.messages += 1;
                let is_due = found == Some(due) && message.payload() == due.bytes(message.payload().len());
                self.parties[host].workers[0].release(message.keep());
                ensure(is_due, "order", || {
                    format!("{found:?} came where {due:?} was due")
                })
            }
            Event::Written {
                payload_bytes,
                immediate,
            } => {
                line.told.push((payload_bytes, immediate));
                ensure(is_other, "made up", || {
                    format!("{immediate:#x} was told to an honest host")
                })
            }
            Event::PeerClosed { all_arrived } => {
                line.farewell = Some(all_arrived);
                let may_close = is_other || line.is_closing;
                ensure(may_close, "excuse", || {
                    format!("a line of h{host} is closed by a peer that does not close")
                })
            }
            Event::ChannelFailed { .. } | Event::Failed { .. } => {
                let may_fail = is_other || line.is_closing;
                ensure(may_fail, "excuse", || format!("a line of h{host} failed"))
            }
            Event::Done { .. } => Ok(()),
            other => Err(failure("event", format!("{other:?}"))),
        }
    }

    fn tend_closings(&mut self) {
        let parties = &self.parties;
        let lines = self
            .lines
            .iter_mut()
            .chain(self.other.as_mut().map(|(_, _, line)| line));
        for line in lines {
            if let Some(id) = line.ends[1] {
                let progress = parties[0].workers[0].close_progress(id);
                line.is_gone = matches!(progress, CloseProgress::Closed(_));
            }
        }
    }

    fn poll_other(&mut self) -> Verdict {
        let Some((stranger, other, line)) = &mut self.other else {
            return Ok(());
        };
        let document = |detail| failure("document", detail);
        stranger.poll().map_err(document)?;
        let came = other.poll().map_err(document)?;
        for came in came {
            match came {
                Came::Message(bytes) => {
                    let due = label(u32::MAX, 1, line.came[1]);
                    line.came[1] += 1;
                    self.messages += 1;
                    let found = Label::of(&bytes);
                    let is_due = found == Some(due) && due.bytes(bytes.len()) == bytes;
                    ensure(is_due, "order", || {
                        format!("{found:?} came where {due:?} was due")
                    })?;
                }
                Came::Told { bytes, word } => {
                    // Farewell: behind all messages, with a word that says how many those were.
                    let told = other.told().map_err(document)?;
                    let due = by_document::farewell(other.peer_start(), line.sent[1] as u32, other.start());
                    let is_farewell = word == FARE && bytes == 8 && told == due;
                    let is_its_time = line.is_closing && line.came[1] == line.sent[1];
                    ensure(is_farewell && is_its_time, "document", || {
                        format!(
                            "a WRITE of {bytes} bytes with {word:#x} and {told:02x?}, where {due:02x?} is a farewell"
                        )
                    })?;
                    line.farewell = Some(true);
                }
                Came::Failed => other.has_failed = true,
            }
        }
        Ok(())
    }

    fn act(&mut self, line: usize, act: HostileAct) -> Verdict {
        self.note(0, format_args!("line {line}: {act:?}"));
        self.strangers.retain(|stranger| !stranger.is_over);
        match act {
            HostileAct::Honest { count } => self.serve(line, count.into()),
            HostileAct::Lie { number } => self.lie(usize::from(number) % LIES.len()),
            HostileAct::Noise { says, number } => self.make_noise(says, number.into()),
            HostileAct::Other => self.connect_other(),
            HostileAct::OtherSends { count } => self.other_sends(count),
            HostileAct::OtherIsSent { count } => self.send_other(count),
            HostileAct::OtherPosts => self.other_posts(),
            HostileAct::OtherLies { how } => self.other_lies(how),
            HostileAct::OtherLeaves { how } => self.other_leaves(how),
            HostileAct::OtherIsLeft => self.leave_other(),
        }
    }

    /// An honest host connects, and each side sends so many, in its time.
    fn serve(&mut self, line: usize, count: u64) -> Verdict {
        let host = self.case.lines[line].hosts[0];
        if self.lines[line].ends[0].is_none() {
            let config = config(self.case, &self.hostile, line, 0);
            let config = config.map_err(|error| failure("set-up", error.to_string()))?;
            let Party { node, workers, .. } = &self.parties[host];
            let deadline = node.within(Duration::from_nanos(SERVED_NS));
            let attempt = node.begin_connect_at(workers, at(address(0, 0), TCP_PORT), &config, deadline);
            self.attempt = Some((
                line,
                attempt.map_err(|error| failure("served", error.to_string()))?,
            ));
            let is_made = |run: &Self| run.lines[line].ends.iter().all(Option::is_some);
            let is_made = self.until(SERVED_NS, is_made)?;
            ensure(is_made, "served", || format!("line {line} is not connected"))?;
        }
        for _ in 0..count {
            for end in 0..2 {
                let host = self.case.lines[line].hosts[end];
                let sent = self.lines[line].sent[end];
                let id = self.lines[line].ends[end];
                let until_ns = self.now_ns() + SERVED_NS;
                while let Err(kind) = self.send_from(host, id, label(line as u32, end, sent))? {
                    let may_wait = kind.is_temporary() && self.now_ns() < until_ns;
                    ensure(may_wait, "served", || {
                        format!("line {line} end {end} cannot send: {kind}")
                    })?;
                    self.pass(POLLED_NS)?;
                }
                self.lines[line].sent[end] += 1;
            }
            let is_there = |run: &Self| run.lines[line].sent == run.lines[line].came;
            let is_there = self.until(SERVED_NS, is_there)?;
            ensure(is_there, "served", || {
                format!("a message of line {line} is not there")
            })?;
        }
        Ok(())
    }

    /// Sends one message, or says why that cannot be.
    fn send_from(
        &mut self,
        host: usize,
        id: Option<ChannelId>,
        label: Label,
    ) -> Verdict<Result<(), SendErrorKind>> {
        let worker = &mut self.parties[host].workers[0];
        let Some(id) = id else {
            return Ok(Err(SendErrorKind::Closed));
        };
        let Some(mut lease) = worker.lease() else {
            return Ok(Err(SendErrorKind::NoMemory));
        };
        lease
            .fill(&label.bytes(40))
            .map_err(|error| failure("lease", error.to_string()))?;
        let Some(channel) = worker
            .channel(id)
            .filter(|channel| channel.state() == ChannelState::Open)
        else {
            worker.release(lease);
            return Ok(Err(SendErrorKind::Closed));
        };
        let posted = channel.post(Operation::Send, lease, PostFlags::empty());
        Ok(posted.map(drop).map_err(|error| {
            error.item.into_iter().for_each(|lease| worker.release(lease));
            error.kind
        }))
    }

    fn stranger(&mut self, is_new: bool) -> Verdict<Stranger> {
        self.numbers += 2;
        let number = self.numbers + u32::from(is_new);
        let liar = self.parties.len();
        let stranger = Stranger::new(&self.liar, address(liar, 0), at(address(0, 0), TCP_PORT), number);
        stranger.map_err(|detail| failure("set-up", detail))
    }

    /// Waits until the last stranger has heard this kind of frame, or is refused.
    fn heard(&mut self, kind: u8) -> Verdict<bool> {
        let heard = |run: &Self| {
            let stranger = run.strangers.last();
            stranger.is_none_or(|stranger| {
                stranger.heard_of(kind).is_some() || stranger.rejected().is_some() || stranger.is_over
            })
        };
        self.until(ANSWERED_NS, heard)?;
        let stranger = self.strangers.last();
        Ok(stranger.is_some_and(|stranger| stranger.heard_of(kind).is_some()))
    }

    fn lie(&mut self, number: usize) -> Verdict {
        let lie = &LIES[number];
        let stranger = self.stranger(lie.is_new || number % 2 == 0)?;
        let (hello, version, offer) = (
            stranger.greeting.hello(),
            stranger.greeting.version(),
            stranger.offer,
        );
        self.strangers.push(stranger);
        let mut said = if lie.frame == HELLO {
            hello
        } else {
            if let Some(stranger) = self.strangers.last_mut() {
                stranger.say_hello();
            }
            let was_welcomed = self.heard(WELCOME)?;
            ensure(was_welcomed, "served", || {
                "a stranger is not welcome that said what is right".into()
            })?;
            by_document::frame(version, CONNECT, &offer.body(version))
        };
        match lie.at.checked_add(lie.bytes.len()) {
            Some(end) => said[lie.at..end].copy_from_slice(lie.bytes),
            None => said = lie.bytes.to_vec(),
        }
        self.recorded.push(said.clone());
        if let Some(stranger) = self.strangers.last_mut() {
            stranger.say(&said);
        }
        let is_told = self.until(ANSWERED_NS, |run| {
            let last = run.strangers.last();
            last.is_some_and(|stranger| stranger.rejected().is_some())
        })?;
        let told = self.strangers.last().and_then(Stranger::rejected);
        let is_right = told.is_some_and(|(reason, detail)| {
            reason == lie.reason && lie.detail.is_none_or(|due| due == detail)
        });
        ensure(is_told && is_right, "reason", || {
            format!(
                "{said:02x?}, wrong at {}, is told {told:?}, where {} with {:?} is due",
                lie.at, lie.reason, lie.detail
            )
        })
    }

    /// Bytes that somebody else may have said, at some time.
    fn make_noise(&mut self, says: u8, number: usize) -> Verdict {
        let mut stranger = self.stranger(number % 2 == 0)?;
        if says > 0 {
            stranger.say_hello();
        }
        self.strangers.push(stranger);
        if says > 0 {
            self.heard(WELCOME)?;
        }
        if says > 1 {
            if let Some(stranger) = self.strangers.last_mut() {
                stranger.say_connect();
            }
            self.heard(ACCEPT)?;
        }
        let all = NOISE.len() + self.recorded.len();
        let number = number % all;
        let noise = match NOISE.get(number) {
            Some(noise) => noise.to_vec(),
            None => self.recorded[number - NOISE.len()].clone(),
        };
        // A farewell to all of it would be a channel that nobody has.
        let is_ready = noise.get(5) == Some(&READY) && says > 1;
        if let Some(stranger) = self.strangers.last_mut().filter(|_| !is_ready) {
            stranger.say(&noise);
        }
        self.pass(ANSWERED_NS)
    }

    fn finish(&mut self) -> Verdict {
        // Honest ones are served to the end.
        for line in 0..self.lines.len() {
            self.serve(line, 2)?;
        }
        self.leave_other()?;
        self.other = None;
        self.strangers.clear();
        self.pass(ALL_OVER_NS)?;
        let is_empty = self.listener.deadline().is_none();
        ensure(is_empty, "conserved", || {
            "handshakes are under way of nobody".into()
        })?;
        for line in 0..self.lines.len() {
            self.lines[line].is_closing = true;
            for end in 0..2 {
                let host = self.case.lines[line].hosts[end];
                let worker = &mut self.parties[host].workers[0];
                let deadline = worker.within(Duration::from_millis(50));
                if let Some(id) = self.lines[line].ends[end] {
                    // The other end may have heard by now, and closed by itself.
                    let _ = worker.begin_close(id, deadline);
                }
            }
        }
        self.pass(LEFT_NS)?;
        for host in 0..self.parties.len() {
            let slots = self.case.hosts[host].slots as usize;
            let worker = &mut self.parties[host].workers[0];
            let channels = worker.channels().count();
            let found = free_slots(worker, Worker::lease, Worker::release);
            let rejected = worker.statistics().snapshot().rejected;
            ensure(
                channels == 0 && found == slots && rejected == 0,
                "conserved",
                || {
                    format!(
                        "h{host} has {channels} channels, lends {found} of {slots} slots, and rejected {rejected}"
                    )
                },
            )?;
        }
        ensure(self.fabric.queue_pairs() == 0, "conserved", || {
            format!("{} queue pairs are left", self.fabric.queue_pairs())
        })?;
        audit(&self.fabric)
    }
}

/// A message of an end of a line.
const fn label(line: u32, end: usize, number: u64) -> Label {
    Label {
        connection: line,
        end: end as u8,
        stream: 0,
        number,
    }
}

impl Party {
    fn new(case: &Case, fabric: &Fabric, number: usize) -> anyhow::Result<Self> {
        let host = fabric.host(&format!("h{number}"), ports(case, number)?)?;
        let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose())?);
        let mut config = WorkerConfig::default();
        config.slots = case.hosts[number].slots;
        config.slot_bytes = case.hosts[number].slot_bytes;
        config.completion_depth = 512;
        config.channels_max = 16;
        let workers = node.workers(&config)?;
        Ok(Self { workers, node })
    }
}

/// How an end of a line is made. The one that connects says which line it is.
fn config(case: &Case, hostile: &HostileCase, line: usize, end: usize) -> anyhow::Result<ChannelConfig> {
    let mut config = channel_config(&case.lines[line], None, end, line as u32)?;
    config.handshake_stage = Duration::from_nanos(hostile.stage_ns);
    config.probe_after = None;
    if end == 1 {
        config.private_data = doorbell::wire::PrivateData::EMPTY;
    }
    Ok(config)
}
