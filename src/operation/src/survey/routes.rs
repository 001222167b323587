//! The interfaces through which the kernel sends from a local address, by netlink.
//!
//! This matters only if several interfaces are in the same subnet. Source: `rtnetlink(7)`; Linux include/uapi/linux/rtnetlink.h.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeSet;

use doorbell::provider::{Interface, IpPrefix};
use rustix::io::{Errno, Result};

use super::netlink::{Netlink, attribute, u32_at};
use crate::topology::{RouteFacts, is_link_local};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const AF_INET: u8 = 2;

/// Length of the header of a route message.
const ROUTE_BYTES: usize = 12;

/// Number of bits of an IPv4 address.
const WHOLE_BITS: u8 = 32;

/// The routes from each address to another host of a subnet that several interfaces share.
pub(super) fn of_shared_subnets(interfaces: &[Interface]) -> Result<Vec<RouteFacts>> {
    let ways = ways(interfaces);
    if ways.is_empty() {
        return Ok(Vec::new());
    }
    let mut netlink = Netlink::open()?;
    let facts = ways.into_iter().map(|(from, to)| {
        Ok(RouteFacts {
            from: IpAddr::V4(from),
            to: IpAddr::V4(to),
            netdev: leaves_by(&mut netlink, from, to, interfaces)?,
        })
    });
    facts.collect()
}

/// Pairs of a local address and another host of its subnet. Only IPv4, since only there interfaces answer for each other.
fn ways(interfaces: &[Interface]) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let all = || {
        let each = interfaces.iter().flat_map(|interface| {
            let addresses = interface.addresses.iter();
            addresses.map(|address| (interface.index, *address))
        });
        each.filter(|(_, it)| !is_link_local(it.address()) && !it.address().is_loopback())
    };
    let ours: BTreeSet<_> = all().map(|(_, address)| address.address()).collect();
    let (mut ways, mut asked) = (Vec::new(), BTreeSet::new());
    for (index, address) in all() {
        for (other_index, other) in all() {
            let is_shared = address.contains(other.address()) || other.contains(address.address());
            let IpAddr::V4(from) = address.address() else {
                continue;
            };
            if index == other_index || !is_shared {
                continue;
            }
            // The smaller of both subnets: its addresses are in both.
            let shared = if other.prefix_bits() > address.prefix_bits() {
                other
            } else {
                address
            };
            // Each shared subnet is queried once, however many interfaces share it.
            if !asked.insert((from, shared.subnet().address(), shared.prefix_bits())) {
                continue;
            }
            let mut hosts = hosts_of(shared);
            let way = hosts
                .find(|ip| !ours.contains(&IpAddr::V4(*ip)))
                .map(|to| (from, to));
            ways.extend(way.filter(|way| !ways.contains(way)));
        }
    }
    ways
}

/// The addresses that hosts of a subnet may have.
fn hosts_of(subnet: IpPrefix) -> impl Iterator<Item = Ipv4Addr> {
    let first = match subnet.subnet().address() {
        IpAddr::V4(first) => Some(first.to_bits()),
        IpAddr::V6(_) => None,
    };
    let last = first.map(|first| {
        let hosts = u32::MAX.checked_shr(u32::from(subnet.prefix_bits())).unwrap_or(0);
        first | hosts
    });
    // In a subnet of one or two addresses, all are host addresses.
    let edge = u32::from(subnet.prefix_bits() < WHOLE_BITS.saturating_sub(1));
    let range = first
        .zip(last)
        .map(|(first, last)| first.saturating_add(edge)..=last.saturating_sub(edge));
    range.into_iter().flatten().map(Ipv4Addr::from_bits)
}

/// The interface through which a packet leaves. `None` if the kernel does not send it, or sends it through none of these.
fn leaves_by(
    netlink: &mut Netlink,
    from: Ipv4Addr,
    to: Ipv4Addr,
    interfaces: &[Interface],
) -> Result<Option<String>> {
    let mut index = None;
    let answer = netlink.ask(RTM_GETROUTE, &question(from, to), |kind, body| {
        if kind == RTM_NEWROUTE {
            let attributes = body.get(ROUTE_BYTES..).unwrap_or_default();
            index = attribute(attributes, RTA_OIF).and_then(|value| u32_at(value, 0));
        }
    });
    match answer {
        // These errors are valid results: there is no route, or the route drops all packets.
        Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => return Ok(None),
        answer => answer?,
    }
    let interface = interfaces.iter().find(|interface| Some(interface.index) == index);
    Ok(interface.map(|interface| interface.name.clone()))
}

