//! Arenas: registered memory cut into slots, with its free list.
//!
//! One thread owns the arena and leases from its private list, without atomics. Slots dropped elsewhere return by a
//! lock-free list. The arena empties that list when the private one has no slot left.

use core::ffi::c_void;
use core::fmt;
use core::mem;
use core::panic::AssertUnwindSafe;
use core::ptr::NonNull;
use std::panic::catch_unwind;
use std::sync::Arc;

use doorbell_core::detached::Detachments;
use doorbell_core::free_list::FreeList;
use doorbell_core::in_place;
use doorbell_core::provider::{
    ArenaConfig, DetachedSlot, DomainId, MemoryError, Placement, ProviderError, Shortfall, Wish,
};
use doorbell_core::sync::{AtomicU32, Ordering};

use crate::Slot;
use crate::attacher::{self, Attacher};
use crate::mapping::Region;
use crate::memory_region::MemoryRegion;
use crate::orphan::Orphan;

/// Slots begin at multiples of a cache line, so that no two share one.
pub(crate) const SLOT_ALIGN_BYTES: usize = 64;

/// Block of an arena, to which its slots point. It lives until the arena is gone, every slot has returned, *and* no
/// attacher is left.
///
/// A window has such a block too. Its slots have no bytes, and no words or links either. This block is in an [`Arc`]: the
/// window holds one count of it, and so does each of its slots that is out.
///
/// The fields that a slot reads for each message lie together. The fields that other threads write lie on separate
/// cache lines.
#[repr(C)]
pub(crate) struct ArenaInner {
    /// Start of the first slot.
    first: NonNull<u8>,
    /// 0 only in the block of a window: `Cut` refuses it.
    slot_bytes: u32,
    lkey: u32,
    domain: DomainId,
    /// A word for each slot. A detached slot has no value, since its value was exchanged for the tag
    /// (`Slot::detach`). It is on no list, and no device has it. Only the caller that exchanges its word may make the
    /// value again, until the slot is detached once more.
    detachments: Detachments<Box<[AtomicU32]>>,
    region: MemoryRegion,
    returned: Returned,
}

/// On a separate cache line: other threads write it while the owner reads the fields above.
#[repr(align(64))]
struct Returned(FreeList<Box<[AtomicU32]>>);

// SAFETY: the pointer leads into the region, which is `Send`.
unsafe impl Send for ArenaInner {}
// SAFETY: through `&ArenaInner` threads reach only constants and atomics. The code that takes the pointer
// gives its own argument for each access.
unsafe impl Sync for ArenaInner {}

impl ArenaInner {
    /// The block of a window.
    pub(crate) fn of_window(region: MemoryRegion) -> Arc<Self> {
        Arc::new(Self {
            first: region.region().base(),
            slot_bytes: 0,
            // None of its slots names memory. A device that takes the length of zero for 2^31 bytes finds no memory under this key.
            lkey: 0,
            domain: region.domain(),
            detachments: Detachments::new(Box::default(), 0),
            region,
            returned: Returned(FreeList::new(Box::default())),
        })
    }

    pub(crate) const fn region(&self) -> &MemoryRegion {
        &self.region
    }

    pub(crate) const fn region_mut(&mut self) -> &mut MemoryRegion {
        &mut self.region
    }

    #[inline]
    pub(crate) const fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    #[inline]
    pub(crate) const fn lkey(&self) -> u32 {
        self.lkey
    }

    #[inline]
    pub(crate) const fn domain(&self) -> DomainId {
        self.domain
    }

    #[inline]
    pub(crate) const fn detachments(&self) -> &Detachments<Box<[AtomicU32]>> {
        &self.detachments
    }

