//! The one place atomics come from, so that models can replace them.
//!
//! Under `--cfg doorbell_loom` they are loom's, which explores every interleaving.

#[cfg(not(doorbell_loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(doorbell_loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
