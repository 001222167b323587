//! The facts of a host: its ports, interfaces and neighbours. They can be collected on one machine and examined on another.
//!
//! `survey` collects the facts, and [`crate::preflight`] checks them.

use core::net::IpAddr;

use doorbell::provider::{IpPrefix, PortReport, Unusable};
use doorbell::rails::{AdvertisedRail, Candidate, LocalRail};

use doorbell::rails::{RailFilter, rails_of, sort_by_preference};

mod map;

mod json;

pub use map::{Map, Reach};

pub use json::SnapshotError;

/// All facts of a host that decide which hosts it can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Topology {
    /// The name of the host.
    pub host: String,
    /// The release of its kernel.
    pub kernel: String,
    /// Time of the survey, in seconds since 1970; 0 if unknown.
    pub taken_unix_s: u64,
    /// The filter of the rails that it uses.
    #[serde(with = "json::text")]
    pub rail_filter: RailFilter,
    /// The ports of its RDMA devices.
    pub ports: Vec<PortFacts>,
    /// The network interfaces of its network namespace.
    pub interfaces: Vec<InterfaceFacts>,
    /// Known addresses of other hosts on its links.
    pub neighbours: Vec<NeighbourFacts>,
    /// The interfaces through which it sends, if several are in one subnet.
    #[serde(default)]
    pub routes: Vec<RouteFacts>,
    /// Peers that it has to reach. A peer that does not answer, or is in no subnet of a rail, is an error.
    #[serde(default)]
    pub peers: Vec<IpAddr>,
    /// Sources that could not be read, each with the reason.
    pub failures: Vec<String>,
}

/// One port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PortFacts {
    /// The report of the device about the port.
    #[serde(flatten, with = "json::report")]
    pub report: PortReport,
    /// The GUID of the device, as sysfs writes it.
    pub node_guid: Option<String>,
    /// The kernel driver of the underlying device. `None` for a virtual device.
    pub driver: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// The PCI address of the underlying device.
    pub pci_address: Option<String>,
    /// The folder of the underlying device in sysfs, which shows its position in the tree of PCI bridges.
    pub sysfs_path: Option<String>,
    /// The names of its network interfaces, in whichever network namespace they are.
    pub netdevs: Vec<String>,
    /// Its table of partition keys. `None` if it could not be read.
    pub pkeys: Option<Vec<u16>>,
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InterfaceFacts {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Whether it is administratively up.
    #[serde(rename = "up")]
    pub is_up: Option<bool>,
    /// Whether it has a carrier: the other end of its cable is up.
    #[serde(rename = "carrier")]
    pub has_carrier: Option<bool>,
    /// Its MTU in bytes.
    pub mtu_bytes: Option<u32>,
    /// Its hardware address.
    pub hardware_address: Option<String>,
    /// Its addresses, each with its actual prefix length.
    #[serde(with = "json::texts")]
    pub addresses: Vec<IpPrefix>,
    /// Its ARP settings.
    #[serde(flatten)]
    pub arp: ArpFacts,
}

/// ARP settings of an interface that are in effect: the stricter of its own value and the value for all interfaces.
///
/// Source: Linux, Documentation/networking/ip-sysctl.rst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ArpFacts {
    /// `arp_announce`: the source address of its ARP requests.
    #[serde(rename = "arp_announce")]
    pub announce: Option<u8>,
    /// `arp_ignore`: the ARP requests that it does not answer.
    #[serde(rename = "arp_ignore")]
    pub ignore: Option<u8>,
    /// `arp_filter`: whether it answers only requests whose answer is routed through it.
    #[serde(rename = "arp_filter")]
    pub filter: Option<u8>,
    /// `rp_filter`: whether packets are dropped if the route back to their source does not lead through it.
    pub rp_filter: Option<u8>,
}

/// The kernel's knowledge of another host's address on a link.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NeighbourFacts {
    /// The interface of the link.
    pub netdev: String,
    /// The address of the other host.
    pub address: IpAddr,
    /// Whether its hardware address is known.
    pub state: NeighbourState,
}

/// The interface through which the kernel sends from an address of this host to another address of the same subnet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RouteFacts {
    /// The address of this host.
    pub from: IpAddr,
    /// The address of another host.
    pub to: IpAddr,
    /// The interface. `None` if the kernel does not send such a packet.
    pub netdev: Option<String>,
}

/// Whether a neighbour's hardware address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeighbourState {
    /// The hardware address is known.
    Known,
    /// The kernel has requested it, and no answer has arrived yet.
    Incomplete,
    /// The kernel has requested it, and got no answer.
    Failed,
}

impl Topology {
    /// Returns only the facts that concern the selected devices: their ports, the interfaces of these, and the neighbours, routes and failures of
    /// the interfaces. No fact of another device is kept.
    #[must_use]
    pub fn of_devices(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        let ports = self.ports.iter();
        let ports: Vec<PortFacts> = ports
            .filter(|port| is_kept(port.report.device.as_str()))
            .cloned()
            .collect();
        let is_of_ports = |name: &str| {
            ports.iter().any(|port| {
                let of_gids = port
                    .report
                    .gids
                    .iter()
                    .filter_map(|entry| entry.interface.as_deref());
                let mut all = port.netdevs.iter().map(String::as_str).chain(of_gids);
                all.any(|netdev| netdev == name)
            })
        };
        let interfaces = self.interfaces.iter();
        let interfaces: Vec<InterfaceFacts> = interfaces
            .filter(|interface| is_of_ports(&interface.name))
            .cloned()
            .collect();
        let neighbours = self.neighbours.iter();
        let is_own = |address: IpAddr| {
            let mut addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
            addresses.any(|own| own.address() == address)
        };
        let routes = self.routes.iter();
        let routes = routes
            .filter(|route| is_own(route.from) && route.netdev.as_deref().is_none_or(is_of_ports))
            .cloned()
            .collect();
        let is_told = |failure: &&String| {
            let subject = failure.split(':').next().unwrap_or_default();
            let is_general = ["RDMA devices", "neighbours", "routes"].contains(&subject);
            is_general || is_kept(subject) || is_of_ports(subject)
        };
        Self {
            neighbours: neighbours
                .filter(|neighbour| is_of_ports(&neighbour.netdev))
                .cloned()
                .collect(),
            routes,
            failures: self.failures.iter().filter(is_told).cloned().collect(),
            peers: Vec::new(),
            rail_filter: RailFilter::default(),
            host: self.host.clone(),
            kernel: self.kernel.clone(),
            taken_unix_s: self.taken_unix_s,
            interfaces,
            ports,
        }
    }

