//! A fault that `.ci/sanitized` must find, so that its silence about the other tests means something.

#[test]
#[ignore = "undefined behaviour, planted: only for a checker of memory"]
fn memory_is_read_after_it_was_freed() {
    let place = Box::into_raw(Box::new(1_u8));
    // SAFETY: made from a box.
    drop(unsafe { Box::from_raw(place) });
    // SAFETY: none, and that is what is to be found: it was freed.
    let read = unsafe { place.read_volatile() };
    assert_ne!(u32::from(read), 256);
}
