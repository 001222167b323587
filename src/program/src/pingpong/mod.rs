//! `doorbell pingpong`: the ping-pong of rdma-core's `ibv_rc_pingpong`, to test against a program that is not part of
//! doorbell.
//!
//! The command line is in [`arguments`], the exchange over TCP in [`wire`] and [`tcp`], the choice of a GID in
//! [`source`], the queue pair and the messages in [`engine`]. This file runs the steps of each role.

use core::time::Duration;
use std::thread;

use doorbell::provider::{Context as _, PortReport, Provider, Psn};
use doorbell::{NodeError, Rdma};

use crate::devices::advised;
use crate::report::{Failure, print};

mod arguments;
mod engine;
mod metering;
mod report;
pub(crate) mod source;
mod tcp;
mod wire;

pub(crate) use arguments::Arguments;
use engine::{Engine, Plan, Role};
use metering::Metering;
use report::{Report, RunResult};
use source::{Peer, Source};
use wire::{DONE, Destination};

/// Time for which the client stays after its last message arrived: if the acknowledgement of it is lost, the peer
/// retransmits. Three times the acknowledgement timeout of the stock program.
const LINGER: Duration = Duration::from_millis(200);

/// Runs one ping-pong.
///
/// # Errors
/// There is no RDMA stack or usable GID, the peer violates the protocol of the exchange or stops, or a payload is
/// wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Metrics are served until the last message has arrived.
    let metering = arguments.metrics.map(Metering::start).transpose()?;
    let metering = metering.as_ref();
    let rdma = Rdma::load().map_err(|error| advised(&NodeError::Library(error)))?;
    let report = match &arguments.host {
        Some(host) => client(&rdma, arguments, host, metering)?,
        None => server(&rdma, arguments, metering)?,
    };
    print("pingpong", &report, arguments.json, Report::to_text)
}

fn client(
    rdma: &Rdma,
    arguments: &Arguments,
    host: &str,
    metering: Option<&Metering>,
) -> Result<Report, Failure> {
    let timeout = arguments.timeout;
    let ports = ports(rdma)?;
    // Errors that do not depend on the peer are reported before it is contacted.
    source::check(&ports, &arguments.wanted())?;
    let mut stream = tcp::connect(host, arguments.port, timeout)?;
    let peer = Peer::Tcp(stream.peer_addr()?.ip());
    let (mut engine, local) = prepare(rdma, arguments, &ports, peer)?;
    tcp::send(&mut stream, &local.encode(), timeout)?;
    let remote = tcp::destination(&mut stream, timeout)?;
    engine.connect(&remote)?;
    tcp::send(&mut stream, &DONE, timeout)?;
    drop(stream);
    note(metering, &engine, &remote);
    let took = engine.run(Role::Client)?;
    let report = report(&engine, Role::Client, local, remote, took);
    thread::sleep(LINGER);
    Ok(report)
}

fn server(rdma: &Rdma, arguments: &Arguments, metering: Option<&Metering>) -> Result<Report, Failure> {
    let timeout = arguments.timeout;
    let listener = tcp::listen(arguments.port)?;
    // The GID depends on the client's address. Only the existence of a usable one is checked now.
    source::check(&ports(rdma)?, &arguments.wanted())?;
    eprintln!("doorbell: listening on port {}", arguments.port);
    let mut stream = tcp::accept(&listener, arguments.wait)?;
    drop(listener);
    let remote = tcp::destination(&mut stream, timeout)?;
    let (mut engine, local) = prepare(rdma, arguments, &ports(rdma)?, Peer::Gid(remote.gid))?;
    // Receives are posted before the client can know the address.
    engine.connect(&remote)?;
    tcp::send(&mut stream, &local.encode(), timeout)?;
    tcp::done(&mut stream, timeout)?;
    note(metering, &engine, &remote);
    let took = engine.run(Role::Server)?;
    Ok(report(&engine, Role::Server, local, remote, took))
}

/// Sets the source of the metrics, if metrics are served.
fn note(metering: Option<&Metering>, engine: &Engine<Rdma>, remote: &Destination) {
    if let Some(metering) = metering {
        metering.note(engine.source(), engine.statistics(), remote.gid.to_ip());
    }
}

/// All ports, which may be unusable. Fails if there are none.
fn ports(rdma: &Rdma) -> Result<Vec<PortReport>, Failure> {
    let mut ports = Vec::new();
    let mut failed = Vec::new();
    rdma.scan(&mut |report| ports.push(report.clone()), &mut |device, error| {
        failed.push(format!("{device}: {error}"));
    })
    .map_err(|error| advised(&NodeError::Provider(error)))?;
    if ports.is_empty() {
        let why = if failed.is_empty() {
            "there is none".to_owned()
        } else {
            failed.join("; ")
        };
        return Err(advised(&NodeError::NothingUsable(why)).into());
    }
    Ok(ports)
}

/// Creates this end, and returns its address.
fn prepare(
    rdma: &Rdma,
    arguments: &Arguments,
    ports: &[PortReport],
    peer: Peer,
) -> Result<(Engine<Rdma>, Destination), Failure> {
    let source: Source = source::choose(ports, &arguments.wanted(), peer)?;
    let context = rdma.open(&source.device)?;
    let plan = Plan {
        message_bytes: arguments.size,
        iterations: arguments.iters,
        receive_depth: arguments.receive_depth(context.limits().queue_depth_max)?,
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
        // RoCE has no LID.
        lid: 0,
        qpn: engine.qpn(),
        psn,
        gid: engine.source().gid,
    };
    Ok((engine, local))
}

fn report(
    engine: &Engine<Rdma>,
    role: Role,
    local: Destination,
    remote: Destination,
    took: Duration,
) -> Report {
    Report::new(&RunResult {
        role,
        source: engine.source(),
        local,
        remote,
        plan: *engine.plan(),
        inline: engine.is_inline(),
        took,
    })
}
