//! A run of links where there are few places: one host accepts, and others begin more links than it lets be. Each refusal is expected when
//! it is due, with its reason, and a link that was refused comes in once there is room.
//!
//! `room` computes from the documentation whether there is. `Bond` judges messages. A rail may fail for a while: its handshakes then hold
//! places that nobody knows of, until they have had their time. Nothing goes wrong beside that.

pub(crate) mod case;
mod room;

use core::net::IpAddr;
use core::time::Duration;

use doorbell::ConnectError;
use doorbell::Worker;
use doorbell::link::{FinalReason, LinkError, LinkEvent, LinkId, SessionEvent};
use doorbell::provider::{Clock as _, Instant};
use doorbell::wire::RefusalReason;
use doorbell_sim::plan::Clause;
use doorbell_sim::{Fabric, Host};

use self::case::{FullAct, FullCase};
use self::room::{Count, Room};
use crate::bond::Bond;
use crate::bounds::{CLOSE_LINK_WITHIN, LinkBounds, ns};
use crate::case::{Case, Scene, What};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::{audit_counts, free_slots};
use crate::pattern::Label;
use crate::process::Process;
use crate::station::{kept, link_config, of_address, ports};
use crate::trace::{Trace, clock_and_notes};

/// A refused link tries again after the longest wait of its back-off, and each try has its time.
const TRIES: u64 = 2;

/// More messages than any link keeps.
const FLOOD_MAX: usize = 200;

/// A link, with what is known of its beginning.
struct Made {
    bond: Bond,
    /// The end that began it was told that it is connected.
    is_up: bool,
    /// Since when the other host has had room for it, while it waits.
    room_since_ns: Option<u64>,
}

impl Made {
    /// Whether the end that began it is neither connected nor over.
    const fn is_waiting(&self) -> bool {
        !self.is_up && !self.bond.end(0).has_gone()
    }

    /// The end that accepted it has it.
    fn is_held(&self) -> bool {
        self.bond.id(1).is_some()
    }
}

/// A run under way.
pub(crate) struct FullRun<'c> {
    case: &'c Case,
    room: Room,
    full: &'c FullCase,
    fabric: Fabric,
    hosts: Vec<Host>,
    processes: Vec<Process>,
    bounds: Vec<LinkBounds>,
    made: Vec<Made>,
    /// Links that were accepted and have brought nothing yet.
    strangers: Vec<LinkId>,
    /// Until when a handshake of a link that is over may hold a place, with the host that began it.
    ghosts: Vec<(usize, u64)>,
    /// From when to when a rail is cut, and handshakes of it may be under way.
    troubled_ns: Option<[u64; 2]>,
    trace: &'c mut Trace,
    pub(crate) messages: u64,
}

clock_and_notes!(FullRun);

