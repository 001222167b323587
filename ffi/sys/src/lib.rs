//! Raw libibverbs bindings that build with cargo alone.
//!
//! The names, structures and signatures of `<infiniband/verbs.h>`, as rdma-sys 0.3 spells them:
//!
//! 1. [`load`] opens `libibverbs.so.1` at run time (feature `link`: it is linked instead). Every function of the
//!    library forwards to the one found there.
//! 2. Verbs that are inline functions in C are inline functions here: posting and polling, the `ibv_wr_*` family,
//!    the extended creators behind [`verbs_get_ctx`].
//! 3. Every enumeration is an integer newtype, so a value of a newer library is a value, not undefined behaviour.
//!
//! Nothing here is safe or convenient; that is the business of the crates above. Policy, ownership, and anything
//! that a C program would not find in verbs.h must not live here.

#![expect(non_camel_case_types, reason = "the names are those of the C headers")]

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "doorbell-sys supports 64-bit Linux on x86_64 and aarch64 only: its committed libibverbs bindings are \
     checked against the C headers of those two"
);

#[rustfmt::skip]
#[expect(
    missing_debug_implementations,
    missing_docs,
    non_snake_case,
    reason = "generated from verbs.h; the manual pages of rdma-core document it"
)]
mod bindings;
mod context;
mod create;
mod data_path;
mod device;
mod errno;
mod flow;
mod functions;
mod layout;
mod library;
mod memory;
mod newer;
mod poll;
mod unions;
mod work_queue;
mod wr;

pub use bindings::*;
pub use context::verbs_get_ctx;
#[doc(hidden)]
pub use context::{op_is_present, op_pointer};
pub use create::*;
pub use data_path::*;
pub use device::*;
pub use flow::*;
pub use functions::*;
pub use library::{LIBRARY_ENV, Library, LoadError, load, load_from};
pub use memory::*;
pub use newer::*;
pub use poll::*;
pub use unions::*;
pub use work_queue::*;
pub use wr::*;

// The three names that C, too, takes from a macro and not from the library.
pub use device::ibv_query_port;
pub use memory::{ibv_reg_mr, ibv_reg_mr_iova};

/// The example of the README, compiled and run with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
