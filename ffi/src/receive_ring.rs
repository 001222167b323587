//! The ring of a receive queue: request, elements and memory of each position stand in one place.
//!
//! Requests are linked in a circle, once. Staging a receive writes its id, its elements and its memory where the position says, so
//! nothing is looked up. Posting cuts the circle behind the last receive that is staged, and mends it.
//!
//! The positions say whose the memory of a place is. While a position is staged or posted, the place owns its slots. At any other time
//! it owns none, and the bits that stand there mean nothing.

use core::cell::{Cell, UnsafeCell};
use core::convert::Infallible;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;

use doorbell_core::in_flight::Range;
use doorbell_core::provider::{GATHER_MAX, Rejected};
use doorbell_core::{Ticket, WorkId, in_place};
use rdma_sys::{ibv_recv_wr, ibv_sge};

use crate::Slot;
use crate::queue_pair::Table;
use crate::unposted::Staging;
use crate::work_list::{Description, Elements};

/// The positions of receives. The ring has their slots.
pub(crate) type Positions = Table<Infallible>;

/// The ring, which owns the slots of all receives that are staged or posted.
pub(crate) struct ReceiveRing {
    positions: Positions,
    /// One for each place of the positions: their number is a power of two.
    places: Box<[ReceivePlace]>,
    /// The number of the completion for which the last slot was taken, if its place is the next receive's and is as the slot left
    /// it, but for the id, which is the next receive's. Or [`NOT_LENT`].
    lent: u64,
}

/// The number of no completion.
const NOT_LENT: u64 = u64::MAX;

/// The place of a position. In cells, since requests point to each other and to their elements: the pointers stay good
/// whatever is borrowed through `&self`.
struct ReceivePlace {
    request: UnsafeCell<ibv_recv_wr>,
    /// The id of the receive here if it has one slot, for a completion to be compared with: the device gets the one in the request. Else
    /// all bits of that are turned, which is the id of none that is posted.
    id: Cell<WorkId>,
    /// How many slots the last receive here has or had.
    count: Cell<usize>,
    /// As many of them as `count` says were written. They are owned as the positions say.
    slots: UnsafeCell<[MaybeUninit<Slot>; GATHER_MAX]>,
    elements: UnsafeCell<Elements>,
}

// SAFETY: the pointers in the requests lead into the ring's own array, which stays where it is while the ring goes elsewhere. The slots
// may go to any thread and go with it.
unsafe impl Send for ReceiveRing {}

impl ReceivePlace {
    fn empty() -> Self {
        const NOTHING: ibv_sge = ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            request: UnsafeCell::new(ibv_recv_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            }),
            id: Cell::new(WorkId::from_raw(!0)),
            count: Cell::new(0),
            slots: UnsafeCell::new([const { MaybeUninit::uninit() }; GATHER_MAX]),
            elements: UnsafeCell::new([NOTHING; GATHER_MAX]),
        }
    }

    /// Writes a receive here.
    ///
    /// # Safety
    /// The place owns no slots, and its request is not being posted. The caller borrows the ring exclusively.
    #[inline(always)]
    unsafe fn put<const N: usize>(&self, work_id: WorkId, slots: [Slot; N]) {
        const { assert!(N <= GATHER_MAX) };
        // SAFETY: nobody else has a reference to it, as the caller vouches.
        let request = unsafe { &mut *self.request.get() };
        // SAFETY: as above; another field.
        let elements = unsafe { &mut *self.elements.get() };
        // SAFETY: as above; another field.
        let places = unsafe { &mut *self.slots.get() };
        request.wr_id = work_id.to_raw();
        self.id.set(match N {
            1 => work_id,
            _ => WorkId::from_raw(!work_id.to_raw()),
        });
        request.num_sge = Description::new(&slots, Slot::capacity).write(elements);
        if let Some(places) = places.first_chunk_mut() {
            *places = slots.map(MaybeUninit::new);
        }
        self.count.set(N);
    }

    /// Writes the id of the next receive here, which has one slot as the last had.
    ///
    /// # Safety
    /// As for [`ReceivePlace::put`].
    #[inline(always)]
    unsafe fn set_id(&self, work_id: WorkId) {
        // SAFETY: nobody else has a reference to it, as the caller vouches.
        let request = unsafe { &mut *self.request.get() };
        request.wr_id = work_id.to_raw();
        self.id.set(work_id);
    }

    /// Takes the slot of this number out.
    ///
    /// # Safety
    /// The place owns that slot, so its number is below their count, and does not from now on. The caller borrows the ring exclusively.
    #[inline(always)]
    unsafe fn take(&self, number: usize) -> Slot {
        // SAFETY: nobody else has a reference to it, as the caller vouches.
        let slots = unsafe { &*self.slots.get() };
        // SAFETY: the count is of at most as many (`put`).
        let slot = unsafe { slots.get_unchecked(number) };
        // SAFETY: it was written, as its owner's receive was staged, and is taken once, as the caller vouches.
        unsafe { slot.assume_init_read() }
    }
}

