//! The way from a context to its extended operations.
//!
//! A provider of any age may stand behind a context, so the extended part may be absent or shorter than the
//! structure this crate knows. It grows at its *front*: `sz`, which lies directly before the `ibv_context`, says
//! which fields are there. Nothing here forms a reference to a whole `verbs_context`, and no field is read before
//! `sz` says that it exists.

use core::mem::{offset_of, size_of};
use core::ptr;

use crate::bindings::{ibv_context, verbs_context};

/// Value of `abi_compat` in a context that has the extended part (`__VERBS_ABI_IS_EXTENDED` in C).
const EXTENDED: usize = usize::MAX;

/// Bytes from the start of the extended structure, as known here, to the plain context inside it.
const CONTEXT_OFFSET: usize = offset_of!(verbs_context, context);

/// Bytes from the field that holds the extended part's size to the plain context.
const SIZE_DISTANCE: usize = CONTEXT_OFFSET.wrapping_sub(offset_of!(verbs_context, sz));

/// The extended structure around `ctx`, or null where the context has none.
///
/// Only the fields that `sz` covers may be read through the result: [`verbs_get_ctx_op`](crate::verbs_get_ctx_op)
/// checks that for one operation.
///
/// # Safety
/// `ctx` is a live context, as `ibv_open_device(3)` or `ibv_import_device(3)` returned it.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller vouches for the context.
    let abi_compat = unsafe { (*ctx).abi_compat };
    if abi_compat.addr() != EXTENDED {
        return ptr::null_mut();
    }
    // The structure may begin later than the one known here, so the arithmetic may leave the allocation.
    ctx.wrapping_byte_sub(CONTEXT_OFFSET).cast()
}

/// Whether the context has an extended part that reaches to the field at `offset` of `verbs_context`.
///
/// # Safety
/// As for [`verbs_get_ctx`].
#[doc(hidden)]
#[inline]
#[must_use]
pub unsafe fn op_is_present(ctx: *mut ibv_context, offset: usize) -> bool {
    // SAFETY: the caller vouches for the context.
    if unsafe { verbs_get_ctx(ctx) }.is_null() {
        return false;
    }
    // SAFETY: an extended context has its size field directly before it, in the same allocation.
    let size_field = unsafe { ctx.byte_sub(SIZE_DISTANCE) }.cast::<usize>();
    // SAFETY: as above; the provider wrote the field before it handed the context out.
    let size = unsafe { size_field.read() };
    size >= size_of::<verbs_context>().wrapping_sub(offset)
}

/// The address of the field at `offset` of the extended structure, typed by `_field`.
///
/// # Safety
/// [`op_is_present`] returned true for this context and offset.
#[doc(hidden)]
#[inline]
#[must_use]
pub unsafe fn op_pointer<T>(
    ctx: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> &T,
) -> *const T {
    // SAFETY: the extended part reaches this far, so the address is inside the same allocation.
    unsafe { ctx.byte_sub(CONTEXT_OFFSET.wrapping_sub(offset)) }.cast()
}

/// One extended operation of a context: `Some(function)`, or `None` where the context has no extended part,
/// or one too short for it, or one that leaves it out.
///
/// # Safety
/// The expansion is unsafe and stands in the caller's `unsafe` block: `$ctx` is a live context.
#[macro_export]
macro_rules! verbs_get_ctx_op {
    ($ctx:expr, $op:ident) => {{
        const OFFSET: usize = ::core::mem::offset_of!($crate::verbs_context, $op);
        let ctx: *mut $crate::ibv_context = $ctx;
        if $crate::op_is_present(ctx, OFFSET) {
            $crate::op_pointer(ctx, OFFSET, |vctx| &vctx.$op).read()
        } else {
            None
        }
    }};
}

/// Return type of an extended verb, with its value if the operation is missing.
pub(crate) trait Missing {
    /// Sets errno and gives the value that stands for the failure.
    fn missing() -> Self;
}

impl Missing for core::ffi::c_int {
    #[inline]
    fn missing() -> Self {
        crate::errno::unsupported()
    }
}

impl<T> Missing for *mut T {
    #[inline]
    fn missing() -> Self {
        crate::errno::unsupported_null()
    }
}

/// Verbs that do nothing but forward to the extended operation of a context.
macro_rules! extended {
    // The context is the argument, or a field of what the argument points to.
    (@context $context:ident) => { $context };
    // SAFETY: the caller vouches for the object, and its context outlives it.
    (@context (*$object:ident).context) => { unsafe { (*$object).context } };
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $op:ident of [$($context:tt)+];
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// An errno value, or null with errno; `EOPNOTSUPP` where the provider has no such operation.
        ///
        /// # Safety
        /// The object the first argument names is live, and the arguments satisfy the manual page.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            let context = $crate::context::extended!(@context $($context)+);
            // SAFETY: a live context; the size is checked before the operation is read.
            match unsafe { $crate::verbs_get_ctx_op!(context, $op) } {
                // SAFETY: the provider's own operation, with the arguments the caller vouches for.
                Some(op) => unsafe { op($($arg),*) },
                None => $crate::context::Missing::missing(),
            }
        }
    )*};
}
pub(crate) use extended;
