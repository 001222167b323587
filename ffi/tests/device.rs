//! Tests that need an RDMA device: two queue pairs of one device, connected to each other.
//!
//! Without a usable device each says aloud that it was skipped, unless
//! `DOORBELL_REQUIRE_DEVICE=1` is set: then that is a failure. `DOORBELL_DEVICE` names the
//! device to use.
#![expect(clippy::expect_used, reason = "tests")]

#[path = "device/mod.rs"]
mod tests;

use doorbell_ffi::{ProviderKind, Rdma};

/// The libibverbs that is installed.
fn library() -> Result<(), String> {
    rdma_sys::load().map_err(|error| error.to_string())?;
    Ok(())
}

fn provider() -> Result<Rdma, String> {
    library()?;
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

/// No device takes one for a dma-buf.
const fn takes_memory_files() -> bool {
    false
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
