//! Polls after the outcome, addresses that cannot be dialed, and a required rail that one side no longer has.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell_core::IpPrefix;
use doorbell_sim::{Fabric, Host, PortConfig};

use super::{Connecting, ConnectingState, Destination, TimeLimit, needs_interface};
use crate::connect::listener::{Listener, handle_with};
use crate::connect::node::{Connection, Node};
use crate::connect::port_scan::PendingScan;
use crate::error::{ConnectError, ConnectErrorKind};
use crate::machine::signal::Signal;
use crate::trust::Trust;
use crate::worker::Worker;
use crate::worker::config::{ChannelConfig, WorkerConfig};

const SOON: Duration = Duration::from_secs(10);
const A_MOMENT: Duration = Duration::from_micros(10);

fn prefix(address: &str) -> IpPrefix {
    IpPrefix::new(address.parse().unwrap(), 24).unwrap()
}

fn node(fabric: &Fabric, name: &str, addresses: &[&str]) -> (Node<Host, Host>, Vec<Worker<Host>>) {
    let device = |index| format!("{name}{index}");
    let ports = addresses.iter().enumerate();
    let ports = ports.map(|(index, address)| PortConfig::new(&device(index), &[prefix(address)]));
    let host = fabric.host(name, ports.collect()).unwrap();
    let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    (node, workers)
}

/// Polls both sides until the connecting one has its outcome.
fn outcome(
    (client, theirs): (&Node<Host, Host>, &mut [Worker<Host>]),
    (server, ours): (&Node<Host, Host>, &mut [Worker<Host>]),
    listener: &mut Listener<Host, Host>,
    connecting: &mut Connecting<Host, Host>,
) -> Result<Connection, ConnectError> {
    loop {
        if let Some(outcome) = connecting.poll(client, theirs) {
            return outcome;
        }
        let _ = listener.poll_accept(server, ours);
        listener.wait(server, server.within(A_MOMENT)).unwrap();
    }
}

fn assert_misused(outcome: Option<Result<Connection, ConnectError>>) {
    let error = outcome.unwrap().unwrap_err();
    assert_eq!(error.kind(), ConnectErrorKind::Misuse, "{error}");
    assert!(error.to_string().contains("after the outcome"), "{error}");
}

#[test]
fn a_poll_after_the_outcome_says_so_whatever_the_outcome_was() {
    let config = ChannelConfig::default();
    for is_trusted in [true, false] {
        let fabric = Fabric::new();
        let (server, mut ours) = node(&fabric, "server", &["10.0.0.1"]);
        let (client, mut theirs) = node(&fabric, "client", &["10.0.0.2"]);
        let at = "10.0.0.1:0".parse().unwrap();
        let mut listener = Listener::bind(&server, &ours, at, &config).unwrap();
        if !is_trusted {
            server.set_trust(Trust::unauthenticated_on_purpose().only_from(&[prefix("10.9.0.0")]));
        }
        let mut connecting = client
            .begin_connect(&theirs, listener.handle(), &config, client.within(SOON))
            .unwrap();
        let first = outcome(
            (&client, &mut theirs),
            (&server, &mut ours),
            &mut listener,
            &mut connecting,
        );
        assert_eq!(first.is_ok(), is_trusted, "{first:?}");
        for _ in 0..2 {
            assert_misused(connecting.poll(&client, &mut theirs));
        }
        let channels = theirs[0].channels().count();
        assert_eq!(channels, usize::from(is_trusted));
    }
}

#[test]
fn a_poll_after_the_outcome_does_not_dial_again() {
    let fabric = Fabric::new();
    let (client, mut theirs) = node(&fabric, "client", &["10.0.0.2"]);
    let everywhere = Trust::unauthenticated_on_purpose();
    client.set_trust(everywhere.clone().only_from(&[prefix("10.9.0.0")]));
    let until = client.within(SOON);
    let scan = PendingScan::begin(&client, &theirs, None, until).unwrap();
    let to = SocketAddr::from(([10, 0, 0, 1], 7000));
    let signal = Arc::new(Signal::new().unwrap());
    let mut connecting = Connecting {
        stage: ConnectingState::Scanning(scan, Box::new(Destination::Address(to)), signal),
        config: ChannelConfig::default(),
        time_limit: TimeLimit::Until(until),
        is_over: false,
    };
    let first = connecting.poll(&client, &mut theirs);
    assert!(
        matches!(first, Some(Err(ConnectError::NotAllowed(_)))),
        "{first:?}"
    );
    // Another attempt might be begun now.
    client.set_trust(everywhere);
    assert_misused(connecting.poll(&client, &mut theirs));
    assert!(matches!(connecting.stage, ConnectingState::Scanning(..)));
}

