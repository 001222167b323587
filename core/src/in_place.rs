//! Storage that is in place: set-up really writes every entry, so the data path is never the first to touch a page.
//!
//! A vector filled with zeros is not enough. The allocator may know that fresh pages are zero and leave them unmapped,
//! so that a later access faults.

use core::hint::black_box;
use core::mem::MaybeUninit;

/// Writes a value into every entry, really.
pub fn put<T>(storage: &mut [T], mut value: impl FnMut() -> T) {
    // The compiler is kept from knowing what the entries hold, so it cannot leave a write out.
    for place in black_box(storage) {
        *place = value();
    }
}

/// Touches room that holds nothing yet, as a vector's spare capacity.
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
