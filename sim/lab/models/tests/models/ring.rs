//! Descriptors, slots and taking for the models of both rings.

use core::ops::Deref;
use doorbell_hotpath::ring::{Consumer, Descriptor, Ring, Slot, TakeError};
use loom::cell::UnsafeCell;
use loom::thread;

/// A descriptor with its number in every part of it.
pub(crate) fn item(number: u16) -> Descriptor {
    Descriptor {
        words: [u64::from(number), u64::from(number) << 8, u64::from(number) << 16],
        index: u32::from(number),
        kind: number,
    }
}

pub(crate) fn slots(count: usize) -> Vec<Slot> {
    (0..count).map(|_| Slot::new()).collect()
}

/// Takes one, however long that takes; none once the ring is closed and empty.
pub(crate) fn take<R: Deref<Target: Ring>>(consumer: &mut Consumer<R>) -> Option<Descriptor> {
    loop {
        match consumer.take() {
            Ok(item) => return Some(item),
            Err(TakeError::Closed) => return None,
            Err(_) => thread::yield_now(),
        }
    }
}

/// Memory that one side writes before it closes the ring, and the other reads once it knows that the ring is closed.
pub(crate) struct Reason(UnsafeCell<u32>);

impl Reason {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    pub(crate) fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}
