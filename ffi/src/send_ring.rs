//! The ring of send requests: made once, written in place, and handed to the device in chains.
//!
//! The ring has as many requests as the queue is deep, linked in a circle, which are used in turn. So each is used again
//! only after all the others, when its previous use is retired. The memory of a cell is therefore written into its request
//! only once.
//!
//! In a queue with cells, each request is *plain* between two doorbells: a SEND from the one element of its cell. A message
//! from a cell then only needs its length, its id and its flags written. Any other request is made plain again after the
//! doorbell.

use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::slice;

use doorbell_core::WorkId;
use doorbell_core::in_place;
use doorbell_core::provider::{Operation, PostFlags};
use rdma_sys::{ibv_send_wr, ibv_sge, ibv_wr_opcode};

use crate::send_queue::{send_flags, write_operation};
use crate::work_list::{Elements, NOTHING, no_elements};

/// The requests of a queue, and the first of them that is not posted.
pub(crate) struct SendRing {
    entries: Box<[UnsafeCell<RingEntry>]>,
    /// A request of one of the entries.
    first: RingRequest,
    /// How many bytes each cell has, or 0 before there are cells.
    cell_bytes: u32,
}

/// A request with its memory. The part that a message from a cell needs comes first.
#[repr(C)]
struct RingEntry {
    /// The element of the cell. Its length is the length of the request's message.
    cell: ibv_sge,
    request: ibv_send_wr,
    /// The request before it.
    previous: *mut ibv_send_wr,
    /// The elements of a request whose memory is not its cell.
    elements: Elements,
}

/// A request of the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingRequest(NonNull<ibv_send_wr>);

// SAFETY: the pointers lead into the ring's own array, which stays in place when the ring is moved, or to memory that only
// the device accesses. The ring has the addresses of the cells' slots, which may move to any thread and move with the queue.
unsafe impl Send for SendRing {}

impl SendRing {
    /// Makes a ring of this many requests, linked, with its pages present.
    pub(crate) fn new(length: u32) -> Self {
        let nothing = || {
            UnsafeCell::new(RingEntry {
                cell: NOTHING,
                // SAFETY: integers, integer newtypes and raw pointers only, for which zero bytes are a value.
                request: unsafe { core::mem::zeroed() },
                previous: ptr::null_mut(),
                elements: no_elements(),
            })
        };
        let mut entries: Box<[_]> = (0..length.max(1)).map(|_| nothing()).collect();
        in_place::put(&mut entries, nothing);
        let requests = entries.iter().map(request_of);
        let mut first = NonNull::dangling();
        for (place, following) in requests.clone().zip(requests.cycle().skip(1)) {
            // SAFETY: requests of the array, to which nothing else has a pointer.
            unsafe { (*place.as_ptr()).next = following.as_ptr() };
            // SAFETY: as above.
            unsafe { (*entry_of(following)).previous = place.as_ptr() };
            // The last request leads to the first.
            first = following;
        }
        Self {
            entries,
            first: RingRequest(first),
            cell_bytes: 0,
        }
    }

    /// How many requests there are.
    pub(crate) fn length(&self) -> usize {
        self.entries.len()
    }

    /// Gives each request its cell, which has this many bytes.
    pub(crate) fn furnish(&mut self, bytes: u32, cells: impl Iterator<Item = ibv_sge>) {
        let mut place = self.first;
        for cell in cells.take(self.length()) {
            // SAFETY: an entry of the ring, which is borrowed exclusively.
            unsafe { (*entry_of(place.0)).cell = cell };
            // SAFETY: as above.
            place = unsafe { place.following() };
        }
        self.cell_bytes = bytes;
        self.make_plain(self.first, u32::MAX);
    }

    /// How many bytes each cell has.
    #[inline(always)]
    pub(crate) const fn cell_bytes(&self) -> u32 {
        self.cell_bytes
    }

    /// The first request that is not posted.
    #[inline(always)]
    pub(crate) const fn first(&self) -> RingRequest {
        self.first
    }

    /// Records that all requests before this one are posted.
    #[inline(always)]
    pub(crate) const fn note_posted(&mut self, first: RingRequest) {
        self.first = first;
    }

    /// Hands the `count` requests before `end`, at least one, to `post`. It gets the first of them and a place for the first
    /// refused one. Returns its status, and how many were posted.
    ///
    /// If a refusal names none of these requests, all count as posted, since a request that the device may have must not be
    /// reused.
    ///
    /// # Safety
    /// From the first request to before `end` there are exactly `count` requests, no more than the ring has.
    #[inline(always)]
    pub(crate) unsafe fn submit(
        &mut self,
        end: RingRequest,
        count: u32,
        post: impl FnOnce(*mut ibv_send_wr, &mut *mut ibv_send_wr) -> i32,
    ) -> (i32, u32) {
        let first = self.first;
        // SAFETY: an entry of the ring, which is borrowed exclusively.
        let last = unsafe { (*entry_of(end.0)).previous };
        // SAFETY: as above.
        unsafe { (*last).next = ptr::null_mut() };
        let mut refused = ptr::null_mut();
        let status = post(first.0.as_ptr(), &mut refused);
        // SAFETY: as above; the call is over.
        unsafe { (*last).next = end.0.as_ptr() };
        if status == 0 {
            self.first = end;
            return (0, count);
        }
        (status, self.submitted_in_part(refused, count))
    }

