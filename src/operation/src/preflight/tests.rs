//! Each finding is tested with facts that cause it, and with slightly different facts that do not.

mod snapshot;

use doorbell::provider::{Gid, GidEntry, GidKind, IpPrefix, Mtu, Name, PortReport, PortState};

use super::{Finding, FindingKind, Severity, preflight};
use crate::topology::{
    ArpFacts, InterfaceFacts, NeighbourFacts, NeighbourState, PortFacts, RouteFacts, Topology,
};

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

/// Creates a port of a device with its own interface, without any finding.
fn port(device: &str, netdev: &str, address: &str) -> (PortFacts, InterfaceFacts) {
    let address = prefix(address);
    let mut report = PortReport {
        device: Name::try_from(device).unwrap(),
        port: 1,
        state: PortState::ACTIVE,
        is_ethernet: true,
        active_mtu: Some(Mtu::B4096),
        mtu_max: Some(Mtu::B4096),
        speed_mbps: 100_000,
        numa_node: None,
        gids: Default::default(),
        gids_left_out: 0,
    };
    let kind = if address.address().is_ipv4() {
        GidKind::RoceV2Ipv4
    } else {
        GidKind::RoceV2Ipv6
    };
    let entry = GidEntry {
        index: 1,
        gid: Gid::from_ip(address.address()),
        kind,
        interface: Some(Name::try_from(netdev).unwrap()),
        address: Some(address),
    };
    report.gids.push(entry).unwrap();
    let facts = PortFacts {
        report,
        node_guid: None,
        driver: None,
        firmware: None,
        pci_address: None,
        sysfs_path: None,
        netdevs: vec![netdev.to_owned()],
        pkeys: Some(vec![0xffff]),
    };
    let interface = InterfaceFacts {
        name: netdev.to_owned(),
        is_up: Some(true),
        has_carrier: Some(true),
        mtu_bytes: Some(4200),
        addresses: vec![address],
        arp: ArpFacts {
            announce: Some(0),
            ignore: Some(0),
            filter: Some(0),
            rp_filter: Some(0),
        },
        ..InterfaceFacts::default()
    };
    (facts, interface)
}

fn host(name: &str, ports: &[(&str, &str, &str)]) -> Topology {
    let mut topology = Topology {
        host: name.to_owned(),
        ..Topology::default()
    };
    for (device, netdev, address) in ports {
        let (port, interface) = port(device, netdev, address);
        topology.ports.push(port);
        topology.interfaces.push(interface);
    }
    topology
}

fn one() -> Topology {
    host("a", &[("mlx5_0", "eth0", "10.0.0.1/24")])
}

fn kinds(hosts: &[Topology]) -> Vec<FindingKind> {
    preflight(hosts).iter().map(|finding| finding.kind).collect()
}

/// Returns the only finding.
#[track_caller]
fn only(hosts: &[Topology]) -> Finding {
    let mut found = preflight(hosts);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.pop().unwrap()
}

/// Changes a host without findings, and returns the finding that results.
#[track_caller]
fn altered(alter: impl FnOnce(&mut Topology)) -> Finding {
    assert_eq!(kinds(&[one()]), []);
    let mut topology = one();
    alter(&mut topology);
    only(&[topology])
}

/// Checks that there is no finding.
#[track_caller]
fn fine(alter: impl FnOnce(&mut Topology)) {
    let mut topology = one();
    alter(&mut topology);
    assert_eq!(preflight(&[topology]), []);
}

#[test]
fn a_finding_says_what_why_and_what_to_do() {
    let finding = altered(|host| {
        host.ports[0].report.state = PortState::DOWN;
        host.interfaces[0].is_up = Some(false);
        // Another usable port remains, so that the lack of one is not a finding here: see below.
        let (port, interface) = port("mlx5_1", "eth1", "10.0.1.1/24");
        host.ports.push(port);
        host.interfaces.push(interface);
    });
    assert_eq!(
        finding.to_string(),
        "error[admin-down] a: mlx5_0:1: its interface eth0 is set down\n  \
         why: a port is as its interface is; connecting through it ends in a timeout\n  \
         do:  ip link set dev eth0 up; where a fabric gives rights at boot to what is up then, have it up at boot"
    );
}

