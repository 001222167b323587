//! Pairs as both sides see them: examples, then any lists there can be.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;

use super::{Candidate, pairs};
use crate::advertised_rail::{AdvertisedRail, SpeedClass};
use crate::rail::{Lane, NotChosen, Verdict};
use crate::{Gid, IpPrefix};

fn rail(text: &str, mbps: u32) -> AdvertisedRail {
    let address: IpPrefix = text.parse().unwrap();
    let gid = Gid::from_ip(address.address());
    AdvertisedRail::new(address, gid, SpeedClass::from_mbps(mbps)).unwrap()
}

/// Rails with the port each is on.
fn on_ports(rails: &[(&str, u32, u8)]) -> Vec<Candidate> {
    let candidate = |(text, mbps, port): &(&str, u32, u8)| Candidate {
        rail: rail(text, *mbps),
        port: *port,
    };
    rails.iter().map(candidate).collect()
}

/// Rails of a port each, of one speed.
fn apart(rails: &[&str]) -> Vec<Candidate> {
    let rails: Vec<AdvertisedRail> = rails.iter().map(|text| rail(text, 100_000)).collect();
    Candidate::each(&rails).collect()
}

/// The pairs, seen from both sides to be the same.
fn both(ours: &[Candidate], peers: &[Candidate]) -> Vec<(usize, usize)> {
    let here: Vec<_> = pairs(ours, peers)
        .pairs()
        .iter()
        .map(|paired| ((paired.pair.local, paired.pair.peer), paired.speed, paired.lane))
        .collect();
    let there: Vec<_> = pairs(peers, ours)
        .pairs()
        .iter()
        .map(|paired| ((paired.pair.peer, paired.pair.local), paired.speed, paired.lane))
        .collect();
    assert_eq!(here, there, "{ours:?} {peers:?}");
    here.into_iter().map(|(pair, ..)| pair).collect()
}

fn reasons(ours: &[Candidate], peers: &[Candidate]) -> Vec<Verdict> {
    pairs(ours, peers)
        .local_verdicts()
        .map(|(_, verdict)| verdict)
        .collect()
}

#[test]
fn two_cables_are_two_pairs_in_whatever_order() {
    let ours = apart(&["10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24"]);
    let peers = apart(&["10.0.2.2/24", "10.0.9.2/24", "10.0.1.2/24"]);
    assert_eq!(both(&ours, &peers), [(0, 2), (1, 0)]);
    assert_eq!(
        reasons(&ours, &peers)[2],
        Verdict::NotChosen(NotChosen::NotInSubnet)
    );
}

#[test]
fn in_one_subnet_each_is_used_once() {
    let ours = apart(&["10.0.0.3/24", "10.0.0.1/24"]);
    let peers = apart(&["10.0.0.7/24", "10.0.0.9/24", "10.0.0.8/24"]);
    assert_eq!(both(&ours, &peers), [(1, 0), (0, 2)]);
    let pairing = pairs(&ours, &peers);
    let peer_verdicts: Vec<_> = pairing.peer_verdicts().map(|(_, verdict)| verdict).collect();
    assert_eq!(
        peer_verdicts,
        [
            Verdict::Chosen(1),
            Verdict::NotChosen(NotChosen::OthersInPair),
            Verdict::Chosen(0)
        ]
    );
}

#[test]
fn several_addresses_of_a_port_are_one_link() {
    let ours = on_ports(&[
        ("fe80::1/64", 100_000, 0),
        ("10.0.0.1/24", 100_000, 0),
        ("fd00::1/64", 100_000, 0),
        ("fd00:1::1/64", 100_000, 1),
    ]);
    let peers = on_ports(&[
        ("fd00::2/64", 100_000, 4),
        ("10.0.0.2/24", 100_000, 4),
        ("fd00:1::2/64", 100_000, 2),
        ("fe80::2/64", 100_000, 4),
    ]);
    assert_eq!(both(&ours, &peers), [(1, 1), (3, 2)]);
    assert_eq!(
        reasons(&ours, &peers),
        [
            Verdict::NotChosen(NotChosen::PortInPair),
            Verdict::Chosen(1),
            Verdict::NotChosen(NotChosen::PortInPair),
            Verdict::Chosen(2)
        ]
    );
}

#[test]
fn link_local_pairs_only_where_nothing_else_does() {
    let ours = apart(&["fe80::1/64", "10.0.0.1/24"]);
    let peers = apart(&["10.0.0.2/24", "fe80::2/64"]);
    assert_eq!(both(&ours, &peers), [(1, 0)]);
    assert_eq!(
        reasons(&ours, &peers)[0],
        Verdict::NotChosen(NotChosen::LinkLocal)
    );
    assert_eq!(both(&ours[..1], &peers), [(0, 1)]);
    let two = apart(&["fe80::1/64", "fe80::3/64"]);
    assert_eq!(both(&two, &peers), []);
    assert_eq!(
        reasons(&two, &peers),
        [Verdict::NotChosen(NotChosen::AmbiguousLinkLocal); 2]
    );
}

