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
//! A request may have no slots: its bytes went inline, or lie in a cell of the queue ([`InFlight::vacancy`]). While no
//! request in flight has slots, a completion retires all up to it by one comparison and looks at none of them.
//!
//! A completion is found by the position in its `wr_id` alone. A stale or duplicate completion lies outside the window
//! of posted requests and is rejected. Queue pairs may use one channel one after the other: for the check to hold
//! across them, a new table begins at a generation behind all that the old one used ([`InFlight::next_generation`]).

use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use core::mem;

use crate::provider::{GATHER_MAX, Rejected};
use crate::work_id::{GENERATION_MASK, POSITION_MASK, SLOTS_MAX};
use crate::{Ticket, WorkId, WorkKind, in_place};

/// The table. Its storage comes from the caller: a [`Request`] for each request in flight.
pub struct InFlight<S, Requests> {
    requests: Requests,
    /// Every id of the table with its position at zero.
    base: WorkId,
    /// The oldest request that is not retired.
    tail: u64,
    /// The oldest request that is not posted.
    posted: u64,
    /// The next request.
    head: u64,
    /// Behind the last request that was staged with slots: no request from here on has any.
    slots_end: u64,
    /// How many requests there is room for: at most the table's length.
    depth: u32,
    owned: PhantomData<S>,
}

/// The slots of one request: those there are stand before the places that are empty.
#[derive(Debug)]
pub struct Request<S>([Option<S>; GATHER_MAX]);

impl<S> Default for Request<S> {
    fn default() -> Self {
        Self([const { None }; GATHER_MAX])
    }
}

/// Why a table cannot be made of this storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// Requests there is storage for: must be a power of two, at most 65,536 and the next above
    /// the depth, each without slots.
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
/// `None` where the depth is zero or beyond 65,536.
#[must_use]
pub const fn storage_for(depth: u32) -> Option<usize> {
    if depth == 0 || depth > SLOTS_MAX {
        return None;
    }
    Some(depth.next_power_of_two() as usize)
}

/// The position of the next request of a table, which has room for it.
#[derive(Debug)]
pub struct Vacancy<'t, S, Requests> {
    table: &'t mut InFlight<S, Requests>,
}

impl<'t, S, Requests: AsRef<[Request<S>]> + AsMut<[Request<S>]>> Vacancy<'t, S, Requests> {
    /// Its place among as many as the storage has. No request in flight has the same place.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
    pub fn place(&self) -> usize {
        self.table.head as usize & self.table.requests.as_ref().len().wrapping_sub(1)
    }

    /// The ticket of a request that is staged there.
    #[must_use]
    #[inline]
    pub const fn ticket(&self) -> Ticket {
        Ticket(self.table.head)
    }

    /// Stages a request without slots. Says what it is to be posted with, and gives the table back.
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
    /// The one the completion names.
    pub last: Ticket,
}

impl<S, Requests: AsRef<[Request<S>]> + AsMut<[Request<S>]>> InFlight<S, Requests> {
    /// An empty table over this storage, whose places must all be empty. All of it is written
    /// to here, so that it is in place from then on.
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

