//! Which rail reaches which address, and why the others do not.

use doorbell_core::port::{Name, Unusable};
use doorbell_core::rail::{LocalRail, NotChosen, RailSource, Verdict, choose};
use doorbell_core::wire::{AdvertisedRail, SpeedClass};
use doorbell_core::{Gid, GidEntry, GidKind, Mtu, PortReport, PortState};

use crate::samples;

fn local(text: &str, speed_mbps: u32) -> LocalRail {
    let address = samples::prefix(text);
    let kind = if address.address().is_ipv4() {
        GidKind::RoceV2Ipv4
    } else {
        GidKind::RoceV2Ipv6
    };
    LocalRail {
        device: Name::try_from("rxe0").unwrap(),
        port: 1,
        speed_mbps,
        source: Ok(RailSource {
            gid_index: 1,
            gid: Gid::from_ip(address.address()),
            kind,
            address,
            mtu: Mtu::B1024,
        }),
    }
}

fn unusable(reason: Unusable) -> LocalRail {
    LocalRail {
        device: Name::try_from("rxe9").unwrap(),
        port: 1,
        speed_mbps: 0,
        source: Err(reason),
    }
}

/// The pair and the verdicts on the local rails.
fn verdicts(locals: &[LocalRail], peers: &[AdvertisedRail]) -> (Option<(usize, usize)>, Vec<Verdict>) {
    let choice = choose(locals, peers);
    let pair = choice.pair().map(|pair| (pair.local, pair.peer));
    let verdicts: Vec<Verdict> = choice.local_verdicts().map(|(_, verdict)| verdict).collect();
    assert_eq!(verdicts.len(), locals.len());
    assert_eq!(choice.peer_verdicts().count(), peers.len());
    let chosen = |verdict: &Verdict| matches!(verdict, Verdict::Chosen(_));
    assert_eq!(
        verdicts.iter().filter(|verdict| chosen(verdict)).count(),
        usize::from(pair.is_some())
    );
    assert_eq!(
        choice
            .peer_verdicts()
            .filter(|(_, verdict)| chosen(verdict))
            .count(),
        usize::from(pair.is_some())
    );
    (pair, verdicts)
}

fn peer(text: &str, speed_mbps: u32) -> AdvertisedRail {
    samples::rail(text, speed_mbps)
}

#[test]
fn a_mesh_with_a_subnet_per_cable_finds_the_cable() {
    let locals = [
        local("10.0.1.1/30", 0),
        local("10.0.1.5/30", 0),
        local("10.0.1.9/30", 0),
    ];
    let peers = [peer("10.0.1.18/30", 0), peer("10.0.1.10/30", 0)];
    let (pair, verdicts) = verdicts(&locals, &peers);
    assert_eq!(pair, Some((2, 1)));
    assert_eq!(
        verdicts,
        [
            Verdict::NotChosen(NotChosen::NotInSubnet),
            Verdict::NotChosen(NotChosen::NotInSubnet),
            Verdict::Chosen(1)
        ]
    );
}

#[test]
fn the_real_prefix_decides_in_pairs() {
    // .129 is in the /24 and in the upper /25, and not in the lower.
    for (ours, theirs, reaches) in [
        ("10.0.0.1/24", "10.0.0.129/24", true),
        ("10.0.0.1/25", "10.0.0.129/25", false),
        ("10.0.0.130/25", "10.0.0.129/25", true),
        ("10.0.0.0/31", "10.0.0.1/31", true),
        ("10.0.0.1/31", "10.0.0.2/31", false),
        ("fd00::1/64", "fd00::ffff:0:0:1/64", true),
        ("fd00::1/65", "fd00::ffff:0:0:1/65", false),
    ] {
        let (pair, _) = verdicts(&[local(ours, 0)], &[peer(theirs, 0)]);
        assert_eq!(pair.is_some(), reaches, "{ours} {theirs}");
    }
}

#[test]
fn both_sides_have_to_agree() {
    let (pair, verdicts) = verdicts(&[local("10.0.0.1/16", 0)], &[peer("10.0.9.1/24", 0)]);
    assert_eq!(pair, None);
    let Verdict::NotChosen(reason) = verdicts[0] else {
        panic!("chosen")
    };
    assert_eq!(
        reason.to_string(),
        "local 10.0.0.1/16 and the peer's 10.0.9.1/24 do not agree on being in one subnet: \
         one of the two prefix lengths is wrong"
    );
}

