//! `doorbell pingpong`: the ping-pong of rdma-core's `ibv_rc_pingpong`, so that a program we did not
//! write is at the other end.
//!
//! The exchange over TCP is in [`wire`] and [`tcp`], the choice of a GID in [`source`], the queue
//! pair and the messages in [`engine`]. Here they are put together in the order of either role.

use core::time::Duration;
use std::thread;

use doorbell::vocabulary::provider::{Context as _, Provider};
use doorbell::vocabulary::work_id::SLOTS_MAX;
use doorbell::vocabulary::{Mtu, Psn};
use doorbell::{PortReport, Rdma};
use doorbell_ffi::Context;

use crate::report::{Failure, print};

mod engine;
mod report;
mod source;
mod tcp;
mod wire;

use engine::{Engine, Plan, Role};
use report::{Done, Report};
use source::{Peer, Source, Wanted};
use wire::{DONE, Destination};

/// Receives posted where nothing else is asked and they fit: the stock program's figure.
const RECEIVE_DEPTH: u32 = 500;

/// Memory for receives where their number is not asked for.
const RECEIVE_BYTES: u32 = 64 << 20;

/// The most memory for receives.
const RECEIVE_BYTES_MAX: u64 = 1 << 30;

/// How long the client stays after its last message came: the acknowledgement of it may be lost, and the
/// peer then asks again. Three times the acknowledgement timeout of the stock program.
const LINGER: Duration = Duration::from_millis(200);

/// Exchange messages with ibv_rc_pingpong of rdma-core, or with another doorbell
///
/// Without HOST it is the server: it waits for one client, and answers each of its messages. With HOST it
/// is the client. The other end may be `ibv_rc_pingpong -g INDEX` in either role: the options that both
/// sides have to agree on (port, size, MTU, iterations) have its letters and defaults.
///
/// The GID is chosen by rule unless named: the one whose subnet has the peer's address (the address HOST
/// stands for, or for a server the GID its client sent), the longest prefix first; where no subnet has,
/// the first of the only usable device, IPv4 before IPv6; with several devices that is an error that lists
/// them.
///
/// What the client sends goes round: every message is what came before it. Of every message the length is
/// checked, and of the last one every byte (by a server with --check only), outside the timed section.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The server to connect to; without it this is the server
    host: Option<String>,

    /// The TCP port to listen on or connect to
    #[arg(short, long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// The RDMA device [default: the one that reaches the peer]
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    device: Option<String>,

    /// The port of the RDMA device
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,

    /// Bytes of each message; the same on both sides
    #[arg(short, long, default_value_t = 4096, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,

    /// The path MTU: 256, 512, 1024, 2048 or 4096; the same on both sides
    #[arg(short, long, default_value = "1024", value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Mtu,

    /// Receives to keep posted [default: 500, or as many as 64 MiB hold, but 2]
    #[arg(short, long, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..i64::from(SLOTS_MAX)))]
    rx_depth: Option<u32>,

    /// Messages each side sends; the same on both sides
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// The service level
    #[arg(short = 'l', long, visible_alias = "sl", default_value_t = 0, value_name = "LEVEL",
          value_parser = clap::value_parser!(u8).range(..16))]
    service_level: u8,

    /// The index of our GID [default: by rule, see above]
    #[arg(short, long, visible_alias = "gid-idx", value_name = "INDEX")]
    gid_index: Option<u8>,

    /// Sleep until a completion notifies, instead of polling
    #[arg(short, long)]
    events: bool,

    /// Mark the pages of the payload, as -c of ibv_rc_pingpong does, and check them; on both sides
    #[arg(short, long, visible_alias = "chk")]
    check: bool,

    /// The longest any step takes: connecting, each message of the exchange, a time without a completion
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Duration,

    /// How long a server waits for its client
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = parse_seconds)]
    wait: Duration,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            device: self.device.as_deref(),
            port: self.ib_port,
            gid_index: self.gid_index,
            mtu: self.mtu,
        }
    }
}

const EXAMPLES: &str = "Examples:\n  \
    doorbell pingpong                     on 10.0.0.1\n  \
    ibv_rc_pingpong -g 1 10.0.0.1         on the other\n\n  \
    ibv_rc_pingpong -g 1 -c               on 10.0.0.1\n  \
    doorbell pingpong -c 10.0.0.1         on the other";

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse().map_err(|_| "not a number".to_owned())?;
    Mtu::from_bytes(bytes).ok_or_else(|| "not one of 256, 512, 1024, 2048, 4096".into())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // A year: what can be added to any clock.
    if !(0.001..=31_536_000.0).contains(&seconds) {
        return Err("not between 0.001 and 31536000".into());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Plays one game.
///
/// # Errors
/// There is no RDMA stack or usable GID, the peer does not speak the exchange or stops, or a payload is not
/// what was sent.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rdma = Rdma::load()?;
    let report = match &arguments.host {
        Some(host) => client(&rdma, arguments, host)?,
        None => server(&rdma, arguments)?,
    };
    print(&report, arguments.json, Report::to_text)
}

