//! Bodies of the targets: the checks of the packages' own tests, built once with the flags that libFuzzer
//! needs.
//!
//! A check is a function of bytes that panics where a promise is broken. It lives with the package whose promises it holds, where
//! `cargo test` runs it on the corpora and on made-up bytes. A check inside a package is public under `cfg(fuzzing)`. A check of a
//! public API is part of that package's tests, which no package exports: its file is included here.

#[path = "../../hotpath/tests/hostile/oracle/mod.rs"]
mod hotpath;
mod members;
#[path = "../../sim/tests/operations/oracle/mod.rs"]
mod operations;
#[path = "../../src/operation/tests/settings/oracle.rs"]
mod settings;
#[path = "../../sim/tests/plan/oracle.rs"]
mod simulated;
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

/// Frames of a peer about a transfer, and what else happens to either side of it.
pub fn transfers(bytes: &[u8]) {
    let _ = wire::transfer::check(bytes);
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
    doorbell_program::hostile::check_message(bytes);
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
    let _ = doorbell_program::hostile::check(bytes);
}

/// The text of a file of settings.
pub fn settings(bytes: &[u8]) {
    let _ = settings::check(bytes);
}

/// A frame of a mesh.
pub fn mesh(bytes: &[u8]) {
    let _ = doorbell::mesh::hostile::check(bytes);
}

/// Frames of a stranger in a mesh, beside two honest members.
pub fn mesh_stranger(bytes: &[u8]) {
    let _ = members::stranger::check(bytes);
}

/// Request of a scraper to the metrics server.
pub fn metrics_request(bytes: &[u8]) {
    doorbell_operation::hostile::check(bytes);
}

/// Packets, words of rings and frames of a hostile client and a hostile peer of a node daemon.
pub fn daemon(bytes: &[u8]) {
    doorbell_daemon::hostile::check(bytes);
}

/// The status that whoever listens at the socket of a node daemon gives, and what `doorbell status` shows of it.
pub fn daemon_status(bytes: &[u8]) {
    if let Some(status) = doorbell_daemon::hostile::check_status(bytes) {
        doorbell_program::hostile::check_status(&status);
    }
}

/// Messages of peers at a relay of the NCCL plugin, and what else they do there.
pub fn circuits(bytes: &[u8]) {
    doorbell_nccl::hostile::check(bytes);
}

/// A file of keys.
pub fn keys(bytes: &[u8]) {
    let _ = doorbell::trust::hostile::check(bytes);
}

/// The text of a scenario.
pub fn scenario(bytes: &[u8]) {
    let _ = doorbell_lab::hostile::check(bytes);
}
