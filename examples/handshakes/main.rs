//! Peers that come and go by the hundred, among others that never mean to be peers. The program measures the time of a handshake, and
//! handshakes a second, while a flood of silence and nonsense is at the same port.
//!
//! ```text
//! host a$ cargo run --release --example handshakes -- serve --key-file keys --peers 400
//! host b$ cargo run --release --example handshakes -- connect --key-file keys doorbell:... --count 200
//! host c$ cargo run --release --example handshakes -- flood ADDRESS:PORT --from ADDRESS,ADDRESS,… --seconds 60
//! host b$ cargo run --release --example handshakes -- connect --key-file keys doorbell:... --count 200
//! ```
//!
//! `simulated` listens and connects in this process, over TCP of this host, with simulated devices: it needs no device. It measures a
//! handshake without the time of a device. With `--flood` it runs beside a flood from other addresses of the loopback. With
//! `--hellos-from 4` it runs beside one of Hellos from the peers' own address and three others.
//!
//! **The handshakes have threads of their own** ([`Listener::background`]). The thread of the Worker grants places and
//! accepts what is done; it could carry traffic meanwhile. Here it closes each connection as soon as it has it, so
//! that a run measures nothing but handshakes.
//!
//! **A flood cannot be kept away, but it can be kept small**: so many handshakes from one address, so many in all
//! ([`HandshakeLimits`](doorbell::connect::HandshakeLimits)), each with its deadline. A peer beyond them is rejected at once, with
//! the time to come again. So a peer that is refused tries again after that time.

#[path = "../around/mod.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "each example uses its part")]
mod around;
mod flood;

use core::fmt::{self, Display};
use core::net::SocketAddr;
use core::time::Duration;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use around::{All, Failure, Latencies, Output, Percentiles, Progress, Report, rate};
use clap::{Args, Parser, Subcommand};
use doorbell::connect::{Acceptances, Cause, Connecting, HandshakeLimits};
use doorbell::provider::{IpPrefix, Provider};
use doorbell::trust::{KEY_BYTES_MIN, Key};
use doorbell::wire::RejectReason;
use doorbell::{
    ChannelConfig, ConnectError, Handle, KeyRing, Listener, Node, Trust, Worker, WorkerConfig, within,
};
use doorbell_sim::{Fabric, Host, PortConfig};
use flood::{Flood, Flooded};
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
    Flood(Flood),
    Simulated(Simulated),
}

/// Listens, accepts so many peers and closes each.
#[derive(Args, Clone, Debug)]
struct Serve {
    /// How many peers to accept before it ends.
    #[arg(long, default_value_t = 400)]
    peers: u64,
    /// The address to listen at; port 0 is any.
    #[arg(long, default_value = "[::]:0")]
    listen: SocketAddr,
    /// Seconds it may take.
    #[arg(long, default_value_t = 300)]
    deadline_s: u64,
}

/// Connects so many times, and says how long each took.
#[derive(Args, Clone, Debug)]
struct Connect {
    /// Handle that the listener printed.
    handle: Handle,
    #[command(flatten)]
    manner: Manner,
}

/// How it connects.
#[derive(Args, Clone, Debug)]
struct Manner {
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

/// Both in this process, over its own TCP, on devices that are simulated.
#[derive(Args, Clone, Debug)]
struct Simulated {
    #[command(flatten)]
    manner: Manner,
    /// Beside a flood.
    #[arg(long)]
    flood: bool,
    /// Beside a flood of Hellos by the id of the peers' key, from so many addresses; one is the peers' own.
    #[arg(long, conflicts_with = "flood")]
    hellos_from: Option<u8>,
}

/// The id of the key that simulated peers have.
const KEY: u32 = 7;

/// Few and small: connections are what is measured.
fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 15;
    config.receive_depth = 8;
    config
}

/// One on each device that is usable.
fn workers<P: Provider>(node: &Node<P>) -> Result<Vec<Worker<P>>, Failure> {
    let mut config = WorkerConfig::default();
    config.slots = 2048;
    config.slot_bytes = 64;
    Ok(node.workers(&config)?)
}

