//! Objects that a caller knows as a pointer to a structure of verbs.h.

/// An object whose first field is the structure that the caller sees.
///
/// # Safety
/// The type is `repr(C)` and its first field an `UnsafeCell<Self::Verbs>`.
pub(crate) unsafe trait Handle: Sized {
    /// The structure that the caller sees.
    type Verbs;
}

/// Moves the object to the heap; the pointer stands for the whole of it.
pub(crate) fn hand_out<T: Handle>(object: T) -> *mut T::Verbs {
    Box::into_raw(Box::new(object)).cast()
}

/// The object behind a pointer.
///
/// # Safety
/// [`hand_out`] gave the pointer for this type, and [`take_back`] does not get it during `'a`.
pub(crate) unsafe fn look_at<'a, T: Handle>(handle: *mut T::Verbs) -> &'a T {
    // SAFETY: the pointer is that of a live box of this type, as the caller vouches.
    unsafe { &*handle.cast::<T>() }
}

/// The object itself, off the caller's hands.
///
/// # Safety
/// [`hand_out`] gave the pointer for this type, and nobody uses it any more.
pub(crate) unsafe fn take_back<T: Handle>(handle: *mut T::Verbs) -> Box<T> {
    // SAFETY: made from a box of this type, and taken back once, as the caller vouches.
    unsafe { Box::from_raw(handle.cast::<T>()) }
}
