//! The in-flight table of a shared receive queue, whose requests complete in any order.
//!
//! Several queue pairs consume its receives, each at its own pace, so a completion retires
//! only the receive that it names. A request is *staged*, *posted* and *retired* as in
//! [`crate::in_flight`], and the table owns its slots in between. Each step takes constant time,
//! except `post` and `unstage`, which visit each staged request.
//!
//! A completion is found by the index and generation in its `wr_id`. An index is reused only after it was retired,
//! and each use has the next generation. A stale completion may have a generation that repeats. It is older than the
//! completion that retired the index last, so it is rejected. A completion of a destroyed queue is recognized by the
//! number in the channel field: no two shared receive queues of one completion queue may have the same number.

use core::{fmt, mem, slice};

use crate::provider::{GATHER_MAX, Rejected};
use crate::work_id::{CHANNELS_MAX, GENERATION_MASK, SLOTS_MAX};
use crate::{Ticket, WorkId, WorkKind, in_place};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Staged,
    Posted,
}

/// The state of one request in the table, in storage from the caller.
#[derive(Debug)]
pub struct Entry<S> {
    slots: [Option<S>; GATHER_MAX],
    /// The number, in its completion queue, of the completion that retired the entry last.
    retired_by: u64,
    /// How many times the entry was used; the low bits are the generation.
    uses: u32,
    /// A place in the ring of free indices, unrelated to the rest of the entry.
    free: u16,
    state: State,
}

impl<S> Default for Entry<S> {
    fn default() -> Self {
        Self {
            slots: [const { None }; GATHER_MAX],
            retired_by: 0,
            uses: 0,
            free: 0,
            state: State::Free,
        }
    }
}

/// The number of entries that a table of this depth needs; `None` if the depth is zero or beyond 65,536.
#[must_use]
pub const fn entries_for(depth: u32) -> Option<usize> {
    if depth == 0 || depth > SLOTS_MAX {
        return None;
    }
    Some(depth.next_power_of_two() as usize)
}

/// The in-flight table of a shared receive queue.
pub struct SharedInFlight<S, Entries> {
    entries: Entries,
    number: u32,
    depth: u32,
    /// The index in the ring at which the free indices begin; staged ones come first.
    first_free: u32,
    /// The number of free indices, staged ones included.
    free: u32,
    staged: u32,
    owned: core::marker::PhantomData<S>,
}

impl<S, Entries: AsRef<[Entry<S>]> + AsMut<[Entry<S>]>> SharedInFlight<S, Entries> {
    /// Makes an empty table over this storage, and writes every entry. `number` is the number that its ids carry in the
    /// channel field.
    ///
    /// `None` if the storage is not as [`entries_for`] requires, or the number is too large.
    pub fn new(mut entries: Entries, number: u32, depth: u32) -> Option<Self> {
        if entries_for(depth) != Some(entries.as_ref().len()) || number >= CHANNELS_MAX {
            return None;
        }
        let mut index = 0_u16;
        in_place::put(entries.as_mut(), || {
            let free = index;
            // Wraps at most after the last of 65,536 entries.
            index = index.wrapping_add(1);
            Entry {
                free,
                ..Entry::default()
            }
        });
        Some(Self {
            entries,
            number,
            depth,
            first_free: 0,
            free: depth,
            staged: 0,
            owned: core::marker::PhantomData,
        })
    }

    /// The number of requests that are staged or posted, and not retired.
    #[must_use]
    #[inline]
    pub const fn in_flight(&self) -> u32 {
        self.depth.saturating_sub(self.room())
    }

    /// The number of requests that are posted and not retired.
    #[must_use]
    #[inline]
    pub const fn posted(&self) -> u32 {
        self.in_flight().saturating_sub(self.staged)
    }

    /// The number of requests that are staged and not posted.
    #[must_use]
    #[inline]
    pub const fn staged(&self) -> u32 {
        self.staged
    }

    /// How many more requests can be staged.
    #[must_use]
    #[inline]
    pub const fn room(&self) -> u32 {
        self.free.saturating_sub(self.staged)
    }

    /// Returns the number that its ids carry in the channel field.
    #[must_use]
    #[inline]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Stages a request with these slots. Returns its ticket and the id to post it with.
    ///
    /// # Errors
    /// The table is full; the slots are returned.
    #[inline]
    pub fn stage<const N: usize>(&mut self, slots: [S; N]) -> Result<(Ticket, WorkId), [S; N]> {
        const { assert!(N <= GATHER_MAX) };
        if self.room() == 0 {
            return Err(slots);
        }
        let (number, index) = (self.number, self.free_at(self.staged));
        let Some(entry) = self.entries.as_mut().get_mut(usize::from(index)) else {
            // Every index in the ring is below the number of entries.
            return Err(slots);
        };
        entry.state = State::Staged;
        entry.uses = entry.uses.wrapping_add(1);
        for (place, slot) in entry.slots.iter_mut().zip(slots) {
            *place = Some(slot);
        }
        let uses = entry.uses;
        self.staged = self.staged.wrapping_add(1);
        let work_id = WorkId::new(WorkKind::SharedReceive, number, index, uses);
        Ok((ticket(index, uses), work_id))
    }

    /// Notes that the device has the `count` oldest staged requests.
    #[inline]
    pub fn post(&mut self, count: u32) {
        for _ in 0..count.min(self.staged) {
            let index = self.free_at(0);
            if let Some(entry) = self.entries.as_mut().get_mut(usize::from(index)) {
                entry.state = State::Posted;
            }
            self.first_free = self.first_free.wrapping_add(1);
            self.free = self.free.wrapping_sub(1);
            self.staged = self.staged.wrapping_sub(1);
        }
    }

