//! Tests that need an RDMA device: two queue pairs of one device, connected to each other.
//!
//! Without a usable device each says aloud that it was skipped, unless
//! `DOORBELL_REQUIRE_DEVICE=1` is set: then that is a failure. `DOORBELL_DEVICE` names the
//! device to use.
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

/// The libibverbs that is installed.
fn provider() -> Result<Rdma, String> {
    Rdma::load().map_err(|error| error.to_string())
}

/// The device to use, where one is named.
fn wanted() -> Option<String> {
    std::env::var("DOORBELL_DEVICE").ok()
}

/// Whether it is a failure that there is none.
fn is_required() -> bool {
    std::env::var("DOORBELL_REQUIRE_DEVICE").is_ok_and(|value| value == "1")
}

/// The provider by the device's description of itself, which is not what the quirks go by: were
/// these to take rxe for another, what is asked of rxe alone would pass by not being asked.
fn described_provider(device: &str) -> ProviderKind {
    let path = format!("/sys/class/infiniband/{device}/node_desc");
    let description = std::fs::read_to_string(path).expect("sysfs describes the device");
    match description.trim() {
        "rxe" => ProviderKind::Rxe,
        _ => ProviderKind::Other,
    }
}
