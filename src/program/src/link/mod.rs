//! `doorbell link`: numbered messages both ways over a link, while its rails are made to fail, and what became of each.

use core::net::SocketAddr;
use core::time::Duration;
use std::path::PathBuf;
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

use drill::Order;
use end::{Amount, End, Part};
use reach::Op;
use report::{Ending, Judged, Report};
use stream::Wish;

/// How often a file is looked at for the handle it does not have yet, and devices are asked what changed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long it sleeps when there was nothing to be done: hosts of a lab share processors with the kernel's work for
/// Soft-RoCE.
const NAP: Duration = Duration::from_micros(50);

/// What the other side may do to windows that are granted to it.
const REMOTE: RemoteAccess = RemoteAccess {
    atomic: false,
    ..RemoteAccess::ALL
};

/// Stream numbered messages both ways over a link, and account for each of them
///
/// Without HANDLE this side listens, and prints its handle; with it, it connects, over every pair of rails that reach each
/// other, and says what both send. Messages are numbered, and every byte is checked. Meanwhile rails may fail and come back, by
/// themselves or by --at: nothing may be lost, come twice or hang. Told are failovers, recoveries, stalls, and how long after
/// each command a rail was declared dead and used again.
///
/// With --op write or read, this side asks that of windows of the other one instead, one on each of its devices: what is read is
/// compared here, and what was written is looked at there when all is done.
///
/// Exit code: 0 when nothing was lost, doubled, wrong or left without an end, and the link ended as --expect-end says;
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
    /// The handle that the other side printed, or @FILE, which it is waited for in
    #[arg(value_name = "HANDLE")]
    peer: Option<String>,

    /// Run both ends in this process, on two hosts of a simulated fabric with two rails: no device is needed, every byte is
    /// checked, and the times are those of the fabric
    #[arg(long, conflicts_with_all = ["orders", "metrics", "rails", "key_file", "unauthenticated"])]
    simulated: bool,

    /// The address to listen at [default: any port of every address]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "drives")]
    listen: Option<SocketAddr>,

    /// Leave the handle in FILE
    #[arg(long, value_name = "FILE", conflicts_with = "drives")]
    handle_file: Option<PathBuf>,

    /// What to do
    #[arg(long, value_enum, default_value_t = Op::Send, requires = "drives")]
    op: Op,

    /// Bytes of a message, or of a WRITE or READ, which has no more than a fragment of a message, 4072; K and M stand for 1024 and
    /// 1024^2 [default: 64K, and 4072 of a WRITE or READ]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, requires = "drives")]
    size: Option<u32>,

    /// How many messages to send, or WRITEs or READs to do
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        requires = "drives",
        conflicts_with = "seconds"
    )]
    count: Option<u64>,

    /// How long to send, and until all commands are carried out [default: 5, and 0.2 with --simulated]
    #[arg(short = 'D', long, visible_alias = "duration", value_name = "SECONDS", value_parser = parse_seconds, requires = "drives")]
    seconds: Option<Duration>,

    /// Messages a second, each way, at most; 0 for as many as go
    #[arg(long, value_name = "N", default_value_t = 0, requires = "drives")]
    rate: u32,

    /// Have the other side send nothing but its last message
    #[arg(long, requires = "drives")]
    one_way: bool,

    /// Carry out a command by the shell, `sh -e`, so long after the link stood; RAIL is the one that it makes fail; may be given
    /// many times
    #[arg(long = "at", value_name = "SECONDS[/RAIL]=COMMAND", value_parser = Order::parse)]
    orders: Vec<Order>,

    /// How the link is to end
    #[arg(long, value_enum, default_value_t = Ending::Closed)]
    expect_end: Ending,

    /// How long a rail may go without an answer before it is dead, instead of 0.12 s, where machines are that slow; a
    /// connection may then take four times as long to be made
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    dead_after: Option<Duration>,

    /// Fail unless a rail that dies after a command was silent for at most so long until that was known: the median. Where
    /// commands say which rail they make fail, of these rails alone
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    detect_within: Option<Duration>,

    /// Fail unless at least so many of the commands that name a rail are followed by its death, and not by its return before
    /// the next command [default with --detect-within: each]
    #[arg(long, value_name = "N")]
    detect_at_least: Option<usize>,

    /// Fail if for longer nothing came and nothing was done, up to the link's end where it is lost
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    outage_within: Option<Duration>,

    /// How long to go without any rail before the link is over [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    recover_within: Option<Duration>,

    /// How long to wait for the other side, and how long to go without progress
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "30")]
    timeout: Duration,

    /// Which rails to use, as in `mlx5_*,^mlx5_3,netdev=ens*,10.1.0.0/16`: see docs/rails.md
    #[arg(long, value_name = "RULES")]
    rails: Option<RailFilter>,

    /// Requests in flight, and receives, of each rail
    #[arg(short = 't', long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=512))]
    depth: u32,

    /// Tell what is counted, as Prometheus reads it, at http://ADDR:PORT/metrics, to whoever asks; `doorbell status` does
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    peers: Peers,
}

