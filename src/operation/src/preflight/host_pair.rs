//! Findings about two hosts: mismatches between their configurations.

use doorbell::rails::{LocalRail, PairedRails};

use super::host::PARTITION;
use super::{Finding, FindingKind, Severity};
use crate::topology::{Map, Topology, is_link_local, name_of};

/// Checks every pair of hosts.
pub(super) fn findings(map: &Map<'_>, found: &mut Vec<Finding>) {
    for from in 0..map.hosts() {
        for to in from.saturating_add(1)..map.hosts() {
            if let (Some(ours), Some(theirs)) = (map.topology(from), map.topology(to)) {
                let mut two = HostPair { ours, theirs, found };
                two.reached(map, from, to);
                let locals: Vec<&LocalRail> = map.rails(from).collect();
                let peers: Vec<&LocalRail> = map.rails(to).collect();
                two.addresses(&locals, &peers);
                for paired in map.reach(from, to).into_iter().flat_map(|reach| &reach.pairs) {
                    two.pair(&locals, &peers, paired);
                }
            }
        }
    }
}

struct HostPair<'m> {
    ours: &'m Topology,
    theirs: &'m Topology,
    found: &'m mut Vec<Finding>,
}

impl HostPair<'_> {
    fn finding(&self, severity: Severity, kind: FindingKind, subject: &str, what: &str) -> Finding {
        Finding::new((severity, kind), &self.ours.host, subject, what)
    }

    /// Checks whether one host can reach the other.
    fn reached(&mut self, map: &Map<'_>, from: usize, to: usize) {
        let Some(reach) = map.reach(from, to).filter(|reach| reach.pairs.is_empty()) else {
            return;
        };
        let reasons: Vec<String> = reach
            .without
            .iter()
            .filter_map(|(index, reason)| {
                Some(format!("{}: {reason}", name_of(map.rails(from).nth(*index)?)))
            })
            .collect();
        let why = if reasons.is_empty() {
            "it has no rail that can be used".to_owned()
        } else {
            reasons.join("; ")
        };
        let subject = format!("to {}", self.theirs.host);
        match map.route(from, to) {
            Some(route) => {
                let past: Vec<&str> = route
                    .iter()
                    .filter_map(|host| Some(map.topology(*host)?.host.as_str()))
                    .collect();
                let what = format!("no rail reaches it; the shortest way is {}", past.join(" - "));
                let finding = self
                    .finding(Severity::Warning, FindingKind::NotReached, &subject, &what)
                    .because(why)
                    .so("messages have to be passed on by the hosts between");
                self.found.push(finding);
            }
            None => {
                let finding = self
                    .finding(
                        Severity::Error,
                        FindingKind::NotReached,
                        &subject,
                        "no rail reaches it",
                    )
                    .because(why)
                    .so("give both hosts an address in one subnet, on one link");
                self.found.push(finding);
            }
        }
    }

    /// Finds addresses that are used twice, and subnets on which the hosts disagree.
    fn addresses(&mut self, locals: &[&LocalRail], peers: &[&LocalRail]) {
        for local in locals {
            for peer in peers {
                let (Ok(ours), Ok(theirs)) = (local.source, peer.source) else {
                    continue;
                };
                let (ours, theirs) = (ours.address, theirs.address);
                if is_link_local(ours.address()) || is_link_local(theirs.address()) {
                    continue;
                }
                if ours.address() == theirs.address() {
                    let what = format!("{} of {} has the same address", name_of(peer), self.theirs.host);
                    let finding = self
                        .finding(Severity::Error, FindingKind::AddressTwice, &name_of(local), &what)
                        .because("packets go to the host that answered last")
                        .so("give one of them another address");
                    self.found.push(finding);
                } else if ours.contains(theirs.address()) != theirs.contains(ours.address()) {
                    let what = format!(
                        "{} of {} is in its subnet by one prefix length, and not by the other",
                        name_of(peer),
                        self.theirs.host
                    );
                    let finding = self
                        .finding(
                            Severity::Error,
                            FindingKind::PrefixOneSided,
                            &name_of(local),
                            &what,
                        )
                        .because("one sends straight, the other to a router: the two are never paired")
                        .so("find out which prefix length is the subnet's, and set the other so");
                    self.found.push(finding);
                }
            }
        }
    }

    /// Checks the two ends of a link.
    fn pair(&mut self, locals: &[&LocalRail], peers: &[&LocalRail], paired: &PairedRails) {
        let (Some(local), Some(peer)) = (locals.get(paired.pair.local), peers.get(paired.pair.peer)) else {
            return;
        };
        let (Ok(ours), Ok(theirs)) = (local.source, peer.source) else {
            return;
        };
        let mtu_of = |host: &Topology, rail: &LocalRail| host.interface_of(rail).and_then(|it| it.mtu_bytes);
        let (our_mtu, their_mtu) = (mtu_of(self.ours, local), mtu_of(self.theirs, peer));
        let netdevs_differ = our_mtu
            .zip(their_mtu)
            .is_some_and(|(ours, theirs)| ours != theirs);
        let subject = name_of(local);
        let other = format!("{} of {}", name_of(peer), self.theirs.host);
        if netdevs_differ || ours.mtu != theirs.mtu {
            let bytes = |mtu: Option<u32>| mtu.map_or("an MTU not known".to_owned(), |mtu| format!("{mtu}"));
            let what = format!(
                "its MTU is {} (RoCE {}), and that of {other} is {} (RoCE {})",
                bytes(our_mtu),
                ours.mtu,
                bytes(their_mtu),
                theirs.mtu
            );
            let finding = self.finding(Severity::Warning, FindingKind::MtuUnequal, &subject, &what)
                .because("connections use the lower; what else goes by the interface may be dropped at the smaller end")
                .so("give all interfaces of a subnet one MTU");
            self.found.push(finding);
        }
        let key_of = |host: &Topology, rail: &LocalRail| {
            host.port(&rail.device, rail.port)?
                .pkeys
                .as_ref()?
                .first()
                .copied()
        };
        if let Some((ours, theirs)) = key_of(self.ours, local).zip(key_of(self.theirs, peer)) {
            let is_one = ours & PARTITION == theirs & PARTITION;
            let has_full = (ours | theirs) & !PARTITION != 0;
            if !is_one || !has_full {
                let what = format!("its partition key is {ours:#06x}, and that of {other} is {theirs:#06x}");
                let finding = self
                    .finding(Severity::Error, FindingKind::PkeyMismatch, &subject, &what)
                    .because("the devices drop each other's packets, and connections end in a retry error")
                    .so("have both ports in one partition, at least one of them as a full member");
                self.found.push(finding);
            }
        }
    }
}
