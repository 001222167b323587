//! A net plugin for NCCL, versions 8 to 12 of its interface: memory of hosts and GPUs moves between ranks by doorbell's links, over all rails at once.
//!
//! | module | subject |
//! |---|---|
//! | [`abi`] | the interface: values, properties, tables |
//! | `exports`, `shims` | the tables that NCCL finds, and their functions |
//! | `registry` | the contexts of the process, each under its lock |
//! | `context` | a node with its links, and the comms on them |
//! | `frame`, `handle` | the messages of contexts, and the handles of listeners |
//! | `relay` | hosts that pass messages on between those that share no subnet |
//! | `lifeline` | the end of a peer's process, as its kernel reports it |
//!
//! `unsafe` is where pointers of NCCL's are read or written, and where its memory is adopted. Everything else is safe: objects that NCCL names
//! are numbers, which are looked up.

pub mod abi;
mod context;
mod device;
mod exports;
mod failure;
mod frame;
mod handle;
mod lifeline;
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

/// The checks of what a peer can send, for the fuzzer.
#[cfg(fuzzing)]
pub mod hostile {
    /// Checks the messages and acts of peers at a relay.
    ///
    /// # Panics
    /// A promise is broken.
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
