//! The list of work requests that one call hands to the device: made once, written in place.
//!
//! The requests are in an array, linked in order once, each with its scatter or gather elements. Every batch begins at the
//! first request, so small batches always use the same few cache lines. A post ends the list after the last request, and
//! restores the link afterwards.

use core::cell::UnsafeCell;
use core::ptr;

use doorbell_core::in_place;
use doorbell_core::provider::{GATHER_MAX, WindowRange};
use rdma_sys::{ibv_recv_wr, ibv_sge};

use crate::{Slot, Window};

/// A work request of either kind.
pub(crate) trait Request: Sized {
    /// Makes a request that does nothing.
    fn empty() -> Self;
    /// Links the request to the next.
    fn set_next(&mut self, next: *mut Self);
    /// Sets the address of its elements.
    fn set_elements(&mut self, elements: *mut ibv_sge);
}

impl Request for ibv_recv_wr {
    fn empty() -> Self {
        Self {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        }
    }

    #[inline]
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }

    fn set_elements(&mut self, elements: *mut ibv_sge) {
        self.sg_list = elements;
    }
}

/// The elements of one request.
pub(crate) type Elements = [ibv_sge; GATHER_MAX];

pub(crate) const NOTHING: ibv_sge = ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

/// Returns the elements of a request that does nothing.
pub(crate) const fn no_elements() -> Elements {
    [NOTHING; GATHER_MAX]
}

/// The array of requests. They are in cells, since its entries point to each other: the pointers stay valid through all
/// borrows of `&self`.
pub(crate) struct WorkList<R> {
    entries: Box<[RequestWithElements<R>]>,
}

/// A request and its elements, which are adjacent since they are written together.
struct RequestWithElements<R> {
    request: UnsafeCell<R>,
    elements: UnsafeCell<Elements>,
}

// SAFETY: the pointers in the requests lead into the list's own array, which stays in place when the list is moved, or to
// memory that only the device accesses.
unsafe impl<R> Send for WorkList<R> {}

impl<R: Request> WorkList<R> {
    /// Makes a list for `length` requests, linked, with its pages present. It has one more request, to which the last of them
    /// is linked.
    pub(crate) fn new(length: u32) -> Self {
        let nothing = || RequestWithElements {
            request: UnsafeCell::new(R::empty()),
            elements: UnsafeCell::new(no_elements()),
        };
        let mut entries: Box<[_]> = (0..=length).map(|_| nothing()).collect();
        in_place::put(&mut entries, nothing);
        for RequestWithElements { request, elements } in &mut entries {
            request.get_mut().set_elements(elements.get().cast());
        }
        for (entry, next) in entries.iter().zip(entries.iter().skip(1)) {
            // SAFETY: the array was just made, and nothing else has a pointer into it.
            unsafe { &mut *entry.request.get() }.set_next(next.request.get());
        }
        Self { entries }
    }

    /// The request at `index` and its elements, for writing.
    ///
    /// # Safety
    /// The index is below the length for which the list was made.
    #[inline]
    pub(crate) unsafe fn entry(&mut self, index: u32) -> (&mut R, &mut Elements) {
        // SAFETY: the index is below that length, as the caller vouches, and there are more entries.
        let entry = unsafe { self.entries.get_unchecked(index as usize) };
        // SAFETY: an element of the list's array, borrowed exclusively through `&mut self`. The device reads it only during
        // `submit`, which also borrows exclusively.
        let request = unsafe { &mut *entry.request.get() };
        // SAFETY: as above; another field.
        let elements = unsafe { &mut *entry.elements.get() };
        (request, elements)
    }

    /// Hands the first `count` requests to `post`, which gets the first one and a place for the first refused one. Returns its
    /// status, and how many were posted.
    ///
    /// If a refusal names none of these requests, all count as posted, since a request that the device may have must not be
    /// reused.
    #[inline]
    pub(crate) fn submit(&mut self, count: u32, post: impl FnOnce(*mut R, &mut *mut R) -> i32) -> (i32, u32) {
        let (Some(last), Some(following)) =
            ((count as usize).checked_sub(1), self.entries.get(count as usize))
        else {
            return (0, 0);
        };
        // SAFETY: there is an entry after it, as was just checked.
        let last = unsafe { self.entries.get_unchecked(last) };
        // SAFETY: as above.
        let first = unsafe { self.entries.get_unchecked(0) };
        let [first, last, following] = [first, last, following].map(|entry| entry.request.get());
        // SAFETY: an element of the list's array, borrowed exclusively through `&mut self`.
        unsafe { &mut *last }.set_next(ptr::null_mut());
        let mut refused = ptr::null_mut();
        let status = post(first, &mut refused);
        // SAFETY: as above; the call is over.
        unsafe { &mut *last }.set_next(following);
        if status == 0 {
            return (0, count);
        }
        (status, self.position_of(refused, count))
    }

    /// The position of this request among the first `count`, or `count` if it is none of them.
    #[cold]
    fn position_of(&self, refused: *mut R, count: u32) -> u32 {
        let position = self
            .entries
            .iter()
            .position(|entry| ptr::eq(entry.request.get(), refused));
        position
            .and_then(|position| u32::try_from(position).ok())
            .map_or(count, |position| position.min(count))
    }
}

/// The elements from which a request gathers, or into which it scatters.
pub(crate) struct Description<const N: usize> {
    elements: [ibv_sge; N],
    count: usize,
}

