//! A run of hosts that ask and answer over channels or links. A host with channels sleeps until a descriptor is readable, or until the
//! time that its Worker, its tables and its own work say. A host with links polls whenever something happens.
//!
//! Many requests are in flight, with deadlines shorter and longer than their answers take. Applications cancel and give up, answers
//! come late or not at all, channels and links close and fail. `model` says how each request has to end.

mod act;
pub(crate) mod case;
mod connect;
mod finish;
mod linked;
mod model;
mod seat;

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Context as _;
use doorbell::link::FinalReason;
use doorbell::provider::{Clock as _, Instant};
use doorbell::requests::{Asked, CorrelationId, Requests};
use doorbell::{ChannelState, Event, Lease, Message, Node, Notify, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

use self::case::{Question, RequestsCase};
use self::linked::Linked;
use self::model::{Kind, Model, Way, Why, body, read};
use self::seat::Seat;
use crate::case::{Case, Excuses, Scene, What};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::audit;
use crate::panics::Panics;
use crate::sleepy::body::is_readable;
use crate::station::ports;
use crate::trace::{Trace, clock_and_notes};

/// A host that asks for leave to sleep this often in a row, and has it never, never sleeps.
const ASKS_MAX: usize = 1000;

/// A turn has fewer calls and callbacks than this.
const CALLS_MAX: u64 = 10_000;

/// A host and its application.
struct Party {
    // Dropped in this order.
    duties: Vec<Duty>,
    linked: Option<Box<Linked>>,
    worker: Worker<Host>,
    node: Arc<Node<Host, Host>>,
    /// Until when it sleeps, where it does; with no end, for ever.
    nap: Option<Option<u64>>,
}

/// A request that a host is to answer.
struct Duty {
    due_ns: u64,
    line: usize,
    /// The end that answers.
    end: usize,
    connection: u32,
    number: usize,
    what: Work,
}

enum Work {
    Asked(Asked<Host>),
    /// A request that came over a link.
    Linked,
    /// Its answer, for which there was no room, and the length of its body.
    Answer(Lease<Host>, usize),
}

/// A run under way.
pub(crate) struct RequestsRun<'c> {
    case: &'c Case,
    asking: &'c RequestsCase,
    fabric: Fabric,
    parties: Vec<Party>,
    /// Both ends of each line.
    seats: Vec<[Seat; 2]>,
    /// How often each line was connected.
    connections: Vec<u32>,
    /// The lines of whose connection an end closed or left.
    is_breaking: Vec<bool>,
    excuses: Excuses,
    panics: Panics,
    trace: &'c mut Trace,
    pub(crate) messages: u64,
}

clock_and_notes!(RequestsRun);

