//! The server: it accepts, polls and counts, and looks after no client.

use core::fmt::{self, Display};
use core::net::SocketAddr;
use core::time::Duration;
use std::fs;
use std::time::Instant;

use clap::Args;
use doorbell::provider::{Network, Provider};
use doorbell::{ChannelConfig, Event, Handle, Listener, Node, Worker, WorkerConfig};
use serde::Serialize;

use crate::around::{Failure, Progress, Report};
use crate::{ASK, Answer, HELLO};

/// So long it sleeps where nothing comes; it learns of a peer that connects at once.
const NAP: Duration = Duration::from_micros(500);

/// The longest that the reaper takes to destroy something on another thread.
const PATIENCE: Duration = Duration::from_secs(30);

/// Clients before resident memory is measured first: pages that are touched only once were touched by then.
const FIRST_CLIENTS: u64 = 80;

/// Takes clients until its steward goes, with default settings.
#[derive(Args, Clone, Debug)]
pub(crate) struct Serve {
    /// The address to listen at; port 0 is any.
    #[arg(long, default_value = "[::]:0")]
    listen: SocketAddr,
}

impl Default for Serve {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0; 8], 0)),
        }
    }
}

/// The counts that are to be the same before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kept {
    /// Slots that can be leased.
    slots: usize,
    /// Memory that devices have, in KiB, of the whole process.
    registered_kib: u64,
    descriptors: usize,
    /// Queue pairs that the device would not destroy.
    not_destroyed: u32,
}

/// The outcomes of all clients.
#[derive(Debug, Serialize)]
pub(crate) struct Served {
    /// Clients that sent a message.
    pub(crate) served: u64,
    /// Channels that were closed by their peer, the steward's among them.
    pub(crate) closed: u64,
    /// Channels that failed: of clients that were killed.
    pub(crate) lost: u64,
    refused: u64,
    before: Kept,
    after: Kept,
    /// Resident memory of the process: behind the first clients, and in the end.
    resident_kib: [u64; 2],
    resident_grown_kib: u64,
    failures: Vec<String>,
}

impl Serve {
    pub(crate) fn run<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        announce: &dyn Fn(&Handle) -> Result<(), Failure>,
    ) -> Result<Served, Failure> {
        let mut workers = node.workers(&WorkerConfig::default())?;
        let mut config = ChannelConfig::default();
        // Its answers go inline. A block of cells would stay for later clients, and not be what was there before.
        config.cell_bytes = 0;
        let mut listener = Listener::bind(node, &workers, self.listen, &config)?;
        let before = kept(node, &mut workers)?;
        announce(listener.handle())?;

        let (mut served, mut closed, mut lost, mut resident_kib) = (0_u64, 0, 0, [0; 2]);
        let (mut has_steward, mut failures, mut progress) = (false, Vec::new(), Progress::new());
        while !has_steward || workers.iter().any(|worker| worker.channels().count() > 0) {
            let mut events = 0;
            loop {
                match listener.poll_accept(node, &mut workers) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // One peer's handshake, and nothing that ends a server.
                    Err(error) => failures.push(error.to_string()),
                }
            }
            for worker in &mut workers {
                let mut asked = None;
                events += worker.poll_tending(|turn, event| match event {
                    Event::Received { message, .. } => match message.payload().first() {
                        Some(&HELLO) => served += 1,
                        Some(&ASK) => asked = Some(turn.channel.id()),
                        _ => {}
                    },
                    Event::PeerClosed { .. } => closed += 1,
                    Event::ChannelFailed { .. } => lost += 1,
                    _ => {}
                })?;
                if let Some(steward) = asked {
                    has_steward = true;
                    let channels = u32::try_from(worker.channels().count())?;
                    // It asks for one answer at a time, so there is room for it; where it is gone, it needs none.
                    let _ = worker.send(steward, &Answer { channels, served }.to_bytes());
                }
            }
            if served >= FIRST_CLIENTS && resident_kib == [0; 2] {
                resident_kib[0] = status_kib("VmRSS")?;
            }
            if events == 0 {
                listener.wait(node, node.within(NAP))?;
            }
            progress.tell(Instant::now(), || {
                format!("{served} served, {closed} closed, {lost} lost")
            });
        }

        let after = kept(node, &mut workers)?;
        resident_kib[1] = status_kib("VmRSS")?;
        if after != before {
            failures.push(format!(
                "what was {before:?} is {after:?} behind {served} clients"
            ));
        }
        Ok(Served {
            served,
            closed,
            lost,
            refused: listener.counts().refused,
            before,
            after,
            resident_grown_kib: resident_kib[1].saturating_sub(resident_kib[0]),
            resident_kib,
            failures,
        })
    }
}

/// The counts while no client is there, once all that is on its way out is gone.
fn kept<P: Provider, N: Network>(node: &Node<P, N>, workers: &mut [Worker<P>]) -> Result<Kept, Failure> {
    if !node.settle(node.within(PATIENCE)) {
        return Err("what the clients left was not destroyed in time".into());
    }
    let mut slots = 0;
    for worker in &mut *workers {
        slots += core::iter::from_fn(|| worker.lease()).collect::<Vec<_>>().len();
    }
    Ok(Kept {
        slots,
        registered_kib: status_kib("VmPin")?,
        descriptors: fs::read_dir("/proc/self/fd")?.count(),
        not_destroyed: workers.iter().map(Worker::not_destroyed).sum(),
    })
}

/// A line of this process's status (proc_pid_status(5)).
fn status_kib(name: &str) -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let value = lines
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value)
        .next();
    let digits = value.and_then(|value| value.trim().strip_suffix(" kB"));
    Ok(digits
        .ok_or_else(|| format!("no {name} in /proc/self/status"))?
        .parse()?)
}

impl Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = self.resident_kib;
        writeln!(
            f,
            "{} clients served, {} closed, {} lost, {} refused",
            self.served, self.closed, self.lost, self.refused
        )?;
        writeln!(
            f,
            "{} slots and {} KiB registered before, {} and {} KiB after; {first} KiB resident at first, {last} KiB in the end",
            self.before.slots, self.before.registered_kib, self.after.slots, self.after.registered_kib
        )
    }
}

impl Report for Served {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}