fn question(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut body = vec![AF_INET, WHOLE_BITS, WHOLE_BITS];
    body.resize(ROUTE_BYTES, 0);
    for (kind, address) in [(RTA_DST, to), (RTA_SRC, from)] {
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(address.octets());
    }
    body
}

#[cfg(test)]
mod tests {
    use super::{Netlink, leaves_by, of_shared_subnets, ways};
    use core::net::Ipv4Addr;
    use doorbell::provider::Interface;

    fn interfaces(of: &[(&str, &[&str])]) -> Vec<Interface> {
        (1..)
            .zip(of)
            .map(|(index, (name, addresses))| Interface {
                name: (*name).into(),
                index,
                addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            })
            .collect()
    }

    fn asked(of: &[(&str, &[&str])]) -> Vec<String> {
        let ways = ways(&interfaces(of)).into_iter();
        ways.map(|(from, to)| format!("{from} {to}")).collect()
    }

    #[test]
    fn what_is_asked_is_of_a_subnet_that_is_shared_and_to_another_host() {
        let shared = [
            ("eth0", &["10.0.0.1/24", "fd00::1/64"][..]),
            ("eth1", &["10.0.0.2/24", "fd00::2/64"]),
            ("eth2", &["10.0.1.1/24"]),
        ];
        assert_eq!(asked(&shared), ["10.0.0.1 10.0.0.3", "10.0.0.2 10.0.0.3"]);
        // The smaller of two subnets, and its last host.
        let within = [("eth0", &["10.0.0.9/8"][..]), ("eth1", &["10.1.0.5/30"])];
        assert_eq!(asked(&within), ["10.0.0.9 10.1.0.6", "10.1.0.5 10.1.0.6"]);
        // Two addresses of one interface, only link-local addresses, and no peer left to ask about.
        for none in [
            [
                ("eth0", &["10.0.0.1/24", "10.0.0.2/24"][..]),
                ("eth1", &["10.0.1.1/24"]),
            ],
            [("eth0", &["169.254.0.1/16"][..]), ("eth1", &["169.254.0.2/16"])],
            [("eth0", &["10.0.0.0/31"][..]), ("eth1", &["10.0.0.1/31"])],
        ] {
            assert!(asked(&none).is_empty(), "{none:?}");
        }
    }

    /// As many interfaces as a host with a network for each of its guests may have. Their pairs times their addresses are too many to search.
    #[test]
    fn a_subnet_that_many_interfaces_share_is_asked_about_once_for_each() {
        let many: Vec<_> = (1..=250_u8)
            .map(|host| Interface {
                name: format!("eth{host}"),
                index: u32::from(host),
                addresses: vec![format!("10.0.0.{host}/24").parse().unwrap()],
            })
            .collect();
        let expected: Vec<_> = (1..=250)
            .map(|host| (Ipv4Addr::new(10, 0, 0, host), Ipv4Addr::new(10, 0, 0, 251)))
            .collect();
        assert_eq!(ways(&many), expected);
    }

    #[test]
    fn this_host_can_be_asked() {
        let lo = [Interface {
            name: "lo".into(),
            index: 1,
            addresses: vec!["127.0.0.1/8".parse().unwrap()],
        }];
        let mut netlink = Netlink::open().unwrap();
        let here = Ipv4Addr::LOCALHOST;
        let by = leaves_by(&mut netlink, here, Ipv4Addr::new(127, 0, 0, 9), &lo).unwrap();
        assert_eq!(by.as_deref(), Some("lo"));
        // No host may send from this address.
        let from_nowhere = Ipv4Addr::new(240, 0, 0, 1);
        assert_eq!(leaves_by(&mut netlink, from_nowhere, here, &lo), Ok(None));
        assert!(of_shared_subnets(&lo).unwrap().is_empty());
    }
}
