//! Opens the node of a command with its options, and reports ports that are skipped.

use core::net::IpAddr;
use std::sync::Arc;

use doorbell::provider::{GidEntry, PortReport, Provider as _};
use doorbell::{Node, NodeError, RailFilter, Rdma, Trust, Worker, WorkerConfig};
use doorbell_operation::LogLevel;

use crate::devices::advised;
use crate::peers::{Trusted, follow};
use crate::pingpong::source::gid_at;
use crate::report::Failure;

/// Opens a node that trusts these peers, on the rails that the rules allow, and follows changes of the key file.
///
/// # Errors
/// libibverbs is missing, or no thread or no random bytes are available.
pub(crate) fn node(trusted: Trusted, rails: &RailFilter) -> Result<Arc<Node>, Failure> {
    let mut node = Node::open(trusted.trust).map_err(|error| advised(&error))?;
    node.set_rail_filter(rails.clone());
    let node = Arc::new(node);
    if let Some(file) = trusted.file {
        follow(file, &node)?;
    }
    Ok(node)
}

/// Creates a Worker on each usable device.
///
/// # Errors
/// No device is usable. The error lists each port with its reason, and explains how to get a device.
pub(crate) fn workers(node: &Node, config: &WorkerConfig) -> Result<Vec<Worker>, Failure> {
    Ok(node.workers(config).map_err(|error| advised(&error))?)
}

/// Lists on standard error the ports that are skipped although no rule excludes them, unless the log lists them.
///
/// # Errors
/// The devices cannot be listed.
pub(crate) fn log_passed_over(node: &Node, log: LogLevel) -> Result<(), Failure> {
    if matches!(log, LogLevel::Off | LogLevel::Error) {
        for what in node.passed_over().map_err(|error| advised(&error))? {
            eprintln!("doorbell: passed over: {what}");
        }
    }
    Ok(())
}

/// Returns the rule that keeps only the rail of this GID, on the named device or on the only device that has it.
///
/// # Errors
/// No usable port has a RoCEv2 GID with an address at this index, or several have.
pub(crate) fn rail_of_gid(device: Option<&str>, index: u32) -> Result<RailFilter, Failure> {
    let rdma = Rdma::load().map_err(|error| advised(&NodeError::Library(error)))?;
    let mut ports = Vec::new();
    let scanned = rdma.scan(&mut |report| ports.push(report.clone()), &mut |_, _| {});
    scanned.map_err(|error| advised(&NodeError::Provider(error)))?;
    rule_of_gid(&ports, device, index)
}

fn rule_of_gid(ports: &[PortReport], device: Option<&str>, index: u32) -> Result<RailFilter, Failure> {
    let named = |report: &&PortReport| device.is_none_or(|device| device == report.device.as_str());
    let (mut found, mut refused) = (Vec::<IpAddr>::new(), Vec::new());
    for report in ports.iter().filter(named) {
        match gid_at(report, index) {
            Ok(GidEntry {
                address: Some(address),
                ..
            }) => found.push(address.address()),
            Ok(_) => refused.push(format!("GID {index} of {} has no address here", report.device)),
            Err(why) => refused.push(why.to_string()),
        }
    }
    match found.as_slice() {
        [address] => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            Ok(format!("{address}/{bits}")
                .parse()
                .map_err(|error| format!("--gid-index {index}: {error}"))?)
        }
        [] if refused.is_empty() => Err(format!(
            "--gid-index {index}: there is no RDMA device {}; see `doorbell devices`",
            device.unwrap_or("here")
        )
        .into()),
        [] => Err(format!(
            "--gid-index {index}: {}; `doorbell devices` lists the GIDs",
            refused.join("; ")
        )
        .into()),
        several => Err(format!(
            "--gid-index {index}: {} ports have an address there: name one with --device",
            several.len()
        )
        .into()),
    }
}

/// Returns rules that keep only the first rails of this host, in the order of preference.
///
/// # Errors
/// libibverbs is missing, or the devices cannot be listed.
pub(crate) fn first_rails(count: usize) -> Result<RailFilter, Failure> {
    let rails = Node::open(Trust::unauthenticated_on_purpose()).and_then(|node| node.rails());
    let rails = rails.map_err(|error| advised(&error))?;
    let rules: Vec<_> = rails
        .iter()
        .filter_map(|rail| {
            let address = rail.source.ok()?.address.address();
            let bits = if address.is_ipv4() { 32 } else { 128 };
            Some(format!("{address}/{bits}"))
        })
        .take(count)
        .collect();
    if rules.is_empty() {
        // Without rules, the error that lists all rails gives the reasons.
        return Ok(RailFilter::default());
    }
    let rules = rules.join(",");
    Ok(rules
        .parse()
        .map_err(|error| format!("--rails {count}: {rules}: {error}"))?)
}

#[cfg(test)]
mod tests {
    use doorbell::provider::{GidKind, PortReport, PortState};

    use super::rule_of_gid;
    use crate::devices::tests::port;
    use crate::pingpong::source::tests::gid;

    fn two() -> [PortReport; 2] {
        let gids = |end: u8| {
            let address = format!("10.0.{end}.1");
            let mut old = gid(0, &address, 24);
            old.kind = GidKind::RoceV1;
            vec![old, gid(1, &address, 24)]
        };
        [port("rxe0", gids(0)), port("rxe1", gids(1))]
    }

    fn rule(ports: &[PortReport], device: Option<&str>, index: u32) -> String {
        match rule_of_gid(ports, device, index) {
            Ok(filter) => filter.to_string(),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn only_a_rocev2_gid_of_a_usable_port_is_taken() {
        let mut ports = two();
        assert_eq!(rule(&ports, Some("rxe1"), 1), "10.0.1.1/32");
        let old =
            "--gid-index 0: GID 0 of rxe0 port 1 is RoCEv1, not RoCEv2; `doorbell devices` lists the GIDs";
        assert_eq!(rule(&ports, Some("rxe0"), 0), old);
        let missing = "--gid-index 7: rxe0 port 1 has no GID at index 7; rxe1 port 1 has no GID at index 7; `doorbell devices` lists the GIDs";
        assert_eq!(rule(&ports, None, 7), missing);
        let several = "--gid-index 1: 2 ports have an address there: name one with --device";
        assert_eq!(rule(&ports, None, 1), several);
        let unknown = "--gid-index 1: there is no RDMA device mlx5_0; see `doorbell devices`";
        assert_eq!(rule(&ports, Some("mlx5_0"), 1), unknown);
        ports[0].state = PortState::DOWN;
        assert_eq!(rule(&ports, None, 1), "10.0.1.1/32");
        ports[1].gids[1].address = None;
        assert!(rule(&ports, Some("rxe1"), 1).contains("GID 1 of rxe1 has no address here"));
    }
}
