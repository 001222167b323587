//! Metrics of the node daemon: its counts, its links and its jobs.

use std::collections::BTreeMap;

use doorbell::Rdma;
use doorbell_daemon::{DaemonStatus, JobStatus, LinkState, Server};
use doorbell_operation::{Labels, MetricFamily, Metrics};

use crate::board::Board;

/// Maximum number of jobs with their own series, in total and of one user. All others share one series, since users choose the numbers of
/// their jobs.
const JOBS_MAX: usize = 64;
const JOBS_OF_USER_MAX: usize = 16;

/// The name of all other jobs and their users.
const OTHERS: &str = "other";

macro_rules! families {
    ($($family:ident = $kind:ident $name:literal $labels:tt, $help:literal;)*) => {
        $(static $family: MetricFamily<{ $labels.len() }> = MetricFamily::$kind($name, $help, &$labels);)*
    };
}

const NONE: [&str; 0] = [];

families! {
    PROCESSES = gauge "doorbell_daemon_processes" NONE, "Processes that are attached to the node daemon.";
    ATTACHED = counter "doorbell_daemon_attached_processes_total" NONE, "Processes that attached.";
    REFUSED = counter "doorbell_daemon_refused_processes_total" ["reason"], "Processes that were not attached, by reason.";
    CUT_OFF = counter "doorbell_daemon_cut_off_processes_total" ["reason"], "Processes that broke the protocol and were cut off, by reason.";
    MESSAGES = counter "doorbell_daemon_messages_total" ["way"], "Messages within this host, and messages and operations to and from other nodes.";
    UNDELIVERED = counter "doorbell_daemon_undelivered_messages_total" NONE, "Messages and operations that were reported to their senders as undelivered.";
    OPERATIONS = counter "doorbell_daemon_arena_operations_total" NONE, "Operations on arenas of this host.";
    TAKEN_BYTES = counter "doorbell_daemon_taken_bytes_total" NONE, "Bytes of messages and operations that were taken of processes.";
    ARRIVED = counter "doorbell_daemon_arrived_messages_total" NONE, "Messages and operations of other nodes.";
    ANSWERED = counter "doorbell_daemon_answered_messages_total" NONE, "Messages and operations of other nodes that have an outcome.";
    WAITING = gauge "doorbell_daemon_waiting_messages" NONE, "Messages and operations of other nodes that wait for processes of this one.";
    DROPPED = gauge "doorbell_daemon_dropped_messages" NONE, "Messages of other nodes that neither have an outcome nor wait: always 0, or the daemon has a fault.";
    NODE_LINKS = gauge "doorbell_daemon_node_links" ["node", "state"], "Links to another node by state.";
    NODE_LOST = counter "doorbell_daemon_node_losses_total" ["node"], "Times that the links to a node ended with all that was on its way.";
    NODE_WAITING = gauge "doorbell_daemon_node_waiting_frames" ["node"], "Frames that wait for a link to a node.";
    JOB_PROCESSES = gauge "doorbell_daemon_job_processes" ["uid", "job"], "Processes of a job.";
    JOB_MEMORY = gauge "doorbell_daemon_job_memory_bytes" ["uid", "job"], "Bytes of the rings, cells and arenas of a job.";
    JOB_SUBMITTED = counter "doorbell_daemon_job_submissions_total" ["uid", "job"], "Messages, operations and grants that processes of a job submitted.";
    JOB_SENT = counter "doorbell_daemon_job_sent_bytes_total" ["uid", "job"], "Bytes of these.";
    JOB_REPORTED = counter "doorbell_daemon_job_events_total" ["uid", "job"], "Messages, outcomes and ends that processes of a job were given.";
    JOB_RECEIVED = counter "doorbell_daemon_job_received_bytes_total" ["uid", "job"], "Bytes of the messages among these.";
}

/// Records the counters of a daemon and its links, if the last record is old enough. Metrics are public, and users cannot see the jobs of
/// others: so jobs are included only if `with_jobs` is set.
pub(super) fn note(board: &mut Board, server: &mut Server, with_jobs: bool) {
    if !board.is_due() {
        return;
    }
    let mut status = server.status();
    if !with_jobs {
        status.jobs.clear();
    }
    match server.peers() {
        Some(peers) => {
            let (links, workers) = peers.watch();
            board.note(workers, |metrics| {
                metrics.links(&Labels::NONE, links);
                metrics.handshakes(&Labels::NONE, &links.handshakes());
                add(metrics, &status);
            });
        }
        None => board.note::<Rdma>(&mut [], |metrics| add(metrics, &status)),
    }
}

