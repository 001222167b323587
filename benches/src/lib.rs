//! Benchmarks of the parts that need no device; `cargo bench -p doorbell-benches` runs them.
//!
//! A package of its own, so that what measures reaches no embedder.
