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

mod collectives;
mod found;
mod ways;
mod world;