#[test]
fn no_device_and_no_rail() {
    let finding = only(&[host("a", &[])]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::NoDevice, Severity::Error)
    );
    let mut dark = one();
    dark.ports[0].report.state = PortState::DOWN;
    dark.interfaces[0].has_carrier = Some(false);
    assert_eq!(
        kinds(&[dark.clone()]),
        [FindingKind::NoCarrier, FindingKind::NoRail]
    );
    dark.interfaces[0].has_carrier = Some(true);
    assert_eq!(kinds(&[dark]), [FindingKind::PortUnusable, FindingKind::NoRail]);
}

#[test]
fn what_could_not_be_looked_at() {
    let finding = altered(|host| host.failures.push("neighbours: permission denied".into()));
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::NotLookedAt, Severity::Warning)
    );
}

#[test]
fn no_address_a_missing_gid_and_another_namespace() {
    let second = || port("mlx5_1", "eth1", "10.0.1.1/24");
    let with = |alter: fn(&mut PortFacts, &mut InterfaceFacts)| {
        altered(|host| {
            let (mut port, mut interface) = second();
            alter(&mut port, &mut interface);
            host.ports.push(port);
            host.interfaces.push(interface);
        })
    };
    let finding = with(|port, interface| {
        port.report.gids.clear();
        interface.addresses.clear();
    });
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::NoAddress, Severity::Warning)
    );
    assert_eq!(finding.what, "eth1 has no IP address");
    let finding = with(|port, _| port.report.gids.clear());
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::GidMissing, Severity::Error)
    );
    let finding = with(|port, _| {
        port.report.gids.clear();
        port.netdevs = vec!["elsewhere0".into()];
    });
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::Elsewhere, Severity::Note)
    );
    // One of two addresses first has no GID, and then has one.
    let finding = with(|_, interface| interface.addresses.push(prefix("10.0.7.1/24")));
    assert_eq!(finding.kind, FindingKind::GidMissing);
    assert_eq!(finding.what, "the address 10.0.7.1/24 of eth1 has no RoCEv2 GID");
    // The address may have a GID that did not fit into the report.
    let finding = with(|port, interface| {
        interface.addresses.push(prefix("10.0.7.1/24"));
        port.report.gids_left_out = 1;
    });
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::PortUnusable, Severity::Warning)
    );
    assert_eq!(
        finding.what,
        "1 more of its GIDs could be used: those behind the first 64 are not"
    );
    fine(|host| {
        let (mut port, mut interface) = second();
        let mut entry = port.report.gids[0].clone();
        (entry.index, entry.gid) = (2, Gid::from_ip("10.0.7.1".parse().unwrap()));
        entry.address = Some(prefix("10.0.7.1/24"));
        port.report.gids.push(entry).unwrap();
        interface.addresses.push(prefix("10.0.7.1/24"));
        // The interface's link-local address needs no GID.
        interface.addresses.push(prefix("fe80::1/64"));
        host.ports.push(port);
        host.interfaces.push(interface);
    });
}

#[test]
fn link_local_alone() {
    let finding = only(&[host("a", &[("mlx5_0", "eth0", "fe80::1/64")])]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::LinkLocalOnly, Severity::Warning)
    );
    assert_eq!(kinds(&[host("a", &[("mlx5_0", "eth0", "fd00::1/64")])]), []);
}

#[test]
fn the_mtu_of_the_interface() {
    // 4096 bytes, 20 of IPv4 and 44 of RoCE.
    let finding = altered(|host| host.interfaces[0].mtu_bytes = Some(4159));
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::MtuTooSmall, Severity::Error)
    );
    assert!(finding.remedy.ends_with("eth0 mtu 4160"), "{}", finding.remedy);
    fine(|host| host.interfaces[0].mtu_bytes = Some(4160));
    fine(|host| host.interfaces[0].mtu_bytes = None);
    let finding = altered(|host| {
        host.interfaces[0].mtu_bytes = Some(1500);
        host.ports[0].report.active_mtu = Some(Mtu::B1024);
    });
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::MtuLow, Severity::Note)
    );
    // The header of IPv6 is longer.
    let mut v6 = host("a", &[("mlx5_0", "eth0", "fd00::1/64")]);
    v6.interfaces[0].mtu_bytes = Some(4179);
    assert_eq!(kinds(&[v6.clone()]), [FindingKind::MtuTooSmall]);
    v6.interfaces[0].mtu_bytes = Some(4180);
    assert_eq!(kinds(&[v6]), []);
}