    /// Puts a slot on the list of the slots that return from elsewhere. For the block of a window, gives up the slot's
    /// count of the block.
    ///
    /// Once the index is on the list, the owner may free the block. So nothing of the block is touched
    /// afterwards. No reference to the block is an argument or in use during that time, except two references to
    /// atomics. These promise nothing about their memory once their operation is done.
    ///
    /// # Safety
    /// `home` is a live block, the slot of this index is out, and its value has been given up.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn send_home(home: NonNull<Self>, index: u32) {
        // SAFETY: the block lives until the slot has returned.
        let slot_bytes = unsafe { (*home.as_ptr()).slot_bytes };
        if slot_bytes == 0 {
            // SAFETY: only slots of windows have no bytes. The pointer is one that `Arc::into_raw` gave (`Slot::of_window`),
            // and the count that it stands for is given up here once, with the slot's value.
            return unsafe { let_go(home.as_ptr().cast_const().cast()) };
        }
        // SAFETY: the block lives until the slot has returned.
        let returned = unsafe { &raw const (*home.as_ptr()).returned.0 };
        // SAFETY: a field of the live block, initialised with it.
        let place = unsafe { &*returned }.place(index);
        // Every index of the arena has a place on the list.
        if let Some(place) = place {
            place.put();
        }
    }

    /// Takes the slots that returned from elsewhere. Called by one thread at a time: the thread that owns the arena.
    pub(crate) fn take_returned(&self, each: impl FnMut(u32)) {
        self.returned.0.take_all(each);
    }

    /// Returns the start of the slot of this index.
    ///
    /// # Safety
    /// The index is below the number of slots, or it is 0 and the block is a window's.
    #[inline]
    pub(crate) unsafe fn start_of(&self, index: u32) -> NonNull<u8> {
        // Does not wrap: all slots lie within the region (`Arena::new`).
        let offset = (index as usize).wrapping_mul(self.slot_bytes as usize);
        // SAFETY: the index is below `slots`, as the caller vouches, and all slots lie within the region.
        unsafe { self.first.add(offset) }
    }
}

/// Gives up a count of a window's block. The last count deregisters the window, and frees its memory or gives it back.
///
/// The caller may be a poll, so this does not unwind, as its ABI states. Lent memory may panic as it is given back: that
/// panic ends here.
///
/// # Safety
/// [`Arc::into_raw`] gave the pointer to a block, and the count that it stands for is given up once.
unsafe extern "C" fn let_go(block: *const c_void) {
    // SAFETY: as the caller vouches.
    let block: Arc<ArenaInner> = unsafe { Arc::from_raw(block.cast()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(block))) {
        // The payload may panic as well when it is dropped.
        mem::forget(panic);
    }
}

/// How an arena is cut: where its first slot begins in the region, and how large its slots are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// From the region's beginning to the first slot.
    pub(crate) offset: usize,
    pub(crate) slot_bytes: u32,
    pub(crate) slots: u32,
}

impl Cut {
    /// Returns the cut that a config needs, from an aligned beginning, and its size in bytes.
    pub(crate) fn for_config(config: &ArenaConfig) -> Result<(Self, usize), ProviderError> {
        let invalid = ProviderError {
            call: "arena",
            errno: libc::EINVAL,
        };
        let slot_bytes = aligned_slot_bytes(config.slot_bytes).ok_or(invalid)?;
        if config.slots == 0 || config.slots == u32::MAX {
            return Err(invalid);
        }
        let bytes = (config.slots as usize)
            .checked_mul(slot_bytes as usize)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(invalid)?;
        Ok((
            Self {
                offset: 0,
                slot_bytes,
                slots: config.slots,
            },
            bytes,
        ))
    }

    /// Returns the cut with the most slots for a region that begins at `address`.
    pub(crate) fn for_region(address: usize, bytes: usize, slot_bytes: u32) -> Result<Self, ProviderError> {
        let invalid = ProviderError {
            call: "arena",
            errno: libc::EINVAL,
        };
        let slot_bytes = aligned_slot_bytes(slot_bytes).ok_or(invalid)?;
        let offset = address
            .checked_next_multiple_of(SLOT_ALIGN_BYTES)
            .and_then(|aligned| aligned.checked_sub(address))
            .ok_or(invalid)?;
        let slots = bytes
            .checked_sub(offset)
            .and_then(|bytes| bytes.checked_div(slot_bytes as usize))
            .and_then(|slots| u32::try_from(slots).ok())
            .filter(|slots| *slots != 0 && *slots != u32::MAX)
            .ok_or(invalid)?;
        Ok(Self {
            offset,
            slot_bytes,
            slots,
        })
    }
}

