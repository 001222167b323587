//! Findings about one host: its ports, from the link upwards, then its interfaces.

use core::net::IpAddr;
use std::collections::BTreeSet;

use doorbell::provider::Unusable;
use doorbell::rails::LocalRail;

use super::{Finding, FindingKind, Severity};
use crate::topology::{InterfaceFacts, NeighbourState, PortFacts, Topology, is_link_local, name_of};
use doorbell::rails::{FilterSubject, rails_of};

/// Maximum number of bytes that a RoCEv2 packet adds to a full payload: UDP, base transport header, the headers of a
/// WRITE with immediate, and the invariant CRC.
///
/// Source: InfiniBand Architecture volume 1, section 9.2 and annex A17.
const HEADERS_BYTES: u32 = 8 + 12 + 16 + 4 + 4;

/// Bits of a partition key that identify the partition. The highest bit marks full members.
pub(super) const PARTITION: u16 = 0x7fff;

/// Checks one host. Uses only the addresses of the other hosts.
pub(super) fn findings(topology: &Topology, all: &[Topology], found: &mut Vec<Finding>) {
    let mut host = Host { topology, found };
    for failure in &topology.failures {
        let finding = host
            .finding(Severity::Warning, FindingKind::NotLookedAt, "this host", failure)
            .because("faults there are not found");
        host.found.push(finding);
    }
    if topology.ports.is_empty() {
        let finding = host.finding(
            Severity::Error,
            FindingKind::NoDevice,
            "this host",
            "there is no RDMA device",
        )
        .because("nothing can be connected")
        .so("load the driver of the card; `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev ETH` make a software one");
        host.found.push(finding);
        return;
    }
    for port in &topology.ports {
        host.port(port);
    }
    host.rules();
    let rails: Vec<LocalRail> = topology.rails();
    if !rails.iter().any(|rail| rail.source.is_ok()) {
        let finding = host
            .finding(
                Severity::Error,
                FindingKind::NoRail,
                "this host",
                "no rail can be used",
            )
            .because("nothing can be connected; the other findings say why, for each port")
            .so("see the other findings");
        host.found.push(finding);
    }
    host.shared_subnets(&rails);
    host.source_routes(&rails);
    host.neighbours(&rails, all);
    host.peers(&rails);
}

/// The host that is checked.
pub(super) struct Host<'h> {
    pub(super) topology: &'h Topology,
    pub(super) found: &'h mut Vec<Finding>,
}

