//! Two queue pairs of one device, connected to each other. Which device, says the test program they are part of.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod bench;
mod children;
mod dmabuf;
mod failures;
mod lent;
mod lifetimes;
mod messages;
mod notification;
mod one_sided;
mod ranges;
mod reset;
mod revoked;
mod shared_receive;
