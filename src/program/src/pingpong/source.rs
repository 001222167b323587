//! Selects the GID and port of a ping-pong, with the reason.

use core::fmt;
use core::net::IpAddr;

use doorbell::provider::{Gid, GidEntry, GidKind, IpPrefix, Mtu, PortReport, Unusable};
use doorbell::rails::{LocalRail, RailSource};

/// The selections of the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection<'a> {
    pub(super) device: Option<&'a str>,
    pub(super) port: u8,
    pub(super) gid_index: Option<u8>,
    pub(super) mtu: Mtu,
}

/// The address of the peer that is known when the GID is selected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// Its TCP address, which may be in another network than its RDMA port.
    Tcp(IpAddr),
    /// Its GID.
    Gid(Gid),
}

/// The selected GID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: Gid,
    pub(super) kind: GidKind,
    pub(super) why: GidReason,
}

/// The reason for this GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GidReason {
    /// The command line names it.
    Named,
    /// The peer's address is in its subnet.
    Subnet { subnet: IpPrefix, peer: IpAddr },
    /// No subnet contains the peer's address, and there is only one device.
    OnlyDevice { peer: IpAddr },
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("named on the command line"),
            Self::Subnet { subnet, peer } => write!(f, "its subnet {subnet} has the peer's {peer}"),
            Self::OnlyDevice { peer } => {
                write!(
                    f,
                    "no subnet has the peer's {peer}; the first of the only device there is"
                )
            }
        }
    }
}

/// Reason why no GID can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoSource {
    /// There is no matching port.
    NoPort { wanted: String, known: Vec<String> },
    /// None of the matching ports is usable. Each has its reason.
    Unusable(Vec<(String, Unusable)>),
    /// The GID table has no entry at this index, or the entry is not RoCEv2.
    GidIndex {
        index: u32,
        port: String,
        kind: Option<GidKind>,
    },
    /// With several devices, a GID index requires the name of a device.
    WhichDevice(Vec<String>),
    /// There are several devices, and no subnet contains the peer's address, or it is a link-local address.
    Ambiguous { peer: IpAddr, candidates: Vec<String> },
    /// The port does not support this MTU.
    Mtu { asked: Mtu, active: Mtu, port: String },
}

impl fmt::Display for NoSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort { wanted, known } if known.is_empty() => {
                write!(f, "no RDMA {wanted}: there is no device; see `doorbell devices`")
            }
            Self::NoPort { wanted, known } => {
                write!(f, "no RDMA {wanted}: there are {}", known.join(", "))
            }
            Self::Unusable(ports) => {
                f.write_str("no usable RDMA port")?;
                ports
                    .iter()
                    .try_for_each(|(port, reason)| write!(f, "; {port}: {reason}"))
            }
            Self::GidIndex {
                index,
                port,
                kind: None,
            } => write!(f, "{port} has no GID at index {index}"),
            Self::GidIndex {
                index,
                port,
                kind: Some(kind),
            } => write!(f, "GID {index} of {port} is {kind}, not RoCEv2"),
            Self::WhichDevice(devices) => write!(
                f,
                "--gid-index needs --device where there are several: {}",
                devices.join(", ")
            ),
            Self::Ambiguous { peer, candidates } => write!(
                f,
                "the peer's address {peer} does not say which device reaches it: name --device and \
                 --gid-index, one of {}",
                candidates.join(", ")
            ),
            Self::Mtu { asked, active, port } => write!(
                f,
                "an MTU of {asked} is more than the {active} that {port} works with: name --mtu {active} or \
                 less on both sides, or raise the MTU of the network interface"
            ),
        }
    }
}

impl core::error::Error for NoSource {}

fn name(report: &PortReport) -> String {
    format!("{} port {}", report.device, report.port)
}

/// Checks whether there can be a usable GID, as far as that does not depend on the peer.
pub(super) fn check(ports: &[PortReport], wanted: &Selection<'_>) -> Result<(), NoSource> {
    let asked = requested_ports(ports, wanted)?;
    if let Some(index) = wanted.gid_index {
        let (report, ..) = named(&asked, index)?;
        return fits(report, wanted.mtu);
    }
    let mut outcomes = usable(&asked)?
        .into_iter()
        .map(|(report, ..)| fits(report, wanted.mtu));
    let first = outcomes.next().unwrap_or(Ok(()));
    if outcomes.any(|outcome| outcome.is_ok()) {
        return Ok(());
    }
    first
}

/// Selects the GID.
pub(super) fn choose(ports: &[PortReport], wanted: &Selection<'_>, peer: Peer) -> Result<Source, NoSource> {
    let asked = requested_ports(ports, wanted)?;
    let (report, source) = match wanted.gid_index {
        Some(index) => named(&asked, index)?,
        None => by_rule(&usable(&asked)?, peer)?,
    };
    fits(report, wanted.mtu)?;
    Ok(source)
}

