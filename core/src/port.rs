//! Facts that a device reports of one of its ports, and whether doorbell can use the port.

use core::fmt;
use core::ops::Deref;

use heapless::{String, Vec};

use crate::advertised_rail::{NotAdvertisable, RAILS_MAX};
use crate::{Gid, IpPrefix, Mtu};

/// The longest name of an RDMA device or network interface, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// How many GIDs of one port are kept: those that can be used before others.
pub const PORT_GIDS_MAX: usize = 64;

/// The name of an RDMA device or network interface, of [`NAME_BYTES_MAX`] bytes at most.
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

/// The state of a port: an integer newtype, since a device may report what we do not know.
///
/// Source: `ibv_query_port(3)`, `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortState(pub u32);

impl PortState {
    /// The link is down.
    pub const DOWN: Self = Self(1);
    /// The link is up, the port not yet configured.
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
    /// A kind this version does not know, by its number.
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
    /// Its index in the table, which a queue pair's address vector names.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// The network interface it belongs to, where that is in this network namespace.
    pub interface: Option<Name>,
    /// The interface's address that the GID stands for, with its real prefix length.
    pub address: Option<IpPrefix>,
}

/// One port of one device, as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The RDMA device's name.
    pub device: Name,
    /// The port's number, from 1.
    pub port: u8,
    /// Its state.
    pub state: PortState,
    /// Whether it is an Ethernet port (RoCE) and not InfiniBand.
    pub is_ethernet: bool,
    /// The MTU the port works with now.
    pub active_mtu: Option<Mtu>,
    /// The largest MTU the port can work with.
    pub mtu_max: Option<Mtu>,
    /// Width times speed of the link in megabits per second; zero where not known.
    pub speed_mbps: u32,
    /// The NUMA node of the device, where the platform says one.
    pub numa_node: Option<u16>,
    /// The entries of the GID table that are filled, in order.
    pub gids: Vec<GidEntry, PORT_GIDS_MAX>,
    /// How many more entries can be used and found no room among them.
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
    /// The port reports no MTU this version knows.
    UnknownMtu,
    /// The GID has this index, and a queue pair names it by eight bits.
    GidIndexTooLarge(u32),
    /// It has an address that no peer could use.
    NotAdvertisable(NotAdvertisable),
    /// This many usable GIDs stand behind the first [`PORT_GIDS_MAX`] of their port.
    BeyondGidsMax(u32),
    /// As many rails as a side may advertise come before it.
    BeyondRailsMax,
    /// The settings of this side leave it out.
    LeftOut {
        /// The rule that names it, from 1. None if there are rules for the rails to use, and no rule names it.
        rule: Option<u16>,
        /// The address, if the rule is about one.
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
    /// The entries of the GID table that can carry a connection, best first not implied.
    pub fn usable_gids(&self) -> impl Iterator<Item = &GidEntry> {
        self.gids.iter().filter(|entry| entry.is_usable())
    }

    /// Takes these entries of the GID table for its own. If they are too many, usable entries stay first, then the
    /// entries that explain best why others are unusable. The number of usable entries without room is counted.
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
    /// The first reason why not, from the link upwards.
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
    /// Whether it is a RoCEv2 entry of either address family.
    #[must_use]
    pub const fn is_roce_v2(&self) -> bool {
        matches!(self.kind, GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6)
    }

    /// Whether it can carry a connection: a RoCEv2 entry that is an address of its interface.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        self.is_roce_v2() && self.address.is_some()
    }

    /// How much the entry explains about its port ([`PortReport::usability`]): a lower rank explains more.
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
