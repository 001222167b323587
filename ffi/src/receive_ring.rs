//! The ring of a receive queue: the request, elements and memory of each position are in one place.
//!
//! Requests are linked in a circle, once. A receive is staged by writing its id, its elements and its memory into the place
//! of its position, so no search is needed. A post opens the circle after the last staged receive, and then closes it again.
//!
//! The positions decide what a place owns. While a position is staged or posted, its place owns the slots. Otherwise the
//! place owns none, and its bits mean nothing.

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
    /// One entry for each place of the positions. Their number is a power of two.
    places: Box<[ReceivePlace]>,
    /// The number of the completion for which the last slot was taken, if its place is that of the next receive. The place is
    /// unchanged since then, except for the id, which is already that of the next receive. Or [`NOT_LENT`].
    lent: u64,
}

/// A number that no completion has.
const NOT_LENT: u64 = u64::MAX;

/// The place of a position. Its fields are cells, since requests point to each other and to their elements: the pointers
/// stay valid through all borrows of `&self`.
struct ReceivePlace {
    request: UnsafeCell<ibv_recv_wr>,
    /// The id of the receive here if it has one slot, which completions are compared with. The device gets the id in the
    /// request. If the receive does not have one slot, this is the inverted id, which no posted receive has.
    id: Cell<WorkId>,
    /// How many slots the latest receive here has or had.
    count: Cell<usize>,
    /// The first `count` of them were written. The positions decide whether the place owns them.
    slots: UnsafeCell<[MaybeUninit<Slot>; GATHER_MAX]>,
    elements: UnsafeCell<Elements>,
}

// SAFETY: the pointers in the requests lead into the ring's own array, which stays in place when the ring is moved. The slots
// may move to any thread and move with it.
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
        // SAFETY: nothing else has a reference to it, as the caller vouches.
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

    /// Writes the id of the next receive here, which has one slot, as the previous one had.
    ///
    /// # Safety
    /// As for [`ReceivePlace::put`].
    #[inline(always)]
    unsafe fn set_id(&self, work_id: WorkId) {
        // SAFETY: nothing else has a reference to it, as the caller vouches.
        let request = unsafe { &mut *self.request.get() };
        request.wr_id = work_id.to_raw();
        self.id.set(work_id);
    }

    /// Takes out the slot of this number.
    ///
    /// # Safety
    /// The place owns the slot, so the number is below the count. From now on the place does not own it. The caller borrows
    /// the ring exclusively.
    #[inline(always)]
    unsafe fn take(&self, number: usize) -> Slot {
        // SAFETY: nothing else has a reference to it, as the caller vouches.
        let slots = unsafe { &*self.slots.get() };
        // SAFETY: the number is below the count, which is at most the length (`put`).
        let slot = unsafe { slots.get_unchecked(number) };
        // SAFETY: it was written when its receive was staged, and it is taken once, as the caller vouches.
        unsafe { slot.assume_init_read() }
    }
}

impl ReceiveRing {
    /// Makes a ring for these positions, none of which is staged or posted. All its pages are present.
    pub(crate) fn new(positions: Positions) -> Self {
        let mut places: Box<[_]> = (0..positions.places()).map(|_| ReceivePlace::empty()).collect();
        in_place::put(&mut places, ReceivePlace::empty);
        let next = places.iter().cycle().skip(1);
        for (place, next) in places.iter().zip(next) {
            // SAFETY: the array was just made, and nothing else has a reference into it.
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

    /// How many places the ring has.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a power of two from a depth of 32 bits"
    )]
    pub(crate) const fn places(&self) -> u32 {
        self.places.len() as u32
    }

    /// The positions, for reading.
    #[inline(always)]
    pub(crate) const fn positions(&self) -> &Positions {
        &self.positions
    }

    /// The place of a position.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the number of places")]
    fn place(places: &[ReceivePlace], position: Ticket) -> &ReceivePlace {
        let mask = places.len().wrapping_sub(1);
        // SAFETY: the number of places is a power of two and not 0 (`storage_for`), so a masked position is below it.
        unsafe { places.get_unchecked(position.position() as usize & mask) }
    }

