//! The in-flight table: which slots the device holds, and which completion returns them.
//!
//! One table serves one queue of one queue pair, whose requests complete in posting order.
//! A request is *staged* (the provider wrote it down), then *posted* (the device has it),
//! then *retired* by a completion that names it or a later one. Each step takes constant time,
//! whatever the number of requests in flight.
//!
//! The table makes slots sound: it owns them while the device may access them. Each provider
//! embeds it privately and passes it only completions of the device.
//!
//! A request may have no slots: its bytes were inline, or are in a cell of the queue ([`InFlight::vacancy`]). While no
//! request in flight has slots, a completion retires all requests up to its own by one comparison, without visiting them.
//!
//! A completion is found by the position in its `wr_id` alone. A stale or duplicate completion lies outside the window
//! of posted requests and is rejected. Several queue pairs may use one channel, one after the other. For the check to
//! hold across them, a new table begins at a generation after all of the old table ([`InFlight::next_generation`]).

use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use core::mem;

use crate::provider::{GATHER_MAX, Rejected};
use crate::work_id::{GENERATION_MASK, POSITION_MASK, SLOTS_MAX};
use crate::{Ticket, WorkId, WorkKind, in_place};

/// The in-flight table. Its storage comes from the caller: a [`Request`] for each request in flight.
pub struct InFlight<S, Requests> {
    requests: Requests,
    /// The kind and channel of all ids of the table; its position is zero.
    base: WorkId,
    /// The oldest request that is not retired.
    tail: u64,
    /// The oldest request that is not posted.
    posted: u64,
    /// The next request to stage.
    head: u64,
    /// The position after the last request that was staged with slots: no request from here on has slots.
    slots_end: u64,
    /// The maximum number of requests in flight, at most the table's length.
    depth: u32,
    owned: PhantomData<S>,
}

/// The slots of one request: filled places come before empty ones.
#[derive(Debug)]
pub struct Request<S>([Option<S>; GATHER_MAX]);

impl<S> Default for Request<S> {
    fn default() -> Self {
        Self([const { None }; GATHER_MAX])
    }
}

/// Storage of a length that no table can use, or with slots in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// The number of requests in the storage. It must be the depth rounded up to a power of two, at
    /// most 65,536, and each request must be without slots.
    pub requests: usize,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an in-flight table cannot be made of {} requests",
            self.requests
        )
    }
}

impl core::error::Error for StorageError {}

/// The storage for a table of this depth, in requests.
///
/// `None` if the depth is zero or beyond 65,536.
#[must_use]
pub const fn storage_for(depth: u32) -> Option<usize> {
    if depth == 0 || depth > SLOTS_MAX {
        return None;
    }
    Some(depth.next_power_of_two() as usize)
}

/// The position of the next request, in a table with room for it.
#[derive(Debug)]
pub struct Vacancy<'t, S, Requests> {
    table: &'t mut InFlight<S, Requests>,
}

impl<'t, S, Requests: AsRef<[Request<S>]> + AsMut<[Request<S>]>> Vacancy<'t, S, Requests> {
    /// The index of its place in the storage. No request in flight has the same place.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
    pub fn place(&self) -> usize {
        self.table.head as usize & self.table.requests.as_ref().len().wrapping_sub(1)
    }

    /// The ticket of a request that is staged at this position.
    #[must_use]
    #[inline]
    pub const fn ticket(&self) -> Ticket {
        Ticket(self.table.head)
    }

    /// Stages a request without slots. Returns its ticket, the id to post it with, and the table.
    #[inline]
    pub const fn stage(self) -> (Ticket, WorkId, &'t mut InFlight<S, Requests>) {
        let (ticket, work_id) = self.table.stage_vacant();
        (ticket, work_id, self.table)
    }
}

/// The requests that a completion retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first request.
    pub first: Ticket,
    /// The request that the completion names.
    pub last: Ticket,
}

impl<S, Requests: AsRef<[Request<S>]> + AsMut<[Request<S>]>> InFlight<S, Requests> {
    /// An empty table over this storage, whose places must all be empty. The call writes every
    /// entry, so that its memory is mapped from then on.
    ///
    /// # Errors
    /// The storage is not as [`storage_for`] says.
    pub fn new(
        mut requests: Requests,
        kind: WorkKind,
        channel: u32,
        depth: u32,
        first_generation: u32,
    ) -> Result<Self, StorageError> {
        let length = requests.as_ref().len();
        let is_empty = |request: &Request<S>| request.0.iter().all(Option::is_none);
        if storage_for(depth) != Some(length) || !requests.as_ref().iter().all(is_empty) {
            return Err(StorageError { requests: length });
        }
        in_place::put(requests.as_mut(), Request::default);
        let base = WorkId::new(kind, channel, 0, 0);
        let start = WorkId::new(kind, channel, 0, first_generation).position();
        Ok(Self {
            requests,
            base,
            tail: start,
            posted: start,
            head: start,
            slots_end: start,
            depth,
            owned: PhantomData,
        })
    }

