//! `doorbell link`: sends numbered messages both ways over a link while its rails are made to fail, and accounts for each message.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use doorbell::connect::Tcp;
use doorbell::link::LinkConfig;
use doorbell::provider::{Network, Provider};
use doorbell::{Handle, RailFilter, RemoteAccess, WorkerConfig};
use doorbell_operation::{Labels, LogLevel};

use crate::address::anywhere;
use crate::board::Board;
use crate::handle_file;
use crate::opened;
use crate::peers::Peers;
use crate::report::{Failure, print_outcome};
use crate::value::{parse_bytes, parse_seconds};

mod drill;
mod end;
mod reach;
mod report;
mod simulated;
mod stream;
#[cfg(test)]
mod tests;
mod watch;

use drill::{ObservedState, Order};
use end::{Amount, End, Part};
use reach::Op;
pub(crate) use report::bytes_per_second;
use report::{Criteria, Ending, Report};
use stream::PeerSettings;
pub(crate) use watch::span;

/// Interval at which a missing handle file is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Sleep time of an idle poll loop: hosts of a lab share processors with the kernel's work for Soft-RoCE.
const NAP: Duration = Duration::from_micros(50);

/// The remote access that the peer gets to windows granted to it.
const REMOTE: RemoteAccess = RemoteAccess {
    atomic: false,
    ..RemoteAccess::ALL
};

/// Stream numbered messages both ways over a link, and account for each of them
///
/// Without HANDLE this side listens and prints its handle. With HANDLE it connects, over every pair of rails that reach each other,
/// and decides what both sides send. Messages are numbered, and every byte is checked. Rails may fail and come back during the run,
/// by themselves or by --at: no message may be lost, arrive twice or hang. The report has failovers, recoveries, stalls, and the
/// time from each command until a rail was declared dead and until it was used again.
///
/// With --op write or --op read, this side does WRITEs or READs on windows of the other side instead. The other side has one
/// window on each of its devices. READs are checked here as they return. WRITEs are checked there when all are done.
///
/// Exit code: 0 if no message was lost, doubled, wrong or left without an outcome, and the link ended as --expect-end says;
/// else 1.
#[derive(clap::Args, Clone, Debug)]
#[command(
    group(clap::ArgGroup::new("drives").args(["peer", "simulated"])),
    after_help = "Examples:\n  doorbell link --key-file keys --handle-file /shared/handle\n  \
    doorbell link @/shared/handle --key-file keys --seconds 10 --size 64K\n  \
    doorbell link @/shared/handle --key-file keys --at '2=ip link set dev eth1 down' --at '4=ip link set dev eth1 up'\n  \
    doorbell link --simulated --op read\n  \
    doorbell link @/shared/handle --key-file keys --op write --size 2K --json"
)]
pub(crate) struct Arguments {
    /// The handle that the other side printed, or @FILE to wait for a handle in FILE
    #[arg(value_name = "HANDLE")]
    peer: Option<String>,

    /// Run both ends in this process, on two hosts of a simulated fabric with two rails: no device is needed, every byte is
    /// checked, and the times are those of the fabric
    #[arg(long, conflicts_with_all = ["orders", "metrics", "rails", "key_file", "unauthenticated"])]
    simulated: bool,

    /// The address to listen at [default: any port of every address]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "drives")]
    listen: Option<SocketAddr>,

    /// Also write the handle to FILE
    #[arg(long, value_name = "FILE", conflicts_with = "drives")]
    handle_file: Option<PathBuf>,

    /// The operation to run
    #[arg(long, value_enum, default_value_t = Op::Send, requires = "drives")]
    op: Op,

    /// Bytes of each message, WRITE or READ; K and M stand for 1024 and 1024^2. A WRITE or READ has at most 4072 bytes, a fragment of
    /// a message [default: 64K for messages, 4072 for WRITEs and READs]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, requires = "drives")]
    size: Option<u32>,