/// The ports that match the command line.
fn requested_ports<'a>(
    ports: &'a [PortReport],
    wanted: &Selection<'_>,
) -> Result<Vec<&'a PortReport>, NoSource> {
    let asked: Vec<&PortReport> = ports
        .iter()
        .filter(|report| {
            wanted
                .device
                .is_none_or(|device| report.device.as_str() == device)
        })
        .filter(|report| report.port == wanted.port)
        .collect();
    if asked.is_empty() {
        let device = wanted
            .device
            .map_or("device".to_owned(), |device| format!("device {device}"));
        return Err(NoSource::NoPort {
            wanted: format!("{device} with a port {}", wanted.port),
            known: ports.iter().map(name).collect(),
        });
    }
    Ok(asked)
}

/// Checks whether a port supports this MTU.
fn fits(report: &PortReport, asked: Mtu) -> Result<(), NoSource> {
    match report.active_mtu {
        None => Err(NoSource::Unusable(vec![(name(report), Unusable::UnknownMtu)])),
        Some(active) if asked > active => Err(NoSource::Mtu {
            asked,
            active,
            port: name(report),
        }),
        Some(_) => Ok(()),
    }
}

type Choice<'a> = (&'a PortReport, Source);

fn choice(report: &PortReport, gid_index: u8, gid: Gid, kind: GidKind, why: GidReason) -> Choice<'_> {
    let source = Source {
        device: report.device.to_string(),
        port: report.port,
        gid_index,
        gid,
        kind,
        why,
    };
    (report, source)
}

/// Returns the GID with this index.
fn named<'a>(asked: &[&'a PortReport], index: u8) -> Result<Choice<'a>, NoSource> {
    let [report] = asked else {
        return Err(NoSource::WhichDevice(
            asked.iter().map(|report| report.device.to_string()).collect(),
        ));
    };
    let entry = gid_at(report, index.into())?;
    Ok(choice(report, index, entry.gid, entry.kind, GidReason::Named))
}

/// Returns the GID with this index, of a port that is usable. The GID has to be RoCEv2. It need not be an IP address, since the user named it
/// explicitly.
///
/// # Errors
/// The port is unusable, has no such GID, or the GID is of another kind.
pub(crate) fn gid_at(report: &PortReport, index: u32) -> Result<&GidEntry, NoSource> {
    let link = report.usability();
    if let Err(reason @ (Unusable::NotActive(_) | Unusable::NotEthernet | Unusable::UnknownMtu)) = link {
        return Err(NoSource::Unusable(vec![(name(report), reason)]));
    }
    let refused = |kind| NoSource::GidIndex {
        index,
        port: name(report),
        kind,
    };
    let entry = report
        .gids
        .iter()
        .find(|entry| entry.index == index)
        .ok_or_else(|| refused(None))?;
    if !entry.is_roce_v2() {
        return Err(refused(Some(entry.kind)));
    }
    Ok(entry)
}

type Usable<'a> = (&'a PortReport, u8, RailSource);

/// The GIDs with which a connection can be made.
fn usable<'a>(asked: &[&'a PortReport]) -> Result<Vec<Usable<'a>>, NoSource> {
    let usable_of = |report: &'a PortReport| {
        LocalRail::of_port(report).filter_map(move |rail| {
            let source = rail.source.ok()?;
            // The address vector of a queue pair identifies its GID by eight bits.
            Some((report, u8::try_from(source.gid_index).ok()?, source))
        })
    };
    let usable: Vec<Usable<'_>> = asked.iter().copied().flat_map(usable_of).collect();
    if !usable.is_empty() {
        return Ok(usable);
    }
    let reason = |report: &PortReport| report.usability().err().unwrap_or(Unusable::NoRoceV2Gid);
    Err(NoSource::Unusable(
        asked
            .iter()
            .map(|report| (name(report), reason(report)))
            .collect(),
    ))
}

