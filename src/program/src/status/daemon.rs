//! The state of this host's node daemon, as a document and as a table. The daemon is queried at its socket.

use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Instant;

use doorbell::within;
use doorbell_daemon::{DaemonStatus, EndpointStatus, JobStatus, LinkState, NodeStatus, StatusError, Traffic};
use serde::Serialize;

use super::table::{megabytes, write_rows};
use super::{Arguments, Screen};
use crate::report::Failure;
use crate::serve::Counts;

/// Timeout for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The state of a daemon at one time. Rates cover the interval since the previous report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    simulated: bool,
    daemon: Daemon,
    nodes: Vec<Node>,
    jobs: Vec<Job>,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Serialize)]
struct Daemon {
    socket: String,
    node: u32,
    daemon_epoch: u64,
    running_s: u64,
    sees_all: bool,
    job_keys_by_file: bool,
    processes: u64,
    #[serde(flatten)]
    counts: Counts,
    taken_bytes: u64,
    arrived_messages: u64,
    answered_messages: u64,
    waiting: u64,
    dropped: u64,
    refused_by_reason: BTreeMap<String, u64>,
    cut_off_by_reason: BTreeMap<String, u64>,
    endpoints_left_out: u64,
}

#[derive(Debug, Serialize)]
struct Node {
    node: u32,
    /// The worst state of its links, or `idle` if it has none.
    state: &'static str,
    times_lost: u64,
    waiting_frames: u64,
    waiting_bytes: u64,
    node_links: Vec<Link>,
}

#[derive(Debug, Serialize)]
struct Link {
    begun_here: bool,
    state: &'static str,
    rails_total: u32,
    rails_up: u32,
    sent_bytes: u64,
    received_bytes: u64,
}

/// Total traffic, and its rates.
#[derive(Debug, Serialize)]
struct TrafficReport {
    submitted: u64,
    reported: u64,
    sent_bytes: u64,
    received_bytes: u64,
    sent_bytes_per_second: Option<f64>,
    received_bytes_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Job {
    uid: u32,
    job: u64,
    processes: u64,
    mapped_bytes: u64,
    #[serde(flatten)]
    moved: TrafficReport,
}

#[derive(Debug, Serialize)]
struct Endpoint {
    uid: u32,
    job: u64,
    endpoint: u32,
    pid: Option<u32>,
    attached_s: u64,
    queued: u64,
    in_flight: u64,
    waiting: u64,
    #[serde(flatten)]
    moved: TrafficReport,
}

/// Shows the daemon at a socket.
///
/// # Errors
/// The daemon cannot be queried, or with `--once` it does not answer.
pub(super) fn run(socket: &Path, arguments: &Arguments, shown: &mut Screen) -> Result<(), Failure> {
    let mut before: Option<(DaemonStatus, Instant)> = None;
    loop {
        match DaemonStatus::ask(socket, within(PATIENCE)) {
            Ok(now) => {
                let at = Instant::now();
                let report = Report::new(socket, &now, before.as_ref(), at);
                shown.show(&report, &report.text())?;
                before = Some((now, at));
            }
            // Another daemon may start soon.
            Err(error @ (StatusError::NoDaemon { .. } | StatusError::TooLate)) if !arguments.once => {
                shown.lose(&error.to_string());
                before = None;
            }
            Err(error) => return Err(error.into()),
        }
        if arguments.once {
            return Ok(());
        }
        thread::sleep(arguments.interval);
    }
}

impl Report {
    fn new(socket: &Path, now: &DaemonStatus, before: Option<&(DaemonStatus, Instant)>, at: Instant) -> Self {
        // Counts of another daemon are not comparable.
        let before = before.filter(|(status, _)| status.epoch == now.epoch);
        let seconds = before.map_or(0.0, |(_, then)| at.saturating_duration_since(*then).as_secs_f64());
        let before = before.map(|(status, _)| status);
        let (jobs_before, endpoints_before) = before.map_or((&[][..], &[][..]), |status| {
            (&status.jobs[..], &status.endpoints[..])
        });
        let jobs_before: BTreeMap<_, _> = jobs_before.iter().map(|job| (job.age, &job.traffic)).collect();
        let endpoints_before: BTreeMap<_, _> = endpoints_before
            .iter()
            .map(|endpoint| (endpoint.incarnation, &endpoint.traffic))
            .collect();
        Self {
            simulated: false,
            daemon: Daemon::of(socket, now),
            nodes: now.nodes.iter().map(Node::of).collect(),
            jobs: now
                .jobs
                .iter()
                .map(|job| Job::of(job, jobs_before.get(&job.age).copied(), seconds))
                .collect(),
            endpoints: now
                .endpoints
                .iter()
                .map(|endpoint| {
                    let before = endpoints_before.get(&endpoint.incarnation).copied();
                    Endpoint::of(endpoint, before, seconds)
                })
                .collect(),
        }
    }