#[test]
fn lane_then_longest_prefix_then_speed_then_order() {
    // A management rail comes last, however long its prefix.
    let locals = [local("10.0.0.1/24", 10_000), local("10.0.0.2/16", 400_000)];
    let peers = [peer("10.0.0.9/24", 10_000), peer("10.0.0.10/16", 400_000)];
    let (pair, verdicts_) = verdicts(&locals, &peers);
    assert_eq!(pair, Some((1, 1)));
    let slower = NotChosen::Slower {
        speed: SpeedClass::from_mbps(10_000),
        chosen: SpeedClass::from_mbps(400_000),
    };
    assert_eq!(verdicts_[0], Verdict::NotChosen(slower));
    // If only the slower one reaches, it is chosen.
    let (pair, _) = verdicts(&locals, &peers[..1]);
    assert_eq!(pair, Some((0, 0)));

    let locals = [local("10.0.0.1/16", 400_000), local("10.0.0.2/24", 100_000)];
    let peers = [peer("10.0.0.9/16", 400_000), peer("10.0.0.10/24", 100_000)];
    let (pair, verdicts_) = verdicts(&locals, &peers);
    assert_eq!(pair, Some((1, 1)));
    let shorter = NotChosen::ShorterPrefix {
        host_bits: 16,
        chosen_host_bits: 8,
    };
    assert_eq!(verdicts_[0], Verdict::NotChosen(shorter));

    let locals = [
        local("10.0.0.1/24", 100_000),
        local("10.0.0.2/24", 25_000),
        local("10.0.0.3/24", 100_000),
    ];
    // The slower end counts: the first has a fast port that meets a slow one.
    let peers = [peer("10.0.0.9/24", 10_000), peer("10.0.0.10/24", 100_000)];
    let (pair, verdicts_) = verdicts(&locals, &peers);
    assert_eq!(pair, Some((0, 1)));
    let slower = NotChosen::Slower {
        speed: SpeedClass::from_mbps(25_000),
        chosen: SpeedClass::from_mbps(100_000),
    };
    assert_eq!(
        verdicts_[1..],
        [
            Verdict::NotChosen(slower),
            Verdict::NotChosen(NotChosen::LaterInOrder)
        ]
    );
    let choice = choose(&locals, &peers);
    let (_, first_peer) = choice.peer_verdicts().next().unwrap();
    assert!(matches!(first_peer, Verdict::NotChosen(NotChosen::Slower { .. })));
}

#[test]
fn families_do_not_mix_and_compare_by_host_bits() {
    let locals = [local("fd00::1/64", 0), local("10.0.0.1/24", 0)];
    let (pair, verdicts_) = verdicts(&locals, &[peer("10.0.0.2/24", 0)]);
    assert_eq!(pair, Some((1, 0)));
    assert_eq!(verdicts_[0], Verdict::NotChosen(NotChosen::OtherFamily));
    let (pair, verdicts_) = verdicts(&locals, &[peer("fd00::2/64", 0), peer("10.0.0.2/24", 0)]);
    assert_eq!(pair, Some((1, 1)));
    let shorter = NotChosen::ShorterPrefix {
        host_bits: 64,
        chosen_host_bits: 8,
    };
    assert_eq!(verdicts_[0], Verdict::NotChosen(shorter));
}

#[test]
fn link_local_is_the_last_resort_and_only_where_it_is_clear() {
    for (first, second, other) in [
        ("fe80::1/64", "fe80::2/64", "fe80::9/64"),
        ("169.254.0.1/16", "169.254.0.2/16", "169.254.0.9/16"),
    ] {
        let (pair, _) = verdicts(&[local(first, 0)], &[peer(other, 0)]);
        assert_eq!(pair, Some((0, 0)), "one cable, one address each");
        let (pair, verdicts_) = verdicts(&[local(first, 0), local(second, 0)], &[peer(other, 0)]);
        assert_eq!(pair, None);
        assert_eq!(verdicts_, [Verdict::NotChosen(NotChosen::AmbiguousLinkLocal); 2]);
        let (pair, _) = verdicts(&[local(first, 0)], &[peer(other, 0), peer(second, 0)]);
        assert_eq!(pair, None);
        // This host itself is no matter of links.
        let (pair, _) = verdicts(&[local(first, 0), local(second, 0)], &[peer(second, 0)]);
        assert_eq!(pair, Some((1, 0)));
        let locals = [local(first, 100_000), local("fd00::1/64", 10)];
        let (pair, verdicts_) = verdicts(&locals, &[peer(other, 100_000), peer("fd00::2/64", 10)]);
        assert_eq!(pair, Some((1, 1)));
        assert_eq!(verdicts_[0], Verdict::NotChosen(NotChosen::LinkLocal));
    }
}

