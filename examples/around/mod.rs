//! Frame around the larger examples, and no part of what they show: output of a handle and a report,
//! progress, percentiles, and the hosts. Hosts are this one, or some on a simulated fabric.

#[cfg(test)]
#[path = "../../sim/scenarios/commands.rs"]
pub(crate) mod scenarios;
pub(crate) mod simulated;

use core::error::Error;
use core::fmt::{self, Display};
use core::time::Duration;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use doorbell::{Handle, KeyRing, Node, Trust, WcStatus};
use hdrhistogram::Histogram;
use serde::Serialize;

/// Why a program cannot go on.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Output of results.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Output {
    /// Print the results as one JSON document on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write the handle to this file, and not to standard output (with --json: standard error).
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) handle_file: Option<PathBuf>,
    /// Take no peer but one that has a key of this file.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Take everyone who reaches the port for a peer: for a network without strangers.
    #[arg(long, global = true, conflicts_with = "key_file")]
    pub(crate) unauthenticated: bool,
}

impl Output {
    /// The RDMA stack of this host, for the peers that were asked for.
    ///
    /// # Errors
    /// There is none, no peers were asked for, or the file is not one of keys.
    pub(crate) fn node(&self) -> Result<Node, Failure> {
        let trust = match &self.key_file {
            Some(path) => Trust::keys(KeyRing::from_file(path)?),
            None if self.unauthenticated => Trust::unauthenticated_on_purpose(),
            None => return Err("who is a peer is not said: --key-file FILE, or --unauthenticated".into()),
        };
        Ok(Node::open(trust)?)
    }

    /// Runs a role on this host.
    ///
    /// # Errors
    /// Errors of [`node`](Self::node), and errors of the role.
    pub(crate) fn on_this_host<T>(
        &self,
        role: impl FnOnce(&Node) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        role(&self.node()?)
    }

    /// Hands out the handle that peers are to be started with.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn announce(&self, handle: &Handle) -> Result<(), Failure> {
        match &self.handle_file {
            // Under another name first, so a reader that waits for the file finds all of it.
            Some(file) => {
                // Made anew, so that nothing is followed or written to that others put there.
                let unfinished = file.with_extension(format!("{}.unfinished", std::process::id()));
                writeln!(fs::File::create_new(&unfinished)?, "{handle}")?;
                fs::rename(&unfinished, file)?;
            }
            None if self.json => eprintln!("{handle}"),
            None => println!("{handle}"),
        }
        Ok(())
    }

    /// Prints the outcome, and gives the exit code.
    pub(crate) fn conclude<R: Report>(&self, program: &str, outcome: Result<R, Failure>) -> ExitCode {
        match outcome.and_then(|report| self.print(&report).map(|()| report)) {
            Ok(report) => {
                for failure in report.failures() {
                    eprintln!("{program}: {failure}");
                }
                ExitCode::from(u8::from(!report.failures().is_empty()))
            }
            Err(error) => {
                eprintln!("{program}: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn print<R: Report>(&self, report: &R) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)?;
        } else {
            write!(out, "{report}")?;
        }
        Ok(out.flush()?)
    }
}

/// Report of a program.
pub(crate) trait Report: Serialize + Display {
    /// Failures of the program. Any makes the exit code 1.
    fn failures(&self) -> &[String];
}

/// Reports of all roles, if they are in one process.
#[derive(Debug, Serialize)]
pub(crate) struct All<L, C> {
    /// So they are: its times say nothing of a device.
    simulated: bool,
    /// Report of the role that listens.
    pub(crate) listener: L,
    /// Reports of the peers that connected to it.
    pub(crate) connected: Vec<C>,
    pub(crate) failures: Vec<String>,
}

impl<L: Report, C: Report> From<(L, Vec<C>)> for All<L, C> {
    fn from((listener, connected): (L, Vec<C>)) -> Self {
        let of_connected = connected.iter().flat_map(Report::failures);
        Self {
            simulated: true,
            failures: listener.failures().iter().chain(of_connected).cloned().collect(),
            listener,
            connected,
        }
    }
}

impl<L: Report, C: Report> Report for All<L, C> {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl<L: Report, C: Report> Display for All<L, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listener.fmt(f)?;
        self.connected.iter().try_for_each(|connected| connected.fmt(f))
    }
}

/// How far a long run has come: a line on standard error now and then.
pub(crate) struct Progress {
    next: Instant,
}

impl Progress {
    const EVERY: Duration = Duration::from_secs(3);

    pub(crate) fn new() -> Self {
        Self {
            next: Instant::now() + Self::EVERY,
        }
    }

    /// Says it, where it is time to.
    pub(crate) fn tell(&mut self, now: Instant, what: impl FnOnce() -> String) {
        if now >= self.next {
            eprintln!("{}", what());
            self.next = now + Self::EVERY;
        }
    }
}

/// Latencies, in nanoseconds; three digits are kept.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    const MAX_NS: u64 = 100_000_000_000;

    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self(Histogram::new_with_bounds(1, Self::MAX_NS, 3)?))
    }

    pub(crate) fn note(&mut self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(ns);
    }

    /// `None` where there were none.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        #[expect(clippy::cast_precision_loss, reason = "three digits are kept")]
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile: f64| us(self.0.value_at_quantile(quantile));
        (!self.0.is_empty()).then(|| Percentiles {
            count: self.0.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: us(self.0.max()),
        })
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us",
            self.p50_us, self.p99_us, self.p99_9_us, self.max_us
        )
    }
}

/// Things per second.
pub(crate) fn rate(count: u64, span: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate is read to three digits")]
    let count = count as f64;
    if span.is_zero() {
        return 0.0;
    }
    (count / span.as_secs_f64()).round()
}

/// Scatters a number over 64 bits, each time alike: what test data is made of.
pub(crate) const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    number ^ (number >> 32)
}

/// Notes why a connection failed. A flush is the consequence of another failure, which may come after it.
pub(crate) fn note_failure(known: &mut Option<String>, status: WcStatus) {
    if known.is_none() || !status.is_flush() {
        *known = Some(format!("the connection failed: {status}"));
    }
}

/// Bytes as little-endian words; what is left at the end is no word.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(size_of::<u64>()).map(word)
}
