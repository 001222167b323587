//! The properties of a port that its device reports, and whether doorbell can use the port.

use core::fmt;
use core::ops::Deref;

use heapless::{String, Vec};

use crate::advertised_rail::{NotAdvertisable, RAILS_MAX};
use crate::{Gid, IpPrefix, Mtu};

/// The longest name of an RDMA device or network interface, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The maximum number of GIDs kept for one port; usable GIDs are kept first.
pub const PORT_GIDS_MAX: usize = 64;

/// The name of an RDMA device or network interface, at most [`NAME_BYTES_MAX`] bytes long.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name(String<NAME_BYTES_MAX>);

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl TryFrom<&str> for Name {
    type Error = NameTooLong;

    fn try_from(text: &str) -> Result<Self, NameTooLong> {
        String::try_from(text).map(Self).map_err(|()| NameTooLong)
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A name has more than [`NAME_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTooLong;

impl fmt::Display for NameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a name has at most {NAME_BYTES_MAX} bytes")
    }
}

impl core::error::Error for NameTooLong {}

/// The state of a port. It is an integer newtype, since a device may report unknown values.
///
/// Source: `ibv_query_port(3)`, `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortState(pub u32);

impl PortState {
    /// The link is down.
    pub const DOWN: Self = Self(1);
    /// The link is up, but the port is not yet configured.
    pub const INIT: Self = Self(2);
    /// Configured, but not yet carrying data.
    pub const ARMED: Self = Self(3);
    /// Ready to carry data.
    pub const ACTIVE: Self = Self(4);
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DOWN => f.write_str("DOWN"),
            Self::INIT => f.write_str("INIT"),
            Self::ARMED => f.write_str("ARMED"),
            Self::ACTIVE => f.write_str("ACTIVE"),
            Self(other) => write!(f, "unknown state {other}"),
        }
    }
}

/// The kind of a GID table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE version 1: not routable, not used here.
    RoceV1,
    /// RoCE version 2 over IPv4.
    RoceV2Ipv4,
    /// RoCE version 2 over IPv6.
    RoceV2Ipv6,
    /// A kind that this version does not know, with its number.
    Unknown(u32),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infiniband => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCEv1"),
            Self::RoceV2Ipv4 => f.write_str("RoCEv2/IPv4"),
            Self::RoceV2Ipv6 => f.write_str("RoCEv2/IPv6"),
            Self::Unknown(number) => write!(f, "unknown GID kind {number}"),
        }
    }
}

/// One filled entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index in the table, which a queue pair's address vector names.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The kind of the entry.
    pub kind: GidKind,
    /// The network interface of the GID, if the interface is in this network namespace.
    pub interface: Option<Name>,
    /// The interface's address that the GID stands for, with the prefix length of the interface.
    pub address: Option<IpPrefix>,
}

/// One port of one device, as a scan found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The RDMA device's name.
    pub device: Name,
    /// The port's number, from 1.
    pub port: u8,
    /// The port's state.
    pub state: PortState,
    /// Whether it is an Ethernet port (RoCE) and not InfiniBand.
    pub is_ethernet: bool,
    /// The MTU that the port uses now.
    pub active_mtu: Option<Mtu>,
    /// The largest MTU that the port supports.
    pub mtu_max: Option<Mtu>,
    /// The link's width times its speed, in megabits per second; zero if unknown.
    pub speed_mbps: u32,
    /// The NUMA node of the device, if the platform reports one.
    pub numa_node: Option<u16>,
    /// The filled entries of the GID table, in order.
    pub gids: Vec<GidEntry, PORT_GIDS_MAX>,
    /// The number of usable entries for which `gids` had no room.
    pub gids_left_out: u32,
}