#[test]
fn a_missing_partition_key() {
    let finding = altered(|host| host.ports[0].pkeys = Some(vec![]));
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::PkeyMissing, Severity::Error)
    );
    let finding = altered(|host| host.ports[0].pkeys = Some(vec![0, 0xffff]));
    assert_eq!(finding.kind, FindingKind::PkeyMissing);
    fine(|host| host.ports[0].pkeys = Some(vec![0x7fff]));
    fine(|host| host.ports[0].pkeys = None);
}

#[test]
fn who_is_asked_for_is_in_a_subnet_of_a_rail_and_no_address_of_our_own() {
    let mut here = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "fd00::1/64"),
        ],
    );
    let peers = [
        "10.0.0.2",
        "10.0.0.2",
        "10.0.0.1",
        "10.0.1.2",
        "fd00::2",
        "fe80::2",
        "169.254.0.2",
    ];
    let peers = peers.map(|peer| peer.parse().unwrap());
    let asked = |here: &Topology| -> Vec<String> {
        let asked = here.in_reach(&peers).into_iter();
        asked.map(|(own, peer)| format!("{own} {peer}")).collect()
    };
    assert_eq!(asked(&here), ["10.0.0.1 10.0.0.2", "fd00::1 fd00::2"]);
    here.rail_filter = "^mlx5_0".parse().unwrap();
    assert_eq!(asked(&here), ["fd00::1 fd00::2"]);
}

#[test]
fn neighbours_nobody_answers_for() {
    let neighbour = |state, netdev: &str, address: &str| NeighbourFacts {
        netdev: netdev.to_owned(),
        address: address.parse().unwrap(),
        state,
    };
    for state in [NeighbourState::Failed, NeighbourState::Incomplete] {
        let finding = altered(|host| host.neighbours.push(neighbour(state, "eth0", "10.0.0.9")));
        assert_eq!(finding.kind, FindingKind::NeighbourUnresolved);
        assert_eq!(finding.severity, Severity::Warning);
    }
    fine(|host| {
        host.neighbours
            .push(neighbour(NeighbourState::Known, "eth0", "10.0.0.9"))
    });
    // The finding names the rail of the same subnet.
    let mut dual = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth0", "fd00::1/64"),
        ],
    );
    dual.neighbours
        .push(neighbour(NeighbourState::Failed, "eth0", "fd00::9"));
    let found = preflight(&[dual]);
    let finding = found
        .iter()
        .find(|it| it.kind == FindingKind::NeighbourUnresolved);
    let subject = &finding.unwrap().subject;
    assert!(subject.starts_with("mlx5_1"), "{subject}");
    // An interface without a rail does not matter.
    fine(|host| {
        host.neighbours
            .push(neighbour(NeighbourState::Failed, "eth9", "10.0.0.9"))
    });
    // If a host is known to exist, the finding is more severe.
    let mut a = one();
    a.neighbours
        .push(neighbour(NeighbourState::Failed, "eth0", "10.0.0.2"));
    let finding = only(&[a, host("b", &[("mlx5_0", "eth0", "10.0.0.2/24")])]);
    assert_eq!(finding.severity, Severity::Error);
    assert_eq!(
        finding.what,
        "the neighbour 10.0.0.2 of b does not answer on eth0"
    );
}

