//! Tests with the snapshots of hosts: as text, as JSON, and as a picture that is parsed.

use doorbell_operation::{Map, Topology, preflight};

use super::{report, svg, text};
use crate::configured::Configured;

/// Creates a host from its ports: device, interface, address, speed.
fn host(name: &str, ports: &[(&str, &str, &str, u32)]) -> Topology {
    let entry = |(device, netdev, address, mbps): &(&str, &str, &str, u32)| {
        let (ip, _) = address.split_once('/').unwrap();
        serde_json::json!({
            "device": device, "port": 1, "state": 4, "ethernet": true, "active_mtu_bytes": 4096,
            "mtu_max_bytes": 4096, "speed_mbps": mbps, "numa_node": 0, "node_guid": null, "driver": null,
            "firmware": null, "pci_address": "0000:3b:00.0", "sysfs_path": null, "netdevs": [netdev],
            "pkeys": [65535],
            "gids": [{"index": 1, "gid": format!("::ffff:{ip}"), "kind": "roce_v2", "netdev": netdev, "address": address}],
        })
    };
    let interface = |(_, netdev, address, _): &(&str, &str, &str, u32)| {
        serde_json::json!({
            "name": netdev, "index": 2, "up": true, "carrier": true, "mtu_bytes": 4200,
            "hardware_address": null, "addresses": [address], "arp_announce": 0, "arp_ignore": 0,
            "arp_filter": 0, "rp_filter": 0,
        })
    };
    let document = serde_json::json!({
        "doorbell_topology": 1, "host": name, "kernel": "6.1.0", "taken_unix_s": 0, "rail_filter": "",
        "ports": ports.iter().map(entry).collect::<Vec<_>>(),
        "interfaces": ports.iter().map(interface).collect::<Vec<_>>(),
        "neighbours": [], "failures": [],
    });
    Topology::from_json(&document.to_string()).unwrap()
}

/// Creates a chain of three hosts. The first has two rails to the second, and a port that is down.
fn line() -> Vec<Topology> {
    let mut a = host(
        "a",
        &[
            ("mlx5_0", "eth0", "10.0.0.1/24", 100_000),
            ("mlx5_1", "eth1", "10.0.1.1/24", 100_000),
            ("mlx5_2", "eth2", "10.0.7.1/24", 2_500),
        ],
    );
    a.ports[2].report.state = doorbell::provider::PortState::DOWN;
    a.interfaces[2].is_up = Some(false);
    let b = host(
        "b",
        &[
            ("mlx5_0", "eth0", "10.0.0.2/24", 100_000),
            ("mlx5_1", "eth1", "10.0.1.2/24", 1_000),
            ("mlx5_2", "eth2", "10.0.2.2/24", 100_000),
        ],
    );
    vec![a, b, host("c", &[("mlx5_0", "eth0", "10.0.2.3/24", 100_000)])]
}

#[test]
fn the_text_says_who_reaches_whom_and_why_not() {
    let hosts = line();
    let findings = preflight(&hosts);
    let told = text::topology(&report::Report::new(&Map::new(&hosts), &findings), &findings);
    for expected in [
        "a  Linux 6.1.0, 2 of 3 rails used\n  mlx5_0:1  10.0.0.1/24  eth0  100 Gb/s  MTU 4096  fast lane, NUMA node 0, PCI \
         0000:3b:00.0\n",
        "  mlx5_2:1  not used: the port is DOWN, not ACTIVE\n",
        "  mlx5_1:1  10.0.1.2/24  eth1  1 Gb/s    MTU 4096  management lane,",
        "subnets\n  10.0.0.0/24  a mlx5_0:1 -- b mlx5_0:1\n",
        "a to b: 2 pairs\n  mlx5_0:1 10.0.0.1/24  -- mlx5_0:1 10.0.0.2/24  98.3 Gb/s  fast lane\n  \
         mlx5_1:1 10.0.1.1/24  -- mlx5_1:1 10.0.1.2/24  960 Mb/s   management lane\n",
        "a to c: no pair; over a - b - c\n  mlx5_0:1 10.0.0.1/24  in no pair: no address of the other side is in its \
         subnet\n",
        "\n1 error, 1 warning, 0 notes: `doorbell preflight` lists them\n",
    ] {
        assert!(told.contains(expected), "{expected}\nis not in\n{told}");
    }
    assert!(!told.lines().any(|line| line.ends_with(' ')));
    let told = text::findings(&findings);
    assert!(
        told.starts_with("error[admin-down] a: mlx5_2:1: its interface eth2 is set down\n  why: "),
        "{told}"
    );
    assert!(told.ends_with("\n1 error, 1 warning, 0 notes\n"), "{told}");
}

#[test]
fn json_has_the_documented_shape() {
    let hosts = line();
    let findings = preflight(&hosts);
    let json = serde_json::to_value(report::Report::new(&Map::new(&hosts), &findings)).unwrap();
    assert_eq!(json["hosts"][0]["rails"][0]["subnet"], "10.0.0.0/24");
    assert_eq!(
        json["hosts"][0]["rails"][2]["reason"],
        "the port is DOWN, not ACTIVE"
    );
    assert_eq!(json["reaches"].as_array().unwrap().len(), 6);
    assert_eq!(json["reaches"][0]["pairs"][1]["lane"], "management lane");
    assert_eq!(json["reaches"][1]["route"], serde_json::json!(["a", "b", "c"]));
    assert_eq!(json["findings"][0]["kind"], "admin-down");
    assert_eq!(json["findings"][0]["severity"], "error");
}

