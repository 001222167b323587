//! What hosts are told, judged: events of channels, and submissions that failed.

use doorbell::vocabulary::provider::Window as _;
use doorbell::{ChannelId, Event, Lease, SubmissionError, WcStatus};
use doorbell_sim::Host;

use crate::failure::{Verdict, ensure, failure};
use crate::line::may_end_with;
use crate::pattern::Label;
use crate::rings::Rings;
use crate::run::Run;
use crate::station::{Held, REGION_BYTES};

impl Run<'_> {
    /// Judges one event.
    pub(crate) fn hear(&mut self, host: usize, worker: usize, id: ChannelId, event: Event<Host>) -> Verdict {
        let now_ns = self.fabric.now().to_ns();
        let Some((line, end)) = self.find(host, worker, id) else {
            let is_stray = self.stations[host].strays.contains(&(worker, id));
            return ensure(is_stray, "owner", || {
                format!("{event:?} of a channel nobody knows")
            });
        };
        let may_repeat = self.case.device.quirks().repeats_failing_ns > 0;
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
        };
        let event = match connection.ends[end].as_mut().map(|at| &mut at.rings) {
            Some(Rings::Opening(opening) | Rings::Failed(opening)) => match opening.hear(id, event) {
                Some(event) => event,
                None => return Ok(()),
            },
            _ => event,
        };
        match event {
            Event::Received { message, immediate } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!(
                        "line {line}: received {} bytes, word {immediate:?}, {:?}",
                        message.len_bytes(),
                        Label::of(message.payload()).map(|label| label.number),
                    ),
                );
                self.messages += 1;
                connection.hear(end, message.payload(), immediate, may_repeat)?;
                self.keep_or_release(host, worker, message);
            }
            Event::Written {
                payload_bytes,
                immediate,
            } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: written {payload_bytes} bytes"),
                );
                if self.hear_ring_told(line, end, immediate)? {
                    return Ok(());
                }
                self.messages += 1;
                if let Some(connection) = self.lines[line].connection.as_mut() {
                    connection.hear_written(end, payload_bytes, immediate, may_repeat)?;
                }
            }
            Event::Fetched { ticket, data } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: fetched {} bytes", data.len_bytes()),
                );
                let fetched = connection.fetch(end, ticket, data.payload());
                fetched.or_else(|failure| if self.may_lie() { Ok(()) } else { Err(failure) })?;
                self.stations[host].workers[worker].release(data);
            }
            Event::Done { through } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: done through {}", through.position()),
                );
                let done = connection.finish(end, through, true)?;
                self.check_writes(line, end, &done)?;
            }
            Event::Failed { ticket, status } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: failed {}: {status}", ticket.position()),
                );
                let done = connection.finish(end, ticket, false)?;
                if let Some(at) = connection.ends[end].as_mut() {
                    at.has_failed = true;
                }
                self.check_writes(line, end, &done)?;
                self.excuse(line, end, status)?;
            }
            Event::ReceiveFailed { status } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: receive failed: {status}"),
                );
                if let Some(at) = connection.ends[end].as_mut() {
                    (at.has_failed, at.receives_failed) = (true, true);
                }
                self.excuse(line, end, status)?;
            }
            // What its device repeats is more than its share.
            Event::Overdrawn if connection.ends[end].as_ref().is_some_and(|at| at.repeats) => {
                if let Some(at) = connection.ends[end].as_mut() {
                    at.has_failed = true;
                }
            }
            Event::AnnouncementRefused { error } => {
                let excused = self.excuses.posts;
                ensure(excused, "excuse", || {
                    format!("an announcement was refused: {error}")
                })?;
            }
            other => return Err(failure("event", format!("{other:?}"))),
        }
        Ok(())
    }

    /// Whether a channel may fail like this.
    fn excuse(&mut self, line: usize, end: usize, status: WcStatus) -> Verdict {
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
        };
        ensure(may_end_with(status), "status", || {
            format!("line {line} ended with {status}")
        })?;
        // What is left then: an address that changed for good, a queue pair that went with its host and nobody used since,
        // and a completion queue that is yet to overrun.
        let may_fail = if self.is_settled {
            self.excuses.ports || self.excuses.kills || self.excuses.overruns
        } else {
            self.excuses.may_fail()
        };
        let is_flush = status == WcStatus::WR_FLUSH_ERR;
        if let Some(at) = connection.ends[end].as_mut().filter(|_| !is_flush) {
            ensure(!at.has_cause, "cause", || {
                format!("line {line} has a second cause, {status}")
            })?;
            at.has_cause = true;
        }
        ensure(connection.is_ending || may_fail, "excuse", || {
            format!("line {line} failed ({status}), and nothing was wrong")
        })
    }

    /// Where a completion queue that overran works on, the failure of a request may be lost, and the next one's tell that
    /// all before it is done: it was not, and brought nothing.
    fn may_lie(&self) -> bool {
        self.excuses.overruns && self.case.device.quirks().overrun_queues_work_on
    }

    fn check_writes(&self, line: usize, end: usize, done: &[crate::line::Kind]) -> Verdict {
        if self.may_lie() {
            return Ok(());
        }
        let Some(connection) = &self.lines[line].connection else {
            return Ok(());
        };
        let peer = self.case.lines[line].hosts[1 - end];
        let Some(there) = &connection.ends[1 - end] else {
            return Ok(());
        };
        for kind in done {
            let mut region = [0; REGION_BYTES];
            let window = &self.stations[peer].windows[there.worker];
            window
                .copy_out(line * REGION_BYTES, &mut region)
                .map_err(|error| failure("window", format!("{error:?}")))?;
            connection.check_written(end, *kind, &region)?;
        }
        Ok(())
    }

    fn keep_or_release(&mut self, host: usize, worker: usize, message: Lease<Host>) {
        let station = &mut self.stations[host];
        if station.hold > 0 {
            station.hold -= 1;
            let bytes = message.payload().to_vec();
            station.held.push_back(Held {
                message,
                bytes,
                worker: Some(worker),
            });
        } else {
            station.workers[worker].release(message);
        }
    }

    /// The application gives back what it kept; its bytes are as they were.
    pub(crate) fn let_go(&mut self, host: usize) -> Verdict {
        let station = &mut self.stations[host];
        while let Some(held) = station.held.pop_front() {
            ensure(held.message.payload() == held.bytes, "ownership", || {
                "bytes changed while the application had them".into()
            })?;
            // Half of them go home by being dropped.
            if let Some(worker) = held.worker.filter(|_| held.bytes.len() % 2 == 0) {
                station.workers[worker].release(held.message);
            }
        }
        Ok(())
    }

    pub(crate) fn hear_submitters(&mut self, host: usize) -> Verdict {
        let now_ns = self.fabric.now().to_ns();
        for worker in 0..self.stations[host].submitters.len() {
            while let Some(failed) = self.stations[host].submitters[worker].failure() {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("a submission failed: {}", failed.error),
                );
                let place = self.find(host, worker, failed.channel);
                let is_ending = place.is_none_or(|(line, _)| {
                    self.lines[line]
                        .connection
                        .as_ref()
                        .is_some_and(|connection| connection.is_ending)
                });
                let excuses = self.excuses;
                let may_be = match failed.error {
                    SubmissionError::Post { .. } => excuses.posts,
                    SubmissionError::InlineTooLong { .. } | SubmissionError::WorkerGone => false,
                    _ => is_ending || excuses.may_fail(),
                };
                ensure(may_be, "excuse", || {
                    format!("a submission failed: {}", failed.error)
                })?;
                if let Some(lease) = failed.lease {
                    self.stations[host].submitters[worker].release(lease);
                }
            }
        }
        Ok(())
    }
}
