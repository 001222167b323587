//! The table: buckets of live registrations, the order of their last use, and the list of retired ones.
//!
//! | state | in a bucket | users | pages | leaves it by |
//! |---|---|---|---|---|
//! | free | no | 0 | none | `reserve` |
//! | pending | no | 0 | being pinned | `commit`, `abandon` |
//! | live | yes | any; on the list of idle ones at 0 | pinned | eviction, `invalidate` |
//! | unlinked | no | at least 1 | pinned | the last `release` |
//! | retired | no | 0 | pinned | `take_retired` |
//! | leaving | no | 0 | being unpinned | `deregistered` |

use core::fmt;
use core::marker::PhantomData;

use super::{AddressRange, Committed, EntryId, Key, Limits, Reservation, TableCounts};
use crate::Access;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Pending { is_stale: bool },
    Live,
    Unlinked,
    Retired,
    Leaving,
}

/// Place for one registration, and head of one bucket.
#[derive(Debug)]
pub struct Slot<T> {
    key: Key,
    state: State,
    users: u32,
    generation: u32,
    /// The first live entry of the bucket with this slot's index.
    bucket: u32,
    /// The next entry: of the bucket if it is live, of the free or of the retired list if it is on one.
    next: u32,
    /// Neighbours on the list of idle entries.
    older: u32,
    newer: u32,
    value: Option<T>,
}

impl<T> Slot<T> {
    /// A free slot.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key: Key {
                range: AddressRange { start: 0, end: 1 },
                access: Access::empty(),
                is_kept: false,
            },
            state: State::Free,
            users: 0,
            generation: 0,
            bucket: NONE,
            next: NONE,
            older: NONE,
            newer: NONE,
            value: None,
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Entries and bytes that are counted together.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    entries: u32,
    bytes: u64,
}

impl Amount {
    const fn add(&mut self, bytes: usize) {
        self.entries = self.entries.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    const fn remove(&mut self, bytes: usize) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }

    /// Whether one more of so many bytes stays within the limits, once `leaving` has left.
    const fn has_room(self, leaving: Self, bytes: usize, limits: Limits) -> bool {
        let entries = self.entries.saturating_sub(leaving.entries);
        let held = self.bytes.saturating_sub(leaving.bytes);
        entries < limits.entries && held.saturating_add(bytes as u64) <= limits.bytes
    }
}

/// Registrations by key. A lookup counts a user, and a registration in use is never handed out for deregistration.
///
/// A lookup, a release, a reservation without eviction and a commit take constant time. An invalidation looks at each
/// slot that was ever used.
pub struct Table<T, Slots> {
    slots: Slots,
    limits: Limits,
    free: u32,
    retired: u32,
    oldest: u32,
    newest: u32,
    /// Slots below this index were used; all others are free.
    used_slots: u32,
    held: Amount,
    idle: Amount,
    waiting: Amount,
    entries_used: u32,
    counts: TableCounts,
    value: PhantomData<T>,
}

impl<T, Slots: AsRef<[Slot<T>]> + AsMut<[Slot<T>]>> Table<T, Slots> {
    /// An empty table. It holds at most as many registrations as there are slots, whatever the limits say.
    pub fn new(mut slots: Slots, limits: Limits) -> Self {
        let places = slots.as_mut();
        let mut count = 0_u32;
        for place in places.iter_mut().take(NONE as usize) {
            count = count.saturating_add(1);
            *place = Slot::new();
            place.next = count;
        }
        if let Some(last) = places.last_mut() {
            last.next = NONE;
        }
        Self {
            slots,
            limits: Limits {
                entries: limits.entries.min(count),
                bytes: limits.bytes,
            },
            free: if count == 0 { NONE } else { 0 },
            retired: NONE,
            oldest: NONE,
            newest: NONE,
            used_slots: 0,
            held: Amount::default(),
            idle: Amount::default(),
            waiting: Amount::default(),
            entries_used: 0,
            counts: TableCounts::default(),
            value: PhantomData,
        }
    }

    /// Finds the live registration of a key, counts the caller as a user, and as the most recent one.
    #[inline]
    pub fn look_up(&mut self, key: &Key) -> Option<(EntryId, &T)> {
        if let Some(index) = self.find_live(key) {
            return self.take_up(index);
        }
        self.counts.misses = self.counts.misses.wrapping_add(1);
        None
    }

    #[inline]
    fn take_up(&mut self, index: u32) -> Option<(EntryId, &T)> {
        let is_idle = self.get(index)?.users == 0;
        if is_idle {
            self.leave_idle(index);
            self.entries_used = self.entries_used.saturating_add(1);
        }
        self.counts.hits = self.counts.hits.wrapping_add(1);
        let slot = self.slots.as_mut().get_mut(index as usize)?;
        slot.users = slot.users.checked_add(1)?;
        let id = EntryId {
            index,
            generation: slot.generation,
        };
        slot.value.as_ref().map(|value| (id, value))
    }

