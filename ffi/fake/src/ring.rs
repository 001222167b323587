//! A ring of plain values between one writer and one reader, addressed by positions that only grow.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// The places. Positions that the owner keeps say which side may touch which place.
pub(crate) struct Ring<T> {
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
    mask: u64,
}

impl<T: Copy> Ring<T> {
    /// For at least this many values.
    pub(crate) fn new(length: u32) -> Self {
        let length = (length as usize).next_power_of_two();
        Self {
            places: (0..length)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
            mask: (length as u64).wrapping_sub(1),
        }
    }

    #[inline]
    fn place(&self, position: u64) -> *mut MaybeUninit<T> {
        let index = usize::try_from(position & self.mask).unwrap_or(0);
        // The mask is the length less one, and the length is not zero.
        self.places
            .get(index)
            .map_or(core::ptr::null_mut(), UnsafeCell::get)
    }

    /// Puts a value at a position.
    ///
    /// # Safety
    /// Nobody else touches the position's place now.
    #[inline]
    pub(crate) unsafe fn write(&self, position: u64, value: T) {
        // SAFETY: a place of our own, and the caller's alone.
        unsafe { self.place(position).write(MaybeUninit::new(value)) };
    }

    /// The value at a position.
    ///
    /// # Safety
    /// It was written, the write happened before, and nobody writes there during `'a`.
    #[inline]
    pub(crate) unsafe fn read<'a>(&self, position: u64) -> &'a T {
        // SAFETY: a place of our own that nobody writes, as the caller vouches.
        let place: &'a MaybeUninit<T> = unsafe { &*self.place(position) };
        // SAFETY: written before, as the caller vouches.
        unsafe { place.assume_init_ref() }
    }
}
