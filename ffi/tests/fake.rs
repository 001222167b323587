//! The device tests on the fake libibverbs: the same modules, run everywhere.
//!
//! They show facts of `ffi` that hold without a device. The lab shows that devices behave as the fake does.

#[path = "device/mod.rs"]
mod tests;

use doorbell_ffi::{ProviderKind, Rdma};

/// The fake, which is settled on before anything asks for a library.
fn library() -> Result<(), String> {
    let path = doorbell_fake::library_path().map_err(|error| error.to_string())?;
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.map_err(|error| error.to_string())?;
    Ok(())
}

fn provider() -> Result<Rdma, String> {
    library()?;
    Rdma::load().map_err(|error| error.to_string())
}

/// Any device of the fake.
const fn wanted() -> Option<String> {
    None
}

/// It is built with these tests, so it is never absent.
const fn is_required() -> bool {
    true
}

/// A memory file stands for a dma-buf there.
const fn takes_memory_files() -> bool {
    true
}

/// No provider that does anything otherwise.
const fn described_provider(_device: &str) -> ProviderKind {
    ProviderKind::Other
}
