//! `doorbell topo` and `doorbell preflight`: the rails of hosts, the pairs that reach each other, and expected failures.
//!
//! This file surveys hosts or reads their snapshots. The output is written in [`report`], [`text`] and [`svg`].

use core::net::IpAddr;
use std::fs;
use std::path::{Path, PathBuf};

use doorbell::{RailFilter, Rdma};
use doorbell_operation::{Map, SettingValues, Severity, Topology, preflight};

use crate::configured::Configured;
use crate::log;
use crate::report::{Failure, print, print_outcome};
use crate::text_file;

mod report;
mod svg;
mod text;

#[cfg(test)]
mod tests;

/// Draw hosts: their rails, the subnets between them, the pairs of rails that reach each other, and reasons why others do not
///
/// The command looks at this host, or with --snapshot at saved hosts. Save a file on each host,
/// bring the files together, and see the whole:
///
///   doorbell topo --save a.json                         on each host
///   doorbell topo --snapshot a.json --snapshot b.json --svg mesh.svg
///
/// Each rail has its address, interface, speed, MTU, lane, NUMA node and PCI address, or the reason why it is not used. Every two
/// hosts have a list of the pairs of rails that carry messages, the best first, and of the rails without a pair, with the reason.
/// For two hosts without a pair, the output has the shortest route through other hosts. `doorbell preflight` reports what will
/// fail.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct TopoArguments {
    #[command(flatten)]
    look: HostOptions,

    /// Save this host to FILE, for --snapshot on another host
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Draw a picture of the hosts to FILE, in SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print one JSON document: hosts, pairs, routes and findings
    #[arg(long)]
    json: bool,
}

/// Find failures to come, and their causes, before anything hangs
///
/// The command checks this host, or with --snapshot saved hosts, and every two of them: ports, GIDs, MTU, partition keys,
/// neighbours, ARP settings, routes, prefix lengths. Each finding has the fact, its consequence and the remedy; docs/rails.md
/// lists all findings.
///
/// The command changes nothing. It sends one datagram to each address of a named peer that shares a subnet with this host. Peers
/// are named by --peer, or by --snapshot together with --here. In this way it detects a neighbour that does not answer, after a
/// second.
///
/// Exit code: 0 if nothing will fail (there may be notes and warnings). 1 if something will fail, if a host could not be
/// surveyed, or, with --strict, if there is a warning.
#[derive(clap::Args)]
pub(crate) struct PreflightArguments {
    #[command(flatten)]
    look: HostOptions,

    /// The address of a peer that this host has to reach; once for each peer. A peer that does not answer is an error
    #[arg(long = "peer", value_name = "ADDRESS")]
    peers: Vec<IpAddr>,

    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,

    /// Print one JSON document: hosts, pairs, routes and findings
    #[arg(long)]
    json: bool,
}

/// The hosts to look at.
#[derive(clap::Args)]
struct HostOptions {
    /// Look at the host saved in FILE (by `doorbell topo --save`); once for each host
    #[arg(long = "snapshot", value_name = "FILE")]
    snapshots: Vec<PathBuf>,

    /// With --snapshot: look at this host, too
    #[arg(long, requires = "snapshots")]
    here: bool,

    /// The name of this host in the output [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The rails that this host uses, as in `mlx5_*,^mlx5_3,netdev=ens*,10.1.0.0/16`: see docs/rails.md
    #[arg(long, value_name = "RULES")]
    rails: Option<RailFilter>,

    #[command(flatten)]
    configured: Configured,
}

/// Maximum length of a snapshot, many times that of a host with the maximum number of ports.
const SNAPSHOT_BYTES_MAX: u64 = 16 << 20;