    /// Returns the registration of an entry that is in use. `None` if the id names none.
    #[must_use]
    pub fn used(&self, id: EntryId) -> Option<&T> {
        let slot = self.get(id.index)?;
        let is_used = slot.generation == id.generation && slot.users != 0;
        slot.value.as_ref().filter(|_| is_used)
    }

    /// Takes a place for a registration that is about to be made. The least recently used ones are evicted if that makes
    /// room. From now on an invalidation of its range makes it stale.
    pub fn reserve(&mut self, key: Key) -> Reservation {
        let bytes = key.range.bytes();
        let all = Amount {
            entries: self.idle.entries.saturating_add(self.waiting.entries),
            bytes: self.idle.bytes.saturating_add(self.waiting.bytes),
        };
        if !self.held.has_room(all, bytes, self.limits) {
            return Reservation::Full;
        }
        while !self.held.has_room(self.waiting, bytes, self.limits) {
            if !self.evict_oldest() {
                return Reservation::Full;
            }
        }
        if !self.held.has_room(Amount::default(), bytes, self.limits) {
            return Reservation::DeregisterFirst;
        }
        let index = self.free;
        let Some(slot) = self.slots.as_mut().get_mut(index as usize) else {
            return Reservation::Full;
        };
        self.free = slot.next;
        slot.key = key;
        slot.state = State::Pending { is_stale: false };
        slot.users = 0;
        slot.next = NONE;
        self.held.add(bytes);
        self.used_slots = self.used_slots.max(index.saturating_add(1));
        Reservation::Reserved(EntryId {
            index,
            generation: slot.generation,
        })
    }

    /// Gives a reserved place back: nothing was registered.
    pub fn abandon(&mut self, id: EntryId) {
        if matches!(self.named(id), Some(State::Pending { .. })) {
            self.free(id.index);
        }
    }

    /// Stores the registration that a place was reserved for.
    ///
    /// # Errors
    /// The id names no reserved place. The value is given back.
    pub fn commit(&mut self, id: EntryId, value: T) -> Result<Committed, T> {
        let Some(State::Pending { is_stale }) = self.named(id) else {
            return Err(value);
        };
        let Some(slot) = self.slots.as_mut().get_mut(id.index as usize) else {
            return Err(value);
        };
        slot.value = Some(value);
        let key = slot.key;
        if is_stale {
            self.retire(id.index);
            return Ok(Committed::Stale);
        }
        let is_taken = self.find_live(&key).is_some();
        self.entries_used = self.entries_used.saturating_add(1);
        let slots = self.slots.as_mut();
        let bucket = bucket_of(&key, slots.len());
        let head = slots.get(bucket as usize).map_or(NONE, |slot| slot.bucket);
        if let Some(slot) = slots.get_mut(id.index as usize) {
            slot.users = 1;
            if is_taken {
                slot.state = State::Unlinked;
                return Ok(Committed::Alone);
            }
            slot.state = State::Live;
            slot.next = head;
        }
        if let Some(slot) = slots.get_mut(bucket as usize) {
            slot.bucket = id.index;
        }
        Ok(Committed::Shared)
    }

    /// Ends one use. Returns whether the registration is now retired, so that it has to be deregistered. An id that names
    /// nothing in use is ignored.
    #[inline]
    pub fn release(&mut self, id: EntryId) -> bool {
        let slot = self.slots.as_mut().get_mut(id.index as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == id.generation && slot.users != 0) else {
            return false;
        };
        slot.users = slot.users.wrapping_sub(1);
        if slot.users != 0 {
            return false;
        }
        self.entries_used = self.entries_used.saturating_sub(1);
        if slot.state == State::Live {
            self.join_idle(id.index);
            return false;
        }
        self.retire(id.index);
        true
    }

    /// Takes out of the buckets all registrations with a byte in this range, and marks the pending ones as stale.
    /// Returns how many there were. Idle ones are retired at once, used ones by their last release.
    pub fn invalidate(&mut self, range: AddressRange) -> u32 {
        let mut count = 0_u32;
        for index in 0..self.used_slots {
            let Some(slot) = self.slots.as_mut().get_mut(index as usize) else {
                break;
            };
            if !slot.key.range.overlaps(range) {
                continue;
            }
            match &mut slot.state {
                State::Pending { is_stale } if !*is_stale => *is_stale = true,
                State::Live => self.drop_live(index),
                _ => continue,
            }
            count = count.saturating_add(1);
        }
        self.counts.invalidations = self.counts.invalidations.wrapping_add(u64::from(count));
        count
    }

    /// Retires all idle registrations, and returns how many there were.
    pub fn evict_idle(&mut self) -> u32 {
        let mut count = 0_u32;
        while self.evict_oldest() {
            count = count.saturating_add(1);
        }
        count
    }

