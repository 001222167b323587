//! The end of a run. Faults stop, everything posted ends, each pair of open ends can talk, and nothing is left
//! behind.

use core::time::Duration;

use doorbell::worker::{CloseProgress, Submitter};
use doorbell::{Deadline, Lease, Worker};
use doorbell_sim::plan::{Action, End, Name};
use doorbell_sim::{Fabric, Host, Plan};

use crate::bounds::{Bounds, CLOSE_WITHIN, STEP_NS};
use crate::failure::{Verdict, ensure, failure};
use crate::line::Line;
use crate::run::Run;
use crate::station::{SUBMITTER_SLOTS, Station};

/// How long an end that cannot send waits before it tries again. With a shorter wait, an end that never can would
/// take more polls to find.
const STUCK_STEP: Duration = Duration::from_micros(200);

impl Run<'_> {
    pub(crate) fn finish(&mut self) -> Verdict {
        self.stop_faults()?;
        for host in 0..self.stations.len() {
            self.stations[host].hold = 0;
            self.let_go(host)?;
        }
        self.until("liveness", "what was posted is not done", |run| run.is_quiet())?;
        self.reconnect()?;
        self.is_settled = true;
        self.talk()?;
        self.end_signaled()?;
        self.correspond()?;
        self.until("liveness", "what was posted last is not done", |run| {
            run.is_quiet() && run.told.iter().all(|[line, end]| run.is_told(*line, *end))
        })?;
        self.refuse_parts()?;
        self.until(
            "liveness",
            "what was posted of a refused doorbell is not done",
            |run| run.is_quiet() && run.told.iter().all(|[line, end]| run.is_told(*line, *end)),
        )?;
        self.until("lost", "what was sent did not come", |run| run.is_all_heard())?;
        // The next poll posts the receives that were returned last.
        self.poll_all()?;
        for line in 0..self.lines.len() {
            self.check_receives(line)?;
        }
        self.audit()?;
        self.refuse_receives()?;
        self.close_all()?;
        self.until("liveness", "a channel is not closed", |run| run.is_closed())?;
        self.poll_all()?;
        self.poll_all()?;
        self.check_conserved()?;
        self.close_offices()
    }

    /// Everything the plan has broken is whole again, and nothing happens to packets and posts any more.
    fn stop_faults(&mut self) -> Verdict {
        let ends = self.case.fault_ends_ns();
        for ends_ns in ends.map_err(|error| failure("set-up", error.to_string()))? {
            let left_ns = ends_ns.saturating_sub(self.fabric.now().to_ns());
            self.pass(left_ns.saturating_add(1))?;
        }
        whole_again(&self.fabric)?;
        Ok(())
    }

    /// Lets time pass while hosts go on polling now and then.
    fn pass(&mut self, span_ns: u64) -> Verdict {
        let step_ns = span_ns.div_ceil(16);
        for _ in 0..16 {
            self.fabric.run_for(Duration::from_nanos(step_ns));
            self.poll_all()?;
        }
        Ok(())
    }

    fn poll_all(&mut self) -> Verdict {
        (0..self.stations.len()).try_for_each(|host| self.poll(host))
    }

    /// Goes on until `holds` is true, and fails as soon as anything awaited takes longer than its bound. If nothing
    /// awaited is late, it fails after the sum of all bounds of the slowest line.
    pub(crate) fn until(
        &mut self,
        oracle: &'static str,
        what: &str,
        holds: impl Fn(&mut Self) -> bool,
    ) -> Verdict {
        let within_ns = self.bounds.iter().map(Bounds::whole_ns).max();
        self.until_within(within_ns.unwrap_or(0), oracle, what, holds)
    }

    /// Does as [`Self::until`] does, with a bound of its own.
    pub(crate) fn until_within(
        &mut self,
        within_ns: u64,
        oracle: &'static str,
        what: &str,
        holds: impl Fn(&mut Self) -> bool,
    ) -> Verdict {
        let deadline = Deadline::after(self.fabric.now(), Duration::from_nanos(within_ns));
        loop {
            self.poll_all()?;
            if holds(self) {
                return Ok(());
            }
            self.check_late()?;
            let now = self.fabric.now();
            if deadline.has_passed(now) {
                let within_ms = within_ns as f64 / 1e6;
                let described = self.describe();
                return Err(failure(
                    oracle,
                    format!("{what} after {within_ms:.3} ms: {described}"),
                ));
            }
            let next_ns = self.fabric.next_at().map_or(u64::MAX, |at| at.to_ns());
            let span_ns = next_ns
                .saturating_sub(now.to_ns())
                .saturating_add(1000)
                .min(STEP_NS);
            self.fabric.run_for(Duration::from_nanos(span_ns));
        }
    }

    /// Describes everything that is still under way.
    fn describe(&mut self) -> String {
        let mut words = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            if line.attempt.is_some() {
                words.push(format!("line {index} connects"));
            }
            for (end, at) in line
                .connection
                .iter()
                .flat_map(|connection| connection.ends.iter().enumerate())
            {
                let Some(at) = at else { continue };
                let host = self.case.lines[index].hosts[end];
                let flow = &line.connection.as_ref().map(|connection| &connection.flows[end]);
                let counts = flow.map(|flow| {
                    [
                        flow.sent.len(),
                        flow.received,
                        flow.submitted.len(),
                        flow.submitted_received,
                        flow.ringed.len(),
                        flow.ringed_received,
                    ]
                });
                let channel = self.stations[host].workers[at.worker].channel(at.id);
                words.push(format!(
                    "line {index} end {end} has {} posted, sent and came {counts:?}, closing {}, {:?}",
                    at.posted.len(),
                    at.is_closing,
                    channel.map(|channel| (
                        channel.state(),
                        channel.credits(),
                        channel.receives_posted(),
                        channel.in_flight()
                    ))
                ));
            }
        }
        words.join("; ")
    }

    /// Nothing is posted that may still end, nobody connects or closes.
    fn is_quiet(&mut self) -> bool {
        let quirk = self.case.device.quirks().late_requests_vanish;
        let mut quiet = true;
        for (index, line) in self.lines.iter().enumerate() {
            quiet &= line.attempt.is_none();
            let Some(connection) = &line.connection else {
                continue;
            };
            quiet &= !connection.is_ending;
            for (end, at) in connection.ends.iter().enumerate() {
                let Some(at) = at else { continue };
                quiet &= !at.rings.are_opening();
                let host = self.case.lines[index].hosts[end];
                let channel = self.stations[host].workers[at.worker].channel(at.id);
                // Unsignaled requests at the end wait for one that is signaled.
                let waits = channel.is_some_and(|channel| {
                    self.case.lines[index].end(end).unsignaled_max == 0
                        && !at.posted.is_empty()
                        && channel.in_flight() > 0
                });
                quiet &= !waits || quirk && at.has_failed;
                quiet &= !at.has_failed;
            }
        }
        quiet
    }

    /// Lines that are not connected are connected again: nothing hinders that any more but want of room.
    ///
    /// An address may have changed for good, so who listened listens anew, and peers get the new handle.
    fn reconnect(&mut self) -> Verdict {
        self.until("liveness", "a handshake does not end", |run| {
            let mut listeners = run.lines.iter().map(|line| &line.listener);
            listeners.all(|listener| listener.deadline().is_none())
        })?;
        self.is_calm = true;
        for line in 0..self.lines.len() {
            if self.lines[line].connection.is_some() {
                continue;
            }
            let port = self.lines.len() + line;
            let case = &self.case.lines[line];
            let listener = self.stations[case.hosts[1]].listen(port, case);
            self.lines[line].listener = listener.map_err(|error| failure("listen", format!("{error:#}")))?;
            self.connect(line)?;
        }
        self.until("liveness", "what is to be connected is not", |run| {
            let is_whole = |line: &Line| {
                let connection = line.connection.as_ref();
                connection.is_none_or(|connection| connection.ends.iter().all(Option::is_some))
            };
            run.lines.iter().all(is_whole) && run.is_quiet()
        })
    }

    /// Ends that are open send the other more messages than it has receives for, and than its ring has cells.
    fn talk(&mut self) -> Verdict {
        for line in 0..self.lines.len() {
            for end in 0..2 {
                let depth = self.case.lines[line].receive_depths[1 - end] as usize;
                let sent = |run: &Self| run.sent(line, end);
                self.go_on([line, end], 2 * depth + 3, sent, |run| {
                    run.send_one(line, end, 64)
                })?;
                let Some(rings) = self.case.lines[line].rings else {
                    continue;
                };
                let ringed = |run: &Self| run.sent(line, end).and(Some(run.ringed(line, end)?.ringed.len()));
                let cells = rings[1 - end].cells as usize;
                self.go_on([line, end], 2 * cells + 3, ringed, |run| run.ring_one(line, end))?;
            }
        }
        Ok(())
    }

    /// Each open end sends one more message with a signaled completion. This completion reports all requests before
    /// it, however many its line leaves unsignaled. An end without memory sends none.
    fn end_signaled(&mut self) -> Verdict {
        for line in 0..self.lines.len() {
            for end in 0..2 {
                let before = self.sent(line, end);
                let sent = |run: &Self| run.sent(line, end);
                self.go_on([line, end], 1, sent, |run| run.send_signaled(line, end))?;
                if self.sent(line, end) > before {
                    self.told.push([line, end]);
                }
            }
        }
        Ok(())
    }

    /// The device refuses a part of one more doorbell of each of these ends, any part. They hear of the rest nevertheless, whatever
    /// their line leaves unsignaled, and though they post nothing behind it.
    fn refuse_parts(&mut self) -> Verdict {
        let excuses = self.excuses;
        for [line, end] in self.told.clone() {
            let is_open = self.sent(line, end).is_some();
            let Some(place) = self.place(line, end).filter(|_| is_open) else {
                continue;
            };
            let text = format!("fail 1st post of h{} with 12", self.case.lines[line].hosts[end]);
            let plan: Plan = text
                .parse()
                .map_err(|error| failure("set-up", format!("{error}")))?;
            self.fabric.follow(&plan);
            self.excuses.posts = true;
            let sent = self.send(place, 2, 40);
            self.excuses = excuses;
            let calm = self.fabric.perform(&Action::Calm);
            calm.map_err(|error| failure("set-up", error.to_string()))?;
            sent?;
        }
        Ok(())
    }

    /// The device of each host refuses a part of the next receives, as channels are closed and leave what they had. All are posted
    /// nevertheless, though no message comes any more.
    fn refuse_receives(&mut self) -> Verdict {
        for host in 0..self.stations.len() {
            let text = format!("fail 1st receive-post of h{host} with 12");
            let plan: Plan = text
                .parse()
                .map_err(|error| failure("set-up", format!("{error}")))?;
            self.fabric.follow(&plan);
        }
        self.excuses.receives = true;
        Ok(())
    }

    /// Whether an end was told of everything it posted, or is there no more.
    fn is_told(&self, line: usize, end: usize) -> bool {
        let connection = self.lines[line].connection.as_ref();
        let at = connection.and_then(|connection| connection.ends[end].as_ref());
        at.is_none_or(|at| at.posted.is_empty())
    }

    /// Sends so many more from an end, as long as its line is open, and there is memory.
    fn go_on(
        &mut self,
        [line, end]: [usize; 2],
        more: usize,
        sent: impl Fn(&Self) -> Option<usize>,
        mut send: impl FnMut(&mut Self) -> Verdict,
    ) -> Verdict {
        let Some(already) = sent(self) else {
            return Ok(());
        };
        let bound_ns = self.bounds[line].send_ns;
        let mut since = self.fabric.now();
        while let Some(before) = sent(self).filter(|sent| *sent < already + more) {
            send(self)?;
            let is_stuck = sent(self) == Some(before);
            if is_stuck && !(0..2).all(|end| self.has_memory(line, end)) {
                break;
            }
            let step = if is_stuck {
                STUCK_STEP
            } else {
                Duration::from_micros(20)
            };
            self.fabric.run_for(step);
            self.poll_all()?;
            self.check_late()?;
            let now = self.fabric.now();
            if !is_stuck {
                since = now;
            }
            let took_ns = now.to_ns().saturating_sub(since.to_ns());
            ensure(took_ns <= bound_ns, "liveness", || {
                let [took_ms, bound_ms] = [took_ns, bound_ns].map(|span_ns| span_ns as f64 / 1e6);
                let described = self.describe();
                format!(
                    "line {line} end {end} cannot send for {took_ms:.3} ms, and has {bound_ms:.3} ms: {described}"
                )
            })?;
        }
        Ok(())
    }

    /// Returns whether the Worker of an end has a slot that is not posted as a receive. With some depths it has none,
    /// and then nothing can be sent or received. [`Run::check_conserved`] finds slots that were lost.
    pub(crate) fn has_memory(&mut self, line: usize, end: usize) -> bool {
        let host = self.case.lines[line].hosts[end];
        let connection = self.lines[line].connection.as_ref();
        let Some(at) = connection.and_then(|connection| connection.ends[end].as_ref()) else {
            return false;
        };
        let worker = &mut self.stations[host].workers[at.worker];
        let lease = worker.lease();
        lease.map(|lease| worker.release(lease)).is_some()
    }

    /// How much an end has sent, where it and its peer are open.
    pub(crate) fn sent(&self, line: usize, end: usize) -> Option<usize> {
        let connection = self.lines[line]
            .connection
            .as_ref()
            .filter(|connection| !connection.is_ending)?;
        let is_open = connection
            .ends
            .iter()
            .all(|at| at.as_ref().is_some_and(|at| !at.has_failed && !at.is_closing));
        is_open.then(|| connection.flows[end].sent.len())
    }

    /// On lines that are open, everything that was sent came.
    fn is_all_heard(&mut self) -> bool {
        let ends = (0..self.lines.len()).flat_map(|line| [(line, 0), (line, 1)]);
        ends.filter(|(line, end)| self.sent(*line, *end).is_some())
            .all(|(line, end)| {
                let flow = self.lines[line]
                    .connection
                    .as_ref()
                    .map(|connection| &connection.flows[end]);
                flow.is_none_or(|flow| {
                    let submitted = flow.submitted_received == flow.submitted.len();
                    let ringed = flow.ringed_received == flow.ringed.len();
                    flow.received == flow.sent.len() && ringed && (submitted || self.excuses.posts)
                })
            })
    }

    /// On a line that is open, the receives that are to be posted are, as far as there is memory.
    fn check_receives(&mut self, line: usize) -> Verdict {
        for end in 0..2 {
            if self.sent(line, end).is_none() {
                continue;
            }
            let is_short = !self.has_memory(line, end);
            let Some(connection) = &self.lines[line].connection else {
                continue;
            };
            connection.check_lost(end)?;
            let repeats = connection.ends[end].as_ref().is_some_and(|at| at.repeats > 0);
            ensure(!repeats, "twice", || {
                format!("line {line} end {end}: a message came again, and nothing failed")
            })?;
            let host = self.case.lines[line].hosts[end];
            let Some(at) = &connection.ends[end] else { continue };
            let depth = self.case.lines[line].receive_depths[end];
            let posted = self.stations[host].workers[at.worker]
                .channel(at.id)
                .map_or(0, |channel| channel.receives_posted());
            let missing_max = self.case.lines[line].end(end).repost_batch.saturating_sub(1);
            ensure(
                posted <= depth && (is_short || posted + missing_max >= depth),
                "conserved",
                || format!("line {line} end {end} has {posted} of {depth} receives posted"),
            )?;
        }
        Ok(())
    }

    /// Closes every line: both ends of it, or one where the other is to learn of it, or none if both are to learn that the other is gone.
    fn close_all(&mut self) -> Verdict {
        self.is_parting = true;
        self.is_cut = self.case.endings.is_some_and(|endings| endings.is_cut);
        if self.is_cut {
            let any = || any_end().ok_or_else(|| failure("set-up", "a name"));
            let cut = self.fabric.perform(&Action::Link(any()?, any()?, false));
            cut.map_err(|error| failure("set-up", error.to_string()))?;
        }
        for line in 0..self.lines.len() {
            let hosts = self.case.lines[line].hosts;
            let Some(connection) = self.lines[line].connection.as_mut() else {
                continue;
            };
            connection.is_ending = true;
            if self.is_cut {
                continue;
            }
            let is_alone = self.case.endings.is_some() && connection.ends.iter().all(Option::is_some);
            let first = connection.number as usize % 2;
            for (end, (at, host)) in connection.ends.iter_mut().zip(hosts).enumerate() {
                let is_its = !is_alone || end == first;
                let Some(at) = at.as_mut().filter(|at| !at.is_closing && is_its) else {
                    continue;
                };
                at.is_closing = true;
                let worker = &mut self.stations[host].workers[at.worker];
                let deadline = worker.within(CLOSE_WITHIN);
                let begun = worker.begin_close(at.id, deadline);
                begun.map_err(|error| failure("close", error.to_string()))?;
            }
        }
        // Forgets each connection of which only an attempt was left.
        for line in &mut self.lines {
            let is_empty = line
                .connection
                .as_ref()
                .is_some_and(|connection| connection.ends.iter().all(Option::is_none));
            if is_empty && line.attempt.is_none() {
                line.connection = None;
            }
        }
        Ok(())
    }

    fn is_closed(&mut self) -> bool {
        let lines = self
            .lines
            .iter()
            .all(|line| line.connection.is_none() && line.listener.deadline().is_none());
        lines
            && self.stations.iter().all(|station| {
                let under_way = |(worker, id): &(usize, _)| {
                    station.workers[*worker].close_progress(*id) == CloseProgress::UnderWay
                };
                !station.strays.iter().any(under_way)
            })
    }

    /// All memory is home, none is registered but what was before anything was connected, and no completion was of nobody.
    fn check_conserved(&mut self) -> Verdict {
        let workers = self.stations.iter().flat_map(|station| &station.workers);
        conserved(&self.fabric, self.registrations, workers)?;
        for number in 0..self.stations.len() {
            let excused: Vec<u64> = (0..self.stations[number].workers.len())
                .map(|worker| self.rejects_max(number, worker))
                .collect();
            let station = &mut self.stations[number];
            let lendable = Station::lendable(&self.case.hosts[number]);
            for (index, worker) in station.workers.iter_mut().enumerate() {
                let channels = worker.channels().count();
                ensure(channels == 0, "conserved", || {
                    format!("h{number} has {channels} channels left")
                })?;
                let found = free_slots(worker, Worker::lease, Worker::release);
                ensure(found == lendable as usize, "conserved", || {
                    let shared = worker.shared_receives();
                    format!(
                        "Worker {index} of h{number} lends {found} of {lendable} slots, and posts {shared:?}"
                    )
                })?;
                let rejected = worker.statistics().snapshot().rejected;
                ensure(rejected <= excused[index], "rejected", || {
                    format!("Worker {index} of h{number} rejected {rejected} completions")
                })?;
            }
            for submitter in &mut station.submitters {
                let found = free_slots(submitter, Submitter::lease, Submitter::release);
                ensure(found == SUBMITTER_SLOTS as usize, "conserved", || {
                    format!("a submitter of h{number} lends {found} of {SUBMITTER_SLOTS} slots")
                })?;
            }
        }
        Ok(())
    }
}

