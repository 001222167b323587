//! A run: a case made into hosts and lines, its operations tried one after the other, everything that is told judged.
//!
//! One thread makes all calls, and time is the fabric's, so the same case gives the same run. What operations do is
//! `act`, what must be in the end `finish`.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use doorbell::vocabulary::provider::Window as _;
use doorbell::{ChannelId, CloseProgress, ConnectError, Deadline, Event, Lease, SubmissionError, WcStatus};
use doorbell_sim::{Fabric, Frame, Host, LinkConfig, Tally, Timeline};

use crate::case::{Case, Excuses, LineCase, What};
use crate::failure::{Failure, Verdict, ensure, failure};
use crate::line::{Connection, End, Line, may_end_with, prepare_region};
use crate::pattern::Label;
use crate::station::{Held, REGION_BYTES, Station};
use crate::trace::Trace;

/// Packets and moments of other kinds in a timeline at most: more than anybody looks at.
const MOMENTS_MAX: usize = 5_000;

/// What is kept of a run beside its verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep {
    pub(crate) moments: bool,
    /// Packets at most.
    pub(crate) frames: usize,
}

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) hash: u64,
    pub(crate) tally: Tally,
    pub(crate) virtual_ns: u64,
    pub(crate) messages: u64,
    pub(crate) timeline: Timeline,
    pub(crate) frames: Vec<Frame>,
}

/// Runs a case; a panic is a failure like any other.
pub(crate) fn run_caught(case: &Case, keep: Keep) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(case, keep))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        Outcome {
            verdict: Err(failure("panic", text)),
            hash: 0,
            tally: Tally::default(),
            virtual_ns: 0,
            messages: 0,
            timeline: Timeline::default(),
            frames: Vec::new(),
        }
    })
}

/// Runs a case.
fn run(case: &Case, keep: Keep) -> Outcome {
    let mut trace = Trace::new(keep.moments);
    let (mut tally, mut virtual_ns, mut messages, mut frames) = (Tally::default(), 0, 0, Vec::new());
    let mut timeline = Timeline::default();
    let verdict = match Run::new(case, &mut trace, keep) {
        Err(error) => Err(failure("set-up", format!("{error:#}"))),
        Ok(mut run) => {
            let fabric = run.fabric.clone();
            let verdict = run.operate().and_then(|()| run.finish());
            messages = run.messages;
            // Whatever the end of a broken run brings, its verdict stands.
            let dropped = catch_unwind(AssertUnwindSafe(move || drop(run)));
            let verdict = verdict.and(dropped.map_err(|_| failure("panic", "while everything is dropped")));
            virtual_ns = fabric.now().to_ns();
            frames = fabric.take_captured();
            timeline = fabric.take_timeline();
            let audited = fabric.audit();
            tally = audited.unwrap_or_default();
            verdict
                .and_then(|()| {
                    audited
                        .map(|_| ())
                        .map_err(|violation| failure("audit", violation.to_string()))
                })
                .and_then(|()| {
                    ensure(fabric.queue_pairs() == 0, "conserved", || {
                        format!("{} queue pairs are left", fabric.queue_pairs())
                    })
                })
        }
    };
    if let Err(failure) = &verdict {
        trace.note(virtual_ns, 0, format_args!("FAILED: {failure}"));
    }
    let hash = trace.hash();
    let moments = trace.into_moments().into_iter();
    timeline.extend(moments.map(|moment| (moment.at_ns, format!("h{}", moment.host), moment.text)));
    Outcome {
        verdict: verdict.map_err(|failure| Failure {
            at_ns: virtual_ns,
            ..failure
        }),
        hash,
        tally,
        virtual_ns,
        messages,
        timeline,
        frames,
    }
}

/// A run under way.
pub(crate) struct Run<'c> {
    pub(crate) case: &'c Case,
    pub(crate) fabric: Fabric,
    pub(crate) stations: Vec<Station>,
    pub(crate) lines: Vec<Line>,
    pub(crate) excuses: Excuses,
    pub(crate) trace: &'c mut Trace,
    pub(crate) connections: u32,
    pub(crate) messages: u64,
}

/// An event, with whose it is.
type Told = (ChannelId, Event<Host>);

