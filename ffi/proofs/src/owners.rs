//! An allocator that notes the owner of every allocation. The thread says on whose behalf it runs, and the simulator marks its own. A freed
//! allocation is taken from the count of its owner.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::sync::atomic::{AtomicI64, Ordering};
use std::alloc::System;

use doorbell_sim::is_inside;

/// The system's allocator, with a count of the bytes that each has.
#[derive(Debug)]
pub struct Counting {
    slot_bytes: usize,
}

impl Counting {
    /// An allocation of the simulator for the hub of so many bytes, aligned to one, is memory of messages.
    #[must_use]
    pub const fn new(slot_bytes: usize) -> Self {
        Self { slot_bytes }
    }

    fn whose(&self, layout: Layout) -> u8 {
        let is_slot = (layout.size(), layout.align()) == (self.slot_bytes, 1);
        match (is_inside(), WHOSE.get()) {
            (true, HUB) if is_slot => MESSAGES,
            (true, _) => SIMULATOR,
            (false, whose) => whose,
        }
    }
}

/// The side that is counted.
pub const HUB: u8 = 0;
/// All others.
pub const PEERS: u8 = 1;
/// The simulator, whomever it works for.
pub const SIMULATOR: u8 = 2;
/// Slots of the hub.
pub const MESSAGES: u8 = 3;

/// Bytes in use, of each. Relaxed: one thread counts, and another's are none of these.
static IN_USE: [AtomicI64; 4] = [const { AtomicI64::new(0) }; 4];

thread_local! {
    /// Without a destructor or anything to make first: it may be used in the allocator itself.
    static WHOSE: Cell<u8> = const { Cell::new(PEERS) };
}

fn note(whose: u8, bytes: i64) {
    if let Some(count) = IN_USE.get(usize::from(whose)) {
        count.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes in front of each allocation: one alignment's worth, the last of which names the owner.
fn front_of(layout: Layout) -> usize {
    layout.align().max(16)
}

/// The layout with what stands in front; `None` where there is none so large.
fn with_front(layout: Layout) -> Option<Layout> {
    let bytes = layout.size().checked_add(front_of(layout))?;
    Layout::from_size_align(bytes, front_of(layout)).ok()
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: Each allocation is one of the system's allocator, larger by a front that is a multiple of the alignment
// asked for. The rest of it is given out: aligned, and as long as asked. Memory is freed as it was allocated,
// with the same layout. `realloc` and `alloc_zeroed` are the trait's own, which go by these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_front(layout) else {
            return core::ptr::null_mut();
        };
        let front = front_of(layout);
        // SAFETY: the layout is not of no bytes, since the front is not.
        let place = unsafe { System.alloc(whole) };
        if place.is_null() {
            return place;
        }
        // SAFETY: within the allocation, which begins with the front.
        let given = unsafe { place.add(front) };
        // SAFETY: the byte before is the last of the front.
        let mark = unsafe { given.sub(1) };
        let whose = self.whose(layout);
        // SAFETY: it is within the allocation, and nobody else's yet.
        unsafe { mark.write(whose) };
        note(whose, signed(layout.size()));
        given
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        let Some(whole) = with_front(layout) else {
            return;
        };
        // SAFETY: what was given out stands behind a front, whose last byte this is.
        let mark = unsafe { given.sub(1) };
        // SAFETY: it was written when this was allocated, and nobody has it since.
        let whose = unsafe { mark.read() };
        note(whose, signed(layout.size()).wrapping_neg());
        // SAFETY: the front begins the allocation.
        let place = unsafe { given.sub(front_of(layout)) };
        // SAFETY: allocated by the system's allocator with this layout.
        unsafe { System.dealloc(place, whole) };
    }
}

/// Runs `what`, whose allocations belong to `whose`.
pub fn of<R>(whose: u8, what: impl FnOnce() -> R) -> R {
    let before = WHOSE.replace(whose);
    let outcome = what();
    WHOSE.set(before);
    outcome
}

/// The bytes that one has.
#[must_use]
pub fn in_use(whose: u8) -> i64 {
    IN_USE
        .get(usize::from(whose))
        .map_or(0, |count| count.load(Ordering::Relaxed))
}
