//! A net plugin for NCCL, versions 8 to 12 of its interface. The plugin moves host and GPU memory between ranks over doorbell's links, on all rails
//! at once.
//!
//! | module | subject |
//! |---|---|
//! | [`abi`] | the interface: values, properties, tables |
//! | `exports`, `shims` | the tables that NCCL looks up, and their functions |
//! | `registry`, `lock` | the contexts of the process, each behind its lock |
//! | `context` | a node with its links, and the comms on them |
//! | `frame`, `handle` | the messages between contexts, and the handles of listeners |
//! | `relay` | hosts that forward messages between hosts without a common subnet |
//! | `lifeline` | detection of the end of a peer's process by its kernel |
//!
//! `unsafe` is used only to access memory through NCCL's pointers, for system calls, and to adopt NCCL's memory. NCCL names objects by opaque
//! pointers, which encode numbers and are looked up.

pub mod abi;
mod context;
mod device;
mod exports;
mod failure;
mod frame;
mod handle;
mod lifeline;
mod lock;
mod log;
mod memory;
mod opaque;
mod places;
mod registry;
mod relay;
mod settings;
mod shims;
#[path = "../../src/signals.rs"]
mod signals;

/// Checks of peers' input, for the fuzzer.
#[cfg(fuzzing)]
pub mod hostile {
    /// Checks the messages and actions of peers at a relay.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(bytes: &[u8]) {
        crate::relay::hostile::check(bytes);
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

pub use exports::{
    ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11, ncclNetPlugin_v12,
};
