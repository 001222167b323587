//! Hosts of a simulated fabric in this process, for commands that can be tried without a device.

use core::net::IpAddr;

use doorbell::provider::{Instant, IpPrefix};
use doorbell::trust::{KEY_BYTES_MIN, Key};
use doorbell::{KeyRing, Node, Trust};
use doorbell_sim::{Fabric, Host, PortConfig};

use crate::perf::PerfError;
use crate::report::Failure;

/// The meaning of the figures of a simulated run, in one line.
pub(crate) const NOTICE: &str = "SIMULATED: no RDMA device takes part; the bytes are checked as on one, and the figures measure this program alone, \
     neither a device nor a network";

/// The device of each simulated host that has one.
pub(crate) const DEVICE: &str = "sim0";

/// Announces the simulation before the first measurement: in the output, or with JSON on standard error.
pub(crate) fn announce(is_json: bool) {
    if is_json {
        eprintln!("{NOTICE}");
    } else {
        println!("{NOTICE}\n");
    }
}

/// Creates a key for this run: all ends are in this process, and other peers are rejected.
///
/// # Errors
/// No random bytes are available.
pub(crate) fn trust() -> Result<Trust, Failure> {
    let mut secret = [0; KEY_BYTES_MIN];
    getrandom::fill(&mut secret).map_err(|_| PerfError::Entropy)?;
    Ok(Trust::keys(KeyRing::new(Key::new(1, &secret)?)))
}

/// Lets simulated time pass until the next event, and until `latest` at most.
pub(crate) fn advance(fabric: &Fabric, latest: Instant) {
    match fabric.next_at() {
        Some(at) if at <= latest => drop(fabric.step()),
        _ => fabric.run_until(latest),
    }
}

/// Creates two hosts in one simulated subnet.
///
/// # Errors
/// The fabric rejects the hosts.
pub(crate) fn two(trust: &Trust) -> Result<[Node<Host, Host>; 2], Failure> {
    let fabric = Fabric::new();
    Ok([host(&fabric, 1, 1, trust)?, host(&fabric, 2, 1, trust)?])
}

/// Creates a host with this many rails, each in a separate subnet. Its number is the last part of its addresses.
///
/// # Errors
/// The fabric rejects the host.
pub(crate) fn host(
    fabric: &Fabric,
    number: u8,
    rails: u8,
    trust: &Trust,
) -> Result<Node<Host, Host>, Failure> {
    let port = |rail: u8| -> Result<PortConfig, Failure> {
        let prefix = IpPrefix::new(IpAddr::from([10, 0, rail, number]), 24).map_err(|_| "no such subnet")?;
        Ok(PortConfig::new(&format!("sim{rail}"), &[prefix]))
    };
    let ports = (0..rails).map(port).collect::<Result<_, _>>()?;
    let host = fabric.host(&format!("host{number}"), ports)?;
    Ok(Node::with(host.clone(), host, trust.clone())?)
}