    /// The number of messages to send, or of WRITEs or READs to do; the link stays up until all --at commands are done
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        requires = "drives",
        conflicts_with = "seconds"
    )]
    count: Option<u64>,

    /// How long to send; sending goes on until all --at commands are done [default: 5, and 0.2 with --simulated]
    #[arg(short = 'D', long, visible_alias = "duration", value_name = "SECONDS", value_parser = parse_seconds, requires = "drives")]
    seconds: Option<Duration>,

    /// The maximum number of messages per second in each direction; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0, requires = "drives")]
    rate: u32,

    /// Send in one direction only: the other side sends only its last message
    #[arg(long, requires = "drives")]
    one_way: bool,

    /// Run COMMAND with `sh -e`, SECONDS after the link is up. RAIL is the number of the rail that the command makes fail. With up=N
    /// the command waits until N rails are up, and with came=N until N messages came, --timeout at most. May be given many times
    #[arg(long = "at", value_name = "SECONDS[/RAIL][,up=N][,came=N]=COMMAND", value_parser = Order::parse)]
    orders: Vec<Order>,

    /// Fail unless the link ends this way
    #[arg(long, value_enum, default_value_t = Ending::Closed)]
    expect_end: Ending,

    /// Declare a rail dead after SECONDS without an answer; slow machines need more than the default. A new connection may then
    /// take four times SECONDS [default: 0.12]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    dead_after: Option<Duration>,

    /// Fail if failure detection takes longer than SECONDS: the median time from a dead rail's last sign of life to the moment it
    /// was declared dead. If any --at command names a RAIL, only the deaths of named rails count
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    detect_within: Option<Duration>,

    /// Fail unless at least N of the --at commands that name a RAIL make it die. The rail may not return before the next command
    /// [default with --detect-within: all of them]
    #[arg(long, value_name = "N")]
    detect_at_least: Option<usize>,

    /// Fail if the link makes no progress for longer than SECONDS: no message arrives and none is done. On a lost link the time
    /// up to its end counts, too
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    outage_within: Option<Duration>,

    /// End the link after SECONDS without any rail [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    recover_within: Option<Duration>,

    /// The longest wait for the other side, and the longest time without progress
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "30")]
    timeout: Duration,

    /// The rails to use, as in `mlx5_*,^mlx5_3,netdev=ens*,10.1.0.0/16`: see docs/rails.md
    #[arg(long, value_name = "RULES")]
    rails: Option<RailFilter>,

    /// Requests in flight, and posted receives, of each rail
    #[arg(short = 't', long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=512))]
    depth: u32,

    /// Serve metrics at http://ADDR:PORT/metrics, in the Prometheus format; `doorbell status` reads them
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    peers: Peers,
}

/// Parses a size that a link accepts, and that has room for the header of a message.
fn parse_size(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    let least = u32::try_from(stream::HEADER_BYTES).unwrap_or(u32::MAX);
    if !(least..=1 << 20).contains(&bytes) {
        return Err(format!("not between {least} and 1M"));
    }
    Ok(bytes)
}

impl Arguments {
    fn config(&self) -> LinkConfig {
        let mut config = LinkConfig::default();
        config.channel.send_depth = self.depth;
        config.channel.receive_depth = self.depth;
        config.channel.remote = REMOTE;
        set_times(&mut config, self.dead_after, self.recover_within);
        config
    }

    fn part(&self, config: &LinkConfig) -> Result<Part, Failure> {
        if self.peer.is_none() && !self.simulated {
            return Ok(Part::Listener);
        }
        let time = self.seconds.unwrap_or(if self.simulated {
            Duration::from_millis(200)
        } else {
            Duration::from_secs(5)
        });
        let is_one_sided = self.op.is_one_sided();
        let most = config.session.fragment_bytes;
        let size = self.size.unwrap_or(if is_one_sided { most } else { 64 << 10 });
        if is_one_sided && size > most {
            return Err(format!("--size {size}: a WRITE or READ of a link has at most {most} bytes").into());
        }
        Ok(Part::Client {
            amount: self.count.map_or(Amount::For(time), Amount::Messages),
            wish: PeerSettings {
                answers: !self.one_way && !is_one_sided,
                message_bytes: size,
                per_second: self.rate,
                op: self.op,
            },
        })
    }
}

/// Sets these times of a link, and the times that depend on them.
pub(crate) fn set_times(
    config: &mut LinkConfig,
    dead_after: Option<Duration>,
    recover_within: Option<Duration>,
) {
    let session = &mut config.session;
    if let Some(dead_after) = dead_after {
        session.dead_after = dead_after;
        session.suspect_after = dead_after.checked_div(3).unwrap_or(dead_after);
        session.attach_within = session.attach_within.max(dead_after.saturating_mul(4));
        config.channel.timeout = transport_timeout(dead_after, config.channel.retry_count);
    }
    session.recover_within = recover_within.unwrap_or(session.recover_within);
}

/// The largest timeout, 4.096 us times a power of two, with which a device gives up before the session does.
fn transport_timeout(dead_after: Duration, retry_count: u8) -> u8 {
    let attempts = u64::from(retry_count).saturating_add(1);
    let all_ns = |power: u8| 4096_u64.saturating_mul(1 << power).saturating_mul(attempts);
    (1..=20)
        .rev()
        .find(|power| u128::from(all_ns(*power)) <= dead_after.as_nanos())
        .unwrap_or(1)
}

