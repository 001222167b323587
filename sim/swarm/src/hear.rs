//! Judges the events of channels and the submissions that failed.

use core::fmt;

use doorbell::provider::Window as _;
use doorbell::worker::SubmissionError;
use doorbell::{ChannelId, Event, Lease, Ticket, WcStatus};
use doorbell_sim::Host;

use crate::by_document::FARE;
use crate::case::Device;
use crate::failure::{Verdict, ensure, failure};
use crate::line::{Connection, End, may_end_with};
use crate::pattern::Label;
use crate::rings::Rings;
use crate::run::Run;
use crate::station::{Held, REGION_BYTES};

/// Whose an event is.
#[derive(Clone, Copy)]
struct Whose {
    host: usize,
    worker: usize,
    line: usize,
    end: usize,
}

impl Run<'_> {
    /// Judges one event.
    pub(crate) fn hear(
        &mut self,
        host: usize,
        worker: usize,
        id: ChannelId,
        event: Event<'_, Host>,
    ) -> Verdict {
        let Some((line, end)) = self.find(host, worker, id) else {
            let is_stray = self.stations[host].strays.contains(&(worker, id));
            return ensure(is_stray, "owner", || {
                format!("{event:?} of a channel nobody knows")
            });
        };
        let whose = Whose {
            host,
            worker,
            line,
            end,
        };
        // An application cannot tell what is repeated, and takes it for what it looks like.
        let is_repeated = self.is_repeated(line, end, &event)?;
        let Some(event) = self.sift(whose, id, event)? else {
            return Ok(());
        };
        match event {
            Event::Received { message, immediate } => {
                self.hear_message(whose, message.keep(), immediate, is_repeated)
            }
            Event::Written {
                payload_bytes,
                immediate,
            } => self.hear_told(whose, payload_bytes, immediate, is_repeated),
            Event::Fetched { ticket, data } => self.hear_fetched(whose, ticket, data),
            Event::Done { through } => {
                self.note_heard(whose, format_args!("done through {}", through.position()));
                self.hear_ended(whose, through, true)
            }
            Event::Failed { ticket, status } => {
                self.note_heard(whose, format_args!("failed {}: {status}", ticket.position()));
                self.hear_ended(whose, ticket, false)?;
                self.end(whose)?.has_failed = true;
                self.excuse(line, end, status)
            }
            Event::ChannelFailed { cause } => {
                self.note_heard(whose, format_args!("channel failed: {}", cause.status));
                self.hear_end(whose)?;
                // A request may have told the same cause.
                let had_cause = core::mem::replace(&mut self.end(whose)?.has_cause, false);
                let excused = self.excuse(line, end, cause.status);
                self.end(whose)?.has_cause |= had_cause;
                excused?;
                let at = self.end(whose)?;
                let is_own = at.is_shut || at.is_closing;
                self.connection_of(whose)?.is_reported_failed[end] = !is_own;
                self.check_parted(line)
            }
            Event::PeerClosed { all_arrived } => {
                self.note_heard(
                    whose,
                    format_args!("closed by the peer, all arrived {all_arrived}"),
                );
                self.hear_end(whose)?;
                self.hear_farewell(whose, all_arrived)
            }
            // A device that repeats a message uses up more receives than the peer was granted.
            Event::Overdrawn if self.is_overdrawn_by_repeats(line, end) => {
                let at = self.end(whose)?;
                (at.has_failed, at.is_overdrawn) = (true, true);
                Ok(())
            }
            Event::AnnouncementRefused { error } => ensure(self.excuses.posts, "excuse", || {
                format!("an announcement was refused: {error}")
            }),
            Event::ReceivesRefused { error } => ensure(self.excuses.receives, "excuse", || {
                format!("receives were refused: {error}")
            }),
            other => Err(failure("event", format!("{other:?}"))),
        }
    }

    /// Gives an opening of rings what is for it, and the rest back.
    fn sift<'m>(
        &mut self,
        whose: Whose,
        id: ChannelId,
        event: Event<'m, Host>,
    ) -> Verdict<Option<Event<'m, Host>>> {
        match &mut self.end(whose)?.rings {
            Rings::Opening(opening) | Rings::Failed(opening) => Ok(opening.hear(id, event)),
            _ => Ok(Some(event)),
        }
    }

    fn note_heard(&mut self, whose: Whose, what: fmt::Arguments<'_>) {
        let now_ns = self.fabric.now().to_ns();
        let line = whose.line;
        self.trace
            .note(now_ns, whose.host, format_args!("line {line}: {what}"));
    }

    fn hear_message(
        &mut self,
        whose: Whose,
        message: Lease<Host>,
        word: Option<u32>,
        is_repeated: bool,
    ) -> Verdict {
        let bytes = message.payload();
        let number = Label::of(bytes).map(|label| label.number);
        let again = if is_repeated { " again" } else { "" };
        let length = bytes.len();
        self.note_heard(
            whose,
            format_args!("received{again} {length} bytes, word {word:?}, {number:?}"),
        );
        if !is_repeated {
            self.messages += 1;
            self.connection_of(whose)?.hear(whose.end, bytes, word)?;
        }
        self.keep_or_release(whose.host, whose.worker, message);
        Ok(())
    }

    /// The peer wrote, and told.
    fn hear_told(&mut self, whose: Whose, bytes: u32, word: u32, is_repeated: bool) -> Verdict {
        self.note_heard(whose, format_args!("written {bytes} bytes"));
        // A farewell that a device repeats, and whose first completion the queue lost, counts one message too many.
        let is_spoiled = self.excuses.overruns && self.case.device == Device::RxeRepeating;
        if self.hear_ring_told(whose.line, whose.end, word)? || is_repeated || is_spoiled && word == FARE {
            return Ok(());
        }
        self.messages += 1;
        self.connection_of(whose)?.hear_written(whose.end, bytes, word)
    }

    fn hear_fetched(&mut self, whose: Whose, ticket: Ticket, data: Lease<Host>) -> Verdict {
        self.note_heard(whose, format_args!("fetched {} bytes", data.len_bytes()));
        let fetched = self
            .connection_of(whose)?
            .fetch(whose.end, ticket, data.payload());
        fetched.or_else(|failure| if self.may_lie() { Ok(()) } else { Err(failure) })?;
        self.stations[whose.host].workers[whose.worker].release(data);
        Ok(())
    }

    /// A channel ended: that is told once.
    fn hear_end(&mut self, whose: Whose) -> Verdict {
        let at = self.end(whose)?;
        (at.has_failed, at.receives_failed) = (true, true);
        let told = core::mem::replace(&mut at.is_over, true);
        ensure(!told, "once", || {
            format!("line {}: its end is told again", whose.line)
        })
    }

    /// The peer said farewell: it closes the channel, or has, and what it had sent is here where it says so.
    fn hear_farewell(&mut self, whose: Whose, all_arrived: bool) -> Verdict {
        let Whose { line, end, .. } = whose;
        let connection = self.connection_of(whose)?;
        let peer = connection.ends[1 - end].as_ref();
        ensure(
            peer.is_none_or(|peer| peer.is_closing || peer.has_failed),
            "made up",
            || format!("line {line} end {end}: a farewell that nobody said"),
        )?;
        let is_dropped = connection.is_dropped;
        let flow = &connection.flows[1 - end];
        let (sent, received) = (flow.sent.len(), flow.received);
        ensure(!all_arrived || received == sent, "farewell", || {
            format!("line {line} end {end}: {received} of {sent} messages came, and that is told as all")
        })?;
        ensure(
            all_arrived || is_dropped || !self.is_unspoiled(),
            "farewell",
            || {
                format!(
                    "line {line} end {end}: nothing is lost, and it is reported that messages are missing"
                )
            },
        )
    }

    /// A channel that one end closes with all done is reported to the other as closed, and not as failed, where nothing goes
    /// wrong.
    pub(crate) fn check_parted(&self, line: usize) -> Verdict {
        let Some(connection) = self.lines[line].connection.as_ref() else {
            return Ok(());
        };
        let end = (0..2).find(|end| connection.has_parted[1 - end] && connection.is_reported_failed[*end]);
        ensure(end.is_none() || !self.is_unspoiled(), "farewell", || {
            format!("line {line}: the peer of end {end:?} closed it, and that is reported as a failure")
        })
    }

    /// Whether nothing of the plan can strike a channel that is open now.
    fn is_unspoiled(&self) -> bool {
        let lasts = self.excuses.overruns || self.excuses.moves;
        self.case.plan.is_empty() || self.is_parting && !lasts
    }

    /// All up to a request is done, it too where it did not fail.
    fn hear_ended(&mut self, whose: Whose, through: Ticket, is_good: bool) -> Verdict {
        let done = self.connection_of(whose)?.finish(whose.end, through, is_good)?;
        self.check_writes(whose.line, whose.end, &done)
    }

    /// The connection that an event was found to be of.
    fn connection_of(&mut self, whose: Whose) -> Verdict<&mut Connection> {
        let connection = self.lines[whose.line].connection.as_mut();
        connection.ok_or_else(|| failure("owner", "an event of no connection"))
    }

    fn end(&mut self, whose: Whose) -> Verdict<&mut End> {
        let at = self.connection_of(whose)?.ends[whose.end].as_mut();
        at.ok_or_else(|| failure("owner", "an event of no end"))
    }

    /// Whether a channel may fail like this.
    fn excuse(&mut self, line: usize, end: usize, status: WcStatus) -> Verdict {
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
        };
        let is_overdrawn = connection.ends[end].as_ref().is_some_and(|at| at.is_overdrawn);
        // The memory that a peer wrote into may go just before its queue pair, where its Worker is dropped.
        let is_dropped = connection.is_dropped && status == WcStatus::REM_ACCESS_ERR;
        let endings = self.case.endings;
        let has_timeout = endings.is_some_and(|endings| endings.probe_timeout(end).is_some());
        let may_be = is_dropped || may_end_with(status, is_overdrawn, has_timeout);
        ensure(may_be, "status", || format!("line {line} ended with {status}"))?;
        // Some faults may end a channel even now: an address changed for good, or a queue pair went with its host and
        // was not used since. A completion queue may also overrun yet.
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

    /// Returns whether a completion may report success wrongly. A completion queue that works on after an overrun may
    /// lose the failure of a request. The next completion then reports that request as done, although it had no
    /// effect.
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
                let is_there = self.stations[host].workers[worker]
                    .channel(failed.channel)
                    .is_some();
                let may_be = match failed.error {
                    SubmissionError::Post { .. } => excuses.posts,
                    SubmissionError::InlineTooLong { .. } | SubmissionError::WorkerGone => false,
                    SubmissionError::NoChannel if is_there => false,
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
