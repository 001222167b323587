//! The report of a run, and the checks that make a run a failure.

use core::fmt::Write as _;
use core::time::Duration;

use doorbell::link::{FinalReason, UnknownReason};
use doorbell::provider::{Network, Provider};
use serde::Serialize;

use super::Arguments;
use super::end::{End, Part};
use super::reach::Op;
use super::watch::{Mark, RailReport, ms, span};

/// The expected end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ending {
    /// Closed by the side that began it, when both have all
    Closed,
    /// Ended for any other reason; each message is done or its outcome is unknown
    Lost,
}

/// The criteria by which a run passes or fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Criteria {
    pub(super) ending: Ending,
    /// The limit of the median detection time.
    pub(super) detect_within: Option<Duration>,
    /// Required number of commands with a named rail that are followed by its death. `None` means all of them.
    pub(super) detect_at_least: Option<usize>,
    /// The limit of the time without progress.
    pub(super) outage_within: Option<Duration>,
    /// Whether the link made no progress for too long.
    pub(super) is_hanging: bool,
    /// The number of commands to run.
    pub(super) orders: usize,
}

impl Criteria {
    /// The criteria of the command line, for a run that does not hang.
    pub(super) fn of(arguments: &Arguments) -> Self {
        Self {
            ending: arguments.expect_end,
            detect_within: arguments.detect_within,
            detect_at_least: arguments.detect_at_least,
            outage_within: arguments.outage_within,
            is_hanging: false,
            orders: arguments.orders.len(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Set if no RDMA device was used.
    pub(super) simulated: bool,
    role: &'static str,
    /// The time from when the link was connected to the last message.
    duration_s: f64,
    requests: Requests,
    #[serde(rename = "outgoing")]
    sent: SentReport,
    #[serde(rename = "incoming")]
    received: ReceivedReport,
    one_sided: Option<OneSided>,
    rails: Vec<RailReport>,
    failovers: u32,
    fail_backs: u32,
    /// Number of times that the link had no rail, and then one again.
    reconnects: u32,
    /// The number of connections: the highest epoch.
    epochs: u32,
    fragments: Fragments,
    stalls: u32,
    stalled_ms: f64,
    /// The longest time in which no message arrived and none was done.
    outage_ms: f64,
    /// The longest time between two polls, which limits the resolution of other times.
    poll_pause_ms: f64,
    /// Time from a command to the death of the rail that it named, or of the first rail that died.
    detection_ms: Option<Distribution>,
    /// Time from the last sign of life of these rails until they were declared dead.
    silence_ms: Option<Distribution>,
    commands: Vec<Mark>,
    end: Option<String>,
    failures: Vec<String>,
    #[serde(skip)]
    pub(super) passed: bool,
}

/// Requests that the link accepted, including the first and the last message.
#[derive(Debug, Default, Serialize)]
struct Requests {
    taken: u64,
    done: u64,
    unknown: usize,
    /// Requests with an unknown outcome that were never sent.
    never_sent: u64,
}

#[derive(Debug, Serialize)]
struct SentReport {
    messages: u64,
    bytes: u64,
    bytes_per_second: f64,
    /// The rate between the times at which one quarter and three quarters of the messages were done, if --count is given. It
    /// excludes the beginning, when not every rail is up, and the end.
    middle_bytes_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ReceivedReport {
    messages: u64,
    /// All messages, including the first and the last one, as requests are counted.
    all: u64,
    bytes: u64,
    bytes_per_second: f64,
    lost: u64,
    again: u64,
    wrong: u64,
    is_whole: bool,
}

/// WRITEs or READs: the requests of the connecting side, and their effect on the other side.
#[derive(Debug, Serialize)]
struct OneSided {
    op: Op,
    windows: usize,
    /// On the listening side: the number of requests that the peer reported.
    requests: Requests,
    bytes_per_second: f64,
    /// READs that returned wrong bytes. On the listening side: pieces of its windows that differ from the result of the WRITEs.
    wrong: u64,
}

impl OneSided {
    fn of<P: Provider, N: Network>(end: &End<P, N>, took: Duration) -> Option<Self> {
        if let Some(opened) = &end.opened {
            let wish = end.incoming.wish?;
            let requests = Requests {
                taken: end.incoming.requests,
                ..Requests::default()
            };
            return Some(Self {
                op: wish.op,
                windows: opened.windows(),
                requests,
                bytes_per_second: 0.0,
                wrong: wrong_pieces(end),
            });
        }
        let asking = &end.asking;
        asking.op().is_one_sided().then(|| Self {
            op: asking.op(),
            windows: asking.windows(),
            requests: Requests {
                taken: asking.asked,
                done: asking.done,
                unknown: asking.unknown.len(),
                never_sent: asking.not_posted,
            },
            bytes_per_second: bytes_per_second(asking.bytes, took),
            wrong: asking.wrong,
        })
    }
}

/// Counts requests with an unknown outcome whose reason differs from the reason that ended the link.
fn of_another_reason<P: Provider, N: Network>(end: &End<P, N>) -> u64 {
    let over = end.watch.over;
    let messages = end.outgoing.unknown.iter().map(|reason| Some(*reason) == over);
    let requests = end.asking.unknown.iter();
    let requests = requests.map(|reason| Some(*reason) == over.map(UnknownReason::Over));
    let others = messages.chain(requests).filter(|is_same| !is_same).count();
    u64::try_from(others).unwrap_or(u64::MAX)
}

/// Counts wrong pieces in this side's windows, after the peer has reported its requests.
fn wrong_pieces<P: Provider, N: Network>(end: &End<P, N>) -> u64 {
    let opened = end.opened.as_ref().filter(|_| end.incoming.ended.is_some());
    opened.map_or(0, |opened| opened.wrong(end.incoming.requests))
}

#[derive(Debug, Serialize)]
struct Fragments {
    sent: u64,
    sent_again: u64,
    /// Fragments that were written into memory that the peer lent, counted each time.
    placed: u64,
    /// Fragments that arrived again. Each was delivered once.
    duplicates: u64,
    early: u64,
    old_epoch: u64,
    heartbeats: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Distribution {
    count: usize,
    median_ms: f64,
    longest_ms: f64,
}

impl Distribution {
    fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        let middle = figures.len().checked_sub(1)? / 2;
        Some(Self {
            count: figures.len(),
            median_ms: *figures.get(middle)?,
            longest_ms: *figures.last()?,
        })
    }
}

impl Report {
    pub(super) fn of<P: Provider, N: Network>(end: &End<P, N>, judged: &Criteria) -> Self {
        let (outgoing, incoming, watch) = (&end.outgoing, &end.incoming, &end.watch);
        let took = match (watch.connected_at, watch.progress_at) {
            (Some(from), Some(to)) => span(from, to),
            _ => Duration::ZERO,
        };
        let rails = watch.rails(|rail| end.epoch(rail));
        let counts = end.counts;
        let found = watch.found();
        let detection_ms = Distribution::of(found.iter().map(|death| death.after_ms).collect());
        let silence_ms = Distribution::of(found.iter().filter_map(|death| death.silent_ms).collect());
        let failures = failures(end, judged, silence_ms);
        Self {
            simulated: false,
            role: match end.part {
                Part::Client { .. } => "client",
                Part::Listener => "listener",
            },
            duration_s: took.as_secs_f64(),
            requests: Requests {
                taken: outgoing.taken,
                done: outgoing.done,
                unknown: outgoing.unknown.len(),
                never_sent: outgoing.not_sent,
            },
            sent: SentReport {
                messages: outgoing.messages,
                bytes: outgoing.bytes,
                bytes_per_second: bytes_per_second(outgoing.bytes, took),
                middle_bytes_per_second: middle_bytes_per_second(end),
            },
            received: ReceivedReport {
                messages: incoming.messages,
                all: incoming.taken,
                bytes: incoming.bytes,
                bytes_per_second: bytes_per_second(incoming.bytes, took),
                lost: incoming.lost,
                again: incoming.again,
                wrong: incoming.wrong,
                is_whole: incoming.ended.is_some(),
            },
            one_sided: OneSided::of(end, took),
            failovers: watch.failovers,
            fail_backs: watch.fail_backs,
            reconnects: watch.recoveries,
            epochs: rails.iter().map(|rail| rail.epoch).max().unwrap_or(0),
            rails,
            fragments: Fragments {
                sent: counts.sent,
                sent_again: counts.sent_again,
                placed: counts.placed,
                duplicates: counts.duplicates,
                early: counts.early,
                old_epoch: counts.old_epoch,
                heartbeats: counts.probes,
            },
            stalls: watch.stalls,
            stalled_ms: ms(watch.stalled),
            outage_ms: ms(watch.outage),
            poll_pause_ms: ms(watch.pause),
            detection_ms,
            silence_ms,
            commands: watch.marks.clone(),
            end: watch.over.map(|reason| reason.to_string()),
            passed: failures.is_empty(),
            failures,
        }
    }

    /// The failures in one line.
    pub(super) fn error(&self) -> Option<String> {
        (!self.passed).then(|| self.failures.join("; "))
    }

    /// Adds the failures of the other end, if both ends are in this process.
    pub(super) fn add_failures_of(&mut self, other: &Self) {
        let failures = other.failures.iter();
        self.failures
            .extend(failures.map(|failure| format!("the other end: {failure}")));
        self.passed &= other.passed;
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> core::fmt::Result {
        let rails = count(self.rails.len(), "rail");
        writeln!(
            to,
            "link over {rails}, doorbell {}, {}, {:.2} s",
            env!("CARGO_PKG_VERSION"),
            self.role,
            self.duration_s
        )?;
        let (sent, received, requests) = (&self.sent, &self.received, &self.requests);
        writeln!(
            to,
            "sent {} messages, {:.2} MB/s; of {} requests {} done, {} unknown, of which {} never sent; {} may have come",
            sent.messages,
            sent.bytes_per_second / 1e6,
            requests.taken,
            requests.done,
            requests.unknown,
            requests.never_sent,
            requests.taken.saturating_sub(requests.never_sent)
        )?;
        if let Some(middle) = sent.middle_bytes_per_second {
            writeln!(to, "in the middle half {:.4} MB/s", middle / 1e6)?;
        }
        writeln!(
            to,
            "received {} messages, {:.2} MB/s: {} lost, {} again, {} wrong; the last one {}; {} in all",
            received.messages,
            received.bytes_per_second / 1e6,
            received.lost,
            received.again,
            received.wrong,
            if received.is_whole { "came" } else { "did not come" },
            received.all
        )?;
        if let Some(one_sided) = &self.one_sided {
            write_one_sided(to, one_sided)?;
        }
        for rail in &self.rails {
            let (ups, downs) = (count(rail.ups, "time"), count(rail.downs, "time"));
            writeln!(
                to,
                "rail {}: up {ups}, down {downs}, epoch {}",
                rail.rail, rail.epoch
            )?;
        }
        let Fragments {
            sent_again,
            placed,
            duplicates,
            heartbeats,
            ..
        } = self.fragments;
        writeln!(
            to,
            "{}, {}, {}; {} sent again, {duplicates} came again, {placed} written; {}",
            count(self.failovers, "failover"),
            count(self.fail_backs, "fail-back"),
            count(self.reconnects, "reconnect"),
            count(sent_again, "fragment"),
            count(heartbeats, "heartbeat"),
        )?;
        writeln!(
            to,
            "stalled {}, {:.1} ms; longest without progress {:.1} ms, between two polls {:.1} ms",
            count(self.stalls, "time"),
            self.stalled_ms,
            self.outage_ms,
            self.poll_pause_ms
        )?;
        for mark in &self.commands {
            write_mark(to, mark)?;
        }
        for (what, spread) in [
            ("from command to dead rail", self.detection_ms),
            ("from last sign of life to dead rail", self.silence_ms),
        ] {
            if let Some(Distribution {
                count,
                median_ms,
                longest_ms,
            }) = spread
            {
                writeln!(
                    to,
                    "{what}: median of {count} {median_ms:.1} ms, longest {longest_ms:.1} ms"
                )?;
            }
        }
        match &self.end {
            Some(reason) => writeln!(to, "the link ended: {reason}")?,
            None => writeln!(to, "the link did not end")?,
        }
        for failure in &self.failures {
            writeln!(to, "FAILED: {failure}")?;
        }
        if self.passed {
            writeln!(to, "nothing lost, doubled or left hanging")?;
        }
        Ok(())
    }
}

fn write_one_sided(to: &mut String, one_sided: &OneSided) -> core::fmt::Result {
    let OneSided {
        op,
        windows,
        requests,
        bytes_per_second,
        wrong,
    } = one_sided;
    let (what, windows) = match op {
        Op::Read => ("READs", count(*windows, "window")),
        Op::Write | Op::Send => ("WRITEs", count(*windows, "window")),
    };
    writeln!(
        to,
        "{} {what} of {windows}, {:.2} MB/s: {} done, {} unknown, of which {} never posted; {wrong} wrong",
        requests.taken,
        bytes_per_second / 1e6,
        requests.done,
        requests.unknown,
        requests.never_sent
    )
}

fn write_mark(to: &mut String, mark: &Mark) -> core::fmt::Result {
    write!(to, "`{}`", mark.command)?;
    match mark.took_ms {
        Some(took_ms) => write!(to, " took {took_ms:.1} ms")?,
        None => write!(to, " was not over")?,
    }
    for death in &mark.deaths {
        write!(to, "; rail {} dead after {:.1} ms", death.rail, death.after_ms)?;
        if let Some(silent_ms) = death.silent_ms {
            write!(to, ", silent for {silent_ms:.1} ms")?;
        }
    }
    for up in &mark.ups {
        write!(to, "; rail {} up after {:.1} ms", up.rail, up.after_ms)?;
    }
    for (what, after_ms) in [
        ("stalled", mark.stalled_after_ms),
        ("resumed", mark.resumed_after_ms),
        ("over", mark.over_after_ms),
    ] {
        if let Some(after_ms) = after_ms {
            write!(to, "; {what} after {after_ms:.1} ms")?;
        }
    }
    writeln!(to, "; longest without progress {:.1} ms", mark.outage_ms)
}

/// Lists all failures of the run.
fn failures<P: Provider, N: Network>(
    end: &End<P, N>,
    judged: &Criteria,
    silence_ms: Option<Distribution>,
) -> Vec<String> {
    let (outgoing, incoming, watch) = (&end.outgoing, &end.incoming, &end.watch);
    let mut failures = watch.failures.clone();
    let mut none_of = |count: u64, what: &str| {
        if count > 0 {
            failures.push(format!("{count} {what}"));
        }
    };
    none_of(incoming.lost, "messages were lost");
    none_of(incoming.again, "messages arrived again, or late");
    none_of(incoming.wrong, "messages differ from those sent");
    none_of(outgoing.wrong_ends, "completions match no request");
    none_of(u64::from(end.others), "peers connected beside the first one");
    let open = outgoing.open().saturating_add(end.asking.open());
    none_of(
        u64::try_from(open).unwrap_or(u64::MAX),
        "requests have no outcome",
    );
    none_of(end.asking.wrong, "READs returned wrong bytes");
    none_of(end.asking.wrong_ends, "completions match no WRITE or READ");
    none_of(
        wrong_pieces(end),
        "pieces of windows differ from what was written",
    );
    none_of(
        of_another_reason(end),
        "requests ended unknown for another reason than the one that ended the link",
    );
    if judged.detect_within.is_some() || judged.detect_at_least.is_some() {
        let is_found = |mark: &&Mark| mark.death().is_some();
        let said = watch.marks.iter().filter(|mark| mark.rail.is_some());
        let (found, missed): (Vec<_>, Vec<_>) = said.partition(is_found);
        match judged.detect_at_least {
            Some(least) if found.len() < least => failures.push(format!(
                "{} commands made their rail die, and at least {least} have to",
                found.len()
            )),
            Some(_) => {}
            None => failures.extend(
                missed
                    .iter()
                    .map(|mark| format!("the failure of the rail by `{}` was not detected", mark.command)),
            ),
        }
    }
    if judged.is_hanging {
        failures.push("the link made no progress for too long, and did not end".into());
    }
    if watch.marks.len() < judged.orders || watch.marks.iter().any(|mark| mark.took_ms.is_none()) {
        failures.push("the link ended before all commands were carried out".into());
    }
    let is_closed = matches!(watch.over, Some(FinalReason::Closed | FinalReason::PeerClosed));
    match judged.ending {
        Ending::Closed => {
            if !is_closed {
                failures.push("the link was not closed by the side that connected".into());
                let rails = end.not_connected.iter();
                failures.extend(rails.map(|why| format!("no rail {why}")));
            }
            if incoming.ended.is_none() {
                failures.push("the peer's last message did not arrive".into());
            }
            let unknown = outgoing.unknown.len().saturating_add(end.asking.unknown.len());
            if unknown > 0 {
                failures.push(format!("{unknown} requests ended unknown"));
            }
        }
        Ending::Lost if is_closed => {
            failures.push("the link was closed, and --expect-end lost was given".into());
        }
        Ending::Lost => {}
    }
    if let Some(limit) = judged.outage_within.filter(|limit| watch.outage > *limit) {
        failures.push(format!(
            "the link made no progress for {:.1} ms, and {:.1} ms are allowed",
            ms(watch.outage),
            ms(limit)
        ));
    }
    if let Some(limit) = judged.detect_within {
        match silence_ms {
            None => failures.push("no rail was declared dead after a command".into()),
            Some(spread) if spread.median_ms > ms(limit) => failures.push(format!(
                "a rail was silent for {:.1} ms before it was declared dead (median), and {:.1} ms are allowed",
                spread.median_ms,
                ms(limit)
            )),
            Some(_) => {}
        }
    }
    failures
}

/// The rate between the first and the third quarter, if both times were recorded.
fn middle_bytes_per_second<P: Provider, N: Network>(end: &End<P, N>) -> Option<f64> {
    let Part::Client { wish, .. } = end.part else {
        return None;
    };
    let [(first, from), (second, to)] = end.watch.middle?;
    let bytes = second
        .saturating_sub(first)
        .saturating_mul(u64::from(wish.message_bytes));
    Some(bytes_per_second(bytes, span(from, to)))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "for people: bytes beyond 2^53 are petabytes"
)]
pub(crate) fn bytes_per_second(bytes: u64, took: Duration) -> f64 {
    if took.is_zero() {
        return 0.0;
    }
    bytes as f64 / took.as_secs_f64()
}

/// A number, and the noun that it counts.
fn count(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
