//! Opens the node of a command with its options, and reports ports that are skipped.

use core::net::IpAddr;
use std::sync::Arc;

use doorbell::provider::Provider as _;
use doorbell::{Node, NodeError, RailFilter, Rdma, Trust, Worker, WorkerConfig};
use doorbell_operation::LogLevel;

use crate::devices::advised;
use crate::peers::Trusted;
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
        file.follow(&node)?;
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
pub(crate) fn say_passed_over(node: &Node, log: LogLevel) -> Result<(), Failure> {
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
/// No port has an address at this index, or several have.
pub(crate) fn rail_of_gid(device: Option<&str>, index: u32) -> Result<RailFilter, Failure> {
    let rdma = Rdma::load().map_err(|error| advised(&NodeError::Library(error)))?;
    let (mut found, mut tables) = (Vec::<IpAddr>::new(), Vec::new());
    let scanned = rdma.scan(
        &mut |report| {
            if device.is_some_and(|device| device != report.device.as_str()) {
                return;
            }
            for entry in &report.gids {
                let gid = format!("{} GID {}", report.device, entry.index);
                match entry.address {
                    Some(address) if entry.index == index => found.push(address.address()),
                    _ => tables.push(gid),
                }
            }
        },
        &mut |_, _| {},
    );
    scanned.map_err(|error| advised(&NodeError::Provider(error)))?;
    match found.as_slice() {
        [address] => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            Ok(format!("{address}/{bits}").parse().map_err(|error| format!("--gid-index {index}: {error}"))?)
        }
        [] => Err(format!(
            "--gid-index {index}: no usable port has an address there; `doorbell devices` lists the GIDs ({} others)",
            tables.len()
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