#[test]
fn a_required_rail_that_is_gone_is_named_with_the_rails_that_are_left() {
    let fabric = Fabric::new();
    let (mut server, mut ours) = node(&fabric, "server", &["10.0.0.1", "10.1.0.1"]);
    let (client, mut theirs) = node(&fabric, "client", &["10.0.0.2", "10.1.0.2"]);
    let config = ChannelConfig::default();
    let at = "[::]:0".parse().unwrap();
    let mut listener = Listener::bind(&server, &ours, at, &config).unwrap();
    let handle = *listener.handle();
    let peer = handle
        .rails()
        .iter()
        .find(|rail| rail.address() == prefix("10.1.0.1"));
    let mut connect = |server: &_| {
        let destination = Destination::Rail {
            handle,
            device: "client1".into(),
            port: 1,
            peer: peer.unwrap(),
        };
        let time_limit = TimeLimit::Until(client.within(SOON));
        let mut connecting = client.begin(&theirs, destination, &config, time_limit).unwrap();
        outcome(
            (&client, &mut theirs),
            (server, &mut ours),
            &mut listener,
            &mut connecting,
        )
    };
    connect(&server).unwrap();
    // The listener knows the rails of the first connection still, and the new rules hold at once.
    server.set_rail_filter("^server1".parse().unwrap());
    let error = connect(&server).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no rail reaches the peer, which is at 10.0.0.1/24 and no longer at 10.1.0.1/24"
    );
}

#[test]
fn port_zero_is_reported_before_anything_is_dialed() {
    let (client, theirs) = node(&Fabric::new(), "client", &["10.0.0.2"]);
    let rails = client.worker_rails(&theirs).unwrap();
    let to = SocketAddr::from(([10, 0, 0, 1], 0));
    let target = Destination::Address(to).target(rails).map(|(_, to)| to);
    assert!(
        matches!(target, Err(ConnectError::NoPort(at)) if at == to),
        "{target:?}"
    );
}

/// Returns the address that is dialed for a rail at a link-local address, if the listener has this other address, too.
fn dialed_for_link_local(other: Option<&str>) -> Result<SocketAddr, ConnectError> {
    let fabric = Fabric::new();
    let rails = |name: &str, last: &str| {
        let link_local = IpPrefix::new(format!("fe80::{last}").parse().unwrap(), 64).unwrap();
        let other = other.map(|other| prefix(&format!("{other}.{last}")));
        let ports = core::iter::once(link_local).chain(other).zip(0..);
        let ports = ports.map(|(address, index)| PortConfig::new(&format!("{name}{index}"), &[address]));
        let host = fabric.host(name, ports.collect()).unwrap();
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        (node.worker_rails(&workers).unwrap(), node.instance())
    };
    let ((server, instance), (client, _)) = (rails("server", "1"), rails("client", "2"));
    let of_server: Vec<_> = server.advertised().iter().collect();
    let port = 7000.try_into().unwrap();
    let destination = Destination::Rail {
        handle: handle_with(port, instance, of_server.clone()).unwrap(),
        device: "client0".into(),
        port: 1,
        peer: **of_server
            .iter()
            .find(|rail| needs_interface(&rail.address().address()))
            .unwrap(),
    };
    destination.target(client).map(|(_, to)| to)
}

#[test]
fn a_rail_at_a_link_local_address_is_connected_over_another_address() {
    let dialed = dialed_for_link_local(Some("10.0.0")).unwrap();
    assert_eq!(dialed, SocketAddr::from(([10, 0, 0, 1], 7000)));
    let dialed = dialed_for_link_local(None);
    assert!(matches!(dialed, Err(ConnectError::OnlyLinkLocal)), "{dialed:?}");
}

#[test]
fn a_port_that_no_longer_reaches_the_peer_is_named() {
    let fabric = Fabric::new();
    let (server, ours) = node(&fabric, "server", &["10.0.0.1"]);
    let (mut client, theirs) = node(&fabric, "client", &["10.0.0.2", "10.0.0.3"]);
    client.set_rail_filter("^client1".parse().unwrap());
    let peer = server.worker_rails(&ours).unwrap().advertised()[0];
    let rails = client.worker_rails(&theirs).unwrap();
    let error = rails.of_port("client1", 1, &peer).unwrap_err();
    assert_eq!(error.kind(), ConnectErrorKind::Network, "{error}");
    assert_eq!(
        error.to_string(),
        "no rail reaches the peer, which is at 10.0.0.1/24; client1 port 1: none of its usable rails reaches it now"
    );
}
