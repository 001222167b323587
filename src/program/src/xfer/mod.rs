//! `doorbell xfer`: sends a file to another host, by transfers over all rails of a link, and compares its checksum at the end.

use core::net::SocketAddr;
use core::num::NonZeroU64;
use core::time::Duration;
use std::path::PathBuf;
use std::thread;

use doorbell::link::{LinkConfig, TransferEnd};
use doorbell::memory::Region;
use doorbell::provider::{MemoryError, Network, PlacementConfig, Provider};
use doorbell::worker::Classes;
use doorbell::{Handle, RailFilter, RemoteAccess, WorkerConfig};
use doorbell_operation::LogLevel;

use crate::address::anywhere;
use crate::handle_file;
use crate::link::set_times;
use crate::log;
use crate::opened;
use crate::peers::Peers;
use crate::report::{Failure, print_outcome};
use crate::value::parse_seconds;

mod dial;
mod display;
mod end;
mod interrupt;
mod line;
mod plan;
mod receiver;
mod report;
mod sender;
mod simulated;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod wire;

use dial::Peer;
use display::ProgressDisplay;
use end::{End, Limits, Part};
use interrupt::Interrupt;
use line::Line;
use plan::Plan;
use receiver::Receiver;
use report::Report;
use sender::Sender;
use source::{Source, SourceFile};
use wire::{Sum, hexadecimal};

/// The default port of the listening side.
const PORT: u16 = 18702;

/// Sleep time of an idle poll loop: hosts of a lab share processors with the kernel's work for Soft-RoCE.
const NAP: Duration = Duration::from_micros(50);

/// Send a file over all rails, and compare its checksum
///
/// With --listen this side receives one file, and exits. With FILE and HOST it sends the file to the side that listens there. The
/// file is sent in chunks, each by one transfer of the link. Chunks are read and written while others are in flight, and at most
/// --memory bytes of the file are in memory. If a rail fails, its pieces are sent again over the others.
///
/// At the end both sides compare the SHA-256 of all bytes, unless --no-checksum is given. The receiver writes a temporary file in
/// the folder of --out, and syncs it to the disk after every 32 MiB, which counts as progress. It is renamed to --out, and replaces
/// an existing file, once the checksums match and all of it is on the disk. It is removed if anything fails before. An interrupted
/// copy is not resumed. Ctrl-C ends both sides.
///
/// Exit code: 0 if the receiver has the whole file, under its final name; else 1.
#[derive(clap::Args, Clone, Debug)]
#[command(
    override_usage = "doorbell xfer [OPTIONS] <FILE> <HOST|--simulated>\n       doorbell xfer [OPTIONS] --listen [<ADDR:PORT>]",
    group(clap::ArgGroup::new("sides").args(["peer", "listen", "simulated"]).required(true)),
    after_help = "Examples:\n  doorbell xfer --listen --out copy --key-file keys              on one host\n  \
    doorbell xfer file 10.0.0.1 --key-file keys                    on the other\n  \
    doorbell xfer /dev/zero 10.0.0.1 --bytes 10G --key-file keys   zeroes, to measure\n  \
    doorbell xfer --listen --key-file keys                         checks the bytes, and keeps none\n  \
    doorbell xfer /dev/zero --bytes 8M --simulated                 on no device"
)]
pub(crate) struct Arguments {
    /// The file to send: a regular file, or a device with --bytes
    #[arg(
        value_name = "FILE",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    file: Option<PathBuf>,

    /// The side that listens: HOST, HOST:PORT, the handle it printed, or @FILE to wait for a handle in FILE
    #[arg(value_name = "HOST")]
    peer: Option<String>,

    /// Send the first SIZE bytes of FILE; K, M, G and T stand for powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "listen")]
    bytes: Option<u64>,

    /// Receive a file [default: at port 18702 of every address]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, overrides_with = "listen")]
    listen: Option<Option<SocketAddr>>,

    /// The file to write; /dev/null checks the bytes and discards them [default: /dev/null]
    #[arg(long, value_name = "FILE", conflicts_with = "peer")]
    out: Option<PathBuf>,

    /// Also write the handle to FILE
    #[arg(long, value_name = "FILE", requires = "listen")]
    handle_file: Option<PathBuf>,

    /// Run both ends in this process, on two hosts of a simulated fabric with two rails: no device is needed, every byte is
    /// checked, and the times are those of the fabric
    #[arg(long, conflicts_with_all = ["rails", "key_file", "unauthenticated"])]
    simulated: bool,

    /// The maximum bytes of the file in memory. The receiver registers them all before it listens
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,

    /// Bytes of a chunk, which is one transfer [default: an eighth of --memory, or of the file if it is smaller]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "listen")]
    chunk: Option<u64>,

    /// Bytes of a piece, the unit in which the transfer is announced and repeated: a power of two from 4K to 16M
    #[arg(long, value_name = "SIZE", value_parser = parse_piece, default_value = "256K", conflicts_with = "listen")]
    piece: u32,

    /// Do not compute and compare checksums, which take processor time. A transfer is complete without them
    #[arg(long, conflicts_with = "listen")]
    no_checksum: bool,