#[test]
fn a_peer_that_is_named_has_to_be_there() {
    let named = |peers: &[&str], neighbours: &[(&str, NeighbourState, &str)]| {
        let mut host = one();
        host.peers = peers.iter().map(|peer| peer.parse().unwrap()).collect();
        let facts = neighbours.iter().map(|(address, state, netdev)| NeighbourFacts {
            netdev: (*netdev).to_owned(),
            address: address.parse().unwrap(),
            state: *state,
        });
        host.neighbours = facts.collect();
        let found = preflight(&[host]).into_iter();
        found.map(|it| (it.severity, it.kind)).collect::<Vec<_>>()
    };
    let (failed, known) = (NeighbourState::Failed, NeighbourState::Known);
    let unresolved = [(Severity::Error, FindingKind::NeighbourUnresolved)];
    assert_eq!(named(&["10.0.0.9"], &[("10.0.0.9", failed, "eth0")]), unresolved);
    let incomplete = NeighbourState::Incomplete;
    assert_eq!(
        named(&["10.0.0.9"], &[("10.0.0.9", incomplete, "eth0")]),
        unresolved
    );
    assert_eq!(named(&["10.0.0.9"], &[("10.0.0.9", known, "eth0")]), []);
    // The interface of the request does not matter. One that answers is enough.
    assert_eq!(named(&["10.0.0.9"], &[("10.0.0.9", failed, "eth9")]), unresolved);
    let both = [("10.0.0.9", failed, "eth0"), ("10.0.0.9", known, "eth9")];
    let passing = [(Severity::Warning, FindingKind::NeighbourUnresolved)];
    assert_eq!(named(&["10.0.0.9"], &both), passing);
    // A failed neighbour that is not named does not matter.
    assert_eq!(named(&["10.0.0.8"], &[("10.0.0.9", failed, "eth0")]), passing);
    let not_reached = [(Severity::Error, FindingKind::NotReached)];
    assert_eq!(named(&["10.1.0.7", "10.1.0.7"], &[]), not_reached);
    assert_eq!(named(&["fd00::7"], &[]), not_reached);
    // An address of this host, and an address that does not tell its subnet.
    assert_eq!(named(&["10.0.0.1"], &[]), []);
    let not_asked = [(Severity::Warning, FindingKind::NotLookedAt)];
    assert_eq!(named(&["fe80::7"], &[]), not_asked);
    // An excluded rail reaches no host.
    let mut left = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "10.1.0.1/24"),
        ],
    );
    left.peers = vec!["10.1.0.7".parse().unwrap()];
    assert_eq!(kinds(&[left.clone()]), []);
    left.rail_filter = "^mlx5_1".parse().unwrap();
    let found = preflight(&[left]);
    assert_eq!(found[0].kind, FindingKind::NotReached);
    assert_eq!(
        found[0].why,
        "a rail reaches its own subnet alone; those here are 10.0.0.0/24"
    );
}

#[test]
fn a_hardened_interface_without_a_way_of_its_own() {
    let mut shared = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "10.0.0.2/24"),
        ],
    );
    let route = |from: &str, to: &str, netdev: Option<&str>| RouteFacts {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        netdev: netdev.map(str::to_owned),
    };
    for interface in &mut shared.interfaces {
        interface.arp = HARDENED;
    }
    let by = |netdev| {
        let mut by = shared.clone();
        by.routes.push(route("10.0.0.1", "10.0.0.3", Some("eth0")));
        by.routes.push(route("10.0.0.2", "10.0.0.3", netdev));
        // An address that belongs to no rail does not matter.
        by.routes.push(route("10.0.0.5", "10.0.0.3", None));
        by
    };
    assert_eq!(kinds(&[by(Some("eth1"))]), []);
    let finding = only(&[by(Some("eth0"))]);
    assert_eq!(
        finding.to_string(),
        "error[source-route] a: eth1: packets from 10.0.0.2 to its subnet leave by eth0, not by eth1, \
         where arp_filter is 1, rp_filter is 1\n  \
         why: eth1 then neither answers for this address nor takes what is sent to it: nothing is connected over it\n  \
         do:  ip route add 10.0.0.0/24 dev eth1 src 10.0.0.2 table N; ip rule add from 10.0.0.2 table N; with an N of \
         its own for each interface; or a subnet for each"
    );
    assert!(
        only(&[by(None)])
            .what
            .starts_with("packets from 10.0.0.2 to its subnet have no way, ")
    );
    // One address has one finding.
    let mut twice = by(Some("eth0"));
    twice.routes.push(route("10.0.0.2", "10.0.1.1", Some("eth0")));
    assert_eq!(kinds(&[twice]), [FindingKind::SourceRoute]);
    // Without the settings that block packets, there is another finding.
    let mut open = by(Some("eth0"));
    (open.interfaces[1].arp.filter, open.interfaces[1].arp.rp_filter) = (Some(0), Some(2));
    assert_eq!(kinds(&[open]), [FindingKind::ArpNotHardened]);
}