/// Why a port, or an entry of its GID table, cannot carry a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// The port is in this state, not ACTIVE.
    NotActive(PortState),
    /// The port is InfiniBand, and doorbell speaks RoCEv2.
    NotEthernet,
    /// The GID table has no RoCEv2 entry.
    NoRoceV2Gid,
    /// RoCEv2 entries exist, but their network interface is in another network namespace.
    InterfaceNotHere,
    /// RoCEv2 entries exist, but none matches an address of its interface.
    NoAddress,
    /// The port reports no MTU that this version knows.
    UnknownMtu,
    /// The GID has this index, which exceeds the eight bits that a queue pair has for it.
    GidIndexTooLarge(u32),
    /// The rail has an address that no peer could use.
    NotAdvertisable(NotAdvertisable),
    /// This many usable GIDs are beyond the first [`PORT_GIDS_MAX`] of their port.
    BeyondGidsMax(u32),
    /// Other rails use up the number that a side may advertise.
    BeyondRailsMax,
    /// The settings of this side exclude the rail.
    LeftOut {
        /// The rule that excludes it, counted from 1. `None` if rules list the rails to use, and no rule names this one.
        rule: Option<u16>,
        /// The excluded address, if the rule is about an address.
        address: Option<IpPrefix>,
    },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotActive(state) => write!(f, "the port is {state}, not ACTIVE"),
            Self::NotEthernet => f.write_str("the port's link layer is not Ethernet (RoCE)"),
            Self::NoRoceV2Gid => f.write_str("the GID table has no RoCEv2 entry"),
            Self::InterfaceNotHere => {
                f.write_str("the network interface of its RoCEv2 GIDs is not in this network namespace")
            }
            Self::NoAddress => f.write_str("no RoCEv2 GID matches an IP address of its network interface"),
            Self::UnknownMtu => f.write_str("the port reports an MTU that is not defined"),
            Self::GidIndexTooLarge(index) => write!(f, "its GID has index {index}, beyond 255"),
            Self::NotAdvertisable(reason) => write!(f, "no peer could use its address: {reason}"),
            Self::BeyondGidsMax(count) => write!(
                f,
                "{count} more of its GIDs could be used: those behind the first {PORT_GIDS_MAX} are not"
            ),
            Self::BeyondRailsMax => write!(
                f,
                "not advertised: {RAILS_MAX} rails come first, and {RAILS_MAX} is the limit"
            ),
            Self::LeftOut { rule, address } => {
                if let Some(address) = address {
                    write!(f, "{address} is ")?;
                }
                match rule {
                    Some(rule) => write!(f, "left out by rule {rule} of the rail filter"),
                    None => f.write_str("named by no rule of the rail filter"),
                }
            }
        }
    }
}

impl PortReport {
    /// The entries of the GID table that can carry a connection, in the order of the table.
    pub fn usable_gids(&self) -> impl Iterator<Item = &GidEntry> {
        self.gids.iter().filter(|entry| entry.is_usable())
    }

    /// Replaces the entries of the GID table by these. If there are too many, usable entries are kept first, then the
    /// entries that explain best why the port is unusable. Usable entries without room are counted.
    pub fn take_gids(&mut self, entries: impl Iterator<Item = GidEntry> + Clone) {
        self.gids.clear();
        self.gids_left_out = 0;
        for rank in 0..=GidEntry::RANK_LAST {
            for entry in entries.clone().filter(|entry| entry.rank() == rank) {
                if let Err(entry) = self.gids.push(entry) {
                    let is_lost = u32::from(entry.is_usable());
                    self.gids_left_out = self.gids_left_out.saturating_add(is_lost);
                }
            }
        }
        self.gids.sort_unstable_by_key(|entry| entry.index);
    }

    /// Whether the port can carry a connection.
    ///
    /// # Errors
    /// The first reason why the port cannot, from the link layer upwards.
    pub fn usability(&self) -> Result<(), Unusable> {
        if self.state != PortState::ACTIVE {
            return Err(Unusable::NotActive(self.state));
        }
        if !self.is_ethernet {
            return Err(Unusable::NotEthernet);
        }
        if self.active_mtu.is_none() {
            return Err(Unusable::UnknownMtu);
        }
        let mut roce_v2 = self.gids.iter().filter(|entry| entry.is_roce_v2()).peekable();
        if roce_v2.peek().is_none() {
            return Err(Unusable::NoRoceV2Gid);
        }
        if roce_v2.all(|entry| entry.interface.is_none()) {
            return Err(Unusable::InterfaceNotHere);
        }
        if self.usable_gids().next().is_none() {
            return Err(Unusable::NoAddress);
        }
        Ok(())
    }
}

impl GidEntry {
    /// Whether this is a RoCEv2 entry of either address family.
    #[must_use]
    pub const fn is_roce_v2(&self) -> bool {
        matches!(self.kind, GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6)
    }