    /// Takes a retired registration, to be deregistered without the lock. Report [`Table::deregistered`] afterwards.
    pub fn take_retired(&mut self) -> Option<(EntryId, T)> {
        let index = self.retired;
        let slot = self.slots.as_mut().get_mut(index as usize)?;
        self.retired = slot.next;
        slot.next = NONE;
        slot.state = State::Leaving;
        let id = EntryId {
            index,
            generation: slot.generation,
        };
        let value = slot.value.take();
        self.waiting.remove(slot.key.range.bytes());
        value.map(|value| (id, value))
    }

    /// Frees the place of a registration that was taken and is deregistered.
    pub fn deregistered(&mut self, id: EntryId) {
        if matches!(self.named(id), Some(State::Leaving)) {
            self.free(id.index);
        }
    }

    /// Whether a registration waits to be deregistered.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        self.retired != NONE
    }

    /// The limits, with no more entries than there are slots.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        TableCounts {
            entries: self.held.entries,
            entries_used: self.entries_used,
            bytes: self.held.bytes,
            ..self.counts
        }
    }

    fn get(&self, index: u32) -> Option<&Slot<T>> {
        self.slots.as_ref().get(index as usize)
    }

    /// The state of the entry that an id names; `None` if it is gone.
    fn named(&self, id: EntryId) -> Option<State> {
        let slot = self.get(id.index)?;
        (slot.generation == id.generation).then_some(slot.state)
    }

    #[inline]
    fn find_live(&self, key: &Key) -> Option<u32> {
        let slots = self.slots.as_ref();
        let bucket = slots.get(bucket_of(key, slots.len()) as usize);
        let mut index = bucket.map_or(NONE, |slot| slot.bucket);
        while let Some(slot) = slots.get(index as usize) {
            if slot.key == *key {
                return Some(index);
            }
            index = slot.next;
        }
        None
    }

    fn evict_oldest(&mut self) -> bool {
        let index = self.oldest;
        if index == NONE {
            return false;
        }
        self.drop_live(index);
        self.counts.evictions = self.counts.evictions.wrapping_add(1);
        true
    }

    /// Takes a live entry out of its bucket; retires it if nobody uses it.
    fn drop_live(&mut self, index: u32) {
        let Some(slot) = self.get(index) else { return };
        let (key, following, users) = (slot.key, slot.next, slot.users);
        let slots = self.slots.as_mut();
        let bucket = bucket_of(&key, slots.len());
        if let Some(head) = slots.get_mut(bucket as usize) {
            let mut at = head.bucket;
            if at == index {
                head.bucket = following;
            } else {
                while let Some(slot) = slots.get_mut(at as usize) {
                    if slot.next == index {
                        slot.next = following;
                        break;
                    }
                    at = slot.next;
                }
            }
        }
        if let Some(slot) = slots.get_mut(index as usize) {
            slot.next = NONE;
            slot.state = State::Unlinked;
        }
        if users == 0 {
            self.leave_idle(index);
            self.retire(index);
        }
    }

    fn retire(&mut self, index: u32) {
        let next = self.retired;
        if let Some(slot) = self.slots.as_mut().get_mut(index as usize) {
            slot.state = State::Retired;
            slot.next = next;
            self.retired = index;
            self.waiting.add(slot.key.range.bytes());
        }
    }

    fn free(&mut self, index: u32) {
        if let Some(slot) = self.slots.as_mut().get_mut(index as usize) {
            slot.state = State::Free;
            slot.generation = slot.generation.wrapping_add(1);
            slot.next = self.free;
            self.free = index;
            self.held.remove(slot.key.range.bytes());
        }
    }

    /// Puts an entry behind the others of the idle list: it leaves last.
    fn join_idle(&mut self, index: u32) {
        let newest = self.newest;
        let slots = self.slots.as_mut();
        if let Some(slot) = slots.get_mut(index as usize) {
            slot.older = newest;
            slot.newer = NONE;
            self.idle.add(slot.key.range.bytes());
        }
        match slots.get_mut(newest as usize) {
            Some(before) => before.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    fn leave_idle(&mut self, index: u32) {
        let slots = self.slots.as_mut();
        let Some(slot) = slots.get_mut(index as usize) else {
            return;
        };
        let (older, newer) = (slot.older, slot.newer);
        self.idle.remove(slot.key.range.bytes());
        match slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
        match slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
    }
}

impl<T, Slots> fmt::Debug for Table<T, Slots> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("limits", &self.limits)
            .field("held", &self.held)
            .field("idle", &self.idle)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// The bucket of a key among `buckets`; below that number, and 0 if there are none.
#[inline]
fn bucket_of(key: &Key, buckets: usize) -> u32 {
    // An odd constant near 2^64 divided by the golden ratio spreads neighbours over the upper bits.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let range = (key.range.start as u64) ^ (key.range.end as u64).rotate_left(32);
    let word = range ^ u64::from(key.access.bits()) ^ (u64::from(key.is_kept) << 31);
    let hash = word.wrapping_mul(SPREAD) >> 32;
    (hash.wrapping_mul(buckets as u64 & 0xffff_ffff) >> 32) as u32
}