impl<'c> RequestsRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let Some(Scene::Requests(asking)) = &case.scene else {
            anyhow::bail!("no case of hosts that ask");
        };
        let parties = (0..case.hosts.len())
            .map(|number| Party::new(case, asking, fabric, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        // A request times out at its deadline, or later by the time that calls and the application take.
        let late_ns = CALLS_MAX * (case.call_ns + case.handler_ns);
        let seat = |line: usize, end: usize| {
            let places = asking.places.get(line).context("a line without tables")?[end];
            anyhow::Ok(Seat {
                line,
                end,
                host: case.lines[line].hosts[end],
                requests: Requests::new(places, asking.body_bytes_max as usize),
                model: Model::new(places, late_ns),
                id: None,
                wanted: VecDeque::new(),
                is_closing: false,
                told: Vec::new(),
                is_over: false,
                sent: 0,
                came: 0,
                newest: None,
                said: None,
            })
        };
        Ok(Self {
            case,
            asking,
            fabric: fabric.clone(),
            parties,
            seats: (0..case.lines.len())
                .map(|line| Ok([seat(line, 0)?, seat(line, 1)?]))
                .collect::<anyhow::Result<_>>()?,
            connections: vec![0; case.lines.len()],
            is_breaking: vec![false; case.lines.len()],
            excuses: Excuses::of(&case.plan()?, u8::MAX),
            panics: Panics::every(case.panics_every),
            trace,
            messages: 0,
        })
    }

    /// Connects all lines, tries every operation, and ends the run.
    pub(crate) fn run(&mut self) -> Verdict {
        for line in 0..self.case.lines.len() {
            self.connect(line)?;
        }
        for operation in &self.case.operations {
            match operation.what {
                What::Pass { ns } => self.run_for(ns)?,
                What::Request(act) => {
                    self.act(operation.line, operation.end, act)?;
                    self.run_for(0)?;
                }
                _ => {}
            }
            audit(&self.fabric)?;
        }
        self.finish()
    }

    /// Whether the channel or link of a line may end: an end of it closed or left, or a fault may strike it.
    fn may_fail(&self, line: usize) -> bool {
        self.excuses.may_fail() || self.is_breaking[line]
    }

    /// Lets time pass while hosts sleep, and run when they are woken.
    fn run_for(&mut self, span_ns: u64) -> Verdict {
        let until_ns = self.now_ns().saturating_add(span_ns);
        loop {
            let mut has_run = false;
            for host in 0..self.parties.len() {
                if self.is_awake(host)? {
                    // Links are polled again once time has passed, and calls that take time must not go on for ever.
                    has_run |= self.parties[host].linked.is_none();
                    self.take_turns(host)?;
                }
            }
            if has_run {
                continue;
            }
            let now_ns = self.now_ns();
            if now_ns >= until_ns {
                return Ok(());
            }
            let wakes = self.parties.iter().filter_map(|party| party.nap.flatten());
            let happens = self.fabric.next_at().map(Instant::to_ns);
            let next_ns = wakes.chain(happens).fold(until_ns, u64::min);
            self.fabric.run_until(Instant::from_ns(next_ns.max(now_ns + 1)));
        }
    }

    fn is_awake(&self, host: usize) -> Verdict<bool> {
        let Party {
            nap, worker, linked, ..
        } = &self.parties[host];
        let Some(until) = nap else {
            return Ok(true);
        };
        if until.is_some_and(|until_ns| until_ns <= self.now_ns()) {
            return Ok(true);
        }
        // Links wait for more than descriptors.
        if let Some(linked) = linked {
            return Ok(linked.is_awake(self.now_ns()));
        }
        let descriptors = worker
            .descriptors()
            .ok_or_else(|| failure("sleep", "no descriptors"))?;
        is_readable(&Vec::from(descriptors))
    }

    /// A host does what there is to do, and asks for leave to sleep until it has it.
    fn take_turns(&mut self, host: usize) -> Verdict {
        for _ in 0..ASKS_MAX {
            self.answer_due(host)?;
            self.send_wanted(host)?;
            let asked = match self.parties[host].linked.is_some() {
                true => self.poll_links(host)?,
                false => self.poll(host)?,
            };
            let ended = self.settle(host)?;
            // A host that begins to close a channel asks again, since the leave that it has is of before.
            let began = self.tend_channels(host)?;
            let Some(at_most_ns) = asked.filter(|_| !ended && !began) else {
                continue;
            };
            let now_ns = self.now_ns();
            let wakes = self.seats.iter().flatten().filter(|seat| seat.host == host);
            let wakes = wakes.filter_map(|seat| Some(seat.requests.wake()?.instant().to_ns()));
            let duties = self.parties[host].duties.iter().map(|duty| duty.due_ns);
            let until = wakes
                .chain(duties.filter(|due_ns| *due_ns > now_ns))
                .chain(at_most_ns.map(|span_ns| now_ns.saturating_add(span_ns)))
                .min();
            // To be asked again at once is no sleep.
            if until.is_none_or(|until_ns| until_ns > now_ns) {
                self.parties[host].nap = Some(until);
                return Ok(());
            }
        }
        Err(failure(
            "sleep",
            format!("h{host} asked {ASKS_MAX} times, and may not sleep"),
        ))
    }

    /// Polls until nothing is told any more, and asks for leave to sleep; none where something happened, else for how long at most.
    fn poll(&mut self, host: usize) -> Verdict<Option<Option<u64>>> {
        let Self {
            parties,
            seats,
            panics,
            fabric,
            ..
        } = self;
        let Party { worker, .. } = &mut parties[host];
        let handler = core::time::Duration::from_nanos(self.case.handler_ns);
        let (mut left, mut strays) = (Vec::new(), 0);
        let asked = panics.through(|panics| {
            let asked = worker.ready_to_sleep(|mut turn, event| {
                if !handler.is_zero() {
                    fabric.run_for(handler);
                }
                let id = turn.channel.id();
                let seat = seats.iter_mut().flatten();
                match { seat }.find(|seat| seat.host == host && seat.id == Some(Way::Channel(id))) {
                    Some(seat) => {
                        let event = seat.take(&mut turn, event, panics);
                        left.extend(event.map(|event| (seat.line, seat.end, event.keep())));
                    }
                    None => strays += 1,
                }
                panics.event();
            });
            asked.map(|sleep| sleep.map(|sleep| sleep.at_most()))
        });
        let asked = asked.map_err(|error| failure("sleep", error.to_string()))?;
        ensure(strays == 0, "owner", || {
            format!("{strays} events of channels nobody knows")
        })?;
        for (line, end, event) in left {
            self.hear(line, end, event)?;
        }
        Ok(asked.map(|at_most| at_most.map(|span| span.as_nanos() as u64)))
    }

    /// Ends what is due, and judges all that ended in this turn; says whether anything did.
    fn settle(&mut self, host: usize) -> Verdict<bool> {
        let mut has_ended = false;
        for line in 0..self.seats.len() {
            for end in 0..2 {
                if self.seats[line][end].host == host {
                    has_ended |= self.settle_seat(line, end)?;
                }
            }
        }
        Ok(has_ended)
    }

    fn settle_seat(&mut self, line: usize, end: usize) -> Verdict<bool> {
        let seat = &mut self.seats[line][end];
        let Party { worker, .. } = &self.parties[seat.host];
        let now = worker.context().now();
        seat.expire(now, &mut self.panics);
        let (host, ended) = (seat.host, core::mem::take(&mut seat.model.ended));
        let state = seat.id.and_then(Way::channel).and_then(|id| worker.state(id));
        let causes = core::mem::take(&mut seat.model.causes);
        for (number, how) in &ended {
            self.note(
                host,
                format_args!("line {line} end {end}: request {number} {how}"),
            );
        }
        let seat = &mut self.seats[line][end];
        seat.model
            .settle(&seat.requests, now.to_ns())
            .map_err(|wrong| crate::failure::Failure {
                detail: format!("line {line} end {end}: {}", wrong.detail),
                ..wrong
            })?;
        for status in causes {
            let is_cause = match state {
                Some(ChannelState::Failed { cause }) => cause.status == status,
                _ => true,
            };
            ensure(is_cause, "cause", || {
                format!("line {line} end {end}: a request failed by {status}, and its channel is {state:?}")
            })?;
        }
        Ok(!ended.is_empty())
    }

    /// An event that is not the table's.
    fn hear(&mut self, line: usize, end: usize, event: Event<'_, Host>) -> Verdict {
        match event {
            Event::Received { message, .. } => self.hear_message(line, end, message),
            // The end of a channel is noted before the table has it.
            Event::Done { .. }
            | Event::Failed { .. }
            | Event::ChannelFailed { .. }
            | Event::PeerClosed { .. } => Ok(()),
            other => Err(failure("event", format!("{other:?}"))),
        }
    }

    /// A request of the peer's, or a message of another kind.
    fn hear_message(&mut self, line: usize, end: usize, message: Message<'_, Host>) -> Verdict {
        let host = self.seats[line][end].host;
        let (kind, message) = (read(message.payload()).0, Asked::of(message));
        let asked = match (kind, message) {
            (Kind::Request(id), Ok(asked)) if asked.id() == id => asked,
            (Kind::Other, Err(message)) => {
                let heard = self.hear_plain(line, end, message.payload());
                self.parties[host].worker.release(message.keep());
                return heard;
            }
            (kind, asked) => return Err(failure("taken", format!("{kind:?} is {asked:?}"))),
        };
        let Some((number, question)) = self.hear_request(line, end, asked.id(), asked.body())? else {
            self.parties[host].worker.release(asked.into_lease());
            return Ok(());
        };
        self.take_on(line, end, number, question, Work::Asked(asked));
        Ok(())
    }

    /// A message over a link that is no answer.
    fn hear_link(&mut self, line: usize, end: usize, message: &[u8]) -> Verdict {
        let (Kind::Request(id), body) = read(message) else {
            return self.hear_plain(line, end, message);
        };
        if let Some((number, question)) = self.hear_request(line, end, id, body)? {
            self.take_on(line, end, number, question, Work::Linked);
        }
        Ok(())
    }

    /// A message that neither asks nor answers.
    fn hear_plain(&mut self, line: usize, end: usize, message: &[u8]) -> Verdict {
        self.messages += 1;
        let is_its = message == self.plain(line, 1 - end, message.len());
        ensure(is_its, "made up", || "a message that was not sent".into())
    }

    /// The request of the peer's that has come, where the host takes it on: its number, and the work.
    fn hear_request(
        &mut self,
        line: usize,
        end: usize,
        id: CorrelationId,
        found: &[u8],
    ) -> Verdict<Option<(usize, Question)>> {
        self.messages += 1;
        let connection = self.connections[line];
        let requester = &mut self.seats[line][1 - end].model;
        let number = requester.number(id);
        let Some((number, asking)) = number.map(|number| (number, &mut requester.asked[number])) else {
            return Err(failure("made up", format!("{id:?} was never asked")));
        };
        let question = asking.question;
        let due = body(line, 1 - end, false, number, question.bytes.into());
        let is_its = found == due && asking.connection == connection;
        let is_new = !core::mem::replace(&mut asking.has_come, true);
        let before = self.seats[line][end].newest.replace(number);
        ensure(is_its, "made up", || {
            format!(
                "line {line} end {end}: request {number} has {} bytes",
                found.len()
            )
        })?;
        ensure(is_new && before < Some(number), "order", || {
            format!("line {line} end {end}: request {number} came behind {before:?}")
        })?;
        let host = self.seats[line][end].host;
        self.note(host, format_args!("line {line} end {end}: is asked {number}"));
        let has_room = self.parties[host].duties.len() < self.asking.kept_max as usize;
        Ok((has_room && question.answer.is_some()).then_some((number, question)))
    }

    fn take_on(&mut self, line: usize, end: usize, number: usize, question: Question, what: Work) {
        let duty = Duty {
            due_ns: self.now_ns().saturating_add(question.handled_ns),
            line,
            end,
            connection: self.connections[line],
            number,
            what,
        };
        let host = self.seats[line][end].host;
        self.parties[host].duties.push(duty);
    }

    /// Hears of channels that ended, closes those, and forgets those that are gone; says whether any ended.
    fn tend_channels(&mut self, host: usize) -> Verdict<bool> {
        let mut has_ended = false;
        for line in 0..self.seats.len() {
            for end in 0..2 {
                if self.seats[line][end].host != host {
                    continue;
                }
                for why in core::mem::take(&mut self.seats[line][end].told) {
                    has_ended = true;
                    let is_excused = match why {
                        Why::PeerClosed => self.is_breaking[line],
                        Why::Link(FinalReason::Closed) => self.seats[line][end].is_closing,
                        Why::Link(FinalReason::PeerClosed) => self.is_breaking[line],
                        _ => self.may_fail(line),
                    };
                    ensure(is_excused, "excuse", || {
                        format!("line {line} end {end}: {why:?}, and nothing was wrong")
                    })?;
                    let seat = &mut self.seats[line][end];
                    if !core::mem::replace(&mut seat.is_over, true) {
                        self.note(host, format_args!("line {line} end {end}: over, {why:?}"));
                        self.close(line, end, 1_000_000)?;
                    }
                    if let Why::Link(_) = why {
                        self.seats[line][end].sit(None);
                    }
                }
                self.forget_gone(line, end);
            }
        }
        Ok(has_ended)
    }
}

impl Party {
    fn new(case: &Case, asking: &RequestsCase, fabric: &Fabric, number: usize) -> anyhow::Result<Self> {
        let host = fabric.host(&format!("h{number}"), ports(case, number)?)?;
        let trust = Trust::unauthenticated_on_purpose();
        let node = Arc::new(Node::simulated(host, trust)?);
        let worker = worker(case, number, &node)?;
        let linked = case
            .links
            .map(|_| Linked::new(case, asking, number, (&node, &worker)));
        Ok(Self {
            duties: Vec::new(),
            linked: linked.transpose()?.map(Box::new),
            worker,
            node,
            nap: None,
        })
    }
}

/// The Worker of a host.
fn worker(case: &Case, number: usize, node: &Node<Host, Host>) -> anyhow::Result<Worker<Host>> {
    let of = &case.hosts[number];
    let mut config = WorkerConfig::default();
    (config.slots, config.slot_bytes) = (of.slots, of.slot_bytes);
    config.completion_depth = 512;
    config.channels_max = 16;
    config.notify = Notify::Every;
    let mut workers = node.workers(&config)?;
    anyhow::ensure!(workers.len() == 1, "a host that asks has one device");
    Ok(workers.remove(0))
}