impl Host<'_> {
    pub(super) fn finding(
        &self,
        severity: Severity,
        kind: FindingKind,
        subject: &str,
        what: &str,
    ) -> Finding {
        Finding::new((severity, kind), &self.topology.host, subject, what)
    }

    /// Checks a port: whether it can be used, and whether its rails match its interfaces.
    fn port(&mut self, port: &PortFacts) {
        let report = &port.report;
        let name = format!("{}:{}", report.device, report.port);
        let rails: Vec<LocalRail> = rails_of(report, &self.topology.rail_filter).collect();
        let left_out = |rail: &LocalRail| matches!(rail.source, Err(Unusable::LeftOut { .. }));
        for rail in &rails {
            if let Err(reason @ Unusable::LeftOut { .. }) = rail.source {
                let finding = self
                    .finding(Severity::Note, FindingKind::LeftOut, &name, &reason.to_string())
                    .because("the rail filter says so");
                self.found.push(finding);
            }
        }
        if rails.iter().all(left_out) {
            return;
        }
        let interfaces = self.topology.interfaces_of(port);
        if interfaces.is_empty() && !port.netdevs.is_empty() {
            let what = format!(
                "its interface {} is not in this network namespace",
                port.netdevs.join(", ")
            );
            let finding = self
                .finding(Severity::Note, FindingKind::Elsewhere, &name, &what)
                .because("it is passed over");
            self.found.push(finding);
            return;
        }
        match report.usability() {
            Ok(()) => self.usable_port(&name, port, &rails, &interfaces),
            Err(Unusable::NotActive(state)) => self.not_active(&name, &interfaces, &state.to_string()),
            Err(Unusable::NoAddress | Unusable::NoRoceV2Gid) => self.without_rail(&name, &interfaces),
            Err(reason @ Unusable::InterfaceNotHere) => {
                let finding = self
                    .finding(Severity::Note, FindingKind::Elsewhere, &name, &reason.to_string())
                    .because("it is passed over");
                self.found.push(finding);
            }
            Err(reason) => {
                let finding = self
                    .finding(
                        Severity::Warning,
                        FindingKind::PortUnusable,
                        &name,
                        &reason.to_string(),
                    )
                    .because("it is passed over");
                self.found.push(finding);
            }
        }
        if port.pkeys.as_ref().is_some_and(|pkeys| !has_default(pkeys)) && report.usability().is_ok() {
            let finding = self
                .finding(
                    Severity::Error,
                    FindingKind::PkeyMissing,
                    &name,
                    "its table of partition keys has none at index 0",
                )
                .because("queue pairs are made with the key at that index: the device refuses them")
                .so("have the subnet manager, or the driver, give the port the default partition");
            self.found.push(finding);
        }
    }

    /// A port whose link is not up.
    fn not_active(&mut self, name: &str, interfaces: &[&InterfaceFacts], state: &str) {
        if let Some(down) = interfaces.iter().find(|interface| interface.is_up == Some(false)) {
            let what = format!("its interface {} is set down", down.name);
            let finding = self.finding(Severity::Error, FindingKind::AdminDown, name, &what)
                .because("a port is as its interface is; connecting through it ends in a timeout")
                .so(format!(
                    "ip link set dev {} up; where a fabric gives rights at boot to what is up then, have it up at boot",
                    down.name
                ));
            self.found.push(finding);
        } else if let Some(dark) = interfaces
            .iter()
            .find(|interface| interface.has_carrier == Some(false))
        {
            let what = format!("its interface {} has no carrier", dark.name);
            let finding = self
                .finding(Severity::Error, FindingKind::NoCarrier, name, &what)
                .because("nobody is at the other end of the cable, or that end is down")
                .so("look at the cable, the switch port and the other end");
            self.found.push(finding);
        } else {
            let what = format!("the port is {state}, not ACTIVE");
            let finding = self
                .finding(Severity::Error, FindingKind::PortUnusable, name, &what)
                .because("the link is not up")
                .so("look at the cable, the switch port and the other end");
            self.found.push(finding);
        }
    }

    /// An active port whose GIDs contain no address.
    fn without_rail(&mut self, name: &str, interfaces: &[&InterfaceFacts]) {
        let netdevs: Vec<&str> = interfaces
            .iter()
            .map(|interface| interface.name.as_str())
            .collect();
        let netdevs = if netdevs.is_empty() {
            "it".to_owned()
        } else {
            netdevs.join(", ")
        };
        let mut missing = interfaces
            .iter()
            .flat_map(|interface| interface.routable())
            .peekable();
        if missing.peek().is_some() {
            let missing: Vec<String> = missing.map(|address| address.to_string()).collect();
            self.gid_missing(name, &netdevs, &missing.join(", "));
        } else {
            let what = format!("{netdevs} has no IP address");
            let finding = self
                .finding(Severity::Warning, FindingKind::NoAddress, name, &what)
                .because("a rail is an address: the port is passed over")
                .so(format!(
                    "ip address add ADDRESS/PREFIX dev {netdevs}; the GID follows by itself"
                ));
            self.found.push(finding);
        }
    }

    fn gid_missing(&mut self, name: &str, netdev: &str, addresses: &str) {
        let what = format!("the address {addresses} of {netdev} has no RoCEv2 GID");
        let finding = self.finding(Severity::Error, FindingKind::GidMissing, name, &what)
            .because("nothing can be sent from it: the kernel has not given it a place in the table, or the interface was moved since")
            .so(format!(
                "take the address away and add it again; set {netdev} down and up; see that the port speaks RoCEv2"
            ));
        self.found.push(finding);
    }

    /// A usable port: checks whether all its addresses can be used.
    fn usable_port(
        &mut self,
        name: &str,
        port: &PortFacts,
        rails: &[LocalRail],
        interfaces: &[&InterfaceFacts],
    ) {
        for rail in rails {
            let (reason, passed_over) = match rail.source {
                Err(reason @ (Unusable::GidIndexTooLarge(_) | Unusable::NotAdvertisable(_))) => {
                    (reason, "this address is passed over")
                }
                Err(reason @ Unusable::BeyondGidsMax(_)) => (reason, "these addresses are passed over"),
                _ => continue,
            };
            let finding = self
                .finding(
                    Severity::Warning,
                    FindingKind::PortUnusable,
                    name,
                    &reason.to_string(),
                )
                .because(passed_over);
            self.found.push(finding);
        }
        for interface in interfaces {
            let has_gid = |ip: IpAddr| port.report.usable_gids().any(|entry| entry.gid.to_ip() == ip);
            let missing = interface.routable().filter(|address| !has_gid(address.address()));
            // If GIDs were left out, it is unknown whether these addresses have one.
            for address in missing.filter(|_| port.report.gids_left_out == 0) {
                self.gid_missing(name, &interface.name, &address.to_string());
            }
        }
        let addresses = || port.report.usable_gids().filter_map(|entry| entry.address);
        if addresses().all(|address| is_link_local(address.address())) {
            let finding = self
                .finding(
                    Severity::Warning,
                    FindingKind::LinkLocalOnly,
                    name,
                    "it has link-local addresses alone",
                )
                .because(
                    "they do not say which link they are on: with a second such port nothing is connected",
                )
                .so("give its interface an address of a subnet of its own");
            self.found.push(finding);
        }
        self.mtu(name, port, interfaces);
    }

    fn mtu(&mut self, name: &str, port: &PortFacts, interfaces: &[&InterfaceFacts]) {
        let report = &port.report;
        let (Some(active), Some(most)) = (report.active_mtu, report.mtu_max.or(report.active_mtu)) else {
            return;
        };
        let is_v6 = report.usable_gids().any(|entry| entry.gid.to_ip().is_ipv6());
        let needed = |mtu: u32| {
            mtu.saturating_add(HEADERS_BYTES)
                .saturating_add(if is_v6 { 40 } else { 20 })
        };
        for interface in interfaces {
            let Some(mtu_bytes) = interface.mtu_bytes else {
                continue;
            };
            if mtu_bytes < needed(active.bytes()) {
                let what = format!(
                    "{} has an MTU of {mtu_bytes}, and packets of the RoCE MTU of {active} need {}",
                    interface.name,
                    needed(active.bytes())
                );
                let finding = self
                    .finding(Severity::Error, FindingKind::MtuTooSmall, name, &what)
                    .because("large messages are dropped, and end in a retry error; small ones go")
                    .so(format!(
                        "ip link set dev {} mtu {}",
                        interface.name,
                        needed(active.bytes())
                    ));
                self.found.push(finding);
            } else if active < most && mtu_bytes < needed(most.bytes()) {
                let what = format!(
                    "{} has an MTU of {mtu_bytes}: the RoCE MTU is {active}, where {most} is possible",
                    interface.name
                );
                let finding = self
                    .finding(Severity::Note, FindingKind::MtuLow, name, &what)
                    .because("large messages take more packets")
                    .so(format!(
                        "on every host and switch of the subnet: an MTU of {} or more, as 4200",
                        needed(most.bytes())
                    ));
                self.found.push(finding);
            }
        }
    }

    /// Finds rules that match nothing.
    fn rules(&mut self) {
        let mut subjects = Vec::new();
        for port in &self.topology.ports {
            let bare = FilterSubject {
                device: &port.report.device,
                port: port.report.port,
                netdev: None,
                address: None,
            };
            subjects.push(bare);
            let of_netdev = |netdev| FilterSubject {
                netdev: Some(netdev),
                ..bare
            };
            subjects.extend(port.netdevs.iter().map(|netdev| of_netdev(netdev.as_str())));
            subjects.extend(port.report.gids.iter().map(|entry| FilterSubject {
                netdev: entry.interface.as_deref(),
                address: entry.address.map(|address| address.address()),
                ..bare
            }));
        }
        let topology = self.topology;
        for (number, rule) in topology.rail_filter.idle(&subjects) {
            let subject = format!("rule {number} of the rail filter");
            let what = format!("`{rule}` names nothing on this host");
            let finding = self
                .finding(Severity::Warning, FindingKind::RuleIdle, &subject, &what)
                .because("a name is mistyped, or a place-holder was left in")
                .so("`doorbell topo` shows the names there are");
            self.found.push(finding);
        }
    }

    /// Finds neighbours that do not answer.
    fn neighbours(&mut self, rails: &[LocalRail], all: &[Topology]) {
        let topology = self.topology;
        for neighbour in &topology.neighbours {
            let seen = match neighbour.state {
                NeighbourState::Known => continue,
                NeighbourState::Incomplete => "has not answered yet",
                NeighbourState::Failed => "does not answer",
            };
            let is_known = topology
                .neighbours
                .iter()
                .any(|it| it.address == neighbour.address && it.state == NeighbourState::Known);
            let is_awaited = topology.peers.contains(&neighbour.address) && !is_known;
            let is_at = |rail: &&LocalRail| {
                let interface = topology.interface_of(rail);
                interface.is_some_and(|it| it.name == neighbour.netdev)
            };
            let is_near = |rail: &&LocalRail| {
                let source = rail.source.ok();
                source.is_some_and(|it| it.address.contains(neighbour.address))
            };
            let usable = || rails.iter().filter(|rail| rail.source.is_ok());
            // An interface may have a rail for each of its subnets.
            let at_hand = usable()
                .filter(is_at)
                .find(is_near)
                .or_else(|| usable().find(is_at));
            let Some(rail) = at_hand.or_else(|| usable().filter(|_| is_awaited).find(is_near)) else {
                continue;
            };
            let is_of = |other: &Topology| {
                other.host != topology.host
                    && other.interfaces.iter().any(|interface| {
                        interface
                            .addresses
                            .iter()
                            .any(|address| address.address() == neighbour.address)
                    })
            };
            let peer = all.iter().find(|other| is_of(other));
            let severity = if is_awaited || peer.is_some() {
                Severity::Error
            } else {
                Severity::Warning
            };
            let whose = peer.map_or_else(String::new, |peer| format!(" of {}", peer.host));
            let what = format!(
                "the neighbour {}{whose} {seen} on {}",
                neighbour.address, neighbour.netdev
            );
            let finding = self
                .finding(severity, FindingKind::NeighbourUnresolved, &name_of(rail), &what)
                .because("a queue pair to it is refused with a timeout (errno 110) when it is made ready")
                .so("see that the host is up, in this subnet and on this link, and that ARP or neighbour discovery gets through");
            self.found.push(finding);
        }
    }

    /// Finds peers that have to be reached, and that are in no subnet of a rail.
    fn peers(&mut self, rails: &[LocalRail]) {
        let topology = self.topology;
        let subnets: BTreeSet<String> = rails
            .iter()
            .filter_map(|rail| Some(rail.source.ok()?.address.subnet().to_string()))
            .collect();
        // If there is no rail at all, another finding says so.
        if subnets.is_empty() {
            return;
        }
        let subnets = subnets.into_iter().collect::<Vec<_>>().join(", ");
        let peers: BTreeSet<IpAddr> = topology.peers.iter().copied().collect();
        for peer in peers.into_iter().filter(|peer| !topology.has_address(*peer)) {
            let subject = format!("to {peer}");
            let is_in = |rail: &LocalRail| rail.source.is_ok_and(|source| source.address.contains(peer));
            if is_link_local(peer) {
                let what = "it is a link-local address";
                let finding = self
                    .finding(Severity::Warning, FindingKind::NotLookedAt, &subject, what)
                    .because("it does not say which link it is on: whether it is there was not asked")
                    .so("name another address of that host");
                self.found.push(finding);
            } else if !rails.iter().any(is_in) {
                let what = "it is in no subnet of a rail";
                let finding = self
                    .finding(Severity::Error, FindingKind::NotReached, &subject, what)
                    .because(format!("a rail reaches its own subnet alone; those here are {subnets}"))
                    .so("give both hosts an address in one subnet, on one link; see that the rail filter leaves it in");
                self.found.push(finding);
            }
        }
    }
}

fn has_default(pkeys: &[u16]) -> bool {
    pkeys.first().is_some_and(|pkey| pkey & PARTITION != 0)
}
