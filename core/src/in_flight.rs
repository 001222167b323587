//! The in-flight table: which slots the device holds, and what gives them back.
//!
//! One table serves one queue of one queue pair, whose requests complete in posting order.
//! A request is *staged* (the provider wrote it down), then *posted* (the device has it),
//! then *retired* by a completion that names it or a later one. Every step is constant in
//! the number of requests in flight.
//!
//! The table is what makes slots sound: it owns them while the device does. Each provider
//! embeds it privately and feeds it only completions of the device.
//!
//! A completion is found by the slot and generation in its `wr_id` alone. A stale or
//! duplicate one lies outside the window of posted requests and is rejected; for that to
//! hold across queue pairs that use the same channel one after the other, a new table
//! begins at a generation behind all that the old one used ([`InFlight::next_generation`]).

use core::fmt;
use core::marker::PhantomData;

use crate::provider::{GATHER_MAX, Rejected};
use crate::work_id::{GENERATION_MASK, SLOTS_MAX};
use crate::{Ticket, WorkId, WorkKind, in_place};

/// The table. Its storage comes from the caller: `Ends` for one word per request, `Slots`
/// for the slots themselves.
pub struct InFlight<S, Ends, Slots> {
    /// For each request, where its slots end.
    ends: Ends,
    /// The slots of all requests, in posting order.
    slots: Slots,
    kind: WorkKind,
    channel: u32,
    /// How many bits of a position index the table.
    index_bits: u32,
    /// How many requests may be in flight: at most the table's length.
    depth: u32,
    /// The oldest request that is not retired.
    tail: u64,
    /// The oldest request that is not posted.
    posted: u64,
    /// The next request.
    head: u64,
    /// Where the slots of `tail` begin, and where those of `head` will.
    slot_tail: u32,
    slot_head: u32,
    owned: PhantomData<S>,
}

/// Why a table cannot be made of this storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// Words for the requests: a power of two, at most 65,536 and at least the depth.
    pub ends: usize,
    /// Places for slots: a power of two, at least [`GATHER_MAX`] times the words.
    pub slots: usize,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an in-flight table cannot be made of {} words and {} places",
            self.ends, self.slots
        )
    }
}

impl core::error::Error for StorageError {}

/// The storage for a table of this depth: words for requests, places for slots.
///
/// `None` where the depth is zero or beyond 65,536.
#[must_use]
pub const fn storage_for(depth: u32) -> Option<(usize, usize)> {
    if depth == 0 || depth > SLOTS_MAX {
        return None;
    }
    let requests = depth.next_power_of_two() as usize;
    Some((requests, requests.saturating_mul(GATHER_MAX)))
}

/// What a completion retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first request.
    pub first: Ticket,
    /// The one the completion names.
    pub last: Ticket,
}

