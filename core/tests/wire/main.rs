//! Input from a peer: handles, frames and whole handshakes, good, cut, changed and made up.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod authentication;
mod corpus;
mod exhaustive;
mod frames;
mod golden;
mod handle;
mod handshake;
mod mac;
mod matrix;
mod oracle;
mod pipe;
mod properties;
mod rails;
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod samples;