    /// The IP traffic class of the packets that this side sends, also when it listens: DSCP in the upper six bits
    #[arg(long, value_name = "CLASS", default_value_t = 0)]
    traffic_class: u8,

    /// Send at most SIZE bytes per second, and leave the rest of the bandwidth to others
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "listen")]
    bytes_per_second: Option<u64>,

    /// Fail if the file is not complete within SECONDS after the connection
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    within: Option<Duration>,

    /// The rails to use: the first N of this host, or rules as in `mlx5_*,^mlx5_3,netdev=ens*,10.1.0.0/16` (docs/rails.md)
    #[arg(long, value_name = "N|RULES", value_parser = Rails::parse)]
    rails: Option<Rails>,

    /// Declare a rail dead after SECONDS without an answer; slow machines need more than the default [default: 0.12]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    dead_after: Option<Duration>,

    /// End the link after SECONDS without any rail [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    recover_within: Option<Duration>,

    /// The longest wait for the other side, and the longest time without progress
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "30")]
    timeout: Duration,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    peers: Peers,
}

/// The rails to use.
#[derive(Clone, Debug)]
enum Rails {
    First(usize),
    Rules(RailFilter),
}

impl Rails {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("not 0".into()),
            Ok(count) => Ok(Self::First(count)),
            Err(_) => text
                .parse()
                .map(Self::Rules)
                .map_err(|error: doorbell::rails::RailFilterError| error.to_string()),
        }
    }
}

/// Parses a size in bytes, with K, M, G or T for a power of 1024; not 0.
fn parse_size(text: &str) -> Result<u64, String> {
    let shift = match text.as_bytes().last() {
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(b'G' | b'g') => 30,
        Some(b'T' | b't') => 40,
        _ => 0,
    };
    let digits = match shift {
        0 => Some(text),
        _ => text.get(..text.len().saturating_sub(1)),
    };
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let count = digits.and_then(|digits| digits.parse::<u64>().ok());
    let count = count.ok_or("not a number with or without K, M, G or T after it")?;
    let bytes = count.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 60);
    match bytes.ok_or("too large")? {
        0 => Err("not 0".into()),
        bytes => Ok(bytes),
    }
}

fn parse_piece(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    let fits = bytes.is_power_of_two() && (4 << 10..=16 << 20).contains(&bytes);
    u32::try_from(bytes)
        .ok()
        .filter(|_| fits)
        .ok_or_else(|| "not a power of two from 4K to 16M".into())
}

/// Reason why a side gives up.
#[derive(Clone, Debug)]
struct Fault {
    here: String,
    /// The reason that is sent to the peer, unless the peer knows it.
    said: Option<String>,
}

impl Fault {
    /// A chunk whose transfer did not complete.
    fn of_chunk(chunk: u64, end: TransferEnd, error: Option<MemoryError>) -> Self {
        Self::both(match error {
            Some(error) => format!("chunk {chunk}: the transfer {end}: {error}"),
            None => format!("chunk {chunk}: the transfer {end}"),
        })
    }

    fn both(why: String) -> Self {
        Self {
            said: Some(why.clone()),
            here: why,
        }
    }

    const fn here(why: String) -> Self {
        Self {
            here: why,
            said: None,
        }
    }

    /// The error text for two sums that differ.
    fn different(ours: Option<Sum>, theirs: Option<Sum>) -> String {
        let text = |sum: Option<Sum>| sum.map_or_else(|| "none".to_owned(), |sum| hexadecimal(&sum));
        format!(
            "the bytes that arrived are not those that were sent, and none are kept: sha256 {} here, {} at the peer; send the file again, and check the memory of both hosts",
            text(ours),
            text(theirs)
        )
    }
}

impl Arguments {
    fn config(&self) -> LinkConfig {
        let mut config = LinkConfig::default();
        config.channel.remote = RemoteAccess::WRITE;
        config.transfers.piece_bytes = self.piece;
        set_times(&mut config, self.dead_after, self.recover_within);
        config
    }

    /// The configuration of an end's Workers.
    fn worker_config(&self) -> WorkerConfig {
        let mut config = WorkerConfig::default();
        if self.traffic_class == 0 && self.bytes_per_second.is_none() {
            return config;
        }
        let mut classes = Classes::default();
        // No other link of this process has to wait for it.
        classes.bytes_ahead_max = 64 << 20;
        let [class, ..] = &mut classes.table;
        class.traffic_class = self.traffic_class;
        class.bytes_per_second_max = self.bytes_per_second.and_then(NonZeroU64::new);
        config.classes = Some(classes);
        config
    }

    const fn limits(&self) -> Limits {
        Limits {
            timeout: self.timeout,
            within: self.within,
        }
    }