/// Parses XML strictly, as far as our SVG uses it: elements with quoted attributes, text, entities. Returns the
/// names of the elements, and all text.
fn parse(svg: &str) -> Result<(Vec<String>, String), String> {
    let (mut open, mut seen, mut said) = (Vec::new(), Vec::new(), String::new());
    let mut rest = svg.trim_end();
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    while !rest.is_empty() {
        let Some(inside) = rest.strip_prefix('<') else {
            let end = rest.find('<').ok_or("text behind the end")?;
            said += &unescape(&rest[..end])?;
            rest = &rest[end..];
            continue;
        };
        let (tag, after) = inside.split_once('>').ok_or("a tag without an end")?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("</{name}> ends nothing"));
            }
            if open.is_empty() && !rest.is_empty() {
                return Err("more than one document".into());
            }
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        if !is_name(name) {
            return Err(format!("an element `{name}`"));
        }
        let mut keys = Vec::new();
        while !attributes.is_empty() {
            let (key, value) = attributes
                .split_once("=\"")
                .ok_or_else(|| format!("no value: {attributes}"))?;
            let (value, left) = value.split_once('"').ok_or("a value without an end")?;
            if !is_name(key) || keys.contains(&key) {
                return Err(format!("an attribute `{key}`"));
            }
            keys.push(key);
            unescape(value)?;
            attributes = left.strip_prefix(' ').unwrap_or(left);
        }
        seen.push(name.to_owned());
        if !is_empty {
            open.push(name.to_owned());
        }
    }
    if open.is_empty() {
        Ok((seen, said))
    } else {
        Err(format!("open at the end: {open:?}"))
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, entity)) = rest.split_once('&') {
        let (name, after) = entity.split_once(';').ok_or("an entity without an end")?;
        plain.push_str(before);
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "#39" => '\'',
            _ => return Err(format!("an entity `{name}`")),
        });
        rest = after;
    }
    plain.push_str(rest);
    if plain.chars().any(|c| c.is_control() && c != '\n') || text.contains('<') {
        return Err(format!("a character that may not be there: {plain:?}"));
    }
    Ok(plain)
}

#[test]
fn the_picture_is_whole_and_has_every_rail() {
    let hosts = line();
    let (elements, said) = parse(&svg::draw(&Map::new(&hosts))).unwrap();
    let count = |name: &str| elements.iter().filter(|element| *element == name).count();
    // A dot for each used rail, a bar for each subnet, and a line for each rail.
    assert_eq!(count("circle"), 6);
    assert_eq!(count("line"), 6 + 3);
    assert_eq!(count("rect"), 1 + 3);
    for expected in [
        "10.0.2.0/24",
        "mlx5_2:1: the port is DOWN, not ACTIVE",
        "a to c: no pair; over a - b - c",
        "mlx5_1:1 -- mlx5_1:1 (960 Mb/s, management lane)",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    // Without hosts, the picture is still valid.
    parse(&svg::draw(&Map::new(&[]))).unwrap();
}

#[test]
fn names_cannot_get_out_of_the_picture_or_move_the_cursor() {
    let evil = "</text><script>\"&'\u{1b}[2J";
    let mut hosts = line();
    hosts[0].host = evil.into();
    hosts[0].kernel = evil.into();
    hosts[0].interfaces[0].name = evil.chars().take(30).collect();
    let (elements, said) = parse(&svg::draw(&Map::new(&hosts))).unwrap();
    assert!(!elements.iter().any(|element| element == "script"));
    assert!(said.contains("</text><script>\"&'\u{fffd}[2J"), "{said}");
    let findings = preflight(&hosts);
    let told = text::topology(&report::Report::new(&Map::new(&hosts), &findings), &findings);
    assert!(!told.contains('\u{1b}') && !text::findings(&findings).contains('\u{1b}'));
}

#[test]
fn the_parser_refuses_what_is_no_picture() {
    for bad in [
        "<a>",
        "<a></b>",
        "<a/>x<",
        "<a b=c/>",
        "<a b=\"1\" b=\"2\"/>",
        "<a>&x;</a>",
        "<a>& </a>",
        "<a>\u{1b}</a>",
        "<a></a><b></b>",
        "<a b=\"<\"/>",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    parse("<a b=\"1\"><c/>&lt;x</a>").unwrap();
}

#[test]
fn files_are_read_with_their_faults_told() {
    let folder = std::env::temp_dir().join(format!("doorbell-topo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let saved = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let hosts = line();
    let look = |snapshots| super::HostOptions {
        snapshots,
        here: false,
        name: None,
        rails: None,
        configured: Configured::default(),
    };
    let a = saved("a.json", &hosts[0].to_json().unwrap());
    let b = saved("b.json", &hosts[1].to_json().unwrap());
    assert_eq!(look(vec![a.clone(), b]).hosts().unwrap(), hosts[..2]);
    let error = look(vec![a.clone(), a.clone()]).hosts().unwrap_err().to_string();
    assert!(error.contains("two hosts are called `a`"), "{error}");
    let bad = saved("bad.json", "{}");
    let error = look(vec![bad]).hosts().unwrap_err().to_string();
    assert!(
        error.contains("bad.json: not a snapshot: missing field"),
        "{error}"
    );
    let named = super::HostOptions {
        name: Some("x".into()),
        ..look(vec![a])
    };
    assert!(named.hosts().unwrap_err().to_string().contains("--here"));
    std::fs::remove_dir_all(&folder).unwrap();
}