    /// Records as posted the first `count` requests, as far as they come before the refused one. Returns how many.
    #[cold]
    fn submitted_in_part(&mut self, refused: *mut ibv_send_wr, count: u32) -> u32 {
        let mut posted = 0_u32;
        while posted < count && !ptr::eq(self.first.0.as_ptr(), refused) {
            // SAFETY: a request of the ring, which is borrowed exclusively and closed.
            self.first = unsafe { self.first.following() };
            posted = posted.wrapping_add(1);
        }
        posted
    }

    /// Gives new ids to the first `count` requests. `id` gets the number of requests before each.
    #[cold]
    pub(crate) fn number(&mut self, count: u32, id: impl Fn(u32) -> WorkId) {
        let mut place = self.first;
        let count = usize::try_from(count).map_or(self.entries.len(), |count| count.min(self.entries.len()));
        for at in (0_u32..).take(count) {
            // SAFETY: a request of the ring, which is borrowed exclusively.
            unsafe { (*place.0.as_ptr()).wr_id = id(at).to_raw() };
            // SAFETY: as above.
            place = unsafe { place.following() };
        }
    }

    /// Makes `count` requests from this one on plain, or all of them if there are fewer.
    #[inline(always)]
    pub(crate) fn make_plain(&mut self, place: RingRequest, count: u32) {
        if count == 1 {
            // Whether there are cells does not matter, since every request that is not a message from a cell is written in full.
            // SAFETY: a request of the ring, which is borrowed exclusively.
            unsafe { place.make_plain() };
        } else {
            self.make_all_plain(place, count);
        }
    }

    /// Makes several requests plain, if there are cells.
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn make_all_plain(&mut self, mut place: RingRequest, count: u32) {
        if self.cell_bytes == 0 {
            return;
        }
        let count = (count as usize).min(self.entries.len());
        for _ in 0..count {
            // SAFETY: a request of the ring, which is borrowed exclusively.
            unsafe { place.make_plain() };
            // SAFETY: as above.
            place = unsafe { place.following() };
        }
    }
}

impl RingRequest {
    /// The request after it.
    ///
    /// # Safety
    /// The ring exists, and is borrowed exclusively.
    #[inline(always)]
    pub(crate) unsafe fn following(self) -> Self {
        // SAFETY: a request of the ring, for which the caller vouches.
        let next = unsafe { (*self.0.as_ptr()).next };
        // SAFETY: the ring is closed, except during a post call.
        Self(unsafe { NonNull::new_unchecked(next) })
    }

    /// The request before it.
    ///
    /// # Safety
    /// As for [`RingRequest::following`].
    #[inline(always)]
    pub(crate) unsafe fn previous(self) -> Self {
        // SAFETY: as in `following`.
        let previous = unsafe { (*entry_of(self.0)).previous };
        // SAFETY: the ring was closed when it was made.
        Self(unsafe { NonNull::new_unchecked(previous) })
    }

