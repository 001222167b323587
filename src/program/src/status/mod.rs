//! `doorbell status`: shows the current state of this host's node daemon, or of a node or a member of a mesh that serves metrics.
//!
//! Metrics are read in [`mod@scrape`]. The report on two samples is in [`table`], with its ports in [`ports`]. The daemon is queried in
//! [`daemon`].

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::thread;

use doorbell_operation::SettingValues;
use serde::Serialize;

use crate::address::resolve;
use crate::configured::Configured;
use crate::report::{Failure, print_line};
use crate::serve::SOCKET;
use crate::value::{PeerPlace, parse_seconds};

mod daemon;
mod numbers;
mod ports;
mod scrape;
mod simulated;
mod table;

#[cfg(any(test, fuzzing))]
pub use daemon::check_shown;
use scrape::{Sample, plain, scrape, uncontrolled};
use table::Report;

/// The default port of metrics, as in the examples.
const PORT: u16 = 9400;

/// Timeout for resolving a name.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Show the state of this host's node daemon, or of a node that serves metrics
///
/// Without an address, the command asks the node daemon of this host (`doorbell serve`) at its socket. It shows the daemon's nodes and
/// links, its jobs, and its endpoints: each with its process and user, the time since it attached, and what it submitted, was given, has
/// in flight and waits for. A user sees its own jobs and endpoints; root and the daemon's user see all. With --once it shows the state
/// at once, without rates.
///
/// With an address, the command reads the metrics that a node serves there: members and ways, rails with their rates, links, channels,
/// Workers, and retries of ports. `doorbell mesh`, `link`, `lat`, `bw`, `pingpong` and `serve` serve metrics with --metrics. A program
/// that embeds doorbell serves them with MetricsServer. If the node stops answering, the command says so and keeps asking.
///
/// A rate covers one interval. It is `-` if the counter was reset within the interval.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
                        doorbell status\n  \
                        doorbell status --socket $XDG_RUNTIME_DIR/doorbell.socket --once --json\n  \
                        doorbell mesh --key-file keys --rank 0 --ranks 3 --handles /shared --metrics 127.0.0.1:9400\n  \
                        doorbell status 127.0.0.1:9400\n  \
                        doorbell status 127.0.0.1:9400 --once --json\n  \
                        doorbell status --simulated --once")]
pub(crate) struct Arguments {
    /// The address where a node serves metrics: ADDR:PORT or HOST:PORT [default: the setting `metrics`, or else the node daemon]
    #[arg(value_name = "ADDR:PORT")]
    address: Option<String>,

    /// The socket of the node daemon [default: /run/doorbell/socket]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["address", "simulated"])]
    socket: Option<PathBuf>,

    /// Show the first member of a mesh of three that runs in this process, on hosts of a simulated fabric: no device is needed
    #[arg(long, conflicts_with = "address")]
    simulated: bool,

    /// The length of an interval
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,

    /// Show one interval and exit; fail if the node does not answer
    #[arg(long)]
    once: bool,

    /// Print one JSON document for each interval, on one line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    configured: Configured,
}

/// Shows the state of a node.
///
/// # Errors
/// The daemon cannot be queried, or with `--once` the node does not answer.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.configured.settings(SettingValues::default(), &[])?;
    let mut shown = Screen {
        is_json: arguments.json,
        clears: !arguments.once && !arguments.json && io::stdout().is_terminal(),
        is_lost: false,
    };
    if let Some(socket) = &arguments.socket {
        return daemon::run(socket, arguments, &mut shown);
    }
    let addresses = match (&arguments.address, settings.values().metrics) {
        _ if arguments.simulated => {
            crate::simulated::announce(arguments.json);
            vec![simulated::begin()?]
        }
        (Some(named), _) => addresses(named)?,
        (None, Some(set)) => vec![set],
        (None, None) => return daemon::run(Path::new(SOCKET), arguments, &mut shown),
    };
    let mut before: Option<Sample> = None;
    loop {
        match scrape(&addresses) {
            Ok(now) => {
                if let Some(before) = &before {
                    let mut report = Report::new(before, &now);
                    report.simulated = arguments.simulated;
                    shown.show(&report, &report.text())?;
                    if arguments.once {
                        return Ok(());
                    }
                }
                before = Some(now);
            }
            Err(why) if arguments.once => return Err(why.into()),
            Err(why) => {
                shown.lose(&why);
                before = None;
            }
        }
        thread::sleep(arguments.interval);
    }
}

/// Resolves an address, or a URL in the form that `--metrics` prints.
fn addresses(named: &str) -> Result<Vec<SocketAddr>, Failure> {
    let bare = named.strip_prefix("http://").unwrap_or(named);
    let bare = bare.strip_suffix("/metrics").unwrap_or(bare);
    let told = |why: String| format!("{}: {why}", plain(named));
    match PeerPlace::parse(bare, PORT).map_err(told)? {
        PeerPlace::Address(address) => Ok(vec![address]),
        PeerPlace::Host { name, port } => {
            Ok(resolve((name, port), LOOK_UP).map_err(|error| told(error.to_string()))?)
        }
        PeerPlace::Handle(_) => Err(told("a handle has no metrics: name their ADDR:PORT".into()).into()),
    }
}

/// The state of the display.
struct Screen {
    is_json: bool,
    /// Whether each table replaces the previous one on the screen.
    clears: bool,
    is_lost: bool,
}

impl Screen {
    fn show<R: Serialize>(&mut self, report: &R, text: &str) -> Result<(), Failure> {
        if core::mem::take(&mut self.is_lost) {
            eprintln!("doorbell: the node answers again");
        }
        if self.is_json {
            print_line("status", report)?;
        } else {
            let clear = if self.clears { "\x1b[H\x1b[J" } else { "" };
            println!("{clear}{text}");
        }
        Ok(())
    }

    /// Reports once that the node does not answer.
    fn lose(&mut self, why: &str) {
        if !core::mem::replace(&mut self.is_lost, true) {
            eprintln!("doorbell: {}; asking again", uncontrolled(why));
        }
    }
}
