//! Tests of the output for made-up devices, as text and JSON.

use core::net::IpAddr;

use doorbell::provider::{
    DeviceReport, Gid, GidEntry, GidKind, IpPrefix, LookFailure, Mtu, Name, OnDemand, PortReport, PortState,
    ProviderError, ProviderKind, Quirks,
};

use super::report::{Device, Library, Listing};

fn entry(index: u32, kind: GidKind, gid: &str, here: Option<(&str, Option<u8>)>) -> GidEntry {
    let ip: IpAddr = gid.parse().unwrap();
    GidEntry {
        index,
        gid: Gid::from_ip(ip),
        kind,
        interface: here.map(|(interface, _)| Name::try_from(interface).unwrap()),
        address: here
            .and_then(|(_, bits)| bits)
            .map(|bits| IpPrefix::new(ip, bits).unwrap()),
    }
}

/// Creates a usable port of a device.
pub(crate) fn port(device: &str, gids: Vec<GidEntry>) -> PortReport {
    PortReport {
        device: Name::try_from(device).unwrap(),
        port: 1,
        state: PortState::ACTIVE,
        is_ethernet: true,
        active_mtu: Some(Mtu::B1024),
        mtu_max: Some(Mtu::B4096),
        speed_mbps: 2500,
        numa_node: None,
        gids: gids.into_iter().collect(),
        gids_left_out: 0,
    }
}

const RXE: Quirks = Quirks {
    provider: ProviderKind::Rxe,
    extended: false,
    retry_count_max: 6,
    timer_min_us: 4000,
    stale_completions: true,
    on_demand: false,
    carries_more_than_reported: true,
};

fn library() -> Library {
    Library {
        file: Some("/lib/libibverbs.so.1.14.44.0".into()),
        rdma_core: Some("44.0".into()),
    }
}

fn three() -> Listing {
    let good = port(
        "rxe0",
        vec![
            entry(0, GidKind::RoceV2Ipv6, "fe80::1", Some(("eth0", Some(64)))),
            entry(1, GidKind::RoceV2Ipv4, "10.0.0.1", Some(("eth0", Some(24)))),
            entry(2, GidKind::RoceV1, "fe80::1", Some(("eth0", Some(64)))),
            entry(3, GidKind::RoceV2Ipv4, "10.9.9.9", Some(("eth0", None))),
            entry(
                300,
                GidKind::RoceV2Ipv4,
                "10.0.1.1",
                Some(("a-long-name", Some(24))),
            ),
        ],
    );
    let elsewhere = port("rxe1", vec![entry(1, GidKind::RoceV2Ipv4, "10.0.2.1", None)]);
    let mut down = port("mlx5_0", vec![]);
    down.state = PortState::DOWN;
    down.speed_mbps = 0;
    down.active_mtu = None;
    let mut card = Device::new(
        "mlx5_0",
        Quirks {
            provider: ProviderKind::Other,
            extended: true,
            retry_count_max: 7,
            timer_min_us: 0,
            stale_completions: false,
            on_demand: true,
            carries_more_than_reported: false,
        },
        &[down],
    );
    card.driver = Some("mlx5_core".into());
    card.pci_address = Some("0000:3b:00.1".into());
    card.numa_node = Some(1);
    card.imports_dmabuf = Some(true);
    card.on_demand = Some(vec!["SEND".into(), "READ".into()]);
    card.failures = vec!["ibv_query_port failed: Input/output error (errno 5)".into()];
    let mut software = Device::new("rxe0", RXE, &[good]);
    software.imports_dmabuf = Some(false);
    software.on_demand = Some(vec![]);
    let devices = vec![software, Device::new("rxe1", RXE, &[elsewhere]), card];
    Listing::new(library(), devices, vec!["irdma0".into()], &["nothing".into()])
}

#[test]
fn the_text_is_aligned_and_gives_every_reason() {
    let expected = "\
/lib/libibverbs.so.1.14.44.0 (rdma-core 44.0)

rxe0  provider rxe (Soft-RoCE), driver none (virtual), PCI none, NUMA node any
  port 1  ACTIVE  Ethernet  MTU 1024 (max 4096)  2.5 Gb/s  usable
    GID 0    RoCEv2/IPv6  fe80::1/64   eth0         usable
    GID 1    RoCEv2/IPv4  10.0.0.1/24  eth0         usable
    GID 2    RoCEv1       fe80::1/64   eth0         not usable: RoCEv1 is not routable and not used
    GID 3    RoCEv2/IPv4  10.9.9.9     eth0         not usable: not an IP address of eth0
    GID 300  RoCEv2/IPv4  10.0.1.1/24  a-long-name  not usable: its index is beyond 255

rxe1  provider rxe (Soft-RoCE), driver none (virtual), PCI none, NUMA node any
  port 1  ACTIVE  Ethernet  MTU 1024 (max 4096)  2.5 Gb/s  not usable: the network interface of its RoCEv2 GIDs is \
not in this network namespace
    GID 1  RoCEv2/IPv4  10.0.2.1  -  not usable: its network interface is not in this network namespace

mlx5_0  provider rdma-core's own, driver mlx5_core, PCI 0000:3b:00.1, NUMA node 1
  port 1  DOWN  Ethernet  MTU unknown (max 4096)  speed unknown  not usable: the port is DOWN, not ACTIVE
    the GID table is empty
  not looked at: ibv_query_port failed: Input/output error (errno 5)

irdma0
  the kernel has it, but libibverbs has no driver for it: install the package ibverbs-providers (Debian, Ubuntu) or \
libibverbs (Fedora, RHEL)

1 of 3 ports usable
";
    assert_eq!(three().to_text(false), expected);
}