fn aligned_slot_bytes(bytes: u32) -> Option<u32> {
    if bytes == 0 {
        return None;
    }
    // At most the largest message of verbs, 2^31 bytes.
    bytes
        .checked_next_multiple_of(u32::try_from(SLOT_ALIGN_BYTES).ok()?)
        .filter(|bytes| *bytes <= 1 << 31)
}

/// Registered memory cut into slots. One thread owns it.
///
/// If the arena is dropped while slots are out or attachers exist, its memory is kept and counted as leaked
/// ([`crate::leaks`]). The memory is freed once the last slot has returned and the last attacher is gone: never while the
/// device may touch it.
pub struct Arena {
    inner: NonNull<ArenaInner>,
    /// The indices of the free slots: the first `home` of `slots` entries. All are below `slots`, each occurs at most
    /// once, and no index of a slot that is out occurs.
    free: Box<[u32]>,
    home: usize,
    slots: u32,
    slot_bytes: u32,
    /// Each attacher has a clone. The block is freed once no clone is left.
    guard: Arc<()>,
}

// SAFETY: the arena owns its inner block and the slots on its list; slots and attachers on other
// threads reach only the block's lock-free list, its words of detached slots and its constants.
unsafe impl Send for Arena {}

impl Arena {
    /// Cuts a registered region.
    ///
    /// # Errors
    /// The cut does not lie within the region.
    pub(crate) fn new(region: MemoryRegion, cut: Cut) -> Result<Self, ProviderError> {
        let Cut {
            offset,
            slot_bytes,
            slots,
        } = cut;
        let end = (slots as usize)
            .checked_mul(slot_bytes as usize)
            .and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > region.region().bytes()) {
            return Err(ProviderError {
                call: "arena",
                errno: libc::EINVAL,
            });
        }
        // SAFETY: the offset is within the region, as just checked.
        let first = unsafe { region.region().base().add(offset) };
        let words = || {
            let mut words: Box<[_]> = (0..slots).map(|_| AtomicU32::new(0)).collect();
            in_place::put(&mut words, || AtomicU32::new(0));
            words
        };
        let inner = ArenaInner {
            first,
            slot_bytes,
            lkey: region.lkey().0,
            domain: region.domain(),
            detachments: Detachments::new(words(), fresh_number()),
            region,
            returned: Returned(FreeList::new(words())),
        };
        // The last slot first, so that leasing begins at the first one.
        let free: Box<[_]> = (0..slots).rev().collect();
        let home = free.len();
        let inner = NonNull::from(Box::leak(Box::new(inner)));
        Ok(Self {
            inner,
            free,
            home,
            slots,
            slot_bytes,
            guard: Arc::new(()),
        })
    }

    /// Puts the slots that were dropped elsewhere on the private list.
    #[cold]
    fn collect(&mut self) {
        // SAFETY: the block lives as long as the arena; it is borrowed apart from the list below.
        let inner = unsafe { self.inner.as_ref() };
        inner.take_returned(|index| {
            // The list takes no index beyond its links, and it has one link for each slot.
            if let Some(place) = self.free.get_mut(self.home) {
                *place = index;
                self.home = self.home.wrapping_add(1);
            }
        });
    }

    fn inner(&self) -> &ArenaInner {
        // SAFETY: made in `new`, freed only in `drop`.
        unsafe { self.inner.as_ref() }
    }

    #[inline]
    fn take(&mut self) -> Option<Slot> {
        let top = self.home.checked_sub(1)?;
        // SAFETY: below `home`, which is at most the number of entries.
        let index = unsafe { *self.free.get_unchecked(top) };
        self.home = top;
        // SAFETY: 1. The block is live, and the list holds only indices of its slots. 2. A slot on the list is not out,
        // and this one was just taken off.
        Some(unsafe { Slot::from_parts(self.inner, index) })
    }
}

