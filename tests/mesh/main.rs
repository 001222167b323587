//! Meshes of simulated hosts: ways through others, messages that outlive them, and collectives, in virtual time.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

#[path = "../fabric/mod.rs"]
mod fabric;

#[path = "../../core/tests/wire/oracle/choices.rs"]
mod choices;
mod collectives;
mod flapping;
mod found;
mod groups;
mod largest;
mod leaving;
mod packets;
mod panics;
#[path = "../../fuzz/replay.rs"]
mod replay;
mod sleeping;
mod stranger;
mod strangers;
mod ways;
mod world;
