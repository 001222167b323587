//! What `.ci/sanitized` must find, so that its silence about the other tests means something.
#![expect(clippy::undocumented_unsafe_blocks, reason = "it is undefined on purpose")]

#[test]
#[ignore = "undefined behaviour, planted: only for a checker of memory"]
fn memory_is_read_after_it_was_freed() {
    let place = Box::into_raw(Box::new(1_u8));
    drop(unsafe { Box::from_raw(place) });
    let read = unsafe { place.read_volatile() };
    assert_ne!(u32::from(read), 256);
}
