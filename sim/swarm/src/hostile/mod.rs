//! A run with a host that lies by script, or that speaks by the document, beside honest ones: these are served within their
//! bounds, nothing panics, nothing is left, and each refusal has its reason.

pub(crate) mod case;
mod lies;
mod other;

use core::time::Duration;
use std::sync::Arc;

use doorbell::vocabulary::Instant;
use doorbell::{
    ChannelConfig, ChannelId, ChannelState, CloseProgress, Connecting, Event, Listener, Node, Operation,
    PostFlags, Trust, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host};

use crate::by_document::{self, ACCEPT, CONNECT, FARE, HELLO, READY, WELCOME};
use crate::case::{Case, Scene, What};
use crate::failure::{Verdict, ensure, failure};
use crate::hostile::case::{HostileAct, HostileCase};
use crate::hostile::lies::{LIES, NOISE};
use crate::hostile::other::{Came, Other};
use crate::pattern::Label;
use crate::station::{address, channel_config, ports};
use crate::stranger::{Stranger, at};
use crate::trace::Trace;

const TCP_PORT: u16 = 4000;

/// What is said is answered within this.
const ANSWERED_NS: u64 = 10_000_000;

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
    /// What the first end was told: of WRITEs by words, and of its end.
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
    /// Of each line of the case.
    lines: Vec<Line>,
    attempt: Option<(usize, Connecting<Host, Host>)>,
    other: Option<(Stranger, Other, Line)>,
    /// What was said before, to be said again.
    recorded: Vec<Vec<u8>>,
    numbers: u32,
    trace: &'c mut Trace,
    pub(crate) messages: u64,
}

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
            self.audit()?;
        }
        self.finish()
    }

    fn audit(&self) -> Verdict {
        let audited = self.fabric.audit().map(drop);
        audited.map_err(|violation| failure("audit", violation.to_string()))?;
        ensure(self.fabric.receivers_not_ready() == 0, "credits", || {
            "a message was sent that its receiver had no receive for".into()
        })
    }

    fn now_ns(&self) -> u64 {
        self.fabric.now().to_ns()
    }

    fn note(&mut self, host: usize, what: core::fmt::Arguments<'_>) {
        let now_ns = self.now_ns();
        self.trace.note(now_ns, host, what);
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
            let polled =
                self.parties[host].workers[0].poll(|turn, event| told.push((turn.channel.id(), event)));
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

    fn hear(&mut self, host: usize, id: ChannelId, event: Event<Host>) -> Verdict {
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
            _ => return Ok(()),
        };
        match event {
            Event::Received { message, .. } => {
                let found = Label::of(message.payload());
                let due = label(number, 1 - end, line.came[1 - end]);
                line.came[1 - end] += 1;
                self.messages += 1;
                let is_due = found == Some(due) && message.payload() == due.bytes(message.payload().len());
                self.parties[host].workers[0].release(message);
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
                Ok(())
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
                if self.send_from(host, id, label(line as u32, end, sent))? {
                    self.lines[line].sent[end] += 1;
                }
            }
            let is_there = |run: &Self| run.lines[line].sent == run.lines[line].came;
            let is_there = self.until(SERVED_NS, is_there)?;
            ensure(is_there, "served", || {
                format!("a message of line {line} is not there")
            })?;
        }
        Ok(())
    }

    fn send_from(&mut self, host: usize, id: Option<ChannelId>, label: Label) -> Verdict<bool> {
        let worker = &mut self.parties[host].workers[0];
        let (Some(id), Some(mut lease)) = (id, worker.lease()) else {
            return Ok(false);
        };
        lease
            .fill(&label.bytes(40))
            .map_err(|error| failure("lease", error.to_string()))?;
        let Some(channel) = worker
            .channel(id)
            .filter(|channel| channel.state() == ChannelState::Open)
        else {
            worker.release(lease);
            return Ok(false);
        };
        match channel.post(Operation::Send, lease, PostFlags::empty()) {
            Ok(_) => Ok(true),
            Err(error) => {
                error.item.into_iter().for_each(|lease| worker.release(lease));
                Ok(false)
            }
        }
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

    /// A host connects that shares nothing with the product.
    fn connect_other(&mut self) -> Verdict {
        if self.other.is_some() {
            return Ok(());
        }
        let document = |detail| failure("document", detail);
        let liar = self.parties.len();
        let HostileCase { receives, start, .. } = self.hostile;
        let other = Other::new(&self.liar, address(liar, 0), receives, start).map_err(document)?;
        let mut stranger = self.stranger(true)?;
        stranger.offer = other.offer();
        stranger.say_hello();
        self.other = Some((stranger, other, Line::default()));
        let heard = |run: &Self, kind| {
            let stranger = run.other.as_ref().map(|(stranger, ..)| stranger);
            stranger.is_some_and(|stranger| stranger.heard_of(kind).is_some())
        };
        let has_heard = self.until(ANSWERED_NS, |run| heard(run, WELCOME))?;
        ensure(has_heard, "document", || "no Welcome".into())?;
        if let Some((stranger, ..)) = &mut self.other {
            stranger.say_connect();
        }
        let has_heard = self.until(ANSWERED_NS, |run| heard(run, ACCEPT))?;
        ensure(has_heard, "document", || "no Accept".into())?;
        if let Some((stranger, other, _)) = &mut self.other {
            let offer = stranger.accepted().ok_or_else(|| document("no Accept".into()))?;
            let config = &self.case.lines[0];
            let is_as_made = offer.receive_depth == config.receive_depths[1]
                && offer.slot_bytes == self.case.hosts[0].slot_bytes
                && offer.reads_served.min(offer.reads_wanted) == config.rd_atomic_max;
            ensure(is_as_made, "document", || format!("{offer:?} is offered"))?;
            other.connect(offer).map_err(document)?;
            let ready = by_document::frame(stranger.greeting.version(), READY, &[]);
            stranger.say(&ready);
        }
        let is_made = |run: &Self| {
            let other = run.other.as_ref();
            heard(run, READY) && other.is_some_and(|(_, _, line)| line.ends[1].is_some())
        };
        let is_made = self.until(ANSWERED_NS, is_made)?;
        ensure(is_made, "document", || "a channel is not accepted".into())?;
        self.note(liar, format_args!("is connected by the document"));
        Ok(())
    }

    /// Sends what its credits allow; more of those come, as long as it waits.
    fn other_sends(&mut self, count: u8) -> Verdict {
        let document = |detail| failure("document", detail);
        for _ in 0..count {
            let Some((_, other, line)) = &mut self.other else {
                return Ok(());
            };
            if line.is_closing || line.farewell.is_some() || other.has_failed {
                return Ok(());
            }
            let credits = other.credits().map_err(document)?;
            let credits = credits.ok_or_else(|| document(format!("{:02x?} is announced", other.told())))?;
            if credits == 0 {
                let came = self.until(ANSWERED_NS, |run| {
                    let other = run.other.as_ref().map(|(_, other, _)| other);
                    other.is_some_and(|other| matches!(other.credits(), Ok(Some(1..))))
                })?;
                ensure(came, "document", || "receives are not announced".into())?;
                continue;
            }
            let label = label(u32::MAX, 0, line.sent[0]);
            other.send(&label.bytes(40)).map_err(document)?;
            line.sent[0] += 1;
            let came = self.until(ANSWERED_NS, |run| {
                let line = run.other.as_ref().map(|(_, _, line)| line);
                line.is_none_or(|line| line.came[0] == line.sent[0])
            })?;
            ensure(came, "document", || "a message that it sent is not there".into())?;
        }
        Ok(())
    }

    /// The host that accepted sends it so many, no more of which come than it has posted receives for.
    fn send_other(&mut self, count: u8) -> Verdict {
        for _ in 0..count {
            let Some((_, _, line)) = &self.other else {
                return Ok(());
            };
            let (id, label) = (line.ends[1], label(u32::MAX, 1, line.sent[1]));
            if line.is_closing || line.farewell.is_some() || !self.send_from(0, id, label)? {
                break;
            }
            if let Some((_, _, line)) = &mut self.other {
                line.sent[1] += 1;
            }
        }
        let came = self.until(ANSWERED_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_none_or(|line| line.came[1] == line.sent[1])
        })?;
        let has_failed = self.other.as_ref().is_some_and(|(_, other, _)| other.has_failed);
        ensure(came || has_failed, "document", || {
            "a message to it is not there".into()
        })
    }

    /// It posts again: then it may be sent as many.
    fn other_posts(&mut self) -> Verdict {
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        if line.is_closing || line.farewell.is_some() || other.has_failed {
            return Ok(());
        }
        other.repost().map_err(|detail| failure("document", detail))?;
        self.pass(ANSWERED_NS)?;
        let Some((_, other, line)) = &self.other else {
            return Ok(());
        };
        let (waiting, id) = (other.waiting(), line.ends[1]);
        let channel = id.and_then(|id| self.parties[0].workers[0].channel(id));
        let credits = channel.map(|channel| channel.credits());
        ensure(credits == Some(waiting), "document", || {
            format!("{waiting} receives are announced, and {credits:?} are known")
        })
    }

    /// What is no announcement of an honest peer's is not believed.
    fn other_lies(&mut self, how: u8) -> Verdict {
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        if line.is_closing || line.farewell.is_some() || other.has_failed {
            return Ok(());
        }
        let document = |detail| failure("document", detail);
        let id = line.ends[1];
        let credits = |run: &mut Self| {
            let channel = id.and_then(|id| run.parties[0].workers[0].channel(id));
            channel.map(|channel| channel.credits())
        };
        let sent = other.peer_start().wrapping_add(line.sent[1] as u32);
        let depth = self.hostile.receives;
        let right = by_document::announcement(sent.wrapping_add(depth));
        let bytes = match how % 5 {
            0 => by_document::announcement(sent.wrapping_add(depth + 1)),
            1 => by_document::announcement(sent.wrapping_sub(1)),
            2 => by_document::announcement(sent.wrapping_add(1 << 31)),
            3 => [
                right[0],
                right[1],
                right[2],
                right[3],
                right[4],
                right[5],
                right[6],
                right[7] ^ 1,
            ],
            _ => [
                right[7], right[6], right[5], right[4], right[3], right[2], right[1], right[0],
            ],
        };
        let before = credits(self);
        if let Some((_, other, _)) = &mut self.other {
            other.write(&bytes).map_err(document)?;
        }
        self.pass(ANSWERED_NS)?;
        let after = credits(self);
        // It may have hidden what was right.
        ensure(after <= before, "document", || {
            format!("{bytes:02x?} is believed: {before:?} credits, and {after:?} then")
        })?;
        // What is right is, behind it.
        self.other_posts()
    }

    /// It says farewell, or something that looks like one.
    fn other_leaves(&mut self, how: u8) -> Verdict {
        let document = |detail| failure("document", detail);
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        let has_credit = matches!(other.credits(), Ok(Some(1..)));
        if line.is_closing || line.farewell.is_some() || other.has_failed || !has_credit {
            return Ok(());
        }
        let (start, peer_start, sent) = (other.start(), other.peer_start(), other.sent);
        let (bytes, word, is_farewell) = match how % 5 {
            0 => (
                by_document::farewell(start, sent.wrapping_add(1), peer_start),
                FARE,
                false,
            ),
            1 => (
                by_document::farewell(start, sent, peer_start.wrapping_add(1)),
                FARE,
                false,
            ),
            2 => (by_document::farewell(start, sent, peer_start), FARE ^ 1, false),
            _ => (by_document::farewell(start, sent, peer_start), FARE, true),
        };
        let before = line.told.len();
        other.write_telling(&bytes, word).map_err(document)?;
        let heard = self.until(ANSWERED_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_some_and(|line| line.farewell.is_some() || line.told.len() > before)
        })?;
        let Some((_, _, line)) = &mut self.other else {
            return Ok(());
        };
        // It is no message of the application's.
        let is_right = if is_farewell {
            line.farewell == Some(true)
        } else {
            line.farewell.is_none() && line.told.last() == Some(&(8, word))
        };
        ensure(heard && is_right, "document", || {
            format!(
                "{bytes:02x?} with {word:#x} is told as {:?} and {:?}",
                line.farewell,
                line.told.last()
            )
        })?;
        if is_farewell {
            return self.other_is_gone();
        }
        Ok(())
    }

    /// The host that accepted closes: it is told by the document.
    fn leave_other(&mut self) -> Verdict {
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        let Some(id) = line.ends[1].filter(|_| !line.is_closing && line.farewell.is_none()) else {
            return Ok(());
        };
        // What was written over an announcement hides it.
        let worker = &mut self.parties[0].workers[0];
        let credits = worker.channel(id).map_or(0, |channel| channel.credits());
        let has_receive = other.waiting() > 0 && !other.has_failed && credits > 0;
        line.is_closing = true;
        let deadline = worker.within(Duration::from_millis(50));
        let begun = worker.begin_close(id, deadline);
        begun.map_err(|error| failure("close", error.to_string()))?;
        self.until(LEFT_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_none_or(|line| line.farewell.is_some())
        })?;
        let said = self.other.as_ref().and_then(|(_, _, line)| line.farewell);
        ensure(said.is_some() || !has_receive, "document", || {
            "no farewell is said".into()
        })?;
        self.other_is_gone()
    }

    fn other_is_gone(&mut self) -> Verdict {
        let is_gone = self.until(LEFT_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_none_or(|line| line.is_gone)
        })?;
        self.other = None;
        ensure(is_gone, "conserved", || {
            "a channel is not gone whose peer is".into()
        })
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
            let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
            let found = leases.len();
            leases.into_iter().for_each(|lease| worker.release(lease));
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
        self.audit()
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
        config.private_data = doorbell::PrivateData::EMPTY;
    }
    Ok(config)
}
