//! What is proven of doorbell by unsafe code or the bare bindings.
//!
//! - `allocations`, `page_faults`, `system_calls`: what a million requests through the public Channel do
//!   not do. Two Workers of one process, over the fake libibverbs, send each other everything there is; and so do
//!   two that were taken apart. The tests run them once more where bytes do not land in order.
//! - `panic_free`: that the hot functions cannot panic. It links only where the optimiser has found no way
//!   to a panic in any of them; `planted_panic` is made to have one.
//! - `freestanding`, a package of its own: that `core` and `hotpath` link without std and an allocator.
//! - `cargo bench -p doorbell-proofs --bench posting`: what the posting guard costs over a loop by hand.
//!
//! Each program fails where what it proves is not so, and is made to fail by `--plant`: the tests run
//! both. Here is what the programs share.

mod apart;
mod arguments;
mod bare;
mod pair;
mod seccomp;
mod traffic;

pub use apart::Apart;
pub use arguments::{Arguments, arguments};
pub use bare::{Bare, SLOT_BYTES};
pub use pair::{End, Pair, destroy, split};
pub use seccomp::allow_only_verdict;
pub use traffic::{Stuck, Traffic};