    /// The path of the file at the receiver.
    fn out(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| "/dev/null".into())
    }

    /// The file of this side.
    fn name(&self) -> String {
        let path = self.file.clone().unwrap_or_else(|| self.out());
        path.display().to_string()
    }

    /// Opens the file to be sent, and plans its chunks.
    fn open(&self) -> Result<Option<(SourceFile, Plan)>, Failure> {
        let rate = self.bytes_per_second.map(u128::from);
        let piece_ms = rate.and_then(|rate| u128::from(self.piece).saturating_mul(1000).checked_div(rate));
        if piece_ms.is_some_and(|ms| ms > self.timeout.as_millis()) {
            return Err("--bytes-per-second: a piece takes longer than --timeout, so this would be no progress: lower --piece".into());
        }
        let Some(path) = &self.file else {
            return Ok(None);
        };
        let opened = SourceFile::open(path, self.bytes)?;
        let mut plan = Plan::of(opened.bytes, self.memory, self.chunk, self.piece)?;
        plan.has_checksum = !self.no_checksum;
        Ok(Some((opened, plan)))
    }

    fn filter(&self) -> Result<RailFilter, Failure> {
        match &self.rails {
            None => Ok(RailFilter::default()),
            Some(Rails::Rules(rules)) => Ok(rules.clone()),
            Some(Rails::First(count)) => opened::first_rails(*count),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Errors in the command line are reported before any device is opened.
    let config = arguments.config();
    let mut opened = arguments.open()?;
    let interrupt = Interrupt::heeded()?;
    if let Some(opened) = opened.take_if(|_| arguments.simulated) {
        crate::simulated::announce(arguments.json);
        return conclude(
            &simulated::run(arguments, &config, opened, &interrupt)?,
            arguments,
        );
    }
    let trusted = arguments.peers.trust()?;
    let named = arguments.peer.as_deref();
    let peer = named
        .map(|peer| Peer::parse(peer, arguments.timeout))
        .transpose()?;
    let node = opened::node(trusted, &arguments.filter()?)?;
    opened::log_passed_over(&node, LogLevel::Off)?;
    let workers = opened::workers(&node, &arguments.worker_config())?;
    let mut line = Line::new(node, workers, &config)?;
    let part = match (peer, opened) {
        (Some(peer), Some((opened, plan))) => {
            let handle = peer.handle(&line.node, arguments.timeout, &interrupt)?;
            let sender = sender(&line, opened, plan)?;
            line.connect(&handle)?;
            Part::Send(sender)
        }
        _ => {
            // A path that cannot be written to is reported before a peer connects.
            drop(sink::OutputFile::create(&arguments.out())?);
            let region = region(&line, usize::try_from(arguments.memory)?)?;
            listen(&mut line, arguments)?;
            Part::Receive(Receiver::new(arguments.out(), region))
        }
    };
    let mut end = End::new(line, part, arguments.limits());
    go_on(&mut end, arguments, &interrupt)?;
    let report = Report::of(&end, arguments.name(), arguments.piece);
    // Waits for the writing thread, which removes an incomplete file.
    drop(end);
    conclude(&report, arguments)
}

fn conclude(report: &Report, arguments: &Arguments) -> Result<(), Failure> {
    let error = report.error.clone();
    print_outcome("xfer", report, error, arguments.json, Report::text)
}

fn sender<P: Provider, N: Network>(
    line: &Line<P, N>,
    opened: SourceFile,
    plan: Plan,
) -> Result<Sender<P>, Failure> {
    let region = region(line, plan.memory_bytes())?;
    let source = Source::start(opened, region.clone(), plan.has_checksum)?;
    Ok(Sender::new(plan, region, source))
}

/// Makes memory for chunks, or none for an empty file.
fn region<P: Provider, N: Network>(line: &Line<P, N>, bytes: usize) -> Result<Option<Region<P>>, Failure> {
    if bytes == 0 {
        return Ok(None);
    }
    let region = line.node.region(&line.workers, bytes, &PlacementConfig::DEFAULT);
    Ok(Some(region.map_err(|error| {
        format!("{bytes} bytes of memory: {error}; lower --memory")
    })?))
}

fn listen<P: Provider>(
    line: &mut Line<P, doorbell::connect::Tcp>,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let address = arguments.listen.flatten().unwrap_or_else(|| anywhere(PORT));
    let handle = line.links.listen(&line.node, &line.workers, address);
    let handle = handle.map_err(|error| {
        format!("listening at {address}: {error}; name another port with --listen ADDR:PORT")
    })?;
    let at = SocketAddr::new(address.ip(), handle.port().get());
    eprintln!("listening at {at}; {handle}");
    leave(&handle, arguments)
}

fn leave(handle: &Handle, arguments: &Arguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.handle_file {
        handle_file::leave(path, handle).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Runs this end until nothing more has to be done.
fn go_on<P: Provider, N: Network>(
    end: &mut End<P, N>,
    arguments: &Arguments,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut shown = ProgressDisplay::on_stderr();
    while !end.is_over() {
        if !end.turn(false)? {
            thread::sleep(NAP);
        }
        if interrupt.is_raised() {
            end.give_up(Fault::both(interrupt::WHY.to_owned()));
        }
        if let Some(handle) = end.line.moved.take() {
            log::write_line(&format!("reached now by {handle}"));
            // The transfer goes on: its peer has this link.
            if let Err(error) = leave(&handle, arguments) {
                log::write_line(&format!("doorbell: {error}"));
            }
        }
        shown.show(end);
    }
    Ok(())
}