impl<const N: usize> Description<N> {
    /// Makes one element for each slot whose length is not 0.
    ///
    /// Others are left out, since some devices read a length of 0 as 2^31 bytes.
    #[inline]
    pub(crate) fn new(slots: &[Slot; N], length: impl Fn(&Slot) -> u32) -> Self {
        Self::of(slots, |slot| slot.element(length(slot)))
    }

    /// Makes one element for each range whose length is not 0.
    #[inline]
    pub(crate) fn of_ranges(ranges: &[WindowRange<'_, Window>; N]) -> Self {
        Self::of(ranges, Window::element)
    }

    #[inline(always)]
    fn of<T>(parts: &[T; N], element: impl Fn(&T) -> ibv_sge) -> Self {
        let mut elements = [NOTHING; N];
        let mut count = 0_usize;
        for part in parts {
            if let Some(place) = elements.get_mut(count) {
                // An element of length 0 is overwritten by the next one, or not counted.
                *place = element(part);
                count = count.wrapping_add(usize::from(place.length != 0));
            }
        }
        Self { elements, count }
    }

    /// Writes the elements, and returns their number.
    #[inline]
    pub(crate) fn write(self, elements: &mut Elements) -> i32 {
        const { assert!(N <= GATHER_MAX) };
        if let Some(places) = elements.first_chunk_mut() {
            *places = self.elements;
        }
        i32::try_from(self.count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::WorkList;
    use crate::page_faults;
    use doorbell_core::WorkKind;
    use doorbell_core::in_flight::{InFlight, Request, storage_for};
    use doorbell_core::shared_in_flight::{Entry, SharedInFlight, entries_for};
    use rdma_sys::ibv_recv_wr;

    #[test]
    fn work_lists_and_tables_are_in_place_before_they_are_used() {
        const DEPTH: u32 = 1 << 15;
        let requests = core::iter::repeat_with(Request::default).take(storage_for(DEPTH).unwrap());
        let requests: Box<[Request<u64>]> = requests.collect();
        let mut table = InFlight::new(requests, WorkKind::Send, 0, DEPTH, 0).unwrap();
        let entries = core::iter::repeat_with(Entry::default).take(entries_for(DEPTH).unwrap());
        let mut shared = SharedInFlight::<u64, Vec<_>>::new(entries.collect(), 0, DEPTH).unwrap();
        let mut list: WorkList<ibv_recv_wr> = WorkList::new(DEPTH);
        let before = page_faults::minor();
        for index in 0..DEPTH {
            // SAFETY: below the length.
            let (request, elements) = unsafe { list.entry(index) };
            request.num_sge = 4;
            elements[3].length = index;
            let slot = u64::from(index);
            table.stage([slot, slot, slot, slot]).unwrap();
            shared.stage([slot, slot, slot, slot]).unwrap();
        }
        assert_eq!(page_faults::minor() - before, 0);
    }

    fn filled(length: u32) -> WorkList<ibv_recv_wr> {
        let mut list: WorkList<ibv_recv_wr> = WorkList::new(length);
        for index in 0..length {
            // SAFETY: below the length.
            unsafe { list.entry(index) }.0.wr_id = u64::from(index);
        }
        list
    }

    /// The ids that a device would see.
    fn walk(mut request: *mut ibv_recv_wr) -> Vec<u64> {
        let mut seen = Vec::new();
        while !request.is_null() {
            // SAFETY: a request of the list, which is alive.
            seen.push(unsafe { (*request).wr_id });
            // SAFETY: as above.
            request = unsafe { (*request).next };
        }
        seen
    }

    #[test]
    fn the_device_sees_what_is_staged_and_no_more() {
        let mut list = filled(4);
        for count in [1, 4, 2, 3, 4] {
            let outcome = list.submit(count, |first, _| {
                assert_eq!(walk(first), (0..u64::from(count)).collect::<Vec<_>>());
                0
            });
            assert_eq!(outcome, (0, count));
        }
        assert_eq!(
            list.submit(0, |_, _| unreachable!("there is nothing to post")),
            (0, 0)
        );
        assert_eq!(list.submit(5, |_, _| unreachable!("there are but four")), (0, 0));
    }

    #[test]
    fn s4_the_refused_request_says_how_many_went() {
        let mut list = filled(4);
        for refused_at in 0..4 {
            let outcome = list.submit(4, |first, refused| {
                *refused = first;
                for _ in 0..refused_at {
                    // SAFETY: a request of the list, which is alive.
                    *refused = unsafe { (**refused).next };
                }
                libc::ENOMEM
            });
            assert_eq!(outcome, (libc::ENOMEM, refused_at));
        }
    }

    #[test]
    fn an_unnamed_refusal_counts_as_posted() {
        let mut list = filled(3);
        assert_eq!(list.submit(2, |_, _| libc::EIO), (libc::EIO, 2));
        let mut elsewhere = filled(1);
        // SAFETY: below the length.
        let (foreign, _) = unsafe { elsewhere.entry(0) };
        let foreign: *mut _ = foreign;
        let outcome = list.submit(2, |_, refused| {
            *refused = foreign;
            libc::EIO
        });
        assert_eq!(outcome, (libc::EIO, 2));
    }

    #[test]
    fn a_list_may_move() {
        let list = filled(3);
        let mut moved = Box::new(list);
        moved.submit(3, |first, _| {
            assert_eq!(walk(first), [0, 1, 2]);
            0
        });
    }
}
