//! Hosts, pairs and findings as aligned text.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use doorbell_operation::{Finding, Severity};

use super::report::{Host, Rail, Reach, Report, speed};
use crate::columns::{Align, aligned};

/// Writes hosts, subnets, pairs of rails, and the number of findings.
pub(super) fn topology(report: &Report, found: &[Finding]) -> String {
    let mut text = String::new();
    for host in &report.hosts {
        write_host(&mut text, host);
        text.push('\n');
    }
    write_subnets(&mut text, &report.hosts);
    for reach in &report.reaches {
        write_reach(&mut text, reach);
    }
    text.push_str(&summary(found));
    if !found.is_empty() {
        text.push_str(": `doorbell preflight` lists them");
    }
    text.push('\n');
    text
}

/// Writes all findings, and their number.
pub(super) fn findings(found: &[Finding]) -> String {
    let mut text = String::new();
    for finding in found {
        line(&mut text, format_args!("{finding}"));
    }
    text.push_str(&summary(found));
    text.push('\n');
    text
}

fn summary(found: &[Finding]) -> String {
    let count = |severity, one: &str, many: &str| match found
        .iter()
        .filter(|finding| finding.severity == severity)
        .count()
    {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    format!(
        "{}, {}, {}",
        count(Severity::Error, "error", "errors"),
        count(Severity::Warning, "warning", "warnings"),
        count(Severity::Note, "note", "notes")
    )
}

fn write_host(text: &mut String, host: &Host) {
    let used = host.rails.iter().filter(|rail| rail.reason.is_none()).count();
    line(
        text,
        format_args!(
            "{}  Linux {}, {used} of {} rails used",
            host.host,
            host.kernel,
            host.rails.len()
        ),
    );
    let rows: Vec<[String; 6]> = host
        .rails
        .iter()
        .filter(|rail| rail.reason.is_none())
        .map(|rail| {
            [
                rail.name(),
                rail.address.clone().unwrap_or_default(),
                rail.netdev.clone().unwrap_or_else(|| "-".to_owned()),
                speed(rail.speed_mbps.unwrap_or_default().into()),
                format!("MTU {}", rail.active_mtu_bytes.unwrap_or_default()),
                place(rail),
            ]
        })
        .collect();
    write_rows(text, rows);
    for rail in &host.rails {
        if let Some(reason) = &rail.reason {
            line(text, format_args!("  {}  not used: {reason}", rail.name()));
        }
    }
}

/// Describes the lane of a rail and its location in the machine.
fn place(rail: &Rail) -> String {
    let mut place = rail.lane.clone().unwrap_or_default();
    if let Some(node) = rail.numa_node {
        let _ = write!(place, ", NUMA node {node}");
    }
    if let Some(pci) = &rail.pci_address {
        let _ = write!(place, ", PCI {pci}");
    }
    place
}

fn write_rows<const COLUMNS: usize>(text: &mut String, rows: Vec<[String; COLUMNS]>) {
    for row in aligned("  ", Align::Left, rows).lines() {
        line(text, format_args!("{row}"));
    }
}

fn write_subnets(text: &mut String, hosts: &[Host]) {
    let mut subnets: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for host in hosts {
        for rail in &host.rails {
            if let Some(subnet) = &rail.subnet {
                subnets
                    .entry(subnet)
                    .or_default()
                    .push(format!("{} {}", host.host, rail.name()));
            }
        }
    }
    if subnets.is_empty() {
        return;
    }
    line(text, format_args!("subnets"));
    let rows: Vec<[String; 2]> = subnets
        .into_iter()
        .map(|(subnet, rails)| [subnet.to_owned(), rails.join(" -- ")])
        .collect();
    write_rows(text, rows);
    text.push('\n');
}

fn write_reach(text: &mut String, reach: &Reach) {
    let head = format!("{} to {}", reach.from, reach.to);
    match (reach.pairs.len(), &reach.route) {
        (0, None) => line(text, format_args!("{head}: no way")),
        (0, Some(route)) => line(text, format_args!("{head}: no pair; over {}", route.join(" - "))),
        (1, _) => line(text, format_args!("{head}: 1 pair")),
        (pairs, _) => line(text, format_args!("{head}: {pairs} pairs")),
    }
    let rows: Vec<[String; 4]> = reach
        .pairs
        .iter()
        .map(|pair| {
            [
                pair.local_rail.clone(),
                format!("-- {}", pair.peer_rail),
                speed(pair.speed_mbps.unwrap_or_default()),
                pair.lane.clone(),
            ]
        })
        .collect();
    write_rows(text, rows);
    for without in &reach.without {
        line(
            text,
            format_args!("  {}  in no pair: {}", without.local_rail, without.reason),
        );
    }
    text.push('\n');
}

/// Adds one line, without trailing spaces. Control characters, which could move a terminal's cursor, are replaced.
fn line(text: &mut String, arguments: core::fmt::Arguments<'_>) {
    let whole = arguments.to_string();
    let plain = whole.chars().map(|c| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    });
    text.push_str(plain.collect::<String>().trim_end_matches(' '));
    text.push('\n');
}
