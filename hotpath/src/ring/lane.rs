//! The lane: the common parts of all rings, which are the slots and the count of returned slots.

use doorbell_core::sync::{AtomicU64, Ordering};

use super::descriptor::LAP;
use super::slot::{OwnLine, const_constructors};
use super::{CapacityError, Descriptor, Slot};
use crate::ordering::{RING_HAND_BACK, RING_REUSE};

/// The slots, and the consumer's position. Positions are counts that only grow. The low bits of a
/// position select its slot, and the bit above them is its lap.
#[derive(Debug)]
#[repr(C)]
pub struct Lane<Slots> {
    /// The first position whose slot is not returned; written by the consumer.
    head: OwnLine<AtomicU64>,
    slots: Slots,
}

impl<Slots> Lane<Slots> {
    const_constructors! {
        pub(super) fn over(slots: Slots) -> Self {
            Self {
                head: OwnLine(AtomicU64::new(0)),
                slots,
            }
        }
    }

    /// Returns the position at which a new consumer continues. Relaxed: only consumers write it, and the claim orders
    /// this read after the previous consumer's writes.
    pub(super) fn resume(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// The first position whose slot is not returned. Slots of earlier positions may be written.
    #[inline(always)]
    pub(super) fn handed_back(&self) -> u64 {
        self.head.load(RING_REUSE.get())
    }

    /// Returns the slots of all positions before this one.
    #[inline(always)]
    pub(super) fn hand_back(&self, position: u64) {
        self.head.store(position, RING_HAND_BACK.get());
    }
}

impl<Slots: AsRef<[Slot]>> Lane<Slots> {
    pub(super) fn check(slots: &Slots) -> Result<(), CapacityError> {
        let slots = slots.as_ref().len();
        if slots.is_power_of_two() {
            Ok(())
        } else {
            Err(CapacityError { slots })
        }
    }

    #[inline(always)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.as_ref().len()
    }

    /// The slot of a position, and its lap. It always exists if the storage keeps its length.
    #[inline(always)]
    pub(super) fn slot(&self, position: u64) -> Option<(&Slot, u64)> {
        let slots = self.slots.as_ref();
        let slot = slots.get(place(position, slots.len()))?;
        Some((slot, lap(position, slots.len())))
    }

    /// Writes items from a position on, from the last to the first. The consumer sees none of
    /// them before the first, so all are published at once.
    #[inline(always)]
    pub(super) fn write(&self, position: u64, items: &[Descriptor]) {
        let slots = self.slots.as_ref();
        let lap = lap(position, slots.len());
        // The slots up to the end of the storage, and those from its beginning, a lap later.
        let (second, first) = slots
            .split_at_checked(place(position, slots.len()))
            .unwrap_or((&[], slots));
        let (to_first, to_second) = items.split_at_checked(first.len()).unwrap_or((items, &[]));
        for (slot, item) in second.iter().zip(to_second).rev() {
            slot.write(lap ^ LAP, *item);
        }
        for (slot, item) in first.iter().zip(to_first).rev() {
            slot.write(lap, *item);
        }
    }
}

/// The index of a position's slot among `len` slots, a power of two.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "only the bits below the number of slots are used"
)]
const fn place(position: u64, len: usize) -> usize {
    position as usize & len.wrapping_sub(1)
}

/// The lap bit in the last word of a slot that was written for this position. An empty slot has zero, which is also the
/// bit of the second lap, so the bit of the first lap is one.
#[inline(always)]
const fn lap(position: u64, len: usize) -> u64 {
    if position & len as u64 == 0 { LAP } else { 0 }
}
