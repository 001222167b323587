//! The table: buckets of live registrations, and the list of retired ones. [`Uses`] counts their users.
//!
//! | state | in a bucket | users | pages | leaves it by |
//! |---|---|---|---|---|
//! | free | no | 0 | none | `reserve` |
//! | pending | no | 0 | being pinned | `commit`, `abandon` |
//! | live | yes | any | pinned | eviction at 0 users, `invalidate` |
//! | unlinked | no | at least 1, or the last use is ending | pinned | the last `release` |
//! | retired | no | 0 | pinned | `take_retired` |
//! | leaving | no | 0 | being unpinned | `deregistered` |

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

use super::uses::{Mark, NONE, Uses, bucket_of};
use super::{AddressRange, Committed, Ended, EntryId, Key, Limits, Reservation, TableCounts, Use};
use crate::Access;
use crate::sync::Ordering;

/// How many times an eviction looks for an idle entry, if lookups take the entries that it finds.
const LOOKS_MAX: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Pending { is_stale: bool },
    Live,
    Unlinked,
    Retired,
    Leaving,
}

/// The place of one registration.
#[derive(Debug)]
pub struct Slot<T> {
    key: Key,
    state: State,
    generation: u32,
    /// The next entry of the free list or the retired list, if the slot is on one.
    next: u32,
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
            generation: 0,
            next: NONE,
            value: None,
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A number of entries, and their bytes.
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

    /// Whether one more entry of `bytes` stays within the limits after `leaving` is gone.
    const fn has_room(self, leaving: Self, bytes: usize, limits: Limits) -> bool {
        let entries = self.entries.saturating_sub(leaving.entries);
        let held = self.bytes.saturating_sub(leaving.bytes);
        entries < limits.entries && held.saturating_add(bytes as u64) <= limits.bytes
    }
}

/// Registrations by key. A lookup counts a user, and a registration in use is never returned for deregistration.
///
/// The table is called under a lock. Its [`Uses`] find live entries and end uses without it: see [`Uses::look_up`] and [`Uses::release`].
///
/// A lookup, a release, a reservation without eviction and a commit take constant time. An invalidation and an eviction look at each
/// slot that was ever used.
pub struct Table<T, Slots, U> {
    slots: Slots,
    uses: U,
    limits: Limits,
    free: u32,
    retired: u32,
    /// Slots below this index were used; all others are free.
    used_slots: u32,
    held: Amount,
    /// The part of `held` that is retired or leaving.
    waiting: Amount,
    counts: TableCounts,
    value: PhantomData<T>,
}