    /// Stages a receive into these slots.
    ///
    /// # Errors
    /// There is no room. The slots are handed back.
    #[inline(always)]
    pub(crate) fn stage<const N: usize>(&mut self, slots: [Slot; N]) -> Result<Ticket, [Slot; N]> {
        let Some(vacancy) = self.positions.vacancy() else {
            return Err(slots);
        };
        self.lent = NOT_LENT;
        let (ticket, work_id, _) = vacancy.stage();
        let place = Self::place(&self.places, ticket);
        // SAFETY: the position was vacant, so no staged or posted position has slots in this place. The ring is borrowed
        // exclusively, and requests are posted only during such a borrow (`submit`).
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

    /// Retires the oldest receive if it is posted, `work_id` names it, and it has one slot. `sequence` is the number of the
    /// completion. The slot may be put back into its place if there were `full` receives, which has to be the number of
    /// places.
    #[inline(always)]
    pub(crate) fn retire_oldest(&mut self, work_id: WorkId, sequence: u64, full: u32) -> Option<Retired<'_>> {
        let oldest = self.positions.oldest();
        let place = Self::place(&self.places, oldest);
        // The place has the id of the oldest receive while that is posted.
        if place.id.get() != work_id || !self.positions.retire_next() {
            return None;
        }
        let next = oldest.forward(full.into());
        if next == self.positions.end() {
            // All places had receives, so the next receive that is staged takes this place.
            let next = self.positions.work_id(next);
            // SAFETY: the receive was posted until now, so it is neither staged nor posted now. The ring is borrowed exclusively.
            unsafe { place.set_id(next) };
            self.lent = sequence;
        } else {
            self.lent = NOT_LENT;
        }
        Some(Retired { place })
    }

    /// Whether the slot that was taken for this completion can be put back into its place.
    #[inline(always)]
    pub(crate) const fn has_lent(&self, sequence: u64) -> bool {
        self.lent == sequence
    }

    /// Stages a receive into the slot that was taken last.
    ///
    /// # Safety
    /// The caller owns the slot that was taken for a completion, and gives it up. [`ReceiveRing::has_lent`] has just returned
    /// true for that completion.
    #[inline(always)]
    pub(crate) unsafe fn put_back(&mut self) {
        // The place that the slot was taken from is vacant. Nothing was staged or taken since, so the slot, the elements and
        // their number in it are still those of the previous receive.
        self.positions.stage_vacant();
    }

    /// Prevents that a slot is put back into its place, since something else is staged next.
    #[inline]
    pub(crate) const fn unlend(&mut self) {
        self.lent = NOT_LENT;
    }

    /// Takes all receives up to the posted one that `work_id` names. `each` gets their slots in order. If it panics, the
    /// slots that it did not get return to their arenas.
    ///
    /// # Errors
    /// The id names no posted receive. Nothing was taken.
    #[inline]
    pub(crate) fn retire(
        &mut self,
        work_id: WorkId,
        mut each: impl FnMut(Ticket, Slot),
    ) -> Result<Range, Rejected> {
        let range = self.positions.retire(work_id, |_, never| match never {})?;
        self.unlend();
        // SAFETY: the receives were posted until now.
        unsafe { self.taken(range.first, range.last.forward(1)) }
            .for_each(|(ticket, slot)| each(ticket, slot));
        Ok(range)
    }

    /// Returns all slots to their arenas.
    ///
    /// The device must be proven to be done with all of them, as for `InFlight::drain`.
    pub(crate) fn drain(&mut self) {
        let first = self.positions.oldest();
        let end = self.positions.end();
        self.unlend();
        self.positions.drain(|never| match never {});
        // SAFETY: the receives were staged or posted until now.
        drop(unsafe { self.taken(first, end) });
    }

    /// Takes the slots of the positions from `first` to before `end`.
    ///
    /// # Safety
    /// These positions were staged or posted and are no longer, and nothing was staged since.
    unsafe fn taken(&mut self, first: Ticket, end: Ticket) -> Taken<'_> {
        Taken {
            places: &mut self.places,
            next: first,
            end,
            number: 0,
        }
    }

    /// Hands all staged requests to `post`, which gets the first one and a place for the first refused one. Returns its
    /// status, and how many the device has.
    ///
    /// If a refusal names none of these requests, all count as posted, since a request that the device may have must not be
    /// reused.
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
        // SAFETY: a request of the ring's array, borrowed exclusively through `&mut self`.
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

    /// How many staged requests come before this one, or all of them if it is none of them.
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
        // SAFETY: the receives were staged until now.
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

/// A retired receive whose one slot has not been taken yet. It borrows the ring exclusively.
pub(crate) struct Retired<'r> {
    place: &'r ReceivePlace,
}

impl Retired<'_> {
    #[inline(always)]
    pub(crate) fn take(self) -> Slot {
        // SAFETY: the receive was posted until it was retired, and had one slot, as its id showed. This value is the only one
        // for it.
        unsafe { self.place.take(0) }
    }
}

/// The slots of finished receives, in order. Dropping it returns the rest to their arenas.
struct Taken<'r> {
    places: &'r mut Box<[ReceivePlace]>,
    next: Ticket,
    end: Ticket,
    /// The number of the next slot of the next receive.
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
                // SAFETY: `taken` was called for receives that had their slots, and each is taken once, since number and position
                // only rise. The ring is borrowed exclusively.
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