    /// The report as tables.
    pub(super) fn text(&self) -> String {
        let daemon = &self.daemon;
        let mut text = String::new();
        let users = if daemon.sees_all { "all users" } else { "this user" };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "daemon at {}: node {}, up {}, {} processes, those of {users} are shown",
            super::plain(&daemon.socket),
            daemon.node,
            time(daemon.running_s),
            daemon.processes
        );
        let keys = if daemon.job_keys_by_file {
            "a file"
        } else {
            "the first process of each job"
        };
        let _ = writeln!(text, "keys of jobs: from {keys}");
        if daemon.sees_all {
            daemon.write_messages(&mut text);
        }
        for (what, reasons) in [
            ("refused", &daemon.refused_by_reason),
            ("cut off", &daemon.cut_off_by_reason),
        ] {
            if !reasons.is_empty() {
                let counts: Vec<_> = reasons
                    .iter()
                    .map(|(reason, count)| format!("{reason} {count}"))
                    .collect();
                let _ = writeln!(text, "{what}: {}", counts.join(", "));
            }
        }
        if daemon.endpoints_left_out > 0 {
            let _ = writeln!(
                text,
                "{} further endpoints are not shown",
                daemon.endpoints_left_out
            );
        }
        self.write_nodes(&mut text);
        self.write_jobs(&mut text);
        self.write_endpoints(&mut text);
        text
    }

    fn write_nodes(&self, text: &mut String) {
        let rows = self.nodes.iter().map(|node| {
            let links = &node.node_links;
            let begun = links.iter().filter(|link| link.begun_here).count();
            let sum = |of: fn(&Link) -> u64| links.iter().map(of).fold(0, u64::saturating_add);
            [
                node.node.to_string(),
                node.state.to_owned(),
                format!("{begun} + {}", links.len().saturating_sub(begun)),
                format!(
                    "{} of {}",
                    sum(|link| link.rails_up.into()),
                    sum(|link| link.rails_total.into())
                ),
                node.waiting_frames.to_string(),
                node.times_lost.to_string(),
                total_megabytes(sum(|link| link.sent_bytes)),
                total_megabytes(sum(|link| link.received_bytes)),
            ]
        });
        let head = [
            "node", "state", "links", "rails up", "waiting", "lost", "MB out", "MB in",
        ];
        write_rows(text, head, rows);
    }

    fn write_jobs(&self, text: &mut String) {
        let rows = self.jobs.iter().map(|job| {
            let [submitted, reported, out, within, out_rate, in_rate] = job.moved.cells();
            [
                job.job.to_string(),
                job.uid.to_string(),
                job.processes.to_string(),
                total_megabytes(job.mapped_bytes),
                submitted,
                reported,
                out,
                within,
                out_rate,
                in_rate,
            ]
        });
        let head = [
            "job",
            "uid",
            "processes",
            "MB mapped",
            "submitted",
            "events",
            "MB out",
            "MB in",
            "MB/s out",
            "MB/s in",
        ];
        write_rows(text, head, rows);
    }

    fn write_endpoints(&self, text: &mut String) {
        let rows = self.endpoints.iter().map(|endpoint| {
            let [submitted, reported, out, within, out_rate, in_rate] = endpoint.moved.cells();
            [
                endpoint.endpoint.to_string(),
                endpoint.job.to_string(),
                endpoint.uid.to_string(),
                endpoint.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                time(endpoint.attached_s),
                endpoint.queued.to_string(),
                endpoint.in_flight.to_string(),
                endpoint.waiting.to_string(),
                submitted,
                reported,
                out,
                within,
                out_rate,
                in_rate,
            ]
        });
        let head = [
            "endpoint",
            "job",
            "uid",
            "pid",
            "attached",
            "queued",
            "in flight",
            "waiting",
            "submitted",
            "events",
            "MB out",
            "MB in",
            "MB/s out",
            "MB/s in",
        ];
        write_rows(text, head, rows);
    }
}