#[test]
fn fast_lanes_go_first_and_management_is_reported() {
    let ours = on_ports(&[("10.0.1.1/30", 1_000, 0), ("10.0.2.1/24", 100_000, 1)]);
    let peers = on_ports(&[("10.0.1.2/30", 1_000, 0), ("10.0.2.2/24", 200_000, 1)]);
    assert_eq!(both(&ours, &peers), [(1, 1), (0, 0)]);
    let lanes: Vec<_> = pairs(&ours, &peers)
        .pairs()
        .iter()
        .map(|paired| paired.lane)
        .collect();
    assert_eq!(lanes, [Lane::Fast, Lane::Management]);
}

#[test]
fn what_is_said_twice_counts_once_and_a_host_reaches_itself() {
    let twice = apart(&["10.0.0.1/24", "10.0.0.1/24"]);
    assert_eq!(both(&twice, &twice), [(0, 0)]);
    assert_eq!(
        reasons(&twice, &twice)[1],
        Verdict::NotChosen(NotChosen::Duplicate)
    );
    let own = apart(&["10.0.0.2/24", "10.0.0.1/24"]);
    assert_eq!(both(&own, &own), [(1, 1), (0, 0)]);
    assert_eq!(both(&own, &[]), []);
}

#[test]
fn one_wrong_prefix_makes_no_pair_and_is_named() {
    let (ours, peers) = (apart(&["10.0.0.1/16"]), apart(&["10.0.9.1/24"]));
    assert_eq!(both(&ours, &peers), []);
    assert!(matches!(
        reasons(&ours, &peers)[0],
        Verdict::NotChosen(NotChosen::OneSided { .. })
    ));
}

/// Few addresses, prefixes, speeds and ports, so that they meet.
fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let address = prop_oneof![
        6 => (0_u8..3, 1_u8..7, prop_oneof![Just(22_u8), Just(24), Just(30)])
            .prop_map(|(net, host, bits)| std::format!("10.0.{net}.{host}/{bits}")),
        2 => (0_u8..2, 1_u8..5).prop_map(|(net, host)| std::format!("fd00:{net}::{host}/64")),
        1 => (1_u8..4).prop_map(|host| std::format!("fe80::{host}/64")),
        1 => (1_u8..4).prop_map(|host| std::format!("169.254.0.{host}/16")),
    ];
    let speed = prop_oneof![Just(0_u32), Just(1_000), Just(25_000), Just(100_000)];
    let candidate = (address, speed, 0_u8..5).prop_map(|(text, mbps, port)| Candidate {
        rail: rail(&text, mbps),
        port,
    });
    prop::collection::vec(candidate, 0..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn both_sides_come_to_the_same_and_nothing_is_left(ours in candidates(), peers in candidates()) {
        let chosen = both(&ours, &peers);
        let pairing = pairs(&ours, &peers);
        // Each port once on either side.
        let local_ports: BTreeSet<u8> = chosen.iter().map(|(local, _)| ours[*local].port).collect();
        let peer_ports: BTreeSet<u8> = chosen.iter().map(|(_, peer)| peers[*peer].port).collect();
        prop_assert_eq!(local_ports.len(), chosen.len());
        prop_assert_eq!(peer_ports.len(), chosen.len());
        // Every pair reaches, both ways.
        for (local, peer) in &chosen {
            let (local, peer) = (ours[*local].rail.address(), peers[*peer].rail.address());
            prop_assert!(local.contains(peer.address()) && peer.contains(local.address()));
        }
        // No two free ports are left that reach each other by addresses that say which link they are on.
        let plain = |address: IpPrefix| match address.address() {
            core::net::IpAddr::V4(v4) => !v4.is_link_local(),
            core::net::IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        let first = |list: &[Candidate], at: usize| list[..at].iter().all(|it| it.rail != list[at].rail);
        let free = |list: &[Candidate], ports: &BTreeSet<u8>| -> Vec<Candidate> {
            let places = (0..list.len()).filter(|at| first(list, *at) && !ports.contains(&list[*at].port));
            places.map(|at| list[at]).collect()
        };
        for local in free(&ours, &local_ports) {
            for peer in free(&peers, &peer_ports) {
                let (local, peer) = (local.rail.address(), peer.rail.address());
                let reach = local.contains(peer.address()) && peer.contains(local.address());
                prop_assert!(!(reach && plain(local)), "{} {}", local, peer);
            }
        }
        // The better pair first, and everyone has a verdict.
        let speeds: Vec<_> = pairing.pairs().iter().map(|paired| paired.lane).collect();
        prop_assert!(speeds.windows(2).all(|two| two[0] >= two[1]));
        let chosen_here = pairing.local_verdicts().filter(|(_, verdict)| matches!(verdict, Verdict::Chosen(_)));
        prop_assert_eq!(chosen_here.count(), chosen.len());
        prop_assert_eq!(pairing.local_verdicts().count(), ours.len());
        prop_assert_eq!(pairing.peer_verdicts().count(), peers.len());
    }

    #[test]
    fn a_host_is_paired_with_itself_rail_by_rail(own in candidates()) {
        for (local, peer) in both(&own, &own) {
            prop_assert_eq!(own[local].rail, own[peer].rail);
        }
    }
}
