//! Contexts made by the tests, in place of those a provider makes.

use core::mem::{MaybeUninit, offset_of, size_of};
use core::ptr;

use rdma_sys::{ibv_context, verbs_context};

/// A zeroed structure, on the heap for good: C objects stay where they are.
///
/// Every type asked for consists of integers, pointers and optional function pointers.
pub(crate) fn zeroed<T>() -> *mut T {
    let boxed: Box<MaybeUninit<T>> = Box::new(MaybeUninit::zeroed());
    Box::into_raw(boxed).cast()
}

/// Value of `abi_compat` in an extended context.
pub(crate) const EXTENDED: usize = usize::MAX;

/// An extended context of full size without any operation, and the plain context inside it.
pub(crate) fn extended_context() -> (*mut verbs_context, *mut ibv_context) {
    let whole: *mut verbs_context = zeroed();
    // SAFETY: just allocated; plain stores, and a pointer inside the allocation.
    let context = unsafe {
        (*whole).sz = size_of::<verbs_context>();
        (*whole).context.abi_compat = ptr::without_provenance_mut(EXTENDED);
        whole
            .byte_add(offset_of!(verbs_context, context))
            .cast::<ibv_context>()
    };
    (whole, context)
}

/// A context of before the extended interface.
pub(crate) fn plain_context() -> *mut ibv_context {
    zeroed()
}

/// Clears errno, runs, and gives the result with the errno it left.
pub(crate) fn with_errno<T>(run: impl FnOnce() -> T) -> (T, i32) {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = 0 };
    let result = run();
    (
        result,
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
    )
}
