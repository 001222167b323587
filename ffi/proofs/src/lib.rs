//! Proofs about doorbell that need unsafe code or the bare bindings.
//!
//! 1. `allocations`, `page_faults`, `system_calls`: a million requests through the public Channel do none of
//!    these. Two Workers of one process, over the fake libibverbs, send each other every kind of request. Two
//!    Workers that were taken apart do so, too. The tests run them once more with bytes that do not land in
//!    order.
//! 2. `panic_free`: the hot functions cannot panic. It links only if the optimiser has found no way to a panic in
//!    any of them. `planted_panic` is made to have one.
//! 3. `freestanding`, a package of its own: `core` and `hotpath` link without std and an allocator.
//! 4. `cargo run --release -p doorbell-proofs --example posting`: the cost of the posting guard over a loop by hand.
//!
//! Each program fails if the property it proves does not hold, and is made to fail by `--plant`: the tests run
//! both. This library holds the parts that the programs share.

mod apart;
mod arguments;
mod bare;
pub mod owners;
mod pair;
mod seccomp;
mod traffic;

pub use apart::Apart;
pub use arguments::{Arguments, arguments};
pub use bare::{Bare, SLOT_BYTES};
pub use pair::{End, Pair, destroy, split};
pub use seccomp::allow_only_verdict;
pub use traffic::{Stuck, Traffic};