/// Draws hosts.
///
/// # Errors
/// A host cannot be surveyed, or a file cannot be read or written.
pub(crate) fn topo(arguments: &TopoArguments) -> Result<(), Failure> {
    if arguments.save.is_some() && !arguments.look.is_here() {
        return Err("--save writes what this host has: with --snapshot it needs --here".into());
    }
    let hosts = arguments.look.hosts()?;
    if let Some(path) = &arguments.save {
        // This host is the last one, if it was surveyed.
        let here = hosts.last().ok_or("--save: no host was looked at")?;
        let mut text = here.to_json()?;
        text.push('\n');
        write(path, &text)?;
    }
    let map = Map::new(&hosts);
    if let Some(path) = &arguments.svg {
        write(path, &svg::draw(&map))?;
    }
    let findings = preflight(&hosts);
    let report = report::Report::new(&map, &findings);
    print("topo", &report, arguments.json, |report| {
        text::topology(report, &findings)
    })
}

/// Finds expected failures.
///
/// # Errors
/// Something will fail, or a host cannot be surveyed.
pub(crate) fn check(arguments: &PreflightArguments) -> Result<(), Failure> {
    if !arguments.peers.is_empty() && !arguments.look.is_here() {
        return Err("--peer is asked for by this host: with --snapshot it needs --here".into());
    }
    let mut hosts = arguments.look.hosts()?;
    arguments.look.ask(&mut hosts, &arguments.peers)?;
    let findings = preflight(&hosts);
    let report = report::Report::new(&Map::new(&hosts), &findings);
    let bad = if arguments.strict {
        Severity::Warning
    } else {
        Severity::Error
    };
    let error = match findings.iter().filter(|finding| finding.severity >= bad).count() {
        0 => None,
        1 => Some("1 finding stands in the way".to_owned()),
        count => Some(format!("{count} findings stand in the way")),
    };
    // The text contains the number of findings.
    print_outcome("preflight", &report, error, arguments.json, |_| {
        text::findings(&findings)
    })
}

impl HostOptions {
    fn is_here(&self) -> bool {
        self.here || self.snapshots.is_empty()
    }

    /// The hosts of the files, followed by this host.
    fn hosts(&self) -> Result<Vec<Topology>, Failure> {
        let said = self.rails.as_ref().map(ToString::to_string);
        let settings = self
            .configured
            .settings(SettingValues::default(), &[("--rails", "rails", said)])?;
        log::start(settings.values().log);
        let rails = settings.values().rails.clone();
        if !self.is_here() && (self.name.is_some() || self.rails.is_some()) {
            return Err("--name and --rails are for this host: with --snapshot they need --here".into());
        }
        let mut hosts = Vec::new();
        for path in &self.snapshots {
            hosts.push(read(path).map_err(|error| format!("{}: {error}", path.display()))?);
        }
        if self.is_here() {
            let mut here = Topology::of_this_host(&Rdma::load()?)?;
            if let Some(name) = &self.name {
                here.host.clone_from(name);
            }
            here.rail_filter = rails;
            hosts.push(here);
        }
        for (index, host) in hosts.iter().enumerate() {
            if hosts.iter().take(index).any(|other| other.host == host.host) {
                return Err(format!(
                    "two hosts are called `{}`: give each a name of its own with --name when it is saved",
                    host.host
                )
                .into());
            }
        }
        Ok(hosts)
    }

    /// Makes this host, which is the last one if it was surveyed, resolve these peers and the rails of the other hosts.
    fn ask(&self, hosts: &mut [Topology], peers: &[IpAddr]) -> Result<(), Failure> {
        let Some((here, others)) = hosts.split_last_mut().filter(|_| self.is_here()) else {
            return Ok(());
        };
        here.peers = peers.to_vec();
        let rails = others.iter().flat_map(Topology::rails);
        let of_rails = rails.filter_map(|rail| Some(rail.source.ok()?.address.address()));
        let peers: Vec<IpAddr> = peers.iter().copied().chain(of_rails).collect();
        if !peers.is_empty() {
            here.ask_neighbours(&peers)?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Topology, Failure> {
    Ok(Topology::from_json(&text_file::read(path, SNAPSHOT_BYTES_MAX)?)?)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}