fn add(metrics: &mut Metrics, status: &DaemonStatus) {
    let counts = &status.counts;
    for (family, value) in [
        (&PROCESSES, status.processes),
        (&ATTACHED, counts.attached),
        (&UNDELIVERED, counts.undelivered),
        (&OPERATIONS, counts.operations),
        (&TAKEN_BYTES, counts.taken_bytes),
        (&ARRIVED, counts.arrived),
        (&ANSWERED, counts.answered),
        (&WAITING, status.kept),
        (&DROPPED, status.dropped),
    ] {
        metrics.own(family, [], value);
    }
    for (way, value) in [
        ("local", counts.local),
        ("sent", counts.sent),
        ("received", counts.received),
    ] {
        metrics.own(&MESSAGES, [way], value);
    }
    for refused in &status.refused {
        metrics.own(&REFUSED, [&refused.reason.name()], refused.count);
    }
    for cut in &status.cut {
        metrics.own(&CUT_OFF, [&cut.reason.name()], cut.count);
    }
    for node in &status.nodes {
        let name = node.node.0.to_string();
        for state in [LinkState::Connecting, LinkState::Up, LinkState::Degraded] {
            let links = node.links.iter().filter(|link| link.state == state);
            metrics.own(&NODE_LINKS, [&name, state.name()], links.count() as u64);
        }
        metrics.own(&NODE_LOST, [&name], node.lost);
        metrics.own(&NODE_WAITING, [&name], node.waiting_frames);
    }
    add_jobs(metrics, &status.jobs);
}

/// Adds the oldest job of each user, then the second oldest of each, and so on, so that a few users cannot occupy all series. Other jobs
/// have only gauges, since the sum of their counters would decrease when one of them ends.
fn add_jobs(metrics: &mut Metrics, jobs: &[JobStatus]) {
    let mut by_age: Vec<_> = jobs.iter().collect();
    by_age.sort_by_key(|job| job.age);
    let mut of_users = BTreeMap::<u32, usize>::new();
    let mut in_turn: Vec<_> = by_age
        .into_iter()
        .map(|job| {
            let nth = of_users.entry(job.uid).or_default();
            *nth = nth.saturating_add(1);
            (*nth, job)
        })
        .collect();
    in_turn.sort_by_key(|(nth, job)| (*nth, job.age));
    for (place, (nth, job)) in in_turn.into_iter().enumerate() {
        let is_named = place < JOBS_MAX && nth <= JOBS_OF_USER_MAX;
        let (uid, number) = if is_named {
            (job.uid.to_string(), job.job.0.to_string())
        } else {
            (OTHERS.to_owned(), OTHERS.to_owned())
        };
        let labels = [&*uid, &*number];
        metrics.own(&JOB_PROCESSES, labels, job.processes);
        metrics.own(&JOB_MEMORY, labels, job.memory_bytes);
        if !is_named {
            continue;
        }
        for (family, value) in [
            (&JOB_SUBMITTED, job.traffic.submitted),
            (&JOB_SENT, job.traffic.sent_bytes),
            (&JOB_REPORTED, job.traffic.reported),
            (&JOB_RECEIVED, job.traffic.received_bytes),
        ] {
            metrics.own(family, labels, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_daemon::{JobNumber, JobStatus, Traffic};
    use doorbell_operation::Metrics;

    use super::{JOBS_MAX, JOBS_OF_USER_MAX, add_jobs};

    fn job(uid: u32, job: u64, age: u64) -> JobStatus {
        JobStatus {
            uid,
            job: JobNumber(job),
            age,
            processes: 1,
            memory_bytes: 10,
            traffic: Traffic {
                submitted: 2,
                sent_bytes: 3,
                reported: 4,
                received_bytes: 5,
            },
        }
    }

    #[test]
    fn jobs_beyond_the_most_are_one_and_the_oldest_keep_their_names() {
        // A user with very many jobs, in the order of their numbers, and a user with an old job.
        let mut jobs: Vec<_> = (0..200).map(|number| job(1000, number, 1000 - number)).collect();
        jobs.push(job(2000, 7, 5000));
        let mut metrics = Metrics::default();
        add_jobs(&mut metrics, &jobs);
        let text = metrics.to_string();
        let named = |prefix: &str| text.lines().filter(|line| line.starts_with(prefix)).count();
        assert_eq!(
            named("doorbell_daemon_job_processes{uid=\"1000\""),
            JOBS_OF_USER_MAX
        );
        assert!(
            text.contains("doorbell_daemon_job_processes{uid=\"1000\",job=\"199\"} 1\n"),
            "the oldest"
        );
        assert!(text.contains("doorbell_daemon_job_sent_bytes_total{uid=\"2000\",job=\"7\"} 3\n"));
        let others = 200 - JOBS_OF_USER_MAX;
        assert!(text.contains(&format!(
            "doorbell_daemon_job_processes{{uid=\"other\",job=\"other\"}} {others}\n"
        )));
        assert!(!text.contains("_total{uid=\"other\""), "counts that fall: {text}");
        // Five users with many jobs each, and a user that comes last.
        let mut jobs: Vec<_> = (0..100)
            .map(|number| job(number as u32 / 20, number, number))
            .collect();
        jobs.push(job(9, 7, 1000));
        let mut metrics = Metrics::default();
        add_jobs(&mut metrics, &jobs);
        let text = metrics.to_string();
        assert!(
            text.contains("doorbell_daemon_job_sent_bytes_total{uid=\"9\",job=\"7\"} 3\n"),
            "{text}"
        );
        let many: Vec<_> = (0..1000).map(|uid| job(uid, 1, uid.into())).collect();
        let mut metrics = Metrics::default();
        add_jobs(&mut metrics, &many);
        let text = metrics.to_string();
        let series = text
            .lines()
            .filter(|line| line.starts_with("doorbell_daemon_job_memory_bytes{"));
        assert_eq!(series.count(), JOBS_MAX + 1);
    }
}