impl Daemon {
    fn of(socket: &Path, status: &DaemonStatus) -> Self {
        let counts = &status.counts;
        Self {
            socket: socket.display().to_string(),
            node: status.node.0,
            daemon_epoch: status.epoch,
            running_s: status.running_s,
            sees_all: status.sees_all,
            job_keys_by_file: status.are_keys_of_file,
            processes: status.processes,
            counts: Counts::of(counts),
            taken_bytes: counts.taken_bytes,
            arrived_messages: counts.arrived,
            answered_messages: counts.answered,
            waiting: status.kept,
            dropped: status.dropped,
            refused_by_reason: status
                .refused
                .iter()
                .map(|of| (of.reason.name(), of.count))
                .collect(),
            cut_off_by_reason: status.cut.iter().map(|of| (of.reason.name(), of.count)).collect(),
            endpoints_left_out: status.left_out,
        }
    }

    /// Writes the message counts of all users.
    fn write_messages(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "messages: {} on this host, {} sent, {} received, {} undelivered; operations on arenas: {}",
            self.counts.local_messages,
            self.counts.sent_messages,
            self.counts.received_messages,
            self.counts.undelivered_messages,
            self.counts.arena_operations
        );
        let _ = writeln!(
            text,
            "other nodes: {} arrived = {} answered + {} waiting + {} dropped",
            self.arrived_messages, self.answered_messages, self.waiting, self.dropped
        );
    }
}

impl Node {
    fn of(status: &NodeStatus) -> Self {
        let states = status.links.iter().map(|link| link.state);
        let has = |state| status.links.iter().any(|link| link.state == state);
        let worst = [LinkState::Connecting, LinkState::Degraded, LinkState::Up];
        let state = worst
            .into_iter()
            .find(|state| has(*state))
            .map_or("idle", LinkState::name);
        let links = status.links.iter().zip(states);
        let node_links = links.map(|(link, state)| Link {
            begun_here: link.is_begun_here,
            state: state.name(),
            rails_total: link.rails,
            rails_up: link.rails_up,
            sent_bytes: link.sent_bytes,
            received_bytes: link.received_bytes,
        });
        Self {
            node: status.node.0,
            state,
            times_lost: status.lost,
            waiting_frames: status.waiting_frames,
            waiting_bytes: status.waiting_bytes,
            node_links: node_links.collect(),
        }
    }
}

impl TrafficReport {
    fn of(now: &Traffic, before: Option<&Traffic>, seconds: f64) -> Self {
        let rate = |of: fn(&Traffic) -> u64| {
            let grown = of(now).checked_sub(of(before?))?;
            #[expect(clippy::cast_precision_loss, reason = "a rate is no count")]
            (seconds > 0.0).then(|| grown as f64 / seconds)
        };
        Self {
            submitted: now.submitted,
            reported: now.reported,
            sent_bytes: now.sent_bytes,
            received_bytes: now.received_bytes,
            sent_bytes_per_second: rate(|traffic| traffic.sent_bytes),
            received_bytes_per_second: rate(|traffic| traffic.received_bytes),
        }
    }

    fn cells(&self) -> [String; 6] {
        [
            self.submitted.to_string(),
            self.reported.to_string(),
            total_megabytes(self.sent_bytes),
            total_megabytes(self.received_bytes),
            megabytes(self.sent_bytes_per_second),
            megabytes(self.received_bytes_per_second),
        ]
    }
}

impl Job {
    fn of(status: &JobStatus, before: Option<&Traffic>, seconds: f64) -> Self {
        Self {
            uid: status.uid,
            job: status.job.0,
            processes: status.processes,
            mapped_bytes: status.memory_bytes,
            moved: TrafficReport::of(&status.traffic, before, seconds),
        }
    }
}