    /// The number of requests that are staged or posted, and not retired.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn in_flight(&self) -> u32 {
        self.head.wrapping_sub(self.tail) as u32
    }

    /// The number of requests that are posted and not retired.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn posted(&self) -> u32 {
        self.posted.wrapping_sub(self.tail) as u32
    }

    /// How many more requests could be posted before the device has as many as the depth.
    #[must_use]
    #[inline]
    pub const fn missing(&self) -> u32 {
        self.depth.wrapping_sub(self.posted())
    }

    /// The id of the request with this ticket.
    #[must_use]
    #[inline]
    pub const fn work_id(&self, ticket: Ticket) -> WorkId {
        self.base.forward(ticket.0)
    }

    /// The oldest request that is not retired; the next one if all are.
    #[must_use]
    #[inline]
    pub const fn oldest(&self) -> Ticket {
        Ticket(self.tail)
    }

    /// The first request that is not posted.
    #[must_use]
    #[inline]
    pub const fn next(&self) -> Ticket {
        Ticket(self.posted)
    }

    /// The position after the last staged request.
    #[must_use]
    #[inline]
    pub const fn end(&self) -> Ticket {
        Ticket(self.head)
    }

    /// The number of requests that are staged and not posted.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn staged(&self) -> u32 {
        self.head.wrapping_sub(self.posted) as u32
    }

    /// How many more requests can be staged.
    #[must_use]
    #[inline]
    pub const fn room(&self) -> u32 {
        self.depth.wrapping_sub(self.in_flight())
    }

    /// The number of places in the storage: the depth, rounded up to a power of two.
    #[must_use]
    pub fn places(&self) -> usize {
        self.requests.as_ref().len()
    }

    /// The position of the next request, or `None` while the table is full.
    #[must_use]
    #[inline]
    pub const fn vacancy(&mut self) -> Option<Vacancy<'_, S, Requests>> {
        if self.room() == 0 {
            None
        } else {
            Some(Vacancy { table: self })
        }
    }

    /// Stages a request without slots. The caller makes sure that the table has room.
    #[inline]
    pub const fn stage_vacant(&mut self) -> (Ticket, WorkId) {
        debug_assert!(self.room() != 0, "there is no vacancy");
        let position = self.head;
        self.head = position.wrapping_add(1);
        (Ticket(position), self.base.forward(position))
    }

    /// Stages requests without slots, up to but not including `end`. The caller makes sure that the table has room, and that no later
    /// request is staged.
    #[inline]
    pub const fn stage_vacant_to(&mut self, end: Ticket) {
        debug_assert!(
            end.0.wrapping_sub(self.head) <= self.room() as u64,
            "there is no room"
        );
        self.head = end.0;
    }

    /// Notes that the device has every request before `end`. Requests that were not staged have no slots. The caller makes sure that the
    /// table has room for them.
    #[inline]
    pub const fn post_to(&mut self, end: Ticket) {
        self.stage_vacant_to(end);
        self.posted = end.0;
    }

    /// Stages a request with these slots. Returns its ticket and the id to post it with.
    ///
    /// # Errors
    /// The table is full; the slots are returned.
    #[inline(always)]
    pub fn stage<const N: usize>(&mut self, slots: [S; N]) -> Result<(Ticket, WorkId), [S; N]> {
        let position = self.head;
        if self.room() == 0 {
            return Err(slots);
        }
        self.stage_at(Ticket(position), slots);
        Ok((Ticket(position), self.base.forward(position)))
    }

    /// Stages a request with these slots at this position, and requests without slots at all positions before it that are not staged.
    /// The caller makes sure that the table has room.
    #[inline(always)]
    pub fn stage_at<const N: usize>(&mut self, ticket: Ticket, slots: [S; N]) {
        const { assert!(N <= GATHER_MAX) };
        let position = ticket.position();
        self.stage_vacant_to(ticket.forward(1));
        if N != 0 {
            self.slots_end = self.head;
            if let Some(request) = at(self.requests.as_mut(), position) {
                for (place, slot) in request.0.iter_mut().zip(&mut slots.map(Some)) {
                    // The place is empty, since its request was retired. So `forget` leaks nothing, and the compiler
                    // emits no code that drops a slot here.
                    mem::forget(mem::replace(place, slot.take()));
                }
            }
        }
    }

    /// Notes that the device has the `count` oldest staged requests.
    #[inline]
    pub fn post(&mut self, count: u32) {
        self.posted = self.posted.wrapping_add(u64::from(count.min(self.staged())));
    }

    /// Notes that the device has every staged request.
    #[inline]
    pub const fn post_all(&mut self) {
        self.posted = self.head;
    }

    /// Takes back the requests that are staged and not posted, in order. If `each` panics, the slots it did not get are dropped.
    pub fn unstage(&mut self, mut each: impl FnMut(Ticket, S)) {
        // Noted before `each` is called, which may panic.
        let end = mem::replace(&mut self.head, self.posted);
        let rest = Rest {
            requests: self.requests.as_mut(),
            first: self.posted,
            end,
        };
        for offset in 0..end.wrapping_sub(rest.first) {
            let position = rest.first.wrapping_add(offset);
            if let Some(request) = at(rest.requests, position) {
                take(request, Ticket(position), &mut each);
            }
        }
        mem::forget(rest);
    }

    /// Retires all requests up to the posted request that `work_id` names.
    ///
    /// `each` gets the slots in posting order, each with the ticket of its request. If it panics, all
    /// requests are retired, and the slots it did not get are dropped.
    ///
    /// # Errors
    /// The id names no posted request of this table; nothing was retired.
    #[inline(always)]
    pub fn retire<F: FnMut(Ticket, S)>(&mut self, work_id: WorkId, each: F) -> Result<Range, Rejected> {
        let Some(last) = self.find(work_id) else {
            return Err(Rejected(work_id));
        };
        let first = self.tail;
        self.retire_to(last, each);
        Ok(Range {
            first: Ticket(first),
            last: Ticket(last),
        })
    }

    /// Retires all requests up to the posted request that `work_id` names, as [`InFlight::retire`] does, and returns the ticket of that
    /// request. Retires nothing and returns `None` if the id names no posted request.
    #[inline(always)]
    pub fn retire_found<F: FnMut(Ticket, S)>(&mut self, work_id: WorkId, each: F) -> Option<Ticket> {
        let Some(last) = self.find(work_id) else {
            self.note_missed();
            return None;
        };
        self.retire_to(last, each);
        Some(Ticket(last))
    }

    /// Does nothing, but the compiler has to assume that the call reads and writes the table.
    // A separate function that gets the whole table. So a loop over completions keeps no field of the table in a register: that costs
    // more than it saves.
    #[cold]
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn note_missed(&mut self) {
        core::hint::black_box(self);
    }

    /// Retires all requests up to this posted one.
    #[inline(always)]
    fn retire_to<F: FnMut(Ticket, S)>(&mut self, last: u64, mut each: F) {
        let first = self.tail;
        let end = last.wrapping_add(1);
        // Noted before `each` is called, which may panic.
        self.tail = end;
        if self.slots_end > first {
            let rest = Rest {
                requests: self.requests.as_mut(),
                first,
                end,
            };
            if first == last {
                if let Some(request) = at(rest.requests, last) {
                    take(request, Ticket(last), &mut each);
                }
            } else {
                take_all(rest.requests, first, end, each);
            }
            mem::forget(rest);
        }
    }

    /// Whether `work_id` names the oldest request, and the request is posted.
    #[must_use]
    #[inline(always)]
    pub fn is_oldest(&self, work_id: WorkId) -> bool {
        work_id == self.base.forward(self.tail) && self.tail != self.posted
    }

    /// Retires the oldest request and returns its slot, if the request is posted, `work_id` names it, and it has exactly one
    /// slot. Otherwise nothing is retired, and the caller calls [`InFlight::retire`].
    #[inline(always)]
    pub fn retire_oldest(&mut self, work_id: WorkId) -> Option<S> {
        if !self.is_oldest(work_id) {
            return None;
        }
        let tail = self.tail;
        let request = at(self.requests.as_mut(), tail)?;
        if request.0[1].is_some() {
            return None;
        }
        let slot = request.0[0].take()?;
        self.tail = tail.wrapping_add(1);
        Some(slot)
    }

    /// Takes out the slots of all requests, whatever their state. If `each` panics, call this function again for the rest.
    ///
    /// The device must be done with all requests, because its queue pair is destroyed or reset. Later requests get new ids, so
    /// completions of earlier requests name nothing.
    pub fn drain(&mut self, mut each: impl FnMut(S)) {
        for request in self.requests.as_mut() {
            request.0.iter_mut().filter_map(Option::take).for_each(&mut each);
        }
        self.tail = self.head;
        self.posted = self.head;
    }

    /// The generation after all that this table used. The next table on the same channel must
    /// begin there.
    #[must_use]
    pub const fn next_generation(&self) -> u32 {
        self.base.at(self.head).generation().wrapping_add(1) & GENERATION_MASK
    }

    /// The posted request that `work_id` names.
    #[inline]
    fn find(&self, work_id: WorkId) -> Option<u64> {
        // An id has the position modulo 2^40. The window of posted requests is far smaller than
        // that, so the offset from its beginning is unambiguous.
        let offset = work_id.position().wrapping_sub(self.tail) & POSITION_MASK;
        let is_ours = work_id.at(0) == self.base;
        (is_ours && offset < self.posted.wrapping_sub(self.tail)).then(|| self.tail.wrapping_add(offset))
    }
}