impl<T, Slots, U, Marks> Table<T, Slots, U>
where
    Slots: AsRef<[Slot<T>]> + AsMut<[Slot<T>]>,
    U: Deref<Target = Uses<Marks>>,
    Marks: AsRef<[Mark]> + 'static,
{
    /// An empty table. The numbers of slots and of marks limit its registrations, too. The marks must be new, and used by no other
    /// table.
    pub fn new(mut slots: Slots, uses: U, limits: Limits) -> Self {
        let places = slots.as_mut();
        let places_max = uses.marks().len().min(places.len()).min(NONE as usize);
        let places = places.get_mut(..places_max).unwrap_or_default();
        let mut count = 0_u32;
        for place in places.iter_mut() {
            count = count.saturating_add(1);
            *place = Slot::new();
            place.next = count;
        }
        if let Some(last) = places.last_mut() {
            last.next = NONE;
        }
        Self {
            slots,
            uses,
            limits: Limits {
                entries: limits.entries.min(count),
                bytes: limits.bytes,
            },
            free: if count == 0 { NONE } else { 0 },
            retired: NONE,
            used_slots: 0,
            held: Amount::default(),
            waiting: Amount::default(),
            counts: TableCounts::default(),
            value: PhantomData,
        }
    }

    /// Finds the live registration of a key, counts the caller as a user, and marks the registration as most recently used.
    pub fn look_up(&mut self, key: &Key) -> Option<(Use, &T)> {
        if let Some(index) = self.find_live(key) {
            return self.take_up(index);
        }
        self.counts.misses = self.counts.misses.wrapping_add(1);
        None
    }

    fn take_up(&mut self, index: u32) -> Option<(Use, &T)> {
        let clock = self.uses.clock();
        let begun = self.mark(index)?.take_up(clock)?;
        self.counts.hits = self.counts.hits.wrapping_add(begun);
        let value = self.get(index)?.value.as_ref();
        value.map(|value| (Use { index }, value))
    }

    /// Returns the registration of a use; `None` for [`Use::of_nothing`].
    #[must_use]
    pub fn used(&self, used: &Use) -> Option<&T> {
        self.get(used.index)?.value.as_ref()
    }

    /// Reserves a place for a new registration. If necessary and sufficient, it evicts the idle registrations whose last use
    /// began the most commits ago. From now on an invalidation of the range makes the reservation stale.
    pub fn reserve(&mut self, key: Key) -> Reservation {
        let bytes = key.range.bytes();
        let has_room = |leaving| self.held.has_room(leaving, bytes, self.limits);
        if !has_room(self.waiting) && !has_room(self.leaving_or_idle()) {
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
        slot.next = NONE;
        self.held.add(bytes);
        self.used_slots = self.used_slots.max(index.saturating_add(1));
        Reservation::Reserved(EntryId {
            index,
            generation: slot.generation,
        })
    }

    /// Returns a reserved place unused.
    pub fn abandon(&mut self, id: EntryId) {
        if matches!(self.named(id), Some(State::Pending { .. })) {
            self.free(id.index);
        }
    }

    /// Stores the registration in its reserved place, with a word of the caller, which [`Uses::look_up`] returns.
    ///
    /// Ordering: [`REGISTRATION_PUBLISH`](crate::ordering::REGISTRATION_PUBLISH) pairs with the lookups' acquire.
    ///
    /// # Errors
    /// The id names no reserved place. The value is returned.
    pub fn commit(&mut self, id: EntryId, value: T, tag: u32) -> Result<Committed, T> {
        let Some(State::Pending { is_stale }) = self.named(id) else {
            return Err(value);
        };
        let Some(slot) = self.slots.as_mut().get_mut(id.index as usize) else {
            return Err(value);
        };
        slot.value = Some(value);
        let key = slot.key;
        if is_stale {
            self.put_retired(id.index);
            return Ok(Committed::Stale);
        }
        let is_first = self.find_live(&key).is_none();
        let clock = self.uses.clock();
        let marks = self.uses.marks();
        let bucket = marks.get(bucket_of(&key, marks.len()));
        if let (Some(mark), Some(bucket)) = (marks.get(id.index as usize), bucket) {
            mark.use_at(clock);
            let begun = mark.begin(id.generation, &key, tag, is_first);
            self.counts.hits = self.counts.hits.wrapping_add(begun);
            if is_first {
                // Relaxed: a lookup that misses the new entry looks again under the lock.
                mark.next
                    .store(bucket.bucket.load(Ordering::Relaxed), Ordering::Relaxed);
                bucket.bucket.store(id.index, Ordering::Relaxed);
            }
        }
        self.uses.tick();
        let used = Use { index: id.index };
        let (state, committed) = match is_first {
            true => (State::Live, Committed::Shared(used)),
            false => (State::Unlinked, Committed::Alone(used)),
        };
        if let Some(slot) = self.slots.as_mut().get_mut(id.index as usize) {
            slot.state = state;
        }
        Ok(committed)
    }

    /// Ends one use. Returns whether the registration is now retired, so that it has to be deregistered.
    pub fn release(&mut self, used: Use) -> bool {
        self.uses.release(used).is_some_and(|ended| self.retire(ended))
    }

    /// Retires a registration whose last use ended without the lock, as [`Uses::release`] reported. Returns whether it has to be deregistered.
    pub fn retire(&mut self, ended: Ended) -> bool {
        let Ended { index } = ended;
        // Only this call retires it: the last end and the unlinking change one word, so exactly one of them sees itself as the last.
        let is_over = self.get(index).is_some_and(|slot| slot.state == State::Unlinked)
            && self.mark(index).is_some_and(|mark| !mark.has_users());
        if is_over {
            self.put_retired(index);
        }
        is_over
    }

    /// Removes all registrations that overlap this range from the buckets, and marks pending ones as stale. Returns their
    /// number. Idle registrations are retired at once, used ones by their last release.
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

    /// Retires all idle registrations, and returns their number.
    pub fn evict_idle(&mut self) -> u32 {
        let mut count = 0_u32;
        for index in 0..self.used_slots {
            count = count.saturating_add(u32::from(self.evict(index)));
        }
        count
    }

    /// Takes a retired registration, to be deregistered without the lock. Call [`Table::deregistered`] afterwards.
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
        value.map(|value| (id, value))
    }

    /// Frees the place of a registration that was taken, and is now deregistered.
    pub fn deregistered(&mut self, id: EntryId) {
        if matches!(self.named(id), Some(State::Leaving)) {
            let bytes = self.get(id.index).map_or(0, |slot| slot.key.range.bytes());
            self.waiting.remove(bytes);
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
        let mut counts = TableCounts {
            entries: self.held.entries,
            bytes: self.held.bytes,
            ..self.counts
        };
        for mark in self.uses.marks() {
            counts.hits = counts.hits.wrapping_add(mark.begun());
            counts.entries_used = counts.entries_used.saturating_add(u32::from(mark.has_users()));
        }
        counts
    }

    /// The registrations that wait to be deregistered, or that have no users.
    fn leaving_or_idle(&self) -> Amount {
        let mut amount = self.waiting;
        for index in 0..self.used_slots {
            if let Some(slot) = self.get(index).filter(|_| self.is_idle(index)) {
                amount.add(slot.key.range.bytes());
            }
        }
        amount
    }

    fn is_idle(&self, index: u32) -> bool {
        let is_live = self.get(index).is_some_and(|slot| slot.state == State::Live);
        is_live && self.mark(index).is_some_and(|mark| !mark.has_users())
    }

    fn mark(&self, index: u32) -> Option<&Mark> {
        self.uses.marks().get(index as usize)
    }

    fn get(&self, index: u32) -> Option<&Slot<T>> {
        self.slots.as_ref().get(index as usize)
    }

    /// The state of the entry that an id names; `None` if it is gone.
    fn named(&self, id: EntryId) -> Option<State> {
        let slot = self.get(id.index)?;
        (slot.generation == id.generation).then_some(slot.state)
    }

    fn find_live(&self, key: &Key) -> Option<u32> {
        let marks = self.uses.marks();
        let bucket = marks.get(bucket_of(key, marks.len()))?;
        let mut index = bucket.bucket.load(Ordering::Relaxed);
        loop {
            if self.get(index)?.key == *key {
                return Some(index);
            }
            index = self.mark(index)?.next.load(Ordering::Relaxed);
        }
    }

    fn evict_oldest(&mut self) -> bool {
        for _ in 0..LOOKS_MAX {
            let clock = self.uses.clock();
            let idle = (0..self.used_slots).filter(|index| self.is_idle(*index));
            let oldest = idle.max_by_key(|index| self.mark(*index).map(|mark| mark.age(clock)));
            match oldest {
                Some(index) if self.evict(index) => return true,
                // A lookup took the entry meanwhile.
                Some(_) => {}
                None => return false,
            }
        }
        false
    }

    /// Retires a live entry without users. Returns whether it did.
    fn evict(&mut self, index: u32) -> bool {
        if !self.is_idle(index) || !self.mark(index).is_some_and(Mark::unlink_idle) {
            return false;
        }
        self.leave_bucket(index);
        self.put_retired(index);
        self.counts.evictions = self.counts.evictions.wrapping_add(1);
        true
    }

    /// Removes a live entry from its bucket, and retires it if it has no users.
    fn drop_live(&mut self, index: u32) {
        let is_idle = self.mark(index).is_some_and(Mark::unlink);
        self.leave_bucket(index);
        if let Some(slot) = self.slots.as_mut().get_mut(index as usize) {
            slot.state = State::Unlinked;
        }
        if is_idle {
            self.put_retired(index);
        }
    }

    fn leave_bucket(&self, index: u32) {
        let marks = self.uses.marks();
        let (Some(slot), Some(mark)) = (self.get(index), self.mark(index)) else {
            return;
        };
        let following = mark.next.load(Ordering::Relaxed);
        let bucket = marks.get(bucket_of(&slot.key, marks.len()));
        let mut link = bucket.map(|mark| &mark.bucket);
        while let Some(place) = link {
            let at = place.load(Ordering::Relaxed);
            if at == index {
                place.store(following, Ordering::Relaxed);
                break;
            }
            link = self.mark(at).map(|mark| &mark.next);
        }
    }

    fn put_retired(&mut self, index: u32) {
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
}

impl<T, Slots, U> fmt::Debug for Table<T, Slots, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("limits", &self.limits)
            .field("held", &self.held)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