/// Report of the listening side.
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
    fn run<P: Provider>(
        &self,
        node: &Arc<Node<P>>,
        announce: impl FnOnce(&Handle) -> Result<(), Failure>,
    ) -> Result<Served, Failure> {
        let mut workers = workers(node)?;
        let listener = Listener::bind(node, &workers, self.listen, &config())?;
        let (background, mut acceptances) =
            listener.background(node, &workers, &HandshakeLimits::default())?;
        announce(background.handle())?;
        let (mut accepted, mut failures) = (0, Vec::new());
        let mut progress = Progress::new();
        let deadline = Instant::now() + Duration::from_secs(self.deadline_s);
        // With a Worker for each thread, each would have its own `Acceptances`; here one thread has all.
        while accepted < self.peers || workers.iter().any(|worker| worker.channels().count() > 0) {
            for (worker, acceptances) in workers.iter_mut().zip(&mut acceptances) {
                while let Some(channel) = acceptances.poll_accept(worker)? {
                    accepted += 1;
                    let at_once = worker.within(Duration::ZERO);
                    worker.begin_close(channel, at_once)?;
                }
                worker.poll_tending(|_, event| drop(event))?;
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
fn nap<P: Provider>(acceptances: &[Acceptances<P>]) -> Result<(), Failure> {
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

/// Report of the connecting side.
#[derive(Debug, Serialize)]
struct Connected {
    handshakes: u64,
    per_second: f64,
    latency: Option<Percentiles>,
    /// How often a peer was rejected with a time to come again, and came.
    told_to_wait: u64,
    failures: Vec<String>,
}

/// A handshake, and since when it is tried.
struct Try<P: Provider> {
    began: Instant,
    /// None while it waits until it may come again.
    connecting: Option<Connecting<P>>,
    again_at: Instant,
}

impl Manner {
    fn run<P: Provider>(&self, node: &Node<P>, handle: &Handle) -> Result<Connected, Failure> {
        let mut workers = workers(node)?;
        let mut latencies = Latencies::new()?;
        let (mut tries, mut begun, mut done, mut told_to_wait) = (Vec::<Try<P>>::new(), 0, 0, 0);
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
                    let by = node.within(patience.saturating_sub(one.began.elapsed()));
                    one.connecting = Some(node.begin_connect(&workers, handle, &config(), by)?);
                }
                let outcome = one
                    .connecting
                    .as_mut()
                    .and_then(|one| one.poll(node, &mut workers));
                match outcome {
                    None => left.push(one),
                    Some(Ok(peer)) => {
                        moved = true;
                        done += 1;
                        latencies.note(one.began.elapsed());
                        let worker = workers.get_mut(peer.worker).ok_or("no such Worker")?;
                        let at_once = worker.within(Duration::ZERO);
                        worker.begin_close(peer.channel, at_once)?;
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
                worker.poll_tending(|_, event| drop(event))?;
            }
            if !moved {
                pause(node, &tries)?;
            }
            progress.tell(Instant::now(), || format!("{done} of {}", self.count));
        }
        let took = start.elapsed();
        for worker in &mut workers {
            while worker.channels().count() > 0 {
                worker.poll_tending(|_, event| drop(event))?;
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
fn pause<P: Provider>(node: &Node<P>, tries: &[Try<P>]) -> Result<(), Failure> {
    match tries {
        [one] => match &one.connecting {
            Some(connecting) => connecting.wait(node)?,
            None => thread::sleep(one.again_at.saturating_duration_since(Instant::now())),
        },
        _ => thread::sleep(Duration::from_micros(200)),
    }
    Ok(())
}

/// How long to wait before the next try, if the listener was busy, or gave the time of this one to others.
fn retry_after(error: &ConnectError) -> Option<Duration> {
    let ConnectError::Handshake(error) = error else {
        return None;
    };
    match error.cause {
        Cause::RejectedByPeer(reject) if reject.reason == RejectReason::BUSY && reject.detail > 0 => {
            Some(Duration::from_millis(reject.detail.into()))
        }
        Cause::RejectedByPeer(reject) if reject.reason == RejectReason::TIMED_OUT => Some(Duration::ZERO),
        _ => None,
    }
}

/// Reports of all roles in this process.
#[derive(Debug, Serialize)]
struct Beside {
    #[serde(flatten)]
    peers: All<Served, Connected>,
    flood: Option<Flooded>,
}

impl Simulated {
    fn run(&self) -> Result<Beside, Failure> {
        eprintln!("on simulated devices, over this host's TCP: no device takes part");
        let fabric = Fabric::new();
        // A flood does not have it.
        let mut secret = [0; KEY_BYTES_MIN];
        getrandom::fill(&mut secret)?;
        let node = |name: &str, number: u8| -> Result<_, Failure> {
            let prefix = IpPrefix::new([127, 0, 0, number].into(), 8).map_err(|_| "no such subnet")?;
            let host: Host = fabric.host(name, vec![PortConfig::new("sim0", &[prefix])])?;
            let trust = match self.hellos_from {
                Some(_) => Trust::keys(KeyRing::new(Key::new(KEY, &secret)?)),
                None => Trust::unauthenticated_on_purpose(),
            };
            Ok(Node::with_provider(host, trust)?)
        };
        let (listening, connecting) = (Arc::new(node("near", 1)?), node("far", 2)?);
        let patience_s = (self.manner.patience_ms / 1000).saturating_add(60);
        let serve = Serve {
            peers: self.manner.count,
            listen: "[::]:0".parse()?,
            deadline_s: patience_s,
        };
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let serving = scope.spawn(move || serve.run(&listening, |handle| Ok(tell.send(*handle)?)));
            // If there is no handle, the listening thread reports why.
            let handle = told.recv();
            let (full, is_full) = mpsc::channel();
            let floods = self.flood || self.hellos_from.is_some();
            let hellos_from = self.hellos_from;
            let flooding = handle.ok().filter(|_| floods).map(|handle| {
                scope.spawn(move || {
                    let to = ([127, 0, 0, 1], handle.port().get()).into();
                    let flood = match hellos_from {
                        None => {
                            let from = (11..=16).map(|number| [127, 0, 0, number].into()).collect();
                            Flood::new(to, from, patience_s)
                        }
                        // The first is where peers come from on a loopback.
                        Some(count) => {
                            let others = (11..).map(|number| [127, 0, 0, number].into());
                            let from = core::iter::once([127, 0, 0, 1].into()).chain(others);
                            Flood::of_hellos(to, from.take(count.into()).collect(), patience_s, KEY)
                        }
                    };
                    flood.run(move || {
                        let _ = full.send(());
                    })
                })
            });
            if flooding.is_some() {
                // Or it has ended, and says why.
                let _ = is_full.recv();
            }
            let connected = handle.map(|handle| self.manner.run(&connecting, &handle));
            let listened = serving.join().map_err(|_| "who listens panicked")??;
            let flooded = flooding.map(|flooding| flooding.join().map_err(|_| "the flood panicked"));
            Ok(Beside {
                peers: (listened, vec![connected??]).into(),
                flood: flooded.transpose()?.transpose()?,
            })
        })
    }
}

impl Report for Beside {
    fn failures(&self) -> &[String] {
        self.peers.failures()
    }
}

impl Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peers.fmt(f)?;
        self.flood.iter().try_for_each(|flood| flood.fmt(f))
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
        Role::Serve(serve) => {
            let run = |node| serve.run(&Arc::new(node), |handle| output.announce(handle));
            output.conclude(PROGRAM, output.node().and_then(run))
        }
        Role::Connect(connect) => {
            let run = |node| connect.manner.run(&node, &connect.handle);
            output.conclude(PROGRAM, output.node().and_then(run))
        }
        Role::Flood(flood) => {
            let flooded = flood.run(|| eprintln!("all places are taken"));
            output.conclude(PROGRAM, flooded)
        }
        Role::Simulated(simulated) => output.conclude(PROGRAM, simulated.run()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{Arguments, Beside, Manner, Simulated};

    /// Twenty handshakes, on devices that are simulated.
    fn twenty(at_once: usize, flood: bool, hellos_from: Option<u8>) -> Beside {
        let manner = Manner {
            count: 20,
            at_once,
            patience_ms: 30_000,
        };
        let simulated = Simulated {
            manner,
            flood,
            hellos_from,
        };
        let beside = simulated.run().unwrap();
        let both = &beside.peers;
        assert_eq!(both.failures, [""; 0]);
        assert_eq!((both.listener.accepted, both.connected[0].handshakes), (20, 20));
        beside
    }

    #[test]
    fn each_who_connects_is_accepted_over_simulated_devices() {
        twenty(1, false, None);
        twenty(4, false, None);
    }

    #[test]
    fn beside_a_flood_of_hellos_each_is_accepted_too() {
        for addresses in [1, 4, 16] {
            let beside = twenty(2, false, Some(addresses));
            let flooded = beside.flood.unwrap();
            assert!(flooded.made_room > 0 && flooded.listener_gone, "{flooded:?}");
        }
    }

    #[test]
    fn beside_a_flood_that_takes_all_places_each_is_accepted_too() {
        let beside = twenty(4, true, None);
        assert_eq!(beside.peers.connected[0].told_to_wait, 0);
        let flooded = beside.flood.unwrap();
        assert!(
            flooded.malformed > 0
                && flooded.out_of_turn > 0
                && flooded.made_room > 0
                && flooded.listener_gone,
            "{flooded:?}"
        );
    }

    #[test]
    fn the_commands_of_scenarios_are_understood() {
        let (faults, commands) =
            crate::around::scenarios::faults("{examples}/handshakes", &Arguments::command());
        assert!(faults.is_empty() && commands > 0, "{faults:#?}");
    }
}