impl Endpoint {
    fn of(status: &EndpointStatus, before: Option<&Traffic>, seconds: f64) -> Self {
        Self {
            uid: status.uid,
            job: status.job.0,
            endpoint: status.endpoint,
            pid: status.pid,
            attached_s: status.attached_s,
            queued: status.queued,
            in_flight: status.in_flight,
            waiting: status.waiting,
            moved: TrafficReport::of(&status.traffic, before, seconds),
        }
    }
}

/// Bytes in units of 10^6.
fn total_megabytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits behind the point")]
    let bytes = bytes as f64;
    format!("{:.2}", bytes / 1e6)
}

/// A duration in days, hours, minutes and seconds.
fn time(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    let clock = format!("{hours:02}:{minutes:02}:{seconds:02}");
    if days > 0 {
        format!("{days}d {clock}")
    } else {
        clock
    }
}

/// Checks the text and the document of a status from an untrusted daemon.
///
/// # Panics
/// The text has a control character that affects a terminal, or no line for an endpoint; or the document
/// lacks an endpoint.
#[cfg(any(test, fuzzing))]
pub fn check_shown(status: &DaemonStatus) {
    let now = Instant::now();
    let before = now
        .checked_sub(Duration::from_secs(1))
        .map(|then| (status.clone(), then));
    for before in [None, before.as_ref()] {
        let report = Report::new(Path::new("/run/\x1b[2J\n/socket"), status, before, now);
        let text = report.text();
        let is_plain = |letter: char| letter == '\n' || !letter.is_control();
        assert!(text.chars().all(is_plain), "{text:?}");
        let rows = [status.nodes.len(), status.jobs.len(), status.endpoints.len()];
        assert!(text.lines().count() > rows.iter().sum(), "{text}");
        let document = serde_json::to_value(&report).expect("text under names");
        let lists = ["nodes", "jobs", "endpoints"].map(|list| document[list].as_array().map(Vec::len));
        assert_eq!(lists, rows.map(Some));
    }
}

#[cfg(test)]
mod tests {
    use doorbell_daemon::{
        DaemonStatus, EndpointStatus, JobNumber, JobStatus, LinkState, LinkStatus, NodeNumber, NodeStatus,
        RouterCounts, Traffic,
    };

    use super::check_shown;

    /// Returns a status in which each number is the largest possible, so that every sum overflows.
    fn largest() -> DaemonStatus {
        let traffic = || Traffic {
            submitted: u64::MAX,
            sent_bytes: u64::MAX,
            reported: u64::MAX,
            received_bytes: u64::MAX,
        };
        let link = |is_begun_here| LinkStatus {
            is_begun_here,
            state: LinkState::Up,
            rails: u32::MAX,
            rails_up: u32::MAX,
            sent_bytes: u64::MAX,
            received_bytes: u64::MAX,
        };
        let (uid, job) = (u32::MAX, JobNumber(u64::MAX));
        let job_status = || JobStatus {
            uid,
            job,
            age: u64::MAX,
            processes: u64::MAX,
            memory_bytes: u64::MAX,
            traffic: traffic(),
        };
        let endpoint = || EndpointStatus {
            uid,
            job,
            endpoint: u32::MAX,
            pid: Some(u32::MAX),
            incarnation: u64::MAX,
            attached_s: u64::MAX,
            queued: u64::MAX,
            in_flight: u64::MAX,
            waiting: u64::MAX,
            traffic: traffic(),
        };
        DaemonStatus {
            node: NodeNumber(u32::MAX),
            epoch: u64::MAX,
            running_s: u64::MAX,
            sees_all: true,
            are_keys_of_file: true,
            processes: u64::MAX,
            counts: RouterCounts::default(),
            kept: u64::MAX,
            dropped: u64::MAX,
            refused: Vec::new(),
            cut: Vec::new(),
            nodes: vec![NodeStatus {
                node: NodeNumber(u32::MAX),
                lost: u64::MAX,
                waiting_frames: u64::MAX,
                waiting_bytes: u64::MAX,
                links: [true, false].map(link).into(),
            }],
            // Two jobs with the same number: a daemon with a fault may send them.
            jobs: vec![job_status(), job_status()],
            left_out: u64::MAX,
            endpoints: vec![endpoint(), endpoint()],
        }
    }

    #[test]
    fn a_status_of_whoever_listens_is_shown_as_it_is() {
        let mut status = largest();
        check_shown(&status);
        status.sees_all = false;
        check_shown(&status);
    }
}