    /// Takes back the requests that are staged and not posted, in order. If `each` panics, the slots it did not get are dropped.
    pub fn unstage(&mut self, mut each: impl FnMut(Ticket, S)) {
        let staged = mem::take(&mut self.staged);
        let mut rest = Unstaging {
            table: self,
            next: 0,
            staged,
        };
        while let Some((ticket, entry)) = rest.entry() {
            hand_out(&mut entry.slots, |slot| each(ticket, slot));
        }
        mem::forget(rest);
    }

    /// Retires the posted request that `work_id` names; `each` gets its slots in order. If it panics, the request is
    /// retired, and the slots it did not get are dropped. `sequence` is the completion's number in its completion
    /// queue.
    ///
    /// # Errors
    /// The id names no posted request of this table; nothing was retired.
    #[inline]
    pub fn retire(
        &mut self,
        work_id: WorkId,
        sequence: u64,
        mut each: impl FnMut(Ticket, S),
    ) -> Result<Ticket, Rejected> {
        let index = work_id.slot();
        let is_ours = work_id.kind() == Some(WorkKind::SharedReceive) && work_id.channel() == self.number;
        let place = ring_index(
            self.first_free.wrapping_add(self.free),
            self.entries.as_ref().len(),
        );
        let named = self.entries.as_mut().get_mut(usize::from(index));
        let Some(entry) = named.filter(|entry| {
            is_ours
                && entry.state == State::Posted
                && entry.uses & GENERATION_MASK == work_id.generation()
                && sequence > entry.retired_by
        }) else {
            return Err(Rejected(work_id));
        };
        // Noted before `each` is called, which may panic.
        entry.state = State::Free;
        entry.retired_by = sequence;
        let ticket = ticket(index, entry.uses);
        if let Some(last) = self.entries.as_mut().get_mut(place) {
            last.free = index;
        }
        self.free = self.free.wrapping_add(1);
        if let Some(entry) = self.entries.as_mut().get_mut(usize::from(index)) {
            hand_out(&mut entry.slots, |slot| each(ticket, slot));
        }
        Ok(ticket)
    }

    /// Takes out the slots of all requests, whatever their state. The device must be done with all of
    /// them, because the queue is destroyed. The table cannot be used afterwards.
    pub fn drain(&mut self, mut each: impl FnMut(S)) {
        for entry in self.entries.as_mut() {
            entry.state = State::Free;
            hand_out(&mut entry.slots, &mut each);
        }
        self.free = 0;
        self.staged = 0;
    }

    /// The free index at this offset from the first.
    #[inline]
    fn free_at(&self, offset: u32) -> u16 {
        let entries = self.entries.as_ref();
        let place = ring_index(self.first_free.wrapping_add(offset), entries.len());
        // The position is masked to the length, so `get` succeeds. The fallback would be rejected by
        // the callers, unless there are 65,536 entries.
        entries.get(place).map_or(u16::MAX, |entry| entry.free)
    }
}

/// Returns the index of a position in a ring of this length, a power of two.
#[inline]
const fn ring_index(position: u32, length: usize) -> usize {
    position as usize & length.wrapping_sub(1)
}

/// Identifies one use of an index.
#[inline]
const fn ticket(index: u16, uses: u32) -> Ticket {
    Ticket((uses as u64) << 16 | index as u64)
}

/// Staged entries that are not yet taken back. A panic drops this value, which drops their slots.
struct Unstaging<'t, S, Entries: AsRef<[Entry<S>]> + AsMut<[Entry<S>]>> {
    table: &'t mut SharedInFlight<S, Entries>,
    next: u32,
    staged: u32,
}

impl<S, Entries: AsRef<[Entry<S>]> + AsMut<[Entry<S>]>> Unstaging<'_, S, Entries> {
    /// The next entry, which is free from here on.
    fn entry(&mut self) -> Option<(Ticket, &mut Entry<S>)> {
        if self.next >= self.staged {
            return None;
        }
        let index = self.table.free_at(self.next);
        self.next = self.next.wrapping_add(1);
        let entry = self.table.entries.as_mut().get_mut(usize::from(index))?;
        entry.state = State::Free;
        Some((ticket(index, entry.uses), entry))
    }
}

impl<S, Entries: AsRef<[Entry<S>]> + AsMut<[Entry<S>]>> Drop for Unstaging<'_, S, Entries> {
    #[cold]
    fn drop(&mut self) {
        while let Some((_, entry)) = self.entry() {
            entry.slots = [const { None }; GATHER_MAX];
        }
    }
}

/// Passes the slots before the empty places to `each`. If `each` panics, the slots it did not get are dropped.
#[inline(always)]
fn hand_out<S>(places: &mut [Option<S>], mut each: impl FnMut(S)) {
    let mut rest = Places(places.iter_mut());
    for place in rest.0.by_ref() {
        // Mostly only the first place is filled.
        if place.is_none() {
            break;
        }
        if let Some(slot) = place.take() {
            each(slot);
        }
    }
    mem::forget(rest);
}

/// Places whose slots are not yet taken out. A panic drops this value, which drops these slots.
struct Places<'p, S>(slice::IterMut<'p, Option<S>>);

impl<S> Drop for Places<'_, S> {
    #[cold]
    fn drop(&mut self) {
        self.0.by_ref().for_each(|place| *place = None);
    }
}

impl<S, Entries> fmt::Debug for SharedInFlight<S, Entries> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedInFlight")
            .field("number", &self.number)
            .field("depth", &self.depth)
            .field("free", &self.free)
            .field("staged", &self.staged)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