/// A size that a link takes, and that holds a message's number.
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
        if let Some(dead_after) = self.dead_after {
            let session = &mut config.session;
            session.dead_after = dead_after;
            session.suspect_after = dead_after.checked_div(3).unwrap_or(dead_after);
            session.attach_within = session.attach_within.max(dead_after.saturating_mul(4));
            config.channel.timeout = transport_timeout(dead_after, config.channel.retry_count);
        }
        if let Some(recover_within) = self.recover_within {
            config.session.recover_within = recover_within;
        }
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
            wish: Wish {
                answers: !self.one_way && !is_one_sided,
                message_bytes: size,
                per_second: self.rate,
                op: self.op,
            },
        })
    }
}

/// The longest timeout, 4.096 us times a power of two, with which a device gives up before the session does.
fn transport_timeout(dead_after: Duration, retry_count: u8) -> u8 {
    let attempts = u64::from(retry_count).saturating_add(1);
    let all_ns = |power: u8| 4096_u64.saturating_mul(1 << power).saturating_mul(attempts);
    (1..=20)
        .rev()
        .find(|power| u128::from(all_ns(*power)) <= dead_after.as_nanos())
        .unwrap_or(1)
}

/// The configuration of the Workers of an end.
fn worker_config(arguments: &Arguments) -> WorkerConfig {
    let mut own = WorkerConfig::default();
    // Of each rail's channel the receives and what is sent, and that of one that is on its way out.
    own.slots = arguments.depth.saturating_mul(4);
    own
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // A mistake in the command line is said before anything is opened.
    let config = arguments.config();
    let part = arguments.part(&config)?;
    if arguments.simulated {
        crate::simulated::say(arguments.json);
        return conclude(&simulated::run(arguments, &config, part)?, arguments);
    }
    let trusted = arguments.peers.trust()?;
    let named = arguments.peer.as_deref().filter(|peer| !peer.starts_with('@'));
    let named = named.map(|peer| handle(peer, arguments.timeout)).transpose()?;
    let rails = arguments.rails.clone().unwrap_or_default();
    let node = opened::node(trusted, &rails)?;
    opened::say_passed_over(&node, LogLevel::Off)?;
    let workers = opened::workers(&node, &worker_config(arguments))?;
    // It tells until what became of the link is known.
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
    let judged = Judged {
        is_hanging,
        ..Judged::of(arguments)
    };
    conclude(&Report::of(&end, &judged), arguments)
}

fn conclude(report: &Report, arguments: &Arguments) -> Result<(), Failure> {
    print_outcome("link", report, report.error(), arguments.json, Report::text)
}

fn listen<P: Provider>(end: &mut End<P, Tcp>, arguments: &Arguments) -> Result<(), Failure> {
    let address = arguments.listen.unwrap_or_else(|| anywhere(0));
    let handle = end.links.listen(&end.node, &end.workers, address)?;
    say_handle(&handle, arguments)
}

/// Tells how this side is reached.
fn say_handle(handle: &Handle, arguments: &Arguments) -> Result<(), Failure> {
    eprintln!("{handle}");
    if let Some(path) = &arguments.handle_file {
        handle_file::leave(path, handle).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The handle that was named, or comes to be in the file that was.
fn handle(peer: &str, timeout: Duration) -> Result<Handle, Failure> {
    let Some(path) = peer.strip_prefix('@') else {
        return Ok(peer.parse().map_err(|error| format!("{peer}: {error}"))?);
    };
    let begin = Instant::now();
    loop {
        match handle_file::find(path.as_ref()) {
            Ok(Some(handle)) => return Ok(handle),
            _ if begin.elapsed() < timeout => thread::sleep(LOOK_EVERY),
            Ok(None) => return Err(format!("{path}: there is no such file").into()),
            Err(why) => return Err(why.into()),
        }
    }
}

/// Goes on until the link is over; says whether it hangs.
fn stream<P: Provider, N: Network>(
    end: &mut End<P, N>,
    arguments: &Arguments,
    mut board: Option<&mut Board>,
) -> Result<bool, Failure> {
    let (began, mut notes) = (end.now(), None);
    while !end.is_over() {
        if !end.turn()? {
            thread::sleep(NAP);
        }
        if let Some(handle) = end.moved.take() {
            say_handle(&handle, arguments)?;
        }
        if let Some(board) = &mut board {
            let links = &end.links;
            board.note(&mut end.workers, |metrics| {
                metrics.links(&Labels::NONE, links);
                metrics.handshakes(&Labels::NONE, &links.handshakes());
            });
        }
        if notes.is_none() && end.watch.connected_at.is_some() {
            notes = Some(drill::begin(arguments.orders.clone())?);
        }
        for note in notes.iter().flat_map(std::sync::mpsc::Receiver::try_iter) {
            end.watch.noted(note);
        }
        let carried_out = end.watch.marks.iter().filter(|mark| mark.took_ms.is_some());
        end.is_wanted = carried_out.count() < arguments.orders.len();
        let since = end.watch.progress_at.or(end.watch.connected_at).unwrap_or(began);
        if watch::span(since, end.now()) > arguments.timeout {
            return Ok(true);
        }
    }
    Ok(false)
}
