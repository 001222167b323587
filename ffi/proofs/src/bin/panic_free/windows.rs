//! Windows: what a peer may write at any time, copied and loaded wherever it lies.

use doorbell::LocalWindow;
use doorbell::provider::Window as _;

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn copy_in(window: &LocalWindow, offset: usize, bytes: &[u8]) -> bool {
    window.copy_in(offset, bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn copy_out(window: &LocalWindow, offset: usize, bytes: &mut [u8]) -> bool {
    window.copy_out(offset, bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn load_u8(window: &LocalWindow, offset: usize) -> Option<u8> {
    window.load_u8(offset).ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn load_u64(window: &LocalWindow, offset: usize) -> Option<u64> {
    window.load_u64(offset).ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn store_u64(window: &LocalWindow, offset: usize, word: u64) -> bool {
    window.store_u64(offset, word).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn compare_exchange_u64(window: &LocalWindow, offset: usize, current: u64, new: u64) -> Option<u64> {
    window.compare_exchange_u64(offset, current, new).ok()
}

/// Bytes copied in at each place, that come out again, whole words or not.
fn copies(window: &LocalWindow) -> bool {
    let bytes: [u8; 61] = core::array::from_fn(|at| u8::try_from(at).unwrap_or(0));
    (0..16).all(|offset| {
        let mut back = [0; 61];
        copy_in(window, offset, &bytes)
            && copy_out(window, offset, &mut back)
            && back == bytes
            && load_u8(window, offset.wrapping_add(7)) == Some(7)
    })
}

/// Whether accesses outside the window are refused, however far outside.
fn refuses(window: &LocalWindow) -> bool {
    let end = window.bytes();
    let mut bytes = [0; 8];
    [end.wrapping_sub(7), end, usize::MAX.wrapping_sub(7), usize::MAX]
        .into_iter()
        .all(|offset| {
            !copy_in(window, offset, &bytes)
                && !copy_out(window, offset, &mut bytes)
                && load_u64(window, offset).is_none()
        })
        && load_u8(window, end).is_none()
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run(window: &LocalWindow) -> bool {
    let word = [1, 2, 3, 4, 5, 6, 7, 8];
    copies(window)
        && refuses(window)
        && copy_in(window, 8, &word)
        && load_u64(window, 8) == Some(u64::from_ne_bytes(word))
        && load_u64(window, 9).is_none()
        && store_u64(window, 16, 7)
        && compare_exchange_u64(window, 16, 7, 8) == Some(7)
        && compare_exchange_u64(window, 16, 7, 9) == Some(8)
        && load_u64(window, 16) == Some(8)
        && !store_u64(window, 17, 0)
        && compare_exchange_u64(window, 17, 0, 0).is_none()
}
