//! What `ffi` is proven by that needs unsafe code or the bare bindings.
//!
//! - `cargo bench -p doorbell-proofs --bench posting`: what the posting guard costs over a loop by hand.