    /// Whether the entry can carry a connection: a RoCEv2 entry that is an address of its interface.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        self.is_roce_v2() && self.address.is_some()
    }

    /// How well the entry explains why its port is unusable ([`PortReport::usability`]): a lower rank explains more.
    const fn rank(&self) -> u8 {
        match (
            self.is_roce_v2(),
            self.address.is_some(),
            self.interface.is_some(),
        ) {
            (true, true, _) => 0,
            (true, false, true) => 1,
            (true, false, false) => 2,
            _ => Self::RANK_LAST,
        }
    }

    const RANK_LAST: u8 = 3;
}

#[cfg(test)]
mod tests {
    use super::{GidEntry, GidKind, Name, PORT_GIDS_MAX, PortReport, PortState, Unusable};
    use crate::{Gid, IpPrefix, Mtu};
    use core::net::{IpAddr, Ipv4Addr};

    fn port() -> PortReport {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let mut gids = heapless::Vec::new();
        gids.push(GidEntry {
            index: 1,
            gid: Gid::from_ip(ip),
            kind: GidKind::RoceV2Ipv4,
            interface: Some(Name::try_from("eth0").unwrap()),
            address: Some(IpPrefix::new(ip, 24).unwrap()),
        })
        .unwrap();
        PortReport {
            device: Name::try_from("rxe0").unwrap(),
            port: 1,
            state: PortState::ACTIVE,
            is_ethernet: true,
            active_mtu: Some(Mtu::B1024),
            mtu_max: Some(Mtu::B4096),
            speed_mbps: 10_000,
            numa_node: None,
            gids,
            gids_left_out: 0,
        }
    }

    /// RoCEv1 beside each as an mlx5 port has it, and others' in front: none of them takes the place of what can be used.
    #[test]
    fn what_can_be_used_has_room_before_what_cannot() {
        let usable = port().gids[0].clone();
        let entry = |index, alter: fn(&mut GidEntry)| {
            let mut entry = GidEntry {
                index,
                ..usable.clone()
            };
            alter(&mut entry);
            entry
        };
        let table = |pairs: u32| {
            let elsewhere = (0..40).map(|index| entry(index, |it| (it.interface, it.address) = (None, None)));
            let both = (0..pairs).flat_map(|pair| {
                let index = 40 + 2 * pair;
                [
                    entry(index, |it| it.kind = GidKind::RoceV1),
                    entry(index + 1, |_| ()),
                ]
            });
            elsewhere.chain(both).collect::<std::vec::Vec<_>>()
        };
        for (pairs, left_out) in [(33, 0), (64, 0), (65, 1), (70, 6)] {
            let mut port = port();
            port.take_gids(table(pairs).into_iter());
            assert_eq!(port.usable_gids().count(), (pairs - left_out) as usize);
            assert_eq!((port.gids.len(), port.gids_left_out), (PORT_GIDS_MAX, left_out));
            assert!(port.gids.is_sorted_by_key(|entry| entry.index));
        }
        // An entry that explains why none is usable stays, too.
        let mut bare = port();
        let v1 = (0..100).map(|index| entry(index, |it| it.kind = GidKind::RoceV1));
        bare.take_gids(
            v1.chain([entry(100, |it| it.address = None)])
                .collect::<std::vec::Vec<_>>()
                .into_iter(),
        );
        assert_eq!(bare.usability(), Err(Unusable::NoAddress));
    }

    #[test]
    fn each_reason_has_a_text() {
        assert_eq!(port().usability(), Ok(()));
        let mut down = port();
        down.state = PortState::DOWN;
        assert_eq!(down.usability(), Err(Unusable::NotActive(PortState::DOWN)));
        let mut ib = port();
        ib.is_ethernet = false;
        assert_eq!(ib.usability(), Err(Unusable::NotEthernet));
        let mut mtu = port();
        mtu.active_mtu = None;
        assert_eq!(mtu.usability(), Err(Unusable::UnknownMtu));
        let mut v1 = port();
        v1.gids[0].kind = GidKind::RoceV1;
        assert_eq!(v1.usability(), Err(Unusable::NoRoceV2Gid));
        let mut elsewhere = port();
        elsewhere.gids[0].interface = None;
        elsewhere.gids[0].address = None;
        assert_eq!(elsewhere.usability(), Err(Unusable::InterfaceNotHere));
        let mut bare = port();
        bare.gids[0].address = None;
        assert_eq!(bare.usability(), Err(Unusable::NoAddress));
    }
}