const HARDENED: ArpFacts = ArpFacts {
    announce: Some(2),
    ignore: Some(1),
    filter: Some(1),
    rp_filter: Some(1),
};

#[test]
fn interfaces_that_answer_for_each_other() {
    let hardened = HARDENED;
    let mut shared = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "10.0.0.2/24"),
        ],
    );
    assert_eq!(kinds(&[shared.clone()]), [FindingKind::ArpNotHardened; 2]);
    shared.interfaces[0].arp = hardened;
    let finding = only(&[shared.clone()]);
    assert_eq!(
        (finding.severity, finding.subject.as_str()),
        (Severity::Error, "eth1")
    );
    assert_eq!(
        finding.what,
        "eth1 is in subnet 10.0.0.0/24 with eth0, and arp_announce is 0, arp_ignore is 0, arp_filter is 0"
    );
    assert!(
        finding.remedy.contains("net.ipv4.conf.eth1.arp_announce=2"),
        "{}",
        finding.remedy
    );
    // Each is named once, although another device also has the GID of an interface on top of its
    // own.
    let mut stacked = shared.clone();
    stacked.ports.push(port("mlx5_9", "eth1", "10.0.0.2/24").0);
    stacked.ports.push(port("mlx5_8", "eth0", "10.0.0.1/24").0);
    assert_eq!(only(&[stacked]).what, finding.what);
    shared.interfaces[1].arp = hardened;
    assert_eq!(kinds(&[shared.clone()]), []);
    // Each setting alone.
    let bend: [fn(&mut ArpFacts); 4] = [
        |arp| arp.announce = Some(1),
        |arp| arp.ignore = Some(0),
        |arp| arp.filter = Some(0),
        |arp| arp.rp_filter = Some(2),
    ];
    for bend in bend {
        let mut bent = shared.clone();
        bend(&mut bent.interfaces[1].arp);
        assert_eq!(kinds(&[bent]), [FindingKind::ArpNotHardened]);
    }
    let mut vlan = host(
        "a",
        &[
            ("mlx5_0", "eth0.100", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "10.0.0.2/24"),
        ],
    );
    vlan.interfaces[1].arp = hardened;
    vlan.interfaces[0].arp = ArpFacts {
        ignore: Some(0),
        rp_filter: Some(2),
        ..hardened
    };
    let remedy = only(&[vlan]).remedy;
    let sets = "sysctl -w net.ipv4.conf.eth0/100.arp_ignore=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth0/100.rp_filter=1;";
    assert!(remedy.starts_with(sets), "{remedy}");
    let mut without = shared.clone();
    without.interfaces[1].arp.rp_filter = Some(0);
    assert_eq!(kinds(&[without]), []);
    // Separate subnets, and two addresses of one interface.
    let apart = [
        ("mlx5_0", "eth0", "10.0.0.1/25"),
        ("mlx5_1", "eth1", "10.0.0.129/25"),
    ];
    assert_eq!(kinds(&[host("a", &apart)]), []);
    let mut twice = host("a", &[("mlx5_0", "eth0", "10.0.0.1/24")]);
    let mut entry = twice.ports[0].report.gids[0].clone();
    (entry.index, entry.gid) = (2, Gid::from_ip("10.0.0.2".parse().unwrap()));
    entry.address = Some(prefix("10.0.0.2/24"));
    twice.ports[0].report.gids.push(entry).unwrap();
    twice.interfaces[0].addresses.push(prefix("10.0.0.2/24"));
    assert_eq!(kinds(&[twice]), []);
}

