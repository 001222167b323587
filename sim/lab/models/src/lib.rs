//! Models of the lock-free structures, as tests of their public API.
//!
//! A package of its own, so that building with another set of atomics takes seconds:
//!
//! ```text
//! RUSTFLAGS="--cfg doorbell_loom" cargo test -p doorbell-models --target-dir target/loom
//! ```
//!
//! Memory that a structure hands from one thread to another is stood for by a witness: a cell
//! that loom watches. An ordering that is too weak shows as a race on it.
