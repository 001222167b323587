//! The leader: appends what clients bring, sends it to each follower, and commits what a majority has.

use core::fmt::{self, Display};
use core::net::IpAddr;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Network, Provider};
use doorbell::wire::PrivateData;
use doorbell::{ChannelConfig, Handle, Listener, Node, Worker, WorkerConfig};
use serde::Serialize;

use super::Lead;
use super::around::{Failure, Percentiles, Progress, Report, rate};
use super::log::Log;
use super::replica::Replica;

/// Last message to a follower that is of no more use.
pub(crate) const GIVEN_UP: &[u8] = b"given up";

/// Report of a leader.
#[derive(Debug, Serialize)]
pub(crate) struct Led {
    pub(crate) role: &'static str,
    pub(crate) appended: u64,
    pub(crate) committed: u64,
    pub(crate) seconds: f64,
    pub(crate) committed_per_s: f64,
    /// From being appended to being committed.
    pub(crate) commit_latency: Option<Percentiles>,
    /// Batches sent, by the entries in them.
    pub(crate) batches: Vec<Bucket>,
    pub(crate) followers: Vec<Row>,
    pub(crate) failures: Vec<String>,
}

/// Batches of so many entries.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bucket {
    pub(crate) entries_min: u64,
    pub(crate) entries_max: u64,
    pub(crate) batches: u64,
}

/// One follower, as its leader saw it.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) address: IpAddr,
    pub(crate) acknowledged_bytes: u64,
    pub(crate) lost: Option<String>,
}

/// Batches by the logarithm of their entries.
#[derive(Default)]
struct Histogram([u64; 16]);

impl Histogram {
    fn note(&mut self, entries: usize) {
        let Some(power) = entries.checked_ilog2() else {
            return;
        };
        if let Some(count) = self.0.get_mut(power as usize) {
            *count += 1;
        }
    }

    fn buckets(&self) -> Vec<Bucket> {
        let counted = (0_u32..).zip(self.0).filter(|(_, batches)| *batches > 0);
        let bucket = |(power, batches)| Bucket {
            entries_min: 1_u64 << power,
            entries_max: (2_u64 << power) - 1,
            batches,
        };
        counted.map(bucket).collect()
    }
}

struct Leader<'a, P: Provider> {
    arguments: &'a Lead,
    workers: Vec<Worker<P>>,
    replicas: Vec<Replica<P>>,
    log: Log,
    batches: Histogram,
}

