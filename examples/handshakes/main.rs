//! Peers that come and go by the hundred, among others that never mean to be peers: how long a handshake takes, and
//! how many there are in a second, while a flood of silence and nonsense is at the same port.
//!
//! ```text
//! host a$ cargo run --release --example handshakes -- serve --peers 400
//! host b$ cargo run --release --example handshakes -- connect doorbell:... --count 200
//! host c$ cargo run --release --example handshakes -- flood ADDRESS:PORT --silent 300 --seconds 60
//! host b$ cargo run --release --example handshakes -- connect doorbell:... --count 200
//! ```
//!
//! **The handshakes have threads of their own** ([`Listener::background`]). The thread of the Worker grants places and
//! accepts what is done; it could carry traffic meanwhile. Here it closes each connection as soon as it has it, so
//! that a run measures nothing but handshakes.
//!
//! **A flood cannot be kept away, but it can be kept small**: so many handshakes from one address, so many in all
//! ([`HandshakeLimits`](doorbell::HandshakeLimits)), each with its deadline; whoever is beyond them is told so at
//! once, and when to come again. So a peer that is refused tries again, after the time it was told.

#[path = "../around/mod.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "each example uses its part")]
mod around;
mod flood;

use core::fmt::{self, Display};
use core::net::SocketAddr;
use core::time::Duration;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use around::{Failure, Latencies, Output, Percentiles, Progress, Report, rate};
use clap::{Args, Parser, Subcommand};
use doorbell::vocabulary::handshake::Cause;
use doorbell::vocabulary::wire::RejectReason;
use doorbell::{
    Acceptances, ChannelConfig, ConnectError, Connecting, Handle, HandshakeLimits, Listener, Node, Trust,
    Worker, WorkerConfig, within,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

const PROGRAM: &str = "handshakes";

/// Connects, over and over, and measures that; also beside a flood.
#[derive(Parser)]
#[command(name = PROGRAM, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum Role {
    Serve(Serve),
    Connect(Connect),
    Flood(flood::Flood),
}

/// Listens, accepts so many peers and closes each.
#[derive(Args, Clone, Debug)]
struct Serve {
    /// How many peers to accept before it ends.
    #[arg(long, default_value_t = 400)]
    peers: u64,
    /// Where to listen; port 0 is any.
    #[arg(long, default_value = "[::]:0")]
    listen: SocketAddr,
    /// Seconds it may take.
    #[arg(long, default_value_t = 300)]
    deadline_s: u64,
}

/// Connects so many times, and says how long each took.
#[derive(Args, Clone, Debug)]
struct Connect {
    /// What the listener printed.
    handle: Handle,
    /// How often.
    #[arg(long, default_value_t = 200)]
    count: u64,
    /// Handshakes under way at a time.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Milliseconds that one may take, and all tries of it together.
    #[arg(long, default_value_t = 10_000)]
    patience_ms: u64,
}

/// Few and small: connections are what is measured.
fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 15;
    config.receive_depth = 8;
    config
}

/// One on each device that is usable.
fn workers(node: &Node) -> Result<Vec<Worker>, Failure> {
    let mut config = WorkerConfig::default();
    config.slots = 2048;
    config.slot_bytes = 64;
    Ok(node.workers(&config)?)
}

/// What the side that listens saw.
#[derive(Debug, Serialize)]
struct Served {
    accepted: u64,
    begun: u64,
    connected: u64,
    failed: u64,
    refused: u64,
    port_failures: u64,
    failures: Vec<String>,
}

impl Serve {
    fn run(&self, output: &Output) -> Result<Served, Failure> {
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose())?);
        let mut workers = workers(&node)?;
        let listener = Listener::bind(&node, &workers, self.listen, &config())?;
        let (background, mut acceptances) =
            listener.background(&node, &workers, &HandshakeLimits::default())?;
        output.announce(background.handle())?;
        let (mut accepted, mut failures) = (0, Vec::new());
        let mut progress = Progress::new();
        let deadline = Instant::now() + Duration::from_secs(self.deadline_s);
        // With a Worker for each thread, each would have its own `Acceptances`; here one thread has all.
        while accepted < self.peers || workers.iter().any(|worker| worker.channels().count() > 0) {
            for (worker, acceptances) in workers.iter_mut().zip(&mut acceptances) {
                while let Some(channel) = acceptances.poll_accept(worker)? {
                    accepted += 1;
                    worker.begin_close(channel, within(Duration::ZERO))?;
                }
                worker.poll(|_, event| drop(event))?;
            }
            nap(&acceptances)?;
            progress.tell(Instant::now(), || format!("{accepted} accepted"));
            if Instant::now() >= deadline {
                failures.push(format!("{accepted} of {} peers came in time", self.peers));
                break;
            }
        }
        let counts = background.counts();
        if !background.stop(within(Duration::from_secs(10))) {
            failures.push("the handshakes did not end in time".into());
        }
        Ok(Served {
            accepted,
            begun: counts.begun,
            connected: counts.connected,
            failed: counts.failed,
            refused: counts.refused,
            port_failures: counts.port_failures,
            failures,
        })
    }
}

