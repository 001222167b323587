//! `doorbell lat` and `doorbell bw`: measure latency and bandwidth to a peer, and check every byte.
//!
//! This file has the two commands. The measurements are in [`latency`] and [`bandwidth`], which are generic over the provider.
//! Other commands use [`session`].

mod arguments;
mod atomic;
mod bandwidth;
mod control;
pub(crate) mod dial;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod latency;
mod link;
mod message;
mod metering;
mod pattern;
mod progress;
mod report;
mod ring;
mod session;
mod source;
mod terms;
mod test;

pub(crate) use arguments::{BwArguments, LatArguments};
pub(crate) use error::PerfError;
#[cfg(any(test, fuzzing))]
pub(crate) use message::{Message, Setup};
pub(crate) use metering::Metering;
use progress::Progress;
pub(crate) use report::{Report, Row, table};
pub(crate) use session::{Findings, Server, drive};
pub(crate) use terms::{Target, Terms};
pub(crate) use test::{Kind, Op, Role, Test};

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;

use crate::address::anywhere;
use crate::devices::advised;
use crate::log;
use crate::opened;
use crate::peers::{Trusted, trust_of};
use crate::report::{Failure, Reported, print_outcome};
use crate::simulated;
use arguments::Common;
use doorbell::provider::{Network, Provider};
use doorbell::{Handle, Node, NodeError};
use doorbell_operation::{MetricsServer, SettingValues};

/// Pause of a listener with --keep that could not prepare for its next client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs `doorbell lat`.
pub(crate) fn lat(arguments: &LatArguments) -> Result<(), Failure> {
    run(Kind::Latency, &arguments.common, &arguments.terms(), || {
        arguments.tests()
    })
}

/// Runs `doorbell bw`.
pub(crate) fn bw(arguments: &BwArguments) -> Result<(), Failure> {
    run(Kind::Bandwidth, &arguments.common, &arguments.terms(), || {
        arguments.tests()
    })
}

fn run(
    kind: Kind,
    common: &Common,
    terms: &Terms,
    tests: impl FnOnce() -> Result<Vec<Test>, PerfError>,
) -> Result<(), Failure> {
    // Errors in the command line are reported before any device is opened.
    let settings = common.settings()?;
    let values = settings.values();
    let tests = common.drives().then(tests).transpose()?;
    log::start(values.log);
    let terms = Terms {
        timeout: values.timeout,
        ..terms.clone()
    };
    if common.simulated {
        return simulate(kind, common, &terms, &tests.unwrap_or_default());
    }
    let trusted = trust_of(values)?;
    let target = common.peer.as_deref();
    let target = target
        .map(|peer| arguments::target(peer, terms.timeout))
        .transpose()?;
    // Metrics are served until the last test has ended.
    let (metering, _server) = metering(values.metrics)?;
    let terms = &Terms { metering, ..terms };
    let node = open(values, trusted, common, terms)?;
    let Some(target) = target else {
        return listen(kind, common, &node, terms);
    };
    let findings = drive(&node, &target, &tests.unwrap_or_default(), terms, shown);
    conclude(kind, Role::Client, findings, common)
}

/// The progress of one test, on standard error.
fn shown(test: &Test) -> Progress {
    Progress::on_stderr(format!("{} {} bytes", test.op, test.message_bytes), test.total())
}

/// Runs both ends in this process, on hosts of a simulated fabric.
fn simulate(kind: Kind, common: &Common, terms: &Terms, tests: &[Test]) -> Result<(), Failure> {
    simulated::announce(common.json);
    let [near, far] = simulated::two(&simulated::trust()?)?;
    let (driven, served) = both_ends(&near, || Ok(far), tests, terms)?;
    let mut findings = driven.unwrap_or_else(Findings::nothing);
    findings.failure = findings.failure.or(served.failure);
    conclude(kind, Role::Client, findings, common)
}

