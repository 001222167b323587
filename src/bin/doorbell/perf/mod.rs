//! `doorbell lat` and `doorbell bw`: how fast messages get to a peer, every byte checked.
//!
//! What is asked for on the command line is here. What is measured and how stands in
//! [`latency`] and [`bandwidth`], which are generic over the provider; [`session`] is the way
//! in for other commands.

mod arguments;
mod atomic;
mod bandwidth;
mod control;
mod error;
#[cfg(test)]
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
#[cfg(test)]
pub(crate) use message::{Message, Setup};
pub(crate) use metering::Metering;
pub(crate) use progress::Progress;
pub(crate) use report::{Between, Report, Row, table};
pub(crate) use session::{Findings, Server, drive};
pub(crate) use terms::{Target, Terms};
pub(crate) use test::{Kind, Op, Role, Test};

use core::net::SocketAddr;
use std::sync::Arc;

use crate::log;
use crate::opened;
use crate::peers::{Trusted, trust_of};
use crate::report::{Failure, print};
use arguments::Common;
use doorbell::{MetricsServer, Node, SettingValues};

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
    let settings = common.settings()?;
    let values = settings.values();
    log::start(values.log);
    let trusted = trust_of(values)?;
    // It tells until the last test is over.
    let (metering, _server) = metering(values.metrics)?;
    let terms = &Terms {
        metering,
        timeout: values.timeout,
        ..terms.clone()
    };
    let Some(peer) = &common.peer else {
        let node = open(values, trusted, terms)?;
        return listen(kind, common, &node, terms);
    };
    // What is wrong with the command line is said before anything is opened.
    let (tests, target) = (tests()?, arguments::target(peer, terms.timeout)?);
    let node = open(values, trusted, terms)?;
    let findings = drive(&node, &target, &tests, terms, |test| {
        Progress::on_stderr(format!("{} {} bytes", test.op, test.message_bytes), test.total())
    });
    conclude(kind, Role::Client, findings, common)
}

/// Tells of the measurement where that was asked for; says where.
fn metering(at: Option<SocketAddr>) -> Result<(Metering, Option<MetricsServer>), PerfError> {
    let Some(address) = at else {
        return Ok((Metering::default(), None));
    };
    let (metering, server) = Metering::at(address)?;
    eprintln!("metrics at http://{}/metrics", server.address());
    Ok((metering, Some(server)))
}

/// A node on the rails that settings name.
fn open(values: &SettingValues, trusted: Trusted, terms: &Terms) -> Result<Arc<Node>, Failure> {
    let node = opened::node(trusted, &values.rails)?;
    if terms.device.is_none() {
        opened::say_passed_over(&node, values.log)?;
    }
    Ok(node)
}

fn listen(kind: Kind, common: &Common, node: &Node, terms: &Terms) -> Result<(), Failure> {
    let mut server = Server::bind(node, common.listen_at(), terms)?;
    eprintln!("listening at {}; handle {}", server.address(), server.handle());
    loop {
        let findings = server.serve_one();
        // With --keep, nobody having come yet is no reason to stop.
        let nobody_came = findings.between.is_none() && findings.timed_out();
        if common.keep && nobody_came {
            continue;
        }
        let outcome = conclude(kind, Role::Listener, findings, common);
        if !common.keep {
            return outcome;
        }
        if let Err(error) = outcome {
            eprintln!("doorbell: {error}");
        }
    }
}

/// Reports what was found; fails where the measurement did.
fn conclude(kind: Kind, role: Role, findings: Findings, common: &Common) -> Result<(), Failure> {
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        kind,
        role,
        between: findings.between,
        shared_receives: common.shared_receives,
        tests: findings.rows,
        passed: findings.failure.is_none(),
        error: findings.failure.as_ref().map(ToString::to_string),
    };
    // Without a connection there is nothing to tell but the error.
    if report.between.is_some() || common.json {
        print(&report, common.json, Report::text)?;
    }
    findings.failure.map_or(Ok(()), |error| Err(error.into()))
}

#[cfg(test)]
mod tests;
