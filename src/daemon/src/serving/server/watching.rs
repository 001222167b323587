//! The status and the log of a server.
//!
//! A process that queries the status sends the memory for the answer. So the pages of an unread answer are charged to that process,
//! the daemon keeps nothing, and one step is enough. Answers for users that see everything take at most a tenth of the daemon's time;
//! so do answers for all other users together.

use core::time::Duration;
use std::collections::BTreeMap;

use doorbell::interprocess::{SharedArena, SharedBytes as _};
use doorbell::provider::Instant;
use doorbell::{Deadline, now};

use super::Server;
use crate::job_keys::JobKeys;
use crate::log::log;
use crate::name::{Credentials, JobNumber};
use crate::packet::Packet;
use crate::peers::Peers;
use crate::quota::Quota;
use crate::reason::{AttachRefusal, CutReason, GoneReason};
use crate::router::{ClientId, Ended};
use crate::serving::helpers::{Wanted, Work};
use crate::serving::pending::Pending;
use crate::serving::replacing::is_owner;
use crate::status::{CutCount, DaemonStatus, RefusedCount};

/// After an answer, the next one has to wait for this many times the time that it took.
const REST: u32 = 9;

/// Counts and times for the status, and the limits of the log.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    refused: BTreeMap<u32, u64>,
    cut: BTreeMap<u32, u64>,
    /// Earliest time of the next answer: for users that see only their own endpoints, and for users that see everything.
    next: [Option<Deadline>; 2],
    /// Events that any process causes by attaching and leaving. They have a separate limit, so that they cannot suppress warnings.
    events: Quota,
    warnings: Quota,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            began: now(),
            refused: BTreeMap::new(),
            cut: BTreeMap::new(),
            next: [None; 2],
            events: Quota::default(),
            warnings: Quota::default(),
        }
    }

    /// Whole seconds since the daemon started.
    pub(super) fn seconds(&self) -> u32 {
        u32::try_from(since(self.began).as_secs()).unwrap_or(u32::MAX)
    }

    pub(super) fn attached(&mut self, who: Credentials, job: JobNumber, endpoint: u32) {
        if self.events.allows(who.uid, now()) {
            log!(
                info,
                "process attached",
                uid = who.uid,
                pid = pid(who),
                job = job.0,
                endpoint = endpoint
            );
        }
    }

    pub(super) fn refused(&mut self, who: Credentials, reason: AttachRefusal) {
        add(&mut self.refused, reason.number());
        if self.warnings.allows(who.uid, now()) {
            log!(
                warn,
                "process refused",
                uid = who.uid,
                pid = pid(who),
                reason = reason
            );
        }
    }

    pub(super) fn cut_off(&mut self, ended: &Ended, reason: CutReason) {
        add(&mut self.cut, reason.number());
        let Ended {
            who, job, endpoint, ..
        } = *ended;
        if self.warnings.allows(who.uid, now()) {
            log!(
                warn,
                "process cut off",
                uid = who.uid,
                pid = pid(who),
                job = job.0,
                endpoint = endpoint,
                reason = reason
            );
        }
        self.job_ended(ended);
    }

    pub(super) fn gone(&mut self, ended: &Ended, reason: GoneReason) {
        let Ended {
            who, job, endpoint, ..
        } = *ended;
        if self.events.allows(who.uid, now()) {
            log!(
                info,
                "process gone",
                uid = who.uid,
                pid = pid(who),
                job = job.0,
                endpoint = endpoint,
                reason = reason
            );
        }
        self.job_ended(ended);
    }

    fn job_ended(&mut self, ended: &Ended) {
        if ended.is_last && self.events.allows(ended.who.uid, now()) {
            log!(
                info,
                "last process of a job gone",
                uid = ended.who.uid,
                job = ended.job.0
            );
        }
    }

    /// Logs that another daemon takes over.
    pub(super) fn replaced(who: Credentials) {
        log!(info, "replaced by another daemon", uid = who.uid, pid = pid(who));
    }

    /// Logs how many events were suppressed in a second that has passed.
    pub(super) fn end_second(&mut self) {
        let time = now();
        for quota in [&mut self.events, &mut self.warnings] {
            if let Some(events) = quota.end(time) {
                log!(warn, "events of processes were not logged", events = events);
            }
        }
    }

    /// Time at which suppressed events are to be logged.
    pub(super) fn due(&self) -> Option<Deadline> {
        let due = [&self.events, &self.warnings].map(Quota::due);
        due.into_iter().flatten().min()
    }
}

fn since(moment: Instant) -> Duration {
    Duration::from_nanos(now().to_ns().saturating_sub(moment.to_ns()))
}

