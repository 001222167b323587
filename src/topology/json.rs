//! A topology as JSON. Addresses, GIDs and rules are text there; what does not fit is refused with its place.

use core::fmt::{self, Display};
use core::net::IpAddr;
use core::str::FromStr;

use doorbell_core::port::{Name, NameTooLong, PORT_GIDS_MAX};
use doorbell_core::{Gid, GidEntry, GidKind, IpPrefix, Mtu, PortReport, PortState};
use serde::{Deserialize, Serialize};

use super::{ArpFacts, InterfaceFacts, NeighbourFacts, NeighbourState, PortFacts, RouteFacts, Topology};

/// The version this writes, and the only one it reads. Fields may be added without a new one.
const FORMAT: u32 = 1;

/// Why a text is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It is not JSON, or a field is missing or of another type.
    Json(String),
    /// It is of a version this does not read.
    Format(u32),
    /// A value means nothing.
    Value {
        /// Where it stands.
        place: String,
        /// The value.
        value: String,
    },
}

impl Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => write!(f, "not a snapshot: {error}"),
            Self::Format(format) => write!(f, "a snapshot of format {format}, where {FORMAT} is known"),
            Self::Value { place, value } => write!(f, "{place}: `{value}` means nothing there"),
        }
    }
}

impl core::error::Error for SnapshotError {}

impl Topology {
    /// The snapshot: one JSON document.
    ///
    /// # Errors
    /// None that is known of.
    pub fn to_json(&self) -> Result<String, SnapshotError> {
        let document = Document::from(self);
        serde_json::to_string_pretty(&document).map_err(|error| SnapshotError::Json(error.to_string()))
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// It is none, or of another version.
    pub fn from_json(text: &str) -> Result<Self, SnapshotError> {
        let json = |error: serde_json::Error| SnapshotError::Json(error.to_string());
        // The version first: another may have other fields.
        let Version { doorbell_topology } = serde_json::from_str(text).map_err(json)?;
        if doorbell_topology != FORMAT {
            return Err(SnapshotError::Format(doorbell_topology));
        }
        let document: Document = serde_json::from_str(text).map_err(json)?;
        document.try_into()
    }
}

#[derive(Deserialize)]
struct Version {
    doorbell_topology: u32,
}

#[derive(Serialize, Deserialize)]
struct Document {
    doorbell_topology: u32,
    host: String,
    kernel: String,
    taken_unix_s: u64,
    rail_filter: String,
    ports: Vec<Port>,
    interfaces: Vec<Interface>,
    neighbours: Vec<Neighbour>,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(default)]
    peers: Vec<String>,
    failures: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Port {
    device: String,
    port: u8,
    state: u32,
    ethernet: bool,
    active_mtu_bytes: Option<u32>,
    mtu_max_bytes: Option<u32>,
    speed_mbps: u32,
    numa_node: Option<u16>,
    node_guid: Option<String>,
    driver: Option<String>,
    firmware: Option<String>,
    pci_address: Option<String>,
    sysfs_path: Option<String>,
    netdevs: Vec<String>,
    pkeys: Option<Vec<u16>>,
    gids: Vec<Entry>,
    #[serde(default)]
    gids_left_out: u32,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    index: u32,
    gid: String,
    kind: Kind,
    netdev: Option<String>,
    address: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Infiniband,
    RoceV1,
    RoceV2,
    Unknown(u32),
}

#[derive(Serialize, Deserialize)]
struct Interface {
    name: String,
    index: u32,
    up: Option<bool>,
    carrier: Option<bool>,
    mtu_bytes: Option<u32>,
    hardware_address: Option<String>,
    addresses: Vec<String>,
    arp_announce: Option<u8>,
    arp_ignore: Option<u8>,
    arp_filter: Option<u8>,
    rp_filter: Option<u8>,
}

#[derive(Serialize, Deserialize)]
struct Neighbour {
    netdev: String,
    address: String,
    state: State,
}

#[derive(Serialize, Deserialize)]
struct Route {
    from: String,
    to: String,
    netdev: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Known,
    Incomplete,
    Failed,
}

/// Reads a text that stands somewhere.
fn parse<T: FromStr>(place: impl Display, text: &str) -> Result<T, SnapshotError> {
    text.parse().map_err(|_| wrong(place, text))
}

fn wrong(place: impl Display, value: impl Display) -> SnapshotError {
    SnapshotError::Value {
        place: place.to_string(),
        value: value.to_string(),
    }
}

impl From<&Topology> for Document {
    fn from(topology: &Topology) -> Self {
        let neighbour = |neighbour: &NeighbourFacts| Neighbour {
            netdev: neighbour.netdev.clone(),
            address: neighbour.address.to_string(),
            state: match neighbour.state {
                NeighbourState::Known => State::Known,
                NeighbourState::Incomplete => State::Incomplete,
                NeighbourState::Failed => State::Failed,
            },
        };
        let route = |route: &RouteFacts| Route {
            from: route.from.to_string(),
            to: route.to.to_string(),
            netdev: route.netdev.clone(),
        };
        Self {
            doorbell_topology: FORMAT,
            host: topology.host.clone(),
            kernel: topology.kernel.clone(),
            taken_unix_s: topology.taken_unix_s,
            rail_filter: topology.rail_filter.to_string(),
            ports: topology.ports.iter().map(Port::from).collect(),
            interfaces: topology.interfaces.iter().map(Interface::from).collect(),
            neighbours: topology.neighbours.iter().map(neighbour).collect(),
            routes: topology.routes.iter().map(route).collect(),
            peers: topology.peers.iter().map(ToString::to_string).collect(),
            failures: topology.failures.clone(),
        }
    }
}

impl TryFrom<Document> for Topology {
    type Error = SnapshotError;

