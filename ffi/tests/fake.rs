//! The device tests on the fake libibverbs: the same modules, run everywhere.
//!
//! What they show of `ffi` holds without a device; that devices behave so is shown in the lab.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

#[path = "device/bench.rs"]
mod bench;
#[path = "device/failures.rs"]
mod failures;
#[path = "device/lifetimes.rs"]
mod lifetimes;
#[path = "device/messages.rs"]
mod messages;
#[path = "device/notification.rs"]
mod notification;
#[path = "device/one_sided.rs"]
mod one_sided;
#[path = "device/reset.rs"]
mod reset;
#[path = "device/shared_receive.rs"]
mod shared_receive;

use doorbell_ffi::{ProviderKind, Rdma};

/// The fake, which is settled on before anything asks for a library.
fn provider() -> Result<Rdma, String> {
    let path = doorbell_fake::library_path().map_err(|error| error.to_string())?;
    rdma_sys::load_from(&path).map_err(|error| error.to_string())?;
    Rdma::load().map_err(|error| error.to_string())
}

/// Whatever device it has.
const fn wanted() -> Option<String> {
    None
}

/// It is built with these tests, so it is never absent.
const fn is_required() -> bool {
    true
}

/// No provider that does anything otherwise.
const fn described_provider(_device: &str) -> ProviderKind {
    ProviderKind::Other
}
