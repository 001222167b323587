//! The proof that bytes crossed rxe: the hardware counters of every RDMA device before and after the steps.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use crate::cluster::{Cluster, CommandSpec, ProcessEvent};

/// How long reading one host's counters may take; an emulated guest under load needs seconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// Packets that crossed the RDMA devices during a run.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Traffic {
    /// Whether a run without any fails.
    pub(crate) required: bool,
    pub(crate) sent_pkts: u64,
    pub(crate) rcvd_pkts: u64,
    pub(crate) devices: Vec<DeviceTraffic>,
}

/// One device's share.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceTraffic {
    pub(crate) host: String,
    pub(crate) device: String,
    pub(crate) link: String,
    pub(crate) sent_pkts: u64,
    pub(crate) rcvd_pkts: u64,
}

/// The counters of every device at one moment, by host and device: sent, received.
pub(super) type Reading = BTreeMap<(String, String), (u64, u64)>;

/// Reads the counters of all RDMA devices of all hosts.
///
/// # Errors
///
/// A host does not answer, or a device has no such counters.
pub(super) fn read(cluster: &dyn Cluster) -> Result<Reading> {
    let mut reading = Reading::new();
    for host in cluster.hosts().iter().filter(|host| !host.ports.is_empty()) {
        // By netlink, through iproute2: sysfs has no counters for a device born in a network namespace.
        let argv = ["rdma", "statistic", "show"].map(str::to_owned).to_vec();
        let text = run(cluster, &host.name, argv)
            .with_context(|| format!("cannot read the RDMA counters of host `{}`", host.name))?;
        for port in &host.ports {
            let find = |counter| {
                counter_in(&text, &port.device, counter).with_context(|| {
                    format!(
                        "device `{}` of host `{}` has no counter {counter}",
                        port.device, host.name
                    )
                })
            };
            let counts = (find("sent_pkts")?, find("rcvd_pkts")?);
            reading.insert((host.name.clone(), port.device.clone()), counts);
        }
    }
    Ok(reading)
}

/// Returns the traffic between two readings.
pub(super) fn between(cluster: &dyn Cluster, before: &Reading, after: &Reading, required: bool) -> Traffic {
    let mut traffic = Traffic {
        required,
        ..Traffic::default()
    };
    for host in cluster.hosts() {
        for port in &host.ports {
            let key = (host.name.clone(), port.device.clone());
            let (Some(&(sent_0, rcvd_0)), Some(&(sent_1, rcvd_1))) = (before.get(&key), after.get(&key))
            else {
                continue;
            };
            let (sent_pkts, rcvd_pkts) = (sent_1.saturating_sub(sent_0), rcvd_1.saturating_sub(rcvd_0));
            traffic.sent_pkts = traffic.sent_pkts.saturating_add(sent_pkts);
            traffic.rcvd_pkts = traffic.rcvd_pkts.saturating_add(rcvd_pkts);
            let (host, device) = key;
            traffic.devices.push(DeviceTraffic {
                host,
                device,
                link: port.link.clone(),
                sent_pkts,
                rcvd_pkts,
            });
        }
    }
    traffic
}

/// One counter in lines of the form `link DEVICE/PORT NAME VALUE NAME VALUE …`.
fn counter_in(text: &str, device: &str, counter: &str) -> Option<u64> {
    let link = format!("link {device}/1 ");
    let mut words = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&link))?
        .split_whitespace();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        if name == counter {
            return value.parse().ok();
        }
    }
    None
}

/// Runs a short command on a host and gives back its standard output.
///
/// # Errors
///
/// It cannot be started, ends otherwise than with 0 (the message has its standard error), or takes too long.
pub(super) fn run(cluster: &dyn Cluster, host: &str, argv: Vec<String>) -> Result<String> {
    let deadline = Instant::now()
        .checked_add(DEADLINE)
        .context("the clock is at its end")?;
    let mut process = cluster.spawn(
        host,
        &CommandSpec {
            argv,
            ..CommandSpec::default()
        },
    )?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match process.next_event(deadline)? {
            Some(ProcessEvent::Stdout(bytes)) => out.extend(bytes),
            Some(ProcessEvent::Stderr(bytes)) => err.extend(bytes),
            Some(ProcessEvent::Exited(exit)) => {
                ensure!(exit.success(), "{exit}: {}", String::from_utf8_lossy(&err).trim());
                return Ok(String::from_utf8_lossy(&out).into_owned());
            }
            None => bail!("no end after {} s", DEADLINE.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_under_its_own_device_and_name() {
        let text = "link rxe_a_0/1 sent_pkts 7 rcvd_pkts 8 duplicate_request 0 \n\
                    link rxe_a_01/1 sent_pkts 9 rcvd_pkts 10 duplicate_request 0 \n";
        assert_eq!(counter_in(text, "rxe_a_0", "rcvd_pkts"), Some(8));
        assert_eq!(counter_in(text, "rxe_a_01", "sent_pkts"), Some(9));
        assert_eq!(counter_in(text, "rxe_a_0", "sent"), None);
        assert_eq!(counter_in(text, "rxe_b_0", "sent_pkts"), None);
    }
}
