//! Ours against crates.io's rdma-sys 0.3.0: every type it has by the same name has the same size, alignment
//! and offsets, and every constant the same value.

#![allow(
    clippy::allow_attributes,
    non_camel_case_types,
    reason = "the names are those of the C headers"
)]

use std::mem::{align_of, offset_of, size_of};

macro_rules! by_arch {
    ($x86_64:literal, $aarch64:literal) => {
        if cfg!(target_arch = "aarch64") {
            $aarch64
        } else {
            $x86_64
        }
    };
}

/// The integer behind a constant of either crate: an integer, a newtype, or (theirs) a Rust enum.
fn raw<T: Copy>(value: T) -> u32 {
    assert_eq!(size_of::<T>(), size_of::<u32>());
    // SAFETY: every type asked for is a 32-bit integer or a transparent wrapper of one.
    unsafe { std::mem::transmute_copy(&value) }
}

#[derive(Default)]
struct Compared {
    types: usize,
    numbers: usize,
    wrong: Vec<String>,
}

impl Compared {
    fn check(&mut self, what: &str, ours: usize, theirs: usize) {
        self.numbers += 1;
        if ours != theirs {
            self.wrong
                .push(format!("{what}: {ours} here, {theirs} in rdma-sys"));
        }
    }
}

/// Expands to nothing for the types that rdma-sys does not let anybody look into.
macro_rules! compare_type {
    // Its fields are private there.
    ($to:ident ibv_ops_wr $size:expr, $align:expr; $($field:ident $offset:expr;)*) => {
        compare_type!(@shape $to ibv_ops_wr $size, $align);
    };
    ($to:ident $name:ident $size:expr, $align:expr; $($field:ident $offset:expr;)*) => {
        compare_type!(@shape $to $name $size, $align);
        $($to.check(
            concat!("offset of ", stringify!($name), ".", stringify!($field)),
            $offset,
            offset_of!(theirs::$name, $field),
        );)*
    };
    (@shape $to:ident $name:ident $size:expr, $align:expr) => {
        $to.types += 1;
        $to.check(concat!("size of ", stringify!($name)), $size, size_of::<theirs::$name>());
        $to.check(concat!("alignment of ", stringify!($name)), $align, align_of::<theirs::$name>());
        assert_eq!(size_of::<rdma_sys::$name>(), $size);
    };
}

macro_rules! layout {
    ($($c:literal $name:ident [$size:expr, $align:expr] { $($cf:literal $field:ident $offset:expr;)* })*) => {
        fn compare_types(to: &mut Compared) {
            $(compare_type!(to $name $size, $align; $($field $offset;)*);)*
        }
    };
}

macro_rules! constants {
    ($($of:ident { $($name:ident = $value:literal;)* })*) => {
        fn compare_constants(to: &mut Compared) {
            $(constants!(@$of to $($name = $value;)*);)*
        }
    };
    // rdma-sys has no constants for C macros.
    (@plain $to:ident $($name:ident = $value:literal;)*) => {};
    (@global $to:ident $($name:ident = $value:literal;)*) => {
        $($to.check(stringify!($name), raw(rdma_sys::$name) as usize, raw(theirs::$name) as usize);)*
    };
    (@$of:ident $to:ident $($name:ident = $value:literal;)*) => {
        $($to.check(stringify!($name), raw(rdma_sys::$of::$name) as usize, raw(theirs::$of::$name) as usize);)*
    };
}

include!("../../src/layout_table.rs");

#[test]
fn types_and_constants_agree() {
    let mut compared = Compared::default();
    compare_types(&mut compared);
    compare_constants(&mut compared);
    assert!(compared.wrong.is_empty(), "{}", compared.wrong.join("\n"));
    println!(
        "{} types, {} numbers: the same as in rdma-sys 0.3.0",
        compared.types, compared.numbers
    );
    assert!(compared.types > 100 && compared.numbers > 1200);
}

/// The fault that made its extended verbs unusable is still there, which is why this package is not it.
#[test]
fn rdma_sys_does_not_see_an_extended_context() {
    let context = Box::into_raw(Box::new(std::mem::MaybeUninit::<theirs::verbs_context>::zeroed()));
    let context = context.cast::<theirs::verbs_context>();
    // SAFETY: a zeroed structure of integers, pointers and optional functions; made to look extended.
    let made = unsafe {
        (*context).sz = size_of::<theirs::verbs_context>();
        (*context).context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        (*context).create_cq_ex = Some(make_cq);
        let inner = context
            .byte_add(offset_of!(theirs::verbs_context, context))
            .cast();
        (
            theirs::ibv_create_cq_ex(inner, std::ptr::null_mut()),
            rdma_sys::ibv_create_cq_ex(inner.cast(), std::ptr::null_mut()).addr(),
        )
    };
    assert_eq!(made, (None, 0xc0));
}

unsafe extern "C" fn make_cq(
    _: *mut theirs::ibv_context,
    _: *mut theirs::ibv_cq_init_attr_ex,
) -> *mut theirs::ibv_cq_ex {
    std::ptr::without_provenance_mut(0xc0)
}