impl<'c> Run<'c> {
    fn new(case: &'c Case, trace: &'c mut Trace, keep: Keep) -> anyhow::Result<Self> {
        let plan = case.plan()?;
        let retries = case.lines.iter().map(|line| line.retry_count).min().unwrap_or(0);
        let excuses = Excuses::of(&plan, retries);
        let link = LinkConfig {
            latency_ns: case.latency_ns,
            bandwidth_mbps: Some(case.bandwidth_mbps),
        };
        let builder = Fabric::builder()
            .seed(case.seed)
            .link(link)
            .quirks(case.device.quirks());
        let fabric = builder.plan(plan).driven().build();
        if keep.frames > 0 {
            fabric.capture(keep.frames);
        }
        if keep.moments {
            fabric.record(MOMENTS_MAX);
        }
        let stations = (0..case.hosts.len())
            .map(|host| Station::new(&fabric, case, host))
            .collect::<anyhow::Result<Vec<Station>>>()?;
        let line = |(index, line): (usize, &LineCase)| {
            Ok(Line {
                listener: stations[line.hosts[1]].listen(index, line)?,
                attempt: None,
                connection: None,
            })
        };
        let lines = case
            .lines
            .iter()
            .enumerate()
            .map(line)
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            case,
            fabric,
            stations,
            lines,
            excuses,
            trace,
            connections: 0,
            messages: 0,
        })
    }

    /// Tries every operation.
    fn operate(&mut self) -> Verdict {
        for (number, operation) in self.case.operations.iter().enumerate() {
            let host = self.case.lines[operation.line].hosts[operation.end];
            match operation.what {
                What::Pass { ns } => self.fabric.run_for(Duration::from_nanos(ns)),
                What::Poll => self.poll(host)?,
                what => self.act(operation.line, operation.end, what)?,
            }
            if number % 16 == 0 {
                self.audit()?;
            }
        }
        Ok(())
    }

    /// The oracles of the fabric, and of what each end knows of the other.
    pub(crate) fn audit(&mut self) -> Verdict {
        self.fabric
            .audit()
            .map_err(|violation| failure("audit", violation.to_string()))?;
        ensure(self.fabric.receivers_not_ready() == 0, "credits", || {
            "a message was sent that its receiver had no receive for".into()
        })?;
        for line in 0..self.lines.len() {
            self.check_credits(line)?;
        }
        Ok(())
    }

    /// No end believes in more receives than its peer has posted.
    fn check_credits(&mut self, line: usize) -> Verdict {
        let Some(Connection {
            ends: [Some(a), Some(b)],
            ..
        }) = &self.lines[line].connection
        else {
            return Ok(());
        };
        let places = [(a.worker, a.id), (b.worker, b.id)];
        let mut known = [(0, 0, 0); 2];
        for end in 0..2 {
            let host = self.case.lines[line].hosts[end];
            let (worker, id) = places[end];
            let Some(channel) = self.stations[host].workers[worker].channel(id) else {
                return Ok(());
            };
            let is_open = channel.state() == doorbell::ChannelState::Open;
            if !is_open {
                return Ok(());
            }
            known[end] = (channel.credits(), channel.receives_posted(), channel.in_flight());
        }
        for end in 0..2 {
            let ((credits, ..), (_, posted, _)) = (known[end], known[1 - end]);
            ensure(credits <= posted, "credits", || {
                format!("{credits} credits, where the peer has {posted} receives posted")
            })?;
        }
        Ok(())
    }

    /// A host does what falls to it: completions, handshakes, closings.
    pub(crate) fn poll(&mut self, host: usize) -> Verdict {
        for worker in 0..self.stations[host].workers.len() {
            let mut told: Vec<Told> = Vec::new();
            let polled =
                self.stations[host].workers[worker].poll(|turn, event| told.push((turn.channel.id(), event)));
            polled.map_err(|error| failure("poll", error.to_string()))?;
            for (id, event) in told {
                self.hear(host, worker, id, event)?;
            }
        }
        self.hear_submitters(host)?;
        self.shake_hands(host)?;
        self.tend_closings(host)
    }

    /// Which line and end a channel of a host is.
    fn find(&self, host: usize, worker: usize, id: ChannelId) -> Option<(usize, usize)> {
        self.lines.iter().enumerate().find_map(|(index, line)| {
            let connection = line.connection.as_ref()?;
            let hosts = self.case.lines[index].hosts;
            let mut ends = (0..2).filter(|end| hosts[*end] == host && connection.is_at(*end, worker, id));
            Some((index, ends.next()?))
        })
    }

    /// Judges one event.
    pub(crate) fn hear(&mut self, host: usize, worker: usize, id: ChannelId, event: Event<Host>) -> Verdict {
        let now_ns = self.fabric.now().to_ns();
        let Some((line, end)) = self.find(host, worker, id) else {
            let is_stray = self.stations[host].strays.contains(&(worker, id));
            return ensure(is_stray, "owner", || {
                format!("{event:?} of a channel nobody knows")
            });
        };
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
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
                connection.hear(end, message.payload(), immediate)?;
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
                self.messages += 1;
                connection.hear_written(end, payload_bytes, immediate)?;
            }
            Event::Fetched { ticket, data } => {
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: fetched {} bytes", data.len_bytes()),
                );
                connection.fetch(end, ticket, data.payload())?;
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
        let Excuses {
            retries,
            kills,
            posts,
        } = self.excuses;
        let is_flush = status == WcStatus::WR_FLUSH_ERR;
        if let Some(at) = connection.ends[end].as_mut().filter(|_| !is_flush) {
            ensure(!at.has_cause, "cause", || {
                format!("line {line} has a second cause, {status}")
            })?;
            at.has_cause = true;
        }
        ensure(
            connection.is_ending || retries || kills || posts,
            "excuse",
            || format!("line {line} failed ({status}), and nothing was wrong"),
        )
    }

    fn check_writes(&self, line: usize, end: usize, done: &[crate::line::Kind]) -> Verdict {
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
                worker,
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
            if held.bytes.len() % 2 == 0 {
                station.workers[held.worker].release(held.message);
            }
        }
        Ok(())
    }

    fn hear_submitters(&mut self, host: usize) -> Verdict {
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
                let Excuses {
                    retries,
                    kills,
                    posts,
                } = self.excuses;
                let may_be = match failed.error {
                    SubmissionError::Post { .. } => posts,
                    SubmissionError::InlineTooLong { .. } | SubmissionError::WorkerGone => false,
                    _ => is_ending || retries || kills || posts,
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

    /// Goes on with what a host connects and accepts.
    fn shake_hands(&mut self, host: usize) -> Verdict {
        for line in 0..self.lines.len() {
            let hosts = self.case.lines[line].hosts;
            let is_awaited = self.lines[line]
                .connection
                .as_ref()
                .is_some_and(|connection| !connection.was_there[1]);
            if hosts[1] == host && (is_awaited || self.lines[line].listener.deadline().is_some()) {
                self.accept(line, host)?;
            }
            if hosts[0] == host && self.lines[line].attempt.is_some() {
                self.advance_attempt(line, host)?;
            }
        }
        Ok(())
    }

    fn advance_attempt(&mut self, line: usize, host: usize) -> Verdict {
        let Station { node, workers, .. } = &mut self.stations[host];
        let Some(outcome) = self.lines[line]
            .attempt
            .as_mut()
            .and_then(|attempt| attempt.poll(node, workers))
        else {
            return Ok(());
        };
        self.lines[line].attempt = None;
        let now_ns = self.fabric.now().to_ns();
        match outcome {
            Ok(made) => self.admit(line, 0, made.worker, made.channel),
            Err(error) => {
                self.trace
                    .note(now_ns, host, format_args!("line {line}: not connected: {error}"));
                self.excuse_connect(&error)?;
                if let Some(connection) = &mut self.lines[line].connection {
                    connection.is_ending = true;
                }
                self.forget_if_over(line)
            }
        }
    }

    fn accept(&mut self, at: usize, host: usize) -> Verdict {
        let Station { node, workers, .. } = &mut self.stations[host];
        let made = match self.lines[at].listener.poll_accept(node, workers) {
            Ok(Some(made)) => made,
            Ok(None) => return Ok(()),
            Err(error @ ConnectError::Tcp(_)) => {
                // The port went with its host; what was under way at it goes, too.
                if let Ok(listener) = self.stations[host].listen(at, &self.case.lines[at]) {
                    self.lines[at].listener = listener;
                }
                return self.excuse_connect(&error);
            }
            Err(error) => return self.excuse_connect(&error),
        };
        let number = workers[made.worker].channel(made.channel).and_then(|channel| {
            let bytes = channel.peer().private_data();
            Some(u32::from_le_bytes(*bytes.first_chunk()?))
        });
        let connection = self.lines[at].connection.as_ref();
        match connection.filter(|connection| Some(connection.number) == number && !connection.was_there[1]) {
            Some(_) => self.admit(at, 1, made.worker, made.channel),
            None => {
                // Who connected gave up meanwhile.
                let station = &mut self.stations[host];
                station.strays.push((made.worker, made.channel));
                let now = Deadline::at(self.fabric.now());
                let begun = station.workers[made.worker].begin_close(made.channel, now);
                begun.map_err(|error| failure("close", error.to_string()))
            }
        }
    }

    /// An end is there.
    fn admit(&mut self, line: usize, end: usize, worker: usize, id: ChannelId) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let now_ns = self.fabric.now().to_ns();
        self.trace
            .note(now_ns, host, format_args!("line {line}: end {end} is connected"));
        let seen = &mut self.stations[host].seen;
        ensure(!seen.contains(&(worker, id)), "owner", || {
            format!("{id:?} names a channel that is gone, too")
        })?;
        seen.push((worker, id));
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Err(failure("owner", "a connection that nobody began"));
        };
        connection.ends[end] = Some(End {
            worker,
            id,
            posted: Default::default(),
            is_closing: false,
            has_failed: false,
            receives_failed: false,
            has_cause: false,
        });
        connection.was_there[end] = true;
        let window = &mut self.stations[host].windows[worker];
        prepare_region(window, line * REGION_BYTES, connection, end)
    }

    /// Whether an attempt to connect may come to this.
    pub(crate) fn excuse_connect(&self, error: &ConnectError) -> Verdict {
        let is_full = |error: &ConnectError| {
            matches!(
                error,
                ConnectError::NoRoom { .. }
                    | ConnectError::NoShare { .. }
                    | ConnectError::NoMemory
                    | ConnectError::TooManyChannels
            )
        };
        let Excuses {
            retries,
            kills,
            posts,
        } = self.excuses;
        // The peer had no room, and said so.
        let is_refused = error.to_string().contains("refused") || matches!(error, ConnectError::Handshake(_));
        ensure(
            is_full(error) || is_refused || retries || kills || posts,
            "connect",
            || error.to_string(),
        )
    }

    /// Goes on with closings, and begins those that follow from what the other end did.
    fn tend_closings(&mut self, host: usize) -> Verdict {
        let now = Deadline::at(self.fabric.now());
        for line in 0..self.lines.len() {
            for end in 0..2 {
                if self.case.lines[line].hosts[end] != host {
                    continue;
                }
                let Some(connection) = self.lines[line].connection.as_mut() else {
                    continue;
                };
                let is_ending = connection.is_ending;
                let Some(at) = connection.ends[end].as_mut() else {
                    continue;
                };
                let (worker, id) = (at.worker, at.id);
                if at.is_closing {
                    self.follow_closing(line, end)?;
                } else if is_ending || at.has_failed {
                    at.is_closing = true;
                    connection.is_ending = true;
                    let begun = self.stations[host].workers[worker].begin_close(id, now);
                    begun.map_err(|error| failure("close", error.to_string()))?;
                }
            }
        }
        let Station { strays, workers, .. } = &mut self.stations[host];
        strays.retain(|(worker, id)| workers[*worker].close_progress(*id) == CloseProgress::UnderWay);
        Ok(())
    }

    fn follow_closing(&mut self, line: usize, end: usize) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        let Some(connection) = self.lines[line].connection.as_mut() else {
            return Ok(());
        };
        let Some(at) = &connection.ends[end] else {
            return Ok(());
        };
        match self.stations[host].workers[at.worker].close_progress(at.id) {
            CloseProgress::UnderWay => Ok(()),
            CloseProgress::Closed(outcome) => {
                let now_ns = self.fabric.now().to_ns();
                self.trace.note(
                    now_ns,
                    host,
                    format_args!("line {line}: end {end} closed: {outcome:?}"),
                );
                let left = at.posted.len();
                // What was posted behind the last request that is signaled nobody waits for.
                let may_be = self.case.device.quirks().late_requests_vanish || {
                    left <= self.case.lines[line].unsignaled_max as usize && outcome.is_err()
                };
                ensure(left == 0 || may_be, "told", || {
                    format!("line {line}: {left} requests ended, and nobody was told ({outcome:?})")
                })?;
                if at.receives_failed {
                    connection.check_lost(1 - end)?;
                }
                connection.ends[end] = None;
                self.forget_if_over(line)
            }
            _ => Err(failure("close", "a channel is gone, and was not closed")),
        }
    }

    /// A connection of which nothing is left.
    fn forget_if_over(&mut self, line: usize) -> Verdict {
        let line = &mut self.lines[line];
        let is_over = line
            .connection
            .as_ref()
            .is_some_and(|connection| connection.is_ending && connection.ends.iter().all(Option::is_none));
        if is_over && line.attempt.is_none() {
            line.connection = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Keep, run_caught};
    use crate::case::Case;
    use crate::generate::generate;

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        for seed in 0..40 {
            let case = generate(seed);
            let again = Case::parse(&case.to_text().unwrap()).unwrap();
            assert_eq!(again, case);
            let keep = Keep {
                moments: true,
                frames: 1000,
            };
            let (first, second) = (run_caught(&case, Keep::default()), run_caught(&again, keep));
            assert_eq!(first.verdict, Ok(()), "seed {seed}");
            assert_eq!(
                (first.hash, first.tally),
                (second.hash, second.tally),
                "seed {seed}"
            );
            assert!(!second.frames.is_empty() && second.timeline != doorbell_sim::Timeline::default());
        }
        let hashes: std::collections::BTreeSet<_> = (0..10)
            .map(|seed| run_caught(&generate(seed), Keep::default()).hash)
            .collect();
        assert_eq!(hashes.len(), 10);
    }
}
