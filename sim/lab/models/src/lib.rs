//! Models of the lock-free structures, as tests of their public API.
//!
//! A package of its own, so that building with another set of atomics takes seconds:
//!
//! ```text
//! RUSTFLAGS="--cfg doorbell_loom" cargo test -p doorbell-models --target-dir target/loom
//! RUSTFLAGS="--cfg doorbell_shuttle" cargo test -p doorbell-models --target-dir target/shuttle
//! ```
//!
//! loom (`tests/models`) explores every interleaving of a few steps; shuttle (`tests/shuttle`) as
//! many as there is time for, of longer ones, from a seed that it prints.
//!
//! Memory that a structure hands from one thread to another is stood for by a witness: a cell
//! that loom watches. An ordering that is too weak shows as a race on it.
//!
//! Every ordering has a name. `DOORBELL_WEAKEN=RING_TAKE` before the first command makes that one
//! relaxed, without another build, and `DOORBELL_WEAKEN=TOLD_TELL=Release` leaves a half of it; the models
//! call themselves so with each, and one has to fail each time. A structure's models are a module of `tests/models`, named in `weakened.rs`
//! beside the orderings it judges.
