//! Bodies of the targets: the checks of the packages' own tests, built once with the flags that libFuzzer
//! needs.
//!
//! A check is a function of bytes that panics where a promise is broken. It lives with the tests of the package
//! whose promises it holds, where `cargo test` runs it on the corpora and on made-up bytes.

#[path = "../../src/program/src/address.rs"]
mod address;
#[path = "../../src/program/src/hostile.rs"]
mod arguments;
#[path = "../../src/program/src/configured.rs"]
mod configured;
mod cluster;
#[path = "../../hotpath/tests/hostile/oracle/mod.rs"]
mod hotpath;
mod kernel;
mod members;
mod mesh;
mod metrics;
#[path = "../../sim/tests/operations/oracle/mod.rs"]
mod operations;
#[path = "../../src/program/src/peers.rs"]
#[expect(dead_code, reason = "no Node is opened here")]
mod peers;
mod perf;
mod pingpong;
#[path = "../../src/program/src/port_counts.rs"]
mod port_counts;
mod programs;
mod scenario;
#[path = "../../src/operation/tests/settings/oracle.rs"]
mod settings;
#[path = "../../sim/tests/plan/oracle.rs"]
mod simulated;
#[path = "../../sim/lab/src/topology.rs"]
#[expect(dead_code, reason = "whoever makes hosts uses more of it")]
mod topology;
mod trust;
#[path = "../../src/program/src/value.rs"]
mod value;
#[path = "../../core/tests/wire/oracle/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod wire;

pub mod planted;

/// A handle.
pub fn handle(bytes: &[u8]) {
    wire::handle::check(bytes);
}

/// The text of a handle, and what such a text spells.
pub fn text(bytes: &[u8]) {
    wire::text::check(bytes);
}

/// One frame of the handshake.
pub fn frames(bytes: &[u8]) {
    wire::frames::check(bytes);
}

/// All a peer sends in a handshake, to either role.
pub fn handshake(bytes: &[u8]) {
    let _ = wire::handshake::check(bytes);
}

/// Two machines, and a wire between them that does what the bytes say.
pub fn sequence(bytes: &[u8]) {
    let _ = wire::sequence::check(bytes);
}

/// An invitation into a ring.
pub fn ring_invitation(bytes: &[u8]) {
    wire::ring::check(bytes);
}

/// The route header in front of a datagram.
pub fn grh(bytes: &[u8]) {
    wire::grh::check(bytes);
}

/// A frame of a session.
pub fn session(bytes: &[u8]) {
    wire::session::check(bytes);
}

/// Writes into a credit word, between messages.
pub fn credits(bytes: &[u8]) {
    hotpath::credits::check(bytes);
}

/// Writes into a ring and notifications of it, between messages.
pub fn rings(bytes: &[u8]) {
    let _ = hotpath::rings::check(bytes);
}

/// Messages between the two sides of a measurement.
pub fn perf_message(bytes: &[u8]) {
    perf::hostile::check(bytes);
}

/// Operations of two hosts on a simulated fabric.
pub fn operations(bytes: &[u8]) {
    let _ = operations::check(bytes);
}

/// Plan of faults for a simulation, as text.
pub fn plan(bytes: &[u8]) {
    simulated::check(bytes);
}

/// A command line of the program.
pub fn arguments(bytes: &[u8]) {
    let _ = arguments::check(bytes);
}

/// The text of a file of settings.
pub fn settings(bytes: &[u8]) {
    let _ = settings::check(bytes);
}

/// A frame of a mesh.
pub fn mesh(bytes: &[u8]) {
    let _ = mesh::hostile::check(bytes);
}

/// Frames of a stranger in a mesh, beside two honest members.
pub fn mesh_stranger(bytes: &[u8]) {
    let _ = members::stranger::check(bytes);
}

/// Request of a scraper to the metrics server.
pub fn metrics_request(bytes: &[u8]) {
    let _ = metrics::hostile::check(bytes);
}

/// A file of keys.
pub fn keys(bytes: &[u8]) {
    let _ = trust::hostile::check(bytes);
}

/// The text of a scenario.
pub fn scenario(bytes: &[u8]) {
    let _ = scenario::hostile::check(bytes);
}