#[test]
fn what_the_filter_leaves_out_and_rules_that_name_nothing() {
    let two = || {
        host(
            "a",
            &[
                ("mlx5_0", "eth0", "10.0.0.1/24"),
                ("mlx5_1", "eth1", "10.0.1.1/24"),
            ],
        )
    };
    let mut left = two();
    left.rail_filter = "^mlx5_1".parse().unwrap();
    let finding = only(&[left.clone()]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::LeftOut, Severity::Note)
    );
    // Faults of an excluded port do not matter.
    left.ports[1].report.state = PortState::DOWN;
    assert_eq!(kinds(&[left]), [FindingKind::LeftOut]);
    let mut idle = two();
    idle.rail_filter = "mlx5_*,mlx5_9".parse().unwrap();
    let finding = only(&[idle.clone()]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::RuleIdle, Severity::Warning)
    );
    assert_eq!(finding.subject, "rule 2 of the rail filter");
    for used in ["mlx5_*,netdev=eth1", "mlx5_*,10.0.1.0/24", "mlx5_*,mlx5_1:1"] {
        idle.rail_filter = used.parse().unwrap();
        assert_eq!(kinds(&[idle.clone()]), [], "{used}");
    }
}

/// Creates the second host, on the subnet of the first.
fn other() -> Topology {
    host("b", &[("mlx5_3", "eth3", "10.0.0.2/24")])
}

#[test]
fn two_hosts_that_go_together() {
    assert_eq!(kinds(&[one(), other()]), []);
}

#[test]
fn no_rail_between_two_hosts_and_a_way_past_a_third() {
    let far = host("c", &[("mlx5_0", "eth0", "10.0.9.1/24")]);
    let finding = only(&[one(), far.clone()]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::NotReached, Severity::Error)
    );
    assert_eq!(
        finding.why,
        "mlx5_0:1 10.0.0.1/24: no address of the other side is in its subnet"
    );
    let mut between = other();
    let (port, interface) = port("mlx5_4", "eth4", "10.0.9.2/24");
    between.ports.push(port);
    between.interfaces.push(interface);
    let finding = only(&[one(), between, far]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::NotReached, Severity::Warning)
    );
    assert_eq!(finding.what, "no rail reaches it; the shortest way is a - b - c");
}

#[test]
fn the_two_ends_of_a_link() {
    let mut low = other();
    low.interfaces[0].mtu_bytes = Some(9000);
    let finding = only(&[one(), low.clone()]);
    assert_eq!(
        (finding.kind, finding.severity),
        (FindingKind::MtuUnequal, Severity::Warning)
    );
    low.interfaces[0].mtu_bytes = Some(4200);
    assert_eq!(kinds(&[one(), low.clone()]), []);
    low.ports[0].report.active_mtu = Some(Mtu::B2048);
    low.ports[0].report.mtu_max = Some(Mtu::B2048);
    assert_eq!(kinds(&[one(), low]), [FindingKind::MtuUnequal]);

    for (ours, theirs, is_good) in [
        (0xffff, 0xffff, true),
        (0xffff, 0x7fff, true),
        (0x7fff, 0x7fff, false),
        (0xffff, 0x8001, false),
    ] {
        let (mut a, mut b) = (one(), other());
        a.ports[0].pkeys = Some(vec![ours]);
        b.ports[0].pkeys = Some(vec![theirs]);
        let expected: &[FindingKind] = if is_good {
            &[]
        } else {
            &[FindingKind::PkeyMismatch]
        };
        assert_eq!(kinds(&[a, b]), expected, "{ours:#x} {theirs:#x}");
    }
}

#[test]
fn prefixes_that_disagree_and_one_address_twice() {
    let wide = host("b", &[("mlx5_3", "eth3", "10.0.1.2/16")]);
    let found = preflight(&[one(), wide]);
    let kinds_of: Vec<_> = found.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds_of, [FindingKind::NotReached, FindingKind::PrefixOneSided]);
    // Another prefix length that still has both in one subnet does not matter.
    let narrow = host("b", &[("mlx5_3", "eth3", "10.0.0.2/25")]);
    assert_eq!(kinds(&[one(), narrow]), []);
    let twin = host("b", &[("mlx5_3", "eth3", "10.0.0.1/24")]);
    assert_eq!(kinds(&[one(), twin]), [FindingKind::AddressTwice]);
}

#[test]
fn the_worst_is_told_first() {
    let mut host = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "10.0.1.1/24"),
        ],
    );
    host.failures.push("something".into());
    host.ports[1].pkeys = Some(vec![]);
    assert_eq!(
        kinds(&[host]),
        [FindingKind::PkeyMissing, FindingKind::NotLookedAt]
    );
}