impl ReceiveRing {
    /// A ring of these positions, none of which is staged or posted. All of it is in place.
    pub(crate) fn new(positions: Positions) -> Self {
        let mut places: Box<[_]> = (0..positions.places()).map(|_| ReceivePlace::empty()).collect();
        in_place::put(&mut places, ReceivePlace::empty);
        let next = places.iter().cycle().skip(1);
        for (place, next) in places.iter().zip(next) {
            // SAFETY: the array was just made, and nobody else has a reference into it.
            let request = unsafe { &mut *place.request.get() };
            request.sg_list = place.elements.get().cast();
            request.next = next.request.get();
        }
        Self {
            positions,
            places,
            lent: NOT_LENT,
        }
    }

    /// How many places it has.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a power of two from a depth of 32 bits"
    )]
    pub(crate) const fn places(&self) -> u32 {
        self.places.len() as u32
    }

    /// The positions, to be asked.
    #[inline(always)]
    pub(crate) const fn positions(&self) -> &Positions {
        &self.positions
    }

    /// The place of a position.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the number of places")]
    fn place(places: &[ReceivePlace], position: Ticket) -> &ReceivePlace {
        let mask = places.len().wrapping_sub(1);
        // SAFETY: their number is a power of two, and not 0 (`storage_for`), so what is masked is below it.
        unsafe { places.get_unchecked(position.position() as usize & mask) }
    }

    /// Stages a receive into these slots.
    ///
    /// # Errors
    /// There is no room; the slots are handed back.
    #[inline(always)]
    pub(crate) fn stage<const N: usize>(&mut self, slots: [Slot; N]) -> Result<Ticket, [Slot; N]> {
        let Some(vacancy) = self.positions.vacancy() else {
            return Err(slots);
        };
        self.lent = NOT_LENT;
        let (ticket, work_id, _) = vacancy.stage();
        let place = Self::place(&self.places, ticket);
        // SAFETY: the position was vacant, so neither it nor another that is staged or posted has slots there. The ring is borrowed
        // exclusively, and a request is posted only while it is (`submit`).
        unsafe { place.put(work_id, slots) };
        Ok(ticket)
    }

    /// The elements of the receive that was staged last.
    pub(crate) fn last_elements(&mut self) -> Option<&mut Elements> {
        if self.positions.staged() == 0 {
            return None;
        }
        let elements = Self::place(&self.places, self.positions.end().back(1))
            .elements
            .get();
        // SAFETY: the ring is borrowed exclusively, as long as the reference lives.
        Some(unsafe { &mut *elements })
    }

    /// Retires the oldest receive, if that is posted, `work_id` names it, and it has one slot. `sequence` is the number of the
    /// completion. Its slot may be put back where it was if there were `full` receives, as many as there are places.
    #[inline(always)]
    pub(crate) fn retire_oldest(&mut self, work_id: WorkId, sequence: u64, full: u32) -> Option<Retired<'_>> {
        let oldest = self.positions.oldest();
        let place = Self::place(&self.places, oldest);
        // The place has its id while it is posted.
        if place.id.get() != work_id || !self.positions.retire_next() {
            return None;
        }
        let next = oldest.forward(full.into());
        if next == self.positions.end() {
            // All places had receives, so the next one that is staged comes here.
            let next = self.positions.work_id(next);
            // SAFETY: the receive was posted until now, so it is neither staged nor posted now. The ring is borrowed exclusively.
            unsafe { place.set_id(next) };
            self.lent = sequence;
        } else {
            self.lent = NOT_LENT;
        }
        Some(Retired { place })
    }

    /// Whether the slot that was taken for this completion can be put back where it was.
    #[inline(always)]
    pub(crate) const fn has_lent(&self, sequence: u64) -> bool {
        self.lent == sequence
    }

    /// Stages a receive into the slot that was taken last.
    ///
    /// # Safety
    /// The caller owned the slot that was taken for a completion, gives it up, and [`ReceiveRing::has_lent`] said so of it just now.
    #[inline(always)]
    pub(crate) unsafe fn put_back(&mut self) {
        // A place was left, the one that the slot was taken from. Nothing was staged or taken since: its slot, its elements and their
        // number are those of the receive that had it.
        self.positions.stage_vacant();
    }

    /// Lets no slot be put back where it was: something else is staged next.
    #[inline]
    pub(crate) const fn unlend(&mut self) {
        self.lent = NOT_LENT;
    }

    /// Takes all receives up to the posted one that `work_id` names; `each` gets their slots in order. If it panics, the slots that it did
    /// not get go home.
    ///
    /// # Errors
    /// The id names no posted receive; nothing was taken.
    #[inline]
    pub(crate) fn retire(
        &mut self,
        work_id: WorkId,
        mut each: impl FnMut(Ticket, Slot),
    ) -> Result<Range, Rejected> {
        let range = self.positions.retire(work_id, |_, never| match never {})?;
        self.unlend();
        // SAFETY: they were posted until now.
        unsafe { self.taken(range.first, range.last.forward(1)) }
            .for_each(|(ticket, slot)| each(ticket, slot));
        Ok(range)
    }

    /// Sends all slots home.
    ///
    /// The device must be proven to be done with all of them, as for `InFlight::drain`.
    pub(crate) fn drain(&mut self) {
        let first = self.positions.oldest();
        let end = self.positions.end();
        self.unlend();
        self.positions.drain(|never| match never {});
        // SAFETY: they were staged or posted until now.
        drop(unsafe { self.taken(first, end) });
    }

    /// The slots from the first of these positions to before the end.
    ///
    /// # Safety
    /// They were staged or posted, are not any more, and nothing was staged since.
    unsafe fn taken(&mut self, first: Ticket, end: Ticket) -> Taken<'_> {
        Taken {
            places: &mut self.places,
            next: first,
            end,
            number: 0,
        }
    }

    /// Hands all that is staged to `post`, which gets the first request and a place for the first that is refused. Returns its status, and
    /// how many the device has.
    ///
    /// A refusal that names no request of them counts as all taken: what the device may have must not be used again.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        post: impl FnOnce(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> i32,
    ) -> (i32, u32) {
        let staged = self.positions.staged();
        if staged == 0 {
            return (0, 0);
        }
        let first = Self::place(&self.places, self.positions.next()).request.get();
        let last = Self::place(&self.places, self.positions.end().back(1))
            .request
            .get();
        // SAFETY: a request of our own array, borrowed exclusively through `&mut self`.
        let following = unsafe { (*last).next };
        // SAFETY: as above.
        unsafe { (*last).next = ptr::null_mut() };
        let mut refused = ptr::null_mut();
        let status = post(first, &mut refused);
        // SAFETY: as above; the call is over.
        unsafe { (*last).next = following };
        if status == 0 {
            self.positions.post_all();
            return (0, staged);
        }
        let posted = self.count_before(refused);
        self.positions.post(posted);
        (status, posted)
    }

    /// How many of what is staged stand before this request; all where it is none of them.
    #[cold]
    fn count_before(&self, refused: *mut ibv_recv_wr) -> u32 {
        let (first, staged) = (self.positions.next(), self.positions.staged());
        let is_it = |offset: &u32| {
            let place = Self::place(&self.places, first.forward((*offset).into()));
            ptr::eq(place.request.get(), refused)
        };
        (0..staged).find(is_it).unwrap_or(staged)
    }
}