impl<'c> FullRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let Some(Scene::Full(full)) = &case.scene else {
            anyhow::bail!("no case of full links");
        };
        let hosts = (0..case.hosts.len())
            .map(|number| Ok(fabric.host(&format!("h{number}"), ports(case, number)?)?))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let processes = hosts.iter().enumerate();
        let processes = processes.map(|(number, host)| Process::new(case, number, host));
        let bounds = case.lines.iter().map(|line| {
            let [from, to] = line.hosts;
            LinkBounds::of(case, line, &[link_config(case, from)?, link_config(case, to)?])
        });
        let bounds: Vec<LinkBounds> = bounds.collect::<anyhow::Result<_>>()?;
        let home_ns = bounds.iter().map(|bounds| bounds.home_ns).fold(0, u64::max);
        Ok(Self {
            troubled_ns: troubled_ns(case, home_ns)?,
            case,
            room: Room::of(&full.rooms[0], case)?,
            full,
            fabric: fabric.clone(),
            processes: processes.collect::<anyhow::Result<_>>()?,
            hosts,
            bounds,
            made: Vec::new(),
            strangers: Vec::new(),
            ghosts: Vec::new(),
            trace,
            messages: 0,
        })
    }

    /// Tries every operation, and ends the run.
    pub(crate) fn run(&mut self) -> Verdict {
        for operation in &self.case.operations {
            match operation.what {
                What::Pass { ns } => self.pass(ns)?,
                What::Full(act) => self.act(operation.line, operation.end, act)?,
                _ => {}
            }
            audit_counts(&self.fabric)?;
        }
        self.finish()
    }

    /// Whether a rail is cut, or handshakes of then may hold places.
    fn is_troubled(&self) -> bool {
        self.was_troubled(self.now_ns())
    }

    fn was_troubled(&self, at_ns: u64) -> bool {
        self.troubled_ns
            .is_some_and(|[from_ns, to_ns]| (from_ns..=to_ns).contains(&at_ns))
    }

    fn host_of(&self, at: usize, end: usize) -> usize {
        self.case.lines[self.made[at].bond.line].hosts[end]
    }

    fn act(&mut self, line: usize, end: usize, act: FullAct) -> Verdict {
        let nth = |run: &Self, nth: u8| {
            let made = run.made.iter().enumerate();
            let its = made.filter(|(_, made)| made.bond.line == line && made.bond.id(end).is_some());
            let its: Vec<_> = its.map(|(at, _)| at).collect();
            its.get(usize::from(nth) % its.len().max(1)).copied()
        };
        match act {
            FullAct::Connect => self.connect(line),
            FullAct::Close { nth: number } => {
                if let Some(at) = nth(self, number) {
                    self.close(at, end);
                }
                Ok(())
            }
            FullAct::Flood { nth: number, bytes } => {
                nth(self, number).map_or(Ok(()), |at| self.flood(at, end, bytes))
            }
        }
    }

    /// Begins a link, which is refused exactly if its host has as many as it may have.
    fn connect(&mut self, line: usize) -> Verdict {
        let [from, to] = self.case.lines[line].hosts;
        let most = self.full.rooms[from].links_max;
        let own = (0..self.made.len())
            .filter(|at| self.host_of(*at, 0) == from && self.made[*at].bond.id(0).is_some());
        let is_full = own.count() >= most as usize;
        let handle = self.processes[to].handle;
        let Process {
            links, workers, node, ..
        } = &mut self.processes[from];
        let begun = links.connect(node, workers, &handle);
        let is_refused = matches!(begun, Err(LinkError::TooManyLinks { links_max }) if links_max == most);
        ensure(is_refused == is_full, "refused", || {
            format!("h{from} begins a link: {begun:?}, and is full: {is_full}")
        })?;
        match begun {
            Ok(id) => {
                let number = self.made.len() as u32 + 1;
                self.made.push(Made {
                    bond: Bond::new(number, line, id, self.fabric.now().to_ns()),
                    is_up: false,
                    room_since_ns: None,
                });
                self.note(from, format_args!("line {line}: link {number} begins"));
                Ok(())
            }
            Err(LinkError::TooManyLinks { .. }) => Ok(()),
            Err(error) => Err(failure("connect", error.to_string())),
        }
    }

    fn close(&mut self, at: usize, end: usize) {
        let host = self.host_of(at, end);
        let Some(id) = self.made[at].bond.id(end) else {
            return;
        };
        let Process { links, node, .. } = &mut self.processes[host];
        links.close(id, node.within(CLOSE_LINK_WITHIN));
        let by_ns = self.now_ns().saturating_add(ns(CLOSE_LINK_WITHIN));
        self.made[at].bond.close(end, by_ns);
        let number = at + 1;
        self.note(host, format_args!("closes link {number}"));
    }

    /// Sends until it is refused, and not before it has to be.
    fn flood(&mut self, at: usize, end: usize, bytes: u16) -> Verdict {
        let bytes = usize::from(bytes.max(16));
        for _ in 0..FLOOD_MAX {
            if !self.send(at, end, bytes)? {
                return Ok(());
            }
        }
        Err(failure(
            "refused",
            format!("{FLOOD_MAX} messages are taken, and none refused"),
        ))
    }

    /// Sends one more, and says whether it was taken.
    fn send(&mut self, at: usize, end: usize, bytes: usize) -> Verdict<bool> {
        let host = self.host_of(at, end);
        let bond = &mut self.made[at].bond;
        let (Some(id), Some(kept)) = (bond.id(end), kept(self.case, host)) else {
            return Ok(false);
        };
        let most = kept.fragments * u64::from(kept.fragment_bytes.unwrap_or(0));
        let bytes = bytes.min(most as usize);
        let message = bond.next(end).bytes(bytes);
        let sent = self.processes[host].links.send(id, &message);
        bond.sent(end, bytes, sent, kept)?;
        Ok(sent.is_ok())
    }

    /// Lets time pass while all poll.
    fn pass(&mut self, span_ns: u64) -> Verdict {
        let until_ns = self.now_ns().saturating_add(span_ns);
        while self.now_ns() < until_ns {
            self.step(until_ns)?;
        }
        Ok(())
    }

    /// All poll, and time passes until something happens, not beyond this.
    fn step(&mut self, until_ns: u64) -> Verdict {
        let mut next_ns = until_ns;
        for host in 0..self.hosts.len() {
            self.poll(host)?;
            let now = self.hosts[host].now();
            if let Some(wake) = self.processes[host].links.wake(now) {
                next_ns = next_ns.min(wake.instant().to_ns());
            }
        }
        self.check_waiting()?;
        let now_ns = self.now_ns();
        let every_ns = self.case.links.map_or(1, |links| links.polls_every_ns);
        let happens_ns = self.fabric.next_at().map_or(u64::MAX, Instant::to_ns);
        // A client sends as soon as it is connected.
        let is_silent = |made: &Made| made.is_up && made.bond.is_silent() && made.bond.id(0).is_some();
        if self.made.iter().any(is_silent) {
            next_ns = next_ns.min(now_ns.saturating_add(every_ns));
        }
        let next_ns = happens_ns.max(now_ns.saturating_add(every_ns)).min(next_ns);
        self.fabric.run_until(Instant::from_ns(next_ns.max(now_ns + 1)));
        Ok(())
    }

    fn poll(&mut self, host: usize) -> Verdict {
        self.greet(host)?;
        let before = (host == 0).then(|| self.count());
        let mut heard = Vec::new();
        let Process {
            links, workers, node, ..
        } = &mut self.processes[host];
        let polled = links.poll(node, workers, |id, event| {
            heard.push((
                id,
                match event {
                    LinkEvent::Received { message } => Ok(Some(message.to_vec())),
                    LinkEvent::Accepted => Ok(None),
                    LinkEvent::Session(event) => Err(Ok(event)),
                    other => Err(Err(format!("{other:?}"))),
                },
            ));
        });
        polled.map_err(|error| failure("poll", error.to_string()))?;
        for (id, what) in heard {
            match what {
                Ok(Some(message)) => self.hear(host, id, &message)?,
                Ok(None) => self.strangers.push(id),
                Err(Ok(event)) => self.hear_session(host, id, event)?,
                Err(Err(other)) => return Err(failure("event", other)),
            }
        }
        if let Some(before) = before {
            if let Some(error) = self.processes[0].links.take_handshake_failure() {
                self.judge_refusal(&error, &before)?;
            }
            self.check_limits()?;
        }
        Ok(())
    }

    /// The first message of a link says which it is.
    fn greet(&mut self, host: usize) -> Verdict {
        for at in 0..self.made.len() {
            let made = &self.made[at];
            if self.host_of(at, 0) == host && made.is_up && made.bond.is_silent() {
                self.send(at, 0, 16)?;
            }
        }
        Ok(())
    }

    fn find(&self, host: usize, id: LinkId) -> Option<(usize, usize)> {
        let end = usize::from(host == 0);
        let at = (0..self.made.len())
            .rev()
            .find(|at| self.host_of(*at, end) == host && self.made[*at].bond.id(end) == Some(id))?;
        Some((at, end))
    }

    fn hear(&mut self, host: usize, id: LinkId, message: &[u8]) -> Verdict {
        self.messages += 1;
        if let Some((at, end)) = self.find(host, id) {
            return self.made[at].bond.hear(end, message);
        }
        let stranger = self
            .strangers
            .iter()
            .position(|stranger| *stranger == id && host == 0);
        let number = Label::of(message).map_or(0, |label| label.connection) as usize;
        let (Some(stranger), Some(made)) = (stranger, self.made.get_mut(number.wrapping_sub(1))) else {
            return Err(failure("owner", "a message of a link nobody knows"));
        };
        self.strangers.remove(stranger);
        made.bond.accept(id)?;
        made.bond.hear(1, message)?;
        self.note(host, format_args!("has link {number}"));
        Ok(())
    }

    fn hear_session(&mut self, host: usize, id: LinkId, event: SessionEvent) -> Verdict {
        let now_ns = self.now_ns();
        if !matches!(event, SessionEvent::Done { .. }) {
            self.note(host, format_args!("{event:?}"));
        }
        let Some((at, end)) = self.find(host, id) else {
            let is_stranger = host == 0 && self.strangers.contains(&id);
            if let SessionEvent::Final { .. } = event {
                self.strangers.retain(|stranger| *stranger != id);
            }
            return ensure(is_stranger, "owner", || {
                format!("{event:?} of a link nobody knows")
            });
        };
        match event {
            SessionEvent::Final { reason } => self.judge_end(at, end, reason)?,
            SessionEvent::RailDown { .. } | SessionEvent::Recovering | SessionEvent::Stalled => {
                let bond = &self.made[at].bond;
                // It may be the only rail of a link for whose other one there is no room. Until it is given up, nothing is acknowledged.
                let is_cut = self.is_troubled() && self.room.has_rails();
                ensure(is_cut || bond.is_ending(), "excuse", || {
                    format!("{event:?} of link {}, and nothing was wrong", bond.number())
                })?;
            }
            SessionEvent::Connected if end == 0 => {
                let made = &mut self.made[at];
                (made.is_up, made.room_since_ns) = (true, None);
            }
            _ => {}
        }
        self.made[at].bond.hear_session(end, event, (now_ns, false))
    }

    /// An end closes, hears of that, or gives up a link that never came in: exactly when its time is over.
    fn judge_end(&mut self, at: usize, end: usize, reason: FinalReason) -> Verdict {
        let now_ns = self.now_ns();
        let from = self.host_of(at, 0);
        let made = &self.made[at];
        let bond = &made.bond;
        let bounds = &self.bounds[bond.line];
        let took_ns = now_ns.saturating_sub(bond.began_ns);
        let gave_up = bond.end(1 - end).reason == Some(FinalReason::Unreachable);
        // One that was lost then may find no room again.
        let was_lost = |end: usize| bond.end(end).lost_ns.is_some_and(|ns| self.was_troubled(ns));
        let is_troubled = self.is_troubled() || was_lost(0) || was_lost(1);
        let is_in_vain = bond.end(end).lost_ns.is_some_and(|lost_ns| {
            let recover_ns = bounds.recover_ns[end];
            (recover_ns..=recover_ns + bounds.polls_ns).contains(&now_ns.saturating_sub(lost_ns))
        });
        let has_cause = match reason {
            FinalReason::Closed => bond.is_closing(end),
            FinalReason::PeerClosed => bond.is_closing(1 - end),
            // It never came in, or its one rail is that which is cut: there is no room for the other.
            FinalReason::Unreachable if is_in_vain => is_troubled || end == 0 && !made.is_up,
            FinalReason::Unreachable => end == 1 && gave_up,
            FinalReason::EndedByPeer(RefusalReason::GIVEN_UP) => gave_up && (is_troubled || end == 1),
            _ => false,
        };
        ensure(has_cause, "excuse", || {
            format!(
                "end {end} of link {} ended after {took_ns} ns: {reason}",
                bond.number()
            )
        })?;
        // Its handshake may be under way, or that of another rail.
        if end == 0 && (self.room.has_rails() || !made.is_held()) {
            self.ghosts.push((from, now_ns.saturating_add(bounds.home_ns)));
        }
        Ok(())
    }

    /// The places that are held for sure, and those that may be.
    fn count(&self) -> Count {
        let now_ns = self.now_ns();
        let made = || 0..self.made.len();
        let froms = |is: &dyn Fn(&Made) -> bool| -> Vec<usize> {
            made()
                .filter(|at| is(&self.made[*at]))
                .map(|at| self.host_of(at, 0))
                .collect()
        };
        let ghosts = self.ghosts.iter().filter(|(_, until_ns)| *until_ns >= now_ns);
        Count {
            held: froms(&Made::is_held),
            waiting: froms(&|made| !made.is_held() && !made.bond.end(0).has_gone()),
            ghosts: ghosts.map(|(from, _)| *from).collect(),
            strangers: self.strangers.len(),
            channels: self.processes[0].workers[0].channels().count(),
            is_quiet: self.made.iter().all(|made| made.bond.is_quiet()),
        }
    }

    /// The hosts that began the links that may hold places while a rail is cut. Links are left out that were over for as long as a handshake
    /// may take when the rail was cut.
    fn may_hold(&self) -> Vec<usize> {
        let cut_ns = self.troubled_ns.map_or(0, |[from_ns, _]| from_ns);
        let holds = |bond: &Bond| {
            let since_ns = cut_ns.saturating_sub(self.bounds[bond.line].home_ns);
            let gone_ns = [0, 1].map(|end| bond.end(end).gone_ns);
            !bond.is_over() || gone_ns.iter().flatten().any(|gone_ns| *gone_ns >= since_ns)
        };
        let made = (0..self.made.len()).filter(|at| holds(&self.made[*at].bond));
        made.map(|at| self.host_of(at, 0)).collect()
    }

    /// A peer was refused, for this reason, by one poll.
    fn judge_refusal(&mut self, error: &ConnectError, before: &Count) -> Verdict {
        let after = self.count();
        self.note(0, format_args!("refuses: {error}"));
        let host_of = |address: IpAddr| of_address(address).map_or(usize::MAX, |(host, _)| host);
        let may_be = self.is_troubled() && self.room.may_be_due(error, &self.may_hold(), host_of);
        let is_due = may_be || self.room.is_due(error, [before, &after], host_of);
        ensure(is_due, "refused", || {
            format!("{error}, where {before:?} was and {after:?} is")
        })
    }

    /// No more links are there than may be.
    fn check_limits(&self) -> Verdict {
        let Count { held, .. } = self.count();
        ensure(self.room.holds(&held), "limit", || {
            format!("links of the hosts {held:?} are there")
        })
    }

    /// A link that waits comes in soon once there is room for it.
    fn check_waiting(&mut self) -> Verdict {
        let now_ns = self.now_ns();
        let count = self.count();
        let is_troubled = self.is_troubled();
        for at in 0..self.made.len() {
            let from = self.host_of(at, 0);
            let made = &mut self.made[at];
            let bounds = &self.bounds[made.bond.line];
            let may_come = made.is_waiting() && !made.bond.is_ending() && !is_troubled;
            let has_room = may_come && self.room.lacks(&count, from).is_none();
            made.room_since_ns = made
                .room_since_ns
                .filter(|_| has_room)
                .or(has_room.then_some(now_ns));
            let Some(since_ns) = made.room_since_ns else {
                continue;
            };
            // Others that wait may be in front of it.
            let within_ns =
                TRIES * count.waiting.len() as u64 * bounds.again_ns + bounds.longest_ns + bounds.polls_ns;
            ensure(now_ns - since_ns <= within_ns, "late", || {
                format!(
                    "link {} waits, and there is room for it since {since_ns} ns: {count:?}",
                    made.bond.number()
                )
            })?;
        }
        Ok(())
    }

    /// All is closed, twice: in between there is as much room as in the beginning.
    fn finish(&mut self) -> Verdict {
        if let Some([_, to_ns]) = self.troubled_ns {
            self.pass(to_ns.saturating_sub(self.now_ns()))?;
        }
        self.until("a message is not done", |run| {
            run.made
                .iter()
                .all(|made| made.is_waiting() || made.bond.is_quiet() || made.bond.is_ending())
        })?;
        self.clear_out()?;
        for line in 0..self.case.lines.len() {
            self.connect(line)?;
        }
        self.until("a link is neither in nor without room", |run| {
            let count = run.count();
            (0..run.made.len()).all(|at| {
                let made = &run.made[at];
                let is_settled = made.is_held() || made.bond.is_over();
                is_settled || made.is_waiting() && run.room.lacks(&count, run.host_of(at, 0)).is_some()
            })
        })?;
        self.clear_out()?;
        let queue_pairs = self.fabric.queue_pairs();
        ensure(queue_pairs == 0, "conserved", || {
            format!("{queue_pairs} queue pairs, where none is due")
        })
    }

    /// Closes all links; then nothing is left of them.
    fn clear_out(&mut self) -> Verdict {
        for at in 0..self.made.len() {
            let end = if self.made[at].is_held() { at % 2 } else { 0 };
            self.close(at, end);
        }
        self.until("a link is not over", |run| {
            run.strangers.is_empty() && run.made.iter().all(|made| made.bond.is_over())
        })?;
        self.until("a channel is not closed, or a slot not home", |run| {
            let processes = run.processes.iter_mut().zip(&run.case.hosts);
            { processes }.all(|(process, of)| {
                let worker = &mut process.workers[0];
                let found = free_slots(worker, Worker::lease, Worker::release);
                found == of.slots as usize && worker.channels().count() == 0
            })
        })?;
        for (host, process) in self.processes.iter().enumerate() {
            let rejected = process.workers[0].statistics().snapshot().rejected;
            ensure(
                process.links.ids().count() == 0 && rejected == 0,
                "conserved",
                || format!("h{host} has links left, or rejected {rejected} completions"),
            )?;
        }
        // The last handshake that nobody wants any more ends.
        self.until("a handshake is under way", |run| {
            run.ghosts.iter().all(|(_, until_ns)| *until_ns < run.now_ns())
        })
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) -> Verdict {
        let whole_ns = self
            .bounds
            .iter()
            .map(|bounds| bounds.whole_ns() + bounds.home_ns);
        let until_ns = self.now_ns().saturating_add(whole_ns.fold(0, u64::max));
        while !holds(self) {
            ensure(self.now_ns() < until_ns, "liveness", || {
                let bonds: Vec<_> = self
                    .made
                    .iter()
                    .map(|made| &made.bond)
                    .filter(|bond| !bond.is_over())
                    .collect();
                format!("{what}: {bonds:?}")
            })?;
            self.step(self.now_ns().saturating_add(ns(Duration::from_millis(10))))?;
        }
        Ok(())
    }
}

/// When the first fault of the plan begins, and until when a handshake may be under way that met the last one.
fn troubled_ns(case: &Case, home_ns: u64) -> anyhow::Result<Option<[u64; 2]>> {
    let starts = case
        .plan()?
        .clauses
        .into_iter()
        .filter_map(|clause| match clause {
            Clause::At(step) => Some(step.at_ns),
            _ => None,
        });
    let ends_ns = case.fault_ends_ns()?.into_iter().max();
    Ok(starts
        .min()
        .zip(ends_ns)
        .map(|(from_ns, to_ns)| [from_ns, to_ns.saturating_add(home_ns)]))
}
