//! Judges the events of sleeping hosts.

use doorbell::worker::{CloseProgress, SubmissionError};
use doorbell::{ChannelId, Event, WcStatus};
use doorbell_sim::Host;

use super::{Flow, SleepRun, Sleeper};
use crate::failure::{Verdict, ensure, failure};
use crate::pattern::Label;

impl SleepRun<'_> {
    /// Returns whether an event may lie there while its host sleeps. Its peer did not mark it as urgent, or it is the
    /// end of a channel on a device whose flushes are not urgent (S23).
    pub(super) const fn may_be_missed(&self, event: &Event<'_, Host>, naps: bool) -> bool {
        let are_failures_solicited = self.case.device.quirks().failures_are_solicited;
        match event {
            Event::Received { .. } => self.sleepy.is_solicited,
            Event::ChannelFailed { .. } | Event::PeerClosed { .. } => {
                self.sleepy.is_solicited && !are_failures_solicited
            }
            // Events without a completion are reported within a nap. Refused posts are tried again then, too.
            Event::Unsent { .. } | Event::AnnouncementRefused { .. } | Event::ReceivesRefused { .. } => naps,
            _ => false,
        }
    }

    /// Whether a line may fail: an end of it closes, or a fault may strike it.
    pub(super) fn may_fail(&self, line: usize) -> bool {
        self.excuses.may_fail() || self.lines[line].iter().any(super::End::is_ending)
    }

    fn find(&self, host: usize, id: ChannelId) -> Option<(usize, usize)> {
        (0..self.lines.len()).find_map(|line| {
            let is_it = |end: &usize| self.host(line, *end) == host && self.lines[line][*end].id == id;
            Some((line, (0..2).find(is_it)?))
        })
    }

    pub(super) fn hear(
        &mut self,
        host: usize,
        thread: usize,
        id: ChannelId,
        event: Event<'_, Host>,
    ) -> Verdict {
        let Some((line, end)) = self.find(host, id) else {
            return Err(failure("owner", format!("{event:?} of a channel nobody knows")));
        };
        match event {
            Event::Received { message, .. } => {
                let bytes = message.payload().to_vec();
                self.note(host, format_args!("line {line}: {} bytes came", bytes.len()));
                let Sleeper { body, hold, held, .. } = &mut self.sleepers[host];
                if *hold > 0 {
                    *hold -= 1;
                    held.push_back((message.keep(), bytes.clone()));
                } else {
                    body.release(message.keep(), true);
                }
                self.hear_message(line, 1 - end, &bytes)
            }
            Event::Done { .. } => Ok(()),
            Event::Failed { .. } => ensure(self.may_fail(line), "excuse", || {
                format!("a request of line {line} failed, and nothing was wrong")
            }),
            Event::Unsent { lease, error } => {
                self.note(host, format_args!("line {line}: unsent, {error}"));
                ensure(self.may_fail(line), "excuse", || {
                    format!("line {line} end {end}: {error}")
                })?;
                let lease = lease.ok_or_else(|| failure("ownership", "what is unsent is not given back"))?;
                let number = self.lose(line, end, 1, lease.payload())?;
                self.sleepers[host].body.release(lease, false);
                self.note(host, format_args!("line {line}: {number} is not sent"));
                Ok(())
            }
            Event::PeerClosed { all_arrived } => {
                self.hear_end(line, end, thread)?;
                let peer = &self.lines[line][1 - end];
                ensure(peer.is_ending(), "made up", || {
                    format!("line {line} end {end}: a farewell that nobody said")
                })?;
                // The peer's own thread posts all it has before the farewell. Submitters may have requests left in their rings.
                let [own, all] =
                    [2, peer.flows.len()].map(|ways| !peer.flows[..ways].iter().any(Flow::awaits));
                let is_so = if all_arrived { own } else { !all };
                ensure(is_so, "farewell", || {
                    format!("line {line} end {end}: all arrived: {all_arrived}, and {own} by the counts")
                })
            }
            Event::ChannelFailed { cause } => {
                self.note(host, format_args!("line {line}: failed, {}", cause.status));
                let has_timeout = self.sleepy.probe_timeouts_ms[end] > 0;
                ensure(
                    has_timeout || cause.status != WcStatus::RESP_TIMEOUT_ERR,
                    "status",
                    || format!("line {line} end {end} gave its peer up, and has no time for that"),
                )?;
                // The report itself makes this an end that is ending.
                let may_fail = self.may_fail(line);
                self.hear_end(line, end, thread)?;
                ensure(may_fail, "excuse", || {
                    format!("line {line} failed ({}), and nothing was wrong", cause.status)
                })
            }
            // It is tried again.
            Event::AnnouncementRefused { .. } | Event::ReceivesRefused { .. } if self.excuses.posts => Ok(()),
            other => Err(failure("event", format!("{other:?}"))),
        }
    }

    /// A message of this end came to the other: the next of its order, but for those that are lost.
    fn hear_message(&mut self, line: usize, end: usize, bytes: &[u8]) -> Verdict {
        self.messages += 1;
        self.lines[line][end].moved_ns = self.now_ns();
        let found = Label::of(bytes);
        let stream = found.map_or(0, |label| usize::from(label.stream));
        let is_unheard = self.is_unheard(line, end, stream);
        let Some(flow) = self.lines[line][end].flows.get_mut(stream) else {
            return Err(failure("made up", format!("{found:?}")));
        };
        let number = found.map_or(usize::MAX, |label| label.number as usize);
        let due = flow.sent.get(number);
        let is_it = due.is_some_and(|due| {
            due.label.connection == line as u32
                && Some(due.label) == found
                && due.label.bytes(due.bytes) == bytes
                && !due.is_lost
        });
        ensure(is_it, "made up", || format!("{found:?} came to line {line}"))?;
        if is_unheard {
            flow.lose_before(number);
        }
        // Each message before it came, but for those that came back, whatever happens to the channel later.
        let before = flow.sent[..number].iter().filter(|sent| !sent.is_lost).count();
        ensure(before <= flow.came, "order", || {
            format!("{found:?} came where {} of the {before} before it had", flow.came)
        })?;
        ensure(before == flow.came, "twice", || format!("{found:?} came again"))?;
        flow.came += 1;
        self.check_race(line, end, stream)
    }

    /// Whether messages of a stream may come back and nobody hears of it: their submitter was dropped, and the device may refuse
    /// them.
    pub(super) fn is_unheard(&self, line: usize, end: usize, stream: usize) -> bool {
        let submitters = &self.sleepers[self.host(line, end)].submitters;
        let submitter = stream.checked_sub(2).and_then(|which| submitters.get(which));
        submitter.is_some_and(Option::is_none) && self.excuses.posts
    }

    /// A message came back that was not sent.
    fn lose(&mut self, line: usize, end: usize, stream: usize, bytes: &[u8]) -> Verdict<u64> {
        let found = Label::of(bytes);
        let flow = &mut self.lines[line][end].flows[stream];
        let number = found.map_or(u64::MAX, |label| label.number);
        let sent = usize::try_from(number).ok().and_then(|at| flow.sent.get_mut(at));
        let is_its = sent.as_ref().is_some_and(|sent| {
            Some(sent.label) == found && sent.label.bytes(sent.bytes) == bytes && !sent.is_lost
        });
        ensure(is_its, "ownership", || {
            format!("{found:?} came back, and was not on its way")
        })?;
        if let Some(sent) = sent {
            sent.is_lost = true;
            flow.lost += 1;
        }
        Ok(number)
    }

    fn hear_end(&mut self, line: usize, end: usize, thread: usize) -> Verdict {
        let at = &mut self.lines[line][end];
        let was_told = core::mem::replace(&mut at.is_told[thread], true);
        at.flows.iter_mut().for_each(|flow| flow.wanted.clear());
        self.lines[line][1 - end]
            .flows
            .iter_mut()
            .for_each(|flow| flow.wanted.clear());
        ensure(!was_told, "once", || {
            format!("line {line} end {end}: its end is told again")
        })
    }

    /// Takes the failures of submissions by other threads, and returns whether there were any.
    pub(super) fn hear_submitters(&mut self, host: usize) -> Verdict<bool> {
        let mut has_heard = false;
        for which in 0..self.sleepers[host].submitters.len() {
            while let Some(failed) = self.sleepers[host].submitters[which]
                .as_mut()
                .and_then(|submitter| submitter.failure())
            {
                has_heard = true;
                let error = failed.error;
                self.note(host, format_args!("a submission failed: {error}"));
                let Some((line, end)) = self.find(host, failed.channel) else {
                    return Err(failure("owner", format!("a submission to nobody: {error}")));
                };
                ensure(self.may_fail(line), "excuse", || {
                    format!("line {line} end {end}: a submission failed: {error}")
                })?;
                let is_there = self.sleepers[host].body.has(failed.channel);
                let is_denied = error == SubmissionError::NoChannel && is_there;
                ensure(
                    error != SubmissionError::WorkerGone && !is_denied,
                    "reason",
                    || format!("line {line} end {end}: {error}"),
                )?;
                let Some(lease) = failed.lease else {
                    ensure(error == SubmissionError::Unknown, "ownership", || {
                        format!("of a submission nothing is given back: {error}")
                    })?;
                    continue;
                };
                // One that was posted may have arrived all the same.
                if !matches!(error, SubmissionError::Ended(_)) {
                    self.lose(line, end, 2 + which, lease.payload())?;
                }
                if let Some(submitter) = &mut self.sleepers[host].submitters[which] {
                    submitter.release(lease);
                }
            }
        }
        Ok(has_heard)
    }

    /// Forgets channels that are gone.
    pub(super) fn tend_closings(&mut self, host: usize) -> Verdict {
        for line in 0..self.lines.len() {
            for end in 0..2 {
                let at = &mut self.lines[line][end];
                if self.case.lines[line].hosts[end] != host || at.is_gone || !at.is_ending() {
                    continue;
                }
                let Sleeper { body, .. } = &mut self.sleepers[host];
                let id = at.id;
                if let Some(worker) = body.whole() {
                    let progress = worker.close_progress(id);
                    let is_closed = matches!(progress, CloseProgress::Closed(_));
                    at.is_gone = is_closed && !body.has(id);
                }
                if at.is_gone {
                    self.note(host, format_args!("line {line}: end {end} is gone"));
                }
            }
        }
        Ok(())
    }

    /// On channels that were never to fail, nothing is lost.
    pub(super) fn check_lost(&self, line: usize) -> Verdict {
        if self.may_fail(line) {
            return Ok(());
        }
        for at in &self.lines[line] {
            for flow in &at.flows {
                ensure(flow.came == flow.sent.len() && flow.lost == 0, "lost", || {
                    format!("line {line}: {} came of {}", flow.came, flow.sent.len())
                })?;
            }
        }
        Ok(())
    }

    /// Checks that the first to finish a race left the others not far behind.
    fn check_race(&mut self, line: usize, end: usize, stream: usize) -> Verdict {
        let Some(race) = self
            .race
            .as_ref()
            .filter(|race| (race.line, race.end) == (line, end))
        else {
            return Ok(());
        };
        let flows = &self.lines[line][end].flows;
        let came = |stream: usize| flows[stream].came.saturating_sub(race.began[stream]);
        let [own, _] = self.sleepy.submitters;
        let racing = 1..2 + own;
        if !racing.contains(&stream) || came(stream) < race.count {
            return Ok(());
        }
        let behind = racing.clone().map(came).min().unwrap_or(0);
        // How much each has at a time is another matter: none starves.
        let due = 2;
        let all: Vec<usize> = racing.map(came).collect();
        let count = race.count;
        self.race = None;
        ensure(behind >= due, "unfair", || {
            format!(
                "line {line} end {end}: of {count} messages in each way {all:?} came, and no fewer than {due} were due"
            )
        })
    }
}

impl Flow {
    /// Marks messages as lost that were sent before one that came. Messages keep their order, so the last ones before
    /// it are lost.
    fn lose_before(&mut self, number: usize) {
        let on_their_way = self.sent[..number].iter().filter(|sent| !sent.is_lost).count();
        let lacking = on_their_way.saturating_sub(self.came);
        let before = self.sent[..number].iter_mut().rev();
        for sent in before.filter(|sent| !sent.is_lost).take(lacking) {
            sent.is_lost = true;
            self.lost += 1;
        }
    }
}