    /// The request and its elements for memory other than its cell, both to be written.
    ///
    /// # Safety
    /// As for [`RingRequest::following`], as long as they are borrowed.
    #[inline(always)]
    pub(crate) unsafe fn parts<'q>(self) -> (&'q mut ibv_send_wr, &'q mut Elements) {
        // SAFETY: as in `following`.
        let elements = unsafe { &mut (*entry_of(self.0)).elements };
        // SAFETY: as above; another field.
        (unsafe { &mut *self.0.as_ptr() }, elements)
    }

    /// The bytes of its cell.
    ///
    /// # Safety
    /// 1. As for [`RingRequest::following`], as long as they are borrowed. The ring has cells of this many bytes.
    /// 2. No request in flight has this place.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the address is a pointer's")]
    pub(crate) unsafe fn lend<'q>(self, bytes: u32) -> &'q mut [u8] {
        // SAFETY: an entry of the ring (1).
        let address = unsafe { (*entry_of(self.0)).cell.addr };
        let start: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: all the bytes of a slot that the queue owns, mapped and initialised, whose pointer was exposed for the element.
        // The device does not have them (2), and this is the only reference (1).
        unsafe { slice::from_raw_parts_mut(start, bytes as usize) }
    }

    /// Writes a request for the first `len_bytes` bytes of its cell, which `PushError::check_cell` has checked. Returns whether
    /// the request is still plain.
    ///
    /// # Safety
    /// As for [`RingRequest::following`]. The request is plain.
    #[inline(always)]
    pub(crate) unsafe fn write(
        self,
        work_id: WorkId,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> bool {
        // SAFETY: an entry of the ring. The device reads elements only during a post call, and none is running.
        unsafe { (*entry_of(self.0)).cell.length = len_bytes };
        // SAFETY: as above.
        let request = unsafe { &mut *self.0.as_ptr() };
        request.wr_id = work_id.to_raw();
        if matches!(operation, Operation::Send) && len_bytes != 0 {
            request.send_flags = send_flags(flags);
            return true;
        }
        // Some devices read a length of 0 as 2^31 bytes.
        request.num_sge = i32::from(len_bytes != 0);
        write_operation(request, operation, flags);
        false
    }

    /// Makes the request plain.
    ///
    /// # Safety
    /// As for [`RingRequest::following`].
    #[inline(always)]
    pub(crate) unsafe fn make_plain(self) {
        // SAFETY: an entry of the ring.
        let cell = unsafe { &raw mut (*entry_of(self.0)).cell };
        // SAFETY: as above.
        let request = unsafe { &mut *self.0.as_ptr() };
        request.sg_list = cell;
        request.num_sge = 1;
        request.opcode = ibv_wr_opcode::IBV_WR_SEND;
    }

    /// Hands only this request to `post`, which gets it and a place for the first refused one. Returns the status, the request
    /// after it, and whether this one counts as posted.
    ///
    /// # Safety
    /// As for [`RingRequest::following`].
    #[inline(always)]
    pub(crate) unsafe fn submit(
        self,
        post: impl FnOnce(*mut ibv_send_wr, &mut *mut ibv_send_wr) -> i32,
    ) -> (i32, Self, bool) {
        // SAFETY: as the caller vouches.
        let following = unsafe { self.following() };
        // SAFETY: a request of the ring.
        unsafe { (*self.0.as_ptr()).next = ptr::null_mut() };
        let mut refused = ptr::null_mut();
        let status = post(self.0.as_ptr(), &mut refused);
        // SAFETY: as above; the call is over.
        unsafe { (*self.0.as_ptr()).next = following.0.as_ptr() };
        (status, following, !ptr::eq(self.0.as_ptr(), refused))
    }
}

/// The request of an entry, as a pointer that may reach all of the entry.
fn request_of(entry: &UnsafeCell<RingEntry>) -> NonNull<ibv_send_wr> {
    let at: NonNull<u8> = NonNull::from(entry).cast();
    // SAFETY: within the entry.
    unsafe { at.byte_add(core::mem::offset_of!(RingEntry, request)) }.cast()
}

/// Returns the entry of a request of a ring.
#[inline(always)]
const fn entry_of(request: NonNull<ibv_send_wr>) -> *mut RingEntry {
    // Wrapping, so that this needs no safety argument. The result is the start of the entry.
    request
        .as_ptr()
        .cast::<u8>()
        .wrapping_sub(core::mem::offset_of!(RingEntry, request))
        .cast()
}

#[cfg(test)]
mod tests {
    use super::{RingRequest, SendRing};
    use crate::page_faults;
    use crate::work_list::NOTHING;
    use doorbell_core::provider::{Operation, PostFlags};
    use doorbell_core::{WorkId, WorkKind};
    use rdma_sys::{ibv_send_wr, ibv_sge, ibv_wr_opcode};

    fn ring(length: u32) -> SendRing {
        let mut ring = SendRing::new(length);
        let cell = |index: u32| ibv_sge {
            // Never looked at.
            addr: u64::from(index) << 12,
            length: 64,
            lkey: index,
        };
        ring.furnish(64, (0..length).map(cell));
        ring
    }

    fn id(number: u32) -> WorkId {
        WorkId::new(WorkKind::Send, 0, 0, 0).at(number.into())
    }

    /// Writes so many plain requests behind the first, numbered from this. Returns their end.
    fn written(ring: &SendRing, numbers: core::ops::Range<u32>) -> RingRequest {
        let mut place = ring.first();
        for number in numbers {
            // SAFETY: the ring is there, and nobody else has it.
            let is_plain = unsafe { place.write(id(number), Operation::Send, 8, PostFlags::empty()) };
            assert!(is_plain);
            // SAFETY: as above.
            place = unsafe { place.following() };
        }
        place
    }

    /// Each request as a device would see it: its number, its operation, and its element.
    fn walk(mut request: *mut ibv_send_wr) -> Vec<(u64, ibv_wr_opcode, u32)> {
        let mut seen = Vec::new();
        while !request.is_null() {
            // SAFETY: a request of the ring, which is there.
            let one = unsafe { &*request };
            assert_eq!(one.num_sge, 1);
            // SAFETY: an element of the ring.
            let element = unsafe { &*one.sg_list };
            assert_eq!(element.addr, u64::from(element.lkey) << 12);
            seen.push((one.wr_id & 0xffff, one.opcode, element.lkey));
            request = one.next;
        }
        seen
    }

