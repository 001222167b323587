//! Ports: what one is configured with, and what a scan reports of it.

use core::fmt;
use core::net::IpAddr;

use doorbell_core::port::{Name, PORT_GIDS_MAX};
use doorbell_core::provider::DataInOrder;
use doorbell_core::{Gid, GidEntry, GidKind, IpPrefix, Mtu, PortReport, PortState};

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// Ethernet, with a `RoCEv2` GID for each address.
    RoceV2,
    /// Ethernet, with `RoCEv1` GIDs alone: doorbell cannot use it.
    RoceV1,
    /// InfiniBand: doorbell cannot use it.
    Infiniband,
}

/// One port of a simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The device it belongs to. Ports of one device are numbered from 1 as they are listed.
    pub device: String,
    /// The network interface of its GIDs.
    pub interface: String,
    /// Its addresses, each with the prefix of its subnet; each makes an entry of the GID
    /// table, with its position as index.
    pub addresses: Vec<IpPrefix>,
    /// Its state.
    pub state: PortState,
    /// Its link layer.
    pub link: Link,
    /// The MTU it works with.
    pub active_mtu: Option<Mtu>,
    /// The largest MTU it can work with.
    pub mtu_max: Option<Mtu>,
    /// Megabits per second.
    pub speed_mbps: u32,
    /// The NUMA node of the device.
    pub numa_node: Option<u16>,
    /// Order in which the device promises that bytes land. A device promises what its weakest port promises.
    /// The promise changes nothing here: a message always lands at once.
    pub data_in_order: DataInOrder,
}

impl PortConfig {
    /// An active `RoCEv2` port of 100 Gb/s with an MTU of 4096, on an interface named like
    /// the device, which writes whole messages in order.
    #[must_use]
    pub fn new(device: &str, addresses: &[IpPrefix]) -> Self {
        Self {
            device: device.into(),
            interface: device.into(),
            addresses: addresses.into(),
            state: PortState::ACTIVE,
            link: Link::RoceV2,
            active_mtu: Some(Mtu::B4096),
            mtu_max: Some(Mtu::B4096),
            speed_mbps: 100_000,
            numa_node: None,
            data_in_order: DataInOrder::WholeMessage,
        }
    }

    /// Returns the report of a scan, as port `number` of its device.
    pub(crate) fn report(&self, number: u8) -> Result<PortReport, ConfigError> {
        let interface = name(&self.interface)?;
        let mut report = PortReport {
            device: name(&self.device)?,
            port: number,
            state: self.state,
            is_ethernet: self.link != Link::Infiniband,
            active_mtu: self.active_mtu,
            mtu_max: self.mtu_max,
            speed_mbps: self.speed_mbps,
            numa_node: self.numa_node,
            gids: Default::default(),
            gids_left_out: 0,
        };
        for (index, address) in (0_u8..).zip(&self.addresses) {
            let entry = GidEntry {
                index: u32::from(index),
                gid: Gid::from_ip(address.address()),
                kind: match (self.link, address.address()) {
                    (Link::RoceV2, IpAddr::V4(_)) => GidKind::RoceV2Ipv4,
                    (Link::RoceV2, IpAddr::V6(_)) => GidKind::RoceV2Ipv6,
                    (Link::RoceV1, _) => GidKind::RoceV1,
                    (Link::Infiniband, _) => GidKind::Infiniband,
                },
                interface: Some(interface.clone()),
                address: Some(*address),
            };
            report
                .gids
                .push(entry)
                .map_err(|_| ConfigError::TooManyAddresses(self.addresses.len()))?;
        }
        Ok(report)
    }
}

fn name(text: &str) -> Result<Name, ConfigError> {
    if text.is_empty() {
        return Err(ConfigError::NameEmpty);
    }
    Name::try_from(text).map_err(|_| ConfigError::NameTooLong(text.len()))
}

/// Why a host cannot be made of its ports; nothing was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A device or interface has no name.
    NameEmpty,
    /// The name of a device or interface has this many bytes, too many.
    NameTooLong(usize),
    /// A port has this many addresses, more than a GID table has entries.
    TooManyAddresses(usize),
    /// A device has more than 255 ports.
    TooManyPorts,
    /// There is no address for this many hosts of [`Fabric::hosts`](crate::Fabric::hosts).
    TooManyHosts(usize),
    /// Another port has this address, so a message would have two destinations.
    AddressTaken(IpAddr),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameEmpty => f.write_str("a device or interface has no name"),
            Self::NameTooLong(bytes) => write!(
                f,
                "the name of a device or interface has {bytes} bytes, more than {}",
                doorbell_core::port::NAME_BYTES_MAX
            ),
            Self::TooManyAddresses(addresses) => {
                write!(f, "a port has {addresses} addresses, more than {PORT_GIDS_MAX}")
            }
            Self::TooManyPorts => f.write_str("a device has more than 255 ports"),
            Self::TooManyHosts(hosts) => write!(
                f,
                "there are no addresses for {hosts} hosts, but for {}",
                u16::MAX
            ),
            Self::AddressTaken(address) => write!(f, "two ports have the address {address}"),
        }
    }
}

impl core::error::Error for ConfigError {}
