//! A run whose lines are links: processes that connect, send, stand still, close and are replaced, over rails that fail.
//!
//! `bond` judges the events that they receive.

use core::time::Duration;
use std::collections::BTreeMap;

use doorbell::link::{
    LinkEvent, LinkId, LoanId, RequestEnd, RequestId, SessionEvent, TransferConfig, TransferEvent, TransferId,
};
use doorbell::provider::{AsyncEvent, Clock as _, Instant};
use doorbell::{ChannelState, RemoteAccess};
use doorbell_sim::{Fabric, Host};

use crate::awaited::Watch;
use crate::bond::Bond;
use crate::bounds::{LinkBounds, ns};
use crate::case::{Ask, Case, Excuses, What};
use crate::classes::{Watched, request_bytes_max};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::audit;
use crate::line::bounded;
use crate::load::Load;
use crate::panics::Panics;
use crate::process::Process;
use crate::reach::Reach;
use crate::station::{kept, link_config, of_address, ports};
use crate::trace::Trace;
use crate::transfers::Moved;
use crate::windows::Granted;

/// Polls that may leave something due, one after the other.
const DUE_AGAIN_MAX: u32 = 4;

/// The longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8192;

/// A host, and the process on it that has links.
pub(crate) struct Seat {
    host: Host,
    /// None where a rail was missing when it was to begin.
    pub(crate) process: Option<Process>,
    /// It stands still until then.
    pub(crate) stops_until_ns: u64,
    /// It stands still for so long once a message has come.
    pub(crate) stops_once_heard_ns: Option<u64>,
    /// How many polls in a row left something that was due.
    due_again: u32,
}

impl Seat {
    pub(crate) const fn host(&self) -> &Host {
        &self.host
    }
}

/// Something a process was told.
enum Heard {
    Accepted,
    Message(Vec<u8>),
    Session(SessionEvent),
    Granted(u32, u64, RemoteAccess),
    Withdrawn(u32),
    Ended(RequestId, RequestEnd, Option<Vec<u8>>),
    Transfer(TransferId, TransferEvent),
    Revoked(LoanId),
}

/// A run under way.
pub(crate) struct LinkedRun<'c> {
    pub(crate) case: &'c Case,
    pub(crate) fabric: Fabric,
    pub(crate) seats: Vec<Seat>,
    /// All there were, over or not; named by their number, from 1.
    pub(crate) bonds: Vec<Bond>,
    /// All there were.
    pub(crate) windows: Vec<Granted>,
    /// All transfers there were, by their tags.
    pub(crate) moved: Vec<Moved>,
    /// The classes of each host's process, as seen from outside.
    pub(crate) watched: Vec<Watched>,
    /// The longest request of each host.
    pub(crate) request_bytes_max: Vec<u64>,
    /// When an end of a link had as many offers as it may have, last.
    pub(crate) full_ns: BTreeMap<(usize, usize), u64>,
    /// Registrations of all processes before anything else has some.
    pub(crate) registered: usize,
    /// How each host has transfers.
    pub(crate) transfers: Vec<TransferConfig>,
    /// How many requests of each host's links may have no end, and how many of those longer than a fragment.
    pub(crate) requests_max: Vec<[usize; 2]>,
    /// Links that were accepted and have brought nothing yet, by host.
    pub(crate) strangers: Vec<(usize, LinkId)>,
    pub(crate) excuses: Excuses,
    /// Nothing at all goes wrong, and nobody ends anything.
    pub(crate) is_untroubled: bool,
    trace: &'c mut Trace,
    pub(crate) messages: u64,
    /// How often the credits of a channel were looked at beside what its peer has posted.
    pub(crate) credits_compared: u64,
    /// The time there is for what is awaited of a link.
    pub(crate) bounds: Vec<LinkBounds>,
    /// When something hinders whom.
    pub(crate) reach: Reach,
    /// The loads under way, each with its line.
    pub(crate) loads: Vec<(usize, Load)>,
    pub(crate) watch: Watch,
    panics: Panics,
}