impl<Requests: AsRef<[Request<Infallible>]> + AsMut<[Request<Infallible>]>> InFlight<Infallible, Requests> {
    /// Retires the oldest request if it is posted, and returns whether it did. This is for a table whose owner keeps the slots, and knows
    /// that a completion names the request.
    #[must_use]
    #[inline(always)]
    pub const fn retire_next(&mut self) -> bool {
        let is_posted = self.tail != self.posted;
        if is_posted {
            self.tail = self.tail.wrapping_add(1);
        }
        is_posted
    }
}

/// The request at `position`. It exists, since the length is a power of two.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
fn at<S>(requests: &mut [Request<S>], position: u64) -> Option<&mut Request<S>> {
    // The mask comes from the length itself, so the compiler can prove the index to be in bounds.
    let index_mask = requests.len().wrapping_sub(1);
    requests.get_mut(position as usize & index_mask)
}

/// Takes out the slots of all requests from `first` up to but not including `end`.
// A separate function, so that it does not compete for registers with a loop that also posts. It has no guard, so that the
// optimiser sees from the function alone whether it can unwind.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn take_all<S, F: FnMut(Ticket, S)>(requests: &mut [Request<S>], first: u64, end: u64, mut each: F) {
    let mut position = first;
    // Two runs if the range wraps at the end of the storage, else one.
    while position != end {
        for request in run(requests, position, end.wrapping_sub(position)) {
            take(request, Ticket(position), &mut each);
            position = position.wrapping_add(1);
        }
    }
}

