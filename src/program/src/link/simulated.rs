//! Both ends of a link in this process, on two hosts of a simulated fabric with two rails between them.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::LinkConfig;
use doorbell_sim::{Fabric, Host, LinkConfig as Wire};

use super::end::{End, Part};
use super::report::{Criteria, Report};
use super::{Arguments, worker_config};
use crate::report::Failure;
use crate::simulated;

/// The port of the listening side.
const PORT: u16 = 7000;

/// The number of rails between the two hosts.
const RAILS: u8 = 2;

/// The wire of a rail: slow, so that simulating seconds takes little time.
const WIRE: Wire = Wire {
    latency_ns: 5_000,
    bandwidth_mbps: Some(100),
};

/// The longest step of simulated time between two polls.
const TURN: Duration = Duration::from_millis(2);

/// Runs both ends. Returns the report of the connecting end, with the failures of both.
///
/// # Errors
/// The link cannot be created.
pub(super) fn run(arguments: &Arguments, config: &LinkConfig, part: Part) -> Result<Report, Failure> {
    let trust = simulated::trust()?;
    let fabric = Fabric::builder().link(WIRE).driven().build();
    let end = |number, part| -> Result<End<Host, Host>, Failure> {
        let node = Arc::new(simulated::host(&fabric, number, RAILS, &trust)?);
        let workers = node.workers(&worker_config(arguments))?;
        End::new(node, workers, config, part)
    };
    let (mut client, mut listener) = (end(1, part)?, end(2, Part::Listener)?);
    let any = SocketAddr::from(([0, 0, 0, 0], PORT));
    let handle = listener
        .links
        .listen_polled(&listener.node, &listener.workers, any)?;
    client.connect(&handle)?;
    let is_hanging = go_on(&fabric, [&mut client, &mut listener], arguments.timeout)?;
    let judged = Criteria {
        is_hanging,
        ..Criteria::of(arguments)
    };
    let reports = [&mut client, &mut listener].map(|end| {
        end.watch.ended(end.now());
        Report::of(end, &judged)
    });
    let [mut report, other] = reports;
    report.simulated = true;
    report.add_failures_of(&other);
    Ok(report)
}

/// Runs both ends until the link has ended. Returns whether they hang, by the clock of the fabric.
fn go_on(fabric: &Fabric, mut sides: [&mut End<Host, Host>; 2], timeout: Duration) -> Result<bool, Failure> {
    let began = fabric.now();
    while !sides.iter().all(|side| side.is_over()) {
        let now = fabric.now();
        let mut next = now.after(TURN);
        let mut since = began;
        for side in &mut sides {
            since = since.max(side.watch.progress_at.unwrap_or(began));
            if side.is_over() {
                continue;
            }
            side.turn()?;
            if let Some(wake) = side.links.wake(now) {
                next = next.min(wake.instant());
            }
        }
        if now > since.after(timeout) {
            return Ok(true);
        }
        simulated::advance(fabric, next);
    }
    Ok(false)
}
