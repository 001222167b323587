//! Sizes, alignments, offsets and constants, asserted while this crate is compiled.
//!
//! The numbers are libclang's, read from the C headers for both architectures. They differ in the objects that
//! hold a `pthread_mutex_t`: 40 bytes on x86-64, 48 on aarch64. `tests/headers.rs` checks that the headers of an
//! installed rdma-core give equal numbers.

use core::mem::{align_of, offset_of, size_of};

use crate::{bindings::*, unions::*};

/// The one of two numbers that holds here.
macro_rules! by_arch {
    ($x86_64:literal, $aarch64:literal) => {
        if cfg!(target_arch = "aarch64") {
            $aarch64
        } else {
            $x86_64
        }
    };
}

macro_rules! layout {
    ($($c_type:literal $name:ident [$size:expr, $align:expr] { $($c_field:literal $field:ident $offset:expr;)* })*) => {$(
        const _: () = {
            assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
            assert!(align_of::<$name>() == $align, concat!("alignment of ", stringify!($name)));
            $(assert!(
                offset_of!($name, $field) == $offset,
                concat!("offset of ", stringify!($name), ".", stringify!($field))
            );)*
        };
    )*};
}

macro_rules! constants {
    ($($of:ident { $($name:ident = $value:literal;)* })*) => {$(
        constants!(@$of $($name = $value;)*);
    )*};
    (@global $($name:ident = $value:literal;)*) => {$(
        const _: () = assert!($name.0 == $value, stringify!($name));
    )*};
    (@plain $($name:ident = $value:literal;)*) => {$(
        const _: () = assert!($name == $value, stringify!($name));
    )*};
    (@$of:ident $($name:ident = $value:literal;)*) => {$(
        const _: () = assert!($of::$name.0 == $value, stringify!($name));
    )*};
}

include!("layout_table.rs");

// `ibv_create_qp_ex` and `ibv_create_srq_ex` hand extended attributes to functions that take plain ones,
// and `ibv_query_port` hands the whole structure to one that fills in its first part.
const _: () = {
    assert!(offset_of!(ibv_qp_init_attr_ex, cap) == offset_of!(ibv_qp_init_attr, cap));
    assert!(offset_of!(ibv_qp_init_attr_ex, sq_sig_all) == offset_of!(ibv_qp_init_attr, sq_sig_all));
    assert!(offset_of!(ibv_srq_init_attr_ex, srq_context) == offset_of!(ibv_srq_init_attr, srq_context));
    assert!(offset_of!(ibv_srq_init_attr_ex, attr) == offset_of!(ibv_srq_init_attr, attr));
};

// The size field sits directly before the context, and the context ends the structure.
#[expect(clippy::arithmetic_side_effects, reason = "of constants, while compiling")]
const _: () = {
    assert!(offset_of!(verbs_context, sz) + size_of::<usize>() == offset_of!(verbs_context, context));
    assert!(offset_of!(verbs_context, context) + size_of::<ibv_context>() == size_of::<verbs_context>());
};

// FLUSH comes directly after what rdma-core 44 has.
const _: () = assert!(offset_of!(crate::newer::ibv_qp_ex_with_flush, wr_flush) == size_of::<ibv_qp_ex>());