    /// How many requests are staged or posted and not retired.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn in_flight(&self) -> u32 {
        self.head.wrapping_sub(self.tail) as u32
    }

    /// How many requests are posted and not retired.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the depth")]
    pub const fn posted(&self) -> u32 {
        self.posted.wrapping_sub(self.tail) as u32
    }

    /// How many are not posted of as many as the table is deep.
    #[must_use]
    #[inline]
    pub const fn missing(&self) -> u32 {
        self.depth.wrapping_sub(self.posted())
    }

    /// The id of the request at a position of this table.
    #[must_use]
    #[inline]
    pub const fn work_id(&self, ticket: Ticket) -> WorkId {
        self.base.forward(ticket.0)
    }

    /// The oldest request that is not retired, or that comes next where all are.
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

    /// The position behind the last request that is staged.
    #[must_use]
    #[inline]
    pub const fn end(&self) -> Ticket {
        Ticket(self.head)
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
        self.depth.wrapping_sub(self.in_flight())
    }

    /// How many places its storage has: the depth, rounded up to a power of two.
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

    /// Stages a request without slots where there is a vacancy, which the caller knows of.
    #[inline]
    pub const fn stage_vacant(&mut self) -> (Ticket, WorkId) {
        debug_assert!(self.room() != 0, "there is no vacancy");
        let position = self.head;
        self.head = position.wrapping_add(1);
        (Ticket(position), self.base.forward(position))
    }

    /// Stages requests without slots, up to before this one. There is room for them, which the caller knows of, and no later one is staged.
    #[inline]
    pub const fn stage_vacant_to(&mut self, end: Ticket) {
        debug_assert!(
            end.0.wrapping_sub(self.head) <= self.room() as u64,
            "there is no room"
        );
        self.head = end.0;
    }

    /// Notes that the device has every request up to before this one. Requests that were not staged have no slots, and there is room
    /// for them, which the caller knows of.
    #[inline]
    pub const fn post_to(&mut self, end: Ticket) {
        self.stage_vacant_to(end);
        self.posted = end.0;
    }

    /// Stages a request with these slots and says what it is to be posted with.
    ///
    /// # Errors
    /// The table is full; the slots are handed back.
    #[inline(always)]
    pub fn stage<const N: usize>(&mut self, slots: [S; N]) -> Result<(Ticket, WorkId), [S; N]> {
        let position = self.head;
        if self.room() == 0 {
            return Err(slots);
        }
        self.stage_at(Ticket(position), slots);
        Ok((Ticket(position), self.base.forward(position)))
    }

    /// Stages a request with these slots at this position, and those in front of it that are not staged, without slots. There is room
    /// for it, which the caller knows of.
    #[inline(always)]
    pub fn stage_at<const N: usize>(&mut self, ticket: Ticket, slots: [S; N]) {
        const { assert!(N <= GATHER_MAX) };
        let position = ticket.position();
        self.stage_vacant_to(ticket.forward(1));
        if N != 0 {
            self.slots_end = self.head;
            if let Some(request) = at(self.requests.as_mut(), position) {
                for (place, slot) in request.0.iter_mut().zip(&mut slots.map(Some)) {
                    // The place is empty: its request was retired. Nothing is forgotten, and no code
                    // stands here for a slot that would have to go home.
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

    /// Takes back what is staged and not posted, in order. If `each` panics, the slots it did not get are dropped.
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

    /// Retires everything up to the posted request that `work_id` names.
    ///
    /// `each` gets the slots in posting order, each with the ticket of its request. If it panics, all
    /// of them are retired, and the slots it did not get are dropped.
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

    /// Retires everything up to the posted request that `work_id` names, as [`InFlight::retire`] does, and returns the ticket of that
    /// request. `None` if it names none, and nothing is retired.
    #[inline(always)]
    pub fn retire_found<F: FnMut(Ticket, S)>(&mut self, work_id: WorkId, each: F) -> Option<Ticket> {
        let Some(last) = self.find(work_id) else {
            self.note_missed();
            return None;
        };
        self.retire_to(last, each);
        Some(Ticket(last))
    }

    /// Does nothing: the compiler is to believe that it reads the table.
    // Apart, and with all of the table: so a loop over completions keeps nothing of it in registers, which costs more than it spares.
    #[cold]
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn note_missed(&mut self) {
        core::hint::black_box(self);
    }

    /// Retires everything up to this posted request.
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

    /// Whether `work_id` names the oldest request, and that is posted.
    #[must_use]
    #[inline(always)]
    pub fn is_oldest(&self, work_id: WorkId) -> bool {
        work_id == self.base.forward(self.tail) && self.tail != self.posted
    }

    /// Retires the oldest request, if that is posted, `work_id` names it, and it has one slot; returns that. Else nothing
    /// is retired, and [`InFlight::retire`] is to be asked.
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

    /// Takes every slot out, whatever its state. If `each` panics, call it again for the rest.
    ///
    /// The device must be proven to be done with all of them, its queue pair being destroyed or reset. The next requests get ids behind
    /// all that were given out, so completions of those before name nothing.
    pub fn drain(&mut self, mut each: impl FnMut(S)) {
        for request in self.requests.as_mut() {
            request.0.iter_mut().filter_map(Option::take).for_each(&mut each);
        }
        self.tail = self.head;
        self.posted = self.head;
    }

    /// The generation behind all that this table used: where the next table on the same
    /// channel must begin.
    #[must_use]
    pub const fn next_generation(&self) -> u32 {
        self.base.at(self.head).generation().wrapping_add(1) & GENERATION_MASK
    }

    /// The posted request that `work_id` names.
    #[inline]
    fn find(&self, work_id: WorkId) -> Option<u64> {
        // Position and id agree modulo 2^40; the window of posted requests is far smaller than
        // that, so the offset from its beginning is unambiguous.
        let offset = work_id.position().wrapping_sub(self.tail) & POSITION_MASK;
        let is_ours = work_id.at(0) == self.base;
        (is_ours && offset < self.posted.wrapping_sub(self.tail)).then(|| self.tail.wrapping_add(offset))
    }
}

impl<Requests: AsRef<[Request<Infallible>]> + AsMut<[Request<Infallible>]>> InFlight<Infallible, Requests> {
    /// Retires the oldest request, if that is posted: of a table whose owner has the slots and knows that a completion names it. Says
    /// whether it did.
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

/// The request at `position`. It is there: their number is a power of two.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
fn at<S>(requests: &mut [Request<S>], position: u64) -> Option<&mut Request<S>> {
    // The mask comes from the length itself, so the compiler can prove the index to be in bounds.
    let index_mask = requests.len().wrapping_sub(1);
    requests.get_mut(position as usize & index_mask)
}

/// Takes the slots of all requests from `first` to before `end` out.
// A function of its own: in a loop that posts, too, it would have to share the registers. It has no guard, so that the
// optimiser sees of it by itself that it cannot unwind.
#[cfg_attr(not(doorbell_in_line), inline(never))]
fn take_all<S, F: FnMut(Ticket, S)>(requests: &mut [Request<S>], first: u64, end: u64, mut each: F) {
    let mut position = first;
    // Two runs where the storage ends in between, else one.
    while position != end {
        for request in run(requests, position, end.wrapping_sub(position)) {
            take(request, Ticket(position), &mut each);
            position = position.wrapping_add(1);
        }
    }
}

/// Requests whose slots are being taken out: dropped, as by a panic, it drops what is left of them.
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

/// The requests from `position` on that lie one behind the other: at most `count`, and at least one.
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

/// Takes the slots of a request out.
// `each` stands here once, so that it may be large and still become part of the loop.
#[inline(always)]
fn take<S>(request: &mut Request<S>, ticket: Ticket, each: &mut impl FnMut(Ticket, S)) {
    for place in &mut request.0 {
        // Looked at before it is taken: behind the first there is mostly nothing.
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