/// Returns a number that distinguishes an arena from others in the tags of its detached slots.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^16 is what is meant")]
fn fresh_number() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the number matters.
    NEXT.fetch_add(1, Ordering::Relaxed) as u16
}

impl doorbell_core::provider::Arena for Arena {
    type Slot = Slot;
    type Attacher = Attacher;

    #[inline]
    fn lease(&mut self) -> Option<Slot> {
        if self.home == 0 {
            self.collect();
        }
        self.take()
    }

    #[inline]
    fn release(&mut self, slot: Slot) {
        if slot.home() != self.inner {
            // The slot belongs to another arena. Dropping it returns it there.
            return drop(slot);
        }
        let index = slot.into_index();
        // SAFETY: there are as many entries as indices. The slot was out, so at least one index is not on the list, and
        // no index is on it twice: `home` is below the number of entries.
        let place = unsafe { self.free.get_unchecked_mut(self.home) };
        *place = index;
        self.home = self.home.wrapping_add(1);
    }

    #[inline]
    fn attach(&mut self, slot: DetachedSlot) -> Option<Slot> {
        // SAFETY: made in `new`, freed in `drop` at the earliest.
        unsafe { attacher::attach(self.inner, slot) }
    }

    fn attacher(&self) -> Attacher {
        // SAFETY: the block is live; the arena and the orphan that it becomes share one guard, and free the
        // block only if nothing else holds the guard (`Orphan`).
        unsafe { Attacher::new(self.inner, &self.guard) }
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn free_slots(&mut self) -> u32 {
        self.collect();
        // At most `slots`, which is a u32.
        u32::try_from(self.home).unwrap_or(u32::MAX)
    }

    fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    fn placement(&self) -> Placement {
        *self.inner().region.region().placement()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.collect();
        let guard = core::mem::take(&mut self.guard);
        // SAFETY: the block was boxed in `new`, and this was its owner; the slots on the private list are not out; the
        // attachers of the block were made of this guard, or of one another.
        let orphan = unsafe { Orphan::new(self.inner, self.home, self.slots as usize, guard) };
        orphan.settle();
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .field("home", &self.home)
            .field("memory", self.inner().region.region())
            .finish_non_exhaustive()
    }
}

/// Maps the region that an arena of this config needs, for a device on this node, and returns it with its cut.
pub(crate) fn map_for(config: &ArenaConfig, device_node: Option<u16>) -> Result<(Region, Cut), MemoryError> {
    let (cut, bytes) = Cut::for_config(config)?;
    if config.placement.on_demand {
        return Err(MemoryError::Unmet(Wish::OnDemand, Shortfall::NotProvided));
    }
    Ok((Region::anonymous(bytes, &config.placement, device_node)?, cut))
}

#[cfg(test)]
mod tests {
    use super::Cut;
    use doorbell_core::provider::ArenaConfig;

    #[test]
    fn slots_are_whole_cache_lines() {
        let (cut, bytes) = Cut::for_config(&ArenaConfig::new(3, 65)).unwrap();
        assert_eq!(
            cut,
            Cut {
                offset: 0,
                slot_bytes: 128,
                slots: 3
            }
        );
        assert_eq!(bytes, 384);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (slots, slot_bytes) in [(0, 64), (1, 0), (u32::MAX, 64), (1, u32::MAX), (1, (1 << 31) + 1)] {
            assert!(
                Cut::for_config(&ArenaConfig::new(slots, slot_bytes)).is_err(),
                "{slots} {slot_bytes}"
            );
        }
        assert!(Cut::for_config(&ArenaConfig::new(1, 1 << 31)).is_ok());
    }

    #[test]
    fn lent_memory_is_cut_from_its_first_line() {
        let cut = Cut::for_region(0x1001, 64 * 4, 64).unwrap();
        assert_eq!(
            cut,
            Cut {
                offset: 63,
                slot_bytes: 64,
                slots: 3
            }
        );
        assert!(Cut::for_region(0x1001, 100, 64).is_err());
        assert!(Cut::for_region(0x1000, 63, 64).is_err());
        assert!(Cut::for_region(usize::MAX, 64, 64).is_err());
    }
}
