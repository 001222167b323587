//! Models of the lock-free structures, as tests of their public API.
//!
//! A package of its own, so that building with another set of atomics takes seconds:
//!
//! ```text
//! RUSTFLAGS="--cfg doorbell_loom" cargo test -p doorbell-models --target-dir target/loom
//! RUSTFLAGS="--cfg doorbell_shuttle" cargo test -p doorbell-models --target-dir target/shuttle
//! ```
//!
//! loom (`tests/models`) explores every interleaving of a few steps. shuttle (`tests/shuttle`) runs longer
//! programs, in as many random interleavings as there is time for, from a seed that it prints.
//!
//! A witness stands for memory that a structure hands from one thread to another: a cell that loom watches. An
//! ordering that is too weak shows as a race on the witness.
//!
//! Every ordering has a name. `DOORBELL_WEAKEN=RING_TAKE` before the first command makes that ordering relaxed,
//! without another build. `DOORBELL_WEAKEN=NOTIFY_SET=Release` keeps only the release of one that also acquires.
//! `weakened.rs` runs the models with each ordering weakened so, and a model has to fail each time. The models of a
//! structure are a module of `tests/models`; `weakened.rs` lists the module beside the orderings that it judges.