/// Returns the GID whose subnet contains the peer, with the longest prefix. If there is none, returns the first GID
/// of the only device: IPv4 before IPv6, and link-local addresses last.
fn by_rule<'a>(usable: &[Usable<'a>], peer: Peer) -> Result<Choice<'a>, NoSource> {
    let address = match peer {
        Peer::Tcp(address) => address.to_canonical(),
        Peer::Gid(gid) => gid.to_ip(),
    };
    let ambiguous = || NoSource::Ambiguous {
        peer: address,
        candidates: usable
            .iter()
            .map(|(report, index, rail)| format!("{} GID {index} ({})", report.device, rail.address))
            .collect(),
    };
    let one_device = |mut choices: core::slice::Iter<'_, Usable<'a>>| {
        let first = choices.next();
        choices.all(|(report, ..)| first.is_some_and(|(device, ..)| device.device == report.device))
    };
    let near = || usable.iter().filter(|(.., rail)| rail.address.contains(address));
    let longest = near().map(|(.., rail)| rail.address.prefix_bits()).max();
    let near: Vec<_> = near()
        .filter(|(.., rail)| Some(rail.address.prefix_bits()) == longest)
        .copied()
        .collect();
    if let Some((report, index, rail)) = near.first() {
        // Every link contains all link-local addresses.
        if is_link_local(address) && !one_device(near.iter()) {
            return Err(ambiguous());
        }
        let why = GidReason::Subnet {
            subnet: rail.address,
            peer: address,
        };
        return Ok(choice(report, *index, rail.gid, rail.kind, why));
    }
    if !one_device(usable.iter()) {
        return Err(ambiguous());
    }
    usable
        .iter()
        // If the peer's GID is known, the local GID has to be of the same IP family.
        .filter(|(.., rail)| !matches!(peer, Peer::Gid(gid) if gid.to_ip().is_ipv4() != rail.gid.to_ip().is_ipv4()))
        .min_by_key(|(_, index, rail)| {
            let address = rail.address.address();
            (is_link_local(address), address.is_ipv6(), *index)
        })
        .map(|(report, index, rail)| choice(report, *index, rail.gid, rail.kind, GidReason::OnlyDevice { peer: address }))
        .ok_or_else(ambiguous)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{GidReason, NoSource, Peer, Selection, check, choose};
    use crate::devices::tests::port;
    use core::net::IpAddr;
    use doorbell::provider::{Gid, GidEntry, GidKind, IpPrefix, Mtu, Name, PortReport, PortState, Unusable};

    pub(crate) fn gid(index: u32, address: &str, bits: u8) -> GidEntry {
        let ip: IpAddr = address.parse().unwrap();
        GidEntry {
            index,
            gid: Gid::from_ip(ip),
            kind: if ip.is_ipv4() {
                GidKind::RoceV2Ipv4
            } else {
                GidKind::RoceV2Ipv6
            },
            interface: Some(Name::try_from("eth0").unwrap()),
            address: Some(IpPrefix::new(ip, bits).unwrap()),
        }
    }

    fn two() -> [PortReport; 2] {
        [
            port("rxe0", vec![gid(0, "fe80::1", 64), gid(1, "10.0.0.1", 24)]),
            port("rxe1", vec![gid(0, "fe80::2", 64), gid(1, "10.0.1.1", 24)]),
        ]
    }

    const ANY: Selection<'static> = Selection {
        device: None,
        port: 1,
        gid_index: None,
        mtu: Mtu::B1024,
    };

    fn tcp(address: &str) -> Peer {
        Peer::Tcp(address.parse().unwrap())
    }

    fn chosen(ports: &[PortReport], wanted: &Selection<'_>, peer: Peer) -> (String, u8) {
        let source = choose(ports, wanted, peer).unwrap();
        (source.device, source.gid_index)
    }

    #[test]
    fn the_peers_subnet_decides() {
        assert_eq!(chosen(&two(), &ANY, tcp("10.0.1.9")), ("rxe1".into(), 1));
        assert_eq!(chosen(&two(), &ANY, tcp("10.0.0.9")), ("rxe0".into(), 1));
        // The form that a dual-stack socket returns.
        assert_eq!(chosen(&two(), &ANY, tcp("::ffff:10.0.1.9")), ("rxe1".into(), 1));
        let peer = Peer::Gid(Gid::from_ip("10.0.1.9".parse().unwrap()));
        assert_eq!(chosen(&two(), &ANY, peer), ("rxe1".into(), 1));
    }

    #[test]
    fn the_longest_prefix_wins() {
        let ports = [port("rxe0", vec![gid(1, "10.0.0.1", 8), gid(2, "10.0.0.2", 24)])];
        let source = choose(&ports, &ANY, tcp("10.0.0.9")).unwrap();
        assert_eq!(source.gid_index, 2);
        assert!(matches!(source.why, GidReason::Subnet { .. }));
        assert_eq!(chosen(&ports, &ANY, tcp("10.9.0.9")), ("rxe0".into(), 1));
    }

    #[test]
    fn without_a_subnet_only_a_single_device_is_taken() {
        assert!(matches!(
            choose(&two(), &ANY, tcp("127.0.0.1")),
            Err(NoSource::Ambiguous { .. })
        ));
        let [first, _] = two();
        let source = choose(&[first], &ANY, tcp("127.0.0.1")).unwrap();
        assert_eq!(source.gid_index, 1);
        assert!(matches!(source.why, GidReason::OnlyDevice { .. }));
        let wanted = Selection {
            device: Some("rxe1"),
            ..ANY
        };
        assert_eq!(chosen(&two(), &wanted, tcp("127.0.0.1")), ("rxe1".into(), 1));
    }

    #[test]
    fn the_family_of_the_peers_gid_is_kept() {
        let [first, _] = two();
        let peer = Peer::Gid(Gid::from_ip("2001:db8::1".parse().unwrap()));
        assert_eq!(chosen(&[first], &ANY, peer), ("rxe0".into(), 0));
        let v4_only = [port("rxe0", vec![gid(1, "10.0.0.1", 24)])];
        assert!(matches!(
            choose(&v4_only, &ANY, peer),
            Err(NoSource::Ambiguous { .. })
        ));
    }

    #[test]
    fn a_link_local_peer_is_on_every_link() {
        assert!(matches!(
            choose(&two(), &ANY, tcp("fe80::9")),
            Err(NoSource::Ambiguous { .. })
        ));
        let [first, _] = two();
        assert_eq!(chosen(&[first], &ANY, tcp("fe80::9")), ("rxe0".into(), 0));
    }

    #[test]
    fn what_is_named_is_taken_or_refused() {
        let on = |device, gid_index| Selection {
            device,
            gid_index,
            ..ANY
        };
        let peer = tcp("10.0.0.9");
        assert_eq!(
            chosen(&two(), &on(Some("rxe1"), Some(0)), peer),
            ("rxe1".into(), 0)
        );
        assert!(matches!(
            choose(&two(), &on(None, Some(1)), peer),
            Err(NoSource::WhichDevice(_))
        ));
        let error = choose(&two(), &on(Some("rxe1"), Some(7)), peer).unwrap_err();
        assert_eq!(error.to_string(), "rxe1 port 1 has no GID at index 7");
        let error = choose(&two(), &on(Some("mlx5_0"), None), peer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no RDMA device mlx5_0 with a port 1: there are rxe0 port 1, rxe1 port 1"
        );
        let error = choose(&[], &ANY, peer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no RDMA device with a port 1: there is no device; see `doorbell devices`"
        );
        let mut old = two();
        old[0].gids[1].kind = GidKind::RoceV1;
        let error = choose(&old, &on(Some("rxe0"), Some(1)), peer).unwrap_err();
        assert_eq!(error.to_string(), "GID 1 of rxe0 port 1 is RoCEv1, not RoCEv2");
    }

    #[test]
    fn a_port_that_is_down_and_a_table_without_rocev2_are_told() {
        let mut ports = two();
        ports[0].state = PortState::DOWN;
        ports[1].gids.clear();
        assert_eq!(
            choose(&ports, &ANY, tcp("10.0.0.9")),
            Err(NoSource::Unusable(vec![
                ("rxe0 port 1".into(), Unusable::NotActive(PortState::DOWN)),
                ("rxe1 port 1".into(), Unusable::NoRoceV2Gid),
            ]))
        );
        let wanted = Selection {
            device: Some("rxe0"),
            gid_index: Some(1),
            ..ANY
        };
        assert_eq!(
            choose(&ports, &wanted, tcp("10.0.0.9")).unwrap_err().to_string(),
            "no usable RDMA port; rxe0 port 1: the port is DOWN, not ACTIVE"
        );
    }

    #[test]
    fn what_the_peer_has_no_part_in_is_checked_without_it() {
        assert_eq!(check(&two(), &ANY), Ok(()));
        let mut ports = two();
        ports[0].state = PortState::DOWN;
        assert_eq!(check(&ports, &ANY), Ok(()));
        ports[1].gids.clear();
        assert!(matches!(check(&ports, &ANY), Err(NoSource::Unusable(two)) if two.len() == 2));
        let mut ports = two();
        let wanted = Selection {
            mtu: Mtu::B2048,
            ..ANY
        };
        assert!(matches!(check(&ports, &wanted), Err(NoSource::Mtu { .. })));
        ports[1].active_mtu = Some(Mtu::B2048);
        assert_eq!(check(&ports, &wanted), Ok(()));
        let wanted = Selection {
            device: Some("rxe0"),
            gid_index: Some(9),
            ..ANY
        };
        assert!(matches!(check(&ports, &wanted), Err(NoSource::GidIndex { .. })));
    }

    #[test]
    fn the_mtu_may_be_what_the_port_works_with_and_no_more() {
        let wanted = |mtu| Selection { mtu, ..ANY };
        let peer = tcp("10.0.0.9");
        assert!(choose(&two(), &wanted(Mtu::B1024), peer).is_ok());
        let error = choose(&two(), &wanted(Mtu::B2048), peer).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("an MTU of 2048 is more than the 1024 that rxe0 port 1 works with"),
            "{error}"
        );
    }
}
