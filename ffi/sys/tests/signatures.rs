//! Every function of verbs.h, exported or inline, is here with the signature it has in C.
//!
//! The table is generated; each of its lines compiles only if the signatures agree. Three differences from C are
//! known. The `ibv_wr_*` functions return an errno value instead of nothing, three functions of numbers alone are
//! safe, and three names are the macros that C has for them.

use core::ffi::{c_char, c_int, c_uint, c_void};

use rdma_sys::*;

include!("signatures/table.rs");

#[test]
fn every_line_is_one_function() {
    // The comparison itself was made when this file was compiled.
    let lines = include_str!("signatures/table.rs")
        .lines()
        .filter(|line| line.starts_with("const _: "));
    assert_eq!(lines.count(), FUNCTIONS);
    const { assert!(FUNCTIONS > 120 && INLINE_IN_C > 60) };
}
