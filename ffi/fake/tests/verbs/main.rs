//! The fake by its C interface, as a program on libibverbs sees it: what `ffi`'s own device tests, which
//! run on it too, cannot ask for.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test fails by panicking; the library and all objects are this test's own"
)]

mod dmabuf;
mod errors;
mod lives;
mod rig;
mod shared;
mod threads;
mod waiting;