/// Sleeps until there is something to do for this thread; not for long, since closings go on by polling.
fn nap(acceptances: &[Acceptances]) -> Result<(), Failure> {
    let descriptors: Vec<_> = acceptances.iter().filter_map(Acceptances::descriptor).collect();
    let watched = descriptors.iter().map(|one| PollFd::new(one, PollFlags::IN));
    let span = Timespec {
        tv_sec: 0,
        tv_nsec: 2_000_000,
    };
    match poll(&mut watched.collect::<Vec<_>>(), Some(&span)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What the side that connects measured.
#[derive(Debug, Serialize)]
struct Connected {
    handshakes: u64,
    per_second: f64,
    latency: Option<Percentiles>,
    /// How often a peer was told to come again later, and did.
    told_to_wait: u64,
    failures: Vec<String>,
}

/// A handshake, and since when it is tried.
struct Try {
    began: Instant,
    /// None while it waits until it may come again.
    connecting: Option<Connecting>,
    again_at: Instant,
}

impl Connect {
    fn run(&self) -> Result<Connected, Failure> {
        let node = Node::open(Trust::unauthenticated_on_purpose())?;
        let mut workers = workers(&node)?;
        let mut latencies = Latencies::new()?;
        let (mut tries, mut begun, mut done, mut told_to_wait) = (Vec::<Try>::new(), 0, 0, 0);
        let (mut failures, mut progress) = (Vec::new(), Progress::new());
        let patience = Duration::from_millis(self.patience_ms);
        let start = Instant::now();
        while done < self.count && failures.is_empty() {
            while tries.len() < self.at_once.max(1) && begun < self.count {
                let now = Instant::now();
                tries.push(Try {
                    began: now,
                    connecting: None,
                    again_at: now,
                });
                begun += 1;
            }
            let mut moved = false;
            let mut left = Vec::with_capacity(tries.len());
            for mut one in tries.drain(..) {
                let now = Instant::now();
                if one.connecting.is_none() && now >= one.again_at {
                    let by = within(patience.saturating_sub(one.began.elapsed()));
                    one.connecting = Some(node.begin_connect(&workers, &self.handle, &config(), by)?);
                }
                let outcome = one
                    .connecting
                    .as_mut()
                    .and_then(|one| one.poll(&node, &mut workers));
                match outcome {
                    None => left.push(one),
                    Some(Ok(peer)) => {
                        moved = true;
                        done += 1;
                        latencies.note(one.began.elapsed());
                        let worker = workers.get_mut(peer.worker).ok_or("no such Worker")?;
                        worker.begin_close(peer.channel, within(Duration::ZERO))?;
                    }
                    Some(Err(error)) => match retry_after(&error) {
                        Some(span) if one.began.elapsed() + span < patience => {
                            told_to_wait += 1;
                            one.connecting = None;
                            one.again_at = Instant::now() + span;
                            left.push(one);
                        }
                        _ => failures.push(error.to_string()),
                    },
                }
            }
            tries = left;
            for worker in &mut workers {
                worker.poll(|_, event| drop(event))?;
            }
            if !moved {
                pause(&node, &tries)?;
            }
            progress.tell(Instant::now(), || format!("{done} of {}", self.count));
        }
        let took = start.elapsed();
        for worker in &mut workers {
            while worker.channels().count() > 0 {
                worker.poll(|_, event| drop(event))?;
            }
        }
        Ok(Connected {
            handshakes: done,
            per_second: rate(done, took),
            latency: latencies.percentiles(),
            told_to_wait,
            failures,
        })
    }
}

/// Waits a little: for the one there is, or for whichever.
fn pause(node: &Node, tries: &[Try]) -> Result<(), Failure> {
    match tries {
        [one] => match &one.connecting {
            Some(connecting) => connecting.wait(node)?,
            None => thread::sleep(one.again_at.saturating_duration_since(Instant::now())),
        },
        _ => thread::sleep(Duration::from_micros(200)),
    }
    Ok(())
}

/// How long to wait, where the listener is busy and said so.
fn retry_after(error: &ConnectError) -> Option<Duration> {
    let ConnectError::Handshake(error) = error else {
        return None;
    };
    match error.cause {
        Cause::RejectedByPeer(reject) if reject.reason == RejectReason::BUSY && reject.detail > 0 => {
            Some(Duration::from_millis(reject.detail.into()))
        }
        _ => None,
    }
}

impl Report for Served {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} peers accepted; {} handshakes begun, {} done, {} failed, {} peers refused",
            self.accepted, self.begun, self.connected, self.failed, self.refused
        )
    }
}

impl Report for Connected {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} handshakes, {} a second", self.handshakes, self.per_second)?;
        if let Some(latency) = &self.latency {
            write!(f, "; {latency}")?;
        }
        writeln!(f, "; {} times told to wait", self.told_to_wait)
    }
}

fn main() -> ExitCode {
    let Arguments { role, output } = Arguments::parse();
    match role {
        Role::Serve(serve) => output.conclude(PROGRAM, serve.run(&output)),
        Role::Connect(connect) => output.conclude(PROGRAM, connect.run()),
        Role::Flood(flood) => output.conclude(PROGRAM, flood.run()),
    }
}
