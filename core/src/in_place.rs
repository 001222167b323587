//! Prefaulted storage: set-up writes every entry, so the data path never faults on a page.
//!
//! A vector filled with zeros is not enough. The allocator may know that new pages are zero and leave them unmapped,
//! so that a later access faults.

use core::hint::black_box;
use core::mem::MaybeUninit;

/// Writes a value into every entry; the compiler cannot omit a write.
pub fn put<T>(storage: &mut [T], mut value: impl FnMut() -> T) {
    // Behind `black_box` the compiler does not know the present values, so it cannot omit a write.
    for place in black_box(storage) {
        *place = value();
    }
}

/// Writes zeros into uninitialised storage, such as a vector's spare capacity.
pub fn touch<T>(spare: &mut [MaybeUninit<T>]) {
    put(spare, MaybeUninit::zeroed);
    black_box(spare);
}

#[cfg(test)]
mod tests {
    use super::{put, touch};
    use std::vec::Vec;

    #[test]
    fn every_entry_is_written_and_room_stays_room() {
        let mut words = [7_u32; 5];
        let mut next = 0;
        put(&mut words, || {
            next += 1;
            next
        });
        assert_eq!(words, [1, 2, 3, 4, 5]);
        let mut list: Vec<&str> = Vec::with_capacity(10);
        list.push("kept");
        touch(list.spare_capacity_mut());
        assert_eq!(list, ["kept"]);
    }
}
