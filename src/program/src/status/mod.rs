//! `doorbell status`: the current state of a node or a member of a mesh, from the metrics that it serves.
//!
//! Metrics are read in [`mod@scrape`]. The report on two samples is in [`table`], with its ports in [`ports`].

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, IsTerminal as _};
use std::thread;

use doorbell_operation::SettingValues;

use crate::address::resolve;
use crate::configured::Configured;
use crate::report::{Failure, print_line};
use crate::value::{PeerPlace, parse_seconds};

mod numbers;
mod ports;
mod scrape;
mod simulated;
mod table;

use scrape::{Sample, plain, scrape};
use table::Report;

/// The default port of metrics, as in the examples.
const PORT: u16 = 9400;

/// How long a name may take to be looked up.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Show the state of a running node: members and ways, rails with their rates, links, channels, Workers, retries of ports
///
/// The command reads the metrics that a node serves, and shows one interval after the other. `doorbell mesh`, `link`, `lat`,
/// `bw` and `pingpong` serve metrics with --metrics. A program that embeds doorbell serves them with MetricsServer. If the
/// node stops answering, the command says so and keeps asking.
///
/// A rate covers one interval. It is `-` if the counter was reset within the interval.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
                        doorbell mesh --key-file keys --rank 0 --ranks 3 --handles /shared --metrics 127.0.0.1:9400\n  \
                        doorbell status 127.0.0.1:9400\n  \
                        doorbell status 127.0.0.1:9400 --once --json\n  \
                        doorbell status --simulated --once")]
pub(crate) struct Arguments {
    /// The address where the node serves metrics: ADDR:PORT or HOST:PORT [default: the setting `metrics`]
    #[arg(value_name = "ADDR:PORT")]
    address: Option<String>,

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
/// No address is named, or with `--once` the node does not answer.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.configured.settings(SettingValues::default(), &[])?;
    let addresses = match (&arguments.address, settings.values().metrics) {
        _ if arguments.simulated => {
            crate::simulated::say(arguments.json);
            vec![simulated::begin()?]
        }
        (Some(named), _) => addresses(named)?,
        (None, Some(set)) => vec![set],
        (None, None) => {
            return Err(
                "no address of metrics: name ADDR:PORT, as in 127.0.0.1:9400, or set `metrics`".into(),
            );
        }
    };
    let mut shown = Shown {
        is_json: arguments.json,
        clears: !arguments.once && !arguments.json && io::stdout().is_terminal(),
        is_lost: false,
    };
    let mut before: Option<Sample> = None;
    loop {
        match scrape(&addresses) {
            Ok(now) => {
                if let Some(before) = &before {
                    let mut report = Report::new(before, &now);
                    report.simulated = arguments.simulated;
                    shown.show(&report)?;
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

/// Resolves an address, or a URL as `--metrics` prints it.
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
struct Shown {
    is_json: bool,
    /// Whether each table takes the place of the one before.
    clears: bool,
    is_lost: bool,
}

impl Shown {
    fn show(&mut self, report: &Report) -> Result<(), Failure> {
        if core::mem::take(&mut self.is_lost) {
            eprintln!("doorbell: the node answers again");
        }
        if self.is_json {
            print_line("status", report)?;
        } else {
            let clear = if self.clears { "\x1b[H\x1b[J" } else { "" };
            println!("{clear}{}", report.text());
        }
        Ok(())
    }

    /// Reports once that the node does not answer.
    fn lose(&mut self, why: &str) {
        if !core::mem::replace(&mut self.is_lost, true) {
            eprintln!("doorbell: {}; asking again", plain(why));
        }
    }
}