    /// Its rails in the order in which they are offered to peers. Unusable rails come last, each with its reason.
    #[must_use]
    pub fn rails(&self) -> Vec<LocalRail> {
        let ports = self.ports.iter();
        let mut rails: Vec<LocalRail> = ports
            .flat_map(|port| rails_of(&port.report, &self.rail_filter))
            .collect();
        sort_by_preference(&mut rails);
        rails
    }

    /// The usable rails, with the candidates that are paired with those of a peer.
    #[must_use]
    pub fn candidates(&self) -> Vec<(LocalRail, Candidate)> {
        let rails = self.rails();
        let usable = rails.into_iter().filter_map(|rail| {
            let advertised = rail.advertised()?.ok()?;
            Some((rail, advertised))
        });
        let mut ports: Vec<(String, u8)> = Vec::new();
        let numbered = |(rail, advertised): (LocalRail, AdvertisedRail)| {
            let this = (rail.device.to_string(), rail.port);
            let number = ports.iter().position(|port| *port == this).unwrap_or_else(|| {
                ports.push(this);
                ports.len().saturating_sub(1)
            });
            let candidate = Candidate {
                rail: advertised,
                // A port number fits, since there are no more ports than rails that may be advertised.
                port: u8::try_from(number).unwrap_or(u8::MAX),
            };
            (rail, candidate)
        };
        usable.map(numbered).collect()
    }

    /// The peers in a subnet of a usable rail, each once, with the local address from which it is reached.
    pub(crate) fn in_reach(&self, peers: &[IpAddr]) -> Vec<(IpAddr, IpAddr)> {
        let rails = self.rails();
        let subnets = rails.iter().filter_map(|rail| Some(rail.source.ok()?.address));
        let mut found: Vec<(IpAddr, IpAddr)> = Vec::new();
        for peer in peers.iter().copied() {
            let is_known = found.iter().any(|(_, known)| *known == peer);
            if is_known || self.has_address(peer) || is_link_local(peer) {
                continue;
            }
            let own = subnets.clone().find(|subnet| subnet.contains(peer));
            found.extend(own.map(|own| (own.address(), peer)));
        }
        found
    }

    /// Whether an interface has this address.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        let mut addresses = self.interfaces.iter().flat_map(|interface| &interface.addresses);
        addresses.any(|address| address.address() == ip)
    }

    /// A port of a device.
    #[must_use]
    pub fn port(&self, device: &str, number: u8) -> Option<&PortFacts> {
        let mut ports = self.ports.iter().map(|port| (port, &port.report));
        let is_it = |(_, report): &(&PortFacts, &PortReport)| {
            report.device.as_str() == device && report.port == number
        };
        ports.find(is_it).map(|(port, _)| port)
    }

    /// The interface of a usable rail.
    #[must_use]
    pub fn interface_of(&self, rail: &LocalRail) -> Option<&InterfaceFacts> {
        let gid_index = rail.source.ok()?.gid_index;
        let port = self.port(&rail.device, rail.port)?;
        let entry = port.report.gids.iter().find(|entry| entry.index == gid_index)?;
        self.interface(entry.interface.as_deref()?)
    }

    /// The interface with this name.
    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&InterfaceFacts> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The interfaces of a port that are in this network namespace.
    ///
    /// If its GIDs name interfaces, only these: another namespace may have interfaces with the same names.
    #[must_use]
    pub fn interfaces_of(&self, port: &PortFacts) -> Vec<&InterfaceFacts> {
        let gids = port.report.gids.iter().filter(|entry| entry.is_roce_v2());
        let mut names: Vec<&str> = gids
            .clone()
            .filter_map(|entry| entry.interface.as_deref())
            .collect();
        if gids.clone().next().is_none() {
            names.extend(port.netdevs.iter().map(String::as_str));
        }
        names.sort_unstable();
        names.dedup();
        names
            .into_iter()
            .filter_map(|name| self.interface(name))
            .collect()
    }
}

impl InterfaceFacts {
    /// Its addresses that are unique beyond a link or a host.
    pub fn routable(&self) -> impl Iterator<Item = IpPrefix> {
        let addresses = self.addresses.iter().copied();
        addresses.filter(|address| !is_link_local(address.address()) && !address.address().is_loopback())
    }
}

/// Whether an address is valid only on its own link.
pub(crate) const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// The name of a rail in messages.
pub(crate) fn name_of(rail: &LocalRail) -> String {
    match (rail.source, rail.source.err()) {
        (Ok(source), _) => format!("{}:{} {}", rail.device, rail.port, source.address),
        (
            _,
            Some(Unusable::LeftOut {
                address: Some(address),
                ..
            }),
        ) => {
            format!("{}:{} {address}", rail.device, rail.port)
        }
        _ => format!("{}:{}", rail.device, rail.port),
    }
}
