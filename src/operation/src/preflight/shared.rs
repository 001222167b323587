//! Findings about interfaces of one host in the same subnet: whether each receives and sends only for its own addresses.

use std::collections::BTreeSet;

use doorbell::rails::LocalRail;

use super::host::Host;
use super::{FindingKind, Severity};
use crate::topology::{InterfaceFacts, is_link_local};

impl Host<'_> {
    /// Finds interfaces that are in one subnet, and answer ARP requests for each other.
    pub(super) fn shared_subnets(&mut self, rails: &[LocalRail]) {
        let topology = self.topology;
        let on: Vec<_> = rails
            .iter()
            .filter_map(|rail| Some((rail.source.ok()?.address, topology.interface_of(rail)?)))
            .filter(|(address, _)| address.address().is_ipv4() && !is_link_local(address.address()))
            .collect();
        let mut told: Vec<&str> = Vec::new();
        for (address, interface) in &on {
            // A port may have the GIDs of another port's interface, so that an interface can occur twice.
            let others: BTreeSet<&str> = on
                .iter()
                .filter(|(other, at)| {
                    at.name != interface.name
                        && (other.contains(address.address()) || address.contains(other.address()))
                })
                .map(|(_, at)| at.name.as_str())
                .collect();
            let wrong = wrong_settings(interface);
            if others.is_empty() || wrong.is_empty() || told.contains(&interface.name.as_str()) {
                continue;
            }
            told.push(&interface.name);
            let are: Vec<String> = wrong
                .iter()
                .map(|(name, is, _)| format!("{name} is {is}"))
                .collect();
            let what = format!(
                "{} is in subnet {} with {}, and {}",
                interface.name,
                address.subnet(),
                others.into_iter().collect::<Vec<_>>().join(", "),
                are.join(", ")
            );
            let sets: Vec<String> = wrong
                .iter()
                .map(|(name, _, want)| remedy(&interface.name, name, *want))
                .collect();
            let finding = self.finding(Severity::Error, FindingKind::ArpNotHardened, &interface.name, &what)
                .because(
                    "any of them answers for the address of any other: packets arrive at the wrong port, \
                     and connections end in a retry error",
                )
                .so(format!(
                    "sysctl -w {}; and a rule for each address (`ip rule add from ADDRESS table N`, with the subnet's \
                     route by its interface in table N), so that each has a way of its own; or a subnet for each",
                    sets.join(" ")
                ));
            self.found.push(finding);
        }
    }

    /// Finds addresses whose packets leave through another interface, while the settings of their own interface block the
    /// replies.
    pub(super) fn source_routes(&mut self, rails: &[LocalRail]) {
        let topology = self.topology;
        let mut told = BTreeSet::new();
        for route in &topology.routes {
            // A port may have the GIDs of another port's interface, so the finding names the interface.
            let is_from = |rail: &&LocalRail| {
                let source = rail.source.ok();
                source.is_some_and(|source| source.address.address() == route.from)
            };
            let rail = rails.iter().find(is_from);
            let Some((rail, interface)) = rail.and_then(|rail| Some((rail, topology.interface_of(rail)?)))
            else {
                continue;
            };
            if route.netdev.as_ref() == Some(&interface.name) {
                continue;
            }
            let settings = [
                ("arp_filter", interface.arp.filter.filter(|is| *is > 0)),
                // The loose mode (2) accepts such packets.
                ("rp_filter", interface.arp.rp_filter.filter(|is| *is == 1)),
            ];
            let strict: Vec<String> = settings
                .iter()
                .filter_map(|(name, is)| Some(format!("{name} is {}", (*is)?)))
                .collect();
            if strict.is_empty() || !told.insert(route.from) {
                continue;
            }
            let (from, at) = (route.from, &interface.name);
            let leave = match &route.netdev {
                Some(other) => format!("leave by {other}"),
                None => "have no way".to_owned(),
            };
            let what = format!(
                "packets from {from} to its subnet {leave}, not by {at}, where {}",
                strict.join(", ")
            );
            let subnet = rail.source.ok().map(|source| source.address.subnet());
            let subnet = subnet.map_or_else(String::new, |subnet| subnet.to_string());
            let finding = self
                .finding(Severity::Error, FindingKind::SourceRoute, at, &what)
                .because(format!(
                    "{at} then neither answers for this address nor takes what is sent to it: nothing is connected over it"
                ))
                .so(format!(
                    "ip route add {subnet} dev {at} src {from} table N; ip rule add from {from} table N; with an N of its \
                     own for each interface; or a subnet for each"
                ));
            self.found.push(finding);
        }
    }
}

/// The argument of sysctl(8) that sets it. A dot within a name is written as a slash there.
fn remedy(interface: &str, name: &str, want: u8) -> String {
    let own = format!("net.ipv4.conf.{}.{name}={want}", interface.replace('.', "/"));
    match name {
        // The larger value of the interface and of `all` is in effect, and this is the only setting to be lowered.
        "rp_filter" => format!("net.ipv4.conf.all.{name}={want} {own}"),
        _ => own,
    }
}

/// The settings that let an interface answer for others: name, value and required value.
fn wrong_settings(interface: &InterfaceFacts) -> Vec<(&'static str, u8, u8)> {
    let arp = &interface.arp;
    let mut wrong = Vec::new();
    let mut want = |name, is: Option<u8>, want, is_good: fn(u8) -> bool| {
        if let Some(is) = is.filter(|is| !is_good(*is)) {
            wrong.push((name, is, want));
        }
    };
    want("arp_announce", arp.announce, 2, |is| is == 2);
    want("arp_ignore", arp.ignore, 1, |is| is > 0);
    want("arp_filter", arp.filter, 1, |is| is > 0);
    // Modes 0 and 1 are accepted: with both, packets on the wrong path are noticed, since they arrive at the wrong port
    // or are dropped. Mode 2 hides them.
    want("rp_filter", arp.rp_filter, 1, |is| is < 2);
    wrong
}
