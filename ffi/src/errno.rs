//! The three ways in which libibverbs reports that a call failed, with one helper each, and errno itself.
//!
//! The manual page of a call states its convention. The wrong helper would be a defect that no type can catch, so each
//! wrapper names the convention of its call once.

use core::ffi::c_int;
use core::ptr::NonNull;

use doorbell_core::provider::ProviderError;

/// Returns the address of this thread's errno.
fn location() -> *mut c_int {
    // SAFETY: takes no argument and cannot fail (errno(3)).
    unsafe { libc::__errno_location() }
}

/// Returns errno of this thread; `EIO` if a failed call did not set it.
pub(crate) fn last() -> i32 {
    // SAFETY: the calling thread's errno lives as long as the thread.
    match unsafe { *location() } {
        0 => libc::EIO,
        errno => errno,
    }
}

/// Clears this thread's errno, before a call that may fail without setting it.
pub(crate) fn clear() {
    // SAFETY: the calling thread's errno lives as long as the thread.
    unsafe { *location() = 0 };
}

/// Whether this thread's errno has not been set since it was cleared.
pub(crate) fn is_unset() -> bool {
    // SAFETY: the calling thread's errno lives as long as the thread.
    unsafe { *location() == 0 }
}

/// For calls that return 0, or the error number itself (`ibv_modify_qp(3)`, `ibv_post_send(3)`,
/// `ibv_destroy_qp(3)`, ...).
///
/// Although the manual promises the error number, some providers return -1 and set errno, or return the negated number.
/// Both are understood.
pub(crate) fn from_value(call: &'static str, status: c_int) -> Result<(), ProviderError> {
    let errno = match status {
        0 => return Ok(()),
        -1 => last(),
        negated if negated < 0 => negated.saturating_neg(),
        errno => errno,
    };
    Err(ProviderError { call, errno })
}

/// For calls that return a pointer, or null with errno (`ibv_create_qp(3)`, `ibv_reg_mr(3)`, ...).
pub(crate) fn from_pointer<T>(call: &'static str, pointer: *mut T) -> Result<NonNull<T>, ProviderError> {
    NonNull::new(pointer).ok_or_else(|| ProviderError { call, errno: last() })
}

/// For calls that return -1 with errno (`ibv_get_async_event(3)`, `ibv_query_gid(3)`, and
/// system calls).
pub(crate) fn from_minus_one(call: &'static str, status: c_int) -> Result<c_int, ProviderError> {
    if status >= 0 {
        return Ok(status);
    }
    Err(ProviderError { call, errno: last() })
}

#[cfg(test)]
mod tests {
    use super::{clear, from_minus_one, from_pointer, from_value, is_unset, last, location};
    use doorbell_core::provider::ProviderError;

    fn set(errno: i32) {
        // SAFETY: the calling thread's errno lives as long as the thread.
        unsafe { *location() = errno };
    }

    fn failed(errno: i32) -> ProviderError {
        ProviderError { call: "call", errno }
    }

    #[test]
    fn a_returned_value_is_the_error() {
        set(libc::EPERM);
        assert_eq!(from_value("call", 0), Ok(()));
        assert_eq!(from_value("call", libc::ENOMEM), Err(failed(libc::ENOMEM)));
        assert_eq!(from_value("call", -libc::EINVAL), Err(failed(libc::EINVAL)));
        assert_eq!(from_value("call", -1), Err(failed(libc::EPERM)));
        assert_eq!(from_value("call", i32::MIN), Err(failed(i32::MAX)));
    }

    #[test]
    fn a_null_pointer_leaves_it_in_errno() {
        let mut value = 1_u8;
        assert!(from_pointer("call", &raw mut value).is_ok());
        set(libc::ENODEV);
        assert_eq!(
            from_pointer::<u8>("call", core::ptr::null_mut()),
            Err(failed(libc::ENODEV))
        );
    }

    #[test]
    fn minus_one_leaves_it_in_errno() {
        assert_eq!(from_minus_one("call", 7), Ok(7));
        set(libc::EAGAIN);
        assert_eq!(from_minus_one("call", -1), Err(failed(libc::EAGAIN)));
    }

    #[test]
    fn an_errno_of_before_is_forgotten() {
        set(libc::EAGAIN);
        assert!(!is_unset());
        clear();
        assert!(is_unset());
        assert_eq!(last(), libc::EIO);
    }

    #[test]
    fn a_failure_is_never_errno_zero() {
        set(0);
        assert_eq!(last(), libc::EIO);
        assert_eq!(from_minus_one("call", -1), Err(failed(libc::EIO)));
    }
}