impl<'c> LinkedRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let plan = case.plan()?;
        let mut recover_within = Duration::MAX;
        let (mut transfers, mut requests_max) = (Vec::new(), Vec::new());
        for host in 0..case.hosts.len() {
            let config = link_config(case, host)?;
            recover_within = recover_within.min(config.session.recover_within);
            transfers.push(config.transfers);
            requests_max.push([config.requests, config.long_requests].map(|most| most as usize));
        }
        // A request made while its process stands still may expire before the process goes on.
        let ends = |what: &What| match what {
            What::Close { .. } | What::Replace => true,
            What::Stop { ns } | What::StopOnceHeard { ns } => Duration::from_nanos(*ns) > recover_within / 2,
            _ => false,
        };
        let is_untroubled = plan.clauses.is_empty() && !case.operations.iter().any(|each| ends(&each.what));
        let seats = (0..case.hosts.len())
            .map(|number| {
                let host = fabric.host(&format!("h{number}"), ports(case, number)?)?;
                let process = Some(Process::new(case, number, &host)?);
                Ok(Seat {
                    host,
                    process,
                    stops_until_ns: 0,
                    stops_once_heard_ns: None,
                    due_again: 0,
                })
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            case,
            fabric: fabric.clone(),
            seats,
            bonds: Vec::new(),
            windows: Vec::new(),
            moved: Vec::new(),
            watched: case.hosts.iter().map(|_| Watched::default()).collect(),
            request_bytes_max: request_bytes_max(case, &transfers),
            full_ns: BTreeMap::new(),
            transfers,
            requests_max,
            registered: fabric.registrations(),
            strangers: Vec::new(),
            excuses: Excuses::of(&plan, 0),
            is_untroubled,
            trace,
            messages: 0,
            credits_compared: 0,
            bounds: case
                .lines
                .iter()
                .map(|line| {
                    let [from, to] = line.hosts;
                    LinkBounds::of(case, line, &[link_config(case, from)?, link_config(case, to)?])
                })
                .collect::<anyhow::Result<_>>()?,
            reach: Reach::of(case, &plan),
            loads: Vec::new(),
            watch: Watch::default(),
            panics: Panics::every(case.panics_every),
        })
    }

    /// Tries every operation, and ends the run.
    pub(crate) fn run(&mut self) -> Verdict {
        for (number, operation) in self.case.operations.iter().enumerate() {
            let (line, end) = (operation.line, operation.end);
            let host = self.case.lines[line].hosts[end];
            match operation.what {
                What::Pass { ns } => self.pass(ns)?,
                What::Poll => self.poll(host)?,
                What::Connect => self.connect(line)?,
                What::Send { count, bytes } => {
                    for _ in 0..count {
                        self.send(line, end, bytes)?;
                    }
                }
                What::Close { within_ns } => self.close(line, end, Duration::from_nanos(within_ns)),
                What::Stop { ns } => self.stop(host, ns),
                What::StopOnceHeard { ns } => self.seats[host].stops_once_heard_ns = Some(ns),
                What::Load { ns, every_ns, bytes } => {
                    let next_ns = self.fabric.now().to_ns();
                    let load = Load {
                        until_ns: next_ns.saturating_add(ns),
                        next_ns,
                        every_ns: every_ns.max(1000),
                        bytes,
                    };
                    self.loads.push((line, load));
                }
                What::StrikeAll => self.fabric.follow(&self.case.striking_plan()),
                What::Replace => self.replace(host),
                What::Grant { is_read_only } => self.grant(line, end, is_read_only)?,
                What::Withdraw => self.withdraw(line, end),
                What::Ask { window, what, count } => {
                    let kinds = Ask::ALL.iter().cycle().skip(what as usize);
                    for (window, what) in (window..window.saturating_add(count)).zip(kinds) {
                        self.ask(line, end, window, *what)?;
                    }
                }
                What::Begin(how) => self.begin(line, end, how)?,
                What::Cancel { which } => self.cancel(line, end, which)?,
                What::Refresh => self.refresh(host)?,
                What::Reroute => self.reroute(line)?,
                _ => {}
            }
            if number % 16 == 0 {
                self.audit()?;
            }
        }
        self.finish()
    }

    /// The oracles of the fabric, and of what each end of a rail knows of the other.
    pub(crate) fn audit(&mut self) -> Verdict {
        // No channel of a link has shared receives, which alone could be others'.
        audit(&self.fabric)?;
        self.check_credits()
    }

    /// Checks that no channel counts more receives than its peer's queue pair has posted. A queue pair that is gone
    /// or failed is not compared. It has no receives, and the channel is about to hear of it.
    fn check_credits(&mut self) -> Verdict {
        let is_one_device = self.case.links.is_some_and(|links| links.is_one_device);
        for (host, seat) in self.seats.iter_mut().enumerate() {
            for worker in seat.process.iter_mut().flat_map(|process| &mut process.workers) {
                let ids: Vec<_> = worker.channels().collect();
                for id in ids {
                    let channel = worker.channel(id);
                    let Some(channel) = channel.filter(|channel| channel.state() == ChannelState::Open)
                    else {
                        continue;
                    };
                    let (peer, credits) = (channel.peer(), channel.credits() as usize);
                    let Some((of, subnet)) = of_address(peer.address()) else {
                        continue;
                    };
                    let device = if is_one_device { 0 } else { subnet };
                    let (of, device) = (format!("h{of}"), format!("sim{device}"));
                    let posted = self.fabric.receives_posted(&of, &device, peer.qpn());
                    self.credits_compared += u64::from(posted.is_some());
                    ensure(posted.is_none_or(|posted| credits <= posted), "credits", || {
                        format!("h{host} has {credits} credits, where {of} has {posted:?} receives posted")
                    })?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn note(&mut self, host: usize, what: core::fmt::Arguments<'_>) {
        let now_ns = self.fabric.now().to_ns();
        self.trace.note(now_ns, host, what);
    }

    /// The link of a line that was begun last, as long as the end that did has it.
    pub(crate) fn current(&self, line: usize) -> Option<usize> {
        let at = self.bonds.iter().rposition(|bond| bond.line == line)?;
        self.bonds[at].has_initiator().then_some(at)
    }

    pub(crate) fn connect(&mut self, line: usize) -> Verdict {
        if self.current(line).is_some() {
            return Ok(());
        }
        let [from, to] = self.case.lines[line].hosts;
        let Some(handle) = self.seats[to].process.as_ref().map(|process| process.handle) else {
            return Ok(());
        };
        let Some(process) = &mut self.seats[from].process else {
            return Ok(());
        };
        let class = self
            .case
            .classes
            .as_ref()
            .map_or(0, |classes| classes.of_line(line));
        match process
            .links
            .connect_in(class, &process.node, &process.workers, &handle)
        {
            Ok(id) => {
                let number = self.bonds.len() as u32 + 1;
                let now_ns = self.fabric.now().to_ns();
                self.bonds.push(Bond::new(number, line, id, now_ns));
                self.note(from, format_args!("line {line}: link {number} begins"));
                Ok(())
            }
            Err(error) => ensure(self.excuses.ports, "connect", || error.to_string()),
        }
    }

    /// Sends one more from an end, if it is taken.
    pub(crate) fn send(&mut self, line: usize, end: usize, bytes: u16) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let Some(bond) = self.current(line).map(|at| &mut self.bonds[at]) else {
            return Ok(());
        };
        let (Some(id), Some(process)) = (bond.id(end), &mut self.seats[host].process) else {
            return Ok(());
        };
        let Some(kept) = kept(self.case, host) else {
            return Ok(());
        };
        let most = kept.fragments as usize * self.case.links.map_or(0, |links| links.fragment_bytes as usize);
        let label = bond.next(end);
        let bytes = bounded(bytes, MESSAGE_BYTES_MAX.min(most));
        let sent = process.links.send(id, &label.bytes(bytes));
        bond.sent(end, bytes, sent, kept)
    }

    pub(crate) fn close(&mut self, line: usize, end: usize, within: Duration) {
        let host = self.case.lines[line].hosts[end];
        let Some(at) = self.current(line) else {
            return;
        };
        let (Some(id), Some(process)) = (self.bonds[at].id(end), &mut self.seats[host].process) else {
            return;
        };
        process.links.close(id, process.node.within(within));
        let by_ns = self.fabric.now().to_ns().saturating_add(ns(within));
        self.bonds[at].close(end, by_ns);
        self.note(host, format_args!("line {line}: closes"));
    }

    /// The process of a host stands still from now on.
    fn stop(&mut self, host: usize, ns: u64) {
        let now_ns = self.fabric.now().to_ns();
        let until_ns = now_ns.saturating_add(ns);
        let seat = &mut self.seats[host];
        (seat.stops_until_ns, seat.stops_once_heard_ns) = (until_ns, None);
        self.reach.stop(host, now_ns, until_ns);
    }

    /// The process of a host goes, and another begins.
    fn replace(&mut self, host: usize) {
        self.note(host, format_args!("another process"));
        let now_ns = self.fabric.now().to_ns();
        self.forget_windows(host);
        self.forget_transfers(host);
        self.seats[host].process = None;
        self.watched[host] = Watched::since(self.seats[host].host.now().to_ns());
        self.reach.lacks_process(host, now_ns);
        self.strangers.retain(|(at, _)| *at != host);
        for bond in &mut self.bonds {
            for end in 0..2 {
                if self.case.lines[bond.line].hosts[end] == host {
                    bond.replace(end, now_ns);
                }
            }
        }
    }

    /// The process of a host looks at its ports again. Its handle afterwards says how to find it from now on.
    pub(crate) fn refresh(&mut self, host: usize) -> Verdict {
        let Some(process) = &mut self.seats[host].process else {
            return Ok(());
        };
        let refreshed = process.links.refresh(&process.node, &process.workers);
        // Without threads, the look is over with the call.
        let refreshed = refreshed.and_then(|()| process.links.take_refreshed().transpose());
        let handle = refreshed.map_err(|error| failure("refresh", error.to_string()))?;
        let handle = handle.flatten();
        process.handle = handle.unwrap_or(process.handle);
        let is_its = process.links.handle() == Some(&process.handle);
        ensure(is_its, "refresh", || {
            format!("h{host} is led to by another handle")
        })?;
        if handle.is_some() {
            self.note(host, format_args!("is reached otherwise"));
        }
        Ok(())
    }

    /// Reroutes the link of a line, at the end that began it, by the current handle of the other process. A handle of
    /// another process than before is rejected.
    pub(crate) fn reroute(&mut self, line: usize) -> Verdict {
        let [from, to] = self.case.lines[line].hosts;
        let bond = self.current(line).map(|at| &self.bonds[at]);
        let Some((id, is_same)) = bond.and_then(|bond| Some((bond.id(0)?, bond.is_same_process(1)))) else {
            return Ok(());
        };
        let handle = self.seats[to].process.as_ref().map(|process| process.handle);
        let (Some(handle), Some(process)) = (handle, &mut self.seats[from].process) else {
            return Ok(());
        };
        let goes = process
            .links
            .reroute(&process.node, &process.workers, id, &handle);
        ensure(goes == is_same, "reroute", || {
            format!(
                "the link of line {line} goes by the handle of another process, or not by its own: {goes}"
            )
        })
    }

    /// Lets time pass, while hosts poll.
    pub(crate) fn pass(&mut self, span_ns: u64) -> Verdict {
        let until_ns = self.fabric.now().to_ns().saturating_add(span_ns);
        while self.fabric.now().to_ns() < until_ns {
            self.step(until_ns)?;
        }
        Ok(())
    }

    /// All poll, and time passes until something happens, not beyond this.
    pub(crate) fn step(&mut self, until_ns: u64) -> Verdict {
        let mut next_ns = self.send_load()?.min(until_ns);
        for host in 0..self.seats.len() {
            self.poll(host)?;
            next_ns = next_ns.min(self.answer_offers(host)?);
            next_ns = next_ns.min(self.wakes_at(host)?);
        }
        let now_ns = self.fabric.now().to_ns();
        let every_ns = self.case.links.map_or(1, |links| links.polls_every_ns);
        let happens_ns = self.fabric.next_at().map_or(u64::MAX, Instant::to_ns);
        let next_ns = happens_ns.max(now_ns.saturating_add(every_ns)).min(next_ns);
        self.fabric.run_until(Instant::from_ns(next_ns.max(now_ns + 1)));
        Ok(())
    }

    /// When a host wants to poll again, by the fabric's clock.
    fn wakes_at(&mut self, host: usize) -> Verdict<u64> {
        let seat = &self.seats[host];
        let now_ns = self.fabric.now().to_ns();
        let Some(process) = seat.process.as_ref() else {
            return Ok(u64::MAX);
        };
        if seat.stops_until_ns > now_ns {
            return Ok(seat.stops_until_ns);
        }
        let its_ns = seat.host.now().to_ns();
        let Some(wake) = process.links.wake(seat.host.now()) else {
            return Ok(u64::MAX);
        };
        let wake_ns = wake.instant().to_ns();
        // The next poll does the work that became due during this one.
        let is_due = wake_ns <= its_ns;
        let seat = &mut self.seats[host];
        seat.due_again = if is_due { seat.due_again + 1 } else { 0 };
        ensure(seat.due_again <= DUE_AGAIN_MAX, "wake", || {
            format!("h{host} wakes for nothing")
        })?;
        Ok(now_ns.saturating_add(wake_ns.saturating_sub(its_ns)))
    }

    fn poll(&mut self, host: usize) -> Verdict {
        self.greet(host)?;
        self.check_classes(host)?;
        let seat = &mut self.seats[host];
        if seat.stops_until_ns > self.fabric.now().to_ns() {
            return Ok(());
        }
        if seat.process.is_none() {
            match Process::new(self.case, host, &seat.host) {
                Ok(process) => {
                    seat.process = Some(process);
                    self.reach.has_process(host, self.fabric.now().to_ns());
                }
                Err(error) => return ensure(self.excuses.ports, "set-up", || format!("{error:#}")),
            }
        }
        let Some(Process {
            links, workers, node, ..
        }) = &mut seat.process
        else {
            return Ok(());
        };
        let mut heard = Vec::new();
        let mut strange = None;
        let (panics, fabric) = (&mut self.panics, &self.fabric);
        let handler = Duration::from_nanos(self.case.handler_ns);
        let mut take = |id, event: LinkEvent<'_>| {
            let what = match event {
                LinkEvent::Accepted => Heard::Accepted,
                LinkEvent::Received { message } => Heard::Message(message.to_vec()),
                LinkEvent::Session(event) => Heard::Session(event),
                LinkEvent::Granted {
                    window,
                    bytes,
                    access,
                } => Heard::Granted(window, bytes, access),
                LinkEvent::Withdrawn { window } => Heard::Withdrawn(window),
                LinkEvent::Fetched { request, data } => {
                    Heard::Ended(request, RequestEnd::Done, Some(data.to_vec()))
                }
                LinkEvent::Ended { request, end } => Heard::Ended(request, end, None),
                LinkEvent::Transfer { transfer, event } => Heard::Transfer(transfer, event),
                LinkEvent::Revoked { loan, error: None } => Heard::Revoked(loan),
                other => {
                    strange = Some(failure("event", format!("{other:?}")));
                    return;
                }
            };
            heard.push((id, what));
        };
        let polled = panics.through(|panics| {
            links.poll(node, workers, |id, event| {
                take(id, event);
                if !handler.is_zero() {
                    fabric.run_for(handler);
                }
                panics.event();
            })
        });
        if let Some(failure) = strange {
            return Err(failure);
        }
        for (id, what) in heard {
            let stops = self.seats[host].stops_once_heard_ns;
            if let Some(ns) = stops.filter(|_| matches!(what, Heard::Message(_))) {
                self.stop(host, ns);
            }
            self.hear(host, id, what)?;
        }
        self.check_windows()?;
        self.check_classes(host)?;
        if self.has_changed(host) {
            self.refresh(host)?;
        }
        polled.map_err(|error| failure("poll", error.to_string()))
    }

    /// Whether a device of a host says that one of its ports, or an address, is another: then the process looks again.
    fn has_changed(&mut self, host: usize) -> bool {
        let process = self.seats[host].process.iter_mut();
        let mut has_changed = false;
        for worker in process.flat_map(|process| &mut process.workers) {
            while let Ok(Some(event)) = worker.next_event() {
                has_changed |= matches!(
                    event,
                    AsyncEvent::PortActive(_) | AsyncEvent::PortError(_) | AsyncEvent::GidChange(_)
                );
            }
        }
        has_changed
    }

    /// Sends the first message of a link from the end that began it. By this message the acceptor learns which line
    /// the link is of.
    fn greet(&mut self, host: usize) -> Verdict {
        for line in 0..self.case.lines.len() {
            let is_silent = |at: usize| self.bonds[at].is_silent();
            if self.case.lines[line].hosts[0] == host && self.current(line).is_some_and(is_silent) {
                self.send(line, 0, 16)?;
            }
        }
        Ok(())
    }

    /// Which link and end a link of a host is.
    fn find(&self, host: usize, id: LinkId) -> Option<(usize, usize)> {
        self.bonds.iter().enumerate().rev().find_map(|(at, bond)| {
            let hosts = self.case.lines[bond.line].hosts;
            let end = (0..2).find(|end| hosts[*end] == host && bond.id(*end) == Some(id))?;
            Some((at, end))
        })
    }

    fn hear(&mut self, host: usize, id: LinkId, what: Heard) -> Verdict {
        match what {
            Heard::Accepted => {
                ensure(self.find(host, id).is_none(), "owner", || {
                    format!("{id:?} is accepted, and there")
                })?;
                self.note(host, format_args!("accepted"));
                self.strangers.push((host, id));
                Ok(())
            }
            Heard::Message(bytes) => {
                self.note(host, format_args!("received {} bytes", bytes.len()));
                self.messages += 1;
                let (at, end) = match self.find(host, id) {
                    Some(found) => found,
                    None => (self.claim(host, id, &bytes)?, 1),
                };
                self.note_arrived(at, 1 - end, bytes.len() as u64);
                self.bonds[at].hear(end, &bytes)
            }
            Heard::Granted(number, bytes, access) => {
                let at = self.known(host, id)?;
                self.hear_granted(at, (number, bytes, access))
            }
            Heard::Withdrawn(number) => {
                let at = self.known(host, id)?;
                self.hear_withdrawn(at, number)
            }
            Heard::Ended(request, end, data) => {
                let at = self.known(host, id)?;
                self.note(host, format_args!("{request:?}: {end:?}"));
                self.hear_ended(at, request, end, data.as_deref())
            }
            Heard::Transfer(transfer, event) => {
                let at = self.known(host, id)?;
                self.note(host, format_args!("transfer {transfer}: {event:?}"));
                self.hear_transfer(at, transfer, event)
            }
            Heard::Revoked(loan) => {
                let at = self.known(host, id)?;
                self.note(host, format_args!("loan {loan} is revoked"));
                self.hear_revoked(at, loan)
            }
            Heard::Session(event) => {
                if !matches!(event, SessionEvent::Done { .. }) {
                    self.note(host, format_args!("{event:?}"));
                }
                match self.find(host, id) {
                    Some((at, end)) => self.hear_session(at, end, host, event),
                    None => {
                        let is_stranger = self.strangers.contains(&(host, id));
                        if matches!(event, SessionEvent::Final { .. }) {
                            self.strangers.retain(|stranger| *stranger != (host, id));
                        }
                        ensure(is_stranger, "owner", || {
                            format!("{event:?} of a link nobody knows")
                        })
                    }
                }
            }
        }
    }

    /// Returns the link and the end that a window event is of. An acceptor hears of windows only after the first
    /// message.
    fn known(&self, host: usize, id: LinkId) -> Verdict<(usize, usize)> {
        let found = self.find(host, id);
        found.ok_or_else(|| failure("owner", "a window of a link nobody knows"))
    }

    fn hear_session(&mut self, at: usize, end: usize, host: usize, event: SessionEvent) -> Verdict {
        let bond = &mut self.bonds[at];
        let is_down = matches!(event, SessionEvent::RailDown { .. });
        let is_closing = (0..2).any(|end| bond.is_closing(end));
        ensure(!is_down || !self.is_untroubled || is_closing, "excuse", || {
            format!("{event:?} of h{host}, and nothing was wrong")
        })?;
        let now_ns = self.fabric.now().to_ns();
        self.judge(at, end, event, now_ns)?;
        if let SessionEvent::Final { reason } = event {
            self.judge_transfers_of(at, end, reason)?;
        }
        self.bonds[at].hear_session(end, event, (now_ns, self.excuses.clocks))
    }

    /// The first message that a link brings says whose it is.
    fn claim(&mut self, host: usize, id: LinkId, bytes: &[u8]) -> Verdict<usize> {
        let stranger = self.strangers.iter().position(|stranger| *stranger == (host, id));
        let stranger = stranger.ok_or_else(|| failure("owner", "a message of a link nobody knows"))?;
        self.strangers.remove(stranger);
        let number = crate::pattern::Label::of(bytes).map_or(0, |label| label.connection);
        let at = (number as usize).wrapping_sub(1);
        let hosts = |bond: &Bond| self.case.lines[bond.line].hosts;
        let is_its = self.bonds.get(at).is_some_and(|bond| hosts(bond)[1] == host);
        ensure(is_its, "owner", || {
            format!("h{host} is sent what is of link {number}")
        })?;
        self.bonds[at].accept(id)?;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::LinkedRun;
    use crate::generate::generate;
    use crate::run::{Keep, fabric};
    use crate::seed::Seed;
    use crate::trace::Trace;

    #[test]
    fn credits_of_links_are_looked_at_beside_what_their_peers_have_posted() {
        let linked = (0..)
            .map(|number| generate(Seed::quick(number)))
            .filter(|case| case.links.is_some());
        let mut compared = 0;
        for case in linked.take(3) {
            let fabric = fabric(&case, Keep::default()).unwrap();
            let mut trace = Trace::new(false);
            let mut run = LinkedRun::new(&case, &fabric, &mut trace).unwrap();
            assert_eq!(run.run(), Ok(()));
            compared += run.credits_compared;
        }
        assert!(compared >= 10, "{compared}");
    }
}
