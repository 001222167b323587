//! Counterproof of `panic_free`: the linker reports a function that can panic, if it was built in the same way.
//!
//! A program of its own, since that one takes a minute to link. With the feature `plant_panic` it can panic.

use core::hint::black_box;

fn main() {
    assert_eq!(black_box(planted(&[7], black_box(0))), 7);
}

#[cfg_attr(feature = "panic_free", no_panic::no_panic)]
#[inline(never)]
fn planted(bytes: &[u8], at: usize) -> u8 {
    #[cfg(feature = "plant_panic")]
    #[expect(clippy::indexing_slicing, reason = "it is to panic")]
    return bytes[at];
    #[cfg(not(feature = "plant_panic"))]
    bytes.get(at).copied().unwrap_or(0)
}
