//! Which rails a node uses: the settings, the order, and the reasons for those left out.
#![expect(clippy::unwrap_used, reason = "a test")]

use core::time::Duration;

use crate::fabric::{SOON, node, port, prefix, small, workers};
use doorbell::provider::Unusable;
use doorbell::{ConnectError, Listener, Node, NodeError, RailFilter, WorkerConfig};
use doorbell_sim::{Fabric, Host, PortConfig};

const A_MOMENT: Duration = Duration::from_micros(10);

fn filter(text: &str) -> RailFilter {
    text.parse().unwrap()
}

/// Lists the offered rails, and the reasons for the rest.
fn rails(node: &Node<Host, Host>) -> Vec<String> {
    let told = |rail: doorbell::rails::LocalRail| match rail.source {
        Ok(source) => format!("{} {}", rail.device, source.address),
        Err(reason) => format!("{}: {reason}", rail.device),
    };
    node.rails().unwrap().into_iter().map(told).collect()
}

fn of_speed(device: &str, address: &str, speed_mbps: u32) -> PortConfig {
    PortConfig {
        speed_mbps,
        ..port(device, address)
    }
}

#[test]
fn fast_lanes_are_offered_first_and_what_has_no_address_is_told() {
    let bare = PortConfig::new("bare", &[]);
    let ports = vec![
        of_speed("mgmt", "10.0.0.1/24", 1_000),
        bare,
        of_speed("slow", "10.1.0.1/24", 50_000),
        of_speed("fast", "10.2.0.1/24", 100_000),
    ];
    let node = node(&Fabric::new(), "a", ports);
    assert_eq!(
        rails(&node),
        [
            "slow 10.1.0.1/24",
            "fast 10.2.0.1/24",
            "mgmt 10.0.0.1/24",
            "bare: the GID table has no RoCEv2 entry",
        ]
    );
}

/// Each once, whichever it has of addresses; what a rule leaves out is no surprise.
#[test]
fn ports_that_are_passed_over_are_told_each_once_with_the_reason() {
    let two = PortConfig::new("two", &[prefix("10.1.0.1/24"), prefix("fd00::1/64")]);
    let bare = |device| PortConfig::new(device, &[]);
    let ports = vec![port("one", "10.0.0.1/24"), bare("bare"), two, bare("spare")];
    let mut node = node(&Fabric::new(), "a", ports);
    let why = "the GID table has no RoCEv2 entry";
    let both = [format!("bare port 1: {why}"), format!("spare port 1: {why}")];
    assert_eq!(node.passed_over().unwrap(), both);
    node.set_rail_filter(filter("^two,^spare"));
    assert_eq!(node.passed_over().unwrap(), both[..1]);
    node.set_rail_filter(filter("^10.1.0.0/16"));
    assert_eq!(node.passed_over().unwrap(), both);
    // An empty result is an error with all reasons.
    node.set_rail_filter(filter("bare"));
    assert!(node.passed_over().unwrap().is_empty());
    assert!(node.workers(&WorkerConfig::default()).is_err());
}

#[test]
fn what_the_filter_leaves_out_is_not_offered_and_says_why() {
    let two = PortConfig::new("two", &[prefix("10.1.0.1/24"), prefix("10.2.0.1/24")]);
    let mut node = node(&Fabric::new(), "a", vec![port("one", "10.0.0.1/24"), two]);
    node.set_rail_filter(filter("two,^10.1.0.0/16"));
    assert_eq!(
        rails(&node),
        [
            "two 10.2.0.1/24",
            "one: 10.0.0.1/24 is named by no rule of the rail filter",
            "two: 10.1.0.1/24 is left out by rule 2 of the rail filter",
        ]
    );
    let devices: Vec<String> = workers(&node)
        .iter()
        .map(|worker| worker.device().to_owned())
        .collect();
    assert_eq!(devices, ["two"]);
    // A name that nothing has is no way back to all rails.
    node.set_rail_filter(filter("manual"));
    let error = node.workers(&WorkerConfig::default()).unwrap_err();
    assert!(matches!(error, NodeError::NothingUsable(_)));
    let text = error.to_string();
    assert!(
        text.contains("one port 1: 10.0.0.1/24 is named by no rule of the rail filter"),
        "{text}"
    );
}

#[test]
fn a_connection_takes_the_rail_that_is_left() {
    for (rule, device) in [("^c1", "c2"), ("netdev=c1", "c1"), ("", "c1")] {
        let fabric = Fabric::new();
        let server = vec![port("s1", "127.0.0.1/24"), port("s2", "127.8.0.1/24")];
        let client = vec![port("c1", "127.0.0.2/24"), port("c2", "127.8.0.2/24")];
        let server = node(&fabric, "a", server);
        let mut client = node(&fabric, "b", client);
        // All have Workers: it is the choice of the rail that is looked at.
        let (mut server_workers, mut client_workers) = (workers(&server), workers(&client));
        client.set_rail_filter(filter(rule));
        let mut listener =
            Listener::bind(&server, &server_workers, "[::]:0".parse().unwrap(), &small()).unwrap();
        let mut connecting = client
            .begin_connect(&client_workers, listener.handle(), &small(), client.within(SOON))
            .unwrap();
        let connection = loop {
            if let Some(connection) = connecting.poll(&client, &mut client_workers) {
                break connection.unwrap();
            }
            listener.poll_accept(&server, &mut server_workers).unwrap();
            listener.wait(&server, server.within(A_MOMENT)).unwrap();
        };
        assert_eq!(client_workers[connection.worker].device(), device, "{rule}");
    }
}

#[test]
fn rails_that_are_left_out_later_are_in_the_reasons() {
    let fabric = Fabric::new();
    let server = node(&fabric, "a", vec![port("s1", "127.0.0.1/24")]);
    let mut client = node(&fabric, "b", vec![port("c1", "127.0.0.2/24")]);
    let server_workers = workers(&server);
    let listener =
        Listener::bind(&server, &server_workers, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let client_workers = workers(&client);
    client.set_rail_filter(filter("^127.0.0.0/16"));
    let error = client
        .begin_connect(&client_workers, listener.handle(), &small(), client.within(SOON))
        .unwrap_err();
    assert!(matches!(error, ConnectError::NoRoute(_)));
    assert!(
        error
            .to_string()
            .contains("left out by rule 1 of the rail filter"),
        "{error}"
    );
}

#[test]
fn more_rails_than_a_peer_is_told_of_are_told_here() {
    let addresses: Vec<_> = (1..=33)
        .map(|host| prefix(&format!("10.0.0.{host}/24")))
        .collect();
    let more: Vec<_> = (1..=33)
        .map(|host| prefix(&format!("10.1.0.{host}/24")))
        .collect();
    let ports = vec![PortConfig::new("one", &addresses), PortConfig::new("two", &more)];
    let node = node(&Fabric::new(), "a", ports);
    let rails = node.rails().unwrap();
    let used = rails.iter().filter(|rail| rail.source.is_ok()).count();
    assert_eq!((rails.len(), used), (66, 64));
    assert_eq!(rails[65].source, Err(Unusable::BeyondRailsMax));
    // It can be listened and connected all the same.
    let workers = workers(&node);
    Listener::bind(&node, &workers, "10.0.0.1:0".parse().unwrap(), &small()).unwrap();
}