/// Requests whose slots are being taken out. A panic drops this value, which drops the remaining slots.
struct Rest<'r, S> {
    requests: &'r mut [Request<S>],
    first: u64,
    end: u64,
}

impl<S> Drop for Rest<'_, S> {
    #[cold]
    fn drop(&mut self) {
        while self.first != self.end {
            if let Some(request) = at(self.requests, self.first) {
                *request = Request::default();
            }
            self.first = self.first.wrapping_add(1);
        }
    }
}

/// The requests from `position` on that are contiguous in the storage: at least one, and at most `count`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "no more than the table's length")]
fn run<S>(requests: &mut [Request<S>], position: u64, count: u64) -> &mut [Request<S>] {
    let index_mask = requests.len().wrapping_sub(1);
    let from = requests
        .get_mut(position as usize & index_mask..)
        .unwrap_or_default();
    let length = from.len().min(count as usize);
    from.get_mut(..length).unwrap_or_default()
}

/// Takes out the slots of a request.
// `each` is called at one place only, so that a large one is inlined, too.
#[inline(always)]
fn take<S>(request: &mut Request<S>, ticket: Ticket, each: &mut impl FnMut(Ticket, S)) {
    for place in &mut request.0 {
        // Checked before it is taken: mostly only the first place is filled.
        if place.is_none() {
            return;
        }
        if let Some(slot) = place.take() {
            each(ticket, slot);
        }
    }
}

impl<S, Requests> fmt::Debug for InFlight<S, Requests> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("of", &self.base)
            .field("depth", &self.depth)
            .field("tail", &self.tail)
            .field("posted", &self.posted)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