impl<S, Ends: AsRef<[u32]> + AsMut<[u32]>, Slots: AsRef<[Option<S>]> + AsMut<[Option<S>]>>
    InFlight<S, Ends, Slots>
{
    /// An empty table over this storage, whose places must all be empty. All of it is written
    /// to here, so that it is in place from then on.
    ///
    /// # Errors
    /// The storage is not as [`storage_for`] says.
    pub fn new(
        mut ends: Ends,
        mut slots: Slots,
        kind: WorkKind,
        channel: u32,
        depth: u32,
        first_generation: u32,
    ) -> Result<Self, StorageError> {
        let (requests, places) = (ends.as_ref().len(), slots.as_ref().len());
        let sound =
            storage_for(depth) == Some((requests, places)) && slots.as_ref().iter().all(Option::is_none);
        if !sound {
            return Err(StorageError {
                ends: requests,
                slots: places,
            });
        }
        in_place::put(ends.as_mut(), || 0);
        in_place::put(slots.as_mut(), || None);
        let index_bits = requests.trailing_zeros();
        let start = (u64::from(first_generation) & GENERATION_MASK) << index_bits;
        Ok(Self {
            ends,
            slots,
            kind,
            channel,
            index_bits,
            depth,
            tail: start,
            posted: start,
            head: start,
            slot_tail: 0,
            slot_head: 0,
            owned: PhantomData,
        })
    }

    /// How many requests are staged or posted and not retired.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn in_flight(&self) -> u32 {
        self.head.wrapping_sub(self.tail) as u32
    }

    /// How many requests are staged and not posted.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn staged(&self) -> u32 {
        self.head.wrapping_sub(self.posted) as u32
    }

    /// How many more can be staged.
    #[must_use]
    #[inline]
    pub const fn room(&self) -> u32 {
        self.depth.saturating_sub(self.in_flight())
    }

    /// Stages a request with these slots and says what it is to be posted with.
    ///
    /// # Errors
    /// The table is full; the slots are handed back.
    #[inline]
    pub fn stage<const N: usize>(&mut self, slots: [S; N]) -> Result<(Ticket, WorkId), [S; N]> {
        const { assert!(N <= GATHER_MAX) };
        if self.room() == 0 {
            return Err(slots);
        }
        let position = self.head;
        for slot in slots {
            let mask = self.slots.as_ref().len().wrapping_sub(1);
            if let Some(place) = self.slots.as_mut().get_mut(self.slot_head as usize & mask) {
                // The place is empty: there are GATHER_MAX of them for each request in flight.
                *place = Some(slot);
            }
            self.slot_head = self.slot_head.wrapping_add(1);
        }
        let index = self.index_of(position);
        if let Some(end) = self.ends.as_mut().get_mut(index) {
            *end = self.slot_head;
        }
        self.head = position.wrapping_add(1);
        Ok((Ticket(position), self.work_id_of(position)))
    }

    /// Notes that the device has the `count` oldest staged requests.
    #[inline]
    pub fn post(&mut self, count: u32) {
        self.posted = self.posted.wrapping_add(u64::from(count.min(self.staged())));
    }

    /// Takes back what is staged and not posted, in order.
    pub fn unstage(&mut self, mut each: impl FnMut(Ticket, S)) {
        let mut place = if self.posted == self.tail {
            self.slot_tail
        } else {
            self.end_of(self.posted.wrapping_sub(1))
        };
        let keep = place;
        for offset in 0..u64::from(self.staged()) {
            let position = self.posted.wrapping_add(offset);
            let end = self.end_of(position);
            while place != end {
                if let Some(slot) = self.take(place) {
                    each(Ticket(position), slot);
                }
                place = place.wrapping_add(1);
            }
        }
        self.head = self.posted;
        self.slot_head = keep;
    }

    /// Retires everything up to the posted request that `work_id` names.
    ///
    /// `each` gets the slots in posting order, each with the ticket of its request.
    ///
    /// # Errors
    /// The id names no posted request of this table; nothing was retired.
    #[inline]
    pub fn retire(&mut self, work_id: WorkId, mut each: impl FnMut(Ticket, S)) -> Result<Range, Rejected> {
        let Some(last) = self.find(work_id) else {
            return Err(Rejected(work_id));
        };
        let first = self.tail;
        loop {
            let position = self.tail;
            let end = self.end_of(position);
            while self.slot_tail != end {
                if let Some(slot) = self.take(self.slot_tail) {
                    each(Ticket(position), slot);
                }
                self.slot_tail = self.slot_tail.wrapping_add(1);
            }
            self.tail = position.wrapping_add(1);
            if position == last {
                return Ok(Range {
                    first: Ticket(first),
                    last: Ticket(last),
                });
            }
        }
    }

    /// Takes every slot out, whatever its state: for when the device is proven to be done
    /// with all of them, its queue pair being destroyed.
    pub fn drain(&mut self, mut each: impl FnMut(S)) {
        for place in self.slots.as_mut() {
            if let Some(slot) = place.take() {
                each(slot);
            }
        }
        self.tail = self.head;
        self.posted = self.head;
        self.slot_tail = self.slot_head;
    }

    /// The generation behind all that this table used: where the next table on the same
    /// channel must begin.
    #[must_use]
    pub const fn next_generation(&self) -> u32 {
        ((self.head >> self.index_bits).wrapping_add(1) & GENERATION_MASK) as u32
    }

    /// The posted request that `work_id` names.
    #[inline]
    fn find(&self, work_id: WorkId) -> Option<u64> {
        if work_id.kind() != Some(self.kind) || work_id.channel() != self.channel {
            return None;
        }
        if usize::from(work_id.slot()) >= self.ends.as_ref().len() {
            return None;
        }
        // Position and id agree modulo 2^(24 + index_bits); the window of posted requests is
        // far smaller than that, so the offset from its beginning is unambiguous.
        let named = u64::from(work_id.generation()) << self.index_bits | u64::from(work_id.slot());
        let modulus_mask = GENERATION_MASK << self.index_bits | index_mask(self.index_bits);
        let offset = named.wrapping_sub(self.tail) & modulus_mask;
        (offset < self.posted.wrapping_sub(self.tail)).then(|| self.tail.wrapping_add(offset))
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the parts are masked to their widths"
    )]
    const fn work_id_of(&self, position: u64) -> WorkId {
        let slot = position & index_mask(self.index_bits);
        let generation = position >> self.index_bits & GENERATION_MASK;
        WorkId::new(self.kind, self.channel, slot as u16, generation as u32)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
    const fn index_of(&self, position: u64) -> usize {
        (position & index_mask(self.index_bits)) as usize
    }

    /// Where the slots of the request at `position` end.
    #[inline]
    fn end_of(&self, position: u64) -> u32 {
        // The index is masked to the length; an empty range is what a wrong one would give.
        self.ends
            .as_ref()
            .get(self.index_of(position))
            .copied()
            .unwrap_or(self.slot_tail)
    }

    #[inline]
    fn take(&mut self, place: u32) -> Option<S> {
        let mask = self.slots.as_ref().len().wrapping_sub(1);
        self.slots
            .as_mut()
            .get_mut(place as usize & mask)
            .and_then(Option::take)
    }
}

/// The low `bits` bits.
#[inline]
const fn index_mask(bits: u32) -> u64 {
    (1_u64 << bits).wrapping_sub(1)
}

impl<S, Ends, Slots> fmt::Debug for InFlight<S, Ends, Slots> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("kind", &self.kind)
            .field("channel", &self.channel)
            .field("depth", &self.depth)
            .field("tail", &self.tail)
            .field("posted", &self.posted)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