impl<P: Provider> Leader<'_, P> {
    /// How many of all, the leader among them, are more than half.
    fn majority(&self) -> usize {
        self.replicas.len().div_ceil(2) + 1
    }

    fn living(&self) -> impl Iterator<Item = &Replica<P>> {
        self.replicas.iter().filter(|replica| replica.is_here())
    }

    fn has_majority(&self) -> bool {
        self.living().count() + 1 >= self.majority()
    }

    /// A majority had the log up to here: the leader, and as many followers as are missing to it. An acknowledgement counts
    /// that came before its follower left.
    fn majority_has(&self) -> u64 {
        let mut places: Vec<_> = self.replicas.iter().map(|replica| replica.acknowledged).collect();
        places.sort_unstable_by(|a, b| b.cmp(a));
        let last = self.majority().checked_sub(2);
        last.and_then(|last| places.get(last))
            .copied()
            .unwrap_or(self.log.committed)
    }

    /// Some follower may need the log from here on.
    fn needed(&self) -> u64 {
        self.living()
            .map(|replica| replica.acknowledged)
            .min()
            .unwrap_or(self.log.committed)
    }

    /// Takes what followers say.
    fn poll(&mut self) -> Result<(), Failure> {
        let Self {
            workers,
            replicas,
            log,
            ..
        } = self;
        let mut count = 0;
        for (index, worker) in workers.iter_mut().enumerate() {
            count += worker.poll(|turn, event| {
                let id = turn.channel.id();
                let is_it =
                    |replica: &&mut Replica<P>| replica.at.worker == index && replica.at.channel == id;
                if let Some(replica) = replicas.iter_mut().find(is_it) {
                    replica.note(&event, log.capacity_bytes());
                }
            })?;
        }
        if count == 0 {
            // Channels of followers that left are closed while there is nothing else to do.
            workers.iter_mut().for_each(Worker::tend);
            // On a machine with fewer processors than threads, the others get theirs.
            thread::yield_now();
        }
        Ok(())
    }

    /// One turn: takes messages, commits, drops followers that are lost, and sends the next batches.
    fn turn(&mut self) -> Result<(), Failure> {
        self.poll()?;
        let now = Instant::now();
        let span = Duration::from_millis(self.arguments.acknowledge_ms);
        for replica in &mut self.replicas {
            replica.expire(now, span, self.log.end());
        }
        let (place, needed) = (self.majority_has(), self.needed());
        self.log.commit(place, needed, now);
        for replica in &mut self.replicas {
            if let Some(worker) = self.workers.get_mut(replica.at.worker) {
                self.batches.note(replica.send(worker, &self.log)?);
            }
        }
        Ok(())
    }

    /// Appends what the clients bring whose last entry is committed; or what is due by the clock.
    fn append(&mut self, began: Instant, now: Instant) -> Result<(), Failure> {
        let Lead {
            entries,
            clients,
            rate,
            entry_bytes,
            ..
        } = *self.arguments;
        let due = match rate {
            Some(rate) => entries.min(due_within(rate, now.saturating_duration_since(began))),
            None => entries.min(self.log.committed_entries + clients),
        };
        while self.log.appended().entries < due {
            let needed = self.needed();
            if !self.log.has_room(entry_bytes, needed) {
                self.leave_behind(needed);
                break;
            }
            self.log.append(entry_bytes, now)?;
        }
        Ok(())
    }

    /// There is no room for what one follower has not got. If the others have left it half a window behind, it
    /// is given up; if not, all of them are slow, and clients wait.
    fn leave_behind(&mut self, needed: u64) {
        let behind = self.log.committed.saturating_sub(needed);
        if behind > self.log.capacity_bytes() / 2 {
            for replica in self
                .replicas
                .iter_mut()
                .filter(|replica| replica.acknowledged == needed)
            {
                replica.lose(format!("{behind} bytes behind the others"));
            }
        }
    }

    /// Whether everybody that is left has everything.
    fn is_done(&self) -> bool {
        let end = self.log.end();
        self.log.committed == end && self.needed() == end
    }

    /// Tells those that are left that this was all, and what it comes to, and the others that they were given up;
    /// waits until they have it.
    fn say_end(&mut self, patience: Duration) -> Result<(), Failure> {
        let applied = self.log.appended();
        let end = [applied.entries, u64::from(applied.digest)]
            .map(u64::to_le_bytes)
            .concat();
        for replica in &mut self.replicas {
            let worker = self.workers.get_mut(replica.at.worker).ok_or("no such worker")?;
            // The Worker closes the channel of a follower that left or failed.
            let Some(channel) = worker.channel(replica.at.channel) else {
                replica.lose("its channel is closed");
                continue;
            };
            let last: &[u8] = if replica.is_here() { &end } else { GIVEN_UP };
            let sent = channel.send(last);
            let closed = worker.close(replica.at.channel, worker.within(patience), |_, _| {});
            // A follower that was lost before owes nothing more.
            if let Err(kind) = sent {
                replica.lose(kind.to_string());
            } else if let Err(error) = closed {
                replica.lose(error.to_string());
            }
        }
        Ok(())
    }
}

