//! The clients, so many at a time, and the steward that knows when the last of them are gone.

use core::fmt::{self, Display};
use core::time::Duration;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use clap::Args;
use doorbell::connect::Connecting;
use doorbell::provider::{Network, Provider};
use doorbell::worker::CloseProgress;
use doorbell::{ChannelConfig, Connection, Deadline, Event, Handle, Node, Wait, Woken, Worker, WorkerConfig};
use serde::Serialize;

use crate::around::{Failure, Latencies, Output, Percentiles, Progress, Report, rate};
use crate::{ASK, Answer, HELLO};

/// Has so many clients come, and go.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct Come {
    /// How many clients.
    #[arg(long, default_value_t = 800)]
    pub(crate) count: u64,
    /// Clients at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    at_once: u64,
    /// One round of so many does not close, but drops its Worker; 0 is none.
    #[arg(long, default_value_t = 5)]
    pub(crate) drop_every: u64,
    /// One round of so many is a process that is killed, and says nothing; 0 is none.
    #[arg(long, default_value_t = 0)]
    pub(crate) kill_every: u64,
    /// Seconds that one round may take; a probe finds those that were killed after 10.
    #[arg(long, default_value_t = 60)]
    patience_s: u64,
}

impl Default for Come {
    fn default() -> Self {
        Self {
            count: 800,
            at_once: 8,
            drop_every: 5,
            kill_every: 0,
            patience_s: 60,
        }
    }
}

/// How the clients of a round go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    Closed,
    Dropped,
    Killed,
}

/// Handshakes under way at a time. One address may have no more than half of the places that are left
/// ([`doorbell::connect::HandshakeLimits`]), six of 14. Another handshake waits for its turn, for a quarter of a second at most.
const DIALS_MAX: usize = 4;

/// Between two questions of the steward.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// The clients' findings.
#[derive(Debug, Serialize)]
pub(crate) struct Came {
    clients: u64,
    per_second: f64,
    /// From when the clients of a round went until the server had none of them any more.
    closed: Option<Percentiles>,
    dropped: Option<Percentiles>,
    killed: Option<Percentiles>,
    failures: Vec<String>,
}

impl Come {
    fn going(&self, round: u64) -> Going {
        let is_one_of = |every: u64| every > 0 && round % every == every - 1;
        if is_one_of(self.kill_every) {
            Going::Killed
        } else if is_one_of(self.drop_every) {
            Going::Dropped
        } else {
            Going::Closed
        }
    }

    /// If clients are to be killed, `output` says how such a process is begun.
    pub(crate) fn run<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        handle: &Handle,
        output: Option<&Output>,
    ) -> Result<Came, Failure> {
        let mut steward = Steward::connect(node, handle, self.deadline(node))?;
        let before = steward.ask(node, self.deadline(node))?.served;
        let mut gone = [Latencies::new()?, Latencies::new()?, Latencies::new()?];
        let (mut came, mut killed, mut round, mut progress) = (0, 0, 0, Progress::new());
        let began = Instant::now();
        let mut workers = workers(node)?;
        while came < self.count {
            let count = self.at_once.min(self.count - came);
            let going = self.going(round);
            let (since, is_of) = match (going, output) {
                (Going::Killed, Some(output)) => {
                    killed += count;
                    (held_and_killed(handle, count, output)?, &mut gone[2])
                }
                (Going::Dropped, _) => {
                    greet(node, handle, &mut workers, count, self.deadline(node))?;
                    let since = Instant::now();
                    workers = self::workers(node)?;
                    (since, &mut gone[1])
                }
                _ => {
                    let there = greet(node, handle, &mut workers, count, self.deadline(node))?;
                    let since = Instant::now();
                    close(node, &mut workers, &there, self.deadline(node))?;
                    (since, &mut gone[0])
                }
            };
            steward.until_alone(node, self.deadline(node))?;
            is_of.note(since.elapsed());
            (came, round) = (came + count, round + 1);
            progress.tell(Instant::now(), || format!("{came} of {}", self.count));
        }
        let took = began.elapsed();
        let served = steward.ask(node, self.deadline(node))?.served - before;
        let mut failures = Vec::new();
        // One that is killed may be so before the server saw what it said.
        if !(came - killed..=came).contains(&served) {
            failures.push(format!("of {came} clients, {served} were served"));
        }
        let Steward { mut workers, at, .. } = steward;
        close(node, &mut workers, &[at], self.deadline(node))?;
        let [closed, dropped, killed] = gone.map(|gone| gone.percentiles());
        Ok(Came {
            clients: came,
            per_second: rate(came, took),
            closed,
            dropped,
            killed,
            failures,
        })
    }

    fn deadline<P: Provider, N: Network>(&self, node: &Node<P, N>) -> Deadline {
        node.within(Duration::from_secs(self.patience_s))
    }
}

/// Few and small: what is looked at is the server's.
fn workers<P: Provider, N: Network>(node: &Node<P, N>) -> Result<Vec<Worker<P>>, Failure> {
    let mut config = WorkerConfig::default();
    (config.slots, config.slot_bytes) = (256, 64);
    Ok(node.workers(&config)?)
}

fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    (config.send_depth, config.receive_depth) = (8, 8);
    config
}