/// Everything that was posted and sent is accounted for.
pub(crate) fn audit_counts(fabric: &Fabric) -> Verdict {
    let audited = fabric.audit().map(drop);
    audited.map_err(|violation| failure("audit", violation.to_string()))
}

/// The same, and no message found no receive.
pub(crate) fn audit(fabric: &Fabric) -> Verdict {
    audit_counts(fabric)?;
    ensure(fabric.receivers_not_ready() == 0, "credits", || {
        "a message was sent that its receiver had no receive for".into()
    })
}

/// How many slots can be leased now: all of them are, and are given back.
pub(crate) fn free_slots<T>(
    lender: &mut T,
    lease: impl Fn(&mut T) -> Option<Lease<Host>>,
    release: impl Fn(&mut T, Lease<Host>),
) -> usize {
    let leases: Vec<_> = core::iter::from_fn(|| lease(lender)).collect();
    let found = leases.len();
    leases.into_iter().for_each(|lease| release(lender, lease));
    found
}

/// Repairs everything that a plan has broken, and ends the faults of packets and posts.
pub(crate) fn whole_again(fabric: &Fabric) -> Verdict {
    let end = any_end().ok_or_else(|| failure("set-up", "a name"))?;
    let (any, end) = (end.host.clone(), || end.clone());
    for action in [
        Action::Pause(any.clone(), false),
        Action::Slow(any.clone(), 0),
        Action::Restart(any.clone()),
        Action::Port(end(), true),
        Action::Link(end(), end(), true),
        Action::Calm,
    ] {
        let done = fabric.perform(&action);
        done.map_err(|error| failure("set-up", error.to_string()))?;
    }
    Ok(())
}

/// Every port, as plans say it.
fn any_end() -> Option<End> {
    Some(End {
        host: Name::new("any")?,
        device: None,
        port: None,
    })
}

/// Whether no memory is registered but what was at first and the blocks of cells, which these Workers keep, and no cell is in use.
pub(crate) fn conserved<'w>(
    fabric: &Fabric,
    at_first: usize,
    workers: impl Iterator<Item = &'w Worker<Host>>,
) -> Verdict {
    let (mut blocks, mut in_use) = (0, 0);
    for worker in workers {
        let cells = worker.cells();
        blocks += cells.blocks as usize;
        in_use += cells.in_use;
    }
    let registered = fabric.registrations();
    ensure(registered == at_first + blocks, "conserved", || {
        format!("{registered} windows and arenas, where {at_first} began and {blocks} blocks of cells came")
    })?;
    ensure(in_use == 0, "conserved", || {
        format!("{in_use} cells are in use, and no channel is there")
    })
}