/// Starts the listening end in a separate thread, and runs the tests from this one. Returns the findings of both ends. The
/// driving end has none if the listening end could not listen.
///
/// # Errors
/// The listening end failed before it could serve.
pub(crate) fn both_ends<P: Provider, N: Network>(
    node: &Node<P, N>,
    listening: impl FnOnce() -> Result<Node<P, N>, NodeError> + Send,
    tests: &[Test],
    terms: &Terms,
) -> Result<(Option<Findings>, Findings), Failure> {
    let listen = |tell: &mpsc::Sender<Handle>| -> Result<Findings, PerfError> {
        let node = listening()?;
        let mut server = Server::bind(&node, anywhere(0), terms)?;
        // If the receiver is gone, no client will come, and the deadline passes.
        let _ = tell.send(*server.handle());
        Ok(server.serve_one())
    };
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let listening = scope.spawn(move || listen(&tell));
        // The thread either sends its handle, or ends.
        let driven = told
            .recv()
            .ok()
            .map(|handle| drive(node, &Target::Handle(handle), tests, terms, shown));
        let served = listening.join().map_err(|_| "the listening end panicked")?;
        Ok((driven, served?))
    })
}

/// Serves metrics of the measurement, if an address is set, and prints the address.
fn metering(at: Option<SocketAddr>) -> Result<(Metering, Option<MetricsServer>), PerfError> {
    let Some(address) = at else {
        return Ok((Metering::default(), None));
    };
    let (metering, server) = Metering::at(address)?;
    eprintln!("metrics at http://{}/metrics", server.address());
    Ok((metering, Some(server)))
}

/// Opens a node on the rails of the settings.
fn open(
    values: &SettingValues,
    trusted: Trusted,
    common: &Common,
    terms: &Terms,
) -> Result<Arc<Node>, Failure> {
    let rails = match common.gid_index {
        None => values.rails.clone(),
        Some(index) => opened::rail_of_gid(terms.device.as_deref(), index)?,
    };
    let node = opened::node(trusted, &rails)?;
    if terms.device.is_none() {
        opened::log_passed_over(&node, values.log)?;
    }
    Ok(node)
}

fn listen(kind: Kind, common: &Common, node: &Node, terms: &Terms) -> Result<(), Failure> {
    let server = Server::bind(node, common.listen_at(), terms);
    let mut server = server.map_err(|error| match error {
        PerfError::Node(error) => Failure::from(advised(&error)),
        error => error.into(),
    })?;
    eprintln!("listening at {}; handle {}", server.address(), server.handle());
    loop {
        let findings = server.serve_one();
        // With --keep, a timeout without a client is not an error.
        let nobody_came = findings.between.is_none() && findings.timed_out();
        if common.keep && nobody_came {
            continue;
        }
        let is_broken = findings.between.is_none();
        let outcome = conclude(kind, Role::Listener, findings, common);
        if !common.keep {
            return outcome;
        }
        if is_broken {
            // No port is usable, for example. It may become usable again.
            thread::sleep(RETRY_AFTER);
        }
        if let Err(error) = outcome {
            if !error.is::<Reported>() {
                eprintln!("doorbell: {error}");
            }
        }
    }
}

/// Prints the report. Fails if the measurement failed.
fn conclude(kind: Kind, role: Role, findings: Findings, common: &Common) -> Result<(), Failure> {
    let error = findings.failure.as_ref().map(|failure| match failure {
        PerfError::Node(error) => advised(error),
        failure => failure.to_string(),
    });
    let report = Report {
        simulated: common.simulated,
        kind,
        role,
        between: findings.between,
        shared_receives: common.shared_receives,
        tests: findings.rows,
        error: error.clone(),
    };
    match error {
        // Without a connection there is nothing to report except the error.
        Some(error) if report.between.is_none() && !common.json => Err(error.into()),
        error => print_outcome(kind.command(), &report, error, common.json, Report::text),
    }
}

#[cfg(test)]
mod tests;
