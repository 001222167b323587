//! The three ways a verb says that it failed.

use core::ffi::c_int;
use core::ptr;

/// Leaves `value` in the calling thread's errno.
pub(crate) fn set(value: c_int) {
    // SAFETY: takes no argument and cannot fail (errno(3)).
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own errno, valid as long as the thread lives.
    unsafe { location.write(value) };
}

/// Null, and errno.
pub(crate) fn null<T>(value: c_int) -> *mut T {
    set(value);
    ptr::null_mut()
}

/// Minus one, and errno.
pub(crate) fn minus_one(value: c_int) -> c_int {
    set(value);
    -1
}

/// Return value of a function that returns an errno value.
pub(crate) fn value(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(0)
}
