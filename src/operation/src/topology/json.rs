//! A topology as JSON. Addresses, GIDs and rules are written as text. This file has the conversions that serde does not
//! derive, and the fields that a snapshot has in addition to the topology.

use core::fmt::{self, Display};
use core::net::{IpAddr, Ipv6Addr};

use doorbell::provider::{Gid, GidEntry, GidKind, IpPrefix, Mtu, Name, PORT_GIDS_MAX, PortReport, PortState};
use serde::{Deserialize, Serialize};

use super::Topology;

/// The format version that is written, and the only one that is read. New fields do not need a new version.
const FORMAT: u32 = 1;

/// Reason why a snapshot cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The text is not JSON, or a field is missing, has another type, or is invalid. The message names the field and the
    /// line.
    Json(String),
    /// The format version is unknown.
    Format(u32),
}

impl Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => write!(f, "not a snapshot: {error}"),
            Self::Format(format) => write!(
                f,
                "a snapshot of format {format}: this doorbell reads format {FORMAT}"
            ),
        }
    }
}

impl core::error::Error for SnapshotError {}

/// A topology, preceded by its version.
#[derive(Serialize)]
struct Document<'t> {
    doorbell_topology: u32,
    #[serde(flatten)]
    topology: &'t Topology,
}

#[derive(Deserialize)]
struct Version {
    doorbell_topology: u32,
}

impl Topology {
    /// Writes the snapshot as one JSON document.
    ///
    /// # Errors
    /// None are known.
    pub fn to_json(&self) -> Result<String, SnapshotError> {
        let document = Document {
            doorbell_topology: FORMAT,
            topology: self,
        };
        serde_json::to_string_pretty(&document).map_err(|error| SnapshotError::Json(error.to_string()))
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// The text is not a snapshot, or has another version.
    pub fn from_json(text: &str) -> Result<Self, SnapshotError> {
        let json = |error: serde_json::Error| SnapshotError::Json(error.to_string());
        // The version is checked first: other versions may have other fields.
        let Version { doorbell_topology } = serde_json::from_str(text).map_err(json)?;
        if doorbell_topology != FORMAT {
            return Err(SnapshotError::Format(doorbell_topology));
        }
        serde_json::from_str(text).map_err(json)
    }
}

/// Serializes a value as text, by `Display` and `FromStr`.
pub(super) mod text {
    use core::fmt::Display;
    use core::str::FromStr;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        super::read(&String::deserialize(deserializer)?, "value")
    }
}

/// Serializes a list of such values.
pub(super) mod texts {
    use core::fmt::Display;
    use core::str::FromStr;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| super::read(text, "value")).collect()
    }
}

/// Parses a text into a value.
fn read<T: core::str::FromStr, E: serde::de::Error>(text: &str, what: &str) -> Result<T, E> {
    text.parse().map_err(|_| wrong(what, text))
}

fn wrong<E: serde::de::Error>(what: &str, value: impl Display) -> E {
    E::custom(format_args!("the {what} `{value}` means nothing there"))
}

/// Serializes a port report, which does not implement serde's traits.
pub(super) mod report {
    use doorbell::provider::PortReport;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(report: &PortReport, serializer: S) -> Result<S::Ok, S::Error> {
        super::Report::of(report).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PortReport, D::Error> {
        super::Report::deserialize(deserializer)?.read()
    }
}

#[derive(Serialize, Deserialize)]
struct Report {
    device: String,
    port: u8,
    state: u32,
    ethernet: bool,
    active_mtu_bytes: Option<u32>,
    mtu_max_bytes: Option<u32>,
    speed_mbps: u32,
    numa_node: Option<u16>,
    gids: Vec<GidTableEntry>,
    #[serde(default)]
    gids_left_out: u32,
}

impl Report {
    fn of(report: &PortReport) -> Self {
        Self {
            device: report.device.to_string(),
            port: report.port,
            state: report.state.0,
            ethernet: report.is_ethernet,
            active_mtu_bytes: report.active_mtu.map(Mtu::bytes),
            mtu_max_bytes: report.mtu_max.map(Mtu::bytes),
            speed_mbps: report.speed_mbps,
            numa_node: report.numa_node,
            gids: report.gids.iter().map(GidTableEntry::of).collect(),
            gids_left_out: report.gids_left_out,
        }
    }

    fn read<E: serde::de::Error>(&self) -> Result<PortReport, E> {
        let mtu = |bytes| Mtu::from_bytes(bytes).ok_or_else(|| wrong("MTU", bytes));
        let device = Name::try_from(self.device.as_str());
        let mut report = PortReport {
            device: device.map_err(|_| wrong("name of a device", &self.device))?,
            port: self.port,
            state: PortState(self.state),
            is_ethernet: self.ethernet,
            active_mtu: self.active_mtu_bytes.map(mtu).transpose()?,
            mtu_max: self.mtu_max_bytes.map(mtu).transpose()?,
            speed_mbps: self.speed_mbps,
            numa_node: self.numa_node,
            gids: Default::default(),
            gids_left_out: self.gids_left_out,
        };
        for entry in &self.gids {
            report.gids.push(entry.read()?).map_err(|_| {
                let count = self.gids.len();
                E::custom(format_args!(
                    "{} has {count} GIDs, and at most {PORT_GIDS_MAX} are known",
                    self.device
                ))
            })?;
        }
        Ok(report)
    }
}

/// An entry of a GID table.
#[derive(Serialize, Deserialize)]
struct GidTableEntry {
    index: u32,
    gid: String,
    kind: Kind,
    netdev: Option<String>,
    address: Option<String>,
}

/// The kind of a GID. The value of a RoCEv2 GID tells whether it is IPv4 or IPv6.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Infiniband,
    RoceV1,
    RoceV2,
    Unknown(u32),
}

impl GidTableEntry {
    fn of(entry: &GidEntry) -> Self {
        Self {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: match entry.kind {
                GidKind::Infiniband => Kind::Infiniband,
                GidKind::RoceV1 => Kind::RoceV1,
                GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6 => Kind::RoceV2,
                GidKind::Unknown(number) => Kind::Unknown(number),
                // New kinds are not part of this version of the format.
                _ => Kind::Unknown(u32::MAX),
            },
            netdev: entry.interface.as_ref().map(ToString::to_string),
            address: entry.address.map(|address| address.to_string()),
        }
    }

    fn read<E: serde::de::Error>(&self) -> Result<GidEntry, E> {
        let gid = Gid(read::<Ipv6Addr, E>(&self.gid, "GID")?.octets());
        let address: Option<IpPrefix> = match &self.address {
            Some(text) => Some(read(text, "address of a GID")?),
            None => None,
        };
        // The value of a GID contains its address.
        if address.is_some_and(|address| address.address() != gid.to_ip()) {
            let address = self.address.as_deref().unwrap_or_default();
            return Err(wrong(&format!("address of GID {}", self.gid), address));
        }
        let interface = match self.netdev.as_deref() {
            Some(text) => Some(Name::try_from(text).map_err(|_| wrong("network interface", text))?),
            None => None,
        };
        Ok(GidEntry {
            index: self.index,
            gid,
            kind: match (self.kind, gid.to_ip()) {
                (Kind::Infiniband, _) => GidKind::Infiniband,
                (Kind::RoceV1, _) => GidKind::RoceV1,
                (Kind::RoceV2, IpAddr::V4(_)) => GidKind::RoceV2Ipv4,
                (Kind::RoceV2, IpAddr::V6(_)) => GidKind::RoceV2Ipv6,
                (Kind::Unknown(number), _) => GidKind::Unknown(number),
            },
            interface,
            address,
        })
    }
}