/// The process ID, or 0 if the daemon cannot see the process's PID namespace.
fn pid(who: Credentials) -> u32 {
    who.pid.map_or(0, core::num::NonZero::get)
}

fn add(counts: &mut BTreeMap<u32, u64>, number: u32) {
    let count = counts.entry(number).or_default();
    *count = count.saturating_add(1);
}

impl Server {
    /// The links to other nodes, if any were set.
    pub const fn peers(&mut self) -> Option<&mut Peers> {
        self.peers.as_mut()
    }

    /// Sets the jobs that processes may attach to from now on: see [`Router::set_job_keys`](crate::Router::set_job_keys).
    pub fn set_job_keys(&mut self, keys: JobKeys) {
        self.router.set_job_keys(keys);
    }

    /// The state of this daemon, with the jobs and endpoints of all users.
    #[must_use]
    pub fn status(&self) -> DaemonStatus {
        self.status_of(None)
    }

    /// The state of this daemon, with the jobs and endpoints of one user, or of all users.
    fn status_of(&self, user: Option<u32>) -> DaemonStatus {
        let seconds = self.watch.seconds();
        let nodes = self.peers.as_ref().map_or_else(Vec::new, |peers| peers.nodes());
        let attached = &self.attached;
        // Processes that ended, and whose last messages are still being moved, are no longer in `attached`.
        let since_s = |id: ClientId| {
            let since_s = attached.get(&id).map_or(seconds, |client| client.since_s);
            seconds.saturating_sub(since_s).into()
        };
        let mut status = self.router.status(user, since_s, nodes);
        (status.epoch, status.running_s) = (self.epoch, seconds.into());
        let refused = self.watch.refused.iter();
        status.refused = refused
            .filter_map(|(number, count)| {
                let (reason, count) = (AttachRefusal::of(*number)?, *count);
                Some(RefusedCount { reason, count })
            })
            .collect();
        let cut = self.watch.cut.iter();
        status.cut = cut
            .filter_map(|(number, count)| {
                let (reason, count) = (CutReason::of(*number)?, *count);
                Some(CutCount { reason, count })
            })
            .collect();
        status
    }

    /// Has the memory for a status adopted, if it is time for another answer.
    pub(super) fn ask_for_status(&mut self, pending: Pending, bytes: u32) {
        if self.is_time_for(is_owner(pending.who)) {
            let owner = (pending.who.uid, pending.share);
            let asked = (pending, Wanted::Status(bytes));
            self.helpers.give(owner, Work::Adopt(Box::new(asked)));
        } else {
            self.answer(pending, &Packet::Refused(AttachRefusal::TooManyPending));
        }
    }

    /// Whether it is time for another answer to a user that sees everything, or to another user.
    fn is_time_for(&self, sees_all: bool) -> bool {
        let next = self.watch.next.get(usize::from(sees_all));
        let next = next.copied().flatten();
        next.is_none_or(|next| next.has_passed(now()))
    }

    /// Answers a process that queries the status. If another process was answered just now, it has to ask again. Such an answer is not
    /// counted as a refusal, since no process attaches.
    pub(super) fn take_status(&mut self, pending: Pending, memory: Result<SharedArena, AttachRefusal>) {
        let begun = now();
        let sees_all = is_owner(pending.who);
        let is_time = self.is_time_for(sees_all);
        let answer = match memory {
            _ if !is_time => Packet::Refused(AttachRefusal::TooManyPending),
            Ok(memory) => {
                let bytes = self.write_status(pending.who.uid, &memory, sees_all);
                // A memfd, which the mapping keeps alive, so that closing it does not block.
                pending.socket.pass();
                Packet::StatusGiven { bytes }
            }
            Err(refusal) => Packet::Refused(refusal),
        };
        self.answer(pending, &answer);
        if let Some(next) = self.watch.next.get_mut(usize::from(sees_all)).filter(|_| is_time) {
            *next = Some(Deadline::after(now(), since(begun).saturating_mul(REST)));
        }
    }

    /// Answers a process that does not attach, and closes its connection.
    fn answer(&mut self, pending: Pending, answer: &Packet) {
        let _ = pending.socket.send(answer, &[]);
        self.let_go((pending.who.uid, pending.share), pending.socket);
    }

    /// Writes the status into the memory that came with the query. Returns its length, or 0 if the memory is too short.
    fn write_status(&self, user: u32, memory: &SharedArena, sees_all: bool) -> u32 {
        let mut status = self.status_of((!sees_all).then_some(user));
        let text = status
            .write(memory.bytes())
            .filter(|text| memory.copy_in(0, text));
        text.map_or(0, |text| u32::try_from(text.len()).unwrap_or(0))
    }
}