/// Waits for followers, appends and replicates, and announces the end to them.
///
/// # Errors
/// There is no device, not all followers came in time, or a Worker cannot be used.
pub(crate) fn run<P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &Lead,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<Led, Failure> {
    let mut leader = gather(node, arguments, announce)?;
    let patience = Duration::from_secs(arguments.patience_s);
    let until = Instant::now() + patience;
    while leader.living().any(|replica| !replica.is_ready()) && Instant::now() < until {
        leader.poll()?;
    }
    for replica in leader.replicas.iter_mut().filter(|replica| !replica.is_ready()) {
        replica.lose("it did not say where its log is");
    }
    let began = Instant::now();
    let stop = began + Duration::from_secs(arguments.seconds);
    let mut progress = Progress::new();
    while leader.has_majority() {
        let now = Instant::now();
        let all = now >= stop || leader.log.appended().entries == arguments.entries;
        if all && leader.is_done() {
            break;
        }
        leader.turn()?;
        if !all {
            leader.append(began, now)?;
        }
        progress.tell(now, || {
            let followers = leader.living().count();
            format!(
                "committed {} entries, {followers} followers here",
                leader.log.committed_entries
            )
        });
    }
    let span = began.elapsed();
    leader.say_end(patience)?;
    Ok(leader.report(span))
}

/// How many entries are due after this long.
fn due_within(per_second: u64, span: Duration) -> u64 {
    let due = u128::from(per_second) * span.as_micros() / 1_000_000;
    u64::try_from(due).unwrap_or(u64::MAX)
}

/// Listens until all followers are connected.
fn gather<'a, P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &'a Lead,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<Leader<'a, P>, Failure> {
    let window_bytes = arguments.window_kib * 1024;
    let mut config = WorkerConfig::default();
    // Followers send short messages; batches have memory of their own.
    config.slot_bytes = 64;
    let mut workers = node.workers(&config)?;
    let mut config = ChannelConfig::default();
    config.send_depth = 16;
    config.receive_depth = 16;
    config.repost_batch = 4;
    // The sooner a dead follower is known, the better: retries for about half a second.
    config.retry_count = 2;
    config.private_data =
        PrivateData::new(&window_bytes.to_le_bytes()).map_err(|_| "the size of the window does not fit")?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    announce(listener.handle())?;
    let deadline = node.within(Duration::from_secs(arguments.patience_s));
    let mut replicas = Vec::new();
    for _ in 0..arguments.followers {
        let at = listener.accept(node, &mut workers, deadline)?;
        replicas.push(Replica::new(at, &mut workers, arguments.batch_kib * 1024)?);
    }
    Ok(Leader {
        arguments,
        workers,
        replicas,
        log: Log::new(window_bytes as usize)?,
        batches: Histogram::default(),
    })
}

impl<P: Provider> Leader<'_, P> {
    fn report(&self, span: Duration) -> Led {
        let (appended, committed) = (self.log.appended().entries, self.log.committed_entries);
        let mut failures = Vec::new();
        if !self.has_majority() {
            let (here, of) = (self.living().count() + 1, self.replicas.len() + 1);
            failures.push(format!(
                "no majority: {here} of {of} are left, leader included; {committed} entries of {appended} are committed"
            ));
        } else if committed != appended {
            failures.push(format!("{committed} entries of {appended} are committed"));
        }
        let row = |replica: &Replica<P>| Row {
            address: replica.address,
            acknowledged_bytes: replica.acknowledged,
            lost: replica.lost.clone(),
        };
        Led {
            role: "leader",
            appended,
            committed,
            seconds: span.as_secs_f64(),
            committed_per_s: rate(committed, span),
            commit_latency: self.log.latencies.percentiles(),
            batches: self.batches.buckets(),
            followers: self.replicas.iter().map(row).collect(),
            failures,
        }
    }
}

impl Report for Led {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Led {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "committed {} of {} entries, {} a second",
            self.committed, self.appended, self.committed_per_s
        )?;
        if let Some(latency) = &self.commit_latency {
            writeln!(f, "  commit latency {latency}")?;
        }
        for bucket in &self.batches {
            let Bucket {
                entries_min,
                entries_max,
                batches,
            } = bucket;
            writeln!(
                f,
                "  {batches:>9} batches of {entries_min} to {entries_max} entries"
            )?;
        }
        for row in &self.followers {
            let state = row.lost.as_deref().unwrap_or("here to the end");
            writeln!(
                f,
                "  follower {}: {} bytes; {state}",
                row.address, row.acknowledged_bytes
            )?;
        }
        Ok(())
    }
}
