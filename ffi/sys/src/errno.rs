//! How a verb that is not there fails: by errno, as its C counterpart would.

use core::ffi::c_int;
use core::ptr;

/// Stores `value` in the calling thread's errno.
#[inline]
pub(crate) fn set(value: c_int) {
    // SAFETY: takes no argument and cannot fail (errno(3)).
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is that of the calling thread's errno, valid for as long as the thread lives.
    unsafe { location.write(value) };
}

/// The failure of a verb that returns an errno value.
#[cold]
pub(crate) fn unsupported() -> c_int {
    set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// The failure of a verb that returns a pointer: null, and errno.
#[cold]
pub(crate) fn unsupported_null<T>() -> *mut T {
    set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// The failure of a verb that has only its value to return: that value, and errno.
#[cold]
pub(crate) fn unsupported_value<T>(value: T) -> T {
    set(libc::EOPNOTSUPP);
    value
}