#[test]
fn verbose_text_has_the_quirks_and_raw_gids() {
    let text = three().to_text(true);
    for expected in [
        "\n  quirks    extended calls not trusted\n",
        "\n            timers of at least 4000 us\n",
        "\n             raw ::ffff:10.0.0.1\n",
        "\nrxe0  provider rxe (Soft-RoCE), driver none (virtual), PCI none, NUMA node any\n  dma-buf   not registered\n  on demand no memory\n",
        "\nrxe1  provider rxe (Soft-RoCE), driver none (virtual), PCI none, NUMA node any\n  dma-buf   unknown\n  on demand unknown\n",
        "NUMA node 1\n  dma-buf   registered\n  on demand memory of SEND, READ\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
}

#[test]
fn without_a_device_it_says_what_is_missing_and_what_to_do() {
    let listing = Listing::new(library(), vec![], vec![], &["there is no driver".into()]);
    let expected = "\
/lib/libibverbs.so.1.14.44.0 (rdma-core 44.0)

no RDMA device
  there is no driver
A software device on a network interface, as root (`rdma` is in the package iproute2):
  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE
Without touching this machine, in virtual hosts of its own:
  cargo lab demo
0 of 0 ports usable
";
    assert_eq!(listing.to_text(false), expected);
}

#[test]
fn json_has_the_documented_shape() {
    let json = serde_json::to_value(three()).unwrap();
    crate::schema::check(&json, &mut Default::default());
    assert_eq!(json["library"]["rdma_core"], "44.0");
    assert_eq!(json["ports_usable"], 1);
    assert_eq!(json["ports_total"], 3);
    assert_eq!(json["kernel_only"], serde_json::json!(["irdma0"]));
    // A device exists, so nothing is reported as missing.
    assert_eq!(json["missing"], serde_json::json!([]));
    let port = &json["devices"][0]["ports"][0];
    assert_eq!(port["state"], "ACTIVE");
    assert_eq!(port["link_layer"], "Ethernet");
    assert_eq!(port["active_mtu_bytes"], 1024);
    assert_eq!(port["speed_mbps"], 2500);
    assert_eq!(
        port["gids"][1],
        serde_json::json!({
            "index": 1, "gid": "::ffff:10.0.0.1", "kind": "RoCEv2/IPv4", "address": "10.0.0.1/24",
            "netdev": "eth0", "usable": true, "reason": null,
        })
    );
    let down = &json["devices"][2];
    assert_eq!(down["pci_address"], "0000:3b:00.1");
    assert_eq!(down["numa_node"], 1);
    let imports: Vec<_> = (0..3).map(|at| &json["devices"][at]["imports_dmabuf"]).collect();
    assert_eq!(
        imports,
        [
            &serde_json::json!(false),
            &serde_json::Value::Null,
            &serde_json::json!(true)
        ]
    );
    assert_eq!(down["quirks"]["retry_count_max"], 7);
    assert_eq!(down["ports"][0]["usable"], false);
    assert_eq!(down["ports"][0]["speed_mbps"], serde_json::Value::Null);
    assert_eq!(down["ports"][0]["reason"], "the port is DOWN, not ACTIVE");
}

#[test]
fn all_that_was_found_of_a_device_is_said() {
    let found = DeviceReport {
        name: Name::try_from("mlx5_0").unwrap(),
        quirks: RXE,
        driver: Some("mlx5_core".into()),
        firmware: Some("16.35.2000".into()),
        device_path: Some("/sys/devices/pci0000:3a/0000:3b:00.1".into()),
        pci_address: Some("0000:3b:00.1".into()),
        numa_node: Some(1),
        imports_dmabuf: Some(true),
        on_demand: Some(OnDemand::SEND | OnDemand::ATOMIC),
        ports: vec![port("mlx5_0", vec![])],
        failures: vec![LookFailure {
            port: Some(2),
            error: ProviderError {
                call: "ibv_query_port",
                errno: 5,
            },
        }],
    };
    let said = serde_json::to_value(Device::of(&found)).unwrap();
    for (key, value) in [
        ("device", "mlx5_0"),
        ("driver", "mlx5_core"),
        ("firmware", "16.35.2000"),
        ("sysfs_path", "/sys/devices/pci0000:3a/0000:3b:00.1"),
        ("pci_address", "0000:3b:00.1"),
    ] {
        assert_eq!(said[key], value, "{key}");
    }
    assert_eq!(said["numa_node"], 1);
    assert_eq!(said["imports_dmabuf"], true);
    assert_eq!(said["on_demand"], serde_json::json!(["SEND", "atomics"]));
    assert_eq!(said["ports"].as_array().unwrap().len(), 1);
    let failure = said["failures"][0].as_str().unwrap();
    assert!(failure.starts_with("port 2: ibv_query_port failed"), "{failure}");
}