fn client(rdma: &Rdma, arguments: &Arguments, host: &str) -> Result<Report, Failure> {
    let timeout = arguments.timeout;
    let ports = ports(rdma)?;
    // What is wrong whoever the peer is, is told before it is bothered.
    source::check(&ports, &arguments.wanted())?;
    let mut stream = tcp::connect(host, arguments.port, timeout)?;
    let peer = Peer::Tcp(stream.peer_addr()?.ip());
    let (mut engine, local) = prepare(rdma, arguments, &ports, peer)?;
    tcp::send(&mut stream, &local.encode(), timeout)?;
    let remote = tcp::destination(&mut stream, timeout)?;
    engine.connect(&remote)?;
    tcp::send(&mut stream, &DONE, timeout)?;
    drop(stream);
    let took = engine.run(Role::Client)?;
    let report = report(&engine, Role::Client, local, remote, took);
    thread::sleep(LINGER);
    Ok(report)
}

fn server(rdma: &Rdma, arguments: &Arguments) -> Result<Report, Failure> {
    let timeout = arguments.timeout;
    let listener = tcp::listen(arguments.port)?;
    // Which GID it will be is known once the client says where it is; that there is one, now.
    source::check(&ports(rdma)?, &arguments.wanted())?;
    eprintln!("doorbell: listening on port {}", arguments.port);
    let mut stream = tcp::accept(&listener, arguments.wait)?;
    drop(listener);
    let remote = tcp::destination(&mut stream, timeout)?;
    let (mut engine, local) = prepare(rdma, arguments, &ports(rdma)?, Peer::Gid(remote.gid))?;
    // Receives are posted before the client can know where to send.
    engine.connect(&remote)?;
    tcp::send(&mut stream, &local.encode(), timeout)?;
    tcp::done(&mut stream, timeout)?;
    let took = engine.run(Role::Server)?;
    Ok(report(&engine, Role::Server, local, remote, took))
}

/// The ports there are, of which at least one is usable or at least there.
fn ports(rdma: &Rdma) -> Result<Vec<PortReport>, Failure> {
    let mut ports = Vec::new();
    let mut failed = Vec::new();
    rdma.scan(&mut |report| ports.push(report.clone()), &mut |device, error| {
        failed.push(format!("{device}: {error}"));
    })
    .map_err(|error| format!("{error}; see `doorbell devices`"))?;
    if ports.is_empty() {
        let why = if failed.is_empty() {
            "there is none; see `doorbell devices`".to_owned()
        } else {
            failed.join("; ")
        };
        return Err(format!("no RDMA device: {why}").into());
    }
    Ok(ports)
}

/// Makes our end, and says where it is.
fn prepare(
    rdma: &Rdma,
    arguments: &Arguments,
    ports: &[PortReport],
    peer: Peer,
) -> Result<(Engine<Rdma>, Destination), Failure> {
    let source: Source = source::choose(ports, &arguments.wanted(), peer)?;
    let context: Context = rdma.open(&source.device)?;
    let plan = Plan {
        message_bytes: arguments.size,
        iterations: arguments.iters,
        receive_depth: receive_depth(arguments, context.limits().queue_depth_max)?,
        mtu: arguments.mtu,
        service_level: arguments.service_level,
        page_bytes: arguments.check.then(rustix::param::page_size),
        events: arguments.events,
        stall: arguments.timeout,
    };
    let random = getrandom::u32().map_err(|error| format!("the system gave no random bytes: {error}"));
    let psn = Psn::from_low_bits(random?);
    let engine = Engine::new(&context, source, psn, plan)?;
    let local = Destination {
        // RoCE has none.
        lid: 0,
        qpn: engine.qpn(),
        psn,
        gid: engine.source().gid,
    };
    Ok((engine, local))
}

/// How many receives to post.
fn receive_depth(arguments: &Arguments, device_max: u32) -> Result<u32, Failure> {
    let Some(depth) = arguments.rx_depth else {
        let fitting = RECEIVE_BYTES.checked_div(arguments.size).unwrap_or(2).max(2);
        return Ok(RECEIVE_DEPTH.min(fitting).min(device_max));
    };
    if depth > device_max {
        return Err(format!("--rx-depth {depth} is more than the device's {device_max}").into());
    }
    let bytes = u64::from(depth).saturating_mul(arguments.size.into());
    if bytes > RECEIVE_BYTES_MAX {
        return Err(format!(
            "{depth} receives of {} bytes are more than 1 GiB: name a smaller --rx-depth",
            arguments.size
        )
        .into());
    }
    Ok(depth)
}

fn report(
    engine: &Engine<Rdma>,
    role: Role,
    local: Destination,
    remote: Destination,
    took: Duration,
) -> Report {
    Report::new(&Done {
        role,
        source: engine.source(),
        local,
        remote,
        plan: *engine.plan(),
        inline: engine.is_inline(),
        took,
    })
}
