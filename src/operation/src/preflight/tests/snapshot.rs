//! Tests of writing and reading snapshots.

use super::{host, one};
use crate::topology::SnapshotError;
use crate::topology::{NeighbourFacts, NeighbourState, RouteFacts, Topology};

#[test]
fn a_snapshot_is_read_as_it_was_written() {
    let mut topology = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24"),
            ("mlx5_1", "eth1", "fd00::1/64"),
        ],
    );
    topology.kernel = "6.1.0".into();
    topology.taken_unix_s = 1_700_000_000;
    topology.rail_filter = "mlx5_*,^10.9.0.0/16".parse().unwrap();
    topology.ports[1].report.gids[0].interface = None;
    topology.ports[1].report.gids[0].address = None;
    topology.ports[0].node_guid = Some("0002:c903:0000:0001".into());
    topology.ports[0].driver = Some("mlx5_core".into());
    topology.ports[0].firmware = Some("16.35.2000".into());
    topology.ports[0].pci_address = Some("0000:3b:00.1".into());
    topology.ports[0].sysfs_path = Some("/sys/devices/pci0000:3a/0000:3b:00.1".into());
    topology.ports[0].report.numa_node = Some(1);
    topology.ports[0].pkeys = None;
    topology.neighbours.push(NeighbourFacts {
        netdev: "eth0".into(),
        address: "fe80::2".parse().unwrap(),
        state: NeighbourState::Incomplete,
    });
    topology.routes.push(RouteFacts {
        from: "10.0.0.1".parse().unwrap(),
        to: "10.0.0.3".parse().unwrap(),
        netdev: Some("eth0".into()),
    });
    topology.peers.push("10.0.0.3".parse().unwrap());
    topology.ports[0].report.gids_left_out = 7;
    topology.failures.push("what \"was\" <not> there".into());
    let text = topology.to_json().unwrap();
    assert_eq!(Topology::from_json(&text).unwrap(), topology);
    // Fields of a later release are skipped.
    let more = text.replacen('{', "{\"new\": [1],", 1);
    assert_eq!(Topology::from_json(&more).unwrap(), topology);
}

#[test]
fn what_is_no_snapshot_is_refused_with_its_place() {
    let text = one().to_json().unwrap();
    let read = |text: &str| Topology::from_json(text).unwrap_err();
    for cut in 0..text.trim_end().len() {
        assert!(matches!(read(&text[..cut]), SnapshotError::Json(_)), "{cut}");
    }
    let bent = |from: &str, to: &str| {
        assert!(text.contains(from), "{from} in {text}");
        read(&text.replace(from, to)).to_string()
    };
    assert_eq!(
        bent("\"doorbell_topology\": 1", "\"doorbell_topology\": 2"),
        "a snapshot of format 2: this doorbell reads format 1"
    );
    for (from, to, why) in [
        (
            "10.0.0.1/24",
            "10.0.0.1/33",
            "the address of a GID `10.0.0.1/33` means nothing there",
        ),
        (
            "::ffff:10.0.0.1",
            "::ffff:10.0.0.2",
            "the address of GID ::ffff:10.0.0.2 `10.0.0.1/24` means nothing there",
        ),
        (
            "\"active_mtu_bytes\": 4096",
            "\"active_mtu_bytes\": 4095",
            "the MTU `4095` means nothing there",
        ),
        (
            "\"rail_filter\": \"\"",
            "\"rail_filter\": \",\"",
            "the value `,` means nothing there",
        ),
    ] {
        let told = bent(from, to);
        assert!(told.contains(why) && told.contains(" at line "), "{told}");
    }
    let entry = &text[text.find("\"gids\": [").unwrap() + 9..];
    let entry = &entry[..entry.find(']').unwrap()];
    let many = vec![entry; 65].join(",");
    assert!(bent(entry, &many).contains("at most 64"));
}

#[test]
fn a_part_has_the_values_of_the_whole_and_nothing_of_another_device() {
    let ports = [
        ("mlx5_0", "eth0", "10.0.0.1/24"),
        ("mlx5_1", "eth1", "10.0.0.2/24"),
    ];
    let mut whole = host("a", &ports);
    for (netdev, from) in [("eth0", "10.0.0.1"), ("eth1", "10.0.0.2")] {
        whole.neighbours.push(NeighbourFacts {
            netdev: netdev.into(),
            address: "10.0.0.9".parse().unwrap(),
            state: NeighbourState::Known,
        });
        whole.routes.push(RouteFacts {
            from: from.parse().unwrap(),
            to: "10.0.0.3".parse().unwrap(),
            netdev: Some(netdev.into()),
        });
        whole.failures.push(format!("{netdev}: no sysfs"));
    }
    whole.failures.push("mlx5_0: no port".into());
    whole.failures.push("routes: no netlink".into());
    whole.peers.push("10.0.0.9".parse().unwrap());
    let part = whole.of_devices(|device| device == "mlx5_1");
    assert_eq!(part.ports, [whole.ports[1].clone()]);
    assert_eq!(part.interfaces, [whole.interfaces[1].clone()]);
    assert_eq!(part.neighbours, [whole.neighbours[1].clone()]);
    assert_eq!(part.routes, [whole.routes[1].clone()]);
    assert_eq!(part.failures, ["eth1: no sysfs", "routes: no netlink"]);
    let text = part.to_json().unwrap();
    for other in ["mlx5_0", "eth0", "10.0.0.1"] {
        assert!(!text.contains(&format!("\"{other}")), "{other}: {text}");
    }
    // A route through an interface of another device is not included.
    whole.routes[1].netdev = Some("eth0".into());
    assert!(whole.of_devices(|device| device == "mlx5_1").routes.is_empty());
}
