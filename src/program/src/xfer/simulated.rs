//! Both ends in this process, on two hosts of a simulated fabric with two rails between them.

use core::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use doorbell::WorkerConfig;
use doorbell::link::LinkConfig;
use doorbell_sim::{Fabric, Host, LinkConfig as Wire};

use core::time::Duration;

use super::end::{End, Limits, Part};
use super::interrupt::{self, Interrupt};
use super::line::Line;
use super::plan::Plan;
use super::receiver::Receiver;
use super::report::Report;
use super::source::SourceFile;
use super::{Arguments, Fault, region, sender};
use crate::report::Failure;
use crate::simulated;

/// The port of the listening side.
const PORT: u16 = 7000;

/// The number of rails between the two hosts.
const RAILS: u8 = 2;

/// The wire of a rail.
const WIRE: Wire = Wire {
    latency_ns: 5_000,
    bandwidth_mbps: Some(10_000),
};

/// The longest step of simulated time between two polls.
const TURN: Duration = Duration::from_millis(1);

type Side = End<Host, Host>;

/// Two ends, and the fabric between them.
pub(super) struct SimulatedPair {
    pub(super) fabric: Fabric,
    pub(super) sender: Side,
    pub(super) receiver: Side,
}

impl SimulatedPair {
    /// Creates two ends of a link, and begins to connect them.
    ///
    /// # Errors
    /// The link cannot be created, or there is not enough memory.
    pub(super) fn new(
        fabric: Fabric,
        (config, own): (&LinkConfig, &WorkerConfig),
        (opened, plan): (SourceFile, Plan),
        (out, memory): (PathBuf, u64),
        limits: Limits,
    ) -> Result<Self, Failure> {
        let trust = simulated::trust()?;
        let line = |number| -> Result<Line<Host, Host>, Failure> {
            let node = Arc::new(simulated::host(&fabric, number, RAILS, &trust)?);
            let workers = node.workers(own)?;
            Line::new(node, workers, config)
        };
        let (mut from, mut to) = (line(1)?, line(2)?);
        let any = SocketAddr::from(([0, 0, 0, 0], PORT));
        let handle = to.links.listen_polled(&to.node, &to.workers, any)?;
        from.connect(&handle)?;
        // No more than the file needs, whose length is known here.
        let memory = memory.min(plan.chunks().saturating_mul(plan.chunk_bytes));
        let receiver = Receiver::new(out, region(&to, usize::try_from(memory)?)?);
        let sender = sender(&from, opened, plan)?;
        Ok(Self {
            fabric,
            sender: End::new(from, Part::Send(sender), limits),
            receiver: End::new(to, Part::Receive(receiver), limits),
        })
    }

    /// Runs a turn of both ends, and advances the time. The time stands still while files are read
    /// and written.
    ///
    /// # Errors
    /// A Worker cannot be polled.
    pub(super) fn step(&mut self) -> Result<(), Failure> {
        let mut next = self.fabric.now().after(TURN);
        for side in [&mut self.sender, &mut self.receiver] {
            if side.is_over() {
                continue;
            }
            side.turn(true)?;
            if let Some(wake) = side.line.links.wake(self.fabric.now()) {
                next = next.min(wake.instant());
            }
        }
        simulated::advance(&self.fabric, next);
        Ok(())
    }

    /// Runs both ends until nothing more has to be done.
    ///
    /// # Errors
    /// A Worker cannot be polled.
    pub(super) fn run(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        while !self.sender.is_over() || !self.receiver.is_over() {
            if interrupt.is_raised() {
                self.sender.give_up(Fault::both(interrupt::WHY.to_owned()));
            }
            self.step()?;
        }
        Ok(())
    }
}

/// Runs both ends. Returns the report of the sender, with the failure of the receiver.
///
/// # Errors
/// The link cannot be created.
pub(super) fn run(
    arguments: &Arguments,
    config: &LinkConfig,
    (opened, plan): (SourceFile, Plan),
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let fabric = Fabric::builder().link(WIRE).driven().build();
    let place = (arguments.out(), arguments.memory);
    let name = arguments.name();
    let configs = (config, &arguments.worker_config());
    let mut two = SimulatedPair::new(fabric, configs, (opened, plan), place, arguments.limits())?;
    two.run(interrupt)?;
    let mut report = Report::of(&two.sender, name, arguments.piece);
    report.simulated = true;
    if let (None, Some(failure)) = (&report.error, &two.receiver.failure) {
        report.error = Some(format!("the receiver: {failure}"));
    }
    Ok(report)
}
