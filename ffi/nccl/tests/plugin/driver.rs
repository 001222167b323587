//! The driver, over the fake libibverbs: each version of the tables, in a process of its own.

use std::process::{Command, Output};

use crate::built;

/// The scenarios that the driver has.
const SCENARIOS: usize = 21;

fn drive(version: u32, variables: &[(&str, &str)], scenarios: &[&str]) -> Output {
    let mut command = Command::new(built::driver());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("DOORBELL_") || name.starts_with("NCCL_") {
            command.env_remove(name);
        }
    }
    command
        .arg(built::plugin())
        .arg(version.to_string())
        .args(scenarios)
        .env("DOORBELL_LIBIBVERBS", doorbell_fake::library_path().unwrap())
        .env("DOORBELL_UNAUTHENTICATED", "true")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn passes(version: u32, variables: &[(&str, &str)]) {
    let ran = drive(version, variables, &[]);
    let told = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}{errors}");
    assert!(told.ends_with("\n0 failed\n"), "{told}{errors}");
    assert_eq!(
        told.lines().filter(|line| line.starts_with("ok ")).count(),
        SCENARIOS,
        "{told}"
    );
}

#[test]
fn version_8() {
    passes(8, &[]);
}

#[test]
fn version_9() {
    passes(9, &[]);
}

#[test]
fn version_10() {
    passes(10, &[]);
}

#[test]
fn version_11() {
    passes(11, &[]);
}

#[test]
fn version_12_over_two_devices() {
    passes(12, &[("DOORBELL_FAKE_DEVICES", "2")]);
}

#[test]
fn every_message_by_a_transfer_and_none() {
    for (eager, loans) in [("0", "true"), ("0", "false"), ("65520", "true")] {
        let variables = [
            ("DOORBELL_NCCL_EAGER_BYTES", eager),
            ("DOORBELL_NCCL_LOANS", loans),
        ];
        let ran = drive(11, &variables, &["messages", "grouped", "in_flight"]);
        let told = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{eager} {loans}: {told}");
    }
}

/// Frames that clear several receives are longer than the fragments.
#[test]
fn groups_over_short_fragments() {
    let ran = drive(11, &[("DOORBELL_LINK_FRAGMENT_BYTES", "64")], &["grouped"]);
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{told}");
}

/// Neighbours by a relay, as ranks that share no subnet are connected: the contract is the same.
#[test]
fn every_message_by_a_relay() {
    for (eager, port) in [("4056", "19011"), ("0", "19012")] {
        let relays = format!("127.0.0.1:{port}");
        let ran = drive(
            12,
            &[
                ("DOORBELL_NCCL_RELAYS", &*relays),
                ("DOORBELL_NCCL_RELAY_ALWAYS", "true"),
                ("DOORBELL_NCCL_EAGER_BYTES", eager),
            ],
            &[
                "connection",
                "messages",
                "grouped",
                "tags",
                "in_flight",
                "excess",
                "in_flight_close",
                "last_message",
                "peer_gone",
                "not_accepted",
                "listener_gone",
            ],
        );
        let told = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{eager}: {told}");
        assert!(told.ends_with("\n0 failed\n"), "{told}");
    }
}

/// `init` fails, and the log says what to do.
fn fails_with(variables: &[(&str, &str)], code: &str, line: &str) {
    let ran = drive(12, variables, &["properties"]);
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(!ran.status.success(), "{told}");
    assert!(told.contains(&format!("init returned {code}")), "{told}");
    assert!(told.contains(line), "{told}");
}

#[test]
fn no_device_and_no_trust_are_errors_that_say_what_to_do() {
    fails_with(&[("DOORBELL_UNAUTHENTICATED", "false")], "5", "DOORBELL_KEY_FILE");
    fails_with(
        &[("DOORBELL_FAKE_DEVICES", "0")],
        "2",
        "log: 2 NET/doorbell : init: ",
    );
    fails_with(&[("DOORBELL_FAKE_DOWN", "1")], "2", "DOWN");
    fails_with(
        &[("DOORBELL_LIBIBVERBS", "/no/such/library")],
        "2",
        "/no/such/library",
    );
    fails_with(
        &[("DOORBELL_FAKE_INTERFACE", "no_such_interface")],
        "2",
        "no RoCEv2 entry",
    );
    fails_with(&[("DOORBELL_RAILS", "no_such_device")], "2", "named by no rule");
    fails_with(
        &[("NCCL_MESH_DISABLE_RDMA", "1")],
        "5",
        "NCCL_MESH_DISABLE_RDMA=1",
    );
    fails_with(&[("NCCL_IB_HCA", "=no_such_device")], "2", "named by no rule");
    fails_with(
        &[("DOORBELL_NCCL_RELAYS", "host:x")],
        "5",
        "DOORBELL_NCCL_RELAYS: host:x: x is no port",
    );
}

/// The driver over the libibverbs that is installed. Without a usable device it is skipped, unless `DOORBELL_REQUIRE_DEVICE=1` is set.
#[test]
fn over_a_device_of_this_machine() {
    let ran = drive(12, &[("DOORBELL_LIBIBVERBS", "libibverbs.so.1")], &["properties"]);
    let told = String::from_utf8_lossy(&ran.stdout);
    if !ran.status.success() && told.contains("init returned 2") {
        let is_required = std::env::var("DOORBELL_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
        assert!(!is_required, "{told}");
        println!("SKIPPED: no usable RDMA device: {told}");
        return;
    }
    for version in [8, 12] {
        passes(version, &[("DOORBELL_LIBIBVERBS", "libibverbs.so.1")]);
    }
}