#[test]
fn what_cannot_carry_a_connection_says_why() {
    let down = Unusable::NotActive(PortState::DOWN);
    let locals = [
        unusable(down),
        unusable(Unusable::NoRoceV2Gid),
        local("10.0.0.1/24", 0),
    ];
    let (pair, verdicts_) = verdicts(&locals, &[peer("10.0.0.2/24", 0)]);
    assert_eq!(pair, Some((2, 0)));
    assert_eq!(verdicts_[0].to_string(), "the port is DOWN, not ACTIVE");
    assert_eq!(verdicts_[1].to_string(), "the GID table has no RoCEv2 entry");
    let (_, verdicts_) = verdicts(&locals, &[]);
    assert_eq!(verdicts_[2], Verdict::NotChosen(NotChosen::NothingToReach));
    assert_eq!(verdicts_[0], Verdict::NotChosen(NotChosen::Unusable(down)));
    // A peer's rail that no usable rail of ours could reach.
    let choice = choose(&locals[..2], &[]);
    assert_eq!(choice.pair(), None);
}

#[test]
fn the_reason_that_came_closest_is_reported() {
    let locals = [local("10.0.0.1/16", 0)];
    let peers = [
        peer("fd00::1/64", 0),
        peer("10.9.0.1/16", 0),
        peer("10.0.3.1/24", 0),
    ];
    let (_, verdicts_) = verdicts(&locals, &peers);
    assert!(matches!(
        verdicts_[0],
        Verdict::NotChosen(NotChosen::OneSided { .. })
    ));
    let (_, verdicts_) = verdicts(&locals, &peers[..2]);
    assert_eq!(verdicts_[0], Verdict::NotChosen(NotChosen::NotInSubnet));
    let (_, verdicts_) = verdicts(&locals, &peers[..1]);
    assert_eq!(verdicts_[0], Verdict::NotChosen(NotChosen::OtherFamily));
}

#[test]
fn a_port_has_a_rail_for_each_gid_that_can_be_used() {
    let entry = |index: u32, kind: GidKind, address: Option<&str>| {
        let address = address.map(samples::prefix);
        GidEntry {
            index,
            gid: address.map_or(Gid([1; 16]), |address| Gid::from_ip(address.address())),
            kind,
            interface: Some(Name::try_from("eth1").unwrap()),
            address,
        }
    };
    let mut report = PortReport {
        device: Name::try_from("mlx5_0").unwrap(),
        port: 1,
        state: PortState::ACTIVE,
        is_ethernet: true,
        active_mtu: Some(Mtu::B4096),
        mtu_max: Some(Mtu::B4096),
        speed_mbps: 100_000,
        numa_node: None,
        gids: [
            entry(0, GidKind::RoceV1, Some("fe80::1/64")),
            entry(1, GidKind::RoceV2Ipv6, Some("fe80::1/64")),
            entry(3, GidKind::RoceV2Ipv4, Some("10.0.0.1/24")),
            entry(5, GidKind::RoceV2Ipv4, None),
        ]
        .into_iter()
        .collect(),
        gids_left_out: 0,
    };
    let rails: Vec<LocalRail> = LocalRail::of_port(&report).collect();
    let indices: Vec<u32> = rails.iter().map(|rail| rail.source.unwrap().gid_index).collect();
    assert_eq!(indices, [1, 3]);
    assert_eq!(rails[1].advertised(), Some(Ok(peer("10.0.0.1/24", 100_000))));
    report.state = PortState::DOWN;
    let rails: Vec<LocalRail> = LocalRail::of_port(&report).collect();
    assert_eq!(rails.len(), 1);
    assert_eq!(rails[0].source, Err(Unusable::NotActive(PortState::DOWN)));
    assert_eq!(rails[0].advertised(), None);
}