    #[test]
    fn each_chain_begins_where_the_one_before_ended() {
        let mut ring = ring(3);
        let mut number = 0;
        for count in [1, 3, 2, 3, 1] {
            let numbers = number..number + count;
            let end = written(&ring, numbers.clone());
            let post = |first: *mut ibv_send_wr, _: &mut *mut ibv_send_wr| {
                let expected = numbers
                    .clone()
                    .map(|at| (at.into(), ibv_wr_opcode::IBV_WR_SEND, at % 3));
                assert_eq!(walk(first), expected.collect::<Vec<_>>());
                0
            };
            // SAFETY: as many were written.
            assert_eq!(unsafe { ring.submit(end, count, post) }, (0, count));
            number += count;
        }
    }

    #[test]
    fn requests_of_a_chain_are_numbered_anew() {
        let mut ring = ring(3);
        let end = written(&ring, 0..2);
        ring.number(2, |at| id(at + 7));
        let post = |first: *mut ibv_send_wr, _: &mut *mut ibv_send_wr| {
            let expected = [
                (7, ibv_wr_opcode::IBV_WR_SEND, 0),
                (8, ibv_wr_opcode::IBV_WR_SEND, 1),
            ];
            assert_eq!(walk(first), expected);
            0
        };
        // SAFETY: as many were written.
        assert_eq!(unsafe { ring.submit(end, 2, post) }, (0, 2));
    }

    #[test]
    fn s4_the_refused_request_says_how_many_went() {
        for refused_at in 0..3 {
            let mut ring = ring(4);
            let end = written(&ring, 0..3);
            let post = |first: *mut ibv_send_wr, refused: &mut *mut ibv_send_wr| {
                *refused = first;
                for _ in 0..refused_at {
                    // SAFETY: a request of the ring, which is there.
                    *refused = unsafe { (**refused).next };
                }
                libc::ENOMEM
            };
            // SAFETY: as many were written.
            assert_eq!(unsafe { ring.submit(end, 3, post) }, (libc::ENOMEM, refused_at));
            // The first that was refused is the next.
            let end = written(&ring, 7..8);
            let post = |first: *mut ibv_send_wr, _: &mut *mut ibv_send_wr| {
                assert_eq!(walk(first), [(7, ibv_wr_opcode::IBV_WR_SEND, refused_at)]);
                0
            };
            // SAFETY: as above.
            assert_eq!(unsafe { ring.submit(end, 1, post) }, (0, 1));
        }
    }

    #[test]
    fn an_unnamed_refusal_counts_as_posted() {
        let mut ring = ring(3);
        let end = written(&ring, 0..2);
        // SAFETY: as many were written.
        let outcome = unsafe { ring.submit(end, 2, |_, _| libc::EIO) };
        assert_eq!((outcome, ring.first() == end), ((libc::EIO, 2), true));
    }

    #[test]
    fn what_is_made_plain_goes_out_from_its_cell() {
        let mut ring = ring(2);
        let first = ring.first();
        // SAFETY: the ring is there, and nobody else has it.
        let (request, elements) = unsafe { first.parts() };
        request.sg_list = elements.as_mut_ptr();
        request.num_sge = 0;
        // SAFETY: as above.
        let second = unsafe { first.following() };
        // SAFETY: as above.
        let is_plain = unsafe { second.write(id(1), Operation::SendWithImmediate(7), 8, PostFlags::empty()) };
        // SAFETY: as above.
        let is_empty_plain = unsafe { second.write(id(1), Operation::Send, 0, PostFlags::empty()) };
        assert!(!is_plain && !is_empty_plain);
        ring.make_plain(first, 2);
        let end = written(&ring, 4..6);
        let post = |first: *mut ibv_send_wr, _: &mut *mut ibv_send_wr| {
            let send = ibv_wr_opcode::IBV_WR_SEND;
            assert_eq!(walk(first), [(4, send, 0), (5, send, 1)]);
            0
        };
        // SAFETY: as many were written.
        assert_eq!(unsafe { ring.submit(end, 2, post) }, (0, 2));
    }

    #[test]
    fn a_ring_may_move_and_is_in_place_before_it_is_used() {
        const DEPTH: u32 = 1 << 12;
        let mut ring = Box::new(SendRing::new(DEPTH));
        ring.furnish(64, (0..DEPTH).map(|_| NOTHING));
        let before = page_faults::minor();
        let end = written(&ring, 0..DEPTH);
        assert!(end == ring.first());
        assert_eq!(page_faults::minor() - before, 0);
    }
}