impl Staging for ReceiveRing {
    #[inline]
    fn staged(&self) -> u32 {
        self.positions.staged()
    }

    fn unstage(&mut self, mut each: impl FnMut(Ticket, Slot)) {
        let first = self.positions.next();
        let end = self.positions.end();
        self.unlend();
        self.positions.unstage(|_, never| match never {});
        // SAFETY: they were staged until now.
        unsafe { self.taken(first, end) }.for_each(|(ticket, slot)| each(ticket, slot));
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        self.drain();
    }
}

impl fmt::Debug for ReceiveRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.positions, f)
    }
}

/// A receive that was retired, and whose one slot is still to be taken. It borrows the ring exclusively.
pub(crate) struct Retired<'r> {
    place: &'r ReceivePlace,
}

impl Retired<'_> {
    #[inline(always)]
    pub(crate) fn take(self) -> Slot {
        // SAFETY: the receive was posted until it was retired, and had its one slot, as its id said. This value is the only one of it.
        unsafe { self.place.take(0) }
    }
}

/// Slots of receives that are over, in order. The rest goes home as it is dropped.
struct Taken<'r> {
    places: &'r mut Box<[ReceivePlace]>,
    next: Ticket,
    end: Ticket,
    /// Which slot of the next receive comes next.
    number: usize,
}

impl Iterator for Taken<'_> {
    type Item = (Ticket, Slot);

    #[inline]
    fn next(&mut self) -> Option<(Ticket, Slot)> {
        while self.next != self.end {
            let (ticket, number) = (self.next, self.number);
            let place = ReceiveRing::place(self.places, ticket);
            if number < place.count.get() {
                self.number = number.wrapping_add(1);
                // SAFETY: `taken` was called of a receive that had its slots, and each is taken once: the number only rises, and so do the
                // positions. The ring is borrowed exclusively.
                return Some((ticket, unsafe { place.take(number) }));
            }
            self.number = 0;
            self.next = ticket.forward(1);
        }
        None
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        for (_, slot) in self {
            drop(slot);
        }
    }
}

#[cfg(test)]
mod tests;
