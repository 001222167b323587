//! Two sessions and a network that fails them, in virtual time: whatever happens, each message arrives once and in order,
//! and each has an end.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod faults;
mod hostile;
mod placed;
mod plain;
mod rails;
mod side;
mod world;