    fn try_from(document: Document) -> Result<Self, SnapshotError> {
        let neighbour = |neighbour: Neighbour| {
            Ok(NeighbourFacts {
                address: parse("the address of a neighbour", &neighbour.address)?,
                netdev: neighbour.netdev,
                state: match neighbour.state {
                    State::Known => NeighbourState::Known,
                    State::Incomplete => NeighbourState::Incomplete,
                    State::Failed => NeighbourState::Failed,
                },
            })
        };
        let route = |route: Route| {
            Ok(RouteFacts {
                from: parse("where a route is from", &route.from)?,
                to: parse("where a route goes", &route.to)?,
                netdev: route.netdev,
            })
        };
        let peer = |peer: String| parse("the address of a peer", &peer);
        Ok(Self {
            rail_filter: parse("rail_filter", &document.rail_filter)?,
            host: document.host,
            kernel: document.kernel,
            taken_unix_s: document.taken_unix_s,
            ports: document
                .ports
                .into_iter()
                .map(Port::facts)
                .collect::<Result<_, _>>()?,
            interfaces: document
                .interfaces
                .into_iter()
                .map(Interface::facts)
                .collect::<Result<_, _>>()?,
            neighbours: document
                .neighbours
                .into_iter()
                .map(neighbour)
                .collect::<Result<_, _>>()?,
            routes: document.routes.into_iter().map(route).collect::<Result<_, _>>()?,
            peers: document.peers.into_iter().map(peer).collect::<Result<_, _>>()?,
            failures: document.failures,
        })
    }
}

impl From<&PortFacts> for Port {
    fn from(facts: &PortFacts) -> Self {
        let PortFacts { report, .. } = facts;
        let entry = |entry: &GidEntry| Entry {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: match entry.kind {
                GidKind::Infiniband => Kind::Infiniband,
                GidKind::RoceV1 => Kind::RoceV1,
                GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6 => Kind::RoceV2,
                GidKind::Unknown(number) => Kind::Unknown(number),
                // The kinds may grow; those that do are not in this version of the format.
                _ => Kind::Unknown(u32::MAX),
            },
            netdev: entry.interface.as_ref().map(ToString::to_string),
            address: entry.address.map(|address| address.to_string()),
        };
        Self {
            device: report.device.to_string(),
            port: report.port,
            state: report.state.0,
            ethernet: report.is_ethernet,
            active_mtu_bytes: report.active_mtu.map(Mtu::bytes),
            mtu_max_bytes: report.mtu_max.map(Mtu::bytes),
            speed_mbps: report.speed_mbps,
            numa_node: report.numa_node,
            node_guid: facts.node_guid.clone(),
            driver: facts.driver.clone(),
            firmware: facts.firmware.clone(),
            pci_address: facts.pci_address.clone(),
            sysfs_path: facts.sysfs_path.clone(),
            netdevs: facts.netdevs.clone(),
            pkeys: facts.pkeys.clone(),
            gids: report.gids.iter().map(entry).collect(),
            gids_left_out: report.gids_left_out,
        }
    }
}

impl Port {
    fn facts(self) -> Result<PortFacts, SnapshotError> {
        let name =
            |text: &str| Name::try_from(text).map_err(|NameTooLong| wrong("the name of a device", text));
        let place = format!("{}:{}", self.device, self.port);
        let mtu = |bytes: Option<u32>| match bytes {
            None => Ok(None),
            Some(bytes) => Mtu::from_bytes(bytes)
                .map(Some)
                .ok_or_else(|| wrong(format_args!("the MTU of {place}"), bytes)),
        };
        let mut report = PortReport {
            device: name(&self.device)?,
            port: self.port,
            state: PortState(self.state),
            is_ethernet: self.ethernet,
            active_mtu: mtu(self.active_mtu_bytes)?,
            mtu_max: mtu(self.mtu_max_bytes)?,
            speed_mbps: self.speed_mbps,
            numa_node: self.numa_node,
            gids: Default::default(),
            gids_left_out: self.gids_left_out,
        };
        for entry in &self.gids {
            report.gids.push(entry.facts(&place)?).map_err(|_| {
                wrong(
                    format_args!("the GIDs of {place}, at most {PORT_GIDS_MAX}"),
                    self.gids.len(),
                )
            })?;
        }
        Ok(PortFacts {
            report,
            node_guid: self.node_guid,
            driver: self.driver,
            firmware: self.firmware,
            pci_address: self.pci_address,
            sysfs_path: self.sysfs_path,
            netdevs: self.netdevs,
            pkeys: self.pkeys,
        })
    }
}

impl Entry {
    fn facts(&self, port: &str) -> Result<GidEntry, SnapshotError> {
        let place = |what: &str| format!("{what} of GID {} of {port}", self.index);
        let ip: core::net::Ipv6Addr = parse(place("the value"), &self.gid)?;
        let gid = Gid(ip.octets());
        let address: Option<IpPrefix> = match &self.address {
            Some(text) => Some(parse(place("the address"), text)?),
            None => None,
        };
        // What a GID stands for and what its address is are one thing.
        if address.is_some_and(|address| address.address() != gid.to_ip()) {
            return Err(wrong(
                place("the address"),
                self.address.as_deref().unwrap_or_default(),
            ));
        }
        let interface = match self.netdev.as_deref() {
            Some(text) => {
                Some(Name::try_from(text).map_err(|NameTooLong| wrong(place("the interface"), text))?)
            }
            None => None,
        };
        let kind = match (self.kind, gid.to_ip()) {
            (Kind::Infiniband, _) => GidKind::Infiniband,
            (Kind::RoceV1, _) => GidKind::RoceV1,
            (Kind::RoceV2, IpAddr::V4(_)) => GidKind::RoceV2Ipv4,
            (Kind::RoceV2, IpAddr::V6(_)) => GidKind::RoceV2Ipv6,
            (Kind::Unknown(number), _) => GidKind::Unknown(number),
        };
        Ok(GidEntry {
            index: self.index,
            gid,
            kind,
            interface,
            address,
        })
    }
}

impl From<&InterfaceFacts> for Interface {
    fn from(facts: &InterfaceFacts) -> Self {
        Self {
            name: facts.name.clone(),
            index: facts.index,
            up: facts.is_up,
            carrier: facts.has_carrier,
            mtu_bytes: facts.mtu_bytes,
            hardware_address: facts.hardware_address.clone(),
            addresses: facts.addresses.iter().map(ToString::to_string).collect(),
            arp_announce: facts.arp.announce,
            arp_ignore: facts.arp.ignore,
            arp_filter: facts.arp.filter,
            rp_filter: facts.arp.rp_filter,
        }
    }
}

impl Interface {
    fn facts(self) -> Result<InterfaceFacts, SnapshotError> {
        let place = format!("an address of {}", self.name);
        let addresses = self.addresses.iter().map(|text| parse(&place, text));
        Ok(InterfaceFacts {
            addresses: addresses.collect::<Result<_, _>>()?,
            name: self.name,
            index: self.index,
            is_up: self.up,
            has_carrier: self.carrier,
            mtu_bytes: self.mtu_bytes,
            hardware_address: self.hardware_address,
            arp: ArpFacts {
                announce: self.arp_announce,
                ignore: self.arp_ignore,
                filter: self.arp_filter,
                rp_filter: self.rp_filter,
            },
        })
    }
}
