//! Events of the control plane: peers that come and go, refusals with their reasons, and never a key.

mod devices;
mod every;
#[path = "../fabric/mod.rs"]
mod fabric;
#[path = "../fabric/failing.rs"]
mod failing;
mod handshakes;
mod links;
mod log;
mod meshes;
#[path = "../links/processes.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "links use more of it")]
mod processes;
#[path = "../mesh/world.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "meshes use more of it")]
mod world;

use core::net::SocketAddr;

use doorbell::{KeyRing, Listener, Trust};
use doorbell_sim::{Fabric, PortConfig};
use fabric::{key, node_that, port, secret, small, workers};
use log::{Log, assert_told, count_told};
use tracing_subscriber::filter::LevelFilter;
use world::{World, ms};

#[test]
fn a_mesh_in_which_messages_may_not_go_as_far_as_members_may_be_says_so_at_the_start() {
    let told = |hops_max| {
        Log::of(LevelFilter::WARN, || {
            World::made(4, &[(0, 1), (1, 2), (2, 3)], "", |at| {
                let mut config = world::config(at, 4, 1);
                config.hops_max = hops_max;
                config
            });
        })
    };
    let words = "WARN doorbell: members may be out of reach: with hops_max messages go through fewer than a line of all has between its ends .. hops_max=1 .. needed=2";
    assert_told(&told(1), &[words]);
    assert!(!told(2).contains("out of reach"));
}

#[test]
fn a_mesh_tells_who_comes_and_goes_and_by_which_rails() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut world = World::new(3, &[(0, 1), (1, 2)], "at 30ms link h0/sim0-h1/sim0 down");
        world.joined();
        world.members[2] = None;
        world.run(ms(600), |_| false);
    });
    assert_told(
        &log,
        &[
            "INFO doorbell: rail chosen .. device=sim0 .. port=1 .. peers=10.1.0.1/24 .. mbps=",
            "INFO doorbell: link begun .. link=",
            "INFO doorbell: connected .. to=10.1.0.1:7000 .. worker=0",
            "INFO doorbell: handshake done .. from=10.1.0.2",
            "INFO doorbell: link accepted .. link=",
            "INFO doorbell: rail up .. link= .. rail=0",
            "INFO doorbell: a way leads to a member .. rank=2",
            "WARN doorbell: rail down .. link= .. rail=0",
            "WARN doorbell: link without a rail .. link=",
            "WARN doorbell: the link to a member is over .. rank=2 .. reason=",
            "WARN doorbell: no way leads to a member .. rank=2",
            "WARN doorbell: channel failed .. channel= .. peer=10.1.1.3 .. cause=transport retries exceeded",
        ],
    );
    // Its single steps are only for users who ask for more detail.
    assert!(!log.contains("DEBUG"), "{log}");
}

/// Once, when Workers are made, and not with every look at the ports.
#[test]
fn a_port_without_an_address_is_told_once() {
    let log = Log::of(LevelFilter::WARN, || {
        let fabric = Fabric::builder().driven().build();
        let ports = vec![PortConfig::new("bare", &[]), port("simA", "10.0.0.1/24")];
        let trust = Trust::unauthenticated_on_purpose();
        let a = node_that(&fabric, "a", ports, trust);
        let at_a = workers(&a);
        let at = SocketAddr::from(([10, 0, 0, 1], 7000));
        Listener::bind(&a, &at_a, at, &small()).unwrap();
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert_told(
        &log,
        &["WARN doorbell: passed over .. what=bare port 1: the GID table has no RoCEv2 entry"],
    );
}

#[test]
fn a_handshake_that_is_refused_is_told_with_its_reason_and_no_key() {
    let trust = |name: &str| Trust::keys(KeyRing::new(key(1, name)));
    let log = Log::of(LevelFilter::TRACE, || {
        let fabric = Fabric::builder().driven().build();
        let a = node_that(&fabric, "a", vec![port("simA", "10.0.0.1/24")], trust("secret"));
        let b = node_that(&fabric, "b", vec![port("simB", "10.0.0.2/24")], trust("other"));
        let (mut at_a, mut at_b) = (workers(&a), workers(&b));
        let at = SocketAddr::from(([10, 0, 0, 1], 7000));
        let mut listener = Listener::bind(&a, &at_a, at, &small()).unwrap();
        let handle = *listener.handle();
        let mut connecting = b
            .begin_connect(&at_b, &handle, &small(), b.within(ms(5000)))
            .unwrap();
        let (mut accepted, mut connected) = (None, None);
        while accepted.is_none() || connected.is_none() {
            connected = connected.or_else(|| connecting.poll(&b, &mut at_b));
            accepted = accepted.or_else(|| listener.poll_accept(&a, &mut at_a).transpose());
            fabric.run_for(ms(1));
        }
        assert!(accepted.unwrap().is_err() && connected.unwrap().is_err());
    });
    assert_told(
        &log,
        &[
            "DEBUG doorbell: connecting .. to=10.0.0.1:7000",
            "WARN doorbell: handshake refused .. from= .. at=10.0.0.1:7000 .. reason=",
            "WARN doorbell: not connected .. to=10.0.0.1:7000 .. reason=",
        ],
    );
    for name in ["secret", "other"] {
        let digits: String = secret(name).iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{:?}", &secret(name)[..4]);
        assert!(
            !log.contains(&digits[..8]) && !log.contains(list.trim_matches(['[', ']'])),
            "{log}"
        );
    }
}
