//! The operations of a run of sleeping hosts. Most of them are only noted, and the host does them once it is awake.

use core::time::Duration;

use doorbell::worker::{CloseError, SubmitErrorKind};
use doorbell::{PostFlags, SendErrorKind, Wait, Woken};

use super::{LOOKS_EVERY_NS, Race, Sent, SleepRun, Sleeper, Wanted};
use crate::failure::{Verdict, ensure, failure};
use crate::line::bounded;
use crate::pattern::Label;
use crate::sleepy::body::{Body, Refused};
use crate::sleepy::case::{SleepAct, Way};

/// Behind so much without a message the peer has said what it has posted, whatever that waited for.
const RESTED_NS: u64 = 5_000_000;

/// The most messages that an end may still have to send.
const WANTED_MAX: usize = 400;

impl SleepRun<'_> {
    pub(super) fn act(&mut self, line: usize, end: usize, act: SleepAct) -> Verdict {
        let host = self.host(line, end);
        self.note(host, format_args!("line {line}: {act:?}"));
        match act {
            SleepAct::Send {
                count,
                way,
                bytes,
                is_solicited,
            } => {
                let wanted = Wanted {
                    way,
                    bytes,
                    is_solicited: is_solicited || !self.sleepy.is_solicited,
                };
                self.want(line, end, wanted, count.into())
            }
            SleepAct::Race { count } => self.race(line, end, count.into()),
            SleepAct::Hold { count } => {
                self.sleepers[host].hold = count.into();
                Ok(())
            }
            SleepAct::LetGo => {
                // Another thread may drop what it was given: then nobody is woken by that.
                let is_elsewhere = self.sleepers[host].held.len() % 2 == 1;
                if is_elsewhere {
                    self.sleepers[host].held.clear();
                } else {
                    self.wake(host)?;
                }
                self.let_go(host);
                Ok(())
            }
            SleepAct::Close { within_ns } => self.close(line, end, within_ns),
            SleepAct::Split => self.split(host),
            SleepAct::Join => {
                self.wake(host)?;
                self.sleepers[host].body.join()
            }
            SleepAct::DropSubmitter { which } => {
                let submitters = &mut self.sleepers[host].submitters;
                let at = usize::from(which).checked_rem(submitters.len());
                if let Some(submitter) = at.and_then(|at| submitters[at].take()) {
                    drop(submitter);
                    let way = 2 + at.unwrap_or(0);
                    self.forget_submitter(host, way);
                }
                Ok(())
            }
            SleepAct::Wait { spins, ns } => self.wait(host, spins.into(), ns),
        }
    }

    fn want(&mut self, line: usize, end: usize, wanted: Wanted, count: usize) -> Verdict {
        let host = self.host(line, end);
        let at = &mut self.lines[line][end];
        let Some(flow) = at.flows.get_mut(wanted.way.stream()) else {
            return Ok(());
        };
        let is_there = match wanted.way {
            Way::Submitter(which) => self.sleepers[host].submitters[usize::from(which)].is_some(),
            _ => true,
        };
        if at.is_closing || at.is_gone || !is_there || flow.wanted.len() + count > WANTED_MAX {
            return Ok(());
        }
        flow.wanted.extend(core::iter::repeat_n(wanted, count));
        // A submission from another thread wakes the Worker by itself.
        match wanted.way {
            Way::Submitter(_) => Ok(()),
            _ => self.wake(host),
        }
    }

    /// As many in every way at once.
    fn race(&mut self, line: usize, end: usize, count: usize) -> Verdict {
        let is_quiet = self.is_quiet() && !self.lines[line].iter().any(super::End::is_ending);
        let hosts = self.case.lines[line].hosts;
        let are_whole = hosts.iter().all(|host| self.sleepers[*host].body.threads() == 1);
        let hold: usize = hosts
            .iter()
            .map(|host| self.sleepers[*host].hold + self.sleepers[*host].held.len())
            .sum();
        let are_there = hosts
            .iter()
            .all(|host| self.sleepers[*host].submitters.iter().all(Option::is_some));
        if !is_quiet || !are_whole || !are_there || hold > 0 || !self.case.plan.is_empty() {
            return Ok(());
        }
        let flows = self.lines[line][end].flows.len();
        self.race = Some(Race {
            line,
            end,
            began: self.lines[line][end].flows.iter().map(|flow| flow.came).collect(),
            count,
        });
        let [own, _] = self.sleepy.submitters;
        // Submitters that share a ring have one share together, so they do not take part.
        for stream in (1..flows.min(2 + own)).rev() {
            let way = match stream {
                1 => Way::Deferred,
                _ => Way::Submitter(stream as u8 - 2),
            };
            let wanted = Wanted {
                way,
                bytes: 40,
                is_solicited: true,
            };
            self.want(line, end, wanted, count)?;
        }
        Ok(())
    }

    /// Sends from the thread that has the Worker what is to be sent, as far as it is taken.
    pub(super) fn send_wanted(&mut self, host: usize) -> Verdict {
        for line in 0..self.lines.len() {
            for end in 0..2 {
                if self.case.lines[line].hosts[end] != host || self.lines[line][end].is_ending() {
                    continue;
                }
                for stream in 0..2 {
                    while self.send_next(line, end, stream)? {}
                }
            }
        }
        Ok(())
    }

    /// Sends the next of a stream; says whether it was taken.
    fn send_next(&mut self, line: usize, end: usize, stream: usize) -> Verdict<bool> {
        let host = self.host(line, end);
        let Some(wanted) = self.lines[line][end].flows[stream].wanted.front().copied() else {
            return Ok(false);
        };
        if wanted.way == Way::Deferred && !self.has_spare_memory(host) {
            return Ok(false);
        }
        let sent = self.next(line, end, wanted);
        let id = self.lines[line][end].id;
        let Sleeper { body, .. } = &mut self.sleepers[host];
        let Some(mut lease) = body.lease() else {
            return Ok(false);
        };
        lease
            .fill(&sent.label.bytes(sent.bytes))
            .map_err(|error| failure("lease", error.to_string()))?;
        let flags = if wanted.is_solicited {
            PostFlags::SOLICITED
        } else {
            PostFlags::empty()
        };
        let is_deferred = wanted.way == Way::Deferred;
        match body.send(id, lease, flags, is_deferred) {
            None => Ok(false),
            Some(Ok(())) => {
                self.note_sent(line, end, stream, sent);
                Ok(true)
            }
            Some(Err(Refused { kind, lease })) => {
                lease.into_iter().for_each(|lease| body.release(lease, false));
                // It failed, or the peer closed it, and that is yet to be told.
                let is_ending = self.may_fail(line);
                let may_be = kind == SendErrorKind::WouldBlock || is_ending;
                ensure(may_be, "refused", || format!("line {line} end {end}: {kind}"))?;
                Ok(false)
            }
        }
    }

    /// Whether a host may have one message more wait for credits: so many that its receives have no memory would be too many, since
    /// its peers may wait for those.
    fn has_spare_memory(&self, host: usize) -> bool {
        let of = &self.case.hosts[host];
        let ends = (0..self.lines.len()).flat_map(|line| [(line, 0), (line, 1)]);
        let (mut receives, mut waiting) = (0, 0);
        // A channel that is gone has no memory. Requests that failed with it never come, and are not told one by one.
        let has_it =
            |(line, end): &(usize, usize)| self.host(*line, *end) == host && !self.lines[*line][*end].is_gone;
        for (line, end) in ends.filter(has_it) {
            let flow = &self.lines[line][end].flows[1];
            receives += self.case.lines[line].receive_depths[end] as usize;
            waiting += flow.sent.len() - flow.came - flow.lost;
        }
        let receives = of.shared_receives.map_or(receives, |depth| depth as usize);
        receives + waiting + 4 < of.slots as usize
    }

    fn next(&self, line: usize, end: usize, wanted: Wanted) -> Sent {
        let host = self.host(line, end);
        let stream = wanted.way.stream();
        let at = &self.lines[line][end];
        let peer = self.host(line, 1 - end);
        let most = self.case.hosts[host]
            .slot_bytes
            .min(self.case.hosts[peer].slot_bytes) as usize;
        let is_idle = |flow: &super::Flow| flow.came + flow.lost == flow.sent.len();
        let waits = |flow: &&super::Flow| !flow.wanted.is_empty();
        let is_alone = at.flows.iter().filter(waits).count() <= 1;
        let has_memory = |sleeper: &Sleeper| sleeper.held.is_empty() && sleeper.hold == 0;
        let has_memory = self.sleepers.iter().all(has_memory);
        // Its peer has told of its receives by now.
        let has_rested = self.now_ns() > at.moved_ns + RESTED_NS;
        Sent {
            label: Label {
                connection: line as u32,
                end: end as u8,
                stream: stream as u8,
                number: at.flows[stream].sent.len() as u64,
            },
            bytes: bounded(wanted.bytes, most),
            is_lost: false,
            is_prompt: wanted.is_solicited
                && has_rested
                && is_alone
                && has_memory
                && at.flows.iter().all(is_idle),
        }
    }

    fn note_sent(&mut self, line: usize, end: usize, stream: usize, sent: Sent) {
        self.lines[line][end].moved_ns = self.now_ns();
        // This message may take the credits that those on their way wait for.
        for flow in &mut self.lines[line][end].flows {
            let on_its_way = flow.sent.iter_mut().skip(flow.came + flow.lost);
            on_its_way.for_each(|sent| sent.is_prompt = false);
        }
        let flow = &mut self.lines[line][end].flows[stream];
        flow.wanted.pop_front();
        flow.sent.push(sent);
    }

    /// Submits the messages of other threads, as far as they are taken. Returns whether any was submitted or failed.
    pub(super) fn submit_from_threads(&mut self, host: usize) -> Verdict<bool> {
        let mut has_submitted = self.hear_submitters(host)?;
        for which in 0..self.sleepers[host].submitters.len() {
            for line in 0..self.lines.len() {
                for end in 0..2 {
                    if self.case.lines[line].hosts[end] == host && !self.lines[line][end].is_ending() {
                        while self.submit_next(line, end, which)? {
                            has_submitted = true;
                        }
                    }
                }
            }
        }
        Ok(has_submitted)
    }

    fn submit_next(&mut self, line: usize, end: usize, which: usize) -> Verdict<bool> {
        let host = self.host(line, end);
        let stream = 2 + which;
        let at = &self.lines[line][end];
        let Some(wanted) = at.flows[stream].wanted.front().copied() else {
            return Ok(false);
        };
        let (id, sent) = (at.id, self.next(line, end, wanted));
        let Some(submitter) = &mut self.sleepers[host].submitters[which] else {
            return Ok(false);
        };
        let Some(mut lease) = submitter.lease() else {
            return Ok(false);
        };
        lease
            .fill(&sent.label.bytes(sent.bytes))
            .map_err(|error| failure("lease", error.to_string()))?;
        let flags = if wanted.is_solicited {
            PostFlags::SOLICITED
        } else {
            PostFlags::empty()
        };
        match submitter.submit(id, doorbell::Operation::Send, lease, flags) {
            Ok(()) => {
                self.note_sent(line, end, stream, sent);
                Ok(true)
            }
            Err(error) => {
                error.lease.into_iter().for_each(|lease| submitter.release(lease));
                ensure(error.kind == SubmitErrorKind::WouldBlock, "refused", || {
                    error.kind.to_string()
                })?;
                Ok(false)
            }
        }
    }

    /// Forgets the messages that a submitter had still to submit when it went.
    fn forget_submitter(&mut self, host: usize, stream: usize) {
        for (line, ends) in self.lines.iter_mut().enumerate() {
            for (end, at) in ends.iter_mut().enumerate() {
                if self.case.lines[line].hosts[end] == host {
                    at.flows[stream].wanted.clear();
                }
            }
        }
        self.race = None;
    }

    pub(super) fn let_go(&mut self, host: usize) {
        let now_ns = self.now_ns();
        for end in self.lines.iter_mut().flatten() {
            end.moved_ns = now_ns;
        }
        let Sleeper { held, body, .. } = &mut self.sleepers[host];
        for (message, bytes) in held.drain(..) {
            // Half of it goes home by being dropped, which wakes nobody.
            if bytes.len() % 2 == 0 {
                body.release(message, true);
            }
        }
    }

    pub(super) fn close(&mut self, line: usize, end: usize, within_ns: u64) -> Verdict {
        let host = self.host(line, end);
        self.wake(host)?;
        let at = &mut self.lines[line][end];
        if at.is_closing || at.is_gone {
            return Ok(());
        }
        let Some(worker) = self.sleepers[host].body.whole() else {
            return Ok(());
        };
        at.is_closing = true;
        at.flows.iter_mut().for_each(|flow| flow.wanted.clear());
        let deadline = worker.within(Duration::from_nanos(within_ns));
        match worker.begin_close(at.id, deadline) {
            // Its Worker did, and that was before this looked.
            Ok(()) | Err(CloseError::Unknown) => Ok(()),
            Err(error) => Err(failure("close", error.to_string())),
        }
    }

    fn split(&mut self, host: usize) -> Verdict {
        self.wake(host)?;
        // A closing that just ended is seen on a whole Worker alone.
        self.tend_closings(host)?;
        let slot_bytes = self.case.hosts[host].slot_bytes;
        let Sleeper { body, .. } = &mut self.sleepers[host];
        if matches!(body, Body::Whole(_)) {
            let is_apart = body.split(self.sleepy.half_slots, slot_bytes)?;
            self.race = None;
            self.note(host, format_args!("is apart: {is_apart}"));
        }
        Ok(())
    }

    /// The host waits in one call, and nobody else does anything.
    fn wait(&mut self, host: usize, spins: u32, ns: u64) -> Verdict {
        self.wake(host)?;
        let Sleeper { body, .. } = &mut self.sleepers[host];
        let Some(worker) = body.whole() else {
            return Ok(());
        };
        let mut told = Vec::new();
        let how = Wait::SpinThenSleep { spins };
        let deadline = worker.within(Duration::from_nanos(ns));
        let waited = self.panics.through(|panics| {
            worker.wait_tending(how, deadline, |mut turn, event| {
                let id = turn.channel.id();
                panics.hear(&mut turn, event, |event| told.push((id, event)));
            })
        });
        let woken = waited.map_err(|error| failure("wait", error.to_string()))?;
        for (id, event) in told {
            self.hear(host, 0, id, event)?;
        }
        // Other threads hear of what came back before messages behind it arrive.
        self.hear_submitters(host)?;
        let now_ns = self.now_ns();
        let until_ns = deadline.instant().to_ns();
        self.note(host, format_args!("waited: {woken:?}"));
        ensure(woken == Woken::Progress || now_ns >= until_ns, "wait", || {
            format!("h{host} waited until {now_ns} ns, by its deadline, which is {until_ns} ns")
        })?;
        ensure(now_ns <= until_ns + LOOKS_EVERY_NS, "wait", || {
            format!("h{host} waited until {now_ns} ns, and its deadline is {until_ns} ns")
        })?;
        // Time passed in which nobody else was woken.
        self.watch = Default::default();
        self.sleepers
            .iter_mut()
            .for_each(|sleeper| sleeper.naps = [None; 2]);
        Ok(())
    }
}