/// Connects so many clients, each of which says hello; none is refused, and the server's device has what they said.
fn greet<P: Provider, N: Network>(
    node: &Node<P, N>,
    handle: &Handle,
    workers: &mut [Worker<P>],
    count: u64,
    deadline: Deadline,
) -> Result<Vec<Connection>, Failure> {
    let (mut dials, mut begun) = (Vec::<Connecting<P, N>>::new(), 0);
    let mut there = Vec::new();
    loop {
        while dials.len() < DIALS_MAX && begun < count {
            dials.push(node.begin_connect(workers, handle, &config(), deadline)?);
            begun += 1;
        }
        let Some(dial) = dials.first() else { break };
        dial.wait(node)?;
        let mut left = Vec::new();
        for mut dial in dials {
            match dial.poll(node, workers) {
                Some(made) => there.push(made?),
                None => left.push(dial),
            }
        }
        dials = left;
    }
    for at in &there {
        let worker = workers.get_mut(at.worker).ok_or("no such Worker")?;
        worker.send(at.channel, &[HELLO])?;
    }
    for at in &there {
        let worker = workers.get_mut(at.worker).ok_or("no such Worker")?;
        while worker
            .channel(at.channel)
            .is_some_and(|channel| channel.in_flight() > 0)
        {
            if worker.wait(Wait::Busy, deadline, |_, _| {})? == Woken::Deadline {
                return Err("what a client said did not arrive in time".into());
            }
        }
    }
    Ok(there)
}

/// Closes channels, and polls until they are.
fn close<P: Provider, N: Network>(
    node: &Node<P, N>,
    workers: &mut [Worker<P>],
    there: &[Connection],
    deadline: Deadline,
) -> Result<(), Failure> {
    for at in there {
        let worker = workers.get_mut(at.worker).ok_or("no such Worker")?;
        worker.begin_close(at.channel, deadline)?;
    }
    for at in there {
        let worker = workers.get_mut(at.worker).ok_or("no such Worker")?;
        loop {
            worker.poll_tending(|_, event| drop(event))?;
            match worker.close_progress(at.channel) {
                CloseProgress::UnderWay if deadline.has_passed(node.network().now()) => {
                    return Err("a channel was not closed in time".into());
                }
                CloseProgress::UnderWay => thread::yield_now(),
                CloseProgress::Closed(outcome) => break outcome?,
                _ => return Err("no such channel".into()),
            }
        }
    }
    Ok(())
}

/// The one that asks the server how many clients it has.
struct Steward<P: Provider> {
    workers: Vec<Worker<P>>,
    at: Connection,
}

impl<P: Provider> Steward<P> {
    fn connect<N: Network>(node: &Node<P, N>, handle: &Handle, deadline: Deadline) -> Result<Self, Failure> {
        let mut workers = workers(node)?;
        let at = node.connect(&mut workers, handle, &config(), deadline)?;
        Ok(Self { workers, at })
    }

    fn ask<N: Network>(&mut self, node: &Node<P, N>, deadline: Deadline) -> Result<Answer, Failure> {
        let Self { workers, at } = self;
        let worker = workers.get_mut(at.worker).ok_or("no such Worker")?;
        worker.send(at.channel, &[ASK])?;
        let mut outcome = None;
        while outcome.is_none() {
            if deadline.has_passed(node.network().now()) {
                return Err("the server did not answer its steward in time".into());
            }
            let events = worker.poll(|_, event| match event {
                Event::Received { message, .. } => {
                    let answer = Answer::of(message.payload());
                    outcome = Some(answer.ok_or("the server's answer is none"));
                }
                Event::PeerClosed { .. } | Event::ChannelFailed { .. } => {
                    outcome = Some(Err("the server is gone"));
                }
                _ => {}
            })?;
            if events == 0 {
                thread::yield_now();
            }
        }
        Ok(outcome.ok_or("no answer")??)
    }

    /// Waits until no client is there.
    fn until_alone<N: Network>(&mut self, node: &Node<P, N>, deadline: Deadline) -> Result<(), Failure> {
        while self.ask(node, deadline)?.channels > 1 {
            thread::sleep(ASK_EVERY);
        }
        Ok(())
    }
}

/// Clients that are there until their process is killed.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct Hold {
    #[arg(long)]
    count: u64,
}

/// The line that is printed once they are there.
const THERE: &str = "there";

impl Hold {
    pub(crate) fn run<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        handle: &Handle,
    ) -> Result<(), Failure> {
        let mut workers = workers(node)?;
        greet(
            node,
            handle,
            &mut workers,
            self.count,
            node.within(Duration::from_secs(60)),
        )?;
        let mut out = std::io::stdout();
        writeln!(out, "{THERE}")?;
        out.flush()?;
        loop {
            thread::park();
        }
    }
}

/// Runs so many clients as a process, and kills it; says when.
fn held_and_killed(handle: &Handle, count: u64, output: &Output) -> Result<Instant, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["hold", &handle.to_string(), "--count", &count.to_string()]);
    match &output.key_file {
        Some(file) => command.arg("--key-file").arg(file),
        None => command.arg("--unauthenticated"),
    };
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    child.kill()?;
    let since = Instant::now();
    child.wait()?;
    if line.trim_end() == THERE {
        Ok(since)
    } else {
        Err("clients that were to be killed did not come".into())
    }
}

impl Display for Came {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} clients, {} a second", self.clients, self.per_second)?;
        for (how, gone) in [
            ("closed", &self.closed),
            ("dropped", &self.dropped),
            ("killed", &self.killed),
        ] {
            if let Some(gone) = gone {
                writeln!(f, "{how}, until the server had none of them: {gone}")?;
            }
        }
        Ok(())
    }
}

impl Report for Came {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}