/// The configuration of an end's Workers.
fn worker_config(arguments: &Arguments) -> WorkerConfig {
    let mut own = WorkerConfig::default();
    // Each rail's channel needs `depth` receives and `depth` sends. The channel that it replaces may still hold the same number.
    own.slots = arguments.depth.saturating_mul(4);
    own
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Errors in the command line are reported before any device is opened.
    let config = arguments.config();
    let part = arguments.part(&config)?;
    if arguments.simulated {
        crate::simulated::announce(arguments.json);
        return conclude(&simulated::run(arguments, &config, part)?, arguments);
    }
    let trusted = arguments.peers.trust()?;
    let named = arguments.peer.as_deref().filter(|peer| !peer.starts_with('@'));
    let named = named.map(|peer| handle(peer, arguments.timeout)).transpose()?;
    let rails = arguments.rails.clone().unwrap_or_default();
    let node = opened::node(trusted, &rails)?;
    opened::log_passed_over(&node, LogLevel::Off)?;
    let workers = opened::workers(&node, &worker_config(arguments))?;
    // Metrics are served until the result of the link is known.
    let board = arguments.metrics.map(|at| Board::announced(at, &workers));
    let mut board = board.transpose()?;
    let mut end = End::new(node, workers, &config, part)?;
    match (&arguments.peer, named) {
        (Some(_), Some(handle)) => end.connect(&handle)?,
        (Some(peer), None) => end.connect(&handle(peer, arguments.timeout)?)?,
        (None, _) => listen(&mut end, arguments)?,
    }
    let is_hanging = stream(&mut end, arguments, board.as_mut())?;
    end.watch.ended(end.now());
    let judged = Criteria {
        is_hanging,
        ..Criteria::of(arguments)
    };
    conclude(&Report::of(&end, &judged), arguments)
}

fn conclude(report: &Report, arguments: &Arguments) -> Result<(), Failure> {
    print_outcome("link", report, report.error(), arguments.json, Report::text)
}

fn listen<P: Provider>(end: &mut End<P, Tcp>, arguments: &Arguments) -> Result<(), Failure> {
    let address = arguments.listen.unwrap_or_else(|| anywhere(0));
    let handle = end.links.listen(&end.node, &end.workers, address)?;
    publish_handle(&handle, arguments)
}

/// Prints this side's handle, and writes it to the file.
fn publish_handle(handle: &Handle, arguments: &Arguments) -> Result<(), Failure> {
    eprintln!("{handle}");
    if let Some(path) = &arguments.handle_file {
        handle_file::leave(path, handle).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns the handle in `peer`, or waits for the handle in the file that `peer` names.
fn handle(peer: &str, timeout: Duration) -> Result<Handle, Failure> {
    let Some(path) = peer.strip_prefix('@') else {
        return Ok(peer.parse().map_err(|error| format!("{peer}: {error}"))?);
    };
    let begin = Instant::now();
    loop {
        match handle_file::find(path.as_ref()) {
            Ok(Some(handle)) => return Ok(handle),
            _ if begin.elapsed() < timeout => thread::sleep(LOOK_EVERY),
            Ok(None) => {
                return Err(format!(
                    "{path}: no such file after {} s: start the listener with --handle-file",
                    timeout.as_secs_f64()
                )
                .into());
            }
            Err(why) => return Err(why.into()),
        }
    }
}

/// Runs this end until the link has ended. Returns whether it hangs.
fn stream<P: Provider, N: Network>(
    end: &mut End<P, N>,
    arguments: &Arguments,
    mut board: Option<&mut Board>,
) -> Result<bool, Failure> {
    let (began, mut notes, seen) = (end.now(), None, Arc::new(ObservedState::default()));
    let mut waited_at = began;
    while !end.is_over() {
        if !end.turn()? {
            thread::sleep(NAP);
        }
        if let Some(handle) = end.moved.take() {
            publish_handle(&handle, arguments)?;
        }
        if let Some(board) = &mut board {
            let links = &end.links;
            board.note(&mut end.workers, |metrics| {
                metrics.links(&Labels::NONE, links);
                metrics.handshakes(&Labels::NONE, &links.handshakes());
            });
        }
        if notes.is_none() && end.watch.connected_at.is_some() {
            let orders = arguments.orders.clone();
            notes = Some(drill::begin(orders, Arc::clone(&seen), arguments.timeout)?);
        }
        seen.up.store(end.watch.rails_up(), Ordering::Relaxed);
        seen.came.store(end.incoming.messages, Ordering::Relaxed);
        for note in notes.iter().flat_map(std::sync::mpsc::Receiver::try_iter) {
            end.watch.noted(note);
        }
        let carried_out = end.watch.marks.iter().filter(|mark| mark.took_ms.is_some());
        end.is_wanted = carried_out.count() < arguments.orders.len();
        if end.only_waits_for_commands() {
            waited_at = end.now();
        }
        let since = end.watch.progress_at.or(end.watch.connected_at).unwrap_or(began);
        if watch::span(since.max(waited_at), end.now()) > arguments.timeout {
            return Ok(true);
        }
    }
    Ok(false)
}
